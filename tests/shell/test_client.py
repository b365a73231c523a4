"""Which requests does each method of the client send, and what does it return for the answer?"""

import json

import pytest

from shardline import Entry, ServiceError, ShardFilter, TransportError, UsageError, WaitTimeout, at_timestamp
from shardline.aio import stream_waiters
from shardline.core import page_tokens

# One transport is enough here: the transports have their own tests.
pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("wire", [("asyncio", False)], indirect=True, ids=[""])]

ARN = "arn:aws:kinesis:eu-west-1:123456789012:stream/orders"
CONSUMER = f"{ARN}/consumer/c:1"
DESCRIBED = {"ConsumerName": "c", "ConsumerARN": CONSUMER, "ConsumerCreationTimestamp": 1.5}


@pytest.fixture
async def client(server, make_client):
    async with make_client(server) as made:
        yield made


@pytest.fixture
def ask(server, client):
    """Call a method. Return its result, and (operation, members) of each request."""

    async def call(answers, method, *args, **kwargs):
        for answer in answers if isinstance(answers, list) else [answers]:
            status = 400 if "__type" in answer else 200
            server.reply(json.dumps(answer).encode(), status=status)
        before = len(server.requests)
        value = await getattr(client, method)(*args, **kwargs)
        return value, [(one.operation, json.loads(one.body)) for one in server.requests[before:]]

    return call


def summary(status="ACTIVE"):
    return {"StreamDescriptionSummary": {"StreamName": "orders", "StreamARN": ARN, "StreamStatus": status}}


def shard(number, first="0", last="99"):
    return {
        "ShardId": f"shardId-{number}",
        "HashKeyRange": {"StartingHashKey": first, "EndingHashKey": last},
        "SequenceNumberRange": {"StartingSequenceNumber": "1"},
    }


NAME = {"StreamName": "orders"}


async def test_put_record(ask):
    answer = {"ShardId": "shardId-0", "SequenceNumber": "7"}
    value, asked = await ask(answer, "put_record", "orders", b"\0", "k")
    assert (value.shard_id, value.sequence_number) == ("shardId-0", "7")
    assert asked == [("PutRecord", NAME | {"Data": "AA==", "PartitionKey": "k"})]
    _, asked = await ask(answer, "put_record", ARN, b"", None, explicit_hash_key="5", sequence_number_for_ordering="3")
    members = {"StreamARN": ARN, "Data": "", "ExplicitHashKey": "5", "SequenceNumberForOrdering": "3"}
    assert asked == [("PutRecord", members)]


async def test_put_records_takes_entries_and_tuples(ask):
    results = {"Records": [{"SequenceNumber": str(n), "ShardId": "s"} for n in range(3)]}
    entries = (one for one in [Entry(b"a", "k"), (b"b", None), (b"c", "k", "9")])
    _, [(operation, members)] = await ask(results, "put_records", "orders", entries)
    assert operation == "PutRecords"
    assert [sorted(one) for one in members["Records"]] == [
        ["Data", "PartitionKey"],
        ["Data"],
        ["Data", "ExplicitHashKey", "PartitionKey"],
    ]


async def test_reading(ask):
    value, asked = await ask({"ShardIterator": "AAA"}, "get_shard_iterator", "orders", "shardId-0", at_timestamp(2.5))
    assert value == "AAA"
    assert asked == [
        ("GetShardIterator", NAME | {"ShardId": "shardId-0", "ShardIteratorType": "AT_TIMESTAMP", "Timestamp": 2.5})
    ]
    page = {"Records": [{"Data": "QQ==", "SequenceNumber": "1"}], "NextShardIterator": None, "ChildShards": []}
    value, asked = await ask(page, "get_records", "AAA", limit=3, stream=ARN)
    assert (value.records[0].data, value.records[0].key, value.next_iterator) == (b"A", None, None)
    assert asked == [("GetRecords", {"ShardIterator": "AAA", "Limit": 3, "StreamARN": ARN})]


