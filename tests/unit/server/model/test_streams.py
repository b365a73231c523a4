"""Tests of ``server.model.streams``, ``server.model.shards`` and ``server.model.sequence_numbers``."""

from itertools import pairwise
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shardline.model.hashing import HASH_KEY_COUNT, HASH_KEY_MAX
from shardline.server.model.service import Service
from shardline.server.model.settings import Delays, Limits, ServiceSettings
from shardline.server.model.streams import uniform_ranges

BEGIN = 1_700_000_000.0
examples = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@pytest.mark.parametrize("count", [1, 2, 3, 5, 7, 16, 100, 1000])
def test_uniform_ranges_cover_the_ring_once(count):
    ranges = uniform_ranges(count)
    assert len(ranges) == count
    assert ranges[0].start == 0
    assert ranges[-1].end == HASH_KEY_MAX
    assert all(one.end + 1 == other.start for one, other in pairwise(ranges))
    widths = {one.end - one.start + 1 for one in ranges}
    assert max(widths) - min(widths) < count


def test_the_ranges_of_three_shards_are_those_of_aws():
    assert [one.start for one in uniform_ranges(3)] == [
        0,
        113427455640312821154458202477256070485,
        226854911280625642308916404954512140970,
    ]


def check_lineage(stream):
    """Check dense ids, the lineage, and numbers that grow from parents to children."""
    shards = sorted(stream.shards.values(), key=lambda one: one.index)
    assert [one.index for one in shards] == list(range(stream.next_index))
    ranges = [one.hash_range for one in stream.open_shards]
    assert ranges == sorted(ranges)
    assert ranges[0].start == 0
    assert ranges[-1].end == HASH_KEY_MAX
    assert all(one.end + 1 == other.start for one, other in pairwise(ranges))
    assert {one.shard_id for one in stream.open_shards} == {one.shard_id for one in shards if one.is_open}
    for shard in shards:
        assert shard.is_open != bool(shard.child_ids)
        children = [stream.shards[child] for child in shard.child_ids]
        assert all(shard.shard_id in child.parent_ids for child in children)
        for child in children:
            assert child.created_at == shard.closed_at
            parents = [stream.shards[parent] for parent in child.parent_ids]
            ends = [(one.ending_sequence_number >> 36) & 0xFFFFFFFFF for one in parents]
            assert child.numbering.began == max(ends) + 1  # recorded in kinesalite's splitShard.js and mergeShards.js
            assert child.starting_sequence_number > shard.ending_sequence_number
            records = child.log.records
            assert all(int(one.sequence_number) > child.starting_sequence_number for one in records)
        parents = [stream.shards[parent] for parent in shard.parent_ids]
        if len(parents) == 1:
            (parent,) = parents
            union = sorted(stream.shards[child].hash_range for child in parent.child_ids)
            assert (union[0].start, union[-1].end) == (parent.hash_range.start, parent.hash_range.end)
        elif parents:
            low, high = sorted(parent.hash_range for parent in parents)
            assert (low.start, high.end) == (shard.hash_range.start, shard.hash_range.end)
            assert low.end + 1 == high.start
        numbers = [int(one.sequence_number) for one in shard.log.records]
        assert numbers == sorted(set(numbers))
        assert shard.is_open or all(number < shard.ending_sequence_number for number in numbers)


steps = st.lists(
    st.one_of(
        st.tuples(st.just("split"), st.integers(0, 50), st.floats(0.01, 0.99)),
        st.tuples(st.just("merge"), st.integers(0, 50), st.none()),
        st.tuples(st.just("scale"), st.integers(1, 12), st.none()),
        st.tuples(st.just("put"), st.integers(0, 100), st.none()),
        st.tuples(st.just("wait"), st.sampled_from([0, 0.4, 1, 100]), st.none()),
    ),
    max_size=25,
)


