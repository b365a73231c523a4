"""The batch: many records of one shard, handed out together.

Invariants:

- A batch contains at least one record. All of its records are from one shard, and in order.
- Acknowledging a batch twice, or late, is harmless. After the lease is lost, acknowledgements have no effect.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, final, overload

from shardline.model.record import LeaseInForce, Record, ValueT_co


@final
class Batch(Sequence[Record[ValueT_co]]):
    """Records of one shard, as a sequence. ``Batch[Order]`` contains records whose ``value`` is an ``Order``."""

    __slots__ = ("_acknowledge", "records")

    def __init__(self, records: list[Record[ValueT_co]], acknowledge: "Callable[[Batch[Any]], bool]") -> None:
        assert records, "a batch holds records of one shard, in order, and at least one"
        self.records: list[Record[ValueT_co]] = records
        self._acknowledge = acknowledge

    @property
    def shard_id(self) -> str:
        """The id of the shard that all records of the batch are from."""
        shard_id = self.records[0].shard_id
        assert shard_id is not None
        return shard_id

    @property
    def lease(self) -> LeaseInForce | None:
        """The lease under which the records were read: see ``Record.lease``."""
        return self.records[0].lease

    @property
    def values(self) -> list[ValueT_co]:
        """The deserialized values of the records: see ``Record.value``."""
        deserializer = self.records[0].origin.deserializer  # all records share it: no property call per record
        data: list[Any] = [record.data for record in self.records]
        return data if deserializer is None else list(map(deserializer, data))

    def ack(self) -> bool:
        """Acknowledge all records of the batch.

        Return whether this worker still holds the lease. If not, another worker gets the records again.
        """
        return self._acknowledge(self)

    def __len__(self) -> int:
        return len(self.records)

    def __iter__(self) -> Iterator[Record[ValueT_co]]:
        return iter(self.records)

    @overload
    def __getitem__(self, index: int) -> Record[ValueT_co]: ...
    @overload
    def __getitem__(self, index: slice) -> list[Record[ValueT_co]]: ...
    def __getitem__(self, index: int | slice) -> Record[ValueT_co] | list[Record[ValueT_co]]:
        return self.records[index]

    def __repr__(self) -> str:
        """Return a text without data, because data must not get into logs."""
        return f"<Batch of {len(self.records)} records of {self.shard_id}>"
