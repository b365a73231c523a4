"""Deserializers for records that hold several values.

Pass one to ``Consumer(deserializer=...)``. Any callable that takes bytes can be passed there, such as ``json.loads``
for records that hold one value. The functions of this module are for streams whose writers pack several values into one
record, as ``Producer(packing=...)`` does.

Invariants:

- All values of a record are returned, in order, or the whole record is refused with a ``ValueError``.
- Deserializing takes time linear in the size of the record.
"""

import json
from typing import Any

from shardline.codec.value_packing import split_length_prefixed, split_netstrings


def json_lines(data: bytes) -> list[Any]:
    """Return the values of a record that holds one JSON value per line. Empty lines are ignored."""
    return [_json_value(line) for line in data.split(b"\n") if line.strip()]


def json_list(data: bytes) -> list[Any]:
    """Return the values of a record that holds one JSON array."""
    found: list[Any] = _json_value(data)
    if not isinstance(found, list):
        raise ValueError(f"expected a JSON array, not {type(found).__name__}")  # noqa: TRY004 - the data is wrong
    return found


def _json_value(data: bytes) -> Any:
    try:
        return json.loads(data)
    except RecursionError:
        raise ValueError("the JSON is nested too deeply") from None


def netstrings(data: bytes) -> list[bytes]:
    """Return the byte strings of a record that holds netstrings.

    A netstring is the length in decimal digits, a colon, the bytes and a comma.
    """
    return split_netstrings(data)


def length_prefixed(data: bytes) -> list[bytes]:
    """Return the byte strings of a record. Each is preceded by its length in four bytes, big-endian."""
    return split_length_prefixed(data)
