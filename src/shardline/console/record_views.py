"""Shows records as JSON objects, with their data as text, JSON, msgpack, CBOR and hex; and filters records.

Invariants:

- A view that does not fit the data is left out: bytes that are not valid JSON have no JSON view.
- The JSON view is the text of the record with different white space: numbers keep their digits, and repeated names are
  kept.
- Views are cut after ``SHOWN_MAX`` bytes. The record's JSON object then says so, and has no base64 form. With
  ``is_whole``, the object has the base64 form, and views are cut only after ``WHOLE_MAX`` bytes.
- Data that is too long to be shown uncut has no msgpack and no CBOR view: neither format can be read from a part of the
  data, and reading 10 MiB of it would keep every other page waiting for seconds.
"""

import base64
from typing import Any, Final, NamedTuple, cast, final

import msgspec

from shardline.cli.time_arguments import shown_time
from shardline.codec import cbor
from shardline.model.record import Record

SHOWN_MAX: Final = 4096
WHOLE_MAX: Final = 256 * 1024


@final
class RecordFilter(NamedTuple):
    """Selects records. An empty text selects every record."""

    key: str = ""
    text: str = ""
    header: str = ""
    """The header that a record must have: a name, or ``name=value``."""
    until: float | None = None
    """Selects only records that arrived before this time, in seconds since 1970."""

    def is_past(self, record: Record) -> bool:
        """Whether the record arrived too late for the filter. If it did, all later records of its shard did, too."""
        return self.until is not None and record.arrived_at is not None and record.arrived_at >= self.until

    def accepts(self, record: Record) -> bool:
        if (self.key and self.key != record.key) or self.is_past(record):
            return False
        if self.text and self.text.encode() not in record.data:
            return False
        name, _, value = self.header.partition("=")
        return not name or (name in record.headers and value in {"", record.headers[name]})


@final
class Views(NamedTuple):
    """The data of a record in every form that fits it."""

    texts: dict[str, str]
    """The text of each form, by the name of the form."""
    is_cut: bool
    """Whether any text was cut, because the data is too long."""


def record_json(record: Record, shard_id: str, *, is_whole: bool = False) -> dict[str, Any]:
    """Return a record with its views as a JSON object."""
    return {
        "shard_id": shard_id,
        "sequence_number": record.sequence_number,
        "sub_sequence": record.sub_sequence,
        "aggregated": record.aggregated,
        "key": record.key,
        "explicit_hash_key": record.explicit_hash_key,
        "headers": dict(record.headers),
        "arrived_at": None if record.arrived_at is None else shown_time(record.arrived_at),
        **data_json(record.data, is_whole=is_whole),
    }


def data_json(data: bytes, *, is_whole: bool = False) -> dict[str, Any]:
    """Return the members of a record's JSON object that show its data."""
    views = views_of(data, WHOLE_MAX if is_whole else SHOWN_MAX)
    has_base64 = is_whole or len(data) <= SHOWN_MAX
    return {
        "size": len(data),
        "base64": base64.b64encode(data).decode() if has_base64 else None,
        "cut": views.is_cut,
        "views": views.texts,
    }


def views_of(data: bytes, shown_max: int = SHOWN_MAX) -> Views:
    """Return the data in every form that fits it."""
    start = data[:shown_max]
    texts = _json_view(data) or (_binary_views(data) if len(data) <= shown_max else {})
    try:
        texts["text"] = start.decode()
    except UnicodeDecodeError:
        texts["text"] = start.decode(errors="backslashreplace")
    lines = (start[at : at + 16] for at in range(0, len(start), 16))
    texts["hex"] = "\n".join(f"{16 * number:06x}  {line.hex(' ')}" for number, line in enumerate(lines))
    is_cut = len(data) > shown_max
    for name in texts.keys() - {"text", "hex"}:
        is_cut |= len(texts[name]) > shown_max
        texts[name] = texts[name][:shown_max]
    return Views(texts, is_cut)


def _json_view(data: bytes) -> dict[str, str]:
    try:
        return {"json": msgspec.json.format(data, indent=2).decode()}
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return {}


def _binary_views(data: bytes) -> dict[str, str]:
    """Return the data as msgpack and CBOR, if it is a map or a list in that format. Numbers are left out, because
    almost any byte is a valid number.
    """
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
    return msgspec.json.format(msgspec.json.encode(value, enc_hook=_shown), indent=2).decode()


def _shown(value: object) -> str:
    """Return the JSON form of a value that JSON itself cannot represent."""
    return f"extension {value.code}: {value.data!r}" if isinstance(value, msgspec.msgpack.Ext) else str(value)
