"""How does a record look as a line of JSON, and which record does a line mean?

One format for all that goes from one command to another: what ``tail --output json`` prints and ``put --failed``
writes, ``put --records`` reads::

    {"key": "customer-7", "data": "order 1"}
    {"key": null, "data_base64": "AAEC/w=="}

Invariants:

- RL1: data that is valid UTF-8 is text under ``data``, other data is base64 under ``data_base64``. What is read back is
  byte for byte what was written.
- RL2: members that mean nothing here are ignored: what one command tells of a record stops no other.
"""

import base64
import binascii
from collections.abc import Callable
from typing import Any, Final, NamedTuple, final

import msgspec

from shardline.errors import UsageError


@final
class PlainRecord(NamedTuple):
    """What is put: as ``Producer.put_many`` takes it."""

    key: str | None
    data: bytes
    explicit_hash_key: str | None = None


class _Line(msgspec.Struct):
    key: str | None = None
    explicit_hash_key: str | None = None
    data: str | None = None
    data_base64: str | None = None
    error: str | None = None


NO_KEY: Final = "NoKey"
"""The error of a line that named no key where one was asked for: it must not be put without one by mistake."""

_decode: Final = msgspec.json.Decoder(_Line).decode


def data_members(data: bytes) -> dict[str, str]:
    """The one member that says the data (RL1)."""
    try:
        return {"data": data.decode()}
    except UnicodeDecodeError:
        return {"data_base64": base64.b64encode(data).decode()}


def line_of(record: PlainRecord, **told: Any) -> bytes:
    """A line that ``record_of`` reads, with what else is to be told."""
    members: dict[str, Any] = {"key": record.key}
    if record.explicit_hash_key is not None:
        members["explicit_hash_key"] = record.explicit_hash_key
    return msgspec.json.encode(members | data_members(record.data) | told) + b"\n"


def record_of(line: bytes, key_of: Callable[[bytes], str] | None = None) -> PlainRecord:
    """The record that a line means. ``key_of`` finds the key of one that has none.

    Raises:
        UsageError: it means none.
    """
    try:
        found = _decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"no record as JSON: {error}") from None
    data = _data_of(found)
    key = found.key
    if key is None and key_of is not None:
        key = key_of(data)
    elif key is None and found.error == NO_KEY:
        raise UsageError("it failed because it has no key: put one into it, or give --key or --key-field")
    return PlainRecord(key, data, found.explicit_hash_key)


def _data_of(found: _Line) -> bytes:
    if found.data is not None and found.data_base64 is None:
        return found.data.encode()
    if found.data is not None or found.data_base64 is None:
        raise UsageError("no record as JSON: it needs either data or data_base64")
    try:
        return base64.b64decode(found.data_base64, validate=True)
    except (binascii.Error, ValueError) as error:
        raise UsageError(f"data_base64 is no base64: {error}") from None
