"""What does the stream look like, and is it still the same stream?

Feeds what is discovered into the graph, and judges it.

Invariants:

- A finding that stops the consumer or deletes rows is seen twice in a row first, of one row: a listing can be
  late, and so can the next, if it is begun less than a second after the first came.
- Until a listing is complete and free of doubt, nothing is planned on it.
- A stream that was made anew is told. With ``stop`` nothing is planned any more; with ``restart`` the rows that
  are not of this stream are given up, to be made again from the start position.
- A stream that was there and is missing ends the consumer with ``stop``. With ``restart`` it is waited for: until
  it is back, nothing is planned. One that was never there ends it in any case: its name may be misspelt.
- Once there is reason to believe that the stream is another one, only a listing that was begun after that counts:
  rows made from an older one would have the ranges of shards that are gone, and records be dropped by them.
"""

import math
from typing import TypeAlias, final

from shardline.codec.shapes import ListShardsResponse, StreamSummary
from shardline.core.clock import NEVER, Instant
from shardline.core.consumer.consumer_config import IfRecreated
from shardline.core.consumer.consumer_events import (
    ConsumerFailed,
    ListingFailed,
    ShardTrimmed,
    StreamMissing,
    StreamRecreated,
)
from shardline.core.consumer.discovery import Discovery
from shardline.core.consumer.group_rows import foreign_rows
from shardline.core.consumer.shard_graph import LOOK_AGAIN, Rows, ShardGraph
from shardline.core.failures import Failure, FailureKind
from shardline.core.requests import DescribeStreamSummary, ListShards
from shardline.model.lease import Lease

TopologyEvent: TypeAlias = ListingFailed | ConsumerFailed | ShardTrimmed | StreamMissing | StreamRecreated


@final
class Topology:
    """The stream, as one worker knows it."""

    def __init__(self, discovery: Discovery, if_recreated: IfRecreated) -> None:
        self.discovery: Discovery = discovery
        self._if_recreated: IfRecreated = if_recreated
        self._rows: Rows = {}  # as they were when the listing was begun
        self._listing: int = 0  # the number of the last one that is complete
        self._listing_wanted: int = 1  # the first one to be believed
        self._doubted_since: dict[str, Instant] = {}  # rows that seem to be of another stream
        self._foreign: list[Lease] = []
        self._has_news: bool = False
        self._told_trimmed: set[str] = set()
        self._is_missing: bool = False  # there is no stream of this name
        self._events: list[TopologyEvent] = []
        self.graph: ShardGraph = ShardGraph()
        self.is_halted: bool = False
        """Whether the consumer has to stop."""
        self.listed_at: Instant = -NEVER
        """When the last complete listing came."""
        self.recreations: int = 0
        """How often the stream was found to be another one."""

    @property
    def matching(self) -> frozenset[str]:
        """The shards that were open at the start time, or at the one that was asked for."""
        return self.discovery.matching or frozenset()

    @property
    def is_settled(self) -> bool:
        """Whether plans can be made."""
        is_known = self._listing >= self._listing_wanted and self.discovery.matching is not None
        return is_known and not self._doubted_since and not self.is_halted

    # ---- commands

    def match_at(self, timestamp: float, now: Instant) -> None:
        """See to it that ``matching`` is known for this time, if it is one. Until then nothing is settled."""
        if timestamp < math.inf and self.discovery.match_at(timestamp):
            self.discovery.list_by(now)

    def distrust(self, now: Instant) -> None:
        """Rows are gone that nobody gives up as long as the stream is the same: look at it anew."""
        self._begin_anew()
        self.discovery.list_by(now)

    # ---- outputs, time

    def poll_request(self, rows: Rows, now: Instant) -> ListShards | DescribeStreamSummary | None:
        request = None if self.is_halted else self.discovery.poll_request(now)
        if isinstance(request, ListShards) and request.next_token is None:
            self._rows = dict(rows)
        return request

    def take_news(self) -> bool:
        """Whether a complete listing came since the last call."""
        news, self._has_news = self._has_news, False
        return news

    def take_foreign(self) -> list[Lease]:
        """Rows to delete: they are of the stream that was there before."""
        foreign, self._foreign = self._foreign, []
        return foreign

    def take_events(self) -> list[TopologyEvent]:
        events, self._events = self._events + self.discovery.take_events(), []
        return events

    def next_deadline(self) -> Instant:
        return NEVER if self.is_halted else self.discovery.next_deadline()

    # ---- inputs

    def handle_summary(self, summary: StreamSummary, now: Instant) -> None:
        known = self.discovery.summary
        self.discovery.handle_summary(summary, now)
        if known is not None and known.created_at != summary.created_at:
            self._handle_recreated(f"it was created at {summary.created_at}, and before at {known.created_at}")

    def handle_page(self, response: ListShardsResponse, now: Instant) -> None:
        self._is_missing = False
        self.discovery.handle_page(response, now)
        listing = self.discovery.take_listing()
        if listing is not None:
            self._listing = listing.number
            self.graph.handle_listing(listing.shards, self._rows, listing.begun_at, now)
            self._has_news = True
            self.listed_at = now
            self._judge(listing.begun_at, now)

    def handle_failure(self, failure: Failure, now: Instant) -> None:
        was_there = self._listing > 0
        if failure.kind is FailureKind.NOT_FOUND and was_there and self._if_recreated == "restart":
            self.discovery.handle_missing(now)
            if not self._is_missing:
                self._is_missing = True
                self._events.append(StreamMissing(failure))
            self._begin_anew()
        else:
            self.discovery.handle_failure(failure, now)

    # ---- within

    def _judge(self, begun_at: Instant, now: Instant) -> None:
        foreign = foreign_rows(self.graph, self._rows)
        since = self._doubted_since
        self._doubted_since = {row.shard_id: since.get(row.shard_id, now) for row, _ in foreign}
        if any(begun_at >= at + LOOK_AGAIN for at in self._doubted_since.values()):
            self._handle_recreated(foreign[0][1])
            self._foreign = [] if self.is_halted else [row for row, _ in foreign]
        unfinished = [shard_id for shard_id, row in self._rows.items() if not row.checkpoint.is_finished]
        trimmed = set(filter(self.graph.is_trimmed, unfinished))
        self._events += map(ShardTrimmed, sorted(trimmed - self._told_trimmed))
        self._told_trimmed = trimmed
        if foreign or self.graph.has_doubts:
            self.discovery.list_by(now + LOOK_AGAIN)

    def _handle_recreated(self, why: str) -> None:
        self.recreations += 1
        self._events.append(StreamRecreated(why))
        self._begin_anew()
        self.is_halted = self._if_recreated == "stop"

    def _begin_anew(self) -> None:
        self.discovery.begin_anew()
        self.graph.begin_anew()
        self._listing_wanted = self.discovery.begun + 1
