"""Who is told of what a consumer does?

Events go to the log, in words and rate-limited, and to the sink that the user gave.

Invariants:

- CR1: a sink that raises harms nothing (``StormLog``).
- CR2: what can come in storms (failures of reads, of the store, of listings, of handlers) makes a few lines
  (``StormLog``). What means that records may be missing is always logged, at ERROR.
- CR3: nothing secret: no data, no keys. What a handler raised comes without the words of its records
  (``handler_errors``).
- CR4: what ``close`` itself cuts short is no failure of the store or the service, and is told to nobody.
"""

import logging
from collections.abc import Callable, Sequence
from typing import Final, TypeAlias, final

from shardline.aio.storm_log import StormLog
from shardline.core.clock import NEVER
from shardline.core.consumer import events as told
from shardline.core.consumer.store_health import StoreTrouble, trouble_of
from shardline.core.failures import Failure, FailureKind

ConsumerSink: TypeAlias = Callable[[told.Event], object]
"""Takes the events of a consumer: see ``shardline.core.consumer.events``."""

CLOSED: Final = Failure(FailureKind.TRANSIENT, "Cancelled", "the consumer was closed during the request")
"""What became of a request that ``close`` cut short: nothing to complain of (CR4)."""

_log: Final = logging.getLogger("shardline.consumer")

_STORE_FAILED: Final = {
    StoreTrouble.UNREACHABLE: ("the lease store failed; reading goes on until the leases lapse", logging.WARNING),
    StoreTrouble.GONE: (
        "the lease store cannot be used; the consumer ends unless it is back within a lease duration",
        logging.ERROR,
    ),
    StoreTrouble.REFUSED: (
        "the lease store denies access; the consumer ends unless it can be used again within store_patience",
        logging.ERROR,
    ),
}


