"""Runs the producer in simulated worlds: many seeds, with every oracle of ``producer_oracles``, and a check that the
seeds reached every interesting state.

To reproduce a failing seed, run ``make sim WORLD=producer SEED=k``. Seeds that found a bug are in ``past_seeds.txt``
and are always run.
"""

from pathlib import Path

import pytest
from ledger import Ledger
from producer_reached import STATES, Reached
from producer_world import World

from shardline.core.producer.verdicts import Rules

PAST = Path(__file__).with_name("past_seeds.txt")
CHUNK = 100
CHUNKS = 12
RARE = [918273297]  # worlds in which a lane is trusted again: one in a thousand


def past_seeds():
    lines = [line.partition(" ") for line in PAST.read_text().splitlines() if line and not line.startswith("#")]
    return [pytest.param(int(seed), id=f"{seed}: {found.strip()}") for seed, _, found in lines]


def run_chunk(chunk):
    """Run a chunk of seeds. Return the states that it did not reach."""
    reached = Reached()
    with reached.watching():
        for seed in [*range(chunk * CHUNK, (chunk + 1) * CHUNK), *(RARE if chunk == CHUNKS - 1 else [])]:
            try:
                World(seed, reached).run()
            except Exception as error:
                error.add_note(f"seed {seed}: make sim WORLD=producer SEED={seed}")
                raise
    return reached.missing()


@pytest.fixture
def ledger(run_directory):
    return Ledger(run_directory, "producer", run_chunk)


@pytest.mark.parametrize("seed", past_seeds())
def test_a_seed_that_once_found_something_finds_nothing(seed):
    World(seed).run()


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_whatever_goes_wrong_every_invariant_holds(chunk, ledger):
    ledger.missing_after(chunk)


def test_the_seeds_reached_every_rule_and_every_interesting_state(request, ledger):
    """Needs all chunks: a part of the seeds proves nothing about the rest."""
    ran = {item.name for item in request.session.items}
    wanted = {f"test_whatever_goes_wrong_every_invariant_holds[{chunk}]" for chunk in range(CHUNKS)}
    if not wanted <= ran:
        assert len(ledger.missing_after(0)) < (len(STATES) + len(Rules.ALL)) / 4
        return
    assert ledger.missing_after_all(range(CHUNKS)) == []


@pytest.mark.parametrize("seed", [0, 7, 28, 135])
def test_the_same_seed_gives_the_same_trace(seed):
    first, second = World(seed).run(), World(seed).run()
    assert first.trace
    assert first.trace == second.trace


def test_other_seeds_give_other_traces():
    assert World(1).run().trace != World(2).run().trace
