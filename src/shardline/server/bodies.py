"""Decodes the requests and encodes the answers of the service.

The service speaks JSON 1.1 and CBOR 1.1, with the same values in both. CBOR tags times, so this module
lists the names of the members that are times.

A request in any other form is refused in one of two further forms, as on AWS: kinesalite's test/connection.js recorded
them (see docs/tested/differences.md).
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final, cast

import msgspec

from shardline.codec import cbor
from shardline.server.model import inputs
from shardline.server.model.consumers import SubscribeToShardEvent
from shardline.server.model.records import GetRecordsOutput
from shardline.server.model.refusals import Refused, access_denied, serialization, unknown_operation
from shardline.server.model.shard_log import Page

JSON: Final = "application/x-amz-json-1.1"
CBOR: Final = "application/x-amz-cbor-1.1"
OLD_JSON: Final = "application/json"
"""The form of requests of an older protocol, which no longer has operations."""
XML: Final = "application/xml"
"""The form of every request that is not a Kinesis request, because its method or the type of its body is another one.
"""
_SPOKEN: Final = frozenset({JSON, CBOR})

_TIMES: Final = frozenset(
    {
        "ApproximateArrivalTimestamp",
        "ChannelCreationTimestamp",
        "ConsumerCreationTimestamp",
        "EarliestAllowedEndAt",
        "EndedAt",
        "StartedAt",
        "StreamCreationTimestamp",
    }
)


def _page_json(value: object) -> msgspec.Raw:
    assert isinstance(value, Page), "Page is the only type that msgspec cannot encode itself"
    return msgspec.Raw(value.to_json())


_encode_json: Final = msgspec.json.Encoder(enc_hook=_page_json).encode
_NO_RECORDS: Final = Page([], 0)
_any_object: Final = msgspec.json.Decoder(dict[str, object])


def content_type(headers: Mapping[str, str]) -> str:
    """Return the content type of a request, without its parameters."""
    return headers.get("content-type", "").partition(";")[0].strip().lower()


def form_of(method: str, headers: Mapping[str, str], *, has_body: bool) -> str:
    """Return the form of a request: the content type of its answer. Only the JSON and CBOR forms have operations."""
    if method != "POST":
        return XML
    named = content_type(headers)
    if named in _SPOKEN:
        return named
    if not has_body:
        return CBOR
    return OLD_JSON if named == OLD_JSON else XML


def refusal_of_form(form: str, body: bytes) -> Refused | None:
    """Return the refusal of a request in this form, or ``None`` if the form has operations."""
    if form in _SPOKEN:
        return None
    if form == XML:
        return access_denied("Unable to determine service/operation name to be authorized")
    try:
        _any_object.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return serialization()
    return unknown_operation(404)


def read_request(operation: str, form: str, body: bytes) -> msgspec.Struct:
    """Return the members of a request.

    Raises:
        Refused: the body cannot be read, or a member is invalid.
    """
    if form != CBOR:
        return inputs.read_json(operation, body)
    try:
        members = cbor.decode(body)
    except cbor.CborError:
        raise serialization() from None
    return inputs.read_values(operation, members)


def write_answer(form: str, body: object) -> bytes:
    """Encode the body of an answer. The answer of an operation that returns nothing has an empty body."""
    if body is None:
        return b""
    if form != CBOR:
        return _write_page(body) if isinstance(body, (GetRecordsOutput, SubscribeToShardEvent)) else _encode_json(body)
    plain: Any = msgspec.to_builtins(body, builtin_types=(bytes,), enc_hook=list)
    return cbor.encode(_tag_times(plain))


def _write_page(body: GetRecordsOutput | SubscribeToShardEvent) -> bytes:
    """Encode an answer that contains records. The records are stored as JSON, and are copied without being encoded."""
    before, _, after = _encode_json(msgspec.structs.replace(body, records=_NO_RECORDS)).partition(b"[]")
    return body.records.to_json(before, after)


def write_refusal(form: str, refusal: Refused) -> bytes:
    """Encode the body of a refusal.

    Like AWS, it omits an empty message, and spells the member ``Message`` in a SerializationException.
    """
    if form == XML:
        text = f">\n  <Message>{_escaped(refusal.message)}</Message>\n</{refusal.code}>" if refusal.message else "/>"
        return f"<{refusal.code}{text}\n".encode()
    if form == OLD_JSON:
        return _encode_json({"Output": {"__type": f"com.amazon.coral.service#{refusal.code}"}, "Version": "1.0"})
    name = "Message" if refusal.code == "SerializationException" else "message"
    members = {"__type": refusal.code} | ({name: refusal.message} if refusal.message else {})
    return cbor.encode(members) if form == CBOR else _encode_json(members)


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


def _escaped(text: str) -> str:
    """Escape a text for XML. The standard library's function would import XML parsers at every start of the server."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
