"""How are rows changed?"""

import os
import signal

import pytest

from shardline.adapters.leases.memory import MemoryLeases
from shardline.cli.groups.apply_reset import carry_out
from shardline.cli.groups.reset_plan import Action, Step
from shardline.core.error_codes import Failure, FailureKind
from shardline.core.leases import CreateLease, RenewLease, ResetLease
from shardline.model.lease import Checkpoint, Lease
from shardline.model.position import LATEST

pytestmark = pytest.mark.anyio

SHARDS = ["s0", "s1", "s2"]


@pytest.fixture
def anyio_backend():
    return "asyncio"


@pytest.fixture(autouse=True)
def handlers():
    """Restore the signal handlers of the test run, which ``carry_out`` replaces for good."""
    before = {one: signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM)}
    yield
    for one, handler in before.items():
        signal.signal(one, handler)


class Store:
    """A store in memory. ``before`` is called with the number of each write, and may answer in its place."""

    def __init__(self, before=lambda _: None):
        self.inner = MemoryLeases("g", "s")
        self.before = before
        self.writes = []

    async def apply(self, operation):
        self.writes.append(operation)
        answer = self.before(len(self.writes))
        if isinstance(answer, list):  # applied, but the answer is lost
            await self.inner.apply(operation)
            (answer,) = answer
        return await self.inner.apply(operation) if answer is None else answer

    async def filled(self):
        for shard_id in SHARDS:
            await self.inner.apply(CreateLease(Lease(shard_id, counter=4, owner="w")))
        return self

    async def rows(self):
        return {row.shard_id: row for row in await self.inner.list_leases()}


async def steps_of(store):
    after = {name: Lease(name, checkpoint=Checkpoint(LATEST), latest_at=7.0) for name in SHARDS}
    return [Step(name, Action.RESET, row, after[name]) for name, row in (await store.rows()).items()]


def lost(*, maybe_received=True):
    return Failure(FailureKind.TRANSIENT, "Timeout", "no answer", maybe_received=maybe_received)


async def test_all_rows_are_changed():
    store = await Store().filled()
    outcome = await carry_out(store, await steps_of(store), force=False)
    assert (outcome.done, outcome.stopped_by, outcome.interrupted_by) == (SHARDS, None, None)
    for row in (await store.rows()).values():
        assert (row.counter, row.owner, row.latest_at) == (5, None, 7.0)


async def test_ctrl_c_ends_the_row_at_hand_and_begins_no_other():
    store = await Store(lambda number: os.kill(os.getpid(), signal.SIGINT) if number == 2 else None).filled()
    outcome = await carry_out(store, await steps_of(store), force=False)
    assert (outcome.done, outcome.stopped_by, outcome.interrupted_by) == (["s0", "s1"], "interrupted", 2)
    assert [row.counter for row in (await store.rows()).values()] == [5, 5, 4]
    os.kill(os.getpid(), signal.SIGINT)  # does not interrupt the report


async def test_who_writes_meanwhile_stops_it():
    store = await Store().filled()
    steps = await steps_of(store)
    await store.inner.apply(RenewLease("s1", "w", 4))
    outcome = await carry_out(store, steps, force=False)
    assert outcome.done == ["s0"]
    assert outcome.stopped_by == "another process wrote to the lease of s1 meanwhile: the group is alive"
    assert [row.counter for row in (await store.rows()).values()] == [5, 5, 4]
    assert (await store.rows())["s1"].owner == "w"


async def test_by_force_it_is_done_on_the_row_as_it_now_stands():
    store = await Store().filled()
    steps = await steps_of(store)
    await store.inner.apply(RenewLease("s1", "w", 4))
    outcome = await carry_out(store, steps, force=True)
    assert (outcome.done, outcome.stopped_by) == (SHARDS, None)
    assert [(row.counter, row.owner) for row in (await store.rows()).values()] == [(5, None), (6, None), (5, None)]


async def test_a_lease_that_never_stands_still_is_given_up():
    store = await Store().filled()
    steps = await steps_of(store)

    async def renewed(operation):
        row = (await store.rows())[operation.shard_id]
        await store.inner.apply(RenewLease(row.shard_id, "w", row.counter))
        return await store.inner.apply(operation)

    store.apply = renewed
    outcome = await carry_out(store, steps, force=True)
    assert outcome.done == []
    assert "faster than it can be written" in outcome.stopped_by


async def test_a_write_whose_answer_was_lost_is_known_by_its_effect():
    store = await Store(lambda number: [lost()] if number == 2 else None).filled()
    outcome = await carry_out(store, await steps_of(store), force=False)
    assert outcome.done == SHARDS
    assert [type(one) for one in store.writes] == [ResetLease] * 4
    assert store.writes[1] == store.writes[2]
    assert [row.counter for row in (await store.rows()).values()] == [5, 5, 5]


async def test_a_write_that_did_not_arrive_is_sent_again():
    store = await Store(lambda number: lost(maybe_received=False) if number == 1 else None).filled()
    assert (await carry_out(store, await steps_of(store), force=False)).done == SHARDS


@pytest.mark.parametrize(
    ("maybe_received", "uncertainty"), [(True, "; the last write may have been applied"), (False, "")]
)
async def test_a_failing_store_is_reported_with_the_changes_made_so_far(maybe_received, uncertainty):
    denied = Failure(FailureKind.DENIED, "Denied", "no", maybe_received=maybe_received)
    store = await Store(lambda number: denied if number == 2 else None).filled()
    outcome = await carry_out(store, await steps_of(store), force=False)
    assert outcome.done == ["s0"]
    assert outcome.stopped_by == f"the store failed: no{uncertainty}"
    assert outcome.interrupted_by is None
