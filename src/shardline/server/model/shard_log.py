"""Which records does a shard hold, and where does a reader find the next?

What one request put into the shard lies there as GetRecords sends it: as one piece of JSON. A page is pieces joined,
which costs a fraction of writing it record by record. The pieces lie one after the other in a few large segments: on
the heap, between the requests that come and go, they would leave gaps.

Invariants:

- Records are numbered from 1 without gaps; a reader's place is the number of the record that it reads next.
- Arrival times never decrease, so that a time is found by bisection; those of one batch are one.
- Trimming removes from the front only: a place before the first record left means the first record left.
"""

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Final, final, overload

import msgspec


@final
class StoredRecord(msgspec.Struct, gc=False):
    """A record as GetRecords sends it."""

    sequence_number: str = msgspec.field(name="SequenceNumber")
    arrived_at: float = msgspec.field(name="ApproximateArrivalTimestamp")
    data: bytes = msgspec.field(name="Data")
    key: str | msgspec.UnsetType = msgspec.field(name="PartitionKey", default=msgspec.UNSET)
    encryption: str | msgspec.UnsetType = msgspec.field(name="EncryptionType", default=msgspec.UNSET)


_SEGMENT_MIN: Final = 4 * 1024
_SEGMENT_MAX: Final = 1024 * 1024
_OFFSET_BITS: Final = 32

_write: Final = msgspec.json.Encoder().encode
_read: Final = msgspec.json.Decoder(list[StoredRecord]).decode
_split: Final = msgspec.json.Decoder(list[msgspec.Raw]).decode


@final
class Page(Sequence[StoredRecord]):
    """Records that follow each other in a shard: JSON as it is, structs on demand."""

    __slots__ = ("_count", "_pieces")

    def __init__(self, pieces: list[bytes | memoryview], count: int) -> None:
        self._pieces = pieces
        self._count = count

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, at: int) -> StoredRecord: ...
    @overload
    def __getitem__(self, at: slice) -> list[StoredRecord]: ...
    def __getitem__(self, at: int | slice) -> StoredRecord | list[StoredRecord]:
        return _read(self.to_json())[at]

    def __iter__(self) -> Iterator[StoredRecord]:
        return iter(_read(self.to_json()))

    def to_json(self, before: bytes = b"", after: bytes = b"") -> bytes:
        """A JSON array of them all, inside of what stands before and after it. All is copied once."""
        pieces = self._pieces or [b""]
        pieces = [b"".join([before, b"[", pieces[0]]), *pieces[1:]]
        pieces[-1] = b"".join([pieces[-1], b"]", after])
        return b",".join(pieces)


@final
class _Segments:
    """Memory for batches: never moved, and let go of in large parts."""

    __slots__ = ("_free", "_last", "_segments", "_total")

    def __init__(self) -> None:
        self._segments: dict[int, bytearray] = {}
        self._last = 0
        self._free = 0  # where the last one's free part begins
        self._total = 0

    def add(self, content: memoryview) -> int:
        """Take a copy; give its place."""
        size = len(content)
        segment = self._segments.get(self._last)
        if segment is None or self._free + size > len(segment):
            # as large as all before, so that a shard with little in it needs little
            segment = bytearray(max(size, min(self._total, _SEGMENT_MAX), _SEGMENT_MIN))
            self._last, self._free = self._last + 1, 0
            self._segments[self._last] = segment
            self._total += len(segment)
        start, self._free = self._free, self._free + size
        segment[start : self._free] = content
        return self._last << _OFFSET_BITS | start

    def at(self, place: int, size: int) -> memoryview:
        start = place & (1 << _OFFSET_BITS) - 1
        return memoryview(self._segments[place >> _OFFSET_BITS])[start : start + size]

    def drop(self, before: int | None) -> None:
        """Let go of what lies before a place; ``None``: of everything."""
        keep = self._last + 1 if before is None else before >> _OFFSET_BITS
        for number in [number for number in self._segments if number < keep]:
            del self._segments[number]


