"""Serves the metrics and the probes of the demo's processes (``shardline demo --metrics``).

Each process serves its own metrics: the producers on one port, and each worker on another, as in a real fleet.
"""

import socket
from contextlib import ExitStack
from importlib.util import find_spec

from shardline.adapters.sinks.prometheus_sink import PrometheusSink
from shardline.events import Sink
from shardline.health import HealthServer, Watched

_HOST = "127.0.0.1"
_TRIES = 20


def sinks(port: int | None) -> list[Sink]:
    """Return the sinks of a producer or worker that serves its metrics on ``port``, or no sinks if it is ``None``.

    Raises:
        UsageError: the extra is not installed.
    """
    return [] if port is None else [PrometheusSink(by_shard=True)]


def serve(port: int | None, *watched: Watched) -> HealthServer:
    """Return a health server for these producers or consumers. It listens only if ``port`` is given."""
    return HealthServer(*watched, port=port, host=_HOST)


def free_port(count: int) -> int | None:
    """Return the first of ``count`` consecutive free ports, or ``None`` without such ports or without the extra."""
    if find_spec("prometheus_client") is None:
        return None
    for _ in range(_TRIES):
        with ExitStack() as stack:
            first = stack.enter_context(socket.create_server((_HOST, 0))).getsockname()[1]
            try:
                for port in range(first + 1, first + count):
                    stack.enter_context(socket.create_server((_HOST, port)))
            except (OSError, OverflowError):
                continue
            return int(first)
    return None
