"""Does a client that asks for HTTP/2 speak it with a server that offers it?"""

import contextlib
import gc
import json
import socket
import ssl
import threading

import anyio
import h2.config
import h2.connection
import h2.errors
import h2.events
import h2.exceptions
import h2.settings
import pytest

from shardline import TransportError
from shardline.codec.eventstream import encode_message

LOOPS = ("asyncio", "uvloop", "trio")
pytestmark = [
    pytest.mark.anyio,
    pytest.mark.parametrize("wire", [(loop, True) for loop in LOOPS], indirect=True, ids=LOOPS),
]

ENTRIES = [(b"x", "k")]
GOOD = b'{"Records":[{"SequenceNumber":"1","ShardId":"shardId-0"}]}'


class Http2Server:
    """One thread a connection; ``answer(link, stream_id, headers, body)`` says what is done with a request."""

    def __init__(self, tls, answer):
        self.requests = []
        self.protocols = []
        self.answer = answer
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
        link.local_settings[h2.settings.SettingCodes.MAX_CONCURRENT_STREAMS] = 100
        link.initiate_connection()
        arriving = {}
        with contextlib.suppress(OSError, h2.exceptions.ProtocolError):  # the second after a GOAWAY
            one.sendall(link.data_to_send())
            while data := one.recv(262_144):
                for event in link.receive_data(data):
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
                one.sendall(link.data_to_send())
        with contextlib.suppress(OSError):
            one.shutdown(socket.SHUT_RDWR)


def answer_well(link, stream_id, headers, body):
    link.send_headers(stream_id, [(":status", "200"), ("content-type", "application/x-amz-json-1.1")])
    link.send_data(stream_id, GOOD, end_stream=True)


@pytest.fixture
def start_http2(authority):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.set_alpn_protocols(["h2"])
    authority.issue_cert("127.0.0.1").configure_cert(context)
    with contextlib.ExitStack() as stack:

        def start(answer=answer_well):
            server = Http2Server(context, answer)
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
async def test_a_request_that_breaks_is_told_after_one_request(is_gone, start_http2, ca_path, make_client):
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
