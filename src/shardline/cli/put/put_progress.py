"""Shows the progress of a long put.

Invariants:

- A bar is drawn only on a terminal; elsewhere there is a line every few seconds, and none for a short put.
- It looks at the producer a few times a second; putting a record costs nothing more.
- Every line has a rate: the first one counts from the start.
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
_WINDOW: Final = 3.0  # seconds that the rate is taken over


@final
class HowFar(NamedTuple):
    """A put at one moment."""

    delivered: int
    outstanding: int
    retried: int
    failed: int
    read_bytes: int


@final
class _Counts(ProgressColumn):
    def render(self, task: Task) -> Text:
        return Text(str(task.fields["counts"]))


async def show_progress(look: Callable[[], HowFar], total_bytes: int | None) -> None:
    """Until it is cancelled."""
    out = console(err=True)
    rate = Rate(anyio.current_time())
    if not out.is_terminal:
        while True:
            await anyio.sleep(_LINE_EVERY)
            notice(counts(look(), rate, anyio.current_time()))
    columns = (SpinnerColumn(), BarColumn(20), TextColumn("{task.percentage:>3.0f}%")) if total_bytes else ()
    with Progress(*(columns or (SpinnerColumn(),)), _Counts(), console=out, transient=True, auto_refresh=False) as bar:
        shown = bar.add_task("", total=total_bytes, counts="")
        while True:
            seen = look()
            bar.update(shown, completed=seen.read_bytes, counts=counts(seen, rate, anyio.current_time()), refresh=True)
            await anyio.sleep(_REDRAW)


@final
class Rate:
    """Records per second, over the last few seconds."""

    def __init__(self, now: float) -> None:
        self._seen: list[tuple[float, int]] = [(now, 0)]

    def per_second(self, delivered: int, now: float) -> float:
        self._seen.append((now, delivered))
        while len(self._seen) > 2 and now - self._seen[0][0] > _WINDOW:  # noqa: PLR2004 - a rate needs two
            self._seen.pop(0)
        then, before = self._seen[0]
        return (delivered - before) / (now - then) if now > then else 0.0


def counts(seen: HowFar, rate: Rate, now: float) -> str:
    """``1,000 put, 200/s, 50 in flight, 2.0 MiB``."""
    per_second = rate.per_second(seen.delivered, now)
    parts = [f"{seen.delivered:,} put", f"{per_second:,.0f}/s", f"{seen.outstanding:,} in flight"]
    if seen.retried:
        parts.append(f"{seen.retried:,} retried")
    if seen.failed:
        parts.append(f"{seen.failed:,} failed")
    return ", ".join([*parts, in_units(seen.read_bytes)])
