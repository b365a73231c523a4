"""Extracts the error code and the message from an error response.

The service responds in JSON or CBOR. Its front end responds in JSON even to CBOR requests. A proxy or load balancer
responds in HTML, in plain text or with an empty body.

Invariants:

- Every response yields a code and a message, whatever its body contains. No exception is raised.
- The code contains neither the namespace before ``#`` nor the address after ``:``.
- The message has at most 1,000 characters, so that no HTML page ends up in a log.
- The message contains no secret of the request, neither whole nor truncated. A service may echo the request, including
  the session token.
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
_SECRET_MIN: Final = 16  # AWS's secrets have at least 40 characters; an emulator's "test" may occur in any message
# This pattern takes linear time: an unclosed style extends to the end of the text, and a tag contains no other "<".
_TAGS: Final = re.compile(r"<(?:style|script)\b.*?(?:</(?:style|script)>|\Z)|<[^<>]*>", re.DOTALL | re.IGNORECASE)
_SPECIAL: Final = re.compile(r"[^0-9A-Za-z]")
_CONTROLS: Final = re.compile(r"[\x00-\x08\x0e-\x1f\x7f]")

# The code for a status, if the body names no code.
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
    """A body cannot be encoded, or is not a valid response to the operation."""


@final
class ErrorResponse(NamedTuple):
    code: str
    message: str
    request_id: str | None
    retry_after: float | None
    is_typed: bool
    """Whether the response names the type of an AWS error. If not, it probably comes from a proxy."""


def request_id_of(headers: Mapping[str, str]) -> str | None:
    """Return AWS's request id, for support cases. Header names are in lower case."""
    return headers.get("x-amzn-requestid") or headers.get("x-amz-request-id")


def read_error(status: int, headers: Mapping[str, str], body: bytes, secrets: Iterable[str] = ()) -> ErrorResponse:
    """Return the details of an error response, with ``secrets`` masked. Header names are in lower case."""
    hide = _SecretMask(secrets)
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
    return ErrorResponse(code, hide(message)[:_MESSAGE_MAX], shown_id, _retry_after(headers), bool(error_type))


def bare_code(declared: str) -> str:
    """Return the error code alone: ``X`` for ``com.amazonaws.kinesis#X:http://...``."""
    return declared.split(":", 1)[0].rsplit("#", 1)[-1].strip()[:_MESSAGE_MAX]


def _fields(body: bytes) -> Mapping[str, object] | None:
    """Return the members of a JSON or CBOR error body, or ``None`` if it is neither a JSON object nor a CBOR map."""
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
    return cast("dict[str, object]", decoded)  # both decoders return str keys


def _text(fields: Mapping[str, object] | None, name: str) -> str:
    value = fields.get(name) if fields is not None else None
    return value if isinstance(value, str) else ""


@final
class _SecretMask:
    """Replaces secrets in a text with stars, even if they are escaped as in URLs, HTML or program code."""

    def __init__(self, secrets: Iterable[str]) -> None:
        self._secrets = sorted((secret for secret in secrets if len(secret) >= _SECRET_MIN), key=len, reverse=True)

    @property
    def longest(self) -> int:
        """The largest number of characters that an escaped secret can have."""
        lengths = [sum(len(max(forms, key=len)) for forms in map(_escapes, secret)) for secret in self._secrets]
        return max(lengths, default=0)

    def __call__(self, text: str) -> str:
        """Return the text with stars in place of the secrets."""
        for secret in self._secrets:
            plain = max(_SPECIAL.split(secret), key=len)  # letters and digits are never escaped
            if plain.casefold() in text.casefold():  # rarely true, so the slow pattern is rarely needed
                pattern = "".join(_any_of(_escapes(character)) for character in secret)
                text = re.sub(pattern, "***", text, flags=re.IGNORECASE)
        return text


def _escapes(character: str) -> list[str]:
    """Return the forms of a character: unchanged, and escaped for a URL (once or twice), HTML or a string literal."""
    if not _SPECIAL.match(character):
        return [character]
    code, once = ord(character), quote(character, safe="")
    others = [once, quote(once, safe=""), escape(character), f"&#{code};", f"&#x{code:x};", f"\\u{code:04x}"]
    return [character, f"\\{character}", *others]


def _any_of(forms: list[str]) -> str:
    return f"(?:{'|'.join(map(re.escape, forms))})"


def _readable(body: bytes, hide: _SecretMask) -> str:
    """Return the readable text of an HTML or plain-text body. The result is empty if the bytes are not text."""
    head = body[: 16 * _MESSAGE_MAX]
    text = hide(head.decode("utf-8", "replace"))
    if len(head) < len(body) and hide.longest:
        text = text[: -hide.longest]  # the cut may have left the beginning of a secret
    if "\ufffd" in text[:_MESSAGE_MAX] or _CONTROLS.search(text):
        return ""
    return " ".join(_TAGS.sub(" ", text).split())[:_MESSAGE_MAX]


def _retry_after(headers: Mapping[str, str]) -> float | None:
    """Return the seconds in a Retry-After header. The form with a date, which AWS does not use, is ignored."""
    text = headers.get("retry-after", "").strip()
    if not text.isascii() or not text.isdigit():
        return None
    return min(float(text[:12]), _RETRY_AFTER_MAX)
