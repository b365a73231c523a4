"""Does a client that is configured for HTTP/2 use it with a server that offers it?"""

import base64
import contextlib
import gc
import json
import socket
import ssl
import threading
import time

import anyio
import h2.config
import h2.connection
import h2.errors
import h2.events
import h2.exceptions
import h2.settings
import pytest

from shardline import TransportError
from shardline.adapters.http import http2_transport
from shardline.codec.eventstream import encode_message
from shardline.core.requests import SubscribeToShard
from shardline.model.position import LATEST

LOOPS = ("asyncio", "uvloop", "trio")
pytestmark = [
    pytest.mark.anyio,
    pytest.mark.parametrize("wire", [(loop, True) for loop in LOOPS], indirect=True, ids=LOOPS),
]

ENTRIES = [(b"x", "k")]
GOOD = b'{"Records":[{"SequenceNumber":"1","ShardId":"shardId-0"}]}'


class Http2Server:
    """A server with one thread per connection. ``answer(link, stream_id, headers, body)`` handles a request."""

    def __init__(self, tls, answer, pump, streams):
        self.requests = []
        self.protocols = []
        self.ended = 0
        self.answer = answer
        self._pump = pump
        self._streams = streams
        self._links = []
        self._lock = threading.RLock()
        self._is_vanished = False
        self._tls = tls
        self._sockets = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.host = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.url = f"https://{self.host}"
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def stop(self):
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for one in self._sockets:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(5)
        for one in self._sockets:
            one.close()

    def inject(self, what):
        """Send bytes on the first connection, or call a function with it."""
        self._inject(*self._links[0], what)

    def inject_here(self, what):
        """Send bytes on the last connection."""
        self._inject(*self._links[-1], what)

    def _inject(self, one, link, what):
        with self._lock:
            if isinstance(what, bytes):
                one.sendall(link.data_to_send() + what)
            else:
                what(link)
                one.sendall(link.data_to_send())

    def vanish(self):
        """Stop reading and answering on the open connections."""
        self._is_vanished = True

    @property
    def open_streams(self):
        with self._lock:
            return sum(link.open_inbound_streams for _, link in self._links)

    def _accept(self):
        while True:
            try:
                plain, _ = self._listener.accept()
                one = self._tls.wrap_socket(plain, server_side=True)
            except OSError:
                return
            self._sockets.append(one)
            self._threads.append(threading.Thread(target=self._serve, args=(one,)))
            self._threads[-1].start()

    def _serve(self, one):
        self.protocols.append(one.selected_alpn_protocol())
        link = h2.connection.H2Connection(h2.config.H2Configuration(client_side=False))
        limit = {h2.settings.SettingCodes.MAX_CONCURRENT_STREAMS: self._streams}
        link.local_settings = h2.settings.Settings(client=False, initial_values=limit)
        link.initiate_connection()
        self._links.append((one, link))
        self._is_vanished = False
        arriving = {}
        with contextlib.suppress(OSError, h2.exceptions.ProtocolError):  # the second after a GOAWAY
            one.sendall(link.data_to_send())
            while data := one.recv(262_144):
                with self._lock:
                    if self._is_vanished and self._links[-1][0] is one:
                        continue
                    for event in link.receive_data(data):
                        self._handle(link, event, arriving)
                    self._pump(link)
                    if not self._is_vanished:
                        one.sendall(link.data_to_send())
        self.ended += 1
        with contextlib.suppress(OSError):
            one.shutdown(socket.SHUT_RDWR)

    def _handle(self, link, event, arriving):
        match event:
            case h2.events.RequestReceived():
                arriving[event.stream_id] = (dict(event.headers), bytearray())
            case h2.events.DataReceived():
                arriving[event.stream_id][1].extend(event.data)
                link.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
            case h2.events.StreamEnded():
                headers, body = arriving.pop(event.stream_id)
                told = {name.decode(): value.decode() for name, value in headers.items()}
                self.requests.append((told, bytes(body)))
                self.answer(link, event.stream_id, told, bytes(body))


def answer_well(link, stream_id, headers, body):
    link.send_headers(stream_id, [(":status", "200"), ("content-type", "application/x-amz-json-1.1")])
    link.send_data(stream_id, GOOD, end_stream=True)


@pytest.fixture
def start_http2(authority):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.set_alpn_protocols(["h2"])
    authority.issue_cert("127.0.0.1").configure_cert(context)
    with contextlib.ExitStack() as stack:

        def start(answer=answer_well, pump=lambda _: None, *, streams=100):
            server = Http2Server(context, answer, pump, streams)
            stack.callback(server.stop)
            return server

        yield start
    gc.collect()


