"""Which address does a call go to, and how often is it looked up?"""

import threading

import anyio
import pytest

from shardline.adapters.aws import endpoints as module
from shardline.adapters.aws.endpoints import Endpoint, Endpoints, parse_endpoint
from shardline.core.error_codes import FailureKind
from shardline.errors import CredentialsError, UsageError


@pytest.mark.parametrize(
    ("url", "endpoint"),
    [
        ("https://kinesis.eu-west-1.amazonaws.com", ("https://kinesis.eu-west-1.amazonaws.com/", "kinesis.eu-west-1.amazonaws.com", "/")),
        ("https://host/", ("https://host/", "host", "/")),
        ("https://host:443", ("https://host/", "host", "/")),
        ("http://host:80/", ("http://host/", "host", "/")),
        ("https://host:80", ("https://host:80/", "host:80", "/")),
        ("http://host:443", ("http://host:443/", "host:443", "/")),
        ("http://localhost:4567", ("http://localhost:4567/", "localhost:4567", "/")),
        ("HTTP://LocalHost:4567", ("http://localhost:4567/", "localhost:4567", "/")),
        ("  http://host  ", ("http://host/", "host", "/")),
        ("http://host:", ("http://host/", "host", "/")),
        ("http://host/a/b/", ("http://host/a/b/", "host", "/a/b/")),
        ("http://127.0.0.1:1/x", ("http://127.0.0.1:1/x", "127.0.0.1:1", "/x")),
        ("http://[::1]:4567", ("http://[::1]:4567/", "[::1]:4567", "/")),
        ("http://under_score", ("http://under_score/", "under_score", "/")),
    ],
)  # fmt: skip
def test_an_endpoint_is_read(url, endpoint):
    assert parse_endpoint(url) == Endpoint(*endpoint)


@pytest.mark.parametrize(
    "url",
    [
        None, 4567, b"http://host", "", "host", "host:4567", "//host", "ftp://host", "file:///x", "http://", "http:///x",
        "http://:80", "http://host:port", "http://host:99999", "http://host:-1", "http://[::1", "http://[zz]", "http://::1]",
        "http://[fe80::1%eth0]", "http://ho st", "http://ho\tst", "http://ho\nst", "http://host/a b", "http://bücher.example",
        "http://host/é", "http://user:hush@host", "http://hush@host", "http://@host", "http://user:hush@host:port",
        "http://user:hush@[", "http://host/?a=hush", "http://host/#a",
    ],
)  # fmt: skip
def test_what_is_no_endpoint_is_refused(url):
    with pytest.raises(UsageError, match="endpoint_url") as caught:
        parse_endpoint(url)
    assert "user:hush" not in str(caught.value)
    assert "hush@" not in str(caught.value)


class Rules:
    def __init__(self, answer=lambda operation, _: f"https://{operation.lower()}.example"):
        self.answer = answer
        self.asked = []
        self.gate = threading.Event()
        self.gate.set()

    def endpoint(self, operation, params):
        self.asked.append((operation, dict(params)))
        self.gate.wait(5)
        return self.answer(operation, params)


def raising(error):
    def answer(operation, params):
        raise error

    return answer


@pytest.mark.anyio
async def test_a_fixed_one_wins_and_is_always_at_hand():
    fixed = parse_endpoint("http://localhost:4567")
    endpoints = Endpoints(None, fixed)
    assert endpoints.cached("PutRecords", None) is fixed
    assert endpoints.cached("GetRecords", "arn:...") is fixed
    assert await endpoints.find("PutRecords", {}, None) is fixed


@pytest.mark.internal_error
@pytest.mark.parametrize("arguments", [(None, None), (Rules(), parse_endpoint("http://h"))])
def test_either_rules_or_a_fixed_one(arguments):
    with pytest.raises(AssertionError):
        Endpoints(*arguments)


@pytest.mark.anyio
async def test_each_question_is_asked_once():
    rules = Rules()
    endpoints = Endpoints(rules)
    assert endpoints.cached("PutRecords", None) is None
    found = await endpoints.find("PutRecords", {}, None)
    assert found.host == "putrecords.example"
    assert endpoints.cached("PutRecords", None) is found
    assert endpoints.cached("PutRecords", "arn:1") is None
    assert endpoints.cached("GetRecords", None) is None
    await endpoints.find("PutRecords", {"StreamARN": "arn:1"}, "arn:1")
    await endpoints.find("PutRecords", {"StreamARN": "arn:1"}, "arn:1")
    assert rules.asked == [("PutRecords", {}), ("PutRecords", {"StreamARN": "arn:1"})]


@pytest.mark.anyio
async def test_many_requests_ask_once_together():
    rules = Rules()
    endpoints = Endpoints(rules)
    rules.gate.clear()
    found = []

    async def find():
        found.append(await endpoints.find("PutRecords", {}, None))

    async with anyio.create_task_group() as tasks:
        for _ in range(30):
            tasks.start_soon(find)
        await anyio.sleep(0.01)
        rules.gate.set()
    assert len(found) == 30
    assert len(rules.asked) == 1


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("answer", "kind", "code", "words"),
    [
        (raising(UsageError("no endpoint")), FailureKind.INVALID, "NoEndpoint", "no endpoint"),
        (raising(CredentialsError("none found")), FailureKind.NO_CREDENTIALS, "NoCredentials", "none found"),
        (lambda *_: "http://user:hush@host", FailureKind.INVALID, "NoEndpoint", "endpoint_url"),
    ],
)
async def test_no_endpoint_is_a_failure_and_is_asked_again(answer, kind, code, words):
    rules = Rules(answer)
    endpoints = Endpoints(rules)
    for _ in range(2):
        failure = await endpoints.find("PutRecords", {}, None)
        assert (failure.kind, failure.code, failure.maybe_received) == (kind, code, False)
        assert words in failure.message
        assert "hush" not in failure.message
    assert len(rules.asked) == 2


@pytest.mark.anyio
async def test_rules_that_hang_are_a_failure_worth_a_retry_and_can_be_left():
    rules = Rules()
    rules.gate.clear()
    endpoints = Endpoints(rules, limit=0.02)
    for _ in range(2):
        failure = await endpoints.find("PutRecords", {}, None)
        assert (failure.kind, failure.code, failure.maybe_received) == (FailureKind.TRANSIENT, "EndpointTimeout", False)
    with anyio.move_on_after(0.001) as scope:
        await endpoints.find("PutRecords", {}, None)
    assert scope.cancelled_caught
    endpoints._limit = 5
    threading.Timer(0.05, rules.gate.set).start()
    assert isinstance(await endpoints.find("PutRecords", {}, None), Endpoint)
    assert len(rules.asked) == 1


@pytest.mark.anyio
async def test_what_is_remembered_is_bounded(monkeypatch):
    monkeypatch.setattr(module, "_CACHE_MAX", 3)
    endpoints = Endpoints(Rules())
    for number in range(10):
        await endpoints.find("PutRecords", {"StreamARN": str(number)}, str(number))
        assert len(endpoints._known) <= 3
    assert endpoints.cached("PutRecords", "9") is not None
