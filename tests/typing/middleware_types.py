"""Programs with middleware: the type checkers must accept them, and infer these types."""

from typing import Any, assert_type

from shardline import Consumer, Producer, Record, sync
from shardline.middleware import (
    ConsumerMiddleware,
    ProducerMiddleware,
    RecordToPut,
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


sending: list[ProducerMiddleware] = [plain, waiting, compress(), validate(dict[str, int])]
reading: list[ConsumerMiddleware] = [read, read_waiting, decompress(), validate(dict[str, int])]
assert_type(Producer("s", middleware=sending), Producer[bytes])
assert_type(Consumer("s", middleware=reading, deserializer=len), Consumer[int])
assert_type(sync.Producer("s", middleware=[validate(int), compress("zstd", level=3)]), sync.Producer[bytes])
assert_type(sync.Consumer("s", middleware=[decompress(max_bytes=1), validate(int)]), sync.Consumer[bytes])
