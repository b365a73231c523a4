"""Reads the stream's summary: the record limit, whether keys are ignored, and whether to aggregate.

The producer reads the stream's summary (DescribeStreamSummary) when it starts and when no map explains where entries
landed. Under AUTO record distribution, or if the stream has channels, it also reads the summary every minute.
Otherwise, a producer that aggregates reads the summary again with the first request after ``_REVISIT_INTERVAL``,
because there is no other sign of a stream's first channel.

Invariants:

- There is one request at a time, and each request is answered by exactly one ``handle_summary``. After a retryable
  failure, the request is repeated with a backoff of 1 s to 30 s. The same holds if the stream is missing, because the
  stream may be created. Other failures are final.
- Under AUTO record distribution the service ignores keys. Shards cannot be predicted (``may_predict`` is false), so
  records must not be aggregated, and landings are not judged by hash range. The same applies if the summary was
  requested because of unexplained landings and cannot be read.
- The channels of a stream read its records by schema. A stream with channels gets no aggregates, unless the settings
  force them.
- Under AUTO, and while there are channels, the summary is read every minute, because there is no other sign that
  records may be aggregated again.
- A re-created stream is recognised by its creation time. Its shards may have the old ids, but no fact about the old
  shards holds. After the stream has been missing, earlier summaries do not count until a new summary has been read
  (``is_current``).
- While summaries do not explain the landings, the pauses between two requests grow like the pauses between attempts,
  because after each request the waiting records are stored once more, where readers may drop them again.
"""

from typing import Final, final

from shardline.codec.shapes import StreamSummary
from shardline.core.backoff import Backoff, Chance
from shardline.core.clock import NEVER, Instant
from shardline.core.error_codes import Failure, FailureKind
from shardline.core.producer.producer_config import ProducerConfig
from shardline.core.producer_events import (
    AggregationStopped,
    ChannelsFound,
    DistributionChanged,
    Event,
    StreamUnknown,
)
from shardline.core.requests import DescribeStreamSummary
from shardline.model.limits import RECORD_DEFAULT_MAX_BYTES, RECORD_HIGHEST_MAX_BYTES
from shardline.model.stream import StreamRef

_AUTO: Final = "AUTO"
_DELETING: Final = "DELETING"
_RECHECK_INTERVAL: Final = 60.0  # seconds between two requests while AUTO or channels forbid aggregates
_REVISIT_INTERVAL: Final = 300.0  # seconds after which a producer that sends looks for the stream's first channel
_LIMIT_PAUSE: Final = 10.0  # the shortest time between two requests because of refused large records, in seconds
_UNEXPLAINED_MEMORY: Final = 60.0  # after this many seconds without unexplained landings, their backoff starts over


