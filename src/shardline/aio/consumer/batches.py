"""What is handed to a user who asks for many records at once?

Invariants:

- A batch holds records of one shard, in order, and at least one.
- Acknowledging it twice, or late, is harmless: records of a lost lease are refused.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, final, overload

from shardline.model.record import LeaseInForce, Record


@final
class Batch(Sequence[Record]):
    """Records of one shard, as a sequence."""

    __slots__ = ("_acknowledge", "records")

    def __init__(self, records: list[Record], acknowledge: "Callable[[Batch], bool]") -> None:
        assert records, "a batch holds records of one shard, in order, and at least one"
        self.records: list[Record] = records
        self._acknowledge = acknowledge

    @property
    def shard_id(self) -> str:
        """The shard that all of them are of."""
        shard_id = self.records[0].shard_id
        assert shard_id is not None
        return shard_id

    @property
    def lease(self) -> LeaseInForce | None:
        """The lease that they were read under: see ``Record.lease``."""
        return self.records[0].lease

    @property
    def values(self) -> list[Any]:
        """What the consumer's deserializer makes of each record: see ``Record.value``."""
        deserializer = self.records[0].origin.deserializer  # one for all: without a property call a record
        return [record.data if deserializer is None else deserializer(record.data) for record in self.records]

    def ack(self) -> bool:
        """The whole batch is done. Returns whether its lease is held; if not, the records come again elsewhere."""
        return self._acknowledge(self)

    def __len__(self) -> int:
        return len(self.records)

    def __iter__(self) -> Iterator[Record]:
        return iter(self.records)

    @overload
    def __getitem__(self, index: int) -> Record: ...
    @overload
    def __getitem__(self, index: slice) -> list[Record]: ...
    def __getitem__(self, index: int | slice) -> Record | list[Record]:
        return self.records[index]

    def __repr__(self) -> str:
        """Without the data: that belongs in no log."""
        return f"<Batch of {len(self.records)} records of {self.shard_id}>"
