"""Sends metrics to CloudWatch: as EMF lines in a log, or by PutMetricData.

EMF lines need no API call and no permission: CloudWatch Logs extracts the metrics from them. EMF lines suit AWS Lambda,
ECS and EKS. PutMetricData suits every other machine that has AWS credentials.

Invariants:

- The thread of the sink only adds up numbers. A publisher thread writes or sends the sums once per period, so neither a
  slow or unreachable CloudWatch nor a blocked file delays anything.
- Data that CloudWatch did not accept because of a transient failure is kept and sent with the next period, up to
  ``_BACKLOG_MAX`` requests. Data that CloudWatch refuses is dropped. Failures and refusals are logged, at most once a
  minute.
- ``close`` and ``flush`` publish the data that has been collected, and wait for a limited time until it is published.
- The publisher thread ends when no producer or consumer is open and everything is published.
- A forked child starts empty, with its own publisher.
"""

import asyncio
import gzip
import logging
import os
import sys
import threading
import time
from collections import deque
from pathlib import Path
from typing import Any, Final, Literal, Protocol, TextIO, TypeAlias, final

from shardline.adapters.aws.aws_service import AwsService, AwsSettings, find_service, open_cloudwatch
from shardline.adapters.aws.endpoints import parse_endpoint
from shardline.adapters.http.http_settings import HttpSettings
from shardline.adapters.sinks.cloudwatch_data import Accumulator, Period, emf_lines, request_bodies
from shardline.adapters.sinks.cloudwatch_names import Names, Translation, translation
from shardline.core.error_codes import Failure
from shardline.errors import UsageError
from shardline.events import Event, EventSource
from shardline.model.credentials import Credentials

EmfTarget: TypeAlias = Literal["stdout"] | logging.Logger | TextIO | Path

_log: Final = logging.getLogger("shardline.cloudwatch")
_CONTENT_TYPE: Final = "application/x-amz-json-1.0"
_HTTP: Final = HttpSettings(connect_timeout=5.0, read_timeout=10.0, max_connections=1)
_BACKLOG_MAX: Final = 100  # requests
_CLOSE_WAIT: Final = 1.5  # seconds; a producer gives its sinks 2 s when it closes
_LOG_PERIOD: Final = 60.0
_PERIODS: Final = (1.0, 3_600.0)


