"""Shows Shardline at work, with no account and in half a minute.

``shardline demo`` runs a whole world on this machine (``demo_story``), shows it as a live picture or in plain lines,
and ends with the verdict of an independent reader.

Invariants:

- The exit code is 0 only if the verdict is good; 1 if it is not, or there is none; 130 after Ctrl-C, 143 after
  SIGTERM.
- Ctrl-C, SIGTERM and SIGHUP end it at any moment: its processes end and its files are removed first. One that was
  ignored when it started (``nohup``) stays ignored.
- It uses none of the user's AWS settings, and refuses to be told where Kinesis is: it brings its own.
"""

import os
import signal
import sys
from collections.abc import Awaitable, Callable
from typing import Final, TextIO, TypeVar, final

import click
import msgspec

from shardline.cli.demo.loss_check import headline, sentences
from shardline.cli.demo.scene import Scene
from shardline.cli.demo.story import COUNTING, DemoSettings, Ending, new_scene, play
from shardline.cli.error_messages import WrongUsage
from shardline.cli.interrupts import interrupts
from shardline.cli.invocation import Invocation, only_options
from shardline.cli.terminal import can_show

_BEYOND_SIGNALS: Final = 128  # what shells add to the number of the signal that ended a program
_ENDING: Final = ("SIGINT", "SIGTERM", "SIGHUP")  # the last is not everywhere
_STATE_EVERY: Final = 2.0  # seconds, in plain lines

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
@click.option("--plain", is_flag=True, help="Print plain lines instead of the picture.")
@only_options("output", "verbose")
@click.pass_obj
def demo(invocation: Invocation, *, seconds: float, rate: int, shards: int, seed: int, plain: bool) -> None:
    """See it work: produce, consume, reshard, lose a worker; nothing is lost.

    It needs no AWS account and takes less than half a minute: orders flow into a local Kinesis and out to two workers.
    A shard throttles and is split, a worker is killed. Then an independent reader verifies that nothing was lost.

    \b
    Examples:
      shardline demo
      shardline demo --plain --seconds 5
      shardline demo --output json | jq .lost
    """
    if invocation.endpoint_url or invocation.region or invocation.profile:
        raise WrongUsage("the demo runs its own local Kinesis: it takes no endpoint, region or profile")
    settings = DemoSettings(seconds=seconds, rate=rate, shards=shards, seed=seed)
    is_plain = plain or invocation.is_json or invocation.verbose or not _can_draw()
    try:
        ending = _in_lines(invocation, settings) if is_plain else _in_a_picture(invocation, settings)
    except KeyboardInterrupt:  # before it listens, or when it no longer does
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # what still comes would only break off the end
        ending = signal.SIGINT
    if isinstance(ending, signal.Signals):
        click.echo("interrupted: everything that was started has ended", err=True)
        sys.exit(_BEYOND_SIGNALS + ending)
    if not ending.verdict.is_good:
        raise click.ClickException("the verdict is not good")


def _can_draw() -> bool:
    """Whether standard output is a terminal that can show the picture."""
    return sys.stdout.isatty() and can_show("█▁╭·") and os.environ.get("TERM", "dumb") not in ("dumb", "unknown")


def _in_lines(invocation: Invocation, settings: DemoSettings) -> Ending | signal.Signals:
    scene = new_scene(settings)
    lines = PlainLines(sys.stderr if invocation.is_json else sys.stdout)
    ending = invocation.run(_interruptible, lambda: play(settings, scene, lines))
    if isinstance(ending, Ending):
        lines.end(ending)
        if invocation.is_json:
            figures = msgspec.to_builtins(ending.verdict)
            invocation.print_json({**figures, "killed": ending.killed, "resent": scene.resent})
    return ending


def _in_a_picture(invocation: Invocation, settings: DemoSettings) -> Ending | signal.Signals:
    from shardline.cli.demo.terminal_picture import Picture  # noqa: PLC0415 - loads only where there is a terminal

    scene = new_scene(settings)
    with Picture() as picture:
        ending = invocation.run(_interruptible, lambda: play(settings, scene, picture))
    if isinstance(ending, Ending):
        picture.end(scene, ending)
    return ending


async def _interruptible(run: Callable[[], Awaitable[T]]) -> T | signal.Signals:
    """What comes of it, or the signal that cancelled it; further ones change nothing."""
    wanted = [signal.Signals[name] for name in _ENDING if name in signal.Signals.__members__]
    before = {one: signal.getsignal(one) for one in wanted if signal.getsignal(one) is not signal.SIG_IGN}
    ending: list[T] = []
    with interrupts(list(before)) as heard, heard.stage():
        ending.append(await run())
    if not ending:
        assert heard.first is not None, "nothing else cancels it"
        return signal.Signals(heard.first)
    for one, handler in before.items():  # it ended by itself: what comes now breaks off what follows, as ever
        signal.signal(one, handler)
    return ending[0]


@final
class PlainLines:
    """A ``Show`` that only ever adds lines: for pipes, files, dumb terminals and machines that read along.

    Plain ASCII, a line for each event, and one for the state of things every few seconds.
    """

    def __init__(self, file: TextIO) -> None:
        self._file = file
        self._told = 0
        self._state_at = 0.0

    def update(self, scene: Scene) -> None:
        for event in scene.events[self._told :]:
            self._say(event.at, event.text)
        self._told = len(scene.events)
        is_moving = scene.flowing_for > 0 and scene.act != COUNTING
        if is_moving and scene.now - self._state_at >= _STATE_EVERY:
            self._state_at = scene.now
            self._say(scene.now, state(scene))

    def end(self, ending: Ending) -> None:
        """The verdict, and the figures in the last line."""
        for sentence in sentences(ending.verdict, ending.killed):
            self._echo(sentence)
        self._echo(headline(ending.verdict))

    def _say(self, at: float, text: str) -> None:
        self._echo(f"{at:5.1f} s  {text}")

    def _echo(self, line: str) -> None:
        click.echo(line, file=self._file)


def state(scene: Scene) -> str:
    """Everything in one line."""
    owners = "  ".join(
        f"{name}: {' '.join(one.name for one in scene.shards.values() if one.owner == name) or '-'}"
        for name in scene.workers
    )
    return (
        f"  in {scene.put.rate:.0f}/s  out {scene.handled.rate:.0f}/s  lag {scene.lag:.1f} s  "
        f"sent again {scene.resent}  {owners}"
    )
