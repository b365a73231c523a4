"""Responses as values: their members, which of them may be missing, and their types."""

import inspect

import msgspec
import pytest
from botocore.loaders import Loader

from shardline.codec import shapes
from shardline.errors import UsageError
from shardline.model.hashing import WHOLE_RING, HashRange
from shardline.model.limits import MIB
from shardline.model.sequence import SequenceNumber
from shardline.model.shard import ChildShard, Shard

LARGEST = "340282366920938463463374607431768211455"
RANGE = {"StartingHashKey": "0", "EndingHashKey": LARGEST}

# Our struct, and the shape of the service model that it reads.
MODELLED = {
    shapes.HashKeyRangeShape: "HashKeyRange",
    shapes.SequenceNumberRangeShape: "SequenceNumberRange",
    shapes.ShardShape: "Shard",
    shapes.ChildShardShape: "ChildShard",
    shapes.PutRecordsResult: "PutRecordsResultEntry",
    shapes.PutRecordsResponse: "PutRecordsOutput",
    shapes.PutRecordResponse: "PutRecordOutput",
    shapes.RawRecord: "Record",
    shapes.GetRecordsResponse: "GetRecordsOutput",
    shapes.SubscribeToShardEvent: "SubscribeToShardEvent",
    shapes.GetShardIteratorResponse: "GetShardIteratorOutput",
    shapes.ListShardsResponse: "ListShardsOutput",
    shapes.StreamModeShape: "StreamModeDetails",
    shapes.StreamSummary: "StreamDescriptionSummary",
    shapes.DescribeStreamSummaryResponse: "DescribeStreamSummaryOutput",
    shapes.StreamListing: "StreamSummary",
    shapes.ListStreamsResponse: "ListStreamsOutput",
    shapes.StreamConsumer: "ConsumerDescription",
    shapes.RegisterStreamConsumerResponse: "RegisterStreamConsumerOutput",
    shapes.DescribeStreamConsumerResponse: "DescribeStreamConsumerOutput",
    shapes.ListStreamConsumersResponse: "ListStreamConsumersOutput",
    shapes.ShardCountUpdate: "UpdateShardCountOutput",
    shapes.TagShape: "Tag",
    shapes.ListTagsForStreamResponse: "ListTagsForStreamOutput",
}
# Required here although the model does not require them: without them the response is useless.
DEMANDED = {"ShardIterator"}


@pytest.fixture(scope="module")
def model():
    return Loader().load_service_model("kinesis", "service-2")["shapes"]


def read(shape, answer):
    return msgspec.json.decode(msgspec.json.encode(answer), type=shape)


def test_every_shape_is_compared_with_the_service_model():
    defined = {v for v in vars(shapes).values() if inspect.isclass(v) and issubclass(v, msgspec.Struct)}
    assert {v for v in defined if v.__module__ == shapes.__name__} == set(MODELLED)


@pytest.mark.parametrize(("shape", "name"), MODELLED.items(), ids=MODELLED.values())
def test_members_have_the_services_names_and_none_is_demanded_that_may_be_missing(model, shape, name):
    modelled = model[name]
    for field in msgspec.structs.fields(shape):
        assert field.encode_name in modelled["members"]
        if field.required:
            assert field.encode_name in {*modelled.get("required", ()), *DEMANDED}


@pytest.mark.parametrize("shape", MODELLED, ids=MODELLED.values())
def test_unknown_members_are_ignored(shape):
    assert not shape.__struct_config__.forbid_unknown_fields


@pytest.mark.parametrize("shape", MODELLED, ids=MODELLED.values())
def test_answers_are_values(shape):
    assert shape.__struct_config__.frozen
    assert shape.__struct_config__.eq


def test_a_shard_becomes_a_shard():
    answer = {
        "ShardId": "shardId-000000000002",
        "HashKeyRange": RANGE,
        "SequenceNumberRange": {"StartingSequenceNumber": "5", "EndingSequenceNumber": "9"},
        "ParentShardId": "shardId-000000000000",
        "AdjacentParentShardId": "shardId-000000000001",
    }
    assert read(shapes.ShardShape, answer).to_shard() == Shard(
        "shardId-000000000002",
        WHOLE_RING,
        SequenceNumber(5),
        SequenceNumber(9),
        "shardId-000000000000",
        "shardId-000000000001",
    )


@pytest.mark.parametrize("nothing", [{}, {"EndingSequenceNumber": None}])
def test_an_open_shard_has_no_end(nothing):
    answer = {
        "ShardId": "shardId-000000000000",
        "HashKeyRange": RANGE,
        "SequenceNumberRange": {"StartingSequenceNumber": "5"} | nothing,
    }
    shard = read(shapes.ShardShape, answer).to_shard()
    assert shard == Shard("shardId-000000000000", WHOLE_RING, SequenceNumber(5))
    assert shard.is_open


@pytest.mark.parametrize(("start", "end"), [("x", "5"), ("6", "5"), ("", "5"), ("0", str(2**128))])
def test_an_invalid_range_is_refused(start, end):
    with pytest.raises(UsageError):
        shapes.HashKeyRangeShape(start, end).to_range()


CHILD = {
    "ShardId": "shardId-000000000003",
    "ParentShards": ["shardId-000000000002"],
    "HashKeyRange": {"StartingHashKey": "0", "EndingHashKey": "9"},
}


@pytest.mark.parametrize("shape", [shapes.GetRecordsResponse, shapes.SubscribeToShardEvent])
def test_the_end_of_a_shard_names_its_children(shape):
    page = read(shape, {"Records": [], "ChildShards": [CHILD]})
    assert page.child_shards == (ChildShard("shardId-000000000003", ("shardId-000000000002",), HashRange(0, 9)),)


@pytest.mark.parametrize("shape", [shapes.GetRecordsResponse, shapes.SubscribeToShardEvent])
@pytest.mark.parametrize(
    "answer", [{"Records": []}, {"Records": [], "ChildShards": None}, {"Records": [], "ChildShards": []}]
)
def test_before_the_end_there_are_no_children(shape, answer):
    assert read(shape, answer).child_shards == ()


SUMMARY = {"StreamName": "orders", "StreamARN": "arn", "StreamStatus": "ACTIVE"}


def test_a_stream_of_an_old_endpoint_has_the_defaults_of_the_service():
    summary = read(shapes.StreamSummary, SUMMARY)
    assert summary.mode == "PROVISIONED"
    assert summary.max_record_bytes == MIB
    assert summary.retention_hours == 24
    assert summary.record_distribution is None


@pytest.mark.parametrize("kib", [0, -5])
def test_an_impossible_record_limit_is_replaced_by_one_mebibyte(kib):
    assert read(shapes.StreamSummary, SUMMARY | {"MaxRecordSizeInKiB": kib}).max_record_bytes == MIB


def test_a_stream_tells_its_mode_and_its_record_limit():
    more = {
        "StreamModeDetails": {"StreamMode": "ON_DEMAND"},
        "MaxRecordSizeInKiB": 10_240,
        "RetentionPeriodHours": 48,
        "RecordDistributionStrategy": "AUTO",
    }
    summary = read(shapes.StreamSummary, SUMMARY | more)
    assert summary.mode == "ON_DEMAND"
    assert summary.max_record_bytes == 10 * MIB
    assert summary.retention_hours == 48
    assert summary.record_distribution == "AUTO"
