"""Finds when each shard was created and closed. ListShards does not return these times, but four other sources help.

- ``number``: a sequence number in AWS's layout contains the second in which its shard was created, and the shard's
  ending sequence number contains the second in which the shard was closed. This has been observed since 2014, but is
  not documented.
- ``stream``: the first shards are as old as their stream, and no shard is older.
- ``seen``: this console listed the shards before and after the change, so the change was in between.
- ``asked``: ListShards says which shards were open at a time. A few such calls narrow down when a shard was created.

Invariants:

- A time is a range from ``low`` to ``high``. If the source is right, the shard was created (or closed) in between.
- A shard is closed at the moment at which its children are created.
- A second in a number counts only if it is possible: not before the stream was created, and not in the future.
- Times from sequence numbers cost no calls. For the shards without such a time, at most ``QUESTIONS_MAX`` calls are
  made.
- Nothing here reads a clock: the time is an argument.
"""

import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, final

from shardline.cli.streams.shard_tree import age
from shardline.model.sequence import SequenceNumber
from shardline.model.shard import Shard
from shardline.server.model import sequence_numbers

QUESTIONS_MAX: Final = 24
CLOSE_ENOUGH: Final = 60.0
"""A range that is not wider than this many seconds is not narrowed further."""
_CLOCK_ERROR: Final = 60.0
_FIRST_STREAM_AT: Final = 1_383_264_000.0  # November 2013: the first month with Kinesis


@final
@dataclass
class TimeRange:
    """The range of times in which something happened, according to one of the sources."""

    low: float
    high: float
    source: str

    def raise_low(self, at: float, source: str) -> None:
        if self.low < at <= self.high:
            self.low, self.source = at, source

    def lower_high(self, at: float, source: str) -> None:
        if self.low <= at < self.high:
            self.high, self.source = at, source

    def to_json(self) -> dict[str, Any]:
        return {"low": self.low, "high": self.high, "source": self.source}


