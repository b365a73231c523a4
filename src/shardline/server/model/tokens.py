"""How does the service hand out iterators and page tokens, and know its own again?

Opaque text with a checksum: garbage and tokens of another server are refused, whatever they hold.

Invariant:

- TK1: a token is good for what it was made for, until it expires; nothing else is read out of it.
"""

from hashlib import blake2b
from typing import Final, TypeVar, final

import msgspec
import pybase64

T = TypeVar("T")

_MARK: Final = b"\x00\x00\x00\x00\x00\x00\x00\x01"  # iterators of AWS begin with AAAAAAAAAAE
_DIGEST_BYTES: Final = 12


@final
class IteratorToken(msgspec.Struct, array_like=True, frozen=True):
    """A place in a shard."""

    stream: str
    stream_created_at: float
    shard_index: int
    place: int
    made_at: float
    nonce: int


@final
class PageToken(msgspec.Struct, array_like=True, frozen=True):
    """Where a listing goes on."""

    operation: str
    stream: str
    stream_created_at: float
    after: str
    shard_filter: tuple[str, str | None, float | None] | None
    made_at: float


@final
class Tokens:
    """Makes and reads tokens with one secret of this server."""

    def __init__(self, secret: bytes) -> None:
        self.secret = secret

    def write(self, token: IteratorToken | PageToken) -> str:
        body = msgspec.msgpack.encode(token)
        return pybase64.b64encode_as_string(_MARK + self._digest(body) + body)

    def read_iterator(self, text: str) -> IteratorToken | None:
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
        start = len(_MARK)
        digest, body = raw[start : start + _DIGEST_BYTES], raw[start + _DIGEST_BYTES :]
        if raw[:start] != _MARK or digest != self._digest(body):
            return None
        try:
            return msgspec.msgpack.decode(body, type=kind)
        except msgspec.MsgspecError:
            return None

    def _digest(self, body: bytes) -> bytes:
        return blake2b(body, key=self.secret, digest_size=_DIGEST_BYTES).digest()
