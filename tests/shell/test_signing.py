"""Is every request signed with the right keys, at the service's time?"""

import email.utils
import json
import re
import threading
import types
from datetime import UTC, datetime

import anyio
import pytest
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials as BotocoreCredentials

import shardline.aio.connection as connection_module
from shardline import Credentials, CredentialsError, ServiceError
from shardline.adapters.aws.botocore_session import BotocoreSession

pytestmark = pytest.mark.anyio

ENTRIES = [(b"x", "k")]
NOW = 1_700_000_000.0


def error(code, message, **headers):
    return {"body": json.dumps({"__type": code, "message": message}).encode(), "status": 400, "headers": headers}


def signed_at(request):
    return datetime.strptime(request.headers["x-amz-date"], "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC).timestamp()


def access_key_of(request):
    return re.search(r"Credential=([^/]+)/", request.headers["authorization"])[1]


def expected_signature(request, keys, url):
    """Return botocore's signature for the request that the server has received."""
    names = re.search(r"SignedHeaders=([^,]+)", request.headers["authorization"])[1].split(";")
    again = AWSRequest("POST", url + request.target, {name: request.headers[name] for name in names}, request.body)
    again.context["timestamp"] = request.headers["x-amz-date"]
    auth = SigV4Auth(keys, "kinesis", "eu-west-1")
    return auth.signature(auth.string_to_sign(again, auth.canonical_request(again)), again)


@pytest.fixture
def clock(monkeypatch):
    """The wall clock of this machine, as the client sees it."""
    hands = types.SimpleNamespace(now=NOW)
    monkeypatch.setattr(connection_module, "time", types.SimpleNamespace(time=lambda: hands.now))
    return hands


class FakeChain:
    """Returns prepared credentials. Counts its calls, and how many run at a time."""

    def __init__(self):
        self.found = Credentials("AKID1", "secret-1", "token-1")
        self.can_change = False
        self.calls = []
        self.at_once = self.most_at_once = 0
        self.gate = threading.Event()
        self.gate.set()

    def credentials(self, *, reload):
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        self.calls.append(reload)
        self.gate.wait(5)
        self.at_once -= 1
        if isinstance(self.found, Exception):
            raise self.found
        return self.found, self.can_change


@pytest.fixture
def chain(monkeypatch):
    fake = FakeChain()
    monkeypatch.setattr(BotocoreSession, "credentials", lambda _, *, reload: fake.credentials(reload=reload))
    return fake


@pytest.mark.parametrize("path", ["", "/some/path/"])
@pytest.mark.parametrize("token", [None, "the-token"])
async def test_a_request_is_signed_as_botocore_signs_it(path, token, server, make_client):
    keys = BotocoreCredentials("AKIDEXAMPLE", "the secret", token)
    async with make_client(server.url + path, credentials=Credentials("AKIDEXAMPLE", "the secret", token)) as client:
        await client.put_records("orders", ENTRIES)
    [request] = server.requests
    assert request.target == (path or "/")
    assert f"Signature={expected_signature(request, keys, server.url)}" in request.headers["authorization"]
    assert request.headers.get("x-amz-security-token") == token
    assert request.headers["x-amz-target"] == "Kinesis_20131202.PutRecords"
    assert request.headers["content-type"] == "application/x-amz-json-1.1"
    assert request.headers["user-agent"].startswith("shardline/")
    assert request.headers["accept-encoding"] == "identity"
    assert "/eu-west-1/kinesis/aws4_request" in request.headers["authorization"]


# ---- the clock


@pytest.mark.parametrize("off_by", [-3600, 900.0])
async def test_a_clock_that_is_off_is_corrected_for_the_next_request(off_by, server, make_client, clock):
    clock.now = NOW + off_by
    words = "Signature expired: 20231114T000000Z is now earlier than 20231114T100000Z (20231114T101500Z - 5 min.)"
    date = email.utils.formatdate(NOW, usegmt=True)
    server.reply(**error("InvalidSignatureException", words, Date=date))
    async with make_client(server) as client:
        with pytest.raises(ServiceError) as caught:
            await client.put_records("orders", ENTRIES)
        assert (caught.value.kind, caught.value.code) == ("clock-skew", "InvalidSignatureException")
        assert caught.value.retryable
        assert f"off by {off_by:+.0f} s" in str(caught.value)
        clock.now += 7
        await client.put_records("orders", ENTRIES)
    first, second = server.requests
    assert signed_at(first) == NOW + off_by
    assert signed_at(second) == NOW + 7


@pytest.mark.parametrize(
    "date", [{}, {"Date": "yesterday"}, {"Date": "Mon, 01 Jan 0001 00:00:00 GMT"}, {"Date": "Mon, 01 Jan 99999999999999999999 00:00:00 GMT"},
             {"Date": "Thu, 01 Jan 1970 00:00:00 GMT"}, {"Date": "Tue, 14 Nov 2023 22:13:20 +99999999999999"}]
)  # fmt: skip
async def test_a_complaint_without_a_usable_time_changes_nothing(date, server, make_client, clock):
    server.reply(**error("RequestTimeTooSkewed", "off", **date))
    async with make_client(server) as client:
        with pytest.raises(ServiceError) as caught:
            await client.put_records("orders", ENTRIES)
        assert caught.value.kind == "clock-skew"
        await client.put_records("orders", ENTRIES)
    assert [signed_at(request) for request in server.requests] == [NOW, NOW]


async def test_a_date_without_a_complaint_changes_nothing(server, make_client, clock):
    server.reply(headers={"Date": "Thu, 01 Jan 2099 00:00:00 GMT"})
    async with make_client(server) as client:
        await client.put_records("orders", ENTRIES)
        await client.put_records("orders", ENTRIES)
    assert [signed_at(request) for request in server.requests] == [NOW, NOW]


# ---- the credentials


@pytest.mark.parametrize("code", ["ExpiredTokenException", "UnrecognizedClientException", "InvalidSignatureException"])
async def test_a_request_whose_credentials_the_service_refuses_is_sent_again_with_new_ones(
    code, server, make_client, chain
):
    def rotate(peer, request):
        chain.found = Credentials("AKID2", "secret-2")
        return refuse(peer, request)

    refuse = server.reply(**error(code, "no longer good"))._script.pop()
    server.does(rotate)
    async with make_client(server, credentials=None) as client:
        await client.put_records("orders", ENTRIES)
        await client.put_records("orders", ENTRIES)
    assert [access_key_of(request) for request in server.requests] == ["AKID1", "AKID2", "AKID2"]
    assert chain.calls == [False, True]


async def test_refused_credentials_that_are_all_there_is_fail_and_are_not_looked_up_for_every_request(
    server, make_client, chain
):
    for _ in range(20):
        server.reply(**error("UnrecognizedClientException", "unknown key"))
    async with make_client(server, credentials=None) as client:

        async def put():
            with pytest.raises(ServiceError) as caught:
                await client.put_records("orders", ENTRIES)
            assert (caught.value.kind, caught.value.retryable) == ("denied", False)

        await put()
        assert chain.calls == [False, True]
        async with anyio.create_task_group() as tasks:
            for _ in range(10):
                tasks.start_soon(put)
    assert chain.calls == [False, True, True]
    assert len(server.requests) == 11


async def test_fixed_credentials_are_never_looked_up(server, make_client, chain, clock):
    server.reply(**error("ExpiredTokenException", "no longer good"))
    async with make_client(server) as client:
        with pytest.raises(ServiceError):
            await client.put_records("orders", ENTRIES)
        clock.now += 1e6
        await client.put_records("orders", ENTRIES)
    assert chain.calls == []


async def test_credentials_that_can_change_are_looked_at_again_before_they_expire(server, make_client, chain, clock):
    chain.can_change = True
    async with make_client(server, credentials=None) as client:
        await client.put_records("orders", ENTRIES)
        chain.found = Credentials("AKID2", "secret-2")
        clock.now += 59
        await client.put_records("orders", ENTRIES)
        clock.now += 2
        await client.put_records("orders", ENTRIES)
    assert [access_key_of(request) for request in server.requests] == ["AKID1", "AKID1", "AKID2"]
    assert chain.calls == [False, False]


async def test_a_look_again_that_fails_keeps_the_old_ones(server, make_client, chain, clock):
    chain.can_change = True
    async with make_client(server, credentials=None) as client:
        await client.put_records("orders", ENTRIES)
        chain.found = CredentialsError("STS is away")
        clock.now += 61
        await client.put_records("orders", ENTRIES)
        await client.put_records("orders", ENTRIES)
        assert len(chain.calls) == 2
        chain.found = Credentials("AKID2", "secret-2")
        clock.now += 11
        await client.put_records("orders", ENTRIES)
    assert [access_key_of(request) for request in server.requests] == ["AKID1", "AKID1", "AKID1", "AKID2"]


async def test_fifty_requests_share_one_look_up(server, make_client, chain):
    chain.gate.clear()
    async with make_client(server, credentials=None) as client, anyio.create_task_group() as tasks:
        for _ in range(50):
            tasks.start_soon(client.put_records, "orders", ENTRIES)
        await anyio.sleep(0.02)
        assert server.requests == []
        chain.gate.set()
    assert len(server.requests) == 50
    assert (chain.calls, chain.most_at_once) == ([False], 1)


async def test_fifty_requests_share_one_look_up_that_fails(make_client, chain):
    chain.gate.clear()
    chain.found = CredentialsError("nothing found")
    failures = []

    async def put(client):
        with pytest.raises(CredentialsError, match="nothing found"):
            await client.put_records("orders", ENTRIES)
        failures.append(1)

    async with make_client("http://127.0.0.1:1", credentials=None) as client:
        async with anyio.create_task_group() as tasks:
            for _ in range(50):
                tasks.start_soon(put, client)
            await anyio.sleep(0.02)
            chain.gate.set()
        assert (len(failures), chain.calls) == (50, [False])
        await put(client)  # a later request looks them up again
    assert len(chain.calls) == 2


async def test_requests_with_usable_credentials_do_not_wait_for_a_look_up(server, make_client, chain, clock):
    chain.can_change = True
    async with make_client(server, credentials=None) as client:
        await client.put_records("orders", ENTRIES)
        clock.now += 61
        chain.gate.clear()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(client.put_records, "orders", ENTRIES)
            await anyio.sleep(0.02)
            for _ in range(10):
                await client.put_records("orders", ENTRIES)
            assert (len(server.requests), chain.most_at_once) == (11, 1)
            chain.gate.set()
    assert len(chain.calls) == 2


async def test_fifty_refusals_lead_to_one_look_up(server, make_client, chain, eventually):
    release = threading.Event()

    def refuse_together(peer, request):
        release.wait(5)
        body = b'{"__type":"ExpiredTokenException","message":"expired"}'
        peer.send(b"HTTP/1.1 400 Bad\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
        return True

    for _ in range(20):
        server.does(refuse_together)
    async with make_client(server, credentials=None) as client, anyio.create_task_group() as tasks:
        for _ in range(20):
            tasks.start_soon(client.put_records, "orders", ENTRIES)
        await eventually(lambda: len(server.requests) == 20)
        chain.found = Credentials("AKID2", "secret-2")
        release.set()
    assert chain.calls == [False, True]
    assert {access_key_of(request) for request in server.requests[20:]} == {"AKID2"}


async def test_a_cancelled_look_up_is_made_again(server, make_client, chain):
    chain.gate.clear()
    async with make_client(server, credentials=None) as client:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(client.put_records, "orders", ENTRIES)
            await anyio.sleep(0.02)
            tasks.cancel_scope.cancel()
            chain.gate.set()
        await client.put_records("orders", ENTRIES)
    assert chain.most_at_once == 1
    assert len(server.requests) == 1


async def test_a_refresh_that_fails_is_worth_a_retry(server, make_client, chain):
    """A producer must not lose records because the token service is unreachable for a second."""
    server.reply(**error("UnrecognizedClientException", "no longer good"))
    async with make_client(server, credentials=None) as client:
        await client.start()
        assert await client.api._http._credentials.get(0.0) == chain.found
        chain.found = CredentialsError("STS is away")
        with pytest.raises(ServiceError) as refused:
            await client.put_records("orders", ENTRIES)
        assert (refused.value.code, refused.value.retryable) == ("UnrecognizedClientException", True)
        with pytest.raises(Exception, match="STS is away") as caught:
            await client.put_records("orders", ENTRIES)
        assert (caught.value.kind, caught.value.retryable, caught.value.maybe_received) == (
            "expired-credentials",
            True,
            False,
        )
        chain.found = Credentials("AKID2", "secret-2")
        await client.put_records("orders", ENTRIES)
    assert access_key_of(server.requests[-1]) == "AKID2"
