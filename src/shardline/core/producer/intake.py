"""The mailbox between the code that puts records and the host that sends them.

A putter (any task, thread, signal handler or finalizer) reserves room and appends its record here. It touches nothing
else of the machine. The host takes records from the front, and releases their room when they have ended.

Invariants:

- P7: the room in use is what was reserved less what was released. Putters write ``reserved_*``, the host writes
  ``limit_*`` (released plus the size of the buffer), so that neither waits for the other. A record larger than the
  whole buffer goes into an empty one.
- P1: nothing is called between reserving and appending, so that no interrupt can come between the two. A shell that has
  several threads holds its putters' lock around both. The host's last act is ``end``: a record that is appended after
  that is taken back by its own putter.
- P11: a putter wakes the host only when it passes a mark. The host sets the marks before it sleeps: at the next record
  if nothing else would wake it in time, otherwise at the end of a round. A putter that has passed a mark raises it to
  the limit, or every further put would wake the host until it runs.
- No wake-up is lost between threads: the host sets the marks and then looks at ``records``, a putter appends and then
  looks at the marks.
- The gate is closed while puts are refused, while callers wait for room, and where data has to be serialized first.
  ``gate_records`` is then 0, and each put goes by ``put``. Marks and gate are two fields: with the mark at 0, every put
  would wake the host while a caller waits.
- ``records`` is the same list for the whole life: an append to a list that was replaced meanwhile would be lost.
- Whatever the host is doing, each record that has not ended is in ``records`` or among those that it has taken: a fork
  finds it there, and so does the shell when an interrupt broke the host (P1).
- A round is large enough that the host wakes rarely: a wake-up costs as much as tens of records. On a stream of many
  shards it grows with them, as long as it is no great part of the buffer and no more than fills a request.
"""

from collections import deque
from enum import IntEnum
from typing import Any, Final, final

from shardline.core.producer.aggregate import WRAP_MAX_BYTES
from shardline.core.producer.producer_config import ProducerConfig
from shardline.core.producer.producer_record import BufferedRecord, Undelivered, payload_bytes
from shardline.model.limits import KIB

ROUND_RECORDS: Final = 1_000
ROUND_BYTES: Final = 1_000 * KIB
_LANE_RECORDS: Final = 8
_LANE_BYTES: Final = 4 * KIB
_PARTS_OF_THE_BUFFER: Final = 8
_ENDED_MAX: Final = 4_096  # records that have ended and may still be among those that the host has taken


