"""Measures the cost of a steady rate of invalid records, for the valid records and for the service.

The machine runs in virtual time, with a service that refuses every request that contains an invalid record, a round
trip of 20 ms, and 2,000 records a second over four shards.
"""

from collections import deque
from random import Random

import pytest
from tests.harness.producer_shell import ACCEPTED, ProducerShell, shard, stream_summary

from shardline.codec.shapes import ListShardsResponse, PutRecordsResponse, PutRecordsResult
from shardline.core.clock import NEVER
from shardline.core.error_codes import Failure, FailureKind
from shardline.core.producer.producer_config import ProducerConfig
from shardline.model.hashing import HASH_KEY_COUNT, hash_key_of

ROUND_TRIP = 0.02
RATE = 2_000
SHARDS = 4
SHARD = HASH_KEY_COUNT // SHARDS
POISON = b"<poison>"


class World(ProducerShell):
    """One producer, driven as a shell does, until all of its records have ended."""

    def __init__(self, share, seconds=4.0, names=0, **settings):
        super().__init__(ProducerConfig(**settings), 0.0, Random(1))
        self.names = names
        self.numbers = iter(range(1, 10**9))
        self.answers = deque()
        self.isolated_at = []
        self.put_at, self.ended_at = {}, {}
        self.good, self.bad = [], []
        rng = Random(2)
        self._start()
        puts = deque((number / RATE, rng.random() < share) for number in range(int(seconds * RATE)))
        while puts or self.machine.intake.outstanding:
            self._step(puts)

    def _start(self):
        machine = self.machine
        machine.poll_summary(0.0)
        machine.handle_summary(stream_summary(max_record_kib=1024), 0.0)
        machine.poll_list_shards(0.0)
        shards = [shard(str(number), number * SHARD, (number + 1) * SHARD - 1) for number in range(SHARDS)]
        machine.handle_list_shards(ListShardsResponse(shards, None), 0.0)

    def _step(self, puts):
        """Process the next event: an answer, a put, or a deadline."""
        machine = self.machine
        next_put = puts[0][0] if puts else NEVER
        next_answer = self.answers[0][0] if self.answers else NEVER
        self.now = max(self.now, min(next_put, next_answer, machine.next_deadline()))
        if next_answer <= self.now:
            _, number, entries = self.answers.popleft()
            machine.handle_put(number, self._answer(entries), self.now)
        elif next_put <= self.now:
            self._put(*puts.popleft())
        self.pump()
        machine.take_events()
        while machine.ledger.finished:
            record = machine.ledger.finished.popleft()
            self.ended_at[id(record)] = self.now

    def put_records(self, number, request):
        if self.machine._flights[number].group.part is not None:
            self.isolated_at.append(self.now)
        self.answers.append((self.now + ROUND_TRIP, number, request.entries))

    def _put(self, at, is_bad):
        number = len(self.put_at)
        data = b"%d:%s" % (number, POISON if is_bad else b"valid")
        record = self.record(data, f"key {number}")
        assert self.accept(record) in ACCEPTED
        self.put_at[id(record)] = at
        (self.bad if is_bad else self.good).append(record)

    def _answer(self, entries):
        guilty = [place for place, entry in enumerate(entries) if POISON in entry.data]
        if guilty:
            named = [f"Value at 'records.{place + 1}.member.data' failed" for place in guilty[: self.names]]
            return Failure(FailureKind.INVALID, "ValidationException", "; ".join(named) or "invalid", 400)
        shards = [str(hash_key_of(entry.key) // SHARD) for entry in entries]
        return PutRecordsResponse([PutRecordsResult(str(next(self.numbers)), shard) for shard in shards])

    def latencies(self):
        """The latencies of the valid records, in order."""
        return sorted(self.ended_at[id(record)] - self.put_at[id(record)] for record in self.good)


def summary(latencies):
    count = len(latencies)
    return sum(latencies) / count, latencies[count // 2], latencies[int(0.95 * count)]


@pytest.mark.parametrize("aggregation", [True, False])
@pytest.mark.parametrize("names", [0, 1, 10])
def test_one_record_in_a_hundred_is_invalid_and_the_valid_ones_take_at_most_twice_as_long(aggregation, names):
    usual, poisoned = (World(share, names=names, aggregation=aggregation) for share in (0.0, 0.01))
    assert [record for record in poisoned.good if not record.conclusion.delivered] == []
    assert {record.conclusion.code for record in poisoned.bad} == {"ValidationException"}
    for before, after in zip(summary(usual.latencies()), summary(poisoned.latencies()), strict=True):
        assert after <= 2 * before


def test_in_order_no_valid_record_expires_for_one_invalid_in_a_hundred():
    world = World(0.01, ordered=True)
    assert [record for record in world.good if not record.conclusion.delivered] == []


@pytest.mark.parametrize("names", [0, 1, 10])
@pytest.mark.parametrize(("seconds", "ttl"), [(0.5, 30.0), (1.5, 5.0)])
def test_if_every_record_is_invalid_each_fails_with_the_reason_at_the_pace_that_is_set(seconds, ttl, names):
    world = World(1.0, seconds, names, record_ttl=ttl)
    calls = world.isolated_at
    assert len(calls) <= 1.1 * len(world.bad)
    assert all(later - earlier >= 1.0 - 1e-9 for earlier, later in zip(calls, calls[100:], strict=False))
    assert {record.conclusion.code for record in world.bad} == {"ValidationException"}
    lives = [world.ended_at[id(record)] - world.put_at[id(record)] for record in world.bad]
    assert max(lives) <= ttl + ROUND_TRIP
    if ttl * 100 > 1.1 * len(world.bad):
        assert {record.conclusion.message for record in world.bad if "sent alone" in record.conclusion.message} == set()
        assert max(lives) <= 1.1 * len(world.bad) / 100 + 1.0
