"""Holds the records that wait for one shard, and decides when they may be sent.

A lane holds the records of one predicted shard: an open aggregate that is being filled, and a queue of sealed
aggregates in the order of their deadlines. The catch-all lane takes the records without a prediction and does not
aggregate them (P2). A lane whose predictions proved wrong does not aggregate either, because a record that is sent
alone is delivered wherever it lands. Predictions prove wrong after a reshard, until the producer has a newer map.

With ``packing``, every lane packs all its records, because a pack is also delivered wherever it lands. A pack holds
records of one key, so a lane has one open pack for each key, and one for its keyless records.

Invariants:

- P2: an aggregate holds records of one lane only. A lane that does not aggregate fills bundles of separate records.
- A lane does not aggregate if it has no shard or if ``may_aggregate`` is not set, for example because the stream has
  channels.
- P5: throttling multiplies the lane's rates by a factor below 1, and success raises them again in steps (AIMD).
  Failures in a row pause the lane, with backoff and jitter. After ``TRIP`` failures in a row the circuit is open: the
  lane sends one aggregate at a time.
- P6: an aggregate costs one record token, however many records it holds, and one byte token per byte of its data and
  key. A bundle is cut if the tokens or the room in the request do not suffice for the whole bundle.
- P9: an ordered lane has at most one aggregate or pack in flight, and its queue is first in, first out. An ordered
  lane that does not aggregate has at most one record with each key in flight (``key_order``).
- Expired records leave the lane before other records are sent, and take no tokens.
- An aggregate is due when its oldest record is due. The TTL of a single record changes neither the time at which its
  aggregate is due nor the aggregate's place in the queue. Unless ``ttls_differ``, the first aggregate that is due is
  also the first to expire. In an ordered lane, later aggregates are due later, so the order of deadlines is the order
  of arrival. A keyless record that comes to an ordered lane late, from a refused request or another lane, is queued
  alone, because it has no order to keep.
- After an entry of a lane landed in another shard, the lane sends one record per entry. It aggregates again when
  ``TRUST`` entries in a row, all sent after that landing was seen, have landed as predicted. An ordered lane first
  waits until all that it has in flight is settled. If the lane's shard was split or merged, the lane never aggregates
  again, because the shard stores no further entry.
- Aggregates that a flush or a deadline has released, or that are sent again, are sent as soon as possible, without
  lingering a second time.
"""

from bisect import insort
from collections import deque
from typing import Final, NamedTuple, final

from shardline.codec.value_packing import packing_named
from shardline.core.backoff import Backoff, Chance
from shardline.core.clock import NEVER, Instant
from shardline.core.producer.aggregate import KEYLESS_KEY_LENGTH, Aggregate, KeylessAddress
from shardline.core.producer.key_order import KeyOrder
from shardline.core.producer.producer_config import ProducerConfig
from shardline.core.producer.producer_record import BufferedRecord
from shardline.core.producer.stamper import Stamper
from shardline.core.producer.tokens import TokenBucket
from shardline.core.producer_events import LaneStats
from shardline.model.hashing import WHOLE_RING, HashRange
from shardline.model.limits import SHARD_WRITE_BYTES_PER_SECOND, SHARD_WRITE_RECORDS_PER_SECOND
from shardline.model.sequence import ANY_NUMBER

TRIP: Final = 5  # the number of failures in a row that opens the circuit
TRUST: Final = 32  # the number of entries in a row that must land as predicted before a lane aggregates again
# AIMD: throttling multiplies the share of the configured rates by this factor, but at most once per pause, because a
# burst of throttled entries is one signal. Success raises the share linearly.
_DECREASE: Final = 0.7
_DECREASE_PAUSE: Final = 0.25
_INCREASE_PER_SECOND: Final = 0.05
_LOWEST_SHARE: Final = 0.02
_FAILURE_MEMORY: Final = 10.0  # the half-life in seconds of a failure's weight when a healthy lane is chosen
_UNLIMITED: Final = 1e12
_BUNDLE: Final = 64  # the number of records in a full bundle
_ANY_SIZE: Final = 1 << 62
_ALL: Final = (None, None)  # in ``Lane.open``: the key of an aggregate for all records, and of the keyless pack
# The ``order`` of two consecutive aggregates differs by this step, which leaves a number for each part of an aggregate
# that is cut up.
_ORDER_STEP: Final = 1 << 32


