"""Decides which operation comes next for a held lease.

Each held lease has its own machine, a ``Holding``. It renews the lease, commits, writes SHARD_END when the shard
is done, and releases the lease in an orderly way. The coordinator sends its operations to the store, one at a time
(L1).

Invariants (docs/guarantees.md defines the C and L invariants):

- L2: we act as the owner only until one lease duration after the last confirmed write was sent. Then the lease is lost.
- L4: nothing is written for a lost lease. Every write carries the counter of the row that we saw last.
- The lease is lost if another process took it under our worker_id, or moved its counter. While we hold the lease, only
  our own writes may move the counter. A counter that such a write has moved proves no loss, even if the response to the
  write was lost.
- C3: SHARD_END is written last, and only when every child has a row.
- An operation whose response was lost is sent again unchanged before any other operation. If the store refuses the
  second attempt, the first may have been applied (``landed``). The operation then counts from the time of the first
  attempt.
- A release (on a hand-over or on exit) first commits the acknowledged records, and then gives up the lease. On exit, a
  worker may keep the lease for its restart instead: the row then still names the worker, but no process. A release
  begins when the user is done, or when the user's time is up. At this moment, the grant is revoked, and no more records
  are acknowledged.
"""

from collections.abc import Mapping
from enum import Enum
from typing import Final, NamedTuple, TypeAlias, final

from shardline.core.clock import NEVER, Instant
from shardline.core.consumer.checkpoint import CheckpointTracker
from shardline.core.consumer.dedup_window import DedupWindow, SeenStamps
from shardline.core.consumer.grant import Grant
from shardline.core.consumer.kcl_fleet import KclFleet, KclRole
from shardline.core.consumer.read_throughput import ReadThroughput
from shardline.core.consumer.shard_load import LoadMeter
from shardline.core.leases import (
    CommitCheckpoint,
    FinishHandOver,
    Refused,
    ReleaseLease,
    RenewLease,
    TakeLease,
    WriteChildren,
    landed,
)
from shardline.model.lease import KEPT, Checkpoint, Incarnation, Lease
from shardline.model.position import Position

HoldingOperation: TypeAlias = RenewLease | CommitCheckpoint | FinishHandOver | ReleaseLease | TakeLease | WriteChildren

_RENEWALS: Final = 3  # the number of renewals per lease duration, so that two renewals may be lost


@final
class Phase(Enum):
    """The phases of a held lease, from holding it to giving it up."""

    __hash__ = object.__hash__  # members are unique, and the hash of an Enum is a slow Python function

    ACTIVE = "the shard is read"
    DRAINING = "another worker gets the lease: the user finishes the records in hand"
    LEAVING = "no more records are acknowledged: commit, then release the lease"
    RELEASED = "the lease was released in an orderly way"
    FINISHED = "SHARD_END is written"
    LOST = "the lease is not ours any more"


TRANSITIONS: Final[Mapping[Phase, frozenset[Phase]]] = {
    Phase.ACTIVE: frozenset({Phase.DRAINING, Phase.LEAVING, Phase.FINISHED, Phase.LOST}),
    Phase.DRAINING: frozenset({Phase.LEAVING, Phase.FINISHED, Phase.LOST}),
    Phase.LEAVING: frozenset({Phase.RELEASED, Phase.FINISHED, Phase.LOST}),
    Phase.RELEASED: frozenset(),
    Phase.FINISHED: frozenset(),
    Phase.LOST: frozenset(),
}
"""Every phase change that a held lease may make. docs/pictures draws the phases from this table."""
OVER: Final = frozenset(phase for phase, following in TRANSITIONS.items() if not following)


@final
class WrittenCheckpoint(NamedTuple):
    """A checkpoint that the store has confirmed."""

    position: Position
    sent_at: Instant
    """When the write was sent."""


