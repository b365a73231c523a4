"""Reads the metrics that producers and consumers serve (``HealthServer`` with a ``PrometheusSink``).

Only a worker knows how far it has read, and only a producer knows which of its records were throttled. Neither fact is
in the lease store or in the stream. So the console asks the workers and producers, at the addresses of ``--metrics``.

Invariants:

- The console shows the lags that the workers measured, and computes no lag itself.
- Each address is asked at most once per ``INTERVAL``. An address that does not answer is a problem that the page shows;
  the metrics of the other addresses are still used.
- An address is shown without its user, password and query.
"""

import asyncio
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, final
from urllib.parse import urlsplit

import aiohttp

INTERVAL: Final = 2.0
_TIMEOUT: Final = 2.0
_SIZE_MAX: Final = 16 * 1024 * 1024
_NAMESPACE: Final = "shardline_"
_LINE: Final = re.compile(r"(\w+)(?:\{(.*)\})? (\S+)")
_LABEL: Final = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_ESCAPES: Final = {r"\\": "\\", r"\"": '"', r"\n": "\n"}
_THROTTLED: Final = "ProvisionedThroughputExceededException"


@final
class Sample(NamedTuple):
    """One value of a metric."""

    name: str
    labels: Mapping[str, str]
    value: float


def parse_metrics(text: str) -> Iterator[Sample]:
    """Yield Shardline's own metrics from a page in the text format of Prometheus."""
    for line in text.splitlines():
        found = _LINE.match(line) if line.startswith(_NAMESPACE) else None
        if found is None:
            continue
        labels = {
            name: re.sub(r"\\.", lambda escape: _ESCAPES.get(escape[0], escape[0]), value)
            for name, value in _LABEL.findall(found[2] or "")
        }
        try:
            yield Sample(found[1].removeprefix(_NAMESPACE), labels, float(found[3]))
        except ValueError:
            continue


def shown_address(url: str) -> str:
    """Return an address without its user, password and query."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def check_metrics_url(url: str) -> str:
    """Return the address of a page of metrics. If ``url`` has no path, the path is ``/metrics``.

    Raises:
        ValueError: ``url`` is not an http address.
    """
    parts = urlsplit(url)
    if parts.scheme not in {"http", "https"} or not parts.hostname or parts.port == 0:  # ``port`` may also raise
        raise ValueError(f"an address of metrics is written as http://host:port/metrics, not {shown_address(url)!r}")
    return url if parts.path.strip("/") else f"{parts.scheme}://{parts.netloc}/metrics"


@final
class FleetMetrics:
    """The metrics of all addresses, as last read."""

    def __init__(self, urls: Sequence[str]) -> None:
        self._urls = [check_metrics_url(url) for url in urls]
        self._samples: list[Sample] = []
        self._read_at = float("-inf")
        self._reading = asyncio.Lock()
        self.problems: list[str] = []
        """The errors of the addresses that did not answer in the last round."""

    @property
    def is_known(self) -> bool:
        """Whether there is any address to ask for metrics."""
        return bool(self._urls)

    async def refresh(self) -> None:
        """Ask every address for its metrics, unless they were all asked a moment ago."""
        async with self._reading:
            now = asyncio.get_running_loop().time()
            if not self._urls or now < self._read_at + INTERVAL:
                return
            timeout = aiohttp.ClientTimeout(total=_TIMEOUT)
            async with aiohttp.ClientSession(timeout=timeout) as session:
                found = await asyncio.gather(*(_read(session, url) for url in self._urls))
            self._samples = [sample for answer in found if not isinstance(answer, str) for sample in answer]
            self.problems = [answer for answer in found if isinstance(answer, str)]
            self._read_at = asyncio.get_running_loop().time()

    def group_json(self, group: str, stream: str) -> dict[str, Any]:
        """Return what the workers of a group report. A lag that is not reported by shard is listed under the shard
        ``""``.
        """
        own = [
            sample
            for sample in self._samples
            if sample.labels.get("group") == group and sample.labels.get("stream") == stream
        ]
        return {
            "asked": len(self._urls),
            "reading_lag": _by_shard(own, "consumer_reading_lag_seconds"),
            "handling_lag": _by_shard(own, "consumer_handling_lag_seconds"),
            "dead_lettered": _total(own, "consumer_dead_lettered_records_total"),
            "dead_letter_failures": _total(own, "consumer_dead_letter_failures_total"),
            "problems": self.problems,
        }

    def throttled_records(self, stream: str) -> float | None:
        """Return how many records of a stream producers had to send again because they were throttled, in total."""
        own = [sample for sample in self._samples if sample.labels.get("stream") == stream]
        if not any(sample.name.startswith("producer_") for sample in own):
            return None
        return _total((sample for sample in own if sample.labels.get("code") == _THROTTLED), "producer_errors_total")


async def _read(session: aiohttp.ClientSession, url: str) -> list[Sample] | str:
    """Return the metrics at an address, or why they could not be read."""
    shown = shown_address(url)
    try:
        async with session.get(url, allow_redirects=False) as answer:
            content = await answer.content.read(_SIZE_MAX)
            if answer.status != 200:  # noqa: PLR2004 - OK
                return f"{shown} answered with the status {answer.status}"
            while chunk := await answer.content.read(_SIZE_MAX - len(content)):
                content += chunk
        return list(parse_metrics(content.decode(errors="replace")))
    except aiohttp.ClientConnectorError as error:  # the error's own text repeats the host, and adds "ssl:default"
        number = error.os_error.errno or 0  # a failed DNS lookup has a negative number that only its text explains
        return f"{shown} cannot be read: {os.strerror(number) if number > 0 else error.strerror}"
    except aiohttp.InvalidURL:  # the error's own text is the whole address, with the password
        return f"{shown} cannot be read: the address is not valid"
    except (TimeoutError, aiohttp.ClientError, OSError) as error:
        return f"{shown} cannot be read: {str(error) or 'it did not answer in time'}"


def _by_shard(samples: Iterable[Sample], name: str) -> dict[str, float]:
    """Return the highest value of each shard: a worker that lost the shard reports 0."""
    found: dict[str, float] = {}
    for sample in samples:
        if sample.name == name:
            shard_id = sample.labels.get("shard_id", "")
            found[shard_id] = max(sample.value, found.get(shard_id, 0.0))
    return found


def _total(samples: Iterable[Sample], name: str) -> float | None:
    values = [sample.value for sample in samples if sample.name == name]
    return sum(values) if values else None
