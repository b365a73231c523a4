"""Writes and reads shard iterators and page tokens.

A token is an opaque text with a keyed checksum, so that garbage and tokens from other servers are refused. It has the
form of AWS's iterators: 152 bytes in base64, or 16, 32, ... bytes more (kinesalite, test/helpers.js).

Invariant:

- A token is read only as the kind of token that it was written as, and only if this server wrote it.
"""

from hashlib import blake2b
from typing import Final, TypeVar, final

import msgspec
import pybase64

T = TypeVar("T")

_MARK: Final = b"\x00\x00\x00\x00\x00\x00\x00\x01"  # AWS's iterators begin with AAAAAAAAAAE
_DIGEST_BYTES: Final = 12
_BLOCK_BYTES: Final = 16
_SEALED_MIN_BYTES: Final = 152 - len(_MARK)


@final
class IteratorToken(msgspec.Struct, array_like=True, frozen=True):
    """A shard iterator: a place in a shard."""

    stream: str
    creation_second: int
    shard_index: int
    place: int
    made_at: float
    nonce: int


@final
class PageToken(msgspec.Struct, array_like=True, frozen=True):
    """A NextToken: the place where a listing continues."""

    operation: str
    stream: str
    creation_second: int
    after: str
    shard_filter: tuple[str, str | None, float | None] | None
    made_at: float


@final
class Tokens:
    """Writes and reads tokens with the secret of this server."""

    def __init__(self, secret: bytes) -> None:
        self.secret = secret

    def write(self, token: IteratorToken | PageToken) -> str:
        return pybase64.b64encode_as_string(self._seal(msgspec.msgpack.encode(token)))

    def read_iterator(self, text: str) -> IteratorToken | None:
        """Return the iterator, or ``None`` if the text is not one of this server's iterators.

        AWS also accepts an iterator in quotes (recorded in LocalStack's test_kinesis.py): users who copy an iterator
        from a JSON response into a shell command often copy the quotes with it.
        """
        if len(text) > 1 and text[0] == text[-1] == '"':
            text = text[1:-1]
        return self._read(text, IteratorToken)

    def read_page(self, text: str) -> PageToken | None:
        """Return the page token, or ``None`` if the text is not one of this server's page tokens."""
        return self._read(text, PageToken)

    def _read(self, text: str, kind: type[T]) -> T | None:
        try:
            raw = pybase64.b64decode(text, validate=True)
        except ValueError:
            return None
        if pybase64.b64encode_as_string(raw) != text:
            return None  # several base64 texts decode to the same bytes, but the server wrote only one of them
        body = raw[len(_MARK) + _DIGEST_BYTES : -raw[-1]] if raw else b""
        if raw != self._seal(body):
            return None
        try:
            return msgspec.msgpack.decode(body, type=kind)
        except msgspec.MsgspecError:
            return None

    def _seal(self, body: bytes) -> bytes:
        """Return the bytes of a token: the mark, a checksum, the body and the padding. Each byte of the padding is the
        padding's length.
        """
        digest = blake2b(body, key=self.secret, digest_size=_DIGEST_BYTES).digest()
        length = len(digest) + len(body)
        padding = max(_SEALED_MIN_BYTES - length, -length % _BLOCK_BYTES or _BLOCK_BYTES)
        return _MARK + digest + body + bytes((padding,)) * padding
