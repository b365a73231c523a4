"""Tracks the shards of the stream and whether it is still the same stream.

The topology passes the listings of ``Discovery`` to the graph, and compares these listings with the rows.

Invariants:

- Before the consumer stops or deletes rows, two consecutive listings must contradict the same row. A single listing may
  be out of date, and so may the next listing if it begins less than a second after the first arrived.
- Nothing is planned until a listing is complete and contradicts no row.
- A re-created stream is reported. With ``stop``, nothing is planned any more. With ``restart``, the rows of the old
  stream are deleted, and new rows are created at the start position.
- If an existing stream disappears, a consumer with ``stop`` fails. A consumer with ``restart`` waits, and plans nothing
  until the stream exists again. If the stream never existed, the consumer fails in any case, because the name may be
  misspelt.
- Once there is evidence that the stream was re-created, only listings that begin later count. Rows created from an
  older listing would have the hash ranges of shards that are gone, and records would be dropped because of these
  ranges.
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
    StreamReplaced,
)
from shardline.core.consumer.discovery import Discovery
from shardline.core.consumer.group_rows import foreign_rows
from shardline.core.consumer.shard_graph import CONFIRM_AFTER, Rows, ShardGraph
from shardline.core.error_codes import Failure, FailureKind
from shardline.core.requests import DescribeStreamSummary, ListShards
from shardline.model.lease import Lease

TopologyEvent: TypeAlias = ListingFailed | ConsumerFailed | ShardTrimmed | StreamMissing | StreamReplaced


@final
class Topology:
    """The shards of the stream and its identity, as far as one worker knows them."""

    def __init__(self, discovery: Discovery, if_recreated: IfRecreated) -> None:
        self.discovery: Discovery = discovery
        self._if_recreated: IfRecreated = if_recreated
        self._rows: Rows = {}  # the rows at the time when the listing began
        self._listing: int = 0  # the number of the last complete listing
        self._listing_wanted: int = 1  # the number of the first listing that counts
        self._doubted_since: dict[str, Instant] = {}  # since when a row seems to belong to another stream
        self._foreign: list[Lease] = []
        self._has_news: bool = False
        self._reported_trimmed: set[str] = set()
        self._is_missing: bool = False  # whether no stream of this name exists
        self._events: list[TopologyEvent] = []
        self.graph: ShardGraph = ShardGraph()
        self.is_halted: bool = False
        """Whether the consumer has to stop."""
        self.listed_at: Instant = -NEVER
        """When the last complete listing arrived."""
        self.recreations: int = 0
        """How many times the stream was found to be re-created."""

    @property
    def matching(self) -> frozenset[str]:
        """The shards that were open at the start time, or at the time passed to ``match_at``."""
        return self.discovery.matching or frozenset()

    @property
    def is_settled(self) -> bool:
        """Whether the shards are known well enough to make plans."""
        is_known = self._listing >= self._listing_wanted and self.discovery.matching is not None
        return is_known and not self._doubted_since and not self.is_halted

    # ---- commands

    def match_at(self, timestamp: float, now: Instant) -> None:
        """Find the shards that were open at this time (``matching``), unless the time is infinite. Until these shards
        are known, ``is_settled`` is false.
        """
        if timestamp < math.inf and self.discovery.match_at(timestamp):
            self.discovery.list_by(now)

    def distrust(self, now: Instant) -> None:
        """List the shards again, because unfinished rows disappeared: the stream may have been re-created."""
        self._reset()
        self.discovery.list_by(now)

    # ---- outputs, time

    def poll_request(self, rows: Rows, now: Instant) -> ListShards | DescribeStreamSummary | None:
        request = None if self.is_halted else self.discovery.poll_request(now)
        if isinstance(request, ListShards) and request.next_token is None:
            # The listing is compared with the rows at the time when the listing began. Rows that were created later may
            # name shards that are younger than the listing.
            self._rows = dict(rows)
        return request

    def take_news(self) -> bool:
        """Return whether a complete listing arrived since the last call."""
        news, self._has_news = self._has_news, False
        return news

    def take_foreign(self) -> list[Lease]:
        """Return the rows to delete, because they belong to a stream that was deleted."""
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
            self._handle_recreated(f"it was created at {summary.created_at}, the earlier one at {known.created_at}")

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
        # If the stream has never been listed, its name may be misspelt. Waiting for the stream would hide the mistake.
        was_there = self._listing > 0
        if failure.kind is FailureKind.NOT_FOUND and was_there and self._if_recreated == "restart":
            self.discovery.handle_missing(now)
            if not self._is_missing:
                self._is_missing = True
                self._events.append(StreamMissing(failure))
            self._reset()
        else:
            self.discovery.handle_failure(failure, now)

    # ---- internal

    def _judge(self, begun_at: Instant, now: Instant) -> None:
        foreign = foreign_rows(self.graph, self._rows)
        since = self._doubted_since
        self._doubted_since = {row.shard_id: since.get(row.shard_id, now) for row, _ in foreign}
        if any(begun_at >= at + CONFIRM_AFTER for at in self._doubted_since.values()):
            self._handle_recreated(foreign[0][1])
            self._foreign = [] if self.is_halted else [row for row, _ in foreign]
        unfinished = [shard_id for shard_id, row in self._rows.items() if not row.checkpoint.is_finished]
        trimmed = set(filter(self.graph.is_trimmed, unfinished))
        self._events += map(ShardTrimmed, sorted(trimmed - self._reported_trimmed))
        self._reported_trimmed = trimmed
        if foreign or self.graph.has_doubts:
            self.discovery.list_by(now + CONFIRM_AFTER)

    def _handle_recreated(self, why: str) -> None:
        self.recreations += 1
        self._events.append(StreamReplaced(why))
        self._reset()
        self.is_halted = self._if_recreated == "stop"

    def _reset(self) -> None:
        self.discovery.reset()
        self.graph.reset()
        self._listing_wanted = self.discovery.begun + 1
