"""Schedules the requests that list the shards and describe the stream.

Discovery lists the shards, page by page, and reads the stream's summary: at the start, at intervals, and on request.

Invariants:

- There is one request at a time. After failures, discovery backs off for 1 s to 30 s, with jitter.
- Only complete listings are returned. A listing whose token expired is started again. A listing that never ends counts
  as failed.
- A caller that requests a listing gets a listing that began after the request.
- If the group starts at a timestamp, discovery asks the service once which shards were open at that time. If a group
  that started at LATEST lacks rows, discovery asks which shards were open when the group began (``match_at``).
- If a listing fails permanently, the consumer fails. The summary is optional: if the service refuses it, discovery
  continues.
- When a missing stream exists again, discovery begins with the summary, because the shards alone do not show that the
  stream was re-created.
- A summary can be requested between two listings (``describe_by``), and does not postpone the next listing.
- Listings are numbered in the order in which they begin, so that callers can tell which listings began after an
  observation.
"""

from enum import Enum, auto
from typing import Final, NamedTuple, final

from shardline.codec.shapes import ListShardsResponse, StreamSummary
from shardline.core.backoff import Backoff, Chance
from shardline.core.clock import NEVER, Instant
from shardline.core.consumer.consumer_events import ConsumerFailed, ListingFailed
from shardline.core.error_codes import Failure, FailureKind
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
    """The number of this listing. The listing that began first has the number 1."""


class _Step(Enum):
    SUMMARY = auto()
    MATCHING = auto()  # lists the shards that were open at the start time
    SHARDS = auto()


@final
class Discovery:
    """Schedules the requests that list and describe the stream."""

    def __init__(self, stream: StreamRef, start: Position, interval: float, rng: Chance, now: Instant) -> None:
        self._stream: StreamRef = stream
        self._match_at: float | None = start.timestamp
        self._interval: float = interval
        self._rng: Chance = rng
        self._backoff: Backoff = Backoff(_BACKOFF_FIRST, _BACKOFF_LONGEST, rng)
        self._steps: list[_Step] = []  # the remaining steps of this round, in reverse order
        self._list_at: Instant = now
        self._describe_at: Instant = NEVER
        self._retry_at: Instant = now  # when this round continues
        self._in_flight: bool = False
        self._token: str | None = None
        self._tokens: PageTokens = PageTokens()
        self._found: list[Shard] = []
        self._begun_at: Instant = now
        self._listing: Listing | None = None
        self._events: list[ListingFailed | ConsumerFailed] = []
        self.has_no_summary: bool = False
        """Whether the service refused to describe the stream. Discovery does not ask again."""
        self.described_at: Instant = -NEVER
        """When the last summary was requested."""
        self.begun: int = 0
        """How many listings have begun."""
        self.has_failed: bool = False
        self.summary: StreamSummary | None = None
        self.matching: frozenset[str] | None = None if start.kind is PositionKind.AT_TIMESTAMP else frozenset()
        """The shards that were open at the start time, or ``None`` while they are not known."""

    # ---- commands

    def list_by(self, at: Instant) -> None:
        """Begin a new listing at ``at`` or earlier."""
        # A listing that is planned in this round and has not begun is new enough. A listing in progress began before
        # this call, so the caller needs a further listing in the same round.
        if _Step.SHARDS not in self._steps:
            self._list_at = min(self._list_at, at)
        elif self._is_listing and _Step.SHARDS not in self._steps[:-1]:
            self._steps.insert(0, _Step.SHARDS)  # the listing in progress may be too old for the caller

    def describe_by(self, at: Instant) -> None:
        """Request a new summary at ``at`` or earlier."""
        self._describe_at = min(self._describe_at, at)

    def reset(self) -> None:
        """Ask again which shards were open at the start time, because the stream was re-created."""
        if self.matching:
            self._match_again()

    def match_at(self, timestamp: float) -> bool:
        """Find the shards that were open at ``timestamp``. Return False if the last call had the same ``timestamp``."""
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
        """Return the last complete listing, unless it has already been returned."""
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
        # The backoff of a failed round also delays the next round.
        begin_at = self._list_at if self.has_no_summary else min(self._list_at, self._describe_at)
        return max(begin_at, self._retry_at)

    # ---- inputs

    def handle_summary(self, summary: StreamSummary, now: Instant) -> None:
        self.summary = summary
        self._finish_step(now)

    def handle_page(self, response: ListShardsResponse, now: Instant) -> None:
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
        elif _Step.MATCHING not in self._steps[:-1]:  # otherwise ``match_at`` was called with another time meanwhile
            self.matching = frozenset(shard.shard_id for shard in self._found)
        self._finish_step(now)

    def handle_failure(self, failure: Failure, now: Instant) -> None:
        self._in_flight = False
        self._token = None  # restart the listing: pages of two listings do not fit together
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
        """Wait for a missing stream: list the shards and read the summary again later."""
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
            # The last step of the list may be in progress. The new step is inserted before that step, so that its
            # response is not mistaken for the response to the new step.
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
            # The workers of a fleet often start together. Jitter keeps them from listing together.
            self._list_at = now + self._interval * (0.9 + 0.1 * self._rng.random())
