"""Tests of ``server.model.state``."""

import pytest

from shardline.model.hashing import HASH_KEY_COUNT
from shardline.server.model.settings import Delays, Limits
from shardline.server.model.streams import ServerStream


def test_time_does_not_go_back(server):
    server.create().put(b"0")
    server.now -= 100
    server.put(b"1")
    times = [one["ApproximateArrivalTimestamp"] for one in server.page(server.iterator())["Records"]]
    assert times == [server.now + 100] * 2


def test_what_is_coming_or_going_serves_no_records(make_server):
    server = make_server(delays=Delays(create=1, delete=1)).create()
    iterator = {"StreamName": "s", "ShardId": "shardId-000000000000", "ShardIteratorType": "LATEST"}
    assert server.refused("GetShardIterator", **iterator) == "ResourceNotFoundException"
    server.pass_time(1)
    kept = server.iterator()
    server.call("DeleteStream", StreamName="s")
    assert server.refused("GetShardIterator", **iterator) == "ResourceNotFoundException"
    assert server.refused("GetRecords", ShardIterator=kept) == "ResourceNotFoundException"


def test_time_that_passes_looks_at_no_stream_until_something_is_due(make_server, monkeypatch):
    server = make_server(delays=Delays(delete=100)).create()
    state = server.service.state
    for number in range(3_000):
        stream = ServerStream(f"s{number}", "arn", Limits(), server.now, state.records_held)
        state.streams[stream.name] = stream
        state.reschedule(stream)
    server.put(b"x")  # a change that came due in the meantime is checked once
    looked = []
    advance = ServerStream.advance
    monkeypatch.setattr(ServerStream, "advance", lambda stream, now: (looked.append(stream.name), advance(stream, now)))
    for _ in range(100):
        server.pass_time(0.1).put(b"x")
    assert looked == []
    server.pass_time(60).put(b"x")  # all are swept once a minute, together
    assert len(looked) == 3_001
    looked.clear()
    server.call("EnableEnhancedMonitoring", StreamName="s", ShardLevelMetrics=["ALL"])
    server.put(b"x")
    assert set(looked) <= {"s"}  # a change is looked for only where it was made
    server.call("DeleteStream", StreamName="s")
    assert server.status() == "DELETING"
    server.pass_time(100)
    assert server.refused("DescribeStreamSummary", StreamName="s") == "ResourceNotFoundException"


