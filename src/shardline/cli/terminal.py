"""How do results and notices look, on a terminal and in a pipe?

Invariants:

- There is colour only where rich sees a terminal that wants it (``NO_COLOR`` is heard), and nothing is cut off
  where there is none: a name in a pipe is the whole name.
- Every text that comes from outside is printed as it is: no markup is read in it, and on a terminal no control
  character of it acts.
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

_WIDE: Final = 10_000
_LONG: Final = 5.0
_CONTROL: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def console(*, err: bool = False) -> Console:
    """Where to print."""
    stream = sys.stderr if err else sys.stdout
    width = None if stream.isatty() else _WIDE
    return Console(file=stream, width=width, highlight=False, markup=False, emoji=False, soft_wrap=width is not None)


def print_table(columns: Sequence[str], rows: Iterable[Sequence[Text | str]], *, right: Sequence[str] = ()) -> None:
    """Rows under headings, on standard output; the columns named in ``right`` hold numbers."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for column in columns:
        table.add_column(column, justify="right" if column in right else "left", overflow="fold")
    for row in rows:
        table.add_row(*(cell if isinstance(cell, Text) else Text(printable(cell)) for cell in row))
    out = console()
    with out.capture() as captured:
        out.print(table)
    for line in captured.get().splitlines():
        out.file.write(f"{line.rstrip()}\n")
    out.file.flush()  # a notice that comes after it stands after it, also where both go to one file


def print_lines(lines: Iterable[Text | str]) -> None:
    """Lines on standard output, wrapped by nobody but the terminal."""
    out = console()
    for line in lines:
        out.print(line, soft_wrap=True)


def notice(text: str) -> None:
    """A line on standard error."""
    console(err=True).print(printable(text), soft_wrap=True)


@contextmanager
def waiting(text: str) -> Generator[None]:
    """Say what is waited for: while it lasts on a terminal, else in a line if it takes long."""
    out = console(err=True)
    if out.is_terminal:
        with out.status(f"{printable(text)} ..."):
            yield
        return
    telling = threading.Timer(_LONG, notice, [f"{text} ..."])
    telling.daemon = True
    telling.start()
    try:
        yield
    finally:
        telling.cancel()


def printable(text: str) -> str:
    """The text without anything that a terminal would act upon."""
    return _CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", text)


def draws(characters: str) -> bool:
    """Whether standard output can show these."""
    try:
        characters.encode(sys.stdout.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True
