"""Sinks that pass the events of producers and consumers to other systems.

Pass them as ``Producer(sinks=[...])`` or ``Consumer(sinks=[...])``, or to ``shardline.events.instrument``. The sinks
are loaded on first use, because some of them need an extra.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from shardline.adapters.sinks.cloudwatch_sink import CloudWatchSink
    from shardline.adapters.sinks.log_sink import LogSink
    from shardline.adapters.sinks.otel_sink import OpenTelemetrySink
    from shardline.adapters.sinks.prometheus_sink import PrometheusSink
else:  # hidden from type checkers, which would accept every misspelt name if they saw __getattr__
    from importlib import import_module

    def __getattr__(name: str) -> object:
        home = _HOMES.get(name)
        if home is None:
            raise AttributeError(f"module 'shardline.sinks' has no attribute {name!r}")
        value: object = getattr(import_module(f"shardline.adapters.sinks.{home}"), name)
        globals()[name] = value
        return value


__all__ = ["CloudWatchSink", "LogSink", "OpenTelemetrySink", "PrometheusSink"]

_HOMES = {
    "CloudWatchSink": "cloudwatch_sink",
    "LogSink": "log_sink",
    "OpenTelemetrySink": "otel_sink",
    "PrometheusSink": "prometheus_sink",
}


def __dir__() -> list[str]:
    return sorted(_HOMES)
