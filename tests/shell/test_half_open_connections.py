"""Are unused connections closed: a peer that vanished silently, a request that never comes?

The server runs with timeouts of fractions of a second. A vanished peer is a socket whose kernel drops every packet that
arrives for it (a BPF filter): it acknowledges nothing, and sends nothing.
"""

import asyncio
import contextlib
import ctypes
import json
import socket
import struct
from contextlib import asynccontextmanager
from random import Random

import h2.config
import h2.connection
import h2.errors
import h2.events
import pytest
import uvloop

from shardline.server.access import Access
from shardline.server.endpoint import Endpoint
from shardline.server.front import Front
from shardline.server.http_server import HttpServer
from shardline.server.model.service import Service
from shardline.server.model.settings import Limits, ServiceSettings
from shardline.server.server_clock import ServerClock
from shardline.server.sockets import Timeouts

SHORT = Timeouts(idle=0.5, request=0.4, peer=2.0)
JSON = "application/x-amz-json-1.1"
SHARD = "shardId-000000000000"


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def run(request):
    def run(main, *arguments):
        with asyncio.Runner(loop_factory=request.param) as runner:
            return runner.run(asyncio.wait_for(main(*arguments), 60))

    return run


class Local:
    def __init__(self, timeouts):
        self.clock = ServerClock()
        self.service = Service(ServiceSettings(limits=Limits.without_rates()), Random(1), self.clock.now())
        self.endpoint = Endpoint(self.service, self.clock)
        self.http = HttpServer(Front(self.endpoint, access=Access()), timeouts=timeouts)
        self.consumer = ""

    def call(self, operation, **members):
        headers = {"content-type": JSON, "x-amz-target": f"Kinesis_20131202.{operation}"}
        reply = self.endpoint.reply(headers, json.dumps(members).encode())
        assert reply.status == 200, reply.body
        return json.loads(reply.body or b"null")

    @property
    def live(self):
        return sum(not one.ended for one in self.service._subscriptions._live.values())

    async def connect(self):
        plain = socket.socket()
        plain.settimeout(0)
        await asyncio.get_running_loop().sock_connect(plain, ("127.0.0.1", self.http.port))
        return plain, *(await asyncio.open_connection(sock=plain))


@asynccontextmanager
async def serving(timeouts=SHORT):
    local = Local(timeouts)
    await local.http.start("127.0.0.1", 0)
    local.call("CreateStream", StreamName="s", ShardCount=1)
    arn = "arn:aws:kinesis:us-east-1:000000000000:stream/s"
    local.consumer = local.call("RegisterStreamConsumer", StreamARN=arn, ConsumerName="c")["Consumer"]["ConsumerARN"]
    try:
        yield local
    finally:
        await local.http.close()


def vanish(plain):
    """Let the kernel drop every packet for this socket: one instruction, "return 0 bytes"."""
    program = ctypes.create_string_buffer(struct.pack("HBBI", 0x06, 0, 0, 0))
    plain.setsockopt(socket.SOL_SOCKET, 26, struct.pack("HL", 1, ctypes.addressof(program)))  # SO_ATTACH_FILTER


def subscribe_body(local):
    position = {"Type": "LATEST"}
    return json.dumps({"ConsumerARN": local.consumer, "ShardId": SHARD, "StartingPosition": position}).encode()


def post(operation, body, length=None):
    return (
        b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/x-amz-json-1.1\r\n"
        b"X-Amz-Target: Kinesis_20131202.%b\r\nContent-Length: %d\r\n\r\n%b"
        % (operation.encode(), len(body) if length is None else length, body)
    )


class Frames:
    """An HTTP/2 client that is driven by hand."""

    def __init__(self, reader, writer):
        self.reader, self.writer = reader, writer
        self.h2 = h2.connection.H2Connection(h2.config.H2Configuration(client_side=True))
        self.h2.initiate_connection()
        self.writer.write(self.h2.data_to_send())

    def begin(self, operation, body, *, end):
        pseudo = {":method": "POST", ":path": "/", ":scheme": "http", ":authority": "localhost"}
        named = {"x-amz-target": f"Kinesis_20131202.{operation}", "content-type": JSON}
        stream = self.h2.get_next_available_stream_id()
        self.h2.send_headers(stream, list((pseudo | named).items()))
        self.h2.send_data(stream, body, end_stream=end)
        self.writer.write(self.h2.data_to_send())
        return stream

    async def events(self):
        while data := await self.reader.read(65_536):
            for event in self.h2.receive_data(data):
                yield event
            self.writer.write(self.h2.data_to_send())


