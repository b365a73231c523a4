"""The mailbox between the code that puts records and the host that sends them.

A putter (any task, thread, signal handler or finalizer) reserves room and appends its record to the intake. A putter
touches no other part of the machine. The host takes records from the front. It releases the room of a record when the
record has *ended*, that is, when the record was delivered or has failed.

Invariants:

- P7: the room in use is the reserved room minus the released room. Putters write ``reserved_*``, and the host writes
  ``limit_*`` (the released room plus the size of the buffer), so that neither waits for the other. A record that is
  larger than the whole buffer is accepted if the buffer is empty.
- P1: no function is called between reserving and appending, so that no interrupt can come between the two. A shell with
  several threads holds its putters' lock around both. The host calls ``end`` last. If a putter appends a record after
  that call, the putter itself takes the record back.
- P11: a putter wakes the host only when the putter passes a mark, that is, a number of reserved records or bytes. The
  host sets the marks before it sleeps: at the next record if nothing else would wake the host in time, otherwise at the
  end of a round. A putter that passes a mark raises the mark to the limit. Otherwise every further put would wake the
  host again until the host runs.
- No wake-up is lost between threads: the host sets the marks and then reads ``records``, and a putter appends and then
  reads the marks.
- The gate is the fast path of the shell's ``put``. It is closed (``gate_records`` is 0) while puts are refused, while
  callers wait for room, and if data has to be serialized first. While the gate is closed, each put calls
  ``Intake.put``. The gate and the mark are separate fields: if closing the gate set the mark to 0, every put
  would wake the host while a caller waits.
- ``records`` is never replaced by another list: an append to the old list would be lost.
- At every moment, each record that has not ended is in ``records`` or in ``_taken``. So the shell finds all of these
  records after a fork, or after an interrupt broke the host (P1).
- A round is large enough that the host wakes rarely: a wake-up costs as much as tens of records. A round grows with the
  number of shards, but stays a small part of the buffer. Without aggregation, it is no larger than a request.
"""

from collections import deque
from enum import IntEnum
from typing import Any, Final, final

from shardline._speedups import twin
from shardline.core.clock import Instant
from shardline.core.producer.aggregate import WRAP_MAX_BYTES
from shardline.core.producer.producer_config import ProducerConfig
from shardline.core.producer.producer_record import BufferedRecord, Undelivered, payload_bytes
from shardline.model.limits import KIB

ROUND_RECORDS: Final = 1_000
ROUND_BYTES: Final = 1_000 * KIB
_LANE_RECORDS: Final = 64
_LANE_BYTES: Final = 4 * KIB
_PARTS_OF_THE_BUFFER: Final = 8
_ENDED_MAX: Final = 4_096  # how many delivered or failed records may remain in the list of taken records


