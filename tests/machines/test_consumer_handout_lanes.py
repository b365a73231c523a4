"""Lanes of keys and the pool of handlers, each on its own, compared with naive models.

Handlers take records of three shards, which have keys in common, finish them or put some of them back, and lanes are
closed and opened again. The model has a list of the records of each shard, and the batches in flight. It looks at all
records each time, so it needs none of the queues that it checks.
"""

from random import Random

import pytest

from shardline.core.clock import NEVER
from shardline.core.consumer import handler_pool
from shardline.core.consumer.handler_pool import HandlerPool
from shardline.core.consumer.key_lanes import KeyLanes, ShardLanes
from shardline.core.consumer.taker import Taker
from shardline.model.record import Record

NAMES = ("a", "b", "c")


class Shard:
    """The records of one shard, and which of them are done or wait at the front because they were put back."""

    def __init__(self, name):
        self.key = ("s", name)
        self.records, self.came_at, self.done = [], [], set()
        self.lanes, self.opened_at = None, 0

    @property
    def passed(self):
        return next((place for place in range(len(self.records)) if place not in self.done), len(self.records))


class Lanes:
    """The lanes of three shards, and the model."""

    def __init__(self, seed):
        self.rng = Random(seed)
        self.by_key = seed % 4 != 0
        self.alphabet = self.rng.choice(["a", "ab", "abcdef", "ab-"])
        self.room = self.rng.choice([2, 6, 1_000])
        self.keys = KeyLanes()
        self.shards = [Shard(name) for name in NAMES[: self.rng.choice([1, 2, 3])]]
        self.flights = []  # (shard, lanes, taken)
        self.now = 0.0
        for shard in self.shards:
            self.open(shard)

    def open(self, shard):
        first = shard.passed
        shard.opened_at = len(shard.records)
        shard.lanes = ShardLanes(self.keys, shard.key, by_key=self.by_key, first=first, done=shard.done)
        shard.lanes.add(shard.records[first:], self.now)
        shard.came_at[first:] = [self.now] * (len(shard.records) - first)

    # ---- what happens

    def play(self):
        self.now += 1.0
        shard, kind = self.rng.choice(self.shards), self.rng.random()
        if kind < 0.25:
            self.add(shard)
        elif kind < 0.65:
            self.take(shard, self.rng.randint(1, 6))
        elif kind < 0.97 and self.flights:
            self.end(self.flights.pop(self.rng.randrange(len(self.flights))))
        elif kind > 0.985:
            self.close(shard)
        self.check()

    def add(self, shard):
        count = self.rng.randint(0, 6)
        for _ in range(count):
            key = self.rng.choice(self.alphabet)
            shard.records.append(Record(b"x", None if key == "-" else key, sequence_number=str(len(shard.records))))
        shard.came_at += [self.now] * count
        shard.lanes.add(shard.records[len(shard.records) - count :], self.now)

    def take(self, shard, limit):
        end = shard.passed + self.room
        may_find = shard.lanes.has_waiting(end)
        taken = shard.lanes.take(limit, end)
        assert may_find or not taken, "it said that nothing waits"
        places = [place for place, _ in taken]
        assert places == sorted(set(places)), "the records are in the order of the shard"
        assert len(taken) <= limit
        assert all(place < end for place in places), "too far ahead of the watermark"
        for place, record in taken:
            assert shard.records[place] is record
            assert place not in shard.done, "what is done comes again"
            assert not self.is_in_flight(shard, place), "another handler has it"
            if self.key_of(record) is not None:
                assert not self.owners(record.key), "C6: a key is in one record or batch at a time"
                before = {one for one in range(place) if shard.records[one].key == record.key}
                assert before <= shard.done | set(places), "C6: the records of a key are handled in order"
        if taken:
            self.flights.append((shard, shard.lanes, taken))
        if len(taken) < limit:
            assert not self.left(shard, end, {record.key for _, record in taken}), "it could be taken with the others"
            assert not shard.lanes.has_waiting(end), "there is nothing left to look at"
        return taken

    def end(self, flight):
        """Let a handler finish some of its records. The others are put back."""
        shard, lanes, taken = flight
        done = self.rng.choice([len(taken), len(taken), self.rng.randint(0, len(taken))])
        if lanes.is_closed:
            done = self.rng.choice([0, len(taken)])
            shard.done.update(place for place, _ in taken[:done] if lanes is shard.lanes)
            lanes.release([record for _, record in taken])
            return
        shard.done.update(place for place, _ in taken[:done])
        back = taken[done:]
        if back:
            lanes.put_back(back)
            assert lanes.oldest_at == -NEVER, "records that were put back have waited long enough"
        kept = {self.key_of(record) for _, record in back}
        free = [record for _, record in taken[:done] if self.key_of(record) not in kept - {None}]
        if free:
            lanes.release(free)
        if back and not self.keys.take_freed() and self.rng.random() < 0.5:
            first = shard.lanes.take(1, shard.passed + self.room)
            assert first == back[:1], "records that were put back come first, in order"
            lanes.put_back(first)

    def close(self, shard):
        """Close lanes. The records in flight are not done: their lease, or their run, is over."""
        lanes = shard.lanes
        lanes.close()
        assert (lanes.waiting, lanes.has_waiting(1_000_000), lanes.oldest_at) == (0, False, -NEVER)
        assert lanes.take(9, 1_000_000) == []
        for flight in [flight for flight in self.flights if flight[0] is shard]:
            flight[1].release([record for _, record in flight[2]])
            self.flights.remove(flight)
        self.open(shard)

    # ---- the model

    def key_of(self, record):
        return record.key if self.by_key else None

    def is_in_flight(self, shard, place):
        return any(other is shard and place in dict(taken) for other, _, taken in self.flights)

    def owners(self, key):
        return [flight for flight in self.flights if key in {self.key_of(record) for _, record in flight[2]}]

    def waiting(self, shard):
        """Return the places of the records that no handler has."""
        places = range(shard.passed, len(shard.records))
        return [place for place in places if place not in shard.done and not self.is_in_flight(shard, place)]

    def left(self, shard, end, mine):
        """Return records that wait, although their keys are free, or belong to the batch that was just taken."""
        others = [other for other in self.shards if other is not shard]
        contested = {self.key_of(other.records[place]) for other in others for place in self.waiting(other)}
        found = []
        for place in self.waiting(shard):
            key = self.key_of(shard.records[place])
            is_mine = key in mine or not self.owners(key)
            if place < end and (key is None or (is_mine and key not in contested)):
                found.append(place)
        return found

    def check(self):
        for shard in self.shards:
            lanes, waiting = shard.lanes, self.waiting(shard)
            blocked = [place for place in waiting if place < lanes.next_place and self.key_of(shard.records[place])]
            # Records that are done already are counted until they are looked at.
            done = [place for place in shard.done if place >= lanes.next_place]
            assert len(waiting) - len(blocked) <= lanes.waiting <= len(waiting) + len(done)
            if not lanes.ready:
                unseen = shard.came_at[lanes.next_place :]
                assert lanes.oldest_at == (unseen[0] if unseen else -NEVER)
        hot = self.keys.hot_keys(2)
        counts = {key: len(lane or ()) for key, lane in self.keys.lanes.items()}
        assert [one.waiting for one in hot] == sorted(filter(None, counts.values()), reverse=True)[:2]
        assert all(counts[one.key] == one.waiting for one in hot)
        seen = sum(place < shard.lanes.next_place for shard in self.shards for place in self.waiting(shard))
        assert sum(one.waiting for one in self.keys.hot_keys(99)) <= seen + 99 * len(self.shards)

    def drain(self):
        """Handle all records."""
        for _ in range(5_000):
            for flight in self.flights:
                flight[0].done.update(place for place, _ in flight[2])
                flight[1].release([record for _, record in flight[2]])
            self.flights.clear()
            if not sum(len(self.take(shard, 5)) for shard in self.shards):
                break
        for shard in self.shards:
            assert shard.passed == len(shard.records), "a record is never handled"
            assert shard.lanes.waiting == 0
        assert not self.keys.lanes, "no key is left behind"