@pytest.mark.parametrize(
    ("method", "args", "kwargs"),
    [
        ("get_records", ("",), {}),
        ("get_records", (7,), {}),
        ("get_records", ("A" * 3_000,), {}),
        ("get_records", ("A",), {"limit": 0}),
        ("get_records", ("A",), {"limit": True}),
        ("get_records", ("A",), {"limit": 10_001}),
        ("get_shard_iterator", ("orders", "", "LATEST"), {}),
        ("get_shard_iterator", ("orders", "shardId-0", "SHARD_END"), {}),
        ("get_shard_iterator", ("orders", "shardId-0", "NOW"), {}),
        ("describe_stream_summary", ("no name",), {}),
        ("create_stream", (ARN,), {}),
        ("create_stream", ("orders",), {"shards": 0}),
        ("create_stream", ("orders",), {"mode": "MAGIC"}),
        ("create_stream", ("orders",), {"mode": "ON_DEMAND", "shards": 2}),
        ("create_stream", ("orders",), {"wait": -1}),
        ("delete_stream", ("orders",), {"wait": "yes"}),
        ("update_shard_count", ("orders", True), {}),
        ("update_max_record_size", (ARN, 1023), {}),
        ("increase_stream_retention_period", ("orders", "24"), {}),
        ("update_stream_mode", (ARN, "on-demand"), {}),
        ("start_stream_encryption", ("orders", "alias/x"), {"wait": 0}),
        ("remove_tags_from_stream", ("orders", "key"), {}),
        ("describe_stream_consumer", (), {}),
        ("describe_stream_consumer", (CONSUMER,), {"stream": ARN}),
        ("describe_stream_consumer", ("c",), {}),
        ("deregister_stream_consumer", (), {"stream": ARN}),
        ("split_shard", ("orders", "shardId-0", "-1"), {}),
        ("call", ("SubscribeToShard", {}), {}),
        ("call", ("",), {}),
        ("call", (None,), {}),
        ("call", ("DescribeStream", "orders"), {}),
    ],
)
async def test_a_wrong_argument_sends_nothing(method, args, kwargs, client, server):
    with pytest.raises(UsageError):
        await getattr(client, method)(*args, **kwargs)
    assert server.connections == 0


async def test_list_shards_reads_all_pages(ask):
    pages = [{"Shards": [shard(0)], "NextToken": "t1"}, {"Shards": [], "NextToken": "t2"}, {"Shards": [shard(1)]}]
    value, asked = await ask(pages, "list_shards", "orders", "AT_LATEST")
    assert [one.shard_id for one in value] == ["shardId-0", "shardId-1"]
    first = NAME | {"ShardFilter": {"Type": "AT_LATEST"}, "MaxResults": asked[0][1]["MaxResults"]}
    assert asked[0] == ("ListShards", first)
    assert [members.get("NextToken") for _, members in asked] == [None, "t1", "t2"]
    assert all("StreamName" not in members for _, members in asked[1:])
    _, [(_, members)] = await ask({}, "list_shards", ARN, ShardFilter("AFTER_SHARD_ID", "shardId-4"))
    assert members["ShardFilter"] == {"Type": "AFTER_SHARD_ID", "ShardId": "shardId-4"}


async def test_list_streams_reads_all_pages(ask):
    pages = [
        {"StreamNames": ["a"], "HasMoreStreams": True, "NextToken": "t"},
        {"StreamNames": ["b"], "HasMoreStreams": True},
        {"StreamNames": ["c"], "HasMoreStreams": False, "StreamSummaries": [{"StreamName": "c", "StreamARN": ARN}]},
    ]
    value, asked = await ask(pages, "list_streams")
    assert [(one.name, one.arn) for one in value] == [("a", None), ("b", None), ("c", ARN)]
    assert asked == [
        ("ListStreams", {}),
        ("ListStreams", {"NextToken": "t"}),
        ("ListStreams", {"ExclusiveStartStreamName": "b"}),
    ]


LISTINGS = {
    "list_shards": (lambda start: {"Shards": [shard(0)], "NextToken": start}, "orders"),
    "list_streams": (lambda start: {"StreamNames": ["a"], "HasMoreStreams": True, "NextToken": start},),
    "list_stream_consumers": (lambda start: {"Consumers": [], "NextToken": start}, ARN),
    "list_tags_for_stream": (lambda start: {"Tags": [{"Key": start}], "HasMoreTags": True}, "orders"),
}


@pytest.mark.parametrize("method", ["list_shards", "list_stream_consumers"])
async def test_an_empty_token_is_none(method, ask):
    page, *arguments = LISTINGS[method]
    _, asked = await ask(page(""), method, *arguments)
    assert len(asked) == 1


async def test_an_empty_token_of_streams_is_none(ask):
    pages = [{"StreamNames": ["a"], "HasMoreStreams": True, "NextToken": ""}, {"StreamNames": ["b"]}]
    value, asked = await ask(pages, "list_streams")
    assert [one.name for one in value] == ["a", "b"]
    assert asked[1] == ("ListStreams", {"ExclusiveStartStreamName": "a"})


