"""Sends and receives bytes over sockets, on asyncio and trio.

There are two implementations of one small interface. The one for asyncio and uvloop is our own ``asyncio.Protocol``,
which costs less per call than anyio's streams (ADR 5 gives the figures). The one for trio uses anyio's streams.

Invariants:

- ``send`` and ``receive`` raise ``TimeoutError`` after ``timeout`` seconds.
- ``receive`` returns ``b""`` when the peer has closed its side. A broken connection raises an ``OSError``.
- ``abort`` closes the connection immediately. A ``send`` or ``receive`` that waits raises an error.
- When more than 1 MiB is unread, reading pauses, so that the peer must wait.
- A name lookup that hangs blocks nothing: connecting can be cancelled, and the loop can end.
"""

import asyncio
import contextlib
import ipaddress
import select
import socket
import ssl
from collections.abc import Generator
from typing import Any, Final, Protocol, TypeAlias, cast, final

import anyio
import anyio.lowlevel
from aiohappyeyeballs import start_connection  # pyright: ignore[reportUnknownVariableType] - a bare socket type
from anyio.abc import ByteStream, SocketAttribute
from anyio.streams.tls import TLSAttribute, TLSStream

from shardline.adapters.blocking_calls import BlockingCalls
from shardline.adapters.event_loop import is_trio

_UNREAD_MAX: Final = 1024 * 1024
_RECEIVE: Final = 256 * 1024
HAPPY_EYEBALLS: Final = 0.25
"""Seconds to wait for one address before the next one is tried in parallel."""
_Addresses: TypeAlias = list[tuple[Any, ...]]  # the result of getaddrinfo
_look_ups: Final = anyio.lowlevel.RunVar[BlockingCalls[_Addresses]]("shardline name look-ups")


class WireStream(Protocol):
    """A connected socket, with or without TLS."""

    async def send(self, data: bytes | memoryview, timeout: float) -> None: ...  # noqa: ASYNC109 - cheaper than a scope
    async def receive(self, timeout: float) -> bytes: ...  # noqa: ASYNC109 - the same
    async def start_tls(self, context: ssl.SSLContext, name: str) -> None: ...
    @property
    def protocol(self) -> str | None:
        """The protocol that both sides agreed on in the TLS handshake (ALPN)."""
        ...

    def is_silent(self) -> bool:
        """Return whether the peer has neither closed the connection nor sent data that is still unread."""
        ...

    async def abort(self) -> None: ...


@final
class AsyncioStream(asyncio.Protocol):
    """``WireStream`` on asyncio."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._transport: asyncio.Transport | None = None
        self._unread: list[bytes] = []
        self._unread_bytes = 0
        self._reading = True
        self._ended = False
        self._error: Exception | None = None
        self._receiver: asyncio.Future[None] | None = None
        self._sender: asyncio.Future[None] | None = None
        self._may_write = True

    @classmethod
    async def connect(cls, name: str, port: int, context: ssl.SSLContext | None) -> "AsyncioStream":
        loop = asyncio.get_running_loop()
        addresses = await look_up(name, port)
        # Do not use asyncio's own happy eyeballs, which leaks sockets when it is cancelled.
        connected = await start_connection(addresses, happy_eyeballs_delay=HAPPY_EYEBALLS, interleave=1)
        try:
            hostname = name if context is not None else None
            _, stream = await loop.create_connection(
                lambda: cls(loop), sock=connected, ssl=context, server_hostname=hostname
            )
        except BaseException:  # also if the task is cancelled
            connected.close()
            raise
        return stream

    # ---- called by asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Cast without a check: transports of other loops, such as uvloop, have these methods but another base class.
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self._unread.append(data)
        self._unread_bytes += len(data)
        if self._unread_bytes > _UNREAD_MAX and self._reading and self._transport is not None:
            self._reading = False
            self._transport.pause_reading()
        self._wake(self._receiver)

    def eof_received(self) -> bool:
        self._ended = True
        self._wake(self._receiver)
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._ended = True
        self._error = self._error or exc
        self._may_write = True
        self._wake(self._receiver)
        self._wake(self._sender)

    def pause_writing(self) -> None:
        self._may_write = False

    def resume_writing(self) -> None:
        self._may_write = True
        self._wake(self._sender)

    # ---- the methods of WireStream

    async def send(self, data: bytes | memoryview, timeout: float) -> None:  # noqa: ASYNC109 - see WireStream
        transport = self._transport
        if transport is None or transport.is_closing():
            raise self._error or ConnectionResetError("closed")
        transport.write(data)
        if not self._may_write:
            self._sender = self._loop.create_future()
            await self._wait(self._sender, timeout)
            if self._ended and self._error is not None:
                raise self._error

    async def receive(self, timeout: float) -> bytes:  # noqa: ASYNC109 - see WireStream
        if not self._unread and not self._ended:
            self._receiver = self._loop.create_future()
            await self._wait(self._receiver, timeout)
        unread = self._unread
        if unread:
            data = unread[0] if len(unread) == 1 else b"".join(unread)
            self._unread = []
            self._unread_bytes = 0
            if not self._reading and self._transport is not None:
                self._reading = True
                self._transport.resume_reading()
            return data
        if self._error is not None:
            raise self._error
        return b""

    async def start_tls(self, context: ssl.SSLContext, name: str) -> None:
        if self._transport is None or self._transport.is_closing():
            raise self._error or ConnectionResetError("closed")
        transport = await self._loop.start_tls(self._transport, self, context, server_hostname=name)
        if transport is None:  # the connection was lost just after the handshake
            raise self._error or ConnectionResetError("closed")
        self._transport = transport

    @property
    def protocol(self) -> str | None:
        secured = None if self._transport is None else self._transport.get_extra_info("ssl_object")
        return None if secured is None else secured.selected_alpn_protocol()

    def is_silent(self) -> bool:
        transport = self._transport
        if self._unread or self._ended or transport is None or transport.is_closing():
            return False
        # If the loop was busy, it may not have noticed yet that the peer closed the connection.
        return not _is_readable(transport.get_extra_info("socket").fileno())

    async def abort(self) -> None:
        self._error = self._error or ConnectionAbortedError("closed")
        self._ended = True
        if self._transport is not None:
            self._transport.abort()
        self._wake(self._receiver)
        self._wake(self._sender)

    async def _wait(self, waiter: asyncio.Future[None], timeout: float) -> None:  # noqa: ASYNC109
        timer = self._loop.call_later(timeout, _time_out, waiter)
        try:
            await waiter
        finally:
            timer.cancel()

    @staticmethod
    def _wake(waiter: asyncio.Future[None] | None) -> None:
        if waiter is not None and not waiter.done():
            waiter.set_result(None)


async def dial(name: str, port: int, context: ssl.SSLContext | None) -> WireStream:
    """Connect to a host, on the running event loop."""
    if is_trio():
        return await AnyioStream.connect(name, port, context)
    return await AsyncioStream.connect(name, port, context)


async def look_up(name: str, port: int) -> _Addresses:
    """Return the addresses of a host, on asyncio. Trio's own lookup is cancellable and needs no replacement."""

    def ask() -> _Addresses:
        return cast("_Addresses", socket.getaddrinfo(name, port, 0, socket.SOCK_STREAM))

    if _is_address(name):
        return ask()
    try:
        calls = _look_ups.get()
    except LookupError:
        calls = BlockingCalls[_Addresses]()
        _look_ups.set(calls)
    return await calls.run((name, port), ask)


