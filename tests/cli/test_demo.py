"""Does ``shardline demo`` show its acts, count correctly, and leave nothing behind?

The tests run the real command in a separate process. test_demo_picture.py checks the picture.
"""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from shardline.cli.commands import COMMANDS, shardline
from shardline.cli.demo import story as demo_story

DEMO = [sys.executable, "-m", "shardline", "demo"]
SHORT = ("--seconds", "5")
LIMIT = 150  # seconds, for a busy machine; an idle one needs 8
PROCESS = re.compile(r"worker (\w) is ready \(process (\d+)\)")
FIGURES = re.compile(r"put (\d+)   delivered (\d+)   lost (\d+)   duplicates (\d+)")

pytestmark = pytest.mark.timeout(2 * LIMIT)


def is_alive(pid):
    """Whether a process runs. A zombie does not."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, 0)
            return not Path("/proc/self").exists()
        return False
    return status.rpartition(")")[2].split()[0] not in "ZX"


def wait_for(is_so, what):
    give_up_at = time.monotonic() + LIMIT
    while not is_so():
        assert time.monotonic() < give_up_at, what
        time.sleep(0.05)


def environment(directory, **more):
    """A machine with AWS settings that lead nowhere: the demo must ignore them."""
    return {
        "PATH": os.environ["PATH"],
        "HOME": str(directory),
        "TMPDIR": str(directory),
        "LANG": "C.UTF-8",
        "AWS_PROFILE": "nobody",
        "AWS_ENDPOINT_URL": "http://127.0.0.1:1",
        "HTTP_PROXY": "http://127.0.0.1:1",
        "http_proxy": "http://127.0.0.1:1",
    } | more


@pytest.fixture
def directory(tmp_path):
    """The demo's temporary directory. It must be empty at the end."""
    found = tmp_path / "with 100% of a name?"
    found.mkdir()
    yield found
    assert list(found.iterdir()) == []


