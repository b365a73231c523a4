"""Can a newcomer follow the README and then the tutorial, word for word?

The reader of this test has an empty home directory and a PATH without this environment, so that everything has to come
from the commands of the pages: ``mkdir``, the virtual environment, the installation from the clone. Every terminal is a
shell process of its own that runs the blocks of the page as they are printed, and Ctrl-C is what a terminal makes of it:
a SIGINT to all processes in the terminal.

Two things differ from what a reader does. The port is a free one instead of 4567, which may be in use on this machine.
And pip installs the pinned versions, so that a new release of a dependency cannot break the tests. It downloads them,
as ``make test`` does.
"""

import json
import os
import re
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from tests.docs import pages

ROOT = Path(__file__).parents[2]
README, TUTORIAL = "README.md", "docs/tutorial.md"
SERVE = "shardline local --stream orders --shards 2\n"
pytestmark = pytest.mark.timeout(600)  # two installations and a dozen processes
TOTAL = sum(number % 90 for number in range(1000))


README_BLOCKS = pages.FENCE.findall(pages.text_of(README))


def shell_blocks(blocks):
    return [body for language, body in blocks if language == "sh"]


def programs(blocks):
    return {re.match(r"# (\w+\.py)\n", body)[1]: body for language, body in blocks if language == "python"}


TUTORIAL_BLOCKS = pages.FENCE.findall(pages.text_of(TUTORIAL))


def test_the_pages_have_no_other_kind_of_block():
    """The tests run only these kinds of blocks, so a block of another kind would not be run."""
    assert {language for language, _ in README_BLOCKS} == {"python", "sh"}
    assert {language for language, _ in TUTORIAL_BLOCKS} == {"python", "sh"}
    assert programs(TUTORIAL_BLOCKS).keys() == {"produce.py", "consume.py", "flow.py", "test_orders.py"}


def test_the_pages_install_nothing_from_pypi_under_our_name():
    """Shardline is not on PyPI: a package of that name there would be a stranger's."""
    for page in (README, TUTORIAL):
        assert not re.search(r"pip install\s+['\"]?shardline", pages.text_of(page)), page
        assert "not on PyPI yet" in pages.prose_of(page)


