"""Compares the watch with a naive model, while handlers start, hang, continue and lose their shards: a stuck spell is
reported once when it is noticed and once when it is over, never for code that waits, and a sleeping host is woken for
it.
"""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from shardline.core.clock import NEVER
from shardline.core.consumer.consumer_events import HandlerRecovered, HandlerStuck
from shardline.core.consumer.stuck_handlers import HandlerWatch, Work

SHARDS = ["a", "b", "c"]
shards = st.sampled_from(SHARDS)


class Handlers(RuleBasedStateMachine):
    @initialize(stuck_after=st.sampled_from([None, 5.0, 60.0]))
    def begin(self, stuck_after):
        self.stuck_after = NEVER if stuck_after is None else stuck_after
        self.watch = HandlerWatch(stuck_after)
        self.now = 100.0
        self.number = 0
        self.work = {}  # by shard: the work, and since when it has really lasted
        self.told = {}  # by shard: since when it is stuck, according to the events
        self.look()

    # ---- rules

    @rule(shard=shards, records=st.integers(1, 9), is_manual=st.booleans())
    def give(self, shard, records, is_manual):
        """Hand other records to the user's code."""
        self.number += 1
        self.work[shard] = (Work(str(self.number), 0, records, None if is_manual else self.now), self.now)
        self.look()

    @rule(shard=shards)
    def take_more(self, shard):
        """Add records to those that are not acknowledged: the oldest one stays the same."""
        work, since = self.work.get(shard, (None, 0.0))
        if work is not None and work.since is None:
            self.work[shard] = (work._replace(records=work.records + 1), since)
            self.look()

    @rule(shard=shards)
    def finish(self, shard):
        """End the work: it returns, fails and waits for its retry, or the shard is lost."""
        self.work.pop(shard, None)
        self.look()

    @rule(seconds=st.sampled_from([0.5, 4.0, 59.0]))
    def let_time_pass(self, seconds):
        self.now += seconds
        self.look()

    @rule()
    def sleep_until_the_deadline(self):
        deadline = self.watch.next_deadline()
        if deadline < NEVER:
            assert deadline > self.now, "what is due was told"
            self.now = deadline
            before = len(self.told)
            self.look()
            assert len(self.told) > before, "a deadline is worth a look"

    # ---- the naive model

    def look(self):
        self.watch.handle_work({("s", shard): work for shard, (work, _) in self.work.items()}, self.now)
        for stream, event in self.watch.take_events():
            assert stream == "s"
            if isinstance(event, HandlerRecovered):
                since = self.told.pop(event.shard_id)
                assert event.seconds == self.now - since
                assert event.shard_id not in self.work or self.work[event.shard_id][1] != since, "it is over"
            else:
                assert event.shard_id not in self.told, "once a spell"
                work, since = self.work[event.shard_id]
                assert event == HandlerStuck(event.shard_id, work.sequence_number, 0, work.records, self.now - since)
                assert self.now - since >= self.stuck_after
                self.told[event.shard_id] = since

    @invariant()
    def it_is_told_what_is_so(self):
        if not hasattr(self, "watch"):
            return
        stuck = {shard: since for shard, (_, since) in self.work.items() if self.now - since >= self.stuck_after}
        assert self.told == stuck
        assert self.watch.is_stuck == bool(stuck)
        for shard in SHARDS:
            assert self.watch.since(("s", shard)) == (self.work[shard][1] if shard in self.work else None)
        due = [since + self.stuck_after for shard, (_, since) in self.work.items() if shard not in stuck]
        assert self.watch.next_deadline() == min(due, default=NEVER)


TestHandlers = Handlers.TestCase
TestHandlers.settings = settings(max_examples=150, stateful_step_count=30, deadline=None)
