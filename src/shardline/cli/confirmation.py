"""Asks for confirmation before an irreversible or risky change."""

import sys

import click

from shardline.cli.error_messages import WrongUsage
from shardline.cli.terminal import printable


def require_confirmation(question: str, change: str, refused: str = "nothing was changed") -> None:
    """Ask the user the question at the terminal, and raise an error unless the answer is yes.

    Args:
        question: the question to ask.
        change: the name of the change. If there is no terminal, the error contains it: "pass --yes to confirm
            <change>".
        refused: the error message if the answer is no.

    Raises:
        WrongUsage: there is no terminal.
        ClickException: the answer is no.
    """
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise WrongUsage(f"not a terminal: pass --yes to confirm {change}")
    if not click.confirm(printable(question), err=True):
        raise click.ClickException(refused)
