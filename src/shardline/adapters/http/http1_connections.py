"""Which connection carries the next request?

Invariants:

- An idle connection is reused unless it was idle for longer than ``idle_timeout`` or the server has closed it.
- Connecting takes at most ``connect_timeout``, including the name look-up, the proxy and TLS.
- No connection leaks: if connecting fails half-way, the socket is closed, and ``close`` closes all connections.
"""

import socket
import ssl
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias, final
from urllib.parse import urlsplit

import anyio
import anyio.lowlevel

from shardline.adapters.http.http_failures import broken, proxy_broken, tls_broken
from shardline.adapters.http.http_settings import HttpSettings, Proxy, proxy_for
from shardline.adapters.http.wire_streams import WireStream
from shardline.codec.http1 import AnswerReader, HttpError, encode_request
from shardline.core.failures import Failure
from shardline.errors import UsageError

_PORTS: Final = {"http": 80, "https": 443}
_OK: Final = 200


Dial: TypeAlias = Callable[[str, int, ssl.SSLContext | None], Awaitable[WireStream]]
"""Connects to a name and port, with TLS if there is a context."""


@final
@dataclass(frozen=True, slots=True)
class Route:
    """How to connect to a URL."""

    url: str
    host: str
    """The value of the Host header."""
    name: str
    port: int
    tls: bool
    target: str
    proxy: Proxy | None
    headers: Mapping[str, str] = field(repr=False)
    """The login of a proxy that forwards plain HTTP requests; otherwise empty."""


@final
@dataclass(slots=True, eq=False)
class Connection:
    """An open connection on a route."""

    route: Route
    stream: WireStream
    reusable: bool = False
    idle_since: float = 0.0

    async def close(self) -> None:
        await self.stream.abort()


