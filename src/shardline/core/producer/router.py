"""Chooses the lane for each record.

Invariants:

- P2: a record goes to the lane of the shard that its hash key belongs to. Without a map, it goes to the catch-all lane.
- P8: a keyless record goes to the healthiest lane, judged by load and recent failures. Further keyless records go to
  the same lane until its aggregate is sealed. The choice is made again for every retry. A record with a key never
  changes its key.
- There is one lane for each shard of the newest snapshot. A lane whose shard is no longer in the map is remembered
  until all aggregates that it sent are settled, because later records with the same keys must wait for them (P9).
"""

from bisect import bisect_left
from enum import IntEnum
from typing import Final, Protocol, final

from shardline._speedups import twin
from shardline.core.backoff import Chance
from shardline.core.clock import Instant
from shardline.core.producer.aggregate import digest_of
from shardline.core.producer.lane import Lane
from shardline.core.producer.producer_config import ProducerConfig
from shardline.core.producer.producer_record import BufferedRecord
from shardline.core.producer.shard_map import Snapshot
from shardline.model.hashing import hash_digest_of, md5_of_key
from shardline.model.limits import KIB

# The largest number of keys whose lanes are cached. Looking up a key takes a third of the time that hashing it takes.
_CACHE_MAX: Final = 16_384
_CACHE_TRIAL: Final = 1_024  # the number of keys in the cache during a trial, and of lookups that a trial counts
_CACHE_LIFE: Final = 1 << 20  # the number of lookups after which the cache is emptied and tried again
_COMPARE_ALL_MAX: Final = 16  # up to this many lanes, all are compared to find the healthiest; otherwise a sample
_SAMPLE: Final = 8


LaneRecords = tuple[Lane, list[BufferedRecord]]


@final
class _Cache(IntEnum):
    """How the cache treats a key that it does not contain."""

    LEFT_ALONE = 0  # nothing happens: the cache is full, or is kept empty because it saves no time
    FILLING = 1  # the key is added
    ON_TRIAL = 2  # the miss is counted


class LaneTable(Protocol):
    """The hash ranges of the lanes, in the compiled form."""

    def sort(
        self, records: list[BufferedRecord], /
    ) -> tuple[list[tuple[int, list[BufferedRecord]]], list[BufferedRecord]]:
        """Group records by the numbers of their lanes. Keyless records are returned separately."""
        ...


@twin
def make_lane_table(endings: tuple[bytes, ...], /) -> LaneTable | None:  # noqa: ARG001 - the compiled form needs it
    """Return the compiled table of the lanes whose ranges end at these hash keys, or ``None`` in the pure form."""
    return None


