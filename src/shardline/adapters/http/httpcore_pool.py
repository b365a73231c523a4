"""How does a connection of httpcore2 surely come to its end?

httpcore2 (2.16) loses some: what it leaves open or in its pool is closed and taken out here. Each case has a test.

Invariants:

- A connection whose TLS handshake fails or is cancelled is closed.
- A connection that can take no further request leaves the pool, and so no longer counts against its limit.
  httpcore2 keeps one for ever whose tunnel through a proxy got no TLS, or whose first request was cancelled before it
  was sent.
- On asyncio, too, a name look-up that hangs keeps nobody. The addresses of a name are tried in turn, each
  when the one before has failed, or has had a quarter of a second; the first that answers is taken.
"""

import ssl
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, cast, final

import anyio
import httpcore2

from shardline.adapters.event_loop import is_trio
from shardline.adapters.http.wire_streams import HAPPY_EYEBALLS, look_up


@final
class Pool(httpcore2.AsyncConnectionPool):
    """A connection pool without leaks."""

    def create_connection(self, origin: httpcore2.Origin) -> httpcore2.AsyncConnectionInterface:
        return cast("httpcore2.AsyncConnectionInterface", _Connection(super().create_connection(origin)))


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
            return _stream(await connect(host))
        try:
            with anyio.fail_after(timeout):
                found = [str(address[4][0]) for address in await look_up(host, port)]
                return _stream(await _first_of([*dict.fromkeys(found)], connect))
        except TimeoutError as error:
            raise httpcore2.ConnectTimeout(str(error)) from error
        except OSError as error:
            raise httpcore2.ConnectError(error) from error


async def _first_of(
    addresses: list[str], connect: Callable[[str], Awaitable[httpcore2.AsyncNetworkStream]]
) -> httpcore2.AsyncNetworkStream:
    """A connection to the first that answers."""
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


class _Wrapper:
    """Something of httpcore2's, of which one method is done otherwise."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


@final
class _Stream(_Wrapper):
    """A TCP connection."""

    async def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,  # noqa: ASYNC109
    ) -> httpcore2.AsyncNetworkStream:
        try:
            return cast(
                "httpcore2.AsyncNetworkStream", await self._inner.start_tls(ssl_context, server_hostname, timeout)
            )
        except BaseException:  # cancelled, too
            with anyio.CancelScope(shield=True):
                await self._inner.aclose()
            raise


def _stream(connected: httpcore2.AsyncNetworkStream) -> httpcore2.AsyncNetworkStream:
    return cast("httpcore2.AsyncNetworkStream", _Stream(connected))


@final
class _Connection(_Wrapper):
    """A connection of the pool."""

    async def handle_async_request(self, request: httpcore2.Request) -> httpcore2.Response:
        try:
            return cast("httpcore2.Response", await self._inner.handle_async_request(request))
        except httpcore2.ConnectionNotAvailable:  # another request has it
            raise
        except BaseException:  # cancelled, too
            if not self._inner.is_available():
                with anyio.CancelScope(shield=True):
                    await self._inner.aclose()
            raise
