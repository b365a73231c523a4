"""The batch: many records of one shard, handed out together.

Invariants:

- A batch holds records of one shard, in order, and at least one.
- Acknowledging a batch twice, or late, is harmless. After the lease is lost, acknowledgements have no effect.
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
        """The shard of the records."""
        shard_id = self.records[0].shard_id
        assert shard_id is not None
        return shard_id

    @property
    def lease(self) -> LeaseInForce | None:
        """The lease under which the records were read: see ``Record.lease``."""
        return self.records[0].lease

    @property
    def values(self) -> list[Any]:
        """The deserialized values of the records: see ``Record.value``."""
        deserializer = self.records[0].origin.deserializer  # shared by all records: saves a property call per record
        return [record.data if deserializer is None else deserializer(record.data) for record in self.records]

    def ack(self) -> bool:
        """Acknowledge all records of the batch.

        Return whether the lease is held. If not, another worker gets the records again.
        """
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
        """Show no data, because it must not get into logs."""
        return f"<Batch of {len(self.records)} records of {self.shard_id}>"