@final
@dataclass
class LineageTimes:
    """The times of one stream's shards, as far as they are known."""

    stream_created_at: float | None
    _created: dict[str, TimeRange] = field(default_factory=dict[str, TimeRange])
    _closed: dict[str, TimeRange] = field(default_factory=dict[str, TimeRange])
    _shards: dict[str, Shard] = field(default_factory=dict[str, Shard])
    _children: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    _listed_at: float | None = None
    _questions: int = 0

    def add_listing(self, shards: Sequence[Shard], now: float) -> None:
        """Note a complete list of the shards."""
        before, self._shards = self._shards, {shard.shard_id: shard for shard in shards}
        self._children = {}
        for shard in sorted(shards, key=age):
            for parent in shard.parent_ids:
                self._children.setdefault(parent, []).append(shard.shard_id)
            if shard.shard_id not in self._created:
                self._created[shard.shard_id] = self._creation_of(shard, now, is_new=bool(before))
            was_open = shard.shard_id in before and before[shard.shard_id].is_open
            if not shard.is_open and shard.shard_id not in self._closed:
                self._closed[shard.shard_id] = self._closing_of(shard, now, was_open=was_open)
        self._created = {shard_id: span for shard_id, span in self._created.items() if shard_id in self._shards}
        self._closed = {shard_id: span for shard_id, span in self._closed.items() if shard_id in self._shards}
        for parent in self._children:
            self._join(parent)
        self._listed_at = now

    def next_question(self, oldest: float, now: float) -> float | None:
        """Return the time at which to ask which shards were open, or ``None`` if no further answer is needed.

        Args:
            oldest: the beginning of the retention period. The service knows no earlier times.
            now: the current time.
        """
        if self._questions >= QUESTIONS_MAX:
            return None
        ranges = [(max(span.low, oldest), min(span.high, now)) for span in self._created.values()]
        low, high = max(ranges, key=lambda span: span[1] - span[0], default=(now, now))
        return None if high - low <= CLOSE_ENOUGH else (low + high) / 2

    def add_answer(self, at: float, open_then: Iterable[str]) -> None:
        """Note which shards were open at a time."""
        self._questions += 1
        found = set(open_then)
        for shard in sorted(self._shards.values(), key=age, reverse=True):  # children before their parents
            self._join(shard.shard_id)
            created, closed = self._created[shard.shard_id], self._closed.get(shard.shard_id)
            if shard.shard_id in found:
                created.lower_high(at, "asked")
                if closed is not None:
                    closed.raise_low(at, "asked")
            elif closed is None or closed.low >= at:
                created.raise_low(at, "asked")
            elif created.high <= at:
                closed.lower_high(at, "asked")
            self._join(shard.shard_id)

    def stop_asking(self) -> None:
        """Stop asking which shards were open, because the service cannot answer."""
        self._questions = QUESTIONS_MAX

    def to_json(self) -> dict[str, dict[str, Any]]:
        """Return the two times of each shard. An open shard has no time of closing."""
        return {
            shard_id: {
                "created": self._created[shard_id].to_json(),
                "closed": self._closed[shard_id].to_json() if shard_id in self._closed else None,
            }
            for shard_id in self._shards
        }

    def _creation_of(self, shard: Shard, now: float, *, is_new: bool) -> TimeRange:
        second = self._second_of(shard.starting_sequence_number, now)
        if second is not None:
            return TimeRange(second, second + 1, "number")
        earliest = self.stream_created_at if self.stream_created_at is not None else _FIRST_STREAM_AT
        if not shard.parent_ids and self.stream_created_at is not None:
            return TimeRange(earliest, earliest + 1, "stream")
        if is_new and self._listed_at is not None:
            return TimeRange(self._listed_at, now, "seen")
        return TimeRange(min(earliest, now), now, "stream")

    def _closing_of(self, shard: Shard, now: float, *, was_open: bool) -> TimeRange:
        assert shard.ending_sequence_number is not None, "the shard is closed"
        second = self._second_of(shard.ending_sequence_number, now, is_end=True)
        created = self._created[shard.shard_id]
        if second is not None and second + 1 >= created.low:
            return TimeRange(second, second + 1, "number")
        if was_open and self._listed_at is not None:
            return TimeRange(self._listed_at, now, "seen")
        return TimeRange(created.low, now, created.source)

    def _second_of(self, number: SequenceNumber, now: float, *, is_end: bool = False) -> float | None:
        """Return the second that a sequence number contains, or ``None`` if this second is missing or impossible."""
        parts = sequence_numbers.parse(str(number))
        if parts is None:
            return None
        second = float(parts.second if is_end else parts.began)
        earliest = self.stream_created_at if self.stream_created_at is not None else _FIRST_STREAM_AT
        return second if earliest - _CLOCK_ERROR <= second <= now + _CLOCK_ERROR else None

    def _join(self, parent: str) -> None:
        """Exchange what is known about the moment at which a shard was closed and its children were created."""
        closed = self._closed.get(parent)
        if closed is not None:
            for child in self._children.get(parent, ()):
                _narrow(closed, self._created[child])
                _narrow(self._created[child], closed)


def _narrow(span: TimeRange, other: TimeRange) -> None:
    """Narrow a range by another one. A range with the source ``number`` or ``seen`` stays as it is, because numbers of
    a child begin up to a second after the end of its parent.
    """
    if span.source not in {"number", "seen"}:
        span.raise_low(other.low, other.source)
        span.lower_high(other.high, other.source)


def fingerprint(shards: Iterable[Shard]) -> int:
    """Return a number that changes when a shard appears, closes or expires."""
    return zlib.crc32(",".join(sorted(f"{shard.shard_id}{shard.is_open}" for shard in shards)).encode())


def with_times(stream: Mapping[str, Any], times: LineageTimes, now: float) -> dict[str, Any]:
    """Return a stream's JSON object with the times of its shards."""
    known = times.to_json()
    return {**stream, "now": now, "shards": [shard | known[shard["shard_id"]] for shard in stream["shards"]]}
