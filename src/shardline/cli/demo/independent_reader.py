"""Reads the demo's stream independently of Shardline.

AWS's own client (botocore) reads every shard from its beginning, and the few lines below unpack the aggregates. Nothing
here is shared with the producer, the consumer or the codec that the demo shows.

Invariants:

- The user's AWS settings (profiles, credentials, proxies) are ignored, because the stream is on the demo's own server.
- Each shard is read up to its current end, so all producers must have finished.
"""

import json
import os
from collections.abc import Iterator, Mapping
from hashlib import md5
from typing import Any, Final, NamedTuple, cast, final

_MAGIC: Final = b"\xf3\x89\x9a\xc2"
_DIGEST_BYTES: Final = 16
_RECORDS_FIELD, _DATA_FIELD = 3, 3
_VARINT, _BYTES = 0, 2  # the wire types of protobuf that the format uses
_NO_SETTING: Final = (None, None, None, None)
_NO_FILE: Final = (None, None, os.devnull, None)
_TIMEOUT: Final = 10.0
_ATTEMPTS: Final = 8


@final
class Stored(NamedTuple):
    """An order that is stored in the stream."""

    name: str
    place: tuple[str, str, int]
    """The order's place in the stream: shard id, sequence number and sub-sequence number."""


def read_stream(stream: str, arguments: Mapping[str, str]) -> list[Stored]:
    """Return every order in the stream, shard by shard. The call blocks.

    Args:
        stream: the stream's name.
        arguments: the endpoint, the region and the credentials, as arguments of boto3.
    """
    client = _client(arguments)
    found: list[Stored] = []
    shards: list[dict[str, Any]] = client.list_shards(StreamName=stream)["Shards"]
    for shard in shards:
        for record in _records(client, stream, shard["ShardId"]):
            for index, data in enumerate(open_record(record["Data"])):
                place = (str(shard["ShardId"]), str(record["SequenceNumber"]), index)
                found.append(Stored(str(json.loads(data)["order"]), place))
    return found


def _client(arguments: Mapping[str, str]) -> Any:
    """Return a botocore client that ignores the user's settings."""
    import botocore.config  # noqa: PLC0415 - the import takes a quarter of a second, and is needed only at the end
    import botocore.session  # noqa: PLC0415

    session: Any = botocore.session.Session(
        session_vars={"profile": _NO_SETTING, "config_file": _NO_FILE, "credentials_file": _NO_FILE}
    )
    config: Any = botocore.config.Config(
        connect_timeout=_TIMEOUT,
        read_timeout=_TIMEOUT,
        retries={"total_max_attempts": _ATTEMPTS, "mode": "standard"},
        proxies={"http": None, "https": None},
    )
    return session.create_client("kinesis", config=config, **arguments)


def _records(client: Any, stream: str, shard_id: str) -> Iterator[dict[str, Any]]:
    iterator = client.get_shard_iterator(StreamName=stream, ShardId=shard_id, ShardIteratorType="TRIM_HORIZON")
    position: str | None = iterator["ShardIterator"]
    while position is not None:
        page = client.get_records(ShardIterator=position)
        yield from page["Records"]
        is_at_end = page.get("MillisBehindLatest") == 0
        position = None if is_at_end else cast("str | None", page.get("NextShardIterator"))


def open_record(data: bytes) -> list[bytes]:
    """Return the payloads of a Kinesis record: those in an aggregate in the KPL's format, or the record's own data."""
    body, digest = data[len(_MAGIC) : -_DIGEST_BYTES], data[-_DIGEST_BYTES:]
    if not data.startswith(_MAGIC) or md5(body, usedforsecurity=False).digest() != digest:
        return [data]
    records = [value for number, value in _fields(body) if number == _RECORDS_FIELD]
    return [value for record in records for number, value in _fields(record) if number == _DATA_FIELD]


def _fields(message: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the number and the value of each bytes field in a protobuf message. Integer fields are skipped."""
    at = 0
    while at < len(message):
        tag, at = _varint(message, at)
        value, at = _varint(message, at)
        if tag & 7 == _BYTES:
            yield tag >> 3, message[at : at + value]
            at += value
        elif tag & 7 != _VARINT:
            raise ValueError(f"an aggregate has no field of wire type {tag & 7}")


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:  # noqa: PLR2004 - only the last byte has its top bit clear
            return value, at
        shift += 7
