"""Is the picture of ``shardline demo`` complete on every terminal, even after a resize, and does the verdict stay?

The real command runs on a pseudo-terminal, and pyte emulates the terminal. A frame is checked when the next one begins.
"""

import contextlib
import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time

import pyte
import pytest
from rich.console import Console

from shardline.cli.demo.scene import Scene, ShardView, WorkerView
from shardline.cli.demo.terminal_picture import draw

DEMO = [sys.executable, "-m", "shardline", "demo", "--seconds", "5"]
LIMIT = 150
HOME, ALTERNATE, ORDINARY, CURSOR = b"\x1b[H", b"\x1b[?1049h", b"\x1b[?1049l", b"\x1b[?25h"

pytestmark = pytest.mark.timeout(2 * LIMIT)


class Terminal:
    """A terminal that runs the demo. pyte has no alternate screen, so there are two screens here."""

    def __init__(self, columns, rows, directory, *options, **variables):
        self._ordinary, self._alternate = pyte.Screen(columns, rows), pyte.Screen(columns, rows)
        self._show(self._ordinary)
        self.master, inside = pty.openpty()
        self.frames = []  # (columns, lines) of each complete frame
        self.written = b""
        self._held_back = b""
        self._resize(columns, rows)
        self.process = subprocess.Popen(
            [*DEMO, *options],
            stdin=inside,
            stdout=inside,
            stderr=inside,
            env={
                "PATH": os.environ["PATH"],
                "HOME": str(directory),
                "TMPDIR": str(directory),
                "LANG": "C.UTF-8",
                "TERM": "xterm-256color",
            }
            | variables,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # noqa: PLW1509 - Ctrl-C is a signal; no thread runs here
        )
        os.close(inside)

    def _resize(self, columns, rows):
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def resize(self, columns, rows):
        for screen in (self._ordinary, self._alternate):
            screen.resize(rows, columns)
        self._resize(columns, rows)

    def _show(self, screen):
        self.screen = screen
        self._feed = pyte.ByteStream(screen)

    def read(self):
        """Read the output. Return whether there may be more."""
        ready, _, _ = select.select([self.master], [], [], LIMIT)
        assert ready, self.lines
        try:
            more = os.read(self.master, 65_536)
        except OSError:  # the other end is closed
            more = b""
        self.written += more
        text = self._held_back + more
        cut = text.rfind(b"\x1b") if more and b"\x1b" in text[-8:] else len(text)  # the rest may come later
        text, self._held_back = text[:cut], text[cut:]
        for part in re.split(rb"(?=\x1b\[H|\x1b\[\?1049)", text):
            if part.startswith(HOME) and self.screen is self._alternate and any(self.lines):
                self.frames.append((self.screen.columns, self.lines))
            if part.startswith((ALTERNATE, ORDINARY)):
                self._show(self._alternate if part.startswith(ALTERNATE) else self._ordinary)
            self._feed.feed(part)
        return bool(more)

    @property
    def lines(self):
        return [line.rstrip() for line in self.screen.display]

    def read_until(self, text):
        give_up_at = time.monotonic() + LIMIT
        while not any(text in line for line in self.lines):
            assert time.monotonic() < give_up_at, self.lines
            assert self.read(), self.lines

    def ended(self):
        """Return the exit code, after all output was read."""
        while self.read():
            continue
        return self.process.wait(LIMIT)

    def close(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self.master)


@pytest.fixture
def open_terminal(tmp_path):
    with contextlib.ExitStack() as stack:

        def start(columns, rows, *options, **variables):
            terminal = Terminal(columns, rows, tmp_path, *options, **variables)
            stack.callback(terminal.close)
            return terminal

        yield start
    assert list(tmp_path.iterdir()) == []


