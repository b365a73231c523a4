"""Does the quick start lead to where it says, block by block, as a newcomer would type it?

The programs are saved under the names that they have on the page, the commands run in one shell after the other, in the
order of the page. Only the port is another (a free one), and nothing is installed: this environment has it all.
"""

import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import time
import tomllib
from collections import Counter
from contextlib import closing
from pathlib import Path
from runpy import run_path

import pytest

pages = run_path(str(Path(__file__).with_name("pages.py")))
PAGE = "docs/quickstart.md"
pytestmark = pytest.mark.timeout(400)  # a dozen processes, one after the other
PROGRAMS = {re.match(r"# (\w+\.py)\n", block)[1]: block for block in pages["blocks_of"](PAGE, "python")}
INSTALL, SERVE, EXPORT, *COMMANDS = pages["blocks_of"](PAGE, "sh")
BIN = Path(sys.executable).parent


def test_the_page_has_no_other_kind_of_block():
    assert pages["languages_of"](PAGE) == {"python", "sh"}
    assert PROGRAMS.keys() == {"produce.py", "consume.py", "test_orders.py"}


def test_what_is_installed_exists():
    [extra] = re.findall(r"pip install '\.\[(\w+)\]'", INSTALL)
    project = tomllib.loads(pages["text_of"]("pyproject.toml"))["project"]
    assert extra in project["optional-dependencies"]
    shown = re.findall(r"one of `(\w+)`, `(\w+)`, `(\w+)`", pages["prose_of"](PAGE))[0]
    assert set(shown) <= project["optional-dependencies"].keys()


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A directory with the programs, and a server that was started as the page says."""
    directory = tmp_path_factory.mktemp("quickstart")
    for name, program in PROGRAMS.items():
        (directory / name).write_text(program)
    environment = {"PATH": f"{BIN}:{os.environ['PATH']}", "HOME": str(directory), "PYTHONUNBUFFERED": "1"}
    command = [str(BIN / "python"), "-m", *SERVE.split(), "--port", "0"]
    process = subprocess.Popen(command, cwd=directory, env=environment, stdout=subprocess.PIPE, text=True)
    try:
        [url] = re.findall(r"http://127\.0\.0\.1:\d+", process.stdout.readline())
        yield directory, environment, url
    finally:
        process.kill()
        process.communicate()


@pytest.fixture
def shell(place):
    """Runs a block of the page as it stands, after the block of exports; gives what it printed."""
    directory, environment, url = place

    def run(block):
        script = f"set -eu\n{EXPORT}\n{block}".replace("http://127.0.0.1:4567", url)
        ended = subprocess.run(
            ["sh", "-c", script],
            cwd=directory,
            env=environment,
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
        assert ended.returncode == 0, ended.stderr
        return ended.stdout

    return run


def test_the_commands_of_the_page_one_after_the_other(shell, place):
    produce, look, consume, describe, trouble, test = COMMANDS
    told = re.compile(r"the last one lies in shardId-00000000000[01] at \d{56}\n1000 of 1000 delivered\n")
    total = sum(number % 90 for number in range(1000))

    assert told.fullmatch(shell(produce))
    assert re.fullmatch(r'(customer-\d+\t\{"order": \d+, "amount": \d+\}\n){3}', shell(look))
    first = shell(consume).splitlines()
    assert first[-1] == f"1000 orders, {total} in all"
    assert [line.split(" orders so far, ")[0] for line in first[:-1]] == [str(n) for n in range(100, 1001, 100)]
    assert shell(consume) == "0 orders, 0 in all\n", "run it again: no orders"
    assert {"shardId-000000000000", "shardId-000000000001"} <= set(re.findall(r"shardId-\d{12}", shell(describe)))
    shell(produce)
    assert shell(consume).endswith(f"\n1000 orders, {total} in all\n"), "put more, and it reads those"

    printed = shell(trouble)
    assert told.search(printed), "everything is delivered all the same"
    assert shell(consume).endswith(f"\n1000 orders, {total} in all\n")

    assert "1 passed" in shell(test)


def test_two_share_the_shards_and_one_takes_over(shell, place):
    """What step 5 says, with two that never end by themselves."""
    directory, _, url = place
    script = f"{EXPORT}\nexec python consume.py".replace("http://127.0.0.1:4567", url)
    said = [directory / f"worker-{number}.out" for number in range(2)]
    workers = [start(script, place, output) for output in said]
    try:
        wait_until(lambda: set(owners(directory).values()) == {1}, "each has one of the two shards")
        shell(COMMANDS[0])  # put something
        wait_until(lambda: all("orders so far" in output.read_text() for output in said), "each reads its part")
        workers[0].send_signal(signal.SIGINT)
        assert workers[0].wait(timeout=60) == 0
        assert re.search(r"^\d{3,} orders, \d+ in all\n\Z", said[0].read_text(), re.MULTILINE), "it prints its total"
        wait_until(lambda: list(owners(directory).values()) == [2], "the other has both")
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()


def start(script, place, output):
    """A process that goes on; all that it says goes to a file."""
    directory, environment, _ = place
    with output.open("w") as file:
        return subprocess.Popen(["sh", "-c", script], cwd=directory, env=environment, stdout=file, stderr=file)


def owners(directory):
    """How many leases each worker holds, as the group's file says."""
    with closing(sqlite3.connect(directory / "billing.db")) as database:
        rows = [json.loads(row) for (row,) in database.execute("select lease from leases")]
    return Counter(row["owner"] for row in rows if row.get("owner"))


def wait_until(holds, what):
    give_up_at = time.monotonic() + 100
    while not holds():
        assert time.monotonic() < give_up_at, what
        time.sleep(0.1)
