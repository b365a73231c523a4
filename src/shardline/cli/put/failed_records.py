"""Counts the records that were not put, and writes them to the file of ``--failed``.

Invariants:

- Every record that was read and not delivered is counted here once, and is written to the file if there is one.
- Records are only appended to the file, so the records of an earlier run are kept. The file is created before the first
  record is put, so that a wrong path is noticed before any record is sent; a new file is deleted if nothing failed.
- If a line of the file contains data, it can be put again unchanged: see ``codec.record_lines``.
"""

from collections import Counter
from pathlib import Path
from typing import IO, Final, final

import msgspec

from shardline.aio.producer.delivery import Delivery
from shardline.cli.terminal import notice
from shardline.codec.record_lines import VERSION, PlainRecord, line_of
from shardline.core.producer.producer_record import Undelivered

_NOTICES_MAX: Final = 5  # how many rejected lines are each reported on standard error


@final
class FailedRecords:
    """The records that failed so far, counted by reason."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._existed_before = path is not None and path.exists()
        self._file: IO[bytes] | None = None if path is None else path.open("ab")
        self._line_count = 0
        self.reasons: Counter[str] = Counter()
        self.write_error: OSError | None = None

    @property
    def count(self) -> int:
        return self.reasons.total()

    def add_delivery(self, delivery: Delivery) -> None:
        """Add a record that the producer failed to deliver."""
        reason = delivery.conclusion
        assert isinstance(reason, Undelivered)
        assert delivery.data is not None, "a failed delivery keeps its data"
        self.reasons[f"{reason.code}: {reason.message}"] += 1
        record = PlainRecord(delivery.key, delivery.data, delivery.explicit_hash_key, delivery.headers)
        error = {"error": reason.code, "message": reason.message, "maybe_stored": reason.maybe_stored}
        self._write(line_of(record, **error))

    def add_line(self, number: int, kept: PlainRecord | bytes | None, code: str, message: str) -> None:
        """Add a line of the input that could not be put.

        Args:
            number: the number of the line, counted from 1.
            kept: the record to write to the file; or the line itself as bytes, to be written unchanged; or ``None`` if
                the line was too long to keep.
            code: the error code.
            message: the reason, as a sentence.
        """
        self.reasons[code] += 1
        self._line_count += 1
        if self._line_count <= _NOTICES_MAX:
            notice(f"line {number}: {message}")
        elif self._line_count == _NOTICES_MAX + 1:
            notice("... and more lines")
        if isinstance(kept, bytes):
            self._write(kept + b"\n")
        elif kept is None:
            self._write(
                msgspec.json.encode({"version": VERSION, "line": number, "error": code, "message": message}) + b"\n"
            )
        else:
            self._write(line_of(kept, line=number, error=code, message=message))

    def add_unput(self, records: list[PlainRecord]) -> None:
        """Add records that had been read, but not yet accepted by the producer, when the run was interrupted."""
        self.reasons["Interrupted: not sent"] += len(records)
        for record in records:
            self._write(line_of(record, error="Interrupted", message="not sent", maybe_stored=False))

    def close(self) -> None:
        if self._file is None:
            return
        try:
            self._file.close()
        except OSError as error:
            self.write_error = self.write_error or error
        assert self._path is not None
        if not self._existed_before and not self.count:
            self._path.unlink(missing_ok=True)

    def _write(self, line: bytes) -> None:
        if self._file is None or self.write_error is not None:
            return
        try:
            self._file.write(line)
        except OSError as error:  # a full disk is reported at the end, because later records may still be put
            self.write_error = error
