"""Which user records does a page hold?

Invariants:

- Every record of an aggregate is delivered, in order, with its place in it as sub-sequence. What is no aggregate
  is delivered as it is, whatever it looks like.
- What is at or before the checkpoint is skipped, by (sequence number, sub-sequence): reading resumes AT the
  checkpoint, which may lie inside of an aggregate.
- Records of an aggregate whose hash key lies outside of the shard are counted. With ``drop`` they are left out one
  by one, never the aggregate. Under AUTO distribution keys mean nothing: none is counted or dropped.
- A page without aggregates costs one object a record and one look at its first bytes.
- An aggregate of tiny records takes forty times its size in memory when it is opened. So a page is opened in
  slices: as many entries as it takes to reach a number of records, and no more.
"""

import sys
from collections.abc import Sequence
from itertools import compress, repeat
from typing import Final, final

from shardline.codec.aggregation import MAGIC, Columns, split_columns
from shardline.codec.shapes import RawRecord
from shardline.errors import UsageError
from shardline.model.hashing import HashRange, hash_key_of, parse_explicit_hash_key
from shardline.model.record import Origin, Record
from shardline.model.sequence import SequenceNumber

_KNOWN_KEYS_MAX: Final = 20_000
_ALWAYS: Final = repeat(MAGIC)


@final
class Deaggregator:
    """Opens the pages of one shard."""

    def __init__(
        self,
        stream: str,
        shard_id: str,
        *,
        hash_range: HashRange | None = None,
        done: SequenceNumber | None = None,
        drop: bool = False,
    ) -> None:
        self._stream: str = stream
        self._shard_id: str = shard_id
        self._hash_range: HashRange | None = hash_range
        self._done: SequenceNumber | None = done  # until the first record after it was seen
        self._drop: bool = drop
        self._inside: dict[str, bool] = {}  # MD5 costs ten times the look-up, and keys come again
        self.by_auto: bool = False
        """Whether the stream distributes records by itself (AUTO)."""
        self.out_of_range: int = 0
        """How many records lay outside of the shard so far."""

    def open(self, raws: Sequence[RawRecord], origin: Origin) -> list[Record]:
        """The user records in ``raws``."""
        return self.open_some(raws, origin, sys.maxsize)[0]

    def open_some(self, raws: Sequence[RawRecord], origin: Origin, enough: int) -> tuple[list[Record], int]:
        """The user records in the first of ``raws``, and how many of these were opened for them.

        Args:
            raws: what was read.
            origin: how it was read.
            enough: with so many records, no further aggregate is opened.
        """
        if self._done is None and not any(map(bytes.startswith, [raw.data for raw in raws], _ALWAYS)):
            stream, shard_id = self._stream, self._shard_id
            plain = [
                Record(
                    raw.data,
                    raw.key,
                    None,
                    raw.sequence_number,
                    0,
                    shard_id,
                    raw.arrived_at,
                    stream,
                    False,  # noqa: FBT003 - by position: keywords would double the time
                    origin,
                )
                for raw in raws
            ]
            return plain, len(raws)
        records: list[Record] = []
        opened = 0
        for raw in raws:
            found = self._open_one(raw, origin)
            records += found if self._done is None else self._skip_done(raw, found)
            opened += 1
            if len(records) >= enough:
                break
        return records, opened

    def skip_nothing(self) -> None:
        """The checkpoint means nothing any more: better twice than never."""
        self._done = None

    def _open_one(self, raw: RawRecord, origin: Origin) -> list[Record]:
        columns = split_columns(raw.data) if raw.data.startswith(MAGIC) else None
        if columns is None:
            return [
                Record(
                    data=raw.data,
                    key=raw.key,
                    sequence_number=raw.sequence_number,
                    shard_id=self._shard_id,
                    arrived_at=raw.arrived_at,
                    stream=self._stream,
                    origin=origin,
                )
            ]
        members = list(
            map(
                Record,
                columns.payloads,
                columns.keys,
                columns.explicit_hash_keys,
                repeat(raw.sequence_number),
                range(len(columns.payloads)),
                repeat(self._shard_id),
                repeat(raw.arrived_at),
                repeat(self._stream),
                repeat(True),  # noqa: FBT003 - a column of the record, not an argument
                repeat(origin),
            )
        )
        return members if self._hash_range is None or self.by_auto else self._in_range(members, columns)

    def _in_range(self, members: list[Record], columns: Columns) -> list[Record]:
        """Count what lies outside, and drop it if told to."""
        inside = self._inside
        if len(inside) > _KNOWN_KEYS_MAX:
            inside.clear()
        for key in set(columns.keys).difference(inside):
            inside[key] = self._holds(hash_key_of(key))
        kept = list(map(inside.__getitem__, columns.keys))
        if any(columns.explicit_hash_keys):
            for place, text in enumerate(columns.explicit_hash_keys):
                kept[place] = kept[place] if text is None else self._holds_explicit(text, by_key=kept[place])
        outside = kept.count(False)
        self.out_of_range += outside
        return list(compress(members, kept)) if outside and self._drop else members

    def _holds_explicit(self, text: str, *, by_key: bool) -> bool:
        """A foreign writer may have put any text there: what is no hash key decides nothing."""
        try:
            return self._holds(parse_explicit_hash_key(text))
        except UsageError:
            return by_key

    def _holds(self, hash_key: int) -> bool:
        assert self._hash_range is not None
        return hash_key in self._hash_range

    def _skip_done(self, raw: RawRecord, found: list[Record]) -> list[Record]:
        """What is left of the first records after resuming."""
        assert self._done is not None
        number = int(raw.sequence_number)
        if number < self._done.number:
            return []
        if number > self._done.number:
            self._done = None
            return found
        return [record for record in found if record.sub_sequence > self._done.sub_sequence]
