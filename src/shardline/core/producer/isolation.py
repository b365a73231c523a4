"""Which records of a refused request are to blame?

A request that the service refuses as invalid is taken apart until each invalid record was refused alone. The parts are
sent beside the normal flow, so that later records do not wait for them.

All parts of one refused request are a family. A part is *suspect* while it is known to hold an invalid record: it is
cut up, never sent whole. A part of which nothing is known is sent whole. If it has several records and is refused, the
call was in vain, and the family pays for it with its credit: it starts with a credit of a tenth of its records, and
every part that is stored adds one. Without credit, records are sent one by one, which is never in vain.

Invariants:

- P1: every refused shipment is in a part, which waits or is under way, until it is settled, recalled or given up.
- P9: in order, a part waits for every part of its lane that came before it and shares a key with it.
- At most a quarter of ``max_in_flight`` requests are under way for this, and at least one may be.
- One invalid entry among n takes at most 2 log2(n) + 2 calls.
- If all of n records are invalid, it takes at most 1.1 n calls.
- Within any second at most ``isolation_calls_per_second`` calls are made, if they deliver nothing. A part that is
  stored makes up for itself and for one that was refused.
- Entries that the service names are sent alone and the others together, as long as its names prove right.
"""

import re
from collections import deque
from collections.abc import Callable, Iterator
from heapq import heappop, heappush
from itertools import count
from typing import Final, final

from shardline.core.clock import NEVER, Instant
from shardline.core.failures import Failure
from shardline.core.producer.aggregate import Aggregate
from shardline.core.producer.lane import Lane, Shipment, repacked
from shardline.core.producer.producer_config import ProducerConfig

_SHARE_OF_REQUESTS: Final = 4
_RECORDS_PER_CREDIT: Final = 10
_TWO: Final = 2
_FEW: Final = 4  # records that are sent one by one, all at once, if there is no credit for halves
_MANY: Final = (
    16  # a suspect part of more is cut into quarters, all sent at once: as many calls as halves, in half the time
)
_UNPROVEN_NAMES: Final = 2  # refusals whose names are believed before the first name has proved right
_NAMED_ENTRY: Final = re.compile(r"\bat 'records\.(\d{1,4})\.member\b")  # AWS counts from 1
_SIZE_WORDS: Final = ("less than or equal to", "exceed", "too large", "size")


def named_entries(message: str, entries: int) -> list[int]:
    """The places, from 0, of the entries that AWS's message names, if it names any.

    "2 validation errors detected: Value '' at 'records.3.member.partitionKey' failed to satisfy constraint: ...; Value
    '' at 'records.7.member.partitionKey' failed to satisfy constraint: ..."
    """
    places = {int(number) - 1 for number in _NAMED_ENTRY.findall(message)}
    return sorted(place for place in places if 0 <= place < entries)


def is_about_size(message: str) -> bool:
    """Whether a record may have been refused because it is larger than the stream takes."""
    words = message.lower()
    return "partitionkey'" not in words and any(word in words for word in _SIZE_WORDS)


@final
class Family:
    """What is known of one refused request."""

    __slots__ = ("code", "credit", "found", "lone_in_flight", "message", "unproven_names")

    def __init__(self, failure: Failure, records: int) -> None:
        self.code: str = failure.code
        """Why the service refused the request, or a part of it: the last reason."""
        self.message: str = failure.message
        self.credit: int = records // _RECORDS_PER_CREDIT
        """How many parts of several records may still be sent in vain."""
        self.found: int = 0
        """Invalid records that were refused alone."""
        self.lone_in_flight: int = 0
        """Records under way alone for want of credit: at most one more than were found, so that few are valid."""
        self.unproven_names: float = 0
        """Refusals with names since a name last proved right; ``NEVER`` once a name was wrong."""


@final
class Part:
    """Shipments that wait to be sent in a request of their own, or are under way in one."""

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
        """The service named it as the one to blame."""
        self.origin: Part | None = origin
        """The part from which this lone record was taken."""
        self.sibling: Part | None = None
        """The other half: if this one is stored, the invalid record is in there."""
        self.paid: int = 0
        """The credit that sending it took."""
        self.records: int = sum([len(shipment.aggregate.records) for shipment in shipments])
        self.expires_at: Instant = min(
            [record.expires_at for shipment in shipments for record in shipment.aggregate.records], default=NEVER
        )


