"""Which connection does a request get, and is each opened connection closed?"""

import socket
import ssl

import anyio
import pytest

from shardline.adapters.http.http1_connections import Connection, Connections
from shardline.adapters.http.http_settings import HttpSettings
from shardline.core.error_codes import Failure

pytestmark = pytest.mark.anyio

URL = "http://kinesis.example/"


class Stream:
    """A fake ``WireStream``. Closing it takes an iteration of the loop, as on trio."""

    def __init__(self):
        self.silent = True
        self.aborted = 0

    def is_silent(self):
        return self.silent and not self.aborted

    async def abort(self):
        self.aborted += 1
        await anyio.lowlevel.checkpoint()


class Dialer:
    def __init__(self, error=None):
        self.error = error
        self.dialled = []
        self.made = []
        self.gate = None

    async def __call__(self, name, port, context):
        self.dialled.append((name, port, context is not None))
        if self.gate is not None:
            await self.gate.wait()
        if self.error is not None:
            raise self.error
        self.made.append(Stream())
        return self.made[-1]

    @property
    def open(self):
        return [stream for stream in self.made if not stream.aborted]


def pool(dial, **settings):
    return Connections(HttpSettings(**({"proxies": {}} | settings)), None, dial)


async def used(connections, url=URL, *, reusable=True):
    """Return a connection that has served one request."""
    connection = await connections.get(url)
    assert isinstance(connection, Connection)
    connection.reusable = reusable
    return connection


@pytest.mark.parametrize(
    ("url", "dialled", "host", "target"),
    [
        ("http://host/", ("host", 80, False), "host", "/"),
        ("https://host/", ("host", 443, True), "host", "/"),
        ("http://host:4567/a/b", ("host", 4567, False), "host:4567", "/a/b"),
        ("https://[::1]:8443/", ("::1", 8443, True), "[::1]:8443", "/"),
    ],
)
async def test_a_url_is_reached_at_its_host_and_port(url, dialled, host, target):
    dial = Dialer()
    connection = await used(pool(dial), url)
    assert dial.dialled == [dialled]
    assert (connection.route.host, connection.route.target) == (host, target)


async def test_an_idle_connection_is_used_again():
    dial = Dialer()
    connections = pool(dial)
    first = await used(connections)
    await connections.put_back(first)
    again = await connections.get(URL)
    assert again is first
    assert not again.reusable  # until its response says so
    assert len(dial.made) == 1


async def test_each_address_has_its_own():
    dial = Dialer()
    connections = pool(dial)
    await connections.put_back(await used(connections))
    await connections.get("http://other.example/")
    assert len(dial.made) == 2


async def test_one_that_is_in_use_is_not_shared():
    dial = Dialer()
    connections = pool(dial)
    assert await used(connections) is not await used(connections)


@pytest.mark.parametrize("why", ["not reusable", "spoken to", "too old"])
async def test_one_that_cannot_be_used_again_is_closed(why):
    dial = Dialer()
    connections = pool(dial, idle_timeout=0.01 if why == "too old" else 15.0)
    first = await used(connections, reusable=why != "not reusable")
    await connections.put_back(first)
    first.stream.silent = why != "spoken to"
    if why == "too old":
        await anyio.sleep(0.02)
    assert await connections.get(URL) is not first
    assert len(dial.made) == 2
    assert dial.open == [dial.made[1]]


async def test_the_longest_idle_are_closed_on_the_way():
    dial = Dialer()
    connections = pool(dial, idle_timeout=0.02)
    burst = [await used(connections) for _ in range(5)]
    for one in burst[:4]:
        await connections.put_back(one)
    await anyio.sleep(0.03)
    await connections.put_back(burst[4])
    assert dial.open == [burst[4].stream]


async def test_others_may_take_idle_ones_while_old_ones_are_closed():
    connections = pool(Dialer(), idle_timeout=0.02)
    burst = [await used(connections) for _ in range(3)]
    for one in burst[:2]:
        await connections.put_back(one)
    await anyio.sleep(0.03)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(connections.put_back, burst[2])
        for _ in range(3):
            tasks.start_soon(connections.get, URL)


async def test_a_close_closes_idle_and_busy_ones_and_ends_the_making_of_others():
    dial = Dialer()
    connections = pool(dial)
    busy, idle = await used(connections), await used(connections)
    await connections.put_back(idle)
    found = []

    async def get():
        found.append(await connections.get("http://slow.example/"))

    async with anyio.create_task_group() as tasks:
        dial.gate = anyio.Event()
        tasks.start_soon(get)
        await anyio.sleep(0.01)
        await connections.close()
    assert (busy.stream.aborted, idle.stream.aborted, len(dial.made)) == (1, 1, 2)
    assert isinstance(found[0], Failure)
    assert found[0].code == "Closed"
    assert (await connections.get(URL)).code == "Closed"
    await connections.put_back(busy)
    assert dial.open == []
    await connections.close()


async def test_a_connection_that_is_made_after_all_is_not_used_once_closed():
    """A cancelled attempt may still succeed."""
    dial = Dialer()
    found = []

    async def stubborn(name, port, context):
        with anyio.CancelScope(shield=True):
            return await dial(name, port, context)

    connections = pool(stubborn)

    async def get():
        found.append(await connections.get(URL))

    async with anyio.create_task_group() as tasks:
        dial.gate = anyio.Event()
        tasks.start_soon(get)
        await anyio.sleep(0.01)
        await connections.close()
        dial.gate.set()
    assert found[0].code == "Closed"
    assert dial.open == []


async def test_connecting_has_a_limit():
    dial = Dialer()
    dial.gate = anyio.Event()
    failure = await pool(dial, connect_timeout=0.02).get(URL)
    assert (failure.code, failure.maybe_received) == ("ConnectTimeout", False)
    assert "kinesis.example" in failure.message


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (socket.gaierror(socket.EAI_NONAME, "not known"), "DnsError", "cannot be resolved"),
        (UnicodeError("label too long"), "DnsError", "cannot be resolved"),
        (ConnectionRefusedError(111, "Connection refused"), "ConnectError", "Connection refused"),
        (OSError(101, "Network is unreachable"), "ConnectError", "unreachable"),
        (TimeoutError(110, "Connection timed out"), "ConnectError", "timed out"),
        (ssl.SSLCertVerificationError(1, "verify failed"), "CertificateError", "verify failed"),
        (ssl.SSLError(1, "wrong version"), "TlsError", "wrong version"),
    ],
)
async def test_a_connection_that_fails_is_reported(error, code, words):
    failure = await pool(Dialer(error)).get("https://kinesis.example/")
    assert (failure.code, failure.maybe_received) == (code, False)
    assert words in failure.message
    assert "kinesis.example" in failure.message


async def test_a_cancelled_connect_is_cancelled():
    dial = Dialer()
    dial.gate = anyio.Event()
    with anyio.move_on_after(0.01) as scope:
        await pool(dial).get(URL)
    assert scope.cancelled_caught


async def test_an_invalid_proxy_of_the_environment(monkeypatch):
    monkeypatch.setenv("HTTP_PROXY", "socks5://user:hush@proxy")
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    dial = Dialer()
    failure = await pool(dial, proxies=None).get(URL)
    assert (failure.code, failure.maybe_received) == ("HttpClientError", False)
    assert "hush" not in failure.message
    assert dial.dialled == []
