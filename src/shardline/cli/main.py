"""Which commands are there, and how does a mistake end?

Errors that users can mend are one sentence on standard error, without a traceback. Exit codes: 0 for success (also when
Ctrl-C or SIGTERM ends a command that runs until then), 1 for a failure, 2 for wrong usage, 130 for a Ctrl-C that comes
before the command has begun.
"""

import sys
from typing import Final

_NEEDS_EXTRA: Final = "the command line needs an extra: pip install 'shardline[cli]'"
_INTERRUPTED: Final = 130


def main() -> None:
    """Run ``shardline``."""
    try:
        _run()
    except KeyboardInterrupt:
        sys.exit(_INTERRUPTED)


def _run() -> None:
    try:
        import click  # noqa: PLC0415 - an extra
    except ImportError:
        sys.exit(_NEEDS_EXTRA)
    from shardline import __version__  # noqa: PLC0415 - beside the others
    from shardline.cli.local import local  # noqa: PLC0415 - needs click

    group = click.Group(
        "shardline",
        commands=[local],
        help="Amazon Kinesis Data Streams for Python.",
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    click.version_option(__version__, prog_name="shardline")(group)
    group(prog_name="shardline")
