"""Runs the real command in tests.

It runs in a separate process, in an empty directory, in an environment that points to the test's own Kinesis and to
nothing else of the machine.
"""

import contextlib
import fcntl
import os
import pty
import re
import select
import signal
import subprocess
import sys
import termios
import time
from dataclasses import dataclass

import pytest

from shardline.testing import LocalKinesis

LIMIT = 90  # seconds, for a busy machine


@dataclass(frozen=True)
class Ended:
    """A command that has ended."""

    code: int
    stdout: bytes
    stderr: str

    @property
    def lines(self):
        return self.stdout.decode().splitlines()


class Running:
    """A running command."""

    def __init__(self, process):
        self.process = process

    def wait(self):
        stdout, stderr = self.process.communicate(timeout=LIMIT)
        return Ended(self.process.returncode, stdout or b"", (stderr or b"").decode())

    def interrupt(self, number=signal.SIGINT):
        self.process.send_signal(number)


def make_our_own(terminal):
    """Make the terminal our own, so that Ctrl-C typed there sends us a signal."""
    fcntl.ioctl(terminal, termios.TIOCSCTTY, 0)


class Shardline:
    """Runs ``shardline``: to its end when called, or in the background with ``start``."""

    def __init__(self, directory, environment, stack):
        self.directory = directory
        self.environment = environment
        self._stack = stack

    def start(
        self,
        *arguments,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        terminal=None,
        **changes,
    ):
        environment = {name: value for name, value in (self.environment | changes).items() if value is not None}
        process = subprocess.Popen(
            [sys.executable, "-m", "shardline", *map(str, arguments)],
            cwd=self.directory,
            env=environment,
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            start_new_session=terminal is not None,
            preexec_fn=None if terminal is None else lambda: make_our_own(terminal),  # noqa: PLW1509 - one call
        )
        self._stack.callback(self._end, process)
        return Running(process)

    @staticmethod
    def _end(process):
        process.kill()
        process.wait()
        for one in (process.stdin, process.stdout, process.stderr):
            if one is not None:
                with contextlib.suppress(OSError):
                    one.close()

    def __call__(self, *arguments, stdin=b"", code=0, **changes):
        running = self.start(*arguments, stdin=subprocess.PIPE, **changes)
        stdout, stderr = running.process.communicate(stdin, timeout=LIMIT)
        ended = Ended(running.process.returncode, stdout, stderr.decode())
        assert ended.code == code, ended
        return ended


@pytest.fixture
def kinesis():
    with LocalKinesis(shards=2, stream="orders") as running:
        yield running


@pytest.fixture
def shardline(kinesis, tmp_path):
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "LANG": "C.UTF-8",
        "TZ": "UTC",
        "AWS_EC2_METADATA_DISABLED": "true",
    }
    if "PYTHONPATH" in os.environ:  # the sources of this checkout, if another one is installed
        environment["PYTHONPATH"] = os.environ["PYTHONPATH"]
    with contextlib.ExitStack() as stack:
        yield Shardline(tmp_path, environment | dict(kinesis.environment), stack)


@pytest.fixture
def eventually():
    """Wait until a condition is true."""

    def wait(is_so, what="it never was"):
        give_up_at = time.monotonic() + LIMIT
        while not is_so():
            assert time.monotonic() < give_up_at, what
            time.sleep(0.01)

    return wait


@pytest.fixture
def on_terminal(shardline):
    """Run the command on a terminal, and type an answer at the question. Return the output and the exit code."""

    def run(*arguments, typed=b"", columns=80, stdin=None, **changes):
        ours, theirs = pty.openpty()
        changes = {"TERM": "xterm", "COLUMNS": str(columns)} | changes
        process = shardline.start(
            *arguments,
            stdin=theirs if stdin is None else stdin,
            stdout=theirs,
            stderr=theirs,
            terminal=theirs,
            **changes,
        ).process
        os.close(theirs)
        shown, was_typed = b"", False
        give_up_at = time.monotonic() + LIMIT
        with contextlib.suppress(OSError):  # the terminal closes when the command ends
            while time.monotonic() < give_up_at:
                is_silent = not select.select([ours], [], [], 2.0)[0]
                shown += b"" if is_silent else os.read(ours, 65_536)
                if typed and (is_silent if was_typed else shown.rstrip().endswith(b"[y/N]:")):
                    os.write(ours, typed)
                    was_typed = True
                    typed = typed if typed == b"\x03" else b""  # again, because readline may drop one while it starts
        code = process.wait(LIMIT)
        os.close(ours)
        return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown.decode().replace("\r\n", "\n")), code

    return run