@final
class ConsumerReporter:
    """Logs what a consumer emits, and hands it on."""

    def __init__(self, name: str, sink: ConsumerSink | None, clock: Callable[[], float]) -> None:
        self.name = name
        self._sink = sink
        self._storms = StormLog(_log, name, "reading goes on", clock)

    def report(self, events: Sequence[told.Event]) -> None:
        for event in events:
            if getattr(event, "failure", None) is CLOSED:
                _log.debug("%s: %s", self.name, CLOSED.message)
                continue
            self._log_event(event)
            self._storms.hand_on(self._sink, event)
        self._storms.log_due()

    def log_due(self) -> None:
        """What was counted, and was not logged lately."""
        self._storms.log_due()

    def log_rest(self) -> None:
        """What was counted and not logged yet."""
        self._storms.log_rest()

    def _log_event(self, event: told.Event) -> None:
        name = self.name
        match event:
            case told.LeaseGained():
                _log.info("%s: %s is ours, read from %s", name, event.shard_id, event.start)
            case told.LeaseReleased(shard_id, finished):
                _log.info("%s: %s %s", name, shard_id, "is finished" if finished else "was let go")
            case told.LeaseLost(shard_id, why):
                _log.warning("%s: %s was lost: %s", name, shard_id, why)
            case told.HandOverAsked(shard_id, by):
                _log.info("%s: %s asks for %s", name, by, shard_id)
            case told.HandOverOverdue(shard_id):
                _log.warning("%s: %s is handed over, and its handler was not done: it is cancelled", name, shard_id)
            case told.ReadFailed():
                final_word = " and is not tried again" if event.retry_at == NEVER else ""
                what = f"{event.operation} of {event.shard_id} failed{final_word}"
                self._storms.count(what, event.failure.code, event.failure.message)
            case told.StoreFailed(failure):
                what, level = _STORE_FAILED[trouble_of(failure)]
                self._storms.count(what, *failure[1:3], level=level)
            case told.StoreRecovered(failures):
                _log.warning("%s: the lease store answers again, after %d failures", name, failures)
            case told.ListingFailed(operation, failure):
                self._storms.count(f"{operation} failed", failure.code, failure.message)
            case _:
                self._log_loud(event)

    def _count_failure(self, event: told.HandlingEvent) -> None:
        """Handlers fail alike: their failures share lines. One of the records is named as an example."""
        level = logging.ERROR
        if isinstance(event, told.HandlerRetried):
            level, what = logging.WARNING, "the handler failed; retrying %d records"
        elif isinstance(event, told.RecordsDeadLettered):
            what = "the handler failed for good; wrote %d records as dead letters"
        elif isinstance(event, told.HandlingStopped):
            what = "the handler failed for good; stopping the run, %d records will come again"
        elif event.retry_at == NEVER:
            what = "dead letters cannot be written; stopping the run, %d records will come again"
        else:
            level, what = logging.WARNING, "could not write %d records as dead letters; trying again"
        times = "once" if event.attempts == 1 else f"{event.attempts} times"
        record = f"{event.sequence_number}/{event.sub_sequence} of {event.shard_id}"
        example = f"at {event.place}; last: record {record}, tried {times}"
        self._storms.count(what, event.error_type, event.message, event.records, level=level, example=example)

    def _log_loud(self, event: told.Event) -> None:
        name = self.name
        match event:
            case told.RecordsTrimmed(shard_id, why):
                _log.error(
                    "%s: retention may have removed records of %s before they were read: %s", name, shard_id, why
                )
            case told.ShardTrimmed(shard_id):
                _log.error(
                    "%s: %s went out of retention before it was finished: what was unread of it is gone", name, shard_id
                )
            case told.PositionLost():
                _log.error(
                    "%s: the service refuses to read %s from %s (%s: %s): it is read from TRIM_HORIZON",
                    name,
                    event.shard_id,
                    event.position,
                    event.failure.code,
                    event.failure.message,
                )
            case told.ProgressLost(shards):
                _log.error(
                    "%s: progress was lost: the lease store came back empty, without the checkpoints of %s; "
                    "the group begins again at its start position",
                    name,
                    "1 shard" if shards == 1 else f"{shards} shards",
                )
            case told.TooManyUnacknowledged(shard_id, count):
                _log.warning(
                    "%s: %d records of %s are not acknowledged: no more are handed out until some are "
                    "(max_unacknowledged)",
                    name,
                    count,
                    shard_id,
                )
            case told.StreamMissing(failure):
                _log.error(
                    "%s: the stream is missing (%s: %s); the consumer waits until it is re-created",
                    name,
                    failure.code,
                    failure.message,
                )
            case told.StreamRecreated(why):
                _log.error("%s: the stream was deleted and made anew: %s", name, why)
            case told.ConsumerFailed(operation, failure):
                _log.error("%s: %s failed for good: %s: %s", name, operation, failure.code, failure.message)
            case told.Stalled() | told.WorkerIdShared():
                self._log_process(event)
            case _:
                self._log_handling(event)

    def _log_handling(self, event: told.Event) -> None:
        name = self.name
        match event:
            case told.HandlerStuck():
                _log.warning(
                    "%s: the handler of %s has had record %s/%s for %.1f s: it is stuck, or very slow",
                    name,
                    event.shard_id,
                    event.sequence_number,
                    event.sub_sequence,
                    event.seconds,
                )
            case told.HandlerRecovered(shard_id, seconds):
                _log.warning("%s: the handler of %s goes on, after %.1f s", name, shard_id, seconds)
            case told.HandlerRetried() | told.RecordsDeadLettered() | told.DeadLetterFailed() | told.HandlingStopped():
                self._count_failure(event)
            case _:
                return

    def _log_process(self, event: told.Stalled | told.WorkerIdShared) -> None:
        """What is wrong with this process, or with how it was started."""
        if isinstance(event, told.Stalled):
            _log.warning(
                "%s: the event loop was blocked, or the machine suspended, for %.1f s: leases are in danger",
                self.name,
                event.seconds,
            )
        else:
            _log.error(
                "%s: another live process uses the worker_id %r and holds %s: neither takes what the other holds; "
                "give each process a worker_id of its own, or set none",
                self.name,
                event.worker_id,
                event.shard_id,
            )
