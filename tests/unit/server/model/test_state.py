"""SV1 and SV2 are invariants of ``server.model.state``."""

import pytest

from shardline.server.model.settings import Delays, Limits
from shardline.server.model.state import stream_of_arn


def test_sv1_time_does_not_go_back(server):
    server.create().put(b"0")
    server.now -= 100
    server.put(b"1")
    times = [one["ApproximateArrivalTimestamp"] for one in server.page(server.iterator())["Records"]]
    assert times == [server.now + 100] * 2


def test_sv2_what_is_coming_or_going_serves_no_records(make_server):
    server = make_server(delays=Delays(create=1, delete=1)).create()
    iterator = {"StreamName": "s", "ShardId": "shardId-000000000000", "ShardIteratorType": "LATEST"}
    assert server.refused("GetShardIterator", **iterator) == "ResourceNotFoundException"
    server.pass_time(1)
    kept = server.iterator()
    server.call("DeleteStream", StreamName="s")
    assert server.refused("GetShardIterator", **iterator) == "ResourceNotFoundException"
    assert server.refused("GetRecords", ShardIterator=kept) == "ResourceNotFoundException"


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
    "arn",
    [
        "arn:aws:kinesis:us-east-1:000000000000:stream/",
        "arn:aws:kinesis:us-east-1:000000000000:nonsense/s",
        "arn:aws:kinesis:us-east-1:000000000000:stream/s/x",
        "arn:aws:a:kinesis:us-east-1:000000000000:stream/s",
        "arn:aws:kinesis:us-east-1:000000000000:stream/s\n",
    ],
)
def test_what_is_no_arn_of_a_stream_is_an_invalid_argument_everywhere(server, arn):
    server.create()
    assert server.refused("DescribeStreamSummary", StreamARN=arn) == "InvalidArgumentException"
    assert server.refused("ListTagsForResource", ResourceARN=arn) == "InvalidArgumentException"
    assert server.refused("UntagResource", ResourceARN=arn, TagKeys=["a"]) == "InvalidArgumentException"
    assert server.refused("TagResource", ResourceARN=arn, Tags={"a": "b"}) == "InvalidArgumentException"


def test_the_stream_of_an_arn():
    arn = "arn:aws-cn:kinesis:cn-north-1:123456789012:stream/orders"
    assert stream_of_arn(arn) == stream_of_arn(arn + "/consumer/c:1") == "orders"


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
