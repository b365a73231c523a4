"""Tests of ``traffic_sample``."""

from shardline.codec.raw_records import aggregate
from shardline.codec.shapes import RawRecord
from shardline.console.traffic_sample import KEYS_MAX, ShardTraffic, TrafficSample, split_point
from shardline.model.hashing import HashRange, hash_key_of

WHOLE = HashRange(0, 2**128 - 1)


def raw(key, data=b"x", at=100.5):
    return RawRecord(data, "1", key, at)


def test_rates_are_by_the_second_of_arrival():
    sample = TrafficSample()
    sample.add("s", [raw("a", b"1234"), raw("a", at=101.2), raw("a", b"12", at=100.9)])
    found = sample.to_json({"s": WHOLE}, 102.0)
    assert found["shards"]["s"]["seconds"] == [[100, 2, 8], [101, 1, 2]]
    assert found["read"] == 3
    assert sample.to_json({}, 400.0)["shards"] == {}


def test_an_update_has_only_the_rows_that_changed():
    sample = TrafficSample()
    sample.add("s", [raw("a"), raw("a", at=101.2)])
    seen = sample.changes
    sample.add("s", [raw("a", at=101.7)])
    sample.add("other", [raw("a", at=101.8)])
    found = sample.to_json({}, 102.0, seen)
    assert {shard: row["seconds"] for shard, row in found["shards"].items()} == {
        "s": [[101, 2, 4]],
        "other": [[101, 1, 2]],
    }
    assert sample.to_json({}, 102.0, sample.changes)["shards"]["s"]["seconds"] == []


def test_a_shard_near_a_limit_is_hot():
    sample = TrafficSample()
    for second in range(90, 100):
        sample.add("bytes", [raw("k", b"x" * 900_000, at=float(second))])
        sample.add("cool", [raw("k", b"x" * 100_000, at=float(second))])
    shards = sample.to_json({}, 100.0)["shards"]
    assert (shards["bytes"]["hot"], shards["cool"]["hot"]) == (True, False)
    assert shards["bytes"]["load"] == 0.858


def test_keys_are_those_inside_aggregates():
    sample = TrafficSample()
    records = sample.add("s", [raw("a", aggregate([("vip", b"1"), ("vip", b"2"), ("other", b"3")]))])
    assert [record.key for record in records] == ["vip", "vip", "other"]
    assert sample.to_json({}, 101.0)["shards"]["s"]["keys"][0] == {"key": "vip", "records": 2, "share": 0.6667}


def test_the_split_point_divides_the_traffic():
    shard = ShardTraffic()
    keys = sorted((f"key-{number}" for number in range(9)), key=hash_key_of)
    shard.keys.update(dict.fromkeys(keys, 1) | {keys[7]: 8})
    assert split_point(shard, WHOLE) == hash_key_of(keys[7])  # 7 below, 9 above
    assert split_point(shard, HashRange(hash_key_of(keys[0]), hash_key_of(keys[0]))) is None


def test_rare_keys_are_forgotten_first():
    shard = ShardTraffic()
    shard.keys.update({"hot": 5} | {f"rare-{number}": 1 for number in range(2 * KEYS_MAX)})
    shard.add(raw("new"), [])
    assert 0 < len(shard.keys) <= KEYS_MAX
    assert shard.keys["hot"] == 5


def test_old_traffic_fades():
    shard = ShardTraffic()
    shard.keys.update({"old": 8, "rare": 1})
    for second in (100, 129, 130):
        shard.add(raw("k", at=float(second)), [])
    assert shard.keys == {"old": 4}


def test_a_shard_that_is_short_of_bytes_has_the_keys_with_the_most_bytes():
    sample = TrafficSample()
    many = [raw(f"small-{number % 3}", at=100.0) for number in range(30)]
    sample.add("s", [*many, raw("large-1", b"x" * 90_000), raw("large-2", b"x" * 90_000)])
    found = sample.to_json({"s": WHOLE}, 101.0)["shards"]["s"]
    assert [key["key"] for key in found["keys"][:2]] == ["large-1", "large-2"]
    assert found["keys"][0]["share"] == 0.4999
    assert hash_key_of("large-1") < int(found["split_at"]) <= hash_key_of("large-2")


def test_a_shard_that_was_hot_is_remembered_for_two_minutes():
    sample = TrafficSample()
    for second in range(90, 100):
        sample.add("s", [raw("k", b"x" * 900_000, at=float(second))])
    for second in range(100, 130):
        sample.add("s", [raw("k", at=float(second))])
    shard = sample.to_json({}, 130.0)["shards"]["s"]
    assert (shard["hot"], shard["peak"]) == (False, [0.858, 100])
    sample.add("s", [raw("k", at=219.5)])
    assert sample.to_json({}, 219.9)["shards"]["s"]["peak"] == [0.858, 100]
    assert sample.to_json({}, 221.0)["shards"]["s"]["peak"] is None


def test_a_higher_peak_that_is_long_past_gives_way_to_a_lower_one():
    sample = TrafficSample()
    for second in range(90, 100):
        sample.add("s", [raw("k", b"x" * 1_000_000, at=float(second))])
    for second in range(230, 241):
        sample.add("s", [raw("k", b"x" * 900_000, at=float(second))])
    assert sample.to_json({}, 250.0)["shards"]["s"]["peak"] == [0.858, 240]


def test_a_shard_that_was_never_hot_has_no_peak():
    sample = TrafficSample()
    for second in range(90, 100):
        sample.add("s", [raw("k", b"x" * 100_000, at=float(second))])
    assert sample.to_json({}, 100.0)["shards"]["s"]["peak"] is None