async def test_requests_share_one_connection(start_http2, ca_path, make_client):
    server = start_http2()
    async with make_client(server, verify=ca_path) as client:
        await client.put_records("orders", ENTRIES)
        async with anyio.create_task_group() as tasks:
            for _ in range(20):
                tasks.start_soon(client.put_records, "orders", ENTRIES)
    assert server.protocols == ["h2"]
    assert len(server.requests) == 21
    headers, body = server.requests[0]
    assert (headers[":method"], headers[":path"], headers[":authority"]) == ("POST", "/", server.host)
    assert headers["x-amz-target"] == "Kinesis_20131202.PutRecords"
    assert "SignedHeaders=content-type;host;" in headers["authorization"]
    assert json.loads(body)["StreamName"] == "orders"


async def test_a_large_body_arrives_whole(start_http2, ca_path, make_client):
    server = start_http2()
    async with make_client(server, verify=ca_path, protocol="cbor") as client:
        await client.put_records("orders", [(b"\xa5" * 4_000_000, "k")])
    [(headers, body)] = server.requests
    assert len(body) == int(headers["content-length"]) > 4_000_000
    assert b"\xa5" * 4_000_000 in body


@pytest.mark.parametrize("is_gone", [False, True], ids=["a refused stream", "a server that goes away"])
async def test_a_reset_is_reported_after_one_request(is_gone, start_http2, ca_path, make_client):
    def refuse(link, stream_id, headers, body):
        if is_gone:
            link.close_connection()
        else:
            link.reset_stream(stream_id, h2.errors.ErrorCodes.INTERNAL_ERROR)
        server.answer = answer_well

    server = start_http2(refuse)
    async with make_client(server, verify=ca_path) as client:
        with pytest.raises(TransportError) as caught:
            await client.put_records("orders", ENTRIES)
        assert (caught.value.kind, caught.value.maybe_received) == ("transient", True)
        assert server.host in str(caught.value)
        assert len(server.requests) == 1
        await client.put_records("orders", ENTRIES)
    assert len(server.requests) == 2


async def test_silence_and_cancellation_of_one_request_leave_the_others_alone(start_http2, ca_path, make_client):
    def answer_but_slow(link, stream_id, headers, body):
        if b"slow" not in body:
            answer_well(link, stream_id, headers, body)

    server = start_http2(answer_but_slow)
    async with make_client(server, verify=ca_path, read_timeout=0.5, max_connections=1) as client:
        await client.put_records("orders", ENTRIES)
        with anyio.move_on_after(0.03) as scope:
            await client.put_records("slow", ENTRIES)
        assert scope.cancelled_caught
        await client.put_records("orders", ENTRIES)
        with pytest.raises(TransportError) as caught:
            await client.put_records("slow", ENTRIES)
        assert caught.value.code == "ReadTimeout"
        with anyio.fail_after(3):
            await client.put_records("orders", ENTRIES)


async def test_a_close_ends_what_is_under_way(start_http2, ca_path, make_client, eventually):
    server = start_http2(lambda *_: None)
    client = make_client(server, verify=ca_path)
    await client.start()
    errors = []

    async def put():
        with pytest.raises(TransportError) as caught:
            await client.put_records("orders", ENTRIES)
        errors.append(caught.value.code)

    async with anyio.create_task_group() as tasks:
        for _ in range(3):
            tasks.start_soon(put)
        await eventually(lambda: len(server.requests) == 3)
        with anyio.fail_after(10):
            await client.close()
    assert errors == ["ConnectionReset"] * 3


async def test_a_subscription(start_http2, ca_path, make_client):
    def frame(number):
        page = {"Records": [], "ContinuationSequenceNumber": str(number), "MillisBehindLatest": 0}
        headers = {":message-type": "event", ":event-type": "SubscribeToShardEvent"}
        return encode_message(headers, json.dumps(page).encode())

    def push(link, stream_id, headers, body):
        link.send_headers(stream_id, [(":status", "200")])
        whole = frame(1) + frame(2) + frame(3)
        for start in range(0, len(whole), 50):
            link.send_data(stream_id, whole[start : start + 50])
        if b"TRIM_HORIZON" in body:
            link.end_stream(stream_id)

    server = start_http2(push)
    consumer = "arn:aws:kinesis:eu-west-1:123456789012:stream/orders/consumer/c:1"
    async with make_client(server, verify=ca_path) as client:
        whole = client.subscribe_to_shard(consumer, "shardId-0", "TRIM_HORIZON")
        assert [one.continuation_sequence_number async for one in whole] == ["1", "2", "3"]
        async with client.subscribe_to_shard(consumer, "shardId-0", "LATEST") as open_end:
            assert (await anext(open_end)).continuation_sequence_number == "1"
        server.answer = answer_well
        await client.put_records("orders", ENTRIES)
    assert server.protocols == ["h2"]


