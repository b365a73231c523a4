"""The entries that are written to a stream, and the records that are read from it.

Invariants:

- If entries passed ``check_entries``, the service does not refuse them because of their number, sizes, keys or types.
- The record limit is a property of the stream. This module enforces only the highest limit that a stream can have.
- Two records that differ only in how they were read (``Origin``) are equal, so a record that is read again equals the
  copy that was read first.
- Reading a record costs one allocation that the garbage collector does not track, and runs no Python code.
- ``lag`` is the age of a record when it was handed out, to within 10 ms, no matter when ``lag`` is read. If a record is
  handed out several times, the last hand-out counts.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import repeat
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, TypeAlias, cast, final

import msgspec

from shardline._speedups import twin
from shardline.errors import UsageError
from shardline.model.hashing import check_partition_key, parse_explicit_hash_key
from shardline.model.headers import NO_HEADERS
from shardline.model.limits import PUT_RECORDS_MAX_BYTES, PUT_RECORDS_MAX_ENTRIES, RECORD_HIGHEST_MAX_BYTES
from shardline.model.sequence import SequenceNumber

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    ValueT_co = TypeVar("ValueT_co", covariant=True, default=bytes)
else:  # type checkers know the default of a type variable; at run time, only Python 3.13 and later do
    from typing import TypeVar

    ValueT_co = TypeVar("ValueT_co", covariant=True)

_Struct = TypeVar("_Struct", bound=msgspec.Struct)


@final
class Entry(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """One entry of a PutRecords request: a plain record, or an aggregate. It is encoded with the service's field
    names.
    """

    data: bytes = msgspec.field(name="Data")
    key: str | None = msgspec.field(name="PartitionKey", default=None)
    """The partition key. With ``None``, no key is sent, which is allowed only in streams under AUTO record
    distribution."""
    explicit_hash_key: str | None = msgspec.field(name="ExplicitHashKey", default=None)

    def __iter__(self) -> Iterator[Any]:
        """Yield the fields, so that an entry can be unpacked like the tuple that callers may pass instead."""
        return iter((self.data, self.key, self.explicit_hash_key))


class LeaseInForce(Protocol):
    """The lease under which a record was read."""

    @property
    def held(self) -> bool:
        """Whether the reader still holds the lease. If not, another worker may be reading the shard."""
        ...

    @property
    def token(self) -> int:
        """The fencing token, which grows whenever the owner changes. Pass it to systems that refuse older tokens."""
        ...


_Place: TypeAlias = tuple[int, str, int]  # (number of digits, digits, sub-sequence): compares like sequence numbers


@final
class Origin:
    """How a page of records was read and when its records were handed out. All records of the page share it."""

    __slots__ = ("_handed_out", "deserializer", "lease", "may_have_headers")

    def __init__(self, lease: LeaseInForce | None = None) -> None:
        self.lease: LeaseInForce | None = lease
        self.deserializer: Callable[[bytes], Any] | None = None
        """The user's deserializer, for ``Record.value``."""
        self.may_have_headers: bool = True
        """Whether a record of the page may have headers. The deaggregator and the middleware set this field."""
        self._handed_out: list[tuple[_Place, float]] = []  # (first record, time) of each hand-out; sorted by both

    def hand_out(self, record: "Record[Any]", at: float) -> None:
        """Store the time at which this record and later ones are handed out, in seconds since 1970 by the service's
        clock.

        A later call for a later record overrides the time from that record on.
        """
        place = _place_of(record)
        handed_out = self._handed_out
        while handed_out and handed_out[-1][0] >= place:  # the record came back, and is handed out again
            handed_out.pop()
        handed_out.append((place, at))

    def handed_out_at(self, record: "Record[Any]") -> float | None:
        """Return the time at which a record was handed out, or ``None`` if it was not handed out."""
        found = bisect_right(self._handed_out, _place_of(record), key=_by_place)
        return self._handed_out[found - 1][1] if found else None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Origin)

    def __hash__(self) -> int:
        return 0

    def __repr__(self) -> str:
        return "Origin()"


UNKNOWN_ORIGIN: Final = Origin()
"""The origin of records that no consumer has read."""


# A msgspec struct, although the rest of the model is plain Python: it takes 0.15 us per record, and a NamedTuple takes
# 0.7 us or more, mostly for the garbage collector (measured). The collector need not track records: a record refers to
# values, and to an origin, which does not refer to records.
@final
class Record(msgspec.Struct, Generic[ValueT_co], frozen=True, gc=False):
    """A user record: a plain Kinesis record, or a record from an aggregate.

    ``Record[Order]`` is a record whose ``value`` is an ``Order``, and ``Record`` alone is a ``Record[bytes]``.
    """

    data: bytes
    key: str | None
    """The partition key, or ``None`` if the service stores none (AUTO record distribution)."""
    explicit_hash_key: str | None = None
    sequence_number: str | None = None
    """The service's sequence number. Records of one aggregate share it."""
    sub_sequence: int = 0
    """The index inside the aggregate, from 0. It is 0 for a plain record."""
    shard_id: str | None = None
    arrived_at: float | None = None
    """Approximately when the service received the record, in seconds since 1970."""
    stream: str | None = None
    aggregated: bool = False
    """Whether the record was part of an aggregate."""
    origin: Origin = UNKNOWN_ORIGIN
    """How the record was read."""
    headers: Mapping[str, str] = NO_HEADERS
    """The headers that were put with the record, as a read-only mapping, which may be empty."""

    @property
    def lag(self) -> float | None:
        """Seconds between the record's arrival and its hand-out to you, or ``None`` outside of a consumer."""
        handed_out_at = self.origin.handed_out_at(self)
        return None if handed_out_at is None or self.arrived_at is None else max(0.0, handed_out_at - self.arrived_at)

    @property
    def lease(self) -> LeaseInForce | None:
        """The lease under which the record was read, or ``None`` outside of a consumer."""
        return self.origin.lease

    @property
    def value(self) -> ValueT_co:
        """The data, deserialized by the consumer's ``deserializer``. Without a deserializer, this is the data itself.

        Each access calls the deserializer again, so its exceptions are raised in the code that reads ``value``.
        """
        data: Any = self.data
        deserializer = self.origin.deserializer
        value: ValueT_co = data if deserializer is None else deserializer(data)
        return value

    @property
    def order(self) -> SequenceNumber:
        """The position in the shard, by which the records of a shard can be sorted."""
        return SequenceNumber.parse(self.sequence_number or "0", self.sub_sequence)


