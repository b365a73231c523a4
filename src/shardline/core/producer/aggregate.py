"""Groups records that are sent together, and computes the exact size of each group.

An ``Aggregate`` is filled record by record, sealed, sent, and sent again if necessary. Its exact size is computed when
records are added, but it is encoded only when it is sent. So memory holds a waiting payload only once (P11). The
records of an aggregate share one entry of a request.

A *bundle* is an aggregate with ``separate=True``: its records are handled together until they are sent, but each record
becomes a separate entry. A *pack* is an aggregate with ``packing``: the data of its records is encoded in one of the
formats of ``codec.value_packing`` instead of the KPL's format, even if there is only one record.

Invariants:

- P2: all records of an aggregate are predicted to belong to the same shard. The lane that fills the aggregate ensures
  this.
- P8: all keyless records of an aggregate get the same random key and the same explicit hash key, which is inside the
  range of the lane. The encoded aggregate contains both, so that every reader accepts the records. The outer key is the
  key of the first record.
- P12: the data of a record that is sent alone is not changed. There are two exceptions, each of which is wrapped in its
  own aggregate: a record whose data looks like an aggregate, because a reader would unpack the data, and a record with
  headers, because only an aggregate can hold headers. A pack never looks like an aggregate and has no headers.
- All records of a pack have the same key and the same explicit hash key, or all are keyless, because a pack is stored
  under one key. The lane that fills the pack ensures this. So a pack belongs to one hash key, like a record that is
  sent alone.
- The ``size`` of a pack, or of an aggregate of two or more records, is the exact length of the encoded data. The
  ``size`` of a bundle is the sum of the costs of its entries.
"""

from collections.abc import Callable
from typing import Final, final

from shardline._speedups import twin
from shardline.codec.aggregation import FRAME_BYTES, MAGIC, encode_aggregate, is_framed
from shardline.codec.protobuf import varint_size
from shardline.codec.stamps import SHARED_BYTES, shorten, stamped_by
from shardline.codec.value_packing import Packing
from shardline.core.clock import Instant
from shardline.core.producer.producer_record import BufferedRecord, payload_bytes
from shardline.model.hashing import hash_digest_of
from shardline.model.limits import KIB
from shardline.model.record import Entry

_ONE_BYTE: Final = 1 << 7  # numbers below this take one byte as a varint
# Up to this size of the data, the lengths of a record and of its data are varints of at most two bytes.
_SMALL: Final = (1 << 14) - 16


# An upper bound on the number of bytes that wrapping adds to a record: a copy of the key, the field headers and the
# frame.
WRAP_MAX_BYTES: Final = 2 * KIB
KEYLESS_KEY_LENGTH: Final = 10  # the number of characters in the key that a keyless record gets


@twin
class KeyTable(dict[str, int]):
    """Numbers the distinct keys of an aggregate, in the order of their first use."""

    __slots__ = ()

    def number_of(self, key: str, /) -> int:
        """Return the number of a key. For a new key, return the number that ``add`` would give it."""
        return self.get(key, len(self))

    def add(self, key: str, /) -> None:
        """Give a key the next number, if it has none."""
        self.setdefault(key, len(self))


_NO_KEYS: Final = KeyTable()  # shared by all aggregates without a key table; never written to


@final
class KeylessAddress:
    """The key and explicit hash key under which the keyless records of one aggregate are sent (P8)."""

    __slots__ = ("explicit_hash_key", "key")

    def __init__(self, key: str | None, explicit_hash_key: str | None) -> None:
        self.key: str | None = key
        """The partition key, or ``None`` if there is no key, which only streams under AUTO record distribution allow.
        """
        self.explicit_hash_key: str | None = explicit_hash_key


