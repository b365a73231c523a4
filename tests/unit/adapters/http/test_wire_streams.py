"""Sending and receiving over a socket, on both event loops."""

import asyncio
import socket
import threading
import time
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest

from shardline.adapters.http.wire_streams import AnyioStream, AsyncioStream, dial

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["asyncio", "uvloop", "trio", "asyncio-anyio"])
def kind(request):
    return request.param


@pytest.fixture
def event_loop_kind(kind):
    return kind.partition("-")[0]


@pytest.fixture
def peer():
    """The other side: a listener, and ``accepted()`` for the socket of a connection."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(5)
        sockets = []

        class Peer:
            port = listener.getsockname()[1]

            @staticmethod
            def accepted():
                one, _ = listener.accept()
                sockets.append(one)
                return one

        yield Peer
        for one in sockets:
            one.close()


async def connect(kind, peer):
    stream = await (AsyncioStream if kind in {"asyncio", "uvloop"} else AnyioStream).connect(
        "127.0.0.1", peer.port, None
    )
    return stream, peer.accepted()


def open_files():
    return len(list(Path("/proc/self/fd").iterdir()))


async def end(stream):
    await stream.abort()
    await anyio.sleep(0.01)


async def test_bytes_go_both_ways(kind, peer):
    stream, other = await connect(kind, peer)
    await stream.send(b"ping", 1)
    assert other.recv(10) == b"ping"
    other.sendall(b"pong")
    assert await stream.receive(1) == b"pong"
    await end(stream)


async def test_silence_ends_a_receive(kind, peer):
    stream, _ = await connect(kind, peer)
    with pytest.raises(TimeoutError):
        await stream.receive(0.02)
    await end(stream)


async def test_a_peer_that_does_not_read_ends_a_send(kind, peer):
    stream, _ = await connect(kind, peer)

    async def send_much():
        for _ in range(100):
            await stream.send(bytes(1024 * 1024), 0.05)

    with pytest.raises(TimeoutError):
        await send_much()
    await end(stream)


async def test_the_end_is_empty_and_stays_so(kind, peer):
    stream, other = await connect(kind, peer)
    other.sendall(b"last")
    other.close()
    received = b""
    while chunk := await stream.receive(1):
        received += chunk
    assert received == b"last"
    assert await stream.receive(1) == b""
    await end(stream)


async def test_a_reset_is_an_os_error(kind, peer):
    stream, other = await connect(kind, peer)
    other.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")
    other.close()

    async def talk():
        while True:
            await stream.send(b"x", 1)
            await stream.receive(1)

    with pytest.raises(OSError, match=r"."):
        await talk()
    await end(stream)


async def test_an_abort_wakes_whoever_receives(kind, peer):
    stream, other = await connect(kind, peer)
    told = []

    async def receive():
        try:
            told.append(await stream.receive(5))
        except OSError as error:
            told.append(error)

    with anyio.fail_after(4):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(receive)
            await anyio.sleep(0.02)
            await end(stream)
    assert len(told) == 1
    assert other.recv(1) == b""
    with pytest.raises(OSError, match=r"."):
        await stream.send(b"x", 1)


async def test_what_is_not_read_does_not_pile_up(kind, peer):
    stream, other = await connect(kind, peer)
    size = 64 * 1024 * 1024
    sent = []

    def flood():
        other.settimeout(10)
        for _ in range(size // 65_536):
            other.sendall(bytes(65_536))
            sent.append(65_536)
        other.close()

    sender = threading.Thread(target=flood)
    sender.start()
    await anyio.sleep(0.3)
    assert sum(sent) < size // 2  # the peer is made to wait
    received = 0
    while chunk := await stream.receive(5):
        received += len(chunk)
    await anyio.to_thread.run_sync(sender.join)
    assert received == size
    await end(stream)


async def test_a_quiet_connection_is_silent_and_a_used_or_closed_one_is_not(kind, peer):
    stream, other = await connect(kind, peer)
    assert stream.is_silent()
    other.sendall(b"unasked")
    await anyio.sleep(0.05)
    assert not stream.is_silent()
    assert await stream.receive(1) == b"unasked"
    assert stream.is_silent()
    other.close()
    await anyio.sleep(0.05)
    assert not stream.is_silent()
    await end(stream)
    assert not stream.is_silent()


async def test_a_connection_that_is_cancelled_leaves_no_socket(kind, peer):
    stream_class = AsyncioStream if kind in {"asyncio", "uvloop"} else AnyioStream
    before = open_files()
    for steps in range(12):
        async with anyio.create_task_group() as tasks:

            async def open_and_end():
                await end(await stream_class.connect("127.0.0.1", peer.port, None))

            tasks.start_soon(open_and_end)
            for _ in range(steps):
                await anyio.lowlevel.checkpoint()
            tasks.cancel_scope.cancel()
    await anyio.sleep(0.05)
    assert open_files() <= before + 1  # perhaps the wake-up of a worker thread


def slow_resolver(monkeypatch):
    """A resolver that answers on request. It records the thread and the arguments of each call."""
    resolve, gate, asked = socket.getaddrinfo, threading.Event(), []

    def look_up(host, port, family=0, type=0, proto=0, flags=0):  # noqa: A002 - its signature
        asked.append((threading.current_thread(), host))
        if (
            host in {"kinesis.example", b"kinesis.example"} and not flags & socket.AI_NUMERICHOST
        ):  # trio tries that first
            gate.wait(5)
            host = "127.0.0.1"
        return resolve(host, port, family, type, proto, flags)

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    return gate, asked


async def test_a_name_look_up_that_hangs_can_be_left_and_serves_the_next(kind, peer, monkeypatch):
    gate, asked = slow_resolver(monkeypatch)
    stream_class = AsyncioStream if kind in {"asyncio", "uvloop"} else AnyioStream
    for _ in range(3):
        with anyio.move_on_after(0.02) as scope:
            await stream_class.connect("kinesis.example", peer.port, None)
        assert scope.cancelled_caught
    gate.set()
    await end(await stream_class.connect("kinesis.example", peer.port, None))
    if kind in {"asyncio", "uvloop"}:
        assert len(asked) == 1


def test_the_loop_ends_while_a_name_look_up_hangs(monkeypatch):
    """``asyncio.run`` joins the executor of asyncio's own look-up."""
    gate, _ = slow_resolver(monkeypatch)

    async def leave():
        with anyio.move_on_after(0.02):
            await AsyncioStream.connect("kinesis.example", 1, None)

    began = time.monotonic()
    asyncio.run(leave())
    assert time.monotonic() - began < 2
    gate.set()


@pytest.mark.parametrize("kind", ["asyncio", "uvloop"], indirect=True)
async def test_an_address_needs_no_thread(kind, peer, monkeypatch):
    _, asked = slow_resolver(monkeypatch)
    stream, _ = await connect(kind, peer)
    await end(stream)
    assert asked[0] == (threading.current_thread(), "127.0.0.1")


@pytest.mark.parametrize("kind", ["asyncio", "uvloop", "trio"], indirect=True)
async def test_each_loop_has_its_stream(kind, peer):
    stream = await dial("127.0.0.1", peer.port, None)
    assert type(stream) is (AsyncioStream if kind in {"asyncio", "uvloop"} else AnyioStream)
    await end(stream)