@final
class CloudWatchSink:
    """A sink that sends metrics to CloudWatch: ``Producer("orders", sinks=[CloudWatchSink(to="stdout")])``.

    One sink can serve any number of producers and consumers.

    Args:
        to: ``"api"`` sends the metrics by PutMetricData. ``"stdout"``, a logger, an open text file or a path writes
            EMF lines. A logger must write the bare message, without a time or a level.
        names: ``"shardline"`` uses our own names. ``"kpl"`` uses the names of the Kinesis Producer Library, for
            producers only; ``"kcl"`` those of the Kinesis Client Library, for consumers only.
        namespace: the namespace of the metrics. ``None`` means ``Shardline``, ``KinesisProducerLibrary``
            or the group's name, depending on ``names``.
        period: the number of seconds whose data is added up before it is sent.
        by_shard: also split throughput and lag by shard. CloudWatch bills each metric.
        region: the region for PutMetricData. Without this and the following arguments, the ordinary AWS settings apply.
        endpoint_url: the URL to send the requests to.
        profile: a profile of the AWS configuration.
        session: a boto3 or botocore session.
        credentials: fixed credentials.

    Raises:
        UsageError: an argument is wrong.
    """

    def __init__(
        self,
        to: Literal["api"] | EmfTarget = "api",
        *,
        names: Names = "shardline",
        namespace: str | None = None,
        period: float = 60.0,
        by_shard: bool = False,
        region: str | None = None,
        endpoint_url: str | None = None,
        profile: str | None = None,
        session: Any = None,
        credentials: Credentials | None = None,
    ) -> None:
        if names not in ("shardline", "kpl", "kcl"):
            raise UsageError(f"names must be 'shardline', 'kpl' or 'kcl', not {names!r}")
        if namespace is not None and (not isinstance(namespace, str) or not 1 <= len(namespace) <= 255):  # noqa: PLR2004
            raise UsageError(f"namespace must be a text of 1 to 255 characters, not {namespace!r}")
        low, high = _PERIODS
        if isinstance(period, bool) or not isinstance(period, (int, float)) or not low <= period <= high:
            raise UsageError(f"period must be a number of seconds from {low:g} to {high:g}, not {period!r}")
        if not isinstance(by_shard, bool):
            raise UsageError(f"by_shard must be True or False, not {by_shard!r}")
        if endpoint_url is not None:
            parse_endpoint(endpoint_url)
        settings = AwsSettings(
            region=region,
            endpoint_url=endpoint_url,
            profile=profile,
            session=session,
            credentials=credentials,
            http=_HTTP,
        )
        if to != "api" and settings != AwsSettings(http=_HTTP):
            raise UsageError("region, endpoint_url, profile, session and credentials need to='api'")
        self._names: Final[Names] = names
        self._namespace = namespace
        self._by_shard = by_shard
        self._writer = None if to == "api" else _EmfWriter(to)
        self._settings = settings
        self._period = float(period)
        self._publisher = self._make_publisher()

    def open(self, source: EventSource) -> "_OpenCloudWatchSink":
        """Return the sink of one producer or consumer. ``Producer`` and ``Consumer`` call this when they start."""
        if self._publisher.pid != os.getpid():  # this is a forked child
            self._publisher = self._make_publisher()
        names = translation(self._names, source, by_shard=self._by_shard)
        namespace = self._namespace or ("" if names is None else names.namespace)
        return _OpenCloudWatchSink(self._publisher, namespace, names)

    def _make_publisher(self) -> "_Publisher":
        return _Publisher(self._writer or _ApiSender(self._settings, self._period), self._period)

    def flush(self, timeout: float = 5.0) -> bool:
        """Publish the metrics now, for example at the end of a Lambda invocation.

        Returns:
            Whether everything was published within ``timeout`` seconds.
        """
        return self._publisher.flush(timeout)


@final
class _OpenCloudWatchSink:
    """Counts the events of one producer or consumer."""

    def __init__(self, publisher: "_Publisher", namespace: str, names: Translation | None) -> None:
        self._publisher = publisher
        self._namespace = namespace
        self._names = names
        publisher.open()

    def __call__(self, event: Event, /) -> None:
        if self._names is not None:
            self._publisher.data.add(self._namespace, self._names.samples(event))

    def close(self) -> None:
        """Publish the remaining metrics, and wait for a limited time until they are published."""
        self._publisher.close()


class _Sender(Protocol):
    def send(self, period: Period, at: float) -> bool:
        """Write or send the data of a period. Return whether everything was accepted."""
        ...


@final
class _Publisher:
    """The thread that publishes the data once per period."""

    def __init__(self, sender: _Sender, period: float) -> None:
        self.data: Final = Accumulator()
        self.pid: Final = os.getpid()
        self._sender = sender
        self._period = period
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._changed = threading.Condition(self._lock)
        self._asked = 0  # number of flushes that were requested
        self._done = 0  # number of flushes that are complete
        self._succeeded = True
        self._logged_at = 0.0  # when a failure was last logged
        self._sources = 0  # number of open producers and consumers
        self._is_running = False  # whether the thread runs and will publish again

    def open(self) -> None:
        """Publish the data of one more producer or consumer."""
        with self._lock:
            self._sources += 1
            self._start()

    def close(self) -> None:
        """Publish the remaining data of a producer or consumer, and wait for a limited time until it is published."""
        with self._lock:
            self._sources -= 1
        self.flush(_CLOSE_WAIT)

    def flush(self, timeout: float) -> bool:
        """Publish the data. Return whether everything was published in time."""
        with self._changed:
            self._start()
            self._asked += 1
            number = self._asked
            self._wake.set()
            return self._changed.wait_for(lambda: self._done >= number, timeout) and self._succeeded

    def _start(self) -> None:
        """Start the thread if it is not running. The caller holds the lock."""
        if not self._is_running:
            threading.Thread(target=self._run, name="shardline CloudWatch publisher", daemon=True).start()
            self._is_running = True

    def _run(self) -> None:
        goes_on = True  # not ``_is_running``: by the time that this thread ends, another one may run
        while goes_on:
            self._wake.wait(self._period)
            self._wake.clear()
            with self._lock:
                asked = self._asked
            succeeded = self._publish()
            with self._changed:
                self._done, self._succeeded = asked, succeeded
                self._is_running = goes_on = self._sources > 0 or self._asked > asked or not succeeded
                self._changed.notify_all()

    def _publish(self) -> bool:
        now = time.time()
        try:
            period = self.data.take()
            if period.dropped:
                _log.warning("dropped %d samples: there were too many different metrics", period.dropped)
            return self._sender.send(period, now)
        except Exception:  # noqa: BLE001 - whatever a user's file or logger raises
            if now - self._logged_at >= _LOG_PERIOD:
                self._logged_at = now
                _log.exception("metrics could not be published")
            return False


