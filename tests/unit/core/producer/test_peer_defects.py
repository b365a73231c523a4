"""What is known to go wrong in other producers does not go wrong here: one test for each defect that concerns the core.

B1 to B19 are defects of aiokpl, as in tests/shell/producer/test_peer_defects.py; the loss at a split is the KPL's.
"""

import pytest
from tests.aggregates import split_aggregate

from shardline.core.producer.intake import Put
from shardline.core.producer.record import Receipt
from shardline.model.hashing import HashRange, hash_key_of

SPLIT = {"b": (8, 16), "c": (0, 4), "d": (4, 8)}
RANGES = {"a": (0, 8), **SPLIT}
SIXTEENTH = 1 << 124


class Stream:
    """What was stored, and what a reader by the KCL's rule sees of it."""

    def __init__(self, rig):
        self.rig = rig
        self.stored = []  # (shard, entry)

    def take(self, **shards):
        """Store all entries of the last request where their keys belong, and answer."""
        landed = []
        for entry in self.rig.request.entries:
            place = hash_key_of(entry.key) if entry.explicit_hash_key is None else int(entry.explicit_hash_key)
            (name,) = [name for name, (low, high) in shards.items() if low * SIXTEENTH <= place < high * SIXTEENTH]
            landed.append(name)
            self.stored.append((name, entry))
        self.rig.stored(*landed)

    def readable(self):
        seen = []
        for name, entry in self.stored:
            low, high = RANGES[name]
            hash_range = HashRange(low * SIXTEENTH, high * SIXTEENTH - 1)
            inner = split_aggregate(entry.data)
            if inner is None:
                seen.append(entry.data)
            elif all(int(one.explicit_hash_key) in hash_range for one in inner):
                seen += [one.data for one in inner]
        return seen


def until_sent(rig):
    sent = rig.send()
    while sent is None:
        rig.to_deadline()
        sent = rig.send()
    return sent


def test_kpl_loss_at_a_split_what_is_acknowledged_is_readable(rig):
    """An aggregate of the parent lands in one child after the map has learnt of the children.

    The KPL acknowledges the half that belongs there; a KCL reader drops the aggregate whole; that half is lost.
    """
    one = rig()
    stream = Stream(one)
    records = one.puts(1, 5, 2, 6)
    assert one.flush() == [[b"0", b"1", b"2", b"3"]]
    one.machine._map.invalidate(one.now, "a", one.now)
    one.wait(0.1)
    assert one.asks_for_map()
    one.listed(**SPLIT)
    stream.take(**SPLIT)
    assert stream.readable() == []
    assert {record.conclusion for record in records} == {None}
    until_sent(one)
    stream.take(**SPLIT)
    assert all(record.conclusion.delivered for record in records)
    assert sorted(stream.readable()) == [b"0", b"1", b"2", b"3"]


def test_b1_while_there_is_no_map_no_aggregate_mixes_shards(rig):
    one = rig(shards=None)
    assert one.asks_for_map()
    one.puts(*range(16))
    one.wait(2.0)
    sent = one.send()
    assert sorted(sent) == sorted([b"%d" % number] for number in range(16))


def test_b1_nor_during_a_refresh(rig):
    one = rig()
    one.machine._map.invalidate(one.now, "a", one.now)
    assert one.asks_for_map()
    one.puts(1, 9, 2, 10)
    assert sorted(one.flush()) == [[b"0", b"2"], [b"1", b"3"]]


def test_b2_a_split_is_learnt_by_one_listing_and_nothing_is_sent_more_than_twice(rig):
    one = rig()
    stream = Stream(one)
    records, listings = [], 0
    for _ in range(40):
        records += one.puts(1, 5, 9)
        one.flush()
        stream.take(**SPLIT)
        if one.asks_for_map():
            listings += 1
            one.listed(**SPLIT)
        one.wait(0.2)
        while one.send() is not None:
            stream.take(**SPLIT)
    assert listings == 1
    assert all(record.conclusion.delivered for record in records)
    assert max(record.conclusion.attempt_count for record in records) == 2
    assert sum(record.conclusion.attempt_count for record in records) <= len(records) + 2
    assert sorted(stream.readable()) == sorted([b"0", b"1", b"2"] * 40)


@pytest.mark.parametrize("answer", ["stored", "failed", "lost"])
def test_b3_the_end_leaves_no_record_without_an_ending(rig, answer):
    one = rig(aggregate_max_count=2)
    records = one.puts(1, 1, 2, 9)
    one.flush()
    records += one.puts(1, 1, 1)
    one.machine.abandon("Closed", "the producer was closed")
    getattr(one, answer)()
    assert all(record.conclusion is not None for record in records)
    assert len(one.machine.take_finished()) == len(records)
    assert one.is_empty
    assert one.send() is None


def test_b11_a_poisonous_record_costs_a_few_requests_and_harms_no_other(rig):
    one = rig()
    records = [one.put(b"poison" if number == 17 else b"good", f"{number}", number % 16) for number in range(71)]
    requests, sent = 0, one.flush()
    while sent is not None:
        requests += 1
        if any(b"poison" in entry for entry in sent):
            one.failed("ValidationException", 400)
        else:
            one.stored()
        sent = one.send()
    assert [record for record in records if type(record.conclusion) is not Receipt] == [records[17]]
    assert requests <= 16