def round_limits(config: ProducerConfig, lanes: int) -> tuple[int, int]:
    """Return how many records and how many bytes make a round, for a stream with this many lanes."""
    if not config.aggregation:
        return min(ROUND_RECORDS, config.request_max_entries), min(ROUND_BYTES, config.request_max_bytes)
    records = max(ROUND_RECORDS, _LANE_RECORDS * lanes)
    if config.aggregate_max_count is not None:
        records = min(records, config.request_max_entries * config.aggregate_max_count)
    size = max(ROUND_BYTES, _LANE_BYTES * lanes)
    parts = _PARTS_OF_THE_BUFFER
    return max(1, min(records, config.buffer_max_records // parts)), min(size, config.buffer_max_bytes // parts)


@twin
def keep_order(records: list[BufferedRecord], newest: Instant, /) -> Instant:
    """Delay expiry times so that no record expires before an earlier record or before ``newest``. Return the last
    expiry time.
    """
    for record in records:
        if record.expires_at < newest:
            record.expires_at = newest
        else:
            newest = record.expires_at
    return newest


@twin
def without_ended(records: list[BufferedRecord], /) -> list[BufferedRecord]:
    """Return the records that have neither been delivered nor failed."""
    return [record for record in records if record.ending is None]


@final
class Put(IntEnum):
    REFUSED = 0  # not accepted, for the reason in ``refusal``
    FULL = 1  # not accepted: there is no room, or other callers already wait for room
    QUIET = 2  # accepted; the shell has nothing to do
    WAKE = 3  # accepted; the shell must wake the host


_REFUSED, _FULL, _QUIET, _WAKE = map(int, Put)  # plain numbers, as the compiled form returns them
_ANSWERS: Final = tuple(Put)


@twin
class Room:
    """The records of an intake, and the room that they take in the buffer.

    ``Intake`` documents the fields. The compiled form stores the numbers without Python objects, and its ``put`` and
    ``accept`` cannot be interrupted, not even by a trace function.
    """

    # fmt: off
    __slots__ = (
        "limit_bytes", "limit_records", "max_records", "quiet_bytes", "quiet_records", "records", "refusal",
        "reserved_bytes", "reserved_records", "serializes", "waiters",
    )
    # fmt: on

    records: list[BufferedRecord]
    waiters: deque[Any]
    refusal: str | None
    reserved_records: int
    reserved_bytes: int
    limit_records: int
    limit_bytes: int
    quiet_records: int
    quiet_bytes: int
    max_records: int
    serializes: bool

    def accept(self, records: list[BufferedRecord], size: int, in_turn: bool, /) -> int:
        """Append all records or none, and return a value of ``Put``. WAKE means that a mark was passed.

        Args:
            records: the records, at least one.
            size: the total size in bytes of their data, keys and headers.
            in_turn: whether the caller is the first of ``waiters``, which may go ahead of the other waiters.
        """
        count = len(records)  # the last call before ``extend``, so that no interrupt comes between the two (P1)
        if self.refusal is not None:
            return _REFUSED
        reserved, reserved_bytes = self.reserved_records + count, self.reserved_bytes + size
        if reserved > self.limit_records or (self.waiters and not in_turn):
            return _FULL
        # An empty buffer accepts a single record of any size.
        is_empty = self.reserved_records <= self.limit_records - self.max_records
        if reserved_bytes > self.limit_bytes and (count > 1 or not is_empty):
            return _FULL
        self.reserved_records = reserved
        self.reserved_bytes = reserved_bytes
        self.records.extend(records)
        return _QUIET if reserved <= self.quiet_records and reserved_bytes <= self.quiet_bytes else _WAKE


@final
class Intake(Room):
    """The records that have been put and that the host has not taken yet, in the order of their puts."""

    # fmt: off
    __slots__ = (
        "_has_ended", "_max_bytes", "_newest", "_taken", "gate_records", "headers_refusal", "invalid",
        "plain_max_bytes", "record_max_bytes", "ttls_differ",
    )
    # fmt: on

    def __init__(self, config: ProducerConfig) -> None:
        self.max_records, self._max_bytes = config.buffer_max_records, config.buffer_max_bytes
        self.records = []
        """Putters append to this list, and the host takes records from its front."""
        self.reserved_records = 0
        """The number of records that have ever been accepted. Putters write this field."""
        self.reserved_bytes = 0
        """The size in bytes of the data, keys and headers of all records ever accepted. Putters write this field."""
        self.limit_records = self.max_records
        """Putters may reserve up to this number of records, and up to ``limit_bytes``. The host writes this field."""
        self.limit_bytes = self._max_bytes
        self.quiet_records = 0
        """The mark for records: while no more than this number are reserved, there is room and the host need not be
        woken.
        """
        self.quiet_bytes = 0
        """The mark for reserved bytes, which works like ``quiet_records``."""
        self.gate_records = 0
        """Equal to ``quiet_records`` while the gate is open, and 0 while the gate is closed."""
        self.refusal = None
        """Why puts are refused, or ``None`` if they are accepted."""
        self.headers_refusal = config.headers_refusal
        """Why records with headers are refused, or ``None`` if they are accepted. The host writes this field."""
        self.waiters = deque()
        """The callers that wait for room, in the order of their arrival. The shell adds and wakes them."""
        self.invalid: list[BufferedRecord] = []
        """Records that ``put_many`` refused and that have therefore failed. Putters append, and the host reports."""
        self.ttls_differ = False
        """Whether some record may have its own TTL. A putter sets this before it puts such a record."""
        self.serializes = False
        """Whether data has to be converted to bytes first. The shell writes this field."""
        self.limit_record(config.known_record_max_bytes)
        self._has_ended = False
        self._taken: list[BufferedRecord] = []  # written by the host; some of these have ended
        self._newest: Instant = 0.0  # when the last taken record expires; written by the host

    # ---- for putters

    def put(self, record: BufferedRecord, size: int, in_turn: bool = False) -> Put:
        """Accept a record of ``size`` bytes that the shell has validated.

        Args:
            record: the record.
            size: the size in bytes of the record's data, key and headers.
            in_turn: whether the caller is the first of ``waiters``, which may go ahead of the other waiters.
        """
        records = [record]
        return self._answer(self.accept(records, size, in_turn), records)

    def put_many(self, records: list[BufferedRecord], size: int) -> Put:
        """Accept all records or none. If the result is FULL, the caller puts the records one by one.

        Args:
            records: the records.
            size: the total size in bytes of their data, keys and headers.
        """
        in_turn = False
        return self._answer(self.accept(records, size, in_turn), records)

    def _answer(self, result: int, records: list[BufferedRecord]) -> Put:
        return self.pass_mark(records) if result == _WAKE else _ANSWERS[result]

    def pass_mark(self, records: list[BufferedRecord]) -> Put:
        """Raise the marks after an append passed a mark, so that further puts do not wake the host again."""
        if self._has_ended:
            return self._take_back(records)
        self.quiet_records = self.limit_records
        self.quiet_bytes = min(self.limit_bytes, self.reserved_bytes + self.plain_max_bytes)
        self.update_gate()
        return Put.WAKE

    def _take_back(self, records: list[BufferedRecord]) -> Put:
        """Remove those records that the host had not taken when it stopped. The host settles the other records."""
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
        """Open or close the gate after one of its conditions changed.

        If an interrupt prevents this call, the next call of ``mark`` corrects the gate.
        """
        is_open = self.refusal is None and not self.waiters and not self.serializes
        self.gate_records = self.quiet_records if is_open else 0

    def refuse(self, reason: str) -> None:
        self.refusal = reason
        self.quiet_records = -1  # a putter that has just passed the gate sees after its append that it passed the mark
        self.gate_records = 0

    def admit(self) -> None:
        """Accept puts from now on."""
        self.refusal = None
        self.update_gate()

    # ---- for the host

    @property
    def outstanding(self) -> int:
        """The number of accepted records that have neither been delivered nor failed."""
        return self.reserved_records - self.limit_records + self.max_records

    @property
    def buffered_bytes(self) -> int:
        """The size in bytes of the data, keys and headers of the outstanding records."""
        return self.reserved_bytes - self.limit_bytes + self._max_bytes

    @property
    def has_room(self) -> bool:
        """Whether a record may fit. If so, the first waiter should try again."""
        return self.reserved_records < self.limit_records

    def release(self, records: int, size: int) -> None:
        """Free the room of records that have been delivered or have failed."""
        self.limit_bytes += size
        self.limit_records += records
        if self.reserved_records == self.limit_records - self.max_records:
            self._taken = []  # all accepted records were delivered or have failed

    def charge(self, size: int) -> None:
        """Take more room for records that the host has made larger."""
        self.limit_bytes -= size

    def limit_record(self, max_bytes: int) -> None:
        """Set the size of the largest record (data and key) that the stream accepts."""
        self.record_max_bytes = max_bytes
        self.plain_max_bytes = max_bytes - WRAP_MAX_BYTES
        """The largest size at which a record fits even if it has to be wrapped (P12)."""
        self.mark(0, 0)

    def mark(self, records: int, size: int) -> None:
        """Set the marks: a put wakes the host as soon as more than this many further records or bytes have been put."""
        is_open = self.refusal is None
        self.quiet_records = min(self.reserved_records + records, self.limit_records) if is_open else -1
        # A record larger than plain_max_bytes must not pass the gate: the shell has to check its wrapped size (P12).
        self.quiet_bytes = min(self.reserved_bytes + min(size, self.plain_max_bytes), self.limit_bytes)
        self.update_gate()

    def take(self, count: int) -> list[BufferedRecord]:
        """Take the first records, and make sure that no record expires before a record that was put earlier (P9).

        A putter may be delayed between reading the clock and appending. Its record would then expire before records
        that were put earlier.
        """
        if len(self._taken) > 2 * self.outstanding + _ENDED_MAX:
            self._taken = without_ended(self._taken)
        taken = self.records[:count]
        self._taken += taken  # before the deletion: a fork may come between the two, and must find the records
        del self.records[: len(taken)]
        self._newest = keep_order(taken, self._newest)
        return taken

    def take_invalid(self) -> list[BufferedRecord]:
        """Take the invalid records that the host has not reported yet."""
        taken = self.invalid[:]
        del self.invalid[: len(taken)]
        return taken

    def end(self, reason: str) -> list[BufferedRecord]:
        """Refuse further puts and take all remaining records. The host takes no records after this call.

        The records are popped one by one, because a putter may take its own record back at the same time.
        """
        if self.refusal is None:
            self.refuse(reason)
        self._has_ended = True
        self._taken += self.records
        taken: list[BufferedRecord] = []
        while self.records:
            try:
                taken.append(self.records.pop())
            except IndexError:  # the putter of the last record took it back
                break
        taken.reverse()
        return taken

    def known(self) -> list[BufferedRecord]:
        """Return all outstanding records and some that have ended, in the order of their puts."""
        return [*self._taken, *self.records]

    def unfinished(self) -> list[BufferedRecord]:
        """Return all records that have neither been delivered nor failed, in the order of their puts."""
        return without_ended(self.known())
