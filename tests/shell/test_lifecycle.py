"""Does a client start once, close for good, and survive every cancellation, with nothing left open?"""

import asyncio
import gc
import socket
import threading

import anyio
import pytest

import shardline.aio.client as client_module
import shardline.aio.connection as connection_module
from shardline import Closed, Entry, TransportError
from shardline.core.error_codes import Failure, FailureKind
from shardline.core.requests import PutRecords
from shardline.model.stream import StreamRef

pytestmark = pytest.mark.anyio

ENTRIES = [(b"x", "k")]
GOOD = b'HTTP/1.1 200 OK\r\nContent-Length: 31\r\n\r\n{"Records":[{"ShardId":"s-0"}]}'


@pytest.fixture(autouse=True)
def nothing_is_left_open():
    """Fail if something is left open: unclosed objects warn when they are collected, and warnings are errors here."""
    yield
    gc.collect()


def background_tasks():
    return asyncio.all_tasks() - {asyncio.current_task()}


# ---- start and close


async def test_nothing_works_before_the_start(make_client):
    client = make_client("http://127.0.0.1:1")
    assert "not started" in repr(client)
    for use in (lambda: client.api, lambda: client.region, lambda: client.subscribe_to_shard(*SUBSCRIPTION)):
        with pytest.raises(Closed, match="not started"):
            use()
    with pytest.raises(Closed, match="not started"):
        await client.put_records("orders", ENTRIES)


async def test_nothing_works_after_the_close(server, make_client):
    async with make_client(server) as client:
        assert client.region == "eu-west-1"
        assert "open" in repr(client)
    assert "closed" in repr(client)
    with pytest.raises(Closed, match="is closed"):
        await client.put_records("orders", ENTRIES)
    with pytest.raises(Closed, match="is closed"):
        client.subscribe_to_shard(*SUBSCRIPTION)
    with pytest.raises(Closed, match="create a new one"):
        await client.start()
    assert server.connections == 0


SUBSCRIPTION = ("arn:aws:kinesis:eu-west-1:123456789012:stream/orders/consumer/c:1", "shardId-0", "LATEST")


async def test_a_port_that_was_kept_after_the_close_answers_with_a_failure(server, make_client):
    async with make_client(server) as client:
        api = client.api
        await client.put_records("orders", ENTRIES)
    answer = await api.put_records(PutRecords(StreamRef("orders"), [Entry(b"x", "k")]))
    assert isinstance(answer, Failure)
    assert (answer.kind, answer.code, answer.maybe_received) == (FailureKind.INVALID, "Closed", False)
    assert server.host in answer.message
    assert len(server.requests) == 1


async def test_closing_twice_and_closing_what_never_started_is_harmless(server, make_client):
    client = make_client(server)
    await client.close()
    await client.close()
    started = make_client(server)
    await started.start()
    await started.put_records("orders", ENTRIES)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(started.close)
        tasks.start_soon(started.close)
    await started.close()
    assert "closed" in repr(client)
    assert "closed" in repr(started)


async def test_starting_twice_connects_once(server, make_client, monkeypatch):
    calls = []
    connect = client_module.connect

    async def counted(settings):
        calls.append(settings)
        return await connect(settings)

    monkeypatch.setattr(client_module, "connect", counted)
    client = make_client(server)
    async with anyio.create_task_group() as tasks:
        for _ in range(5):
            tasks.start_soon(client.start)
    await client.start()
    assert len(calls) == 1
    await client.close()


@pytest.fixture
def slow_settings(monkeypatch):
    """The look-up of settings waits for the event."""
    go_on = threading.Event()
    find = connection_module.find_service
    monkeypatch.setattr(connection_module, "find_service", lambda *asked: go_on.wait(5) and find(*asked))
    return go_on


async def test_a_close_while_it_starts_wins(server, make_client, slow_settings):
    client = make_client(server)
    outcome = []

    async def start():
        with pytest.raises(Closed):
            await client.start()
        outcome.append("closed")

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(start)
        await anyio.sleep(0.01)
        await client.close()
        slow_settings.set()
    assert outcome == ["closed"]
    assert "closed" in repr(client)


