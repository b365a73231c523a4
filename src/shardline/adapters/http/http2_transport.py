"""Sends requests over HTTP/2, on asyncio and trio.

Many exchanges share few connections. ``http2_connection`` decides what to send; this module moves the bytes. Each
connection has its own two tasks, so that the server's pings are answered while no caller reads, and so that a cancelled
caller never leaves a frame half sent.

A server announces HTTP/2 during the TLS handshake (ALPN), or, without TLS, by its response to our preface. HTTP/1.1 is
used if the server does not speak HTTP/2, or if a proxy forwards plain requests.

Invariants:

- One call is one request. Nothing is retried, redirected or decompressed. Only cancellation is raised.
- A cancelled request resets its stream. The connection continues to serve other requests.
- Every wait has a limit. Connecting, including the server's first settings, takes at most ``connect_timeout``. A
  request that cannot be sent, and a response that does not start or stops arriving, fails after ``read_timeout``. A
  response that is not an event stream also has a timeout as a whole (``SLOWEST_ANSWER``). A ping is sent to a server
  that is silent for a long time.
- A connection is closed if the server sent nothing at all while a request waited for ``read_timeout``.
- There are at most ``max_connections`` connections to a URL. A new one is opened only when the others are full.
  Requests that find no free connection wait, and fail after ``read_timeout``.
- After ``close``, nothing is sent, and requests in flight end.
"""

import logging
import math
import ssl
from collections import deque
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final, Literal, TypeAlias, final
from urllib.parse import urlsplit

import anyio
import anyio.lowlevel

from shardline.adapters.blocking_calls import BlockingCalls
from shardline.adapters.event_loop import Wakeup, make_wakeup, spawn_task
from shardline.adapters.http.http1_transport import Http1Transport
from shardline.adapters.http.http_failures import broken
from shardline.adapters.http.http_routes import Connector, Dial, Route, Trust, find_route
from shardline.adapters.http.http_settings import SLOWEST_ANSWER, HttpSettings
from shardline.adapters.http.wire_streams import WireStream
from shardline.codec.http1 import HttpError
from shardline.core.error_codes import Failure
from shardline.errors import UsageError
from shardline.ports import Body, HttpResponse, HttpStream

if TYPE_CHECKING:
    from shardline.adapters.http.http2_connection import Exchange, Http2Connection

PROTOCOLS: Final = ("h2", "http/1.1")
PING_AFTER: Final = 10.0
"""Seconds of silence after which a ping is sent. After as many more seconds, the connection is closed."""

_TURNS_TO_HEAR: Final = 5
_log: Final = logging.getLogger(__name__)
_OnlyHttp1: TypeAlias = Literal["http/1.1"]


