"""How is the demo told in plain lines?

For pipes, files, dumb terminals and machines that read along. Plain ASCII, a line for each event, and one for the state
of things every few seconds.
"""

from typing import Final, TextIO, final

import click

from shardline.cli.demo_scene import Scene
from shardline.cli.demo_story import COUNTING, Ending
from shardline.cli.demo_verdict import headline, sentences

_STATE_EVERY: Final = 2.0


@final
class PlainLines:
    """A ``Show`` that only ever adds lines."""

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
