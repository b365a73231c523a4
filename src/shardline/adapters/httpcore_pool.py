"""How does a connection of httpcore2 surely come to its end?

httpcore2 (2.16) loses some: what it leaves open or in its pool is closed and taken out here. Each case has a test.

Invariants:

- Q1: a connection whose TLS handshake fails or is cancelled is closed.
- Q2: a connection that can take no further request leaves the pool, and so no longer counts against its limit.
  httpcore2 keeps one for ever whose tunnel through a proxy got no TLS, or whose first request was cancelled before it
  was sent.
- Q3: on asyncio, too, a name look-up that hangs keeps nobody (WS5). The addresses of a name are tried in turn, each
  when the one before has failed, or has had a quarter of a second; the first that answers is taken.
"""

import ssl
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, cast, final

import anyio
import httpcore2

from shardline.adapters.event_loop import is_trio
from shardline.adapters.wire_streams import HAPPY_EYEBALLS, look_up


@final
class Pool(httpcore2.AsyncConnectionPool):
    """A connection pool without leaks."""

    def create_connection(self, origin: httpcore2.Origin) -> httpcore2.AsyncConnectionInterface:
        return _Connection(super().create_connection(origin))


@final
class Backend(httpcore2.AsyncNetworkBackend):
    """Connects on the running event loop."""

    def __init__(self) -> None:
        self._looks_up = not is_trio()  # trio's own look-up can be left behind
        native: object = httpcore2.AnyIOBackend() if self._looks_up else httpcore2.TrioBackend()
        self._inner = cast("httpcore2.AsyncNetworkBackend", native)

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109 - httpcore2's signature
        local_address: str | None = None,
        socket_options: Iterable[httpcore2.SOCKET_OPTION] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        def connect(address: str) -> Awaitable[httpcore2.AsyncNetworkStream]:
            return self._inner.connect_tcp(address, port, timeout, local_address, socket_options)

        if not self._looks_up:
            return _Stream(await connect(host))
        try:
            with anyio.fail_after(timeout):
                found = [str(address[4][0]) for address in await look_up(host, port)]
                return _Stream(await _first_of([*dict.fromkeys(found)], connect))
        except TimeoutError as error:
            raise httpcore2.ConnectTimeout(str(error)) from error
        except OSError as error:
            raise httpcore2.ConnectError(error) from error


async def _first_of(
    addresses: list[str], connect: Callable[[str], Awaitable[httpcore2.AsyncNetworkStream]]
) -> httpcore2.AsyncNetworkStream:
    """A connection to the first that answers (Q3)."""
    connected: list[httpcore2.AsyncNetworkStream] = []
    failures: list[Exception] = []

    async def attempt(address: str, failed: anyio.Event) -> None:
        try:
            stream = await connect(address)
        except (httpcore2.ConnectError, httpcore2.ConnectTimeout) as error:
            failures.append(error)
            failed.set()
            return
        connected.append(stream)
        tasks.cancel_scope.cancel()

    taken = 0
    try:
        async with anyio.create_task_group() as tasks:
            for address in addresses:
                failed = anyio.Event()
                tasks.start_soon(attempt, address, failed)
                with anyio.move_on_after(HAPPY_EYEBALLS):
                    await failed.wait()
        if not connected:
            raise failures[0]
        taken = 1
        return connected[0]
    finally:
        with anyio.CancelScope(shield=True):
            for late in connected[taken:]:
                await late.aclose()


@final
class _Stream(httpcore2.AsyncNetworkStream):
    """A TCP connection (Q1)."""

    def __init__(self, inner: httpcore2.AsyncNetworkStream) -> None:
        self._inner = inner

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:  # noqa: ASYNC109
        return await self._inner.read(max_bytes, timeout)

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:  # noqa: ASYNC109
        await self._inner.write(buffer, timeout)

    async def aclose(self) -> None:
        await self._inner.aclose()

    async def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,  # noqa: ASYNC109
    ) -> httpcore2.AsyncNetworkStream:
        secured = False
        try:
            stream = await self._inner.start_tls(ssl_context, server_hostname, timeout)
            secured = True
        finally:
            if not secured:
                with anyio.CancelScope(shield=True):
                    await self._inner.aclose()
        return stream

    def get_extra_info(self, info: str) -> Any:
        return self._inner.get_extra_info(info)


@final
class _Connection(httpcore2.AsyncConnectionInterface):
    """A connection of the pool (Q2)."""

    def __init__(self, inner: httpcore2.AsyncConnectionInterface) -> None:
        self._inner = inner

    async def handle_async_request(self, request: httpcore2.Request) -> httpcore2.Response:
        ours = True
        try:
            response = await self._inner.handle_async_request(request)
            ours = False
        except httpcore2.ConnectionNotAvailable:  # another request has it
            ours = False
            raise
        finally:
            if ours and not self._inner.is_available():
                with anyio.CancelScope(shield=True):
                    await self._inner.aclose()
        return response

    async def aclose(self) -> None:
        await self._inner.aclose()

    def info(self) -> str:
        return self._inner.info()

    def can_handle_request(self, origin: httpcore2.Origin) -> bool:
        return self._inner.can_handle_request(origin)

    def is_connected(self) -> bool:
        return self._inner.is_connected()

    def is_available(self) -> bool:
        return self._inner.is_available()

    def has_expired(self) -> bool:
        return self._inner.has_expired()

    def is_idle(self) -> bool:
        return self._inner.is_idle()

    def can_multiplex(self) -> bool:
        return self._inner.can_multiplex()

    def is_closed(self) -> bool:
        return self._inner.is_closed()
