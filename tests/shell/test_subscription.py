"""How does an enhanced fan-out subscription open, deliver, break and end?"""

import asyncio
import base64
import gc
import json
import time
import warnings
from datetime import UTC, datetime

import anyio
import cbor2
import pytest

from shardline import ServiceError, TransportError, UsageError, after_sequence_number, at_timestamp
from shardline.codec.eventstream import encode_message

pytestmark = pytest.mark.anyio

CONSUMER = "arn:aws:kinesis:eu-west-1:123456789012:stream/orders/consumer/c:1"
STREAMING = {"Content-Type": "application/vnd.amazon.eventstream"}


@pytest.fixture
def server(start_server, wire):
    """Subscriptions use HTTP/2 wherever possible, whatever the client's setting. One of these servers does not support
    it.
    """
    server = start_server(http1_only=not wire.http2)
    server.streams_max = 1
    return server


@pytest.fixture(autouse=True)
def nothing_is_left_open():
    yield
    gc.collect()


def frame(kind, payload=b"{}", **headers):
    told = {":message-type": "event", ":event-type": kind, ":content-type": "application/json"}
    return encode_message(told | {f":{name.replace('_', '-')}": value for name, value in headers.items()}, payload)


def event(number, size=3):
    record = {
        "Data": base64.b64encode(bytes([number]) * size).decode(),
        "PartitionKey": f"key-{number}",
        "SequenceNumber": str(number),
        "ApproximateArrivalTimestamp": 1.5,
    }
    page = {"Records": [record], "ContinuationSequenceNumber": str(number), "MillisBehindLatest": 0, "ChildShards": []}
    return frame("SubscribeToShardEvent", json.dumps(page).encode())


def exception(code, message="told so"):
    headers = {":message-type": "exception", ":exception-type": code, ":content-type": "application/json"}
    return encode_message(headers, json.dumps({"message": message}).encode())


def cut(data, size):
    return [data[start : start + size] for start in range(0, len(data), size)]


OPENING = frame("initial-response")


def subscribe(client, position="LATEST"):
    return client.subscribe_to_shard(CONSUMER, "shardId-000000000000", position)


def open_forever(server, *frames):
    """Send frames, and then nothing, while the connection stays open."""
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    server.then_stay(head, *(b"%x\r\n%b\r\n" % (len(one), one) for one in frames))


async def numbers_of(subscription, seen=None):
    """Return the numbers of all events. They are also added to ``seen``, for subscriptions that end with an error."""
    seen = [] if seen is None else seen
    async for one in subscription:
        seen.append(int(one.continuation_sequence_number))
    return seen


# ---- events


@pytest.mark.parametrize("size", [1, 7, 101, 100_000])
async def test_events_come_however_the_bytes_are_cut(size, server, make_client):
    server.chunked(
        cut(OPENING + event(1) + event(2) + frame("SomethingNew") + event(3, 2_000), size), headers=STREAMING
    )
    async with make_client(server) as client:
        events = [one async for one in subscribe(client)]
    assert [one.continuation_sequence_number for one in events] == ["1", "2", "3"]
    assert [one.records[0].data for one in events] == [b"\1" * 3, b"\2" * 3, b"\3" * 2_000]
    assert (events[0].records[0].key, events[0].records[0].arrived_at) == ("key-1", 1.5)
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    ("position", "sent"),
    [
        ("TRIM_HORIZON", {"Type": "TRIM_HORIZON"}),
        (after_sequence_number("77"), {"Type": "AFTER_SEQUENCE_NUMBER", "SequenceNumber": "77"}),
        (at_timestamp(1.5), {"Type": "AT_TIMESTAMP", "Timestamp": 1.5}),
        (datetime(1970, 1, 1, 0, 1, tzinfo=UTC), {"Type": "AT_TIMESTAMP", "Timestamp": 60.0}),
    ],
)
async def test_what_is_asked_for(position, sent, server, make_client):
    server.chunked([OPENING])
    async with make_client(server) as client:
        assert await numbers_of(subscribe(client, position)) == []
    [request] = server.requests
    assert request.operation == "SubscribeToShard"
    wanted = {"ConsumerARN": CONSUMER, "ShardId": "shardId-000000000000", "StartingPosition": sent}
    assert json.loads(request.body) == wanted


