"""Reads the pages of one shard for ``shardline tail``: by polling, or by enhanced fan-out.

Invariants:

- The pages of a shard come in order, without gaps or repeats, even if an iterator expires or a subscription ends.
- If a shard is read from LATEST, its position is the time of the first call: a second LATEST would skip records.
- A retryable failure is retried for up to ``give_up_after`` seconds in a row; then it is raised. Any other failure is
  raised immediately.
- Calls stay within the limits of a shard: 5 GetRecords per second, and one subscription per consumer in 5 seconds.
"""

import random
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, TypeVar, final

import anyio

from shardline.aio.client import Client
from shardline.codec.shapes import GetRecordsResponse, RawRecord, SubscribeToShardEvent
from shardline.core.backoff import Backoff
from shardline.core.consumer.read_pace import ReadPace
from shardline.core.error_codes import Failure, FailureKind, to_error
from shardline.core.requests import GetRecords, GetShardIterator
from shardline.errors import RequestError, TransportError
from shardline.model.limits import SHARD_READ_BYTES_PER_SECOND, SHARD_READ_CALLS_PER_SECOND
from shardline.model.position import LATEST, Position, after_sequence_number, at_timestamp
from shardline.model.shard import ChildShard
from shardline.model.stream import StreamRef

if TYPE_CHECKING:
    from shardline.aio.subscription import Subscription

T = TypeVar("T")

_IDLE: Final = 1.0  # the longest wait between two reads of a shard without new records
_SUBSCRIPTION_DISTANCE: Final = 5.0  # for so many seconds after a subscription, the service refuses the next one
_BACKOFF: Final = (0.25, 5.0)
_NO_CONTINUATION: Final = "an event has neither a continuation number nor child shards"


@final
class ShardPage(NamedTuple):
    """The answer to one GetRecords call, or one event of a subscription."""

    records: list[RawRecord]
    lag: float | None
    """How many seconds the end of the page is behind the end of the shard."""
    is_last: bool
    """Whether the shard has ended."""
    child_shards: Sequence[ChildShard]


class PageSource(Protocol):
    """Reads the pages of one shard."""

    async def open(self) -> None:
        """Fix the position where the shard is read from."""
        ...

    async def next_page(self) -> ShardPage: ...

    async def close(self) -> None: ...


@final
class PollingSource:
    """Reads a shard with GetRecords."""

    def __init__(self, client: Client, ref: StreamRef, shard_id: str, start: Position, give_up_after: float) -> None:
        self._api = client.api
        self._ref = ref
        self._shard_id = shard_id
        self._position = start
        self._give_up_after = give_up_after
        self._pace = _new_pace()
        self._iterator: str | None = None

    async def open(self) -> None:
        request = GetShardIterator(self._ref, self._shard_id, self._position)
        answer = await self._call(lambda: self._api.get_shard_iterator(request), "GetShardIterator", _new_pace())
        self._iterator = answer.shard_iterator

    async def next_page(self) -> ShardPage:
        while True:
            if self._iterator is None:
                await self.open()
            assert self._iterator is not None
            asked_at = self._api.service_time()
            page = await self._request(self._iterator)
            if page is not None:
                break
            self._iterator = None  # the iterator has expired
        if page.records:
            self._position = after_sequence_number(page.records[-1].sequence_number)
        elif self._position == LATEST:
            # If this iterator expires, a new one at LATEST would skip the records that arrived in between.
            self._position = at_timestamp(asked_at)
        self._iterator = page.next_iterator
        lag = None if page.millis_behind_latest is None else page.millis_behind_latest / 1000
        return ShardPage(page.records, lag, page.next_iterator is None, page.child_shards)

    async def close(self) -> None:
        """Do nothing: an iterator needs no closing."""

    async def _request(self, iterator: str) -> GetRecordsResponse | None:
        """Return the next page, or ``None`` if the iterator has expired."""
        request = GetRecords(iterator, None, self._ref)
        try:
            page = await self._call(lambda: self._api.get_records(request), "GetRecords", self._pace)
        except RequestError as error:
            if error.kind == FailureKind.EXPIRED_ITERATOR:
                return None
            raise
        size_bytes = sum(len(record.data) for record in page.records)
        behind = bool(page.millis_behind_latest) if page.millis_behind_latest is not None else bool(page.records)
        self._pace.handle_page(size_bytes, empty=not page.records, behind=behind, now=anyio.current_time())
        return page

    async def _call(self, call: Callable[[], Awaitable[T | Failure]], operation: str, pace: ReadPace) -> T:
        """Return the response to ``call``, retrying it at the shard's pace until ``give_up_after`` has passed."""
        give_up_at: float | None = None
        while True:
            await anyio.sleep_until(pace.next_at)
            pace.handle_sent(anyio.current_time())
            answer = await call()
            if not isinstance(answer, Failure):
                return answer
            now = anyio.current_time()
            give_up_at = now + self._give_up_after if give_up_at is None else give_up_at
            pace.handle_failure(answer, now)
            if not answer.retryable or pace.next_at > give_up_at:
                raise to_error(answer, operation)


