"""Reads one shard by enhanced fan-out.

The reader calls SubscribeToShard and then takes the events of the subscription, until the shard ends. The shell carries
out the requests that ``poll_request`` returns, and answers each request with exactly one ``handle_*`` call. The shell
keeps the subscription open while ``is_subscribed`` is true, closes it before the next SubscribeToShard, and passes on
the pages that ``take_pages`` returns.

Invariants:

- There is one request at a time, and one subscription. An older subscription is closed before the next one begins, so
  that no event of the older one arrives after that.
- The byte budget provides backpressure: if the budget has no room, no event is requested, so the transport stops
  reading. Time spent waiting for room does not count as silence, and ends no subscription.
- Pages are returned in the order of the shard, without gaps or repetitions. A new subscription continues after the last
  event that the reader took: at its continuation number or at its last record, whichever is later. On some endpoints
  the two are equal, and on others the continuation number is greater.
- An event without records also moves the position. There is one exception: if the reader started at a checkpoint, and
  the checkpoint's record has not arrived yet, the position stays, because that record may be an aggregate that is
  partly done.
- If an event without a continuation number names child shards, the shard has ended. Otherwise the endpoint is broken,
  and the reader subscribes again.
- Calls respect the service's limits: there is at most one call per second per shard. There is no call within 5 s of a
  successful call, because the service would refuse it. A call that was refused because of another subscription
  (ResourceInUse) is retried after at least 5 s.
- A subscription that is silent for ``SILENCE`` is closed and replaced, because the service sends an event about every
  5 s.
- The first failure after an event is reported as ``SubscriptionEnded``, and further failures as ``ReadFailed``.
"""

from collections.abc import Sequence
from typing import ClassVar, Final, Literal, NamedTuple, final

from shardline.codec.shapes import RawRecord, SubscribeToShardEvent
from shardline.core.backoff import Backoff, Chance
from shardline.core.clock import NEVER, Instant
from shardline.core.consumer.consumer_events import ReadFailed, Subscribed, SubscriptionEnded
from shardline.core.consumer.consumer_totals import ReadCounts
from shardline.core.consumer.deaggregator import Deaggregator
from shardline.core.consumer.page_reader import PageReader
from shardline.core.consumer.prefetch import PrefetchBudget
from shardline.core.consumer.reader import ReaderState
from shardline.core.consumer.trim_watch import TrimWatch
from shardline.core.error_codes import Failure, FailureKind
from shardline.core.requests import SubscribeToShard
from shardline.model.position import TRIM_HORIZON, Position, after_sequence_number
from shardline.model.record import LeaseInForce
from shardline.model.stream import StreamRef

SILENCE: Final = 30.0
"""After this many seconds without an event, a subscription counts as broken. This is six times the interval at which
the service sends events.
"""
_CALL_DISTANCE: Final = 1.0  # the time between two calls in seconds: the service's limit per consumer and shard
_TAKEOVER_WAIT: Final = 5.0  # for this many seconds after a successful call, the service refuses another call
_TAKEOVER_JITTER: Final = 0.2
_BACKOFF: Final = (0.25, 10.0)
# If the reader waited for an event for at least this many seconds, the service sent the event after the reader had
# requested it.
_REAL_WAIT: Final = 0.25
_OPERATION: Final = "SubscribeToShard"
_SILENT: Final = Failure(FailureKind.TRANSIENT, "Silence", f"no event came for {SILENCE:g} s")
_NO_CONTINUATION: Final = Failure(
    FailureKind.TRANSIENT, "NoContinuation", "an event has neither a continuation number nor child shards"
)


@final
class NextEvent(NamedTuple):
    """Wait for the next event of the subscription, but not longer than ``timeout`` seconds."""

    timeout: float


