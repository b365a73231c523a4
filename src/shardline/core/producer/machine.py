"""What happens to a record between ``put`` and its end?

It is routed to the lane of its shard, shares an aggregate there, is sent when a request is full or a record is due, and
is settled by the answer. The shell feeds this machine, sends what it polls, and wakes whom it names.

Invariants (the others stand in the parts that keep them):

- P1: every accepted record ends exactly once, also if a put is interrupted between any two of its steps.
- P3: the machine works on while the map is fetched.
- P7: ``put`` answers FULL and takes nothing when there is no room.
- P9: with ``ordered`` nothing is sent before there is a map, and a lane waits for lanes of overlapping ranges.
- P10: ``flush`` makes everything due; it keeps the rate limits.
- P11: ``put`` answers PUMP only when no deadline was armed, all is due, or a request can be filled, else QUIET.
- W1: what waits without a map is held back until the first listing is answered, and all is until the stream has told of
  itself, but no longer than ``BLIND_PATIENCE``: a map that comes within milliseconds makes aggregates of it, and a
  stream that distributes records by itself gets none.
- W3: what is put is sorted into lanes in rounds: when enough came together, when something is due, and before shards
  change. One loop over many costs half of as many calls.
- W2: ``next_deadline`` is never in the past unless a poll has something to give.
"""

from typing import Final, final

from shardline.codec.shapes import ListShardsResponse, PutRecordsResponse, StreamSummary
from shardline.core.backoff import Chance
from shardline.core.clock import NEVER, Instant
from shardline.core.events import Event, ShardMapFailed, ShardsChanged
from shardline.core.failures import Failure, FailureKind
from shardline.core.producer.aggregate import WRAP_MAX_BYTES
from shardline.core.producer.collector import Collector
from shardline.core.producer.config import ProducerConfig
from shardline.core.producer.intake import Intake, Put, round_limits
from shardline.core.producer.isolation import Isolation
from shardline.core.producer.lane import Lane
from shardline.core.producer.ledger import Ledger
from shardline.core.producer.readiness import Readiness
from shardline.core.producer.record import BufferedRecord, payload_bytes
from shardline.core.producer.returns import Returns, ids_of
from shardline.core.producer.router import Router
from shardline.core.producer.settlement import Flight, Settlement
from shardline.core.producer.shard_map import ShardMap
from shardline.core.producer.stats import ProducerStats
from shardline.core.producer.stream_facts import StreamFacts
from shardline.core.producer.turn import Turn
from shardline.core.producer.whereabouts import Whereabouts
from shardline.core.requests import DescribeStreamSummary, ListShards, PutRecords
from shardline.model.limits import KIB
from shardline.model.stream import StreamRef

BLIND_PATIENCE: Final = 1.0
ALONE_BYTES: Final = 16 * KIB  # a round that begins with more may fill a request


