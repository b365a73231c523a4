"""Which record may be handled next, given the keys in flight?

``ShardLanes`` contains the records of one held shard that are waiting for a handler, in the order of the shard.
``KeyLanes`` contains the keys that handlers have, over all shards of the worker. A record whose key is free may be
handled immediately. While a handler has a record with some key, the next record with the same key waits in the *lane*
of the key, and later records with other keys overtake it.

A *place* is the number of a record in its shard, counted from the first record that was read under the lease.

Invariants (docs/guarantees.md defines C6):

- C6: a key is in at most one record or batch in flight. This holds over all shards, because with explicit hash keys, or
  after a reshard, two shards can contain records with the same key.
- Records with the same key in the same shard are taken in the order of the shard. If records are put back, they are the
  first to be taken again.
- A batch may contain several records with the same key. The records of a batch are in the order of the shard.
- With ``by_key=False``, and for a record without a key, there is no order: each record is treated as if its key were
  unique.
- A key is *claimed* from the moment when a record with this key may be taken until the last such record in flight is
  released. Only the first record with a claimed key may be taken: the later ones wait in the key's lane.
- No record at or after the place ``end`` is taken, so the distance between the watermark and the furthest handled
  record is bounded.
- Looking at a record takes constant time, and each record is looked at once or twice, however many records are waiting.
"""

from collections import deque
from collections.abc import Collection, Iterable, Sequence
from heapq import nlargest
from typing import NamedTuple, TypeAlias, final

from shardline.core.clock import NEVER, Instant
from shardline.core.consumer.reader import ShardKey
from shardline.model.record import Record

Placed: TypeAlias = tuple[int, Record]
"""A record and its place."""


@final
class HotKey(NamedTuple):
    """A key with waiting records. They wait because a handler has an earlier record with the same key."""

    key: str
    waiting: int
    """How many records with this key are waiting."""


@final
class KeyLanes:
    """The claimed keys of one worker, and the records that are waiting for these keys."""

    def __init__(self) -> None:
        # For each claimed key, the records that are waiting for the key, or ``None`` if no record is waiting, which is
        # nearly always the case.
        self.lanes: dict[str, deque[tuple[ShardLanes, Placed]] | None] = {}
        self._freed: dict[ShardKey, None] = {}

    # ---- queries

    def hot_keys(self, count: int) -> list[HotKey]:
        """Return up to ``count`` keys for which the most records are waiting, the hottest key first."""
        found = ((len(lane), key) for key, lane in self.lanes.items() if lane)
        return [HotKey(key, waiting) for waiting, key in nlargest(count, found)]

    # ---- commands, output

    def release(self, keys: Iterable[str]) -> None:
        """Release claimed keys. For each key, the first waiting record may now be taken."""
        for key in keys:
            lane = self.lanes[key]
            while lane:
                shard, placed = lane.popleft()
                if not shard.is_closed:
                    shard.ready.append(placed)  # the key stays claimed, now for this record
                    self._freed[shard.key] = None
                    break
            else:
                del self.lanes[key]

    def take_freed(self) -> list[ShardKey]:
        """Return the shards with records that can be taken now because a key was released."""
        freed, self._freed = self._freed, {}
        return [*freed]


