"""Do the server's faults reach a client over a real connection, and are the right records stored?

The client is our own; plain sockets are used where the bytes matter.
"""

import asyncio
import json
import logging
from contextlib import asynccontextmanager
from random import Random

import pytest

from shardline import Client, Credentials, ServiceError, TransportError
from shardline.codec.eventstream import MessageDecoder
from shardline.server.access import Access
from shardline.server.control import Control
from shardline.server.endpoint import Endpoint
from shardline.server.front import Front
from shardline.server.http_server import HttpServer
from shardline.server.model.faults import Faults
from shardline.server.model.service import Service
from shardline.server.model.settings import Limits, ServiceSettings
from shardline.server.request_log import RequestLog
from shardline.server.server_clock import ServerClock
from shardline.server.signatures import Signatures

pytestmark = pytest.mark.anyio

KEYS = Credentials("AKIDEXAMPLE", "secret")


@pytest.fixture
def anyio_backend():
    return "asyncio"


class Local:
    """A server with all its parts, and a client."""

    def __init__(self, **options):
        self.clock = ServerClock()
        self.service = Service(ServiceSettings(limits=Limits.without_rates()), Random(1), self.clock.now())
        self.faults = Faults(Random(1), self.clock.now)
        self.requests = RequestLog()
        self.endpoint = Endpoint(self.service, self.clock, faults=self.faults, requests=self.requests, **options)
        self.control = Control(self.service, self.clock, faults=self.faults, requests=self.requests)
        self.clock.on_move = self.faults.on_add = self.endpoint.wakeups.wake_all
        self.http = HttpServer(Front(self.endpoint, access=Access(), control=self.control))

    def client(self, **changes):
        settings = {"endpoint_url": f"http://127.0.0.1:{self.http.port}", "region": "us-east-1", "credentials": KEYS}
        return Client(**(settings | changes))

    @property
    def stored(self):
        """Return the data of all records of the stream."""
        shards = self.service.state.streams["s"].shards.values()
        return [record.data for shard in shards for record in shard.log.records]

    async def exchange(self, raw):
        """Send these bytes. Return everything that arrives until the end, and how the connection ended."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.http.port)
        writer.write(raw)
        received = bytearray()
        try:
            while chunk := await reader.read(65_536):
                received += chunk
        except ConnectionResetError:
            return bytes(received), "reset"
        finally:
            writer.close()
        return bytes(received), "end"

    async def ask(self, method, path, body=b"", headers="Content-Type: application/json\r\n"):
        head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{headers}"
        head += f"Content-Length: {len(body)}\r\n\r\n"
        received, ending = await self.exchange(head.encode() + body)
        assert ending == "end"
        head, _, answer = received.partition(b"\r\n\r\n")
        return int(head.split()[1]), json.loads(answer)


@asynccontextmanager
async def serving(**options):
    local = Local(**options)
    await local.http.start("127.0.0.1", 0)
    try:
        async with local.client() as client:
            if not options:
                await client.call("CreateStream", {"StreamName": "s", "ShardCount": 2})
            yield local, client
    finally:
        await local.http.close()


def put_bytes(data="eA=="):
    body = json.dumps({"StreamName": "s", "Records": [{"Data": data, "PartitionKey": "k"}]}).encode()
    return (
        b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/x-amz-json-1.1\r\n"
        b"X-Amz-Target: Kinesis_20131202.PutRecords\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
    )


@pytest.mark.parametrize("protocol", ["json", "cbor"])
async def test_errors_of_any_type_keep_code_words_and_status(protocol):
    async with serving() as (local, _), local.client(protocol=protocol) as client:
        local.faults.error("KMSThrottlingException", "slow down", status=400, count=1)
        local.faults.unavailable(count=1)
        seen = []
        for _ in range(2):
            with pytest.raises(ServiceError) as caught:
                await client.put_records("s", [(b"x", "k")])
            seen.append((caught.value.code, caught.value.message, caught.value.status))
        assert seen == [
            ("KMSThrottlingException", "slow down", 400),
            ("ServiceUnavailableException", "Service Unavailable", 503),
        ]
        assert local.stored == []


@pytest.mark.parametrize(("where", "stored"), [("before", []), ("after", [b"x", b"lost"])])
async def test_a_reset_before_or_after_the_request_sends_nothing(caplog, where, stored):
    caplog.set_level(logging.WARNING)
    async with serving() as (local, client):
        local.faults.reset(where, operation="PutRecords", count=2)
        assert await local.exchange(put_bytes()) == (b"", "reset")
        with pytest.raises(TransportError) as caught:
            await client.put_records("s", [(b"lost", "k")])
        assert caught.value.maybe_received
        assert local.stored == stored
        await client.put_records("s", [(b"y", "k")])
        seen = local.requests.find("PutRecords")
        assert [one.status for one in seen] == [None, None, 200]
        assert [one.was_handled for one in seen] == [where == "after", where == "after", True]
    assert caplog.messages == []


async def test_a_reset_inside_the_answer_sends_its_head_and_half_of_its_body():
    async with serving() as (local, client):
        local.faults.reset("inside", operation="PutRecords", count=2)
        received, ending = await local.exchange(put_bytes())
        assert ending == "reset"
        head, _, body = received.partition(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
        assert head.startswith(b"HTTP/1.1 200 OK\r\n")
        assert len(body) == length // 2
        with pytest.raises(TransportError):
            await client.put_records("s", [(b"y", "k")])
        assert local.stored == [b"x", b"y"]


async def test_a_truncated_answer_announces_more_than_it_sends():
    async with serving() as (local, client):
        local.faults.truncate(at=7, operation="PutRecords", count=1)
        received, ending = await local.exchange(put_bytes())
        assert ending == "end"
        head, _, body = received.partition(b"\r\n\r\n")
        assert body == b'{"Faile'
        assert int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0]) > 50
        local.faults.truncate(share=0.0, operation="PutRecords", count=1)
        with pytest.raises(TransportError):
            await client.put_records("s", [(b"y", "k")])
        assert local.stored == [b"x", b"y"]


async def test_garbage_pages_of_proxies_and_wrong_counts_are_no_answers():
    async with serving() as (local, client):
        local.faults.malformed(b"\x00garbage", count=1)
        with pytest.raises(TransportError):
            await client.put_records("s", [(b"a", "k")])
        assert local.stored == [b"a"]
        local.faults.html(502, count=1)
        with pytest.raises(ServiceError) as caught:
            await client.put_records("s", [(b"b", "k")])
        assert caught.value.status == 502
        assert local.stored == [b"a"]
        local.faults.wrong_count(-1, count=1)
        with pytest.raises(TransportError):
            await client.put_records("s", [(b"c", "k"), (b"d", "k")])
        assert local.stored == [b"a", b"c", b"d"]
        await client.put_records("s", [(b"e", "k")])


@pytest.mark.parametrize(("where", "stored"), [("before", []), ("after", [b"x"])])
async def test_latency_comes_before_or_after_the_request_is_carried_out(eventually, where, stored):
    async with serving() as (local, client):
        began = asyncio.get_running_loop().time()
        local.faults.latency(0.1, where=where, operation="PutRecords", count=1)
        putting = asyncio.create_task(client.put_records("s", [(b"x", "k")]))
        await eventually(lambda: not local.faults.rules)
        assert (local.stored, putting.done()) == (stored, False)
        await putting
        assert asyncio.get_running_loop().time() - began >= 0.099
        assert local.stored == [b"x"]


async def test_a_slow_request_does_not_hold_up_the_others(eventually):
    async with serving() as (local, client):
        local.faults.latency(0.3, stream="s", count=1)
        slow = asyncio.create_task(client.put_records("s", [(b"slow", "k")]))
        await eventually(lambda: not local.faults.rules)
        await client.put_records("s", [(b"fast", "k")])
        await slow
        assert local.stored == [b"fast", b"slow"]


# ---- enhanced fan-out


async def consumer_of(client):
    (stream,) = (await client.call("DescribeStreamSummary", {"StreamName": "s"})).values()
    made = await client.call("RegisterStreamConsumer", {"StreamARN": stream["StreamARN"], "ConsumerName": "c"})
    return made["Consumer"]["ConsumerARN"]


@pytest.mark.parametrize(
    ("kind", "arguments", "failure"),
    [
        ("fan_out_exception", ("ResourceInUseException", "taken"), ServiceError),
        ("fan_out_end", (), None),
        ("fan_out_reset", (), TransportError),
    ],
)
async def test_a_subscription_ends_by_an_exception_early_or_by_a_reset(kind, arguments, failure):
    async with serving() as (local, client):
        await client.put_record("s", b"x", "k", explicit_hash_key="0")
        arn = await consumer_of(client)
        events = []
        async with client.subscribe_to_shard(arn, "shardId-000000000000", "TRIM_HORIZON") as subscription:
            events.append(await anext(subscription))
            getattr(local.faults, kind)(*arguments, shard=0, count=1)
            if failure is None:
                with pytest.raises(StopAsyncIteration):
                    await anext(subscription)
            else:
                with pytest.raises(failure) as caught:
                    await anext(subscription)
                if failure is ServiceError:
                    assert (caught.value.code, caught.value.message) == arguments
        assert [record.data for record in events[0].records] == [b"x"]


async def test_an_exception_frame_has_the_headers_that_aws_sends():
    async with serving() as (local, client):
        arn = await consumer_of(client)
        local.faults.fan_out_exception("InternalFailureException", "sorry", count=1)
        start = {"ConsumerARN": arn, "ShardId": "shardId-000000000000", "StartingPosition": {"Type": "LATEST"}}
        body = json.dumps(start).encode()
        received, ending = await local.exchange(
            b"POST / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/x-amz-json-1.1\r\n"
            b"X-Amz-Target: Kinesis_20131202.SubscribeToShard\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
        )
        assert ending == "end"
        chunks = received.partition(b"\r\n\r\n")[2]
        decoder = MessageDecoder()
        messages = []
        while (size := int(chunks.partition(b"\r\n")[0], 16)) > 0:
            chunks = chunks.partition(b"\r\n")[2]
            messages += decoder.feed(chunks[:size])
            chunks = chunks[size + 2 :]
        assert messages[0].headers[":event-type"] == "initial-response"
        assert messages[1].headers == {
            ":message-type": "exception",
            ":exception-type": "InternalFailureException",
            ":content-type": "application/x-amz-json-1.1",
        }
        assert json.loads(bytes(messages[1].payload)) == {"message": "sorry"}
        assert len(messages) == 2


async def test_resets_of_a_subscribe_request():
    async with serving() as (local, client):
        arn = await consumer_of(client)
        for where in ("before", "inside"):
            local.faults.reset(where, operation="SubscribeToShard", count=1)
            with pytest.raises(TransportError):
                async with client.subscribe_to_shard(arn, "shardId-000000000000", "LATEST") as subscription:
                    await anext(subscription)


# ---- signatures


async def test_signatures_are_checked_and_a_skewed_clock_expires_them():
    keys = {"AKIDEXAMPLE": ("secret", None), "ASIA": ("other", "token")}
    signatures = Signatures(keys, "us-east-1")
    async with serving(signatures=signatures) as (local, client):
        await client.call("CreateStream", {"StreamName": "s", "ShardCount": 1})
        await client.put_record("s", b"x", "k")
        async with local.client(credentials=Credentials("ASIA", "other", "token"), protocol="cbor") as temporary:
            await temporary.put_record("s", b"y", "k")
        refused = {}
        for name, changes in {
            "secret": {"credentials": Credentials("AKIDEXAMPLE", "wrong")},
            "key": {"credentials": Credentials("NOBODY", "secret")},
            "token": {"credentials": Credentials("ASIA", "other", "old")},
            "region": {"region": "eu-west-1"},
        }.items():
            async with local.client(**changes) as stranger:
                with pytest.raises(ServiceError) as caught:
                    await stranger.put_record("s", b"z", "k")
                refused[name] = caught.value.code
        assert refused == {
            "secret": "InvalidSignatureException",
            "key": "UnrecognizedClientException",
            "token": "UnrecognizedClientException",
            "region": "InvalidSignatureException",
        }
        assert local.stored == [b"x", b"y"]
        assert local.requests.last.was_handled is False
        local.faults.clock_skew(3600, count=1)
        with pytest.raises(ServiceError) as caught:
            await client.put_record("s", b"z", "k")
        assert caught.value.message.startswith("Signature expired: ")
        assert local.stored == [b"x", b"y"]
        # The client has learned the service's time from its Date header: it is an hour ahead until the next response.
        local.faults.clock_skew(3600, count=1)
        await client.put_record("s", b"z", "k")
        assert local.stored == [b"x", b"y", b"z"]
        status, answer = await local.ask("GET", "/_shardline/streams")
        assert (status, answer["streams"][0]["records"]) == (200, 3), "the control API is not signed"


async def test_an_unsigned_request_is_refused_before_its_members_are_looked_at():
    async with serving(signatures=Signatures({"A": ("b", None)}, "us-east-1")) as (local, _):
        headers = "Content-Type: application/x-amz-json-1.1\r\nX-Amz-Target: Kinesis_20131202.ListShards\r\n"
        assert await local.ask("POST", "/", b"{}", headers) == (
            400,
            {"__type": "MissingAuthenticationTokenException", "message": "Missing Authentication Token"},
        )


# ---- the control API


async def test_faults_clock_and_requests_over_http():
    async with serving() as (local, client):
        rule = {"kind": "throttle", "operation": "PutRecord", "count": 1}
        status, answer = await local.ask("POST", "/_shardline/faults", json.dumps(rule).encode())
        assert (status, answer["faults"][0]["count_left"]) == (200, 1)
        with pytest.raises(ServiceError):
            await client.put_record("s", b"x", "k")
        assert await local.ask("GET", "/_shardline/faults") == (200, {"faults": []})
        assert (await local.ask("DELETE", "/_shardline/faults/1"))[0] == 400
        status, answer = await local.ask("GET", "/_shardline/requests?operation=PutRecord&limit=5")
        (seen,) = answer["requests"]
        assert (seen["error"], seen["access_key"]) == ("ProvisionedThroughputExceededException", "AKIDEXAMPLE")
        status, answer = await local.ask("POST", "/_shardline/clock", b'{"freeze": true, "advance": 60}')
        assert (status, answer["frozen"], local.clock.is_frozen) == (200, True, True)
        assert (await local.ask("GET", "/_shardline/nothing"))[0] == 404
        assert local.requests.count() == 2, "the control API is not recorded"


async def test_faults_of_all_kinds_at_once_never_stop_the_server(caplog):
    caplog.set_level(logging.WARNING)
    async with serving() as (local, client):
        local.faults.load([{"kind": "random", "intensity": 0.3}])
        for rule in local.faults.rules:
            if rule.rule.kind == "latency":
                rule.remove()
        good = set()
        for at in range(120):
            data = at.to_bytes(2, "big")
            try:
                response = await client.put_records("s", [(data, "k")])
            except (ServiceError, TransportError):
                continue
            if response.records[0].error_code is None:
                good.add(data)
        local.faults.clear()
        await client.put_records("s", [(b"end", "k")])
        assert good <= set(local.stored)
        assert 0 < len(good) < 120
    assert caplog.messages == []