@pytest.mark.parametrize("payload", ["json", "cbor"])
async def test_a_cbor_client_reads_events_of_both_kinds(payload, server, make_client):
    page = {"Records": [], "ContinuationSequenceNumber": "5", "MillisBehindLatest": 0}
    raw = cbor2.dumps(page) if payload == "cbor" else json.dumps(page).encode()
    server.chunked([OPENING, frame("SubscribeToShardEvent", raw)])
    async with make_client(server, protocol="cbor") as client:
        assert await numbers_of(subscribe(client)) == [5]


async def test_a_subscription_that_ended_stays_ended_and_gives_its_connection_back(server, make_client):
    server.chunked([OPENING, event(1)])
    async with make_client(server, max_connections=1) as client:
        subscription = subscribe(client)
        assert await numbers_of(subscription) == [1]
        assert await numbers_of(subscription) == []
        await subscription.aclose()
        await client.put_records("orders", [(b"x", "k")])
        assert list(client._subscriptions) == []
    assert len(server.requests) == 2


async def test_the_block_opens_at_once_and_closes_at_once(server, make_client, eventually):
    open_forever(server, OPENING, event(1), event(2))
    async with make_client(server, max_connections=1) as client:
        async with subscribe(client) as subscription:
            assert len(server.requests) == 1
            assert (await anext(subscription)).continuation_sequence_number == "1"
        assert await numbers_of(subscription) == []
        await client.put_records("orders", [(b"x", "k")])
    await eventually(lambda: server.busy == 0)


# ---- failures


@pytest.mark.parametrize(
    ("code", "kind", "retryable"),
    [
        ("ResourceInUseException", "in-use", True),
        ("InternalFailureException", "transient", True),
        ("KMSDisabledException", "kms", False),
        ("ResourceNotFoundException", "not-found", False),
        ("SomethingNewException", "transient", True),
    ],
)
async def test_an_exception_among_the_events(code, kind, retryable, server, make_client):
    server.chunked([OPENING + event(1) + exception(code)])
    seen = []
    async with make_client(server) as client:
        subscription = subscribe(client)
        with pytest.raises(ServiceError) as caught:
            await numbers_of(subscription, seen)
        assert await numbers_of(subscription) == []
    assert len(seen) == 1
    error = caught.value
    assert (error.operation, error.code, error.kind, error.retryable) == ("SubscribeToShard", code, kind, retryable)
    assert "told so" in str(error)


@pytest.mark.parametrize(
    ("headers", "code", "words"),
    [
        ({":message-type": "error", ":error-code": "500", ":error-message": "broken"}, "500", "broken"),
        ({":message-type": "error"}, "InternalFailure", "no reason"),
        ({}, "InternalFailure", "no reason"),
    ],
)
async def test_an_error_among_the_events(headers, code, words, server, make_client):
    server.chunked([OPENING, encode_message(headers, b"")])
    async with make_client(server) as client:
        with pytest.raises(ServiceError) as caught:
            await numbers_of(subscribe(client))
    assert (caught.value.code, caught.value.kind) == (code, "transient")
    assert words in str(caught.value)


def damaged(whole):
    return whole[:-1] + bytes([whole[-1] ^ 1])


BROKEN = {
    "frame cut off": ([OPENING, event(1), event(2)[:-5]], True, "BadAnswer", "inside a frame"),
    "bad checksum": ([OPENING, event(1) + damaged(event(2)) + event(3)], True, "BadAnswer", "checksum"),
    "bad prelude": ([OPENING, event(1), b"\xff" * 40], True, "BadAnswer", "checksum"),
    "no JSON inside": (
        [OPENING, event(1), frame("SubscribeToShardEvent", b'{"Rec')],
        True,
        "BadAnswer",
        "invalid response",
    ),
    "answer cut off": ([OPENING, event(1), event(2)[:9]], False, "ConnectionReset", "cut short"),
}


