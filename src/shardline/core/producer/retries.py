"""Handles records that were not delivered.

Such records are sent again, or fail if they have expired or have no attempt left.

Invariants:

- P1: every record that is passed to this module fails, or is in a lane again.
- P8: the router chooses a lane again for the keyless records of a refused entry.
- P4: a record that landed out of range twice becomes a separate entry, which is delivered wherever it lands. So no
  record is stored more than three times because the map is wrong.
- A record with headers fails as soon as it is known that the stream must not get aggregates, because the record cannot
  be sent without its headers. A record that is in flight at this time is delivered if it is stored where every reader
  accepts it.
- With ``dedup``, no record is sent without its stamp, which is a header. A record without a key that may have been
  stored keeps the key and hash key under which it was sent (``Aggregate.pin``), so that a second copy is stored in the
  same shard or in its children, where a consumer recognises it.
- A record whose headers are those of a trace (``OptionalTags``) does not fail because of these headers, but is sent
  without them.
- P9: records that return to an ordered lane are placed before the waiting records that were put later. A part of an
  aggregate that was cut up never overtakes the part before it.
"""

from collections.abc import Callable, Iterable
from typing import Final, final

from shardline.codec.value_packing import packing_named
from shardline.core.clock import Instant
from shardline.core.producer.aggregate import WRAP_MAX_BYTES, Aggregate, bytes_alone
from shardline.core.producer.collector import Collector
from shardline.core.producer.isolation import Family, Isolation
from shardline.core.producer.lane import Lane, Shipment, repacked
from shardline.core.producer.ledger import Ledger
from shardline.core.producer.producer_config import ProducerConfig
from shardline.core.producer.producer_record import Attempt, BufferedRecord, OptionalTags
from shardline.core.producer.router import Router
from shardline.core.producer_events import RecordsRetried

EXPIRED: Final = "Expired"
TOO_LARGE: Final = "RecordTooLarge"
HEADERS_REFUSED: Final = "HeadersRefused"


