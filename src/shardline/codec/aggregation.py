"""Packs many user records into one Kinesis record, and unpacks them again.

The module uses the KPL's format. Every reader of KPL records (the KCL, Firehose, Flink, helpers for Lambda) can read
our aggregates, and we can read the aggregates of every other writer::

    F3 89 9A C2 | AggregatedRecord | MD5 of AggregatedRecord (16 bytes)

    AggregatedRecord   0A len partition key, once each    12 len explicit hash key, once each    1A len Record ...
    Record             08 key index    [10 explicit hash key index]    1A len data    22 len Tag ...
    Tag                0A len name    12 len value

The tags are a record's headers, and its stamp (``codec.stamps``). The KPL and the KCL do not use tags: the
documentation of the format calls them not implemented, and every reader that we know skips them.

Invariants:

- ``encode_aggregate`` writes the same bytes as the KPL: all partition keys, then all explicit hash keys, then all
  records. Each of the two tables contains its keys once, in order of first use. The fields of a record are in the order
  of their field numbers.
- Data that is not a valid aggregate is a plain record: ``split_columns`` returns ``None`` and never raises. It returns
  all records of an aggregate or none.
- A record has an explicit hash key only if the record itself refers to one.
- If a field occurs twice in a record, the last one counts, and so does the last of two tags with the same name. Unknown
  fields are skipped.
- A tag never makes an aggregate invalid, as long as the length of the tag is right. A tag without a value counts as a
  tag with an empty value. A tag that cannot be a header (without a name, not UTF-8, beyond the limits of
  ``model.headers``) is left out.
- Records of one aggregate with equal tags share their headers.
- Splitting takes time and memory linear in the size of the data, whatever lengths and indices the data claims.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from hashlib import md5
from struct import Struct, iter_unpack
from types import MappingProxyType
from typing import Final, NamedTuple, TypeAlias, final

from shardline._speedups import implementation, twin
from shardline.codec.protobuf import ONE_BYTE_MAX, WireError, encode_varint, read_varint, skip_unknown
from shardline.codec.stamps import StampRun, split_stamps
from shardline.model.headers import NO_HEADERS, Headers, valid_headers

MAGIC: Final = b"\xf3\x89\x9a\xc2"
MD5_BYTES: Final = 16
FRAME_BYTES: Final = len(MAGIC) + MD5_BYTES
"""The size in bytes of an aggregate without its protobuf message."""

# The field tags of AggregatedRecord, all of wire type 2:
_KEY: Final = 0x0A
_HASH_KEY: Final = 0x12
_RECORD: Final = 0x1A
# The field tags of Record:
_KEY_INDEX: Final = 0x08
_HASH_KEY_INDEX: Final = 0x10
_DATA: Final = 0x1A
_TAG: Final = 0x22
_RECORD_TAGS: Final = frozenset((_KEY_INDEX, _HASH_KEY_INDEX, _DATA, _TAG))
_KNOWN_FIELDS: Final = 3  # fields 1 to 3 of both messages; a tag (field 4) of another wire type is skipped
# The field tags of Tag:
_NAME: Final = 0x0A
_VALUE: Final = 0x12
_KNOWN_FIELDS_OF_TAG: Final = 2

# Heads (a tag and a number) are encoded in advance for the numbers that nearly all records have. Heads are written in
# the producer's innermost loop, and looking a head up takes a tenth of the time that encoding it takes.
_READY: Final = 2048
_HEAD_MAX_BYTES: Final = 16  # the largest size of a record without its data; keys have at most 1,024 bytes
_VARINTS: Final = [encode_varint(number) for number in range(_READY)]
_HEADS: Final = {
    tag: [bytes((tag,)) + varint for varint in _VARINTS]
    for tag in (_KEY, _HASH_KEY, _RECORD, _KEY_INDEX, _HASH_KEY_INDEX, _TAG)
}
_INDEX_HEADS: Final = _HEADS[_KEY_INDEX]
_LENGTH_HEADS: Final = _HEADS[_RECORD]  # also for the data of a record, whose field has the same tag

_NO_TAGS: Final[Mapping[int, bytes]] = MappingProxyType({})
_NO_HEADERS: Final[Mapping[int, Headers]] = MappingProxyType({})

FRAMES_AT_ONCE: Final = 16 if implementation == "native" else 1
"""How many blobs ``find_frames`` should get per call. The compiled form computes their MD5s side by side."""

Message: TypeAlias = tuple[list[str], list[bytes], list[str | None], dict[int, bytes]]
"""The keys, payloads and explicit hash keys of an aggregate, and its encoded tags by the index of the record."""

_seven_bytes: Final[Callable[[bytes, int], tuple[int, ...]]] = Struct("7B").unpack_from


@twin
def bind_format(magic: bytes, tags_of_message: bytes, tags_of_record: bytes, known_fields: int, /) -> None:
    """Pass the magic bytes and the field tags to the compiled form. The pure form does not need them."""


bind_format(MAGIC, bytes((_KEY, _HASH_KEY, _RECORD)), bytes((_KEY_INDEX, _HASH_KEY_INDEX, _DATA, _TAG)), _KNOWN_FIELDS)


@final
class Columns(NamedTuple):
    """All records of an aggregate, field by field: three lists of the same length, and the headers."""

    keys: list[str]
    payloads: list[bytes]
    explicit_hash_keys: list[str | None]
    headers: Mapping[int, Headers] = _NO_HEADERS
    """The headers, by the index of the record. Records without headers are left out."""
    stamps: Sequence[StampRun] = ()
    """The stamps, in the order of the records. Records without a stamp are left out."""

    def all_headers(self) -> list[Headers]:
        """Return the headers of each record."""
        headers = self.headers
        return [headers.get(place, NO_HEADERS) for place in range(len(self.payloads))]


def encode_aggregate(
    keys: Sequence[str],
    payloads: Sequence[bytes],
    explicit_hash_keys: Mapping[int, str],
    tags: Mapping[int, bytes] = _NO_TAGS,
) -> bytes:
    """Return an aggregate that contains these records.

    Args:
        keys: the partition key of each record.
        payloads: the data of each record.
        explicit_hash_keys: the explicit hash keys, by the index of the record.
        tags: the headers as ``encode_tags`` returns them, by the index of the record.
    """
    table = dict.fromkeys(keys)
    largest = max(map(len, payloads), default=0)
    if explicit_hash_keys or tags or largest >= _READY - _HEAD_MAX_BYTES or len(table) >= _READY:
        return _encode_any(keys, payloads, explicit_hash_keys, tags)
    # All heads that this aggregate needs were encoded in advance. This is so for nearly all aggregates.
    index_heads, length_heads, key_heads = _INDEX_HEADS, _LENGTH_HEADS, _HEADS[_KEY]
    parts: list[bytes] = []
    for text in map(str.encode, table):
        parts.append(key_heads[len(text)])
        parts.append(text)
    indices: Iterable[int] = range(len(keys))
    if len(table) < len(keys):
        indices = map(dict(zip(table, indices, strict=False)).__getitem__, keys)
    for index, data in zip(indices, payloads, strict=True):
        length = len(data)
        head = index_heads[index] + length_heads[length]
        parts.append(length_heads[len(head) + length])
        parts.append(head)
        parts.append(data)
    return _frame(parts)


def _encode_any(
    keys: Sequence[str], payloads: Sequence[bytes], explicit_hash_keys: Mapping[int, str], tags: Mapping[int, bytes]
) -> bytes:
    """Return an aggregate of these records. They may have any size, and may have explicit hash keys and headers."""
    table = dict.fromkeys(keys)
    hash_key_table = dict.fromkeys(explicit_hash_keys[place] for place in sorted(explicit_hash_keys))
    indices = {key: _head(_KEY_INDEX, place) for place, key in enumerate(table)}
    hash_key_indices = {text: _head(_HASH_KEY_INDEX, place) for place, text in enumerate(hash_key_table)}
    parts = [_entry(_KEY, key) for key in table] + [_entry(_HASH_KEY, text) for text in hash_key_table]
    for place, (key, data) in enumerate(zip(keys, payloads, strict=True)):
        length = len(data)
        index = indices[key]
        if place in explicit_hash_keys:
            index += hash_key_indices[explicit_hash_keys[place]]
        head = index + (_LENGTH_HEADS[length] if length < _READY else _head(_DATA, length))
        own_tags = tags.get(place, b"")
        parts.append(_head(_RECORD, len(head) + length + len(own_tags)))
        parts.append(head)
        parts.append(data)
        parts.append(own_tags)
    return _frame(parts)


def encode_tags(headers: Mapping[str, str]) -> bytes:
    """Return the encoded tag fields that hold the headers of a record. The result is empty if there are no headers."""
    parts: list[bytes] = []
    for name, value in headers.items():
        tag = _entry(_NAME, name) + _entry(_VALUE, value)
        parts.append(_head(_TAG, len(tag)))
        parts.append(tag)
    return b"".join(parts)


def decode_tags(tags: bytes) -> Headers:
    """Return the headers that the tag fields of a record hold. A tag that cannot be a header is left out."""
    pairs: list[tuple[str, str]] = []
    at = 0
    while at < len(tags):
        size, at = read_varint(tags, at + 1)
        pair = _read_tag(tags[at : at + size])
        if pair is not None:
            pairs.append(pair)
        at += size
    return valid_headers(pairs)


def _read_tag(tag: bytes) -> tuple[str, str] | None:
    """Return the name and value of one tag, or ``None`` if the tag is broken or has no name."""
    name, value = None, ""
    at, stop = 0, len(tag)
    try:
        while at < stop:
            field = tag[at]
            if field not in {_NAME, _VALUE}:
                at = skip_unknown(tag, at, _KNOWN_FIELDS_OF_TAG)
                continue
            size, at = read_varint(tag, at + 1)
            text = tag[at : at + size].decode()
            at += size
            if field == _NAME:
                name = text
            else:
                value = text
    except (IndexError, ValueError, OverflowError):  # as in ``split_message``
        return None
    return None if at != stop or name is None else (name, value)


def is_framed(data: bytes | bytearray | memoryview) -> bool:
    """Whether ``data`` starts with the magic bytes and ends with the MD5 of the bytes in between.

    A producer must wrap such data (P12), even if ``split_columns`` would not accept it. Other readers are less strict:
    if a record of an aggregate has an index out of range, the KCL delivers the records before this one and drops the
    rest.
    """
    blob = bytes(data)
    if not blob.startswith(MAGIC) or len(blob) <= FRAME_BYTES:
        return False
    message = memoryview(blob)[len(MAGIC) : -MD5_BYTES]
    return blob.endswith(md5(message, usedforsecurity=False).digest())


@twin
def find_frames(blobs: list[bytes]) -> list[bool]:
    """Return the result of ``is_framed`` for each blob."""
    return [is_framed(blob) for blob in blobs]


def split_columns(data: bytes | bytearray | memoryview) -> Columns | None:
    """Return the records of an aggregate (at least one), or ``None`` if the data is a plain record.

    Explicit hash keys are returned unchecked: another writer may have written any text.
    """
    blob = bytes(data)
    return split_frame(blob) if is_framed(blob) else None


def split_frame(blob: bytes) -> Columns | None:
    """Like ``split_columns``, for a blob for which ``is_framed`` returns True."""
    message = split_message(blob)
    if message is None:
        return None
    keys, payloads, explicit_hash_keys, tags = message
    if not tags:
        return Columns(keys, payloads, explicit_hash_keys)
    stamps, others = split_stamps(tags)
    return Columns(keys, payloads, explicit_hash_keys, _headers_of(others), stamps)


def _headers_of(tags: dict[int, bytes]) -> Mapping[int, Headers]:
    if not tags:
        return _NO_HEADERS
    known = {own: decode_tags(own) for own in set(tags.values())}
    return {place: known[own] for place, own in tags.items() if known[own]}


@twin
def split_message(blob: bytes) -> Message | None:
    """Return the columns of an aggregate, for a blob for which ``is_framed`` returns True."""
    reader = _Reader(blob)
    try:
        return reader.read()
    except (IndexError, ValueError, OverflowError):  # compiled code raises OverflowError for an index far out of range
        return None


@final
class _Reader:
    """Reads the message of one framed aggregate. The tables of keys may follow the records that refer to them.

    Bounds are not checked field by field. Reading past the end of the message yields bytes of the MD5 and then raises
    ``IndexError``. If the final position is not exactly at the end of the message, the whole aggregate is refused.
    """

    __slots__ = ("_blob", "_hash_key_indices", "_hash_keys", "_key_indices", "_keys", "_payloads", "_stop", "_tags")

    def __init__(self, blob: bytes) -> None:
        self._blob: bytes = blob
        self._stop: int = len(blob) - MD5_BYTES
        self._keys: list[str] = []
        self._hash_keys: list[str] = []
        self._key_indices: list[int] = []
        self._hash_key_indices: list[tuple[int, int]] = []  # (index of the record, index of the hash key)
        self._payloads: list[bytes] = []
        self._tags: dict[int, bytes] = {}  # the encoded tags, by the index of the record

    def read(self) -> Message:
        at = self._read_key_grid(len(MAGIC))
        while at < self._stop:
            tag = self._blob[at]
            if tag == _RECORD:
                at = self._read_records(at)
            elif tag == _KEY:
                at = self._read_table(at, _KEY, self._keys)
            elif tag == _HASH_KEY:
                at = self._read_table(at, _HASH_KEY, self._hash_keys)
            else:
                at = skip_unknown(self._blob, at, _KNOWN_FIELDS)
        if at != self._stop or not self._payloads:
            raise WireError("truncated, or without a record")
        hash_keys: list[str | None] = [None] * len(self._payloads)
        for place, index in self._hash_key_indices:
            hash_keys[place] = self._hash_keys[index]
        keys = list(map(self._keys.__getitem__, self._key_indices))
        return keys, self._payloads, hash_keys, self._tags

    def _read_key_grid(self, at: int) -> int:
        """Read the keys at ``at`` that have the same length as the first one. Return the position of the next field.

        Keys of equal length, such as UUIDs, form a grid: heads and texts repeat at equal distances. Reading them as a
        grid takes half the time. This is only tried at the start of a message, because each attempt scans the whole
        message.
        """
        blob = self._blob
        size, stop = blob[at + 1], self._stop
        step = size + 2
        if blob[at] != _KEY or size > ONE_BYTE_MAX or at > stop - step:
            return at
        last = stop - step  # the last possible start of an entry
        tags = blob[at : last + 1 : step]
        sizes = blob[at + 1 : last + 2 : step]
        count = min(len(tags) - len(tags.lstrip(tags[:1])), len(sizes) - len(sizes.lstrip(sizes[:1])))
        end = at + count * step
        cells: Iterator[tuple[bytes]] = iter_unpack(f"2x{size}s", blob[at:end])
        self._keys += [key.decode() for (key,) in cells]
        return end

    def _read_table(self, at: int, tag: int, table: list[str]) -> int:
        """Read adjacent entries of a table. Return the position of the next field."""
        blob, stop, one_byte = self._blob, self._stop, ONE_BYTE_MAX
        while at < stop and blob[at] == tag:
            size = blob[at + 1]
            at += 2
            if size > one_byte:
                size, at = read_varint(blob, at - 1)
            end = at + size
            table.append(blob[at:end].decode())
            at = end
        return at

    def _read_records(self, at: int) -> int:
        """Read adjacent records. Return the position of the next field.

        A small record consists mostly of its head, so the whole head is read in one step: 1A size 08 index 1A length,
        with one or two bytes for each number. Because the MD5 follows the message, there are always enough bytes to
        read. All other shapes, valid or not, are left to ``_read_record``.
        """
        blob, stop, indices, payloads = self._blob, self._stop, self._key_indices, self._payloads
        record, key_index, data, one_byte = _RECORD, _KEY_INDEX, _DATA, ONE_BYTE_MAX  # locals are faster than globals
        while at < stop:
            tag, size, first, index, third, fourth, fifth = _seven_bytes(blob, at)
            if tag != record:
                break
            if first == key_index and size <= one_byte:
                end = at + 2 + size
                if third == data and fourth == size - 4 and index <= one_byte:
                    indices.append(index)
                    payloads.append(blob[at + 6 : end])
                    at = end
                    continue
                if fourth == data and fifth == size - 5 and third <= one_byte < index:
                    indices.append(index + (third - 1 << 7))
                    payloads.append(blob[at + 7 : end])
                    at = end
                    continue
            elif index == key_index and first <= one_byte < size:  # the size takes two bytes
                end = at + 3 + size + ((first - 1) << 7)
                place, start = third, at + 6
                if third > one_byte:
                    place, start, fourth = third + ((fourth - 1) << 7), at + 7, fifth if fourth <= one_byte else 0
                length = blob[start]
                start += 1
                if length > one_byte >= blob[start]:
                    length += (blob[start] - 1) << 7
                    start += 1
                if fourth == data and start + length == end:
                    indices.append(place)
                    payloads.append(blob[start:end])
                    at = end
                    continue
            at = self._read_record(at + 1)
        return at

    def _read_record(self, at: int) -> int:
        """Read one record of any shape; ``at`` is the position of its size. Return the position of the next field."""
        blob, data, one_byte = self._blob, _DATA, ONE_BYTE_MAX
        size, at = read_varint(blob, at)
        end = at + size
        key_index = hash_key_index = -1
        payload: bytes | None = None
        tags: list[bytes] = []
        while at < end:
            field_at = at
            tag, number = blob[at], blob[at + 1]
            at += 2
            if number > one_byte and tag in _RECORD_TAGS:
                number, at = read_varint(blob, at - 1)
            if tag == data:
                payload = blob[at : at + number]
                at += number
            elif tag == _KEY_INDEX:
                key_index = number
            elif tag == _HASH_KEY_INDEX:
                hash_key_index = number
            elif tag == _TAG:
                at += number
                tags.append(blob[field_at:at])
            else:
                at = skip_unknown(blob, at - 2, _KNOWN_FIELDS)
        if at != end or key_index < 0 or payload is None:
            raise WireError("a record that is broken, or without key or data")
        if hash_key_index >= 0:
            self._hash_key_indices.append((len(self._payloads), hash_key_index))
        if tags:
            self._tags[len(self._payloads)] = b"".join(tags)
        self._key_indices.append(key_index)
        self._payloads.append(payload)
        return end


def _frame(parts: list[bytes]) -> bytes:
    assert parts, "an aggregate has at least one record"
    message = b"".join(parts)
    return b"".join((MAGIC, message, md5(message, usedforsecurity=False).digest()))


def _head(tag: int, number: int) -> bytes:
    return _HEADS[tag][number] if number < _READY else bytes((tag,)) + encode_varint(number)


def _entry(tag: int, text: str) -> bytes:
    """Return the encoded bytes of one entry in a table of keys."""
    encoded = text.encode()
    return _head(tag, len(encoded)) + encoded
