"""Does a fleet of real processes survive the drills? Each drill is one process: see drill.py."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

DRILL = Path(__file__).with_name("drill.py")
AT_A_TIME = 4  # they mostly wait
LIMIT = 300.0  # three attempts: see standstill.py

# The slowest first. Drills that are not listed here take too long for CI: ``make drill`` runs them all.
CASES = [
    ("rolling-restart", "sqlite"),
    ("balance", "sqlite"),
    ("kill-9", "dynamodb"),
    ("slow-store", "redis"),
    ("network-faults", "sqlite"),
    ("slow-handler", "sqlite"),
    ("store-full", "redis"),
    ("full-buffer", "sqlite"),
    ("pause", "sqlite"),
    ("store-down", "sqlite"),
    ("kill-9", "redis"),
    ("kill-9", "sqlite"),
    ("kill-9-fan-out", "sqlite"),
    ("cut-fan-out", "sqlite"),
    ("reshard", "sqlite"),
    ("reshard-storm", "sqlite"),
    ("clock-jumps", "sqlite"),
    ("overdue", "sqlite"),
    ("blocked-loop", "sqlite"),
    ("many-shards", "sqlite"),
    ("poison", "sqlite"),
    ("sigterm", "sqlite"),
    ("sigterm", "dynamodb"),
    ("poison-stops", "sqlite"),
    ("trimmed", "sqlite"),
    ("odd-data", "sqlite"),
]


def run(name, store):
    command = [sys.executable, str(DRILL), name, "--store", store]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    return subprocess.run(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=LIMIT,
        env=environment,
        check=False,
    )


@pytest.fixture(scope="module")
def started(request):
    """The requested drills, running in parallel."""
    wanted = [item.callspec.params for item in request.session.items if item.fspath == request.path]
    with ThreadPoolExecutor(AT_A_TIME) as pool:
        futures = {(one["name"], one["store"]): pool.submit(run, one["name"], one["store"]) for one in wanted}
        try:
            yield futures
        finally:
            pool.shutdown(cancel_futures=True)


@pytest.mark.parametrize(("name", "store"), CASES)
def test_the_fleet_comes_through(name, store, started):
    ended = started[name, store].result()
    assert ended.returncode == 0, ended.stdout