@final
class Retries:
    """Returns records to lanes, or fails them."""

    def __init__(
        self, config: ProducerConfig, ledger: Ledger, router: Router, collector: Collector, isolation: Isolation
    ) -> None:
        self._config = config
        self._ledger = ledger
        self._router = router
        self._collector = collector
        self._isolation = isolation
        self.ending: tuple[str, str] | None = None
        """The code and message for records that would have to be sent again. They are set when the producer ends."""
        self.headers_refusal: str | None = None
        """Why no record with headers may be sent, or ``None`` if headers are allowed. ``heed_stream`` sets this field.
        """
        self.has_repacked = False
        """Whether a lane's records were packed again, which may change deadlines. ``ResponseHandler`` resets this
        field.
        """

    # ---- one entry

    def resend(self, shipment: Shipment, code: str, message: str, now: Instant, *, reroute: bool) -> None:
        """Queue the aggregate of a failed entry again, unchanged if possible.

        Args:
            shipment: the aggregate and its lane.
            code: why the entry failed.
            message: why the entry failed, in words.
            now: the current time.
            reroute: whether keyless records may move to another lane (P8).
        """
        aggregate, lane = shipment
        drops_tags = self.headers_refusal is not None and any(record.tags for record in aggregate.records)
        alive = self._give_up_some(aggregate.records, now, code, message)
        if not alive:
            return
        self._ledger.note_retried(len(alive), code)
        self._ledger.events.append(RecordsRetried(len(alive), lane.shard_id, code, message))
        if lane.vanished or lane is self._router.catch_all or _is_split_up(aggregate, lane):
            self._route(alive, now)
            return
        # Keyless records of a refused entry may be stored sooner from another lane. Records with a key have to stay.
        staying = [record for record in alive if record.key is not None] if reroute else alive
        if len(staying) == len(aggregate.records) and not drops_tags:
            lane.requeue(aggregate)
        elif staying:
            lane.requeue(repacked(staying, aggregate.due_at, aggregate))
        if len(staying) < len(alive):
            self._route([record for record in alive if record.key is None], now)

    def send_again(self, records: list[BufferedRecord], now: Instant, code: str, message: str) -> None:
        """Route each record according to the newest map and send it again."""
        alive = self._give_up_some(records, now, code, message)
        self._ledger.note_retried(len(alive), code)
        self._route(alive, now)

    def _give_up_some(
        self, records: list[BufferedRecord], now: Instant, code: str, message: str
    ) -> list[BufferedRecord]:
        """Fail the records that can no longer be sent. Return the other records.

        Records fail if the producer ends, if the stream forbids their headers, if they have no attempt left, or if they
        have expired.
        """
        if self.ending is not None:
            self._ledger.fail(records, *self.ending)
            return []
        records = self.without_headers(records)
        limit = self._config.max_attempts
        if limit is not None:
            spent = [record for record in records if record.attempt_count >= limit]
            if spent:
                self._ledger.fail(spent, code, f"{message} (given up after {limit} attempts)")
                records = [record for record in records if record.ending is None]
        expired = [record for record in records if record.deadline <= now]
        if expired:
            self.fail_expired(expired, now)
            records = [record for record in records if record.ending is None]
        return records

    def fail_expired(self, records: list[BufferedRecord], now: Instant) -> None:
        """Fail expired records. The message names the last failure, and the expiry is added as the last attempt."""
        by_reason: dict[str, list[BufferedRecord]] = {}
        for record in records:
            last = record.history.kept[-1] if record.history is not None else None
            reason = f"not delivered within {self._ttl_of(record)}"
            reason += "" if last is None else f"; last failure: {last.code}: {last.message}"
            by_reason.setdefault(reason, []).append(record)
        for reason, group in by_reason.items():
            end = Attempt(now + self._ledger.wall_offset, 0.0, None, None, EXPIRED, reason, maybe_stored=False)
            self._ledger.fail(group, EXPIRED, reason, end)

    def _ttl_of(self, record: BufferedRecord) -> str:
        """Return the name and value of the TTL that applies to a record, for a message."""
        ttl = self._config.record_ttl
        return f"its ttl ({ttl + record.extra_ttl:g} s)" if record.extra_ttl else f"record_ttl ({ttl:g} s)"

    def give_up_all(self, parked: list[Shipment], fresh: list[BufferedRecord], code: str, message: str) -> None:
        """Fail all waiting records, because the producer is ending.

        Args:
            parked: the aggregates that were parked.
            fresh: the records that are not in a lane yet.
            code: why the records fail.
            message: why the records fail, in words.
        """
        self.ending = (code, message)
        lanes = self._router.all_lanes()
        records = [record for lane in lanes for record in lane.take_unsent()] + fresh
        for shipment in parked + self._isolation.take_all():
            shipment.lane.note_settled()
            records += shipment.aggregate.records
        for lane in lanes:
            self._collector.forget(lane)
        self._ledger.fail(records, code, message)

    def expire_unsent(self, now: Instant) -> None:
        """Fail the expired records that wait in a lane or in a part of a refused request."""
        for lane in self._router.all_lanes():
            expired = lane.take_expired(now)
            if expired:
                self.fail_expired(expired, now)
                self._collector.note_expired(lane, now)
        self.expire_isolated(now)

    # ---- parts of refused requests

    def expire_isolated(self, now: Instant) -> None:
        """Fail the expired records in parts of refused requests. The failure gives the reason of the refusal."""
        if self._isolation.expires_at() <= now:
            self._isolation.filter_waiting(lambda shipment, family: self._without_expired(shipment, family, now))

    def _without_expired(self, shipment: Shipment, family: Family, now: Instant) -> Shipment | None:
        expired = [record for record in shipment.aggregate.records if record.deadline <= now]
        by_ttl: dict[str, list[BufferedRecord]] = {}
        for record in expired:
            by_ttl.setdefault(self._ttl_of(record), []).append(record)
        for ttl, group in by_ttl.items():
            why = f"the refused request held several records; {ttl} ended before this one was sent alone"
            self._ledger.fail(group, family.code, f"{family.message} ({why})")
        return self._without_ended(shipment, now) if expired else shipment

    def _without_ended(self, shipment: Shipment, now: Instant) -> Shipment | None:
        """Return a waiting shipment without its failed records, or ``None`` if no record is left."""
        aggregate, lane = shipment
        rest = [record for record in aggregate.records if record.ending is None]
        lane.handle_ended(aggregate.records)
        if not rest:
            lane.note_settled()
        self._collector.note_returned(lane, now)
        return Shipment(repacked(rest, aggregate.due_at, aggregate), lane) if rest else None

    def recall(self, lanes: Iterable[Lane], now: Instant) -> None:
        """Move the waiting parts of these lanes back into the lanes, because an earlier part has to be sent again (P9).

        Otherwise the later parts would be sent while the earlier part pauses or waits for a map.
        """
        homeless: list[BufferedRecord] = []
        for aggregate, lane in self._isolation.recall(set(lanes)):
            lane.note_settled()
            if lane.vanished or _is_split_up(aggregate, lane):
                homeless += aggregate.records
            else:
                lane.requeue(aggregate)
        self._route(homeless, now)

    def recall_aggregates(self, now: Instant) -> None:
        """Move the waiting parts of lanes back if a part holds an aggregate, because the stream must get no aggregates.

        The records are then sent one per entry. If they are refused again, they are isolated without aggregates.
        """
        if self._config.packing is None:  # a pack is not an aggregate
            shipments = self._isolation.shipments()
            self.recall({lane for aggregate, lane in shipments if _is_aggregate(aggregate)}, now)

    # ---- a lower record limit

    def enforce_limit(self, max_bytes: int, now: Instant) -> None:
        """Fail the waiting records that are larger than the stream's new, lower limit.

        If such records were sent, the service would refuse whole requests because of them.
        """
        self._fail_waiting(lambda records: self._fail_larger(records, max_bytes), now)

    def without_larger(self, records: list[BufferedRecord], max_bytes: int) -> list[BufferedRecord]:
        """Fail the records that exceed ``max_bytes``. Return the other records. No record may be in a lane yet."""
        self._fail_larger(records, max_bytes)
        return [record for record in records if record.ending is None]

    def _fail_larger(self, records: list[BufferedRecord], max_bytes: int) -> bool:
        """Fail the records that are too large for the stream, unless they fit without the headers of a trace.

        Return whether any record failed or lost its headers.
        """
        larger = [record for record in records if self._is_larger(record, max_bytes)]
        has_dropped = self._drop_optional_tags(larger)
        if has_dropped:
            larger = [record for record in larger if self._is_larger(record, max_bytes)]
        message = f"data and key exceed {max_bytes:,} bytes: the stream's record limit was lowered to this size"
        self._ledger.fail(larger, TOO_LARGE, message)
        return has_dropped or bool(larger)

    def _is_larger(self, record: BufferedRecord, max_bytes: int) -> bool:
        assert record.data is not None
        if len(record.data) + len(record.tags) + WRAP_MAX_BYTES <= max_bytes:  # cheap, and true for nearly all records
            return False
        packing = packing_named(self._config.packing)
        return bytes_alone(record.data, record.key, record.explicit_hash_key, packing, record.tags) > max_bytes

    def _fail_waiting(self, fail: Callable[[list[BufferedRecord]], bool], now: Instant) -> None:
        """Fail some of the records that wait in lanes and in parts of refused requests.

        ``fail`` fails or changes some of the given records, and returns whether any record failed or changed.
        """
        for lane in self._router.all_lanes():
            if fail(lane.unsent()):
                released = lane.released
                for record in sorted(lane.take_unsent(), key=lambda record: record.expires_at):
                    if record.ending is None:
                        lane.add_again(record)
                if released:
                    lane.release()
                self._collector.note_expired(lane, now)
        self._fail_isolated(fail, now)

    def _fail_isolated(self, fail: Callable[[list[BufferedRecord]], bool], now: Instant) -> None:
        """Fail some of the records that wait in parts of refused requests, as ``_fail_waiting`` does."""
        self._isolation.filter_waiting(
            lambda shipment, _family: (
                self._without_ended(shipment, now) if fail(shipment.aggregate.records) else shipment
            )
        )

    # ---- a stream that must not get aggregates

    def heed_stream(self, headers_refusal: str | None, now: Instant, *, may_aggregate: bool) -> None:
        """Stop or allow aggregation, and fail waiting records with headers if these can no longer be sent.

        Args:
            headers_refusal: why the stream must not get headers, or ``None`` if headers are allowed.
            now: the current time.
            may_aggregate: whether the lanes of the map may aggregate.
        """
        self.headers_refusal = headers_refusal
        if headers_refusal is not None:
            self._fail_waiting(self._fail_with_headers, now)
        if may_aggregate is self._router.may_aggregate:
            return
        self._router.may_aggregate = may_aggregate
        for lane in self._router.lanes:
            # If aggregates are allowed again, the lane first proves its predictions, like a lane that was distrusted.
            lane.may_aggregate = may_aggregate
            if lane.aggregates:
                self._switch(lane, now, aggregates=False)

    def fail_isolated_headers(self, now: Instant) -> None:
        """Fail the records with headers in parts of refused requests, if the stream must not get headers."""
        if self.headers_refusal is not None:
            self._fail_isolated(self._fail_with_headers, now)

    def without_headers(self, records: list[BufferedRecord]) -> list[BufferedRecord]:
        """Fail the records with headers, if the stream must not get headers. Return the other records."""
        if self.headers_refusal is None or not self._fail_with_headers(records):
            return records
        return [record for record in records if record.ending is None]

    def _fail_with_headers(self, records: list[BufferedRecord]) -> bool:
        assert self.headers_refusal is not None
        has_dropped = self._drop_optional_tags(records)
        refused = [record for record in records if record.tags or self._config.dedup]
        self._ledger.fail(refused, HEADERS_REFUSED, self.headers_refusal)
        return has_dropped or bool(refused)

    def _drop_optional_tags(self, records: list[BufferedRecord]) -> bool:
        """Drop the headers of traces from records that are packed again. Return whether any headers were dropped."""
        traced = [record for record in records if record.tags and type(record.tags) is OptionalTags]
        self._ledger.drop_tags(traced)
        return bool(traced)

    # ---- lanes whose predictions are wrong

    def distrust(self, lane: Lane, seen_at: Instant, now: Instant) -> None:
        """Make a lane send one record per entry, because one of its entries landed in another shard."""
        lane.note_misdirected(seen_at)
        if lane.aggregates and self._config.packing is None:  # a pack is delivered wherever it lands
            self._switch(lane, now, aggregates=False)

    def trust(self, lane: Lane, now: Instant) -> None:
        """Make a lane aggregate again, because its entries land as predicted.

        Records that landed in a wrong shard twice must be sent alone first (P4). While such a record waits, nothing
        changes. An ordered lane first waits for its records in flight (P9): if one of them is refused, no later record
        of its key may be in an aggregate that is sent before it.
        """
        if any(landed_wrong_twice(record) for record in lane.unsent()):
            return
        if self._config.ordered and lane.in_flight:
            lane.wait_for_flights()
        else:
            self._switch(lane, now, aggregates=True)

    def _switch(self, lane: Lane, now: Instant, *, aggregates: bool) -> None:
        """Switch the aggregation of a lane, and pack its unsent records again."""
        released = lane.released
        self._collector.forget(lane)
        records = lane.take_unsent()
        lane.aggregate(on=aggregates)
        for record in sorted(records, key=lambda record: record.expires_at):
            lane.add_again(record)
        if released:
            lane.release()
        self._collector.note_returned(lane, now)
        self.has_repacked = True

    # ---- into lanes

    def _route(self, records: list[BufferedRecord], now: Instant) -> None:
        """Return records to lanes, before the waiting records that were put later (P9).

        The returned records have lingered already, so their aggregates are sealed and released.
        """
        for lane in self._add_again(records, now):
            lane.release()
            self._collector.note_returned(lane, now)

    def adopt_lanes(self, added: list[Lane], removed: list[Lane], now: Instant) -> bool:
        """Move the unsent records of removed lanes to other lanes.

        Return whether any of these records had already been released.
        """
        for lane in [*added, self._router.catch_all]:
            lane.held = self._config.ordered and self._router.must_wait(lane)
        was_released = any(lane.released for lane in removed)
        self.route_unsent(removed, now)
        return was_released

    def route_unsent(self, lanes: list[Lane], now: Instant) -> None:
        """Move the unsent records of vanished lanes to the lanes of the newer map. Released records stay released."""
        records: list[BufferedRecord] = []
        released = any(lane.released for lane in lanes)
        for lane in lanes:
            self._collector.forget(lane)
            records += lane.take_unsent()
        for lane in self._add_again(records, now):
            if released:
                lane.release()
            self._collector.note_returned(lane, now)

    def _add_again(self, records: list[BufferedRecord], now: Instant) -> list[Lane]:
        """Add records to the lanes that the router chooses. Return these lanes."""
        by_lane: dict[Lane, list[BufferedRecord]] = {}
        for record in records:
            lane = self._router.lane_for(record, now)
            # P4: if the record is sent alone, it is delivered wherever it lands, and is not stored a fourth time.
            if lane.aggregates and landed_wrong_twice(record):
                self.distrust(lane, now, now)
            returning = by_lane.setdefault(lane, [])
            if record.key is None:
                lane.add_again(record)  # added at once, because the next record's lane depends on it (P8)
            else:
                returning.append(record)
        for lane, returning in by_lane.items():
            together = returning
            released = lane.released
            if self._config.ordered:
                # Sort by the time of the put: the records of one merged parent are added after those of the other, and
                # deadlines decide which aggregate is sent first. The sort is stable, so the order of a key is kept.
                together = sorted(returning + lane.take_unsent(), key=lambda record: record.expires_at)
            for record in together:
                lane.add_again(record)
            if released:
                lane.release()
        return list(by_lane)

    def release_held(self, now: Instant) -> None:
        """Release the lanes that waited until vanished lanes with overlapping ranges were settled (P9)."""
        if not self._router.vanished:
            return
        for lane in [*self._router.lanes, self._router.catch_all]:
            if lane.held and not self._router.must_wait(lane):
                lane.held = False
                self._collector.note_returned(lane, now)
        self._router.forget_settled()


def _is_split_up(aggregate: Aggregate, lane: Lane) -> bool:
    """Return whether an aggregate must be split, because its lane now sends one record per entry.

    With ``ordered``, each record of the aggregate then has to wait for earlier records with the same key (P9).
    """
    return not aggregate.separate and not lane.aggregates


def _is_aggregate(aggregate: Aggregate) -> bool:
    return not aggregate.separate and len(aggregate.records) > 1


def landed_wrong_twice(record: BufferedRecord) -> bool:
    """Return whether the record was stored twice in shards to which its hash key possibly does not belong."""
    return record.history is not None and record.history.wrong_landings > 1


def ids_of(lanes: list[Lane]) -> tuple[str, ...]:
    return tuple(lane.shard_id for lane in lanes if lane.shard_id is not None)
