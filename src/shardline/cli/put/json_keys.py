"""Which key does a line of JSON name?

Invariants:

- The key is the text or the number at the end of the path; anything else there is no key.
- The rest of the line is checked to be JSON, and is otherwise not looked at: no objects are made of it.
"""

import re
from collections.abc import Callable
from typing import Any, Final

import msgspec

from shardline.errors import UsageError

_Key = str | int | float | None
_PLACE: Final = "value"
_NO_NAME: Final = re.compile(r'[\x00-\x1f"\\]')  # what JSON escapes in a name cannot be looked for


def key_finder(path: str) -> Callable[[bytes], str]:
    """A function that takes the key of a line, at a path such as ``customer.id``.

    The function raises ``UsageError`` if the line has no key there.

    Raises:
        UsageError: the path is none.
    """
    names = path.split(".")
    if not all(names) or _NO_NAME.search(path):
        raise UsageError(f"a field is named as in id or customer.id, not {path!r}")
    shape: Any = _Key
    for name in reversed(names):
        fields = [(_PLACE, shape if shape is _Key else shape | None, None)]
        shape = msgspec.defstruct("Level", fields, rename={_PLACE: name}, gc=False)
    decode = msgspec.json.Decoder(shape).decode
    depth = range(len(names))

    def find(line: bytes) -> str:
        try:
            found: Any = decode(line)
        except msgspec.ValidationError as error:
            raise UsageError(f"the field {path} is no text and no number: {error}") from None
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
