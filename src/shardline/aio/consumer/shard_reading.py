"""Reads one shard: makes its reader, carries out the requests of the reader, and passes the pages to the hand-out.

Invariants:

- The reader gets exactly one response or failure per request, unless the task is cancelled, which stops the reader.
- A slow, idle or failing shard waits in its own task, so it delays no other shard.
- A subscription is closed before the next request, and when the task is cancelled, even if it is cancelled a second
  time.
- While there is no room for an event, the task does not read from its subscription, so flow control makes the service
  wait.
"""

import inspect
import logging
import random
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from enum import Enum, auto
from typing import Any, Final, Protocol, TypeAlias, TypeVar, final

import anyio
import anyio.lowlevel

from shardline.aio.loop.callbacks import Contained
from shardline.aio.loop.notifier import Notifier
from shardline.codec.shapes import GetRecordsResponse, GetShardIteratorResponse
from shardline.core.clock import Instant
from shardline.core.consumer.consumer_events import LeaseGained, ShardSought
from shardline.core.consumer.coordinator import Coordinator
from shardline.core.consumer.cursor import SLICE
from shardline.core.consumer.deaggregator import Deaggregator
from shardline.core.consumer.fanout_reader import FanOutReader, NextEvent
from shardline.core.consumer.handout import HandOut
from shardline.core.consumer.held_shard import HeldShard
from shardline.core.consumer.polling_reader import PollingReader
from shardline.core.consumer.read_pace import ReadPace
from shardline.core.consumer.reader import Page, ReaderEvent
from shardline.core.consumer.record_filter import leave_out
from shardline.core.error_codes import Failure, FailureKind
from shardline.core.requests import DescribeStreamSummary, GetRecords, GetShardIterator, SubscribeToShard
from shardline.errors import UsageError
from shardline.model.record import Record
from shardline.model.stream import consumer_created_at, parse_consumer_arn
from shardline.ports import KinesisApi, ShardEvents

_log: Final = logging.getLogger("shardline.consumer")
_T = TypeVar("_T")

Start: TypeAlias = LeaseGained | ShardSought
"""The events that start the reading of a shard."""
RecordFilter: TypeAlias = Callable[[Record[bytes]], object]
"""The user's filter: it returns whether a record is handed out."""


class ReadingEvents(Protocol):
    """The methods with which a shard's reader reports to the host: its pages, its events, and its end."""

    def handle_pages(self, shard: HeldShard, pages: list[Page]) -> None: ...
    def handle_read(self, events: list[ReaderEvent]) -> None: ...
    def handle_reader_over(self, shard: HeldShard) -> None: ...
    def handle_filter_failed(self, shard: HeldShard, record: Record[bytes], error: BaseException) -> None: ...
    async def register_again(self, consumer_arn: str) -> str | None:
        """Register the consumer again after the stream was re-created. Return its ARN, or ``None`` if that fails."""
        ...


class ShardReading(ABC):
    """The task that drives one reader. The subclasses carry out its requests."""

    def __init__(
        self,
        shard: HeldShard,
        reader: PollingReader | FanOutReader,
        deaggregator: Deaggregator,
        clock: Callable[[], Instant],
        deserializer: Callable[[bytes], Any] | None,
    ) -> None:
        self.shard = shard
        self.deaggregator = deaggregator
        self._pages = reader
        self._clock = clock
        self._deserializer = deserializer
        self.filter: RecordFilter | None = None
        """The user's filter, if any. The host sets it."""
        self._scope = anyio.CancelScope()
        self._room_freed = Notifier()

    def wake(self) -> None:
        """Notify the task that there is room for a page."""
        self._room_freed.notify()

    def stop(self) -> None:
        """Cancel the task, even in the middle of a request."""
        self._scope.cancel()

    async def run(self, api: KinesisApi, host: ReadingEvents) -> None:
        """Read until the shard ends or the reader is stopped."""
        with self._scope:
            while not self._pages.is_over:
                if not await self._carry_out_next(api, host):
                    await self._pause()
                await self._pass_pages(host)
        if not self.shard.is_stopping:
            host.handle_reader_over(self.shard)

    @abstractmethod
    async def _carry_out_next(self, api: KinesisApi, host: ReadingEvents) -> bool:
        """Carry out the request that is due. Return whether a request was due."""

    async def _pause(self) -> None:
        """Wait until it is time to poll the reader again."""
        await self._room_freed.wait(max(0.0, self._pages.next_deadline() - self._clock()))

    async def _pass_pages(self, host: ReadingEvents) -> None:
        """Pass the pages to the hand-out, as far as there is room."""
        while pages := self._pages.take_pages():
            if self.filter is not None:
                pages = [await self._filter(page, self.filter, host) for page in pages]
            for page in pages:
                if page.records:  # all records of a page share one origin
                    page.records[0].origin.deserializer = self._deserializer
            if self.shard.is_stopping:  # the filter failed
                return
            host.handle_pages(self.shard, pages)
            if self._pages.has_unopened:
                await anyio.lowlevel.checkpoint()  # unpacking aggregates takes CPU time: let other tasks run
        if events := self._pages.take_events():  # events about a page that was opened in several slices
            host.handle_read(events)

    async def _filter(self, page: Page, passes: "RecordFilter", host: ReadingEvents) -> Page:
        """Return the page without the records that do not pass the user's filter."""
        passed: list[bool] = []
        failures: list[BaseException] = []
        while len(passed) < len(page.records):
            until = self._clock() + SLICE
            with Contained(failures.append):
                self._call_filter(passes, page.records, passed, until)
            if failures:
                host.handle_filter_failed(self.shard, page.records[len(passed)], failures[0])
                return page
            # A slow filter must not delay the renewal of leases. After Ctrl-C in the filter, the program gets its turn,
            # and the filter is called with the same record again.
            if len(passed) < len(page.records) or self._clock() >= until:
                await anyio.lowlevel.checkpoint()
        return leave_out(page, passed)

    def _call_filter(
        self, passes: "RecordFilter", records: Sequence[Record[Any]], passed: list[bool], until: Instant
    ) -> None:
        """Append the filter's answers for the next records to ``passed``. Return at the time ``until``, even if records
        are left.
        """
        for record in records[len(passed) :]:
            passed.append(_as_bool(passes(record)))
            if self._clock() >= until:
                return


