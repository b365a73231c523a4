"""How do requests and answers of the service look on the wire?

JSON 1.1 and CBOR 1.1 of the same values. In CBOR times are tagged; the members that are times are known by name.

A request that speaks neither is refused in one of two further forms, as AWS refuses it: kinesalite's test/connection.js
has recorded which (see docs/tested/differences.md).
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
"""The form of an older protocol, which has no operations any more."""
XML: Final = "application/xml"
"""What is not a request of this service: another method, or a body of another type."""
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
    assert isinstance(value, Page), "pages are all that msgspec does not know"
    return msgspec.Raw(value.to_json())


_encode_json: Final = msgspec.json.Encoder(enc_hook=_page_json).encode
_NO_RECORDS: Final = Page([], 0)
_any_object: Final = msgspec.json.Decoder(dict[str, object])


def content_type(headers: Mapping[str, str]) -> str:
    """The content type of a request, without its parameters."""
    return headers.get("content-type", "").partition(";")[0].strip().lower()


def form_of(method: str, headers: Mapping[str, str], *, has_body: bool) -> str:
    """The form that a request comes in, by the content type of its answer. Only JSON and CBOR have operations."""
    if method != "POST":
        return XML
    named = content_type(headers)
    if named in _SPOKEN:
        return named
    if not has_body:
        return CBOR
    return OLD_JSON if named == OLD_JSON else XML


def refusal_of_form(form: str, body: bytes) -> Refused | None:
    """Why no operation can be called in that form, ``None`` if one can."""
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
    """The members of a request.

    Raises:
        Refused: they cannot be read, or do not fit.
    """
    if form != CBOR:
        return inputs.read_json(operation, body)
    try:
        members = cbor.decode(body)
    except cbor.CborError:
        raise serialization() from None
    return inputs.read_values(operation, members)


def write_answer(form: str, body: object) -> bytes:
    """An answer's body; nothing for operations that answer nothing."""
    if body is None:
        return b""
    if form != CBOR:
        return _write_page(body) if isinstance(body, (GetRecordsOutput, SubscribeToShardEvent)) else _encode_json(body)
    plain: Any = msgspec.to_builtins(body, builtin_types=(bytes,), enc_hook=list)
    return cbor.encode(_tag_times(plain))


def _write_page(body: GetRecordsOutput | SubscribeToShardEvent) -> bytes:
    """Around the records, which are not written again."""
    before, _, after = _encode_json(msgspec.structs.replace(body, records=_NO_RECORDS)).partition(b"[]")
    return body.records.to_json(before, after)


def write_refusal(form: str, refusal: Refused) -> bytes:
    """A refusal's body. AWS leaves an empty message out, and writes that of a SerializationException with a capital."""
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
    """As XML has it. The library's way would import XML readers with every start of the server."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