def test_streams_of_one_name_are_distinguished_however_soon_one_follows_the_other(server):
    seen = set()
    for life in range(5):
        server.create(shards=3)
        created = server.summary()["StreamCreationTimestamp"]
        assert created == int(server.now) + life
        assert server.ids(StreamCreationTimestamp=created) == [0, 1, 2]
        server.split(1, HASH_KEY_COUNT // 2)
        server.split(3, HASH_KEY_COUNT // 2 - 5)
        starts = {(shard.index, shard.numbering.began) for shard in server.service.state.streams["s"].shards.values()}
        assert not seen & starts
        seen |= starts
        server.call("DeleteStream", StreamName="s")
    server.pass_time(100).create()
    assert server.summary()["StreamCreationTimestamp"] == int(server.now)
    assert server.service.state.streams["s"].numbers_begin == int(server.now) - 3


def test_what_was_handed_out_for_a_stream_is_no_good_for_the_next_of_its_name(server):
    """Both streams exist at the same time of the clock, which a test may freeze."""
    server.create(shards=2)
    iterator, stream_id = server.iterator(), server.summary()["StreamId"]
    token = server.call("ListShards", StreamName="s", MaxResults=1)["NextToken"]
    server.call("DeleteStream", StreamName="s")
    server.create(shards=2).put(b"x", hash_key=0)
    assert server.refused("GetRecords", ShardIterator=iterator) == "ResourceNotFoundException"
    assert server.refused("ListShards", NextToken=token) == "InvalidArgumentException"
    assert server.summary()["StreamId"] != stream_id


def test_a_stream_that_is_long_gone_is_forgotten(server):
    for number in range(50):
        server.create(f"s{number}")
        server.call("DeleteStream", StreamName=f"s{number}")
        server.pass_time(10)
    assert len(server.service.state._deleted) < 10


def test_the_records_that_are_held_are_counted_as_they_come_and_go(make_server):
    server = make_server(delays=Delays(update=1)).create().create("t", shards=2)

    def held():
        counts = [one.record_count for one in server.service.state.streams.values()]
        assert server.service.state.records_held.value == sum(counts)
        return sum(counts)

    server.put(b"0")
    server.put_many([(b"1", "a"), (b"2", "b"), (b"3", "c")], name="t")
    assert held() == 4
    server.split()
    server.pass_time(12 * 3600).put(b"4")
    assert held() == 5
    server.pass_time(13 * 3600).put(b"5")  # records older than a day are swept
    assert held() == 2
    server.pass_time(24 * 3600 - 30)  # the next sweep is in a minute: the reader trims its shard itself
    assert [server.read(1), server.read(2)].count([b"5"]) == 1
    assert held() == 1
    server.call("DeleteStream", StreamName="s")
    assert held() == 0


# ---- names and ARNs


def test_a_stream_is_named_by_name_or_arn_or_both(server):
    server.create().create("t")
    for members in ({"StreamName": "s"}, {"StreamARN": server.arn()}, {"StreamName": "s", "StreamARN": server.arn()}):
        found = server.call("DescribeStreamSummary", **members)["StreamDescriptionSummary"]
        assert found["StreamARN"] == server.arn()
        server.call("PutRecord", Data=b"x", PartitionKey="k", **members)
        shard = {"ShardId": "shardId-000000000000", "ShardIteratorType": "LATEST"}
        assert server.call("GetShardIterator", **shard, **members)
        assert server.call("ListShards", **members)["Shards"]
    wrong = {"StreamName": "t", "StreamARN": server.arn()}
    assert server.refused("DescribeStreamSummary", **wrong) == "InvalidArgumentException"
    assert server.refused("DescribeStreamSummary") == "InvalidArgumentException"


def test_another_accounts_stream_is_not_found(server):
    server.create()
    arn = server.arn().replace("000000000000", "123456789012")
    assert server.refused("DescribeStreamSummary", StreamARN=arn) == "ResourceNotFoundException"
    assert "123456789012" in server.why("DescribeStreamSummary", StreamARN=arn)


@pytest.mark.parametrize(
    ("arn", "code"),
    [
        ("arn:aws:kinesis:us-east-1:000000000000:stream/s/x", "InvalidArgumentException"),
        ("arn:aws:a:kinesis:us-east-1:000000000000:stream/s", "InvalidArgumentException"),
        ("arn:aws:kinesis:us-east-1:000000000000:stream/", "ValidationException"),
        ("arn:aws:kinesis:us-east-1:000000000000:nonsense/s", "ValidationException"),
        ("arn:aws:kinesis:us-east-1:000000000000:stream/s\n", "ValidationException"),
        ("arn:aws:kinesis:us-east-1:\u0660\u06600000000000:stream/s", "ValidationException"),
    ],
)
def test_an_arn_of_no_stream_is_refused_everywhere_by_whether_it_fits_the_pattern(server, arn, code):
    server.create()
    assert server.refused("DescribeStreamSummary", StreamARN=arn) == code
    assert server.refused("ListTagsForResource", ResourceARN=arn) == code
    assert server.refused("UntagResource", ResourceARN=arn, TagKeys=["a"]) == code
    assert server.refused("TagResource", ResourceARN=arn, Tags={"a": "b"}) == code


# ---- control rates


@pytest.mark.parametrize(
    ("operation", "rate", "members"),
    [
        ("DescribeStream", 10, {"StreamName": "s"}),
        ("DescribeStreamSummary", 20, {"StreamName": "s"}),
        ("DescribeLimits", 1, {}),
        ("ListStreams", 5, {}),
        ("ListTagsForStream", 5, {"StreamName": "s"}),
        ("AddTagsToStream", 5, {"StreamName": "s", "Tags": {"a": "b"}}),
        ("ListShards", 1000, {"StreamName": "s"}),
        ("ListStreamConsumers", 5, {"StreamARN": "arn:aws:kinesis:us-east-1:000000000000:stream/s"}),
    ],
)
def test_control_calls_have_rates(make_server, operation, rate, members):
    server = make_server(limits=Limits()).create()
    server.pass_time(1)
    for _ in range(rate):
        server.call(operation, **members)
    assert server.refused(operation, **members) == "LimitExceededException"
    server.pass_time(1 / rate)
    server.call(operation, **members)


def test_some_rates_are_per_stream_and_others_per_account(make_server):
    server = make_server(limits=Limits()).create().create("t").pass_time(1)
    for _ in range(5):
        server.call("ListStreamConsumers", StreamARN=server.arn())
    assert server.refused("ListStreamConsumers", StreamARN=server.arn()) == "LimitExceededException"
    server.call("ListStreamConsumers", StreamARN=server.arn("t"))
    for _ in range(10):
        server.call("DescribeStream", StreamName="s")
    assert server.refused("DescribeStream", StreamName="t") == "LimitExceededException"


def test_rates_can_be_changed_and_switched_off(make_server):
    server = make_server(limits=Limits(control_calls_per_second={"ListStreams": 1})).create()
    for _ in range(50):
        server.call("DescribeStream", StreamName="s")
    server.call("ListStreams")
    assert server.refused("ListStreams") == "LimitExceededException"


def test_invented_names_do_not_fill_the_memory(make_server):
    server = make_server(limits=Limits())
    for number in range(3_000):
        server.refused("ListShards", StreamName=f"s{number}")
        server.pass_time(0.01)
    assert len(server.service.state._rates) <= 1_001
