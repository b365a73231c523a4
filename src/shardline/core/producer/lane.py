"""What waits for one shard, and when may the next of it go?

A lane is one predicted shard: an open aggregate that fills, and a queue of sealed ones in the order of their deadlines.
The catch-all lane takes what has no prediction: it does not aggregate (P2). Nor does a lane whose predictions proved to
be wrong, as after a reshard while no newer map can be had: a record that is sent alone is delivered wherever it lands.

Invariants:

- P2: an aggregate holds records of one lane only; a lane that does not aggregate has bundles of separate records.
- P5: throttling lowers the lane's rates by a factor and success raises them again by steps (AIMD); failures in a row
  pause the lane with jitter; after ``TRIP`` of them its circuit is open, and one aggregate at a time tries the shard.
- P6: an aggregate costs one record and its bytes, data and key, whatever it carries; a bundle is cut where tokens or
  room for it end.
- P9: in an ordered lane at most one aggregate is in flight, and the queue is first in, first out. Where nothing is
  aggregated at most one record of each key is in flight (``key_order``).
- What has expired leaves before anything is admitted, and consumes no tokens.
- An aggregate is due when its oldest record is, and all records live equally long: the first due is the first to
  expire. In an ordered lane later aggregates are due later, so that the order of deadlines is the order of arrival; a
  record without a key that comes late, back from a request or from another lane, goes alone there: it has no order.
- A lane whose entry landed in another shard sends one record per entry, until ``TRUST`` entries in a row that were
  sent after that landing was seen have landed as predicted. A shard that was split or merged never takes another entry.
- What a flush or a deadline has released, and what is sent again, goes as soon as it may: it is not held back once
  more to wait for company.
"""

from bisect import insort
from collections import deque
from typing import Final, NamedTuple, final

from shardline.core.backoff import Backoff, Chance
from shardline.core.clock import NEVER, Instant
from shardline.core.producer.aggregate import KEYLESS_KEY_LENGTH, Aggregate, KeylessAddress
from shardline.core.producer.key_order import KeyOrder
from shardline.core.producer.producer_config import ProducerConfig
from shardline.core.producer.producer_record import BufferedRecord
from shardline.core.producer.producer_stats import LaneStats
from shardline.core.producer.tokens import TokenBucket
from shardline.model.hashing import WHOLE_RING, HashRange
from shardline.model.limits import SHARD_WRITE_BYTES_PER_SECOND, SHARD_WRITE_RECORDS_PER_SECOND
from shardline.model.sequence import ANY_NUMBER

TRIP: Final = 5  # failures in a row that open the circuit
TRUST: Final = 32  # entries in a row that land as predicted before a lane aggregates again
_DECREASE: Final = 0.7  # AIMD: what is left of the rate after throttling ...
_DECREASE_PAUSE: Final = 0.25  # ... at most once in so many seconds: one burst is one signal, not many
_INCREASE_PER_SECOND: Final = 0.05  # ... and how fast the share grows back
_LOWEST_SHARE: Final = 0.02
_FAILURE_MEMORY: Final = 10.0  # seconds until a failure counts half in the choice of a healthy lane
_UNLIMITED: Final = 1e12
_BUNDLE: Final = 64  # separate records that are handled as one thing
_ANY_SIZE: Final = 1 << 62
_APART: Final = 1 << 32  # between the places of two aggregates: there is one for each record, should they be cut up


