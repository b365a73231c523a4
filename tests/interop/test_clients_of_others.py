"""Do third-party clients work with our server?

boto3 and aiobotocore run in this process. The AWS CLI, the peers aiokpl and async-kinesis, and the AWS SDK for
JavaScript run in their own environments, as subprocesses that get only the endpoint from us.
"""

import base64
import json
import os
import subprocess
import time
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import boto3
import pytest
from aiobotocore.session import get_session
from botocore.config import Config
from botocore.exceptions import EventStreamError

import shardline
from shardline import deserializers
from shardline.codec.value_packing import PACKINGS
from shardline.server.model.settings import Delays
from shardline.testing import LocalKinesis

pytestmark = pytest.mark.interop

SCRIPTS = Path(__file__).parent / "clients"
ONCE = Config(retries={"total_max_attempts": 1})
FIRST, SECOND, THIRD = (f"shardId-{n:012d}" for n in range(3))
HALF = str(1 << 127)


@pytest.fixture
def kinesis():
    with LocalKinesis(shards=2, limits=True) as server:
        yield server


@pytest.fixture
def client(kinesis):
    made = boto3.client("kinesis", **kinesis.boto3_arguments, config=ONCE)
    yield made
    made.close()


def read_all(client, stream, shard_id):
    """Return every record of a shard, and the last page."""
    place = {"StreamName": stream, "ShardId": shard_id, "ShardIteratorType": "TRIM_HORIZON"}
    page = {"NextShardIterator": client.get_shard_iterator(**place)["ShardIterator"]}
    records = []
    while True:
        page = client.get_records(ShardIterator=page["NextShardIterator"])
        records += page["Records"]
        if page["MillisBehindLatest"] == 0:
            return records, page
        time.sleep(0.2)  # five calls a second


# ---- boto3


def test_boto3_reads_back_what_it_put_over_a_reshard(kinesis, client):
    kinesis.create_stream("s", shards=1)
    entries = [{"Data": b"%d" % n, "PartitionKey": f"schlüssel-{n}"} for n in range(200)]
    put = client.put_records(StreamName="s", Records=entries)
    assert put["FailedRecordCount"] == 0
    records, page = read_all(client, "s", FIRST)
    assert [(one["Data"], one["PartitionKey"]) for one in records] == [
        (one["Data"], one["PartitionKey"]) for one in entries
    ]
    assert [one["SequenceNumber"] for one in records] == [one["SequenceNumber"] for one in put["Records"]]
    client.split_shard(StreamName="s", ShardToSplit=FIRST, NewStartingHashKey=HALF)
    more = client.put_records(StreamName="s", Records=entries)
    assert {one["ShardId"] for one in more["Records"]} == {SECOND, THIRD}
    end = client.get_records(ShardIterator=page["NextShardIterator"])
    assert "NextShardIterator" not in end
    assert [one["ShardId"] for one in end["ChildShards"]] == [SECOND, THIRD]
    assert sum(len(read_all(client, "s", shard)[0]) for shard in (SECOND, THIRD)) == len(entries)


def test_boto3_pages_through_every_listing(kinesis, client):
    """ListShards is paged by hand: boto3's paginator repeats StreamName beside the token, which AWS's reference
    forbids.
    """
    for name in "abcdefgh":
        kinesis.create_stream(name, shards=7)
    arn = client.describe_stream_summary(StreamName="a")["StreamDescriptionSummary"]["StreamARN"]
    names = [f"consumer-{n}" for n in range(5)]
    for name in names:
        client.register_stream_consumer(StreamARN=arn, ConsumerName=name)

    def paged(operation, field, size, **params):
        pages = client.get_paginator(operation).paginate(**params, PaginationConfig={"PageSize": size})
        found = [page.get(field, page.get("StreamDescription", {}).get(field)) for page in pages]
        assert len(found) > 1
        assert all(len(one) <= size for one in found)
        return [one for page in found for one in page]

    assert paged("list_streams", "StreamNames", 3) == list("abcdefgh")
    ids = [f"shardId-{n:012d}" for n in range(7)]
    page = client.list_shards(StreamName="a", MaxResults=2)
    listed = page["Shards"]
    while "NextToken" in page:
        page = client.list_shards(NextToken=page["NextToken"], MaxResults=2)
        listed += page["Shards"]
    assert [one["ShardId"] for one in listed] == ids
    for named in ({"StreamName": "a"}, {"StreamARN": arn}):
        with pytest.raises(
            client.exceptions.InvalidArgumentException, match=f"NextToken and {next(iter(named))} cannot"
        ):
            paged("list_shards", "Shards", 2, **named)
    assert [one["ShardId"] for one in paged("describe_stream", "Shards", 3, StreamName="a")] == ids
    consumers = paged("list_stream_consumers", "Consumers", 2, StreamARN=arn)
    assert [one["ConsumerName"] for one in consumers] == names