@pytest.mark.parametrize("seed", range(48))
def test_the_lanes_of_keys_hand_out_what_the_naive_lists_allow(seed):
    lanes = Lanes(seed)
    for _ in range(250):
        lanes.play()
    lanes.drain()


def test_keys_are_released_in_the_order_of_their_records():
    """The order decides which shard is next, so it must not depend on the hashes of strings."""
    keys, letters = KeyLanes(), "hgfedcba"
    first = ShardLanes(keys, ("s", "first"), by_key=True, first=0)
    first.add([Record(b"x", key) for key in letters], 0.0)
    taken = first.take(len(letters), 99)
    for key in letters:
        other = ShardLanes(keys, ("s", key), by_key=True, first=0)
        other.add([Record(b"x", key)], 0.0)
        assert other.take(1, 99) == []
    first.release([record for _, record in taken])
    assert keys.take_freed() == [("s", key) for key in letters]


# ---- the pool


class Task(Taker):
    def serve(self, now):
        raise NotImplementedError


class Pool:
    """A pool, and in which state each of its tasks is."""

    def __init__(self, seed):
        self.rng = Random(seed)
        self.concurrency = self.rng.choice([1, 2, 4])
        self.pool = HandlerPool(self.concurrency)
        self.states = {}  # "new", "at work", "idle", "pausing" or "due", in the order in which the tasks came into it

    def count(self, *states):
        return sum(state in states for state in self.states.values())

    def tasks(self, state):
        return [task for task, one in self.states.items() if one == state]

    def move(self, task, state):
        task.is_over = state is None
        self.pool.rest(task)
        self.states.pop(task, None)
        if state is not None:
            self.states[task] = state
        commands = {
            "at work": self.pool.start,
            "idle": self.pool.wait,
            "pausing": self.pool.pause,
            "due": self.pool.wait_to_retry,
        }
        if state in commands:
            commands[state](task)

    def play(self):
        if not self.states or self.rng.random() < 0.3:
            task = Task()
            self.pool.add(task)
            self.states[task] = "new"
        else:
            task = self.rng.choice([*self.states])
            self.move(task, self.rng.choice(["at work", "idle", "pausing", "due", None]))
        self.check()

    def check(self):
        pool, limit, at_work, due = self.pool, self.concurrency, self.count("at work"), self.count("due")
        assert pool.at_work == self.tasks("at work")
        assert pool.may_retry == (at_work < limit)
        assert pool.may_take == (at_work + due < limit and self.count("pausing") < handler_pool.PAUSING_MAX)
        assert pool.is_surplus == (self.count("new", "at work", "idle") > limit)
        for has_records in (False, True):
            if due:
                expected = self.tasks("due")[0] if at_work < limit else None
            else:
                idle = self.tasks("idle")
                expected = idle[0] if idle and has_records and pool.may_take else None
            assert pool.next_task(has_records=has_records) is expected
        for waiting in range(4):
            expected = 0
            if pool.may_take and not self.count("idle"):
                free = self.count("new")
                while at_work + due + free < limit and free < waiting:
                    expected, free = expected + 1, free + 1
            assert pool.missing(waiting) == expected


@pytest.mark.parametrize("seed", range(8))
def test_the_pool_of_handlers_wakes_and_starts_the_tasks_that_the_naive_states_allow(seed, monkeypatch):
    monkeypatch.setattr(handler_pool, "PAUSING_MAX", 2)
    pool = Pool(seed)
    for _ in range(300):
        pool.play()
