"""Formats the error messages that users see and chooses the exit code.

Invariants:

- An error is one sentence on standard error, with its traceback only under ``-v``. With ``--output json``, it is one
  JSON object: ``{"error": {...}}``. The exit code is 2 if the command was wrong, and 1 if it could not be carried out.
- The error for a missing stream names the region that was searched, because the stream may be in another region.
- An error contains no secret: it is built from responses and from our own text, never from a request.
- The user's own input is quoted unchanged. Only the library's sentences about its arguments are reworded into
  sentences about options.
"""

import json
import re
import sys
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Final, cast

import click

from shardline.errors import RequestError, ShardlineError, UsageError

if TYPE_CHECKING:
    from shardline.cli.invocation import Invocation

# The library's messages name its arguments; on the command line the same settings are options.
_OPTIONS: Final = (
    (re.compile(r"\bpass region=, or set\b"), "give --region, or set"),
    (re.compile(r", or pass credentials=Credentials\(\.\.\.\)"), ""),
    (re.compile(r", name a profile"), ", or name a profile with --profile"),
    (re.compile(r"^endpoint_url(?= must )"), "--endpoint-url"),
    (re.compile(r"(?<=: check )(the region or )?endpoint_url\b"), r"\1--endpoint-url"),
    (re.compile(r"\bpass endpoint_url=$"), "give --endpoint-url"),
    (re.compile(r"\bwithin record_ttl\b"), "within --give-up-after"),
)
_JSON: Final = re.compile(r"(-[a-zA-Z]*o|--output)(=?json)?")


class Failed(click.ClickException):
    """A request that failed, with the error code and the operation that ``--output json`` shows."""

    def __init__(self, message: str, *, code: str, operation: str) -> None:
        super().__init__(message)
        self.code = code
        self.operation = operation


class WrongUsage(click.ClickException):
    """The error for wrong arguments of a command. It is shown as one sentence, without click's usage lines."""

    exit_code = 2


def sole_error(error: Exception) -> Exception:
    """Return the first error inside the exception groups that task groups wrap around it."""
    while isinstance(error, ExceptionGroup):
        error = cast("ExceptionGroup[Exception]", error).exceptions[0]
    return error


def as_click(error: Exception, invocation: "Invocation") -> click.ClickException:
    """Return ``error`` as an exception that click can show."""
    if isinstance(error, click.ClickException):
        return error
    if not isinstance(error, (ShardlineError, OSError)):
        return click.ClickException(f"internal error: {type(error).__name__}: {error} (-v shows the traceback)")
    sentence = _sentence(error, invocation)
    if isinstance(error, RequestError):
        return Failed(sentence, code=error.code, operation=error.operation)
    return WrongUsage(sentence) if isinstance(error, UsageError) else click.ClickException(sentence)


def show_error(error: click.ClickException) -> int:
    """Print the error to standard error and return the exit code."""
    if asks_for_json(sys.argv[1:]):
        facts = {
            "message": error.format_message(),
            "exit_code": error.exit_code,
            "code": error.code if isinstance(error, Failed) else None,
            "operation": error.operation if isinstance(error, Failed) else None,
        }
        click.echo(json.dumps({"error": facts}), err=True)
    else:
        error.show()
    return error.exit_code


def asks_for_json(arguments: Sequence[str]) -> bool:
    """Return whether the arguments select ``--output json``. The last ``--output`` counts.

    This function parses the arguments itself, because click has not parsed the arguments of a command that it rejects.
    """
    found = False
    for word, following in pairwise([*arguments, ""]):
        if word == "--":
            break
        matched = _JSON.fullmatch(word)
        if matched is not None:
            found = matched[2] is not None or following == "json"
        elif word.startswith("--output="):
            found = False
    return found


def _sentence(error: ShardlineError | OSError, invocation: "Invocation") -> str:
    if isinstance(error, RequestError):
        if error.kind == "not-found":
            listing = (
                "`shardline streams consumers list` shows the registered consumers"
                if error.operation.endswith("StreamConsumer")
                else "`shardline streams list` shows the existing streams"
            )
            return f"{_end(error.message)} (searched in {invocation.place()}; {listing})"
        message = f"{error.operation}: {_end(error.message)}"
        if error.status is not None:
            message += f" ({error.code})"
    elif isinstance(error, OSError) and not isinstance(error, ShardlineError):
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror or str(error)
    else:
        message = str(error)
    return in_options(message)


def in_options(message: str) -> str:
    """Return the library's message with the names of arguments replaced by the names of options."""
    for pattern, option in _OPTIONS:
        message = pattern.sub(option, message)
    return message


def _end(message: str) -> str:
    return message.strip().removesuffix(".")