def test_boto3_waits_for_a_stream_to_come_and_to_go():
    with LocalKinesis(delays=Delays(create=0.3, delete=0.3)) as kinesis:
        client = boto3.client("kinesis", **kinesis.boto3_arguments, config=ONCE)
        quick = {"Delay": 0.1, "MaxAttempts": 50}
        client.create_stream(StreamName="s", ShardCount=1)
        assert client.describe_stream(StreamName="s")["StreamDescription"]["StreamStatus"] == "CREATING"
        client.get_waiter("stream_exists").wait(StreamName="s", WaiterConfig=quick)
        assert client.describe_stream(StreamName="s")["StreamDescription"]["StreamStatus"] == "ACTIVE"
        client.delete_stream(StreamName="s")
        assert client.describe_stream(StreamName="s")["StreamDescription"]["StreamStatus"] == "DELETING"
        client.get_waiter("stream_not_exists").wait(StreamName="s", WaiterConfig=quick)
        with pytest.raises(client.exceptions.ResourceNotFoundException):
            client.describe_stream(StreamName="s")
        client.close()


def test_boto3_does_every_ordinary_operation(kinesis, client):
    """These are the operations that the other tests here do not use. boto3's models check the answers."""
    client.create_stream(StreamName="s", ShardCount=2, Tags={"a": "1"})
    summary = client.describe_stream_summary(StreamName="s")["StreamDescriptionSummary"]
    arn, name = summary["StreamARN"], {"StreamName": "s"}
    client.add_tags_to_stream(**name, Tags={"b": "2"})
    client.remove_tags_from_stream(**name, TagKeys=["a"])
    assert client.list_tags_for_stream(**name)["Tags"] == [{"Key": "b", "Value": "2"}]
    client.tag_resource(ResourceARN=arn, Tags={"c": "3"})
    client.untag_resource(ResourceARN=arn, TagKeys=["b"])
    assert client.list_tags_for_resource(ResourceARN=arn)["Tags"] == [{"Key": "c", "Value": "3"}]
    client.increase_stream_retention_period(**name, RetentionPeriodHours=48)
    client.decrease_stream_retention_period(**name, RetentionPeriodHours=24)
    client.start_stream_encryption(**name, EncryptionType="KMS", KeyId="alias/aws/kinesis")
    assert client.put_record(**name, Data=b"x", PartitionKey="k")["EncryptionType"] == "KMS"
    client.stop_stream_encryption(**name, EncryptionType="KMS", KeyId="alias/aws/kinesis")
    enabled = client.enable_enhanced_monitoring(**name, ShardLevelMetrics=["ALL"])
    assert len(enabled["DesiredShardLevelMetrics"]) == 7
    assert client.disable_enhanced_monitoring(**name, ShardLevelMetrics=["ALL"])["DesiredShardLevelMetrics"] == []
    client.merge_shards(**name, ShardToMerge=FIRST, AdjacentShardToMerge=SECOND)
    scaled = client.update_shard_count(**name, TargetShardCount=2, ScalingType="UNIFORM_SCALING")
    assert (scaled["CurrentShardCount"], scaled["TargetShardCount"]) == (1, 2)
    client.update_max_record_size(StreamARN=arn, MaxRecordSizeInKiB=2048)
    client.update_stream_mode(StreamARN=arn, StreamModeDetails={"StreamMode": "ON_DEMAND"})
    limits = client.describe_limits()
    assert (limits["OpenShardCount"], limits["OnDemandStreamCount"]) == (2, 1)
    consumer = client.register_stream_consumer(StreamARN=arn, ConsumerName="c")["Consumer"]
    described = client.describe_stream_consumer(ConsumerARN=consumer["ConsumerARN"])["ConsumerDescription"]
    assert (described["ConsumerStatus"], described["StreamARN"]) == ("ACTIVE", arn)
    with pytest.raises(client.exceptions.ResourceInUseException):
        client.delete_stream(**name)
    client.deregister_stream_consumer(ConsumerARN=consumer["ConsumerARN"])
    client.delete_stream(StreamARN=arn)
    assert client.list_streams()["StreamNames"] == []


