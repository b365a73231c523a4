"""How far has a long put come?

Invariants:

- PP1: a bar is drawn on a terminal alone; elsewhere there is a line now and then, and none for what is over soon.
- PP2: it looks at the producer, a few times a second; the records know nothing of it.
"""

from collections.abc import Callable
from typing import Final, NamedTuple, final

import anyio
from rich.progress import BarColumn, Progress, ProgressColumn, SpinnerColumn, Task, TextColumn
from rich.text import Text

from shardline.cli.terminal import console, in_units, notice

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
    """Until it is cancelled (PP2)."""
    out = console(err=True)
    rate = _Rate()
    if not out.is_terminal:
        while True:
            await anyio.sleep(_LINE_EVERY)
            notice(_counts(look(), rate))
    columns = (SpinnerColumn(), BarColumn(20), TextColumn("{task.percentage:>3.0f}%")) if total_bytes else ()
    with Progress(*(columns or (SpinnerColumn(),)), _Counts(), console=out, transient=True, auto_refresh=False) as bar:
        shown = bar.add_task("", total=total_bytes, counts="")
        while True:
            seen = look()
            bar.update(shown, completed=seen.read_bytes, counts=_counts(seen, rate), refresh=True)
            await anyio.sleep(_REDRAW)


@final
class _Rate:
    """Records a second, over the last few seconds."""

    def __init__(self) -> None:
        self._seen: list[tuple[float, int]] = []

    def per_second(self, delivered: int) -> float:
        now = anyio.current_time()
        self._seen.append((now, delivered))
        while len(self._seen) > 2 and now - self._seen[0][0] > _WINDOW:  # noqa: PLR2004 - a rate needs two
            self._seen.pop(0)
        then, before = self._seen[0]
        return (delivered - before) / (now - then) if now > then else 0.0


def _counts(seen: HowFar, rate: _Rate) -> str:
    parts = [f"{seen.delivered:,} put", f"{rate.per_second(seen.delivered):,.0f}/s", f"{seen.outstanding:,} under way"]
    if seen.retried:
        parts.append(f"{seen.retried:,} retried")
    if seen.failed:
        parts.append(f"{seen.failed:,} failed")
    return ", ".join([*parts, in_units(seen.read_bytes)])