def _new_pace() -> ReadPace:
    chance = random.Random()  # noqa: S311 - no secret
    return ReadPace(SHARD_READ_CALLS_PER_SECOND, SHARD_READ_BYTES_PER_SECOND, _IDLE, chance, now=anyio.current_time())


@final
class FanOutSource:
    """Reads a shard through subscriptions of a registered consumer."""

    def __init__(self, client: Client, consumer_arn: str, shard_id: str, start: Position, give_up_after: float) -> None:
        self._client = client
        self._consumer_arn = consumer_arn
        self._shard_id = shard_id
        self._position = start
        self._give_up_after = give_up_after
        self._backoff = Backoff(*_BACKOFF, random.Random())  # noqa: S311 - no secret
        self._failing_since: float | None = None
        self._next_at = anyio.current_time()
        self._subscription: Subscription | None = None
        self._last_number: int | None = None

    async def open(self) -> None:
        while self._subscription is None:
            await anyio.sleep_until(self._next_at)
            asked_at = self._client.api.service_time()
            subscription = self._client.subscribe_to_shard(self._consumer_arn, self._shard_id, self._position)
            try:
                self._subscription = await subscription.__aenter__()
            except RequestError as error:
                self._handle_failure(error)
                continue
            self._next_at = anyio.current_time() + _SUBSCRIPTION_DISTANCE
            if self._position == LATEST:
                # This position is for the next subscription: a second LATEST would skip records.
                self._position = at_timestamp(asked_at)

    async def next_page(self) -> ShardPage:
        while True:
            await self.open()
            assert self._subscription is not None
            try:
                event = await anext(self._subscription)
            except StopAsyncIteration:  # the service ends each subscription after 5 minutes
                self._subscription = None
                continue
            except RequestError as error:
                self._subscription = None
                self._handle_failure(error)
                continue
            if event.continuation_sequence_number is not None or event.child_shards:
                return self._page_of(event)
            await self.close()
            self._handle_failure(
                TransportError(_NO_CONTINUATION, operation="SubscribeToShard", message=_NO_CONTINUATION, retryable=True)
            )
            if event.records:
                return self._page_of(event)

    async def close(self) -> None:
        """End the subscription."""
        subscription, self._subscription = self._subscription, None
        if subscription is not None:
            await subscription.aclose()

    def _page_of(self, event: SubscribeToShardEvent) -> ShardPage:
        """Move the position past the event, and return the event's records that have not been returned yet."""
        last, continuation = self._last_number, event.continuation_sequence_number
        # Some endpoints repeat the last record in a new subscription.
        records = [record for record in event.records if last is None or int(record.sequence_number) > last]
        if records:
            self._last_number = int(records[-1].sequence_number)
            if continuation is None or int(continuation) < self._last_number:
                continuation = records[-1].sequence_number
        if continuation is not None:
            self._position = after_sequence_number(continuation)
            self._backoff.reset()
            self._failing_since = None
        lag = None if event.millis_behind_latest is None else event.millis_behind_latest / 1000
        is_last = event.continuation_sequence_number is None and bool(event.child_shards)
        return ShardPage(records, lag, is_last, event.child_shards)

    def _handle_failure(self, error: RequestError) -> None:
        """Subscribe again later, or raise the error."""
        now = anyio.current_time()
        self._failing_since = now if self._failing_since is None else self._failing_since
        delay = self._backoff.next_delay(error.retry_after)
        if error.kind == FailureKind.IN_USE:
            delay = max(delay, _SUBSCRIPTION_DISTANCE)
        self._next_at = max(self._next_at, now + delay)
        if not error.retryable or self._next_at > self._failing_since + self._give_up_after:
            raise error
