"""Reads one shard by enhanced fan-out: SubscribeToShard, then the events of the subscription until the shard ends.

The shell carries out the requests of ``poll_request`` and answers each with exactly one ``handle_*`` call. It keeps the
subscription open while ``is_subscribed``, closes it before the next request, and passes the pages of ``take_pages`` on.

Invariants:

- There is one request at a time, and one subscription. An older subscription is closed before the next one begins, so
  its events never arrive.
- Backpressure is the byte budget: without room, no event is requested, so the transport stops reading. Waiting for room
  is not silence, and ends no subscription.
- Pages come out in the order of the shard, without gaps and repeats. A new subscription continues after the last event
  that the reader took, at its continuation number or its last record, whichever is later: on some endpoints the two are
  equal, on others the continuation number is greater.
- An event without records moves the position, too. The exception is a start at a checkpoint whose record did not come
  yet: its record may be an aggregate that is done in part.
- An event without a continuation number ends the shard if it names child shards. Otherwise the endpoint is broken, and
  the reader subscribes again.
- Calls keep the service's limits: one call per second and shard, and none within 5 s of a successful one, which the
  service would refuse. A refusal because of another subscription (ResourceInUse) is retried after at least 5 s.
- A subscription that is silent for ``SILENCE`` is closed and replaced: the service sends an event every 5 s or so.
- The first failure after an event is quiet (``SubscriptionEnded``). Further failures are reported (``ReadFailed``).
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
from shardline.core.failures import Failure, FailureKind
from shardline.core.requests import SubscribeToShard
from shardline.model.position import TRIM_HORIZON, Position, after_sequence_number
from shardline.model.record import LeaseInForce
from shardline.model.stream import StreamRef

SILENCE: Final = 30.0
"""Seconds without an event after which a subscription counts as broken: six times the service's interval."""
_CALL_DISTANCE: Final = 1.0  # seconds between two calls: the service's limit per consumer and shard
_TAKEOVER_WAIT: Final = 5.0  # seconds after a successful call in which the service refuses the next one
_TAKEOVER_JITTER: Final = 0.2
_BACKOFF: Final = (0.25, 10.0)
_REAL_WAIT: Final = 0.25  # seconds: an event that came later than this was made after it was requested
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
    """Reads one shard. ``start`` is the first position; ``consumer_arn`` names the registered consumer."""

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
        self._last_number: int | None = None  # that of the last record

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
        """When to poll again. A reader without room is polled when the budget admits it."""
        if self.has_unopened or self._blocked:
            return NEVER
        if self.state is ReaderState.READY:
            return self._asked_at  # at once
        return self._next_at if self.state is ReaderState.STARTING else NEVER

    # ---- inputs

    def handle_subscribed(self, now: Instant) -> None:
        """Handle the beginning of the subscription that was requested."""
        if self.state is ReaderState.STOPPED:
            return
        self._enter(ReaderState.READY)
        self._next_at = now + _TAKEOVER_WAIT
        self._events.append(Subscribed(self.shard_id, self.position))

    def handle_event(self, event: SubscribeToShardEvent, now: Instant) -> None:
        """Handle an event, which may have no records, or be the last one. ``take_pages`` returns its records."""
        if self.state is ReaderState.STOPPED:
            return
        assert self.state is ReaderState.READING
        raws = self._without_repeats(event.records)
        continuation = event.continuation_sequence_number
        self._is_failing = False
        self.lag = None if event.millis_behind_latest is None else event.millis_behind_latest / 1000
        if now - self._waiting_since >= _REAL_WAIT:
            # The event was not waiting in a buffer when it was requested, so the service made it after that.
            self._asked_at = self._waiting_since
        self._notice_trimmed(raws, now)
        self._move(raws, continuation)
        if self.lag is not None:
            self._unread_since = max(self._asked_at - self.lag, self._unread_since or -NEVER)
            self._read_until = now - self.lag
        behind = bool(raws) if self.lag is None else self.lag > 0
        self._has_reached_tip = self._has_reached_tip or not behind
        self._begin_page(raws, now - self._waiting_since)
        self._children = () if continuation is not None else event.child_shards
        self._is_last = bool(self._children)
        if continuation is None and not self._is_last:
            self._retry(_NO_CONTINUATION, now)
        else:
            self._backoff.reset()
            self._enter(ReaderState.READY)
        self._open_slice()  # the budget admitted the request, and this slice with it

    def handle_end(self, now: Instant) -> None:
        """Handle the end of the subscription: the service ends each one after 5 minutes."""
        if self.state is ReaderState.STOPPED:
            return
        self._enter(ReaderState.STARTING)
        self._next_at = max(now, self._next_at)
        self._events.append(SubscriptionEnded(self.shard_id, None, self._next_at))

    def handle_silence(self, now: Instant) -> None:
        """Handle that no event came within the timeout of the request."""
        self.handle_failure(_SILENT, now)

    def handle_failure(self, failure: Failure, now: Instant) -> None:
        """Handle the failure of the request: the subscription was refused, or broke."""
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
        """Handle that the service does not know the registered consumer. The shard itself may exist."""
        if self.state is not ReaderState.STOPPED:
            self._give_up(failure, ReaderState.FAILED)

    def handle_registered_again(self, consumer_arn: str, failure: Failure, now: Instant) -> None:
        """Handle that the stream was re-created without the registered consumer, which now has another ARN.

        The shard may belong to either stream. The next subscription shows which: that to an old shard is refused.
        """
        if self.state is not ReaderState.STOPPED:
            self._consumer_arn = consumer_arn
            self._retry(failure, now)

    def _give_up(self, failure: Failure, state: ReaderState) -> None:
        self.failure = failure
        self._enter(state)
        self._events.append(ReadFailed(self.shard_id, _OPERATION, failure, NEVER))

    def _retry(self, failure: Failure, now: Instant) -> None:
        """Subscribe again later."""
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
        """Leave out the records that came before: some endpoints repeat the last one in a new subscription."""
        last = self._last_number
        if last is None or not raws or int(raws[0].sequence_number) > last:
            return raws
        return [raw for raw in raws if int(raw.sequence_number) > last]

    def _move(self, raws: Sequence[RawRecord], continuation: str | None) -> None:
        """Continue after this event from now on."""
        if raws:
            self._last_number = int(raws[-1].sequence_number)
            self._last_arrived_at = raws[-1].arrived_at
            if continuation is None or int(continuation) < self._last_number:
                continuation = raws[-1].sequence_number
        if continuation is not None and self._expected is None:
            self.position = after_sequence_number(continuation)
