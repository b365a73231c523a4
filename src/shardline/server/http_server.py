"""Serves HTTP/1.1 and HTTP/2 on one port.

Without TLS, the first bytes of a connection decide: a client that uses HTTP/2 with prior knowledge begins with a fixed
preface. With TLS, the client and the server agree on the version during the handshake (ALPN). Then the connection is
handed over to the shell for that version.

Invariants:

- The chosen shell gets all the bytes of the connection, including the bytes that decided the version.
- A connection is closed if no data arrives on it, or if its peer has vanished.
- ``close`` ends all connections and their requests immediately.
- HTTP/2 costs nothing, not even an import, until a client uses it.
"""

import asyncio
import ssl
from typing import TYPE_CHECKING, Final, cast, final

from shardline.server.front import Front
from shardline.server.http1_connection import Http1Connections
from shardline.server.http2_frames import PREFACE
from shardline.server.sockets import Timeouts, find_vanished_peers

if TYPE_CHECKING:
    from shardline.server.http2 import Http2Connection

ALPN_PROTOCOLS: Final = ("h2", "http/1.1")


@final
class HttpServer:
    """Serves one ``Front`` on one port. ``start`` binds the port and sets the attribute ``port``."""

    def __init__(self, front: Front, *, timeouts: Timeouts | None = None) -> None:
        self.front = front
        self.timeouts: Timeouts = timeouts or Timeouts()
        self.undecided: set[Undecided] = set()
        self.http1: Http1Connections | None = None
        self.http2: set[Http2Connection] = set()
        self.port: int = 0
        self._server: asyncio.Server | None = None

    @property
    def is_serving(self) -> bool:
        return self._server is not None

    async def start(self, host: str, port: int, ssl_context: ssl.SSLContext | None = None) -> None:
        if ssl_context is not None:
            ssl_context.set_alpn_protocols(ALPN_PROTOCOLS)
        self.http1 = Http1Connections(self.front, self.timeouts)
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: Undecided(self), host, port, ssl=ssl_context, backlog=1024)
        self.port = int(self._server.sockets[0].getsockname()[1])

    async def close(self) -> None:
        server, self._server = self._server, None
        if server is None or self.http1 is None:
            return
        server.close()
        for undecided in list(self.undecided):
            undecided.abort()
        for connection in list(self.http2):
            connection.abort()
        await self.http1.close()
        await asyncio.sleep(0)  # lets asyncio call connection_lost for the connections that were aborted


@final
class Undecided(asyncio.Protocol):
    """A connection whose version of HTTP is not known yet."""

    def __init__(self, server: HttpServer) -> None:
        self._server = server
        self._transport: asyncio.Transport | None = None
        self._received = b""
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._server.undecided.add(self)
        find_vanished_peers(transport, self._server.timeouts.peer)
        agreed: ssl.SSLObject | None = transport.get_extra_info("ssl_object")
        if agreed is not None and agreed.selected_alpn_protocol() == "h2":
            self._become_http2(b"")
        else:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(self._server.timeouts.idle, self.abort)

    def data_received(self, data: bytes) -> None:
        received = self._received + data
        if PREFACE.startswith(received) and len(received) < len(PREFACE):
            self._received = received
        elif received.startswith(PREFACE):
            self._become_http2(received)
        else:
            assert self._server.http1 is not None, "the server has started"
            self._hand_over(self._server.http1(), received)

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self._leave()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def _become_http2(self, received: bytes) -> None:
        from shardline.server.http2 import Http2Connection  # noqa: PLC0415 - loaded only by a server that speaks HTTP/2

        self._hand_over(Http2Connection(self._server.front, self._server.timeouts, self._server.http2), received)

    def _hand_over(self, protocol: asyncio.Protocol, received: bytes) -> None:
        assert self._transport is not None, "connection_made was called"
        self._leave()
        self._transport.set_protocol(protocol)
        protocol.connection_made(self._transport)
        if received:
            protocol.data_received(received)

    def _leave(self) -> None:
        self._server.undecided.discard(self)
        if self._timer is not None:
            self._timer.cancel()
