"""Stores the records of a shard and returns them page by page.

The records that one request put into the shard are stored as one piece of JSON, in the form that GetRecords sends. A
page joins such pieces, which costs a fraction of encoding the page record by record. The pieces are stored one after
the other in a few large segments. As separate objects, allocated between short-lived requests, they would fragment the
heap.

Invariants:

- Records are numbered from 1 without gaps. A reader's place is the number of the next record that it reads.
- Arrival times never decrease, so a time can be found by bisection. All records of a batch have the same arrival time.
- Trimming removes records only from the front. A place before the first remaining record means that record.
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
    """Consecutive records of a shard, held as JSON. Structs are decoded on demand."""

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
        """Return the records as a JSON array between ``before`` and ``after``. The data is copied only once."""
        pieces = self._pieces or [b""]
        pieces = [b"".join([before, b"[", pieces[0]]), *pieces[1:]]
        pieces[-1] = b"".join([pieces[-1], b"]", after])
        return b",".join(pieces)


@final
class _Segments:
    """Memory for batches. It is never moved, and it is freed in large parts."""

    __slots__ = ("_free", "_last", "_segments", "_total")

    def __init__(self) -> None:
        self._segments: dict[int, bytearray] = {}
        self._last = 0
        self._free = 0  # where the free part of the last segment begins
        self._total = 0

    def add(self, content: memoryview) -> int:
        """Store a copy of the content and return its place."""
        size = len(content)
        segment = self._segments.get(self._last)
        if segment is None or self._free + size > len(segment):
            # A new segment is as large as all earlier ones together, so that a small shard needs little memory.
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
        """Free the segments before a place, or all segments if ``before`` is ``None``."""
        keep = self._last + 1 if before is None else before >> _OFFSET_BITS
        for number in [number for number in self._segments if number < keep]:
            del self._segments[number]


@final
class RecordCount:
    """The number of records that several logs hold together. Each ``ShardLog`` adds and subtracts its records."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value: int = 0


@final
class ShardLog:
    """The records of one shard. The log includes its records in ``count``."""

    __slots__ = (
        "_bytes_before", "_count", "_firsts", "_lengths", "_places", "_segments", "_times", "changes", "first",
        "total_bytes", "touched",
    )  # fmt: skip

    def __init__(self, count: RecordCount | None = None) -> None:
        self._count = RecordCount() if count is None else count
        self._segments = _Segments()
        # For each batch: the number of its first record, its place, its length without brackets, and its arrival time.
        self._firsts = array("Q")
        self._places = array("Q")
        self._lengths = array("Q")
        self._times = array("d")
        # For each record: the size in bytes of all records before it, since the shard was created.
        self._bytes_before = array("Q")
        self.first: int = 1
        """The number of the oldest record that the log holds. If the log is empty, the number of the next record."""
        self.total_bytes: int = 0
        """The size in bytes of all records since the shard was created, including trimmed ones."""
        self.changes: int = 0
        """How many times ``touch`` was called."""
        self.touched: set[ShardLog] | None = None
        """The set to which the log adds itself when its subscriptions must be polled. ``Subscriptions`` sets it."""

    def __len__(self) -> int:
        return len(self._bytes_before)

    @property
    def records(self) -> Page:
        """All records that the log holds."""
        return self.between(self.first, self.next)

    @property
    def next(self) -> int:
        """The number of the next record to be added."""
        return self.first + len(self._bytes_before)

    def extend(self, records: list[StoredRecord], sizes: list[int]) -> None:
        """Add a batch: one or more records that arrived at the same time."""
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
        """Request that the log's subscriptions be polled, because there are new records or the shard has changed."""
        self.changes += 1
        if self.touched is not None:
            self.touched.add(self)

    def restore(self, first: int) -> None:
        """Start an empty log at a later number, because the earlier records were trimmed before a restart."""
        assert not self._firsts, "the log is empty"
        self.first = first

    def page(self, place: int, max_records: int, max_bytes: int) -> tuple[Page, int, int]:
        """Return the records from ``place`` on, the place after them, and their size in bytes.

        The first record is returned even if it exceeds ``max_bytes``, unless ``max_records`` is 0.
        """
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
        """Return the records from the number ``first`` to the one before ``end``. The log must hold all of them."""
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
        """Return the number of the first record that arrived at or after ``when``."""
        batch = bisect_left(self._times, when)
        return self._firsts[batch] if batch < len(self._times) else self.next

    def arrival_of(self, place: int) -> float | None:
        """Return the time at which the first record at or after ``place`` arrived, or ``None`` if there is no such
        record.
        """
        place = max(place, self.first)
        return self._times[bisect_right(self._firsts, place) - 1] if place < self.next else None

    def trim(self, before: float) -> int:
        """Remove the records that arrived before the given time, and return how many were removed."""
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
    """Return the JSON of the records from index ``start`` to before index ``end`` of a batch."""
    return b",".join(_split(b"".join([b"[", content, b"]"]))[start:end])