@final
class Aggregate:
    """Records that share one entry, or a bundle of records that are separate entries."""

    __slots__ = (
        "_expires_at",
        "_hash_keys",
        "_keys",
        "_stamped_by",
        "address",
        "cost_bytes",
        "due_at",
        "entry_count",
        "has_hash_keys",
        "has_tags",
        "is_plain",
        "order",
        "packing",
        "payload_bytes",
        "records",
        "separate",
        "size",
    )

    def __init__(
        self, due_at: Instant, address: KeylessAddress, *, separate: bool = False, packing: Packing | None = None
    ) -> None:
        self.records: list[BufferedRecord] = []
        self.separate: bool = separate
        """Whether this is a bundle, in which every record is a separate entry."""
        self.packing: Packing | None = packing
        """The format of this pack, or ``None`` if this is not a pack. The KPL's format is then used."""
        self.size: int = packing.base_bytes if packing is not None else 0 if separate else FRAME_BYTES
        self.payload_bytes: int = 0
        """The number of bytes that the records occupy in the buffer."""
        self.due_at: Instant = due_at
        """The time until which the oldest record may linger."""
        self.order: int = 0
        """Orders the aggregates of a lane that are due at the same time. It is 0 until the lane seals the aggregate."""
        self.address: KeylessAddress = address
        self.has_hash_keys: bool = False
        self.has_tags: bool = False
        """Whether any record has headers. This field is not set for a bundle."""
        self.is_plain: bool = True
        """Whether every record of a bundle is sent unchanged, under its own key."""
        self.cost_bytes: int = 0
        """The size in bytes that counts against the limits of the shard and of the request. ``seal`` sets this field.
        """
        self.entry_count: int = 0
        """The number of entries in the request. ``seal`` sets this field."""
        self._keys = KeyTable()
        self._hash_keys = _NO_KEYS
        self._stamped_by: bytes = b""  # the producer id of the last stamp; a short stamp after it has the same id
        self._expires_at: Instant | None = None  # caches the result of ``expires_at`` after this aggregate was sealed

    def add(self, record: BufferedRecord, max_bytes: int) -> bool:
        """Add a record, unless that would make the aggregate too large. The first record always fits.

        Return whether the record was added.
        """
        if record.key is None and self.packing is None:
            return self._add_odd(record, max_bytes) if self.separate else self._add_any(record, max_bytes)
        return self.add_all([record], max_bytes) == 1

    def add_all(self, records: list[BufferedRecord], max_bytes: int) -> int:
        """Add records up to the first one that does not fit. Return how many were added.

        Every record of the producer passes through one of the loops that this method calls. One call for many records
        saves the attribute lookups that a call per record would repeat.
        """
        count = len(self.records)
        if self.separate:
            self._add_separate(records, max_bytes)
        elif self.packing is not None:
            self._add_packed(records, max_bytes, self.packing.value_bytes)
        else:
            self._add_together(records, max_bytes)
        return len(self.records) - count

    def _add_separate(self, records: list[BufferedRecord], max_bytes: int) -> None:
        ours, size = self.records, self.size
        for record in records:
            data, key = record.data, record.key
            assert data is not None
            # ``data < MAGIC`` is a fast first test: it is true for most data that does not start with MAGIC.
            if key is None or not key.isascii() or not (data < MAGIC or not data.startswith(MAGIC)) or record.tags:
                self._grow_to(size, size - self.size)
                if not self._add_odd(record, max_bytes):
                    return
                size = self.size
                continue
            after = size + len(data) + len(key)
            if after > max_bytes and ours:
                break
            size = after
            ours.append(record)
        self._grow_to(size, size - self.size)

    def _add_packed(self, records: list[BufferedRecord], max_bytes: int, value_bytes: Callable[[int], int]) -> None:
        ours, size, payload = self.records, self.size, 0
        for record in records:
            data, key = record.data, record.key
            assert data is not None
            length = len(data)
            after = size + value_bytes(length)
            if after > max_bytes and ours:
                break
            size = after
            payload += length + (0 if key is None else len(key))
            ours.append(record)
        self._grow_to(size, payload)

    def _add_together(self, records: list[BufferedRecord], max_bytes: int) -> None:
        at = 0
        while True:
            at, size, payload = add_ordinary(self._keys, self.records, records, at, self.size, max_bytes)
            self._grow_to(size, payload)
            if at == len(records) or not self._add_any(records[at], max_bytes):
                return
            at += 1

    def _grow_to(self, size: int, payload: int) -> None:
        self.size = size
        self.payload_bytes += payload

    def _add_odd(self, record: BufferedRecord, max_bytes: int) -> bool:
        """Add to a bundle a record whose cost is not simply the length of its data and key.

        Such a record has no key, has a key that is not ASCII, or may have to be wrapped (P12).
        """
        cost = self.cost_of(record)
        if self.size + cost > max_bytes and self.records:
            return False
        self.is_plain = False
        self.size += cost
        self.payload_bytes += payload_bytes(record)
        self.records.append(record)
        return True

    def cost_of(self, record: BufferedRecord) -> int:
        """Return how many bytes the data and key of a record take if the record is a separate entry."""
        data, key = record.data, record.key
        assert data is not None
        if key is None:
            key = self.address.key or ""
        if record.tags or data.startswith(MAGIC):
            alone = Aggregate(self.due_at, self.address)
            alone.add(record, 0)
            alone.seal()
            return alone.cost_bytes
        return len(data) + (len(key) if key.isascii() else len(key.encode()))

    def _add_any(self, record: BufferedRecord, max_bytes: int) -> bool:
        """Add a record of any kind. ``add_ordinary`` is the fast version for ordinary records."""
        data, key, hash_key = record.data, record.key, record.explicit_hash_key
        assert data is not None
        length = len(data)
        if key is None:
            key, hash_key = self.address.key or "", self.address.explicit_hash_key
        place = self._keys.number_of(key)
        size = self.size
        if place == len(self._keys):
            width = len(key.encode())
            size += width + (2 if width < _ONE_BYTE else 3)
        content = length + 2 + varint_size(place) + varint_size(length)
        producer = b""
        if record.tags:
            producer = stamped_by(record.tags)
            is_shared = producer and producer == self._stamped_by
            content += len(record.tags) - (SHARED_BYTES if is_shared else 0)
        if hash_key is not None:
            hash_place = self._hash_keys.number_of(hash_key)
            size += 2 + len(hash_key) if hash_place == len(self._hash_keys) else 0
            content += 1 + varint_size(hash_place)
        size += content + 1 + varint_size(content)
        if size > max_bytes and self.records:
            return False
        self._keys.add(key)
        if hash_key is not None:
            if not self.has_hash_keys:
                self.has_hash_keys, self._hash_keys = True, KeyTable()
            self._hash_keys.add(hash_key)
        if record.tags:
            self.has_tags = True
            self._stamped_by = producer or self._stamped_by
        self.size = size
        self.payload_bytes += payload_bytes(record)
        self.records.append(record)
        return True

    def pin(self) -> int:
        """Let the keyless records keep the key and the hash key under which this aggregate was sent.

        If the aggregate may have been stored, a second copy of a record has to be stored in the same shard, or in its
        children (``dedup``). Return how many bytes larger the records become.
        """
        key, hash_key, added = self.address.key, self.address.explicit_hash_key, 0
        for record in self.records:
            if record.key is None and key is not None:
                record.key, record.explicit_hash_key = key, hash_key
                added += len(key)
        self.payload_bytes += added
        return added

    def seal(self) -> None:
        """Close the aggregate: compute its cost and drop the tables that were needed only to compute its size."""
        self._keys = self._hash_keys = _NO_KEYS
        records = self.records
        if self.separate:
            self.cost_bytes, self.entry_count = self.size, len(records)
            return
        first = records[0]
        key, data = first.key, first.data
        if key is None:
            key = self.address.key or ""
        assert data is not None
        # A single record is sent without the aggregate's frame, unless it may have to be wrapped (P12).
        is_whole = len(records) > 1 or self.packing is not None or self.has_tags or data.startswith(MAGIC)
        size = self.size if is_whole else len(data)
        self.cost_bytes = size + (len(key) if key.isascii() else len(key.encode()))
        self.entry_count = 1

    def expires_at(self) -> Instant:
        """Return the time at which the first record expires. If single records have their own TTLs, these count."""
        if self._expires_at is not None:
            return self._expires_at
        first = min([record.expires_at + record.extra_ttl for record in self.records])
        if self.entry_count:  # the aggregate is sealed, so no further record is added
            self._expires_at = first
        return first

    def entries(self) -> list[Entry]:
        """Return the entries that represent these records in a request."""
        if not self.separate:
            return [self.entry()]
        if self.is_plain:
            return [Entry(record.data or b"", record.key, record.explicit_hash_key) for record in self.records]
        entries: list[Entry] = []
        for record in self.records:
            data, key = record.data, record.key
            assert data is not None
            if key is not None and not record.tags and not data.startswith(MAGIC):
                entries.append(Entry(data, key, record.explicit_hash_key))
            else:
                alone = Aggregate(self.due_at, self.address)
                alone.add(record, 0)
                entries.append(alone.entry())
        return entries

    @property
    def is_ordinary(self) -> bool:
        """Whether this is an aggregate of several records that have neither explicit hash keys nor headers."""
        if self.separate or self.packing is not None or self.has_hash_keys or self.has_tags:
            return False
        return len(self.records) > 1

    def _outer_keys(self) -> tuple[str | None, str | None]:
        """Return the key and the explicit hash key of the entry. The first record provides both."""
        first = self.records[0]
        if first.key is None:
            return self.address.key, self.address.explicit_hash_key
        return first.key, first.explicit_hash_key

    def entry_of(self, encoded: bytes) -> Entry:
        """Return the single entry of an ordinary aggregate that has already been encoded."""
        return Entry(encoded, *self._outer_keys())

    def entry(self) -> Entry:
        """Return the single entry that the records share."""
        first = self.records[0]
        outer_key, outer_hash_key = self._outer_keys()
        if self.packing is not None:
            packed = self.packing.encode([record.data or b"" for record in self.records])
            return Entry(packed, outer_key, outer_hash_key)
        if len(self.records) == 1 and not self.has_tags:
            data = first.data
            assert data is not None
            if not data.startswith(MAGIC) or not is_framed(data):
                return Entry(data, outer_key, outer_hash_key)
        return Entry(self._encoded(), outer_key, outer_hash_key)

    def _encoded(self) -> bytes:
        records, address = self.records, self.address
        payloads = [record.data or b"" for record in records]
        keys = [record.key or address.key or "" for record in records]
        hash_keys: dict[int, str] = {}
        if self.has_hash_keys:
            for place, record in enumerate(records):
                hash_key = address.explicit_hash_key if record.key is None else record.explicit_hash_key
                if hash_key is not None:
                    hash_keys[place] = hash_key
        if not self.has_tags:
            return encode_aggregate(keys, payloads, hash_keys)
        return encode_aggregate(keys, payloads, hash_keys, _tags_of(records))

    @property
    def is_checked(self) -> bool:
        """Whether readers check that the records belong to the shard that stores them. Readers check every aggregate,
        even an aggregate of one record.

        A record that was sent alone and a pack are read from whichever shard stores them. The same holds for data that
        looks like an aggregate and was wrapped. Some readers drop such data by its hash key, but it is too rare to be
        sent again.
        """
        if self.packing is not None:
            return False
        return len(self.records) > 1 or bool(self.records[0].tags)

    @property
    def has_no_key(self) -> bool:
        """Whether any entry is sent without a key. This happens only if the service chooses the shard."""
        return self.address.key is None and any(record.key is None for record in self.records)

    def hash_digest(self, record: BufferedRecord) -> bytes:
        """Return the 16 bytes of the hash key that a record of this aggregate was sent with."""
        key, hash_key = record.key, record.explicit_hash_key
        if key is None:
            key, hash_key = self.address.key or "", self.address.explicit_hash_key
        return digest_of(key, hash_key)