def test_boto3_is_throttled_and_sees_which_entries_failed(kinesis, client):
    kinesis.create_stream("s", shards=1)
    kinesis.clock.freeze()
    entries = [{"Data": bytes(200 * 1024), "PartitionKey": "k"}] * 7
    answer = client.put_records(StreamName="s", Records=entries)
    assert answer["FailedRecordCount"] == 2
    assert {one.get("ErrorCode") for one in answer["Records"][5:]} == {"ProvisionedThroughputExceededException"}
    with pytest.raises(client.exceptions.ProvisionedThroughputExceededException):
        client.put_record(StreamName="s", **entries[0])


def test_boto3_asks_what_would_succeed(kinesis, client):
    kinesis.create_stream("s", shards=1)
    arn = client.describe_stream_summary(StreamName="s")["StreamDescriptionSummary"]["StreamARN"]
    consumer = client.register_stream_consumer(StreamARN=arn, ConsumerName="c")["Consumer"]["ConsumerARN"]
    iterator = client.get_shard_iterator(StreamName="s", ShardId=FIRST, ShardIteratorType="TRIM_HORIZON")
    entry = {"Data": b"x", "PartitionKey": "k"}
    for operation, members in (
        ("put_record", {"StreamName": "s", **entry}),
        ("put_records", {"StreamName": "s", "Records": [entry]}),
        ("get_shard_iterator", {"StreamName": "s", "ShardId": FIRST, "ShardIteratorType": "LATEST"}),
        ("get_records", {"ShardIterator": iterator["ShardIterator"]}),
        ("subscribe_to_shard", {"ConsumerARN": consumer, "ShardId": FIRST, "StartingPosition": {"Type": "LATEST"}}),
    ):
        with pytest.raises(client.exceptions.DryRunOperationException) as dry:
            getattr(client, operation)(**members, DryRun=True)
        assert dry.value.response["ResponseMetadata"]["HTTPStatusCode"] == 400
    with pytest.raises(client.exceptions.ResourceNotFoundException):
        client.put_record(StreamName="t", **entry, DryRun=True)
    assert list(kinesis.streams["s"].records) == []
    assert client.get_records(ShardIterator=iterator["ShardIterator"])["Records"] == []


# ---- aiobotocore, on HTTP/1.1


@asynccontextmanager
async def subscribed(kinesis, shard_id, kind="TRIM_HORIZON"):
    """A client of aiobotocore, and its response to SubscribeToShard."""
    async with get_session().create_client("kinesis", **kinesis.boto3_arguments, config=ONCE) as client:
        arn = kinesis.streams["s"].arn
        made = await client.register_stream_consumer(StreamARN=arn, ConsumerName="c")
        answer = await client.subscribe_to_shard(
            ConsumerARN=made["Consumer"]["ConsumerARN"], ShardId=shard_id, StartingPosition={"Type": kind}
        )
        try:
            yield client, answer["EventStream"]
        finally:
            # Otherwise the garbage collector complains about its connection, in whatever test runs then.
            answer["EventStream"].close()


@pytest.fixture
def anyio_backend():
    return "asyncio"


@pytest.mark.anyio
async def test_aiobotocore_gets_what_is_pushed_and_the_children_at_the_end_of_the_shard(kinesis):
    """aiobotocore itself checks that the first event is the initial response."""
    kinesis.create_stream("s", shards=1)
    async with subscribed(kinesis, FIRST) as (client, events):
        with anyio.fail_after(20):
            await client.put_record(StreamName="s", Data=b"pushed", PartitionKey="k")
            received, children, last = [], [], None
            async for event in events:
                last = event["SubscribeToShardEvent"]
                received += [record["Data"] for record in last["Records"]]
                if received == [b"pushed"] and "ContinuationSequenceNumber" in last:
                    await client.put_record(StreamName="s", Data=b"later", PartitionKey="k")
                elif received == [b"pushed", b"later"] and "ContinuationSequenceNumber" in last:
                    await client.split_shard(StreamName="s", ShardToSplit=FIRST, NewStartingHashKey=HALF)
                children += last.get("ChildShards", [])
    assert received == [b"pushed", b"later"]
    assert [one["ShardId"] for one in children] == [SECOND, THIRD]
    assert [one["ParentShards"] for one in children] == [[FIRST], [FIRST]]
    assert children[1]["HashKeyRange"]["StartingHashKey"] == HALF
    assert "ContinuationSequenceNumber" not in last