@final
class FanOutReader(PageReader):
    """Reads one shard. ``start`` is the first position, and ``consumer_arn`` names the registered consumer."""

    read_by: ClassVar[Literal["polling", "fan-out"]] = "fan-out"

    def __init__(
        self,
        stream: StreamRef,
        shard_id: str,
        start: Position,
        *,
        consumer_arn: str,
        budget: PrefetchBudget,
        deaggregator: Deaggregator,
        trims: TrimWatch,
        rng: Chance,
        now: Instant,
        lease: LeaseInForce | None = None,
        counts: ReadCounts | None = None,
    ) -> None:
        super().__init__(
            stream, shard_id, start, budget=budget, deaggregator=deaggregator, trims=trims, lease=lease, counts=counts
        )
        self._consumer_arn: str = consumer_arn
        self._rng: Chance = rng
        self._backoff: Backoff = Backoff(*_BACKOFF, rng)
        self._next_at: Instant = now  # when the next call may be sent
        self._waiting_since: Instant = now  # when the last event was requested
        self._last_number: int | None = None  # the sequence number of the last record

    @property
    def is_subscribed(self) -> bool:
        """Whether the shell must keep the subscription open."""
        return self.state in {ReaderState.READY, ReaderState.READING}

    # ---- outputs

    def poll_request(self, now: Instant) -> SubscribeToShard | NextEvent | None:
        """Return the request to carry out now."""
        is_ready = self.state is ReaderState.READY
        if self.has_unopened or not (is_ready or (self.state is ReaderState.STARTING and now >= self._next_at)):
            return None
        self._blocked = not self._budget.admits(self.key)
        if self._blocked:
            return None
        if is_ready:
            self._enter(ReaderState.READING)
            self._waiting_since = now
            return NextEvent(SILENCE)
        self._enter(ReaderState.ASKING)
        self._asked_at = now
        self._next_at = now + _CALL_DISTANCE
        return SubscribeToShard(self._consumer_arn, self.shard_id, self.position)

    # ---- time

    def next_deadline(self) -> Instant:
        """Return the time of the next poll. If the budget has no room, the reader is polled again when the budget
        admits it.
        """
        if self.has_unopened or self._blocked:
            return NEVER
        if self.state is ReaderState.READY:
            return self._asked_at  # a past time: poll at once
        return self._next_at if self.state is ReaderState.STARTING else NEVER

    # ---- inputs

    def handle_subscribed(self, now: Instant) -> None:
        """Handle the start of the requested subscription."""
        if self.state is ReaderState.STOPPED:
            return
        self._enter(ReaderState.READY)
        self._next_at = now + _TAKEOVER_WAIT
        self._events.append(Subscribed(self.shard_id, self.position))

    def handle_event(self, event: SubscribeToShardEvent, now: Instant) -> None:
        """Handle an event. It may contain no records, or be the last event. ``take_pages`` returns its records."""
        if self.state is ReaderState.STOPPED:
            return
        assert self.state is ReaderState.READING
        raws = self._without_repeats(event.records)
        continuation = event.continuation_sequence_number
        self._is_failing = False
        self.lag = None if event.millis_behind_latest is None else event.millis_behind_latest / 1000
        if now - self._waiting_since >= _REAL_WAIT:
            # The event was not waiting in a buffer when it was requested, so the service created it later.
            self._asked_at = self._waiting_since
        self._notice_trimmed(raws, now)
        self._move(raws, continuation)
        if self.lag is not None:
            self._unread_since = max(self._asked_at - self.lag, self._unread_since or -NEVER)
            self._read_until = now - self.lag
        behind = bool(raws) if self.lag is None else self.lag > 0
        self._has_reached_tip = self._has_reached_tip or not behind
        self._begin_page(raws, self._waiting_since, now)
        self._children = () if continuation is not None else event.child_shards
        self._is_last = bool(self._children)
        if continuation is None and not self._is_last:
            self._retry(_NO_CONTINUATION, now)
        else:
            self._backoff.reset()
            self._enter(ReaderState.READY)
        self._open_slice()  # when the budget admitted the request, it also admitted this slice

    def handle_end(self, now: Instant) -> None:
        """Handle the end of the subscription. The service ends each subscription after 5 minutes."""
        if self.state is ReaderState.STOPPED:
            return
        self._enter(ReaderState.STARTING)
        self._next_at = max(now, self._next_at)
        self._events.append(SubscriptionEnded(self.shard_id, None, self._next_at))

    def handle_silence(self, now: Instant) -> None:
        """Handle a timeout: no event came within the timeout of the request."""
        self.handle_failure(_SILENT, now)

    def handle_failure(self, failure: Failure, now: Instant) -> None:
        """Handle a failed request: the subscription was refused or interrupted."""
        if self.state is ReaderState.STOPPED:
            return
        is_refused_position = failure.kind is FailureKind.INVALID and self.state is ReaderState.ASKING
        if failure.retryable:
            self._retry(failure, now)
        elif is_refused_position and self.position != TRIM_HORIZON:
            self._is_failing = True
            self._lose_position(failure)
            self._last_number = None
            self._enter(ReaderState.STARTING)
        else:
            self._give_up(failure, ReaderState.GONE if failure.kind is FailureKind.NOT_FOUND else ReaderState.FAILED)

    def handle_deregistered(self, failure: Failure) -> None:
        """Handle a request that failed because the service does not know the registered consumer. The shard itself may
        exist.
        """
        if self.state is not ReaderState.STOPPED:
            self._give_up(failure, ReaderState.FAILED)

    def handle_registered_again(self, consumer_arn: str, failure: Failure, now: Instant) -> None:
        """Handle a new registration of the consumer, under another ARN, after the stream was re-created.

        The shard may belong to the old or to the new stream. The next subscription shows which, because the service
        refuses a subscription to an old shard.
        """
        if self.state is not ReaderState.STOPPED:
            self._consumer_arn = consumer_arn
            self._retry(failure, now)

    def _give_up(self, failure: Failure, state: ReaderState) -> None:
        self.failure = failure
        self._enter(state)
        self._events.append(ReadFailed(self.shard_id, _OPERATION, failure, NEVER))

    def _retry(self, failure: Failure, now: Instant) -> None:
        """Schedule the next subscription after a failure, and report the failure."""
        self._is_failing = True
        self._enter(ReaderState.STARTING)
        is_first = self._backoff.failures == 0
        delay = self._backoff.next_delay(failure.retry_after)
        if failure.kind is FailureKind.IN_USE:
            delay = max(delay, _TAKEOVER_WAIT * (1 + _TAKEOVER_JITTER * self._rng.random()))
        self._next_at = max(now + delay, self._next_at)
        if is_first:
            self._events.append(SubscriptionEnded(self.shard_id, failure, self._next_at))
        else:
            self._events.append(ReadFailed(self.shard_id, _OPERATION, failure, self._next_at))

    def _without_repeats(self, raws: list[RawRecord]) -> list[RawRecord]:
        """Leave out records that arrived earlier. Some endpoints repeat the last record in a new subscription."""
        last = self._last_number
        if last is None or not raws or int(raws[0].sequence_number) > last:
            return raws
        return [raw for raw in raws if int(raw.sequence_number) > last]

    def _move(self, raws: Sequence[RawRecord], continuation: str | None) -> None:
        """Move the position past this event."""
        if raws:
            self._last_number = int(raws[-1].sequence_number)
            self._last_arrived_at = raws[-1].arrived_at
            if continuation is None or int(continuation) < self._last_number:
                continuation = raws[-1].sequence_number
        if continuation is not None and self._expected is None:
            self.position = after_sequence_number(continuation)
