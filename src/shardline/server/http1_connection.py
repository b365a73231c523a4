"""Serves the service over HTTP/1.1, with aiohttp's server.

Connections are kept alive, with or without TLS. This module is a thin shell around ``Front``: it moves bytes, sends
the pushes of subscriptions when they are due, and applies the faults that a ``Reply`` asks for (``Trouble``).

Invariants:

- No two tasks call ``Front`` at the same time, because ``Front`` never waits.
- A body over 64 MiB is refused while it arrives. Nothing that a client sends stops the server or is logged.
- Every invalid request is answered in AWS's form, and so are bytes that are not HTTP.
- A connection is closed if the rest of a request does not arrive in time, or if no request arrives for too long.
"""

import asyncio
import logging
from http import HTTPStatus
from typing import Any, Final, final

from aiohttp import StreamReader, http_exceptions, web
from aiohttp.abc import AbstractStreamWriter
from aiohttp.http import RawRequestMessage

from shardline.server.endpoint import Pushes, Reply, Trouble
from shardline.server.front import BODY_MAX, Front
from shardline.server.model.refusals import Refused, internal_failure, serialization, too_large
from shardline.server.sockets import Timeouts, reset

_PIECE: Final = 256 * 1024
_CLIENT_ERRORS: Final = (http_exceptions.HttpProcessingError, web.RequestPayloadError)
_SHUTDOWN_TIMEOUT: Final = 0.5

_log: Final = logging.getLogger(__name__)


@final
class _Log(logging.LoggerAdapter[logging.Logger]):
    """Drops aiohttp's log entries about clients' errors: bytes that are not HTTP are answered, but not logged."""

    def exception(self, msg: object, *args: object, **options: Any) -> None:
        if not isinstance(options.get("exc_info"), _CLIENT_ERRORS):
            super().exception(msg, *args, **options)


@final
class _Connection(web.RequestHandler):
    """One HTTP/1.1 connection of a client."""

    __slots__ = ("_front",)

    def __init__(self, manager: "Http1Connections", front: Front, **options: Any) -> None:
        super().__init__(manager, loop=asyncio.get_running_loop(), **options)
        self._front = front

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Answer a client's error, usually bytes that are not HTTP, in AWS's form instead of aiohttp's own."""
        super().handle_error(request, status, exc, message)  # logs the error, unless the client caused it
        refusal = internal_failure()
        if status < HTTPStatus.INTERNAL_SERVER_ERROR:
            reason = (message or "").partition("\n")[0].removesuffix(":") or "the request is not valid HTTP"
            refusal = Refused("MalformedHttpRequestException", reason, status)
        reply = self._front.refuse("/", {}, refusal)
        response = web.Response(status=reply.status, headers=reply.headers, body=reply.body)
        response.force_close()
        return response


