"""What does the stream say of itself: how large may a record be, and who chooses the shard?

Asked at the start, again when entries land where no map explains it, and every minute under AUTO.

Invariants:

- One request at a time, each answered by exactly one ``handle_summary``; failures that may pass are tried again
  with a backoff of 1 s to 30 s, the others are final.
- Under AUTO record distribution the service ignores keys: nothing may be aggregated (``may_aggregate`` is false),
  and nothing is judged by hash range. The same holds when the stream, asked again, does not answer.
- Under AUTO the stream is asked again every minute: nothing else would tell that keys count again.
- A stream that was deleted and re-created under its name is recognised by when it was created: nothing that was
  known of its shards holds any more, though they have the old ones' ids. Until it has answered again after it was not
  found, or is being deleted, nothing that it said before counts (``is_current``).
- As long as its answers do not explain the landings, the stream is asked after pauses that grow as those between
  attempts do: what waits for the answer is stored once more after each, where readers may drop it again.
"""

from typing import Final, final

from shardline.codec.shapes import StreamSummary
from shardline.core.backoff import Backoff, Chance
from shardline.core.clock import NEVER, Instant
from shardline.core.failures import Failure, FailureKind
from shardline.core.producer.producer_config import ProducerConfig
from shardline.core.producer_events import AggregationStopped, DistributionChanged, Event, StreamUnknown
from shardline.core.requests import DescribeStreamSummary
from shardline.model.limits import RECORD_DEFAULT_MAX_BYTES, RECORD_HIGHEST_MAX_BYTES
from shardline.model.stream import StreamRef

_AUTO: Final = "AUTO"
_DELETING: Final = "DELETING"
_AUTO_INTERVAL: Final = 60.0  # how often to look whether keys count again
_LIMIT_PAUSE: Final = 10.0  # between two reads of the record limit that refusals cause
_UNEXPLAINED_MEMORY: Final = 60.0  # after so long without one, a landing that nothing explains is the first again


@final
class StreamFacts:
    """The facts of one stream, as far as they are known."""

    def __init__(self, stream: StreamRef, config: ProducerConfig, chance: Chance) -> None:
        self._stream = stream
        self._fixed_max_bytes = config.record_max_bytes
        self._backoff = Backoff(1.0, 30.0, chance)
        self._unexplained_backoff = Backoff(config.retry_backoff, config.retry_backoff_max, chance)
        self._next_query_at: Instant = -NEVER
        self._wanted_at: Instant = 0.0
        self._in_flight = False
        self._has_summary = False
        self._limit_read_at: Instant = -NEVER
        self._created_at: float | None = None
        self.recreated = False
        """Whether the last answer was about another stream of the same name."""
        self.is_current = True
        """Whether what it said still holds, as far as we know."""
        self._is_outdated = False  # whether what is in flight was asked for before that ended
        self.has_unexplained_landings = False
        """Entries landed where no map explains it, and the stream has not said why yet."""
        self.answered = False
        """Whether it was ever asked and answered, well or badly."""
        self.auto: bool = False
        """The service chooses the shards."""
        self.may_aggregate = True
        self.record_max_bytes = self._fixed_max_bytes or RECORD_HIGHEST_MAX_BYTES
        """The largest record, data and key. Until the stream has answered, the largest that any stream takes."""
        self.events: list[Event] = []

    @property
    def is_asking(self) -> bool:
        return self._in_flight or self._wanted_at != NEVER

    def query_again(self, now: Instant) -> None:
        """Entries land where no map explains it."""
        self.has_unexplained_landings = True
        if now >= self._next_query_at + _UNEXPLAINED_MEMORY:
            self._unexplained_backoff.reset()
        if not self.is_asking or self.auto:  # what is asked every minute may be asked now; a backoff goes on
            self._wanted_at = min(self._wanted_at, max(now, self._next_query_at))

    def read_limit_again(self, now: Instant) -> None:
        """A record was refused for its size: perhaps the stream takes smaller ones than it said."""
        if self._has_summary and self._fixed_max_bytes is None and not self.is_asking:
            self._wanted_at = max(now, self._limit_read_at + _LIMIT_PAUSE)

    def reset(self, now: Instant) -> None:
        """The stream may be another one."""
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
        """What came of it. Says whether the way of aggregating changed."""
        assert self._in_flight
        self._in_flight = False
        if self._is_outdated:
            self._is_outdated = False
            return False
        self.answered = True
        before = self.may_aggregate
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
            self._note_explained(now, solved=auto or self.auto or self.recreated)
            if auto is not self.auto:
                self.auto = auto
                self.events.append(DistributionChanged(auto))
            self.may_aggregate = not auto
            self._wanted_at = now + _AUTO_INTERVAL if auto else NEVER
        return self.may_aggregate is not before

    def _compare_age(self, answer: StreamSummary) -> None:
        if answer.created_at is not None:
            self.recreated = self._created_at not in {None, answer.created_at}
            self._created_at = answer.created_at

    def _note_explained(self, now: Instant, *, solved: bool) -> None:
        if solved:
            self._unexplained_backoff.reset()
            self._next_query_at = -NEVER
        elif self.has_unexplained_landings:
            self._next_query_at = now + self._unexplained_backoff.next_delay()
        self.has_unexplained_landings = False

    def _fail(self, failure: Failure, now: Instant) -> None:
        if failure.retryable:
            self._wanted_at = now + self._backoff.next_delay(failure.retry_after)
            return
        is_missing = failure.kind is FailureKind.NOT_FOUND  # and may come back
        self._wanted_at = now + self._backoff.next_delay() if is_missing else NEVER
        self.is_current |= not is_missing
        if not self._has_summary:  # what the stream once said still holds
            self.record_max_bytes = self._fixed_max_bytes or RECORD_DEFAULT_MAX_BYTES
        if self.has_unexplained_landings:
            self.has_unexplained_landings = False
            self.may_aggregate = False
            self.events.append(AggregationStopped(failure))
        else:
            self.events.append(StreamUnknown(failure))

    def next_deadline(self) -> Instant:
        return NEVER if self._in_flight else self._wanted_at
