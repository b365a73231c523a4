"""Which records of a shard are copies of records that were read before?

A producer with ``dedup`` stamps each record with a producer id and a number (``codec.stamps``). If a retry stores a
record twice, both copies have the same stamp. ``DedupWindow`` remembers the stamps of a shard and of its ancestors, and
the reader leaves out the records whose stamps it knows.

Why no record is lost: a copy is left out only if an earlier record of the same lineage has the same stamp. That record
was done before the lease was gained (its stamp was stored beside the checkpoint), or it was read under the same lease.
In the second case, the checkpoint passes the copy only after the earlier record is done (C2), because a record that was
left out counts as done together with the records before it. If the worker dies first, both records are read again.

Invariants:

- The text that is stored with a checkpoint contains only stamps of records at or before this checkpoint. Records after
  the checkpoint are read again by the next owner, and must not count as copies.
- The text names the checkpoint with which it was written, and counts only while the row's checkpoint is at or after
  that one. So the group skips no records if a tool that does not know the text sets the checkpoint back.
- The window is bounded: it has at most ``PRODUCERS_MAX`` ids and ``RANGES_MAX`` ranges of numbers. If there is no room,
  it forgets the lowest ranges, or the id that has been silent for the longest time, and counts them in ``forgotten``,
  because copies of forgotten records get through. An id that has been silent for ``SILENCE_MAX`` seconds is forgotten
  without being counted.
- Remembering the number that follows a known range takes no more memory, and constant time. A range takes 16 bytes.
"""

from array import array
from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Iterator
from heapq import heapify, heappop, heappush, heapreplace
from typing import Final, TypeAlias, final

from shardline.codec.stamps import ID_CHARACTERS, NUMBERS, StampRun
from shardline.model.lease import Checkpoint, Lease
from shardline.model.position import TRIM_HORIZON
from shardline.model.sequence import SequenceNumber

PRODUCERS_MAX: Final = 128
RANGES_MAX: Final = 256
SILENCE_MAX: Final = 3600.0
_FINISHED: Final = "END"
_FORMAT: Final = "1"


@final
class _Numbers:
    """The numbers of one producer id that were seen, as ranges: first, last + 1, first, last + 1, ..."""

    __slots__ = ("bounds", "newest_at")

    def __init__(self, bounds: Iterable[int] = (), newest_at: float = 0.0) -> None:
        self.bounds: array[int] = array("L", bounds)
        self.newest_at: float = newest_at
        """When the newest record with this id arrived, by the service's clock."""

    def join(self, first: int, end: int) -> bool:
        """Add the numbers from ``first`` to ``end`` - 1, even if some are known. Return False if ``first`` is known."""
        bounds = self.bounds
        at = bisect_right(bounds, first)
        is_new = at % 2 == 0
        if not is_new or (at and bounds[at - 1] == first):  # inside a range, or right after one
            at -= 1 if not is_new else 2
            first = bounds[at]
        to = at
        while to < len(bounds) and bounds[to] <= end:  # these ranges become one
            end = max(end, bounds[to + 1])
            to += 2
        bounds[at:to] = array("L", (first, end))
        return is_new