@examples
@given(st.integers(1, 5), st.sampled_from([0.0, 0.5]), steps)
def test_the_open_shards_cover_the_ring_whatever_is_split_merged_and_scaled(count, delay, walk):
    limits = Limits.without_rates()
    service = Service(ServiceSettings(limits=limits, delays=Delays(update=delay)), Random(0), BEGIN)
    now = BEGIN
    service.handle("CreateStream", {"StreamName": "s", "ShardCount": count}, now)
    stream = service.state.streams["s"]
    name = {"StreamName": "s"}
    for kind, number, fraction in walk:
        shards = stream.open_shards
        shard = shards[int(number) % len(shards)]
        adjacent = shards[(int(number) + 1) % len(shards)]
        span = shard.hash_range
        if kind == "split":
            at = span.start + int((span.end - span.start) * fraction)
            request = {"ShardToSplit": shard.shard_id, "NewStartingHashKey": str(at)}
            service.handle("SplitShard", name | request, now)
        elif kind == "merge":
            request = {"ShardToMerge": shard.shard_id, "AdjacentShardToMerge": adjacent.shard_id}
            service.handle("MergeShards", name | request, now)
        elif kind == "scale":
            before, was = len(shards), stream.status
            request = {"TargetShardCount": number, "ScalingType": "UNIFORM_SCALING"}
            answer = service.handle("UpdateShardCount", name | request, now)
            if was == "ACTIVE":
                assert (answer.refusal is None) == (before / 2 <= number <= before * 2)
            if answer.refusal is None:
                now += delay
                service.state.advance(now)
                starts = [one.hash_range.start for one in stream.open_shards]
                exact = [one.start for one in uniform_ranges(number)]
                assert len(starts) == number
                close = HASH_KEY_COUNT // number // 8
                assert all(abs(one - other) <= close for one, other in zip(starts, exact, strict=True))
        elif kind == "put":
            records = [{"Data": b"x", "PartitionKey": f"{number}-{one}"} for one in range(3)]
            answer = service.handle("PutRecords", name | {"Records": records}, now)
            open_ids = {one.shard_id for one in stream.open_shards}
            assert {one.shard_id for one in answer.body.records} <= open_ids
        else:
            now += number
            service.state.advance(now)
        check_lineage(stream)


def scaled(server, *counts):
    """Return the open shards after each scaling, by their ranges, and the number of all shards."""
    server.create(shards=counts[0])
    for count in counts[1:]:
        server.call("UpdateShardCount", StreamName="s", TargetShardCount=count, ScalingType="UNIFORM_SCALING")
    ids = [
        int(one["ShardId"][8:])
        for one in sorted(server.open_shards(), key=lambda one: int(one["HashKeyRange"]["StartingHashKey"]))
    ]
    return ids, len(server.shards())


def test_scaling_from_4_to_3_gives_the_shards_the_ids_that_aws_gives_them(server):
    """See https://github.com/risingwavelabs/risingwave/issues/9961: AWS splits 1 and 2, and merges them with 0 and 3."""
    assert scaled(server, 4, 3) == ([6, 9, 10], 11)
    parents = {int(one["ShardId"][8:]): one for one in server.shards()}
    assert [parents[child]["ParentShardId"][-1] for child in (4, 5, 6, 7, 8, 9, 10)] == list("1102258")
    assert [parents[child]["AdjacentParentShardId"][-1] for child in (6, 9, 10)] == list("473")


def test_scaling_from_1_over_2_to_3_gives_the_ids_and_ranges_that_aws_gives(server):
    """Observed in a description of a stream on AWS: shard 7 has a third of the ring, and comes from 4 and 5."""
    assert scaled(server, 1, 2, 3) == ([3, 7, 6], 8)
    middle = server.shards()[7]
    assert middle["HashKeyRange"] == {
        "StartingHashKey": "113427455640312821154458202477256070485",
        "EndingHashKey": "226854911280625642308916404954512140969",
    }
    assert (middle["ParentShardId"][-1], middle["AdjacentParentShardId"][-1]) == ("4", "5")


@pytest.mark.parametrize(("before", "after", "total"), [(2, 4, 6), (4, 5, 15), (10, 13, 37), (4, 2, 6)])
def test_scaling_creates_as_many_shards_as_on_aws(server, before, after, total):
    """From moto's test_kinesis_boto3.py, test_update_shard_count: "verified against AWS"."""
    assert scaled(server, before, after)[1] == total


