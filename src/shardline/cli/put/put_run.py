"""How do lines become records in a stream?

Invariants:

- Every line that was read ends up delivered, or in ``FailedRecords``: also when it is broken off, at any moment.
- Memory is bounded, however long the input is: lines are read when the producer has room.
- A line that can be no record stops no other.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias, final

import anyio

from shardline.aio.producer.async_producer import Producer
from shardline.cli.interrupts import Interrupts
from shardline.cli.put.failed_records import FailedRecords
from shardline.cli.put.line_input import LINE_MAX_BYTES, BlockReader, LineSplitter
from shardline.cli.put.put_progress import HowFar, show_progress
from shardline.codec.record_lines import PlainRecord
from shardline.errors import UsageError

if TYPE_CHECKING:
    from shardline.core.producer.producer_record import Receipt
    from shardline.core.producer.producer_stats import ProducerStats

_Record: TypeAlias = tuple[str | None, bytes] | PlainRecord

_TOO_LONG: Final = f"longer than {LINE_MAX_BYTES} bytes, the most that a record of any stream takes"


@final
@dataclass(frozen=True)
class Meaning:
    """What a line is."""

    key: str | None = None
    """The key of every record, where nothing else says it."""
    record_of: Callable[[bytes], PlainRecord] | None = None
    """What makes a record of a line; raises ``UsageError``. ``None``: the line is the data."""
    refusal: str = "NotARecord"
    """The code of a line that means none."""
    is_record: bool = False
    """Whether the lines are records in our own format: those that are refused are handed back as they are."""

    def read(self, line: bytes) -> PlainRecord:
        return PlainRecord(self.key, line) if self.record_of is None else self.record_of(line)


@final
class PutRun:
    """One input on its way into a stream."""

    def __init__(self, producer: Producer, failed: FailedRecords, meaning: Meaning, heard: Interrupts) -> None:
        self._producer = producer
        self._failed = failed
        self._meaning = meaning
        self._heard = heard
        self._reader: BlockReader | None = None
        self._splitter = LineSplitter()
        self._accepted = 0  # by the producer, of all chunks before this one and of the first ``_done`` of this one
        self._chunk: Sequence[_Record] = ()  # on its way into the producer
        self._done = 0  # how many of the chunk are accepted, or refused for good
        self.line_count = 0
        self.empty_count = 0
        self.cut_bytes = 0
        """How much of a line was read whose end never came, when it was broken off."""
        self.is_interrupted = False
        self.seconds = 0.0
        """How long it took."""
        self.receipt: Receipt | None = None
        """Of a record that was put alone."""

    async def put_one(self, data: bytes) -> None:
        """Put one record, and wait until it is there; raise what is wrong with it."""
        key, data, explicit_hash_key = self._meaning.read(data)
        with self._heard.stage() as waiting:
            delivery = await self._producer.put(data, key=key, explicit_hash_key=explicit_hash_key)
            self.receipt = await delivery
        self.is_interrupted = waiting.cancelled_caught

    async def put_whole(self, descriptor: int) -> None:
        """Put the whole input as one record.

        Raises:
            UsageError: it can be none.
        """
        parts: list[bytes] = []
        self._reader = BlockReader(descriptor)
        with self._heard.stage() as reading:
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
        """Put every line. Ctrl-C ends the reading, and gives what was accepted ``drain`` seconds."""
        self._reader = BlockReader(descriptor)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(show_progress, self.how_far, total_bytes)
            with self._heard.stage() as reading:
                async for block in self._reader.blocks():
                    await self._put(self._splitter.feed(block))
                await self._put(self._splitter.end())
                await self._producer.flush()
            if reading.cancelled_caught:
                self.is_interrupted = True
                self._give_back()
                with self._heard.stage():
                    await self._producer.flush(drain)
            tasks.cancel_scope.cancel()

    @property
    def exit_code(self) -> int:
        """Of a run that was interrupted."""
        return self._heard.exit_code

    def stats(self) -> "ProducerStats":
        return self._producer.stats()

    def how_far(self) -> HowFar:
        stats = self.stats()
        read_bytes = 0 if self._reader is None else self._reader.read_bytes
        return HowFar(stats.delivered_records, stats.outstanding, stats.retried_records, self._failed.count, read_bytes)

    # ---- inside

    async def _put(self, lines: list[bytes | None]) -> None:
        if not lines:
            return
        records, numbers = self._records(lines)
        self._chunk, self._done = records, 0
        try:
            await self._producer.put_many(records)
        except UsageError:  # one of them, and nothing was accepted
            await self._put_one_by_one(records, numbers)
        else:
            self._accepted += len(records)
        self._chunk, self._done = (), 0

    async def _put_one_by_one(self, records: Sequence[_Record], numbers: Sequence[int]) -> None:
        for record, number in zip(map(_whole, records), numbers, strict=True):
            key, data, explicit_hash_key = record
            try:
                await self._producer.put(data, key=key, explicit_hash_key=explicit_hash_key)
            except UsageError as error:
                self._failed.add_line(number, record, "Refused", str(error))
            else:
                self._accepted += 1
            self._done += 1

    def _records(self, lines: list[bytes | None]) -> tuple[Sequence[_Record], Sequence[int]]:
        """What the lines mean, and the number of the line that each came from. What means nothing has failed."""
        first = self.line_count + 1
        self.line_count += len(lines)
        meaning = self._meaning
        if meaning.record_of is None and b"" not in lines and None not in lines:
            key = meaning.key
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
                    records.append(_short(meaning.read(line)))
                    numbers.append(number)
                except UsageError as error:
                    kept = line if meaning.is_record else PlainRecord(None, line)
                    self._failed.add_line(number, kept, meaning.refusal, str(error))
        return records, numbers

    def _give_back(self) -> None:
        """It is broken off: what was read and not accepted has failed. Records are accepted in their order."""
        assert self._reader is not None
        stats = self.stats()
        accepted = stats.outstanding + stats.delivered_records + stats.failed_records
        unput = list(self._chunk[self._done + accepted - self._accepted :])
        unput += self._records(self._splitter.feed(self._reader.read_ahead()))[0]
        self.cut_bytes = self._splitter.unfinished_bytes
        self._failed.add_unput(list(map(_whole, unput)))


def _short(record: PlainRecord) -> _Record:
    """Without what nearly none has: the producer then takes it in a fraction of the time."""
    return (record.key, record.data) if record.explicit_hash_key is None else record


def _whole(record: _Record) -> PlainRecord:
    return record if isinstance(record, PlainRecord) else PlainRecord(record[0], record[1])