@final
class RecordCount:
    """How many records several logs hold together. Each log keeps its share of the count up to date."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0


@final
class ShardLog:
    """The records of one shard. The log adds what it holds to ``count``."""

    __slots__ = (
        "_bytes_before", "_count", "_firsts", "_lengths", "_places", "_segments", "_times", "changes", "first",
        "total_bytes", "touched",
    )  # fmt: skip

    def __init__(self, count: RecordCount | None = None) -> None:
        self._count = RecordCount() if count is None else count
        self._segments = _Segments()
        # of each batch: its first record's number, where it lies, its length without brackets, when it arrived
        self._firsts = array("Q")
        self._places = array("Q")
        self._lengths = array("Q")
        self._times = array("d")
        self._bytes_before = array("Q")  # bytes of all records before this one, since the shard began
        self.first = 1
        """The number of the oldest record that is still there (or of the next one to come)."""
        self.total_bytes = 0
        self.changes = 0
        """How often the log was touched."""
        self.touched: set[ShardLog] | None = None
        """Where the log enters itself when a subscription to it must look again; ``Subscriptions`` sets it."""

    def __len__(self) -> int:
        return len(self._bytes_before)

    @property
    def records(self) -> Page:
        """All that is there now."""
        return self.between(self.first, self.next)

    @property
    def next(self) -> int:
        """The number that the next record gets."""
        return self.first + len(self._bytes_before)

    def extend(self, records: list[StoredRecord], sizes: list[int]) -> None:
        """Add a batch: one record or more, that arrived at one time."""
        content = memoryview(_write(records))[1:-1]
        self._firsts.append(self.next)
        self._places.append(self._segments.add(content))
        self._lengths.append(len(content))
        self._times.append(records[0].arrived_at)
        totals = list(accumulate(sizes, initial=self.total_bytes))
        self.total_bytes = totals.pop()
        self._bytes_before.extend(totals)
        self._count.value += len(records)
        self.touch()

    def touch(self) -> None:
        """Make the subscriptions to this log look again: there is something new, or the shard has changed."""
        self.changes += 1
        if self.touched is not None:
            self.touched.add(self)

    def restore(self, first: int) -> None:
        """Begin at a later number: those before were trimmed in an earlier life."""
        assert not self._firsts, "only an empty log can begin elsewhere"
        self.first = first

    def page(self, place: int, max_records: int, max_bytes: int) -> tuple[Page, int, int]:
        """Records from ``place`` on, the place after them, and their size. One record fits, if any may."""
        place = max(place, self.first)
        start, count = place - self.first, len(self._bytes_before)
        if start >= count or not max_records:
            return self.between(place, place), place, 0
        before = self._bytes_before[start]
        end = bisect_right(self._bytes_before, before + max_bytes, start + 1) - 1
        if end == count - 1 and self.total_bytes - before <= max_bytes:
            end = count
        end = max(start + 1, min(end, start + max_records))
        after = self._bytes_before[end] if end < count else self.total_bytes
        return self.between(place, self.first + end), self.first + end, after - before

    def between(self, first: int, end: int) -> Page:
        """Records by their numbers, all of which are there."""
        if first == end:
            return Page([], 0)
        low, high = bisect_right(self._firsts, first) - 1, bisect_left(self._firsts, end)
        pieces: list[bytes | memoryview] = list(map(self._segments.at, self._places[low:high], self._lengths[low:high]))
        ends_at = self._firsts[high] if high < len(self._firsts) else self.next
        if end < ends_at:
            pieces[-1] = _part(pieces[-1], 0, end - self._firsts[high - 1])
        if self._firsts[low] < first:
            pieces[0] = _part(pieces[0], first - self._firsts[low], end - self._firsts[low])
        return Page(pieces, end - first)

    def place_of_time(self, when: float) -> int:
        """The first record that arrived at or after ``when``."""
        batch = bisect_left(self._times, when)
        return self._firsts[batch] if batch < len(self._times) else self.next

    def arrival_of(self, place: int) -> float | None:
        """When the record at (or next after) ``place`` arrived, ``None`` if there is none."""
        place = max(place, self.first)
        return self._times[bisect_right(self._firsts, place) - 1] if place < self.next else None

    def trim(self, before: float) -> int:
        """Remove what arrived before that time; give how many."""
        if not self._times or self._times[0] >= before:
            return 0
        first = self.place_of_time(before)
        count, batches = first - self.first, bisect_left(self._times, before)
        del self._firsts[:batches], self._places[:batches], self._lengths[:batches], self._times[:batches]
        del self._bytes_before[:count]
        self._segments.drop(self._places[0] if self._places else None)
        self.first = first
        self._count.value -= count
        return count


def _part(content: bytes | memoryview, start: int, end: int) -> bytes:
    """Some of the records of a batch."""
    return b",".join(_split(b"".join([b"[", content, b"]"]))[start:end])
