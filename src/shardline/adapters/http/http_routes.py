"""Connects to URLs: directly or through a proxy, with or without TLS.

Invariants:

- Connecting takes at most ``connect_timeout``, including name lookup, proxy, TLS and the start of the protocol.
- No connection leaks: a connection that fails half-way, or whose caller is cancelled, is closed.
- After ``close``, no connection is opened, and attempts in progress end.
"""

import socket
import ssl
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias, TypeVar, final
from urllib.parse import urlsplit

import anyio

from shardline.adapters.blocking_calls import BlockingCalls
from shardline.adapters.http.http_failures import broken, proxy_broken, tls_broken
from shardline.adapters.http.http_settings import HttpSettings, Proxy, proxy_for
from shardline.adapters.http.wire_streams import WireStream
from shardline.codec.http1 import HttpError, ResponseReader, encode_request
from shardline.core.error_codes import Failure

_T = TypeVar("_T")
_PORTS: Final = {"http": 80, "https": 443}
_OK: Final = 200


Dial: TypeAlias = Callable[[str, int, ssl.SSLContext | None], Awaitable[WireStream]]
"""A function that connects to a name and port, with TLS if it gets a context."""
Trust: TypeAlias = Callable[[], ssl.SSLContext]
"""A function that makes a TLS context. The function blocks, because it reads files."""


@final
@dataclass(frozen=True, slots=True)
class Route:
    """How to connect to a URL: directly or through a proxy, with or without TLS."""

    url: str
    host: str
    """The value of the Host header."""
    name: str
    port: int
    tls: bool
    target: str
    """The target in the request line: the path, or the whole URL for a proxy that forwards requests."""
    proxy: Proxy | None
    is_relayed: bool
    """Whether a proxy reads the requests and forwards them, as it does without TLS."""
    headers: Mapping[str, str] = field(repr=False)
    """The login for a proxy that forwards requests."""


def find_route(url: str, proxies: Mapping[str, str] | None) -> Route:
    """Find how to reach a URL.

    Raises:
        UsageError: the environment names an invalid proxy.
    """
    parts = urlsplit(url)
    proxy = proxy_for(url, proxies)
    tls = parts.scheme == "https"
    is_relayed = proxy is not None and not tls
    return Route(
        url=url,
        host=parts.netloc,
        name=parts.hostname or "",
        port=parts.port or _PORTS[parts.scheme],
        tls=tls,
        target=url if is_relayed else parts.path or "/",
        proxy=proxy,
        is_relayed=is_relayed,
        headers=_login(proxy) if is_relayed else {},
    )


