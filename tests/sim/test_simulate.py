"""Does the command of the simulation do what it was asked to, or print why it does not?"""

import gc
import os
import subprocess
import sys
import weakref
from pathlib import Path

import producer
import pytest
import simulate
from fleet_world import FleetWorld
from producer_world import World

SCRIPT = Path(simulate.__file__)


def fail(world):
    raise AssertionError("planted")


@pytest.fixture
def told(monkeypatch):
    """Return the output of simulations in which every world fails."""
    lines = []
    for module in (simulate, producer):
        monkeypatch.setattr(module, "say", lambda *words: lines.append(" ".join(map(str, words))))
    monkeypatch.setattr(FleetWorld, "run", fail)
    monkeypatch.setattr(World, "run", fail)
    return lines


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("--seeds 0", "'0' is no number of seeds: it is a whole number, 1 or more"),
        ("--seeds -1", "'-1' is no number of seeds"),
        ("--hours 0", "'0' is no time: it is a number of hours above 0, and finite"),
        ("--hours -1", "'-1' is no time"),
        ("--hours nan", "'nan' is no time"),
        ("--hours inf", "'inf' is no time"),
        ("--hours soon", "'soon' is no time"),
        ("--seed 3 --seeds 4", "--seeds: not allowed with argument --seed"),
        ("--seed 3 --seeds 100", "--seeds: not allowed with argument --seed"),
        ("--seed 3 --first 4", "--first goes with many seeds"),
        ("--world producer --hours 1", "--hours goes with worlds of fleets"),
    ],
)
def test_what_makes_no_sense_is_refused(line, problem, capsys):
    with pytest.raises(SystemExit) as error:
        simulate.main(line.split())
    assert error.value.code == 2
    assert problem in capsys.readouterr().err


def test_a_survey_that_failed_says_how_to_see_it_again(told):
    assert simulate.main(["--seeds", "2", "--first", "8"]) == 1
    assert "replay: make sim SEED=8" in "\n".join(told)
    assert simulate.main(["--seeds", "2", "--first", "8", "--world", "producer"]) == 1
    assert "replay: make sim WORLD=producer SEED=8" in "\n".join(told)


def test_so_does_a_soak(told, tmp_path, monkeypatch):
    monkeypatch.setattr(simulate, "REPORTS", tmp_path)
    assert simulate.main(["--hours", "0.00001", "--first", "8"]) == 1
    assert "replay: make sim SEED=8" in told[0]
    assert told[0] in (tmp_path / "report.md").read_text()


def test_one_who_has_read_enough_sees_no_traceback():
    read_end, write_end = os.pipe()
    # Before the first line, because the pipe may hold a short trace as a whole before its reader closes it.
    os.close(read_end)
    with os.fdopen(write_end, "w") as nowhere:
        line = [sys.executable, str(SCRIPT), "--seed", "7"]
        done = subprocess.run(line, stdout=nowhere, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (141, "")


def test_a_world_that_has_ended_leaves_nothing_behind():
    """Otherwise a soak would fill the memory: a world has about a megabyte."""
    worlds = []
    for seed in range(30):
        world = FleetWorld(seed)
        world.run()
        worlds.append(weakref.ref(world))
        del world
    gc.collect()
    assert [seed for seed, world in enumerate(worlds) if world() is not None] == []
