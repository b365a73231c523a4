"""Takes each record from the intake to its outcome: delivered or failed.

A record is routed to the lane of its shard, joins an aggregate in this lane, is sent when a request is full or a record
is due, and is settled by the answer. Only the host calls this machine: it passes events in, polls requests and sends
them, and wakes the waiters of delivered or failed records. The code that puts records touches only the intake.

Invariants (the modules that this machine composes list the others):

- P1: every accepted record ends exactly once.
- P3: the machine keeps working while the shard map is fetched.
- P9: with ``ordered``, no record is sent before there is a map, and a lane waits for lanes with overlapping ranges.
- P10: ``flush`` makes every record due, and respects the rate limits.
- While there is no map, records are held back until the first ListShards is answered. All records are held back until
  the first DescribeStreamSummary is answered. Neither wait lasts longer than ``BLIND_TIMEOUT``. Usually the map arrives
  within milliseconds, and the records can be aggregated. The summary is needed because a stream under AUTO record
  distribution must not receive aggregates.
- ``next_deadline`` is in the past only if a poll would return a request or sort records.
- Records are sorted into lanes in rounds: when a round is full, when a record is due, and always while there is no
  map. One loop over many records takes half the time of a call per record. A poll sorts at most about
  ``SLICE_RECORDS`` records, so that the host can yield between two polls. All records that were in the intake when a
  round began are sorted before any lane is released.
"""

from typing import Final, final

from shardline.codec.shapes import ListShardsResponse, PutRecordsResponse, StreamSummary
from shardline.core.backoff import Chance
from shardline.core.clock import NEVER, Instant
from shardline.core.error_codes import Failure, FailureKind
from shardline.core.producer.aggregate import entries_of
from shardline.core.producer.collector import Collector
from shardline.core.producer.intake import Intake, round_limits
from shardline.core.producer.isolation import Isolation
from shardline.core.producer.lane import Lane
from shardline.core.producer.ledger import Ledger
from shardline.core.producer.producer_config import ProducerConfig, SettingChanges
from shardline.core.producer.producer_record import BufferedRecord, Undelivered
from shardline.core.producer.producer_stats import ProducerStats
from shardline.core.producer.readiness import Readiness
from shardline.core.producer.responses import Flight, ResponseHandler
from shardline.core.producer.retries import Retries, ids_of
from shardline.core.producer.router import Router
from shardline.core.producer.shard_map import ShardMap
from shardline.core.producer.stream_summary import StreamFacts
from shardline.core.producer_events import (
    Event,
    ProducerMeasured,
    ProducerReconfigured,
    ShardMapFailed,
    ShardsChanged,
)
from shardline.core.rates import MEASURE_INTERVAL, Rate
from shardline.core.requests import DescribeStreamSummary, ListShards, PutRecords
from shardline.model.limits import KIB
from shardline.model.stream import StreamRef

BLIND_TIMEOUT: Final = 1.0  # how long records wait for the first map and summary, in seconds
ALONE_BYTES: Final = 16 * KIB  # if the first records are at least this large, they are sorted without waiting for more
SLICE_RECORDS: Final = 2_048  # the number of records that one poll sorts; this takes a few milliseconds