@final
class Lane:
    """One predicted shard, or what has no prediction (``shard_id`` is ``None``)."""

    # fmt: off
    __slots__ = (
        "_as_predicted", "_backoff", "_blocked_until", "_bucket", "_chance", "_config", "_in_turn", "_keys",
        "_life_after_due", "_misdirected_at", "_opened_due_at", "_ordered", "_queue", "_rates", "_sealed_so_far",
        "_share_changed_at", "_sick_at", "_sickness", "_spare_address",
        "aggregates", "counted_bytes", "counted_entries", "fresh", "hash_range", "held", "in_flight", "is_ready",
        "max_bytes", "max_count", "numbers", "open", "predicted", "queued", "queued_bytes", "released", "sends_no_key",
        "shard_id", "share", "vanished",
    )
    # fmt: on

    def __init__(
        self, shard_id: str | None, hash_range: HashRange | None, config: ProducerConfig, chance: Chance, now: Instant
    ) -> None:
        self.shard_id = shard_id
        self.predicted = shard_id
        """The shard in which landings are as predicted; empty once the stream is known to be another one."""
        self.numbers = ANY_NUMBER
        """The sequence numbers that the shard gives out."""
        self.hash_range = hash_range or WHOLE_RING
        self.aggregates = config.aggregation and shard_id is not None
        """Its records share entries."""
        self._config = config
        self._misdirected_at, self._as_predicted = -NEVER, 0  # when an entry last landed elsewhere; how many did not
        self.vanished = False
        """The map no longer has it: nothing new comes, and what is unsent goes elsewhere."""
        self.in_flight = 0
        """Aggregates under way, or sent and not yet judged."""
        self.sends_no_key = False
        """Keyless records go out without a key: the service chooses their shard."""
        self.held = False
        """It must wait for a lane of an overlapping range (P9)."""
        self.released = False
        """What waits here was due once, and is to go."""
        self.queued = 0
        """Entries that wait, sealed, and their bytes."""
        self.queued_bytes = 0
        self.is_ready = False
        """Written by the collector: it has the lane in turn, and has counted so many entries and bytes of the queue."""
        self.counted_entries = 0
        self.counted_bytes = 0
        self.fresh: list[BufferedRecord] = []
        """What the router has just found to belong here."""
        self.open: Aggregate | None = None
        self._ordered = config.ordered
        self._in_turn = config.ordered and self.aggregates  # whether what is under way has to be answered first
        self._keys = KeyOrder()  # of an ordered lane, for its bundles
        self._life_after_due = config.record_ttl - config.linger
        self._chance = chance
        self.max_bytes = config.aggregate_max_bytes
        self.max_count = self._max_count()
        self._queue: deque[tuple[Instant, int, Aggregate]] = deque()  # sorted
        self._sealed_so_far = 0
        self._opened_due_at: Instant = -NEVER  # of the aggregate that was opened last
        limited = shard_id is not None  # without a map nobody knows over how many shards the catch-all spreads
        self._rates = (config.records_per_second, config.bytes_per_second) if limited else (_UNLIMITED, _UNLIMITED)
        self._bucket = TokenBucket(*self._rates, now)
        self._backoff = Backoff(config.retry_backoff, config.retry_backoff_max, chance)
        self._blocked_until: Instant = -NEVER
        self.share = 1.0  # what is left of the configured rates after throttling
        self._share_changed_at: Instant = now
        self._sickness = 0.0
        self._sick_at: Instant = now
        self._spare_address = self._new_address()  # for the keyless that join an aggregate that one with a key opened

    def _max_count(self) -> float:
        """Records in a full aggregate, or bundle."""
        if self.aggregates:
            return self._config.aggregate_max_count or NEVER
        return min(_BUNDLE, self._config.request_max_entries)

    # ---- whether to aggregate

    def aggregate(self, *, on: bool) -> None:
        """Let records share entries, or not. The lane is empty; what is under way stays as it is."""
        assert not self._queue
        assert self.open is None
        self.aggregates = on
        self.max_count = self._max_count()
        self._in_turn = self._ordered and (on or self.in_flight > 0)  # P9: no record overtakes what is under way

    @property
    def is_distrusted(self) -> bool:
        """Its predictions proved to be wrong: it would aggregate otherwise."""
        return not self.aggregates and self._config.aggregation and self.shard_id is not None

    def note_misdirected(self, seen_at: Instant) -> None:
        """An entry was seen to have landed in another shard."""
        if seen_at > self._misdirected_at:
            self._misdirected_at = seen_at
            self._as_predicted = 0

    def note_as_predicted(self, count: int, started_at: Instant) -> bool:
        """Entries of a request landed here. Says whether the predictions have proved to be right again."""
        if started_at > self._misdirected_at:
            self._as_predicted += count
        return self._as_predicted >= TRUST

    # ---- filling

    def add(self, record: BufferedRecord) -> int:
        """Take a record in. Returns how many aggregates this sealed: 0, 1 or 2."""
        if self._ordered and record.key is None and record.expires_at - self._life_after_due < self._opened_due_at:
            return self._enqueue_alone(record)  # Those with a key that it would join must not become due earlier
        return self.add_all([record])

    def take_fresh(self) -> list[BufferedRecord]:
        """What the router has just found, for ``add_all``."""
        taken, self.fresh = self.fresh, []
        return taken

    def add_all(self, records: list[BufferedRecord]) -> int:
        """Take records in, in their order. Returns how many aggregates this sealed."""
        sealed = at = 0
        while at < len(records):
            current = self.open or self._opened(records[at])
            room = self.max_count - len(current.records)
            to = len(records) if room >= len(records) - at else at + int(room)
            at += current.add_all(records[at:to], self.max_bytes)
            full = len(current.records) >= self.max_count or current.size > self.max_bytes
            if full or (at < to and (self._ordered or self._fits_with_others(records[at]))):
                sealed += self.seal()
            elif at < to:
                sealed += self._enqueue_alone(records[at])
                at += 1
        return sealed

    def _opened(self, record: BufferedRecord) -> Aggregate:
        """A new aggregate that is to begin with this record."""
        self.open = self._made_for(record)
        self._opened_due_at = self.open.due_at
        return self.open

    def _made_for(self, record: BufferedRecord) -> Aggregate:
        address = self._spare_address if record.key is not None else self._new_address()
        return Aggregate(record.expires_at - self._life_after_due, address, separate=not self.aggregates)

    def _enqueue_alone(self, record: BufferedRecord) -> int:
        """A large one beside the open aggregate, which stays open."""
        alone = self._made_for(record)
        alone.add(record, self.max_bytes)
        self._enqueue(alone)
        return 1

    def _fits_with_others(self, record: BufferedRecord) -> bool:
        """Whether a record is worth a new open aggregate, or is so large that it goes alone beside the open one."""
        assert record.data is not None
        return len(record.data) < self.max_bytes // 2

    def seal(self) -> int:
        """Close the open aggregate, if there is one. Returns how many were sealed: 0 or 1."""
        if self.open is None:
            return 0
        self._enqueue(self.open)
        self.open = None
        return 1

    def release(self) -> None:
        """Let all that waits go as soon as it may."""
        self.seal()
        self.released = bool(self._queue)

    def add_again(self, record: BufferedRecord) -> int:
        """As ``add``, of one that was put before others here: its aggregate becomes due as early as the record is."""
        if self.open is not None and not (self._ordered and record.key is None):  # before it is added: that may seal it
            self.open.due_at = min(self.open.due_at, record.expires_at - self._life_after_due)
        return self.add(record)

    def requeue(self, aggregate: Aggregate) -> None:
        """Send it again: it keeps its place by its deadline, which is before all that came later."""
        self._enqueue(aggregate)
        self.released = True

    def _enqueue(self, aggregate: Aggregate) -> None:
        if not aggregate.order:  # one that comes back goes before those that were sealed after it
            aggregate.seal()
            self._sealed_so_far += _APART
            aggregate.order = self._sealed_so_far
        self.queued += aggregate.entry_count
        self.queued_bytes += aggregate.cost_bytes
        queue = self._queue
        place = (aggregate.due_at, aggregate.order, aggregate)
        if not queue or queue[-1] < place:
            queue.append(place)
        else:  # it comes back, or its records were put before others
            insort(queue, place)

    def unsent(self) -> list[BufferedRecord]:
        """All that waits, in order."""
        aggregates = [aggregate for _, _, aggregate in self._queue]
        if self.open is not None:
            aggregates.append(self.open)
        records = [record for aggregate in aggregates for record in aggregate.records]
        return self._keys.in_order(records) if self._keys.has_heads else records

    def take_unsent(self) -> list[BufferedRecord]:
        """The same, and the lane is empty: it vanished, or its order must be made anew."""
        records = self.unsent()
        self.open, self.queued, self.queued_bytes, self.released, self.fresh = None, 0, 0, False, []
        self._keys.forget(records)
        self._queue.clear()
        return records

    def send_no_key(self, *, on: bool) -> None:
        """Whether keyless records go out without a key."""
        self.sends_no_key = on
        self._spare_address = self._new_address()

    def _new_address(self) -> KeylessAddress:
        """Where keyless records of a new aggregate go: a short random key, and a hash key inside the range (P8)."""
        chance = self._chance
        key = f"{chance.getrandbits(4 * KEYLESS_KEY_LENGTH):0{KEYLESS_KEY_LENGTH}x}"
        if self.shard_id is None:
            return KeylessAddress(None if self.sends_no_key else key, None)
        start, size = self.hash_range.start, self.hash_range.size
        return KeylessAddress(key, str(start + chance.getrandbits(128) % size))

    # ---- leaving

    @property
    def is_idle(self) -> bool:
        """Nothing waits and nothing is under way."""
        return not self._queue and self.open is None and not self.in_flight

    def due_at(self) -> Instant:
        """The deadline of the first that waits."""
        sealed = self._queue[0][0] if self._queue else NEVER
        return sealed if self.open is None else min(sealed, self.open.due_at)

    def is_due(self, now: Instant) -> bool:
        """Whether what waits is to go now."""
        return self.released or self.due_at() <= now

    def expires_at(self) -> Instant:
        """When the first that waits reaches its end of life, or earlier. In the queue that is the first due."""
        return min(self.due_at() + self._life_after_due, self._keys.expires_at())

    def take_expired(self, now: Instant) -> list[BufferedRecord]:
        """The records whose life is over. The others stay, in their order."""
        expired = self._keys.take_expired(now)
        life = self._life_after_due
        if self.open is not None and self.open.due_at + life <= now:
            self.seal()
        while self._queue and self._queue[0][0] + life <= now:
            _, _, aggregate = self._queue.popleft()
            self.queued -= aggregate.entry_count
            self.queued_bytes -= aggregate.cost_bytes
            # Rounded as ``expires_at`` is: a record that is due now and alive until a moment later would never leave.
            rest = [record for record in aggregate.records if record.expires_at - life + life > now]
            over = [record for record in aggregate.records if record.expires_at - life + life <= now]
            expired += over
            if rest:
                due_at = min(record.expires_at for record in rest) - life
                self._enqueue(repacked(rest, due_at, aggregate))
            self._enqueue_heads(self._keys.end(over))
        if not self._queue:
            self.released = False
        return expired

    def poll_aggregate(self, now: Instant, room_bytes: float, room_entries: float = NEVER) -> Aggregate | None:
        """The next to send, if it may go now and fits. Its tokens are taken with it (P6)."""
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
            aggregate = self._cut(1)
            if aggregate.cost_bytes > room_bytes or not bucket.try_take(1, aggregate.cost_bytes, now):
                return None
        queue.popleft()
        self.queued -= aggregate.entry_count
        self.queued_bytes -= aggregate.cost_bytes
        if not self.in_flight:
            self._in_turn = self._ordered and self.aggregates
        self.in_flight += 1
        if not queue:
            self.released = False
        return aggregate

    def _admit_first(self) -> None:
        """Let the next bundle hold heads of keys alone (P9): what must wait for another record of its key leaves it."""
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
        """So many of the aggregates under way are judged. A negative count: one was cut up, and its parts fly on."""
        self.in_flight -= count

    def handle_ended(self, records: list[BufferedRecord]) -> None:
        """Records that were under way came to their end, or not. Those that waited for an end of them may go (P9)."""
        if self._keys.has_heads:
            self._enqueue_heads(self._keys.end(record for record in records if record.ending is not None))

    def _enqueue_heads(self, records: list[BufferedRecord]) -> None:
        """Records of different keys, which have waited long enough."""
        if records:
            due_at = min(record.expires_at for record in records) - self._life_after_due
            bundle = Aggregate(due_at, self._spare_address, separate=True)
            bundle.add_all(records, _ANY_SIZE)
            self._enqueue(bundle)
            self.released = True

    def _fitting(self, bundle: Aggregate, room_bytes: float, room_entries: float) -> Aggregate:
        """The bundle that is next, or as much of it as there is room for and tokens may pay."""
        if bundle.entry_count > room_entries > 1:
            bundle = self._cut(int(room_entries))
        count, cost = bundle.entry_count, bundle.cost_bytes
        # Also what was cut: several entries must not go on credit, as a lone one may that costs more than the capacity.
        if count > 1 and (count > room_entries or cost > room_bytes or not self._bucket.covers(count, cost)):
            return self._cut(1)
        return bundle

    def _cut(self, count: int) -> Aggregate:
        """Let the first records of the bundle that is next stand alone."""
        due_at, _, bundle = self._queue.popleft()
        first = repacked(bundle.records[:count], due_at, bundle)
        rest = repacked(bundle.records[count:], due_at, bundle, count)
        self._queue.appendleft((due_at, rest.order, rest))
        self._queue.appendleft((due_at, first.order, first))
        return first

    def _is_busy(self) -> bool:
        """Whether its next must wait for the answer to the one before: in order (P9), or as a trial (P5)."""
        return self.held or (self.in_flight > 0 and (self._in_turn or self._backoff.failures >= TRIP))

    def wakes_at(self, now: Instant) -> Instant:
        """When ``poll_aggregate`` is worth another try; NEVER if only an answer can change that."""
        if not self._queue or self._is_busy():
            return NEVER
        first = self._queue[0][2]
        cost = first.cost_of(first.records[0]) if first.separate else first.cost_bytes
        return max(self._blocked_until, self._bucket.ready_at(1.0, cost, now))

    # ---- how the shard does

    @property
    def is_tripped(self) -> bool:
        """The circuit is open: failures in a row, and none of its answers was good since."""
        return self._backoff.failures >= TRIP

    def handle_success(self, now: Instant) -> None:
        """It stored an entry. A pause goes on: other entries were refused just before."""
        if self._backoff.failures:
            self._backoff.reset()
        if self.share < 1.0:
            self._set_share(min(1.0, self.share + _INCREASE_PER_SECOND * (now - self._share_changed_at)), now)

    def handle_failure(self, now: Instant, *, throttled: bool) -> None:
        """An entry for this shard was refused: slow down."""
        self._sickness = self.sickness(now) + 1.0
        self._sick_at = now
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

    def sickness(self, now: Instant) -> float:
        """Recent failures, the older the less."""
        return self._sickness * float(0.5 ** ((now - self._sick_at) / _FAILURE_MEMORY))

    def load(self, now: Instant) -> float:
        """How bad a choice this lane is for a record that may go anywhere (P8): bytes that wait, weighed by health."""
        waiting = self.queued_bytes + (self.in_flight + 1) * self.max_bytes / 8
        blocked = 1.0 if now < self._blocked_until else 0.0
        return (waiting / self.share) * (1.0 + self.sickness(now)) * (1.0 + 9.0 * blocked)

    def _set_share(self, share: float, now: Instant) -> None:
        """A share of what the service allows a shard, if less was configured of that; all of the configured at 1."""
        self.share = share
        self._share_changed_at = now
        records, size = self._rates
        if share < 1.0 and self.shard_id is not None:
            records = min(records, SHARD_WRITE_RECORDS_PER_SECOND) * share
            size = min(size, SHARD_WRITE_BYTES_PER_SECOND) * share
        self._bucket.set_rates(records, size, now)


@final
class Shipment(NamedTuple):
    """One aggregate on its way, and the lane that it came from."""

    aggregate: Aggregate
    lane: Lane


def repacked(records: list[BufferedRecord], due_at: Instant, of: Aggregate, place: int = 0) -> Aggregate:
    """What is left of an aggregate, sized anew, in its place; or its part that begins at ``place``."""
    aggregate = Aggregate(due_at, of.address, separate=of.separate)
    aggregate.order = of.order + place
    added = aggregate.add_all(records, _ANY_SIZE)
    assert added == len(records)
    aggregate.seal()
    return aggregate
