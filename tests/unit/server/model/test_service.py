"""Tests of ``server.model.service``."""

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shardline.server.model.inputs import INPUTS, ListStreams
from shardline.server.model.service import OPERATIONS
from shardline.server.model.settings import Limits

BEGIN = 1_700_000_000.0


def test_every_operation_has_an_input_and_an_answer():
    assert set(INPUTS) == {*OPERATIONS, "SubscribeToShard"}


@pytest.mark.parametrize("operation", ["Nonsense", "", "putRecords", "PutRecords "])
def test_an_unknown_operation_is_refused(server, operation):
    assert server.refused(operation) == "UnknownOperationException"


def test_members_may_come_as_a_struct(server):
    answer = server.service.handle("ListStreams", ListStreams(), server.now)
    assert answer.body["StreamNames"] == []


def test_stored_and_changed_are_taken_once(server):
    server.service.state.keeps_stored = True
    server.create(shards=2)
    assert server.service.take_changed() == {"s"}
    assert server.service.take_changed() == set()
    server.put_many([(b"%d" % number, str(number)) for number in range(10)])
    server.put(b"10", hash_key=0)
    stored = server.service.take_stored()
    assert server.service.take_stored() == []
    assert [one.first for one in stored[:2]] == [1, 1]
    assert len(stored) == 3
    by_shard = {index: [r.data for one in stored if one.shard.index == index for r in one.records] for index in (0, 1)}
    assert by_shard == {index: server.read(index) for index in (0, 1)}


WALK = [
    (
        "CreateStream",
        {"StreamName": "s", "StreamModeDetails": {"StreamMode": "ON_DEMAND"}, "RecordDistributionStrategy": "AUTO"},
    ),
    ("PutRecords", {"StreamName": "s", "Records": [{"Data": b"%d" % number} for number in range(100)]}),
    ("ListShards", {"StreamName": "s", "MaxResults": 2}),
    ("GetShardIterator", {"StreamName": "s", "ShardId": "shardId-000000000001", "ShardIteratorType": "TRIM_HORIZON"}),
    ("RegisterStreamConsumer", {"StreamARN": "arn:aws:kinesis:us-east-1:000000000000:stream/s", "ConsumerName": "c"}),
    ("DescribeStream", {"StreamName": "s"}),
]


def walk(server):
    answers = []
    for operation, members in WALK:
        answers.append(server.pass_time(0.7).call(operation, **members))
    iterator = answers[3]["ShardIterator"]
    for _ in range(20):
        page = server.call("GetRecords", ShardIterator=iterator, Limit=3)
        answers.append(page)
        iterator = page["NextShardIterator"]
    return answers


def test_the_same_seed_and_requests_give_the_same_answers(make_server):
    one, again, other = (walk(make_server(seed, empty_page_chance=0.3)) for seed in (1, 1, 2))
    assert one == again
    assert one != other


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.binary(max_size=5)
    | st.sampled_from(["s", "shardId-000000000000", "LATEST", "AT_TIMESTAMP", "AT_LATEST", "KMS", "ON_DEMAND", "0", "c",
                       "arn:aws:kinesis:us-east-1:000000000000:stream/s", "UNIFORM_SCALING", 1, 2, 24, 48, 1024]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)  # fmt: skip


@st.composite
def requests(draw):
    operation = draw(st.sampled_from(sorted(INPUTS)))
    names = [field.encode_name for field in msgspec.structs.fields(INPUTS[operation])]
    return operation, {name: draw(values) for name in names if draw(st.booleans())}


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(requests(), max_size=8))
def test_every_request_gets_an_answer_and_never_an_exception(make_server, asked):
    server = make_server(limits=Limits()).create()
    server.register()
    for operation, members in asked:
        answer = server.service.handle(operation, members, server.pass_time(0.1).now)
        assert answer.refusal is None or answer.refusal.status == 400
