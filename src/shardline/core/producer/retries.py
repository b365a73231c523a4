"""What was not delivered: how does it go on?

Invariants:

- P1: every record that is handed over here ends, or is in a lane again.
- P8: keyless records of a refused entry choose their lane anew.
- P4: a record that landed out of range twice goes as an entry of its own, which is delivered wherever it lands: no
  record is stored more than three times because the map is wrong.
- P9: records that come back to an ordered lane stand before those that wait there, by the time of their put; and a part
  of an aggregate that was cut up never overtakes the part before it.
"""

from collections.abc import Iterable
from typing import Final, final

from shardline.core.clock import Instant
from shardline.core.producer.aggregate import WRAP_MAX_BYTES, Aggregate, wrapped_bytes
from shardline.core.producer.collector import Collector
from shardline.core.producer.isolation import Family, Isolation
from shardline.core.producer.lane import Lane, Shipment, repacked
from shardline.core.producer.ledger import Ledger
from shardline.core.producer.producer_config import ProducerConfig
from shardline.core.producer.producer_record import Attempt, BufferedRecord
from shardline.core.producer.router import Router
from shardline.core.producer.verdicts import WRONG_SHARD
from shardline.core.producer_events import RecordsRetried

EXPIRED: Final = "Expired"
TOO_LARGE: Final = "RecordTooLarge"


