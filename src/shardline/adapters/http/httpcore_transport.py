"""How are requests POSTed where the loop is trio, or where HTTP/2 is asked for?

With httpcore2, the extra ``trio`` or ``http2``. The same promises as the aiohttp adapter:

- Nothing is retried, redirected, decompressed or remembered: one call is one request.
- Every way in which a request can break comes back as a ``Failure``; only cancellation passes through.
- No silence lasts: to connect (with name look-up, proxy and TLS), to send a slice and to receive have each a limit.
  Nor does a drip: an answer that is no event stream has a limit as a whole (``SLOWEST_ANSWER``).
- After ``close`` nothing is sent, and what was under way ends.
"""

import socket
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from math import inf
from typing import Final, NamedTuple, cast, final
from urllib.parse import urlsplit

import anyio
import httpcore2

from shardline.adapters.http.http_failures import broken, proxy_broken, tls_broken
from shardline.adapters.http.http_settings import SLOWEST_ANSWER, HttpSettings, Proxy, proxy_for
from shardline.adapters.http.httpcore_pool import Backend, Pool
from shardline.core.failures import Failure
from shardline.ports import Body, HttpAnswer, HttpStream

_SLICE: Final = 256 * 1024
_BREAKS: Final = (
    httpcore2.NetworkError,
    httpcore2.TimeoutException,
    httpcore2.ProtocolError,
    httpcore2.ProxyError,
    httpcore2.UnsupportedProtocol,
    OSError,
    ValueError,
)


@final
class _Route(NamedTuple):
    """How a URL is reached."""

    pool: Pool
    host: str
    proxied: bool


@final
class _HttpcoreStream:
    """An answer that is still arriving."""

    def __init__(self, response: httpcore2.Response, transport: "HttpcoreTransport", host: str, ends_at: float) -> None:
        self._response = response
        self._transport = transport
        self._host = host
        self._ends_at = ends_at  # unless it is an event stream
        self.status = response.status
        self.headers: Mapping[str, str] = _lower(response)

        # In truth an async generator, which must be closed by hand: trio complains about one left to the collector.
        self._chunks = response.aiter_stream()

    async def next_chunk(self) -> bytes | Failure | None:
        try:
            return await anext(self._chunks, None)
        except _BREAKS as error:
            return self._transport.failure(error, self._host)

    async def read(self) -> bytes | Failure:
        parts: list[bytes] = []
        with anyio.CancelScope(deadline=self._ends_at) as scope:
            while True:
                chunk = await self.next_chunk()
                if isinstance(chunk, Failure):
                    return chunk
                if chunk is None:
                    return b"".join(parts)
                parts.append(chunk)
                scope.deadline += len(chunk) / SLOWEST_ANSWER
        return broken("ReadTimeout", self._host)

    async def aclose(self) -> None:
        try:
            await self._chunks.aclose()
        finally:
            await self._response.aclose()


