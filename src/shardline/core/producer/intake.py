"""What was put, and is in no lane yet?

``put`` is for every record, and the shell may do without the call: as long as there is room here, it appends a record
that it has checked to ``records``, and adds its bytes to ``size``. Nothing else is to be done for it.

Invariants:

- P7: as much as ``max_records`` and ``max_bytes`` let in fits into the buffer.
- P11: while something is to be armed there is no room: the next record goes by ``ProducerMachine.put``.
- IN1: while it is shut there is no room, whatever the machine finds: the shell wants each record to go by a call.
- IN3: bytes are counted before the record is there: what an interrupt leaves between the two is counted and not there,
  never the other way round (P7).
- IN2: a round is as large as one that may fill a request. On a stream of many shards that leaves each lane a record or
  less, and each record costs what a list of them does: there rounds are larger, as long as they are no great part of
  the buffer, and still no more than what fills a request.
"""

from enum import IntEnum
from typing import Final, final

from shardline.core.producer.config import ProducerConfig
from shardline.core.producer.record import BufferedRecord
from shardline.model.limits import KIB

ROUND_RECORDS: Final = 512
ROUND_BYTES: Final = 512 * KIB
_LANE_RECORDS: Final = 8
_LANE_BYTES: Final = 4 * KIB
_PARTS_OF_THE_BUFFER: Final = 8


def round_limits(config: ProducerConfig, lanes: int) -> tuple[int, int]:
    """How many records, and bytes, are sorted at one stroke over so many lanes (IN2)."""
    records, size = min(ROUND_RECORDS, config.request_max_entries), min(ROUND_BYTES, config.request_max_bytes)
    if not config.aggregation:
        return records, size
    more = min(_LANE_RECORDS * lanes, config.buffer_max_records // _PARTS_OF_THE_BUFFER)
    if config.aggregate_max_count is not None:
        more = min(more, config.request_max_entries * config.aggregate_max_count)
    return max(records, more), max(size, min(_LANE_BYTES * lanes, config.buffer_max_bytes // _PARTS_OF_THE_BUFFER))


@final
class Put(IntEnum):
    """What came of a ``put``."""

    FULL = 0  # not accepted: there is no room
    QUIET = 1  # accepted; nothing to do for the shell
    PUMP = 2  # accepted; the shell must poll, or arm its timer anew


@final
class Intake:
    """Records in the order of their puts."""

    __slots__ = ("_is_shut", "max_bytes", "max_records", "records", "size")

    def __init__(self) -> None:
        self.records: list[BufferedRecord] = []
        self.size: int = 0
        """Their data and keys, in bytes."""
        self.max_records: int = 0
        self.max_bytes: int = 0
        self._is_shut: bool = False

    def add(self, record: BufferedRecord, size: int) -> None:
        """Take a record in, room or not."""
        self.size += size
        self.records.append(record)

    def open(self, max_records: int, max_bytes: int) -> None:
        """Let in so much, with what is here."""
        self.max_records = 0 if self._is_shut else max_records
        self.max_bytes = max_bytes

    def shut(self) -> None:
        """Let nothing in (IN1)."""
        self._is_shut = True
        self.max_records = 0

    def unshut(self) -> None:
        """Let records in again, from when the machine next opens it."""
        self._is_shut = False

    def take(self) -> tuple[list[BufferedRecord], int]:
        """All that is here, and its bytes. It lets nothing in until it is opened anew: an interrupt may come (P7).

        What is added while this runs is either in it or left, with its bytes (TU1): between the lines that look and
        those that write nothing is called, and nothing is made.
        """
        self.max_records = 0
        empty: list[BufferedRecord] = []
        taken = self.records
        size = self.size
        self.records = empty
        self.size = 0
        return taken, size
