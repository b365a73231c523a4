"""A run with ``concurrency``, its pool of tasks and its lanes of keys, compared with a naive model.

Pages come for three shards, handlers succeed and fail, dead letters are written, and leases are gained, lost and handed
over. Shards are paused and end, runs end and others begin, with another order, and handlers in threads outlive their
leases and their runs. The model knows which records of each lease are done and which task has which records. From these
it computes what the hand-out may hand out, what it must hand out, and how far the watermark and the budget must be.
"""

from random import Random

import pytest
from tests.harness.hand_out import Desk

from shardline.core.consumer import handler_pool
from shardline.core.consumer.control_requests import Request
from shardline.core.consumer.failure_policy import FailurePolicy, WriteDeadLetter
from shardline.core.consumer.handler_task import Attempt, Handle, Outcome
from shardline.core.consumer.handout import CancelHandler

NAMES = ("a", "b", "c")
FAILED = Outcome("broken")
PAUSE = 0.5
POLICY = FailurePolicy(attempts=2, backoff=PAUSE, backoff_max=PAUSE, bisect=False, finally_="dead-letter")


class Lease:
    """What the model knows about a lease: its records, in order, and which of them are done."""

    def __init__(self, shard):
        self.shard = shard
        self.records, self.came_at, self.pages, self.done = [], [], [], set()
        self.is_stopping = self.is_paused = self.is_last = False

    @property
    def passed(self):
        """How many records, from the first on, are done without a gap."""
        return next((place for place in range(len(self.records)) if place not in self.done), len(self.records))

    def place_of(self, record):
        return next(place for place, one in enumerate(self.records) if one is record)


class Hand:
    """The records that a task has."""

    def __init__(self, lease, records):
        self.lease, self.records = lease, records
        self.failed_at = None  # since when they wait for the next attempt
        self.since = None  # since when the handler has them
        self.is_at_work = True