@final
class ProducerMachine:
    """Makes all decisions of a producer, without I/O."""

    def __init__(self, stream: StreamRef, config: ProducerConfig, rng: Chance, now: Instant) -> None:
        self._stream = stream
        self._config = config
        self._map = ShardMap(stream, rng, closed_shard_ttl=config.closed_shard_ttl)
        self._facts = StreamFacts(stream, config, rng)
        self.readiness = Readiness()
        self.intake = Intake(config)
        """The mailbox that putters append to."""
        self.intake.limit_record(self._facts.record_max_bytes)
        self.ledger = Ledger(self.intake)
        self._router = Router(config, rng, now)
        self._router.limit_aggregates(config.known_record_max_bytes)
        self._isolation = Isolation(config)
        self._collector = Collector(config, rng, self._isolation)
        self._retries = Retries(config, self.ledger, self._router, self._collector, self._isolation)
        self._responses = ResponseHandler(
            config=config,
            ledger=self.ledger,
            retries=self._retries,
            collector=self._collector,
            isolation=self._isolation,
            shard_map=self._map,
            facts=self._facts,
        )
        self._flights: dict[int, Flight] = {}
        self._flight_count = 0
        self._blind_at: Instant = now + BLIND_TIMEOUT
        self._sends_blind = False
        self._round_records, self._round_bytes = round_limits(config, 0)
        self._due_at: Instant = NEVER  # a time before which no record is due; NEVER if no record lingers
        self._expires_at: Instant = NEVER  # a time before which no record expires
        self._slice_records = SLICE_RECORDS
        self._backlog = 0  # the number of records in the intake that are sorted before any lane is released
        self._unchecked = 0  # the number of records in the intake that were put before the stream lowered its limit
        self._taken_bytes = 0  # the intake's ``reserved_bytes`` when the intake was last empty
        self._entries_sent = 0
        self._map_requests = 0
        self._request_bytes = 0
        self._put_rate = Rate(now)
        self._delivery_rate = Rate(now)
        self._byte_rate = Rate(now)
        self._request_rate = Rate(now)
        self._measure_at: Instant = NEVER  # when to emit the next ``ProducerMeasured``

    # ---- commands

    def observe(self, now: Instant) -> None:
        """From now on, emit the events that only sinks need: ``RecordsDelivered``, and ``ProducerMeasured`` every 5
        seconds.
        """
        self.ledger.observe()
        self._measure_at = now + MEASURE_INTERVAL

    def flush(self) -> None:
        """Make every record due now, so that nothing lingers any longer (P10)."""
        self._due_at = -NEVER

    def reconfigure(self, changes: SettingChanges, now: Instant) -> None:
        """Change ``linger`` or rates. The values must be valid.

        If ``linger`` changes, the records that were put before are sent immediately. Otherwise a record with a short
        TTL of its own could expire before a longer ``linger`` is over.
        """
        before, config = self._config, self._config.changed(changes)
        self._config = config
        self._router.reconfigure(config, now)
        self._collector.reconfigure(config, now)
        if config.linger != before.linger:
            self.flush()
        if config != before:
            rates = config.records_per_second, config.bytes_per_second
            self.ledger.events.append(ProducerReconfigured(config.linger, *rates))

    def abandon(self, code: str, message: str) -> None:
        """End the producer: fail all records that are not in flight.

        The other records are settled when the requests in flight are answered.
        """
        self._backlog = 0
        self._report_invalid()
        self._retries.give_up_all(self._responses.take_parked(), self.intake.end(message), code, message)

    def give_up_lost(self, message: str) -> None:
        """Fail all outstanding records, after an exception left this machine in an unknown state (P1)."""
        for record in self.intake.known():
            if record.ending is None:
                record.ending = Undelivered("Internal", message)
                self.ledger.failed.append(record)
            self.ledger.finished.append(record)

    # ---- outputs

    def poll_put(self, now: Instant) -> "tuple[int, PutRecords] | None":
        """Return the next PutRecords request, and the number to pass to ``handle_put`` together with the answer."""
        self._advance(now)
        self._set_marks()
        if not self._facts.answered and now < self._blind_at:
            return None  # if the stream turns out to be under AUTO, its aggregates would have to be sent again
        group = self._collector.poll_group(now)
        if group is None:
            return None
        aggregates = [aggregate for aggregate, _ in group.shipments]
        entries = entries_of(aggregates)
        size = sum([aggregate.cost_bytes for aggregate in aggregates])
        self._flight_count += 1
        self._entries_sent += len(entries)
        self._request_bytes += size
        self._note_rates(now)
        self._router.judge_cache(self.intake.reserved_records)
        self._facts.note_sent(now)
        self._flights[self._flight_count] = Flight(group, now, now + self.ledger.wall_offset, size)
        return self._flight_count, PutRecords(self._stream, entries)

    def poll_list_shards(self, now: Instant) -> ListShards | None:
        request = self._map.poll_request(now)
        self._map_requests += request is not None
        return request

    def poll_summary(self, now: Instant) -> DescribeStreamSummary | None:
        return self._facts.poll_request(now)

    def take_events(self) -> list[Event]:
        events = self.ledger.events + self._facts.events
        self.ledger.events, self._facts.events = [], []
        return events

    def next_deadline(self) -> Instant:
        """Return the time at which to poll again, unless an input arrives earlier."""
        if self._backlog:
            return -NEVER
        waits_blind = self._router.is_blind and not self._sends_blind and not self._config.ordered
        blind_at = self._blind_at if waits_blind and self._router.catch_all.queued else NEVER
        collecting = self._collector.next_deadline()
        if not self._facts.answered and collecting != NEVER:
            collecting = max(collecting, self._blind_at)
        lingering = min(
            self._due_at, blind_at, self._expires_at, self._round_ends_at(), self._responses.next_deadline()
        )
        return min(lingering, collecting, self._map.next_deadline(), self._facts.next_deadline(), self._measure_at)

    # ---- inputs

    def handle_put(self, number: int, answer: PutRecordsResponse | Failure, now: Instant) -> None:
        """Settle the records of a PutRecords request according to the answer."""
        is_unchanged = self._responses.settle(self._flights.pop(number), answer, now)
        self._note_rates(now)
        # The second condition means that the response handler dropped the map while it settled the request.
        if _is_missing(answer) or (self._map.snapshot is None and self._router.lanes):
            self._forget_stream(now)
        # Only records that return to a lane, or are packed again, can be due before the waiting records.
        if not is_unchanged or self.intake.outstanding == len(self.intake.records):
            self._arm(now)

    def handle_list_shards(self, answer: ListShardsResponse | Failure, now: Instant) -> None:
        if self._map.handle_page(answer, now):
            self._install(now)
        elif self._map.failure is not None:
            self.ledger.events.append(ShardMapFailed(self._map.failure))
            if _is_missing(answer):
                self._forget_stream(now)
            self._responses.reconsider_parked(now)
            self._arm(now)
        self.readiness.handle_listing(self._map.failure, has_map=self._map.snapshot is not None)

    def handle_summary(self, answer: StreamSummary | Failure, now: Instant) -> None:
        was_current = self._facts.is_current
        changed = self._facts.handle_summary(answer, now)
        self.readiness.handle_summary(answer if isinstance(answer, Failure) else None)
        max_bytes = self._facts.record_max_bytes
        is_lower = max_bytes < self.intake.record_max_bytes
        self.intake.limit_record(max_bytes)
        self._router.limit_aggregates(max_bytes)
        if is_lower:
            self._unchecked = len(self.intake.records)
            self._retries.enforce_limit(max_bytes, now)
        refusal = self._facts.headers_refusal
        self.intake.headers_refusal = self._config.headers_refusal or refusal
        self._retries.heed_stream(refusal, now, may_aggregate=not self._facts.channels)
        if not self._facts.may_aggregate:
            self._retries.recall_aggregates(now)
        if self._facts.recreated:
            # The shards of the new stream may have the old ids. Until the new shards are listed, no landing counts as
            # predicted.
            self._router.forget_predictions()
            self._map.reset(now)
        if _is_missing(answer):
            self._forget_stream(now)
        elif changed or self._facts.recreated or self._facts.is_current is not was_current:
            self._router.catch_all.send_no_key(on=self._facts.auto)
            self._install(now)
        else:
            self._responses.reconsider_parked(now)
            self._arm(now)

    # ---- queries

    @property
    def config(self) -> ProducerConfig:
        """The settings that are in force. Other threads may read this property."""
        return self._config

    @property
    def refuses_order(self) -> bool:
        """Whether ``ordered`` is set for a stream under AUTO record distribution, which keeps no order."""
        return self._config.ordered and self._facts.auto

    @property
    def dedup_refusal(self) -> str | None:
        """Why the stream must not get stamps (which are headers) although ``dedup`` is set, or ``None`` if it may get
        them.
        """
        return self._facts.headers_refusal if self._config.dedup else None

    def stats(self, now: Instant) -> ProducerStats:
        ledger = self.ledger
        waiting = [lane.oldest() for lane in self._router.all_lanes()]
        oldest = min(waiting + [record.expires_at for record in self.intake.records[:1]]) - self._config.record_ttl
        return ProducerStats(
            outstanding=self.intake.outstanding,
            buffered_bytes=self.intake.buffered_bytes,
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
            put_records=self.intake.reserved_records,
            put_bytes=self.intake.reserved_bytes,
            failed_requests=ledger.failed_requests,
            request_bytes=self._request_bytes,
            retries_by_code=dict(ledger.retries_by_code),
            failures_by_code=dict(ledger.failures_by_code),
            put_records_per_second=self._put_rate.per_second(self.intake.reserved_records, now),
            delivered_records_per_second=self._delivery_rate.per_second(ledger.delivered_records, now),
            delivered_bytes_per_second=self._byte_rate.per_second(ledger.delivered_bytes, now),
            requests_per_second=self._request_rate.per_second(self._flight_count, now),
        )

    # ---- internal

    def _note_rates(self, now: Instant) -> None:
        self._put_rate.note(self.intake.reserved_records, now)
        self._delivery_rate.note(self.ledger.delivered_records, now)
        self._byte_rate.note(self.ledger.delivered_bytes, now)
        self._request_rate.note(self._flight_count, now)

    def _measure(self, now: Instant) -> None:
        """Emit a ``ProducerMeasured`` event with the current state of the producer."""
        self._measure_at = now + MEASURE_INTERVAL
        stats = self.stats(now)
        self.ledger.events.append(
            ProducerMeasured(
                outstanding=stats.outstanding,
                buffered_bytes=stats.buffered_bytes,
                buffer_max_bytes=self._config.buffer_max_bytes,
                oldest_waiting=stats.oldest_waiting,
                requests_in_flight=stats.requests_in_flight,
                lanes=stats.lanes,
            )
        )

    def _round_ends_at(self) -> Instant:
        """Return the time at which the first record in the intake is due."""
        for record in self.intake.records[:1]:
            return record.expires_at - self._config.record_ttl + self._config.linger
        return NEVER

    def _check_intake(self, now: Instant) -> bool:
        """Find out when the records in the intake are due. Return whether to sort them into lanes now."""
        records = len(self.intake.records)
        if not records:
            return False
        size = self.intake.reserved_bytes - self._taken_bytes
        is_full = records >= self._round_records or size >= self._round_bytes
        # If no deadline is set, these are the first records after a pause. Many bytes need not wait for a full round.
        is_first = self._due_at == NEVER and size >= ALONE_BYTES
        self._due_at = min(self._due_at, self._round_ends_at())
        is_due = now >= min(self._due_at, self._expires_at)
        return is_full or is_first or is_due or self._router.is_blind

    def _set_marks(self) -> None:
        """Set the marks of the intake (P11).

        If a deadline will wake the host anyway, a put wakes the host only at the end of a round. Otherwise the next put
        wakes it.
        """
        intake = self.intake
        if self._due_at == NEVER:
            intake.mark(0, 0)
            return
        size = self._taken_bytes + self._round_bytes - intake.reserved_bytes
        intake.mark(max(0, self._round_records - 1 - len(intake.records)), max(0, size))

    def _sort(self, count: int, now: Instant) -> None:
        """Move the first records in the intake to their lanes."""
        fresh = self.intake.take(count)
        if not self.intake.records:
            self._taken_bytes = self.intake.reserved_bytes
        if self.intake.ttls_differ:
            self._router.tell_ttls_apart()
            self._expires_at = min([self._expires_at, *(record.deadline for record in fresh)])
        for first in fresh[:1]:
            self._expires_at = min(self._expires_at, first.expires_at)
            self._due_at = min(self._due_at, first.expires_at - self._config.record_ttl + self._config.linger)
        if self._unchecked:
            self._unchecked -= min(self._unchecked, len(fresh))
            fresh = self._retries.without_larger(fresh, self.intake.record_max_bytes)
        fresh = self._retries.without_headers(fresh)  # some may have been put before headers were refused
        # ``by_lane`` contains the keyed records. ``others`` contains the keyless records, or all records if there is no
        # map. These are routed one by one.
        by_lane, others = self._router.sort(fresh)
        if by_lane and others and self._config.ordered:
            by_lane, others = [], fresh  # P9: route all records in the order of their puts
        for lane, records in by_lane:
            self._stamp(lane, records)
            if lane.add_all(records):
                self._note_sealed(lane)
        for record in others:
            lane = self._router.lane_for(record, now)
            self._stamp(lane, [record])
            # After the records of ``by_lane`` were added, this record may be older than records that its lane holds.
            if lane.add_again(record) if by_lane else lane.add(record):
                self._note_sealed(lane)

    def _stamp(self, lane: Lane, records: list[BufferedRecord]) -> None:
        """Give records that enter their first lane a stamp, if ``dedup`` is set. The records keep their stamps through
        all retries.
        """
        if lane.stamper is not None:
            self.intake.charge(lane.stamper.stamp(records))

    def _note_sealed(self, lane: Lane) -> None:
        """Offer a lane to the collector, unless its records still wait for the first map."""
        if lane is not self._router.catch_all or not self._router.is_blind or self._sends_blind:  # P9
            self._collector.note_sealed(lane)

    def _advance(self, now: Instant) -> None:
        """Bring the machine up to ``now``: sort new records, fail expired ones, and release lanes that are due."""
        if self.intake.invalid:
            self._report_invalid()
        if now >= self._measure_at:
            self._measure(now)
        if not self._backlog and self._check_intake(now):
            self._backlog = len(self.intake.records)
        if self._backlog:
            # A remainder of at most half a slice is also sorted. So one poll usually sorts a whole round and the
            # records that were put while the host woke up.
            count = self._slice_records if self._backlog > 1.5 * self._slice_records else self._backlog
            self._backlog -= count
            self._sort(count, now)
        if now >= self._expires_at:
            self._expire(now)  # done even while there is a backlog, because requests are sent meanwhile
        if self._backlog:
            return
        if now >= self._responses.next_deadline():
            self._responses.reconsider_parked(now)
            self._arm(now)
        if self._router.is_blind:
            self._advance_blind(now)
        if now >= self._due_at:
            self._release_due(now)

    def _advance_blind(self, now: Instant) -> None:
        """Decide whether the records that wait for the first shard map fail or are sent without a map."""
        catch_all, failure = self._router.catch_all, self._map.failure
        if self._config.ordered:
            # Without a map, the order cannot be kept (P9). If no map will ever arrive, the records must fail.
            if failure is not None and not failure.retryable and not catch_all.is_idle:
                self.ledger.fail(catch_all.take_unsent(), failure.code, failure.message)
        elif not self._sends_blind and (self._map.answered or now >= self._blind_at):
            self._sends_blind = True
            self._collector.note_returned(catch_all, now)

    def _release_due(self, now: Instant) -> None:
        """If a record is due, seal and send all records. Otherwise correct the deadline, which was too early."""
        first_due_at = min((lane.due_at() for lane in self._router.all_lanes()), default=NEVER)
        is_due = self._due_at == -NEVER or first_due_at <= now
        self._due_at = NEVER if is_due else first_due_at
        if not is_due:
            return
        for lane in self._router.all_lanes():
            if lane.open or lane.queued:
                lane.release()
                self._note_sealed(lane)
        self._collector.drain()

    def _report_invalid(self) -> None:
        """Count and report the records that ``put_many`` refused."""
        invalid = self.intake.take_invalid()
        if invalid:
            self.ledger.note_invalid(invalid)

    def _expire(self, now: Instant) -> None:
        self._retries.expire_unsent(now)
        self._responses.expire_parked(now)
        self._arm(now)

    def _arm(self, now: Instant) -> None:
        """Recompute the deadlines, because records returned to lanes or left them."""
        lanes = self._router.all_lanes()
        parked = [record.deadline for shipment in self._responses.parked for record in shipment.aggregate.records]
        self._expires_at = min([self._isolation.expires_at(), *parked, *(lane.expires_at() for lane in lanes)])
        lingering = [lane.open_due_at() for lane in lanes]
        # Sealed aggregates that are not due yet were sent before their deadline, in a full request, and have returned.
        # The collector already handles the lanes that are overdue.
        lingering += [due_at for due_at in (lane.due_at() for lane in lanes) if due_at > now]
        self._due_at = min([self._due_at, *lingering])

    def _forget_stream(self, now: Instant) -> None:
        """Drop the map and the summary and read both again, because the stream is missing or was re-created."""
        if self._map.snapshot is None and not self._router.lanes:
            return  # both have already been dropped, and another reset would cancel their backoff
        self._map.reset(now)
        self._facts.reset(now)
        self._router.forget_predictions()
        self._blind_at = now + BLIND_TIMEOUT
        self._install(now)

    def _install(self, now: Instant) -> None:
        """Create the lanes for the current map, and move the records of vanished lanes.

        This is called when there is a new map, and when the summary changes whether the map may be used.
        """
        had_lanes = bool(self._router.lanes)
        may_predict = self._facts.may_predict
        snapshot = self._map.snapshot if may_predict and self._facts.is_current else None
        added, removed = self._router.install(snapshot, now, may_predict=may_predict)
        self._round_records, self._round_bytes = round_limits(self._config, len(self._router.lanes))
        was_released = self._retries.adopt_lanes(added, removed, now)
        catch_all = self._router.catch_all
        if self._router.is_blind:  # AUTO was switched off or the map was dropped, and no new map has arrived
            self._collector.forget(catch_all)
            self._sends_blind = False
        else:
            self._collector.note_returned(catch_all, now)
        self._responses.reconsider_parked(now)
        self._router.forget_settled()
        self._arm(now)
        if was_released:
            self.flush()  # records that were flushed before they moved to another lane do not linger again
        if added or removed or not had_lanes:
            self.ledger.events.append(ShardsChanged(len(self._router.lanes), ids_of(added), ids_of(removed)))


def _is_missing(answer: object) -> bool:
    return isinstance(answer, Failure) and answer.kind is FailureKind.NOT_FOUND