class Reader:
    """A reader with a home directory, who opens terminals."""

    def __init__(self, home):
        self.home = home
        tools = home.parent / "tools"
        tools.mkdir()
        (tools / "python3").symlink_to(os.path.realpath(sys._base_executable))
        kept = {name: value for name, value in os.environ.items() if name.startswith(("PIP_", "SSL_", "HTTP", "http"))}
        self.environment = kept | {
            "HOME": str(home),
            "PATH": f"{tools}:/usr/local/bin:/usr/bin:/bin",
            "PIP_CONSTRAINT": str(ROOT / "requirements" / "constraints.txt"),
            "PIP_CACHE_DIR": str(home.parent / "pip"),
            "PYTHONUNBUFFERED": "1",  # a terminal shows each line at once, so the file must, too
        }

    def start(self, script, said, directory):
        """Start a terminal that runs a script. Its output goes to a file."""
        with said.open("w") as file:
            return subprocess.Popen(
                ["sh", "-euc", script],
                cwd=directory,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @contextmanager
    def terminal(self, script, said, directory=None):
        """A terminal that is closed at the end, with whatever still runs in it."""
        process = self.start(script, said, directory or self.home)
        try:
            yield process
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()

    def run(self, script):
        """Run a script in a separate terminal to its end, and return its output."""
        said = self.home / "said.txt"
        with self.terminal(script, said) as process:
            status = process.wait(timeout=200)
        assert status == 0, said.read_text()
        return said.read_text()

    @contextmanager
    def served(self, script):
        """A first terminal, which starts in the clone and whose last command is the server. Yields its URL."""
        assert script.endswith(SERVE)
        port = free_port()
        url = f"http://127.0.0.1:{port}"
        said = self.home / "server.txt"
        script = script.replace(SERVE, f"{SERVE.strip()} --port {port}\n")
        with self.terminal(script, said, ROOT) as process:
            wait_until(lambda: url in said.read_text() or process.poll() is not None, "the server is up", said)
            assert process.poll() is None, said.read_text()
            yield url
            press_ctrl_c(process)


def press_ctrl_c(process):
    os.killpg(process.pid, signal.SIGINT)
    process.wait(timeout=100)


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


@pytest.fixture(scope="module")
def reader(tmp_path_factory):
    home = tmp_path_factory.mktemp("newcomer") / "home"
    home.mkdir()
    return Reader(home)


def test_the_readme(reader):
    serve, begin = shell_blocks(README_BLOCKS)
    asynchronous, blocking = [body for language, body in README_BLOCKS if language == "python"]
    with reader.served(serve) as url:
        (reader.home / "example.py").write_text(asynchronous)
        (reader.home / "blocking.py").write_text(blocking)
        command = "python example.py\npython blocking.py\nshardline groups list --store sqlite:///leases.db\n"
        shown = reader.run((begin + command).replace("http://127.0.0.1:4567", url))
    first, second, third, *groups = shown.splitlines()
    assert first.startswith("shardId-")
    assert (second, third) == ("customer-7 b'{\"order\": 1}'", "2 delivered")
    assert groups[1].split()[:2] == ["billing", "orders"]


def test_the_tutorial(reader):
    """This follows the README, in the same home directory."""
    install, serve, begin, *commands = shell_blocks(TUTORIAL_BLOCKS)
    produce, look, consume, describe, flow, work, trouble, test = commands
    with reader.served(install + serve) as url:
        place = reader.home / "shardline-tutorial"
        for name, program in programs(TUTORIAL_BLOCKS).items():
            (place / name).write_text(program)

        def in_terminal(block):
            return (begin + block).replace("http://127.0.0.1:4567", url)

        def shell(block):
            return reader.run(in_terminal(block))

        delivered = re.compile(r"the last order is in shardId-00000000000[01] at \d{56}\n1000 of 1000 delivered\n")
        assert delivered.fullmatch(shell(produce))
        assert re.fullmatch(r'(customer-\d+\t\{"order": \d+, "amount": \d+\}\n){3}', shell(look))
        first = shell(consume).splitlines()
        assert first[-1] == f"1000 orders, {TOTAL} in total"
        assert [line.split(" orders so far, ")[0] for line in first[:-1]] == [str(n) for n in range(100, 1001, 100)]
        assert shell(consume) == "0 orders, 0 in total\n", "run it again, and it reads nothing"
        assert {"shardId-000000000000", "shardId-000000000001"} <= set(re.findall(r"shardId-\d{12}", shell(describe)))
        shell(produce)
        assert shell(consume).endswith(f"\n1000 orders, {TOTAL} in total\n"), "put more orders, and it reads only those"

        share_the_work(reader, place, in_terminal(flow), in_terminal(work))
        shell(consume)  # the unread output

        shown = shell(trouble)
        assert "Rate exceeded for shard" in shown, "the producer logs a warning"
        assert shown.endswith("1000 of 1000 delivered\n"), "every order is delivered"
        assert shell(consume).endswith(f"\n1000 orders, {TOTAL} in total\n")
        assert "1 passed" in shell(test)


def share_the_work(reader, place, flow, work):
    """Step 5 of the tutorial: a producer that keeps running, and two workers, one of which leaves."""
    flowing, first, second = (reader.home / f"{name}.txt" for name in ("flow", "first", "second"))
    with (
        reader.terminal(flow, flowing) as producer,
        reader.terminal(work, first) as leaves,
        reader.terminal(work, second) as stays,
    ):
        wait_until(
            lambda: sorted(owners(place).values()) == [1, 1], "each worker holds one of the two shards", first, second
        )
        wait_until(lambda: reads(first) and reads(second), "both print lines", first, second)
        press_ctrl_c(leaves)
        assert re.search(r"^\d{3,} orders, \d+ in total\n\Z", first.read_text(), re.MULTILINE), "it prints its total"
        wait_until(lambda: list(owners(place).values()) == [2], "the other worker has both shards", second)
        so_far = len(reads(second))
        wait_until(lambda: len(reads(second)) > so_far, "and goes on reading", second)
        wait_until(lambda: "1000 orders put\n" in flowing.read_text(), "the producer keeps running", flowing)
        press_ctrl_c(stays)
        press_ctrl_c(producer)
    assert re.search(r"^\d{3,} orders, \d+ in total\n\Z", second.read_text(), re.MULTILINE)
    assert "Traceback" not in flowing.read_text() + first.read_text() + second.read_text()


def reads(said):
    return re.findall(r"^\d+ orders so far, the last one from shardId-\d{12}$", said.read_text(), re.MULTILINE)


def owners(place):
    """Return how many leases each worker holds, from the group's file."""
    with closing(sqlite3.connect(place / "billing.db")) as database:
        rows = [json.loads(row) for (row,) in database.execute("select lease from leases")]
    return Counter(row["owner"] for row in rows if row.get("owner"))


def wait_until(holds, what, *said):
    give_up_at = time.monotonic() + 250
    while not holds():
        assert time.monotonic() < give_up_at, "\n".join([what, *(file.read_text() for file in said)])
        time.sleep(0.1)