def test_b12_a_record_larger_than_a_second_of_rate_goes_out_and_what_follows_pays(rig):
    one = rig(bytes_per_second=1000.0, aggregation=False, linger=0.0)
    one.put(b"x" * 5000, "big", 1)
    assert len(one.flush()) == 1
    one.stored()
    small = one.put(b"small", "k", 1)
    assert one.send() is None
    assert until_sent(one) == [[b"small"]]
    one.stored()
    assert small.conclusion.delivered
    assert 4.0 < one.elapsed < 4.1


def test_b12_without_a_prediction_there_is_no_shards_budget_to_keep(rig):
    one = rig(shards=None, records_per_second=1.0)
    one.asks_for_map()
    one.not_listed()
    one.puts(*[1] * 30)
    assert len(one.flush()) == 30


@pytest.mark.parametrize("code", ["AccessDeniedException", "ResourceNotFoundException", "KMSDisabledException"])
def test_b13_what_cannot_succeed_is_tried_once(rig, code):
    one = rig()
    records = one.puts(1, 9, 2)
    one.flush()
    one.failed(code, 400)
    assert [record.conclusion.attempt_count for record in records] == [1, 1, 1]
    assert one.is_empty


def test_b13_what_can_is_tried_with_pauses_that_grow_and_a_history_that_does_not(rig):
    one = rig(record_ttl=600.0)
    (record,) = one.puts(1)
    one.flush()
    attempts = 1
    while record.conclusion is None:
        one.results("InternalFailure")
        if one.send() is None:
            one.to_deadline()
            while one.send() is None and record.conclusion is None:
                one.to_deadline()
        attempts += 1
    assert 100 < attempts < 260  # half of 5 s to 5 s each
    assert record.conclusion.attempt_count == attempts - 1
    assert len(record.conclusion.attempts) <= 16


def test_b14_a_steady_flow_does_not_put_the_deadline_off(rig):
    one = rig(linger=0.1)
    first = one.put(b"first", "k", 1)
    while one.machine.next_deadline() > one.now:
        one.wait(0.001).put(b"more", "k", 1)
        assert one.elapsed < 0.2
    assert one.elapsed == pytest.approx(0.1, abs=0.002)
    assert b"first" in one.send()[0]
    one.stored()
    assert first.conclusion.delivered


def test_b15_lanes_share_requests(rig):
    shards = {letter: (place, place + 1) for place, letter in enumerate("abcdefghijklmnop")}
    one = rig(shards=shards)
    for number in range(64):
        one.put(b"%d" % number, f"{number}", number % 16)
        one.wait(0.001)
    one.to_deadline()
    assert [len(entry) for entry in one.send()] == [4] * 16


def test_b16_the_life_of_a_record_counts_from_its_put_whatever_happens_to_it(rig):
    one = rig(record_ttl=3.0)
    (record,) = one.puts(1)
    one.flush()
    while record.conclusion is None:
        one.wait(0.2).results("InternalFailure")
        while one.send() is None and record.conclusion is None:
            one.to_deadline()
    assert record.conclusion.code == "Expired"
    assert 3.0 <= one.elapsed < 3.3
    assert [attempt.code for attempt in record.conclusion.attempts].count("Expired") == 1


def test_b17_no_aggregate_is_larger_than_it_may_be(rig):
    one = rig(aggregate_max_bytes=300)
    for number in range(200):
        one.put(b"x" * (number % 90), f"key {number}", number % 16)
    for number in range(50):
        one.put(b"y" * number, None)
    sent = one.flush()
    while sent is not None:
        assert all(len(entry.data) <= 300 for entry in one.request.entries)
        one.stored()
        sent = one.send()
    assert one.is_empty


def test_b18_flush_reaches_everything_and_keeps_the_rates(rig):
    one = rig(linger=30.0, record_ttl=100.0, aggregate_max_count=2, records_per_second=3.0)
    records = one.puts(*[1] * 10)
    entries = len(one.flush())
    assert entries == 3
    one.stored()
    while any(record.conclusion is None for record in records):
        until_sent(one)
        one.stored()
    assert one.elapsed == pytest.approx(2 / 3, abs=0.1)


def test_b18_what_is_in_flight_and_what_is_in_memory_is_bounded(rig):
    one = rig(max_in_flight=2, request_max_entries=1, buffer_max_bytes=1024, aggregate_max_count=1)
    accepted = 0
    while True:
        one.put(b"x" * 99, "k", 1)
        if one.answer is Put.FULL:
            break
        accepted += 1
    assert accepted == 10
    assert [one.flush() is not None, one.send() is not None, one.send()] == [True, True, None]


def test_b19_lanes_of_closed_shards_are_forgotten_and_order_can_be_kept(rig):
    one = rig(ordered=True)
    one.puts(1, 9)
    one.flush()
    one.stored()
    for generation in range(20):
        names = "cd" if generation % 2 else "ef"
        one.wait(1.0)
        one.machine._map.invalidate(one.now, one.machine._router.lanes[0].shard_id, one.now)
        one.wait(0.1)
        assert one.asks_for_map()
        one.listed(**{names[0]: (0, 8), names[1]: (8, 16)})
    assert len(one.machine._router.all_lanes()) == 3