@final
class Http2Transport:
    """``HttpTransport`` over a few HTTP/2 connections. Create it inside a running event loop.

    ``stream`` uses HTTP/2 if the server supports it. ``post`` uses HTTP/2 only if the settings require it, because a
    small call takes less CPU time over HTTP/1.1.
    """

    def __init__(
        self,
        settings: HttpSettings,
        trust: Trust,
        dial: Dial,
        http1: Http1Transport,
        proxy_context: ssl.SSLContext | None = None,
    ) -> None:
        self._settings = settings
        self._http1 = http1
        self._connector = Connector(settings, lambda: _offer_http2(trust()), dial, proxy_context)
        self._pools: dict[str, _Pool] = {}
        self._imports = BlockingCalls["type[Http2Connection]"]()

    async def post(self, url: str, headers: Mapping[str, str], body: Body) -> HttpResponse | Failure:
        if not self._settings.http2:
            return await self._http1.post(url, headers, body)
        link = await self._find_link(url)
        if isinstance(link, Failure):
            return link
        if isinstance(link, str):
            return await self._http1.post(url, headers, body)
        call = link.open(headers, body, is_whole=True)
        if isinstance(call, Failure):
            return call
        try:
            content = await call.read()
            return content if isinstance(content, Failure) else HttpResponse(call.status, call.headers, content)
        finally:
            call.leave()

    @asynccontextmanager
    async def stream(self, url: str, headers: Mapping[str, str], body: Body) -> AsyncGenerator[HttpStream | Failure]:
        link = await self._find_link(url)
        if isinstance(link, Failure):
            yield link
            return
        if isinstance(link, str):
            async with self._http1.stream(url, headers, body) as answer:
                yield answer
            return
        call = link.open(headers, body, is_whole=False)
        if isinstance(call, Failure):
            yield call
            return
        try:
            failure = await call.receive_head()
            yield call if failure is None else failure
        finally:
            call.leave()

    async def stream_protocol(self, url: str) -> Literal["h2", "http/1.1"] | Failure:
        link = await self._find_link(url)
        return link if isinstance(link, Failure) else "http/1.1" if isinstance(link, str) else "h2"

    async def close(self) -> None:
        self._connector.close()
        await self._http1.close()
        for pool in self._pools.values():
            for link in [*pool.links]:
                await link.close("this Client was closed")
            pool.wake_all()
        await anyio.lowlevel.checkpoint()  # asyncio closes its transports in the next iteration of the loop

    async def _find_link(self, url: str) -> "_Link | _OnlyHttp1 | Failure":
        """Return a connection with room for one more exchange. The caller must open the exchange before it awaits
        anything.
        """
        pool = self._pools.get(url)
        if pool is None:
            try:
                pool = self._pools[url] = _Pool(find_route(url, self._settings.proxies))
            except UsageError as error:  # the environment names an invalid proxy
                return broken("HttpClientError", urlsplit(url).netloc, error)
        while True:
            if self._connector.is_closed:
                return broken("Closed", pool.route.host)
            if pool.is_http1:
                return "http/1.1"
            link = await pool.pick(self._settings.idle_timeout)
            if link is not None:
                return link
            attempt = pool.attempt
            if attempt is None and len(pool.links) < self._settings.max_connections:
                attempt = pool.attempt = _Attempt()
                try:
                    attempt.failure = await self._connect(pool)
                finally:  # also if this caller is cancelled: another caller then tries to connect
                    pool.attempt = None
                    pool.wake_all()
            elif not await pool.wait(self._settings.read_timeout) and attempt is None:
                return broken("NoFreeConnection", pool.route.host, f"{len(pool.links)} connections are full")
            if attempt is not None and attempt.failure is not None:
                return attempt.failure

    async def _connect(self, pool: "_Pool") -> Failure | None:
        async def greet(stream: WireStream) -> "_Link | _OnlyHttp1 | Failure":
            return await self._greet(pool, stream)

        made = await self._connector.connect(pool.route, greet)
        if isinstance(made, Failure):
            return made
        if isinstance(made, str):
            pool.is_http1 = True
            return None
        if self._connector.is_closed:  # trio may complete a connection attempt that close has cancelled
            await made.close("this Client was closed")
            return broken("Closed", pool.route.host)
        made.start()
        return None

    async def _greet(self, pool: "_Pool", stream: WireStream) -> "_Link | _OnlyHttp1 | Failure":
        """Send our HTTP/2 preface on a new connection, and wait for the server's settings."""
        route = pool.route
        if route.tls and stream.protocol != "h2":
            await stream.abort()
            return "http/1.1"
        make = await self._imports.run("http2_connection", _import_machine)
        machine = make(route.host, anyio.current_time(), scheme="https" if route.tls else "http")
        limit = self._settings.connect_timeout
        while not machine.is_ready and not machine.is_over:
            if machine.has_output:
                await stream.send(machine.take_output(anyio.current_time()), limit)
            data = await stream.receive(limit)
            if data:
                machine.handle_data(data, anyio.current_time())
            else:
                machine.handle_end("ConnectionReset", "", anyio.current_time())
        if machine.speaks_http1:
            await stream.abort()
            return "http/1.1"
        if machine.is_over:
            return broken("ConnectError", route.host, "it does not speak HTTP/2")
        if not machine.capacity:
            return broken("RequestRefused", route.host, "it allows no requests on a connection")
        return _Link(pool, stream, machine, self._settings)


def _import_machine() -> "type[Http2Connection]":
    """Import the HTTP/2 machine in a thread: loading ``h2`` would block the event loop, and most programs never need
    it.
    """
    from shardline.adapters.http.http2_connection import Http2Connection  # noqa: PLC0415

    return Http2Connection


def _offer_http2(context: ssl.SSLContext) -> ssl.SSLContext:
    context.set_alpn_protocols(list(PROTOCOLS))
    return context


