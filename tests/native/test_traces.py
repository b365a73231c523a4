"""Does a simulated world take the same course in both forms?"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from shardline._speedups import native

pytestmark = pytest.mark.skipif(native is None, reason="compares the compiled form with the pure one")

ROOT = Path(__file__).parents[2]
PROBE = """
import re, sys
from hashlib import sha256
sys.path[:0] = ["tests/sim", "."]
import keep_assertions
import interrupting
import shardline
from shardline._speedups import pure_twins
import shardline.core.producer.intake
interrupting.ATOMIC.add(pure_twins["Room"].accept.__code__)
print(shardline.implementation)
from producer_world import World
from fleet_world import FleetWorld
kind, first, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
for seed in range(first, first + count):
    world = World(seed).run() if kind == "producer" else FleetWorld(seed).run()
    trace = re.sub(" at 0x[0-9a-f]+", "", repr(world.trace))
    print(seed, len(world.trace), sha256(trace.encode()).hexdigest())
"""


def traces(form, *arguments):
    settings = os.environ | {"SHARDLINE_PURE": "1" if form == "pure" else "0", "PYTHONHASHSEED": "0"}
    command = [sys.executable, "-c", PROBE, *map(str, arguments)]
    done = subprocess.run(command, cwd=ROOT, env=settings, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    first, *lines = done.stdout.splitlines()
    assert first == form
    return lines


@pytest.mark.parametrize(("kind", "first", "count"), [("producer", 1, 12), ("fleet", 1, 2)])
def test_the_same_seed_gives_the_same_trace_in_both_forms(kind, first, count):
    compiled = traces("native", kind, first, count)
    assert len(compiled) == count
    assert compiled == traces("pure", kind, first, count)
