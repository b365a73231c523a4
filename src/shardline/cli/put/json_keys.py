"""Reads the partition key from a field of a JSON line.

Invariants:

- The key is the text or the number at the end of the path. Any other kind of value at that place is an error.
- The rest of the line is only checked to be valid JSON: no objects are created for it.
"""

import re
from collections.abc import Callable
from typing import Any, Final

import msgspec

from shardline.errors import UsageError

_Key = str | int | float | None
_ATTRIBUTE: Final = "value"
_ESCAPED: Final = re.compile(r'[\x00-\x1f"\\]')  # a name with characters that JSON escapes cannot be searched for


def key_finder(path: str) -> Callable[[bytes], str]:
    """Return a function that reads the key of a line at a path such as ``customer.id``.

    The function raises ``UsageError`` if the line has no key at the path.

    Raises:
        UsageError: the path is invalid.
    """
    names = path.split(".")
    if not all(names) or _ESCAPED.search(path):
        raise UsageError(f"a field is named as in id or customer.id, not {path!r}")
    shape: Any = _Key
    for name in reversed(names):
        fields = [(_ATTRIBUTE, shape if shape is _Key else shape | None, None)]
        shape = msgspec.defstruct("Level", fields, rename={_ATTRIBUTE: name}, gc=False)
    decode = msgspec.json.Decoder(shape).decode
    depth = range(len(names))

    def find(line: bytes) -> str:
        try:
            found: Any = decode(line)
        except msgspec.ValidationError as error:
            raise UsageError(f"the field {path} is neither a text nor a number: {error}") from None
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise UsageError(f"not JSON: {error}") from None
        for _ in depth:
            if found is None:
                break
            found = found.value
        if found is None:
            raise UsageError(f"there is no field {path}")
        return found if type(found) is str else str(found)

    return find
