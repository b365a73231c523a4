"""What is a shard to the service: its range, its parents, its records, its rates?

Invariants:

- SH1: a shard is open until it is closed, once and for ever; then it has an ending sequence number.
- SH2: write rates are per shard and second, records and bytes, both or none.
"""

from typing import Final, final

from shardline.model.hashing import HashRange
from shardline.server.model import sequence_numbers
from shardline.server.model.buckets import Bucket
from shardline.server.model.sequence_numbers import Numbering
from shardline.server.model.settings import Limits
from shardline.server.model.shard_log import RecordCount, ShardLog

_INDEX_MAX: Final = (1 << 31) - 1


@final
class ServerShard:
    """One shard of a stream."""

    __slots__ = (
        "_iterator_calls", "_read_bytes", "_read_calls", "_write_bytes", "_write_records", "adjacent_parent_id",
        "child_ids", "closed_at", "created_at",
        "hash_range", "index", "is_unlimited", "log", "numbering", "parent_id", "shard_id",
    )  # fmt: skip

    def __init__(
        self,
        index: int,
        hash_range: HashRange,
        limits: Limits,
        now: float,
        *,
        began: int,
        layout: int = sequence_numbers.LAYOUT,
        parent_id: str | None = None,
        adjacent_parent_id: str | None = None,
        record_count: RecordCount | None = None,
    ) -> None:
        self.index = index
        self.shard_id = shard_id_of(index)
        self.hash_range = hash_range
        self.created_at = now
        self.closed_at: float | None = None
        self.numbering = Numbering(index, began, layout)
        self.parent_id = parent_id
        self.adjacent_parent_id = adjacent_parent_id
        self.child_ids: list[str] = []
        self.log = ShardLog(record_count)
        self.set_limits(limits, now)

    def set_limits(self, limits: Limits, now: float) -> None:
        self._write_records = _bucket(limits.write_records_per_second, now)
        self._write_bytes = _bucket(limits.write_bytes_per_second, now)
        self._read_calls = _bucket(limits.read_calls_per_second, now)
        self._read_bytes = _bucket(limits.read_bytes_per_second, now)
        self._iterator_calls = _bucket(limits.iterator_calls_per_second, now)
        self.is_unlimited = self._write_records is None and self._write_bytes is None

    @property
    def is_open(self) -> bool:
        return self.closed_at is None

    @property
    def parent_ids(self) -> list[str]:
        return [parent for parent in (self.parent_id, self.adjacent_parent_id) if parent is not None]

    @property
    def starting_sequence_number(self) -> int:
        return self.numbering.make(0, self.numbering.began)

    @property
    def ending_sequence_number(self) -> int | None:
        if self.closed_at is None:
            return None
        return self.numbering.make(sequence_numbers.LAST, int(self.closed_at))

    @property
    def ended(self) -> int:
        """The second in the ending sequence number. Children begin one second later (recorded, see ``add_shard``)."""
        assert self.closed_at is not None, "only a closed shard has ended"
        return max(int(self.closed_at), self.numbering.began)

    def close(self, now: float) -> None:
        assert self.closed_at is None, "a shard is closed once (SH1)"
        self.closed_at = now

    def may_write(self, size: int, now: float) -> bool:
        """Whether a record of ``size`` bytes passes now; if so it is charged (SH2)."""
        records, volume = self._write_records, self._write_bytes
        if volume is not None and not volume.allows(size, now):
            return False
        if records is not None and not records.take(1, now):
            return False
        if volume is not None:
            volume.charge(size)
        return True

    def could_write(self, size: int, now: float) -> bool:
        """As ``may_write``, charging nothing."""
        return _allows(self._write_bytes, size, now) and _allows(self._write_records, 1, now)

    def may_read(self, now: float) -> bool:
        """Whether a GetRecords passes now. Its bytes are charged afterwards, by ``charge_read``."""
        if self._read_bytes is not None and not self._read_bytes.allows(0, now):
            return False
        return self._read_calls is None or self._read_calls.take(1, now)

    def could_read(self, now: float) -> bool:
        """As ``may_read``, charging nothing."""
        return _allows(self._read_bytes, 0, now) and _allows(self._read_calls, 1, now)

    def charge_read(self, size: int) -> None:
        if self._read_bytes is not None:
            self._read_bytes.spend(size)

    def may_iterate(self, now: float) -> bool:
        return self._iterator_calls is None or self._iterator_calls.take(1, now)

    def could_iterate(self, now: float) -> bool:
        """As ``may_iterate``, charging nothing."""
        return _allows(self._iterator_calls, 1, now)


def shard_id_of(index: int) -> str:
    return f"shardId-{index:012d}"  # a negative one, which only a made-up sequence number names: shardId--02147483648


def full_shard_id(text: str) -> str | None:
    """The id of the shard that a request names, ``None`` if no shard has such a name.

    AWS reads the number alone, in whatever comes after a hyphen, or in all of it: ``0``, ``shardId-0`` and
    ``anything-000`` are the first shard (recorded in kinesalite's getShardIterator.js).
    """
    parts = text.split("-")
    number = parts[1] if len(parts) > 1 and parts[1] else text
    if not number.isdigit() or int(number) > _INDEX_MAX:
        return None
    return shard_id_of(int(number))


def _bucket(rate: float | None, now: float) -> Bucket | None:
    return None if rate is None else Bucket(rate, now)


def _allows(bucket: Bucket | None, cost: float, now: float) -> bool:
    return bucket is None or bucket.allows(cost, now)
