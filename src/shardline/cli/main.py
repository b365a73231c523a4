"""How does ``shardline`` begin, and with which exit code does it end?

Exit codes: 0 for success (also when Ctrl-C or SIGTERM ends a command that runs until then), 1 for a failure, 2 for
wrong usage, 130 for a Ctrl-C that breaks a command off.
"""

import sys
from importlib.util import find_spec
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
    if find_spec("rich") is None:  # of the same extra
        sys.exit(_NEEDS_EXTRA)
    from shardline.cli.commands import shardline  # noqa: PLC0415 - needs click

    try:
        code: object = shardline.main(prog_name="shardline", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        code = error.exit_code
    except click.Abort:  # so click tells of Ctrl-C, and of the end of input at a question
        code = _INTERRUPTED
    sys.exit(code if isinstance(code, int) else 0)
