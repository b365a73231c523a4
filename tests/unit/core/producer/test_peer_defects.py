"""Defects of other producers that concern the core and that no test in ``tests/machines`` covers.

aiokpl_b1 to aiokpl_b19 are defects of aiokpl, as in tests/shell/producer/test_peer_defects.py; the loss at a split is
the KPL's.
"""

import pytest
from tests.aggregates import split_aggregate

from shardline.model.hashing import HashRange, hash_key_of

SPLIT = {"b": (8, 16), "c": (0, 4), "d": (4, 8)}
RANGES = {"a": (0, 8), **SPLIT}
SIXTEENTH = 1 << 124


class Stream:
    """The stored entries, and what a reader that follows the KCL's rules sees of them."""

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
    """An aggregate of the parent lands in one child after the map has learned of the children.

    The KPL acknowledges the half that belongs there, but a KCL reader drops the whole aggregate, so that half is lost.
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


def test_aiokpl_b12_a_record_larger_than_a_second_of_rate_goes_out_and_what_follows_pays(rig):
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


def test_aiokpl_b14_a_steady_flow_does_not_put_the_deadline_off(rig):
    one = rig(linger=0.1)
    first = one.put(b"first", "k", 1)
    while one.machine.next_deadline() > one.now:
        one.wait(0.001).put(b"more", "k", 1)
        assert one.elapsed < 0.2
    assert one.elapsed == pytest.approx(0.1, abs=0.002)
    assert b"first" in one.send()[0]
    one.stored()
    assert first.conclusion.delivered


def test_aiokpl_b16_the_life_of_a_record_counts_from_its_put_whatever_happens_to_it(rig):
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


def test_aiokpl_b17_no_aggregate_is_larger_than_it_may_be(rig):
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


def test_aiokpl_b19_lanes_of_closed_shards_are_forgotten_and_order_can_be_kept(rig):
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
