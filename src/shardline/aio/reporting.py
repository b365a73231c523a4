"""Logs the events of a producer or consumer and passes them to its sinks.

Invariants:

- An exception in a hook has no effect other than a log line, at most once a minute.
- Failures with the same (what, code, message) are logged once per period, with a count, and with an example if there is
  one. If there are too many distinct failures, the rest share one line.
- No secrets are logged: no data and no keys. Exceptions of a handler are logged without the contents of its records
  (``handler_errors``).
- Events that mean that records may be missing are always logged, at ERROR.
- A request that ``close`` itself cancelled is not a failure of the store or the service, and is not reported.
- The ``extra`` of every line contains the stream, the group, the worker, the shard and the code. Values that do not
  apply are ``None``.
"""

import logging
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, TypeAlias, final

from shardline.adapters.sinks.log_context import log_context, shard_and_code
from shardline.aio.sink_threads import SinkThreads
from shardline.aio.stream_sink import OfStream, StreamSink
from shardline.core import producer_events
from shardline.core.clock import NEVER
from shardline.core.consumer import consumer_events
from shardline.core.consumer.hash_coverage import CoverageEvent, percentage_of
from shardline.core.consumer.store_outages import StoreTrouble, trouble_of
from shardline.core.error_codes import Failure, FailureKind
from shardline.events import EventSource

CLOSED: Final = Failure(FailureKind.TRANSIENT, "Cancelled", "the consumer was closed during the request")
"""The outcome of a request that ``close`` cancelled. It is not reported."""

_Line: TypeAlias = tuple[int, str]  # level and text

_PERIOD: Final = 10.0  # seconds in which the same failure is logged once
_USER_ERROR_PERIOD: Final = 60.0
_DISTINCT_MAX: Final = 100  # different failures that are remembered in a period

_STORE_FAILED: Final = {
    StoreTrouble.UNREACHABLE: ("the lease store failed; reading continues until the leases lapse", logging.WARNING),
    StoreTrouble.GONE: (
        "the lease store cannot be used; the consumer stops unless the store is back within a lease duration",
        logging.ERROR,
    ),
    StoreTrouble.REFUSED: (
        "the lease store denies access; the consumer stops unless access is restored within store_patience",
        logging.ERROR,
    ),
}


class _Failures(NamedTuple):
    """The key under which failures share a log line. ``what`` may contain a placeholder for a count: ``%d records``."""

    level: int
    what: str
    code: str
    message: str


@final
class RateLimitedLog:
    """The log of one producer or consumer, which counts equal failures.

    Args:
        log: the logger.
        name: the beginning of each line.
        source: the producer or consumer.
        consequence: the end of a line about an exception in user code.
        clock: returns the current time.
    """

    def __init__(
        self, log: logging.Logger, name: str, source: EventSource, consequence: str, clock: Callable[[], float]
    ) -> None:
        self._log = log
        self._name = name
        self._source = source
        self._consequence = consequence
        self._clock = clock
        self._counts: dict[_Failures, int] = {}
        self._examples: dict[_Failures, tuple[str, str | None]] = {}  # the last example of each failure, and its shard
        self._logged_at: dict[_Failures, float] = {}
        self._user_errors_logged_at: dict[str, float] = {}

    def write(self, line: _Line | None, shard_id: str | None = None, code: str | None = None) -> None:
        """Log a line immediately, without counting it."""
        if line is not None:
            extra = log_context(self._source, shard_id, code)
            self._log.log(line[0], "%s: %s", self._name, line[1], extra=extra)

    def count(
        self,
        what: str,
        code: str,
        message: str,
        times: int = 1,
        *,
        level: int = logging.WARNING,
        example: str = "",
        shard_id: str | None = None,
    ) -> None:
        """Count a failure, which ``log_due`` logs with the last ``example`` and the last ``shard_id``."""
        key = _Failures(level, what, code, message)
        if key not in self._counts and key not in self._logged_at and len(self._logged_at) >= _DISTINCT_MAX:
            now = self._clock()
            self._logged_at = {old: at for old, at in self._logged_at.items() if now - at < _PERIOD}
            if len(self._logged_at) >= _DISTINCT_MAX:
                key = _Failures(level, what, "and others", f"more than {_DISTINCT_MAX} different failures")
        self._counts[key] = self._counts.get(key, 0) + times
        self._examples[key] = example, shard_id

    def log_due(self) -> None:
        """Log the counted failures that were not logged within the period."""
        if self._counts:
            now = self._clock()
            self._write([key for key in self._counts if now - self._logged_at.get(key, -_PERIOD) >= _PERIOD], now)

    def log_rest(self) -> None:
        """Log every counted failure that is not logged yet."""
        self._write(list(self._counts), self._clock())

    def log_user_error(self, what: str, error: BaseException) -> None:
        """Log an exception in user code, which is not reported elsewhere."""
        now = self._clock()
        if now - self._user_errors_logged_at.get(what, -_USER_ERROR_PERIOD) >= _USER_ERROR_PERIOD:
            self._user_errors_logged_at[what] = now
            extra = log_context(self._source)
            self._log.error("%s: %s failed; %s", self._name, what, self._consequence, exc_info=error, extra=extra)

    def _write(self, keys: list[_Failures], now: float) -> None:
        for key in keys:
            times = self._counts.pop(key)
            example, shard_id = self._examples.pop(key)
            self._logged_at[key] = now
            extra = log_context(self._source, shard_id, key.code)
            why = ": ".join(filter(None, (key.code, key.message))) + (f" ({example})" if example else "")
            if "%d" in key.what:
                what = key.what.replace("%d records", "%d record") if times == 1 else key.what
                self._log.log(key.level, f"%s: {what}: %s", self._name, times, why, extra=extra)
            else:
                what = key.what if times == 1 else f"{key.what} ({times} times)"
                self._log.log(key.level, "%s: %s: %s", self._name, what, why, extra=extra)


