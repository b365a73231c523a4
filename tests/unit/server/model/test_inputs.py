"""Which requests are valid, and what does AWS answer to invalid ones?"""

import msgspec
import pytest
from botocore.loaders import Loader

from shardline.server.model import member_types
from shardline.server.model.inputs import INPUTS, read_json, read_values
from shardline.server.model.refusals import Refused


def refusal(operation, body):
    with pytest.raises(Refused) as caught:
        read_json(operation, body)
    assert caught.value.status == 400
    return caught.value


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"1", b"null", b"\xff", b"[" * 100_000])
def test_a_body_that_cannot_be_read_is_refused_without_a_message(body):
    found = refusal("PutRecord", body)
    assert (found.code, found.message) == ("SerializationException", "")


def test_a_member_that_does_not_fit_in_a_body_that_cannot_be_read():
    assert refusal("PutRecord", b'{"StreamName": 1, "Data"').message == ""
    assert refusal("PutRecord", b'{"StreamName": 1, "Data": ' + b"[" * 100_000).message == ""


def test_json_and_values_are_read_alike():
    members = {"StreamName": "s", "ShardId": "a", "ShardIteratorType": "AT_TIMESTAMP", "Timestamp": 1.5}
    body = msgspec.json.encode(members)
    assert read_json("GetShardIterator", body) == read_values("GetShardIterator", members)
    assert read_json("PutRecord", b'{"Data": "eA=="}') == read_values("PutRecord", {"Data": b"x"})
    for wrong in ({"Data": 5}, {"Data": b"", "StreamName": 1}, {1: 2}, [], None, 5):
        with pytest.raises(Refused):
            read_values("PutRecord", wrong)


def test_members_that_are_not_known_are_passed_over():
    assert read_json("DescribeStream", b'{"StreamName": "s", "New": [1, {"x": 2}]}').stream_name == "s"


def test_an_explicit_null_is_as_good_as_nothing():
    assert read_json("DescribeStream", b'{"StreamName": "s", "StreamARN": null}').stream_arn is None


def test_every_member_is_that_of_the_service_model():
    model = Loader().load_service_model("kinesis", "service-2")
    for operation, kind in INPUTS.items():
        shape = model["shapes"][model["operations"][operation]["input"]["shape"]]
        ours = {field.encode_name: field for field in msgspec.structs.fields(kind)}
        assert set(ours) == set(shape.get("members", {})), operation
        assert {name for name in ours if ours[name].required} == set(shape.get("required", [])), operation


def test_every_enum_is_the_service_models():
    shapes = Loader().load_service_model("kinesis", "service-2")["shapes"]
    for shape, ours in (
        ("MetricsName", member_types.MetricsName),
        ("RecordDistributionStrategy", member_types.Distribution),
        ("ShardIteratorType", member_types.PositionType),
    ):
        assert sorted(shapes[shape]["enum"]) == sorted(ours.__args__)
