"""Is a group alive?"""

from dataclasses import replace

import anyio
import click
import pytest

from shardline.adapters.leases.memory import MemoryLeases
from shardline.cli.groups.group_store import Watch, require_quiet, watch_groups
from shardline.core.leases import AskHandOver, CreateLease, DeleteLease, RenewLease
from shardline.model.lease import Checkpoint, Incarnation, Lease
from shardline.model.position import SHARD_END

pytestmark = pytest.mark.anyio

HELD = Lease("s0", counter=4, owner="w")
FREE = Lease("s1", counter=2)
ENDED = Lease("s2", counter=9, owner="w", checkpoint=Checkpoint(SHARD_END))


@pytest.fixture
def anyio_backend():
    return "asyncio"


def rows(*leases):
    return {lease.shard_id: lease for lease in leases}


def renewed(lease):
    return RenewLease(lease.shard_id, lease.holder, lease.counter).written(lease)


def test_whose_counter_moves_is_alive():
    seen = Watch(rows(HELD, FREE))
    assert (seen.is_alive, seen.is_settled, seen.holders) == (None, False, {"w": False})
    seen.update(rows(renewed(HELD), FREE))
    assert (seen.is_alive, seen.is_settled, seen.holders, seen.judgement) == (True, True, {"w": True}, "alive")


@pytest.mark.parametrize(
    "after",
    [rows(FREE), rows(HELD, FREE, Lease("new")), rows(AskHandOver("s0", "x", "w").written(HELD), FREE)],
    ids=["a row went", "a row came", "a hand-over"],
)
def test_whatever_changes_is_life(after):
    seen = Watch(rows(HELD, FREE))
    seen.update(after)
    assert seen.is_alive


def test_who_stands_still_is_silent_and_not_dead():
    seen = Watch(rows(HELD, FREE))
    seen.update(rows(HELD, FREE))
    seen.seconds = 4.0
    assert (seen.is_alive, seen.judgement) == (None, "silent for 4 s")


def test_the_owner_of_what_is_finished_says_nothing():
    seen = Watch(rows(FREE, ENDED))
    assert (seen.is_alive, seen.is_settled, seen.held, seen.judgement) == (False, True, {}, "no owner")


def test_during_a_hand_over_the_old_owner_holds_it():
    seen = Watch(rows(Lease("s0", owner="next", checkpoint_owner="old")))
    assert seen.holders == {"old": False}


class Moving:
    """A store whose holder renews between every two reads."""

    scan_interval = 0.01

    def __init__(self, *leases, moves=True):
        self.inner = MemoryLeases("g", "s", dict(rows(*leases)))
        self.moves, self.looks = moves, 0

    async def list_leases(self):
        self.looks += 1
        if self.moves and self.looks % 2 == 0:
            row = (await self.inner.list_leases())[0]
            await self.inner.apply(RenewLease(row.shard_id, row.holder, row.counter))
        return await self.inner.list_leases()


async def test_watching_ends_when_there_is_nothing_more_to_learn():
    store = Moving(HELD, FREE)
    (seen,) = await watch_groups([store], 1_000.0)
    assert seen.is_alive
    (seen,) = await watch_groups([Moving(FREE, moves=False)], 1_000.0)
    assert (seen.is_alive, seen.seconds) == (False, 0.0)


async def test_silence_is_watched_for_as_long_as_was_said():
    store = Moving(HELD, moves=False)
    (seen,) = await watch_groups([store], 0.2)
    assert seen.seconds >= 0.2
    assert seen.is_alive is None
    assert store.looks > 3


async def test_who_moves_is_named_in_the_refusal():
    with pytest.raises(click.ClickException, match="the group is alive: w wrote"):
        await require_quiet(Moving(HELD, FREE), 1_000.0)
    assert await require_quiet(Moving(HELD, moves=False), 0.1) == rows(HELD)


async def test_a_group_is_watched_for_as_long_as_its_owners_may_be_silent():
    slow = replace(HELD, incarnation=Incarnation(HELD.owner, "1f", 0.3))
    store = Moving(slow, moves=False)
    began_at = anyio.current_time()
    assert await require_quiet(store, 0.05) == rows(slow)
    assert anyio.current_time() - began_at >= 0.3
    (seen,) = await watch_groups([store], 0.05)  # a command that only reads does not wait longer than requested
    assert seen.seconds < 0.3


async def test_a_group_that_vanishes_meanwhile_is_alive_too():
    store = Moving(HELD, moves=False)

    async def list_leases():
        found = await store.inner.list_leases()
        await store.inner.apply(DeleteLease("s0", 4))
        return found

    store.list_leases = list_leases
    with pytest.raises(click.ClickException, match="another process wrote"):
        await require_quiet(store, 1_000.0)
    assert await store.inner.apply(CreateLease(HELD)) == HELD