def test_the_numbers_of_a_new_streams_shards_begin_before_the_stream_was_created(make_server):
    """Recorded in kinesalite's createStream.js: by 2 to 7 seconds."""
    server = make_server(delays=Delays(create=30)).create(shards=3)
    server.pass_time(30)
    numbers = [int(one["SequenceNumberRange"]["StartingSequenceNumber"]) for one in server.shards()]
    assert {number >> 148 & 0xFFFFFFFFF for number in numbers} == {int(BEGIN) - 3}
    assert [after - before for before, after in pairwise(numbers)] == [22300745198530623141535718272648361505980432] * 2


@pytest.mark.parametrize("count", [1, 2, 3, 5, 7, 12])
def test_doubling_is_one_split_a_shard_and_halving_one_merge_a_pair(server, count):
    server.create(shards=count)
    before = sorted(int(one["HashKeyRange"]["StartingHashKey"]) for one in server.open_shards())
    server.call("UpdateShardCount", StreamName="s", TargetShardCount=2 * count, ScalingType="UNIFORM_SCALING")
    assert len(server.shards()) == 3 * count
    server.call("UpdateShardCount", StreamName="s", TargetShardCount=count, ScalingType="UNIFORM_SCALING")
    assert len(server.shards()) == 4 * count
    assert sorted(int(one["HashKeyRange"]["StartingHashKey"]) for one in server.open_shards()) == before


def test_a_hash_key_goes_to_its_shard_at_both_edges(server):
    server.create(shards=5)
    server.split(2, at=2 * (HASH_KEY_COUNT // 5) + 5)
    for shard in server.open_shards():
        for edge in shard["HashKeyRange"].values():
            assert server.put(b"x", hash_key=edge)["ShardId"] == shard["ShardId"]


def test_a_change_waits_for_its_delay_and_the_old_shards_serve(make_server):
    server = make_server(delays=Delays(update=10)).create()
    server.split()
    assert server.status() == "UPDATING"
    assert server.put(b"x", hash_key=0)["ShardId"] == "shardId-000000000000"
    server.pass_time(9.999)
    assert server.status() == "UPDATING"
    assert server.put(b"x", hash_key=0)["ShardId"] == "shardId-000000000000"
    server.pass_time(0.001)
    assert server.put(b"x", hash_key=0)["ShardId"] == "shardId-000000000001"
    assert server.status() == "ACTIVE"


def test_a_change_happens_at_its_time_however_late_one_looks(make_server):
    server = make_server(delays=Delays(create=5, update=10)).create()
    server.pass_time(100)
    server.split()
    server.pass_time(1000)
    assert server.ids(ShardFilter={"Type": "AT_TIMESTAMP", "Timestamp": server.now - 995}) == [0]
    assert server.ids(ShardFilter={"Type": "AT_TIMESTAMP", "Timestamp": server.now - 985}) == [1, 2]


def test_children_are_greater_within_one_second(server):
    server.create()
    numbers = [server.put(b"x", hash_key=0)["SequenceNumber"]]
    newest = 0
    for depth in range(1, 6):
        server.split(newest, at=HASH_KEY_COUNT >> depth)
        newest = min(
            int(one["ShardId"][-12:]) for one in server.open_shards() if one["HashKeyRange"]["StartingHashKey"] == "0"
        )
        numbers.append(server.put(b"x", hash_key=0)["SequenceNumber"])
    assert all(len(number) == 56 for number in numbers)
    assert sorted(set(numbers), key=int) == numbers


@pytest.mark.internal_error
def test_a_closed_shard_has_an_end_after_its_records(server):
    server.create()
    number = int(server.put(b"x")["SequenceNumber"])
    assert "EndingSequenceNumber" not in server.shards()[0]["SequenceNumberRange"]
    server.split()
    span = server.shards()[0]["SequenceNumberRange"]
    assert int(span["StartingSequenceNumber"]) < number < int(span["EndingSequenceNumber"])
    with pytest.raises(AssertionError):
        server.service.state.streams["s"].shards["shardId-000000000000"].close(server.now)


def test_a_stream_says_what_it_is(server):
    server.create(shards=3)
    assert repr(server.service.state.streams["s"]) == "<ServerStream s ACTIVE, 3 open of 3 shards>"
