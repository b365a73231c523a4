"""Compares a batch, whose handler fails at random, with a naive model: records are handled in order, each ends by
success or by a written dead letter, or the consumer stops at it, and each failure is reported once.
"""

from math import ceil, log2
from random import Random

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from shardline.core.clock import NEVER
from shardline.core.consumer.consumer_events import (
    DeadLetterFailed,
    HandlerRetried,
    HandlingStopped,
    RecordsDeadLettered,
)
from shardline.core.consumer.failure_policy import BatchWork, FailurePolicy
from shardline.core.consumer.handler_errors import ErrorSummary
from shardline.model.record import Record

WHY = ErrorSummary("ValueError", "why", "handle (worker.py:1)")
FULL = ErrorSummary("OSError", "the disk is full", "write (worker.py:2)")

policies = st.builds(
    FailurePolicy,
    attempts=st.integers(1, 3),
    backoff=st.sampled_from([0.1, 1.0]),
    backoff_max=st.sampled_from([1.0, 30.0]),
    bisect=st.booleans(),
    finally_=st.sampled_from(["stop", "dead-letter"]),
)


class Handling(RuleBasedStateMachine):
    @initialize(policy=policies, size=st.integers(1, 9), poison=st.sets(st.integers(0, 8), max_size=3))
    def begin(self, policy, size, poison):
        self.policy = policy
        self.now = 50.0
        self.records = [Record(b"", "k", sequence_number=str(number)) for number in range(1, size + 1)]
        self.poison = {self.records[place].sequence_number for place in poison if place < size}
        self.work = BatchWork(self.records, policy, Random(0), self.now)
        self.done = []
        self.handled = set()  # handled by a handler that succeeded
        self.buried = set()
        self.attempt = self.letter = None
        self.calls = {}  # by part: when it was tried, and when it failed
        self.failed_at = -NEVER
        self.failures = []  # failures that no event has reported: the records, and the number of attempts
        self.failed_writes = 0  # the attempts of the current dead letter

    # ---- rules

    @rule(share=st.sampled_from([0.5, 1.0]))
    def wait(self, share):
        deadline = self.work.next_deadline()
        if deadline < NEVER:
            self.now = deadline if share == 1.0 else max(self.now, self.now + (deadline - self.now) * share)

    @rule(seconds=st.sampled_from([0.05, 40.0]))
    def let_time_pass(self, seconds):
        self.now += seconds

    @precondition(lambda self: self.attempt is None and self.letter is None)
    @rule()
    def poll(self):
        deadline = self.work.next_deadline()
        self.attempt = self.work.poll_attempt(self.now)
        self.letter = self.work.poll_dead_letter(self.now)
        assert self.attempt is None or self.letter is None
        assert (self.attempt is None and self.letter is None) == (deadline > self.now), "a deadline is worth a poll"
        if self.attempt is not None:
            self.check_attempt()
        if self.letter is not None:
            self.check_letter()

    def check_attempt(self):
        numbers = tuple(record.sequence_number for record in self.attempt)
        following = [record.sequence_number for record in self.records[len(self.done) :]]
        assert list(numbers) == following[: len(numbers)], "in order, and nothing is left out"
        calls = self.calls.setdefault(numbers, [])
        whole = len(numbers) in (1, len(self.records))
        assert len(calls) < (self.policy.attempts if whole else 1), "no more attempts than allowed"
        if calls:
            least = min(self.policy.backoff * 2 ** (len(calls) - 1), self.policy.backoff_max) / 2
            assert self.now - self.failed_at >= least * 0.999, "with waits between them"
        calls.append(self.now)

    def check_letter(self):
        numbers = tuple(record.sequence_number for record in self.letter.records)
        following = [record.sequence_number for record in self.records[len(self.done) :]]
        assert list(numbers) == following[: len(numbers)], "records are handled in order, and one part at a time"
        assert self.policy.finally_ == "dead-letter"
        assert len(numbers) == 1 or not self.policy.bisect, "only the record that fails is given up"
        assert len(self.calls[numbers]) == self.letter.attempts == self.policy.attempts, "all its attempts"
        assert self.letter.error == "why", "also after it could not be written the first time"

    @precondition(lambda self: self.attempt is not None)
    @rule(unlucky=st.sampled_from([False, False, True]))
    def handle(self, unlucky):
        """Run the handler, which fails on a poisonous record, and now and then without a reason."""
        order = [record.sequence_number for record in self.attempt]
        numbers = set(order)
        self.attempt = None
        if unlucky or numbers & self.poison:
            self.failed_at = self.now
            self.failures.append((order[0], len(order), len(self.calls[tuple(order)])))
            self.work.handle_error("why", self.now, WHY)
            self.check_told_of_handler()
        else:
            self.handled |= numbers
            self.work.handle_success(self.now)
        self.collect()

    @precondition(lambda self: self.letter is not None)
    @rule(works=st.booleans())
    def bury(self, works):
        numbers = {record.sequence_number for record in self.letter.records}
        self.letter = None
        if works:
            self.buried |= numbers
            self.work.handle_dead_letter_written(self.now)
            [event] = self.work.take_events()
            assert event == RecordsDeadLettered("", self.failures[0][0], 0, *self.failures.pop()[1:], *WHY), (
                "each failure makes exactly one event (take_events)"
            )
            self.failed_writes = 0
        else:
            self.failed_writes += 1
            self.work.handle_dead_letter_failed("the disk is full", self.now, FULL)
            first, size, _ = self.failures[0]
            told = DeadLetterFailed("", first, 0, size, self.failed_writes, *FULL, self.work.next_deadline())
            assert self.work.take_events() == [told], "each failure makes exactly one event (take_events)"
            assert (told.retry_at == NEVER) == self.work.is_stopped
        self.collect()

    def check_told_of_handler(self):
        """Check that a failure is reported at once, unless the event of the dead letter reports it."""
        events = self.work.take_events()
        if self.work.is_stopped:
            assert events == [HandlingStopped("", self.failures[0][0], 0, *self.failures.pop()[1:], *WHY)]
        elif events:
            retry_at = self.work.next_deadline()
            assert events == [HandlerRetried("", self.failures[0][0], 0, *self.failures.pop()[1:], *WHY, retry_at)]
        else:
            assert self.policy.finally_ == "dead-letter"
            assert self.failures[0][2] == self.policy.attempts

    def collect(self):
        self.done += [record.sequence_number for record in self.work.take_done()]
        assert self.done == [record.sequence_number for record in self.records[: len(self.done)]], (
            "records are handled in order, and one part at a time"
        )
        assert set(self.done) == self.handled | self.buried, "done is handled, or buried"

    # ---- invariants

    @invariant()
    def every_failure_is_told(self):
        if hasattr(self, "work"):
            assert self.work.take_events() == [], "each failure is reported when it happens"
            assert not self.failures or not self.work.is_done

    @invariant()
    def it_ends_in_one_of_two_ways(self):
        if not hasattr(self, "work"):
            return
        assert self.work.is_done == (len(self.done) == len(self.records)), (
            "a record is done once its handler succeeded, or its dead letter was written"
        )
        if self.work.is_stopped:
            assert len(self.done) < len(self.records)
            assert self.work.part[0].sequence_number == str(len(self.done) + 1), "it stops at what failed"
            assert self.work.next_deadline() == NEVER

    def teardown(self):
        """From now on only the poisonous records fail."""
        if not hasattr(self, "work"):
            return
        for _ in range(400):
            if self.attempt is not None:
                self.handle(unlucky=False)
            elif self.letter is not None:
                self.bury(works=True)
            elif self.work.next_deadline() < NEVER:
                self.wait(1.0)
                self.poll()
            else:
                break
        assert self.work.is_done or self.work.is_stopped
        size = len(self.records)
        halves = 2 * (ceil(log2(size)) + 1) * (len(self.records))
        assert len(self.calls) <= 1 + halves, "a batch is not taken apart more often than need be"


TestHandling = Handling.TestCase
TestHandling.settings = settings(max_examples=200, stateful_step_count=40, deadline=None)