@final
class ProducerReporter:
    """Logs the events of a producer and passes them to the sinks."""

    def __init__(self, stream: str, source: EventSource, sinks: Sequence[object], clock: Callable[[], float]) -> None:
        consequence = "delivery continues"
        self.sinks = SinkThreads(sinks, source, name=stream, consequence=consequence)
        self._log = RateLimitedLog(logging.getLogger("shardline.producer"), stream, source, consequence, clock)
        self.log_user_error = self._log.log_user_error
        self.log_rest = self._log.log_rest

    def report(self, events: list[producer_events.Event]) -> None:
        for event in events:
            self._log_event(event)
        self._log.log_due()
        self.sinks.emit(events)

    def _log_event(self, event: producer_events.Event) -> None:
        match event:
            case producer_events.RecordsFailed():
                self._log.count("%d records given up", event.code, event.message, event.records, level=logging.ERROR)
            case producer_events.RecordsRetried():
                self._log.count(
                    "%d records sent again", event.code, event.message, event.records, shard_id=event.shard_id
                )
            case producer_events.ShardMapFailed(failure):
                what = "listing shards failed; aggregation is paused until it succeeds"
                self._log.count(what, failure.code, failure.message)
            case _:
                self._log.write(_producer_line(event), *shard_and_code(event))


def _producer_line(event: producer_events.Event) -> _Line | None:
    match event:
        case producer_events.ShardsChanged():
            changes = f"{len(event.opened)} new, {len(event.vanished)} gone"
            return logging.INFO, f"{event.open_shards} open shards ({changes})"
        case producer_events.StreamUnknown(failure):
            return logging.WARNING, (
                f"DescribeStreamSummary failed ({failure.code}: {failure.message}): assuming that a record may have "
                "1 MiB; set record_max_bytes if the stream has another limit"
            )
        case producer_events.DistributionChanged(auto):
            how = "by AUTO record distribution: nothing is aggregated" if auto else "by partition key"
            return logging.WARNING, f"the stream distributes records {how}"
        case producer_events.ProducerReconfigured(linger, records, size):
            return (
                logging.INFO,
                f"settings changed: linger {linger:g} s, {records:g} records/s and {size:g} bytes/s a shard",
            )
        case producer_events.ChannelsFound(channels):
            has = "1 channel, which reads" if channels == 1 else f"{channels} channels, which read"
            return logging.WARNING, (
                f'the stream has {has} records by schema: nothing is aggregated, except with aggregation="force"'
            )
        case producer_events.AggregationStopped(failure):
            return logging.WARNING, (
                "records are stored in unexpected shards, and DescribeStreamSummary failed "
                f"({failure.code}: {failure.message}): aggregation stops"
            )
        case _:
            return None