@final
class ProducerMachine:
    """The producer, without I/O."""

    def __init__(self, stream: StreamRef, config: ProducerConfig, chance: Chance, now: Instant) -> None:
        self._stream = stream
        self._config = config
        self._map = ShardMap(stream, chance, closed_shard_ttl=config.closed_shard_ttl)
        self._facts = StreamFacts(stream, config, chance)
        self.readiness = Readiness()
        self._ledger = Ledger(config)
        self._router = Router(config, chance, now)
        self._router.limit_aggregates(config.known_record_max_bytes)
        self._isolation = Isolation(config)
        self._collector = Collector(config, chance, self._isolation)
        self._returns = Returns(config, self._ledger, self._router, self._collector, self._isolation)
        self._settlement = Settlement(
            config=config,
            ledger=self._ledger,
            returns=self._returns,
            collector=self._collector,
            isolation=self._isolation,
            shard_map=self._map,
            facts=self._facts,
        )
        self._flights: dict[int, Flight] = {}
        self._flight_count = 0
        self._blind_at: Instant = now + BLIND_PATIENCE  # W1
        self._sends_blind = False
        self.intake = Intake()
        """What is put goes there first; the shell may put it there itself."""
        self.turn = Turn(self.intake, self._mend, self._arm_joined)
        self._round: list[BufferedRecord] | None = None  # what is under the hands of a put, until it is done
        parts = (self.intake, self._ledger, self._router, self._collector, self._settlement)
        self._whereabouts = Whereabouts(*parts, isolation=self._isolation, flights=self._flights)
        self._round_records, self._round_bytes = round_limits(config, 0)
        self._due_at: Instant = NEVER  # when the first record is due, or earlier; NEVER: nothing lingers
        self._expires_at: Instant = NEVER  # when the first record expires, or earlier
        self._entries_sent = 0
        self._map_requests = 0
        self.record_max_bytes = self._facts.record_max_bytes
        """The largest record, data and key, as far as known."""
        self.plain_max_bytes = self.record_max_bytes - WRAP_MAX_BYTES  # up to here a record fits, also wrapped (P12)

    @property
    def wall_offset(self) -> float:
        """What to add to an instant to get seconds since 1970; set by the shell."""
        return self._ledger.wall_offset

    @wall_offset.setter
    def wall_offset(self, seconds: float) -> None:
        self._ledger.wall_offset = seconds

    # ---- commands

    def put(self, record: BufferedRecord, now: Instant) -> Put:
        """Accept a record that the shell has checked, or refuse it for lack of room (P7)."""
        intake, size = self.intake, payload_bytes(record)
        if len(intake.records) < intake.max_records and intake.size + size <= intake.max_bytes:  # by far the most
            intake.add(record, size)
            return Put.QUIET
        if self.turn.is_taken:
            return self.turn.join(record, size) if self._ledger.has_room(size, intake) else Put.FULL
        with self.turn:
            if not self._ledger.has_room(size, intake):
                return Put.FULL
            self._round = intake.records
            intake.add(record, size)
            return self._end_round(record, now)

    def put_many(self, records: list[BufferedRecord], now: Instant) -> tuple[int, bool]:
        """Accept as many as there is room for, at one stroke. Returns how many, and whether the shell must pump."""
        if self.turn.is_taken:
            return 0, False  # one by one
        with self.turn:
            count = min(len(records), self._ledger.max_records - self.outstanding)
            accepted = records if count == len(records) else records[:count]
            size = sum([payload_bytes(record) for record in accepted])
            if count <= 0 or self.buffered_bytes + size > self._ledger.max_bytes:
                return 0, False  # one by one: the first that does not fit is found so
            self._round = self.intake.records
            self.intake.size += size
            self.intake.records += accepted
            return count, self._end_round(accepted[0], now) is Put.PUMP

    def _arm_joined(self) -> None:
        """The first of what came meanwhile is due, and ends, like any other (TU2)."""
        for record in self.intake.records[:1]:
            put_at = record.expires_at - self._config.record_ttl
            self._due_at = min(self._due_at, put_at + self._config.linger)
            self._expires_at = min(self._expires_at, record.expires_at)

    def _end_round(self, record: BufferedRecord, now: Instant) -> Put:
        """The rest of ``put``, now and then."""
        if self._expires_at == NEVER:
            self._expires_at = record.expires_at
        is_first = self._due_at == NEVER
        if is_first:
            self._due_at = now + self._config.linger
        if is_first and len(self.intake.records) < self._round_records and self.intake.size < ALONE_BYTES:
            self._begin_round()
            self._round = None
            return Put.PUMP
        return Put.PUMP if self._sort(now) or is_first or self._due_at == -NEVER else Put.QUIET

    def _begin_round(self) -> None:
        """Let in what needs no other look (W3): as long as deadlines are armed, and there is room."""
        ledger = self._ledger
        is_armed = NEVER not in {self._due_at, self._expires_at}
        records = min(self._round_records - 1, ledger.max_records - ledger.records) if is_armed else 0
        self.intake.open(records, min(self._round_bytes, ledger.max_bytes - ledger.payload_bytes, self.plain_max_bytes))

    def _take_fresh(self) -> list[BufferedRecord]:
        """What was put and is in no lane yet, counted in."""
        fresh, size = self.intake.take()
        self._ledger.records += len(fresh)
        self._ledger.payload_bytes += size
        return fresh

    def _sort(self, now: Instant) -> bool:
        """Bring what was put to its lanes (W3). Says whether a request can be filled."""
        pump = False
        fresh = self._take_fresh()
        by_lane, others = self._router.sort(fresh)
        self._begin_round()
        if by_lane and others and self._config.ordered:
            by_lane, others = [], fresh  # P9: in the order of their puts
        for lane, records in by_lane:
            pump |= lane.add_all(records) > 0 and self._note_sealed(lane, now)
        for record in others:
            lane = self._router.lane_for(record, now)
            sealed = lane.add_again(record) if by_lane else lane.add(record)  # A2: it may be older than those before
            pump |= sealed > 0 and self._note_sealed(lane, now)
        self._round = None
        return pump

    def _mend(self) -> None:
        """If a put was interrupted, begin anew with what it left, and let all of it go (P1)."""
        if self._round is not None:
            self._round, known = self._whereabouts.unsent(self._round)
            self._whereabouts.gather(self._round, known)
            self._due_at = self._expires_at = -NEVER
            self._round = None

    def flush(self) -> None:
        """Everything that was put is due now (P10)."""
        self._due_at = -NEVER

    def unfinished(self) -> list[BufferedRecord]:
        """All records that have not ended, the oldest of each lane first."""
        self.turn.mend()
        return self._whereabouts.unfinished(self._round or ())

    def abandon(self, code: str, message: str) -> None:
        """The end: give up everything that is not under way. What is, is delivered or given up by its answer."""
        with self.turn:
            self._returns.give_up_all(self._settlement.take_parked(), self._take_fresh(), code, message)

    # ---- outputs

    def poll_put(self, now: Instant) -> "tuple[int, PutRecords] | None":
        """The next PutRecords to send, with the number under which to answer it."""
        with self.turn:
            self._advance(now)
            if not self._facts.answered and now < self._blind_at:
                return (
                    None  # W1: where the service distributes records, what was aggregated would have to be sent again
                )
            group = self._collector.poll_group(now)
            if group is None:
                return None
            aggregates = [aggregate for aggregate, _ in group.shipments]
            entries = [entry for one in aggregates for entry in (one.entries() if one.separate else (one.entry(),))]
            size = sum([one.cost_bytes for one in aggregates])
            self._flight_count += 1
            self._entries_sent += len(entries)
            self._router.judge_cache(self._ledger.accepted_records)
            self._flights[self._flight_count] = Flight(group, now, now + self.wall_offset, size)
            return self._flight_count, PutRecords(self._stream, entries)

    def poll_list_shards(self, now: Instant) -> ListShards | None:
        request = self._map.poll_request(now)
        self._map_requests += request is not None
        return request

    def poll_summary(self, now: Instant) -> DescribeStreamSummary | None:
        return self._facts.poll_request(now)

    def take_finished(self) -> list[BufferedRecord]:
        """Records that ended and that someone waits for."""
        return self._ledger.take_finished()

    def take_failed(self) -> list[BufferedRecord]:
        """All records that were given up since the last call."""
        return self._ledger.take_failed()

    def take_events(self) -> list[Event]:
        events = self._ledger.events + self._facts.events
        self._ledger.events, self._facts.events = [], []
        return events

    def next_deadline(self) -> Instant:
        """When to poll again, if nothing happens before (W2)."""
        waits_blind = self._is_blind and not self._sends_blind and not self._config.ordered
        blind_at = self._blind_at if waits_blind and self._router.catch_all.queued else NEVER
        collecting = self._collector.next_deadline()
        if not self._facts.answered and collecting != NEVER:
            collecting = max(collecting, self._blind_at)
        lingering = min(self._due_at, blind_at, self._expires_at, self._settlement.next_deadline())
        return min(lingering, collecting, self._map.next_deadline(), self._facts.next_deadline())

    # ---- inputs

    def handle_put(self, number: int, answer: PutRecordsResponse | Failure, now: Instant) -> None:
        """What became of a PutRecords."""
        with self.turn:
            all_delivered = self._settlement.settle(self._flights[number], answer, now)
            del self._flights[number]  # not before: if it breaks, its records are still found (P1)
            if _is_missing(answer) or (self._map.snapshot is None and self._router.lanes):
                self._forget_stream(now)
            # Only what comes back can be due, or expire, before what waits. And who has nothing left is not woken.
            if not all_delivered or not self._ledger.records:
                self._arm(now)

    def handle_list_shards(self, answer: ListShardsResponse | Failure, now: Instant) -> None:
        """What became of a ListShards."""
        with self.turn:
            self._sort(now)
            if self._map.handle_page(answer, now):
                self._install(now)
            elif self._map.failure is not None:
                self._ledger.events.append(ShardMapFailed(self._map.failure))
                if _is_missing(answer):
                    self._forget_stream(now)
                self._settlement.reconsider_parked(now)
                self._arm(now)
            self.readiness.see_listing(self._map.failure, has_map=self._map.snapshot is not None)

    def handle_summary(self, answer: StreamSummary | Failure, now: Instant) -> None:
        """What became of a DescribeStreamSummary."""
        with self.turn:
            self._sort(now)
            was_settled = self._facts.is_settled
            changed = self._facts.handle_summary(answer, now)
            self.readiness.see_summary(answer if isinstance(answer, Failure) else None)
            is_lower = self._facts.record_max_bytes < self.record_max_bytes
            self.record_max_bytes = self._facts.record_max_bytes
            self.plain_max_bytes = self.record_max_bytes - WRAP_MAX_BYTES
            self._router.limit_aggregates(self.record_max_bytes)
            if is_lower:
                self._returns.enforce_limit(self.record_max_bytes, now)
            if self._facts.made_anew:
                self._router.disown_all()
                self._map.begin_anew(now)
            if _is_missing(answer):
                self._forget_stream(now)
            elif changed or self._facts.made_anew or self._facts.is_settled is not was_settled:
                self._router.catch_all.send_no_key(on=self._facts.auto)
                self._install(now)
            else:
                self._settlement.reconsider_parked(now)
                self._arm(now)

    # ---- queries

    @property
    def outstanding(self) -> int:
        """Records that were accepted and have not ended."""
        return self._ledger.records + len(self.intake.records)

    @property
    def buffered_bytes(self) -> int:
        return self._ledger.payload_bytes + self.intake.size

    @property
    def refuses_order(self) -> bool:
        """The stream distributes records by itself: there is no order to keep."""
        return self._config.ordered and self._facts.auto

    def stats(self, now: Instant) -> ProducerStats:
        ledger = self._ledger
        oldest = self._whereabouts.first_unsent() - self._config.record_ttl
        return ProducerStats(
            outstanding=self.outstanding,
            buffered_bytes=self.buffered_bytes,
            delivered_records=ledger.delivered_records,
            delivered_bytes=ledger.delivered_bytes,
            failed_records=ledger.failed_records,
            retried_records=ledger.retried_records,
            requests=self._flight_count,
            requests_in_flight=self._collector.in_flight,
            entries=self._entries_sent,
            map_state=self._map.state.value,
            map_requests=self._map_requests,
            oldest_waiting=0.0 if oldest == NEVER else max(0.0, now - oldest),
            lanes=tuple(lane.stats() for lane in self._router.all_lanes() if lane.shard_id is not None),
        )

    # ---- inside

    @property
    def _is_blind(self) -> bool:
        """There is no map to route by, nor a reason to do without."""
        return not self._router.lanes and self._facts.may_aggregate

    def _note_sealed(self, lane: Lane, now: Instant) -> bool:
        if lane is self._router.catch_all and self._is_blind and not self._sends_blind:
            return False  # W1, P9
        return self._collector.note_sealed(lane, now)

    def _advance(self, now: Instant) -> None:
        """Let time pass: what was put finds its lane, what expired leaves, what is due is sealed."""
        if now >= min(self._due_at, self._expires_at) or self._is_blind:
            self._sort(now)
        if now >= self._expires_at:
            self._expire(now)
        if now >= self._settlement.next_deadline():
            self._settlement.reconsider_parked(now)
            self._arm(now)
        if self._is_blind:
            self._advance_blind(now)
        if now >= self._due_at:
            self._release_due(now)

    def _advance_blind(self, now: Instant) -> None:
        catch_all, failure = self._router.catch_all, self._map.failure
        if self._config.ordered:
            if failure is not None and not failure.retryable and not catch_all.is_idle:
                self._ledger.fail(catch_all.take_unsent(), failure.code, failure.message)
        elif not self._sends_blind and (self._map.answered or now >= self._blind_at):
            self._sends_blind = True
            self._collector.note_returned(catch_all, now)

    def _release_due(self, now: Instant) -> None:
        """Seal and send everything, if something is really due; else arm the deadline that is."""
        first_due_at = min((lane.due_at() for lane in self._router.all_lanes()), default=NEVER)
        is_due = self._due_at == -NEVER or first_due_at <= now
        self._due_at = NEVER if is_due else first_due_at
        self._begin_round()
        if not is_due:
            return
        for lane in self._router.all_lanes():
            if lane.open is not None or lane.queued:
                lane.release()
                self._note_sealed(lane, now)
        self._collector.drain()

    def _expire(self, now: Instant) -> None:
        self._returns.expire_unsent(now)
        self._settlement.expire_parked(now)
        self._arm(now)

    def _arm(self, now: Instant) -> None:
        """Records came back to lanes, or left them: find the deadlines anew."""
        self._expires_at = self._whereabouts.expires_at()
        self._due_at = min(self._due_at, self._whereabouts.due_at(now))
        self._begin_round()  # P11: if nothing is armed now, the next record has to arm it

    def _forget_stream(self, now: Instant) -> None:
        """The stream is missing, or another one: use neither map nor facts until both have been read again (X4)."""
        if self._map.snapshot is None and not self._router.lanes:
            return  # there is nothing to forget: they are read again after their own pauses
        self._map.begin_anew(now)
        self._facts.begin_anew(now)
        self._router.disown_all()
        self._blind_at = now + BLIND_PATIENCE
        self._sort(now)
        self._install(now)

    def _install(self, now: Instant) -> None:
        """The map is new, or whether it is to be used: records of lanes that vanished find new ones."""
        had_lanes = bool(self._router.lanes)
        is_known = self._facts.may_aggregate and self._facts.is_settled
        fresh, gone = self._router.install(self._map.snapshot if is_known else None, now)
        self._round_records, self._round_bytes = round_limits(self._config, len(self._router.lanes))
        was_released = self._returns.take_over(fresh, gone, now)
        catch_all = self._router.catch_all
        if self._is_blind:  # keys count again, and there is no map yet
            self._collector.forget(catch_all)
            self._sends_blind = False
        else:
            self._collector.note_returned(catch_all, now)
        self._settlement.reconsider_parked(now)
        self._router.forget_settled()
        self._arm(now)
        if was_released:
            self.flush()  # A3: what a flush found without a map, or in a lane that vanished, does not linger again
        if fresh or gone or not had_lanes:
            self._ledger.events.append(ShardsChanged(len(self._router.lanes), ids_of(fresh), ids_of(gone)))


def _is_missing(answer: object) -> bool:
    return isinstance(answer, Failure) and answer.kind is FailureKind.NOT_FOUND
