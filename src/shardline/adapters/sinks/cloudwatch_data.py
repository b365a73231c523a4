"""Adds up the samples of a period, and writes them in the formats of CloudWatch: EMF lines or PutMetricData bodies.

Invariants:

- Sums are exact. Other values are rounded to two digits, so that a period contains few different values. CloudWatch
  derives averages and percentiles from these values.
- An EMF line and a request stay within the documented limits: 100 values per metric and 100 metrics per line; 150
  values per metric, 500 metrics and 400 KB per request. Larger amounts are split over several lines or requests.
- An EMF line cannot say how many times a value occurred. If a metric has more than 100 values in a period, the line
  contains 100 values that are spread evenly over the sorted values.
"""

import threading
from collections import Counter
from collections.abc import Iterable, Iterator
from math import isfinite
from typing import Any, Final, NamedTuple, final

import msgspec

from shardline.adapters.sinks.cloudwatch_names import Dimensions, Sample, Unit

_EMF_VALUES_MAX: Final = 100
_EMF_METRICS_MAX: Final = 100
_REQUEST_VALUES_MAX: Final = 150
_REQUEST_METRICS_MAX: Final = 500
_REQUEST_BYTES_MAX: Final = 400_000
_KEYS_MAX: Final = 5_000  # different metrics in a period; the samples of further metrics are dropped and counted
_MINUTE: Final = 60.0

_encode: Final = msgspec.json.Encoder().encode


@final
class MetricKey(NamedTuple):
    """The identity of a metric: its name with its namespace, dimensions and unit."""

    namespace: str
    dimensions: Dimensions
    name: str
    unit: Unit


@final
class Period(NamedTuple):
    """The samples of one period, counted by value."""

    sums: dict[MetricKey, float]
    values: dict[MetricKey, Counter[float]]
    """How many times each rounded value occurred."""
    dropped: int
    """How many samples were dropped because there were too many different metrics."""

    @property
    def is_empty(self) -> bool:
        return not self.sums and not self.values


@final
class Accumulator:
    """Collects samples from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._period = Period({}, {}, 0)

    def add(self, namespace: str, samples: Iterable[Sample]) -> None:
        """Add samples to the current period."""
        with self._lock:
            sums, values, _ = self._period
            for name, unit, value, dimensions, times, is_sum in samples:
                key = MetricKey(namespace, dimensions, name, unit)
                is_full = len(sums) + len(values) >= _KEYS_MAX and key not in sums and key not in values
                if is_full or not isfinite(value):
                    self._period = self._period._replace(dropped=self._period.dropped + 1)
                elif is_sum:
                    sums[key] = sums.get(key, 0.0) + value * times
                else:
                    values.setdefault(key, Counter())[rounded(value)] += times

    def take(self) -> Period:
        """Return the samples that have been added since the last call, and begin a new period."""
        with self._lock:
            period, self._period = self._period, Period({}, {}, 0)
        return period


def rounded(value: float) -> float:
    """Return a value with two significant digits."""
    return float(f"{value:.2g}")


# ---- EMF


def emf_lines(period: Period, at: float) -> Iterator[str]:
    """Write a period as lines of the embedded metric format (EMF).

    Args:
        period: the data.
        at: the time of the data, in seconds since 1970.
    """
    documents: dict[tuple[str, Dimensions], list[tuple[MetricKey, float | list[float]]]] = {}
    for key, total in period.sums.items():
        documents.setdefault((key.namespace, key.dimensions), []).append((key, total))
    for key, values in period.values.items():
        documents.setdefault((key.namespace, key.dimensions), []).append((key, spread(values)))
    for (namespace, dimensions), metrics in documents.items():
        for start in range(0, len(metrics), _EMF_METRICS_MAX):
            chunk = metrics[start : start + _EMF_METRICS_MAX]
            yield _encode(_emf_document(namespace, dimensions, chunk, at)).decode()


def _emf_document(
    namespace: str, dimensions: Dimensions, metrics: list[tuple[MetricKey, float | list[float]]], at: float
) -> dict[str, Any]:
    directive = {
        "Namespace": namespace,
        "Dimensions": [[name for name, _ in dimensions]],
        "Metrics": [{"Name": key.name, "Unit": key.unit} for key, _ in metrics],
    }
    return {
        "_aws": {"Timestamp": int(at * 1000), "CloudWatchMetrics": [directive]},
        **dict(dimensions),
        **{key.name: value for key, value in metrics},
    }


def spread(values: Counter[float]) -> list[float]:
    """Return all values, each as many times as it occurred. If there are more than 100 values, return 100 of them,
    spread evenly.
    """
    total = values.total()
    size = min(total, _EMF_VALUES_MAX)
    wanted = [index * (total - 1) // max(1, size - 1) for index in range(size)]
    found: list[float] = []
    passed = 0
    for value, times in sorted(values.items()):
        passed += times
        while len(found) < size and wanted[len(found)] < passed:
            found.append(value)
    return found


# ---- PutMetricData


def request_bodies(period: Period, at: float, *, resolution: float) -> Iterator[bytes]:
    """Write a period as JSON bodies of PutMetricData.

    Args:
        period: the data.
        at: the time of the data, in seconds since 1970.
        resolution: how often data is sent, in seconds. If this is less than a minute, the data is sent as
            high-resolution metrics.
    """
    by_namespace: dict[str, list[bytes]] = {}
    storage = {} if resolution >= _MINUTE else {"StorageResolution": 1}
    for key, total in period.sums.items():
        datum = {**_datum(key, at), **storage, "Value": total}
        by_namespace.setdefault(key.namespace, []).append(_encode(datum))
    for key, values in period.values.items():
        pairs = sorted(values.items())
        for start in range(0, len(pairs), _REQUEST_VALUES_MAX):
            chunk = pairs[start : start + _REQUEST_VALUES_MAX]
            arrays = {"Values": [value for value, _ in chunk], "Counts": [float(times) for _, times in chunk]}
            by_namespace.setdefault(key.namespace, []).append(_encode({**_datum(key, at), **storage, **arrays}))
    for namespace, data in by_namespace.items():
        yield from _bodies(namespace, data)


def _datum(key: MetricKey, at: float) -> dict[str, Any]:
    return {
        "MetricName": key.name,
        "Dimensions": [{"Name": name, "Value": value} for name, value in key.dimensions],
        "Timestamp": at,
        "Unit": key.unit,
    }


def _bodies(namespace: str, data: list[bytes]) -> Iterator[bytes]:
    chunk: list[bytes] = []
    size = 0
    for datum in data:
        if chunk and (len(chunk) >= _REQUEST_METRICS_MAX or size + len(datum) > _REQUEST_BYTES_MAX):
            yield _body(namespace, chunk)
            chunk, size = [], 0
        chunk.append(datum)
        size += len(datum) + 1
    yield _body(namespace, chunk)


def _body(namespace: str, data: list[bytes]) -> bytes:
    return b'{"Namespace":%b,"MetricData":[%b]}' % (_encode(namespace), b",".join(data))