@pytest.mark.parametrize("starts", [["t", "t"], ["t", "u", "t"]])
@pytest.mark.parametrize("method", LISTINGS)
async def test_a_listing_that_begins_again_is_given_up(method, starts, ask, server):
    page, *arguments = LISTINGS[method]
    with pytest.raises(TransportError, match="the pages of the listing do not end") as caught:
        await ask([page(start) for start in starts], method, *arguments)
    assert caught.value.code == "BadAnswer"
    assert len(server.requests) == len(starts)


@pytest.mark.parametrize("method", LISTINGS)
async def test_a_listing_without_end_is_given_up(method, ask, server, monkeypatch):
    monkeypatch.setattr(page_tokens, "PAGES_MAX", 2)
    page, *arguments = LISTINGS[method]
    with pytest.raises(TransportError, match="the pages of the listing do not end"):
        await ask([page(f"t{number}") for number in range(3)], method, *arguments)
    assert len(server.requests) == 3


async def test_tags(ask):
    pages = [
        {"Tags": [{"Key": "a", "Value": "1"}], "HasMoreTags": True},
        {"Tags": [{"Key": "b"}], "HasMoreTags": False},
    ]
    value, asked = await ask(pages, "list_tags_for_stream", "orders")
    assert value == {"a": "1", "b": ""}
    assert asked == [("ListTagsForStream", NAME), ("ListTagsForStream", NAME | {"ExclusiveStartTagKey": "a"})]
    _, asked = await ask({}, "add_tags_to_stream", "orders", {"a": "1"})
    assert asked == [("AddTagsToStream", NAME | {"Tags": {"a": "1"}})]
    _, asked = await ask({}, "remove_tags_from_stream", "orders", iter(["a"]))
    assert asked == [("RemoveTagsFromStream", NAME | {"TagKeys": ["a"]})]


async def test_create_stream(ask):
    _, asked = await ask({}, "create_stream", "orders")
    assert asked == [("CreateStream", NAME | {"ShardCount": 1})]
    _, asked = await ask({}, "create_stream", "orders", shards=3, tags={"a": "b"})
    assert asked == [("CreateStream", NAME | {"ShardCount": 3, "Tags": {"a": "b"}})]
    _, asked = await ask({}, "create_stream", "orders", mode="ON_DEMAND")
    assert asked == [("CreateStream", NAME | {"StreamModeDetails": {"StreamMode": "ON_DEMAND"}})]


@pytest.fixture
def hurried(monkeypatch):
    monkeypatch.setattr(stream_waiters, "_FIRST_PAUSE", 0.001)


async def test_a_change_can_be_waited_for(ask, hurried):
    gone = {"__type": "ResourceNotFoundException", "message": "gone"}
    _, asked = await ask([{}, gone, summary("CREATING"), summary()], "create_stream", "orders", wait=True)
    assert [operation for operation, _ in asked] == ["CreateStream"] + ["DescribeStreamSummary"] * 3
    _, asked = await ask([{}, summary("DELETING"), gone], "delete_stream", ARN, enforce_consumer_deletion=True, wait=5)
    assert asked[0] == ("DeleteStream", {"StreamARN": ARN, "EnforceConsumerDeletion": True})
    assert len(asked) == 3
    update = {"CurrentShardCount": 1, "TargetShardCount": 2}
    value, asked = await ask([update, summary("UPDATING"), summary()], "update_shard_count", "orders", 2, wait=True)
    assert (value.target_shard_count, len(asked)) == (2, 3)
    assert asked[0][1] == NAME | {"TargetShardCount": 2, "ScalingType": "UNIFORM_SCALING"}
    _, asked = await ask([{}, summary()], "merge_shards", "orders", "shardId-0", "shardId-1", wait=True)
    assert asked[0] == ("MergeShards", NAME | {"ShardToMerge": "shardId-0", "AdjacentShardToMerge": "shardId-1"})


async def test_a_wait_that_takes_too_long(ask, hurried):
    with pytest.raises(WaitTimeout, match=r"stream orders is not ACTIVE after 0\.05 s: it is CREATING"):
        await ask([{}] + [summary("CREATING")] * 40, "create_stream", "orders", wait=0.05)