@twin
def make_structs(cls: type[_Struct], count: int, columns: tuple[list[Any] | tuple[Any], ...]) -> list[_Struct]:
    """Make ``count`` structs from columns of values. This is faster than making the structs one by one.

    Args:
        cls: a struct with ``gc=False`` and without ``__post_init__``.
        count: how many structs to make.
        columns: for each field, a list of ``count`` values, or a tuple of the one value that all structs share.
    """
    fields = [column if isinstance(column, list) else repeat(column[0], count) for column in columns]
    return list(map(cls, *fields))


def hand_out(records: Sequence[Record[Any]], at: float) -> None:
    """Store the time at which these records are handed out. The records must be in order."""
    place = 0
    while place < len(records):
        origin = records[place].origin
        origin.hand_out(records[place], at)
        # The records of a page are adjacent, so a bisection finds where the next page begins.
        place = bisect_right(records, 0, lo=place, key=partial(_is_of_another, origin))


def _is_of_another(origin: Origin, record: Record[Any]) -> bool:
    return record.origin is not origin


def _place_of(record: Record[Any]) -> _Place:
    digits = record.sequence_number or ""
    return len(digits), digits, record.sub_sequence


_by_place: Final = itemgetter(0)


def check_data(data: object) -> bytes:
    """Return ``data`` as bytes.

    Raises:
        UsageError: the data is not bytes-like, or is a memoryview that was released.
    """
    if type(data) is bytes:
        return data
    if isinstance(data, (bytes, bytearray, memoryview)):
        try:
            return bytes(memoryview(cast("bytes", data)))  # plain bytes, because not every encoder accepts other types
        except ValueError:
            raise UsageError("data must be bytes: this memoryview was released") from None
    if isinstance(data, str):
        raise UsageError("data must be bytes, not str: encode it, as in data.encode()")
    raise UsageError(f"data must be bytes, not {type(data).__name__}")


def options_of_tuple(fields: Sequence[Any]) -> tuple[Any, Any]:
    """Return the explicit hash key and the headers of a tuple (key, data, ...).

    In a tuple of three values, the third is the headers if it is a mapping, otherwise the explicit hash key. In a tuple
    of four values, the third and the fourth may be ``None``.
    """
    third, fourth = (*fields, None, None)[2:4]
    if len(fields) == 3 and isinstance(third, Mapping):  # noqa: PLR2004
        return None, fields[2]
    return third, fourth


def check_entries(entries: Iterable[object]) -> list[Entry]:
    """Check and return the entries of a PutRecords request.

    Args:
        entries: ``Entry`` values, or tuples of (data, key[, explicit hash key]).

    Raises:
        UsageError: there are no entries or too many, they are too large in total, or an entry is invalid. The message
            names the entry.
    """
    try:
        given = iter(entries)
    except TypeError:
        raise UsageError(f"entries must be an iterable of entries, not {type(entries).__name__}") from None
    checked: list[Entry] = []
    total_bytes = 0
    for entry in given:
        try:
            valid, size = _check_entry(entry)
        except UsageError as error:
            raise UsageError(f"entry {len(checked)}: {error}") from None
        checked.append(valid)
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
    """Return a valid entry, and its size: the total length of its data and of its key in UTF-8."""
    if isinstance(entry, Entry):
        checked = entry
    else:
        try:
            checked = Entry(*_fields(entry))
        except TypeError:
            shown = "a tuple of another length" if type(entry) is tuple else type(entry).__name__
            raise UsageError(
                f"an entry is Entry(data, key) or a tuple (data, key[, explicit hash key]), not {shown}"
            ) from None
    data, key, explicit_hash_key = checked.data, checked.key, checked.explicit_hash_key
    if type(data) is not bytes:
        checked = Entry(check_data(data), key, explicit_hash_key)
    size = len(checked.data)
    if key is not None:
        size += len(key) if type(key) is str and key.isascii() else len(check_partition_key(key).encode())
        if not 1 <= len(key) <= 256:  # noqa: PLR2004 - the fast path of check_partition_key
            check_partition_key(key)
    if explicit_hash_key is not None:
        parse_explicit_hash_key(explicit_hash_key)
    if size > RECORD_HIGHEST_MAX_BYTES:
        raise UsageError(f"a record takes at most {RECORD_HIGHEST_MAX_BYTES} bytes with its key, this one has {size}")
    return checked, size


def _fields(entry: Any) -> Any:
    """Return ``entry`` if it is a tuple with at least two fields (data and key), otherwise an empty tuple."""
    return entry if issubclass(type(entry), tuple) and len(entry) > 1 else ()
