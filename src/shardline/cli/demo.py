"""Shows Shardline at work, with no account and in half a minute.

``shardline demo`` runs a whole world on this machine (``demo_story``), shows it as a live picture or in plain lines,
and ends with the verdict of an independent reader.

Invariants:

- DM1: the exit code is 0 only if the verdict is good; 1 if it is not, or there is none; 130 after Ctrl-C, 143 after
  SIGTERM.
- DM2: Ctrl-C, SIGTERM and SIGHUP end it at any moment: its processes end and its files are removed first. One that was
  ignored when it started (``nohup``) stays ignored.
- DM3: it uses none of the user's AWS settings, and refuses to be told where Kinesis is: it brings its own.
"""

import os
import signal
import sys
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

import anyio
import click
import msgspec

from shardline.cli.demo_lines import PlainLines
from shardline.cli.demo_story import DemoSettings, Ending, new_scene, play
from shardline.cli.invocation import Invocation, only_options
from shardline.cli.mistakes import WrongUsage, sole_error
from shardline.cli.terminal import draws

_BEYOND_SIGNALS: Final = 128  # what shells add to the number of the signal that ended a program
_ENDING: Final = ("SIGINT", "SIGTERM", "SIGHUP")  # the last is not everywhere

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
    if invocation.endpoint_url or invocation.region or invocation.profile:  # DM3
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
    if not ending.verdict.is_good:  # DM1
        raise click.ClickException("the verdict is not good")


def _can_draw() -> bool:
    """Whether standard output is a terminal that can show the picture."""
    return sys.stdout.isatty() and draws("█▁╭·") and os.environ.get("TERM", "dumb") not in ("dumb", "unknown")


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
    from shardline.cli.demo_picture import Picture  # noqa: PLC0415 - loads only where there is a terminal

    scene = new_scene(settings)
    with Picture() as picture:
        ending = invocation.run(_interruptible, lambda: play(settings, scene, picture))
    if isinstance(ending, Ending):
        picture.end(scene, ending)
    return ending


async def _interruptible(run: Callable[[], Awaitable[T]]) -> T | signal.Signals:
    """What comes of it, or the signal that cancelled it; further ones change nothing (DM2)."""
    wanted = [signal.Signals[name] for name in _ENDING if name in signal.Signals.__members__]
    heard = [one for one in wanted if signal.getsignal(one) is not signal.SIG_IGN]
    ending: list[T | signal.Signals] = []
    try:
        with anyio.open_signal_receiver(*heard) as signals:
            async with anyio.create_task_group() as tasks:

                async def listen() -> None:
                    async for number in signals:
                        ending.append(number)
                        tasks.cancel_scope.cancel()
                        return

                tasks.start_soon(listen)
                ending.append(await run())
                tasks.cancel_scope.cancel()
    except ExceptionGroup as group:
        raise sole_error(group) from None
    if isinstance(ending[0], signal.Signals):
        for one in heard:
            signal.signal(one, signal.SIG_IGN)  # what still comes would only break off the end
    return ending[0]
