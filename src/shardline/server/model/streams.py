"""What is a stream to the service: its shards, its state, its settings?

Invariants:

- The open shards' hash ranges cover the ring without gaps or overlaps, at every moment.
- A change that was accepted is carried out when its delay is over; until then the stream is in a state that says
  so, and the old shards serve.
- A record goes to the open shard whose range holds its hash key.
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
    """What was accepted, and will be carried out when its delay is over: data, so that it survives a restart."""

    ready_at: float
    kind: str
    """``create``, ``split``, ``merge``, ``scale``, ``warm``, ``delete``, or ``settle``: only the state changes."""
    shard_id: str = ""
    other_id: str = ""
    number: int = 0
    """How many shards, the hash key at which to split, or the warm throughput."""


@final
class ServerStream:
    """One stream."""

    def __init__(self, name: str, arn: str, limits: Limits, now: float, records_held: RecordCount) -> None:
        self.name = name
        self.arn = arn
        self.created_at = now
        self.creation_second = int(now)
        """What is reported: AWS reports whole seconds. No two streams of one name have the same."""
        self.numbers_begin = max(0, int(now) - _NUMBERS_BEGIN_BEFORE)
        """The second in the start numbers of the first shards. ``ServiceState`` may move both, see ``tell_apart``."""
        self.status = "CREATING"
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
        self.next_index = 0
        self.count_updates: list[float] = []
        """When UpdateShardCount was called, in the last 24 hours."""
        self.mode_updates: list[float] = []
        """When UpdateStreamMode changed the mode, in the last 24 hours."""
        self._limits = limits
        self._records_held = records_held
        self.pending: Change | None = None
        self.is_gone = False
        self._sweep_at = now
        self.open_shards: list[ServerShard] = []
        """In the order of their hash ranges."""
        self._endings: list[bytes] = []

    def __repr__(self) -> str:
        return f"<ServerStream {self.name} {self.status}, {len(self.open_shards)} open of {len(self.shards)} shards>"

    @property
    def stream_name(self) -> str:
        """Its own name: as what belongs to a stream names it."""
        return self.name

    def was_created_in(self, second: float) -> bool:
        """Whether a request's StreamCreationTimestamp means this stream."""
        return 0 <= second - self.creation_second < 1

    @property
    def last_began(self) -> int:
        """The latest second in which the numbers of one of its shards begin."""
        return max((shard.numbering.began for shard in self.shards.values()), default=self.numbers_begin)

    @property
    def record_count(self) -> int:
        """How many records the stream holds."""
        return sum(len(shard.log) for shard in self.shards.values())

    # ---- state over time

    @property
    def due_at(self) -> float:
        """When ``advance`` has something to do next."""
        if self.is_gone:
            return -inf
        return self._sweep_at if self.pending is None else min(self.pending.ready_at, self._sweep_at)

    def begin(self, status: str, change: Change) -> None:
        """Take a state until the change is carried out."""
        self.status = status
        self.pending = change

    def advance(self, now: float) -> None:
        """Carry out what is due, and let go of what retention has ended."""
        change = self.pending
        if change is not None and now >= change.ready_at:
            self.pending = None
            self._carry_out(change)
            self.touch()
        if now >= self._sweep_at:
            self.trim(now)

    def touch(self) -> None:
        """Make all subscriptions to the stream look again."""
        for shard in self.shards.values():
            shard.log.touch()

    def trim(self, now: float) -> None:
        """Remove what retention has ended: records, and closed shards.

        Readers trim their shard by themselves: this is for shards that nobody reads, now and then.
        """
        horizon = self.trim_horizon(now)
        # All streams are swept at the same whole minutes: many streams then cost one walk a minute, not one each.
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
                self.is_gone = True
            case _:
                assert change.kind == "settle", change
        self.status = "DELETING" if self.is_gone else "ACTIVE"

    # ---- shards

    def add_shard(
        self, hash_range: HashRange, now: float, parent: ServerShard | None = None, adjacent: ServerShard | None = None
    ) -> ServerShard:
        """Add a shard, whose parents are closed.

        Recorded in kinesalite's tests: the numbers of a new stream's shards begin 2 to 7 seconds before the stream was
        created (createStream.js), those of a child one second after its parents' ending numbers (splitShard.js,
        mergeShards.js).
        """
        parents = [one for one in (parent, adjacent) if one is not None]
        shard = ServerShard(
            self.next_index,
            hash_range,
            self._limits,
            now,
            began=max([self.numbers_begin, *(one.ended + 1 for one in parents)]),
            parent_id=None if parent is None else parent.shard_id,
            adjacent_parent_id=None if adjacent is None else adjacent.shard_id,
            record_count=self._records_held,
        )
        self.next_index += 1
        self.shards[shard.shard_id] = shard
        for one in parents:
            one.child_ids.append(shard.shard_id)
        return shard

    def restore_shard(self, shard: ServerShard) -> None:
        """Take back a shard of an earlier life; they come in the order of their ids. ``reindex`` follows."""
        self.shards[shard.shard_id] = shard
        for parent_id in shard.parent_ids:
            if parent_id in self.shards:
                self.shards[parent_id].child_ids.append(shard.shard_id)

    def reindex(self) -> None:
        """Recompute who is open, after shards were added or closed."""
        self.open_shards = sorted((one for one in self.shards.values() if one.is_open), key=lambda one: one.hash_range)
        self._endings = [one.hash_range.end.to_bytes(16, "big") for one in self.open_shards]

    def create_shards(self, count: int, now: float) -> None:
        for hash_range in uniform_ranges(count):
            self.add_shard(hash_range, now)
        self.reindex()

    def shard_of(self, hash_key: bytes) -> ServerShard:
        """The open shard for a hash key of 16 bytes."""
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
        """Reach ``count`` uniform shards as AWS does: one sweep over the ring, which gives the shards AWS's ids.

        The sweep completes one new shard after the other, from the lowest hash key on: it merges shards until they
        reach the end of the new one, and splits the shard that reaches beyond it. From 4 to 3 this leaves the shards 6,
        9 and 10 open, and from 2 (which are 1 and 2) to 3 the shards 3, 7 and 6: both were seen on AWS (see
        docs/tested/differences.md).
        """
        rest = deque(self.open_shards)
        for target in self._uniform_around_what_is_there(count):
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

    def _uniform_around_what_is_there(self, count: int) -> list[HashRange]:
        """Uniform ranges, except that a boundary stays where it is if the new one would be close to it.

        From 10 to 13 shards, AWS creates 27 (recorded in moto's test_kinesis_boto3.py), which leaves the two boundaries
        that are off by a tenth of a new shard's width, and moves those that are off by a fifth. Rounding of an earlier
        division is covered too: doubling is one split per shard, halving one merge per pair.
        """
        starts = [shard.hash_range.start for shard in self.open_shards]
        close = HASH_KEY_COUNT // count // 8
        wanted = [_closest(starts, target.start, close) for target in uniform_ranges(count)]
        return ranges_from(wanted)

    def trim_horizon(self, now: float) -> float:
        """Nothing older is kept."""
        return now - self.retention_hours * 3600.0


def _closest(starts: list[int], wanted: int, close: int) -> int:
    """The start that is close to the wanted one; the wanted one if none is."""
    at = bisect_left(starts, wanted)
    nearest = min(starts[max(at - 1, 0) : at + 1], key=lambda start: abs(start - wanted))
    return nearest if abs(nearest - wanted) <= close else wanted


def uniform_ranges(count: int) -> list[HashRange]:
    """The ring in ``count`` equal parts; the last takes what does not divide."""
    width = HASH_KEY_COUNT // count
    return ranges_from([width * part for part in range(count)])


def ranges_from(starts: list[int]) -> list[HashRange]:
    """The ring in parts that start there."""
    return [HashRange(start, end - 1) for start, end in zip(starts, [*starts[1:], HASH_KEY_COUNT], strict=True)]