@pytest.mark.parametrize("name", BROKEN)
async def test_a_broken_stream_gives_what_came_before_and_then_says_so(name, server, make_client):
    chunks, whole, code, words = BROKEN[name]
    server.chunked(chunks, end=whole)
    seen = []
    async with make_client(server, max_connections=1) as client:
        with pytest.raises(TransportError) as caught:
            await numbers_of(subscribe(client), seen)
        await client.put_records("orders", [(b"x", "k")])
    assert seen == [1]
    error = caught.value
    assert (error.code, error.kind, error.status, error.retryable) == (code, "transient", None, True)
    assert words in str(error)
    assert server.host in str(error)


async def test_a_stream_may_last_for_longer_than_any_answer(server, make_client):
    """Other responses have a time limit as a whole."""

    def drip(peer, _):
        peer.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        for one in (OPENING, *(event(number) for number in range(12))):
            peer.send(b"%x\r\n%b\r\n" % (len(one), one))
            time.sleep(0.1)
        peer.send(b"0\r\n\r\n")

    server.does(drip)
    async with make_client(server, read_timeout=0.4) as client:
        assert await numbers_of(subscribe(client)) == list(range(12))


async def test_silence_on_the_stream(server, make_client):
    open_forever(server, OPENING, event(1))
    async with make_client(server, read_timeout=1.0) as client:
        subscription = subscribe(client)
        await anext(subscription)
        with pytest.raises(TransportError) as caught:
            await anext(subscription)
    assert caught.value.code == "ReadTimeout"


@pytest.mark.parametrize("opened_by", ["block", "anext"])
async def test_a_subscription_that_is_refused(opened_by, server, make_client):
    server.reply(b'{"__type":"ResourceInUseException","message":"too soon"}', status=400)
    async with make_client(server, max_connections=1) as client:
        subscription = subscribe(client)
        with pytest.raises(ServiceError, match="too soon") as caught:
            await (subscription.__aenter__() if opened_by == "block" else anext(subscription))
        assert (caught.value.code, caught.value.status) == ("ResourceInUseException", 400)
        assert await numbers_of(subscription) == []
        await client.put_records("orders", [(b"x", "k")])


async def test_a_subscription_that_finds_no_server(make_client):
    async with make_client("http://127.0.0.1:1") as client:
        with pytest.raises(TransportError) as caught:
            await anext(subscribe(client))
    assert (caught.value.code, caught.value.operation) == ("ConnectError", "SubscribeToShard")


@pytest.mark.parametrize("wrong", ["orders", CONSUMER.partition("/consumer")[0], None])
async def test_a_consumer_is_named_by_its_arn(wrong, server, make_client):
    async with make_client(server) as client:
        with pytest.raises(UsageError, match="consumer ARN"):
            client.subscribe_to_shard(wrong, "shardId-0", "LATEST")
        with pytest.raises(UsageError):
            client.subscribe_to_shard(CONSUMER, "", "LATEST")
        with pytest.raises(UsageError):
            client.subscribe_to_shard(CONSUMER, "shardId-0", "SHARD_END")
    assert server.connections == 0


# ---- closing


async def test_one_that_was_never_opened_sends_nothing(server, make_client):
    async with make_client(server) as client:
        unused = subscribe(client)
        closed = subscribe(client)
        await closed.aclose()
        assert await numbers_of(closed) == []
        async with closed:
            pass
    assert await numbers_of(unused) == []
    assert server.connections == 0


async def test_one_that_is_left_open_is_closed_with_the_client(server, make_client, eventually):
    open_forever(server, OPENING, event(1), event(2))
    async with make_client(server) as client:
        subscription = subscribe(client)
        async for _ in subscription:
            break
    assert await numbers_of(subscription) == []
    await eventually(lambda: server.busy == 0)


async def test_one_that_is_dropped_gives_its_connection_back(server, make_client):
    open_forever(server, OPENING, event(1), event(2))
    async with make_client(server, max_connections=1) as client:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)  # trio's warning about an async generator that was dropped
            async for _ in subscribe(client):
                break
            gc.collect()
        with anyio.fail_after(10):
            await client.put_records("orders", [(b"x", "k")])