def round_limits(config: ProducerConfig, lanes: int) -> tuple[int, int]:
    """How many records, and bytes, make a round on a stream with so many lanes."""
    if not config.aggregation:
        return min(ROUND_RECORDS, config.request_max_entries), min(ROUND_BYTES, config.request_max_bytes)
    records = max(ROUND_RECORDS, _LANE_RECORDS * lanes)
    if config.aggregate_max_count is not None:
        records = min(records, config.request_max_entries * config.aggregate_max_count)
    size = max(ROUND_BYTES, _LANE_BYTES * lanes)
    parts = _PARTS_OF_THE_BUFFER
    return max(1, min(records, config.buffer_max_records // parts)), min(size, config.buffer_max_bytes // parts)


@final
class Put(IntEnum):
    """What came of a ``put``."""

    REFUSED = 0  # not accepted: ``refusal`` has the reason
    FULL = 1  # not accepted: there is no room, or others wait for it
    QUIET = 2  # accepted; nothing to do for the shell
    WAKE = 3  # accepted; the shell must wake the host


@final
class Intake:
    """Records in the order of their puts."""

    # fmt: off
    __slots__ = (
        "_has_ended", "_max_bytes", "_max_records", "_newest", "_taken", "gate_records", "limit_bytes", "limit_records",
        "plain_max_bytes", "quiet_bytes", "quiet_records", "record_max_bytes", "records", "refusal", "reserved_bytes",
        "reserved_records", "serializes", "waiters",
    )
    # fmt: on

    def __init__(self, config: ProducerConfig) -> None:
        self._max_records, self._max_bytes = config.buffer_max_records, config.buffer_max_bytes
        self.records: list[BufferedRecord] = []
        """Putters append, the host takes from the front."""
        self.reserved_records = 0
        """By putters: all records that were ever accepted, and their bytes of data and key."""
        self.reserved_bytes = 0
        self.limit_records = self._max_records
        """By the host: up to here putters may reserve."""
        self.limit_bytes = self._max_bytes
        self.quiet_records = 0
        """The marks: as long as no more is reserved, there is room, and the host need not be woken."""
        self.quiet_bytes = 0
        self.gate_records = 0
        """``quiet_records``, or 0 while the gate is closed."""
        self.refusal: str | None = None
        """Why nothing is accepted, if nothing is."""
        self.waiters: deque[Any] = deque()
        """The callers that wait for room, in the order of their arrival. The shell enters and wakes them."""
        self.serializes = False
        """Set by the shell: data has to be turned into bytes first."""
        self.limit_record(config.known_record_max_bytes)
        self._has_ended = False
        self._taken: list[BufferedRecord] = []  # by the host: with some that have ended
        self._newest = 0.0  # by the host: when the last that it took expires

    # ---- for putters

    def put(self, record: BufferedRecord, size: int, in_turn: bool = False) -> Put:
        """Accept a record of ``size`` bytes that the shell has checked. ``in_turn``: of the first of the waiters."""
        if self.refusal is not None:
            return Put.REFUSED
        reserved, reserved_bytes = self.reserved_records + 1, self.reserved_bytes + size
        if reserved > self.limit_records or (self.waiters and not in_turn):
            return Put.FULL
        if reserved_bytes > self.limit_bytes and reserved - 1 > self.limit_records - self._max_records:
            return Put.FULL
        self.reserved_records = reserved
        self.reserved_bytes = reserved_bytes
        self.records.append(record)
        if reserved <= self.quiet_records and reserved_bytes <= self.quiet_bytes:
            return Put.QUIET
        return self.pass_mark([record])

    def put_many(self, records: list[BufferedRecord], size: int) -> Put:
        """Accept records of ``size`` bytes in one step, all of them or none: with FULL, put them one by one."""
        count = len(records)  # from here to the call that appends nothing is called
        if self.refusal is not None:
            return Put.REFUSED
        reserved, reserved_bytes = self.reserved_records + count, self.reserved_bytes + size
        if reserved > self.limit_records or reserved_bytes > self.limit_bytes or self.waiters:
            return Put.FULL
        self.reserved_records = reserved
        self.reserved_bytes = reserved_bytes
        self.records.extend(records)
        if reserved <= self.quiet_records and reserved_bytes <= self.quiet_bytes:
            return Put.QUIET
        return self.pass_mark(records)

    def pass_mark(self, records: list[BufferedRecord]) -> Put:
        """Records that were appended passed a mark: no other put needs to wake the host before it has run."""
        if self._has_ended:
            return self._take_back(records)
        self.quiet_records = self.limit_records
        self.quiet_bytes = min(self.limit_bytes, self.reserved_bytes + self.plain_max_bytes)
        self.update_gate()
        return Put.WAKE

    def _take_back(self, records: list[BufferedRecord]) -> Put:
        """The host may have taken its last records before these came. Those that it did take it ends."""
        result = Put.WAKE
        for record in records:
            if record in self.records:
                self.records.remove(record)
                self.reserved_records -= 1
                self.reserved_bytes -= payload_bytes(record)
                record.ending = Undelivered("Closed", self.refusal or "")
                result = Put.REFUSED
        return result

    # ---- the gate

    def update_gate(self) -> None:
        """One of the conditions has changed. If an interrupt prevents the call, the next mark makes up for it."""
        is_open = self.refusal is None and not self.waiters and not self.serializes
        self.gate_records = self.quiet_records if is_open else 0

    def refuse(self, reason: str) -> None:
        """Accept nothing more."""
        self.refusal = reason
        self.quiet_records = -1  # who has passed the gate just now and appends meanwhile, sees it
        self.gate_records = 0

    def admit(self) -> None:
        """Accept records from now on."""
        self.refusal = None
        self.update_gate()

    # ---- for the host

    @property
    def outstanding(self) -> int:
        """Records that were accepted and have not ended."""
        return self.reserved_records - self.limit_records + self._max_records

    @property
    def buffered_bytes(self) -> int:
        """Their data and keys."""
        return self.reserved_bytes - self.limit_bytes + self._max_bytes

    @property
    def has_room(self) -> bool:
        """Whether a record may fit: the first of the waiters is to try."""
        return self.reserved_records < self.limit_records

    def release(self, records: int, size: int) -> None:
        """Records have ended: their room is free."""
        self.limit_bytes += size
        self.limit_records += records
        if self.reserved_records == self.limit_records - self._max_records:
            self._taken = []  # all have ended

    def limit_record(self, max_bytes: int) -> None:
        """The largest record that the stream takes, data and key."""
        self.record_max_bytes = max_bytes
        self.plain_max_bytes = max_bytes - WRAP_MAX_BYTES
        """Up to here a record fits, also wrapped (P12)."""
        self.mark(0, 0)

    def mark(self, records: int, size: int) -> None:
        """The host need not be woken before more than so many further records, or bytes, were put."""
        is_open = self.refusal is None
        self.quiet_records = min(self.reserved_records + records, self.limit_records) if is_open else -1
        # No single record that is larger than a plain one goes by the gate (P12).
        self.quiet_bytes = min(self.reserved_bytes + min(size, self.plain_max_bytes), self.limit_bytes)
        self.update_gate()

    def take(self, count: int) -> list[BufferedRecord]:
        """The first records, dated in the order of their puts (P9).

        A putter that was held up between reading the clock and appending has an earlier date than those before it.
        """
        if len(self._taken) > 2 * self.outstanding + _ENDED_MAX:
            self._taken = [record for record in self._taken if record.ending is None]
        taken = self.records[:count]
        self._taken += taken  # first here, then not there: a fork may come between the two
        del self.records[: len(taken)]
        newest = self._newest
        for record in taken:
            if record.expires_at < newest:
                record.expires_at = newest
            else:
                newest = record.expires_at
        self._newest = newest
        return taken

    def end(self, reason: str) -> list[BufferedRecord]:
        """The last records: the host takes no more. One by one, for a putter may take its own back meanwhile."""
        if self.refusal is None:
            self.refuse(reason)
        self._has_ended = True
        self._taken += self.records
        taken: list[BufferedRecord] = []
        while self.records:
            try:
                taken.append(self.records.pop())
            except IndexError:  # it was the last, and its putter took it back
                break
        taken.reverse()
        return taken

    def known(self) -> list[BufferedRecord]:
        """All records that have not ended, and some that have, in the order of their puts."""
        return [*self._taken, *self.records]

    def unfinished(self) -> list[BufferedRecord]:
        """All records that have not ended, in the order of their puts."""
        return [record for record in self.known() if record.ending is None]