@final
class ConsumerReporter:
    """Logs the events of a consumer and passes them to the sinks."""

    def __init__(
        self,
        name: str,
        source: EventSource,
        sinks: Sequence[object],
        clock: Callable[[], float],
        *,
        first: "ConsumerReporter | None" = None,
    ) -> None:
        """``first`` is the reporter of the consumer's first stream, whose sinks the other streams share."""
        self.name = name
        consequence = "reading continues"
        if first is None:
            self.sinks = SinkThreads(sinks, source, name=name, consequence=consequence, adapt=StreamSink)
        else:
            self.sinks = first.sinks
        self._source = None if first is None else source
        self._log = RateLimitedLog(logging.getLogger("shardline.consumer"), name, source, consequence, clock)
        self.log_due = self._log.log_due
        self.log_rest = self._log.log_rest
        self.log_user_error = self._log.log_user_error

    def report(self, events: Sequence[consumer_events.Event]) -> None:
        reported: list[consumer_events.Event] = []
        for event in events:
            if getattr(event, "failure", None) is CLOSED:
                self._log.write((logging.DEBUG, CLOSED.message))
            else:
                self._log_event(event)
                reported.append(event)
        self._log.log_due()
        source = self._source
        self.sinks.emit(reported if source is None else [OfStream(source, event) for event in reported])

    def end_stream(self) -> None:
        """Close the sinks of this stream, because the consumer has given it up."""
        self.log_rest()
        if self._source is not None:
            self.sinks.emit([OfStream(self._source, None)])

    def _log_event(self, event: consumer_events.Event) -> None:
        match event:
            case consumer_events.ReadFailed(shard_id, operation, failure, retry_at):
                suffix = " and is not retried" if retry_at == NEVER else ""
                what = f"{operation} of {shard_id} failed{suffix}"
                self._log.count(what, failure.code, failure.message, shard_id=shard_id)
            case consumer_events.Subscribed(shard_id, position):
                self._log.write((logging.DEBUG, f"subscribed to {shard_id} at {position}"), shard_id)
            case consumer_events.SubscriptionEnded(shard_id, failure):
                why = "the service ended it" if failure is None else f"{failure.code}: {failure.message}"
                line = logging.DEBUG, f"the subscription to {shard_id} is over: {why}"
                self._log.write(line, *shard_and_code(event))
            case consumer_events.StoreFailed(failure):
                what, level = _STORE_FAILED[trouble_of(failure)]
                self._log.count(what, failure.code, failure.message, level=level)
            case consumer_events.ListingFailed(operation, failure):
                self._log.count(f"{operation} failed", failure.code, failure.message)
            case (
                consumer_events.HandlerRetried()
                | consumer_events.RecordsDeadLettered()
                | consumer_events.DeadLetterFailed()
                | consumer_events.HandlingStopped()
            ):
                self._count_failure(event)
            case consumer_events.HashRangesUncovered() | consumer_events.HashRangesCovered():
                self._log.write(_coverage_line(event))
            case _:
                self._log.write(
                    _lease_line(event) or _control_line(event) or _consumer_line(event), *shard_and_code(event)
                )

    def _count_failure(self, event: consumer_events.HandlingEvent) -> None:
        """Count a failure of a handler. Equal failures share a line, which names one of the records as an example."""
        level = logging.ERROR
        if isinstance(event, consumer_events.HandlerRetried):
            level, what = logging.WARNING, "the handler failed; retrying %d records"
        elif isinstance(event, consumer_events.RecordsDeadLettered):
            what = "the handler failed for good; wrote %d records as dead letters"
        elif isinstance(event, consumer_events.HandlingStopped):
            what = "the handler failed for good; stopping the run, %d records will come again"
        elif event.retry_at == NEVER:
            what = "dead letters cannot be written; stopping the run, %d records will come again"
        else:
            level, what = logging.WARNING, "could not write %d records as dead letters; retrying"
        times = "once" if event.attempts == 1 else f"{event.attempts} times"
        record = f"{event.sequence_number}/{event.sub_sequence} of {event.shard_id}"
        example = f"at {event.place}; last: record {record}, tried {times}"
        self._log.count(
            what, event.error_type, event.message, event.records, level=level, example=example, shard_id=event.shard_id
        )


def _lease_line(event: consumer_events.Event) -> _Line | None:
    """Return the line for an event about leases, or about the user's handlers."""
    match event:
        case consumer_events.LeaseGained():
            return logging.INFO, f"took the lease of {event.shard_id}, reading from {event.start}"
        case consumer_events.LeaseReleased(shard_id, finished):
            return logging.INFO, f"{shard_id} {'is finished' if finished else 'was released'}"
        case consumer_events.LeaseLost(shard_id, why):
            return logging.WARNING, f"the lease of {shard_id} was lost: {why}"
        case consumer_events.HandOverAsked(shard_id, by):
            return logging.INFO, f"{by} asks for {shard_id}"
        case consumer_events.HandOverOverdue(shard_id):
            return (
                logging.WARNING,
                f"{shard_id} is handed over before its handler has finished: the handler is cancelled",
            )
        case consumer_events.StoreRecovered(failures):
            return logging.WARNING, f"the lease store answers again, after {failures} failures"
        case consumer_events.TooManyUnacknowledged(shard_id, count):
            return logging.WARNING, (
                f"{count} records of {shard_id} are not acknowledged: acknowledge some to get more (max_unacknowledged)"
            )
        case consumer_events.HandlerStuck(shard_id, sequence_number, sub_sequence, _, seconds):
            return logging.WARNING, (
                f"the handler of {shard_id} has had record {sequence_number}/{sub_sequence} for {seconds:.1f} s: "
                "it is stuck, or very slow"
            )
        case consumer_events.HandlerRecovered(shard_id, seconds):
            return logging.WARNING, f"the handler of {shard_id} continues, after {seconds:.1f} s"
        case _:
            return None