class Lines:
    """The demo in plain lines, while it runs."""

    def __init__(self, directory, *options):
        self.lines = []
        self.pids = {}
        self.process = subprocess.Popen(
            [*DEMO, *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment(directory),
        )

    def read_until(self, text):
        while not (self.lines and text in self.lines[-1]):
            line = self.process.stdout.readline()
            assert line, f"{text} did not come: {self.lines} {self.process.stderr.read()}"
            self.lines.append(line)
            if found := PROCESS.search(line):
                self.pids[found[1]] = int(found[2])

    def ended(self):
        """Return the exit code and the standard error."""
        output, errors = self.process.communicate(timeout=LIMIT)
        self.lines += output.splitlines()
        return self.process.returncode, errors


@pytest.fixture
def begin(directory):
    with contextlib.ExitStack() as stack:

        def start(*options):
            running = Lines(directory, *options)
            stack.callback(running.process.communicate)
            stack.callback(running.process.kill)
            return running

        yield start


# ---- in lines


def test_the_demo_prints_its_scenes_and_loses_nothing(begin):
    running = begin(*SHORT)
    code, errors = running.ended()
    assert (code, errors) == (0, "")
    story = "\n".join(running.lines)
    acts = [
        r"a local Kinesis on http://127\.0\.0\.1:\d+, with AWS's limits",
        r"orders flow: 400/s of 300 customers, through 4 producers",
        r"flash sale: 8 resellers order, and all hash into shard 1",
        r"throttled: shard 1 takes 1 MiB/s, the producers slow down",
        r"shard 1 is split into 3 and 4",
        r"kill -9: worker B is gone, and still owns shards? ",
        r"worker A took over shards? .* after [\d.]+ s",
        r"the workers have ended; botocore reads the stream, and counts",
        r"Nothing was lost, and every customer's orders came in order\.",
    ]
    assert re.search(".*".join(acts), story, re.DOTALL), story
    assert re.search(r"in \d+/s  out \d+/s  handling lag [\d.]+ s  sent again \d+  A: [\d ]+  B: ", story)
    put, delivered, lost, _ = map(int, FIGURES.fullmatch(running.lines[-1]).groups())
    assert put == delivered > 1000
    assert lost == 0
    assert story.isascii()


def test_the_verdict_as_json(directory):
    ended = subprocess.run(
        [
            sys.executable,
            "-W",
            "error",
            "-m",
            "shardline",
            "--output",
            "json",
            "demo",
            *SHORT,
            "--shards",
            "1",
            "--rate",
            "50",
        ],
        env=environment(directory),
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    [line] = ended.stdout.splitlines()
    verdict = json.loads(line)
    assert verdict["put"] == verdict["stored"] == verdict["delivered"] > 500
    assert (verdict["lost"], verdict["given_up"], verdict["strangers"], verdict["out_of_order"]) == (0, 0, 0, 0)
    assert verdict["duplicates"] == verdict["replayed"] + verdict["stored_twice"]
    assert verdict["resent"] > 0
    assert verdict["killed"] == "B"
    assert "shard 0 is split into 1 and 2" in ended.stderr


def test_an_order_that_does_not_come_through_is_lost(directory, monkeypatch):
    """A reader overlooks an order: the demo must not report success."""
    read_stream = demo_story.read_stream

    def overlook(stream, arguments):
        found = read_stream(stream, arguments)
        return [one for one in found if one.name != "order-000100"]

    monkeypatch.setattr(demo_story, "read_stream", overlook)
    monkeypatch.setenv("TMPDIR", str(directory))
    ended = CliRunner().invoke(shardline, ["demo", *SHORT])
    assert ended.exit_code == 1, ended.output
    assert FIGURES.search(ended.stdout)[3] == "1"
    assert "LOST 1: order-000100 had a receipt but did not arrive." in ended.stdout
    assert ended.stderr == "Error: the verdict is not good\n"


def test_a_worker_that_ends_by_itself_ends_the_demo(begin):
    running = begin()
    running.read_until("orders flow")
    os.kill(running.pids["A"], signal.SIGKILL)
    code, errors = running.ended()
    assert (code, errors) == (1, "Error: there is no verdict: worker A ended with exit code -9: no output\n")
    assert not is_alive(running.pids["B"])


@pytest.mark.parametrize("option", ["--endpoint-url", "--region", "--profile"])
def test_the_demo_brings_its_own_kinesis(option):
    ended = CliRunner().invoke(shardline, [option, "http://127.0.0.1:1", "demo"])
    assert ended.exit_code == 2
    assert ended.stderr == "Error: the demo runs its own local Kinesis: it takes no endpoint, region or profile\n"


def test_the_summary_is_the_first_sentence_of_the_help():
    help_text = CliRunner().invoke(shardline, ["demo", "--help"]).output
    assert COMMANDS["demo"] in help_text


# ---- interrupted


@pytest.mark.parametrize(
    ("moment", "number"),
    [
        ("a local Kinesis", signal.SIGINT),
        ("orders flow", signal.SIGINT),
        ("kill -9", signal.SIGINT),
        ("the workers have ended", signal.SIGINT),
        ("flash sale", signal.SIGTERM),
    ],
)
def test_a_signal_ends_everything_at_any_moment(begin, moment, number):
    running = begin(*SHORT)
    running.read_until(moment)
    while running.process.poll() is None:
        running.process.send_signal(number)  # further signals interrupt nothing
        time.sleep(0.005)
    code, errors = running.ended()
    assert (code, errors) == (128 + number, "interrupted: all processes of the demo have ended\n")
    assert not any(is_alive(pid) for pid in running.pids.values())


def test_a_reader_that_goes_away_ends_everything(begin):
    running = begin(*SHORT)
    running.read_until("orders flow")
    running.process.stdout.close()
    code = running.process.wait(LIMIT)
    assert (code, running.process.stderr.read()) == (0, "")
    assert not any(is_alive(pid) for pid in running.pids.values())


def test_workers_end_with_a_demo_that_was_killed(tmp_path):
    running = Lines(tmp_path)
    running.read_until("hands shard")
    running.process.kill()
    running.ended()
    assert set(running.pids) == {"A", "B"}
    wait_for(lambda: not any(is_alive(pid) for pid in running.pids.values()), "the workers end")
