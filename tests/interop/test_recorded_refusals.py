"""Does the server refuse requests as AWS refused those of third-party tests: status, code and text?

``kinesalite_recordings.py`` and ``moto_recordings.py`` have the requests and the refusals. The requests go over plain
HTTP in JSON, unsigned, because no SDK sends such requests.
"""

import http.client
import json
from base64 import b64encode
from contextlib import closing, contextmanager
from urllib.parse import urlsplit

import pytest
from tests.interop import kinesalite_recordings as kinesalite
from tests.interop import moto_recordings as moto

from shardline.testing import Delays, LocalKinesis

WRONG_TYPES = [
    pytest.param(operation, member, value, message, id=f"{operation}-{member}-{value!r}")
    for operation, members in kinesalite.MEMBER_TYPES.items()
    for member, kind in members.items()
    for value, message in kinesalite.WRONG_TYPES[kind]
]


@contextmanager
def asking(kinesis):
    with closing(http.client.HTTPConnection(urlsplit(kinesis.endpoint_url).netloc, timeout=30)) as connection:

        def ask(operation, parameters):
            body = json.dumps(parameters, default=lambda data: b64encode(data).decode())
            headers = {"Content-Type": "application/x-amz-json-1.1", "X-Amz-Target": f"Kinesis_20131202.{operation}"}
            connection.request("POST", "/", body, headers)
            response = connection.getresponse()
            return response.status, json.loads(response.read() or "{}")

        yield ask


@pytest.fixture(scope="module")
def ask():
    """Send requests to a server with one stream, ``known``. None of them changes it."""
    with LocalKinesis(account_id=kinesalite.ACCOUNT, limits=False) as kinesis, asking(kinesis) as ask:
        kinesis.create_stream("known", shards=3)
        yield ask


@pytest.fixture
def ask_anew():
    """Send requests to a server without streams."""
    with LocalKinesis(account_id=moto.ACCOUNT) as kinesis, asking(kinesis) as ask:
        yield ask


def nested(path, value):
    """Return parameters that have only the value at that path."""
    for name in reversed(path.split(".")):
        value = [value] if name == "0" else {name: value}
    return value


@pytest.mark.parametrize(("operation", "member", "value", "message"), WRONG_TYPES)
def test_a_member_of_a_wrong_type(ask, operation, member, value, message):
    expected = {"__type": "SerializationException", "Message": message}
    assert ask(operation, nested(member, value)) == (400, expected)


@pytest.mark.parametrize(("operation", "parameters", "errors"), kinesalite.INVALID_MEMBERS)
def test_members_that_break_constraints(ask, operation, parameters, errors):
    status, answer = ask(operation, parameters)
    assert (status, answer.pop("__type"), [*answer]) == (400, "ValidationException", ["message"])
    noun = "error" if len(errors) == 1 else "errors"
    start = f"{len(errors)} validation {noun} detected: "
    assert answer["message"].startswith(start)
    # AWS's order of the errors varies: kinesalite's tests accept any.
    assert sorted(answer["message"].removeprefix(start).split("; ")) == sorted(
        f"Value {value} at '{member}' failed to satisfy constraint: {constraint}"
        for value, member, constraint in errors
    )


@pytest.mark.parametrize("refusal", kinesalite.REFUSALS, ids=lambda refusal: refusal.operation)
def test_a_refused_request(ask, refusal):
    expected = {"__type": refusal.code} | ({} if refusal.message is None else {"message": refusal.message})
    assert ask(refusal.operation, refusal.parameters) == (refusal.status, expected)


@pytest.mark.parametrize(
    ("state", "change", "refusal"),
    [pytest.param(*row, id=f"{row[0]}-{row[2].operation}") for row in kinesalite.IN_STATES],
)
def test_a_request_to_a_stream_that_is_not_active(state, change, refusal):
    delays = Delays(create=10, update=10, delete=10)
    with LocalKinesis(account_id=kinesalite.ACCOUNT, limits=False, delays=delays) as kinesis, asking(kinesis) as ask:
        kinesis.clock.freeze()
        assert ask("CreateStream", {"StreamName": "passing", "ShardCount": 3})[0] == 200
        parameters = refusal.parameters
        if change is not None:
            kinesis.clock.advance(10)
            parameters = parameters or ask(*kinesalite.LATEST)[1]
            assert ask(*change)[0] == 200
        if state == "deleted":
            kinesis.clock.advance(10)
        else:
            described = ask("DescribeStream", {"StreamName": "passing"})[1]["StreamDescription"]
            assert described["StreamStatus"] == state
        assert ask(refusal.operation, parameters) == (400, {"__type": refusal.code, "message": refusal.message})


@pytest.mark.parametrize("scenario", moto.REFUSED, ids=lambda scenario: scenario.test)
def test_a_call_that_is_refused_after_others(ask_anew, scenario):
    *before, last = scenario.calls
    assert [ask_anew(*call)[0] for call in before] == [200] * len(before)
    assert ask_anew(*last) == (400, {"__type": scenario.code, "message": scenario.message})


@pytest.mark.parametrize(("shards", "target", "in_all"), moto.SHARD_COUNTS)
def test_the_number_of_shards_after_scaling(ask_anew, shards, target, in_all):
    stream = {"StreamName": "my-stream"}
    ask_anew("CreateStream", {**stream, "ShardCount": shards})
    scaling = {**stream, "TargetShardCount": target, "ScalingType": "UNIFORM_SCALING"}
    assert ask_anew("UpdateShardCount", scaling)[0] == 200
    listed = ask_anew("ListShards", stream)[1]["Shards"]
    closed = [shard for shard in listed if "EndingSequenceNumber" in shard["SequenceNumberRange"]]
    assert (len(listed), len(listed) - len(closed)) == (in_all, target)
