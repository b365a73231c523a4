"""Which stream and which shards does a request refer to?"""

import pytest

from shardline.model.hashing import HASH_KEY_COUNT
from shardline.server.model.inputs import read_values
from shardline.server.model.targets import Target, shards_of_records, target_of

ARN = "arn:aws:kinesis:us-east-1:000000000000:stream/s"
UPPER = str(HASH_KEY_COUNT - 1)
ONE, TWO = "shardId-000000000000", "shardId-000000000001"


@pytest.fixture
def server(make_server):
    return make_server().create(shards=2)


@pytest.mark.parametrize(
    ("operation", "members", "target"),
    [
        ("ListShards", {"StreamName": "s"}, Target("s")),
        ("ListShards", {"StreamARN": ARN}, Target("s")),
        ("ListShards", {"NextToken": "of nobody"}, Target(None)),
        ("ListStreams", {}, Target(None)),
        ("GetRecords", {"ShardIterator": "of nobody"}, Target(None)),
        ("GetShardIterator", {"StreamName": "s", "ShardId": "1", "ShardIteratorType": "LATEST"}, Target("s", (TWO,))),
        ("SplitShard", {"StreamName": "s", "ShardToSplit": ONE, "NewStartingHashKey": "9"}, Target("s", (ONE,))),
        (
            "MergeShards",
            {"StreamName": "s", "ShardToMerge": ONE, "AdjacentShardToMerge": TWO},
            Target("s", (ONE, TWO)),
        ),
        (
            "SubscribeToShard",
            {"ConsumerARN": f"{ARN}/consumer/c:1", "ShardId": ONE, "StartingPosition": {"Type": "LATEST"}},
            Target("s", (ONE,)),
        ),
        ("TagResource", {"ResourceARN": ARN, "Tags": {"a": "b"}}, Target("s")),
    ],
)
def test_a_request_means_what_it_names(server, operation, members, target):
    assert target_of(read_values(operation, members), server.service.state) == target


def test_tokens_tell_what_they_were_made_for(server):
    state = server.service.state
    iterator = read_values("GetRecords", {"ShardIterator": server.iterator(1)})
    assert target_of(iterator, state) == Target("s", (TWO,))
    page = server.call("ListShards", StreamName="s", MaxResults=1)["NextToken"]
    assert target_of(read_values("ListShards", {"NextToken": page}), state) == Target("s")


def entry(**members):
    return {"Data": b"x", "PartitionKey": "k", **members}


@pytest.mark.parametrize(
    ("operation", "members", "shards"),
    [
        ("PutRecord", entry(ExplicitHashKey="0"), {ONE}),
        ("PutRecord", entry(ExplicitHashKey=UPPER), {TWO}),
        ("PutRecord", entry(ExplicitHashKey=str(HASH_KEY_COUNT)), set()),
        ("PutRecords", {"Records": [entry(ExplicitHashKey="0"), entry(ExplicitHashKey=UPPER)]}, {ONE, TWO}),
        ("ListShards", {}, set()),
    ],
)
def test_records_go_where_their_keys_say(server, operation, members, shards):
    request = read_values(operation, {"StreamName": "s", **members})
    assert shards_of_records(request, server.service.state.streams["s"]) == shards
    assert shards_of_records(request, None) == set()