@final
class HttpcoreTransport:
    """``HttpTransport`` over httpcore2's connection pools, on asyncio or trio."""

    def __init__(self, settings: HttpSettings, ssl_context: ssl.SSLContext | None) -> None:
        self._settings = settings
        self._ssl_context = ssl_context
        self._pools: dict[Proxy | None, Pool] = {}
        self._routes: dict[str, _Route] = {}
        self._unanswered: set[anyio.CancelScope] = set()
        self._closed = False
        self._extensions = {
            "timeout": {
                "connect": settings.connect_timeout,
                "read": settings.read_timeout,
                "write": settings.read_timeout,
                "pool": None,
            }
        }

    def _route(self, url: str) -> _Route:
        """The way to a URL, through one pool per proxy: worked out once."""
        known = self._routes.get(url)
        if known is None:
            proxy = proxy_for(url, self._settings.proxies)
            pool = self._pools.get(proxy)
            if pool is None:
                pool = self._pools[proxy] = self._make_pool(proxy)
            known = self._routes[url] = _Route(pool, urlsplit(url).netloc, proxy is not None)
        return known

    def _make_pool(self, proxy: Proxy | None) -> Pool:
        return Pool(
            ssl_context=self._ssl_context,
            proxy=None
            if proxy is None
            else httpcore2.Proxy(
                proxy.url,
                headers=None if proxy.username is None else {"Proxy-Authorization": proxy.authorization},
                ssl_context=self._ssl_context if proxy.url.startswith("https:") else None,
            ),
            max_connections=self._settings.max_connections,
            max_keepalive_connections=self._settings.max_connections,
            keepalive_expiry=self._settings.idle_timeout,
            http1=True,
            http2=self._settings.http2,
            network_backend=Backend(),
        )

    async def post(self, url: str, headers: Mapping[str, str], body: Body) -> HttpAnswer | Failure:
        async with self.stream(url, headers, body) as answer:
            if isinstance(answer, Failure):
                return answer
            content = await answer.read()
            return content if isinstance(content, Failure) else HttpAnswer(answer.status, answer.headers, content)

    @asynccontextmanager
    async def stream(self, url: str, headers: Mapping[str, str], body: Body) -> AsyncGenerator[HttpStream | Failure]:
        try:
            route = self._route(url)
        except ValueError as error:  # the environment's proxy is none
            yield broken("HttpClientError", urlsplit(url).netloc, error)
            return
        arriving = await self._send(route, url, headers, body)
        if isinstance(arriving, Failure):
            yield arriving
            return
        try:
            yield arriving
        finally:
            await arriving.aclose()

    async def _send(self, route: _Route, url: str, headers: Mapping[str, str], body: Body) -> _HttpcoreStream | Failure:
        """The answer's beginning. It has ``read_timeout`` from the end of the request."""
        if self._closed:
            return broken("Closed", route.host)
        sent = [("Host", route.host), *headers.items(), ("Content-Length", str(len(body)))]
        scope = anyio.CancelScope()
        self._unanswered.add(scope)

        def start_clock() -> None:
            scope.deadline = anyio.current_time() + self._settings.read_timeout

        try:
            request = httpcore2.Request(
                "POST",
                url,
                headers=[(name.encode(), value.encode()) for name, value in sent],
                content=_slices(body, start_clock),
                extensions=self._extensions,
            )
            with scope:
                response = await route.pool.handle_async_request(request)
                if scope.deadline == inf:  # an answer before the whole request was sent
                    start_clock()
                return _HttpcoreStream(response, self, route.host, scope.deadline)
        except _BREAKS as error:
            return self.failure(error, route.host, proxied=route.proxied)
        finally:
            self._unanswered.discard(scope)
        if self._closed:
            return broken("ConnectionReset", route.host, "this Client was closed")
        return broken("ReadTimeout", route.host)

    async def close(self) -> None:
        self._closed = True
        # A pool that is closed would make new connections for the requests that wait for one.
        for scope in self._unanswered:
            scope.cancel()
        for pool in self._pools.values():
            await pool.aclose()

    def failure(self, error: Exception, host: str, *, proxied: bool = False) -> Failure:
        """What httpcore2's exceptions mean."""
        unsent = _unsent(error, host, proxied=proxied)
        if unsent is not None:
            return unsent
        match error:
            case httpcore2.TimeoutException():
                return broken("ReadTimeout", host)
            case _ if self._closed:
                return broken("ConnectionReset", host, "this Client was closed")
            case httpcore2.RemoteProtocolError() if "disconnected" in str(error):
                return broken("ConnectionReset", host, "closed by the server")
            case httpcore2.RemoteProtocolError() if "closed connection" in str(error):
                return broken("ConnectionReset", host, "the answer was cut short")
            case httpcore2.RemoteProtocolError():
                return broken("BadAnswer", host, error)
            case _:
                return broken("ConnectionReset", host, _words(error))


async def _slices(body: Body, at_end: Callable[[], None]) -> AsyncIterator[bytes]:
    """A large body in slices: TLS over all of it at once would hold the loop for milliseconds."""
    for start in range(0, len(body), _SLICE):
        yield bytes(body[start : start + _SLICE])
    at_end()


def _lower(response: httpcore2.Response) -> Mapping[str, str]:
    return {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in response.headers}


def _unsent(error: Exception, host: str, *, proxied: bool) -> Failure | None:
    """The failures before a request goes out."""
    match error:
        case httpcore2.ConnectError():
            return _not_connected(error, host, proxied=proxied)
        case httpcore2.ConnectTimeout():
            return broken("ConnectTimeout", host)
        case httpcore2.ProxyError():
            status = str(error)[:3]
            return proxy_broken(host, int(status)) if status.isdecimal() else broken("ProxyError", host, error)
        case httpcore2.LocalProtocolError() | httpcore2.UnsupportedProtocol():
            return broken("HttpClientError", host, error)
        case UnicodeError():  # a name that cannot even be asked for
            return broken("DnsError", host)
        case _:
            return None


def _not_connected(error: httpcore2.ConnectError, host: str, *, proxied: bool) -> Failure:
    root = _root(error)
    if isinstance(root, ssl.SSLError):
        return tls_broken(host, root)
    if proxied:
        return broken("ProxyError", host, _words(error))
    if isinstance(root, socket.gaierror):
        return broken("DnsError", host)
    return broken("ConnectError", host, _words(error))


def _words(error: BaseException) -> object:
    root = _root(error)
    return getattr(root, "strerror", None) or root


def _root(error: BaseException) -> BaseException:
    """The first cause: httpcore2 wraps anyio's and trio's wrappings.

    Its pool takes the cause off its own exceptions, which hold what they wrap as an argument too. The context is no
    help: it may be an exception that the caller is just dealing with.
    """
    while True:
        wrapped = _wrapped(error)
        if wrapped is None:
            return error
        error = wrapped


def _wrapped(error: BaseException) -> BaseException | None:
    if isinstance(error, BaseExceptionGroup):
        several = cast("BaseExceptionGroup[BaseException]", error)
        return several.exceptions[0]
    first = error.args[0] if error.args else None
    return first if isinstance(first, BaseException) else error.__cause__
