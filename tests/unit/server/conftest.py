"""A service that tests call with AWS's members, on a clock that only the tests move."""

import json
from random import Random

import msgspec
import pytest

from shardline.model.hashing import HASH_KEY_COUNT
from shardline.server.model.faults import Faults
from shardline.server.model.service import Service
from shardline.server.model.settings import Delays, Limits, ServiceSettings

BEGIN = 1_700_000_000.0
ON_DEMAND = {"StreamModeDetails": {"StreamMode": "ON_DEMAND"}}
POLICY = '{"Statement": {"Effect": "Allow", "Principal": "*", "Action": "kinesis:*"}}'
ROLE = "arn:aws:iam::000000000000:role/delivery"
BUCKET = {"BucketARN": "arn:aws:s3:::records", "ExpectedBucketOwner": "000000000000"}
TO_S3 = {"S3DestinationConfiguration": {"StorageConfiguration": BUCKET | {"CompressionType": "GZIP"}}}
TABLE = {
    "TableBucketARN": "arn:aws:s3tables:us-east-1:000000000000:bucket/tables",
    "Namespace": "sales",
    "TableName": "orders",
    "CompressionType": "ZSTD",
}
TO_TABLES = {
    "S3TablesDestinationConfiguration": {
        "DeadLetterQueueS3Configuration": BUCKET,
        "S3TablesConfigurationList": [TABLE],
    }
}
SCHEMA = "arn:aws:glue:us-east-1:000000000000:schema/registry/orders"
JSON = {"RecordFormatType": "JSON"}


