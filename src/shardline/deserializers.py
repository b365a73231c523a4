"""What do the bytes of a record say, where one record holds many values?

Ready-made for ``Consumer(deserializer=...)``. Any callable that takes bytes will do: ``json.loads`` for a value a
record. These are for streams whose writers packed several values into one record.

Invariants:

- All of a record's values come out, in order, or the whole record is refused (``ValueError``).
- The time is linear in the size of the record.
"""

import json
from typing import Any


def json_lines(data: bytes) -> list[Any]:
    """One JSON value a line. Empty lines are passed over."""
    return [_json_value(line) for line in data.split(b"\n") if line.strip()]


def json_list(data: bytes) -> list[Any]:
    """One JSON array."""
    found: list[Any] = _json_value(data)
    if not isinstance(found, list):
        raise ValueError(f"no JSON array, but {type(found).__name__}")  # noqa: TRY004 - the data is wrong, not a type
    return found


def _json_value(data: bytes) -> Any:
    try:
        return json.loads(data)
    except RecursionError:
        raise ValueError("JSON that is nested too deeply") from None


def netstrings(data: bytes) -> list[bytes]:
    """Byte strings, each as its length in decimal, a colon, itself and a comma."""
    values: list[bytes] = []
    at = 0
    while at < len(data):
        colon = data.find(b":", at, at + 12)
        digits = data[at:colon] if colon > at else b""
        if not digits.isdigit():
            raise ValueError(f"no netstring at byte {at}: a length and a colon are expected")
        end = colon + 1 + int(digits)
        if data[end : end + 1] != b",":
            raise ValueError(f"no netstring at byte {at}: no comma after its {int(digits)} bytes")
        values.append(data[colon + 1 : end])
        at = end + 1
    return values
