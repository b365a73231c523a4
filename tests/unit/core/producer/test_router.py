"""Which lane does a record go to?"""

from dataclasses import replace
from itertools import count
from random import Random

import pytest

from shardline.core.producer import router as module
from shardline.core.producer.producer_config import ProducerConfig
from shardline.core.producer.producer_record import BufferedRecord
from shardline.core.producer.router import Router
from shardline.core.producer.shard_map import Snapshot
from shardline.model.hashing import HASH_KEY_COUNT, HASH_KEY_MAX, HashRange, hash_key_of
from shardline.model.limits import KIB
from shardline.model.sequence import ANY_NUMBER

CONFIG = ProducerConfig()


def snapshot(*names, start=0, end=HASH_KEY_MAX):
    width = (end - start + 1) // len(names)
    starts = [start + width * place for place in range(len(names))]
    ends = [*(one - 1 for one in starts[1:]), end]
    ranges = tuple(HashRange(low, high) for low, high in zip(starts, ends, strict=True))
    numbers = (ANY_NUMBER,) * len(names)
    return Snapshot(tuple(one.end.to_bytes(16, "big") for one in ranges), names, ranges, numbers)


def router(*names, **changes):
    one = Router(replace(CONFIG, **changes), Random(1), 0.0)
    if names:
        one.install(snapshot(*names), 0.0)
    return one


def record(key="k", hash_key=None, data=b"data"):
    return BufferedRecord(data, key, hash_key, 30.0)


def test_p2_many_go_where_each_would_go_alone_and_keep_their_order():
    keys = ["a", None, "b", "é", "a", "c", *(f"key-{number}" for number in range(100))]
    records = [record(key) for key in keys] + [record("any", "7"), record("a")]
    keyless = records[1]
    one = router("a", "b", "c")
    found, others = one.sort(records)
    assert others == [keyless]
    expected = {}
    for each in records:
        if each is not keyless:
            expected.setdefault(one.lane_for(each, 0.0), []).append(each)
    assert dict(found) == expected
    assert [lane for lane, _ in found] == [lane for lane in one.lanes if lane in expected]
    assert one.sort([]) == ([], [])
    one._cache, one._lane_by_key = module._Cache.LEFT_ALONE, {}
    assert one.sort(records) == (found, others)
    assert one._lane_by_key == {}
    assert router().sort(records) == ([], records)


def test_p2_a_key_whose_first_bits_decide_nothing_is_looked_up_by_all_of_its_hash():
    one = router("a", "b", "c")
    edge = one.lanes[0].hash_range.end >> 116
    key = next(str(number) for number in count() if hash_key_of(str(number)) >> 116 == edge)
    ((found, _),), others = one.sort([record(key)])
    assert hash_key_of(key) in found.hash_range
    assert not others


class FakeTable:
    """Sorts by the length of the key, so that its result differs from that of the pure form."""

    def sort(self, records):
        lengths = sorted({len(each.key) for each in records if each.key is not None})
        groups = [[each for each in records if each.key is not None and len(each.key) == size] for size in lengths]
        return list(enumerate(groups)), [each for each in records if each.key is None]


def test_p2_a_compiled_table_decides_if_there_is_one():
    one = router("a", "b", "c")
    one._table = FakeTable()
    short, keyless, long, other = record("k"), record(None), record("key"), record("l")
    assert one.sort([long, short, keyless, other]) == (
        [(one.lanes[0], [short, other]), (one.lanes[1], [long])],
        [keyless],
    )


EDGES = [[], [1 << 120], [(1 << 120) - 1, (1 << 120) + 1], [5, 1 << 127, (1 << 128) - 2], [1, 2, 3, (1 << 116) - 1]]


@pytest.mark.parametrize("bits", [8, 12])
@pytest.mark.parametrize("edges", [*EDGES, [(place << 118) - 1 for place in range(1, 1024)]])
def test_p2_the_first_bits_of_a_hash_decide_only_where_they_can(edges, bits):
    ends = [*edges, (1 << 128) - 1]
    one = router()
    endings = tuple(end.to_bytes(16, "big") for end in ends)
    one.lanes = tuple(object() for _ in ends)
    one._endings = endings
    by_prefix = one._lanes_by_prefix(bits)
    assert len(by_prefix) == 1 << bits
    for first, lane in enumerate(by_prefix):
        low, high = first << 128 - bits, ((first + 1) << 128 - bits) - 1
        holds = {place for place, end in enumerate(ends) if low <= end and (ends[place - 1] if place else -1) < high}
        assert (lane is None) == (len(holds) > 1)
        assert lane is None or lane is one.lanes[holds.pop()]


def test_p2_without_a_map_everything_goes_to_the_catch_all():
    one = router()
    assert {one.lane_for(record(key), 0.0) for key in ("a", "b", None)} == {one.catch_all}
    assert one.all_lanes() == [one.catch_all]


