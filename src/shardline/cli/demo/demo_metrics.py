"""Serves the metrics and the probes of the demo's processes (``shardline demo --metrics``).

Each process serves its own: the producers on one port, each worker on another, as the processes of a real fleet do.
"""

from shardline.adapters.sinks.prometheus_sink import PrometheusSink
from shardline.events import Sink
from shardline.health import HealthServer, Watched

_HOST = "127.0.0.1"


def sinks(port: int | None) -> list[Sink]:
    """Return the sinks of a producer or worker that serves its metrics on ``port``, if it does.

    Raises:
        UsageError: the extra is not installed.
    """
    return [] if port is None else [PrometheusSink(by_shard=True)]


def serve(port: int | None, *watched: Watched) -> HealthServer:
    """Return a server for these producers or consumers. It listens if there is a port."""
    return HealthServer(*watched, port=port, host=_HOST)
