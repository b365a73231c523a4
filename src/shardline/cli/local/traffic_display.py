"""Shows how to connect to ``shardline local``, and a line for each second with traffic.

Invariants:

- The display cannot end the server: a failure to write the output or a bug in this module is reported once, and the
  server keeps serving.
- A line costs the same however many streams and records there are: it uses counters that the server keeps.
"""

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, final

import click
import msgspec

from shardline.cli.quantities import counted
from shardline.cli.standard_streams import take_problem

if TYPE_CHECKING:
    from shardline.server.running_server import Traffic


@final
class LocalDisplay:
    """Prints text, or with ``is_json`` one JSON object per line."""

    def __init__(self, *, is_json: bool) -> None:
        self._is_json = is_json
        self._is_live = not is_json and sys.stdout.isatty()
        self._requests_shown = 0
        self._has_reported = False

    def show_start(self, text: Callable[[], str], facts: Callable[[], dict[str, object]]) -> None:
        """Print how to connect to the server."""
        self._run_safely(lambda: self._print(text, lambda: {"event": "started", **facts()}))

    def show_traffic(self, read: "Callable[[], Traffic]") -> None:
        """Print a line if there were requests since the last line. On a terminal, the line is overwritten."""

        def show() -> None:
            traffic = read()
            new = traffic.requests - self._requests_shown
            self._requests_shown = traffic.requests
            if new:
                # The total is smaller than before if the log of requests was cleared in the meantime.
                line = traffic_line(max(0, new), traffic)
                facts: dict[str, object] = {"event": "traffic", "new_requests": max(0, new), **traffic._asdict()}
                if self._is_live:
                    click.echo(f"\r\x1b[K{line}", nl=False)
                else:
                    self._print(lambda: line, lambda: facts)

        self._run_safely(show)

    def show_end(self) -> None:
        """Print that the server has stopped."""

        def show() -> None:
            if self._is_live:
                click.echo()
            self._print(lambda: "stopped", lambda: {"event": "stopped"})

        self._run_safely(show)

    def _print(self, text: Callable[[], str], facts: Callable[[], dict[str, object]]) -> None:
        click.echo(msgspec.json.encode(facts()) if self._is_json else text())

    def _run_safely(self, show: Callable[[], None]) -> None:
        """Call ``show``. An exception or a failure to write is reported once, and does not end the server."""
        try:
            show()
            lost = take_problem()
            problem = None if lost is None else lost.strerror or str(lost)
        except Exception as error:  # noqa: BLE001 - whatever it is, the server keeps serving
            problem = f"{type(error).__name__}: {error}"
        if problem is not None and not self._has_reported:
            self._has_reported = True
            click.echo(f"Warning: the traffic cannot be shown ({problem}); the server keeps serving", err=True)


def traffic_line(new_requests: int, traffic: "Traffic") -> str:
    """Return a line such as ``     3 requests  7 in all  1 stream  4 records``."""
    noun = "request " if new_requests == 1 else "requests"
    streams, records = counted(traffic.streams, "stream"), counted(traffic.records, "record")
    return f"{new_requests:>6,} {noun}  {traffic.requests:,} in all  {streams}  {records}"