@final
class _EmfWriter:
    """Writes the data of each period as EMF lines."""

    def __init__(self, target: EmfTarget) -> None:
        if not (target == "stdout" or isinstance(target, logging.Logger | Path) or hasattr(target, "write")):
            kinds = "'api', 'stdout', a logger, an open text file or a pathlib.Path"
            raise UsageError(f"to must be {kinds}, not {target!r}")
        self._target = target

    def send(self, period: Period, at: float) -> bool:
        target = self._target
        lines = list(emf_lines(period, at))
        if not lines:
            return True
        if isinstance(target, logging.Logger):
            for line in lines:
                target.info("%s", line)
        elif isinstance(target, Path):
            with target.open("a", encoding="utf-8") as file:
                file.write("".join(f"{line}\n" for line in lines))
        else:
            output = sys.stdout if isinstance(target, str) else target
            output.write("".join(f"{line}\n" for line in lines))
            output.flush()
        return True


@final
class _ApiSender:
    """Sends data by PutMetricData, from the publisher's thread."""

    def __init__(self, settings: AwsSettings, resolution: float) -> None:
        self._settings = settings
        self._resolution = resolution
        self._service: AwsService | None = None
        self._backlog: deque[bytes] = deque()
        self._logged_at = 0.0

    def send(self, period: Period, at: float) -> bool:
        bodies = request_bodies(period, at, resolution=self._resolution)
        self._backlog += (gzip.compress(body, 6, mtime=0) for body in bodies)
        dropped = len(self._backlog) - _BACKLOG_MAX
        for _ in range(dropped):
            self._backlog.popleft()
        if dropped > 0:
            self._log_failure(at, "dropped the oldest metrics: CloudWatch has not taken any for a long time")
        return not self._backlog or asyncio.run(self._send_backlog(at))

    async def _send_backlog(self, at: float) -> bool:
        try:
            if self._service is None:
                self._service = find_service("cloudwatch", self._settings)
        except UsageError as error:
            self._log_failure(at, f"metrics cannot be sent: {error}")
            return False
        http = open_cloudwatch(self._service, self._settings.http, "shardline", time.time)
        is_complete = True
        try:
            while self._backlog:
                answer = await http.post(
                    "PutMetricData", _CONTENT_TYPE, self._backlog[0], {}, None, content_encoding="gzip"
                )
                if isinstance(answer, Failure):
                    is_complete = False
                    then = "will be sent again" if answer.retryable else "are dropped"
                    self._log_failure(at, f"CloudWatch did not take metrics, which {then}: {_shown(answer)}")
                    if answer.retryable:
                        break
                self._backlog.popleft()
        finally:
            await http.close()
        return is_complete

    def _log_failure(self, at: float, message: str) -> None:
        if at - self._logged_at >= _LOG_PERIOD:
            self._logged_at = at
            _log.warning("%s", message)


def _shown(failure: Failure) -> str:
    return f"{failure.code}: {failure.message}"
