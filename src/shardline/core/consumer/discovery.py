"""Which shards does the stream have, and what kind of stream is it?

Listings, page by page, and the stream's summary: at the start, at intervals, and whenever someone has reason to look.

Invariants:

- One request at a time. Failures back off from 1 s to 30 s, with jitter.
- A listing is handed out complete or not at all. A listing whose token expired begins again; one that
  never ends has failed.
- A caller that asks for a listing gets one that began after it asked.
- If the group starts at a time, the service is asked once which shards were open then; also of the time at which a
  group at LATEST was begun, if it has to be completed (``match_at``).
- A listing that is refused for good ends the consumer; the summary only helps, and is done without.
- A stream that is missing and waited for is looked at from the summary on when it is back: its shards alone do not
  tell that it is another one.
- A summary alone can be asked for between two listings (``describe_by``), and puts off no listing.
- Listings are numbered as they are begun, so that one can tell which were begun after something was learnt.
"""

from enum import Enum, auto
from typing import Final, NamedTuple, final

from shardline.codec.shapes import ListShardsResponse, StreamSummary
from shardline.core.backoff import Backoff, Chance
from shardline.core.clock import NEVER, Instant
from shardline.core.consumer.consumer_events import ConsumerFailed, ListingFailed
from shardline.core.failures import Failure, FailureKind
from shardline.core.page_tokens import PageTokens
from shardline.core.requests import DescribeStreamSummary, ListShards, ShardFilter
from shardline.model.position import Position, PositionKind
from shardline.model.shard import Shard
from shardline.model.stream import StreamRef

_BACKOFF_FIRST: Final = 1.0
_BACKOFF_LONGEST: Final = 30.0


@final
class Listing(NamedTuple):
    """All shards of the stream at one moment."""

    shards: list[Shard]
    begun_at: Instant
    number: int
    """How many had been begun by then, with this one."""


class _Step(Enum):
    SUMMARY = auto()
    MATCHING = auto()  # the shards that were open at the start time
    SHARDS = auto()


