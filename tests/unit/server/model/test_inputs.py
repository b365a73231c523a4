"""What fits, what does not, and what AWS says about it."""

import msgspec
import pytest
from botocore.loaders import Loader

from shardline.server.model import inputs
from shardline.server.model.inputs import INPUTS, read_json, read_values
from shardline.server.model.refusals import Refused


def refusal(operation, body):
    with pytest.raises(Refused) as caught:
        read_json(operation, body)
    assert caught.value.status == 400
    return caught.value


@pytest.mark.parametrize(
    ("operation", "body"),
    [
        ("PutRecord", b"{"),
        ("PutRecord", b"[]"),
        ("PutRecord", b"1"),
        ("PutRecord", b"\xff"),
        ("PutRecord", b'{"StreamName": 1, "Data": "", "PartitionKey": "k"}'),
        ("PutRecord", b'{"StreamName": "s", "Data": 5, "PartitionKey": "k"}'),
        ("PutRecord", b'{"StreamName": "s", "Data": "=", "PartitionKey": "k"}'),
        ("PutRecords", b'{"StreamName": "s", "Records": {}}'),
        ("PutRecords", b'{"StreamName": "s", "Records": ["x"]}'),
        ("GetRecords", b'{"ShardIterator": "x", "Limit": "1"}'),
        ("GetRecords", b'{"ShardIterator": ["x"]}'),
        ("GetShardIterator", b'{"StreamName": "s", "ShardId": "a", "ShardIteratorType": 1}'),
        ("ListShards", b'{"StreamName": "s", "ShardFilter": "AT_LATEST"}'),
        ("CreateStream", b'{"StreamName": "s", "ShardCount": 1.5}'),
        ("DescribeStream", b"[" * 100_000),
    ],
)
def test_a_wrong_type_or_broken_body_cannot_be_read(operation, body):
    assert refusal(operation, body).code == "SerializationException"


@pytest.mark.parametrize(
    ("operation", "body", "words"),
    [
        ("PutRecord", b'{"StreamName": "s"}', "Value null at 'data' failed to satisfy constraint: Member must not be null"),
        ("PutRecord", b'{"Data": null}', "Value null at 'data'"),
        ("PutRecords", b'{"StreamName": "s"}', "at 'records'"),
        ("PutRecords", b'{"Records": [{"Data": ""}, {}]}', "Value null at 'records.2.member.data'"),
        ("PutRecords", b'{"Records": [{"Data": "", "PartitionKey": ""}]}', "at 'records.1.member.partitionKey' failed to satisfy constraint: Member must have length greater than or equal to 1"),
        ("PutRecord", b'{"Data": "", "PartitionKey": "%s"}' % (b"k" * 257), "Member must have length less than or equal to 256"),
        ("PutRecord", b'{"Data": "", "ExplicitHashKey": "00"}', "at 'explicitHashKey' failed to satisfy constraint: Member must satisfy regular expression pattern: (0|[1-9][0-9]{0,38})"),
        ("PutRecord", b'{"Data": "", "ExplicitHashKey": "-1"}', "pattern"),
        ("PutRecord", b'{"Data": "", "ExplicitHashKey": "1\\n"}', "pattern"),
        ("CreateStream", b'{"StreamName": "", "ShardCount": 1}', "'streamName'"),
        ("CreateStream", b'{"StreamName": "a b", "ShardCount": 1}', "pattern: [a-zA-Z0-9_.-]+"),
        ("CreateStream", b'{"StreamName": "a\\n", "ShardCount": 1}', "pattern: [a-zA-Z0-9_.-]+"),
        ("CreateStream", b'{"StreamName": "%s", "ShardCount": 1}' % (b"s" * 129), "less than or equal to 128"),
        ("CreateStream", b'{"StreamName": "s", "ShardCount": 0}', "at 'shardCount' failed to satisfy constraint: Member must have value greater than or equal to 1"),
        ("CreateStream", b'{"StreamName": "s", "StreamModeDetails": {"StreamMode": "X"}}', "Value 'X' at 'streamModeDetails.streamMode' failed to satisfy constraint: Member must satisfy enum value set"),
        ("CreateStream", b'{"StreamName": "s", "WarmThroughputMiBps": -1}', "greater than or equal to 0"),
        ("GetRecords", b'{"ShardIterator": "x", "Limit": 10001}', "at 'limit' failed to satisfy constraint: Member must have value less than or equal to 10000"),
        ("GetRecords", b'{"ShardIterator": "x", "Limit": 0}', "'limit'"),
        ("GetRecords", b'{"ShardIterator": ""}', "'shardIterator'"),
        ("GetRecords", b'{"ShardIterator": "%s"}' % (b"x" * 513), "'shardIterator'"),
        ("GetRecords", b"{}", "'shardIterator'"),
        ("GetRecords", b"", "'shardIterator'"),
        ("GetShardIterator", b'{"StreamName": "s", "ShardId": "a", "ShardIteratorType": "NO"}', "'shardIteratorType'"),
        ("GetShardIterator", b'{"ShardId": "a", "ShardIteratorType": "LATEST", "StartingSequenceNumber": "x"}', "pattern"),
        ("ListShards", b'{"StreamName": "s", "ShardFilter": {}}', "'shardFilter.type'"),
        ("UpdateShardCount", b'{"StreamName": "s", "TargetShardCount": 2, "ScalingType": "X"}', "'scalingType'"),
        ("EnableEnhancedMonitoring", b'{"StreamName": "s", "ShardLevelMetrics": ["X"]}', "'shardLevelMetrics.1.member'"),
        ("EnableEnhancedMonitoring", b'{"StreamName": "s", "ShardLevelMetrics": []}', "'shardLevelMetrics'"),
        ("DescribeStream", b'{"StreamARN": "nonsense"}', "'streamARN'"),
        ("UpdateStreamRecordDistributionStrategy", b'{"RecordDistributionStrategy": "STANDARD"}', "enum"),
    ],
)  # fmt: skip
def test_a_broken_constraint_is_a_validation_error_in_the_words_of_aws(operation, body, words):
    found = refusal(operation, body)
    assert found.code == "ValidationException"
    assert found.message.startswith("1 validation error detected: Value ")
    assert words in found.message


