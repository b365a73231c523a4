"""A stream of the service: its shards, status and settings.

Invariants:

- At any time, the hash ranges of the open shards cover all hash keys without gaps or overlaps.
- An accepted change is carried out when its delay is over. Until then, the stream's status shows that a change is
  pending, and the old shards stay in use.
- A record goes to the open shard whose range contains its hash key.
"""

from bisect import bisect_left
from collections import deque
from math import inf
from typing import Final, NamedTuple, final

from shardline.model.hashing import HASH_KEY_COUNT, HashRange
from shardline.server.model.settings import Limits
from shardline.server.model.shard_log import RecordCount
from shardline.server.model.shards import ServerShard

_SWEEP_EVERY: Final = 60.0
_NUMBERS_BEGIN_BEFORE: Final = 3  # seconds, see ``add_shard``


@final
class Change(NamedTuple):
    """An accepted change, which is carried out when its delay is over. It is plain data, so it survives a restart."""

    ready_at: float
    kind: str
    """``create``, ``split``, ``merge``, ``scale``, ``warm``, ``delete``, or ``settle``, which changes only the status.
    """
    shard_id: str = ""
    other_id: str = ""
    number: int = 0
    """The number of shards, the hash key at which to split, or the warm throughput, depending on the kind."""


@final
class ServerStream:
    """One stream of the emulated service."""

    def __init__(self, name: str, arn: str, limits: Limits, now: float, records_held: RecordCount) -> None:
        self.name = name
        self.arn = arn
        self.created_at = now
        self.creation_second: int = int(now)
        """The creation time that is reported, in whole seconds as on AWS. Streams of one name never share it."""
        self.numbers_begin: int = max(0, int(now) - _NUMBERS_BEGIN_BEFORE)
        """The second in the starting sequence numbers of the first shards.

        ``ServiceState.make_distinct`` may change this second and ``creation_second``.
        """
        self.status: str = "CREATING"
        self.mode = "PROVISIONED"
        self.retention_hours = 24
        self.max_record_kib = 1024
        self.record_distribution: str | None = None
        self.encryption_type = "NONE"
        self.key_id: str | None = None
        self.tags: dict[str, str] = {}
        self.shard_level_metrics: list[str] = []
        self.warm_mibps: int | None = None
        self.policy: str | None = None
        self.shards: dict[str, ServerShard] = {}
        self.next_index: int = 0
        self.count_updates: list[float] = []
        """The times of the UpdateShardCount calls in the last 24 hours."""
        self.mode_updates: list[float] = []
        """The times at which UpdateStreamMode changed the mode in the last 24 hours."""
        self._limits = limits
        self._records_held = records_held
        self.pending: Change | None = None
        self.is_deleted: bool = False
        self._sweep_at = now
        self.open_shards: list[ServerShard] = []
        """The open shards, in the order of their hash ranges."""
        self._endings: list[bytes] = []  # the last hash keys of the open shards

    def __repr__(self) -> str:
        return f"<ServerStream {self.name} {self.status}, {len(self.open_shards)} open of {len(self.shards)} shards>"

    @property
    def stream_name(self) -> str:
        """The stream's own name. Consumers and channels have the same attribute, for the stream they belong to."""
        return self.name

    def was_created_in(self, second: float) -> bool:
        """Return whether a request with this StreamCreationTimestamp refers to this stream."""
        return 0 <= second - self.creation_second < 1

    @property
    def last_began(self) -> int:
        """The latest second in which the numbering of a shard of this stream began."""
        return max((shard.numbering.began for shard in self.shards.values()), default=self.numbers_begin)

    @property
    def record_count(self) -> int:
        """How many records the stream holds."""
        return sum(len(shard.log) for shard in self.shards.values())

    # ---- state over time

    @property
    def due_at(self) -> float:
        """The time at which ``advance`` next has something to do."""
        if self.is_deleted:
            return -inf
        return self._sweep_at if self.pending is None else min(self.pending.ready_at, self._sweep_at)

    def begin(self, status: str, change: Change) -> None:
        """Accept a change and set the stream's status until the change is carried out."""
        self.status = status
        self.pending = change

    def advance(self, now: float) -> None:
        """Carry out the pending change if it is due, and remove expired records and shards from time to time."""
        change = self.pending
        if change is not None and now >= change.ready_at:
            self.pending = None
            self._carry_out(change)
            self.touch()
        if now >= self._sweep_at:
            self.trim(now)

    def touch(self) -> None:
        """Request that all subscriptions to the stream be polled."""
        for shard in self.shards.values():
            shard.log.touch()

    def trim(self, now: float) -> None:
        """Remove records and closed shards whose retention period is over.

        A request that reads a shard trims that shard. This method trims the shards that are not read.
        """
        horizon = self.trim_horizon(now)
        # All streams are swept at the same whole minutes, so that many streams need only one wake-up a minute.
        ends: list[float] = [(now // _SWEEP_EVERY + 1) * _SWEEP_EVERY]
        for shard in list(self.shards.values()):
            shard.log.trim(horizon)
            if shard.closed_at is not None and shard.closed_at < horizon:
                del self.shards[shard.shard_id]
            elif shard.closed_at is not None:
                ends.append(shard.closed_at + self.retention_hours * 3600.0)
        self._sweep_at = min(ends)

    def _carry_out(self, change: Change) -> None:
        now = change.ready_at
        match change.kind:
            case "create":
                self.create_shards(change.number, now)
            case "split":
                self.split(self.shards[change.shard_id], change.number, now)
            case "merge":
                self.merge(self.shards[change.shard_id], self.shards[change.other_id], now)
            case "scale":
                self.scale(change.number, now)
            case "warm":
                self.warm_mibps = change.number
            case "delete":
                self.is_deleted = True
            case _:
                assert change.kind == "settle", change
        self.status = "DELETING" if self.is_deleted else "ACTIVE"

    # ---- shards

    def add_shard(
        self, hash_range: HashRange, now: float, parent: ServerShard | None = None, adjacent: ServerShard | None = None
    ) -> ServerShard:
        """Add a shard. Its parents, if it has any, are closed.

        Kinesalite's tests recorded the second in which a shard's numbers begin: for a new stream, 2 to 7 seconds before
        its creation (createStream.js), and for a child, one second after the ending numbers of its parents
        (splitShard.js, mergeShards.js).
        """
        parents = [closed for closed in (parent, adjacent) if closed is not None]
        shard = ServerShard(
            self.next_index,
            hash_range,
            self._limits,
            now,
            began=max([self.numbers_begin, *(closed.ended + 1 for closed in parents)]),
            parent_id=None if parent is None else parent.shard_id,
            adjacent_parent_id=None if adjacent is None else adjacent.shard_id,
            record_count=self._records_held,
        )
        self.next_index += 1
        self.shards[shard.shard_id] = shard
        for closed in parents:
            closed.child_ids.append(shard.shard_id)
        return shard

    def restore_shard(self, shard: ServerShard) -> None:
        """Add a shard from the data file. Call this in the order of the ids and call ``reindex`` at the end."""
        self.shards[shard.shard_id] = shard
        for parent_id in shard.parent_ids:
            if parent_id in self.shards:
                self.shards[parent_id].child_ids.append(shard.shard_id)

    def reindex(self) -> None:
        """Recompute the open shards, after shards were added or closed."""
        self.open_shards = [shard for shard in self.shards.values() if shard.is_open]
        self.open_shards.sort(key=lambda shard: shard.hash_range)
        self._endings = [shard.hash_range.end.to_bytes(16, "big") for shard in self.open_shards]

    def create_shards(self, count: int, now: float) -> None:
        for hash_range in uniform_ranges(count):
            self.add_shard(hash_range, now)
        self.reindex()

    def shard_of(self, hash_key: bytes) -> ServerShard:
        """Return the open shard for a hash key of 16 bytes."""
        return self.open_shards[bisect_left(self._endings, hash_key)]

    def split(self, shard: ServerShard, at: int, now: float) -> tuple[ServerShard, ServerShard]:
        children = self._split(shard, at, now)
        self.reindex()
        return children

    def merge(self, shard: ServerShard, adjacent: ServerShard, now: float) -> ServerShard:
        merged = self._merge(shard, adjacent, now)
        self.reindex()
        return merged

    def _split(self, shard: ServerShard, at: int, now: float) -> tuple[ServerShard, ServerShard]:
        shard.close(now)
        self._sweep_at = now
        lower = self.add_shard(HashRange(shard.hash_range.start, at - 1), now, shard)
        upper = self.add_shard(HashRange(at, shard.hash_range.end), now, shard)
        return lower, upper

    def _merge(self, shard: ServerShard, adjacent: ServerShard, now: float) -> ServerShard:
        shard.close(now)
        adjacent.close(now)
        self._sweep_at = now
        return self.add_shard(HashRange(shard.hash_range.start, adjacent.hash_range.end), now, shard, adjacent)

    def scale(self, count: int, now: float) -> None:
        """Scale to ``count`` uniform shards, in one sweep over all hash keys, so that the shards get the same ids as on
        AWS.

        The sweep completes one new shard after the other, starting at the lowest hash key. It merges shards until they
        reach the end of the new shard, and splits the shard that reaches beyond it. From 4 to 3 shards, this leaves
        the shards 6, 9 and 10 open. From 2 shards (1 and 2) to 3, it leaves the shards 3, 7 and 6 open. Both results
        were observed on AWS (see docs/tested/differences.md).
        """
        rest = deque(self.open_shards)
        for target in self._uniform_ranges_near_existing(count):
            shard = rest.popleft()
            while shard.hash_range.end < target.end:
                following = rest.popleft()
                if following.hash_range.end > target.end:
                    following, upper = self._split(following, target.end + 1, now)
                    rest.appendleft(upper)
                shard = self._merge(shard, following, now)
            if shard.hash_range.end > target.end:
                rest.appendleft(self._split(shard, target.end + 1, now)[1])
        self.reindex()

    def _uniform_ranges_near_existing(self, count: int) -> list[HashRange]:
        """Return uniform ranges, but keep an existing boundary if a new one would be close to it.

        From 10 to 13 shards, AWS creates 27 shards (recorded in moto's test_kinesis_boto3.py). So AWS keeps the two
        boundaries that are off by a tenth of the width of a new shard, and moves those that are off by a fifth. Keeping
        close boundaries also absorbs rounding of earlier divisions: doubling needs only one split per shard, and
        halving one merge per pair.
        """
        starts = [shard.hash_range.start for shard in self.open_shards]
        close = HASH_KEY_COUNT // count // 8
        wanted = [_closest(starts, target.start, close) for target in uniform_ranges(count)]
        return ranges_from(wanted)

    def trim_horizon(self, now: float) -> float:
        """Return the time before which records have expired."""
        return now - self.retention_hours * 3600.0


def _closest(starts: list[int], wanted: int, close: int) -> int:
    """Return the nearest existing start if it is at most ``close`` away, or else the wanted start."""
    at = bisect_left(starts, wanted)
    nearest = min(starts[max(at - 1, 0) : at + 1], key=lambda start: abs(start - wanted))
    return nearest if abs(nearest - wanted) <= close else wanted


def uniform_ranges(count: int) -> list[HashRange]:
    """Divide all hash keys into ``count`` equal ranges. The last range gets the remainder."""
    width = HASH_KEY_COUNT // count
    return ranges_from([width * part for part in range(count)])


def ranges_from(starts: list[int]) -> list[HashRange]:
    """Divide all hash keys into ranges with these starts."""
    return [HashRange(start, end - 1) for start, end in zip(starts, [*starts[1:], HASH_KEY_COUNT], strict=True)]
