"""How do connections of httpcore2 begin, on asyncio?"""

import asyncio
import socket
import threading
import time

import anyio
import httpcore2
import pytest

from shardline.adapters.http import httpcore_pool
from shardline.adapters.http.httpcore_pool import Backend

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend():
    return "asyncio"


@pytest.fixture
def server():
    """Something that listens, on IPv4 alone; its port."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening.getsockname()[1]


@pytest.fixture
def names(monkeypatch):
    """What a name stands for: addresses, or what is called for them."""
    known = {}
    resolve = socket.getaddrinfo

    def look_up(host, port, *rest, **more):
        found = known.get(host)
        if found is None:
            return resolve(host, port, *rest, **more)
        if callable(found):
            found = found()
        return [one for address in found for one in resolve(address, port, *rest, **more)]

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    return known


@pytest.mark.parametrize("addresses", [["127.0.0.1"], ["::1", "127.0.0.1"], ["127.0.0.1", "::1"]])
async def test_the_first_address_that_answers_is_taken(addresses, names, server):
    names["kinesis.example"] = addresses
    stream = await Backend().connect_tcp("kinesis.example", server, 5)
    assert stream.get_extra_info("server_addr")[0] == "127.0.0.1"
    await stream.aclose()


class Connection:
    def __init__(self):
        self.is_closed = False

    async def aclose(self):
        self.is_closed = True


async def test_an_address_that_is_silent_holds_up_the_next_for_a_quarter_of_a_second(names):
    begun = []

    async def connect(address):
        begun.append((address, time.monotonic()))
        if address == "silent":
            await anyio.sleep(30)
        if address == "broken":
            raise httpcore2.ConnectError("refused")
        return Connection()

    stream = await httpcore_pool._first_of(["broken", "silent", "well"], connect)
    assert [address for address, _ in begun] == ["broken", "silent", "well"]
    times = [at for _, at in begun]
    assert times[1] - times[0] < 0.2 < times[2] - times[1] < 5
    assert not stream.is_closed


async def test_of_two_that_answer_at_once_one_is_closed(names, monkeypatch):
    monkeypatch.setattr(httpcore_pool, "HAPPY_EYEBALLS", 0.01)
    answer, made = anyio.Event(), []

    async def connect(address):
        with anyio.CancelScope(shield=True):
            await answer.wait()
        made.append(Connection())
        return made[-1]

    async with anyio.create_task_group() as tasks:

        async def both():
            stream = await httpcore_pool._first_of(["one", "two"], connect)
            assert stream is made[0]

        tasks.start_soon(both)
        await anyio.sleep(0.1)
        answer.set()
    assert [one.is_closed for one in made] == [False, True]


async def test_one_that_is_cancelled_as_it_connects_leaves_nothing_open():
    made = []

    async def connect(address):
        with anyio.CancelScope(shield=True):
            await anyio.sleep(0.05)
        made.append(Connection())
        return made[-1]

    with anyio.move_on_after(0.01) as scope:
        await httpcore_pool._first_of(["one"], connect)
    assert scope.cancelled_caught
    assert [one.is_closed for one in made] == [True]


async def test_where_none_answers_the_first_reason_is_told(names, server):
    names["kinesis.example"] = ["127.0.0.1", "::1"]
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    with pytest.raises(httpcore2.ConnectError):
        await Backend().connect_tcp("kinesis.example", port, 5)


async def test_a_name_that_is_unknown_cannot_be_connected_to(names):
    def fail():
        raise socket.gaierror(socket.EAI_NONAME, "unknown")

    names["kinesis.example"] = fail
    with pytest.raises(httpcore2.ConnectError) as caught:
        await Backend().connect_tcp("kinesis.example", 1, 5)
    assert isinstance(caught.value.args[0], socket.gaierror)


async def test_a_look_up_that_hangs_has_the_time_to_connect(names):
    gate = threading.Event()
    names["kinesis.example"] = lambda: gate.wait(5) and ["127.0.0.1"]
    began = time.monotonic()
    with pytest.raises(httpcore2.ConnectTimeout):
        await Backend().connect_tcp("kinesis.example", 1, 0.05)
    assert time.monotonic() - began < 2
    gate.set()


def test_the_loop_ends_while_a_look_up_hangs(names):
    gate = threading.Event()
    names["kinesis.example"] = lambda: gate.wait(5) and ["127.0.0.1"]

    async def leave():
        with anyio.move_on_after(0.05):
            await Backend().connect_tcp("kinesis.example", 1, 30)

    began = time.monotonic()
    asyncio.run(leave())
    assert time.monotonic() - began < 2
    gate.set()
