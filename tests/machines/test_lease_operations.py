"""Tests writes to one lease by workers that act on rows they saw long ago. In any order: of those that saw the same
row, one succeeds; only the holder renews, commits and releases; a finished lease stays finished; and a refusal shows
the operation's own effect if and only if the operation was applied, and no other since.
"""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from shardline.core.leases import (
    AskHandOver,
    CancelHandOver,
    CommitCheckpoint,
    CreateLease,
    DeleteLease,
    FinishHandOver,
    Refused,
    ReleaseLease,
    RenewLease,
    TakeLease,
    apply,
    landed,
)
from shardline.model.lease import Checkpoint, Incarnation, Lease
from shardline.model.position import SHARD_END, TRIM_HORIZON, at_sequence_number
from shardline.model.sequence import SequenceNumber

SHARD = "shardId-000000000000"
WORKERS = ["a", "b", "c"]
KINDS = ["renew", "take", "ask", "cancel", "finish", "release", "commit", "end", "delete"]
FENCED = (RenewLease, CommitCheckpoint, ReleaseLease, FinishHandOver)

workers = st.sampled_from(WORKERS)
places = st.integers(0, 999)


class Leasing(RuleBasedStateMachine):
    @initialize()
    def begin(self):
        self.row = None
        self.seen = []  # every row that ever existed
        self.applied = []  # the accepted writes since the row was created: operation, row before, row after
        self.numbers = 0
        self.send(CreateLease(Lease(SHARD, checkpoint=Checkpoint(TRIM_HORIZON))))

    # ---- rules

    @rule(by=workers, kind=st.sampled_from(KINDS), place=places)
    def act(self, by, kind, place):
        """Let a worker write, based on a row that it saw some time ago."""
        self.send(self.operation(kind, by, self.seen[place % len(self.seen)]))

    @rule(by=workers, kind=st.sampled_from(KINDS), as_holder=st.booleans())
    def act_at_once(self, by, kind, as_holder):
        """Let a worker write, based on the current row. It may be the holder."""
        if self.row is not None:
            self.send(self.operation(kind, self.row.holder if as_holder and self.row.holder else by, self.row))

    @rule(by=workers, kinds=st.lists(st.sampled_from(KINDS), min_size=2, max_size=4), as_holder=st.booleans())
    def act_in_a_row(self, by, kinds, as_holder):
        """Let a worker take the lease and continue at once. At the end, all of its operations are sent again."""
        for kind in ("take", *kinds):
            self.act_at_once(by, kind, as_holder=as_holder)
            by = WORKERS[(WORKERS.index(by) + 1) % len(WORKERS)]
        for operation, *_ in list(self.applied):
            self.send(operation)

    @rule(place=places)
    def send_again(self, place):
        """Send an operation again, because its answer was lost. It may be late."""
        if self.applied:
            self.send(self.applied[place % len(self.applied)][0])

    @rule()
    def create(self):
        self.send(CreateLease(Lease(SHARD, checkpoint=Checkpoint(TRIM_HORIZON))))

    def operation(self, kind, by, row):
        self.numbers += 1
        other = next(name for name in WORKERS if name != by)
        return {
            "renew": RenewLease(SHARD, by, row.counter),
            "take": TakeLease(
                SHARD, by, row.fence, Incarnation(by, str(self.numbers % 2), 10.0), self.numbers * 7 % 100
            ),
            "ask": AskHandOver(SHARD, by, row.owner if row.owner not in (None, by) else other),
            "cancel": CancelHandOver(SHARD, by, row.checkpoint_owner or other),
            "finish": FinishHandOver(SHARD, by, row.counter),
            "release": ReleaseLease(SHARD, by, row.counter),
            "commit": CommitCheckpoint(
                SHARD, by, row.counter, Checkpoint(at_sequence_number(SequenceNumber(self.numbers)))
            ),
            "end": CommitCheckpoint(SHARD, by, row.counter, Checkpoint(SHARD_END)),
            "delete": DeleteLease(SHARD, row.counter),
        }[kind]

    # ---- the store, and the invariants

    def send(self, operation):
        before = self.row
        result = apply(before, operation)
        if isinstance(result, Refused):
            assert result.current == before, "a refusal carries the row"
            self.check_landed(operation)
            return
        self.row = result
        if result is None:
            assert before is None or before.counter == operation.counter, "what is deleted is what was seen"
            self.applied.clear()
            return
        self.seen.append(result)
        if isinstance(operation, CreateLease):
            assert before is None
            self.applied.clear()
        else:
            self.check_written(operation, before, result)
        self.applied.append((operation, before, result))

    def check_written(self, operation, before, after):
        if isinstance(operation, AskHandOver):
            assert (after.counter, after.holder) == (before.counter, before.holder), "only a take changes the fence"
            assert before.checkpoint_owner is None, "one hand-over at a time"
            assert after.owner == operation.by
        elif isinstance(operation, CancelHandOver):
            assert (after.counter, after.holder) == (before.counter, before.holder), "only a take changes the fence"
            assert before.owner == operation.by, "only who asked calls it off"
            assert after.checkpoint_owner is None, "anyone may ask again"
        elif isinstance(operation, TakeLease):
            assert after.counter == max(before.counter + 1, operation.floor), (
                "what a take makes of the counter is the fencing token"
            )
            assert after.incarnation == operation.incarnation, (
                "a take says which process took the lease, and how long that may be silent"
            )
        else:
            assert after.counter == before.counter + 1, "the counter counts the writes"
        if isinstance(operation, (ReleaseLease, FinishHandOver)):
            assert after.incarnation is None, (
                "a take says which process took the lease, and how long that may be silent"
            )
        elif not isinstance(operation, TakeLease):
            assert after.incarnation == before.incarnation, "only a take says who holds it"
        if isinstance(operation, FENCED):
            assert before.counter == operation.counter, "it saw this very row"
            assert before.holder == operation.by, "only its holder writes it"
        if isinstance(operation, TakeLease):
            assert before.fence == operation.seen, "it saw this very row"
            assert after.holder == after.owner == operation.by
        if isinstance(operation, FinishHandOver):
            assert before.checkpoint_owner == operation.by
            assert after.holder == before.owner, "who asked has it"
        if isinstance(operation, ReleaseLease):
            assert before.checkpoint_owner is None, "who was asked finishes the hand-over"
            assert (after.owner, after.checkpoint_owner) == (None, None), "anyone may take it"
        if isinstance(operation, (TakeLease, CommitCheckpoint, AskHandOver)):
            assert not before.checkpoint.is_finished, "a finished lease is not committed, taken or asked for (C3)"
        if not isinstance(operation, CommitCheckpoint):
            assert after.checkpoint == before.checkpoint, "only a commit moves the checkpoint"

    def check_landed(self, operation):
        """Check ``landed`` for the workers that may ask: those that sent the operation before."""
        sent = [one for one in self.applied if one[0] == operation]
        if not sent or self.row is None:
            return
        last = self.applied[-1]
        if last[0] == operation:
            assert landed(operation, self.row), "its own effect refused it"
        elif (
            not isinstance(operation, (CreateLease, AskHandOver, CancelHandOver))
            and sent[-1][2].counter != self.row.counter
        ):
            assert not landed(operation, self.row), "someone else wrote since"


TestLeasing = Leasing.TestCase
TestLeasing.settings = settings(max_examples=300, stateful_step_count=30, deadline=None)