async def test_a_start_that_is_cancelled_can_be_made_again(server, make_client, slow_settings):
    client = make_client(server)
    with anyio.CancelScope() as scope:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(client.start)
            await anyio.sleep(0.01)
            scope.cancel()
            slow_settings.set()
    await client.start()
    await client.put_records("orders", ENTRIES)
    await client.close()
    assert len(server.requests) == 1


async def test_the_block_closes_when_it_is_left_by_an_exception(server, make_client, eventually):
    async def fail_inside():
        async with make_client(server) as client:
            await client.put_records("orders", ENTRIES)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail_inside()
    await eventually(lambda: server.open_connections == 0)


async def test_the_block_closes_when_it_is_cancelled(server, make_client, eventually):
    server.reply().then_stay()
    with anyio.move_on_after(0.05) as scope:
        async with make_client(server) as client:
            await client.put_records("orders", ENTRIES)
            await client.put_records("orders", ENTRIES)
    assert scope.cancelled_caught
    await eventually(lambda: server.open_connections == 0)


async def test_a_close_that_is_cancelled_still_closes(server, make_client, eventually):
    client = make_client(server)
    await client.start()
    await client.put_records("orders", ENTRIES)
    with anyio.CancelScope() as scope:
        scope.cancel()
        await client.close()
    await eventually(lambda: server.open_connections == 0)


async def test_a_close_does_not_wait_for_a_server_that_sleeps(tls_server, ca_path, make_client):
    asleep = threading.Event()
    tls_server.does(lambda peer, _: peer.send(GOOD) or asleep.wait(30))  # so it answers no close_notify
    client = make_client(tls_server, verify=ca_path)
    await client.start()
    await client.put_records("orders", ENTRIES)
    try:
        with anyio.fail_after(10):
            await client.close()
    finally:
        asleep.set()


# ---- close while requests are in flight


async def outcomes_of(requests, client, close, monkey=None):
    outcomes = []

    async def one():
        try:
            outcomes.append(await client.put_records("orders", ENTRIES))
        except TransportError as error:
            outcomes.append(error)

    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            for _ in range(requests):
                tasks.start_soon(one)
            await close()
    return outcomes


async def test_a_close_ends_the_request_that_waits_for_an_answer(server, make_client, eventually):
    server.then_stay()
    client = make_client(server)
    await client.start()

    async def close():
        await eventually(lambda: len(server.requests) == 1)
        await client.close()

    [error] = await outcomes_of(1, client, close)
    assert (error.code, error.kind, error.maybe_received) == ("ConnectionReset", "transient", True)
    assert "this Client was closed" in str(error)
    await eventually(lambda: server.open_connections == 0)


async def test_a_close_ends_requests_that_wait_for_a_connection_and_sends_none_of_them(server, make_client, eventually):
    server.streams_max = 1
    server.then_stay()
    client = make_client(server, max_connections=1)
    await client.start()

    async def close():
        await eventually(lambda: len(server.requests) == 1)
        await client.close()

    errors = await outcomes_of(6, client, close)
    assert [type(error) for error in errors] == [TransportError] * 6
    assert {error.code for error in errors} <= {"ConnectionReset", "Closed"}
    await anyio.sleep(0.03)
    assert (len(server.requests), server.connections) == (1, 1)
    await eventually(lambda: server.open_connections == 0)


