"""Manages one held lease: the pages that wait for the user, the user's cursor, and the reports to the coordinator.

Invariants (docs/guarantees.md defines the C and L invariants):

- C5, L4: a record is acknowledged under the grant under which it was read, while this grant is in force.
- Records stay in the queue until the user is done with them. A cursor shows the first records of the queue, so
  unfinished records never have to be put back.
- A page leaves the queue, and the prefetch budget, when the user is done with its last record.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from itertools import chain, islice
from typing import NamedTuple, final

from shardline.core.clock import Instant
from shardline.core.consumer.coordinator import Coordinator
from shardline.core.consumer.cursor import Cursor
from shardline.core.consumer.grant import Grant
from shardline.core.consumer.lease_phases import Holding, Phase
from shardline.core.consumer.reader import WITH_ITERATOR, Children, Page, Reader, ReaderState, ShardKey
from shardline.core.consumer.run_bounds import ShardFacts
from shardline.model.record import Record


@final
class _Queued(NamedTuple):
    page: Page
    came_at: Instant


@final
class HeldShard:
    """The shard of a lease that we hold.

    If a method returns a bool, the bool tells whether the coordinator should be polled soon.
    """

    def __init__(self, coordinator: Coordinator, grant: Grant, reader: Reader, *, is_manual: bool) -> None:
        self.coordinator: Coordinator = coordinator
        self.grant: Grant = grant
        self.reader: Reader = reader
        self.is_manual: bool = is_manual
        """Whether acknowledgements are manual."""
        self.key: ShardKey = reader.key
        self.shard_id: str = reader.shard_id
        self.pages: deque[_Queued] = deque()
        self.offset: int = 0
        """How many records of the first page are done."""
        self.records: int = 0
        """How many records in ``pages`` are not done."""
        self.cursor: Cursor | None = None
        """The cursor that user code has, if any."""
        self.children: Children = ()
        self.is_stopping: bool = False
        """Whether the hand-out has stopped the shard: another worker asked for the lease, or the consumer ends."""
        self.is_asked: bool = False
        """Whether another worker asked for the lease."""
        self.is_over: bool = False
        """Whether the lease is gone."""
        self.has_ended: bool = False
        """Whether the user is done with the last record of the shard."""

    @property
    def holding(self) -> Holding | None:
        """The coordinator's record of the lease, if the lease is still held under our grant."""
        holding = self.coordinator.held.holdings.get(self.shard_id)
        return holding if holding is not None and holding.grant is self.grant else None

    @property
    def is_held(self) -> bool:
        """Whether the lease is held, and its release has not begun."""
        holding = self.holding
        return holding is not None and holding.phase is not Phase.LEAVING

    @property
    def is_full(self) -> bool:
        """Whether no more records of the shard are handed out, because too many are unacknowledged."""
        return self.is_manual and self.coordinator.held.is_full(self.shard_id)

    @property
    def has_last_page(self) -> bool:
        """Whether the queue holds the last page of the shard."""
        return bool(self.pages) and self.pages[-1].page.is_last

    @property
    def oldest_at(self) -> Instant:
        """When the page with the first unfinished record arrived."""
        return self.pages[0].came_at

    @property
    def unreported(self) -> int:
        """With manual acknowledgements: the number of records that user code took and the tracker does not know."""
        return self.cursor.place - self.cursor.reported if self.cursor is not None and self.is_manual else 0

    @property
    def next_record(self) -> Record | None:
        """The first record that waits for the user."""
        place = self.offset + (0 if self.cursor is None else self.cursor.place)
        for queued in self.pages:
            if place < len(queued.page.records):
                return queued.page.records[place]
            place -= len(queued.page.records)
        return None

    @property
    def facts(self) -> ShardFacts:
        """The facts on which the bounds of a run depend."""
        return ShardFacts(
            has_iterator=self.reader.state in WITH_ITERATOR or self.is_stopping,
            has_records=self.cursor is not None or bool(self.pages) or self.reader.has_unopened,
            has_caught_up=self.reader.has_caught_up,
            has_ended=self.has_ended,
        )

    # ---- pages

    def queue(self, pages: Iterable[Page], now: Instant) -> None:
        """Queue pages, in the order of the shard."""
        for page in pages:
            self.pages.append(_Queued(page, now))
            self.records += len(page.records)
            self.children = page.child_shards

    def drop_pages(self) -> None:
        """Forget the queued pages. Their records will be read again."""
        self.pages.clear()
        self.offset = self.records = 0

    def open(self, limit: int | None, *, whole: bool, room: int) -> Cursor:
        """Open a cursor on the next records.

        Args:
            limit: the maximum number of records. ``None``: the rest of one page.
            whole: whether user code takes all records at once, as a batch.
            room: with manual acknowledgements, how many records may be unacknowledged. A batch may exceed this limit.
        """
        holding = self.holding
        if self.is_manual and not whole and holding is not None:
            # Limit the cursor, so that user code, which takes records without asking the host, cannot exceed
            # ``max_unacknowledged``. Records that user code gave back count already.
            room = max(room - holding.tracker.remembered, holding.tracker.returned)
            limit = min(len(self.pages[0].page.records) - self.offset if limit is None else limit, room)
        records = self._first(limit)
        is_last = self.has_last_page and len(records) == self.records
        self.cursor = Cursor(records, self.grant, is_last=is_last, whole=whole)
        if not self.is_manual and holding is not None:
            self.coordinator.held.deliver(self.shard_id, records)
        return self.cursor

    def close(self, done: int) -> list[Page]:
        """Close the cursor, whose first ``done`` records are done. Returns the pages that are finished."""
        cursor, self.cursor = self.cursor, None
        assert cursor is not None, "there is a cursor in hand"
        # If the lease is gone, the pages are gone, too. The next owner reads their records again.
        if self.is_over:
            return []
        if self.is_manual and self.holding is not None:
            self.holding.tracker.take_back(cursor.records[done : cursor.reported])
        if self.is_stopping:
            # The pages were dropped when the shard was stopped. Only the cursor still knows whether its records were
            # the last of the shard.
            through, has_ended = [], cursor.is_last and done == len(cursor.records)
        else:
            through = self._advance(done)
            has_ended = bool(through) and through[-1].is_last
        self.has_ended = self.has_ended or has_ended
        return through

    def report_end(self, now: Instant) -> None:
        """Report that the user is done with the last record of the shard (C3)."""
        if self.holding is not None:
            self.coordinator.end(self.shard_id, self.children, now)

    def _first(self, limit: int | None) -> Sequence[Record]:
        first = self.pages[0].page.records
        found = first[self.offset :] if self.offset else first
        if limit is None or len(found) == limit:
            return found
        if len(found) > limit:
            return found[:limit]
        rest = chain.from_iterable(queued.page.records for queued in islice(self.pages, 1, None))
        return [*found, *islice(rest, limit - len(found))]

    def _advance(self, count: int) -> list[Page]:
        through: list[Page] = []
        self.records -= count
        self.offset += count
        while self.pages and self.offset >= len(self.pages[0].page.records):
            self.offset -= len(self.pages[0].page.records)
            through.append(self.pages.popleft().page)
        return through

    # ---- reports to the coordinator

    def report(self, done: int, now: Instant) -> bool:
        """Report the first ``done`` records of the cursor as done. With manual acknowledgements, report all taken
        records as delivered.
        """
        cursor = self.cursor
        assert cursor is not None, "there is a cursor in hand"
        known = cursor.reported
        if not self.is_manual:
            cursor.reported = max(known, done)
            return done > known and self.acknowledge(cursor.records[done - 1], now, through=True)
        cursor.reported = cursor.place
        if cursor.reported > known and self.holding is not None:
            self.coordinator.held.deliver(self.shard_id, cursor.records[known : cursor.reported])
        return False

    def acknowledge(self, record: Record, now: Instant, *, through: bool) -> bool:
        """Acknowledge the record and, with ``through``, all records before it."""
        holding, held = self.holding, self.coordinator.held
        if holding is None or not self.grant.in_force(now):
            return False  # L4: the lease that the record was read under is gone
        # If the commit is already scheduled, the acknowledgement changes no deadline, and the host need not be woken.
        was_arranged = holding.is_arranged
        accepted = held.ack_through(self.shard_id, record) if through else held.ack(self.shard_id, record)
        return accepted and (not was_arranged or holding.tracker.has_ended)

    def leave_if_done(self) -> bool:
        """Release the lease of a stopped shard once the user is done with its records."""
        holding = self.holding
        if not self.is_stopping or self.cursor is not None or holding is None:
            return False
        if self.is_manual and holding.tracker.unacknowledged:
            return False
        self.coordinator.held.leave(self.shard_id)
        return True

    def check_if_gone(self, now: Instant) -> bool:
        """If the service does not know the shard, request a listing once the user is done with the shard's records."""
        is_through = self.cursor is None and not self.pages
        if self.reader.state is not ReaderState.GONE or not is_through or self.holding is None:
            return False
        self.coordinator.mark_missing(self.shard_id, now)
        return True