@final
class Discovery:
    """Keeps looking at the stream."""

    def __init__(self, stream: StreamRef, start: Position, interval: float, chance: Chance, now: Instant) -> None:
        self._stream: StreamRef = stream
        self._match_at: float | None = start.timestamp
        self._interval: float = interval
        self._chance: Chance = chance
        self._backoff: Backoff = Backoff(_BACKOFF_FIRST, _BACKOFF_LONGEST, chance)
        self._steps: list[_Step] = []  # what is left of this round, the next one last
        self._list_at: Instant = now
        self._describe_at: Instant = NEVER
        self._retry_at: Instant = now  # when this round goes on
        self._in_flight: bool = False
        self._token: str | None = None
        self._tokens: PageTokens = PageTokens()
        self._found: list[Shard] = []
        self._begun_at: Instant = now
        self._listing: Listing | None = None
        self._events: list[ListingFailed | ConsumerFailed] = []
        self.has_no_summary: bool = False
        """Whether the service refuses to describe the stream: it is not asked again."""
        self.described_at: Instant = -NEVER
        """When the last summary was asked for."""
        self.begun: int = 0
        """How many listings were begun."""
        self.has_failed: bool = False
        self.summary: StreamSummary | None = None
        self.matching: frozenset[str] | None = None if start.kind is PositionKind.AT_TIMESTAMP else frozenset()
        """The shards that were open at the start time: ``None`` until it is known."""

    # ---- commands

    def list_by(self, at: Instant) -> None:
        """See to it that a new listing is begun at ``at`` at the latest."""
        if _Step.SHARDS not in self._steps:
            self._list_at = min(self._list_at, at)
        elif self._is_listing and _Step.SHARDS not in self._steps[:-1]:
            self._steps.insert(0, _Step.SHARDS)  # the one under way may be too old

    def describe_by(self, at: Instant) -> None:
        """See to it that a new summary is asked for at ``at`` at the latest."""
        self._describe_at = min(self._describe_at, at)

    def begin_anew(self) -> None:
        """The stream is another one: which shards were open at the start time has to be asked again."""
        if self.matching:
            self._match_again()

    def match_at(self, timestamp: float) -> bool:
        """Ask which shards were open at this time. Says whether that is news."""
        if timestamp == self._match_at:
            return False
        self._match_at = timestamp
        self._match_again()
        return True

    # ---- outputs, time

    def poll_request(self, now: Instant) -> ListShards | DescribeStreamSummary | None:
        if now < self.next_deadline():
            return None
        if not self._steps:
            self._steps = self._new_round(now)
        self._in_flight = True
        if self._steps[-1] is _Step.SUMMARY:
            self.described_at, self._describe_at = now, NEVER
            return DescribeStreamSummary(self._stream)
        if self._token is not None:
            return ListShards(self._stream, next_token=self._token)
        self._begun_at, self._found, self._tokens = now, [], PageTokens()
        if self._steps[-1] is _Step.MATCHING:
            return ListShards(self._stream, ShardFilter("AT_TIMESTAMP", timestamp=self._match_at))
        self.begun += 1
        return ListShards(self._stream)

    def take_listing(self) -> Listing | None:
        """The last complete listing, once."""
        listing, self._listing = self._listing, None
        return listing

    def take_events(self) -> list[ListingFailed | ConsumerFailed]:
        events, self._events = self._events, []
        return events

    def next_deadline(self) -> Instant:
        if self._in_flight or self.has_failed:
            return NEVER
        if self._steps:
            return self._retry_at
        begin_at = self._list_at if self.has_no_summary else min(self._list_at, self._describe_at)
        return max(begin_at, self._retry_at)

    # ---- inputs

    def handle_summary(self, summary: StreamSummary, now: Instant) -> None:
        self.summary = summary
        self._finish_step(now)

    def handle_page(self, response: ListShardsResponse, now: Instant) -> None:
        """One page of a listing."""
        self._found += [shape.to_shard() for shape in response.shards or ()]
        token = self._tokens.follow(response.next_token)
        if isinstance(token, Failure):
            self.handle_failure(token, now)
            return
        self._token = token
        if token is not None:
            self._in_flight = False
            return
        if self._steps[-1] is not _Step.MATCHING:
            self._listing = Listing(self._found, self._begun_at, self.begun)
        elif _Step.MATCHING not in self._steps[:-1]:  # else another time is to be asked for by now
            self.matching = frozenset(shard.shard_id for shard in self._found)
        self._finish_step(now)

    def handle_failure(self, failure: Failure, now: Instant) -> None:
        self._in_flight = False
        self._token = None  # from the beginning: the pages of two listings do not fit together
        summary = self._steps[-1] is _Step.SUMMARY
        operation = "DescribeStreamSummary" if summary else "ListShards"
        if failure.retryable or failure.kind is FailureKind.EXPIRED_TOKEN:
            self._retry_at = now + self._backoff.next_delay(failure.retry_after)
            self._events.append(ListingFailed(operation, failure, self._retry_at))
        elif summary and failure.kind is not FailureKind.NOT_FOUND:
            self.has_no_summary = True
            self._events.append(ListingFailed(operation, failure, NEVER))
            self._finish_step(now)
        else:
            self.has_failed = True
            self._events.append(ConsumerFailed(operation, failure))

    def handle_missing(self, now: Instant) -> None:
        """There is no such stream, and it is waited for: look again later, at all of it."""
        self._in_flight = False
        self._token = None
        self._steps = []
        self._list_at = self._retry_at = now + self._backoff.next_delay()

    def _new_round(self, now: Instant) -> list[_Step]:
        if now < self._list_at:
            return [_Step.SUMMARY]
        steps = [_Step.SHARDS]
        if self.matching is None:
            steps.append(_Step.MATCHING)
        if not self.has_no_summary:
            steps.append(_Step.SUMMARY)
        return steps

    def _match_again(self) -> None:
        self.matching = None
        if self._steps:
            under_way = self._in_flight or self._token is not None
            self._steps.insert(len(self._steps) - under_way, _Step.MATCHING)

    @property
    def _is_listing(self) -> bool:
        return self._steps[-1] is _Step.SHARDS and (self._in_flight or self._token is not None)

    def _finish_step(self, now: Instant) -> None:
        self._in_flight = False
        self._token = None
        self._backoff.reset()
        step = self._steps.pop()
        self._retry_at = now
        if step is _Step.SHARDS and not self._steps:
            self._list_at = now + self._interval * (0.9 + 0.1 * self._chance.random())