@final
class Lane:
    """The records of one predicted shard, or the records without a prediction (``shard_id`` is ``None``)."""

    # fmt: off
    __slots__ = (
        "_backoff", "_blocked_until", "_bucket", "_config", "_failure_score", "_failure_score_at",
        "_in_turn", "_keys", "_landed_as_predicted", "_life_after_due", "_linger_change", "_misdirected_at",
        "_opened_due_at", "_ordered", "_packing", "_queue", "_rates", "_rng", "_sealed_so_far", "_share_changed_at",
        "_spare_address", "aggregates", "counted_bytes", "counted_entries", "fresh", "hash_range", "held", "in_flight",
        "is_ready",
        "max_bytes", "max_count", "may_aggregate", "numbers", "open", "predicted", "queued", "queued_bytes", "released",
        "sends_no_key", "shard_id", "share", "stamper", "ttls_differ", "vanished",
    )
    # fmt: on

    def __init__(
        self, shard_id: str | None, hash_range: HashRange | None, config: ProducerConfig, rng: Chance, now: Instant
    ) -> None:
        self.shard_id = shard_id
        self.predicted = shard_id
        """The id of the predicted shard. An entry that is stored in this shard landed as predicted.

        When the shard is known to belong to another stream, the router and the response handler set this field to an
        empty string, so that no landing counts as predicted.
        """
        self.numbers = ANY_NUMBER
        """The range of the shard's sequence numbers. The router writes this field."""
        self.hash_range = hash_range or WHOLE_RING
        self._packing = packing_named(config.packing)
        # Whether the settings and the stream allow aggregates. Written by the router and ``Retries``.
        self.may_aggregate = config.aggregation is not False
        self.aggregates = self.may_aggregate and (shard_id is not None or self._packing is not None)
        """Whether this lane sends several records in one entry."""
        self._config, self._rng = config, rng
        # When an entry was last seen to have landed in another shard, and how many entries landed as predicted since.
        self._misdirected_at, self._landed_as_predicted = -NEVER, 0
        self.vanished = False
        """Whether the map no longer contains this shard. The router sets this. Unsent records move to other lanes."""
        self.in_flight = 0
        """The number of aggregates that have been sent and are not settled yet."""
        self.sends_no_key = False
        """Whether keyless records are sent without a key. If so, the service chooses their shard."""
        # Two flags: whether this lane must wait for a lane with an overlapping range (P9; written by ``Retries``), and
        # whether the queue became due or was flushed, so that it is sent as soon as possible.
        self.held, self.released = False, False
        self.queued = self.queued_bytes = 0
        """The number of entries in the queue. ``queued_bytes`` is the size of their data and keys."""
        self.is_ready = False
        """Whether the lane may give an aggregate to the next request. The collector writes this field."""
        self.counted_entries = self.counted_bytes = 0  # how much of the queue the collector has counted
        # Whether some records have their own TTL. If so, any aggregate may expire first. Written by the router.
        self.ttls_differ = False
        self.stamper = Stamper(rng) if config.dedup else None
        """Numbers the records that enter the producer through this lane. It is ``None`` without ``dedup``."""
        self.fresh: list[BufferedRecord] = []
        """Records that the router has just assigned to this lane. The router writes this field."""
        self.open: dict[tuple[str | None, str | None], Aggregate] = {}
        """The aggregate that is being filled. With ``packing``, all open packs, by key and explicit hash key."""
        self._ordered = config.ordered
        self._in_turn = config.ordered and self.aggregates  # whether to wait for the aggregate in flight
        self._keys = KeyOrder()  # for the bundles of an ordered lane
        self._life_after_due, self._linger_change = config.record_ttl - config.linger, 0.0
        self.max_bytes, self.max_count = config.aggregate_max_bytes, self._max_count()
        self._queue: deque[tuple[Instant, int, Aggregate]] = deque()  # sorted by due time, then ``order``
        self._sealed_so_far = 0
        self._opened_due_at: Instant = -NEVER  # when the aggregate that was opened last is due
        limited = shard_id is not None  # without a map, the number of shards behind the catch-all lane is unknown
        self._rates = (config.records_per_second, config.bytes_per_second) if limited else (_UNLIMITED, _UNLIMITED)
        self._bucket = TokenBucket(*self._rates, now)
        self._backoff = Backoff(config.retry_backoff, config.retry_backoff_max, rng)
        self._blocked_until: Instant = -NEVER
        self.share, self._share_changed_at = 1.0, now  # the share of the rates that throttling left
        self._failure_score, self._failure_score_at = 0.0, now
        # The address of keyless records that join an aggregate whose first record has a key.
        self._spare_address = self._new_address()

    def _max_count(self) -> float:
        """Return the number of records in a full aggregate or bundle."""
        if self.aggregates:
            return self._config.aggregate_max_count or NEVER
        return min(_BUNDLE, self._config.request_max_entries)

    # ---- settings

    def reconfigure(self, config: ProducerConfig, now: Instant) -> None:
        """Apply a new ``linger`` and new rates. The share of the rates stays as throttling has left it."""
        self._linger_change += config.linger - self._config.linger
        self._config = config
        if self.shard_id is not None:
            self._rates = (config.records_per_second, config.bytes_per_second)
            self._apply_rates(now)

    # ---- whether to aggregate

    def aggregate(self, *, on: bool) -> None:
        """Switch aggregation on or off. The lane must have no waiting records. Aggregates in flight are not changed."""
        assert not self._queue
        assert not self.open
        self.aggregates = on
        self.max_count = self._max_count()
        self._in_turn = self._ordered and (on or self.in_flight > 0)  # P9: no record overtakes an aggregate in flight

    def forbid_aggregates(self) -> None:
        """Send one record per entry, because the stream has channels. The lane must have no waiting records."""
        self.may_aggregate = False
        self.aggregate(on=False)

    @property
    def is_distrusted(self) -> bool:
        """Whether the lane does not aggregate because its predictions proved wrong."""
        return not self.aggregates and self.may_aggregate and self.shard_id is not None

    def note_misdirected(self, seen_at: Instant) -> None:
        """Called when an entry is found to have landed in another shard. ``seen_at`` is the time of this discovery."""
        if seen_at > self._misdirected_at:
            self._misdirected_at = seen_at
            self._landed_as_predicted = 0

    def note_as_predicted(self, count: int, started_at: Instant) -> None:
        """Called when entries landed as predicted. ``started_at`` is the time at which their request was sent."""
        if started_at > self._misdirected_at:
            self._landed_as_predicted += count

    @property
    def has_proved_itself(self) -> bool:
        """Whether a lane that stopped aggregating because its predictions were wrong may aggregate again."""
        return self.is_distrusted and self._landed_as_predicted >= TRUST

    def wait_for_flights(self) -> None:
        """Send nothing until the aggregates in flight are settled (P9)."""
        self._in_turn = True

    # ---- filling

    def add(self, record: BufferedRecord) -> int:
        """Add a record. Return how many aggregates were sealed: 0, 1 or 2."""
        # A late keyless record may open an aggregate that is due early. Keyed records that join this aggregate later
        # would then overtake the keyed records of earlier aggregates (P9).
        if self._ordered and record.key is None and record.expires_at - self._life_after_due < self._opened_due_at:
            return self._enqueue_alone(record)
        return self.add_all([record])

    def take_fresh(self) -> list[BufferedRecord]:
        """Take the records that the router has just assigned to this lane, for ``add_all``."""
        taken, self.fresh = self.fresh, []
        return taken

    def add_all(self, records: list[BufferedRecord]) -> int:
        """Add records in order. Return how many aggregates were sealed."""
        if self._packing is None:
            return self._fill(_ALL, records)
        by_key: dict[tuple[str | None, str | None], list[BufferedRecord]] = {}
        for record in records:
            by_key.setdefault((record.key, record.explicit_hash_key), []).append(record)
        return sum([self._fill(place, group) for place, group in by_key.items()])

    def _fill(self, place: tuple[str | None, str | None], records: list[BufferedRecord]) -> int:
        """Add records to the aggregate that is open for this key. Return how many aggregates were sealed."""
        sealed = at = 0
        while at < len(records):
            current = self.open.get(place) or self._opened(place, records[at])
            # ``max_count`` may be infinite, so it is compared before it is converted to an int.
            room = self.max_count - len(current.records)
            to = len(records) if room >= len(records) - at else at + int(room)
            at += current.add_all(records[at:to], self.max_bytes)
            full = len(current.records) >= self.max_count or current.size > self.max_bytes
            if full or (at < to and (self._ordered or self._fits_with_others(records[at]))):
                self._enqueue(current)
                del self.open[place]
                sealed += 1
            elif at < to:
                # A large record would leave most of a new aggregate empty. There is no order to keep, so the record is
                # queued alone, and the open aggregate stays open.
                sealed += self._enqueue_alone(records[at])
                at += 1
        return sealed

    def _opened(self, place: tuple[str | None, str | None], record: BufferedRecord) -> Aggregate:
        """Open a new aggregate that begins with this record. The caller adds the record."""
        opened = self.open[place] = self._made_for(record)
        self._opened_due_at = opened.due_at
        return opened

    def _made_for(self, record: BufferedRecord) -> Aggregate:
        address = self._spare_address if record.key is not None else self._new_address()
        due_at = record.expires_at - self._life_after_due
        return Aggregate(due_at, address, separate=not self.aggregates, packing=self._packing)

    def _enqueue_alone(self, record: BufferedRecord) -> int:
        """Queue a record in a separate aggregate, while the open aggregate stays open."""
        alone = self._made_for(record)
        alone.add(record, self.max_bytes)
        self._enqueue(alone)
        return 1

    def _fits_with_others(self, record: BufferedRecord) -> bool:
        """Return whether a record is small enough to open a new aggregate for it.

        A larger record is queued alone.
        """
        assert record.data is not None
        return len(record.data) + len(record.tags) < self.max_bytes // 2

    def seal(self) -> int:
        """Seal the open aggregate or packs, if there are any. Return how many were sealed."""
        count = len(self.open)
        for aggregate in self.open.values():
            self._enqueue(aggregate)
        self.open = {}
        return count

    def release(self) -> None:
        """Let all waiting records be sent as soon as possible."""
        self.seal()
        self.released = bool(self._queue)

    def add_again(self, record: BufferedRecord) -> int:
        """Add a record that may be older than the records of this lane.

        The aggregate that the record joins becomes due no later than the record. Return how many aggregates were
        sealed.
        """
        # The deadline is changed before the record is added, because adding may seal the aggregate.
        joined = self.open.get(_ALL if self._packing is None else (record.key, record.explicit_hash_key))
        if joined is not None and not (self._ordered and record.key is None):
            joined.due_at = min(joined.due_at, record.expires_at - self._life_after_due)
        return self.add(record)

    def requeue(self, aggregate: Aggregate) -> None:
        """Queue an aggregate again. Its deadline places it before all aggregates that were sealed later."""
        self._enqueue(aggregate)
        self.released = True

    def _enqueue(self, aggregate: Aggregate) -> None:
        if not aggregate.order:  # an aggregate that is queued again keeps its ``order``, and so its place
            aggregate.seal()
            self._sealed_so_far += _ORDER_STEP
            aggregate.order = self._sealed_so_far
        self.queued += aggregate.entry_count
        self.queued_bytes += aggregate.cost_bytes
        queue = self._queue
        place = (aggregate.due_at, aggregate.order, aggregate)
        if not queue or queue[-1] < place:
            queue.append(place)
        else:  # the aggregate is queued again, or its records were put before those of other aggregates
            insort(queue, place)

    def unsent(self) -> list[BufferedRecord]:
        """Return all waiting records, in order."""
        aggregates = [*(aggregate for _, _, aggregate in self._queue), *self.open.values()]
        records = [record for aggregate in aggregates for record in aggregate.records]
        return self._keys.in_order(records) if self._keys.has_heads else records

    def take_unsent(self) -> list[BufferedRecord]:
        """Take all waiting records out of the lane, in order.

        This is called when the lane has vanished, or when the caller adds the records again in another order.
        """
        records = self.unsent()
        self.open, self.queued, self.queued_bytes, self.released, self.fresh = {}, 0, 0, False, []
        self._keys.forget(records)
        self._queue.clear()
        return records

    def send_no_key(self, *, on: bool) -> None:
        """Set whether keyless records are sent without a key."""
        self.sends_no_key = on
        self._spare_address = self._new_address()

    def _new_address(self) -> KeylessAddress:
        """Return a short random key and a hash key inside the lane's range, for keyless records (P8)."""
        rng = self._rng
        key = f"{rng.getrandbits(4 * KEYLESS_KEY_LENGTH):0{KEYLESS_KEY_LENGTH}x}"
        if self.shard_id is None:
            return KeylessAddress(None if self.sends_no_key else key, None)
        start, size = self.hash_range.start, self.hash_range.size
        return KeylessAddress(key, str(start + rng.getrandbits(128) % size))

    # ---- leaving

    @property
    def is_idle(self) -> bool:
        """Whether no record is waiting and no aggregate is in flight."""
        return not self._queue and not self.open and not self.in_flight

    @property
    def is_open_for_keyless(self) -> bool:
        """Whether an aggregate that takes keyless records is being filled."""
        return _ALL in self.open

    def open_due_at(self) -> Instant:
        """Return the time at which the first open aggregate is due."""
        return min([aggregate.due_at for aggregate in self.open.values()], default=NEVER) + self._linger_change

    def due_at(self) -> Instant:
        """Return the time at which the first waiting aggregate is due."""
        return self._first_due_at() + self._linger_change

    def _first_due_at(self) -> Instant:
        """Return the time at which the first waiting aggregate would be due if ``linger`` had not changed."""
        sealed = self._queue[0][0] if self._queue else NEVER
        return min([sealed, *(aggregate.due_at for aggregate in self.open.values())]) if self.open else sealed

    def is_due(self, now: Instant) -> bool:
        """Return whether the waiting records should be sent now."""
        return self.released or self.due_at() <= now

    def expires_at(self) -> Instant:
        """Return a time before which no waiting record expires."""
        if not self.ttls_differ:
            return min(self._first_due_at() + self._life_after_due, self._keys.expires_at())
        aggregates = [*(aggregate for _, _, aggregate in self._queue), *self.open.values()]
        waiting = [aggregate.expires_at() for aggregate in aggregates]
        return min([self._keys.expires_at(), *waiting])

    def oldest(self) -> Instant:
        """Return the ``expires_at`` of the waiting record that was put first."""
        return min(self._first_due_at() + self._life_after_due, self._keys.oldest())

    def take_expired(self, now: Instant) -> list[BufferedRecord]:
        """Remove and return the waiting records whose TTL has expired. The other records stay in their order."""
        expired = self._keys.take_expired(now)
        life = self._life_after_due
        if any(self._expiry_of(aggregate) <= now for aggregate in self.open.values()):
            self.seal()
        for aggregate in self._take_expired_aggregates(now):
            self.queued -= aggregate.entry_count
            self.queued_bytes -= aggregate.cost_bytes
            if self.ttls_differ:
                over = [record for record in aggregate.records if record.deadline <= now]
                rest = [record for record in aggregate.records if record.deadline > now]
            else:
                # ``- life + life`` rounds like ``expires_at()`` does. Otherwise a rounding error could keep a record in
                # the lane although ``expires_at()`` has passed, and the host would wake up again and again.
                over = [record for record in aggregate.records if record.expires_at - life + life <= now]
                rest = [record for record in aggregate.records if record.expires_at - life + life > now]
            expired += over
            if rest:
                due_at = min(record.expires_at for record in rest) - life
                self._enqueue(repacked(rest, due_at, aggregate))
            self._enqueue_heads(self._keys.end(over))
        if not self._queue:
            self.released = False
        return expired

    def _expiry_of(self, aggregate: Aggregate) -> Instant:
        return aggregate.expires_at() if self.ttls_differ else aggregate.due_at + self._life_after_due

    def _take_expired_aggregates(self, now: Instant) -> list[Aggregate]:
        """Remove from the queue the sealed aggregates that hold any expired record, and return them."""
        queue = self._queue
        taken: list[Aggregate] = []
        if self.ttls_differ:
            taken = [aggregate for _, _, aggregate in queue if aggregate.expires_at() <= now]
            if taken:
                self._queue = deque(place for place in queue if place[2].expires_at() > now)
        else:
            while queue and queue[0][0] + self._life_after_due <= now:
                taken.append(queue.popleft()[2])
        return taken

    def poll_aggregate(self, now: Instant, room_bytes: float, room_entries: float = NEVER) -> Aggregate | None:
        """Return the next aggregate to send, if it may be sent now and fits, and take the tokens for it (P6)."""
        queue, bucket = self._queue, self._bucket
        if not queue or now < self._blocked_until or self._is_busy():
            return None
        if self._ordered:
            self._admit_first()
            if not queue:
                return None
        aggregate = queue[0][2]
        if aggregate.entry_count > 1:
            aggregate = self._fitting(aggregate, room_bytes, room_entries)
        if aggregate.cost_bytes > room_bytes or not bucket.try_take(aggregate.entry_count, aggregate.cost_bytes, now):
            if aggregate.entry_count == 1:
                return None
            # The whole bundle cannot be sent now, but perhaps its first record can.
            aggregate = self._cut(1)
            if aggregate.cost_bytes > room_bytes or not bucket.try_take(1, aggregate.cost_bytes, now):
                return None
        queue.popleft()
        self.queued -= aggregate.entry_count
        self.queued_bytes -= aggregate.cost_bytes
        # After ``aggregate(on=False)`` or ``wait_for_flights``, the lane waited for the aggregates in flight. Now all
        # of them are settled.
        if not self.in_flight:
            self._in_turn = self._ordered and self.aggregates
        self.in_flight += 1
        if not queue:
            self.released = False
        return aggregate

    def _admit_first(self) -> None:
        """Reduce the next bundle to the records that are heads of their keys (P9). The other records wait behind the
        heads.
        """
        queue = self._queue
        while queue and queue[0][2].separate:
            due_at, _, bundle = queue[0]
            admitted = self._keys.admit(bundle.records)
            if len(admitted) == len(bundle.records):
                return
            queue.popleft()
            self.queued -= bundle.entry_count
            self.queued_bytes -= bundle.cost_bytes
            if admitted:
                self._enqueue(repacked(admitted, due_at, bundle))
                return
        self.released &= bool(queue)

    def note_settled(self, count: int = 1) -> None:
        """Subtract settled aggregates from the number in flight. If an aggregate was cut up, a negative ``count`` adds
        the new parts.
        """
        self.in_flight -= count

    def handle_ended(self, records: list[BufferedRecord]) -> None:
        """For each of ``records`` that was delivered or has failed, queue the record that waited behind it (P9)."""
        if self._keys.has_heads:
            self._enqueue_heads(self._keys.end(record for record in records if record.ending is not None))

    def _enqueue_heads(self, records: list[BufferedRecord]) -> None:
        """Queue records that have become the heads of their keys. The records do not linger a second time."""
        if records:
            due_at = min(record.expires_at for record in records) - self._life_after_due
            bundle = Aggregate(due_at, self._spare_address, separate=True)
            bundle.add_all(records, _ANY_SIZE)
            self._enqueue(bundle)
            self.released = True

    def _fitting(self, bundle: Aggregate, room_bytes: float, room_entries: float) -> Aggregate:
        """Return the next bundle. If it does not fit into the request, or costs more tokens than a full bucket holds,
        cut its first records off and return these.
        """
        if bundle.entry_count > room_entries > 1:
            bundle = self._cut(int(room_entries))
        count, cost = bundle.entry_count, bundle.cost_bytes
        # Only a single entry may cost more than the bucket's capacity and be sent on credit. A bundle of several
        # entries that costs more, even if it was just cut, is cut down to its first entry.
        if count > 1 and (count > room_entries or cost > room_bytes or not self._bucket.covers(count, cost)):
            return self._cut(1)
        return bundle

    def _cut(self, count: int) -> Aggregate:
        """Cut the first records off the next bundle, and return them as a separate bundle."""
        due_at, _, bundle = self._queue.popleft()
        first = repacked(bundle.records[:count], due_at, bundle)
        rest = repacked(bundle.records[count:], due_at, bundle, count)
        self._queue.appendleft((due_at, rest.order, rest))
        self._queue.appendleft((due_at, first.order, first))
        return first

    def _is_busy(self) -> bool:
        """Return whether the next aggregate must wait for an earlier one: to keep the order (P9), or because the
        circuit is open and only one aggregate at a time may be sent (P5).
        """
        return self.held or (self.in_flight > 0 and (self._in_turn or self._backoff.failures >= TRIP))

    def wakes_at(self, now: Instant) -> Instant:
        """Return the time at which to call ``poll_aggregate`` again, or NEVER if only an answer can change its
        result.
        """
        if not self._queue or self._is_busy():
            return NEVER
        first = self._queue[0][2]
        cost = first.cost_of(first.records[0]) if first.separate else first.cost_bytes
        return max(self._blocked_until, self._bucket.ready_at(1.0, cost, now))

    # ---- the health of the shard

    @property
    def is_tripped(self) -> bool:
        """Whether the circuit is open: there were ``TRIP`` failures or more without a success."""
        return self._backoff.failures >= TRIP

    def handle_success(self, now: Instant) -> None:
        """Called when the shard stored an entry. A pause that has begun goes on: refused entries caused it."""
        if self._backoff.failures:
            self._backoff.reset()
        if self.share < 1.0:
            self._set_share(min(1.0, self.share + _INCREASE_PER_SECOND * (now - self._share_changed_at)), now)

    def handle_failure(self, now: Instant, *, throttled: bool) -> None:
        """Slow down, because an entry for this shard was refused."""
        self._failure_score = self.failure_score(now) + 1.0
        self._failure_score_at = now
        if now >= self._blocked_until:  # entries of one request fail together: one pause for all
            self._blocked_until = now + self._backoff.next_delay()
        if throttled and (self.share == 1.0 or now - self._share_changed_at >= _DECREASE_PAUSE):
            self._set_share(max(_LOWEST_SHARE, self.share * _DECREASE), now)

    def stats(self) -> LaneStats:
        return LaneStats(
            shard_id=self.shard_id or "",
            queued_entries=self.queued + self._keys.waiting,
            queued_bytes=self.queued_bytes,
            in_flight=self.in_flight,
            rate_share=self.share,
            tripped=self.is_tripped,
        )

    def failure_score(self, now: Instant) -> float:
        """Return the number of recent failures, where older failures count less."""
        return self._failure_score * float(0.5 ** ((now - self._failure_score_at) / _FAILURE_MEMORY))

    def load(self, now: Instant) -> float:
        """Return the waiting bytes, weighted by the shard's health. Keyless records go to the lane with the lowest load
        (P8).
        """
        waiting = self.queued_bytes + (self.in_flight + 1) * self.max_bytes / 8
        blocked = 1.0 if now < self._blocked_until else 0.0
        return (waiting / self.share) * (1.0 + self.failure_score(now)) * (1.0 + 9.0 * blocked)

    def _set_share(self, share: float, now: Instant) -> None:
        """Set what share of the rates the lane may use, from ``_LOWEST_SHARE`` to 1.

        If the share is 1, the configured rates apply, even if they are above the service's limits. If the share is
        below 1, the lane gets this share of the configured rate or of the service's limit, whichever is lower.
        Otherwise the share of a very high configured rate might still be too high to slow the lane down.
        """
        self.share = share
        self._share_changed_at = now
        self._apply_rates(now)

    def _apply_rates(self, now: Instant) -> None:
        records, size = self._rates
        if self.share < 1.0 and self.shard_id is not None:
            records = min(records, SHARD_WRITE_RECORDS_PER_SECOND) * self.share
            size = min(size, SHARD_WRITE_BYTES_PER_SECOND) * self.share
        self._bucket.set_rates(records, size, now)


@final
class Shipment(NamedTuple):
    """An aggregate that was taken out of its lane to be sent, together with the lane."""

    aggregate: Aggregate
    lane: Lane


def repacked(records: list[BufferedRecord], due_at: Instant, of: Aggregate, place: int = 0) -> Aggregate:
    """Make a new aggregate from some records of the aggregate ``of``. The new one takes the place of ``of`` in the
    order.

    Args:
        records: the records that are left, or a part of them.
        due_at: when the new aggregate is due.
        of: the aggregate that held the records.
        place: the index of the first record, if the aggregate was cut up.
    """
    aggregate = Aggregate(due_at, of.address, separate=of.separate, packing=of.packing)
    aggregate.order = of.order + place
    added = aggregate.add_all(records, _ANY_SIZE)
    assert added == len(records)
    aggregate.seal()
    return aggregate
