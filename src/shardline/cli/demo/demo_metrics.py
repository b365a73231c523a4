"""Serves the metrics and the probes of the demo's processes (``shardline demo --metrics``).

Each process serves its own metrics: the producers on one port, and each worker on another, as in a real fleet.
"""

from shardline.adapters.sinks.prometheus_sink import PrometheusSink
from shardline.events import Sink
from shardline.health import HealthServer, Watched

_HOST = "127.0.0.1"


def sinks(port: int | None) -> list[Sink]:
    """Return the sinks of a producer or worker that serves its metrics on ``port``, or no sinks if it is ``None``.

    Raises:
        UsageError: the extra is not installed.
    """
    return [] if port is None else [PrometheusSink(by_shard=True)]


def serve(port: int | None, *watched: Watched) -> HealthServer:
    """Return a server for these producers or consumers. It listens only if ``port`` is given."""
    return HealthServer(*watched, port=port, host=_HOST)