def _tags_of(records: list[BufferedRecord]) -> dict[int, bytes]:
    """Return the tags of the records, by index. In a run of stamps with the same producer id, only the first stamp
    contains the id (``codec.stamps``).
    """
    found: dict[int, bytes] = {}
    last = b""
    for place, record in enumerate(records):
        tags = record.tags
        if tags:
            producer = stamped_by(tags)
            found[place] = shorten(tags) if producer and producer == last else tags
            last = producer or last
    return found


def entries_of(aggregates: list[Aggregate]) -> list[Entry]:
    """Return the entries that represent these aggregates in a request. One call encodes all ordinary aggregates."""
    ordinary = [(sent.records, sent.address.key or "") for sent in aggregates if sent.is_ordinary]
    encoded = iter(encode_records(ordinary))
    entries: list[Entry] = []
    for sent in aggregates:
        if sent.is_ordinary:
            entries.append(sent.entry_of(next(encoded)))
        else:
            entries += sent.entries()
    return entries


@twin
def encode_records(groups: list[tuple[list[BufferedRecord], str]], /) -> list[bytes]:
    """Return the aggregate of each group of records. No record may have an explicit hash key or headers.

    Each group is a list of records and the key that its keyless records take.
    """
    blobs: list[bytes] = []
    for records, keyless_key in groups:
        payloads = [record.data or b"" for record in records]
        keys = [record.key or keyless_key for record in records]
        blobs.append(encode_aggregate(keys, payloads, {}))
    return blobs