@final
class Connector:
    """Opens connections on routes, within ``connect_timeout``."""

    def __init__(
        self,
        settings: HttpSettings,
        trust: ssl.SSLContext | Trust | None,
        dial: Dial,
        proxy_context: ssl.SSLContext | None = None,
    ) -> None:
        self._timeout = settings.connect_timeout
        self._dial = dial
        self._trust = trust
        self._trusts = BlockingCalls[ssl.SSLContext]()
        self._proxy_context = proxy_context or (trust if isinstance(trust, ssl.SSLContext) else None)
        self._connecting: set[anyio.CancelScope] = set()
        self.is_closed = False

    async def connect(self, route: Route, begin: Callable[[WireStream], Awaitable[_T]]) -> _T | Failure:
        """Connect, call ``begin`` and return its result. If ``begin`` fails, the connection is closed."""
        made: _T | Failure | None = None
        with anyio.move_on_after(self._timeout) as scope:
            self._connecting.add(scope)
            try:
                made = await self._open(route, begin)
            except UnicodeError:  # the name cannot be encoded for a lookup
                made = broken("DnsError", route.host)
            except (OSError, HttpError) as error:
                made = _not_connected(error, route)
            finally:
                self._connecting.discard(scope)
        if made is not None:
            return made
        return broken("Closed" if self.is_closed else "ConnectTimeout", route.host)

    def close(self) -> None:
        self.is_closed = True
        for scope in self._connecting:
            scope.cancel()

    async def _open(self, route: Route, begin: Callable[[WireStream], Awaitable[_T]]) -> _T | Failure:
        stream = await self._reach(route)
        if isinstance(stream, Failure):
            return stream
        try:
            made = await begin(stream)
        except BaseException:  # the connection is closed also after a cancellation
            await stream.abort()
            raise
        if isinstance(made, Failure):
            await stream.abort()
        return made

    async def _reach(self, route: Route) -> WireStream | Failure:
        """Open the socket, the tunnel through a proxy, and TLS."""
        if route.proxy is None:
            return await self._dial(route.name, route.port, await self._context() if route.tls else None)
        way = urlsplit(route.proxy.url)
        context = self._proxy_context or self._default_context() if way.scheme == "https" else None
        try:
            stream = await self._dial(way.hostname or "", way.port or _PORTS[way.scheme], context)
        except OSError as error:
            return broken("ProxyError", route.host, _reason(error))
        if not route.tls:
            return stream
        try:
            status = await self._ask_for_tunnel(stream, route, route.proxy)
            if status == _OK:
                await stream.start_tls(await self._context(), route.name)
                return stream
        except BaseException:  # the connection is closed also after a cancellation
            await stream.abort()
            raise
        await stream.abort()
        return proxy_broken(route.host, status)

    async def _context(self) -> ssl.SSLContext:
        trust = self._trust
        if trust is None:
            return self._default_context()
        if not isinstance(trust, ssl.SSLContext):
            trust = self._trust = await self._trusts.run("trust", trust)
        return trust

    def _default_context(self) -> ssl.SSLContext:
        """Return a context that trusts the system's certificates, for a TLS proxy in front of a plain endpoint."""
        context = self._proxy_context = ssl.create_default_context()
        self._trust = self._trust or context
        return context

    async def _ask_for_tunnel(self, stream: WireStream, route: Route, proxy: Proxy) -> int:
        """Ask a proxy for a tunnel and return the status of its response."""
        name = f"[{route.name}]" if ":" in route.name else route.name
        target = f"{name}:{route.port}"
        limit = self._timeout
        await stream.send(encode_request(target, target, _login(proxy), None, "CONNECT"), limit)
        reader = ResponseReader(of_connect=True)
        while not reader.status:
            data = await stream.receive(limit)
            if not data:
                raise HttpError("the proxy closed the connection")
            reader.feed(data)
        return reader.status


def _login(proxy: Proxy | None) -> dict[str, str]:
    return {} if proxy is None or proxy.username is None else {"Proxy-Authorization": proxy.authorization}


def _not_connected(error: Exception, route: Route) -> Failure:
    """Return the failure that reports an unsuccessful attempt to connect."""
    if isinstance(error, HttpError):
        return broken("ProxyError", route.host, error)
    if isinstance(error, ssl.SSLError):
        return tls_broken(route.host, error)
    if isinstance(error, ssl.CertificateError):
        return broken("CertificateError", route.host, error)
    if isinstance(error, socket.gaierror):
        return broken("DnsError", route.host)
    if isinstance(error, TimeoutError) and error.errno is None:  # our time limit: a silent proxy
        return broken("ConnectTimeout", route.host)
    if route.tls and isinstance(error, ConnectionError) and not isinstance(error, ConnectionRefusedError):
        return broken("TlsError", route.host, _reason(error))
    return broken("ConnectError", route.host, _reason(error))


def _reason(error: BaseException) -> object:
    """Return the message of the first cause. Anyio reports a single failure as a cause, and several failures as an
    exception group.
    """
    cause: Any = error.__cause__ or error
    for one in getattr(cause, "exceptions", ())[:1]:
        cause = one
    return getattr(cause, "strerror", None) or cause
