"""What was put, and is in no lane yet?

``put`` is for every record, and the shell may do without the call: as long as there is room here, it appends a record
that it has checked to ``records``, and adds its bytes to ``size``. Nothing else is to be done for it.

Invariants:

- P7: as much as ``max_records`` and ``max_bytes`` let in fits into the buffer.
- P11: while something is to be armed there is no room: the next record goes by ``ProducerMachine.put``.
- IN1: while it is shut there is no room, whatever the machine finds: the shell wants each record to go by a call.
"""

from typing import final

from shardline.core.producer.record import BufferedRecord


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
        self.records.append(record)
        self.size += size

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

    def take(self) -> list[BufferedRecord]:
        """All that is here."""
        taken, self.records = self.records, []
        self.size = 0
        return taken
