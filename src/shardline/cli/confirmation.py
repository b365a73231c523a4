"""Asks for confirmation before a change that cannot be undone or that has a risk."""

import sys

import click

from shardline.cli.error_messages import WrongUsage
from shardline.cli.terminal import printable


def require_confirmation(question: str, change: str, refused: str = "nothing was changed") -> None:
    """Ask the question at the terminal, and return if the answer is yes.

    Args:
        question: the question.
        change: the change, for the error outside a terminal: "pass --yes to confirm <change>".
        refused: the error if the answer is no.

    Raises:
        WrongUsage: there is no terminal.
        ClickException: the answer is no.
    """
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise WrongUsage(f"not a terminal: pass --yes to confirm {change}")
    if not click.confirm(printable(question), err=True):
        raise click.ClickException(refused)