@final
class Isolation:
    """Takes refused requests apart."""

    def __init__(self, config: ProducerConfig) -> None:
        self._max_in_flight = max(1, config.max_in_flight // _SHARE_OF_REQUESTS)
        self._calls_per_second = config.isolation_calls_per_second
        self._ordered = config.ordered
        self._numbers = count()
        self._waiting: list[tuple[int, int, Part]] = []  # a heap: the largest first, it frees the most records
        self._flying: dict[Part, None] = {}
        self._calls: deque[Instant] = deque()  # of the last second, without those that were made up for
        self._passed: list[
            tuple[int, int, Part]
        ] = []  # of those that wait: they may not go, while others are looked at
        self._all_blocked = False  # what waits waits for what is under way

    # ---- inputs

    def handle_refused(self, shipments: list[Shipment], part: Part | None, failure: Failure) -> None:
        """The service refused a request of several records as invalid: a part, or one of the normal flow."""
        if part is None:
            family = Family(failure, sum(len(shipment.aggregate.records) for shipment in shipments))
        else:
            family = part.family
            family.code, family.message = failure.code, failure.message
            self._land(part)
        named = named_entries(failure.message, _entries(shipments)) if family.unproven_names < _UNPROVEN_NAMES else []
        if named:
            family.unproven_names += 1
            self._add_named(family, shipments, named)
        else:
            self._add(Part(family, shipments, suspect=True))

    def handle_found(self, part: Part, failure: Failure) -> None:
        """A record was refused alone. Whatever it was taken from may be free of invalid records now."""
        family = part.family
        family.code, family.message = failure.code, failure.message
        family.found += 1
        if part.origin is not None:
            part.origin.suspect = False
        if part.named and family.unproven_names != NEVER:
            family.unproven_names = 0
        self._land(part)

    def handle_stored(self, part: Part) -> None:
        """The service took a part: it holds nothing invalid."""
        part.family.credit += part.paid + 1
        if part.named:
            part.family.unproven_names = NEVER
        if part.sibling is not None:
            part.sibling.suspect = True
        for _ in range(min(2, len(self._calls))):
            self._calls.pop()
        self._land(part)

    def handle_unanswered(self, part: Part) -> None:
        """Whether a part holds something invalid is still unknown, and its records go another way."""
        part.family.credit += part.paid
        self._land(part)

    # ---- outputs

    def poll_part(self, now: Instant) -> Part | None:
        """The next part to send, if one may go now."""
        if self._is_full() or now < self._paced_until():
            return None
        part = self._choose()
        if part is None:
            self._all_blocked = True
            return None
        while self._calls and self._calls[0] + 1.0 <= now:
            self._calls.popleft()
        self._calls.append(now)
        self._flying[part] = None
        return part

    def next_deadline(self) -> Instant:
        """When ``poll_part`` is worth another try, if no answer comes before."""
        return NEVER if not self._waiting or self._all_blocked or self._is_full() else self._paced_until()

    # ---- taking back

    def shipments(self) -> list[Shipment]:
        """All that waits, not what is under way."""
        return [shipment for part in self._idle_parts() for shipment in part.shipments]

    def expires_at(self) -> Instant:
        """When the first record that waits expires, or earlier."""
        return min([part.expires_at for part in self._idle_parts()], default=NEVER)

    def take_all(self) -> list[Shipment]:
        """All that waits, for the end of everything."""
        taken = self.shipments()
        self.sift(lambda _shipment, _family: None)
        return taken

    def recall(self, lanes: set[Lane]) -> list[Shipment]:
        """Take back what these lanes have waiting, in its order."""
        found = [shipment for shipment in self.shipments() if shipment.lane in lanes]
        self.sift(lambda shipment, _family: None if shipment.lane in lanes else shipment)
        return sorted(found, key=lambda shipment: shipment.aggregate.order)

    def sift(self, keep: Callable[[Shipment, Family], Shipment | None]) -> None:
        """Replace every shipment that waits by what ``keep`` leaves of it."""
        waiting = [part for _, _, part in sorted(self._waiting, key=lambda item: item[1])]
        self._waiting.clear()
        for part in self._flying:
            part.sibling = _sifted(part.sibling, keep)
        for part in waiting:
            sibling, part.sibling = _sifted(part.sibling, keep), None
            rest = _sifted(part, keep)
            if rest is None:
                self._add(sibling)  # nothing will be learnt of it
            else:
                rest.sibling = sibling
                self._add(rest)
        self._all_blocked = False

    # ---- inside

    def _is_full(self) -> bool:
        return len(self._flying) >= self._max_in_flight

    def _paced_until(self) -> Instant:
        return -NEVER if len(self._calls) < self._calls_per_second else self._calls[0] + 1.0

    def _idle_parts(self) -> Iterator[Part]:
        for _, _, part in (*self._waiting, *self._passed):
            yield part
            if part.sibling is not None:
                yield part.sibling
        for part in self._flying:
            if part.sibling is not None:
                yield part.sibling

    def _add(self, part: Part | None) -> None:
        if part is not None:
            heappush(self._waiting, (-part.records, next(self._numbers), part))
            self._all_blocked = False

    def _land(self, part: Part) -> None:
        """A part is no longer under way. Its other half need not wait for it any more."""
        del self._flying[part]
        self._all_blocked = False
        if part.origin is not None:
            part.family.lone_in_flight -= 1
        self._add(part.sibling)

    def _add_named(self, family: Family, shipments: list[Shipment], named: list[int]) -> None:
        """The named entries alone, and the others together.

        In order, each run of the others between two named entries is a part: they could have a key of the named one in
        common, and one part of them all would have to go before it and after it.
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

    # ---- which is next

    def _choose(self) -> Part | None:
        """Take the next part that may go out of those that wait, cutting up what cannot go whole."""
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
                chosen = None if goes_whole else self._take_one(part)
                if chosen is None:
                    self._passed.append(item)
        for item in self._passed:
            heappush(self._waiting, item)
        self._passed.clear()
        return chosen

    def _cut_up(self, part: Part) -> bool:
        """Replace a part by smaller ones, if there is credit for sending them in vain."""
        family, credit = part.family, part.family.credit
        entries = _entries(part.shipments)
        units = entries if entries > 1 else part.records  # of one entry: its records
        quarters = min(4, units)
        if part.records <= (_TWO if credit > 1 else _FEW):
            pieces = _pieces(part.shipments, part.records, part.records, by_records=True)
        elif part.suspect and part.records > _MANY and credit >= quarters:
            pieces = _pieces(part.shipments, units, quarters, by_records=entries == 1)
        elif part.suspect and credit > 1:
            pieces = _pieces(part.shipments, units, 2, by_records=entries == 1)
        else:
            return False
        self._release_sibling(part)
        _recount(part.shipments, [shipment for piece in pieces for shipment in piece])
        parts = [Part(family, piece) for piece in pieces]
        if len(parts) == _TWO < part.records:  # halves: the second is sent only if it must be
            parts[0].sibling = parts.pop()
        for piece in parts:
            self._add(piece)
        return True

    def _take_one(self, part: Part) -> Part | None:
        """The first record of a part, to be sent alone; the others go on waiting."""
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
        """A part will not be sent whole: its other half need not wait for it."""
        self._add(part.sibling)
        part.sibling = None

    def _is_clear(self, shipments: list[Shipment]) -> bool:
        """Whether no record with one of their keys stands before them (P9)."""
        if not self._ordered:
            return True
        ours = [(lane, aggregate.order, _keys(aggregate)) for aggregate, lane in shipments]
        for other in (*self._idle_parts(), *self._flying):
            for aggregate, lane in other.shipments:
                for our_lane, order, keys in ours:
                    if lane is our_lane and aggregate.order < order and not keys.isdisjoint(_keys(aggregate)):
                        return False
        return True


def _keys(aggregate: Aggregate) -> set[str | None]:
    """The keys that have an order."""
    return {record.key for record in aggregate.records} - {None}


def _entries(shipments: list[Shipment]) -> int:
    return sum([shipment.aggregate.entry_count for shipment in shipments])


def _cut(shipments: list[Shipment], units: int, *, by_records: bool = False) -> tuple[list[Shipment], list[Shipment]]:
    """The first so many entries, or records, and the others."""
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
    """Cut into so many pieces of equal size, as far as possible."""
    found: list[list[Shipment]] = []
    for number in range(pieces):
        piece, shipments = _cut(
            shipments, units * (number + 1) // pieces - units * number // pieces, by_records=by_records
        )
        found.append(piece)
    return found


def _recount(before: list[Shipment], after: list[Shipment]) -> None:
    """Shipments were cut up: their lanes have more of them under way."""
    for shipment in after:
        shipment.lane.note_settled(-1)
    for shipment in before:
        shipment.lane.note_settled()


def _sifted(part: Part | None, keep: Callable[[Shipment, Family], Shipment | None]) -> Part | None:
    """What is left of a part, if anything is."""
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