@final
class StreamFacts:
    """The facts about the stream that its summaries have shown so far."""

    def __init__(self, stream: StreamRef, config: ProducerConfig, rng: Chance) -> None:
        self._stream = stream
        self._fixed_max_bytes = config.record_max_bytes
        self._backoff = Backoff(1.0, 30.0, rng)
        self._unexplained_backoff = Backoff(config.retry_backoff, config.retry_backoff_max, rng)
        self._next_query_at: Instant = -NEVER
        self._wanted_at: Instant = 0.0
        self._in_flight = False
        self._has_summary = False
        self._limit_read_at: Instant = -NEVER
        self._revisit_at: Instant = NEVER
        self._created_at: float | None = None
        self.recreated = False
        """Whether the last summary showed that the stream was re-created."""
        self.is_current = True
        """Whether the last summary describes the stream that exists now, as far as we know."""
        self._is_outdated = False  # whether the request in flight was sent before ``reset``
        self.has_unexplained_landings = False
        """Whether no map explains where some entries landed, and the summary that may explain it has not been read yet.
        """
        self.answered = False
        """Whether any request has succeeded or failed since the start or the last ``reset``."""
        self.auto: bool = False
        """Whether the service chooses the shards (AUTO record distribution)."""
        self.may_predict = True
        """Whether hash keys decide the shards, as far as we know."""
        self.channels = 0
        """The number of channels of the stream, or 0 if the settings ignore channels."""
        self._heeds_channels = config.heeds_channels
        self.record_max_bytes = self._fixed_max_bytes or RECORD_HIGHEST_MAX_BYTES
        """The size of the largest record, data and key. Before the first summary, the highest limit of any stream."""
        self.events: list[Event] = []

    @property
    def headers_refusal(self) -> str | None:
        """Why the stream must not get headers, which only aggregates can hold, or ``None`` if headers are allowed."""
        if self.auto:
            return "headers are sent in aggregates, which readers may drop under AUTO record distribution"
        if not self.may_predict:
            return (
                "headers are sent in aggregates. Entries landed outside their ranges, and DescribeStreamSummary failed:"
                " the stream may be under AUTO record distribution, where readers may drop aggregates"
            )
        if self.channels:
            return (
                "headers are sent in aggregates, which the channels of the stream cannot read:"
                ' set aggregation="force" to send them anyway'
            )
        return None

    @property
    def may_aggregate(self) -> bool:
        """Whether the stream may get aggregates, as far as we know."""
        return self.may_predict and not self.channels

    @property
    def is_asking(self) -> bool:
        return self._in_flight or self._wanted_at != NEVER

    def query_again(self, now: Instant) -> None:
        """Request the summary, because no map explains where some entries landed."""
        self.has_unexplained_landings = True
        if now >= self._next_query_at + _UNEXPLAINED_MEMORY:
            self._unexplained_backoff.reset()
        # A backoff after a failure continues, but the request that is due every minute may be sent earlier.
        if not self.is_asking or self.auto or self.channels:
            self._wanted_at = min(self._wanted_at, max(now, self._next_query_at))

    def read_limit_again(self, now: Instant) -> None:
        """Request the summary, because a record was refused for its size: the stream's limit may have been lowered."""
        if self._has_summary and self._fixed_max_bytes is None and not self.is_asking:
            self._wanted_at = max(now, self._limit_read_at + _LIMIT_PAUSE)

    def note_sent(self, now: Instant) -> None:
        """Request the summary if the last one is old, because the stream may have its first channel by now.

        Called when records are sent, so an idle producer makes no requests. DescribeStreamSummary is limited to 20
        requests per second and account. The interval is long enough to stay below this limit even with a thousand
        producers.
        """
        if now >= self._revisit_at and not self.is_asking:
            self._wanted_at = now

    def reset(self, now: Instant) -> None:
        """Request the summary now, and do not rely on earlier summaries: the stream is missing or was re-created."""
        self.is_current = self.answered = self.has_unexplained_landings = False
        self._is_outdated = self._in_flight
        self._backoff.reset()
        self._wanted_at = now

    def poll_request(self, now: Instant) -> DescribeStreamSummary | None:
        if self._in_flight or now < self._wanted_at:
            return None
        self._in_flight = True
        return DescribeStreamSummary(self._stream)

    def handle_summary(self, answer: StreamSummary | Failure, now: Instant) -> bool:
        """Apply the answer to a request. Return whether ``may_predict`` changed."""
        assert self._in_flight
        self._in_flight = False
        if self._is_outdated:  # the answer may describe the stream before it was deleted
            self._is_outdated = False
            return False
        self.answered = True
        before = self.may_predict
        self.recreated = False
        if isinstance(answer, Failure):
            self._fail(answer, now)
        elif answer.status == _DELETING:
            self._wanted_at = now + self._backoff.next_delay()
        else:
            self.is_current = True
            self._backoff.reset()
            self._compare_age(answer)
            self._has_summary = True
            self._limit_read_at = now
            self.record_max_bytes = self._fixed_max_bytes or answer.max_record_bytes
            auto = answer.record_distribution == _AUTO
            self._note_explained(now, explained=auto or self.auto or self.recreated)
            if auto is not self.auto:
                self.auto = auto
                self.events.append(DistributionChanged(auto))
            self.may_predict = not auto
            self._note_channels(answer)
            self._wanted_at = now + _RECHECK_INTERVAL if auto or self.channels else NEVER
            self._revisit_at = now + _REVISIT_INTERVAL if self._heeds_channels else NEVER
        return self.may_predict is not before

    def _note_channels(self, answer: StreamSummary) -> None:
        channels = answer.channel_count if self._heeds_channels else 0
        if channels and not self.channels:
            self.events.append(ChannelsFound(channels))
        self.channels = channels

    def _compare_age(self, answer: StreamSummary) -> None:
        if answer.created_at is not None:
            self.recreated = self._created_at not in {None, answer.created_at}
            self._created_at = answer.created_at

    def _note_explained(self, now: Instant, *, explained: bool) -> None:
        """Reset the backoff if the summary explains the landings. Otherwise the next request has to wait longer."""
        if explained:
            self._unexplained_backoff.reset()
            self._next_query_at = -NEVER
        elif self.has_unexplained_landings:
            self._next_query_at = now + self._unexplained_backoff.next_delay()
        self.has_unexplained_landings = False

    def _fail(self, failure: Failure, now: Instant) -> None:
        if failure.retryable:
            self._wanted_at = now + self._backoff.next_delay(failure.retry_after)
            return
        self._revisit_at = NEVER
        is_missing = failure.kind is FailureKind.NOT_FOUND  # the stream may still be created
        self._wanted_at = now + self._backoff.next_delay() if is_missing else NEVER
        self.is_current |= not is_missing
        if not self._has_summary:  # otherwise the limit of the last summary still applies
            self.record_max_bytes = self._fixed_max_bytes or RECORD_DEFAULT_MAX_BYTES
        if self.has_unexplained_landings:
            # The service may be choosing the shards, and we cannot find out. Single records are safe in any case.
            self.has_unexplained_landings = False
            self.may_predict = False
            self.events.append(AggregationStopped(failure))
        else:
            self.events.append(StreamUnknown(failure))

    def next_deadline(self) -> Instant:
        return NEVER if self._in_flight else self._wanted_at