@final
class _Attempt:
    """An attempt to connect, on behalf of all callers that wait for room."""

    def __init__(self) -> None:
        self.failure: Failure | None = None


@final
class _Pool:
    """The connections to a URL, and the callers that wait for room."""

    def __init__(self, route: Route) -> None:
        self.route = route
        self.is_http1 = route.is_relayed
        self.links: list[_Link] = []
        self.attempt: _Attempt | None = None
        self._waiting: deque[Wakeup] = deque()

    async def pick(self, idle_timeout: float) -> "_Link | None":
        """Return the first connection with room, so that the connections after it become idle and end."""
        for link in [*self.links]:
            await link.hear()
            if link.is_stale(idle_timeout):
                await link.close("it was idle")
        return next((link for link in self.links if link.machine.capacity > 0), None)

    async def wait(self, limit: float) -> bool:
        """Wait until a connection has room, or a new one is open. Return whether this happened within ``limit``
        seconds.
        """
        wakeup = make_wakeup()
        self._waiting.append(wakeup)
        try:
            return await wakeup.wait(limit)
        except BaseException:  # this caller is cancelled: pass the wake-up, which it does not use, to the next caller
            if wakeup not in self._waiting:
                self.wake_one()
            raise
        finally:
            if wakeup in self._waiting:
                self._waiting.remove(wakeup)

    def wake_one(self) -> None:
        if self._waiting:
            self._waiting.popleft().set()

    def wake_all(self) -> None:
        while self._waiting:
            self._waiting.popleft().set()


@final
class _Link:
    """A connection, and the two tasks that send and receive its bytes."""

    def __init__(self, pool: _Pool, stream: WireStream, machine: "Http2Connection", settings: HttpSettings) -> None:
        self.machine = machine
        self.settings = settings
        self.host = pool.route.host
        self._pool = pool
        self._stream = stream
        self._target = pool.route.target
        self._calls: dict[Exchange, _Call] = {}
        self._to_send = make_wakeup()
        self._to_read = make_wakeup()

    def start(self) -> None:
        self._pool.links.append(self)
        spawn_task(self._read(), f"shardline: read from {self.host}")
        spawn_task(self._write(), f"shardline: write to {self.host}")

    async def hear(self) -> None:
        """If the server has sent anything on an idle connection, such as a GOAWAY, wait until it is read.

        In a busy program, data may be waiting unread in the socket.
        """
        for _ in range(_TURNS_TO_HEAR):
            if self.machine.is_over or not self.machine.is_idle or self._stream.is_silent():
                break
            await anyio.lowlevel.checkpoint()

    def is_stale(self, idle_timeout: float) -> bool:
        """Whether the connection cannot be used for another request."""
        if not self.machine.is_idle:
            return False
        return anyio.current_time() - self.machine.idle_since >= idle_timeout or self.machine.capacity <= 0

    def open(self, headers: Mapping[str, str], body: Body, *, is_whole: bool) -> "_Call | Failure":
        try:
            exchange = self.machine.open(self._target, headers, body, anyio.current_time(), is_whole=is_whole)
        except HttpError as error:
            return broken("HttpClientError", self.host, error)
        call = self._calls[exchange] = _Call(self, exchange)
        self._to_send.set()
        return call

    def leave(self, exchange: "Exchange") -> None:
        """Forget an exchange, because its caller is done with it. Cancel the exchange if it is not complete."""
        self.machine.cancel(exchange, anyio.current_time())
        del self._calls[exchange]
        self.pump()
        self._pool.wake_one()

    def pump(self) -> None:
        """Wake the tasks and callers that are affected by the machine's changes."""
        machine = self.machine
        for exchange in machine.take_changed():
            call = self._calls.get(exchange)
            if call is not None:
                call.changed.set()
        if machine.has_output or machine.is_over:
            self._to_send.set()

    def send_output(self) -> None:
        """Wake the task that sends, if there is something to send."""
        if self.machine.has_output:
            self._to_send.set()

    async def close(self, why: str) -> None:
        """Close the connection immediately. Requests in flight fail."""
        self._end("ConnectionReset", why)
        await self._stream.abort()

    def give_up(self) -> None:
        """End a connection whose server has been silent for too long."""
        self._end("ReadTimeout", "")

    def _end(self, code: str, detail: object) -> None:
        self.machine.handle_end(code, detail, anyio.current_time())
        if self in self._pool.links:
            self._pool.links.remove(self)
            self._pool.wake_all()
        self.pump()
        self._to_read.set()

    async def _read(self) -> None:
        machine = self.machine
        try:
            while not machine.is_over:
                try:
                    data = await self._stream.receive(PING_AFTER)
                except TimeoutError as error:
                    if error.errno is not None:
                        raise
                    machine.handle_silence(anyio.current_time(), self.settings.idle_timeout)
                else:
                    if not data:
                        break
                    machine.handle_data(data, anyio.current_time())
                self.pump()
                while machine.is_congested and not machine.is_over:
                    await self._to_read.wait()
            self._end("ConnectionReset", "")
        except OSError as error:
            self._end("ConnectionReset", error.strerror or error)
        except Exception:  # noqa: BLE001 - a bug of ours
            _log.exception("reading from an HTTP/2 connection failed")
        finally:
            self._end("ConnectionReset", "cancelled")
            await self._stream.abort()

    async def _write(self) -> None:
        machine = self.machine
        try:
            while True:
                if machine.has_output:
                    await self._stream.send(machine.take_output(anyio.current_time()), self.settings.read_timeout)
                    self._to_read.set()
                elif machine.is_over:
                    break
                else:
                    await self._to_send.wait()
        except OSError as error:
            is_silence = isinstance(error, TimeoutError) and error.errno is None
            self._end(*(("ReadTimeout", "") if is_silence else ("ConnectionReset", error.strerror or error)))
        except Exception:  # noqa: BLE001 - a bug of ours
            _log.exception("writing to an HTTP/2 connection failed")
        finally:
            self._end("ConnectionReset", "cancelled")
            await self._stream.abort()


