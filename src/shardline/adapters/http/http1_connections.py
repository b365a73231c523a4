"""Keeps a pool of HTTP/1.1 connections.

Invariants:

- An idle connection is reused unless it has been idle for longer than ``idle_timeout`` or the server has closed it.
- No connection leaks: ``close`` closes all of them.
"""

import ssl
from dataclasses import dataclass
from typing import final
from urllib.parse import urlsplit

import anyio
import anyio.lowlevel

from shardline.adapters.http.http_failures import broken
from shardline.adapters.http.http_routes import Connector, Dial, Route, find_route
from shardline.adapters.http.http_settings import HttpSettings
from shardline.adapters.http.wire_streams import WireStream
from shardline.core.error_codes import Failure
from shardline.errors import UsageError


@final
@dataclass(slots=True, eq=False)
class Connection:
    """An open connection and its route."""

    route: Route
    stream: WireStream
    reusable: bool = False
    idle_since: float = 0.0

    async def close(self) -> None:
        await self.stream.abort()


@final
class Connections:
    """Keeps idle connections open for later requests."""

    def __init__(self, settings: HttpSettings, ssl_context: ssl.SSLContext | None, dial: Dial) -> None:
        self._settings = settings
        self._connector = Connector(settings, ssl_context, dial)
        self._routes: dict[str, Route] = {}
        self._idle: dict[str, list[Connection]] = {}
        self._busy: set[Connection] = set()
        self.closed = False

    async def get(self, url: str) -> Connection | Failure:
        """Return a connection for one request. The caller returns it with ``put_back``."""
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

        async def begin(stream: WireStream) -> Connection:
            return Connection(route, stream)

        made = await self._connector.connect(route, begin)
        if isinstance(made, Failure):
            return made
        if self.closed:  # trio may complete a connection attempt that close has cancelled
            await made.close()
            return broken("Closed", route.host)
        self._busy.add(made)
        return made

    async def put_back(self, connection: Connection) -> None:
        """Keep a connection for the next request, or close it. Other connections that were idle for too long are also
        closed.
        """
        self._busy.discard(connection)
        if not connection.reusable or self.closed:
            await connection.close()
            return
        connection.idle_since = anyio.current_time()
        idle = self._idle.setdefault(connection.route.url, [])
        idle.append(connection)
        while idle and idle[0].idle_since < self._oldest():  # meanwhile, another task may take the other connections
            await idle.pop(0).close()

    async def close(self) -> None:
        """Close all connections, even those in use: requests on them fail."""
        self.closed = True
        self._connector.close()
        for connection in [*self._busy, *(one for idle in self._idle.values() for one in idle)]:
            await connection.close()
        self._idle.clear()
        await anyio.lowlevel.checkpoint()  # asyncio closes its transports in the next iteration of the loop

    def _oldest(self) -> float:
        return anyio.current_time() - self._settings.idle_timeout

    def _route(self, url: str) -> Route:
        """Return the route to a URL. Each route is looked up once."""
        route = self._routes[url] = find_route(url, self._settings.proxies)
        return route