class Routed:
    """Routes keys, lets the cache be judged now and then, and checks every lane."""

    def __init__(self, monkeypatch):
        for name, value in (("_CACHE_MAX", 20), ("_CACHE_TRIAL", 5), ("_CACHE_LIFE", 100)):
            monkeypatch.setattr(module, name, value)
        self.router = router("a", "b", "c")
        self.count = 0

    def route(self, keys):
        """Return how many keys were cached at most, and in the end."""
        most = 0
        for key in keys:
            assert hash_key_of(key) in self.router.lane_for(record(key), 0.0).hash_range
            self.count += 1
            most = max(most, len(self.router._lane_by_key))
            if self.count % 5 == 0:
                self.router.judge_cache(self.count)
        return most, len(self.router._lane_by_key)


def test_keys_that_come_again_are_remembered_and_more_of_them_when_it_pays(monkeypatch):
    one = Routed(monkeypatch)
    assert one.route(["hot"] * 3 + [f"{number}" for number in range(4)]) == (5, 5)
    assert one.route([f"{number % 4}" for number in range(20)]) == (5, 5)
    assert one.route([f"{number % 22}" for number in range(60)]) == (20, 20)


def test_keys_that_never_recur_are_not_remembered_until_it_is_tried_again(monkeypatch):
    one = Routed(monkeypatch)
    assert one.route([f"{number}" for number in range(25)]) == (5, 0)
    assert one.route([f"{number}" for number in range(25, 80)]) == (0, 0)
    assert one.route(["hot", "warm"] * 60) == (2, 2)


# ---- keyless


def test_p8_a_keyless_record_stays_with_its_lane_until_that_is_sealed():
    one = router("a", "b", "c")
    first = one.lane_for(record(None), 0.0)
    first.add(record(None))
    assert {one.lane_for(record(None), 0.0) for _ in range(20)} == {first}
    first.seal()
    assert one.lane_for(record(None), 0.0) is not first


def test_p8_among_many_lanes_a_sample_is_looked_at_and_the_load_spreads():
    one = router(*(f"{number:02d}" for number in range(40)))
    chosen = set()
    for _ in range(200):
        lane = one.lane_for(record(None), 0.0)
        lane.add(record(None, data=b"x" * 1000))
        lane.seal()
        chosen.add(lane.shard_id)
    assert len(chosen) == 40


def test_p8_a_lane_that_vanished_is_left():
    one = router("a")
    lane = one.lane_for(record(None), 0.0)
    lane.add(record(None))
    one.install(snapshot("b", "c"), 0.0)
    assert one.lane_for(record(None), 0.0).shard_id in {"b", "c"}


# ---- maps


def test_lanes_that_stay_keep_their_state_and_others_vanish():
    one = router("a", "b")
    a, b = one.lanes
    high = HashRange(HASH_KEY_COUNT // 2, HASH_KEY_MAX)
    middle = high.middle
    split = Snapshot(
        tuple(end.to_bytes(16, "big") for end in (HASH_KEY_COUNT // 2 - 1, middle - 1, HASH_KEY_MAX)),
        ("a", "c", "d"),
        (HashRange(0, HASH_KEY_COUNT // 2 - 1), HashRange(high.start, middle - 1), HashRange(middle, high.end)),
        (ANY_NUMBER,) * 3,
    )
    fresh, gone = one.install(split, 1.0)
    assert one.lanes[0] is a
    assert ([lane.shard_id for lane in fresh], gone) == (["c", "d"], [b])
    assert b.vanished
    assert one.all_lanes() == [one.catch_all, *one.lanes, b]


def test_a_vanished_lane_is_known_until_it_is_settled():
    one = router("a")
    (lane,) = one.lanes
    lane.in_flight = 1
    one.install(snapshot("b", "c"), 0.0)
    one.forget_settled()
    assert one.vanished == [lane]
    assert all(one.must_wait(child) for child in one.lanes)
    lane.in_flight = 0
    assert not any(one.must_wait(child) for child in one.lanes)
    one.forget_settled()
    assert one.vanished == []


def test_no_map_any_more_means_the_catch_all():
    one = router("a", "b")
    fresh, gone = one.install(None, 0.0)
    assert (fresh, len(gone), one.lanes) == ([], 2, ())
    assert one.lane_for(record(), 0.0) is one.catch_all


def test_aggregates_stay_below_the_record_limit_of_the_stream():
    one = router("a", aggregate_max_bytes=51_200)
    one.limit_aggregates(20 * KIB)
    one.install(snapshot("b", "c"), 0.0)
    assert {lane.max_bytes for lane in one.all_lanes()} == {19 * KIB}
    one.limit_aggregates(10 * 1024 * KIB)
    assert {lane.max_bytes for lane in one.all_lanes()} == {51_200}
