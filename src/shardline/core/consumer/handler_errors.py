"""Describes a handler's exception without revealing the records that the handler was called with.

Invariants:

- The description leaves out words of the message that occur in the data or the key of a record. It also leaves out
  passwords in URLs, and words that follow ``password`` or a similar name. If the records are too large to search, it
  leaves out the whole message.
- Describing an exception never fails, even if the exception's ``__str__`` raises.
- The place is a line of the caller's code: the line of the first frame that does not belong to Shardline.
"""

import re
from collections.abc import Sequence
from types import TracebackType
from typing import Final, NamedTuple, final

from shardline.model.record import Record

_MESSAGE_MAX_LENGTH: Final = 200
_COMPARED_MAX_BYTES: Final = 1_048_576  # searching this many bytes for one word takes about 0.1 ms
_LEFT_OUT: Final = "…"
_WORD: Final = re.compile(r"[\w.@+-]+")
_SHORT: Final = 3  # shorter words without a digit are always shown, because they occur in every text
_SECRET_NAMES: Final = r"pass|passwd|password|secret|token|authorization|api[_-]?key"  # noqa: S105 - names, not secrets
_SECRETS: Final = (
    (re.compile(r"(?<=://)[^/\s@]+(?=@)"), _LEFT_OUT),
    (re.compile(rf"(?i)\b((?:{_SECRET_NAMES})['\"]?\s*[=:]\s*)\S+"), rf"\1{_LEFT_OUT}"),
)


@final
class ErrorSummary(NamedTuple):
    """A description of an exception that is safe for logs and events."""

    error_type: str
    message: str
    place: str
    """Where in the caller's code the exception was raised, such as ``bill (worker.py:12)``, or ``""`` if unknown."""


def summarize_error(error: object, records: Sequence[Record]) -> ErrorSummary:
    """Describe the exception that a handler raised when it was called with ``records``."""
    return ErrorSummary(type(error).__name__, _message(error, records), _place(getattr(error, "__traceback__", None)))


def _message(error: object, records: Sequence[Record]) -> str:
    try:
        message = str(error)
    except Exception:  # noqa: BLE001 - the user's __str__ may raise anything
        return "the exception's text cannot be shown"
    if not message or sum(len(record.data) for record in records) > _COMPARED_MAX_BYTES:
        return ""
    # Shorten the message first, because searching takes time for each word. Four times the maximum length is enough,
    # even if many words are left out.
    message = " ".join(message[: 4 * _MESSAGE_MAX_LENGTH].split())
    for secret, shown in _SECRETS:
        message = secret.sub(shown, message)
    held = [record.data.lower() for record in records]
    held += [record.key.lower().encode() for record in records if record.key]

    def show(found: re.Match[str]) -> str:
        word = found[0].strip(".-+")
        # Even short numbers are searched for, because they may be ages or amounts from the records.
        if len(word) < _SHORT and not any(map(str.isdigit, word)):
            return found[0]
        sought = word.lower().encode(errors="replace")
        return _LEFT_OUT if any(sought in text for text in held) else found[0]

    message = _WORD.sub(show, message).encode(errors="backslashreplace").decode()
    return message if len(message) <= _MESSAGE_MAX_LENGTH else message[: _MESSAGE_MAX_LENGTH - 1] + _LEFT_OUT


def _place(trace: TracebackType | None) -> str:
    place = ""
    while trace is not None:
        code = trace.tb_frame.f_code
        module = str(trace.tb_frame.f_globals.get("__name__"))
        file = code.co_filename.replace("\\", "/").rpartition("/")[2]
        place = f"{code.co_qualname} ({file}:{trace.tb_lineno})"
        if module.partition(".")[0] != "shardline":
            break
        trace = trace.tb_next
    return place
