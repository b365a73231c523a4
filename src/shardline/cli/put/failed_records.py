"""What was not put, why, and where does it go?

Invariants:

- Everything that was read and not delivered is counted here, once, and is written to the file if there is one.
- The file is only ever added to: what an earlier run left in it stays. It is made before the first record is put,
  so that a wrong path costs nothing, and does not stay if nothing failed.
- A line of the file that holds data can be put again as it is: see ``codec.record_lines``.
"""

from collections import Counter
from pathlib import Path
from typing import IO, Final, final

import msgspec

from shardline.aio.producer.delivery import Delivery
from shardline.cli.terminal import notice
from shardline.codec.record_lines import VERSION, PlainRecord, line_of
from shardline.core.producer.producer_record import Undelivered

_SHOWN: Final = 5  # refused lines that are told one by one


@final
class FailedRecords:
    """What failed so far."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._was_there = path is not None and path.exists()
        self._file: IO[bytes] | None = None if path is None else path.open("ab")
        self._told = 0
        self.reasons: Counter[str] = Counter()
        self.write_error: OSError | None = None

    @property
    def count(self) -> int:
        return self.reasons.total()

    def add_delivery(self, delivery: Delivery) -> None:
        """The producer gave it up."""
        reason = delivery.conclusion
        assert isinstance(reason, Undelivered)
        assert delivery.data is not None, "kept on failure"
        self.reasons[f"{reason.code}: {reason.message}"] += 1
        record = PlainRecord(delivery.key, delivery.data, delivery.explicit_hash_key)
        told = {"error": reason.code, "message": reason.message, "maybe_stored": reason.maybe_stored}
        self._write(line_of(record, **told))

    def add_line(self, number: int, kept: PlainRecord | bytes | None, code: str, message: str) -> None:
        """A line that could not be put.

        Args:
            number: of the line, from 1.
            kept: the record that it would have been; bytes: the line itself, to be written as it is; ``None``: it was
                too long to be kept.
            code: why, in a word.
            message: why.
        """
        self.reasons[code] += 1
        self._told += 1
        if self._told <= _SHOWN:
            notice(f"line {number}: {message}")
        elif self._told == _SHOWN + 1:
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
        """These were read, and not accepted when it was broken off."""
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
        if not self._was_there and not self.count:
            self._path.unlink(missing_ok=True)

    def _write(self, line: bytes) -> None:
        if self._file is None or self.write_error is not None:
            return
        try:
            self._file.write(line)
        except OSError as error:  # a full disk: told at the end, for the records that follow may still be put
            self.write_error = error
