"""What goes into a stream, and what does a reader hand to the user?

Invariants:

- What ``check_entries`` lets through, the service does not refuse for its form: number, sizes, keys and types.
- The record limit is a property of the stream; here only the highest that a stream can have is enforced.
- Where a record was read (``Origin``) makes no difference between two records: one that comes again is the same.
- A record that is read costs one allocation that the garbage collector never sees, and no Python code.
- ``lag`` is the age that a record had when it was handed out, to within 10 ms, however long it waited before and
  whenever it is asked for. A record that is handed out again has the lag of the last time.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from operator import itemgetter
from typing import Any, Final, Protocol, TypeAlias, cast, final

import msgspec

from shardline.errors import UsageError
from shardline.model.hashing import check_partition_key, parse_explicit_hash_key
from shardline.model.limits import PUT_RECORDS_MAX_BYTES, PUT_RECORDS_MAX_ENTRIES, RECORD_HIGHEST_MAX_BYTES
from shardline.model.sequence import SequenceNumber


@final
class Entry(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """One entry of a PutRecords request: a plain record, or an aggregate. Its members are named as on the wire."""

    data: bytes = msgspec.field(name="Data")
    key: str | None = msgspec.field(name="PartitionKey", default=None)
    """The partition key. ``None`` sends none: for streams under AUTO record distribution."""
    explicit_hash_key: str | None = msgspec.field(name="ExplicitHashKey", default=None)

    def __iter__(self) -> Iterator[Any]:
        """It unpacks as the tuple that may stand for it."""
        return iter((self.data, self.key, self.explicit_hash_key))


class LeaseInForce(Protocol):
    """The lease under which a record was read."""

    @property
    def held(self) -> bool:
        """Whether the reader still holds it: once it is false, someone else may be reading the shard."""
        ...

    @property
    def token(self) -> int:
        """The fencing token: it grows with every change of hands. Hand it to systems that refuse an older one."""
        ...


_Place: TypeAlias = tuple[int, str, int]  # compares as the sequence numbers do


@final
class Origin:
    """How a page of records was read, and when its records were handed out: one object for all of them."""

    __slots__ = ("_handed_out", "deserializer", "lease")

    def __init__(self, lease: LeaseInForce | None = None) -> None:
        self.lease: LeaseInForce | None = lease
        self.deserializer: Callable[[bytes], Any] | None = None
        """The user's, for ``Record.value``."""
        self._handed_out: list[tuple[_Place, float]] = []  # from which record on, and when; sorted by both

    def hand_out(self, record: "Record", at: float) -> None:
        """The record, and those after it, are handed out at that time: seconds since 1970, by the service's clock."""
        place = _place_of(record)
        handed_out = self._handed_out
        while handed_out and handed_out[-1][0] >= place:  # it came back, and is handed out again
            handed_out.pop()
        handed_out.append((place, at))

    def handed_out_at(self, record: "Record") -> float | None:
        """When the record was handed out; ``None`` if it was not."""
        found = bisect_right(self._handed_out, _place_of(record), key=_by_place)
        return self._handed_out[found - 1][1] if found else None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Origin)

    def __hash__(self) -> int:
        return 0

    def __repr__(self) -> str:
        return "Origin()"


_UNKNOWN = Origin()


# msgspec, where the rest of the model is plain Python: 0.15 us a record, measured. A NamedTuple takes 0.7 or more, most
# of it for the garbage collector, which never needs to look here: a record refers to values, and to an origin which
# knows no record.
@final
class Record(msgspec.Struct, frozen=True, gc=False):
    """One user record: plain, or taken out of an aggregate."""

    data: bytes
    key: str | None
    """The partition key. ``None`` where the service keeps none (AUTO record distribution)."""
    explicit_hash_key: str | None = None
    sequence_number: str | None = None
    """The service's number; records of one aggregate share it."""
    sub_sequence: int = 0
    """The place inside the aggregate, from 0; 0 for a plain record."""
    shard_id: str | None = None
    arrived_at: float | None = None
    """When the service took it, approximately: seconds since 1970."""
    stream: str | None = None
    aggregated: bool = False
    """Whether it came out of an aggregate."""
    origin: Origin = _UNKNOWN
    """How it was read."""

    @property
    def lag(self) -> float | None:
        """How many seconds after its arrival the record was handed to you. ``None`` outside of a consumer."""
        handed_out_at = self.origin.handed_out_at(self)
        return None if handed_out_at is None or self.arrived_at is None else max(0.0, handed_out_at - self.arrived_at)

    @property
    def lease(self) -> LeaseInForce | None:
        """The lease that it was read under. ``None`` outside of a consumer."""
        return self.origin.lease

    @property
    def value(self) -> Any:
        """What the consumer's ``deserializer`` makes of the data; without one, the data.

        It is made anew each time it is asked for, in the code that asks: what the deserializer raises is raised there.
        """
        deserializer = self.origin.deserializer
        return self.data if deserializer is None else deserializer(self.data)

    @property
    def order(self) -> SequenceNumber:
        """Its place in the shard: comparable with that of every record of the same shard."""
        return SequenceNumber.parse(self.sequence_number or "0", self.sub_sequence)