async def test_split_shard(ask):
    _, asked = await ask({}, "split_shard", "orders", "shardId-0", 50)
    assert asked == [("SplitShard", NAME | {"ShardToSplit": "shardId-0", "NewStartingHashKey": "50"})]
    _, asked = await ask([{"Shards": [shard(0)]}, {}], "split_shard", "orders", "shardId-0")
    assert asked[1] == ("SplitShard", NAME | {"ShardToSplit": "shardId-0", "NewStartingHashKey": "50"})
    with pytest.raises(UsageError, match="has no shard 'shardId-9'"):
        await ask({"Shards": [shard(0)]}, "split_shard", "orders", "shardId-9")


async def test_consumers(ask, hurried):
    registered = {"Consumer": DESCRIBED | {"ConsumerStatus": "CREATING"}}
    active = {"ConsumerDescription": DESCRIBED | {"ConsumerStatus": "ACTIVE", "StreamARN": ARN}}
    creating = {"ConsumerDescription": DESCRIBED | {"ConsumerStatus": "CREATING"}}
    value, asked = await ask(registered, "register_stream_consumer", ARN, "c")
    assert (value.status, asked) == ("CREATING", [("RegisterStreamConsumer", {"StreamARN": ARN, "ConsumerName": "c"})])
    value, asked = await ask(
        [summary(), registered, creating, active, active], "register_stream_consumer", "orders", "c", wait=True
    )
    assert (value.status, value.arn, len(asked)) == ("ACTIVE", CONSUMER, 5)
    value, asked = await ask(active, "describe_stream_consumer", CONSUMER)
    assert asked == [("DescribeStreamConsumer", {"ConsumerARN": CONSUMER})]
    _, asked = await ask(active, "describe_stream_consumer", stream=ARN, name="c")
    assert asked == [("DescribeStreamConsumer", {"StreamARN": ARN, "ConsumerName": "c"})]
    _, asked = await ask({}, "deregister_stream_consumer", CONSUMER)
    assert asked == [("DeregisterStreamConsumer", {"ConsumerARN": CONSUMER})]
    pages = [{"Consumers": [registered["Consumer"]], "NextToken": "t"}, {"Consumers": []}]
    value, asked = await ask(pages, "list_stream_consumers", ARN)
    assert [one.name for one in value] == ["c"]
    assert asked[1] == ("ListStreamConsumers", {"StreamARN": ARN, "NextToken": "t"})


async def test_the_rest(ask):
    _, asked = await ask([summary(), {}], "update_max_record_size", "orders", 2048)
    assert asked[1] == ("UpdateMaxRecordSize", {"StreamARN": ARN, "MaxRecordSizeInKiB": 2048})
    _, asked = await ask({}, "increase_stream_retention_period", "orders", 48)
    assert asked == [("IncreaseStreamRetentionPeriod", NAME | {"RetentionPeriodHours": 48})]
    _, asked = await ask({}, "decrease_stream_retention_period", "orders", 24)
    assert asked == [("DecreaseStreamRetentionPeriod", NAME | {"RetentionPeriodHours": 24})]
    _, asked = await ask([summary(), {}], "update_stream_mode", "orders", "ON_DEMAND")
    assert asked[1] == ("UpdateStreamMode", {"StreamARN": ARN, "StreamModeDetails": {"StreamMode": "ON_DEMAND"}})
    key = {"EncryptionType": "KMS", "KeyId": "alias/x"}
    _, asked = await ask({}, "start_stream_encryption", "orders", "alias/x")
    assert asked == [("StartStreamEncryption", NAME | key)]
    _, asked = await ask([{}, summary("UPDATING"), summary()], "stop_stream_encryption", "orders", "alias/x", wait=True)
    assert asked[0] == ("StopStreamEncryption", NAME | key)
    assert len(asked) == 3
    value, asked = await ask({"ShardLimit": 5}, "call", "DescribeLimits")
    assert (value, asked) == ({"ShardLimit": 5}, [("DescribeLimits", {})])
    value, _ = await ask(summary("UPDATING"), "describe_stream_summary", ARN)
    assert (value.status, value.arn) == ("UPDATING", ARN)


async def test_a_failure_in_the_middle_of_many_pages_is_raised(ask):
    pages = [{"Shards": [shard(0)], "NextToken": "t1"}, {"__type": "ExpiredNextTokenException", "message": "too late"}]
    with pytest.raises(ServiceError) as caught:
        await ask(pages, "list_shards", "orders")
    assert (caught.value.kind, caught.value.operation) == ("expired-token", "ListShards")
