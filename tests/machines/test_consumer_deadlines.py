"""Compares the deadlines of the held leases with a naive model, a dict: each shard has the deadline that was set last."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from shardline.core.clock import NEVER
from shardline.core.consumer.held_leases import DeadlineHeap

shard_ids = st.sampled_from(["a", "b", "c"])


class Deadlines(RuleBasedStateMachine):
    @initialize()
    def begin(self):
        self.heap = DeadlineHeap()
        self.at = {}

    @rule(shard_id=shard_ids, at=st.integers(0, 9))
    def set(self, shard_id, at):
        self.heap.schedule(shard_id, float(at))
        self.at[shard_id] = float(at)

    @rule(shard_id=shard_ids)
    def cancel(self, shard_id):
        self.heap.schedule(shard_id, NEVER)
        self.at.pop(shard_id, None)

    @rule(now=st.integers(0, 9))
    def pop(self, now):
        due = {shard_id for shard_id, at in self.at.items() if at <= now}
        found = self.heap.pop_due(float(now))
        assert (found in due) if due else found is None
        self.at.pop(found, None)

    @invariant()
    def the_next_one_is_known(self):
        if hasattr(self, "heap"):
            assert self.heap.next_at() == min(self.at.values(), default=NEVER)


TestDeadlines = Deadlines.TestCase
TestDeadlines.settings = settings(max_examples=100, stateful_step_count=30, deadline=None)
