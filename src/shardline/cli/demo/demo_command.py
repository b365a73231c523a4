"""Shows Shardline at work in half a minute, without an AWS account.

``shardline demo`` runs a local Kinesis, producers and workers (``story``), shows them as a live display or as plain
lines, and ends with the verdict of an independent reader.

Invariants:

- The exit code is 0 only if the verdict is positive; 1 if it is negative or missing; 130 after Ctrl-C; 143 after
  SIGTERM.
- At any time, Ctrl-C, SIGTERM or SIGHUP makes the demo end its processes, remove its files and exit. A signal that was
  ignored at the start (``nohup``) stays ignored.
- With ``--console``, the demo ends only after Ctrl-C, so that people have time to look at the console. If Ctrl-C comes
  after the verdict, the exit code is that of the verdict.
- The demo uses none of the user's AWS settings and rejects options for them, because it runs its own Kinesis.
"""

import os
import signal
import sys
from collections.abc import Awaitable, Callable
from typing import Any, Final, TextIO, TypeVar, final

import anyio
import click
import msgspec
from click.core import ParameterSource

from shardline.cli.demo import demo_metrics
from shardline.cli.demo.loss_check import headline, sentences
from shardline.cli.demo.scene import Scene
from shardline.cli.demo.story import COUNTING, WORKERS, DemoSettings, Ending, new_scene, play
from shardline.cli.error_messages import WrongUsage
from shardline.cli.interrupts import interrupts
from shardline.cli.invocation import Invocation, only_options
from shardline.cli.terminal import can_show

_SIGNAL_EXIT_BASE: Final = 128  # shells report "ended by signal N" as exit code 128 + N
_STOP_SIGNALS: Final = ("SIGINT", "SIGTERM", "SIGHUP")  # Windows has no SIGHUP
_STATE_INTERVAL: Final = 2.0
_CONSOLE_SECONDS: Final = 120.0

T = TypeVar("T")


@click.command()
@click.option(
    "--seconds",
    type=click.FloatRange(5, 120),
    default=16.0,
    show_default=True,
    help="How long orders flow; the demo takes a few seconds longer.",
)
@click.option("--rate", type=click.IntRange(1, 2_000), default=400, show_default=True, help="Orders per second.")
@click.option(
    "--shards", type=click.IntRange(1, 12), default=3, show_default=True, help="Number of shards at the start."
)
@click.option("--seed", type=click.IntRange(0), default=1, show_default=True, help="Seed of the random orders.")
@click.option(
    "--metrics",
    type=click.IntRange(1, 65_000),
    metavar="PORT",
    help="Serve /metrics, /livez and /readyz: the producers on this port, the workers on the next two.",
)
@click.option(
    "--console",
    is_flag=True,
    help="Look at the demo in a browser: orders flow for two minutes unless --seconds is given, and the console stays "
    "until Ctrl-C.",
)
@click.option("--plain", is_flag=True, help="Print plain lines instead of the picture.")
@only_options("output", "verbose")
@click.pass_context
def demo(context: click.Context, /, *, metrics: int | None, plain: bool, **figures: Any) -> None:
    """See it work: produce, consume, reshard, lose a worker; nothing is lost.

    The demo needs no AWS account and takes less than half a minute. Orders flow into a local Kinesis and out to two
    workers. A shard throttles and is split; a worker is killed. Then an independent reader verifies that nothing was
    lost.

    \b
    Examples:
      shardline demo
      shardline demo --plain --seconds 5
      shardline demo --output json | jq .lost
      shardline demo --seconds 120 --metrics 9400
      shardline demo --console
    """
    invocation = context.ensure_object(Invocation)
    if invocation.endpoint_url or invocation.region or invocation.profile:
        raise WrongUsage("the demo runs its own local Kinesis: it takes no endpoint, region or profile")
    if figures["console"]:
        plain = True  # the browser shows the picture, and plain lines do not cut the address
        metrics = demo_metrics.free_port(1 + len(WORKERS)) if metrics is None else metrics
        if context.get_parameter_source("seconds") is not ParameterSource.COMMANDLINE:
            figures["seconds"] = _CONSOLE_SECONDS
    settings = DemoSettings(**figures, metrics=metrics)
    is_plain = plain or invocation.is_json or invocation.verbose or not _can_draw()
    try:
        ending = _in_lines(invocation, settings) if is_plain else _in_a_picture(invocation, settings)
    except KeyboardInterrupt:  # Ctrl-C was pressed before the demo's own handlers were set, or after they were removed
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # another Ctrl-C must not interrupt the clean-up
        ending = signal.SIGINT
    if isinstance(ending, signal.Signals):
        click.echo("interrupted: all processes of the demo have ended", err=True)
        sys.exit(_SIGNAL_EXIT_BASE + ending)
    if not ending.verdict.is_good:
        raise click.ClickException("the verdict is not good")


