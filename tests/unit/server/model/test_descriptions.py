"""Tests of ``server.model.descriptions``."""

import re

import pytest

from shardline.server.model.settings import Delays, Limits

HOUR = 3600.0


def of(server, kind, **members):
    return server.ids(ShardFilter={"Type": kind, **members})


# ---- ListShards


def test_a_listing_goes_on_by_its_token_alone(server):
    server.create(shards=5)
    page = server.call("ListShards", StreamName="s", MaxResults=2)
    ids = [one["ShardId"] for one in page["Shards"]]
    while "NextToken" in page:
        token = page["NextToken"]
        page = server.call("ListShards", NextToken=token, MaxResults=2)
        ids += [one["ShardId"] for one in page["Shards"]]
    assert ids == [f"shardId-{number:012d}" for number in range(5)]
    assert len(server.call("ListShards", NextToken=token)["Shards"]) == 1


@pytest.mark.parametrize(
    "beside",
    [
        {"StreamName": "s"},
        {"StreamARN": "arn:aws:kinesis:us-east-1:000000000000:stream/s"},
        {"ExclusiveStartShardId": "shardId-000000000000"},
        {"StreamCreationTimestamp": 1.0},
        {"ShardFilter": {"Type": "AT_LATEST"}},
    ],
    ids=lambda beside: next(iter(beside)),
)
def test_nothing_stands_beside_a_token(server, beside):
    server.create(shards=2)
    token = server.call("ListShards", StreamName="s", MaxResults=1)["NextToken"]
    assert server.refused("ListShards", NextToken=token, **beside) == "InvalidArgumentException"
    (name,) = beside
    assert server.why("ListShards", NextToken=token, **beside) == f"NextToken and {name} cannot be provided together."
    assert len(server.call("ListShards", NextToken=token, MaxResults=1)["Shards"]) == 1  # MaxResults may


def test_a_token_keeps_its_filter(server):
    server.create(shards=2)
    server.split(0, at=1000)
    page = server.call("ListShards", StreamName="s", ShardFilter={"Type": "AT_LATEST"}, MaxResults=1)
    rest = server.call("ListShards", NextToken=page["NextToken"])
    assert [int(one["ShardId"][-12:]) for one in page["Shards"] + rest["Shards"]] == [1, 2, 3]


def test_a_token_expires_after_300_seconds(server):
    server.create(shards=2)
    token = server.call("ListShards", StreamName="s", MaxResults=1)["NextToken"]
    server.pass_time(300)
    assert server.call("ListShards", NextToken=token)
    server.pass_time(0.001)
    assert server.refused("ListShards", NextToken=token) == "ExpiredNextTokenException"


def test_a_token_of_something_else_is_an_invalid_argument(server):
    server.create(shards=2).create("t")
    token = server.call("ListStreams", Limit=1)["NextToken"]
    for wrong in (token, server.iterator(), "garbage"):
        assert server.refused("ListShards", NextToken=wrong) == "InvalidArgumentException"
    token = server.call("ListShards", StreamName="s", MaxResults=1)["NextToken"]
    server.call("DeleteStream", StreamName="s")
    assert server.refused("ListShards", NextToken=token) == "ResourceNotFoundException"
    server.pass_time(1).create(shards=2)
    assert server.refused("ListShards", NextToken=token) == "InvalidArgumentException"


def test_nothing_named_is_an_invalid_argument(server):
    assert server.refused("ListShards") == "InvalidArgumentException"
    assert server.refused("ListShards", StreamName="s") == "ResourceNotFoundException"


def test_at_most_1000_shards_a_page(server):
    server.create(shards=1001)
    page = server.call("ListShards", StreamName="s", MaxResults=10_000)
    assert len(page["Shards"]) == 1000
    assert len(server.call("ListShards", NextToken=page["NextToken"])["Shards"]) == 1


def test_a_stream_is_distinguished_from_an_earlier_one_of_its_name(server):
    server.create()
    created = server.summary()["StreamCreationTimestamp"]
    assert server.ids(StreamCreationTimestamp=int(created)) == [0]
    members = {"StreamName": "s", "StreamCreationTimestamp": created - 5}
    assert server.refused("ListShards", **members) == "ResourceNotFoundException"


