"""Draws the demo in a terminal.

The running demo uses the terminal's alternate screen, and redraws the whole screen for each frame. So after the
terminal was resized, the next frame fits. At the end, the events and the verdict are printed to the normal screen,
where they stay.

Invariants:

- Only the verdict wraps: other long lines are truncated. If there are too many events, the newest are shown; if there
  are too many shards, the most interesting are shown.
- A narrow terminal gets one column, and a wide terminal gets two columns with the same content.
- Nothing is shown by colour alone.
"""

from collections.abc import Sequence
from typing import Final, Self, final

from rich.console import Console, ConsoleOptions, Group, JustifyMethod, RenderableType, RenderResult
from rich.live import Live
from rich.measure import Measurement
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from shardline.cli.demo.loss_check import sentences
from shardline.cli.demo.scene import Event, Scene, ShardView, WorkerView
from shardline.cli.demo.story import Ending
from shardline.cli.quantities import counted

_TWO_COLUMNS_WIDTH: Final = 160
_END_WIDTH_MAX: Final = 110
_SHARE_WIDTH: Final = 5  # "100%", and a space before it
_FRAME: Final = 2  # the number of rows that the upper and lower borders of a panel take
_HEADER: Final = 1
_FLOW_ROWS: Final = 5
_EVENTS_MIN: Final = 3
_SPARKS: Final = " ▁▂▃▄▅▆▇█"
_OWNER_COLOURS: Final = {"A": "cyan", "B": "magenta"}
_MOODS: Final = {"plain": "", "good": "bold green", "bad": "bold red", "act": "bold yellow"}
_LATE: Final = 1.0  # a lag of at least this many seconds is shown in red


@final
class Picture:
    """A ``Display`` for terminals."""

    def __init__(self) -> None:
        self._console = Console(highlight=False)
        self._live = Live(console=self._console, screen=True, auto_refresh=False)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def update(self, scene: Scene) -> None:
        self._live.update(draw(scene, self._console.width, self._console.height), refresh=True)

    def end(self, scene: Scene, ending: Ending) -> None:
        """Print the events, the totals of each shard, and the verdict, which stay on the screen."""
        width = min(self._console.width, _END_WIDTH_MAX)
        for event in scene.events:
            self._console.print(_event(event), no_wrap=True, overflow="ellipsis", crop=True)
        self._console.print(_totals(scene), width=width)
        self._console.print(_verdict(ending), width=width)


