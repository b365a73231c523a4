"""What is to be written next for a lease that we hold?

One machine per held lease: it renews, commits, writes SHARD_END when the shard is done, and lets go in good order. The
coordinator carries its operations to the store, and takes care that they are one at a time (L1).

Invariants (C and L are of docs/guarantees.md):

- L2: we act as the owner only until lease duration after the last confirmed write was sent; then the lease is lost.
- L4: once lost, nothing is written; every write carries the counter of the row that we saw last.
- The lease is lost if another process took it under our name, or moved its counter in our name: every move of the
  counter is an answer to a write of ours, or may be the effect of one whose answer was lost.
- C3: SHARD_END is written last, and only when every child has a row.
- An operation whose answer was lost is sent again as it was, and nothing else before it: its own effect may have
  refused it (``landed``), and counts from when it was first sent.
- Letting go (hand-over, exit) commits first what is acknowledged, and then gives the lease away. It begins when
  the user is done, or when its time is over: from then on the grant is revoked, and nothing more is acknowledged.
"""

from collections.abc import Mapping
from enum import Enum
from typing import Final, TypeAlias, final

from shardline.core.clock import NEVER, Instant
from shardline.core.consumer.checkpoint import CheckpointTracker
from shardline.core.consumer.grant import Grant
from shardline.core.leases import (
    CommitCheckpoint,
    FinishHandOver,
    Refused,
    ReleaseLease,
    RenewLease,
    WriteChildren,
    landed,
)
from shardline.model.lease import Incarnation, Lease

HoldingOperation: TypeAlias = RenewLease | CommitCheckpoint | FinishHandOver | ReleaseLease | WriteChildren

_RENEWALS: Final = 3  # in a lease duration: two may be lost


@final
class Phase(Enum):
    """How far a held lease has come."""

    ACTIVE = "the shard is read"
    DRAINING = "another worker asked for the lease: the user finishes the records in hand"
    LEAVING = "nothing more is acknowledged: commit, then let go"
    RELEASED = "the lease was let go in good order"
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
"""Every change of phase that a held lease may make. docs/pictures draws the phases from this table."""
OVER: Final = frozenset(phase for phase, following in TRANSITIONS.items() if not following)


