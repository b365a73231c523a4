"""A shard of the service: its hash range, parents, records and rate limits.

Invariants:

- A shard is open until it is closed. A closed shard has an ending sequence number and is never opened again.
- The limits of records per second and bytes per second are charged together, or neither is charged.
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
    """One shard of a stream of the emulated service."""

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
        self.index: int = index
        self.shard_id: str = shard_id_of(index)
        self.hash_range: HashRange = hash_range
        self.created_at: float = now
        self.closed_at: float | None = None
        self.numbering: Numbering = Numbering(index, began, layout)
        self.parent_id: str | None = parent_id
        self.adjacent_parent_id: str | None = adjacent_parent_id
        self.child_ids: list[str] = []
        self.log: ShardLog = ShardLog(record_count)
        self.set_limits(limits, now)

    def set_limits(self, limits: Limits, now: float) -> None:
        self._write_records = Bucket(limits.write_records_per_second, now)
        self._write_bytes = Bucket(limits.write_bytes_per_second, now)
        self._read_calls = Bucket(limits.read_calls_per_second, now)
        self._read_bytes = Bucket(limits.read_bytes_per_second, now)
        self._iterator_calls = Bucket(limits.iterator_calls_per_second, now)
        self.is_unlimited: bool = limits.write_records_per_second is None and limits.write_bytes_per_second is None

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
        """The second in the ending sequence number. Children's numbers begin one second later: see ``add_shard``."""
        assert self.closed_at is not None, "the shard is closed"
        return max(int(self.closed_at), self.numbering.began)

    def close(self, now: float) -> None:
        assert self.closed_at is None, "the shard is open"
        self.closed_at = now

    # ---- rates: each method returns whether a call passes now. If it does, it is charged, unless it is a dry run.

    def may_write(self, size: int, now: float, *, is_dry: bool = False) -> bool:
        """Return whether the shard's limits allow a record of ``size`` bytes now."""
        if not self._write_bytes.allows(size, now) or not self._write_records.take(1, now, is_dry=is_dry):
            return False
        return self._write_bytes.take(size, now, is_dry=is_dry)

    def may_read(self, now: float, *, is_dry: bool = False) -> bool:
        """Return whether the shard's limits allow a GetRecords now. ``charge_read`` charges its bytes afterwards."""
        return self._read_bytes.allows(0, now) and self._read_calls.take(1, now, is_dry=is_dry)

    def charge_read(self, size: int) -> None:
        self._read_bytes.spend(size)

    def may_iterate(self, now: float, *, is_dry: bool = False) -> bool:
        return self._iterator_calls.take(1, now, is_dry=is_dry)


def shard_id_of(index: int) -> str:
    return f"shardId-{index:012d}"  # a forged sequence number may contain a negative index: shardId--02147483648


def full_shard_id(text: str) -> str | None:
    """Return the id of the shard that a request names, or ``None`` if no shard can have such a name.

    AWS reads only the number, after a hyphen or as the whole text: ``0``, ``shardId-0`` and ``anything-000`` mean the
    first shard (recorded in kinesalite's getShardIterator.js).
    """
    parts = text.split("-")
    number = parts[1] if len(parts) > 1 and parts[1] else text
    if not number.isdigit() or int(number) > _INDEX_MAX:
        return None
    return shard_id_of(int(number))
