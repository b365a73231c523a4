"""How does the server end connections that nobody uses any more, and how does it reset one?

A peer that vanished (a cable, a sleeping laptop, a container that was killed with its network) says nothing: the kernel
finds out. Probes find a peer that is silent, and data that stays unacknowledged for too long ends the connection, so
that its subscription ends too.
"""

import asyncio
import socket
import struct
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, final

_INTERVALS: Final = 3  # probes within the time in which a peer must answer
# The names by which systems know the options; those that a system lacks are left alone.
_PROBE_AFTER: Final = ("TCP_KEEPIDLE", "TCP_KEEPALIVE")


@final
@dataclass(frozen=True, slots=True)
class Timeouts:
    """After how many seconds a connection is closed. Production values are in the defaults; tests use shorter ones."""

    idle: float = 75.0
    """No request is in progress."""
    request: float = 60.0
    """The rest of a request does not come."""
    peer: float = 60.0
    """The peer acknowledges nothing: neither data nor probes."""


def find_vanished_peers(transport: asyncio.BaseTransport, within: float) -> None:
    """Have the kernel break a connection whose peer acknowledges nothing for so long."""
    plain: socket.socket | None = transport.get_extra_info("socket")
    if plain is None:
        return
    interval = max(1, round(within / (_INTERVALS + 1)))
    with suppress(OSError):  # a connection that is broken already
        plain.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name in _PROBE_AFTER:
            _set(plain, name, interval)
        _set(plain, "TCP_KEEPINTVL", interval)
        _set(plain, "TCP_KEEPCNT", _INTERVALS)
        _set(plain, "TCP_USER_TIMEOUT", round(within * 1000))


def _set(plain: socket.socket, name: str, value: int) -> None:
    option: int | None = getattr(socket, name, None)
    if option is not None:
        plain.setsockopt(socket.IPPROTO_TCP, option, value)


def reset(transport: asyncio.Transport | None) -> None:
    """End a connection with RST: without the option a close with nothing unread is an orderly FIN."""
    if transport is None:
        return
    plain: socket.socket | None = transport.get_extra_info("socket")
    if plain is not None:
        with suppress(OSError):
            plain.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    transport.abort()
