"""Extracts the user records from a page.

Invariants:

- Every record of an aggregate is delivered, in order, with its index in the aggregate as its sub-sequence. A record
  that is not a valid aggregate is delivered unchanged, even if it begins like an aggregate.
- Records whose (sequence number, sub-sequence) is at or before the checkpoint are skipped. This is necessary because
  reading resumes AT the checkpoint, which may lie inside an aggregate.
- Records in an aggregate are counted if their own hash keys lie outside the shard. With ``drop``, these records are
  dropped one by one, never the whole aggregate. If the stream uses AUTO record distribution, a key does not decide the
  shard, so no record is counted or dropped.
- With ``dedup``, records whose stamps are known (``dedup_window``) are left out and counted. Only records after the
  checkpoint and inside the shard are compared: a record that is dropped for another reason is not remembered.
- A page without aggregates costs one object per record and one check of the first bytes of each record.
- Opening an aggregate of tiny records takes forty times as much memory as the aggregate itself. So a page is opened in
  slices: each slice has as many entries as are needed to reach a given number of records.
"""

import sys
from collections.abc import Sequence
from itertools import compress, repeat
from typing import Final, final

from shardline.codec.aggregation import FRAMES_AT_ONCE, MAGIC, Columns, find_frames, split_frame
from shardline.codec.shapes import RawRecord
from shardline.codec.stamps import StampRun
from shardline.core.consumer.dedup_window import DedupWindow
from shardline.errors import UsageError
from shardline.model.hashing import HashRange, keys_in_range, parse_explicit_hash_key
from shardline.model.headers import NO_HEADERS
from shardline.model.record import Origin, Record, make_structs
from shardline.model.sequence import SequenceNumber

_ALWAYS: Final = repeat(MAGIC)


