"""Handles the answer to a PutRecords request, and decides what happens to each aggregate of the request.

Invariants:

- P1: every shipment that was sent is settled exactly once: delivered, failed, or passed to ``retries``.
- P4: records of an aggregate that landed out of range are routed again with a map that is newer than the request.
  While such a map is expected, the records are parked, but no longer than ``PARKING_TIMEOUT``. If the map does not
  arrive, or does not explain the landing, the records are sent again, one per entry. The same holds for an aggregate
  that landed in an unknown shard.
- P4: once an entry of a lane has landed in another shard, the lane sends one record per entry.
- P5: retryable records are sent again, after a pause of the lane or of the whole producer. A request that is refused
  as invalid is taken apart until each invalid record has been refused alone (``isolation``).
- A shard never changes its range. So if an entry landed in a known shard whose range does not contain the entry's hash
  key, an old map is not the cause. The service may have begun to choose the shards. Therefore the stream's summary is
  read again, once for each such landing. Records that wait for the summary are sent again afterwards. If they land out
  of range again, they wait longer.
- A map that is newer than a landing and does not contain the shard of the landing is stale. The map is read again after
  a backoff.
- If the sequence numbers of a shard show that it was created at another time than the shard of the same id in the map,
  the stream was deleted and re-created. Then the map and the summary are dropped, and the landings are judged by the
  new map.
- Under AUTO, entries may be sent without a key. When such an entry is refused, the summary is read again to see whether
  the stream needs keys. Until the summary shows that the stream needs no keys, every record gets a key.
"""

from typing import Final, NamedTuple, final

from msgspec.structs import replace

from shardline.codec.shapes import PutRecordsResponse, PutRecordsResult
from shardline.core.clock import NEVER, Instant
from shardline.core.error_codes import COUNT_MISMATCH, Failure, FailureKind
from shardline.core.producer.aggregate import Aggregate
from shardline.core.producer.collector import Collector, Group
from shardline.core.producer.isolation import Isolation, is_about_size
from shardline.core.producer.lane import Lane, Shipment, repacked
from shardline.core.producer.ledger import Ledger
from shardline.core.producer.producer_config import ProducerConfig
from shardline.core.producer.producer_record import Attempt, Landing, Receipt, Sent, note_attempt
from shardline.core.producer.retries import Retries, landed_wrong_twice
from shardline.core.producer.shard_map import ShardMap
from shardline.core.producer.stream_summary import StreamFacts
from shardline.core.producer.verdicts import (
    WRONG_SHARD,
    Action,
    Rule,
    Rules,
    judge_landing,
    judge_range,
    judge_refused,
    judge_request,
)
from shardline.core.producer_events import RecordsDelivered, RecordsRetried, RequestAnswered, ShardDelivery
from shardline.model.hashing import HashRange

PARKING_TIMEOUT: Final = 1.0  # how long an aggregate may wait for a map that explains where it landed, in seconds


@final
class Flight(NamedTuple):
    """A request in flight, and the shipments that it carries."""

    group: Group
    started_at: Instant
    wall_started_at: float
    """``started_at`` in seconds since 1970, for the records' attempts."""
    size_bytes: int

    @property
    def record_count(self) -> int:
        return sum([len(shipment.aggregate.records) for shipment in self.group.shipments])


@final
class _Parked(NamedTuple):
    """An aggregate that was stored, perhaps in a shard whose readers drop it."""

    shipment: Shipment
    flight: Flight
    landing: Landing
    seen_at: Instant
    asked: bool = False
    """Whether the stream's summary was requested because of this landing."""