@pytest.mark.anyio
async def test_aiobotocore_raises_what_an_exception_frame_says(kinesis):
    kinesis.create_stream("s", shards=1)
    kinesis.faults.fan_out_exception("InternalFailureException", "sorry", count=1)
    async with subscribed(kinesis, FIRST, "LATEST") as (_, events):
        with anyio.fail_after(20), pytest.raises(EventStreamError, match="sorry") as caught:
            async for _ in events:
                pass
    assert caught.value.response["Error"]["Code"] == "InternalFailureException"


@pytest.mark.anyio
async def test_aiobotocore_is_refused_a_second_subscription_within_five_seconds(kinesis):
    kinesis.create_stream("s", shards=1)
    async with subscribed(kinesis, FIRST) as (client, events):
        consumers = await client.list_stream_consumers(StreamARN=kinesis.streams["s"].arn)
        again = {
            "ConsumerARN": consumers["Consumers"][0]["ConsumerARN"],
            "ShardId": FIRST,
            "StartingPosition": {"Type": "LATEST"},
        }
        with pytest.raises(client.exceptions.ResourceInUseException):
            await client.subscribe_to_shard(**again)
        kinesis.clock.advance(6)
        with anyio.fail_after(20):
            taken = (await client.subscribe_to_shard(**again))["EventStream"]
            async for event in events:  # the old subscription ends; an empty event may precede that
                assert event["SubscribeToShardEvent"]["Records"] == []
        taken.close()


# ---- in their own environment


