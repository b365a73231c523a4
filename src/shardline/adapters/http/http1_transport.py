"""An HTTP/1.1 client that sends POST requests, on asyncio and trio.

The client is our own, because it needs about 0.7 times the CPU time of aiohttp for a small call (ADR 5 gives the
figures), and because the same code runs on both event loops (``wire_streams`` contains the differences).

Invariants:

- One call is one request. Nothing is retried, redirected, decompressed or cached.
- Every error of a request is returned as a ``Failure``. Only cancellation is raised.
- There is a timeout for connecting (with name lookup, proxy and TLS), for sending each slice of a body, and for each
  wait for bytes of the response, so that a silent server cannot block a request. A response that is not an event stream
  also has a timeout as a whole (``SLOWEST_ANSWER``), so that a server cannot block a request by sending slowly.
- After ``close``, nothing is sent, and requests in flight end.
- Calls and event streams have up to ``max_connections`` connections each, so subscriptions, which last for minutes, do
  not block calls. A stream that finds no free connection within ``read_timeout`` fails.
- A connection goes back to the pool only if its response was complete and allows reuse. Any other connection is closed
  immediately, even when its request is cancelled.
"""

import math
import ssl
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import Final, Literal, final
from urllib.parse import urlsplit

import anyio

from shardline.adapters.http.http1_connections import Connection, Connections
from shardline.adapters.http.http_failures import broken
from shardline.adapters.http.http_routes import Dial
from shardline.adapters.http.http_settings import SLOWEST_ANSWER, HttpSettings
from shardline.codec.http1 import CutShortError, HttpError, ResponseReader, encode_request
from shardline.core.error_codes import Failure
from shardline.ports import Body, HttpResponse, HttpStream

_SLICE: Final = 256 * 1024


@final
class Http1Transport:
    """``HttpTransport`` over pooled HTTP/1.1 connections. Create it inside a running event loop."""

    def __init__(self, settings: HttpSettings, ssl_context: ssl.SSLContext | None, dial: Dial) -> None:
        self.timeout = settings.read_timeout
        self._connections = Connections(settings, ssl_context, dial)
        self._max_connections = settings.max_connections
        self._slots = anyio.Semaphore(settings.max_connections, fast_acquire=True)
        self._stream_slots = anyio.Semaphore(settings.max_connections, fast_acquire=True)

    async def post(self, url: str, headers: Mapping[str, str], body: Body) -> HttpResponse | Failure:
        async with self._slots:
            connection = await self._connections.get(url)
            if isinstance(connection, Failure):
                return connection
            reader = ResponseReader()
            try:
                failure = await self._exchange(connection, reader, headers, body, whole=True)
                if failure is not None:
                    return failure
                connection.reusable = reader.keep_alive
                return HttpResponse(reader.status, reader.headers, reader.take())
            finally:
                await self._connections.put_back(connection)

    @asynccontextmanager
    async def stream(self, url: str, headers: Mapping[str, str], body: Body) -> AsyncGenerator[HttpStream | Failure]:
        with anyio.move_on_after(self.timeout) as waiting:
            await self._stream_slots.acquire()
        if waiting.cancelled_caught:
            yield broken("NoFreeConnection", urlsplit(url).netloc, f"{self._max_connections} subscriptions are open")
            return
        try:
            connection = await self._connections.get(url)
            if isinstance(connection, Failure):
                yield connection
                return
            reader = ResponseReader()
            try:
                failure = await self._exchange(connection, reader, headers, body, whole=False)
                yield _Http1Stream(self, connection, reader) if failure is None else failure
            finally:
                connection.reusable = reader.complete and reader.keep_alive
                await self._connections.put_back(connection)
        finally:
            self._stream_slots.release()

    async def stream_protocol(self, url: str) -> Literal["http/1.1"]:
        del url
        return "http/1.1"

    async def close(self) -> None:
        await self._connections.close()

    async def _exchange(
        self, connection: Connection, reader: ResponseReader, headers: Mapping[str, str], body: Body, *, whole: bool
    ) -> Failure | None:
        """Send a request, and receive the whole response or only its head."""
        route = connection.route
        try:
            head = encode_request(route.target, route.host, {**headers, **route.headers}, len(body))
        except HttpError as error:
            return broken("HttpClientError", route.host, error)
        stream = connection.stream
        try:
            view = memoryview(body)  # slices of a view are not copies
            await stream.send(b"".join((head, view[:_SLICE])), self.timeout)
            for start in range(_SLICE, len(body), _SLICE):
                # Send the body in slices, because encrypting a large body in one step would block the loop for
                # milliseconds. Also, asyncio copies the part that the socket does not accept at once, and moves this
                # copy on every write.
                await stream.send(view[start : start + _SLICE], self.timeout)
            await self.receive_response(connection, reader, whole=whole)
        except (OSError, HttpError) as error:
            return self.failure(error, connection, reader)
        return None

    async def receive_response(self, connection: Connection, reader: ResponseReader, *, whole: bool) -> None:
        """Receive the whole response or only its head.

        Raises:
            TimeoutError: the response was too slow.
        """
        time_left = self.timeout
        ends_at = anyio.current_time() + time_left
        while not (reader.complete if whole else reader.status):
            received = await self.receive(connection, reader, time_left)
            if reader.status:  # repeated "100 Continue" responses must not extend the time limit
                ends_at += received / SLOWEST_ANSWER
            time_left = min(self.timeout, ends_at - anyio.current_time())
            if time_left <= 0 and not reader.complete:
                raise TimeoutError

    async def receive(self, connection: Connection, reader: ResponseReader, time_left: float) -> int:
        """Receive the next bytes and return their number."""
        data = await connection.stream.receive(time_left)
        if data:
            reader.feed(data)
        else:
            reader.feed_end()
        return len(data)

    def failure(self, error: Exception, connection: Connection, reader: ResponseReader) -> Failure:
        """Return the failure for an error during an exchange."""
        host = connection.route.host
        if self._connections.closed:
            return broken("ConnectionReset", host, "this Client was closed")
        if isinstance(error, CutShortError):
            return broken("ConnectionReset", host, error if reader.status else "closed by the server")
        if isinstance(error, HttpError):
            return broken("BadAnswer", host, error)
        if isinstance(error, TimeoutError) and error.errno is None:
            return broken("ReadTimeout", host)
        reason: object = error.strerror if isinstance(error, OSError) and error.strerror else error
        return broken("ConnectionReset", host, reason)


@final
class _Http1Stream:
    """A response that is still arriving."""

    def __init__(self, transport: Http1Transport, connection: Connection, reader: ResponseReader) -> None:
        self._transport = transport
        self._connection = connection
        self._reader = reader
        self.status = reader.status
        self.headers: Mapping[str, str] = reader.headers

    async def next_chunk(self, timeout: float = math.inf, enough: int = 1) -> bytes | Failure | None:  # noqa: ASYNC109
        del enough  # each part is passed on immediately
        limit = self._transport.timeout if timeout == math.inf else timeout
        try:
            while True:
                chunk = self._reader.take()
                if chunk or self._reader.complete:
                    return chunk or None
                await self._transport.receive(self._connection, self._reader, limit)
        except (OSError, HttpError) as error:
            return self._transport.failure(error, self._connection, self._reader)

    async def read(self) -> bytes | Failure:
        try:
            await self._transport.receive_response(self._connection, self._reader, whole=True)
        except (OSError, HttpError) as error:
            return self._transport.failure(error, self._connection, self._reader)
        return self._reader.take()
