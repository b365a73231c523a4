"""How is the service served over HTTP/2 in cleartext?

As an ASGI application in hypercorn (extra ``h2c``), on a port that also speaks HTTP/1.1: some clients, Java's above
all, want HTTP/2 of Kinesis. Hypercorn's own ``serve`` would hide the connections, so it is given them one by one: a
fault can then break one off, which ASGI has no word for.

Invariants:

- AS1: a client gets what it would get over HTTP/1.1: body, status, headers, delays and pushes.
- AS2: a reset or a close is that of the whole connection, as a proxy's would be: requests beside it go with it.
- AS3: closing ends all connections at once, and what waits for them.
- AS4: a body over 64 MiB is refused without being kept; nothing that a client sends stops the server.
"""

import asyncio
import socket
import ssl
import struct
from contextlib import suppress
from functools import partial
from typing import Final, cast, final

from hypercorn.app_wrappers import ASGIWrapper
from hypercorn.asyncio.tcp_server import TCPServer
from hypercorn.asyncio.worker_context import WorkerContext
from hypercorn.config import Config
from hypercorn.typing import ASGIReceiveCallable, ASGISendCallable, HTTPScope, LifespanState, Scope

from shardline.server.endpoint import Pushes, Reply, Trouble
from shardline.server.front import BODY_MAX, Front
from shardline.server.model.refusals import too_large

_FLUSH_PAUSE: Final = 0.02  # hypercorn tells nobody when it has written what it was given
_IDLE_LIMIT: Final = 75.0  # as aiohttp has it


