"""Finds the invalid records in a request that the service refused.

A request that the service refuses as invalid is taken apart until each invalid record has been refused alone. The parts
are sent in parallel with the normal requests, so that later records do not wait for the parts.

All parts of one refused request are a family. A part is *suspect* while it is known to hold an invalid record: the part
is cut up and never sent whole. A part that may be valid is sent whole. If such a part has several records and is
refused, the call was wasted, and the family loses one credit. A family starts with one credit for every ten of its
records, and every part that is stored adds one credit. Without credit, records are sent one by one, because a call
with a single record is never wasted.

Invariants:

- P1: until a refused shipment is settled or recalled, or has failed, it is in a part that is waiting or in flight.
- P9: if ``ordered`` is set, a part waits for every earlier part of the same lane that shares a key with it.
- At most a quarter of the ``max_in_flight`` requests are used for isolation, but one request is always allowed.
- One invalid entry among n takes at most 2 log2(n) + 2 calls.
- If all of n records are invalid, isolating them takes at most 1.1 n calls.
- In any second, at most ``isolation_calls_per_second`` calls may deliver nothing. When a part is stored, its own call
  and one of the refused calls are no longer counted.
- If the service's message names entries, these entries are sent alone and the other entries together. The message is
  believed until an entry that it named proves to be valid.
"""

import re
from collections import deque
from collections.abc import Callable, Iterator
from heapq import heappop, heappush
from itertools import count
from typing import Final, final

from shardline.core.clock import NEVER, Instant
from shardline.core.error_codes import Failure
from shardline.core.producer.aggregate import Aggregate
from shardline.core.producer.lane import Lane, Shipment, repacked
from shardline.core.producer.producer_config import ProducerConfig

_SHARE_OF_REQUESTS: Final = 4
_RECORDS_PER_CREDIT: Final = 10
_TWO: Final = 2
# Without credit for halves, a part of at most this many records is cut into single records that are sent concurrently.
_FEW_RECORDS: Final = 4
# A suspect part of more records is cut into quarters that are sent concurrently. Quarters need as many calls as halves,
# but half the time.
_MANY_RECORDS: Final = 16
_UNPROVEN_NAMES: Final = 2  # how many refusals are believed before a named entry has proved to be invalid
_NAMED_ENTRY: Final = re.compile(r"\bat 'records\.(\d{1,4})\.member\b")  # AWS counts from 1
_SIZE_WORDS: Final = ("less than or equal to", "exceed", "too large", "size")


def named_entries(message: str, entries: int) -> list[int]:
    """Return the indexes, from 0, of the entries that AWS's message names. The list may be empty. For example:

    "2 validation errors detected: Value '' at 'records.3.member.partitionKey' failed to satisfy constraint: ...; Value
    '' at 'records.7.member.partitionKey' failed to satisfy constraint: ..."
    """
    places = {int(number) - 1 for number in _NAMED_ENTRY.findall(message)}
    return sorted(place for place in places if 0 <= place < entries)


def is_about_size(message: str) -> bool:
    """Return whether the message may mean that a record is larger than the stream accepts."""
    words = message.lower()
    return "partitionkey'" not in words and any(word in words for word in _SIZE_WORDS)


@final
class Family:
    """The facts that all parts of one refused request share."""

    __slots__ = ("code", "credit", "found", "lone_in_flight", "message", "unproven_names")

    def __init__(self, failure: Failure, records: int) -> None:
        self.code: str = failure.code
        """The code of the last refusal of the request or of one of its parts."""
        self.message: str = failure.message
        """The service's message for the last refusal of the request or of one of its parts."""
        self.credit: int = records // _RECORDS_PER_CREDIT
        """How many calls with several records may still be wasted."""
        self.found: int = 0
        """The number of invalid records that were refused alone."""
        self.lone_in_flight: int = 0
        """The number of records that are in flight alone because there is no credit.

        This number is at most ``found + 1``, to limit the calls that are spent on single valid records.
        """
        self.unproven_names: float = 0
        """The number of refusals that named entries since a named entry last proved to be invalid. This is ``NEVER``
        once a named entry has proved to be valid.
        """