@final
class Router:
    """Holds the lanes and chooses the lane of each record."""

    def __init__(self, config: ProducerConfig, rng: Chance, now: Instant) -> None:
        self._config = config
        self._rng = rng
        self._endings: tuple[bytes, ...] = ()
        self._table: LaneTable | None = None  # sorts all records of a round in one call; only in the compiled form
        # Maps the first byte of a hash to a lane, if all hashes with this byte belong to the same lane. Otherwise the
        # next four bits are looked up. If these do not decide either, the lane is found by bisection.
        self._by_first_byte: list[Lane | None] = []
        self._by_twelve_bits: list[list[Lane | None]] = []
        self._lane_by_key: dict[str | None, Lane] = {}  # the key ``None`` never occurs
        self._cache = _Cache.FILLING
        self._cache_max = _CACHE_TRIAL
        self._misses = 0
        self._counted_from = 0
        self._sticky: Lane | None = None
        self._aggregate_max_bytes = config.aggregate_max_bytes
        self.catch_all = Lane(None, None, config, rng, now)
        """The lane of records without a prediction. When a map arrives, this lane vanishes like other lanes."""
        self.catch_all.held = config.ordered
        self._ttls_differ = False
        self.may_aggregate = True
        """Whether the stream allows aggregates. ``Retries`` writes this field."""
        self.is_blind = True
        """Whether a map is needed and missing. Under AUTO record distribution, no map is needed."""
        self.lanes: tuple[Lane, ...] = ()
        """The lanes of the map, in the order of their hash ranges."""
        self.vanished: list[Lane] = []
        """Lanes of earlier maps that still have records in flight."""

    def lane_for(self, record: BufferedRecord, now: Instant) -> Lane:
        """Return the lane that a record goes to."""
        key, hash_key = record.key, record.explicit_hash_key
        lane = self._lane_by_key.get(key) if hash_key is None else None
        if lane is None:
            if not self._endings:
                return self.catch_all
            if key is None:
                return self._healthiest(now)
            if hash_key is not None:
                return self._lane_at(digest_of(key, hash_key))
            lane = self._lane_at(hash_digest_of(key))
            if self._cache:
                self._note_miss(key, lane)
        return lane

    def sort(self, records: list[BufferedRecord]) -> tuple[list[LaneRecords], list[BufferedRecord]]:
        """Group records by the lanes of their keys. The records of each lane keep their order.

        Return the records of each lane, and the records that ``lane_for`` has to route one by one.
        """
        if not self._endings:
            return [], records
        if self._table is not None:
            by_lane, keyless = self._table.sort(records)
            return [(self.lanes[number], group) for number, group in by_lane], keyless
        known, by_first_byte, by_twelve_bits = self._lane_by_key, self._by_first_byte, self._by_twelve_bits
        others: list[BufferedRecord] = []
        for record in records:
            key = record.key
            if key is None:
                others.append(record)
                continue
            lane = known.get(key) if known else None
            if record.explicit_hash_key is not None:
                lane = self._lane_at(digest_of(key, record.explicit_hash_key))
            elif lane is None:
                digest = md5_of_key(key.encode()).digest()
                first = digest[0]
                lane = by_first_byte[first] or by_twelve_bits[first][digest[1] >> 4] or self._lane_at(digest)
                if self._cache:
                    self._note_miss(key, lane)
            lane.fresh.append(record)
        return [(lane, lane.take_fresh()) for lane in self.lanes if lane.fresh], others

    def _lane_at(self, digest: bytes) -> Lane:
        return self.lanes[bisect_left(self._endings, digest)]

    def _note_miss(self, key: str, lane: Lane) -> None:
        self._misses += 1
        if self._cache is _Cache.FILLING:
            self._lane_by_key[key] = lane
            if len(self._lane_by_key) >= self._cache_max:
                self._cache = _Cache.ON_TRIAL
                self._counted_from = -1

    def judge_cache(self, routed: int) -> None:
        """Decide from time to time whether the cache of keys saves time. ``routed`` counts the records routed so far.

        A small cache is tried first. If most lookups hit, the cache may grow. If most lookups miss, as with keys that
        never repeat, the cache stays empty for a while. After ``_CACHE_LIFE`` lookups the trial is repeated, because
        other keys may have become frequent.
        """
        looked_up = routed - self._counted_from
        if self._cache is _Cache.ON_TRIAL and self._counted_from < 0:
            self._counted_from, self._misses = routed, 0
        elif self._cache is _Cache.ON_TRIAL and looked_up >= _CACHE_TRIAL:
            pays = self._misses * 2 < looked_up
            grows = pays and self._cache_max < _CACHE_MAX
            self._cache = _Cache.FILLING if grows else _Cache.LEFT_ALONE
            self._cache_max = _CACHE_MAX
            if not pays:
                self._lane_by_key = {}
        elif self._cache is _Cache.LEFT_ALONE and looked_up >= _CACHE_LIFE:
            self._lane_by_key = {}
            self._cache_max = _CACHE_TRIAL
            self._cache = _Cache.FILLING

    def _healthiest(self, now: Instant) -> Lane:
        """Return the lane for a keyless record (P8)."""
        sticky = self._sticky
        if sticky is not None and sticky.is_open_for_keyless and not sticky.vanished:
            return sticky
        lanes = self.lanes
        # On a large stream, the best lane of a random sample is nearly as good as the best of all lanes, and is found
        # much faster.
        if len(lanes) > _COMPARE_ALL_MAX:
            rng = self._rng
            lanes = tuple(lanes[rng.getrandbits(32) % len(lanes)] for _ in range(_SAMPLE))
        best = min(lanes, key=lambda lane: lane.load(now))
        self._sticky = best
        return best

    def install(
        self, snapshot: Snapshot | None, now: Instant, *, may_predict: bool = True
    ) -> tuple[list[Lane], list[Lane]]:
        """Replace the map with a newer one, or remove the map if ``snapshot`` is ``None``.

        Return the lanes that were added and the lanes that were removed. The caller moves the unsent records of the
        removed lanes.
        """
        # Lanes are compared by id and range, because the shards of a re-created stream may have the ids of old shards.
        current = {(lane.shard_id, lane.hash_range): lane for lane in self.lanes}
        shards = [] if snapshot is None else list(zip(snapshot.shard_ids, snapshot.ranges, strict=True))
        added = [Lane(*shard, self._config, self._rng, now) for shard in shards if shard not in current]
        for lane in added:
            lane.max_bytes = self._aggregate_max_bytes
            lane.ttls_differ = self._ttls_differ
            if not self.may_aggregate:
                lane.forbid_aggregates()
        known = current | {(lane.shard_id, lane.hash_range): lane for lane in added}
        self.lanes = tuple(known[shard] for shard in shards)
        for lane, numbers in zip(self.lanes, () if snapshot is None else snapshot.numbers, strict=True):
            lane.numbers = numbers
        self._endings = () if snapshot is None else snapshot.endings
        self._table = make_lane_table(self._endings)
        self._by_first_byte = self._lanes_by_prefix(8)
        by_twelve_bits = self._lanes_by_prefix(12)
        self._by_twelve_bits = [by_twelve_bits[at : at + 16] for at in range(0, len(by_twelve_bits), 16)]
        self._lane_by_key = {}
        removed = [lane for shard, lane in current.items() if shard not in set(shards)]
        self.is_blind = may_predict and not shards
        # The shards of the records in the catch-all lane can be predicted now, so the lane is replaced like a lane that
        # vanished.
        if shards and not self.catch_all.is_idle:
            removed.append(self.catch_all)
            self.catch_all = Lane(None, None, self._config, self._rng, now)
            self.catch_all.ttls_differ = self._ttls_differ
        for lane in removed:
            lane.vanished = True
            if snapshot is not None and lane.shard_id in snapshot.shard_ids:
                lane.predicted = ""  # the map's shard of this id has another range, so it is another shard
        self.vanished += removed
        return added, removed

    def _lanes_by_prefix(self, bits: int) -> list[Lane | None]:
        """Return the lane for each value of the first bits of a hash, or ``None`` if several lanes share the value."""
        shift = 128 - bits
        found: list[Lane | None] = []
        start = 0
        for lane, ending in zip(self.lanes, self._endings, strict=True):
            if start < len(found) << shift:  # this lane shares the last prefix with the lane before it
                found[-1] = None
            start = int.from_bytes(ending, "big") + 1
            found += [lane] * (-(-start >> shift) - len(found))  # the quotient is rounded up
        return found

    def reconfigure(self, config: ProducerConfig, now: Instant) -> None:
        """Apply a new ``linger`` and new rates to all lanes and to lanes that are created later."""
        self._config = config
        for lane in self.all_lanes():
            lane.reconfigure(config, now)

    def limit_aggregates(self, record_max_bytes: int) -> None:
        """Limit aggregates to the size of the largest record that the stream accepts, minus space for a key."""
        self._aggregate_max_bytes = min(self._config.aggregate_max_bytes, record_max_bytes - KIB)
        for lane in self.all_lanes():
            lane.max_bytes = self._aggregate_max_bytes

    def tell_ttls_apart(self) -> None:
        """Make every lane respect the TTLs of single records, because some records have their own TTL."""
        if not self._ttls_differ:
            self._ttls_differ = True
            for lane in self.all_lanes():
                lane.ttls_differ = True

    def forget_predictions(self) -> None:
        """Stop counting landings as predicted, because the stream may have been re-created with the same shard ids."""
        for lane in self.lanes:
            lane.predicted = ""

    def forget_settled(self) -> None:
        """Drop the vanished lanes that have no records left."""
        self.vanished = [lane for lane in self.vanished if not lane.is_idle]

    def must_wait(self, lane: Lane) -> bool:
        """Return whether a lane must wait (P9).

        The catch-all lane waits for the first map. Any lane waits for vanished lanes with overlapping ranges, such as
        its parents.
        """
        if lane is self.catch_all and self.is_blind:
            return True
        return any(other.in_flight and other.hash_range.overlaps(lane.hash_range) for other in self.vanished)

    def all_lanes(self) -> list[Lane]:
        """Return every lane that may hold records."""
        return [self.catch_all, *self.lanes, *self.vanished]
