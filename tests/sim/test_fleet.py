"""Runs whole fleets in simulated worlds: many seeds, with every oracle of ``fleet_oracles``, and a check that the seeds
reached every interesting state.

To reproduce a failing seed, run ``make sim SEED=k``. Seeds that found a bug are in ``past_fleet_seeds.txt`` and are
always run.
"""

from pathlib import Path

import pytest
from fleet_reached import STATES, Reached
from fleet_world import FleetWorld
from ledger import Ledger
from simulate import tell

PAST = Path(__file__).with_name("past_fleet_seeds.txt")
CHUNK = 50
CHUNKS = 10


def past_seeds():
    lines = [line.partition(" ") for line in PAST.read_text().splitlines() if line and not line.startswith("#")]
    return [pytest.param(int(seed), id=f"{seed}: {found.strip()}") for seed, _, found in lines]


# States that fewer than one world in 500 reaches. tests/machines/test_consumer_changes.py shortens a retention on purpose.
RARE = {"retention shortened under a reader that lags: told"}


def run(seed, reached=None, *, polls_only=False):
    try:
        return FleetWorld(seed, reached, polls_only=polls_only).run()
    except Exception as error:
        error.add_note(f"seed {seed}: make sim SEED={seed}")
        raise


def run_chunk(chunk):
    """Run a chunk of seeds. Return the states that it did not reach."""
    reached = Reached()
    for seed in range(chunk * CHUNK, (chunk + 1) * CHUNK):
        run(seed, reached)
    return reached.missing()


@pytest.fixture
def ledger(run_directory):
    return Ledger(run_directory, "fleet", run_chunk)


@pytest.mark.parametrize("seed", past_seeds())
def test_a_seed_that_once_found_something_finds_nothing(seed):
    run(seed)
    run(seed, polls_only=True)  # most of these seeds are older than subscriptions


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_whatever_goes_wrong_every_promise_is_kept(chunk, ledger):
    ledger.missing_after(chunk)


def test_the_seeds_reached_every_interesting_state(request, ledger):
    """Needs all chunks: a part of the seeds proves nothing about the rest."""
    ran = {item.name for item in request.session.items}
    wanted = {f"test_whatever_goes_wrong_every_promise_is_kept[{chunk}]" for chunk in range(CHUNKS)}
    if not wanted <= ran:
        assert len(ledger.missing_after(0)) < len(STATES) / 4
        return
    assert set(ledger.missing_after_all(range(CHUNKS))) <= RARE


@pytest.mark.parametrize("seed", [0, 3, 28, 135])
def test_the_same_seed_tells_the_same_story(seed):
    first, second = list(tell(FleetWorld(seed).run())), list(tell(FleetWorld(seed).run()))
    assert len(first) > 100
    assert first == second


def test_other_seeds_tell_other_stories():
    assert FleetWorld(1).run().trace != FleetWorld(2).run().trace