class Server:
    """One service, and its time."""

    def __init__(self, service, now=BEGIN):
        self.service = service
        self.now = now

    def answer(self, operation, **members):
        return self.service.handle(operation, members, self.now)

    def call(self, operation, **members):
        answer = self.answer(operation, **members)
        assert answer.refusal is None, (operation, answer.refusal.code, answer.refusal.message)
        return msgspec.to_builtins(answer.body, builtin_types=(bytes,), enc_hook=list)

    def refused(self, operation, **members):
        """Return the code of the refusal. Its status must be 400, as for all of them."""
        refusal = self.answer(operation, **members).refusal
        assert refusal is not None, operation
        assert refusal.status == 400
        return refusal.code

    def why(self, operation, **members):
        return self.answer(operation, **members).refusal.message

    def pass_time(self, seconds):
        self.now += seconds
        return self

    def create(self, name="s", shards=1, **members):
        self.call("CreateStream", StreamName=name, ShardCount=shards, **members)
        return self

    def put(self, data, key="k", name="s", hash_key=None):
        members = {"ExplicitHashKey": str(hash_key)} if hash_key is not None else {}
        return self.call("PutRecord", StreamName=name, Data=data, PartitionKey=key, **members)

    def put_many(self, entries, name="s"):
        records = [{"Data": data, "PartitionKey": key} for data, key in entries]
        return self.call("PutRecords", StreamName=name, Records=records)

    def iterator(self, shard=0, kind="TRIM_HORIZON", name="s", **members):
        shard_id = shard if isinstance(shard, str) else f"shardId-{shard:012d}"
        members |= {"StreamName": name, "ShardId": shard_id, "ShardIteratorType": kind}
        return self.call("GetShardIterator", **members)["ShardIterator"]

    def page(self, iterator, **members):
        return self.call("GetRecords", ShardIterator=iterator, **members)

    def read(self, shard=0, kind="TRIM_HORIZON", name="s", **members):
        """Return the data of all records from a position on."""
        iterator, found = self.iterator(shard, kind, name, **members), []
        while iterator is not None:
            page = self.page(iterator)
            found += [record["Data"] for record in page["Records"]]
            if page["MillisBehindLatest"] == 0:
                return found
            iterator = page.get("NextShardIterator")
        return found

    def shards(self, name="s", **members):
        return self.call("ListShards", StreamName=name, **members)["Shards"]

    def ids(self, name="s", **members):
        """Return the numbers of the listed shards."""
        return [int(shard["ShardId"][-12:]) for shard in self.shards(name, **members)]

    def open_shards(self, name="s"):
        return self.shards(name, ShardFilter={"Type": "AT_LATEST"})

    def status(self, name="s"):
        return self.summary(name)["StreamStatus"]

    def summary(self, name="s"):
        return self.call("DescribeStreamSummary", StreamName=name)["StreamDescriptionSummary"]

    def split(self, shard=0, at=HASH_KEY_COUNT // 2, name="s"):
        self.call("SplitShard", StreamName=name, ShardToSplit=f"shardId-{shard:012d}", NewStartingHashKey=str(at))

    def merge(self, shard, adjacent, name="s"):
        ids = {"ShardToMerge": f"shardId-{shard:012d}", "AdjacentShardToMerge": f"shardId-{adjacent:012d}"}
        self.call("MergeShards", StreamName=name, **ids)

    def arn(self, name="s"):
        return f"arn:aws:kinesis:us-east-1:000000000000:stream/{name}"

    def register(self, name="c", stream="s"):
        members = {"StreamARN": self.arn(stream), "ConsumerName": name}
        return self.call("RegisterStreamConsumer", **members)["Consumer"]["ConsumerARN"]

    def create_on_demand(self, name="s"):
        self.call("CreateStream", StreamName=name, **ON_DEMAND)
        return self

    def channel_members(self, name="c", stream="s", destination=TO_S3, record=JSON, **members):
        """Return the members of a request for a channel."""
        streams = [{"StreamARN": self.arn(stream), "RecordConfiguration": record}]
        members = {"ChannelName": name, "ServiceExecutionRoleARN": ROLE, "StreamConfigurationList": streams} | members
        return members | destination

    def create_channel(self, name="c", stream="s", destination=TO_S3, record=JSON, **members):
        members = self.channel_members(name, stream, destination, record, **members)
        return self.call("CreateChannel", **members)["ChannelDescription"]

    def channel(self, name="c"):
        arn = f"arn:aws:kinesis:us-east-1:000000000000:channel/{name}"
        return self.call("DescribeChannel", ChannelARN=arn)["ChannelDescription"]

    def set_commitment(self, status="ENABLED"):
        members = {"MinimumThroughputBillingCommitment": {"Status": status}}
        return self.call("UpdateAccountSettings", **members)["MinimumThroughputBillingCommitment"]

    def subscribe(self, consumer_arn, shard=0, kind="TRIM_HORIZON", **position):
        request = {"ConsumerARN": consumer_arn, "ShardId": f"shardId-{shard:012d}"}
        answer = self.answer("SubscribeToShard", **request, StartingPosition={"Type": kind, **position})
        assert answer.refusal is None, answer.refusal.message
        return answer.subscription

    def pushed(self, subscription):
        event = subscription.poll(self.now)
        return None if event is None else msgspec.to_builtins(event, builtin_types=(bytes,), enc_hook=list)


@pytest.fixture
def make_server():
    """Return a function that makes servers, without rate limits unless ``limits`` sets them."""

    def make(seed=0, limits=None, delays=None, **settings):
        settings |= {"limits": limits or Limits.without_rates(), "delays": delays or Delays()}
        return Server(Service(ServiceSettings(**settings), Random(seed), BEGIN))

    return make


@pytest.fixture
def server(make_server):
    return make_server()


WIDTH = HASH_KEY_COUNT // 4


class FaultyServer:
    """A service with faults, four shards, and a clock that the test moves."""

    def __init__(self, seed=1, delays=None):
        self.now = BEGIN
        settings = ServiceSettings(limits=Limits.without_rates(), delays=delays or Delays())
        self.service = Service(settings, Random(seed), BEGIN)
        self.faults = Faults(Random(seed), lambda: self.now)
        self.service.use_faults(self.faults)
        self.ask("CreateStream", StreamName="s", ShardCount=4)

    def ask(self, operation, **members):
        return self.service.handle(operation, members, self.now)

    def put(self, *shards, stream="s"):
        """Put one entry for each shard number. Its data is its place."""
        entries = [
            {"Data": bytes([at]), "PartitionKey": "k", "ExplicitHashKey": str(shard * WIDTH)}
            for at, shard in enumerate(shards)
        ]
        return self.ask("PutRecords", StreamName=stream, Records=entries)

    def put_one(self, shard):
        return self.ask("PutRecord", StreamName="s", Data=b"1", PartitionKey="k", ExplicitHashKey=str(shard * WIDTH))

    def stored(self, stream="s"):
        """Return the data of every record, by the number of the shard."""
        shards = self.service.state.streams[stream].shards.values()
        return {one.index: [record.data[0] for record in one.log.records] for one in shards if one.log.records}

    def iterator(self, shard, kind="TRIM_HORIZON"):
        shard_id = f"shardId-{shard:012d}"
        return self.ask("GetShardIterator", StreamName="s", ShardId=shard_id, ShardIteratorType=kind)

    def open_shards(self):
        return [shard.shard_id[-2:] for shard in self.service.state.streams["s"].open_shards]


def codes(answer):
    assert answer.refusal is None
    return [one.error_code for one in answer.body.records]


@pytest.fixture
def world():
    return FaultyServer()


def post(endpoint, operation, **members):
    """Return a request in JSON, as bytes."""
    headers = {"content-type": "application/x-amz-json-1.1", "x-amz-target": f"Kinesis_20131202.{operation}"}
    return endpoint.reply(headers, json.dumps(members).encode())