@final
class Deaggregator:
    """Extracts the user records from the pages of one shard."""

    def __init__(
        self,
        stream: str,
        shard_id: str,
        *,
        hash_range: HashRange | None = None,
        done: SequenceNumber | None = None,
        drop: bool = False,
        window: DedupWindow | None = None,
    ) -> None:
        self._stream: str = stream
        self._shard_id: str = shard_id
        self._hash_range: HashRange | None = hash_range
        self._done: SequenceNumber | None = done  # None once a record after the checkpoint has been read
        self._drop: bool = drop
        # The hash range in the form that keys_in_range expects, and the cache of that function.
        self._digests: tuple[bytes, bytes] = (b"", b"") if hash_range is None else hash_range.digests
        self._inside: dict[str, bool] = {}
        self.window: DedupWindow | None = window
        """With ``dedup``, the known stamps. Without it, ``None``."""
        self._left_out: tuple[int, Record | None] = 0, None
        self.by_auto: bool = False
        """Whether the stream uses AUTO record distribution. The shell sets this."""
        self.out_of_range: int = 0
        """How many records of aggregates have been outside the shard's hash range so far."""

    def open(self, raws: Sequence[RawRecord], origin: Origin) -> list[Record]:
        """Return the user records in ``raws``."""
        return self.open_some(raws, origin, sys.maxsize)[0]

    def open_some(self, raws: Sequence[RawRecord], origin: Origin, enough: int) -> tuple[list[Record], int]:
        """Return the user records of the first entries of ``raws``, and the number of these entries.

        Args:
            raws: the entries that were read.
            origin: the origin of these records, which no other records share.
            enough: the number of records after which no further entry is opened.
        """
        origin.may_have_headers = False
        # This is the fast path for pages without aggregates. Once the checkpoint is passed, every such page takes it.
        if self._done is None and not any(map(bytes.startswith, [raw.data for raw in raws], _ALWAYS)):
            return self._plain(raws, origin), len(raws)
        records: list[Record] = []
        opened = 0
        while opened < len(raws) and len(records) < enough:
            some = raws[opened : opened + FRAMES_AT_ONCE]
            for raw, is_framed in zip(some, find_frames([raw.data for raw in some]), strict=True):
                found, stamps = self._open_one(raw, origin, is_framed=is_framed)
                found = found if self._done is None else self._skip_done(raw, found)
                records += found if not stamps or self.window is None else self._without_copies(raw, found, stamps)
                opened += 1
                if len(records) >= enough:
                    break
        return records, opened

    def _plain(self, raws: Sequence[RawRecord], origin: Origin) -> list[Record]:
        """Return the records of entries that are not aggregates."""
        columns = (
            [raw.data for raw in raws],
            [raw.key for raw in raws],
            (None,),
            [raw.sequence_number for raw in raws],
            (0,),
            (self._shard_id,),
            [raw.arrived_at for raw in raws],
            (self._stream,),
            (False,),
            (origin,),
            (NO_HEADERS,),
        )
        return make_structs(Record, len(raws), columns)

    def stop_skipping(self) -> None:
        """Skip no records from now on, because the checkpoint is no longer valid. Duplicates are better than losses."""
        self._done = None
        if self.window is not None:
            self.window.clear()

    def take_left_out(self) -> tuple[int, Record | None]:
        """Return how many copies were left out since the last call, and the last of them."""
        left_out, self._left_out = self._left_out, (0, None)
        return left_out

    def _without_copies(self, raw: RawRecord, found: list[Record], stamps: Sequence[StampRun]) -> list[Record]:
        """Return the records of an aggregate that are not copies of earlier ones."""
        window, number, arrived_at = self.window, int(raw.sequence_number), raw.arrived_at or 0.0
        assert window is not None
        # Only the stamps of the remaining records are compared and remembered. A record that was skipped, or dropped
        # because it belongs to another shard, must not be remembered: its copy may be the only one that is handed out.
        end = stamps[-1].place + stamps[-1].length
        is_whole = end <= len(found) and found[-1].sub_sequence == len(found) - 1
        left = () if is_whole else {record.sub_sequence for record in found}
        copies: set[int] = set()
        for run in stamps:
            places = range(run.place, run.place + run.length)
            if is_whole:
                are_new = window.admit_run(number, run, arrived_at)
                if are_new is not None:
                    copies.update(() if are_new else places)
                    continue
            for place in places if is_whole else [place for place in places if place in left]:
                stamp = StampRun(place, run.producer, run.first + place - run.place, 1)
                if not window.admit(number, stamp, arrived_at):
                    copies.add(place)
        if not copies:
            return found
        self._left_out = (
            self._left_out[0] + len(copies),
            next(record for record in reversed(found) if record.sub_sequence in copies),
        )
        return [record for record in found if record.sub_sequence not in copies]

    def _open_one(self, raw: RawRecord, origin: Origin, *, is_framed: bool) -> tuple[list[Record], Sequence[StampRun]]:
        """Return the records of an entry, and their stamps."""
        columns = split_frame(raw.data) if is_framed else None
        if columns is None:
            return self._plain([raw], origin), ()
        count = len(columns.payloads)
        if columns.headers:
            origin.may_have_headers = True
        fields = (
            columns.payloads,
            columns.keys,
            columns.explicit_hash_keys,
            (raw.sequence_number,),
            list(range(count)),
            (self._shard_id,),
            (raw.arrived_at,),
            (self._stream,),
            (True,),
            (origin,),
            columns.all_headers() if columns.headers else (NO_HEADERS,),  # usually, no record has headers
        )
        members = make_structs(Record, count, fields)
        is_any = self._hash_range is None or self.by_auto
        return (members if is_any else self._in_range(members, columns)), columns.stamps

    def _in_range(self, members: list[Record], columns: Columns) -> list[Record]:
        """Count the records outside the shard's hash range. With ``drop``, leave these records out."""
        kept = keys_in_range(columns.keys, *self._digests, self._inside)
        # An explicit hash key replaces the hash of the partition key, so the explicit one decides.
        if any(columns.explicit_hash_keys):
            for place, text in enumerate(columns.explicit_hash_keys):
                kept[place] = kept[place] if text is None else self._holds_explicit(text, by_key=kept[place])
        outside = kept.count(False)
        self.out_of_range += outside
        return list(compress(members, kept)) if outside and self._drop else members

    def _holds_explicit(self, text: str, *, by_key: bool) -> bool:
        """Return whether the explicit hash key lies in the shard.

        Other writers may have used any text as the explicit hash key. If the text is invalid, the partition key decides
        (``by_key``).
        """
        try:
            return self._holds(parse_explicit_hash_key(text))
        except UsageError:
            return by_key

    def _holds(self, hash_key: int) -> bool:
        assert self._hash_range is not None
        return hash_key in self._hash_range

    def _skip_done(self, raw: RawRecord, found: list[Record]) -> list[Record]:
        """Return the records that come after the checkpoint."""
        assert self._done is not None
        number = int(raw.sequence_number)
        if number < self._done.number:
            return []
        if number > self._done.number:
            self._done = None
            return found
        return [record for record in found if record.sub_sequence > self._done.sub_sequence]
