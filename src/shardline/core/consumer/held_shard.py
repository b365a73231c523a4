"""Manages one held lease: the pages that are waiting for the user, the user's cursor, and the reports to the
coordinator.

Invariants (docs/guarantees.md defines the C and L invariants):

- C5, L4: a record is acknowledged under the grant under which it was read, while this grant is in force.
- Records stay in the queue until the user is done with them. A cursor shows the first records of the queue, so
  unfinished records never have to be put back.
- A page leaves the queue, and the prefetch budget, when the user is done with its last record.
- Handlers of a run with ``order="key"`` or ``"none"`` take records from the shard's lanes (``key_lanes``), and finish
  them in any order. A record that is done stays in the queue until all records before it are done, and is not handed
  out again. Only then is it acknowledged, so to the tracker, all records of the shard are done in order (C2).
"""

from collections import deque
from collections.abc import Iterable, Sequence
from itertools import chain, islice
from typing import NamedTuple, final

from shardline.core.clock import Instant
from shardline.core.consumer.coordinator import Coordinator
from shardline.core.consumer.cursor import Cursor
from shardline.core.consumer.grant import Grant
from shardline.core.consumer.handling_lag import HandlingState
from shardline.core.consumer.key_lanes import KeyLanes, ShardLanes
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

    If a method that changes the shard returns a bool, the result says whether the coordinator should be polled soon.
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
        self.filtered: int = 0
        """How many records did not pass the user's filter."""
        self.cursor: Cursor | None = None
        """The cursor that user code has, if any."""
        self.lanes: ShardLanes | None = None
        """The lanes from which handlers take records, or ``None`` if records are handed out in the order of the shard.
        """
        self.placed: dict[Cursor, ShardLanes] = {}
        """The cursors that user code has on records from lanes, with the lanes of each cursor."""
        self._by_key: bool | None = None  # whether the lanes keep the order by key; None if there are to be no lanes
        self._keys: KeyLanes | None = None
        self._first: int = 0  # the place of the first record in ``pages`` that is not done
        self._done: set[int] = set()  # the places of records that are done, although an earlier record is not
        self._passed: Record | None = None  # the last record done early that left ``pages``, until it is acknowledged
        self.children: Children = ()
        self.is_stopping: bool = False
        """Whether the hand-out has stopped the shard: the lease goes to another worker, or the consumer ends."""
        self.is_asked: bool = False
        """Whether the lease goes to another worker, because that worker asked for it or because this one has too many
        leases.
        """
        self.is_paused: bool = False
        """Whether the user has paused the shard. If so, no more records are handed out. The hand-out writes this field.
        """
        self.is_sought: bool = False
        """Whether the user has called ``seek``. If so, the records that were read are void. When the store has written
        the new position, another ``HeldShard`` takes the place of this one.
        """
        self.is_over: bool = False
        """Whether the lease is gone, or the shard was replaced after a seek."""
        self.has_ended: bool = False
        """Whether the user is done with the last record of the shard."""

    @property
    def holding(self) -> Holding | None:
        """The coordinator's record of the lease, if the lease is still held under our grant."""
        holding = self.coordinator.held.holdings.get(self.shard_id)
        return holding if holding is not None and holding.grant is self.grant else None

    def is_same_lease(self, other: "HeldShard") -> bool:
        """Whether both objects represent the same lease, perhaps before and after a seek."""
        return self.key == other.key and self.grant.token == other.grant.token

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
    def is_in_hand(self) -> bool:
        """Whether user code has records of the shard."""
        return self.cursor is not None or bool(self.placed)

    @property
    def done_early(self) -> int:
        """How many records in ``pages`` are done, although an earlier record is not."""
        return len(self._done)

    def is_waiting(self, room: int) -> bool:
        """Whether there are waiting records that may be handed out. ``room`` limits how many records handlers may be
        ahead of the watermark.
        """
        if not self.pages or self.is_stopping or self.cursor is not None:
            return False
        if self._by_key is None:
            return not self.placed
        # The pages without records, at the end of a shard, are passed when all records before them are done.
        return self.lanes is not None and (not self.records or self.lanes.has_waiting(self._first + room))

    @property
    def has_last_page(self) -> bool:
        """Whether the queue holds the last page of the shard."""
        return bool(self.pages) and self.pages[-1].page.is_last

    @property
    def waiting(self) -> int:
        """An upper bound on the number of records that can be handed out: all records that user code does not have."""
        return self.records if self.lanes is None else self.lanes.waiting

    @property
    def oldest_at(self) -> Instant:
        """The arrival time of the page that contains the first waiting record."""
        return self.pages[0].came_at if self.lanes is None else self.lanes.oldest_at

    @property
    def unreported(self) -> int:
        """With manual acknowledgements: the number of records that user code has taken, but that were not reported to
        the tracker yet.
        """
        return self.cursor.place - self.cursor.reported if self.cursor is not None and self.is_manual else 0

    @property
    def next_record(self) -> Record | None:
        """The first record that is waiting for the user."""
        place = self.offset + (0 if self.cursor is None else self.cursor.place)
        if self.placed:
            return None  # an older record is in hand
        for queued in self.pages:
            if place < len(queued.page.records):
                return queued.page.records[place]
            place -= len(queued.page.records)
        return None

    @property
    def handling_state(self) -> HandlingState:
        """The records of the shard that user code has."""
        if self.cursor is not None:
            return self.cursor.handling_state(is_manual=self.is_manual)
        if not self.placed:
            return HandlingState()
        in_hand = sum(len(cursor.records) for cursor in self.placed)
        taken = [cursor.taken_at for cursor in self.placed if cursor.taken_at is not None]
        oldest = None if self.is_over else self._record_at(0)
        return HandlingState(oldest, in_hand, self.records - in_hand - len(self._done), min(taken, default=None))

    @property
    def facts(self) -> ShardFacts:
        """The facts on which the bounds of a run depend."""
        return ShardFacts(
            has_iterator=self.reader.state in WITH_ITERATOR or self.is_stopping,
            # While a seek is in progress, there may be records after the new position.
            has_records=self.is_in_hand or bool(self.pages) or self.reader.has_unopened or self.is_sought,
            has_caught_up=self.reader.has_caught_up,
            has_ended=self.has_ended,
        )

    # ---- pages

    def queue(self, pages: Iterable[Page], now: Instant) -> bool:
        """Queue pages, in the order of the shard."""
        is_due = False
        for page in pages:
            self.filtered += page.filtered
            self.children = page.child_shards
            if page.records or page.is_last:
                self.pages.append(_Queued(page, now))
                self.records += len(page.records)
                if self.lanes is not None:
                    self.lanes.add(page.records, now)
            elif page.through is not None and self.pages:
                # No record of this page passed the filter. These records are done together with the page before them.
                last = self.pages[-1]
                self.pages[-1] = last._replace(page=last.page._replace(through=page.through))
            elif page.through is not None:
                is_due = self.skip(page.through, now) or is_due
        return is_due

    def skip(self, record: Record, now: Instant) -> bool:
        """Count this record, which did not pass the filter, and all such records before it as done. Earlier records
        that were handed out block the checkpoint until they are done.
        """
        if self.holding is None:
            return False
        self.coordinator.held.deliver(self.shard_id, [record])
        return self.acknowledge(record, now, through=not self.is_manual)

    def drop_pages(self) -> None:
        """Forget the queued pages. Their records will be read again."""
        if self.lanes is not None:
            self._drop_untouched(self.lanes.next_place - self._first)
            self.lanes.close()
        if not self.placed:
            self.pages.clear()
            self.offset = self.records = 0

    def _drop_untouched(self, count: int) -> None:
        """Drop all records except the first ``count``. Handlers have some of these, and the watermark may still move
        past them.
        """
        left, kept = self.offset + count, deque[_Queued]()
        for queued in self.pages:
            records = queued.page.records
            if left < len(records):
                kept.append(
                    queued._replace(page=queued.page._replace(records=records[:left], is_last=False, through=None))
                )
                break
            kept.append(queued)
            left -= len(records)
        self.pages, self.records = kept, count

    # ---- lanes

    def use_lanes(self, keys: KeyLanes, *, by_key: bool | None) -> None:
        """From now on, hand out records from these lanes or, with ``None``, in the order of the shard.

        Before any other record is handed out, the records that user code has now are done or given back.
        """
        self._keys, self._by_key = keys, by_key
        if self.lanes is not None:
            self.lanes.close()
            self.lanes = None
        self._begin_lanes()

    def _begin_lanes(self) -> None:
        if self._keys is None or self._by_key is None or self.lanes is not None or self.is_in_hand or self.is_stopping:
            return
        self.lanes = ShardLanes(self._keys, self.key, by_key=self._by_key, first=self._first, done=self._done)
        skipped = self.offset
        for queued in self.pages:
            self.lanes.add(queued.page.records[skipped:], queued.came_at)
            skipped = 0

    def open_lanes(self, limit: int, *, whole: bool, room: int) -> Cursor:
        """Open a cursor on the next records that may be handled now. The cursor is empty if all keys are in flight.

        Args:
            limit: the maximum number of records.
            whole: whether user code takes all records at once, as a batch.
            room: how many places the records may be ahead of the watermark.
        """
        lanes = self.lanes
        assert lanes is not None, "the shard has lanes"
        taken = lanes.take(limit, self._first + room)
        records = [record for _, record in taken]
        cursor = Cursor(records, self.grant, whole=whole, places=[place for place, _ in taken])
        self.grant.is_in_order = False
        self.placed[cursor] = lanes
        if self.holding is not None:
            self.coordinator.held.deliver(self.shard_id, records)
        return cursor

    def close_placed(self, cursor: Cursor, done: int, *, is_kept: bool = False) -> list[Page]:
        """Close a cursor with records from lanes, whose first ``done`` records are done. The others are put back. With
        ``is_kept``, a handler that outlives its run keeps them, and the next run gets them from its own lanes.

        Returns the pages that are finished. If the lanes are closed, or the records are kept, the caller releases the
        keys of the records.
        """
        lanes, places = self.placed.pop(cursor), cursor.places
        assert places is not None, "the records come from lanes"
        if self.is_over:
            return []
        if not lanes.is_closed and not is_kept:
            _return_to(lanes, cursor.records, places, done)
        self._done.update(places[:done])
        through = self._advance(0)
        self.has_ended = self.has_ended or (bool(through) and through[-1].is_last)
        if not self.placed:
            if self.is_stopping:
                self.drop_pages()
            self._begin_lanes()
        return through

    def open(self, limit: int | None, *, whole: bool, room: int) -> Cursor:
        """Open a cursor on the next records.

        Args:
            limit: the maximum number of records. ``None`` means the rest of one page.
            whole: whether user code takes all records at once, as a batch.
            room: with manual acknowledgements, how many records may be unacknowledged. A batch may exceed this limit.
        """
        holding = self.holding
        if self.is_manual and not whole and holding is not None:
            # Limit the cursor, so that user code, which takes records without asking the host, cannot exceed
            # ``max_unacknowledged``. Records that user code gave back already count as unacknowledged.
            room = max(room - holding.tracker.remembered, holding.tracker.returned)
            limit = min(len(self.pages[0].page.records) - self.offset if limit is None else limit, room)
        if self._done:
            # An earlier run may have finished records out of order. The cursor ends before the first of these.
            ahead = min(self._done) - self._first
            limit = min(len(self.pages[0].page.records) - self.offset if limit is None else limit, ahead)
        records = self._next(limit)
        is_last = self.has_last_page and len(records) == self.records
        self.cursor = Cursor(records, self.grant, is_last=is_last, whole=whole)
        self.grant.is_in_order = not self.placed
        if not self.is_manual and holding is not None:
            self.coordinator.held.deliver(self.shard_id, records)
        return self.cursor

    def take_back(self) -> None:
        """Take back the records that user code has not taken from its cursors."""
        for cursor in (self.cursor, *self.placed):
            if cursor is not None:
                cursor.take_back()

    def close(self, done: int) -> list[Page]:
        """Close the cursor, whose first ``done`` records are done. Return the pages that are finished."""
        cursor, self.cursor = self.cursor, None
        assert cursor is not None, "there is a cursor in hand"
        # If the lease is gone, so are the pages. The next owner reads their records again. After a seek, the
        # records are void: not even the end of the shard counts.
        if self.is_over or self.is_sought:
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
        self._begin_lanes()
        return through

    def report_end(self, now: Instant) -> None:
        """Report that the user is done with the last record of the shard (C3)."""
        if self.holding is not None:
            self.coordinator.end(self.shard_id, self.children, now)

    def _next(self, limit: int | None) -> Sequence[Record]:
        first = self.pages[0].page.records
        found = first[self.offset :] if self.offset else first
        if limit is None or len(found) == limit:
            return found
        if len(found) > limit:
            return found[:limit]
        rest = chain.from_iterable(queued.page.records for queued in islice(self.pages, 1, None))
        return [*found, *islice(rest, limit - len(found))]

    def _advance(self, count: int) -> list[Page]:
        """Move past the first ``count`` records, and past the records after them that are already done."""
        through: list[Page] = []
        done, place = self._done, self._first + count
        while place in done:
            done.discard(place)
            place += 1
        if place > self._first + count:
            self._passed = self._record_at(place - self._first - 1)
        count, self._first = place - self._first, place
        self.records -= count
        self.offset += count
        while self.pages and self.offset >= len(self.pages[0].page.records):
            self.offset -= len(self.pages[0].page.records)
            through.append(self.pages.popleft().page)
        return through

    def _record_at(self, count: int) -> Record:
        """Return the record after the first ``count`` records."""
        place = self.offset + count
        # Pages are skipped as a whole, because this code runs for each record of a run with lanes, and a page has many
        # records.
        pages = iter(self.pages)
        while place >= len(records := next(pages).page.records):
            place -= len(records)
        return records[place]

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

    def acknowledge_passed(self, now: Instant) -> bool:
        """Acknowledge the records that were done out of order, as soon as all records before them are done."""
        passed, self._passed = self._passed, None
        if passed is None:
            return False
        self.grant.done_place = passed.sequence_number or "0", passed.sub_sequence
        return self.acknowledge(passed, now, through=True)

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
        if not self.is_stopping or self.is_in_hand or holding is None:
            return False
        if self.is_manual and holding.tracker.unacknowledged:
            return False
        self.coordinator.held.leave(self.shard_id)
        return True

    def check_if_gone(self, now: Instant) -> bool:
        """If the service does not know the shard, request a listing once the user is done with the shard's records."""
        is_through = not self.is_in_hand and not self.pages
        if self.reader.state is not ReaderState.GONE or not is_through or self.holding is None:
            return False
        self.coordinator.mark_missing(self.shard_id, now)
        return True


def _return_to(lanes: ShardLanes, records: Sequence[Record], places: Sequence[int], done: int) -> None:
    """Release the keys of the first ``done`` records, and put back the others."""
    if done < len(records):
        lanes.put_back([*zip(places[done:], records[done:], strict=True)])
        kept = {record.key for record in records[done:]}
        records = [record for record in records[:done] if record.key not in kept]
    if records:
        lanes.release(records)
