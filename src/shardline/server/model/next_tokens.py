"""How does the service hand out iterators and page tokens, and know its own again?

Opaque text with a checksum: garbage and tokens of another server are refused, whatever they hold. It has the shape of
AWS's iterators: 152 bytes in base64 or 16, 32, ... more (kinesalite, test/helpers.js).

Invariant:

- A token is good for what it was made for, until it expires; nothing else is read out of it.
"""

from hashlib import blake2b
from typing import Final, TypeVar, final

import msgspec
import pybase64

T = TypeVar("T")

_MARK: Final = b"\x00\x00\x00\x00\x00\x00\x00\x01"  # iterators of AWS begin with AAAAAAAAAAE
_DIGEST_BYTES: Final = 12
_BLOCK_BYTES: Final = 16
_SEALED_MIN_BYTES: Final = 152 - len(_MARK)


@final
class IteratorToken(msgspec.Struct, array_like=True, frozen=True):
    """A place in a shard."""

    stream: str
    creation_second: int
    shard_index: int
    place: int
    made_at: float
    nonce: int


@final
class PageToken(msgspec.Struct, array_like=True, frozen=True):
    """Where a listing goes on."""

    operation: str
    stream: str
    creation_second: int
    after: str
    shard_filter: tuple[str, str | None, float | None] | None
    made_at: float


@final
class Tokens:
    """Makes and reads tokens with one secret of this server."""

    def __init__(self, secret: bytes) -> None:
        self.secret = secret

    def write(self, token: IteratorToken | PageToken) -> str:
        return pybase64.b64encode_as_string(self._seal(msgspec.msgpack.encode(token)))

    def read_iterator(self, text: str) -> IteratorToken | None:
        """AWS takes an iterator in quotes too (recorded in LocalStack's test_kinesis.py), as shells' users pass it."""
        if len(text) > 1 and text[0] == text[-1] == '"':
            text = text[1:-1]
        return self._read(text, IteratorToken)

    def read_page(self, text: str) -> PageToken | None:
        return self._read(text, PageToken)

    def _read(self, text: str, kind: type[T]) -> T | None:
        try:
            raw = pybase64.b64decode(text, validate=True)
        except ValueError:
            return None
        if pybase64.b64encode_as_string(raw) != text:
            return None  # base64 has several texts for one body; only one of them was written
        body = raw[len(_MARK) + _DIGEST_BYTES : -raw[-1]] if raw else b""
        if raw != self._seal(body):
            return None
        try:
            return msgspec.msgpack.decode(body, type=kind)
        except msgspec.MsgspecError:
            return None

    def _seal(self, body: bytes) -> bytes:
        """The mark, a checksum, the body and its padding, of which each byte is the padding's length."""
        digest = blake2b(body, key=self.secret, digest_size=_DIGEST_BYTES).digest()
        length = len(digest) + len(body)
        padding = max(_SEALED_MIN_BYTES - length, -length % _BLOCK_BYTES or _BLOCK_BYTES)
        return _MARK + digest + body + bytes((padding,)) * padding