@final
class Holding:
    """Decides which operation comes next for one lease that this worker holds."""

    def __init__(
        self,
        row: Lease,
        grant: Grant,
        tracker: CheckpointTracker,
        *,
        me: Incarnation,
        sent_at: Instant,
        window: DedupWindow | None = None,
    ) -> None:
        lease_duration = me.lease_duration
        self.row: Lease = row
        self._me: str = me.owner
        self._incarnation: Incarnation = me
        self.grant: Grant = grant
        self.tracker: CheckpointTracker = tracker
        self.window: DedupWindow | None = window
        """With ``dedup``, the stamps of the records that were read. The reader adds new stamps."""
        self._duration: float = lease_duration
        self._renew_at: Instant = sent_at + lease_duration / _RENEWALS
        self._retry_at: Instant = -NEVER
        self._sent: HoldingOperation | None = None
        self._sent_at: Instant = sent_at
        self._uncertain: HoldingOperation | None = None  # an operation whose response was lost
        self._first_sent_at: Instant = sent_at
        self._children: frozenset[str] | None = None  # set once the shard was read to its end and each has a row
        self.phase: Phase = Phase.ACTIVE
        self._is_kept: bool = False  # whether the row goes on naming this worker after the release
        self.drain_until: Instant = NEVER
        self._is_overdue: bool = False
        self.is_arranged: bool = False
        """Whether the commit of the acknowledged records is scheduled. ``HeldLeases`` writes this field."""
        self.why: str = ""
        """Why the lease was lost."""
        self.asked_at: Instant | None = None
        """When another worker's request for the lease was noticed. ``HeldLeases`` writes this field."""
        self.handed_to: str | None = None
        """The worker that the lease was handed over to, if any."""
        self._committed: WrittenCheckpoint | None = None  # the last confirmed checkpoint, until it is reported
        self._kcl: KclFleet | None = None
        self.throughput: ReadThroughput | None = None
        """The throughput of the shard, on a table that a KCL may share."""
        self.meter: LoadMeter | None = None
        """The load of the shard, if the group shares its work by load."""
        self.is_contested: bool = False
        """Whether another process moved the row's counter under our worker_id."""

    @property
    def shard_id(self) -> str:
        return self.row.shard_id

    @property
    def is_over(self) -> bool:
        return self.phase in OVER

    @property
    def next_owner(self) -> str | None:
        """The worker that asked for the lease, if any."""
        return self.row.owner if self.row.checkpoint_owner == self._me else None

    # ---- commands

    def follow_kcl(self, kcl: KclFleet, throughput: ReadThroughput) -> None:
        """Write the throughput with each renewal while KCL workers share the table."""
        self._kcl, self.throughput = kcl, throughput

    def measure_load(self, now: Instant) -> None:
        """Write the load with each renewal."""
        self.meter = LoadMeter(now, self.row, self._duration)

    def drain(self, until: Instant) -> None:
        """Give the user until ``until`` to finish the records in hand, because another worker asked for the lease, or
        because this worker has more leases than ``max_leases`` allows.
        """
        if self.phase is Phase.ACTIVE:
            self._enter(Phase.DRAINING)
            self.drain_until = until

    def leave(self, *, keep: bool = False) -> None:
        """Commit the acknowledged records, then release the lease, because the user is done or the user's time is
        up. With ``keep``, the lease is kept for the worker's next process, unless it is being released already.
        """
        if not self.is_over:
            if self.phase is not Phase.LEAVING:
                self._is_kept = keep and self.phase is Phase.ACTIVE
                self._enter(Phase.LEAVING)
            self.drain_until = NEVER
            self.grant.revoke()  # another worker may hold the lease before the response to our release comes
            self.tracker.seal()

    def seek(self, checkpoint: Checkpoint) -> None:
        """Move the checkpoint, and refuse acknowledgements of the records that were read under the current grant."""
        self.grant.revoke()
        self.tracker.seek(checkpoint)

    def reopen(self, grant: Grant, tracker: CheckpointTracker) -> None:
        """Continue at the position that the user passed to ``seek``, under a new grant for the same lease. Records that
        are read again are not copies, so all stamps are forgotten.
        """
        self.grant, self.tracker = grant, tracker
        self.window = None if self.window is None else DedupWindow(SeenStamps())

    def allow_end(self, children: frozenset[str]) -> None:
        """Allow SHARD_END to be written, because all children have rows (C3)."""
        self._children = children

    def lose(self, why: str) -> None:
        """Called when the lease is no longer ours (L4)."""
        if not self.is_over:
            self._end(Phase.LOST)
            self.why = why

    def take_overdue(self) -> bool:
        """Return True once if the user did not finish in time."""
        overdue, self._is_overdue = self._is_overdue, False
        return overdue

    def take_committed(self) -> WrittenCheckpoint | None:
        """Return the checkpoint that the store has confirmed since the last call."""
        committed, self._committed = self._committed, None
        return committed

    # ---- outputs, time

    def poll_operation(self, now: Instant) -> HoldingOperation | None:
        """Return the next operation, unless one is in flight (L1)."""
        # An operation with an unknown outcome (``_uncertain``) is repeated before any other. A different write would
        # carry the old counter, and the store would refuse it if the earlier operation was applied.
        if self.is_over or self._sent is not None or now < self._retry_at:
            return None
        if self._uncertain is None:
            operation = self._next(now)
            self._first_sent_at = now
        else:
            operation = self._uncertain
        self._sent, self._sent_at = operation, now
        return operation

    def _next(self, now: Instant) -> HoldingOperation | None:
        shard_id, me, counter = self.shard_id, self._me, self.row.counter
        # Like the KCL, we write the children into the parent's row before SHARD_END, so that every worker finds the
        # children in this row.
        if self._children and self.tracker.is_at_end and self.row.child_ids != self._children:
            return WriteChildren(shard_id, self._children)
        if self._reports_throughput and self.tracker.is_at_end and self._may_end and self.row.throughput:
            # The KCL's leader adds up the throughput of all rows. From a finished shard, nothing is read any more.
            return RenewLease(shard_id, me, counter, 0.0)
        checkpoint = self.tracker.poll_commit(now, may_end=self._may_end)
        if checkpoint is not None:
            return CommitCheckpoint(shard_id, me, counter, checkpoint, self._window_at(checkpoint))
        if self.phase is Phase.LEAVING and self._is_clean:
            # If another worker asked for the lease, the lease goes to that worker. Otherwise it is available to all.
            if self.row.checkpoint_owner == me:
                return FinishHandOver(shard_id, me, counter)
            if self._is_kept:
                return TakeLease(shard_id, me, self.row.fence, Incarnation(me, KEPT, self._duration))
            return ReleaseLease(shard_id, me, counter)
        return RenewLease(shard_id, me, counter, *self._measure(now)) if now >= self._renew_at else None

    @property
    def _reports_throughput(self) -> bool:
        return self._kcl is not None and self._kcl.role is not KclRole.ALONE

    def _measure(self, now: Instant) -> tuple[float | None, float | None]:
        """Return the throughput and the handling time to write."""
        average = None if self.throughput is None else self.throughput.measure(now)
        throughput, handling = (None, None) if self.meter is None else self.meter.measure(now)
        # A KCL leader compares throughputs, so those of all workers are averages of the same kind.
        return average if self._reports_throughput else throughput, handling

    def _window_at(self, checkpoint: Checkpoint) -> str | None:
        """Return the stamps to store with a checkpoint. A position that the user passed to ``seek`` clears the row's
        stamps.
        """
        if self.tracker.is_replaced:
            return ""
        return None if self.window is None else self.window.encode_through(checkpoint)

    @property
    def _may_end(self) -> bool:
        return self._children is not None

    @property
    def _is_clean(self) -> bool:
        """Whether nothing is left to commit. If SHARD_END waits for the children's rows, the next owner writes
        SHARD_END.
        """
        return self.tracker.next_deadline(may_end=self._may_end) == NEVER

    def next_lapse(self) -> Instant:
        """Return the time at which to call ``handle_time`` next."""
        return NEVER if self.is_over else min(self.grant.held_until, self.drain_until)

    def next_work(self) -> Instant:
        """Return the time at which ``poll_operation`` will have an operation."""
        if self.is_over or self._sent is not None:
            return NEVER
        if self._uncertain is not None:
            return self._retry_at
        work_at = min(self._renew_at, self.tracker.next_deadline(may_end=self._may_end))
        # Releases and SHARD_END are urgent, because other workers wait for these writes.
        if self.phase is Phase.LEAVING or (self._may_end and self.tracker.is_at_end):
            work_at = -NEVER
        return max(work_at, self._retry_at)

    # ---- inputs

    def handle_time(self, now: Instant) -> None:
        """End the lease if it has expired (L2), or begin its release if the user's time is up."""
        if self.is_over:
            return
        if now >= self.grant.held_until:
            self.lose("no renewal was confirmed within the lease duration")
        elif now >= self.drain_until:
            self._is_overdue = True
            self.leave()

    def handle_seen(self, row: Lease | None) -> None:
        """Handle the row that a scan found while no operation was in flight."""
        # While an outcome is unknown, our own write may have moved the counter, so the counter proves nothing.
        self._handle_current(row, self.row.counter if self._uncertain is None else None)

    def handle_applied(self, result: Lease | Refused | None) -> None:
        """Handle the store's response to the operation in flight."""
        operation, self._sent = self._sent, None
        assert operation is not None, "L1: an operation is in flight"
        sent_at, repeated = self._sent_at, self._uncertain is not None
        self._uncertain = None
        if self.is_over:
            return
        if isinstance(result, Refused):
            row = result.current
            # If the first attempt was applied and its response was lost, the repetition was refused for that reason.
            if repeated and landed(operation, row):
                sent_at = self._first_sent_at
            else:
                self._handle_refused(operation, row)
                return
        else:
            row = result
        assert row is not None, "an accepted write leaves a row"
        self._handle_written(operation, row, sent_at)

    def handle_failure(self, retry_at: Instant, *, maybe_received: bool) -> None:
        """Handle an operation that failed or got no response."""
        operation, self._sent = self._sent, None
        assert operation is not None, "L1: an operation is in flight"
        self._retry_at = retry_at
        if self.is_over:
            return
        if maybe_received or self._uncertain is not None:
            self._uncertain = operation
        elif isinstance(operation, CommitCheckpoint):
            self.tracker.handle_commit_failed()

    def _handle_written(self, operation: HoldingOperation, row: Lease, sent_at: Instant) -> None:
        self.row = row
        if isinstance(operation, WriteChildren):
            return  # not a renewal: this write carries no counter
        self.grant.extend(sent_at + self._duration)
        # A commit renews the lease too, but only a renewal writes the load, which the other workers need.
        is_measured = self._reports_throughput or self.meter is not None
        if not isinstance(operation, CommitCheckpoint) or not is_measured:
            within = self._duration if self._kcl is None else self._kcl.renew_within(self._duration)
            self._renew_at = sent_at + within / _RENEWALS
        if isinstance(operation, CommitCheckpoint):
            self.tracker.handle_committed()
            self._committed = WrittenCheckpoint(operation.checkpoint.position, sent_at)
            if self.tracker.is_finished:
                self._end(Phase.FINISHED)
        elif isinstance(operation, FinishHandOver | ReleaseLease | TakeLease):
            if isinstance(operation, FinishHandOver):
                self.handed_to = row.owner
            self._end(Phase.RELEASED)

    def _handle_refused(self, operation: HoldingOperation, row: Lease | None) -> None:
        if isinstance(operation, CommitCheckpoint):
            self.tracker.handle_commit_failed()
        self._handle_current(row, _counter_of(operation))

    def _handle_current(self, row: Lease | None, counter: int | None) -> None:
        """Check the current row. The lease is still ours if the row names us and its counter is at most ``counter``.

        The row may have changed: another worker may have asked for the lease, or the store may have been restored from
        a backup. After a restore, the acknowledged records are committed again.
        """
        if row is None:
            self.lose("its row was deleted")
        elif row.holder != self._me:
            self.lose("another worker took it")
        elif row.is_foreign_to(self._incarnation):
            self.lose(f"another process with the worker_id {self._me!r} took it")
        elif counter is not None and row.counter > counter:
            self.is_contested = True
            self.lose(f"another process with the worker_id {self._me!r} writes to it")
        else:
            # The counter never decreases while the store works correctly. A smaller counter shows that the store was
            # restored from a backup.
            if row.counter < self.row.counter:
                self.tracker.handle_set_back(row.checkpoint)
            self.row = row

    def _enter(self, phase: Phase) -> None:
        assert phase in TRANSITIONS[self.phase], f"a lease does not go from {self.phase} to {phase}"
        self.phase = phase

    def _end(self, phase: Phase) -> None:
        self._enter(phase)
        self.grant.revoke()
        self.tracker.close()


def _counter_of(operation: HoldingOperation) -> int | None:
    """Return the counter that the operation expected in the row, or ``None`` if it expected no counter."""
    match operation:
        case WriteChildren():
            return None
        case TakeLease(seen=seen):
            return seen.counter
        case _:
            return operation.counter