@pytest.fixture
def run(kinesis, clients_python, tmp_path):
    """Run the clients' Python with only the settings for the server in its environment."""

    def running(*arguments):
        environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "AWS_EC2_METADATA_DISABLED": "true"}
        done = subprocess.run(
            [str(clients_python), *arguments],
            env=environment | kinesis.environment,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=90,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return running


@pytest.fixture
def aws(run, kinesis):
    """Run ``aws kinesis``, and return its output."""

    def command(name, *arguments):
        said = run(
            "-m", "awscli", "kinesis", name, "--endpoint-url", kinesis.endpoint_url, "--output", "json", *arguments
        )
        return json.loads(said) if said else None

    return command


def test_the_aws_cli_creates_puts_reads_splits_and_deletes(kinesis, aws):
    stream = ("--stream-name", "s")
    assert aws("create-stream", *stream, "--shard-count", "1") is None
    data = base64.b64encode(b"from the CLI").decode()
    put = aws("put-record", *stream, "--partition-key", "k", "--data", data)
    assert put["ShardId"] == FIRST
    place = ("--shard-id", FIRST, "--shard-iterator-type", "TRIM_HORIZON")
    iterator = aws("get-shard-iterator", *stream, *place)["ShardIterator"]
    [record] = aws("get-records", "--shard-iterator", iterator)["Records"]
    assert (record["SequenceNumber"], record["PartitionKey"]) == (put["SequenceNumber"], "k")
    stored = [one.data for one in kinesis.streams["s"].records]
    assert base64.b64decode(record["Data"]) == stored[0]
    assert stored[0] in {b"from the CLI", data.encode()}  # version 1 sends the text unchanged
    assert aws("split-shard", *stream, "--shard-to-split", FIRST, "--new-starting-hash-key", HALF) is None
    assert [one["ShardId"] for one in aws("list-shards", *stream)["Shards"]] == [FIRST, SECOND, THIRD]
    summary = aws("describe-stream-summary", *stream)["StreamDescriptionSummary"]
    assert (summary["StreamStatus"], summary["OpenShardCount"]) == ("ACTIVE", 2)
    assert aws("delete-stream", *stream) is None
    assert list(kinesis.streams) == []


def test_what_aiokpl_produces_comes_back(kinesis, run):
    """aiokpl has no consumer: its own decoder unpacks what aiobotocore reads.

    Its outcomes are awaited inside its block, because leaving the block loses records in flight. This test ignores that
    aiokpl aggregates over shards until it knows them, and does not follow a reshard.
    """
    kinesis.create_stream("s")
    said = json.loads(run(str(SCRIPTS / "aiokpl_round_trip.py"), kinesis.endpoint_url, "s", "100"))
    assert [one["success"] for one in said["put"]] == [True] * 100
    assert {one["shard"] for one in said["put"]} <= {FIRST, SECOND}
    read = sorted(tuple(one) for records in said["read"].values() for one in records)
    assert read == sorted((f"key-{n}", f"value-{n}") for n in range(100))
    assert said["blobs"] < 100  # it aggregated
    assert said["blobs"] == len(kinesis.streams["s"].records)


def test_what_async_kinesis_produces_comes_back_through_its_consumer(kinesis, run):
    kinesis.create_stream("s")
    said = json.loads(run(str(SCRIPTS / "async_kinesis_round_trip.py"), kinesis.endpoint_url, "s", "100"))
    assert sorted(one["n"] for one in said["read"]) == list(range(100))
    for key in range(5):  # in order, key by key
        mine = [one["n"] for one in said["read"] if one["n"] % 5 == key]
        assert mine == sorted(mine)


@pytest.mark.parametrize("name", ["json-lines", "json-list", "netstrings"])
def test_async_kinesis_and_shardline_read_the_packs_of_each_other(clients_python, name):
    values = [[1], [{"n": 1}, "\u00e9\u2028", [None, 2.5]], [f"value {n}" for n in range(300)]]
    packs = [PACKINGS[name].encode([json.dumps(value).encode() for value in pack]) for pack in values]
    ended = subprocess.run(
        [str(clients_python), str(SCRIPTS / "async_kinesis_packing.py"), name],
        input=json.dumps([base64.b64encode(pack).decode() for pack in packs]),
        env={"PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    said = json.loads(ended.stdout)
    assert said["read"] == values
    reader = getattr(deserializers, name.replace("-", "_"))
    found = [reader(base64.b64decode(pack)) for pack in said["packed"]]
    assert [[json.loads(one) if isinstance(one, bytes) else one for one in pack] for pack in found] == values
    if name == "netstrings":
        assert [base64.b64decode(pack) for pack in said["packed"]] == packs


# ---- the AWS SDK for JavaScript, on HTTP/2


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
def test_the_sdk_for_javascript_over_its_default_handler(tls, run_with_javascript_sdk):
    """The test has concurrent requests, pages, an error, and a subscription of five minutes by the server's clock.

    The SDK's handler opens a connection for each request, and sends GOAWAY on it as soon as the head of the answer has
    arrived.
    """
    with LocalKinesis(tls=tls, limits=False) as kinesis:
        trust = {"NODE_EXTRA_CA_CERTS": kinesis.ca_path} if tls else {}
        ended = run_with_javascript_sdk(SCRIPTS / "javascript_sdk.js", kinesis.endpoint_url, **trust)
        assert ended.returncode == 0, ended.stderr
        seen = json.loads(ended.stdout)
        stored = [one.data.decode() for one in kinesis.streams["from-javascript"].records[104:]]
        live = [one for one in kinesis._server.service._subscriptions._live.values() if not one.ended]
    assert (seen["handler"], seen["protocols"]) == ("NodeHttp2Handler", ["h2" if tls else "h2c"])
    assert (seen["shards"], seen["failed"], seen["concurrent"], seen["read"]) == (1, 0, 100, 104)
    assert seen["sizes"] == [900_000] * 4
    assert seen["refused"] == {"name": "ResourceNotFoundException", "status": 400, "requestId": True}
    subscription = seen["subscription"]
    assert subscription["events"] == subscription["eventsAfterGoaway"] == 20  # ten records, ten heartbeats
    assert subscription["records"] + seen["resubscribed"] == stored
    assert live == []


TRACE = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "odd": "é \x00" * 300, "empty": ""}


def test_the_module_for_javascript_reads_records_with_headers_as_without(run_with_javascript_sdk):
    records = [(f"key-{place % 3}", b"data %d" % place, str(place)) for place in range(40)]
    headed = [(*record, TRACE if place % 2 else {"a": str(place)}) for place, record in enumerate(records)]
    aggregates = [shardline.aggregate(headed), shardline.aggregate(records)]
    aggregates += [shardline.aggregate([("k", b"alone", TRACE)]), shardline.aggregate([("k", b"alone")])]
    assert [bool(record.headers) for record in shardline.deaggregate(aggregates)] == [True] * 40 + [False] * 40 + [
        True,
        False,
    ]
    encoded = [base64.b64encode(one).decode() for one in aggregates]
    ended = run_with_javascript_sdk(SCRIPTS / "javascript_deaggregation.js", *encoded)
    assert ended.returncode == 0, ended.stderr
    many, many_without, alone, alone_without = json.loads(ended.stdout)
    assert many == many_without
    assert many == [[key, base64.b64encode(data).decode(), at] for at, (key, data, _) in enumerate(records)]
    assert alone == alone_without == [["k", base64.b64encode(b"alone").decode(), 0]]
