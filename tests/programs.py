"""Runs a program that a test holds as text.

Under ``python -O`` the programs run with it too, so that the library is tried without its assertions. The program's own
assertions are the test's: they stay.
"""

import sys

_LAUNCH = "import sys; exec(compile(sys.argv.pop(1), '<program>', 'exec', optimize=0))"


def command_for(source, *options):
    """The command that runs this program; its arguments follow."""
    return [sys.executable, *options, "-c", _LAUNCH, source]