def numbered(number, data=None):
    record = {"Data": base64.b64encode(data or b"").decode(), "PartitionKey": "k", "SequenceNumber": "1"}
    records = [] if data is None else [record]
    page = {"Records": records, "ContinuationSequenceNumber": str(number), "MillisBehindLatest": 0}
    headers = {":message-type": "event", ":event-type": "SubscribeToShardEvent"}
    return encode_message(headers, json.dumps(page).encode())


def begin(link, stream_id, headers, body):
    """Open a subscription with one event, and keep it open."""
    link.send_headers(stream_id, [(":status", "200")])
    link.send_data(stream_id, numbered(1))


def goaway(last, code=0):
    return bytes([0, 0, 8, 7, 0, 0, 0, 0, 0]) + last.to_bytes(4, "big") + code.to_bytes(4, "big")


CONSUMER = "arn:aws:kinesis:eu-west-1:123456789012:stream/orders/consumer/c:1"


def subscribe(client):
    return client.subscribe_to_shard(CONSUMER, "shardId-0", "LATEST")


async def test_a_goodbye_lets_subscriptions_go_on_and_new_requests_use_another_connection(
    start_http2, ca_path, make_client
):
    server = start_http2(begin)
    async with make_client(server, verify=ca_path) as client, subscribe(client) as subscription:
        assert (await anext(subscription)).continuation_sequence_number == "1"
        server.inject(goaway(2**31 - 1))
        server.inject(goaway(1))
        server.answer = answer_well
        await anyio.sleep(0.05)
        for _ in range(3):
            await client.put_records("orders", ENTRIES)
        assert len(server.protocols) == 2
        server.inject(lambda link: link.send_data(1, numbered(2)))
        assert (await anext(subscription)).continuation_sequence_number == "2"
        server.inject(lambda link: link.end_stream(1))
        assert [one async for one in subscription] == []


@pytest.mark.parametrize("how", ["refused", "left out"])
async def test_a_request_that_the_server_did_not_take_is_safe_to_send_again(how, start_http2, ca_path, make_client):
    def refuse(link, stream_id, headers, body):
        server.answer = answer_well
        if how == "refused":
            link.reset_stream(stream_id, h2.errors.ErrorCodes.REFUSED_STREAM)
        else:
            server.inject_here(goaway(0))

    server = start_http2(refuse)
    async with make_client(server, verify=ca_path) as client:
        with pytest.raises(TransportError) as caught:
            await client.put_records("orders", ENTRIES)
        error = caught.value
        assert (error.code, error.kind, error.maybe_received) == ("RequestRefused", "transient", False)
        assert error.retryable
        await client.put_records("orders", ENTRIES)