def _control_line(event: consumer_events.Event) -> _Line | None:
    """Return the line for an event about a request from the user's code, or about ``dedup``."""
    match event:
        case consumer_events.ShardsPaused(shard_ids, is_all):
            return logging.INFO, f"paused: {_shards_named(shard_ids, is_all=is_all)}"
        case consumer_events.ShardSought(shard_id):
            return logging.WARNING, f"seek moved {shard_id} from {event.before} to {event.checkpoint.position}"
        case consumer_events.LeaseSurplus(shard_id):
            return (
                logging.INFO,
                f"releasing {shard_id}, because this worker has more leases than max_leases, or gives up the stream",
            )
        case consumer_events.MaxLeasesChanged(limit, before):
            return logging.INFO, f"max_leases changed from {before} to {limit}"
        case consumer_events.ShardsResumed(shard_ids):
            return logging.INFO, f"resumed: {_shards_named(shard_ids, is_all=False)}"
        case consumer_events.DedupWindowOverflowed(shard_id):
            return (
                logging.WARNING,
                f"{shard_id} has more producers or gaps than dedup can remember: some copies will be handed out",
            )
        case _:
            return None


def _shards_named(shard_ids: tuple[str, ...], *, is_all: bool) -> str:
    named = ", ".join(shard_ids) or "no shards"
    return f"{named}, and every shard that is gained later" if is_all else named


def _coverage_line(event: CoverageEvent) -> _Line:
    """Return the line for the result of an audit of the group's leases."""
    if isinstance(event, consumer_events.HashRangesCovered):
        return logging.INFO, f"the leases of the group cover all hash keys again, after {event.seconds:.0f} s"
    named = ", ".join(f"{found.start} to {found.end}" for found in event.ranges[:5])
    return logging.ERROR, (
        f"no lease of the group covers {percentage_of(event.ranges)} of the hash keys, so no worker reads the records "
        f"there: {named}"
    )


def _consumer_line(event: consumer_events.Event) -> _Line | None:
    """Return the line for an event about lost records, the stream, or this process."""
    match event:
        case consumer_events.RecordsTrimmed(shard_id, why):
            return logging.ERROR, f"retention may have removed records of {shard_id} before they were read: {why}"
        case consumer_events.ShardTrimmed(shard_id):
            return (
                logging.ERROR,
                f"the retention of {shard_id} ended before it was finished: its unread records are lost",
            )
        case consumer_events.PositionLost(shard_id, position, failure):
            return logging.ERROR, (
                f"the service refuses to read {shard_id} from {position} ({failure.code}: {failure.message}): "
                "reading restarts at TRIM_HORIZON"
            )
        case consumer_events.ProgressLost(shards):
            return logging.ERROR, (
                "progress was lost: the lease store came back empty, without the checkpoints of "
                f"{'1 shard' if shards == 1 else f'{shards} shards'}; the group begins again at its start position"
            )
        case consumer_events.StreamMissing(failure):
            why = f"{failure.code}: {failure.message}"
            return logging.ERROR, f"the stream is missing ({why}); the consumer waits until it is re-created"
        case consumer_events.StreamReplaced(why):
            return logging.ERROR, f"the stream was deleted and re-created: {why}"
        case consumer_events.ConsumerFailed(operation, failure):
            return logging.ERROR, f"{operation} failed for good: {failure.code}: {failure.message}"
        case consumer_events.Stalled(seconds):
            return logging.WARNING, (
                f"the event loop was blocked, or the machine suspended, for {seconds:.1f} s: leases may lapse"
            )
        case consumer_events.WorkerIdShared(shard_id, worker_id):
            return logging.ERROR, (
                f"another live process uses the worker_id {worker_id!r} and holds {shard_id}: neither takes the "
                "other's shards; give each process its own worker_id, or omit it"
            )
        case _:
            return None
