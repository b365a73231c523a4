"""How is what went wrong told, and with which exit code?

Invariants:

- CL2: what goes wrong is one sentence on standard error, with its traceback only under ``-v``: exit code 2 if the
  command was wrong, 1 if it could not be carried out.
- MI1: a stream that is not there is told with the region that was asked: it may be in another.
- MI2: nothing secret is told: sentences are made of answers and of our own words, never of a request.
"""

import re
from typing import TYPE_CHECKING, Final, cast

import click

from shardline.errors import RequestError, ShardlineError, UsageError

if TYPE_CHECKING:
    from shardline.cli.invocation import Invocation

# The library speaks of its arguments; here they are options.
_OPTIONS: Final = (
    (re.compile(r"\bpass region=, or set\b"), "give --region, or set"),
    (re.compile(r", or pass credentials=Credentials\(\.\.\.\)"), ""),
    (re.compile(r", name a profile"), ", or name a profile with --profile"),
    (re.compile(r"\bendpoint_url\b"), "--endpoint-url"),
)


class WrongUsage(click.ClickException):
    """What the user asked for cannot be: one sentence, without click's lines about usage."""

    exit_code = 2


def sole_error(error: Exception) -> Exception:
    """What went wrong, taken out of the groups that tasks wrap it in."""
    while isinstance(error, ExceptionGroup):
        error = cast("ExceptionGroup[Exception]", error).exceptions[0]
    return error


def as_click(error: Exception, invocation: "Invocation") -> click.ClickException:
    """The same, for click to show (CL2)."""
    if isinstance(error, click.ClickException):
        return error
    if not isinstance(error, (ShardlineError, OSError)):
        return click.ClickException(
            f"something broke that should not: {type(error).__name__}: {error} (-v shows where)"
        )
    kind = WrongUsage if isinstance(error, UsageError) else click.ClickException
    return kind(_sentence(error, invocation))


def _sentence(error: ShardlineError | OSError, invocation: "Invocation") -> str:
    if isinstance(error, RequestError):
        if error.kind == "not-found":
            return (
                f"{_end(error.message)} (asked in {invocation.place()}; `shardline streams list` shows what is there)"
            )
        told = f"{error.operation}: {_end(error.message)}"
        if error.status is not None:
            told += f" ({error.code})"
    elif isinstance(error, OSError) and not isinstance(error, ShardlineError):
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror or str(error)
    else:
        told = str(error)
    for pattern, option in _OPTIONS:
        told = pattern.sub(option, told)
    return told


def _end(message: str) -> str:
    return message.strip().removesuffix(".")
