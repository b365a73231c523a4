"""Counts the events of producers and consumers in Prometheus metrics (extra ``prometheus``).

The metrics are plain objects of ``prometheus_client`` that change when an event arrives. So they also work in the
multiprocess mode of ``prometheus_client``, which does not support custom collectors, callbacks or removed labels.

Invariants:

- All sinks of a registry share its metrics, because each name can occur only once in a registry.
- A gauge combines the values of all producers or consumers of this process that have the same labels. A closed producer
  or consumer contributes nothing. In multiprocess mode, ``prometheus_client`` combines the processes in the same way.
- A forked child starts with no contributions: the producers and consumers of its parent do not run in it.
"""

import os
import threading
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, cast, final
from weakref import WeakKeyDictionary

from shardline.adapters.sinks.metric_table import (
    CONSUMER_METRICS,
    METRICS,
    PRODUCER_METRICS,
    Change,
    Combine,
    Meter,
    Metric,
    combined,
)
from shardline.errors import UsageError
from shardline.events import Event, EventSource

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

    _Collector: TypeAlias = Counter | Gauge | Histogram

_NAMESPACE: Final = "shardline"
_BUCKETS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
_MODES: Final[dict[Combine, Literal["livesum", "livemax", "livemin"]]] = {
    "sum": "livesum",
    "max": "livemax",
    "min": "livemin",
}

_shared: "WeakKeyDictionary[CollectorRegistry, _Metrics]" = WeakKeyDictionary()
_shared_lock: Final = threading.Lock()


@final
class PrometheusSink:
    """A sink that counts events in Prometheus metrics: ``Producer("orders", sinks=[PrometheusSink()])``.

    One sink can serve any number of producers and consumers. Several sinks of one registry share its metrics.

    Args:
        registry: where the metrics are registered. ``None`` means the default registry of ``prometheus_client``.
        by_shard: add the label ``shard_id`` to throughput and lag. This creates one time series per shard and metric.

    Raises:
        UsageError: ``prometheus_client`` is not installed, or the registry has other metrics with these names.
    """

    def __init__(self, registry: "CollectorRegistry | None" = None, *, by_shard: bool = False) -> None:
        try:
            from prometheus_client import REGISTRY  # noqa: PLC0415 - an extra
        except ImportError:
            message = "PrometheusSink needs an extra: pip install 'shardline[prometheus]'"
            raise UsageError(message) from None
        if not isinstance(by_shard, bool):
            raise UsageError(f"by_shard must be True or False, not {by_shard!r}")
        self.registry: Final[CollectorRegistry] = REGISTRY if registry is None else registry
        """The registry that contains the metrics."""
        self._metrics = _metrics_of(self.registry, by_shard=by_shard)

    def open(self, source: EventSource) -> "_OpenPrometheusSink":
        """Return the sink of one producer or consumer. ``Producer`` and ``Consumer`` call this when they start."""
        return _OpenPrometheusSink(self._metrics, source)


@final
class _OpenPrometheusSink:
    """Counts the events of one producer or consumer."""

    def __init__(self, metrics: "_Metrics", source: EventSource) -> None:
        self._metrics = metrics
        is_producer = source.kind == "producer"
        self._base = (source.stream,) if is_producer else (source.stream, source.group or "")
        self._meter = Meter(by_shard=metrics.by_shard)
        self._children: dict[tuple[str, tuple[str, ...], str], Any] = {}
        metrics.forget_parent()
        own = PRODUCER_METRICS if is_producer else CONSUMER_METRICS
        for change in self._meter.first_values(own):
            self._apply(change)
        for metric in own:
            if metric.kind == "histogram" and not metric.labels:  # the histogram exists, empty, before the first event
                metrics.child(metric, self._base, (), "")

    def __call__(self, event: Event, /) -> None:
        for change in self._meter.changes(event):
            self._apply(change)

    def close(self) -> None:
        """Withdraw this source's contributions to the gauges. The counters stay."""
        self._metrics.withdraw(self)

    def _apply(self, change: Change) -> None:
        metric, value, labels, shard_id = change
        if not (self._metrics.by_shard and metric.has_shards):
            shard_id = ""
        key = (metric.name, labels, shard_id)
        child: Any = self._children.get(key)
        if child is None:
            child = self._children[key] = self._metrics.child(metric, self._base, labels, shard_id)
        if metric.kind == "counter":
            child.inc(value)
        elif metric.kind == "histogram":
            child.observe(value)
        else:
            child.contribute(self, value)