@final
class ShardLanes:
    """The records of one held shard that are waiting for a handler.

    Args:
        keys: the keys of the worker.
        key: the shard.
        by_key: whether records with the same key are handled in order.
        first: the place of the first record that will be added.
        done: the places of records that are already done. These records are left out.
    """

    def __init__(self, keys: KeyLanes, key: ShardKey, *, by_key: bool, first: int, done: Collection[int] = ()) -> None:
        self.key: ShardKey = key
        self.ready: deque[Placed] = deque()
        """Records that may be taken now, because their key is claimed for them. ``KeyLanes`` also appends to it."""
        self.is_closed: bool = False
        self.next_place: int = first
        """The place of the first record that was never looked at. All earlier records were taken or are waiting."""
        self._keys: KeyLanes = keys
        self._by_key: bool = by_key
        self._done: frozenset[int] = frozenset(done)
        self._pages: deque[tuple[Sequence[Record], Instant]] = deque()  # the records that were never looked at
        self._offset: int = 0  # how many records of the first page were looked at
        self._end: int = first  # the place behind the last record that was added

    # ---- queries

    @property
    def waiting(self) -> int:
        """The maximum number of records that can be taken. Some of their keys may turn out to be in flight."""
        return len(self.ready) + self._end - self.next_place

    @property
    def oldest_at(self) -> Instant:
        """When the oldest record that can perhaps be taken arrived."""
        return -NEVER if self.ready or not self._pages else self._pages[0][1]

    def has_waiting(self, end: int) -> bool:
        """Whether ``take`` may return a record whose place is before ``end``."""
        return bool(self.ready) or self.next_place < min(end, self._end)

    # ---- commands

    def add(self, records: Sequence[Record], now: Instant) -> None:
        """Add the next records of the shard."""
        if records:
            self._pages.append((records, now))
            self._end += len(records)

    def take(self, limit: int, end: int) -> list[Placed]:
        """Take up to ``limit`` records that may be handled now, and whose places are before ``end``."""
        taken: list[Placed] = []
        mine: set[str] = set()
        ready = self.ready
        while ready and len(taken) < limit:
            taken.append(ready.popleft())
            self._join(taken, limit, mine)
        end = min(end, self._end)
        while len(taken) < limit and self.next_place < end:
            placed = self._look(mine)
            if placed is not None:
                taken.append(placed)
        if len(taken) > 1:
            taken.sort()
        return taken

    def release(self, records: Sequence[Record]) -> None:
        """Release the keys of records that are done, or that no handler of this worker will get."""
        if self._by_key:
            # Most often there is one record. The order of the keys must not depend on their hashes, because this order
            # decides which shard comes first.
            keys = [records[0].key] if len(records) == 1 else dict.fromkeys(record.key for record in records)
            self._keys.release([key for key in keys if key is not None])

    def put_back(self, taken: Sequence[Placed]) -> None:
        """Put back records that were taken. They are in the order of the shard, and their keys were not released."""
        again: list[Placed] = []
        behind: dict[str, list[Placed]] = {}
        for placed in taken:
            key = placed[1].key if self._by_key else None
            if key is None:
                again.append(placed)
            elif key in behind:
                behind[key].append(placed)
            else:
                behind[key] = []
                again.append(placed)
        self.ready.extendleft(reversed(again))
        for key, rest in behind.items():
            if rest:  # only the first record with a key may be taken
                lane = self._keys.lanes[key] or deque()
                lane.extendleft((self, placed) for placed in reversed(rest))
                self._keys.lanes[key] = lane

    def close(self) -> None:
        """Forget the waiting records. The keys of records in flight stay claimed until they are released."""
        self.is_closed = True
        ready, self.ready = self.ready, deque()
        self._pages.clear()
        self._end = self.next_place
        for placed in ready:
            self.release([placed[1]])

    # ---- internal

    def _look(self, mine: set[str]) -> Placed | None:
        """Look at the next record. Return it if it may be handled now. ``mine`` are the keys of the records that are
        taken together with it.
        """
        records = self._pages[0][0]
        record, place = records[self._offset], self.next_place
        self._offset += 1
        self.next_place = place + 1
        if self._offset == len(records):
            self._pages.popleft()
            self._offset = 0
        if place in self._done:
            return None
        key = record.key if self._by_key else None
        if key is None:
            return place, record
        lanes = self._keys.lanes
        if key not in lanes:
            lanes[key] = None
            mine.add(key)
            return place, record
        lane = lanes[key]
        # A record joins the batch that has its key, unless earlier records with the same key are waiting.
        if key in mine and not lane:
            return place, record
        if lane is None:
            lane = lanes[key] = deque()
        lane.append((self, (place, record)))
        return None

    def _join(self, taken: list[Placed], limit: int, mine: set[str]) -> None:
        """Take the records of this shard that are waiting for the key of the last taken record."""
        key = taken[-1][1].key if self._by_key else None
        if key is None:
            return
        mine.add(key)
        lane = self._keys.lanes[key]
        while lane and len(taken) < limit and (lane[0][0] is self or lane[0][0].is_closed):
            shard, placed = lane.popleft()
            if not shard.is_closed:
                taken.append(placed)