@final
class SeenStamps:
    """A bounded set of stamps."""

    __slots__ = ("_by_age", "_ranges", "by_id", "forgotten")

    def __init__(self) -> None:
        self.by_id: dict[bytes, _Numbers] = {}
        """The numbers of each producer id. Each id has at least one number."""
        self._by_age: list[tuple[float, bytes]] = []
        """A heap of all ids, each with the arrival time of its newest record, or of an earlier record."""
        self._ranges: int = 0
        self.forgotten: int = 0
        """How many ranges or ids were forgotten although copies of their records may still come."""

    def __len__(self) -> int:
        return self._ranges

    @property
    def producers(self) -> int:
        """How many producer ids the set contains."""
        return len(self.by_id)

    def admit(self, producer: bytes, first: int, end: int, arrived_at: float) -> bool | None:
        """Add the stamps from number ``first`` to ``end`` - 1, if all of them are new. Return False if all of them are
        known. If only some of them are known, add nothing and return ``None``.

        ``arrived_at`` is the time at which the service received the record.
        """
        numbers = self.by_id.get(producer)
        if numbers is None:
            self._add_id(producer, array("L", (first, end)), arrived_at)
            return True
        bounds = numbers.bounds
        at = bisect_right(bounds, first)
        if at % 2:  # inside a range
            return False if end <= bounds[at] else None
        is_last = at == len(bounds)
        if not is_last and end > bounds[at]:
            return None
        if arrived_at > numbers.newest_at:  # noqa: PLR1730 - faster than max
            numbers.newest_at = arrived_at
        # No known range overlaps these numbers. The ranges directly before and after them may be adjacent to them.
        is_joined = not is_last and end == bounds[at]
        if at and first == bounds[at - 1]:
            if is_joined:
                del bounds[at - 1 : at + 1]
                self._ranges -= 1
            else:
                bounds[at - 1] = end
        elif is_joined:
            bounds[at] = first
        else:
            bounds.insert(at, end)
            bounds.insert(at, first)
            self._add_ranges(1)
        return True

    def add(self, producer: bytes, first: int, end: int, arrived_at: float) -> bool:
        """Add the stamps from number ``first`` to ``end`` - 1, even if some of them are known. Return False if the
        first stamp is already known.

        ``arrived_at`` is the time at which the service received the record.
        """
        if self.admit(producer, first, end, arrived_at):
            return True
        numbers = self.by_id[producer]
        numbers.newest_at = max(numbers.newest_at, arrived_at)
        before = len(numbers.bounds)
        is_new = numbers.join(first, end)
        self._add_ranges((len(numbers.bounds) - before) // 2)
        return is_new

    def add_all(self, other: "SeenStamps") -> None:
        """Add all stamps of another set."""
        for producer, first, end, newest_at in other.ranges():
            self.add(producer, first, end, newest_at)

    def add_range(self, producer: bytes, first: int, end: int, arrived_at: float) -> None:
        """Like ``add``, but the range may be empty."""
        if first < end:
            self.add(producer, first, end, arrived_at)

    def ranges(self) -> Iterator[tuple[bytes, int, int, float]]:
        """Yield all ranges: the producer id, the first number, the last number plus 1, and the arrival time of the id's
        newest record.
        """
        for producer, numbers in self.by_id.items():
            bounds = numbers.bounds
            for at in range(0, len(bounds), 2):
                yield producer, bounds[at], bounds[at + 1], numbers.newest_at

    def _add_id(self, producer: bytes, bounds: "array[int]", arrived_at: float) -> None:
        """Add an id. If there is no room, forget the ids that have been silent for too long. If there is no such id,
        forget the id that has been silent for the longest time.
        """
        by_id, by_age = self.by_id, self._by_age
        if len(by_id) >= PRODUCERS_MAX:
            while by_age:
                newest_at, oldest = by_age[0]
                numbers = by_id[oldest]
                if numbers.newest_at > newest_at:  # the id had records after this entry was made
                    heapreplace(by_age, (numbers.newest_at, oldest))
                    continue
                is_silent = arrived_at - newest_at > SILENCE_MAX
                if not is_silent and len(by_id) < PRODUCERS_MAX:
                    break
                heappop(by_age)
                self._ranges -= len(by_id.pop(oldest).bounds) // 2
                self.forgotten += not is_silent
        by_id[producer] = _Numbers(bounds, arrived_at)
        heappush(by_age, (arrived_at, producer))
        self._add_ranges(1)

    def _add_ranges(self, count: int) -> None:
        self._ranges += count
        if self._ranges > RANGES_MAX:
            self._forget_lowest()

    def _forget_lowest(self) -> None:
        """Among the ids with the most ranges, forget the lowest numbers, which belong to the oldest records.

        An eighth of all ranges is forgotten at once, because it takes time to find these ids. Every id keeps a range,
        because there is room for more ranges than ids.
        """
        excess = self._ranges - RANGES_MAX + RANGES_MAX // 8
        by_size = [(-len(numbers.bounds), producer) for producer, numbers in self.by_id.items()]
        heapify(by_size)
        cuts: dict[bytes, int] = {}
        for _ in range(excess):
            size, producer = by_size[0]
            cuts[producer] = cuts.get(producer, 0) + 2
            heapreplace(by_size, (size + 2, producer))
        for producer, cut in cuts.items():
            del self.by_id[producer].bounds[:cut]
        self._ranges -= excess
        self.forgotten += excess

    # ---- text

    def encode(self) -> str:
        """Return the set as text: ``id@seconds:first-end,first-end`` for each id, with numbers in base 16."""
        return ";".join(
            [
                f"{producer.decode()}@{int(numbers.newest_at):x}:{_encode_ranges(numbers.bounds)}"
                for producer, numbers in self.by_id.items()
            ]
        )

    @classmethod
    def decode(cls, text: str) -> "SeenStamps":
        """Return the set that ``encode`` turned into this text.

        Raises:
            ValueError: the text is not such a set.
        """
        seen = cls()
        for part in text.split(";") if text else ():
            producer, _, rest = part.partition("@")
            newest_at, _, ranges = rest.partition(":")
            if len(producer) != ID_CHARACTERS:
                raise ValueError(f"not a producer id: {producer!r}")
            for piece in ranges.split(","):
                first, _, end = piece.partition("-")
                if not 0 <= int(first, 16) < int(end, 16) <= NUMBERS:
                    raise ValueError(f"not a range of numbers: {piece!r}")
                seen.add(producer.encode(), int(first, 16), int(end, 16), float(int(newest_at, 16)))
        return seen


def _encode_ranges(bounds: "array[int]") -> str:
    return ",".join([f"{bounds[at]:x}-{bounds[at + 1]:x}" for at in range(0, len(bounds), 2)])


_Run: TypeAlias = tuple[int, int, bytes, int, int, float]
"""Records of one aggregate with consecutive sub-sequences and consecutive numbers: the sequence number, the first
sub-sequence, the producer id, the first number, the last number plus 1, and when the service received them."""


@final
class DedupWindow:
    """The stamps of one shard, while its lease is held."""

    __slots__ = ("_ahead", "_done", "_read", "_reported")

    def __init__(self, done: SeenStamps) -> None:
        self._done: SeenStamps = done  # the stamps at or before the last checkpoint that was encoded
        self._read: SeenStamps = SeenStamps()  # the stamps of all records that were read
        self._read.add_all(done)
        self._ahead: deque[_Run] = deque()  # the stamps that are in ``_read`` and not in ``_done``, in order
        self._reported: int = 0

    @classmethod
    def inherited(cls, row: Lease, parents: Iterable[Lease]) -> "DedupWindow":
        """Return the window of a lease that was just gained.

        Args:
            row: the row of the lease.
            parents: the rows of the shard's parents, as far as they are known. If no record of the shard was committed,
                the shard inherits the stamps of its parents (after a merge, of both).
        """
        done = _read_window(row)
        if done is None:
            done = SeenStamps()
            for parent in parents if row.checkpoint.position == TRIM_HORIZON else ():
                # The group may read records of an unfinished parent again, so the stamps of such a parent must not
                # count.
                seen = _read_window(parent) if parent.checkpoint.is_finished else None
                if seen is not None:
                    done.add_all(seen)
        done.forgotten = 0
        return cls(done)

    @property
    def has_forgotten(self) -> bool:
        """Whether stamps have been forgotten since ``take_forgotten`` was last called."""
        return self._read.forgotten > self._reported

    def take_forgotten(self) -> int:
        """Return how many ranges or ids were forgotten since the last call."""
        count, self._reported = self._read.forgotten - self._reported, self._read.forgotten
        return count

    def admit_run(self, number: int, run: StampRun, arrived_at: float) -> bool | None:
        """Remember the stamps of consecutive records. Return False if all of these records are copies of earlier
        records. If only some of them are copies, remember nothing and return ``None``. The caller then asks ``admit``
        about each record.

        Args:
            number: the sequence number of the records' aggregate. Aggregates come in the order of the shard.
            run: the stamps of the records.
            arrived_at: when the service received them.
        """
        place, producer, first, length = run
        end = first + length
        numbers = self._read.by_id.get(producer)
        # The numbers of nearly all records follow the numbers before them, so this case has to be fast. It is the code
        # of ``_read.admit`` for this case alone.
        if numbers is not None and numbers.bounds[-1] == first and numbers.newest_at <= arrived_at:
            numbers.bounds[-1] = end
            numbers.newest_at = arrived_at
        else:
            is_new = self._read.admit(producer, first, end, arrived_at)
            if not is_new:
                return is_new
        self._ahead.append((number, place, producer, first, end, arrived_at))
        return True

    def admit(self, number: int, stamp: StampRun, arrived_at: float) -> bool:
        """Remember the stamp of one record. Return False if the record is a copy of an earlier one."""
        return self.admit_run(number, stamp, arrived_at) is True  # never None, because there is no part of one record

    def clear(self) -> None:
        """Forget all stamps, because the position was lost: any record may be read again."""
        self._done, self._read = SeenStamps(), SeenStamps()
        self._ahead.clear()
        self._reported = 0

    def encode_through(self, checkpoint: Checkpoint) -> str:
        """Return the text to store with this checkpoint. Checkpoints must not go back."""
        at = checkpoint.sequence_number
        assert checkpoint.is_finished or at is not None, "a window is stored with the checkpoint of a record"
        self._move_before(None if at is None else at.number)
        while at is not None and self._ahead and self._ahead[0][0] == at.number:
            number, place, producer, first, end, arrived_at = self._ahead.popleft()
            through = min(end, first + max(0, at.sub_sequence - place + 1))
            self._done.add_range(producer, first, through, arrived_at)
            if through < end:  # these records come after the checkpoint
                self._ahead.appendleft((number, place + through - first, producer, through, end, arrived_at))
                break
        through_text = _FINISHED if at is None else f"{at.number}.{at.sub_sequence}"
        return f"{_FORMAT} {through_text} {self._done.encode()}"

    def _move_before(self, number: int | None) -> None:
        """Mark the stamps of the records before this sequence number, or of all records, as done."""
        ahead, done = self._ahead, self._done
        by_id = done.by_id
        producer, first, end, newest_at = b"", 0, 0, 0.0  # consecutive stamps, which are added all at once
        while ahead and (number is None or ahead[0][0] < number):
            _, _, its, start, stop, arrived_at = ahead.popleft()
            if start != end or its != producer:
                numbers = by_id.get(producer)
                if numbers is not None and numbers.bounds[-1] == first and numbers.newest_at <= newest_at:
                    numbers.bounds[-1] = end  # as in ``admit_run``, because the producers may take turns
                    numbers.newest_at = newest_at
                else:
                    done.add_range(producer, first, end, newest_at)
                producer, first = its, start
            end, newest_at = stop, arrived_at
        done.add_range(producer, first, end, newest_at)


def _read_window(row: Lease) -> SeenStamps | None:
    """Return the stamps in a row, or ``None`` if they are missing or do not belong to the row's checkpoint."""
    form, _, rest = row.window.partition(" ")
    place, _, text = rest.partition(" ")
    if form != _FORMAT:  # perhaps a later format; without its stamps, copies get through, but nothing is lost
        return None
    checkpoint = row.checkpoint
    try:
        if not checkpoint.is_finished:
            number, _, sub_sequence = place.partition(".")
            at = checkpoint.sequence_number
            if at is None or place == _FINISHED or SequenceNumber(int(number), int(sub_sequence)) > at:
                return None
        return SeenStamps.decode(text)
    except ValueError:
        return None