def _as_bool(answer: object) -> bool:
    """Return the answer of a filter as a bool.

    Raises:
        UsageError: the filter is asynchronous, but does not look so.
    """
    if isinstance(answer, bool):  # nearly always
        return answer
    if inspect.isawaitable(answer):
        if inspect.iscoroutine(answer):
            answer.close()  # close the coroutine, so that Python does not warn that it was never awaited
        raise UsageError("filter must be a plain function that returns whether to hand out a record, not an awaitable")
    return bool(answer)


@final
class PollingReading(ShardReading):
    """The task that drives one ``PollingReader``."""

    def __init__(
        self,
        shard: HeldShard,
        reader: PollingReader,
        deaggregator: Deaggregator,
        clock: Callable[[], Instant],
        deserializer: Callable[[bytes], Any] | None,
    ) -> None:
        super().__init__(shard, reader, deaggregator, clock, deserializer)
        self._reader = reader

    async def _carry_out_next(self, api: KinesisApi, host: ReadingEvents) -> bool:
        request = self._reader.poll_request(self._clock())
        if request is None:
            return False
        self._handle_response(await _contained(_send(api, request)))
        host.handle_read(self._reader.take_events())
        return True

    def _handle_response(self, response: GetShardIteratorResponse | GetRecordsResponse | Failure) -> None:
        reader, now = self._reader, self._clock()
        if isinstance(response, Failure):
            reader.handle_failure(response, now)
        elif isinstance(response, GetShardIteratorResponse):
            reader.handle_iterator(response, now)
        else:
            reader.handle_page(response, now)


@final
class FanOutReading(ShardReading):
    """The task that drives one ``FanOutReader``."""

    def __init__(
        self,
        shard: HeldShard,
        reader: FanOutReader,
        deaggregator: Deaggregator,
        clock: Callable[[], Instant],
        deserializer: Callable[[bytes], Any] | None,
    ) -> None:
        super().__init__(shard, reader, deaggregator, clock, deserializer)
        self._reader = reader

    async def _carry_out_next(self, api: KinesisApi, host: ReadingEvents) -> bool:
        request = self._reader.poll_request(self._clock())
        if request is None:
            return False
        assert isinstance(request, SubscribeToShard), "an event is requested only while there is a subscription"
        opening = api.subscribe_to_shard(request)
        events = await _contained(opening.__aenter__())
        try:
            if isinstance(events, Failure):
                await self._handle_refusal(api, host, request, events)
            else:
                await self._read_events(events, host)
        finally:
            with anyio.CancelScope(shield=True):
                await _contained(opening.__aexit__(None, None, None))
        host.handle_read(self._reader.take_events())
        return True

    async def _handle_refusal(
        self, api: KinesisApi, host: ReadingEvents, request: SubscribeToShard, failure: Failure
    ) -> None:
        missing: object = None
        if failure.kind is FailureKind.NOT_FOUND:
            missing = await _contained(_find_missing(api, request.consumer_arn))
        arn = await host.register_again(request.consumer_arn) if missing is _Missing.CONSUMER_OF_OLD_STREAM else None
        if arn is not None:
            self._reader.handle_registered_again(arn, failure, self._clock())
        elif missing is _Missing.CONSUMER:
            self._reader.handle_deregistered(failure)
        else:
            self._reader.handle_failure(failure, self._clock())

    async def _read_events(self, events: ShardEvents, host: ReadingEvents) -> None:
        """Pass on the events of a subscription until the subscription is over."""
        reader = self._reader
        reader.handle_subscribed(self._clock())
        while reader.is_subscribed:
            host.handle_read(reader.take_events())
            request = reader.poll_request(self._clock())
            if isinstance(request, NextEvent):
                await self._wait_for_event(events, request)
            else:
                await self._pause()
            await self._pass_pages(host)

    async def _wait_for_event(self, events: ShardEvents, request: NextEvent) -> None:
        reader, asked_at = self._reader, self._clock()
        event = await _contained(events.next_event(request.timeout))
        now = self._clock()
        if isinstance(event, Failure):
            if now - asked_at >= request.timeout:
                reader.handle_silence(now)
            else:
                reader.handle_failure(event, now)
        elif event is None:
            reader.handle_end(now)
        else:
            reader.handle_event(event, now)