async def subscribe(local, version):
    plain, reader, writer = await local.connect()
    if version == 1:
        writer.write(post("SubscribeToShard", subscribe_body(local)))
        await reader.readuntil(b"initial-response")
    else:
        frames = Frames(reader, writer)
        frames.begin("SubscribeToShard", subscribe_body(local), end=True)
        async for event in frames.events():
            if isinstance(event, h2.events.DataReceived):
                break
    assert local.live == 1
    return plain, reader, writer


async def read_to_the_end(reader):
    received = b""
    with contextlib.suppress(ConnectionResetError):
        while data := await reader.read(65_536):
            received += data
    return received


async def until(true):
    while not true():  # noqa: ASYNC110 - the server tells nobody
        await asyncio.sleep(0.02)


@pytest.mark.parametrize("has_data", [False, True], ids=["silent", "unacknowledged"])
@pytest.mark.parametrize("version", [1, 2])
def test_a_subscription_whose_peer_vanished_ends(run, version, has_data):
    async def main():
        async with serving() as local:
            plain, _, writer = await subscribe(local, version)
            vanish(plain)
            if has_data:
                local.call("PutRecord", StreamName="s", Data="eA==", PartitionKey="k")
            async with asyncio.timeout(15):
                await until(lambda: local.live == 0)
            writer.transport.abort()

    run(main)


@pytest.mark.parametrize("version", [1, 2])
def test_a_subscription_whose_peer_is_there_lasts(run, version):
    async def main():
        async with serving() as local:
            _, _, writer = await subscribe(local, version)
            await asyncio.sleep(3.5)  # longer than each of the timeouts
            assert local.live == 1
            writer.close()
            await until(lambda: local.live == 0)

    run(main)


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"PRI * HT",
        b"POST / HTTP/1.1\r\nHost: loc",
        post("DescribeLimits", b"{", 2),
        post("DescribeLimits", b"{}") + b"POST / HTTP",
        post("DescribeLimits", b"{}"),
    ],
    ids=["nothing", "part of a preface", "part of a head", "part of a body", "part of a second request", "one request"],
)
def test_a_connection_without_a_request_is_closed(run, sent):
    async def main():
        async with serving() as local:
            _, reader, writer = await local.connect()
            writer.write(sent)
            async with asyncio.timeout(10):
                received = await read_to_the_end(reader)
            assert received.startswith(b"HTTP/1.1 200 OK" if b"{}" in sent else b"")
            assert received.count(b"HTTP/1.1") == sent.count(b"{}")
            writer.close()

    run(main)


def test_a_body_that_comes_slowly_is_waited_for(run):
    async def main():
        async with serving() as local:
            _, reader, writer = await local.connect()
            writer.write(post("DescribeLimits", b"", 6))
            for byte in b"{    }":  # each in time, but all of them together longer than the limit
                await asyncio.sleep(SHORT.request / 4)
                writer.write(bytes((byte,)))
            assert await reader.readline() == b"HTTP/1.1 200 OK\r\n"
            writer.close()

    run(main)


def test_an_http2_connection_without_streams_gets_a_goaway(run):
    async def main():
        async with serving() as local:
            _, reader, writer = await local.connect()
            frames = Frames(reader, writer)
            frames.begin("DescribeLimits", b"{}", end=True)
            async with asyncio.timeout(10):
                events = [event async for event in frames.events()]
            assert any(isinstance(event, h2.events.StreamEnded) for event in events)
            assert isinstance(events[-1], h2.events.ConnectionTerminated)
            assert events[-1].error_code == h2.errors.ErrorCodes.NO_ERROR
            writer.close()

    run(main)


def test_a_request_over_http2_that_does_not_end_is_reset_and_those_beside_it_are_not(run):
    async def main():
        async with serving() as local:
            _, reader, writer = await local.connect()
            frames = Frames(reader, writer)
            subscription = frames.begin("SubscribeToShard", subscribe_body(local), end=True)
            half = frames.begin("DescribeLimits", b"{", end=False)
            async with asyncio.timeout(10):
                async for event in frames.events():
                    if isinstance(event, h2.events.StreamReset):
                        break
            assert (event.stream_id, event.error_code) == (half, h2.errors.ErrorCodes.CANCEL)
            assert subscription != half
            assert local.live == 1
            writer.close()

    run(main)


def test_close_ends_connections_of_every_kind_at_once(run):
    async def main():
        async with serving(Timeouts()) as local:
            connections = [await local.connect()]
            for version in (1, 2):
                local.clock.advance(6)
                connections.append(await subscribe(local, version))
            began_at = asyncio.get_running_loop().time()
            await local.http.close()
            await asyncio.gather(*(read_to_the_end(reader) for _, reader, _ in connections))
            assert asyncio.get_running_loop().time() - began_at < 5
            assert local.live == 0
            for _, _, writer in connections:
                writer.close()

    run(main)
