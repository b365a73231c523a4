"""Writes a record as a line of JSON and reads it back.

All files of records have this format. ``put --failed``, ``tail --output json`` and the consumer's dead letters write
it, and ``put --records`` (``--retry``) reads it. docs/reference/cli/record-files.md describes it::

    {"version": 1, "key": "customer-7", "data": "order 1", "error": "Expired", "message": "..."}
    {"version": 1, "key": null, "data_base64": "AAEC/w=="}
    {"version": 2, "key": "customer-7", "data": "order 2", "headers": {"content-type": "text/plain"}}

Invariants:

- Data that is valid UTF-8 is text under ``data``. Other data is base64 under ``data_base64``. The data that is read is
  byte for byte the data that was written.
- Unknown members are ignored, so that a command can add facts about a record. A new member that a reader must not
  ignore, because it changes what is put, needs a higher version: an older reader then refuses the line. Headers are
  such a member, so a line with headers has version 2. Other lines stay at version 1.
- A line whose data could be misread is refused: Shardline's dead letters once had base64 under ``data``, and no
  version.
"""

import base64
import binascii
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple, final

import msgspec

from shardline.errors import UsageError

VERSION: Final = 1
_VERSION_WITH_HEADERS: Final = 2


@final
class PlainRecord(NamedTuple):
    """A record to put, in the form that ``Producer.put_many`` accepts."""

    key: str | None
    data: bytes
    explicit_hash_key: str | None = None
    headers: Mapping[str, str] | None = None
    """The headers. If this is ``None`` or empty, the record has no headers."""


class _Line(msgspec.Struct):
    version: int | None = None
    key: str | None = None
    explicit_hash_key: str | None = None
    data: str | None = None
    data_base64: str | None = None
    headers: dict[str, str] | None = None
    error: str | None = None
    buried_at: float | None = None
    """When the dead letter was written. Only dead letters of the old format have this member."""


NO_KEY: Final = "NoKey"
"""The error of a line that was refused because it has no key. The record must not be put without a key by mistake."""

_decode: Final = msgspec.json.Decoder(_Line).decode
_OLD_DEAD_LETTER: Final = (
    "a dead letter in the format of an older Shardline, with base64 under data: rename that member to data_base64, and "
    "remove buried_at"
)


def line_of(record: PlainRecord, **facts: Any) -> bytes:
    """Return a line that ``record_of`` can read, with further facts about the record."""
    members: dict[str, Any] = {"version": VERSION, "key": record.key}
    if record.explicit_hash_key is not None:
        members["explicit_hash_key"] = record.explicit_hash_key
    try:
        members["data"] = record.data.decode()
    except UnicodeDecodeError:
        members["data_base64"] = base64.b64encode(record.data).decode()
    if record.headers:
        members["version"] = _VERSION_WITH_HEADERS
        members["headers"] = dict(record.headers)
    return msgspec.json.encode(members | facts) + b"\n"


def record_of(line: bytes, key_of: Callable[[bytes], str] | None = None) -> PlainRecord:
    """Return the record in a line.

    Args:
        line: the line.
        key_of: finds the key in the data of a record without a key.

    Raises:
        UsageError: the line is not a record, or its format cannot be read.
    """
    try:
        found = _decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"not a record as JSON: {error}") from None
    problem = _format_problem(found)
    if problem is not None:
        raise UsageError(problem)
    data = _data_of(found)
    key = found.key
    if key is None and key_of is not None:
        key = key_of(data)
    elif key is None and found.error == NO_KEY:
        raise UsageError("it failed because it has no key: add a key to the line, or pass --key or --key-field")
    return PlainRecord(key, data, found.explicit_hash_key, found.headers or None)


def format_problem(line: bytes) -> str | None:
    """Return the reason why the format of a line cannot be read.

    The result is ``None`` if the format can be read, or if the line is not a record.
    """
    if b'"buried_at"' not in line and b'"version"' not in line:
        return None  # without these members, there is no format to check, and no need to decode the line twice
    try:
        return _format_problem(_decode(line))
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def shown_time(seconds: float) -> str:
    """Return a time in ISO 8601, in UTC, with milliseconds."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _format_problem(found: _Line) -> str | None:
    if found.version is None:
        return None if found.buried_at is None else _OLD_DEAD_LETTER
    if VERSION <= found.version <= _VERSION_WITH_HEADERS:
        return None
    versions = f"versions {VERSION} and {_VERSION_WITH_HEADERS}"
    return f"a record in version {found.version} of the format: this Shardline reads {versions}"


def _data_of(found: _Line) -> bytes:
    if found.data is not None and found.data_base64 is None:
        return found.data.encode()
    if found.data is not None or found.data_base64 is None:
        raise UsageError("not a record as JSON: it needs either data or data_base64")
    try:
        return base64.b64decode(found.data_base64, validate=True)
    except (binascii.Error, ValueError) as error:
        raise UsageError(f"data_base64 is not valid base64: {error}") from None