async def ended_by(server, subscription, end, *, after):
    """Return what the reading task sees when ``end`` is awaited elsewhere, after it has seen this many events."""
    seen = []

    async def read():
        await numbers_of(subscription, seen)
        seen.append("end")

    with anyio.fail_after(10):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(read)
            while not (server.requests and len(seen) == after):  # noqa: ASYNC110 - what is waited for rings no bell
                await anyio.sleep(0.002)
            await end()
            seen.append("closed")
    return seen


async def test_another_task_may_close_it(server, make_client, eventually):
    open_forever(server, OPENING, event(1))
    async with make_client(server) as client:
        subscription = subscribe(client)
        assert await ended_by(server, subscription, subscription.aclose, after=1) == [1, "end", "closed"]
        await eventually(lambda: server.busy == 0)


async def test_another_task_may_close_it_while_it_opens(server, make_client, eventually):
    server.then_stay()
    async with make_client(server) as client:
        subscription = subscribe(client)
        assert await ended_by(server, subscription, subscription.aclose, after=0) == ["end", "closed"]
        await eventually(lambda: server.busy == 0)


async def test_another_task_may_close_the_client(server, make_client, eventually):
    open_forever(server, OPENING, event(1))
    client = make_client(server)
    await client.start()
    assert await ended_by(server, subscribe(client), client.close, after=1) == [1, "end", "closed"]
    await eventually(lambda: server.busy == 0)


async def test_a_cancelled_read_closes_it(server, make_client, eventually):
    open_forever(server, OPENING, event(1))
    async with make_client(server, max_connections=1) as client:
        subscription = subscribe(client)
        await anext(subscription)
        with anyio.move_on_after(0.03) as scope:
            await anext(subscription)
        assert scope.cancelled_caught
        await eventually(lambda: server.busy == 0)
        assert await numbers_of(subscription) == []
        await client.put_records("orders", [(b"x", "k")])


async def test_a_cancelled_opening_closes_it(server, make_client, eventually, cancelled_when):
    server.then_stay()
    async with make_client(server, max_connections=1) as client:
        subscription = subscribe(client)
        await cancelled_when(lambda: server.requests, anext, subscription)
        assert await numbers_of(subscription) == []
        await client.put_records("orders", [(b"x", "k")])
        await eventually(lambda: server.open_connections == 1)


async def test_closing_under_cancellation_closes(server, make_client, eventually):
    open_forever(server, OPENING, event(1))
    async with make_client(server) as client:
        with anyio.CancelScope() as scope:
            async with subscribe(client) as subscription:
                await anext(subscription)
                scope.cancel()
                await anyio.sleep(1)
        await eventually(lambda: server.busy == 0)


async def test_one_task_at_a_time(server, make_client):
    open_forever(server, OPENING)
    async with make_client(server) as client:
        subscription = subscribe(client)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(numbers_of, subscription)
            await anyio.sleep(0.02)
            with pytest.raises(UsageError, match="one task at a time"):
                await anext(subscription)
            await subscription.aclose()


async def test_a_reader_may_move_to_another_task(server, make_client):
    open_forever(server, OPENING, event(1), event(2), event(3))
    seen = []
    async with make_client(server) as client:
        subscription = subscribe(client)

        async def one():
            seen.append((await anext(subscription)).continuation_sequence_number)

        for _ in range(3):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(one)
        await subscription.aclose()
    assert seen == ["1", "2", "3"]


# on trio, this is the same as test_a_cancelled_read_closes_it
@pytest.mark.parametrize("wire", [("asyncio", False), ("asyncio", True), ("uvloop", False)], indirect=True, ids=str)
async def test_a_native_timeout_closes_it(server, make_client, eventually):
    open_forever(server, OPENING, event(1))
    async with make_client(server) as client:
        subscription = subscribe(client)
        await asyncio.wait_for(anext(subscription), 1)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(subscription), 0.03)
        await eventually(lambda: server.busy == 0)
        assert await numbers_of(subscription) == []
