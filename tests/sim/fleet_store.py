"""The lease store of a simulated fleet: the fake store of all tests, behind a network that loses answers.

The kinds of stores differ in their speed, and in how a listing is read: at one moment, or (DynamoDB) page by page.
"""

from dataclasses import replace
from random import Random

from producer_endpoint import BEGIN
from tests.harness.coordinator import FakeStore

from shardline.core.consumer.coordinator import ScanLeases
from shardline.core.error_codes import Failure, FailureKind
from shardline.core.leases import DeleteLease, Refused, TakeLease, landed

UNSENT = Failure(FailureKind.TRANSIENT, "ConnectError", "sim: never sent", maybe_received=False)
LOST = Failure(FailureKind.TRANSIENT, "ConnectionReset", "sim: the answer was lost")
BROKEN = Failure(FailureKind.TRANSIENT, "InternalServerError", "sim: the store broke", 500)
THROTTLED = Failure(FailureKind.THROTTLED, "ThrottlingException", "sim: too fast", 400)
CONTENDED = Failure(FailureKind.TRANSIENT, "Contended", "sim: it changed again meanwhile", maybe_received=False)


class Store(FakeStore):
    """The rows, and the network in front of them. ``watch`` is the oracle, which sees every write."""

    def __init__(self, world, watch):
        super().__init__()
        self.world = world
        self.fleet = world.fleet
        self.kind = world.fleet.store
        self.watch = watch
        self.rng = Random(f"store {world.fleet.seed}")
        self._backup = {}
        self.set_back_at = None
        self._hidden = {}  # operations whose answer was lost, and whether they were applied

    @property
    def is_down(self):
        return self.fleet.is_store_down(self.world.time)

    @property
    def is_forgetful(self):
        """Whether the store was set back so recently that earlier holders of leases may not know it."""
        if self.set_back_at is None:
            return False
        return self.world.now <= self.set_back_at + 1.01 * self.fleet.longest_lease

    def back_up(self):
        self._backup = dict(self.rows)

    def set_back(self):
        """The store comes back from a backup, or empty (``SetBack``)."""
        self.world.note("store", "comes back", "as it was" if self._backup else "empty")
        self.watch.reached.add(f"the store came back {'as it was' if self._backup else 'empty'}")
        self.watch.see_set_back(self.rows, self._backup)
        self.rows, self.set_back_at = dict(self._backup), self.world.now

    def latency(self):
        return self.rng.uniform(*self.kind.latency)

    def receive(self, worker_id, request, reply):
        """Receive a request. ``reply`` is called with the answer, if there is one. If there is none, the client must
        time out.
        """
        fault = self._draw_fault(request)
        if self.is_down:
            fault = self.rng.choice(["unsent", "dropped"])
        if fault in {"unsent", "broken", "throttled", "contended", "dropped"}:
            self._refuse(worker_id, request, fault, reply)
        elif fault == "late":
            self._hidden[worker_id, request] = True
            self.world.at(
                self.world.now + self.rng.uniform(0.2, 1.5) * self.fleet.config.lease_duration,
                self._apply_late,
                worker_id,
                request,
            )
        elif isinstance(request, ScanLeases):
            self._scan([], sorted(self.rows), reply, lost=fault == "lost")
        else:
            answer = self._apply(worker_id, request)
            if fault == "lost":
                self._hidden[worker_id, request] = True
                answer = LOST
            self._answer(reply, answer)

    def _draw_fault(self, request):
        if not self.fleet.store_faulty_at(self.world.time):
            return None
        for kind, chance in self.fleet.store_faults.items():
            if self.rng.random() < chance:
                return None if isinstance(request, ScanLeases) and kind in {"late", "contended"} else kind
        return None

    def _refuse(self, worker_id, request, fault, reply):
        """The operation is not applied, and the client gets an error or no answer."""
        if fault == "throttled":
            self.watch.reached.add("store throttled")
        if fault not in {"unsent", "contended"} and not isinstance(request, ScanLeases):
            self._hidden.setdefault((worker_id, request), False)
        answers = {"unsent": UNSENT, "broken": BROKEN, "throttled": THROTTLED, "contended": CONTENDED}
        if fault != "dropped":
            self._answer(reply, answers[fault])

    def _apply_late(self, worker_id, request):
        answer = self._apply(worker_id, request, late=True)
        if not isinstance(answer, Refused):
            self.watch.reached.add("a write landed after it was given up")

    def _answer(self, reply, answer):
        self.world.at(self.world.now + self.latency(), reply, answer)

    # ---- the rows

    def _apply(self, worker_id, operation, *, late=False):
        row = self.rows.get(operation.shard_id)
        answer = self.answer(self._with_our_time(operation))
        self.watch.see_write(worker_id, operation, row, answer, late=late)
        if isinstance(answer, Refused):
            self._note_refused(worker_id, operation, row)
            return answer
        if self._hidden.pop((worker_id, operation), None) is False:
            self.watch.reached.add("lost answer not landed")
        return answer

    def _with_our_time(self, operation):
        """Raise the floor of a token to the store's time, as a store with a clock does."""
        if not self.kind.has_clock or not isinstance(operation, TakeLease) or not operation.floor:
            return operation
        skew = self.fleet.store_clocks[self.set_back_at is not None]
        time = int((BEGIN + self.world.time + skew) * 1000)
        return replace(operation, floor=max(operation.floor, time))

    def _note_refused(self, worker_id, operation, row):
        if isinstance(operation, DeleteLease) or row is None:
            return
        if self._hidden.pop((worker_id, operation), None) and landed(operation, row):
            self.watch.reached.add("lost answer landed")
        elif isinstance(operation, TakeLease):
            self.watch.reached.add("two took the same lease: one was refused")

    def _scan(self, found, left, reply, *, lost):
        """Read the next page. Each page is consistent, but the whole listing is not."""
        some = max(2, -(-len(self.rows) // self.kind.pages)) if self.kind.pages > 1 else len(left)
        found = found + [self.rows[shard_id] for shard_id in left[:some] if shard_id in self.rows]
        if left[some:]:
            self.world.at(self.world.now + 2 * self.latency(), lambda: self._scan(found, left[some:], reply, lost=lost))
            return
        if found != sorted(self.rows.values(), key=lambda row: row.shard_id):
            self.watch.reached.add("rows changed between two pages of a scan")
        self._answer(reply, LOST if lost else found)
