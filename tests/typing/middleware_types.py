"""Programs with middleware: the type checkers must accept them, and infer these types."""

from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, assert_type

from shardline import Batch, Consumer, Producer, Record, sync
from shardline.middleware import (
    Around,
    ConsumerMiddleware,
    ProducerMiddleware,
    RecordToPut,
    around,
    compress,
    decompress,
    replace,
    validate,
)


def plain(record: RecordToPut) -> RecordToPut:
    return assert_type(replace(record, data=b""), RecordToPut)


async def waiting(record: RecordToPut) -> RecordToPut:
    return record


def read(record: Record[Any]) -> Record[Any]:
    return assert_type(replace(record, headers={}), Record[Any])


async def read_waiting(record: Record) -> Record:
    return record


@contextmanager
def timed(batch: Batch[bytes]) -> Generator[None, None, None]:
    yield


@asynccontextmanager
async def traced(record: Record) -> AsyncGenerator[int, None]:
    yield len(record.data)


assert_type(around(timed), Around)
sending: list[ProducerMiddleware] = [plain, waiting, compress(), validate(dict[str, int])]
reading: list[ConsumerMiddleware] = [
    read,
    read_waiting,
    decompress(),
    validate(dict[str, int]),
    around(timed),
    around(traced),
]
assert_type(Producer("s", middleware=sending), Producer[bytes])
assert_type(Consumer("s", middleware=reading, deserializer=len), Consumer[int])
assert_type(sync.Producer("s", middleware=[validate(int), compress("zstd", level=3)]), sync.Producer[bytes])
assert_type(sync.Consumer("s", middleware=[decompress(max_bytes=1), validate(int)]), sync.Consumer[bytes])