@final
class Retries:
    """The way back into lanes, or out."""

    def __init__(
        self, config: ProducerConfig, ledger: Ledger, router: Router, collector: Collector, isolation: Isolation
    ) -> None:
        self._config = config
        self._ledger = ledger
        self._router = router
        self._collector = collector
        self._isolation = isolation
        self.ending: tuple[str, str] | None = None
        """Code and message for what would have to be sent again: the producer is at its end."""
        self.has_repacked = False
        """A lane was packed anew: its deadlines may be others. Reset by the settlement."""

    # ---- one entry

    def resend(self, shipment: Shipment, code: str, message: str, now: Instant, *, reroute: bool) -> None:
        """Send it again as it is, as far as possible; ``reroute``: but for keyless records, which go elsewhere (P8)."""
        aggregate, lane = shipment
        alive = self._give_up_some(aggregate.records, now, code, message)
        if not alive:
            return
        self._ledger.retried_records += len(alive)
        self._ledger.events.append(RecordsRetried(len(alive), lane.shard_id, code, message))
        if lane.vanished or lane is self._router.catch_all or _is_split_up(aggregate, lane):
            self._route(alive, now)
            return
        staying = [record for record in alive if record.key is not None] if reroute else alive
        if len(staying) == len(aggregate.records):
            lane.requeue(aggregate)
        elif staying:
            lane.requeue(repacked(staying, aggregate.due_at, aggregate))
        if len(staying) < len(alive):
            self._route([record for record in alive if record.key is None], now)

    def send_again(self, records: list[BufferedRecord], now: Instant, code: str, message: str) -> None:
        """Each record by the newest map."""
        alive = self._give_up_some(records, now, code, message)
        self._ledger.retried_records += len(alive)
        self._route(alive, now)

    def _give_up_some(
        self, records: list[BufferedRecord], now: Instant, code: str, message: str
    ) -> list[BufferedRecord]:
        """Fail those that have no time or no attempt left. Returns the others."""
        if self.ending is not None:
            self._ledger.fail(records, *self.ending)
            return []
        limit = self._config.max_attempts
        if limit is not None:
            spent = [record for record in records if record.attempt_count >= limit]
            if spent:
                self._ledger.fail(spent, code, f"{message} (given up after {limit} attempts)")
                records = [record for record in records if record.ending is None]
        expired = [record for record in records if record.expires_at <= now]
        if expired:
            self.fail_expired(expired, now)
            records = [record for record in records if record.ending is None]
        return records

    def fail_expired(self, records: list[BufferedRecord], now: Instant) -> None:
        """Their life is over. The message names the last failure, and the last attempt is this end."""
        ttl = f"not delivered within record_ttl ({self._config.record_ttl:g} s)"
        by_reason: dict[str, list[BufferedRecord]] = {}
        for record in records:
            last = record.history.kept[-1] if record.history is not None else None
            reason = ttl if last is None else f"{ttl}; last failure: {last.code}: {last.message}"
            by_reason.setdefault(reason, []).append(record)
        for reason, group in by_reason.items():
            end = Attempt(now + self._ledger.wall_offset, 0.0, None, None, EXPIRED, reason, maybe_stored=False)
            self._ledger.fail(group, EXPIRED, reason, end)

    def give_up_all(self, parked: list[Shipment], fresh: list[BufferedRecord], code: str, message: str) -> None:
        """The end: fail all that waits, with what is parked, and what is in no lane yet."""
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
        """Give up records that wait, in a lane or in a part of a refused request, and whose life is over."""
        for lane in self._router.all_lanes():
            expired = lane.take_expired(now)
            if expired:
                self.fail_expired(expired, now)
                self._collector.note_expired(lane, now)
        self.expire_isolated(now)

    # ---- parts of refused requests

    def expire_isolated(self, now: Instant) -> None:
        """The same, of parts of refused requests: their records fail with the reason of the refusal."""
        if self._isolation.expires_at() <= now:
            self._isolation.filter_waiting(lambda shipment, family: self._without_expired(shipment, family, now))

    def _without_expired(self, shipment: Shipment, family: Family, now: Instant) -> Shipment | None:
        expired = [record for record in shipment.aggregate.records if record.expires_at <= now]
        ttl = f"record_ttl ({self._config.record_ttl:g} s)"
        message = f"{family.message} (said of a request with other records; {ttl} ended before this one was sent alone)"
        self._ledger.fail(expired, family.code, message)
        return self._without_ended(shipment, now) if expired else shipment

    def _without_ended(self, shipment: Shipment, now: Instant) -> Shipment | None:
        """What is left of a shipment that waits, some of whose records have failed."""
        aggregate, lane = shipment
        rest = [record for record in aggregate.records if record.ending is None]
        lane.handle_ended(aggregate.records)
        if not rest:
            lane.note_settled()
        self._collector.note_returned(lane, now)
        return Shipment(repacked(rest, aggregate.due_at, aggregate), lane) if rest else None

    def recall(self, lanes: Iterable[Lane], now: Instant) -> None:
        """A part of something that was cut up has to be sent again: what comes after it in its lane waits for it (P9).

        Left as they are, the later parts would go out while the first one pauses, or waits for a map.
        """
        homeless: list[BufferedRecord] = []
        for aggregate, lane in self._isolation.recall(set(lanes)):
            lane.note_settled()
            if lane.vanished or _is_split_up(aggregate, lane):
                homeless += aggregate.records
            else:
                lane.requeue(aggregate)
        self._route(homeless, now)

    # ---- a lower record limit

    def enforce_limit(self, max_bytes: int, now: Instant) -> None:
        """The stream takes smaller records than it did: what waits and is larger fails now, and not alone later."""
        for lane in self._router.all_lanes():
            if any(_is_larger(record, max_bytes) for record in lane.unsent()):
                released = lane.released
                records = lane.take_unsent()
                self._fail_larger(records, max_bytes)
                for record in sorted(records, key=lambda record: record.expires_at):
                    if record.ending is None:
                        lane.add_again(record)
                if released:
                    lane.release()
                self._collector.note_expired(lane, now)
        self._isolation.filter_waiting(lambda shipment, _family: self._without_larger(shipment, max_bytes, now))

    def without_larger(self, records: list[BufferedRecord], max_bytes: int) -> list[BufferedRecord]:
        """The same, of records that are in no lane yet. Returns the others."""
        self._fail_larger(records, max_bytes)
        return [record for record in records if record.ending is None]

    def _without_larger(self, shipment: Shipment, max_bytes: int, now: Instant) -> Shipment | None:
        return (
            self._without_ended(shipment, now) if self._fail_larger(shipment.aggregate.records, max_bytes) else shipment
        )

    def _fail_larger(self, records: list[BufferedRecord], max_bytes: int) -> bool:
        """Fail the records that the stream does not take any more. Says whether there were any."""
        larger = [record for record in records if _is_larger(record, max_bytes)]
        message = (
            f"larger than the {max_bytes:,} bytes of data and key that the stream takes now: its limit was lowered"
        )
        self._ledger.fail(larger, TOO_LARGE, message)
        return bool(larger)

    # ---- lanes whose predictions are wrong

    def distrust(self, lane: Lane, seen_at: Instant, now: Instant) -> None:
        """An entry of the lane was seen to have landed elsewhere: its records go one per entry."""
        lane.note_misdirected(seen_at)
        if lane.aggregates:
            self._switch(lane, now, aggregates=False)

    def trust(self, lane: Lane, now: Instant) -> None:
        """The lane's entries land as predicted again. What has been astray twice leaves first, alone (P4)."""
        if not any(_landed_wrong_twice(record) for record in lane.unsent()):
            self._switch(lane, now, aggregates=True)

    def _switch(self, lane: Lane, now: Instant, *, aggregates: bool) -> None:
        """Pack what the lane has not sent anew."""
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
        """Back into lanes, in front of what waits there (P9). They waited long enough: what they join is sealed."""
        for lane in self._add_again(records, now):
            lane.release()
            self._collector.note_returned(lane, now)

    def adopt_lanes(self, fresh: list[Lane], gone: list[Lane], now: Instant) -> bool:
        """Lanes came and went: what is unsent finds new ones. Says whether some of it was to go at once."""
        for lane in [*fresh, self._router.catch_all]:
            lane.held = self._config.ordered and self._router.must_wait(lane)
        was_released = any(lane.released for lane in gone)
        self.route_unsent(gone, now)
        return was_released

    def route_unsent(self, lanes: list[Lane], now: Instant) -> None:
        """Lanes vanished: what they had not sent goes to the lanes of the newer map. A flush holds there too."""
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
        """Distribute records over lanes. Returns the lanes."""
        by_lane: dict[Lane, list[BufferedRecord]] = {}
        for record in records:
            lane = self._router.lane_for(record, now)
            if lane.aggregates and _landed_wrong_twice(record):
                self.distrust(lane, now, now)
            returning = by_lane.setdefault(lane, [])
            if record.key is None:
                lane.add_again(record)  # at once: the next one chooses by what this one fills (P8)
            else:
                returning.append(record)
        for lane, returning in by_lane.items():
            together = returning
            released = lane.released
            if self._config.ordered:
                # By the time of their put: two parents' records come here one after the other, and deadlines decide
                # which aggregate goes first. Equal ones keep their places, so those of one key never change theirs.
                together = sorted(returning + lane.take_unsent(), key=lambda record: record.expires_at)
            for record in together:
                lane.add_again(record)
            if released:
                lane.release()
        return list(by_lane)

    def release_held(self, now: Instant) -> None:
        """Lanes that waited for a lane of an overlapping range may go on when that is settled (P9)."""
        if not self._router.vanished:
            return
        for lane in [*self._router.lanes, self._router.catch_all]:
            if lane.held and not self._router.must_wait(lane):
                lane.held = False
                self._collector.note_returned(lane, now)
        self._router.forget_settled()


def _is_larger(record: BufferedRecord, max_bytes: int) -> bool:
    assert record.data is not None
    if len(record.data) + WRAP_MAX_BYTES <= max_bytes:  # nearly all
        return False
    return wrapped_bytes(record.data, record.key, record.explicit_hash_key) > max_bytes


def _is_split_up(aggregate: Aggregate, lane: Lane) -> bool:
    """Whether its lane sends one record per entry now: each of its records waits for others of its own key (P9)."""
    return not aggregate.separate and not lane.aggregates


def _landed_wrong_twice(record: BufferedRecord) -> bool:
    history = record.history
    return history is not None and [attempt.code for attempt in history.kept].count(WRONG_SHARD) > 1


def ids_of(lanes: list[Lane]) -> tuple[str, ...]:
    return tuple(lane.shard_id for lane in lanes if lane.shard_id is not None)