class ConcurrentRun:
    """A consumer, the shell of its run, and the model."""

    def __init__(self, seed):
        self.rng = Random(seed)
        self.room = self.rng.choice([3, 8, 100])
        self.desk = Desk(lease_duration=3_600.0, max_unacknowledged=self.room)
        self.hand_out = self.desk.hand_out
        self.keys = self.rng.choice(["ab", "abcdef", "a-b-", "-"])
        self.leases, self.hands, self.tasks, self.counters = {}, {}, {}, dict.fromkeys(NAMES, 0)
        self.threads = {}  # by task that has left: the records that its handler still has
        self.dead_letters = 0
        self.ends = []
        self.begin()

    # ---- the shell

    def begin(self):
        """Begin a run."""
        rng = self.rng
        self.concurrency, self.order = rng.choice([1, 2, 3, 5]), rng.choice(["key", "key", "none", "shard"])
        self.batch = rng.choice([None, None, 1, 3])
        self.max_wait = rng.choice([0.0, 0.0, 1.0]) if self.batch else 0.0
        self.is_threaded = rng.random() < 0.5
        self.run = self.desk.run(
            POLICY,
            batch=self.batch,
            max_wait=self.max_wait,
            concurrency=self.concurrency,
            order=self.order,
            in_processes=rng.random() < 0.3,
        )
        self.ask(self.run)

    def ask(self, taker):
        taker.asked += 1
        self.hand_out.ask(taker, taker.asked, self.desk.now)

    def pump(self):
        """Carry out everything that the hand-out wants, and check what it must have done."""
        while True:
            answered, actions = self.hand_out.take_answered(), self.hand_out.take_actions()
            for action in actions:
                if isinstance(action, CancelHandler) and action.taker in self.tasks:
                    self.leave(action.taker)
            for taker in answered:
                if taker is self.run:
                    for task in self.run.new_tasks:
                        self.tasks[task] = None  # in order, so that a seed always does the same
                        self.ask(task)
                    if not self.run.is_over:
                        self.ask(self.run)
                elif taker in self.tasks:
                    self.begin_step(taker)
            if not answered and not actions:
                break
        self.check()

    def leave(self, task):
        """End a task. Its handler goes on, if it is in a thread."""
        hand = self.hands.pop(task, None)
        self.tasks.pop(task, None)
        is_at_work = self.is_threaded and hand is not None and hand.is_at_work
        if is_at_work:
            self.threads[task] = hand
        self.hand_out.leave(task, self.desk.now, is_at_work=is_at_work)

    def begin_step(self, task):
        step, hand = task.step, self.hands.get(task)
        if step is None:
            assert hand is None or hand.lease.is_stopping, "its records are done"
            self.leave(task)
            return
        if isinstance(step, WriteDeadLetter):
            assert list(step.letter.records) == hand.records
            hand.is_at_work, hand.failed_at = True, None
        elif hand is not None and hand.failed_at is not None and not hand.lease.is_stopping:
            assert isinstance(step, Attempt)
            assert step.records == hand.records, "a failed record, or batch, is tried again as it was"
            hand.is_at_work, hand.failed_at = True, None
        else:
            self.hands.pop(task, None)
            cursor = task.cursor
            records = step.records if isinstance(step, Attempt) else [*cursor.records[cursor.place : cursor.end]]
            lease = self.leases[records[0].shard_id]
            assert task.shard is lease.shard
            self.check_new(lease, records)
            self.hands[task] = Hand(lease, records)
        self.hands[task].since = None
        if isinstance(step, Attempt):
            task.cursor.taken_at = self.hands[task].since = self.desk.now
        at_work = [hand for hand in (*self.hands.values(), *self.threads.values()) if hand.is_at_work]
        ours = [hand for task, hand in self.threads.items() if task.number == self.run.number]
        assert len(at_work) - len(self.threads) + len(ours) <= self.concurrency, "too many handlers at once"

    def end_step(self, task):
        """Let user code finish the step of a task."""
        step, hand, fails = task.step, self.hands[task], self.rng.random() < 0.3
        hand.is_at_work = False
        if isinstance(step, WriteDeadLetter):
            self.dead_letters += len(hand.records)
            self.finish(task, hand.records)
            task.outcome = Outcome()
        elif isinstance(step, Attempt):
            if fails:
                hand.failed_at = self.desk.now
            else:
                self.finish(task, hand.records)
            task.outcome = FAILED if fails else Outcome()
        else:
            assert isinstance(step, Handle)
            cursor, taken = task.cursor, []
            while cursor.place < cursor.end and not (fails and len(taken) == (self.rng.randint(1, 3))):
                taken.append(cursor.take(self.desk.now))
            fails = fails and bool(taken)
            done = taken[:-1] if fails else taken
            rest = hand.records[len(done) :]
            self.finish(task, done)
            if fails:
                # Only the failed record stays with the task, unless all records are handed out in order.
                self.hands[task] = Hand(hand.lease, rest[:1])
                self.hands[task].failed_at, self.hands[task].is_at_work = self.desk.now, False
            task.outcome = FAILED if fails else Outcome()
        self.ask(task)

    def finish(self, task, records):
        hand = self.hands.pop(task)
        for record in records:
            hand.lease.done.add(hand.lease.place_of(record))

    # ---- what happens

    def play(self):
        """Let one thing happen."""
        rng, at_work = self.rng, [task for task, hand in self.hands.items() if hand.is_at_work]
        kind = rng.random()
        name = rng.choice(NAMES)
        lease = self.leases.get(name)
        if kind < 0.45 and at_work:
            self.end_step(rng.choice(at_work))
        elif kind < 0.60 and lease is not None and not lease.is_stopping and not lease.is_last:
            self.bring(name, is_last=rng.random() < 0.05)
        elif kind < 0.75:
            self.wait(rng.choice([0.0, PAUSE / 2, PAUSE]))
        elif kind < 0.80 and self.threads:
            task = rng.choice([*self.threads])
            del self.threads[task]
            self.hand_out.handle_work_ended(task, self.desk.now)
        elif kind < 0.85 and lease is None:
            self.gain(name)
        elif kind < 0.88 and lease is not None and self.leases:
            self.lose(name)
        elif kind < 0.90 and lease is not None and not lease.is_stopping:
            lease.is_stopping = True
            self.hand_out.handle_hand_over_asked("s", name, self.desk.now)
        elif kind < 0.94 and lease is not None and not lease.is_stopping:
            lease.is_paused = not lease.is_paused
            change = self.hand_out.pause if lease.is_paused else self.hand_out.resume
            change(Request([("s", name)]), self.desk.now)
        elif kind > 0.98:
            self.restart()
        self.pump()

    def wait(self, seconds):
        self.desk.now += seconds
        self.hand_out.handle_time(self.desk.now)

    def gain(self, name):
        self.counters[name] += 1
        self.leases[name] = Lease(None)
        self.leases[name].shard = self.desk.gain(name, counter=self.counters[name])

    def lose(self, name):
        lease = self.leases.pop(name)
        lease.is_stopping = True
        self.desk.lose(name)

    def bring(self, name, *, is_last):
        lease, keys = self.leases[name], "".join(self.rng.choice(self.keys) for _ in range(6))
        lease.is_last = is_last
        count = self.rng.randint(0 if is_last else 1, 6)
        records = self.desk.bring(count, name, keys=keys, last=is_last)
        lease.pages.append(count)
        lease.records += records
        lease.came_at += [self.desk.now] * count

    def restart(self):
        """End the run, and begin another."""
        for task in [*self.tasks]:
            self.leave(task)
        self.hand_out.leave(self.run, self.desk.now)
        self.begin()

    # ---- the model

    @property
    def pausing(self):
        """How many tasks wait for the next attempt of their records."""
        return sum(
            hand.failed_at is not None and hand.failed_at + PAUSE > self.desk.now for hand in self.hands.values()
        )

    def owners(self, key):
        """Return the hands of runs with ``order="key"`` that have records of a key."""
        threads = [hand for task, hand in self.threads.items() if task.order == "key"]
        every = [*self.hands.values(), *threads]
        return [hand for hand in every if key in {record.key for record in hand.records}]

    def is_in_hand(self, record):
        return any(record is one for hand in self.hands.values() for one in hand.records)

    def check_new(self, lease, records):
        """Check that these records may be handed out."""
        assert not self.is_blocked(lease), "it stops, it is paused, or a handler outlived its lease or its run"
        assert self.pausing < handler_pool.PAUSING_MAX, "too many records wait for their next attempt"
        places = [lease.place_of(record) for record in records]
        assert places == sorted(places), "the records of a batch are in order"
        assert len(records) <= (self.batch or 500)
        assert not lease.done & set(places), "what is done comes again"
        assert not any(self.is_in_hand(record) for record in records), "another task has it"
        if self.order == "shard":
            assert places == [*range(lease.passed, lease.passed + len(places))], "the records follow one another"
            assert not [hand for hand in self.hands.values() if hand.lease is lease], "one task a shard"
        else:
            assert places[-1] < lease.passed + self.room, "too far ahead of the watermark"
        if self.order == "key":
            for place, record in zip(places, records, strict=True):
                if record.key is not None:
                    assert not self.owners(record.key), "C6: a key is in one record or batch at a time"
                    before = [one for one in range(place) if lease.records[one].key == record.key]
                    assert set(before) <= lease.done | set(places), "C6: the records of a key are handled in order"

    def is_blocked(self, lease):
        """Whether no records of a lease are handed out for now."""
        has_thread = any(hand.lease.shard.key == lease.shard.key for hand in self.threads.values())
        return lease.is_stopping or lease.is_paused or has_thread

    def is_claimed(self, key, lease):
        """Whether a handler has a key, or a record of another shard may have it, which waits for the end of a pause."""
        others = [other for other in self.leases.values() if other is not lease and self.is_blocked(other)]
        waiting = [record for other in others for record in other.records[other.passed :]]
        return bool(self.owners(key)) or any(record.key == key for record in waiting)

    def may_be_taken(self, lease):
        """Return a record that could be handed out now."""
        if self.is_blocked(lease):
            return None
        if self.order == "shard":
            is_in_hand = any(hand.lease is lease for hand in self.hands.values())
            waiting = lease.came_at[lease.passed :]
            has_waited = bool(waiting) and waiting[0] + self.max_wait <= self.desk.now
            return lease.records[lease.passed] if has_waited and not is_in_hand else None
        for place, record in enumerate(lease.records[: lease.passed + self.room]):
            has_waited = lease.came_at[place] + self.max_wait <= self.desk.now
            if place in lease.done or self.is_in_hand(record) or not has_waited:
                continue
            if self.order == "none" or record.key is None or not self.is_claimed(record.key, lease):
                return record
        return None

    def check(self):
        """Check the rest: all that could be handed out was, and all that is done was reported."""
        hand_out, now = self.hand_out, self.desk.now
        for task, hand in [*self.hands.items()]:
            if hand.failed_at is not None and hand.lease.is_stopping:
                del self.hands[task]  # it was given back, so that the lease need not wait for the next attempt
        in_flight = {
            record.key: hand.since
            for task, hand in self.hands.items()
            for record in hand.records
            if task.order == "key" and record.key is not None and hand.is_at_work and hand.since is not None
        }
        assert hand_out.keys_in_flight() == in_flight
        threads = sum(task.number == self.run.number for task in self.threads)
        at_work = threads + sum(hand.is_at_work for hand in self.hands.values())
        due = [hand for hand in self.hands.values() if hand.failed_at is not None and hand.failed_at + PAUSE <= now]
        if at_work < self.concurrency:
            assert not due, "a failed record is tried again when its pause is over, before new records come"
            for lease in self.leases.values() if self.pausing < handler_pool.PAUSING_MAX else ():
                assert self.may_be_taken(lease) is None, "a record waits, although it could be handled"
        assert all(waiting for _, waiting in hand_out.keys.hot_keys(9)), "a hot key has records that wait"
        for name, lease in self.leases.items():
            if not lease.is_stopping:
                self.check_lease(name, lease, is_free=at_work < self.concurrency)
        held = [lease for lease in self.leases.values() if not lease.is_stopping]
        if self.order != "shard" or not self.hands:  # a cursor keeps its pages until it is closed
            assert hand_out.budget.total_bytes == 100 * sum(map(self.bytes_of, held)), "a page is kept until it is done"

    def bytes_of(self, lease):
        """Return how many records the unfinished pages of a lease have."""
        left, passed = 0, lease.passed
        for count in lease.pages:
            passed -= count
            left += count if passed < 0 else 0
        return left

    def check_lease(self, name, lease, *, is_free):
        passed = lease.passed
        expected = int(lease.records[passed - 1].sequence_number) if passed else 0
        assert self.desk.watermark(name) == expected, "C2: all before the watermark is done, and nothing is left behind"
        is_done = lease.is_last and passed == len(lease.records)
        assert lease.shard.has_ended <= is_done, "C3: the shard ends when its last record is done"
        if is_done and (lease.pages[-1] or (is_free and not self.is_blocked(lease))):
            assert lease.shard.has_ended, "a last page without records is passed when a task is free"
        if lease.shard.has_ended and lease not in self.ends:
            self.ends.append(lease)
        ends = sum(one.shard.shard_id == name for one in self.ends)
        assert self.desk.groups["s"].ended.count((name, ())) == ends, "the end of a shard is reported once"

    def drain(self):
        """Let everything end well, and check that every record was handled."""
        for name in NAMES:
            if name in self.leases and self.leases[name].is_stopping:
                self.lose(name)
            elif name in self.leases and self.leases[name].is_paused:
                self.leases[name].is_paused = False
                self.hand_out.resume(Request([("s", name)]), self.desk.now)
            self.pump()
        for task in [*self.threads]:
            del self.threads[task]
            self.hand_out.handle_work_ended(task, self.desk.now)
            self.pump()
        rounds = 0
        while self.hands or any(lease.passed < len(lease.records) for lease in self.leases.values()):
            rounds += 1
            assert rounds < 1_000, "a record is never handled"
            for task in [task for task, hand in self.hands.items() if hand.is_at_work]:
                self.end_step(task)
                self.pump()
            self.wait(PAUSE)
            self.pump()
        assert not self.hand_out.keys.lanes, "no key is left behind"


@pytest.mark.parametrize("seed", range(60))
def test_handlers_that_run_side_by_side_get_what_they_may_have_and_nothing_waits_without_a_reason(seed, monkeypatch):
    if seed % 3 == 0:
        monkeypatch.setattr(handler_pool, "PAUSING_MAX", 2)
    run = ConcurrentRun(seed)
    for name in NAMES:
        run.gain(name)
        run.pump()
    for _ in range(150):
        run.play()
    run.drain()
    assert run.hand_out.counts.dead_letters == run.dead_letters
