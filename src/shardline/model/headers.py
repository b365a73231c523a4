"""The headers of a record: small texts that travel with its data, such as a trace context or a content type.

Invariants:

- ``Headers`` never change, and can be hashed like the other fields of a record. Records without headers share
  ``NO_HEADERS``.
- ``check_headers`` accepts exactly the headers that ``valid_headers`` returns. So the headers of any record that was
  read can be put again, whichever writer they come from.
- A user's mapping is read once, so that what is checked is what is sent, even if the mapping changes later.
- Values are text. Bytes are sent as base64, under a name that ends in ``-bin`` (the convention of gRPC), and a reader
  gets the base64 text.
"""

import re
from base64 import b64encode
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Final, TypeAlias, cast, final

from shardline.errors import UsageError
from shardline.model.limits import KIB

HEADERS_MAX_COUNT: Final = 64
HEADERS_MAX_BYTES: Final = 16 * KIB  # names and values in UTF-8; W3C baggage alone may have 8 KiB
HEADER_NAME_MAX_LENGTH: Final = 128
BINARY_SUFFIX: Final = "-bin"

# The characters of an HTTP header name (RFC 9110, token). Names are case-sensitive, unlike those of HTTP.
_NAME: Final = re.compile(rf"[!#$%&'*+\-.^_`|~0-9A-Za-z]{{1,{HEADER_NAME_MAX_LENGTH}}}")

HeadersToPut: TypeAlias = Mapping[str, str] | Mapping[str, bytes] | Mapping[str, str | bytes]
"""The headers of a put: text, and bytes under names that end in ``-bin``."""


@final
class Headers(Mapping[str, str]):
    """The headers of a record that was read: a mapping that cannot be changed."""

    __slots__ = ("_values",)

    def __init__(self, values: Mapping[str, str]) -> None:
        self._values: dict[str, str] = dict(values)

    def __getitem__(self, name: str) -> str:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __hash__(self) -> int:
        return hash(frozenset(self._values.items()))

    def __repr__(self) -> str:
        return f"Headers({self._values!r})"


NO_HEADERS: Final = Headers({})
"""The headers of every record without headers."""


def check_headers(headers: object) -> dict[str, str]:
    """Return the headers that were passed to a put, as plain text. ``None`` means no headers.

    Raises:
        UsageError: the headers are not a mapping, a name or a value is invalid, or a limit is exceeded.
    """
    if headers is None:
        return {}
    if not isinstance(headers, Mapping):
        raise UsageError(f"headers must be a mapping of names to values, not {type(headers).__name__}")
    pairs = _pairs_of(cast("Mapping[object, object]", headers))
    if len(pairs) > HEADERS_MAX_COUNT:
        raise UsageError(f"a record takes at most {HEADERS_MAX_COUNT} headers, and these are more")
    checked: dict[str, str] = {}
    size = 0
    for name, value in pairs:
        plain_name = _check_name(name)
        text, value_bytes = _check_value(plain_name, value)
        checked[plain_name] = text
        size += len(plain_name) + value_bytes
    if size > HEADERS_MAX_BYTES:
        raise UsageError(
            f"the headers of a record take at most {HEADERS_MAX_BYTES} bytes with their names, these have {size}"
        )
    return checked


def _pairs_of(headers: Mapping[object, object]) -> list[tuple[object, object]]:
    """Return the names and values of a user's mapping, but at most one pair more than a record may have.

    Another thread may change the mapping at the same time. The items of a ``dict`` are read in one step.

    Raises:
        UsageError: the mapping raised an exception, or changed while it was read.
    """
    try:
        pairs = list(islice(headers.items(), HEADERS_MAX_COUNT + 1))
        return [(name, value) for name, value in pairs]
    except Exception as error:
        raise UsageError(f"the headers could not be read: their mapping raised {type(error).__name__}") from error


def _check_name(name: object) -> str:
    if not isinstance(name, str):
        raise UsageError(f"a header's name must be a str, not {type(name).__name__}")
    name = str.__str__(name)  # ``str(name)`` would call the method of a subclass such as ``Enum``
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"a header's name has 1 to {HEADER_NAME_MAX_LENGTH} ASCII letters, digits and any of !#$%&'*+-.^_`|~,"
            f" unlike {name[: 2 * HEADER_NAME_MAX_LENGTH]!r}"
        )
    return name


def _check_value(name: str, value: object) -> tuple[str, int]:
    """Return the value of a header as text, and its length in UTF-8 bytes."""
    if isinstance(value, str):
        plain = str.__str__(value)
        try:
            return plain, len(plain) if plain.isascii() else len(plain.encode())
        except UnicodeEncodeError:
            raise UsageError(f"the header {name!r} has a lone surrogate, which UTF-8 cannot encode") from None
    if isinstance(value, (bytes, bytearray, memoryview)):
        if not name.endswith(BINARY_SUFFIX):
            raise UsageError(
                f"the header {name!r} must be a str: bytes need a name that ends in {BINARY_SUFFIX!r}, and are sent as"
                " base64"
            )
        try:
            text = b64encode(bytes(memoryview(cast("bytes", value)))).decode()
        except ValueError:
            raise UsageError(f"the header {name!r} must be bytes: this memoryview was released") from None
        return text, len(text)
    raise UsageError(f"the header {name!r} must be a str, not {type(value).__name__}")


def valid_headers(pairs: Iterable[tuple[str, str]]) -> Headers:
    """Return the valid headers among the names and values in a record from any writer. Invalid headers are left out.

    If a name occurs twice, the last value counts. If the headers exceed the limits for a record, the first headers that
    fit are kept.
    """
    found = {name: value for name, value in pairs if _NAME.fullmatch(name)}
    kept: dict[str, str] = {}
    room = HEADERS_MAX_BYTES
    for name, value in found.items():
        size = len(name) + len(value.encode())
        if size <= room and len(kept) < HEADERS_MAX_COUNT:
            kept[name] = value
            room -= size
    return Headers(kept) if kept else NO_HEADERS
