"""How is the service served over HTTP/1.1?

With aiohttp's server: keep-alive, plain or TLS. A thin shell around ``Front``: it moves bytes, sends pushes as they
come due, and brings about the trouble that a fault has made.

Invariants:

- ``Front`` is called from one task at a time (it never waits).
- A body over 64 MiB is refused while it arrives; nothing that a client sends stops the server, or is logged.
- Every request is answered in AWS's form, whatever is wrong with it; also bytes that are no HTTP.
- A request whose rest does not come ends its connection; so does a connection without a request.
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
_CLIENTS_FAULTS: Final = (http_exceptions.HttpProcessingError, web.RequestPayloadError)
_SHUTDOWN_TIMEOUT: Final = 0.5

_log: Final = logging.getLogger(__name__)


@final
class _Log(logging.LoggerAdapter[logging.Logger]):
    """What aiohttp logs, but for what clients have done: bytes that are no HTTP are answered, and that is all."""

    def exception(self, msg: object, *args: object, **options: Any) -> None:
        if not isinstance(options.get("exc_info"), _CLIENTS_FAULTS):
            super().exception(msg, *args, **options)


@final
class _Connection(web.RequestHandler):
    """One connection."""

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
        """Answer in our form what aiohttp would answer in its own: above all, bytes that are no HTTP."""
        super().handle_error(request, status, exc, message)  # which logs it, unless it is a client's fault
        refusal = internal_failure()
        if status < HTTPStatus.INTERNAL_SERVER_ERROR:
            reason = (message or "").partition("\n")[0].removesuffix(":") or "the request is no HTTP"
            refusal = Refused("MalformedHttpRequestException", reason, status)
        reply = self._front.refuse("/", {}, refusal)
        response = web.Response(status=reply.status, headers=reply.headers, body=reply.body)
        response.force_close()
        return response


@final
class Http1Connections(web.Server):
    """The connections that speak HTTP/1.1. Calling it gives the protocol for another one."""

    def __init__(self, front: Front, timeouts: Timeouts) -> None:
        super().__init__(
            self._handle,
            request_factory=self._make,
            access_log=None,
            auto_decompress=False,  # Kinesis takes no compressed bodies
            keepalive_timeout=timeouts.idle,
            tcp_keepalive=False,  # the listening shell has its own
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
    def _make(
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
            return web.Response()  # the client has gone, so nobody reads this answer
        except Exception:  # noqa: BLE001 - a bug of ours, which aiohttp would answer with a page of its own
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
            return await self._refuse(request, serialization("the body does not come as the request's head says"))
        except TimeoutError:
            reset(request.transport)
            return web.Response()
        reply = self._front.reply(request.method, request.raw_path, request.headers, body)
        return await self._send(request, reply)

    async def _read(self, request: web.BaseRequest) -> bytes:
        """The body, of which each part must come in time."""
        time, timeout, content = asyncio.get_running_loop().time, self._timeouts.request, request.content
        body = bytearray()
        async with asyncio.timeout(timeout) as limit:
            renew_at = time() + timeout / 2
            while part := await content.readany():
                body += part
                if len(body) > BODY_MAX:
                    raise web.HTTPRequestEntityTooLarge(BODY_MAX, len(body))
                if time() >= renew_at:  # not with each part: a timer that is moved costs more than the part
                    renew_at = time() + timeout / 2
                    limit.reschedule(time() + timeout)
        return bytes(body)

    async def _refuse(self, request: web.BaseRequest, refusal: Refused) -> web.StreamResponse:
        """Answer a request whose body was not read: what is left of it would be taken for the next one."""
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
    """Send in pieces: what a socket does not take at once is copied, more than once."""
    response = web.StreamResponse(status=reply.status, headers=reply.headers)
    response.content_length = len(reply.body)
    await response.prepare(request)
    body = memoryview(reply.body)
    for at in range(0, len(body), _PIECE):
        await response.write(body[at : at + _PIECE])
    return response


def _break_off(request: web.BaseRequest, reply: Reply, trouble: Trouble) -> web.StreamResponse:
    """Send as much as is meant to be sent, past aiohttp, which would not send less than it announces."""
    transport = request.transport
    if reply.subscription is not None:
        reply.subscription.end()
    if transport is not None and not trouble.is_silent:
        transport.write(_head(reply) + reply.body[: trouble.cut])
    if trouble.ending == "reset":
        reset(transport)
    elif transport is not None:
        transport.close()
    return web.Response()  # which finds the connection closed, and goes nowhere


def _head(reply: Reply) -> bytes:
    lines = [f"HTTP/1.1 {reply.status} {HTTPStatus(reply.status).phrase}"]
    lines += [f"{name}: {value}" for name, value in reply.headers.items()]
    chunked = reply.subscription is not None
    lines.append("Transfer-Encoding: chunked" if chunked else f"Content-Length: {len(reply.body)}")
    return "\r\n".join([*lines, "", ""]).encode()
