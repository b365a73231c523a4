"""Encodes requests and decodes responses in AWS's CBOR 1.1 (``application/x-amz-cbor-1.1``).

The Java SDK uses this protocol for Kinesis. It takes 25 % fewer bytes than JSON, because blobs are sent unchanged.
The module has the same functions as ``awsjson``, with the same arguments and results.

Invariants:

- Times are tag 1 with integer *milliseconds* (RFC 8949 says seconds; AWS differs).
- A body that cannot be encoded or decoded raises ``BodyError`` and nothing else.
- A JSON response is decoded as JSON, because the service's front end answers even CBOR requests in JSON.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeVar, cast

import msgspec

from shardline.codec import awsjson, cbor
from shardline.codec.envelope import BodyError
from shardline.model.record import Entry
from shardline.model.stream import StreamRef

CONTENT_TYPE: Final = "application/x-amz-cbor-1.1"

T = TypeVar("T")


_DATA: Final = cbor.text("Data")
_KEY: Final = cbor.text("PartitionKey")
_HASH: Final = cbor.text("ExplicitHashKey")
_MAP_OF: Final = (b"\xa0", b"\xa1", b"\xa2", b"\xa3")
_OPENING: Final = b"\xa2" + cbor.text("Records")


def encode_put_records(stream: StreamRef, entries: Sequence[Entry]) -> bytearray:
    """Return the body of a PutRecords request, built in one growing buffer (``awsjson`` explains why)."""
    body = bytearray(_OPENING)
    body += cbor.head(cbor.ARRAY, len(entries))
    for entry in entries:
        data, key, explicit_hash_key = entry.data, entry.key, entry.explicit_hash_key
        body += _MAP_OF[1 + (key is not None) + (explicit_hash_key is not None)]
        body += _DATA
        body += cbor.head(cbor.BYTES, len(data))
        body += data
        if key is not None:
            body += _KEY
            body += cbor.text(key)
        if explicit_hash_key is not None:
            body += _HASH
            body += cbor.text(explicit_hash_key)
    body += cbor.text("StreamName" if stream.arn is None else "StreamARN")
    body += cbor.text(str(stream))
    return body


def encode(params: Mapping[str, object]) -> bytes:
    """Return the body of a request to any operation.

    Args:
        params: dicts, lists, text, numbers, booleans, bytes and aware datetimes.

    Raises:
        BodyError: a value cannot be represented in CBOR.
    """
    try:
        return cbor.encode(params)
    except (cbor.CborError, UnicodeEncodeError) as error:
        raise BodyError(f"cannot be written as CBOR: {error}") from None


def decode(body: bytes | memoryview, shape: type[T]) -> T:
    """Decode the body of a response into a struct of type ``shape``."""
    if body[:1] == b"{":
        return awsjson.decode(body, shape)
    try:
        return msgspec.convert(cbor.decode(bytes(body)) if body else {}, shape, strict=False)
    except (cbor.CborError, msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise BodyError(f"not a {shape.__name__}: {error}") from None


def decode_any(body: bytes) -> dict[str, object]:
    """Decode the response of any operation into a dict."""
    if body[:1] == b"{":
        return awsjson.decode_any(body)
    return cast("dict[str, object]", decode(body, dict[str, Any]))