async def test_a_close_ends_a_request_whose_answer_is_arriving(server, make_client, eventually):
    server.then_stay(b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{")
    client = make_client(server)
    await client.start()

    async def close():
        await eventually(lambda: len(server.requests) == 1)
        await anyio.sleep(0.02)
        await client.close()

    [error] = await outcomes_of(1, client, close)
    assert (error.code, error.maybe_received) == ("ConnectionReset", True)


async def test_a_close_ends_a_request_that_looks_up_a_name(make_client, monkeypatch):
    """The look-up is abandoned, and the caller must not seem cancelled."""
    hung = threading.Event()

    def hang(*args):
        flags = args[5] if len(args) > 5 else 0
        if not flags & socket.AI_NUMERICHOST:
            hung.wait(5)
        raise socket.gaierror(socket.EAI_NONAME, "not known")

    monkeypatch.setattr(socket, "getaddrinfo", hang)
    client = make_client("http://kinesis.example")
    await client.start()

    async def close():
        await anyio.sleep(0.03)
        await client.close()

    try:
        [error] = await outcomes_of(1, client, close)
    finally:
        hung.set()
    assert error.code in {"Closed", "ConnectionReset"}


async def test_a_close_ends_a_large_request_that_is_not_read(start_server, make_client, eventually):
    mute = start_server(mute=True)
    client = make_client(mute)
    await client.start()
    errors = []

    async def put():
        with pytest.raises(TransportError) as caught:
            await client.put_records("orders", [(bytes(900_000), "k")] * 10)
        errors.append(caught.value)

    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(put)
            await eventually(lambda: mute.connections == 1)
            await anyio.sleep(0.05)
            await client.close()
    assert errors[0].code == "ConnectionReset"


# ---- cancellation


async def test_a_cancelled_call_leaves_the_client_usable(server, make_client, wire, cancelled_when):
    async with make_client(server, max_connections=1) as client:
        await client.put_records("orders", ENTRIES)
        before = background_tasks() if not wire.is_trio else set()
        for number in range(2, 5):
            server.then_stay()
            await cancelled_when(lambda n=number: len(server.requests) == n, client.put_records, "orders", ENTRIES)
        await client.put_records("orders", ENTRIES)
        if not wire.is_trio:
            assert background_tasks() <= before


async def test_a_call_cancelled_at_any_moment_leaves_the_client_usable(server, make_client, wire, eventually):
    """There is at most one connection, so that a lost one would be noticed."""
    async with make_client(server, max_connections=1) as client:
        for step in range(30):
            with anyio.move_on_after(step * 0.0001):
                await client.put_records("orders", ENTRIES)
        with anyio.fail_after(5):
            await client.put_records("orders", ENTRIES)
        await eventually(lambda: server.open_connections == 1)
    await eventually(lambda: server.open_connections == 0)


async def test_a_call_cancelled_after_any_number_of_steps_leaves_the_client_usable(server, make_client, eventually):
    async with make_client(server, max_connections=1) as client:
        for steps in range(25):
            async with anyio.create_task_group() as tasks:

                async def put():
                    await client.put_records("orders", ENTRIES)

                tasks.start_soon(put)
                for _ in range(steps):
                    await anyio.lowlevel.checkpoint()
                tasks.cancel_scope.cancel()
        with anyio.fail_after(5):
            await client.put_records("orders", ENTRIES)
        await eventually(lambda: server.open_connections == 1)


async def test_a_wait_for_a_connection_can_be_cancelled(server, make_client, eventually):
    server.streams_max = 1
    server.then_stay()
    async with make_client(server, max_connections=1) as client:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(client.put_records, "orders", ENTRIES)
            await eventually(lambda: len(server.requests) == 1)
            with anyio.move_on_after(0.02) as scope:
                await client.put_records("orders", ENTRIES)
            assert scope.cancelled_caught
            tasks.cancel_scope.cancel()
        await client.put_records("orders", ENTRIES)
    assert len(server.requests) == 2


async def test_a_large_upload_can_be_cancelled(start_server, make_client, eventually, wire):
    mute = start_server(mute=True)
    async with make_client(mute) as client:
        before = background_tasks() if not wire.is_trio else set()
        with anyio.move_on_after(0.1) as scope:
            await client.put_records("orders", [(bytes(900_000), "k")] * 10)
        assert scope.cancelled_caught
        await anyio.sleep(0.01)
        if not wire.is_trio:
            assert {task for task in background_tasks() if not task.get_name().startswith("shardline:")} <= before


# trio has no other cancellation than the one in the tests above
@pytest.mark.parametrize("wire", [("asyncio", False), ("asyncio", True), ("uvloop", False)], indirect=True, ids=str)
async def test_a_native_cancellation_is_not_swallowed(server, make_client, eventually):
    server.then_stay()
    async with make_client(server) as client:
        task = asyncio.create_task(client.put_records("orders", ENTRIES))
        await eventually(lambda: len(server.requests) == 1)
        task.cancel("stop")
        with pytest.raises(asyncio.CancelledError):
            await task
        assert task.cancelled()
        # even if the client is closed at the same moment
        server.then_stay()
        task = asyncio.create_task(client.put_records("orders", ENTRIES))
        await eventually(lambda: len(server.requests) == 2)
        task.cancel()
        await client.close()
        with pytest.raises(asyncio.CancelledError):
            await task
