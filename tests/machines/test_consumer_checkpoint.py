"""Compares the checkpoint tracker with a naive one, of lists and sets. Records are delivered, acknowledged in any
order, committed and refused: the checkpoint never goes back, never covers an unacknowledged record, and never forgets
an acknowledged one (C1 to C5).
"""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from shardline.core.clock import NEVER
from shardline.core.consumer.checkpoint import CheckpointTracker
from shardline.model.lease import Checkpoint
from shardline.model.position import TRIM_HORIZON, at_sequence_number
from shardline.model.record import Record
from shardline.model.sequence import SequenceNumber


class Tracking(RuleBasedStateMachine):
    @initialize(manual=st.booleans(), interval=st.sampled_from([0.0, 1.0]), first=st.sampled_from([None, 5]))
    def begin(self, manual, interval, first):
        self.now = 100.0
        self.manual = manual
        self.interval = interval
        start = TRIM_HORIZON if first is None else at_sequence_number(SequenceNumber(first))
        self.tracker = CheckpointTracker(Checkpoint(start), interval=interval, now=self.now, manual=manual)
        self.number = first or 0
        self.delivered = []
        self.acked = set()
        self.written = None if first is None else SequenceNumber(first)  # the checkpoint in the store
        self.in_flight = None
        self.sent_at = self.now
        self.ended = self.finished = False

    def watermark(self):
        """The last record up to which all records are acknowledged."""
        found = None
        for place in self.delivered:
            if place not in self.acked:
                break
            found = place
        return found

    # ---- rules

    @precondition(lambda self: not self.ended)
    @rule(sizes=st.lists(st.integers(1, 3), max_size=4), digits=st.integers(0, 3))
    def deliver(self, sizes, digits):
        """Deliver records, plain or from aggregates. Now and then their numbers get longer."""
        records = []
        for size in sizes:
            self.number += 10**digits
            records += [Record(b"", "k", sequence_number=str(self.number), sub_sequence=sub) for sub in range(size)]
        self.tracker.deliver(records)
        self.delivered += [record.order for record in records]

    @precondition(lambda self: self.delivered)
    @rule(pick=st.integers(0, 999), through=st.booleans())
    def ack(self, pick, through):
        place = self.delivered[pick % len(self.delivered)]
        record = Record(b"", "k", sequence_number=str(place.number), sub_sequence=place.sub_sequence)
        before = self.watermark()
        if through or not self.manual:
            expected = before is None or place > before
            self.acked.update(one for one in self.delivered if one <= place)
            assert self.tracker.ack_through(record) == expected
        else:
            expected = place not in self.acked
            self.acked.add(place)
            assert self.tracker.ack(record) == expected

    @rule(seconds=st.sampled_from([0.3, 1.0, 5.0]))
    def wait(self, seconds):
        self.now += seconds

    @rule()
    def flush(self):
        self.tracker.flush()
        if self.in_flight is None and not self.finished and (self.watermark() or self.written) != self.written:
            assert self.tracker.next_deadline(may_end=False) <= self.now

    @precondition(lambda self: not self.ended)
    @rule()
    def end(self):
        self.tracker.end()
        self.ended = True

    @rule(may_end=st.booleans())
    def poll(self, may_end):
        due_at = self.tracker.next_deadline(may_end=may_end)
        commit = self.tracker.poll_commit(self.now, may_end=may_end)
        assert (commit is not None) == (due_at <= self.now)
        if commit is None:
            return
        assert self.in_flight is None, "C4"
        assert not self.finished, "C3"
        if commit.is_finished:
            assert may_end
            assert self.ended
            assert self.acked >= set(self.delivered), "C3"
        else:
            at = commit.sequence_number
            assert at == self.watermark(), "C2, C5"
            assert self.written is None or at > self.written, "C1"
        self.in_flight = commit

    @precondition(lambda self: self.in_flight is not None)
    @rule(works=st.booleans())
    def answer(self, works):
        if not works:
            self.tracker.handle_commit_failed()
        else:
            self.tracker.handle_committed()
            self.finished = self.in_flight.is_finished
            self.written = self.in_flight.sequence_number or self.written
        self.in_flight = None

    # ---- invariants

    @invariant()
    def it_knows_where_it_is(self):
        if not hasattr(self, "tracker"):
            return
        assert self.tracker.is_settled == (self.acked >= set(self.delivered))
        assert self.tracker.is_finished == self.finished
        if self.watermark() is not None:
            assert self.tracker.watermark == self.watermark()

    def teardown(self):
        """Check that every acknowledged record is written."""
        if not hasattr(self, "tracker"):
            return
        if self.in_flight is not None:
            self.answer(works=True)
        self.tracker.seal()
        while self.tracker.next_deadline() < NEVER:
            self.poll(may_end=True)
            self.answer(works=True)
        assert self.finished == (self.ended and self.acked >= set(self.delivered))
        if not self.finished and self.watermark() is not None:
            assert self.written == self.watermark()


TestTracking = Tracking.TestCase
TestTracking.settings = settings(max_examples=200, stateful_step_count=40, deadline=None)