def test_json_and_values_are_read_alike():
    members = {"StreamName": "s", "ShardId": "a", "ShardIteratorType": "AT_TIMESTAMP", "Timestamp": 1.5}
    body = msgspec.json.encode(members)
    assert read_json("GetShardIterator", body) == read_values("GetShardIterator", members)
    assert read_json("PutRecord", b'{"Data": "eA=="}') == read_values("PutRecord", {"Data": b"x"})
    for wrong in ({"Data": 5}, {"Data": b"", "StreamName": 1}, {1: 2}, [], None, 5):
        with pytest.raises(Refused):
            read_values("PutRecord", wrong)


def test_members_that_are_not_known_are_passed_over():
    assert read_json("DescribeStream", b'{"StreamName": "s", "New": [1, {"x": 2}], "StreamId": "x"}').stream_name == "s"


def test_an_explicit_null_is_as_good_as_nothing():
    assert read_json("DescribeStream", b'{"StreamName": "s", "StreamARN": null}').stream_arn is None


def test_every_member_is_one_of_the_service_model():
    model = Loader().load_service_model("kinesis", "service-2")
    lenient = {("UpdateMaxRecordSize", "StreamName"), ("UpdateStreamRecordDistributionStrategy", "StreamName")}
    for operation, kind in INPUTS.items():
        shape = model["shapes"][model["operations"][operation]["input"]["shape"]] if operation != "Nothing" else {}
        ours = {field.encode_name: field for field in msgspec.structs.fields(kind)}
        strange = {(operation, name) for name in ours} - {(operation, name) for name in shape.get("members", {})}
        assert strange <= lenient
        for name in shape.get("required", []):
            assert ours[name].required or (operation, name) == ("UpdateStreamRecordDistributionStrategy", "StreamARN")
        ignored = set(shape.get("members", {})) - set(ours)
        assert ignored <= {"StreamId", "StreamARN"}, operation


def test_every_enum_is_the_service_models():
    shapes = Loader().load_service_model("kinesis", "service-2")["shapes"]
    for shape, ours in (
        ("MetricsName", inputs.MetricsName),
        ("RecordDistributionStrategy", inputs.Distribution),
        ("ShardIteratorType", inputs.PositionType),
    ):
        assert sorted(shapes[shape]["enum"]) == sorted(ours.__args__)