@final
class AsgiServer:
    """Serves one ``Front``. ``start`` binds; ``port`` then tells where."""

    def __init__(self, front: Front) -> None:
        self._front = front
        self._settings = _settings()
        self._context = WorkerContext(None)
        self._connections: dict[asyncio.Future[None], asyncio.Transport] = {}
        self._is_closing = asyncio.Event()
        self._server: asyncio.Server | None = None
        self.port = 0

    async def start(self, host: str, port: int, ssl_context: ssl.SSLContext | None = None) -> None:
        assert ssl_context is None, "cleartext"
        self._server = await asyncio.start_server(self._connected, host, port, backlog=1024)
        self.port = int(self._server.sockets[0].getsockname()[1])

    async def close(self) -> None:
        server, self._server = self._server, None
        if server is None:
            return
        server.close()
        self._is_closing.set()
        await self._context.terminated.set()
        for transport in self._connections.values():
            transport.abort()
        await asyncio.gather(*self._connections, return_exceptions=True)
        await server.wait_closed()

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # A task of our own: that of asyncio's would log what a client breaks.
        task = asyncio.ensure_future(self._serve(reader, writer))
        self._connections[task] = cast("asyncio.Transport", writer.transport)
        task.add_done_callback(self._connections.pop)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        application = ASGIWrapper(partial(self._handle, cast("asyncio.Transport", writer.transport)))
        loop, state = asyncio.get_running_loop(), cast("LifespanState", {})
        with suppress(Exception):  # what a client breaks is its own connection (AS4)
            await TCPServer(application, loop, self._settings, self._context, state, reader, writer)

    async def _wait(self, seconds: float) -> None:
        """For so long, or until the server closes."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._is_closing.wait(), seconds)
            raise ConnectionAbortedError("the server closes")

    # ---- one request

    async def _handle(
        self, transport: asyncio.Transport, scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable
    ) -> None:
        if scope["type"] != "http":
            return  # a websocket: hypercorn refuses it when nobody takes it
        request = _Request(scope, receive, send, transport)
        body = await request.read()
        if body is None:
            reply = self._front.refuse(request.target, request.headers, too_large(BODY_MAX))
        else:
            reply = self._front.reply(scope["method"], request.target, request.headers, body)
        if scope["method"] == "HEAD":
            reply = reply._replace(body=b"")
        await self._send(request, reply)

    async def _send(self, request: "_Request", reply: Reply) -> None:
        trouble = reply.trouble
        if trouble is not None:
            if trouble.delay:
                await self._wait(trouble.delay)
            if trouble.resume is not None:
                await self._send(request, trouble.resume())
                return
            if trouble.ending != "keep":
                await _break_off(request, reply, trouble)
                return
        if reply.subscription is not None:
            await _push(request, reply, reply.subscription)
            return
        await request.begin(reply)
        await request.write(reply.body, is_last=True)


@final
class _Request:
    """One request, and the way to answer it."""

    def __init__(
        self, scope: HTTPScope, receive: ASGIReceiveCallable, send: ASGISendCallable, transport: asyncio.Transport
    ) -> None:
        query = scope["query_string"]
        self.target = (scope["raw_path"] + (b"?" + query if query else b"")).decode("latin-1")
        self.headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        self.transport = transport
        self._receive = receive
        self._send = send

    async def read(self) -> bytes | None:
        """The body; ``None`` if it is too large (AS4). It is read to its end all the same: hypercorn needs that."""
        parts: list[bytes] = []
        size = 0
        while True:
            event = await self._receive()
            if event["type"] != "http.request":
                raise ConnectionResetError("the client went away inside its request")
            size += len(event["body"])
            if size <= BODY_MAX:
                parts.append(event["body"])
            else:
                parts.clear()
            if not event["more_body"]:
                break
        return b"".join(parts) if size <= BODY_MAX else None

    async def begin(self, reply: Reply) -> None:
        headers = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in reply.headers.items()]
        if reply.subscription is None:
            headers.append((b"content-length", b"%d" % len(reply.body)))
        await self._send({"type": "http.response.start", "status": reply.status, "headers": headers})

    async def write(self, data: bytes, *, is_last: bool = False) -> None:
        await self._send({"type": "http.response.body", "body": data, "more_body": not is_last})

    async def wait_for_the_end(self) -> None:
        """Until the client has gone, or has been cut off."""
        while (await self._receive())["type"] != "http.disconnect":
            pass


async def _push(request: _Request, reply: Reply, pushes: Pushes) -> None:
    gone = asyncio.ensure_future(request.wait_for_the_end())
    gone.add_done_callback(lambda _: pushes.end())
    try:
        await request.begin(reply)
        await request.write(pushes.first())
        while not pushes.ended and not gone.done():
            frame = pushes.due()
            if frame is None:
                await pushes.wait()
            else:
                await request.write(frame)
        if pushes.is_reset:
            await asyncio.sleep(_FLUSH_PAUSE)
            _reset(request.transport)
        elif not gone.done():
            await request.write(b"", is_last=True)
    finally:
        pushes.end()
        gone.cancel()


async def _break_off(request: _Request, reply: Reply, trouble: Trouble) -> None:
    """Send as much as is meant to be sent, then end the connection (AS2)."""
    if reply.subscription is not None:
        reply.subscription.end()
    if not trouble.is_silent:
        await request.begin(reply)
        await request.write(reply.body[: trouble.cut])
        await asyncio.sleep(_FLUSH_PAUSE)
    if trouble.ending == "reset":
        _reset(request.transport)
    else:
        request.transport.close()
    await request.wait_for_the_end()


def _reset(transport: asyncio.Transport) -> None:
    """End a connection with RST: without the option a close with nothing unread is an orderly FIN."""
    plain: socket.socket | None = transport.get_extra_info("socket")
    if plain is not None:
        plain.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    transport.abort()


def _settings() -> Config:
    settings = Config()
    settings.errorlog = None
    settings.include_date_header = False  # the service's own is in the reply
    settings.include_server_header = False
    settings.keep_alive_timeout = _IDLE_LIMIT
    settings.keep_alive_max_requests = 1 << 62
    settings.h2_max_concurrent_streams = 1000
    return settings
