"""Puts the lines of an input into a stream.

Invariants:

- Every line that was read is either delivered or added to ``FailedRecords``, even if the run is interrupted.
- Memory is bounded, however long the input is: lines are read only when the producer has room.
- A line that cannot become a record does not stop the other lines.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias, final

import anyio

from shardline.aio.producer.async_producer import Producer
from shardline.cli.interrupts import Interrupts
from shardline.cli.put.failed_records import FailedRecords
from shardline.cli.put.line_input import LINE_MAX_BYTES, BlockReader, LineSplitter
from shardline.cli.put.put_progress import PutCounts, show_progress
from shardline.codec.record_lines import PlainRecord
from shardline.errors import UsageError

if TYPE_CHECKING:
    from shardline.aio.producer.delivery import Delivery
    from shardline.core.producer.producer_record import Receipt
    from shardline.core.producer.producer_stats import ProducerStats

_Record: TypeAlias = tuple[str | None, bytes] | PlainRecord

_TOO_LONG: Final = f"longer than {LINE_MAX_BYTES} bytes, the most that a record of any stream takes"


@final
@dataclass(frozen=True)
class LineParser:
    """Converts a line of the input to a record."""

    key: str | None = None
    """The key of every record. It is used only if ``convert`` is ``None``."""
    convert: Callable[[bytes], PlainRecord] | None = None
    """Converts a line to a record, or raises ``UsageError``. ``None`` means that the line is the data."""
    error_code: str = "NotARecord"
    """The error code of a line that ``convert`` rejects."""
    keeps_lines: bool = False
    """Whether rejected lines are written to ``--failed`` unchanged, because they already are in its format."""
    headers: Mapping[str, str] | None = None
    """Headers for every record. They replace headers of the same name in a line."""

    def parse(self, line: bytes) -> PlainRecord:
        record = PlainRecord(self.key, line) if self.convert is None else self.convert(line)
        return record if not self.headers else record._replace(headers={**(record.headers or {}), **self.headers})


@final
class PutRun:
    """Puts one input into a stream and keeps the counts."""

    def __init__(self, producer: Producer, failed: FailedRecords, parser: LineParser, signals: Interrupts) -> None:
        self._producer = producer
        self._failed = failed
        self._parser = parser
        self._signals = signals
        self._reader: BlockReader | None = None
        self._splitter = LineSplitter()
        # Records that the producer has accepted: from all earlier chunks, and from the first ``_done`` of this chunk.
        self._accepted = 0
        self._chunk: Sequence[_Record] = ()  # the records that are being passed to the producer
        self._done = 0  # how many records of the chunk were accepted, or rejected for good
        self.line_count = 0
        self.empty_count = 0
        self.cut_bytes = 0
        """The length of the incomplete line that was being read when the run was interrupted."""
        self.is_interrupted = False
        self.seconds = 0.0
        """The duration of the run. ``put_command`` sets it."""
        self.receipt: Receipt | None = None
        """The receipt of a record that was put alone."""

    async def put_one(self, data: bytes) -> None:
        """Put one record and wait for its receipt.

        Raises:
            UsageError: the data cannot become a record.
            DeliveryFailed: the record was not delivered.
        """
        record = self._parser.parse(data)
        with self._signals.stage() as waiting:
            delivery = await self._put_record(record)
            self.receipt = await delivery
        self.is_interrupted = waiting.cancelled_caught

    async def put_whole(self, descriptor: int) -> None:
        """Put the whole input as one record.

        Raises:
            UsageError: the input cannot become a record.
            DeliveryFailed: the record was not delivered.
        """
        parts: list[bytes] = []
        self._reader = BlockReader(descriptor)
        with self._signals.stage() as reading:
            async for block in self._reader.blocks():
                parts.append(block)
                if self._reader.read_bytes > LINE_MAX_BYTES:
                    raise UsageError(f"the input is {_TOO_LONG}")
        if reading.cancelled_caught:
            self.is_interrupted = True
            self.cut_bytes = self._reader.read_bytes
        else:
            await self.put_one(b"".join(parts))

    async def put_lines(self, descriptor: int, total_bytes: int | None, drain: float) -> None:
        """Put every line. Ctrl-C ends the reading; records in flight then have ``drain`` seconds to be delivered."""
        self._reader = BlockReader(descriptor)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(show_progress, self.counts, total_bytes)
            with self._signals.stage() as reading:
                async for block in self._reader.blocks():
                    await self._put(self._splitter.feed(block))
                await self._put(self._splitter.end())
                await self._producer.flush()
            if reading.cancelled_caught:
                self.is_interrupted = True
                self._fail_unput()
                with self._signals.stage():
                    await self._producer.flush(drain)
            tasks.cancel_scope.cancel()

    @property
    def exit_code(self) -> int:
        """The exit code of a run that was interrupted."""
        return self._signals.exit_code

    def stats(self) -> "ProducerStats":
        return self._producer.stats()

    def counts(self) -> PutCounts:
        stats = self.stats()
        read_bytes = 0 if self._reader is None else self._reader.read_bytes
        return PutCounts(
            stats.delivered_records, stats.outstanding, stats.retried_records, self._failed.count, read_bytes
        )

    async def _put(self, lines: list[bytes | None]) -> None:
        if not lines:
            return
        records, numbers = self._records(lines)
        self._chunk, self._done = records, 0
        try:
            await self._producer.put_many(records)
        except UsageError:  # one bad record makes put_many reject the whole chunk
            await self._put_one_by_one(records, numbers)
        else:
            self._accepted += len(records)
        self._chunk, self._done = (), 0

    async def _put_one_by_one(self, records: Sequence[_Record], numbers: Sequence[int]) -> None:
        for record, number in zip(map(_whole, records), numbers, strict=True):
            try:
                await self._put_record(record)
            except UsageError as error:
                self._failed.add_line(number, record, "Refused", str(error))
            else:
                self._accepted += 1
            self._done += 1

    async def _put_record(self, record: PlainRecord) -> "Delivery":
        key, data, explicit_hash_key, headers = record
        return await self._producer.put(data, key=key, explicit_hash_key=explicit_hash_key, headers=headers)

    def _records(self, lines: list[bytes | None]) -> tuple[Sequence[_Record], Sequence[int]]:
        """Return the records of the lines and their line numbers. Lines that cannot become records fail."""
        first = self.line_count + 1
        self.line_count += len(lines)
        parser = self._parser
        if parser.convert is None and not parser.headers and b"" not in lines and None not in lines:
            key = parser.key
            return [(key, line) for line in lines if line is not None], range(first, first + len(lines))
        records: list[_Record] = []
        numbers: list[int] = []
        for number, line in enumerate(lines, first):
            if line is None:
                self._failed.add_line(number, None, "TooLong", _TOO_LONG)
            elif not line:
                self.empty_count += 1
            else:
                try:
                    records.append(_short(parser.parse(line)))
                    numbers.append(number)
                except UsageError as error:
                    kept = line if parser.keeps_lines else PlainRecord(None, line)
                    self._failed.add_line(number, kept, parser.error_code, str(error))
        return records, numbers

    def _fail_unput(self) -> None:
        """Fail the records that were read, but that the producer had not accepted when the run was interrupted."""
        assert self._reader is not None
        stats = self.stats()
        # An interrupted put_many may have accepted a part of the chunk. The producer accepts records in order, so its
        # own counts show where the rest begins.
        accepted = stats.outstanding + stats.delivered_records + stats.failed_records
        unput = list(self._chunk[self._done + accepted - self._accepted :])
        unput += self._records(self._splitter.feed(self._reader.read_ahead()))[0]
        self.cut_bytes = self._splitter.unfinished_bytes
        self._failed.add_unput(list(map(_whole, unput)))


def _short(record: PlainRecord) -> _Record:
    """Reduce a record without hash key and headers to its key and data: the producer accepts pairs much faster."""
    return (record.key, record.data) if record.explicit_hash_key is None and not record.headers else record


def _whole(record: _Record) -> PlainRecord:
    return record if isinstance(record, PlainRecord) else PlainRecord(record[0], record[1])
