"""Compares the read-ahead of a worker that has several shards with a naive model: pages come and go, shards are lost
and gained again. Nothing leaks, no shard waits for another, none takes more than its share, and a refused shard is
named later.
"""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from shardline.core.consumer.prefetch import PrefetchBudget

SHARDS = ["a", "b", "c"]
shards = st.sampled_from(SHARDS)


class Prefetching(RuleBasedStateMachine):
    @initialize(room=st.sampled_from([100, 1000]))
    def begin(self, room):
        self.room = room
        self.budget = PrefetchBudget(room)
        self.pages = {shard_id: [] for shard_id in SHARDS}  # the sizes of pages that were read and not handed out
        self.refused = set()

    def held(self, shard_id):
        return sum(self.pages[shard_id])

    def total(self):
        return sum(map(self.held, SHARDS))

    def may_read(self, shard_id):
        holding = [one for one in SHARDS if self.held(one)]
        mine = self.held(shard_id)
        return not mine or (self.total() < self.room and mine < self.room / len(holding))

    @rule(shard_id=shards, size=st.integers(1, 120))
    def read(self, shard_id, size):
        admitted = self.budget.admits(shard_id)
        assert admitted == self.may_read(shard_id), "a shard reads ahead within its budget"
        if admitted:
            self.refused.discard(shard_id)
            self.pages[shard_id].append(size)
            self.budget.hold(shard_id, size)
        else:
            self.refused.add(shard_id)

    @rule(shard_id=shards)
    def hand_out(self, shard_id):
        if self.pages[shard_id]:
            self.budget.release(shard_id, self.pages[shard_id].pop(0))

    @rule(shard_id=shards, late=st.integers(0, 120))
    def lose(self, shard_id, late):
        """Lose the lease. A page that the user still has is released later, which has no effect."""
        self.pages[shard_id] = []
        self.refused.discard(shard_id)
        self.budget.forget(shard_id)
        self.budget.release(shard_id, late)

    @rule()
    def wake(self):
        admitted = self.budget.take_admitted()
        assert set(admitted) == {shard_id for shard_id in self.refused if self.may_read(shard_id)}, (
            "a shard that was refused is named once it may read (take_admitted)"
        )
        assert len(admitted) == len(set(admitted))
        self.refused -= set(admitted)

    @invariant()
    def nothing_leaks(self):
        if not hasattr(self, "budget"):
            return
        assert self.budget.total_bytes == self.total()
        assert [self.budget.held_bytes(shard_id) for shard_id in SHARDS] == [self.held(one) for one in SHARDS]
        assert self.total() <= self.room + 120 * len(SHARDS), (
            "what is held is at most the budget, and one page and one opened slice of it a shard"
        )


TestPrefetching = Prefetching.TestCase
TestPrefetching.settings = settings(max_examples=150, stateful_step_count=50, deadline=None)