@final
class _Call:
    """The caller's view of a request and its response."""

    def __init__(self, link: _Link, exchange: "Exchange") -> None:
        self._link = link
        self._exchange = exchange
        self.changed = make_wakeup()

    @property
    def status(self) -> int:
        return self._exchange.status

    @property
    def headers(self) -> Mapping[str, str]:
        return self._exchange.headers

    def leave(self) -> None:
        self._link.leave(self._exchange)

    async def receive_head(self) -> Failure | None:
        return await self._wait_for_answer(whole=False)

    async def read(self) -> bytes | Failure:
        self._link.machine.want_whole(self._exchange)
        self._link.pump()
        failure = await self._wait_for_answer(whole=True)
        return bytes(self._link.machine.take(self._exchange)) if failure is None else failure

    async def next_chunk(
        self,
        timeout: float = math.inf,  # noqa: ASYNC109 - see HttpStream
        enough: int = 1,
    ) -> bytes | memoryview | Failure | None:
        exchange = self._exchange
        limit = timeout
        if timeout == math.inf:
            limit, enough = self._link.settings.read_timeout, 1  # the limit applies to each pause of the server
        while not exchange.body:
            if exchange.is_over:
                return exchange.failure
            exchange.enough = enough
            if not await self.changed.wait(limit) and not exchange.body:
                # A caller with a timeout of its own judges its stream alone: a ping shows whether the server is gone.
                return self._time_out() if timeout == math.inf else broken("ReadTimeout", self._link.host)
        chunk = self._link.machine.take(exchange)
        self._link.send_output()  # taking the bytes may have reopened the window
        return chunk

    async def _wait_for_answer(self, *, whole: bool) -> Failure | None:
        """Wait for the whole response, or only for its head, within its time limit."""
        exchange = self._exchange
        limit = self._link.settings.read_timeout
        while exchange.failure is None and not (exchange.complete if whole else exchange.status):
            now = anyio.current_time()
            if exchange.sent_at is None:
                ends_at = exchange.moved_at + limit
            else:
                ends_at = exchange.sent_at + limit + exchange.received / SLOWEST_ANSWER
                ends_at = min(ends_at, max(exchange.sent_at, exchange.heard_at) + limit)
            if ends_at <= now:
                return self._time_out()
            await self.changed.wait(ends_at - now)
        # The connection may have broken right after the head of the response. The data that has arrived is delivered
        # before the failure.
        return None if exchange.status and not whole else exchange.failure

    def _time_out(self) -> Failure:
        link = self._link
        if anyio.current_time() - link.machine.heard_at >= link.settings.read_timeout:
            link.give_up()
        return broken("ReadTimeout", link.host)