def draw(scene: Scene, width: int, height: int) -> RenderableType:
    """Return one frame of the picture that fits a terminal of this size."""
    above = _HEADER + _FRAME + _FLOW_ROWS + _FRAME
    if width < _TWO_COLUMNS_WIDTH:
        room = max(1, height - above - _EVENTS_MIN - _FRAME)
        shown = min(room, len(scene.shards))
        return Group(_shards(scene, room), _flow(scene), _events(scene, max(1, height - above - shown - _FRAME)))
    room = max(1, height - above)
    shown = min(room, len(scene.shards))
    tall = min(height, max(above + shown, len(scene.events) + _FRAME))
    grid = Table.grid(padding=0)
    grid.add_column(width=width // 2)
    grid.add_column(width=width - width // 2)
    grid.add_row(Group(_shards(scene, room), _flow(scene)), _events(scene, tall - _FRAME))
    return grid


def _panel(inside: RenderableType, title: str, *, note: str | None = None, border: str = "blue") -> Panel:
    aside = None if note is None else Text(note, style="dim")
    return Panel(
        inside,
        title=Text(title, style="bold"),
        title_align="left",
        subtitle=aside,
        subtitle_align="right",
        border_style=border,
        padding=(0, 1),
    )


# ---- the shards


def _table(*columns: tuple[str, int]) -> Table:
    """Return a table of shards.

    Args:
        columns: the additional columns with their minimum widths. A negative width aligns the column to the right. The
            KEYS column gets the rest of the line.
    """
    table = Table(box=None, expand=True, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    table.add_column("SHARD", min_width=6, no_wrap=True)
    table.add_column("KEYS", ratio=1, no_wrap=True)
    for name, width in columns:
        side: JustifyMethod = "right" if width < 0 else "left"
        table.add_column(name, justify=side, min_width=abs(width), no_wrap=True, overflow="ellipsis")
    return table


def _shards(scene: Scene, room: int) -> Panel:
    table = _table(("STATE", 9), ("IN/s", -5), ("OUT/s", -5), ("LAG", -6), ("READ BY", 7))
    rows = _most_interesting(scene.shard_tree(), room)
    for branch, shard in rows:
        cells: list[RenderableType] = [
            *_place(scene, branch, shard),
            _state(shard),
            *_rates(shard),
            _reader(scene, shard),
        ]
        table.add_row(*cells, style="" if shard.is_open else "dim")
    note = f"orders flow: {min(scene.flowing_for, scene.seconds):.0f} of {scene.seconds:.0f} s"
    if len(rows) < len(scene.shards):
        note = f"{counted(len(scene.shards) - len(rows), 'shard')} not shown · {note}"
    return _panel(table, f"shardline demo · {scene.act}", note=note)


def _most_interesting(rows: list[tuple[str, ShardView]], room: int) -> list[tuple[str, ShardView]]:
    """Return as many rows as fit: first the split shards and their children, then the shards with the largest lag."""
    ranked = sorted(rows, key=lambda row: (row[1].is_open and row[1].parent is None, -row[1].lag))
    chosen = {shard.shard_id for _, shard in ranked[:room]}
    return [row for row in rows if row[1].shard_id in chosen]


def _totals(scene: Scene) -> Panel:
    table = _table(("STATE", 9), ("PUT", -7), ("HANDLED", -7))
    for branch, shard in scene.shard_tree():
        counts = f"{shard.put.total:,}", f"{shard.handled.total:,}"
        table.add_row(*_place(scene, branch, shard), "open" if shard.is_open else "closed", *counts)
    return _panel(table, "shardline demo", note=f"{scene.now:.0f} s, {counted(scene.resent, 'record')} sent again")


def _place(scene: Scene, branch: str, shard: ShardView) -> tuple[Text, "_KeyRangeBar"]:
    owner = scene.workers.get(shard.owner or "")
    style = "" if owner is None else "red" if owner.is_dead else _OWNER_COLOURS.get(owner.name, "")
    return Text(branch + shard.name), _KeyRangeBar(shard, style)


@final
class _KeyRangeBar:
    """A bar that shows which part of all hash keys a shard covers."""

    def __init__(self, shard: ShardView, style: str) -> None:
        self._shard = shard
        self._style = style

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        shard, width = self._shard, max(1, options.max_width - _SHARE_WIDTH)
        first = min(width - 1, round(shard.start * width))
        end = max(first + 1, round((shard.start + shard.share) * width))
        yield Text.assemble(
            ("·" * first, "dim"),
            ("█" * (end - first), self._style),
            ("·" * (width - end), "dim"),
            f" {shard.share:4.0%}",
            no_wrap=True,
        )

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(1 + _SHARE_WIDTH, options.max_width)


def _state(shard: ShardView) -> Text:
    if not shard.is_open:
        return Text("closed")
    return Text("slowed", style="yellow") if shard.rate_share < 1 else Text("open")


def _rates(shard: ShardView) -> tuple[str, str, Text]:
    if shard.is_finished:
        return "", "", Text()
    into = f"{shard.put.rate:.0f}" if shard.is_open else ""
    return into, f"{shard.handled.rate:.0f}", _lag(shard.lag)


def _lag(seconds: float) -> Text:
    return Text(f"{seconds:.1f} s", style="bold red" if seconds >= _LATE else "")


def _reader(scene: Scene, shard: ShardView) -> Text:
    if shard.is_finished:
        return Text("done")
    if shard.owner is None:
        return Text("nobody")
    if scene.workers[shard.owner].is_dead:
        return Text(f"{shard.owner}, dead", style="bold red")
    return Text(shard.owner, style=f"bold {_OWNER_COLOURS.get(shard.owner, '')}")


# ---- the flow


def _flow(scene: Scene) -> Panel:
    table = Table.grid(expand=True, padding=(0, 2, 0, 0))
    table.add_column(width=12, style="dim")
    table.add_column(width=7, justify="right", no_wrap=True)
    table.add_column(width=7, justify="right", no_wrap=True)
    table.add_column(ratio=1, no_wrap=True, overflow="ellipsis")
    put, handled = scene.put, scene.handled
    top = max([1.0, *put.history, *handled.history])
    table.add_row("put", f"{put.total:,}", f"{put.rate:,.0f}/s", _Sparks(put.history, top, "green"))
    table.add_row("handled", f"{handled.total:,}", f"{handled.rate:,.0f}/s", _Sparks(handled.history, top, "blue"))
    table.add_row(
        "handling lag", f"{scene.waiting:,}", _lag(scene.lag), f"{scene.buffered:,} more wait in the producers"
    )
    refused = counted(scene.throttled, "aggregate")
    table.add_row("retries", f"{scene.resent:,}", "", f"sent again, {refused} refused")
    workers = Text(no_wrap=True, overflow="ellipsis").append("workers  ", style="dim")
    for worker in scene.workers.values():
        workers.append_text(_worker(scene, worker))
    note = f"a lease lasts {scene.lease_duration:g} s here, {scene.lease_default:g} s by default"
    return _panel(Group(table, workers), "flow", note=note)


def _worker(scene: Scene, worker: WorkerView) -> Text:
    if worker.is_dead:
        return Text(f"{worker.name} killed   ", style="bold red")
    if not worker.is_ready:
        return Text(f"{worker.name} starts   ")
    held = sum(shard.owner == worker.name for shard in scene.shards.values())
    name = (worker.name, f"bold {_OWNER_COLOURS.get(worker.name, '')}")
    return Text.assemble(name, f" {counted(held, 'shard')}, {worker.handled:,} handled   ")


@final
class _Sparks:
    """Draws the newest rates as a sparkline: one block per rate, as many as fit."""

    def __init__(self, rates: Sequence[float], top: float, style: str) -> None:
        self._rates = list(rates)
        self._top = top
        self._style = style

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        newest = self._rates[-options.max_width :]
        steps = len(_SPARKS) - 1
        yield Text(
            "".join(_SPARKS[round(rate / self._top * steps)] for rate in newest), style=self._style, no_wrap=True
        )

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(1, options.max_width)


# ---- the events, and the verdict


def _event(event: Event) -> Text:
    text = Text(f"{event.at:5.1f} s  ", style="dim", no_wrap=True, overflow="ellipsis")
    return text.append(event.text, style=f"not dim {_MOODS[event.mood]}")


def _events(scene: Scene, room: int) -> Panel:
    rows = [_event(event) for event in scene.events[-room:]]
    rows += [Text()] * (room - len(rows))
    return _panel(Group(*rows), "what happens")


def _verdict(ending: Ending) -> Panel:
    verdict = ending.verdict
    figures = Text("   ").join(
        Text.assemble(f"{name} ", (f"{count:,}", style))
        for name, count, style in (
            ("put", verdict.put, "bold"),
            ("delivered", verdict.delivered, "bold"),
            ("lost", verdict.lost, "bold red" if verdict.lost else "bold green"),
            ("duplicates", verdict.duplicates, "bold"),
        )
    )
    lines = [Text(sentence, style="" if verdict.is_good else "red") for sentence in sentences(verdict, ending.killed)]
    title = "verdict: good" if verdict.is_good else "verdict: not good"
    source = Text("Counted by botocore, which read the stream, and from the workers' journals.", style="dim")
    return _panel(Group(figures, *lines, source), title, border="green" if verdict.is_good else "red")
