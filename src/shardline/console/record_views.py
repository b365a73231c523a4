"""Shows records as JSON objects, with their data as text, JSON, msgpack, CBOR and hex; and filters records.

Invariants:

- A view that does not fit the data is left out: bytes that are not valid JSON have no JSON view.
- The data of a large record is cut after ``SHOWN_MAX`` bytes, and the object says so. The base64 form is whole, so that
  the record can be sent again.
"""

import base64
from typing import Any, Final, NamedTuple, cast, final

import msgspec

from shardline.cli.time_arguments import shown_time
from shardline.codec import cbor
from shardline.model.record import Record

SHOWN_MAX: Final = 4096


@final
class RecordFilter(NamedTuple):
    """Selects records. An empty text selects every record."""

    key: str = ""
    text: str = ""
    header: str = ""
    """A name, or ``name=value``."""
    until: float | None = None
    """Selects only records that arrived before this time, in seconds since 1970."""

    def is_past(self, record: Record) -> bool:
        """Whether the record arrived too late. Later records of its shard did, too."""
        return self.until is not None and record.arrived_at is not None and record.arrived_at >= self.until

    def accepts(self, record: Record) -> bool:
        if (self.key and self.key != record.key) or self.is_past(record):
            return False
        if self.text and self.text.encode() not in record.data:
            return False
        name, _, value = self.header.partition("=")
        return not name or (name in record.headers and value in {"", record.headers[name]})


def record_json(record: Record, shard_id: str) -> dict[str, Any]:
    """Return a record with its views as a JSON object."""
    data = record.data
    return {
        "shard_id": shard_id,
        "sequence_number": record.sequence_number,
        "sub_sequence": record.sub_sequence,
        "aggregated": record.aggregated,
        "key": record.key,
        "explicit_hash_key": record.explicit_hash_key,
        "headers": dict(record.headers),
        "arrived_at": None if record.arrived_at is None else shown_time(record.arrived_at),
        "size": len(data),
        "base64": base64.b64encode(data).decode(),
        "cut": len(data) > SHOWN_MAX,
        "views": views_of(data),
    }


def views_of(data: bytes) -> dict[str, str]:
    """Return the data in every form that fits it, by the name of the form."""
    views: dict[str, str] = {}
    start = data[:SHOWN_MAX]
    try:
        views["json"] = _pretty(msgspec.json.decode(data))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        views.update(_binary_views(data))
    try:
        views["text"] = start.decode()
    except UnicodeDecodeError:
        views["text"] = start.decode(errors="backslashreplace")
    lines = (start[at : at + 16] for at in range(0, len(start), 16))
    views["hex"] = "\n".join(f"{16 * number:06x}  {line.hex(' ')}" for number, line in enumerate(lines))
    return views


def _binary_views(data: bytes) -> dict[str, str]:
    """Return the data as msgpack and CBOR, if it is a map or a list in that format. Almost any byte is a number."""
    views: dict[str, str] = {}
    try:
        value: object = msgspec.msgpack.decode(data)
        if isinstance(value, dict | list):
            views["msgpack"] = _pretty(cast("object", value))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError, TypeError):
        views.pop("msgpack", None)
    try:
        decoded = cbor.decode(data)
        if isinstance(decoded, (dict, list)):
            views["cbor"] = _pretty(decoded)
    except cbor.CborError:
        views.pop("cbor", None)
    return views


def _pretty(value: object) -> str:
    return msgspec.json.format(msgspec.json.encode(value, enc_hook=str), indent=2).decode()[:SHOWN_MAX]
