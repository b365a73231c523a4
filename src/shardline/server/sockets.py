"""Ends connections whose peer has vanished and resets connections.

A peer that vanishes (an unplugged cable, a sleeping laptop, a container that was killed together with its network) does
not close its connection: the kernel has to find out. The kernel probes a silent peer, and breaks a connection whose
data stays unacknowledged for too long, which also ends the connection's subscription.
"""

import asyncio
import socket
import struct
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, final

_INTERVALS: Final = 3  # the number of probes within the timeout
# Linux and macOS have different names for this option. A name that the system lacks is ignored.
_PROBE_AFTER: Final = ("TCP_KEEPIDLE", "TCP_KEEPALIVE")


@final
@dataclass(frozen=True, slots=True)
class Timeouts:
    """The timeouts of a connection, in seconds. Tests use shorter timeouts than the defaults."""

    idle: float = 75.0
    """The timeout of a connection that has no request in progress."""
    request: float = 60.0
    """The timeout of a request that has begun to arrive but does not arrive completely."""
    peer: float = 60.0
    """The timeout of a peer that acknowledges neither data nor probes."""


def find_vanished_peers(transport: asyncio.BaseTransport, within: float) -> None:
    """Make the kernel break the connection if its peer acknowledges nothing for ``within`` seconds."""
    plain: socket.socket | None = transport.get_extra_info("socket")
    if plain is None:
        return
    interval = max(1, round(within / (_INTERVALS + 1)))
    with suppress(OSError):  # the connection is already broken
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
    """End a connection with RST. Without the option SO_LINGER, the close would be an orderly FIN."""
    if transport is None:
        return
    plain: socket.socket | None = transport.get_extra_info("socket")
    if plain is not None:
        with suppress(OSError):
            plain.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    transport.abort()