@final
class Part:
    """Shipments that share a separate request, which waits to be sent or is in flight."""

    __slots__ = ("expires_at", "family", "named", "origin", "paid", "records", "shipments", "sibling", "suspect")

    def __init__(
        self,
        family: Family,
        shipments: list[Shipment],
        *,
        suspect: bool = False,
        named: bool = False,
        origin: "Part | None" = None,
    ) -> None:
        self.family: Family = family
        self.shipments: list[Shipment] = shipments
        self.suspect: bool = suspect
        self.named: bool = named
        """Whether the service's message named this entry."""
        self.origin: Part | None = origin
        """The part from which this single record was taken because there was no credit."""
        self.sibling: Part | None = None
        """The other half, which waits for this half. If this half is stored, the sibling holds the invalid record."""
        self.paid: int = 0
        """The amount of the family's credit that was spent to send this part."""
        self.records: int = sum([len(shipment.aggregate.records) for shipment in shipments])
        self.expires_at: Instant = min(
            [record.deadline for shipment in shipments for record in shipment.aggregate.records], default=NEVER
        )


@final
class Isolation:
    """Takes refused requests apart to find the invalid records."""

    def __init__(self, config: ProducerConfig) -> None:
        self._max_in_flight = max(1, config.max_in_flight // _SHARE_OF_REQUESTS)
        self._calls_per_second = config.isolation_calls_per_second
        self._ordered = config.ordered
        self._numbers = count()
        self._waiting: list[tuple[int, int, Part]] = []  # a heap; the largest part, which may free the most, is first
        self._in_flight: dict[Part, None] = {}
        self._calls: deque[Instant] = deque()  # the times of the calls that still count against the limit
        self._passed_over: list[tuple[int, int, Part]] = []  # while ``_choose`` runs: parts that may not be sent
        self._all_blocked = False  # whether every waiting part waits for a part that is in flight

    # ---- inputs

    def handle_refused(self, shipments: list[Shipment], part: Part | None, failure: Failure) -> None:
        """Take apart a request of several records that the service refused as invalid.

        Args:
            shipments: the content of the request.
            part: the part that the request sent; ``None`` for a normal request.
            failure: why the service refused the request.
        """
        if part is None:
            family = Family(failure, sum(len(shipment.aggregate.records) for shipment in shipments))
        else:
            family = part.family
            family.code, family.message = failure.code, failure.message
            self._finish(part)
        named = named_entries(failure.message, _entries(shipments)) if family.unproven_names < _UNPROVEN_NAMES else []
        if named:
            family.unproven_names += 1
            self._add_named(family, shipments, named)
        else:
            self._add(Part(family, shipments, suspect=True))

    def handle_found(self, part: Part, failure: Failure) -> None:
        """Called when a record was refused alone, and so is invalid. The rest of the part it came from may be valid."""
        family = part.family
        family.code, family.message = failure.code, failure.message
        family.found += 1
        if part.origin is not None:
            part.origin.suspect = False  # the record may have been the only invalid one of that part
        if part.named and family.unproven_names != NEVER:
            family.unproven_names = 0
        self._finish(part)

    def handle_stored(self, part: Part) -> None:
        """Called when the service stored a part, which shows that all its records are valid."""
        part.family.credit += part.paid + 1
        if part.named:
            part.family.unproven_names = NEVER  # the service named a valid entry, so its names are no longer believed
        if part.sibling is not None:
            part.sibling.suspect = True  # one of the two halves holds an invalid record, and this half does not
        for _ in range(min(2, len(self._calls))):
            self._calls.pop()  # this call delivered records: it does not count, and it makes up for one failed call
        self._finish(part)

    def handle_unanswered(self, part: Part) -> None:
        """Called when a part's request failed and the part is not taken apart further, for example after a timeout. The
        caller sends the part's records again or fails them.
        """
        part.family.credit += part.paid
        self._finish(part)

    # ---- outputs

    def poll_part(self, now: Instant) -> Part | None:
        """Return the next part to send, if one may be sent now."""
        if self._is_full() or now < self._paced_until():
            return None
        part = self._choose()
        if part is None:
            self._all_blocked = True
            return None
        while self._calls and self._calls[0] + 1.0 <= now:
            self._calls.popleft()
        self._calls.append(now)
        self._in_flight[part] = None
        return part

    def next_deadline(self) -> Instant:
        """Return the time at which to call ``poll_part`` again, unless a request is answered before that time."""
        return NEVER if not self._waiting or self._all_blocked or self._is_full() else self._paced_until()

    # ---- taking back

    def shipments(self) -> list[Shipment]:
        """Return all shipments that are waiting to be sent. Shipments in flight are left out."""
        return [shipment for part in self._idle_parts() for shipment in part.shipments]

    def expires_at(self) -> Instant:
        """Return a time before which no waiting record expires."""
        return min([part.expires_at for part in self._idle_parts()], default=NEVER)

    def take_all(self) -> list[Shipment]:
        """Take all waiting shipments, because the producer is closing."""
        taken = self.shipments()
        self.filter_waiting(lambda _shipment, _family: None)
        return taken

    def recall(self, lanes: set[Lane]) -> list[Shipment]:
        """Take the waiting shipments of these lanes, in order."""
        found = [shipment for shipment in self.shipments() if shipment.lane in lanes]
        self.filter_waiting(lambda shipment, _family: None if shipment.lane in lanes else shipment)
        return sorted(found, key=lambda shipment: shipment.aggregate.order)

    def filter_waiting(self, keep: Callable[[Shipment, Family], Shipment | None]) -> None:
        """Replace every waiting shipment with the result of ``keep``. If that is ``None``, remove the shipment."""
        waiting = [part for _, _, part in sorted(self._waiting, key=lambda item: item[1])]
        self._waiting.clear()
        # Parts in flight stay whole, because the answers must match them. Only the waiting siblings of these parts are
        # filtered.
        for part in self._in_flight:
            part.sibling = _filtered(part.sibling, keep)
        for part in waiting:
            sibling, part.sibling = _filtered(part.sibling, keep), None
            rest = _filtered(part, keep)
            if rest is None:
                self._add(sibling)  # the other half is not sent, so the sibling has no reason to wait
            else:
                rest.sibling = sibling
                self._add(rest)
        self._all_blocked = False

    # ---- internal

    def _is_full(self) -> bool:
        return len(self._in_flight) >= self._max_in_flight

    def _paced_until(self) -> Instant:
        return -NEVER if len(self._calls) < self._calls_per_second else self._calls[0] + 1.0

    def _idle_parts(self) -> Iterator[Part]:
        for _, _, part in (*self._waiting, *self._passed_over):
            yield part
            if part.sibling is not None:
                yield part.sibling
        for part in self._in_flight:
            if part.sibling is not None:
                yield part.sibling

    def _add(self, part: Part | None) -> None:
        if part is not None:
            heappush(self._waiting, (-part.records, next(self._numbers), part))
            self._all_blocked = False

    def _finish(self, part: Part) -> None:
        """Remove a part that is no longer in flight, and let its sibling be sent."""
        del self._in_flight[part]
        self._all_blocked = False
        if part.origin is not None:
            part.family.lone_in_flight -= 1
        self._add(part.sibling)

    def _add_named(self, family: Family, shipments: list[Shipment], named: list[int]) -> None:
        """Add each named entry as a separate part, and the other entries as one part.

        If ``ordered`` is set, each run of entries between two named entries becomes a part. A single part of all other
        entries could share a key with a named entry and would have to be sent both before and after that entry.
        """
        others: list[Shipment] = []
        at = 0
        whole = shipments
        parts: list[Part] = []
        for place in named:
            run, shipments = _cut(shipments, place - at)
            entry, shipments = _cut(shipments, 1)
            at = place + 1
            if self._ordered:
                parts.append(Part(family, run))
            else:
                others += run
            parts.append(Part(family, entry, named=True))
            parts[-1].suspect = parts[-1].records > 1
        parts.append(Part(family, others + shipments))
        _recount(whole, [shipment for part in parts for shipment in part.shipments])
        for part in parts:
            if part.shipments:
                self._add(part)

    # ---- choosing the next part

    def _choose(self) -> Part | None:
        """Take the next waiting part that may be sent. Cut up parts that must not be sent whole."""
        chosen: Part | None = None
        while self._waiting and chosen is None:
            item = heappop(self._waiting)
            part = item[2]
            goes_whole = part.records == 1 or (not part.suspect and part.family.credit > 0)
            if goes_whole and self._is_clear(part.shipments):
                chosen = part
                part.paid = int(part.records > 1)
                part.family.credit -= part.paid
            elif goes_whole or not self._cut_up(part):
                chosen = None if goes_whole else self._take_first_record(part)
                if chosen is None:
                    self._passed_over.append(item)
        for item in self._passed_over:
            heappush(self._waiting, item)
        self._passed_over.clear()
        return chosen

    def _cut_up(self, part: Part) -> bool:
        """Replace a part with smaller parts, if there is credit for wasted calls. Return whether this was done."""
        family, credit = part.family, part.family.credit
        entries = _entries(part.shipments)
        units = entries if entries > 1 else part.records  # a single entry is cut between its records
        quarters = min(4, units)
        if part.records <= (_TWO if credit > 1 else _FEW_RECORDS):
            pieces = _pieces(part.shipments, part.records, part.records, by_records=True)
        elif part.suspect and part.records > _MANY_RECORDS and credit >= quarters:
            pieces = _pieces(part.shipments, units, quarters, by_records=entries == 1)
        elif part.suspect and credit > 1:
            pieces = _pieces(part.shipments, units, 2, by_records=entries == 1)
        else:
            return False
        self._release_sibling(part)
        _recount(part.shipments, [shipment for piece in pieces for shipment in piece])
        parts = [Part(family, piece) for piece in pieces]
        if len(parts) == _TWO < part.records:  # the first half may show which half is invalid, so the second waits
            parts[0].sibling = parts.pop()
        for piece in parts:
            self._add(piece)
        return True

    def _take_first_record(self, part: Part) -> Part | None:
        """Cut the first record off a part, to send it alone. The other records keep waiting."""
        family = part.family
        if family.lone_in_flight > family.found:
            return None
        first, rest = _cut(part.shipments, 1, by_records=True)
        if not self._is_clear(first):
            return None
        self._release_sibling(part)
        _recount(part.shipments, first + rest)
        part.shipments = rest
        part.records -= 1
        family.lone_in_flight += 1
        self._add(part)
        return Part(family, first, origin=part)

    def _release_sibling(self, part: Part) -> None:
        """Let the sibling of a part be sent, because the part itself will not be sent whole."""
        self._add(part.sibling)
        part.sibling = None

    def _is_clear(self, shipments: list[Shipment]) -> bool:
        """Return whether no earlier shipment of the same lanes shares a key with these shipments (P9)."""
        if not self._ordered:
            return True
        ours = [(lane, aggregate.order, _keys(aggregate)) for aggregate, lane in shipments]
        for other in (*self._idle_parts(), *self._in_flight):
            for aggregate, lane in other.shipments:
                for our_lane, order, keys in ours:
                    if lane is our_lane and aggregate.order < order and not keys.isdisjoint(_keys(aggregate)):
                        return False
        return True


def _keys(aggregate: Aggregate) -> set[str | None]:
    """Return the keys of an aggregate's records. Keyless records are left out, because they have no order to keep."""
    return {record.key for record in aggregate.records} - {None}


def _entries(shipments: list[Shipment]) -> int:
    return sum([shipment.aggregate.entry_count for shipment in shipments])


def _cut(shipments: list[Shipment], units: int, *, by_records: bool = False) -> tuple[list[Shipment], list[Shipment]]:
    """Split shipments after this many entries, or after this many records if ``by_records`` is set."""
    for at, (aggregate, lane) in enumerate(shipments):
        size = len(aggregate.records) if by_records else aggregate.entry_count
        if units >= size:
            units -= size
            continue
        if not units:
            return shipments[:at], shipments[at:]
        first = Shipment(repacked(aggregate.records[:units], aggregate.due_at, aggregate), lane)
        rest = Shipment(repacked(aggregate.records[units:], aggregate.due_at, aggregate, units), lane)
        return [*shipments[:at], first], [rest, *shipments[at + 1 :]]
    return shipments, []


def _pieces(shipments: list[Shipment], units: int, pieces: int, *, by_records: bool) -> list[list[Shipment]]:
    """Cut shipments into this many pieces of nearly equal size."""
    found: list[list[Shipment]] = []
    for number in range(pieces):
        piece, shipments = _cut(
            shipments, units * (number + 1) // pieces - units * number // pieces, by_records=by_records
        )
        found.append(piece)
    return found


def _recount(before: list[Shipment], after: list[Shipment]) -> None:
    """Correct the lanes' counts of aggregates in flight, because shipments were cut up."""
    for shipment in after:
        shipment.lane.note_settled(-1)
    for shipment in before:
        shipment.lane.note_settled()


def _filtered(part: Part | None, keep: Callable[[Shipment, Family], Shipment | None]) -> Part | None:
    """Replace the shipments of a part as ``filter_waiting`` does. Return ``None`` if no shipment is left."""
    if part is None:
        return None
    family = part.family
    kept = [shipment for shipment in [keep(shipment, family) for shipment in part.shipments] if shipment is not None]
    if not kept:
        part.shipments, part.records, part.expires_at = [], 0, NEVER
        return None
    rest = Part(family, kept)
    part.shipments, part.records, part.expires_at = kept, rest.records, rest.expires_at
    return part