def hand_out(records: Sequence[Record], at: float) -> None:
    """Note that these records, which are in order, are handed out at that time."""
    place = 0
    while place < len(records):
        origin = records[place].origin
        origin.hand_out(records[place], at)
        # The records of a page stand together: a bisection finds where the next page begins.
        place = bisect_right(records, 0, lo=place, key=partial(_is_of_another, origin))


def _is_of_another(origin: Origin, record: Record) -> bool:
    return record.origin is not origin


def _place_of(record: Record) -> _Place:
    digits = record.sequence_number or ""
    return len(digits), digits, record.sub_sequence


_by_place: Final = itemgetter(0)


def check_data(data: object) -> bytes:
    """Return ``data`` as bytes.

    Raises:
        UsageError: it is not bytes-like, or a memoryview that was released.
    """
    if type(data) is bytes:
        return data
    if isinstance(data, (bytes, bytearray, memoryview)):
        try:
            return bytes(memoryview(cast("bytes", data)))  # plain ones: not every encoder takes others
        except ValueError:
            raise UsageError("data must be bytes: this memoryview was released") from None
    if isinstance(data, str):
        raise UsageError("data must be bytes, not str: encode it, as in data.encode()")
    raise UsageError(f"data must be bytes, not {type(data).__name__}")


def check_entries(entries: Iterable[object]) -> list[Entry]:
    """Return the entries of a PutRecords request: ``Entry`` values or tuples of (data, key[, explicit hash key]).

    Raises:
        UsageError: there are none or too many, they are too large together, or one of them is wrong (it says which).
    """
    try:
        given = iter(entries)
    except TypeError:
        raise UsageError(f"entries must be an iterable of entries, not {type(entries).__name__}") from None
    checked: list[Entry] = []
    total_bytes = 0
    for entry in given:
        try:
            one, size = _check_entry(entry)
        except UsageError as error:
            raise UsageError(f"entry {len(checked)}: {error}") from None
        checked.append(one)
        total_bytes += size
        if len(checked) > PUT_RECORDS_MAX_ENTRIES:
            raise UsageError(f"a PutRecords request takes 1 to {PUT_RECORDS_MAX_ENTRIES} entries, not more")
    if not checked:
        raise UsageError(f"a PutRecords request takes 1 to {PUT_RECORDS_MAX_ENTRIES} entries, not none")
    if total_bytes > PUT_RECORDS_MAX_BYTES:
        raise UsageError(
            f"a PutRecords request takes {PUT_RECORDS_MAX_BYTES} bytes of data and keys, these have {total_bytes}"
        )
    return checked


def _check_entry(entry: object) -> tuple[Entry, int]:
    """The entry and its size: the data and the UTF-8 bytes of the key."""
    if isinstance(entry, Entry):
        one = entry
    else:
        try:
            one = Entry(*_fields(entry))
        except TypeError:
            shown = "one of another length" if type(entry) is tuple else type(entry).__name__
            raise UsageError(
                f"an entry is Entry(data, key) or a tuple (data, key[, explicit hash key]), not {shown}"
            ) from None
    data, key, explicit_hash_key = one.data, one.key, one.explicit_hash_key
    if type(data) is not bytes:
        one = Entry(check_data(data), key, explicit_hash_key)
    size = len(one.data)
    if key is not None:
        size += len(key) if type(key) is str and key.isascii() else len(check_partition_key(key).encode())
        if not 1 <= len(key) <= 256:  # noqa: PLR2004 - the fast path of check_partition_key
            check_partition_key(key)
    if explicit_hash_key is not None:
        parse_explicit_hash_key(explicit_hash_key)
    if size > RECORD_HIGHEST_MAX_BYTES:
        raise UsageError(f"a record takes at most {RECORD_HIGHEST_MAX_BYTES} bytes with its key, this one has {size}")
    return one, size


def _fields(entry: Any) -> Any:
    """A tuple's fields; anything else (a str would pass for one) is no entry, nor is data without a key."""
    return entry if issubclass(type(entry), tuple) and len(entry) > 1 else ()