@final
class Http1Connections(web.Server):
    """The connections that speak HTTP/1.1. Call it to create the protocol of a new connection."""

    def __init__(self, front: Front, timeouts: Timeouts) -> None:
        super().__init__(
            self._handle,
            request_factory=self._create_request,
            access_log=None,
            auto_decompress=False,  # Kinesis accepts no compressed bodies
            keepalive_timeout=timeouts.idle,
            tcp_keepalive=False,  # HttpServer sets the probes itself, see sockets.find_vanished_peers
            logger=_Log(_log, {}),
        )
        self._front = front
        self._timeouts = timeouts
        self._pushes: dict[web.RequestHandler, Pushes] = {}

    def __call__(self) -> web.RequestHandler:
        return _Connection(self, self._front, **self._kwargs)

    def connection_lost(self, handler: web.RequestHandler, exc: BaseException | None = None) -> None:
        super().connection_lost(handler, exc)
        pushes = self._pushes.get(handler)
        if pushes is not None:
            pushes.end()

    async def close(self) -> None:
        self.pre_shutdown()
        await self.shutdown(_SHUTDOWN_TIMEOUT)

    @staticmethod
    def _create_request(
        message: RawRequestMessage,
        payload: StreamReader,
        protocol: web.RequestHandler,
        writer: AbstractStreamWriter,
        task: asyncio.Task[None],
    ) -> web.BaseRequest:
        loop = asyncio.get_running_loop()
        return web.BaseRequest(message, payload, protocol, writer, task, loop, client_max_size=BODY_MAX)

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        try:
            return await self._answer(request)
        except ConnectionError:
            return web.Response()  # never sent, because the client has disconnected
        except Exception:  # noqa: BLE001 - a bug in the server, which aiohttp would answer with an HTML page
            _log.exception("a request failed")
            reset(request.transport)
            return web.Response()

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        if request.headers.get("expect", "").lower() == "100-continue" and request.transport is not None:
            request.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        try:
            body = await (request.read() if request.content.is_eof() else self._read(request))
        except web.HTTPRequestEntityTooLarge:
            return await self._refuse(request, too_large(BODY_MAX))
        except web.RequestPayloadError:
            return await self._refuse(request, serialization("the body does not match the headers of the request"))
        except TimeoutError:
            reset(request.transport)
            return web.Response()
        reply = self._front.reply(request.method, request.raw_path, request.headers, body)
        return await self._send(request, reply)

    async def _read(self, request: web.BaseRequest) -> bytes:
        """Read the body of a request. Each part of the body must arrive in time."""
        time, timeout, content = asyncio.get_running_loop().time, self._timeouts.request, request.content
        body = bytearray()
        async with asyncio.timeout(timeout) as limit:
            renew_at = time() + timeout / 2
            while part := await content.readany():
                body += part
                if len(body) > BODY_MAX:
                    raise web.HTTPRequestEntityTooLarge(BODY_MAX, len(body))
                if time() >= renew_at:  # not after each part: moving the timer costs more than reading the part
                    renew_at = time() + timeout / 2
                    limit.reschedule(time() + timeout)
        return bytes(body)

    async def _refuse(self, request: web.BaseRequest, refusal: Refused) -> web.StreamResponse:
        """Answer a request whose body was not read. Close the connection: the rest would look like a new request."""
        response = await self._send(request, self._front.refuse(request.raw_path, request.headers, refusal))
        response.force_close()
        return response

    async def _send(self, request: web.BaseRequest, reply: Reply) -> web.StreamResponse:
        trouble = reply.trouble
        if trouble is not None:
            if trouble.delay:
                await asyncio.sleep(trouble.delay)
            if trouble.resume is not None:
                return await self._send(request, trouble.resume())
            if trouble.ending != "keep":
                return _break_off(request, reply, trouble)
        if reply.subscription is not None:
            return await self._push(request, reply, reply.subscription)
        if len(reply.body) > _PIECE:
            return await _send_large(request, reply)
        return web.Response(status=reply.status, headers=reply.headers, body=reply.body)

    async def _push(self, request: web.BaseRequest, reply: Reply, pushes: Pushes) -> web.StreamResponse:
        response = web.StreamResponse(status=reply.status, headers=reply.headers)
        response.enable_chunked_encoding()
        self._pushes[request.protocol] = pushes
        try:
            await response.prepare(request)
            await response.write(pushes.first())
            while not pushes.ended:
                frame = pushes.due()
                if frame is None:
                    await pushes.wait()
                else:
                    await response.write(frame)
            if pushes.is_reset:
                reset(request.transport)
            else:
                await response.write_eof()
        finally:
            pushes.end()
            del self._pushes[request.protocol]
        return response


async def _send_large(request: web.BaseRequest, reply: Reply) -> web.StreamResponse:
    """Send a large body in pieces, because asyncio copies data repeatedly if the socket does not accept all of it."""
    response = web.StreamResponse(status=reply.status, headers=reply.headers)
    response.content_length = len(reply.body)
    await response.prepare(request)
    body = memoryview(reply.body)
    for at in range(0, len(body), _PIECE):
        await response.write(body[at : at + _PIECE])
    return response


def _break_off(request: web.BaseRequest, reply: Reply, trouble: Trouble) -> web.StreamResponse:
    """Send part of the reply, then end the connection.

    The bytes go to the transport directly: aiohttp would not send less than it announces.
    """
    transport = request.transport
    if reply.subscription is not None:
        reply.subscription.end()
    if transport is not None and not trouble.is_silent:
        transport.write(_head(reply) + reply.body[: trouble.cut])
    if trouble.ending == "reset":
        reset(transport)
    elif transport is not None:
        transport.close()
    return web.Response()  # never sent, because the connection is closed


def _head(reply: Reply) -> bytes:
    lines = [f"HTTP/1.1 {reply.status} {HTTPStatus(reply.status).phrase}"]
    lines += [f"{name}: {value}" for name, value in reply.headers.items()]
    chunked = reply.subscription is not None
    lines.append("Transfer-Encoding: chunked" if chunked else f"Content-Length: {len(reply.body)}")
    return "\r\n".join([*lines, "", ""]).encode()