@final
class ShardReadings:
    """Makes the reader of each shard, and the task that drives it: polling, or fan-out with a registered consumer."""

    def __init__(
        self,
        hand_out: HandOut,
        coordinator: Coordinator,
        clock: Callable[[], Instant],
        deserializer: Callable[[bytes], Any] | None,
        record_filter: RecordFilter | None,
    ) -> None:
        self._hand_out = hand_out
        self._held = coordinator.held
        self._trims = coordinator.trims
        self._config = hand_out.config
        self._stream = coordinator.stream
        self._clock = clock
        self._deserializer = deserializer
        self._filter = record_filter
        self._random = random.Random()  # noqa: S311 - no secret

    def make(self, event: Start, consumer_arn: str | None, *, by_auto: bool) -> ShardReading:
        """Return the task that reads this shard.

        Args:
            event: where to start.
            consumer_arn: the registered consumer to subscribe with, or ``None`` to poll.
            by_auto: whether the service distributes the records of the stream itself.
        """
        deaggregator = Deaggregator(
            self._stream.name,
            event.shard_id,
            hash_range=event.hash_range,
            done=event.checkpoint.sequence_number,
            drop=self._config.out_of_range == "drop",
            window=self._held.window_of(event.grant),
        )
        deaggregator.by_auto = by_auto
        if consumer_arn is None:
            reading = self._poll(event, deaggregator)
        else:
            reading = self._subscribe(event, deaggregator, consumer_arn)
        reading.filter = self._filter
        return reading

    def _poll(self, event: Start, deaggregator: Deaggregator) -> ShardReading:
        config, now = self._config, self._clock()
        reader = PollingReader(
            self._stream,
            event.shard_id,
            event.start,
            budget=self._hand_out.budget,
            pace=ReadPace(
                config.calls_per_second, config.bytes_per_second, config.idle_poll_interval, self._random, now
            ),
            deaggregator=deaggregator,
            trims=self._trims,
            lease=event.grant,
            page_max_records=config.page_max_records,
            counts=self._hand_out.reads,
        )
        shard = self._hand_out.handle_gained(self._stream.name, event, reader, now)
        return PollingReading(shard, reader, deaggregator, self._clock, self._deserializer)

    def _subscribe(self, event: Start, deaggregator: Deaggregator, consumer_arn: str) -> ShardReading:
        now = self._clock()
        reader = FanOutReader(
            self._stream,
            event.shard_id,
            event.start,
            consumer_arn=consumer_arn,
            budget=self._hand_out.budget,
            deaggregator=deaggregator,
            trims=self._trims,
            rng=self._random,
            now=now,
            lease=event.grant,
            counts=self._hand_out.reads,
        )
        shard = self._hand_out.handle_gained(self._stream.name, event, reader, now)
        return FanOutReading(shard, reader, deaggregator, self._clock, self._deserializer)


async def _send(
    api: KinesisApi, request: GetShardIterator | GetRecords
) -> GetShardIteratorResponse | GetRecordsResponse | Failure:
    if isinstance(request, GetRecords):
        return await api.get_records(request)
    return await api.get_shard_iterator(request)


class _Missing(Enum):
    """The resource that a subscription needs but that the service does not find."""

    SHARD_OR_STREAM = auto()
    CONSUMER = auto()
    CONSUMER_OF_OLD_STREAM = auto()


async def _find_missing(api: KinesisApi, consumer_arn: str) -> _Missing:
    """Find out why a subscription was refused with "not found"."""
    described = await api.call("DescribeStreamConsumer", {"ConsumerARN": consumer_arn})
    if not isinstance(described, Failure) or described.kind is not FailureKind.NOT_FOUND:
        return _Missing.SHARD_OR_STREAM
    summary = await api.describe_stream_summary(DescribeStreamSummary(parse_consumer_arn(consumer_arn)))
    if isinstance(summary, Failure):
        return _Missing.SHARD_OR_STREAM
    # A consumer is younger than its stream, so an older consumer belonged to an earlier stream. Its ARN contains whole
    # seconds.
    is_newer = summary.created_at is not None and summary.created_at > consumer_created_at(consumer_arn) + 1
    return _Missing.CONSUMER_OF_OLD_STREAM if is_newer else _Missing.CONSUMER


async def _contained(answer: Awaitable[_T]) -> _T | Failure:
    """Return the answer of an adapter, or a failure if the adapter raises."""
    try:
        return await answer
    except Exception as error:  # noqa: BLE001 - a bug in an adapter: expected failures are values
        _log.exception("internal error while sending a request")
        return Failure(FailureKind.TRANSIENT, "Internal", f"{type(error).__name__}: {error}")
