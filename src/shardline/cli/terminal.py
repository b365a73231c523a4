"""Prints results and notices, on a terminal and in a pipe.

Invariants:

- Colour is used only if rich detects a terminal with colours and ``NO_COLOR`` is not set. Outside a terminal, nothing
  is truncated: a name in a pipe is the whole name.
- Text from outside is never interpreted: rich reads no markup in it, and control characters are escaped, so that a
  terminal does not act on them.
- Notices go to standard error, and progress only to a terminal.
"""

import re
import sys
import threading
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from typing import Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

_PIPE_WIDTH: Final = 10_000
_NOTICE_AFTER: Final = 5.0
_CONTROL: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def console(*, err: bool = False) -> Console:
    """Return a console for standard output, or, with ``err``, for standard error."""
    stream = sys.stderr if err else sys.stdout
    width = None if stream.isatty() else _PIPE_WIDTH
    return Console(file=stream, width=width, highlight=False, markup=False, emoji=False, soft_wrap=width is not None)


def make_table(columns: Sequence[str], rows: Iterable[Sequence[Text | str]], *, right: Sequence[str] = ()) -> Table:
    """Return a table. The columns named in ``right`` are aligned to the right."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for column in columns:
        table.add_column(column, justify="right" if column in right else "left", overflow="fold")
    for row in rows:
        table.add_row(*(cell if isinstance(cell, Text) else Text(printable(cell)) for cell in row))
    return table


def print_table(columns: Sequence[str], rows: Iterable[Sequence[Text | str]], *, right: Sequence[str] = ()) -> None:
    """Print a table to standard output. The columns named in ``right`` are aligned to the right."""
    table = make_table(columns, rows, right=right)
    out = console()
    with out.capture() as captured:
        out.print(table)
    for line in captured.get().splitlines():
        out.file.write(f"{line.rstrip()}\n")
    out.file.flush()  # keeps a later notice below the table if standard output and standard error go to one file


def print_lines(lines: Iterable[Text | str]) -> None:
    """Print lines to standard output without wrapping them. The terminal may still wrap long lines."""
    out = console()
    for line in lines:
        out.print(line, soft_wrap=True)


def notice(text: str) -> None:
    """Print a line to standard error."""
    console(err=True).print(printable(text), soft_wrap=True)


@contextmanager
def waiting(text: str) -> Generator[None]:
    """Show ``text`` while the block runs: as a spinner on a terminal, otherwise as a single line if the block takes a
    long time.
    """
    out = console(err=True)
    if out.is_terminal:
        with out.status(f"{printable(text)} ..."):
            yield
        return
    timer = threading.Timer(_NOTICE_AFTER, notice, [f"{text} ..."])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def printable(text: str) -> str:
    """Return the text with its control characters escaped."""
    return _CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", text)


def can_show(characters: str) -> bool:
    """Return whether the encoding of standard output can represent these characters."""
    try:
        characters.encode(sys.stdout.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True