def _can_draw() -> bool:
    """Return whether standard output is a terminal that can show the picture."""
    return sys.stdout.isatty() and can_show("█▁╭·") and os.environ.get("TERM", "dumb") not in ("dumb", "unknown")


def _in_lines(invocation: Invocation, settings: DemoSettings) -> Ending | signal.Signals:
    scene = new_scene(settings)
    lines = PlainLines(sys.stderr if invocation.is_json else sys.stdout)
    endings: list[Ending] = []

    def show(ending: Ending) -> None:
        endings.append(ending)
        lines.end(ending)
        if invocation.is_json:
            figures = msgspec.to_builtins(ending.verdict)
            invocation.print_json({**figures, "killed": ending.killed, "resent": scene.resent})

    async def stay(ending: Ending) -> None:
        show(ending)
        lines.say("the console stays open: Ctrl-C ends it")
        await anyio.sleep_forever()

    ending = invocation.run(
        _interruptible, lambda: play(settings, scene, lines, stay=stay if settings.console else None)
    )
    if isinstance(ending, Ending):
        show(ending)
    return endings[0] if endings else ending


def _in_a_picture(invocation: Invocation, settings: DemoSettings) -> Ending | signal.Signals:
    from shardline.cli.demo.terminal_picture import Picture  # noqa: PLC0415 - needed only on a terminal

    scene = new_scene(settings)
    with Picture() as picture:
        ending = invocation.run(_interruptible, lambda: play(settings, scene, picture))
    if isinstance(ending, Ending):
        picture.end(scene, ending)
    return ending


async def _interruptible(run: Callable[[], Awaitable[T]]) -> T | signal.Signals:
    """Return the result of ``run``, or the signal that cancelled it. Further signals are ignored."""
    numbers = [signal.Signals[name] for name in _STOP_SIGNALS if name in signal.Signals.__members__]
    handlers = {number: signal.getsignal(number) for number in numbers}
    before = {number: handler for number, handler in handlers.items() if handler is not signal.SIG_IGN}
    results: list[T] = []
    with interrupts(list(before)) as signals, signals.stage():
        results.append(await run())
    if not results:
        assert signals.first is not None, "only a signal cancels the stage"
        return signal.Signals(signals.first)
    for number, handler in before.items():  # the run was not interrupted, so restore the handlers
        signal.signal(number, handler)
    return results[0]


@final
class PlainLines:
    """A ``Display`` for pipes, files and dumb terminals.

    It prints plain ASCII: a line for each event, and every few seconds a line with the state of the demo.
    """

    def __init__(self, file: TextIO) -> None:
        self._file = file
        self._printed_events = 0
        self._state_printed_at = 0.0

    def update(self, scene: Scene) -> None:
        """Print the new events, and every few seconds the state of the demo."""
        for event in scene.events[self._printed_events :]:
            self._print_at(event.at, event.text)
        self._printed_events = len(scene.events)
        is_flowing = scene.flowing_for > 0 and scene.act != COUNTING
        if is_flowing and scene.now - self._state_printed_at >= _STATE_INTERVAL:
            self._state_printed_at = scene.now
            self._print_at(scene.now, state(scene))

    def end(self, ending: Ending) -> None:
        """Print the verdict, with the figures in the last line."""
        for sentence in sentences(ending.verdict, ending.killed):
            self._echo(sentence)
        self._echo(headline(ending.verdict))

    def say(self, line: str) -> None:
        """Print one line of text to standard output."""
        self._echo(line)

    def _print_at(self, at: float, text: str) -> None:
        self._echo(f"{at:5.1f} s  {text}")

    def _echo(self, line: str) -> None:
        click.echo(line, file=self._file)


def state(scene: Scene) -> str:
    """Return the rates, the lag and the owners of the shards in one line."""
    owners = "  ".join(
        f"{name}: {' '.join(shard.name for shard in scene.shards.values() if shard.owner == name) or '-'}"
        for name in scene.workers
    )
    return (
        f"  in {scene.put.rate:.0f}/s  out {scene.handled.rate:.0f}/s  handling lag {scene.lag:.1f} s  "
        f"sent again {scene.resent}  {owners}"
    )