@final
class Connections:
    """The pool of connections."""

    def __init__(self, settings: HttpSettings, ssl_context: ssl.SSLContext | None, dial: Dial) -> None:
        self._settings = settings
        self._dial = dial
        self._ssl_context = ssl_context
        self._routes: dict[str, Route] = {}
        self._idle: dict[str, list[Connection]] = {}
        self._busy: set[Connection] = set()
        self._connecting: set[anyio.CancelScope] = set()
        self.closed = False

    async def get(self, url: str) -> Connection | Failure:
        """Return a connection for one request. Give it back with ``put_back``."""
        try:
            route = self._routes.get(url) or self._route(url)
        except UsageError as error:  # the environment names an invalid proxy
            return broken("HttpClientError", urlsplit(url).netloc, error)
        if self.closed:
            return broken("Closed", route.host)
        idle = self._idle.get(url)
        while idle:
            connection = idle.pop()
            if connection.idle_since >= self._oldest() and connection.stream.is_silent():
                connection.reusable = False
                self._busy.add(connection)
                return connection
            await connection.close()
        opened = await self._connect(route)
        if isinstance(opened, Failure):
            return opened
        if self.closed:  # on trio, connecting may complete although close has cancelled it
            await opened.close()
            return broken("Closed", route.host)
        self._busy.add(opened)
        return opened

    async def put_back(self, connection: Connection) -> None:
        """Keep a connection for the next request, or close it. Also close connections that were idle for too long."""
        self._busy.discard(connection)
        if not connection.reusable or self.closed:
            await connection.close()
            return
        connection.idle_since = anyio.current_time()
        idle = self._idle.setdefault(connection.route.url, [])
        idle.append(connection)
        while idle and idle[0].idle_since < self._oldest():  # checked each time: close yields to other tasks
            await idle.pop(0).close()

    async def close(self) -> None:
        """Close all connections, even those in use: requests on them fail."""
        self.closed = True
        for scope in self._connecting:
            scope.cancel()
        for connection in [*self._busy, *(connection for idle in self._idle.values() for connection in idle)]:
            await connection.close()
        self._idle.clear()
        await anyio.lowlevel.checkpoint()  # asyncio closes its transports in the next iteration of the loop

    def _oldest(self) -> float:
        return anyio.current_time() - self._settings.idle_timeout

    def _route(self, url: str) -> Route:
        """Return the route to a URL, and cache it."""
        parts = urlsplit(url)
        proxy = proxy_for(url, self._settings.proxies)
        tls = parts.scheme == "https"
        plain_proxy = proxy is not None and not tls
        route = self._routes[url] = Route(
            url=url,
            host=parts.netloc,
            name=parts.hostname or "",
            port=parts.port or _PORTS[parts.scheme],
            tls=tls,
            target=url if plain_proxy else parts.path or "/",
            proxy=proxy,
            headers=_login(proxy) if plain_proxy else {},
        )
        return route

    async def _connect(self, route: Route) -> Connection | Failure:
        """Open a connection within ``connect_timeout``."""
        result: Connection | Failure | None = None
        with anyio.move_on_after(self._settings.connect_timeout) as scope:
            self._connecting.add(scope)
            try:
                result = await self._open(route)
            except UnicodeError:  # the name is not valid in DNS
                result = broken("DnsError", route.host)
            except (OSError, HttpError) as error:
                result = _connect_failure(error, route)
            finally:
                self._connecting.discard(scope)
        if result is not None:
            return result
        return broken("Closed" if self.closed else "ConnectTimeout", route.host)

    async def _open(self, route: Route) -> Connection | Failure:
        """Connect the socket, then the proxy, then TLS."""
        if route.proxy is None:
            context = self._context() if route.tls else None
            return Connection(route, await self._dial(route.name, route.port, context))
        proxy_url = urlsplit(route.proxy.url)
        try:
            stream = await self._dial(
                proxy_url.hostname or "",
                proxy_url.port or _PORTS[proxy_url.scheme],
                self._context() if proxy_url.scheme == "https" else None,
            )
        except OSError as error:
            return broken("ProxyError", route.host, _reason(error))
        connection = Connection(route, stream)
        if not route.tls:
            return connection
        try:
            status = await self._request_tunnel(stream, route, route.proxy)
            if status == _OK:
                await stream.start_tls(self._context(), route.name)
                return connection
        except BaseException:  # also if cancelled
            await connection.close()
            raise
        await connection.close()
        return proxy_broken(route.host, status)

    def _context(self) -> ssl.SSLContext:
        """Return the TLS context. If none was passed, create one, for an https proxy in front of a plain endpoint."""
        if self._ssl_context is None:
            self._ssl_context = ssl.create_default_context()
        return self._ssl_context

    async def _request_tunnel(self, stream: WireStream, route: Route, proxy: Proxy) -> int:
        """Send CONNECT to a proxy, and return the status of its response."""
        name = f"[{route.name}]" if ":" in route.name else route.name
        target = f"{name}:{route.port}"
        limit = self._settings.connect_timeout
        await stream.send(encode_request(target, target, _login(proxy), None, "CONNECT"), limit)
        reader = AnswerReader(of_connect=True)
        while not reader.status:
            data = await stream.receive(limit)
            if not data:
                raise HttpError("the proxy closed the connection")
            reader.feed(data)
        return reader.status


def _login(proxy: Proxy | None) -> dict[str, str]:
    return {} if proxy is None or proxy.username is None else {"Proxy-Authorization": proxy.authorization}


def _connect_failure(error: Exception, route: Route) -> Failure:
    """Return the failure for an error that prevented a connection."""
    if isinstance(error, HttpError):
        return broken("ProxyError", route.host, error)
    if isinstance(error, ssl.SSLError):
        return tls_broken(route.host, error)
    if isinstance(error, ssl.CertificateError):
        return broken("CertificateError", route.host, error)
    if isinstance(error, socket.gaierror):
        return broken("DnsError", route.host)
    if route.tls and isinstance(error, ConnectionError) and not isinstance(error, ConnectionRefusedError):
        return broken("TlsError", route.host, _reason(error))
    return broken("ConnectError", route.host, _reason(error))


def _reason(error: BaseException) -> object:
    """Return the message of the first cause. Anyio chains a single failure as the cause, and several as a group."""
    cause: Any = error.__cause__ or error
    for first in getattr(cause, "exceptions", ())[:1]:
        cause = first
    return getattr(cause, "strerror", None) or cause
