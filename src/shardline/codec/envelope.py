"""What does an error answer say, whoever wrote it?

The service answers in JSON or CBOR, its front end in JSON even to CBOR requests, and a proxy or load balancer in HTML,
in plain text or with nothing at all.

Invariants:

- Every answer yields a code and a message, whatever its body holds; nothing is raised.
- The code is bare: without the namespace before ``#`` and the address after ``:``.
- The message is at most 1,000 characters: an HTML page does not end up in a log.
- No secret of the request is in it, whole or cut off: a service may tell what it was asked, with the session token.
"""

import re
from collections.abc import Iterable, Mapping
from html import escape
from typing import Final, NamedTuple, cast, final
from urllib.parse import quote

import msgspec

from shardline.codec import cbor

_MESSAGE_MAX: Final = 1_000
_RETRY_AFTER_MAX: Final = 86_400.0
_SECRET_MIN: Final = 16  # AWS's have 40 characters and more; an emulator's "test" may stand in any message
# No part of it can be tried twice from the same place: an unclosed style ends at the end, a tag holds no other "<".
_TAGS: Final = re.compile(r"<(?:style|script)\b.*?(?:</(?:style|script)>|\Z)|<[^<>]*>", re.DOTALL | re.IGNORECASE)
_SPECIAL: Final = re.compile(r"[^0-9A-Za-z]")
_CONTROLS: Final = re.compile(r"[\x00-\x08\x0e-\x1f\x7f]")

# What a status means where the body names no code.
_CODE_BY_STATUS: Final = {
    400: "BadRequest",
    401: "Unauthorized",
    403: "Forbidden",
    404: "NotFound",
    407: "ProxyAuthenticationRequired",
    408: "RequestTimeout",
    413: "RequestEntityTooLarge",
    429: "TooManyRequests",
    500: "InternalServerError",
    502: "BadGateway",
    503: "ServiceUnavailable",
    504: "GatewayTimeout",
}


class BodyError(ValueError):
    """An answer whose body is not what the operation promises."""


@final
class ErrorAnswer(NamedTuple):
    code: str
    message: str
    request_id: str | None
    retry_after: float | None
    is_typed: bool
    """Whether it names the type of an AWS error: else it is most likely a proxy's, not the service's."""


def request_id_of(headers: Mapping[str, str]) -> str | None:
    """AWS's id of the request, for support cases. Header names are lower case."""
    return headers.get("x-amzn-requestid") or headers.get("x-amz-request-id")


def read_error(status: int, headers: Mapping[str, str], body: bytes, secrets: Iterable[str] = ()) -> ErrorAnswer:
    """The facts of an error answer, with stars for ``secrets``. Header names are lower case."""
    hide = _Stars(secrets)
    fields = _fields(body)
    error_type = bare_code(hide(headers.get("x-amzn-errortype") or _text(fields, "__type")))
    code = error_type or bare_code(hide(_text(fields, "code") or _text(fields, "Code")))
    code = code or _CODE_BY_STATUS.get(status) or f"Http{status}"
    message = _text(fields, "message") or _text(fields, "Message") or _text(fields, "errorMessage")
    if not message:
        message = _readable(body, hide) if fields is None else ""
    if not message:
        message = f"HTTP status {status} with no explanation"
    request_id = request_id_of(headers)
    shown_id = None if request_id is None else hide(request_id)
    return ErrorAnswer(code, hide(message)[:_MESSAGE_MAX], shown_id, _retry_after(headers), bool(error_type))


def bare_code(declared: str) -> str:
    """``com.amazonaws.kinesis#X:http://...`` is ``X``."""
    return declared.split(":", 1)[0].rsplit("#", 1)[-1].strip()[:_MESSAGE_MAX]


def _fields(body: bytes) -> Mapping[str, object] | None:
    """The members of a JSON or CBOR error body, ``None`` if it is neither."""
    start = body.lstrip()[:1]
    decoded: object = None
    try:
        if start == b"{":
            decoded = msgspec.json.decode(body)
        elif start and 0xA0 <= start[0] <= 0xBF:  # noqa: PLR2004 - the heads of a CBOR map
            decoded = cbor.decode(body)
    except (msgspec.MsgspecError, cbor.CborError, UnicodeDecodeError, RecursionError):
        return None
    if not isinstance(decoded, dict):
        return None
    return cast("dict[str, object]", decoded)  # both decoders give str keys


def _text(fields: Mapping[str, object] | None, name: str) -> str:
    value = fields.get(name) if fields is not None else None
    return value if isinstance(value, str) else ""


@final
class _Stars:
    """What puts stars for secrets, also in the spelling of a URL, of a page or of a program."""

    def __init__(self, secrets: Iterable[str]) -> None:
        self._secrets = sorted((secret for secret in secrets if len(secret) >= _SECRET_MIN), key=len, reverse=True)

    @property
    def longest(self) -> int:
        """How many characters a secret may take."""
        return max((sum(len(max(ways, key=len)) for ways in map(_spellings, one)) for one in self._secrets), default=0)

    def __call__(self, text: str) -> str:
        for secret in self._secrets:
            plain = max(_SPECIAL.split(secret), key=len)  # spelt in one way only, but for its case
            if plain.casefold() in text.casefold():  # hardly ever; a pattern takes milliseconds
                text = re.sub("".join(_any_of(_spellings(one)) for one in secret), "***", text, flags=re.IGNORECASE)
        return text


def _spellings(character: str) -> list[str]:
    """How a character is written: as it is, and in a URL (once or twice over), in a page, in a program's string."""
    if not _SPECIAL.match(character):
        return [character]
    code, once = ord(character), quote(character, safe="")
    others = [once, quote(once, safe=""), escape(character), f"&#{code};", f"&#x{code:x};", f"\\u{code:04x}"]
    return [character, f"\\{character}", *others]


def _any_of(ways: list[str]) -> str:
    return f"(?:{'|'.join(map(re.escape, ways))})"


def _readable(body: bytes, hide: _Stars) -> str:
    """The words of an HTML page or a text; nothing for bytes that are no text."""
    head = body[: 16 * _MESSAGE_MAX]
    text = hide(head.decode("utf-8", "replace"))
    if len(head) < len(body) and hide.longest:
        text = text[: -hide.longest]  # the beginning of a secret, perhaps
    if "\ufffd" in text[:_MESSAGE_MAX] or _CONTROLS.search(text):
        return ""
    return " ".join(_TAGS.sub(" ", text).split())[:_MESSAGE_MAX]


def _retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds of a Retry-After header; the form with a date is not used by AWS and is ignored."""
    text = headers.get("retry-after", "").strip()
    if not text.isascii() or not text.isdigit():
        return None
    return min(float(text[:12]), _RETRY_AFTER_MAX)
