"""How are requests POSTed over HTTP/1.1, on asyncio and on trio?

With our own small client: a small call costs about 0.7 of aiohttp's CPU (ADR 5 has the figures), and one code serves
both loops (``wire_streams`` has what differs).

Invariants:

- Nothing is retried, redirected, decompressed or remembered: one call is one request.
- Every way in which a request can break comes back as a ``Failure``; only cancellation passes through.
- No silence lasts: to connect (with name look-up, proxy and TLS), to send a slice and to receive have each a limit.
  Nor does a drip: an answer that is no event stream has a limit as a whole (``SLOWEST_ANSWER``).
- After ``close`` nothing is sent, and what was under way ends.
- A connection goes back to the pool only if its answer came whole and left it usable; any other is closed at once,
  also when its request is cancelled.
"""

import ssl
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import Final, final

import anyio

from shardline.adapters.http.http1_connections import Connection, Connections, Dial
from shardline.adapters.http.http_failures import broken
from shardline.adapters.http.http_settings import SLOWEST_ANSWER, HttpSettings
from shardline.codec.http1 import AnswerReader, CutShortError, HttpError, encode_request
from shardline.core.failures import Failure
from shardline.ports import Body, HttpAnswer, HttpStream

_SLICE: Final = 256 * 1024


@final
class Http1Transport:
    """``HttpTransport`` over pooled HTTP/1.1 connections. Make it inside a running loop."""

    def __init__(self, settings: HttpSettings, ssl_context: ssl.SSLContext | None, dial: Dial) -> None:
        self._timeout = settings.read_timeout
        self._connections = Connections(settings, ssl_context, dial)
        self._slots = anyio.Semaphore(settings.max_connections, fast_acquire=True)

    async def post(self, url: str, headers: Mapping[str, str], body: Body) -> HttpAnswer | Failure:
        async with self._slots:
            connection = await self._connections.get(url)
            if isinstance(connection, Failure):
                return connection
            reader = AnswerReader()
            try:
                failure = await self._exchange(connection, reader, headers, body, whole=True)
                if failure is not None:
                    return failure
                connection.reusable = reader.keep_alive
                return HttpAnswer(reader.status, reader.headers, reader.take())
            finally:
                await self._connections.put_back(connection)

    @asynccontextmanager
    async def stream(self, url: str, headers: Mapping[str, str], body: Body) -> AsyncGenerator[HttpStream | Failure]:
        async with self._slots:
            connection = await self._connections.get(url)
            if isinstance(connection, Failure):
                yield connection
                return
            reader = AnswerReader()
            try:
                failure = await self._exchange(connection, reader, headers, body, whole=False)
                yield _Http1Stream(self, connection, reader) if failure is None else failure
            finally:
                connection.reusable = reader.complete and reader.keep_alive
                await self._connections.put_back(connection)

    async def close(self) -> None:
        await self._connections.close()

    async def _exchange(
        self, connection: Connection, reader: AnswerReader, headers: Mapping[str, str], body: Body, *, whole: bool
    ) -> Failure | None:
        """Send a request and receive its answer: whole, or its head."""
        route = connection.route
        try:
            head = encode_request(route.target, route.host, {**headers, **route.headers}, len(body))
        except HttpError as error:
            return broken("HttpClientError", route.host, error)
        stream = connection.stream
        try:
            view = memoryview(body)  # its slices are no copies
            await stream.send(b"".join((head, view[:_SLICE])), self._timeout)
            for start in range(_SLICE, len(body), _SLICE):
                # In slices: TLS over all of a large body at once would hold the loop for milliseconds, and what the
                # socket does not take at once, asyncio copies, and moves at every turn.
                await stream.send(view[start : start + _SLICE], self._timeout)
            await self.receive_answer(connection, reader, whole=whole)
        except (OSError, HttpError) as error:
            return self.failure(error, connection, reader)
        return None

    async def receive_answer(self, connection: Connection, reader: AnswerReader, *, whole: bool) -> None:
        """An answer, whole or its head, in the time that it has."""
        time_left = self._timeout
        ends_at = anyio.current_time() + time_left
        while not (reader.complete if whole else reader.status):
            received = await self.receive(connection, reader, time_left)
            if reader.status:  # a server that says "100 Continue" for ever earns no time
                ends_at += received / SLOWEST_ANSWER
            time_left = min(self._timeout, ends_at - anyio.current_time())
            if time_left <= 0 and not reader.complete:
                raise TimeoutError

    async def receive(self, connection: Connection, reader: AnswerReader, time_left: float | None = None) -> int:
        """What arrives next: how many bytes."""
        data = await connection.stream.receive(self._timeout if time_left is None else time_left)
        if data:
            reader.feed(data)
        else:
            reader.feed_end()
        return len(data)

    def failure(self, error: Exception, connection: Connection, reader: AnswerReader) -> Failure:
        """What broke an exchange."""
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
    """An answer that is still arriving."""

    def __init__(self, transport: Http1Transport, connection: Connection, reader: AnswerReader) -> None:
        self._transport = transport
        self._connection = connection
        self._reader = reader
        self.status = reader.status
        self.headers: Mapping[str, str] = reader.headers

    async def next_chunk(self) -> bytes | Failure | None:
        try:
            while True:
                chunk = self._reader.take()
                if chunk or self._reader.complete:
                    return chunk or None
                await self._transport.receive(self._connection, self._reader)
        except (OSError, HttpError) as error:
            return self._transport.failure(error, self._connection, self._reader)

    async def read(self) -> bytes | Failure:
        try:
            await self._transport.receive_answer(self._connection, self._reader, whole=True)
        except (OSError, HttpError) as error:
            return self._transport.failure(error, self._connection, self._reader)
        return self._reader.take()