async def test_a_slow_reader_makes_its_server_wait_and_no_other_reader(start_http2, ca_path, make_client):
    """Two megabytes are pushed to a subscription that is not read, and to one that is."""
    size = 2_000_000
    event = numbered(7)
    whole = event * (size // len(event) + 1)
    sent = {}

    def push(link, stream_id, headers, body):
        link.send_headers(stream_id, [(":status", "200")])
        sent[stream_id] = 0

    def pump(link):
        for stream_id, done in sent.items():
            while room := min(
                link.local_flow_control_window(stream_id), link.max_outbound_frame_size, len(whole) - done
            ):
                link.send_data(stream_id, whole[done : done + room])
                done += room  # noqa: PLW2901
            sent[stream_id] = done

    server = start_http2(push, pump)
    async with make_client(server, verify=ca_path) as client, subscribe(client) as slow, subscribe(client) as quick:
        with anyio.fail_after(30):
            for _ in range(size // len(event)):
                assert (await anext(quick)).continuation_sequence_number == "7"
            first, second = sent.values()
            assert second >= size
            assert first <= 256 * 1024
            for _ in range(size // len(event)):  # and nothing was lost
                await anext(slow)
    assert server.protocols == ["h2"]


async def test_no_more_streams_are_open_than_the_server_allows(start_http2, ca_path, make_client):
    most = []

    def count(link, stream_id, headers, body):
        most.append(link.open_inbound_streams)
        answer_well(link, stream_id, headers, body)

    server = start_http2(count, streams=3)
    async with make_client(server, verify=ca_path, max_connections=2) as client, anyio.create_task_group() as tasks:
        for _ in range(40):
            tasks.start_soon(client.put_records, "orders", ENTRIES)
    assert len(server.requests) == 40
    assert len(server.protocols) <= 2
    assert max(most) <= 3


async def test_a_server_that_allows_no_streams_is_no_hang(start_http2, ca_path, make_client):
    server = start_http2(streams=0)
    async with make_client(server, verify=ca_path) as client:
        with anyio.fail_after(20), pytest.raises(TransportError) as caught:
            await client.put_records("orders", ENTRIES)
    assert (caught.value.code, caught.value.maybe_received) == ("RequestRefused", False)


async def test_many_subscriptions_share_few_connections(start_http2, ca_path, make_client):
    server = start_http2(begin, streams=1000)
    async with make_client(server, verify=ca_path, http2=False) as client, contextlib.AsyncExitStack() as stack:
        opened = [await stack.enter_async_context(subscribe(client)) for _ in range(120)]
        for subscription in opened:
            assert (await anext(subscription)).continuation_sequence_number == "1"
        server.answer = answer_well
    assert server.protocols == ["h2", "h2"]


async def test_a_subscription_that_finds_no_free_connection_fails_instead_of_waiting_for_ever(
    start_http2, ca_path, make_client
):
    """Its shard would otherwise never be read, and nobody would know."""
    server = start_http2(begin, streams=1)
    async with make_client(server, verify=ca_path, max_connections=1, read_timeout=2.0) as client:
        async with subscribe(client):
            with (
                anyio.fail_after(20),
                pytest.raises(TransportError, match=r"1 connections are full.*raise max_connections") as caught,
            ):
                await anext(subscribe(client))
            assert (caught.value.code, caught.value.maybe_received) == ("NoFreeConnection", False)
        async with subscribe(client) as later:
            assert (await anext(later)).continuation_sequence_number == "1"
    assert server.protocols == ["h2"]


async def test_a_caller_with_a_timeout_of_its_own_leaves_the_connection_to_the_other_subscriptions(
    start_http2, ca_path, make_client
):
    server = start_http2(begin)
    request = SubscribeToShard(CONSUMER, "shardId-0", LATEST)
    async with (
        make_client(server, verify=ca_path, read_timeout=2.0) as client,
        client.api.subscribe_to_shard(request) as impatient,
        client.api.subscribe_to_shard(request) as patient,
    ):
        for events in (impatient, patient):
            assert (await events.next_event(10.0)).continuation_sequence_number == "1"
        await anyio.sleep(2.1)  # longer than read_timeout
        assert (await impatient.next_event(0.05)).code == "ReadTimeout"
        server.inject(lambda link: link.send_data(3, numbered(2)))  # the second stream of the connection
        assert (await patient.next_event(10.0)).continuation_sequence_number == "2"
    assert server.protocols == ["h2"]


async def test_an_event_that_arrives_in_parts_has_to_be_complete_in_time(start_http2, ca_path, make_client):
    server = start_http2(begin)
    request = SubscribeToShard(CONSUMER, "shardId-0", LATEST)
    large = numbered(2, b"x" * 60_000)
    async with (
        make_client(server, verify=ca_path) as client,
        client.api.subscribe_to_shard(request) as events,
    ):
        assert (await events.next_event(10.0)).continuation_sequence_number == "1"
        server.inject(lambda link: link.send_data(1, large[:9_000]))
        server.inject(lambda link: link.send_data(1, large[9_000:20_000]))
        assert (await events.next_event(0.3)).code == "ReadTimeout"
        for start in range(20_000, len(large), 10_000):
            server.inject(lambda link, part=large[start : start + 10_000]: link.send_data(1, part))
        assert (await events.next_event(10.0)).records[0].data == b"x" * 60_000
    assert server.protocols == ["h2"]


async def test_calls_use_http1_unless_http2_is_asked_for(tls_server, ca_path, make_client):
    """The same server speaks both."""
    async with make_client(tls_server, verify=ca_path, http2=False) as client:
        await client.put_records("orders", ENTRIES)
    async with make_client(tls_server, verify=ca_path, http2=True) as client:
        await client.put_records("orders", ENTRIES)
    first, second = tls_server.requests
    assert (":scheme" in first.headers, second.headers.get(":scheme")) == (False, "https")


async def test_a_context_of_the_callers_speaks_http2_if_asked_to(start_http2, authority, make_client):
    server = start_http2()
    context = ssl.create_default_context()
    authority.configure_trust(context)
    async with make_client(server, verify=context) as client:
        await client.put_records("orders", ENTRIES)
    assert server.protocols == ["h2"]


async def test_a_vanished_server_is_noticed_while_the_subscription_is_not_read(
    *, start_http2, ca_path, make_client, monkeypatch
):
    """The connection is half open: no answer to a ping, and no reset. The subscription is not being read."""
    monkeypatch.setattr(http2_transport, "PING_AFTER", 0.2)
    server = start_http2(begin)
    async with make_client(server, verify=ca_path) as client, subscribe(client) as subscription:
        await anext(subscription)
        await anyio.sleep(0.6)  # the server answers pings, so the connection stays
        server.inject(lambda link: link.send_data(1, numbered(2)))
        assert (await anext(subscription)).continuation_sequence_number == "2"
        server.vanish()
        await anyio.sleep(1.0)
        with anyio.fail_after(5), pytest.raises(TransportError) as caught:
            await anext(subscription)
        assert (caught.value.code, caught.value.kind) == ("ConnectionReset", "transient")
        assert "ping" in str(caught.value)


async def test_a_silent_connection_is_not_used_again(start_http2, ca_path, make_client):
    """Requests after one that timed out would only wait for as long."""
    server = start_http2(lambda *_: server.vanish())
    async with make_client(server, verify=ca_path, read_timeout=0.4) as client:
        with pytest.raises(TransportError) as caught:
            await client.put_records("orders", ENTRIES)
        assert caught.value.code == "ReadTimeout"
        server.answer = answer_well
        await anyio.sleep(0.05)
        with contextlib.suppress(TransportError):  # the server's settings may have arrived just before
            await client.put_records("orders", ENTRIES)
        await client.put_records("orders", ENTRIES)
    assert len(server.protocols) == 2


async def test_an_idle_connection_is_closed_after_a_while(start_http2, ca_path, make_client, eventually, monkeypatch):
    monkeypatch.setattr(http2_transport, "PING_AFTER", 0.05)
    server = start_http2()
    async with make_client(server, verify=ca_path) as client:
        object.__setattr__(client._settings.http, "idle_timeout", 0.1)
        await client.put_records("orders", ENTRIES)
        await eventually(lambda: server.ended == 1)
        await client.put_records("orders", ENTRIES)
    assert len(server.protocols) == 2


FLOODS = {
    "pings": bytes([0, 0, 8, 6, 0, 0, 0, 0, 0]) + bytes(8),
    "settings": bytes([0, 0, 6, 4, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 100]),
    "empty data": bytes([0, 0, 0, 0, 0, 0, 0, 0, 1]),
    "unknown frames": bytes([0, 0, 1, 99, 0, 0, 0, 0, 0, 0]),
}


@pytest.mark.parametrize("kind", FLOODS)
async def test_a_flood_of_frames_ends_with_the_time_of_the_request(kind, start_http2, ca_path, make_client):
    def flood(link, stream_id, headers, body):
        link.send_headers(stream_id, [(":status", "200")])
        with contextlib.suppress(OSError):
            for _ in range(200):
                server.inject_here(FLOODS[kind] * 50)
                time.sleep(0.02)

    server = start_http2(flood)
    async with make_client(server, verify=ca_path, read_timeout=0.5) as client:
        with anyio.fail_after(20), pytest.raises(TransportError) as caught:
            await client.put_records("orders", ENTRIES)
    assert caught.value.code == "ReadTimeout"


async def test_cancelled_requests_reset_their_streams_and_keep_the_connection(
    start_http2, ca_path, make_client, eventually
):
    server = start_http2()
    async with make_client(server, verify=ca_path) as client:
        await client.put_records("orders", ENTRIES)
        server.answer = lambda *_: None
        for step in range(20):
            with anyio.move_on_after(0.001 * step):
                await client.put_records("orders", ENTRIES)
        server.answer = answer_well
        with anyio.fail_after(10):
            await client.put_records("orders", ENTRIES)
        await eventually(lambda: server.open_streams == 0)
    assert len(server.protocols) == 1
