"""What goes into a stream, and what does a reader hand to the user?

Invariants:

- R1: what ``check_entries`` lets through, the service does not refuse for its form: number, sizes, keys and types.
- R2: the record limit is a property of the stream; here only the highest that a stream can have is enforced.
"""

from collections.abc import Iterable
from typing import Any, NamedTuple, final

from shardline.errors import UsageError
from shardline.model.hashing import check_partition_key, parse_explicit_hash_key
from shardline.model.limits import PUT_RECORDS_MAX_BYTES, PUT_RECORDS_MAX_ENTRIES, RECORD_HIGHEST_MAX_BYTES
from shardline.model.sequence import SequenceNumber


@final
class Entry(NamedTuple):
    """One entry of a PutRecords request: a plain record, or an aggregate."""

    data: bytes
    key: str | None
    """The partition key. ``None`` sends none: for streams under AUTO record distribution."""
    explicit_hash_key: str | None = None


@final
class Record(NamedTuple):
    """One user record: plain, or taken out of an aggregate. A tuple, for it is made once per record read."""

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

    @property
    def order(self) -> SequenceNumber:
        """Its place in the shard: comparable with that of every record of the same shard."""
        return SequenceNumber.parse(self.sequence_number or "0", self.sub_sequence)


def check_data(data: object) -> bytes:
    """Return ``data`` as bytes.

    Raises:
        UsageError: it is not bytes-like.
    """
    if isinstance(data, bytes):
        return data
    if isinstance(data, bytearray):
        return bytes(data)
    if isinstance(data, memoryview):
        return data.tobytes()
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
    data, key, explicit_hash_key = one
    if type(data) is not bytes:
        one = one._replace(data=check_data(data))
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
    """A tuple's fields; anything else (a str would pass for one) is no entry."""
    return entry if issubclass(type(entry), tuple) else ()
