"""How do requests and answers of the service look on the wire?

JSON 1.1 and CBOR 1.1 of the same values. In CBOR times are tagged; the members that are times are known by name.
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final, cast

import msgspec

from shardline.codec import cbor
from shardline.server.model import inputs
from shardline.server.model.consumers import SubscribeToShardEvent
from shardline.server.model.records import GetRecordsOutput
from shardline.server.model.refusals import Refused, serialization
from shardline.server.model.shard_log import Page

JSON: Final = "application/x-amz-json-1.1"
CBOR: Final = "application/x-amz-cbor-1.1"

_TIMES: Final = frozenset({"ApproximateArrivalTimestamp", "StreamCreationTimestamp", "ConsumerCreationTimestamp"})


def _page_json(value: object) -> msgspec.Raw:
    assert isinstance(value, Page), "pages are all that msgspec does not know"
    return msgspec.Raw(value.to_json())


_encode_json: Final = msgspec.json.Encoder(enc_hook=_page_json).encode
_NO_RECORDS: Final = Page([], 0)


def read_request(operation: str, content_type: str, body: bytes) -> msgspec.Struct:
    """The members of a request.

    Raises:
        Refused: they cannot be read, or do not fit.
    """
    if content_type != CBOR:
        return inputs.read_json(operation, body)
    try:
        members = cbor.decode(body)
    except cbor.CborError:
        raise serialization() from None
    return inputs.read_values(operation, members)


def write_answer(content_type: str, body: object) -> bytes:
    """An answer's body; nothing for operations that answer nothing."""
    if body is None:
        return b""
    if content_type != CBOR:
        return _write_page(body) if isinstance(body, (GetRecordsOutput, SubscribeToShardEvent)) else _encode_json(body)
    plain: Any = msgspec.to_builtins(body, builtin_types=(bytes,), enc_hook=list)
    return cbor.encode(_tag_times(plain))


def _write_page(body: GetRecordsOutput | SubscribeToShardEvent) -> bytes:
    """Around the records, which are not written again."""
    before, _, after = _encode_json(msgspec.structs.replace(body, records=_NO_RECORDS)).partition(b"[]")
    return body.records.to_json(before, after)


def write_refusal(content_type: str, refusal: Refused) -> bytes:
    """A refusal's body. AWS leaves an empty message out, and writes that of a SerializationException with a capital."""
    name = "Message" if refusal.code == "SerializationException" else "message"
    members = {"__type": refusal.code} | ({name: refusal.message} if refusal.message else {})
    return cbor.encode(members) if content_type == CBOR else _encode_json(members)


def _tag_times(value: object) -> object:
    if isinstance(value, Mapping):
        members = cast("Mapping[str, object]", value)
        return {
            name: datetime.fromtimestamp(member, UTC)
            if name in _TIMES and isinstance(member, (int, float))
            else _tag_times(member)
            for name, member in members.items()
        }
    if isinstance(value, list):
        return [_tag_times(item) for item in cast("list[object]", value)]
    return value