@final
class ResponseHandler:
    """Applies the verdict on each entry of an answered request."""

    def __init__(
        self,
        *,
        config: ProducerConfig,
        ledger: Ledger,
        retries: Retries,
        collector: Collector,
        isolation: Isolation,
        shard_map: ShardMap,
        facts: StreamFacts,
    ) -> None:
        self._config = config
        self._ledger = ledger
        self._retries = retries
        self._collector = collector
        self._isolation = isolation
        self._map = shard_map
        self._facts = facts
        self._parking_timeout = min(PARKING_TIMEOUT, config.record_ttl / 4)
        self._parked: list[_Parked] = []

    # ---- inputs

    def settle(self, flight: Flight, answer: PutRecordsResponse | Failure, now: Instant) -> bool:
        """Settle all entries of a request. Return whether the deadlines of all lanes are unchanged."""
        shipments = flight.group.shipments
        records, delivered_before = flight.record_count, self._ledger.delivered_records
        self._collector.handle_answered()
        entries = sum([shipment.aggregate.entry_count for shipment in shipments])
        if isinstance(answer, PutRecordsResponse) and len(answer.records) != entries:
            message = f"{entries} entries were sent, {len(answer.records)} were answered"
            answer = Failure(FailureKind.TRANSIENT, COUNT_MISMATCH, message)
        elif isinstance(answer, PutRecordsResponse) and answer.failed_count != 0:
            answer = _without_contradictions(answer)
        refused = entries
        part = flight.group.part
        events = self._ledger.events
        before = len(events)
        # Before the records of this part are queued again, later parts of the same lanes are taken back, so that the
        # later parts do not overtake these records (P9).
        if part is not None and self._config.ordered and not _needs_no_resend(shipments, answer):
            self._retries.recall((shipment.lane for shipment in shipments), now)
        if isinstance(answer, Failure):
            self._settle_failed(flight, answer, now)
        else:
            self._collector.handle_success()
            if part is not None:
                self._isolation.handle_stored(part)
            refused = self._settle_entries(flight, answer.records, now)
        code = answer.code if isinstance(answer, Failure) else None
        self._ledger.failed_requests += code is not None
        duration, started_at = now - flight.started_at, flight.wall_started_at
        # The event of the request precedes the events about its records.
        events.insert(before, RequestAnswered(entries, records, flight.size_bytes, duration, refused, code, started_at))
        if self._config.ordered:
            for aggregate, lane in shipments:
                lane.handle_ended(aggregate.records)
        for lane in dict.fromkeys([shipment.lane for shipment in shipments]):
            if lane.has_proved_itself:  # only now, because the lane's refused records are packed again with the others
                self._retries.trust(lane, now)
            self._collector.note_returned(lane, now)
        self._retries.release_held(now)
        repacked_lane, self._retries.has_repacked = self._retries.has_repacked, False
        return self._ledger.delivered_records - delivered_before == records and not repacked_lane

    def reconsider_parked(self, now: Instant) -> None:
        """Judge the parked aggregates again, because the map or summary is new or the parking time is over."""
        parked, self._parked = self._parked, []
        for landed in parked:
            self._judge_landed(landed, now)
            landed.shipment.lane.handle_ended(landed.shipment.aggregate.records)
            self._collector.note_returned(landed.shipment.lane, now)
        self._emit_delivered(now)
        self._retries.release_held(now)

    def expire_parked(self, now: Instant) -> None:
        """Fail parked records that have expired. Other records of the same aggregates are sent again."""
        parked, self._parked = self._parked, []
        for landed in parked:
            if any(record.deadline <= now for record in landed.shipment.aggregate.records):
                self._send_again(landed, now)
                landed.shipment.lane.handle_ended(landed.shipment.aggregate.records)
                self._collector.note_returned(landed.shipment.lane, now)
            else:
                self._parked.append(landed)
        self._retries.release_held(now)

    def next_deadline(self) -> Instant:
        """Return the time at which the aggregate that has been parked longest reaches the parking timeout."""
        return min([landed.seen_at for landed in self._parked], default=NEVER) + self._parking_timeout

    @property
    def parked(self) -> list[Shipment]:
        return [parked.shipment for parked in self._parked]

    def take_parked(self) -> list[Shipment]:
        """Take all parked aggregates, because the producer is ending. Add the last attempt to the history of each
        record.
        """
        parked, self._parked = self._parked, []
        for landed in parked:
            _note_wrong_shard(landed)
        return [landed.shipment for landed in parked]

    # ---- one entry

    def _settle_entries(self, flight: Flight, results: list[PutRecordsResult], now: Instant) -> int:
        """Settle each entry according to its result. Return how many entries were refused."""
        ledger = self._ledger
        refused = 0
        sent = Sent(flight.wall_started_at, now - flight.started_at)
        at = 0
        for shipment in flight.group.shipments:
            aggregate, lane = shipment
            if aggregate.separate:
                to = at + len(aggregate.records)
                refused += self._settle_separate(shipment, flight, results[at:to], sent, now)
                at = to
                continue
            result = results[at]
            at += 1
            shard_id, number = result.shard_id, result.sequence_number
            numbers = lane.numbers
            # Nearly all entries land as predicted, so this case is checked first and calls few functions.
            if number and shard_id and shard_id == lane.predicted and numbers.first <= number < numbers.limit:
                lane.handle_success(now)
                lane.note_settled()
                ledger.deliver(aggregate, Landing(shard_id, number, sent))
            else:
                refused += not number
                self._settle_entry(shipment, flight, result, now)
        self._emit_delivered(now)
        return refused

    def _emit_delivered(self, now: Instant) -> None:
        """Emit an event for the records that have been delivered since the last call."""
        landed = self._ledger.take_landed()
        if landed:
            ttl = self._config.record_ttl
            shards = [
                ShardDelivery(shard_id, records, payload_bytes, max(0.0, now - (expires_at - ttl)))
                for shard_id, (records, payload_bytes, expires_at) in landed.items()
            ]
            records = sum([shard.records for shard in shards])
            payload_bytes = sum([shard.payload_bytes for shard in shards])
            latency = max([shard.latency for shard in shards])
            self._ledger.events.append(RecordsDelivered(records, payload_bytes, latency, tuple(shards)))

    def _settle_separate(
        self, shipment: Shipment, flight: Flight, results: list[PutRecordsResult], sent: Sent, now: Instant
    ) -> int:
        """Settle each record of a bundle according to its own result. Return how many records were refused."""
        aggregate, lane = shipment
        others = self._ledger.deliver_alone(aggregate, results, lane.predicted, sent)
        if len(others) < len(results):
            lane.handle_success(now)
        # The bundle is settled, and each remaining record becomes a separate shipment, which is settled below.
        lane.note_settled(1 - len(others))
        for place in others:
            alone = repacked([aggregate.records[place]], aggregate.due_at, aggregate, place)
            self._settle_entry(Shipment(alone, lane), flight, results[place], now)
        if lane.is_distrusted:
            lane.note_as_predicted(len(results) - len(others), flight.started_at)
        return sum(not results[place].sequence_number for place in others)

    def _settle_entry(self, shipment: Shipment, flight: Flight, result: PutRecordsResult, now: Instant) -> None:
        aggregate, lane = shipment
        if not result.sequence_number or not result.shard_id:
            rule = judge_refused(result, fail_if_throttled=self._config.fail_if_throttled)
            lane.handle_failure(now, throttled=rule.throttled)
            code, message = result.error_code or "Unknown", result.error_message or "the service gave no reason"
            # A faulty service may return a sequence number without a shard, or neither a sequence number nor an error.
            # In both cases, the record may be stored.
            stored = bool(result.sequence_number) or not result.error_code
            self._note_attempt(aggregate, _refusal(flight, now, lane, code, message, stored=stored))
            lane.note_settled()
            self._apply(rule, shipment, code, message, now, reroute=True)
            return
        lane.handle_success(now)
        sent = Sent(flight.wall_started_at, now - flight.started_at)
        landing = Landing(result.shard_id, result.sequence_number, sent)
        self._judge_landed(_Parked(shipment, flight, landing, now), now)

    def _judge_landed(self, landed: _Parked, now: Instant) -> None:
        """Deliver, park or resend an aggregate that was stored, depending on where it landed (P4)."""
        aggregate, lane = landed.shipment
        landing = landed.landing
        if landing.shard_id == lane.predicted:  # the id is right, so the sequence number is foreign to that shard
            self._note_recreated_shard(landed, now)
        predicted = lane.predicted if self._facts.may_predict else None
        count = len(aggregate.records) if aggregate.packing is None else 1
        # A record with headers is sent as an aggregate even if it is alone. Once it has landed in a wrong shard twice,
        # it is delivered wherever it lands, like other records.
        alone = not aggregate.is_checked or (count == 1 and landed_wrong_twice(aggregate.records[0]))
        rule = judge_landing(predicted, landing.shard_id, alone=alone)
        if rule is None:
            digests = [aggregate.hash_digest(record) for record in aggregate.records]
            rule = judge_range(digests, self._range_of(landing))
        if not alone and predicted is None and lane.shard_id not in {None, landing.shard_id}:
            # The aggregate was sent before the service began to choose the shards. Readers may drop its records.
            rule = Rules.STORED_OUT_OF_RANGE
        asked = False
        if predicted is not None and rule.stale_map:
            asked = self._investigate(landed, now)
            if not lane.vanished:
                self._retries.distrust(lane, landed.seen_at, now)
        if rule.action is Action.DELIVER:
            lane.note_settled()
            self._ledger.deliver(aggregate, landing)
        elif self._retries.ending is None and self._should_park(landed, now):
            self._parked.append(landed._replace(asked=asked))
        else:
            message = f"stored in {landing.shard_id}, not in {lane.shard_id}"
            self._ledger.events.append(RecordsRetried(len(aggregate.records), lane.shard_id, WRONG_SHARD, message))
            self._send_again(landed, now)

    def _note_recreated_shard(self, landed: _Parked, now: Instant) -> None:
        """Drop the map, because the stream was re-created: the entry landed in a different shard that has the predicted
        id.
        """
        lane = landed.shipment.lane
        lane.predicted = ""
        if not lane.vanished:
            self._map.note_foreign_number(landed.landing.shard_id, lane.numbers)
            self._map.reset(now)  # done at once, because the map's ranges must not judge further landings

    def _investigate(self, landed: _Parked, now: Instant) -> bool:
        """Request a newer map or summary, because an entry did not land as predicted.

        Return whether the summary was requested because of this landing, now or earlier.
        """
        lane = landed.shipment.lane
        if self._is_unexplained(landed):
            if not landed.asked:
                self._facts.query_again(now)
            return True
        if lane.vanished:
            # The map is already newer than the lane. If the stream was re-created, the map may still contain the lane's
            # shard id, so it must not be invalidated because of that id.
            return landed.asked
        is_news = self._map.invalidate(landed.flight.started_at, lane.shard_id, now)
        if not is_news and self._range_of(landed.landing) is None:
            self._map.refresh_later(now)
        return landed.asked

    def _range_of(self, landing: Landing) -> HashRange | None:
        """Return the hash range of the shard that an entry landed in, if the map contains the shard."""
        return self._map.hash_range(landing.shard_id, landing.sequence_number)

    def _is_unexplained(self, landed: _Parked) -> bool:
        """Return whether no map can explain where the entry landed: the shard's range does not contain its hash key."""
        aggregate = landed.shipment.aggregate
        own = [aggregate.hash_digest(aggregate.records[0])]
        return judge_range(own, self._range_of(landed.landing)) is Rules.STORED_OUT_OF_RANGE

    def _should_park(self, landed: _Parked, now: Instant) -> bool:
        """Return whether a map or summary that may decide where the records belong is expected soon."""
        until = landed.seen_at + self._parking_timeout
        if now >= until or not self._facts.may_predict:
            return False
        if self._facts.has_unexplained_landings:
            return True
        unknown = self._range_of(landed.landing) is None
        if not unknown and (landed.shipment.lane.vanished or self._is_unexplained(landed)):
            return False
        return self._map.is_expected_by(until)

    def _send_again(self, landed: _Parked, now: Instant) -> None:
        _note_wrong_shard(landed)
        aggregate, lane = landed.shipment
        if self._config.dedup:
            self._ledger.pin(aggregate)
        lane.note_settled()
        message = f"stored in {landed.landing.shard_id}, where readers may drop it"
        self._retries.send_again(aggregate.records, now, WRONG_SHARD, message)

    # ---- a whole request

    def _settle_failed(self, flight: Flight, failure: Failure, now: Instant) -> None:
        shipments, part = flight.group
        keyless = any(shipment.aggregate.has_no_key for shipment in shipments)
        throttled_is_fatal = self._config.fail_if_throttled
        rule = judge_request(failure, flight.record_count, keyless=keyless, fail_if_throttled=throttled_is_fatal)
        self._learn_from(failure, rule, shipments, now)
        # A refused or throttled request stored nothing. After any other failure, the request's records may be stored.
        stored = failure.maybe_received and rule.action is Action.RESEND and not rule.throttled
        for aggregate, lane in shipments:
            attempt = _refusal(flight, now, lane, failure.code, failure.message, stored=stored)
            self._note_attempt(aggregate, attempt)
        if rule.action is Action.BISECT and self._retries.ending is None:
            self._isolation.handle_refused(shipments, part, failure)
            # While the request was in flight, the stream may have begun to forbid headers or aggregates.
            self._retries.fail_isolated_headers(now)
            if not self._facts.may_aggregate:
                self._retries.recall_aggregates(now)
            return
        if part is not None and rule is Rules.REQUEST_INVALID_ALONE:
            self._isolation.handle_found(part, failure)
        elif part is not None:
            self._isolation.handle_unanswered(part)
        for shipment in shipments:
            shipment.lane.note_settled()
            self._apply(rule, shipment, failure.code, failure.message, now, reroute=False)

    def _note_attempt(self, aggregate: Aggregate, attempt: Attempt) -> None:
        """Add a failed attempt to the history of each record."""
        note_attempt(aggregate.records, attempt)
        if attempt.maybe_stored and self._config.dedup:
            self._ledger.pin(aggregate)

    def _learn_from(self, failure: Failure, rule: Rule, shipments: list[Shipment], now: Instant) -> None:
        """Slow down or read the summary again, depending on why a request failed."""
        lanes = dict.fromkeys(shipment.lane for shipment in shipments)
        if rule is Rules.REQUEST_KEYLESS:
            self._facts.query_again(now)
            for lane in lanes:
                lane.send_no_key(on=False)
        if failure.kind is FailureKind.INVALID and is_about_size(failure.message):
            self._facts.read_limit_again(now)
        if failure.retryable:
            self._collector.handle_failure(failure.retry_after, now)
        else:
            self._collector.handle_success()  # the service refused the request, so the service is reachable
        if rule.throttled:
            for lane in lanes:
                lane.handle_failure(now, throttled=True)

    def _apply(self, rule: Rule, shipment: Shipment, code: str, message: str, now: Instant, *, reroute: bool) -> None:
        """Fail the records of an entry, or send them again."""
        if rule.action is Action.FAIL:
            self._ledger.fail(shipment.aggregate.records, code, message)
        else:
            self._retries.resend(shipment, code, message, now, reroute=reroute)


