"""Runs ``shardline`` and chooses its exit code.

Exit codes: 0 for success (also when Ctrl-C ends a command that runs until Ctrl-C), 1 for a failure, 2 for wrong usage,
130 if Ctrl-C interrupts a command, and 143 if SIGTERM does.
"""

import os
import signal
import sys
import traceback
from importlib.util import find_spec
from types import FrameType
from typing import Final

from shardline.cli import standard_streams

_NEEDS_EXTRA: Final = "the command line needs an extra: pip install 'shardline[cli]'"
_INTERRUPTED: Final = 130
_TERMINATED: Final = 143
_VERBOSE: Final = frozenset({"-v", "--verbose"})


def main() -> None:
    standard_streams.guard()
    try:
        signal.signal(signal.SIGTERM, _terminate)
        code = _run()
    except KeyboardInterrupt:
        code = _INTERRUPTED
    except SystemExit as ending:
        code = ending.code
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # a signal during shutdown would replace the exit code
    problem = standard_streams.take_problem()
    if problem is not None:
        _report_lost_output(problem)
        code = code or 1
    sys.exit(code)


def _terminate(number: int, frame: FrameType | None) -> None:
    """Handle a SIGTERM that no command handles: unwind as after an exception, so that clean-up code runs."""
    del number, frame
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a second SIGTERM must not interrupt the clean-up
    sys.exit(_TERMINATED)


def _run() -> str | int | None:
    try:
        import click  # noqa: PLC0415 - an extra
    except ImportError:
        return _NEEDS_EXTRA
    if find_spec("rich") is None:  # the extra that installs click also installs rich
        return _NEEDS_EXTRA
    from shardline.cli.commands import shardline  # noqa: PLC0415 - needs click
    from shardline.cli.error_messages import as_click, show_error  # noqa: PLC0415
    from shardline.cli.invocation import Invocation  # noqa: PLC0415

    if "_SHARDLINE_COMPLETE" in os.environ:  # set by a shell's completion script
        from shardline.cli.completion import bash_words  # noqa: PLC0415 - other calls start faster without it

        bash_words.register()
    try:
        code: object = shardline.main(prog_name="shardline", standalone_mode=False)
    except click.Abort:  # raised for Ctrl-C, and for the end of input at a prompt
        return _INTERRUPTED
    except click.ClickException as error:
        return show_error(error)
    except Exception as error:  # noqa: BLE001 - our own bugs are shown as one sentence, too
        if not _VERBOSE.isdisjoint(sys.argv):
            traceback.print_exc()
        return show_error(as_click(error, Invocation()))
    return code if isinstance(code, int) else 0


def _report_lost_output(problem: OSError) -> None:
    import click  # noqa: PLC0415 - as above

    from shardline.cli.error_messages import show_error  # noqa: PLC0415

    show_error(click.ClickException(f"standard output cannot be written: {problem.strerror or problem}"))