def test_an_exclusive_start(server):
    server.create(shards=4)
    assert server.ids(ExclusiveStartShardId="shardId-000000000001") == [2, 3]
    assert server.ids(ExclusiveStartShardId="shardId-000000000003") == []


def test_every_filter_before_and_after_a_reshard(server):
    server.create(shards=2)
    created = server.now
    server.pass_time(HOUR)
    server.split(0, at=1000)
    split = server.now
    server.pass_time(HOUR)
    server.merge(2, 3)
    server.pass_time(HOUR)
    assert server.ids() == of(server, "FROM_TRIM_HORIZON") == [0, 1, 2, 3, 4]
    assert of(server, "AT_TRIM_HORIZON") == [0, 1]
    assert of(server, "AT_LATEST") == [1, 4]
    assert of(server, "AFTER_SHARD_ID", ShardId="shardId-000000000002") == [3, 4]
    assert of(server, "AT_TIMESTAMP", Timestamp=created + 1) == [0, 1]
    assert of(server, "AT_TIMESTAMP", Timestamp=split - 1) == [0, 1]
    assert of(server, "AT_TIMESTAMP", Timestamp=split) == [0, 1, 2, 3]  # both ends count, says the reference
    assert of(server, "AT_TIMESTAMP", Timestamp=split + 1) == [1, 2, 3]
    assert of(server, "AT_TIMESTAMP", Timestamp=server.now) == [1, 4]
    assert of(server, "AT_TIMESTAMP", Timestamp=1) == [0, 1]
    assert of(server, "FROM_TIMESTAMP", Timestamp=1) == [0, 1, 2, 3, 4]
    assert of(server, "FROM_TIMESTAMP", Timestamp=split) == [0, 1, 2, 3, 4]
    assert of(server, "FROM_TIMESTAMP", Timestamp=split + 1) == [1, 2, 3, 4]
    assert of(server, "FROM_TIMESTAMP", Timestamp=server.now) == [1, 4]


def test_filters_follow_the_horizon(server):
    server.create()
    server.pass_time(HOUR)
    server.split()
    server.pass_time(24 * HOUR - 1)
    assert of(server, "AT_TRIM_HORIZON") == [0]
    server.pass_time(2)
    assert of(server, "AT_TRIM_HORIZON") == of(server, "FROM_TRIM_HORIZON") == [1, 2]
    assert of(server, "AFTER_SHARD_ID", ShardId="shardId-000000000000") == [1, 2]


def test_what_was_split_in_the_moment_of_its_creation_is_at_the_horizon(server):
    server.create()
    server.split()
    assert 0 in of(server, "AT_TRIM_HORIZON")
    assert of(server, "AT_LATEST") == [1, 2]


def test_the_horizon_of_a_stream_that_took_its_time_is_its_first_shards(make_server):
    server = make_server(delays=Delays(create=60)).create().pass_time(100)
    server.split()
    server.pass_time(100)
    assert of(server, "AT_TRIM_HORIZON") == [0]


@pytest.mark.parametrize(
    "wanted",
    [
        {"Type": "AFTER_SHARD_ID"},
        {"Type": "AT_TIMESTAMP"},
        {"Type": "FROM_TIMESTAMP"},
        {"Type": "AT_LATEST", "ShardId": "shardId-000000000000"},
        {"Type": "AT_TRIM_HORIZON", "Timestamp": 1.0},
    ],
)
def test_a_filter_that_makes_no_sense_is_an_invalid_argument(server, wanted):
    server.create()
    assert server.refused("ListShards", StreamName="s", ShardFilter=wanted) == "InvalidArgumentException"


# ---- DescribeStream, ListStreams


def test_a_description_is_paged_by_shard(server):
    server.create(shards=150)
    first = server.call("DescribeStream", StreamName="s")["StreamDescription"]
    assert first["HasMoreShards"] is True
    assert len(first["Shards"]) == 100
    members = {"StreamName": "s", "ExclusiveStartShardId": first["Shards"][-1]["ShardId"]}
    rest = server.call("DescribeStream", **members)["StreamDescription"]
    assert rest["HasMoreShards"] is False
    assert [one["ShardId"] for one in rest["Shards"]] == [f"shardId-{number:012d}" for number in range(100, 150)]
    assert len(server.call("DescribeStream", StreamName="s", Limit=7)["StreamDescription"]["Shards"]) == 7
    assert len(server.call("DescribeStream", StreamName="s", Limit=10_000)["StreamDescription"]["Shards"]) == 100


