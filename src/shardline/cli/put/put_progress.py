"""Shows the progress of a long put.

Invariants:

- A bar is drawn only on a terminal. Elsewhere, a line is printed every few seconds; a short put prints none.
- The producer's counts are read a few times a second, so showing the progress adds no cost per record.
- Every line contains a rate. The rate in the first line is measured from the start.
"""

from collections.abc import Callable
from typing import Final, NamedTuple, final

import anyio
from rich.progress import BarColumn, Progress, ProgressColumn, SpinnerColumn, Task, TextColumn
from rich.text import Text

from shardline.cli.quantities import in_units
from shardline.cli.terminal import console, notice

_REDRAW: Final = 0.2
_LINE_EVERY: Final = 5.0
_RATE_WINDOW: Final = 3.0


@final
class PutCounts(NamedTuple):
    """The counts of a ``put`` command at one moment."""

    delivered: int
    outstanding: int
    retried: int
    failed: int
    read_bytes: int


@final
class _Counts(ProgressColumn):
    def render(self, task: Task) -> Text:
        return Text(str(task.fields["counts"]))


async def show_progress(read_counts: Callable[[], PutCounts], total_bytes: int | None) -> None:
    """Show the progress until the task is cancelled."""
    out = console(err=True)
    rate = Rate(anyio.current_time())
    if not out.is_terminal:
        while True:
            await anyio.sleep(_LINE_EVERY)
            notice(progress_line(read_counts(), rate, anyio.current_time()))
    columns = (SpinnerColumn(), BarColumn(20), TextColumn("{task.percentage:>3.0f}%")) if total_bytes else ()
    with Progress(*(columns or (SpinnerColumn(),)), _Counts(), console=out, transient=True, auto_refresh=False) as bar:
        task = bar.add_task("", total=total_bytes, counts="")
        while True:
            counts = read_counts()
            line = progress_line(counts, rate, anyio.current_time())
            bar.update(task, completed=counts.read_bytes, counts=line, refresh=True)
            await anyio.sleep(_REDRAW)


@final
class Rate:
    """Measures how many records per second are delivered, over the last few seconds."""

    def __init__(self, now: float) -> None:
        self._samples: list[tuple[float, int]] = [(now, 0)]

    def per_second(self, delivered: int, now: float) -> float:
        """Add a sample and return the rate since the oldest sample of the window."""
        self._samples.append((now, delivered))
        while len(self._samples) > 2 and now - self._samples[0][0] > _RATE_WINDOW:  # noqa: PLR2004 - two samples
            self._samples.pop(0)
        then, before = self._samples[0]
        return (delivered - before) / (now - then) if now > then else 0.0


def progress_line(counts: PutCounts, rate: Rate, now: float) -> str:
    """Return a line such as ``1,000 put, 200/s, 50 in flight, 2.0 MiB``."""
    per_second = rate.per_second(counts.delivered, now)
    parts = [f"{counts.delivered:,} put", f"{per_second:,.0f}/s", f"{counts.outstanding:,} in flight"]
    if counts.retried:
        parts.append(f"{counts.retried:,} retried")
    if counts.failed:
        parts.append(f"{counts.failed:,} failed")
    return ", ".join([*parts, in_units(counts.read_bytes)])
