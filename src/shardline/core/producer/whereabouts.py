"""Where is each record that has not ended?

In the intake, in a lane, on its way, parked, or in a part of a refused request. And, if a put was interrupted, perhaps
nowhere of that: a put runs in the thread of its caller, and Ctrl-C there, or a signal handler that raises, ends it
between any two steps. What was under its hands stands in the machine's ``round_`` until it is done.

Invariants:

- P1: after ``gather`` each record that is not on its way is in the intake, once; lanes are empty, and every count is
  that of what is there. If it is interrupted itself, it can be done again.
- P9: records of one key keep their order: those in lanes were put before those of the round, and these before those
  that went into the intake since.
"""

from collections.abc import Sequence
from typing import NamedTuple, final

from shardline.core.clock import NEVER, Instant
from shardline.core.producer.collector import Collector
from shardline.core.producer.intake import Intake
from shardline.core.producer.isolation import Isolation
from shardline.core.producer.lane import Shipment
from shardline.core.producer.ledger import Ledger
from shardline.core.producer.record import BufferedRecord, payload_bytes
from shardline.core.producer.router import Router
from shardline.core.producer.settlement import Flight, Settlement


@final
class Known(NamedTuple):
    """How many of the intake's records were seen, and their bytes as they were counted."""

    records: int
    size: int


@final
class Whereabouts:
    """Looks everywhere."""

    def __init__(
        self,
        intake: Intake,
        ledger: Ledger,
        router: Router,
        collector: Collector,
        settlement: Settlement,
        *,
        isolation: Isolation,
        flights: dict[int, Flight],
    ) -> None:
        self._intake = intake
        self._ledger = ledger
        self._router = router
        self._collector = collector
        self._isolation = isolation
        self._settlement = settlement
        self._flights = flights

    def unfinished(self, round_: Sequence[BufferedRecord] = ()) -> list[BufferedRecord]:
        """All records that have not ended, the oldest of each lane first; with those of a round that is not done."""
        records = [record for shipment in self._shipments() for record in shipment.aggregate.records]
        for lane in self._router.all_lanes():
            records += lane.unsent()
        return [*{id(record): record for record in [*records, *round_, *self._intake.records]}.values()]

    def first_unsent(self) -> Instant:
        """When the first that waits in a lane or in the intake expires, or earlier."""
        waiting = [lane.expires_at() for lane in self._router.all_lanes()]
        return min(waiting + [record.expires_at for record in self._intake.records[:1]])

    def expires_at(self) -> Instant:
        """When the first that is not on its way expires, or earlier."""
        parked = [record for shipment in self._settlement.parked for record in shipment.aggregate.records]
        waiting = [record.expires_at for record in parked]
        return min([self.first_unsent(), self._isolation.expires_at(), *waiting])

    def due_at(self, now: Instant) -> Instant:
        """When the first that lingers in a lane is due."""
        lanes = self._router.all_lanes()
        lingering = [lane.open.due_at for lane in lanes if lane.open is not None]
        # What is sealed and not due came back from a request that was sent early. What is overdue is the collector's.
        lingering += [due_at for due_at in (lane.due_at() for lane in lanes) if due_at > now]
        return min(lingering, default=NEVER)

    def unsent(self, round_: list[BufferedRecord]) -> tuple[list[BufferedRecord], Known]:
        """All that is in no shipment, the oldest first; each once, though some of the round may already be in lanes.

        And what of the intake is among it: what is put while we look comes behind that (TU1).
        """
        size = self._intake.size
        waiting = self._intake.records.copy()
        found = [record for lane in self._router.all_lanes() for record in lane.unsent()]
        found += round_ + waiting
        unsent = sorted({id(record): record for record in found}.values(), key=lambda record: record.expires_at)
        return unsent, Known(len(waiting), size)

    def gather(self, unsent: list[BufferedRecord], known: Known) -> None:
        """Begin anew with what is unsent: it is in the intake, in place of what was known of that."""
        intake, ledger, lanes = self._intake, self._ledger, self._router.all_lanes()
        more = sum(map(payload_bytes, unsent)) - known.size
        intake.records[: known.records] = unsent
        intake.size += more
        for lane in lanes:
            lane.take_unsent()
        self._collector.forget_all(lanes)
        aggregates = [shipment.aggregate for shipment in self._shipments()]
        ledger.records = sum([len(aggregate.records) for aggregate in aggregates])
        ledger.payload_bytes = sum([aggregate.payload_bytes for aggregate in aggregates])

    def _shipments(self) -> list[Shipment]:
        """What is on its way, or was and is not judged yet."""
        flying = [shipment for flight in self._flights.values() for shipment in flight.group.shipments]
        return flying + self._settlement.parked + self._isolation.shipments()