def _is_address(name: str) -> bool:
    """Return whether the name is an IP address, which needs no lookup."""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _time_out(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_exception(TimeoutError())


@final
class AnyioStream:
    """``WireStream`` over anyio's streams, for trio."""

    def __init__(self, stream: ByteStream) -> None:
        self._stream = stream
        self._fileno = stream.extra(SocketAttribute.raw_socket).fileno()  # noqa: S610 - anyio, not Django
        self._closed = False

    @classmethod
    async def connect(cls, name: str, port: int, context: ssl.SSLContext | None) -> "AnyioStream":
        stream = cls(await anyio.connect_tcp(name, port))
        try:
            if context is not None:
                await stream.start_tls(context, name)
        except BaseException:  # also if the task is cancelled
            await stream.abort()
            raise
        return stream

    async def send(self, data: bytes | memoryview, timeout: float) -> None:  # noqa: ASYNC109 - see WireStream
        with anyio.fail_after(timeout), _os_errors():
            await self._stream.send(cast("bytes", data))  # anyio accepts any buffer

    async def receive(self, timeout: float) -> bytes:  # noqa: ASYNC109 - see WireStream
        with anyio.fail_after(timeout), _os_errors():
            try:
                return await self._stream.receive(_RECEIVE)
            except anyio.EndOfStream:
                return b""

    async def start_tls(self, context: ssl.SSLContext, name: str) -> None:
        with _os_errors():
            try:
                self._stream = await TLSStream.wrap(
                    self._stream, server_side=False, hostname=name, ssl_context=context, standard_compatible=False
                )
            except anyio.EndOfStream:
                raise ConnectionResetError("closed by the server") from None

    @property
    def protocol(self) -> str | None:
        return self._stream.extra(TLSAttribute.alpn_protocol, None)  # noqa: S610 - anyio, not Django

    def is_silent(self) -> bool:
        return not (self._closed or _is_readable(self._fileno))

    async def abort(self) -> None:
        self._closed = True
        with contextlib.suppress(OSError, anyio.BrokenResourceError):
            await anyio.aclose_forcefully(self._stream)


def _is_readable(fileno: int) -> bool:
    """Return whether a socket has unread data, or the peer has closed it."""
    if hasattr(select, "poll"):
        poll = select.poll()
        poll.register(fileno, select.POLLIN)
        return bool(poll.poll(0))
    return bool(select.select([fileno], [], [], 0)[0])


@contextlib.contextmanager
def _os_errors() -> Generator[None]:
    """Turn the errors of anyio's streams into ``OSError``."""
    try:
        yield
    except (anyio.BrokenResourceError, anyio.ClosedResourceError) as error:
        cause = error.__cause__
        raise (cause if isinstance(cause, OSError) else ConnectionResetError(str(error) or "closed")) from None