def test_a_stream_has_an_id_that_another_one_of_its_name_has_not(server):
    first = server.create().create("t").summary()["StreamId"]
    assert re.fullmatch(r"[a-z0-9]{20}-[a-z0-9]{3}", first)
    assert server.pass_time(10).summary()["StreamId"] == first != server.summary("t")["StreamId"]
    server.call("DeleteStream", StreamName="s")
    assert server.create().summary()["StreamId"] != first


def test_an_id_names_no_stream(server):
    server.create()
    members = {"StreamId": server.summary()["StreamId"]}
    assert server.refused("DescribeStreamSummary", **members) == "InvalidArgumentException"
    assert server.call("DescribeStreamSummary", StreamName="s", **members)
    assert server.refused("DescribeStreamSummary", StreamName="s", StreamId="no id") == "ValidationException"


def test_streams_are_listed_both_ways(server):
    names = [f"s{number:03d}" for number in range(120)]
    for name in reversed(names):
        server.create(name)
    first = server.call("ListStreams")
    assert first["StreamNames"] == names[:100]
    assert first["HasMoreStreams"] is True
    by_token = server.call("ListStreams", NextToken=first["NextToken"])
    by_name = server.call("ListStreams", ExclusiveStartStreamName="s099")
    assert by_token == by_name
    assert by_name["StreamNames"] == names[100:]
    assert by_name["HasMoreStreams"] is False
    assert "NextToken" not in by_name
    assert server.call("ListStreams", Limit=3)["StreamNames"] == names[:3]
    assert len(server.call("ListStreams", Limit=10_000)["StreamNames"]) == 100
    assert by_name["StreamSummaries"][0]["StreamARN"] == server.arn("s100")
    server.pass_time(301)
    assert server.refused("ListStreams", NextToken=first["NextToken"]) == "ExpiredNextTokenException"


def test_limits_are_described(make_server):
    server = make_server(delays=Delays(create=1)).create("a", 3)
    server.call("CreateStream", StreamName="b", StreamModeDetails={"StreamMode": "ON_DEMAND"})
    expected = {"ShardLimit": 20_000, "OpenShardCount": 7, "OnDemandStreamCount": 1, "OnDemandStreamCountLimit": 50}
    expected |= {"ChannelCount": 0, "ChannelCountLimit": 100}
    assert server.call("DescribeLimits") == expected
    server.pass_time(1)
    assert server.call("DescribeLimits") == expected


def test_no_limit_is_a_large_one(make_server):
    server = make_server(limits=Limits(shards_per_account=None, on_demand_streams=None, channels_per_account=None))
    limits = server.call("DescribeLimits")
    assert limits["ShardLimit"] == limits["OnDemandStreamCountLimit"] == limits["ChannelCountLimit"] == 1_000_000
    server.create(shards=30_000)


def test_creation_times_are_whole_seconds(server):
    """Recorded on AWS: kinesalite's createStream.js, and LocalStack's test of the CBOR with a creation time."""
    server.pass_time(0.75).create()
    server.register()
    whole = int(server.now)
    (consumer,) = server.call("ListStreamConsumers", StreamARN=server.arn())["Consumers"]
    described = server.call("DescribeStream", StreamName="s")["StreamDescription"]
    (listed,) = server.call("ListStreams")["StreamSummaries"]
    times = [answer["StreamCreationTimestamp"] for answer in (described, listed, server.summary())]
    assert [*times, consumer["ConsumerCreationTimestamp"]] == [whole] * 4
    assert all(type(time) is int for time in times)
    for fits in (whole, whole + 0.5):
        assert server.ids(StreamCreationTimestamp=fits) == [0]
    for other in (whole - 1, whole - 0.001, whole + 1, float("nan"), float("inf")):
        members = {"StreamName": "s", "StreamCreationTimestamp": other}
        assert server.refused("ListShards", **members) == "ResourceNotFoundException"