@twin
def add_ordinary(  # noqa: PLR0917 - positional, as in the compiled form
    keys: KeyTable,
    ours: list[BufferedRecord],
    records: list[BufferedRecord],
    at: int,
    size: int,
    max_bytes: int,
    /,
) -> tuple[int, int, int]:
    """Add ordinary records to an open aggregate, up to the first that does not fit or that ``_add_any`` has to add.

    Args:
        keys: the key table of the aggregate.
        ours: the records of the aggregate.
        records: the records to add.
        at: the index of the first record to add.
        size: the exact size of the aggregate.
        max_bytes: the largest size of the aggregate. Its first record always fits.

    Return the index of the first record that was not added, the new size, and the size of the added data and keys.
    """
    payload, had = 0, len(ours)
    for record in records[at:] if at else records:
        data, key = record.data, record.key
        assert data is not None
        length, fresh = len(data), len(keys)
        if key is None or record.explicit_hash_key is not None or length > _SMALL or fresh > _SMALL or record.tags:
            break
        # The protobuf message grows by the exact size of the record and, if the key is new, of an entry in the key
        # table.
        place = keys.setdefault(key, fresh)
        after = size
        if place == fresh:
            width = len(key) if key.isascii() else len(key.encode())
            after += width + (2 if width < _ONE_BYTE else 3)
        content = length + 4 + (length >= _ONE_BYTE) + (place >= _ONE_BYTE)
        after += content + (2 if content < _ONE_BYTE else 3)
        # If a record does not fit, its key must not stay in the table, unless an earlier record has the same key.
        if after > max_bytes and ours:
            if place == fresh:
                del keys[key]
            break
        size = after
        payload += length + len(key)
        ours.append(record)
    return at + len(ours) - had, size, payload


def bytes_alone(
    data: bytes, key: str | None, explicit_hash_key: str | None, packing: Packing | None = None, tags: bytes = b""
) -> int:
    """Return the size in bytes of a record that is sent alone, packed or wrapped if necessary (P12), with its key."""
    address = KeylessAddress("0" * KEYLESS_KEY_LENGTH, "0" * 39) if key is None else KeylessAddress(None, None)
    alone = Aggregate(0.0, address, packing=packing)
    alone.add(BufferedRecord(data, key, explicit_hash_key, 0.0, tags=tags), 0)
    entry = alone.entry()
    return len(entry.data) + len((entry.key or "").encode())


def digest_of(key: str, explicit_hash_key: str | None) -> bytes:
    """Return, as 16 bytes, the hash key that decides which shard a record with these keys belongs to."""
    return hash_digest_of(key) if explicit_hash_key is None else int(explicit_hash_key).to_bytes(16, "big")