@final
class _SharedGauge:
    """A gauge with fixed labels, to which several producers or consumers contribute."""

    def __init__(self, metric: Metric, gauge: "Gauge") -> None:
        self._metric = metric
        self._gauge = gauge
        self._lock = threading.Lock()
        self._contributions: dict[object, float] = {}

    def contribute(self, source: object, value: float) -> None:
        with self._lock:
            self._contributions[source] = value
            self._update()

    def withdraw(self, source: object) -> None:
        with self._lock:
            if self._contributions.pop(source, None) is not None:
                self._update()

    def forget(self) -> None:
        """Forget all contributions, in a forked child. Replace the lock, which a thread of the parent may hold."""
        self._lock = threading.Lock()
        self._contributions.clear()

    def _update(self) -> None:
        self._gauge.set(combined(self._metric, self._contributions.values()))


@final
class _Metrics:
    """All metrics of Shardline in one registry."""

    def __init__(self, registry: "CollectorRegistry", *, by_shard: bool) -> None:
        self.by_shard: Final = by_shard
        self._pid = os.getpid()
        self._gauges: dict[tuple[str, ...], _SharedGauge] = {}
        self._collectors: dict[str, _Collector] = {}
        try:
            for metric in METRICS:
                self._collectors[metric.name] = _collector(metric, registry, by_shard=by_shard)
        except ValueError as error:
            for collector in self._collectors.values():
                registry.unregister(collector)
            raise UsageError(f"the registry has other metrics with these names: {error}") from None

    def child(self, metric: Metric, base: tuple[str, ...], labels: tuple[str, ...], shard_id: str) -> object:
        """Return the time series of these labels: a counter, a histogram or a ``_SharedGauge``."""
        shard = (shard_id,) if self.by_shard and metric.has_shards else ()
        values = (*base, *labels, *shard)
        child = self._collectors[metric.name].labels(*values)
        if metric.kind != "gauge":
            return child
        with _shared_lock:
            key = (metric.name, *values)
            if key not in self._gauges:
                self._gauges[key] = _SharedGauge(metric, cast("Gauge", child))
            return self._gauges[key]

    def withdraw(self, source: object) -> None:
        with _shared_lock:
            gauges = list(self._gauges.values())
        for gauge in gauges:
            gauge.withdraw(source)

    def forget_parent(self) -> None:
        """Forget the contributions of the parent process, if this process has been forked since the last call."""
        if os.getpid() != self._pid:
            self._pid = os.getpid()
            for gauge in self._gauges.values():
                gauge.forget()


def _metrics_of(registry: "CollectorRegistry", *, by_shard: bool) -> _Metrics:
    with _shared_lock:
        metrics = _shared.get(registry)
        if metrics is None:
            metrics = _shared[registry] = _Metrics(registry, by_shard=by_shard)
    if metrics.by_shard is not by_shard:
        message = f"this registry has a PrometheusSink with by_shard={metrics.by_shard}: use the same value, "
        raise UsageError(f"{message}or another registry")
    return metrics


def label_names(metric: Metric, *, by_shard: bool) -> tuple[str, ...]:
    """Return the names of a metric's labels, in order."""
    base = ("stream",) if metric.name.startswith("producer_") else ("stream", "group")
    return (*base, *metric.labels, *(("shard_id",) if by_shard and metric.has_shards else ()))


def full_name(metric: Metric) -> str:
    """Return the name that Prometheus shows. A histogram has further names with suffixes."""
    return f"{_NAMESPACE}_{metric.name}{'_total' if metric.kind == 'counter' else ''}"


def _collector(metric: Metric, registry: "CollectorRegistry", *, by_shard: bool) -> "_Collector":
    from prometheus_client import Counter, Gauge, Histogram  # noqa: PLC0415 - an extra

    name, labels = f"{_NAMESPACE}_{metric.name}", label_names(metric, by_shard=by_shard)
    if metric.kind == "counter":
        return Counter(name, metric.help, labels, registry=registry)
    if metric.kind == "histogram":
        return Histogram(name, metric.help, labels, registry=registry, buckets=_BUCKETS)
    return Gauge(name, metric.help, labels, registry=registry, multiprocess_mode=_MODES[metric.combine])