def _needs_no_resend(shipments: list[Shipment], answer: PutRecordsResponse | Failure) -> bool:
    """Return whether the answer leaves no record of this part to retry. Records that are sent again only to find the
    invalid ones do not count.
    """
    if isinstance(answer, Failure):
        return not answer.retryable
    lanes = [shipment.lane for shipment in shipments for _ in range(shipment.aggregate.entry_count)]
    return all(_is_as_predicted(lane, result) for lane, result in zip(lanes, answer.records, strict=True))


def _is_as_predicted(lane: Lane, result: PutRecordsResult) -> bool:
    """Return whether an entry landed in the lane's own shard, not in a re-created stream's shard with the same id."""
    number, numbers = result.sequence_number, lane.numbers
    if number is None or result.shard_id != lane.predicted:
        return False
    return numbers.first <= number < numbers.limit


def _without_contradictions(answer: PutRecordsResponse) -> PutRecordsResponse:
    """Treat each entry with an error code as refused, even if a faulty service also returned a sequence number."""
    results = [replace(result, sequence_number=None) if result.error_code else result for result in answer.records]
    return replace(answer, records=results)


def _note_wrong_shard(parked: _Parked) -> None:
    landing = parked.landing
    (stored,) = Receipt(landing.shard_id, landing.sequence_number, 0, landing.sent).attempts
    message = f"stored in {stored.shard_id}, where readers may drop it"
    note_attempt(parked.shipment.aggregate.records, replace(stored, code=WRONG_SHARD, message=message))


def _refusal(flight: Flight, now: Instant, lane: Lane, code: str, message: str, *, stored: bool = False) -> Attempt:
    return Attempt(flight.wall_started_at, now - flight.started_at, lane.shard_id, None, code, message, stored)