def flaws(columns, lines):
    """Return the lines of a frame that do not form panels over the whole width. From 160 columns on, there are two
    columns.
    """
    edges = {"╭": "╮", "│": "│", "╰": "╯"}
    halves = [(0, columns)] if columns < 160 else [(0, columns // 2), (columns // 2, columns)]
    found = []
    for line in lines:
        parts = [line.ljust(columns)[start:end] for start, end in halves]
        if len(line) > columns or any(part.strip() and part[-1] != edges.get(part[0]) for part in parts):
            found.append(line)
    return found


def check_frames(frames):
    assert len(frames) >= 10
    for columns, lines in frames:
        assert flaws(columns, lines) == [], "\n".join(lines)
        assert not any("…" in line for line in lines), "\n".join(lines)
    seen = "\n".join("\n".join(lines) for _, lines in frames)
    for words in (
        "shardline demo · flash sale",
        "SHARD   KEYS",
        "READ BY",
        "· take-over",
        "throttled: shard 1 takes 1 MiB/s",
        "slowed",
        "closed",
        "├ 3 ",
        "└ 4 ",
        "B, dead",
        "shard 1 is split into 3 and 4",
        "kill -9: worker B is gone, and still owns shard",
        "sent again, ",
        "a lease lasts 2 s here, 10 s by default",
    ):
        assert words in seen, words
    assert re.search(r"worker A took over shards? .* after [\d.]+ s", seen)


def check_end(terminal):
    """Check the output that stays on the screen, whose last row is left for the prompt."""
    shown = [line for line in terminal.lines if line]
    verdict = next(number for number, line in enumerate(shown) if line.startswith("╭─ verdict: good"))
    assert re.match(r"│ put [\d,]+   delivered [\d,]+   lost 0   duplicates [\d,]+ +│$", shown[verdict + 1])
    assert "Nothing was lost, and every customer's orders came in order." in shown[verdict + 2]
    assert shown[-1].startswith("╰")
    assert any("HANDLED" in line for line in shown)
    framed = [line for line in shown if line[0] in "╭│╰"]
    assert flaws(min(terminal.screen.columns, 110), framed) == []
    assert terminal.lines[-1] == ""
    assert terminal.written.endswith(b"\n")


@pytest.mark.parametrize("size", [(80, 24), (200, 50)])
def test_the_picture_is_whole_and_the_verdict_stays(open_terminal, size):
    terminal = open_terminal(*size)
    assert terminal.ended() == 0, terminal.lines
    check_frames(terminal.frames)
    check_end(terminal)
    assert terminal.written.index(ALTERNATE) < terminal.written.index(ORDINARY)
    assert terminal.written.rindex(CURSOR) > terminal.written.index(ALTERNATE)


def test_a_terminal_that_is_resized_is_whole_again(open_terminal):
    terminal = open_terminal(200, 50)
    terminal.read_until("orders flow: 400/s")
    for columns, rows in ((80, 24), (170, 30), (100, 24)):
        before = len(terminal.frames)
        terminal.resize(columns, rows)
        while all(flaws(*frame) for frame in terminal.frames[before:]):
            assert terminal.read(), terminal.lines
        whole = len(terminal.frames)
        while len(terminal.frames) < whole + 5:
            assert terminal.read(), terminal.lines
        for width, lines in terminal.frames[whole:]:
            assert flaws(width, lines) == [], "\n".join(lines)
            assert width == columns
    assert terminal.ended() == 0
    check_end(terminal)


@pytest.mark.parametrize("moment", ["workers start", "· flash sale", "· take-over"])
def test_ctrl_c_gives_the_terminal_back(open_terminal, moment):
    terminal = open_terminal(80, 24)
    terminal.read_until(moment)
    os.write(terminal.master, b"\x03")
    assert terminal.ended() == 128 + signal.SIGINT
    shown = [line for line in terminal.lines if line]
    assert shown == ["interrupted: all processes of the demo have ended"]
    assert terminal.written.rindex(ORDINARY) > terminal.written.rindex(ALTERNATE)
    assert terminal.written.rindex(CURSOR) > terminal.written.rindex(b"\x1b[?25l")


@pytest.mark.parametrize("plain", [{"TERM": "dumb"}, {"PYTHONIOENCODING": "ascii"}, "--plain"])
def test_a_terminal_that_cannot_show_it_gets_lines(open_terminal, plain):
    terminal = open_terminal(120, 40, plain) if isinstance(plain, str) else open_terminal(120, 40, **plain)
    terminal.read_until("orders flow: 400/s")
    assert ALTERNATE not in terminal.written
    assert any(line.startswith("  0.0 s  a local Kinesis on") for line in terminal.lines)
    os.write(terminal.master, b"\x03")
    assert terminal.ended() == 130


# ---- single frames


def scene_of(shards):
    scene = Scene(16.0, 2.0, 10.0, now=3.0, flowing_for=2.0, act="orders flow")
    scene.workers = {"A": WorkerView("A", 1, is_ready=True, handled=123_456), "B": WorkerView("B", 2, is_dead=True)}
    for number in range(shards):
        shard_id = f"shardId-{number:012}"
        scene.shards[shard_id] = ShardView(shard_id, number / shards, 1 / shards, owner="AB"[number % 2])
    for number in range(40):
        scene.add_event(f"event {number}", "act")
    return scene


@pytest.mark.parametrize("columns", [60, 80, 159, 160, 200, 400])
@pytest.mark.parametrize("rows", [18, 24, 60])
@pytest.mark.parametrize("shards", [0, 1, 14])
def test_a_frame_fits_every_terminal(columns, rows, shards):
    console = Console(width=columns, height=rows, force_terminal=True, color_system=None)
    with console.capture() as captured:
        console.print(draw(scene_of(shards), columns, rows))
    lines = [line.rstrip() for line in captured.get().splitlines()]
    assert flaws(columns, lines) == []
    assert len(lines) <= rows
    assert any("event 39" in line for line in lines)
    assert any("B killed" in line for line in lines)
    rows = [line for line in lines if re.match(r"│ \d+ ", line)]
    assert len(rows) == shards or f"{shards - len(rows)} shards not shown" in "\n".join(lines)


def test_of_too_many_shards_those_are_shown_that_tell_most():
    scene = scene_of(12)
    hot = scene.shards["shardId-000000000006"]
    hot.is_open, hot.is_finished = False, True
    for number, start in ((12, hot.start), (13, hot.start + hot.share / 2)):
        shard_id = f"shardId-{number:012}"
        scene.shards[shard_id] = ShardView(shard_id, start, hot.share / 2, hot.shard_id, owner="A")
    scene.shards["shardId-000000000002"].lag = 2.0
    console = Console(width=80, height=20, color_system=None)
    with console.capture() as captured:
        console.print(draw(scene, 80, 20))
    shown = re.findall(r"^│ ([├└]? ?\d+) ", captured.get(), re.MULTILINE)
    assert shown == ["0", "2", "6", "├ 12", "└ 13"]
    assert "9 shards not shown" in captured.get()