@final
class Holding:
    """One held lease."""

    def __init__(
        self,
        row: Lease,
        grant: Grant,
        tracker: CheckpointTracker,
        *,
        me: Incarnation,
        sent_at: Instant,
    ) -> None:
        lease_duration = me.lease_duration
        self.row: Lease = row
        self._me: str = me.owner
        self._incarnation: Incarnation = me
        self.grant: Grant = grant
        self.tracker: CheckpointTracker = tracker
        self._duration: float = lease_duration
        self._renew_at: Instant = sent_at + lease_duration / _RENEWALS
        self._retry_at: Instant = -NEVER
        self._sent: HoldingOperation | None = None
        self._sent_at: Instant = sent_at
        self._uncertain: HoldingOperation | None = None  # its answer was lost
        self._first_sent_at: Instant = sent_at
        self._children: frozenset[str] | None = None  # of a shard that was read to its end, once they have rows
        self.phase: Phase = Phase.ACTIVE
        self.drain_until: Instant = NEVER
        self._is_overdue: bool = False
        self.is_arranged: bool = False
        """Whether what is acknowledged will be committed without anyone saying more."""
        self.why: str = ""
        """Why it was lost."""
        self.is_contested: bool = False
        """Whether another process moved its counter in our name."""

    @property
    def shard_id(self) -> str:
        return self.row.shard_id

    @property
    def is_over(self) -> bool:
        return self.phase in OVER

    @property
    def next_owner(self) -> str | None:
        """Who asked for it."""
        return self.row.owner if self.row.checkpoint_owner == self._me else None

    # ---- commands

    def drain(self, until: Instant) -> None:
        """Someone asked for it: the user has until then."""
        if self.phase is Phase.ACTIVE:
            self._enter(Phase.DRAINING)
            self.drain_until = until

    def leave(self) -> None:
        """The user is done, or has to be: commit what is acknowledged, then let go."""
        if not self.is_over:
            if self.phase is not Phase.LEAVING:
                self._enter(Phase.LEAVING)
            self.drain_until = NEVER
            self.grant.revoke()  # soon another may hold it, before we hear that it was let go of
            self.tracker.seal()

    def allow_end(self, children: frozenset[str]) -> None:
        """All children have rows: SHARD_END may be written (C3)."""
        self._children = children

    def lose(self, why: str) -> None:
        """It is not ours any more (L4)."""
        if not self.is_over:
            self._end(Phase.LOST)
            self.why = why

    def take_overdue(self) -> bool:
        """Whether the user was not done in time, once."""
        overdue, self._is_overdue = self._is_overdue, False
        return overdue

    # ---- outputs, time

    def poll_operation(self, now: Instant) -> HoldingOperation | None:
        """What to write now. One at a time (L1)."""
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
        if self._children and self.tracker.is_at_end and self.row.child_ids != self._children:
            return WriteChildren(shard_id, self._children)
        checkpoint = self.tracker.poll_commit(now, may_end=self._may_end)
        if checkpoint is not None:
            return CommitCheckpoint(shard_id, me, counter, checkpoint)
        if self.phase is Phase.LEAVING and self._is_clean:
            if self.row.checkpoint_owner == me:
                return FinishHandOver(shard_id, me, counter)
            return ReleaseLease(shard_id, me, counter)
        return RenewLease(shard_id, me, counter) if now >= self._renew_at else None

    @property
    def _may_end(self) -> bool:
        return self._children is not None

    @property
    def _is_clean(self) -> bool:
        """Whether nothing is left to commit. An end that waits for the children's rows is written by the next owner."""
        return self.tracker.next_deadline(may_end=self._may_end) == NEVER

    def next_lapse(self) -> Instant:
        """When ``handle_time`` has something to do."""
        return NEVER if self.is_over else min(self.grant.held_until, self.drain_until)

    def next_work(self) -> Instant:
        """When ``poll_operation`` has something to give."""
        if self.is_over or self._sent is not None:
            return NEVER
        if self._uncertain is not None:
            return self._retry_at
        work_at = min(self._renew_at, self.tracker.next_deadline(may_end=self._may_end))
        if self.phase is Phase.LEAVING or (self._may_end and self.tracker.is_at_end):
            work_at = -NEVER
        return max(work_at, self._retry_at)

    # ---- inputs

    def handle_time(self, now: Instant) -> None:
        """What only the clock does: the lease lapses (L2), or the user had its time."""
        if self.is_over:
            return
        if now >= self.grant.held_until:
            self.lose("no renewal was confirmed within the lease duration")
        elif now >= self.drain_until:
            self._is_overdue = True
            self.leave()

    def handle_seen(self, row: Lease | None) -> None:
        """A scan found this row, while nothing was under way."""
        self._handle_current(row, self.row.counter if self._uncertain is None else None)

    def handle_applied(self, result: Lease | Refused | None) -> None:
        """The store's answer to what was sent. ``None``: the row is gone."""
        operation, self._sent = self._sent, None
        assert operation is not None, "L1: there was one"
        sent_at, repeated = self._sent_at, self._uncertain is not None
        self._uncertain = None
        if self.is_over:
            return
        if isinstance(result, Refused):
            row = result.current
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
        """No answer came, or none that helps."""
        operation, self._sent = self._sent, None
        assert operation is not None, "L1: there was one"
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
            return  # no renewal: it carries no counter
        self.grant.extend(sent_at + self._duration)
        self._renew_at = sent_at + self._duration / _RENEWALS
        if isinstance(operation, CommitCheckpoint):
            self.tracker.handle_committed()
            if self.tracker.is_finished:
                self._end(Phase.FINISHED)
        elif isinstance(operation, FinishHandOver | ReleaseLease):
            self._end(Phase.RELEASED)

    def _handle_refused(self, operation: HoldingOperation, row: Lease | None) -> None:
        if isinstance(operation, CommitCheckpoint):
            self.tracker.handle_commit_failed()
        self._handle_current(row, None if isinstance(operation, WriteChildren) else operation.counter)

    def _handle_current(self, row: Lease | None, counter: int | None) -> None:
        """The row as it stands: still ours, if it names us, and its counter is not beyond ``counter``.

        It may be one that we were asked for meanwhile, or an older one, of a store that was set back: then what is
        acknowledged is committed again.
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
