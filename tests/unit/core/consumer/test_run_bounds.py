"""When is a consumer ready, and when is a bounded run over?"""

from types import SimpleNamespace

import pytest

from shardline.core.clock import NEVER
from shardline.core.consumer.run_bounds import GroupFacts, OtherLease, RunBounds, ShardFacts, group_facts
from shardline.model.lease import Checkpoint, Lease
from shardline.model.position import SHARD_END

QUIET = ShardFacts(has_iterator=True, has_records=False, has_caught_up=True, has_ended=False)
ALONE = GroupFacts(is_ready=True, is_listed=True, others=())
OTHER = OtherLease(("s", "b"), has_other_holder=True, counter=7)


def bounds(*, until_latest=False, idle_timeout=None, max_leases=None, ready_at=100.0):
    made = RunBounds(until_latest=until_latest, idle_timeout=idle_timeout, max_leases=max_leases)
    if ready_at is not None:
        assert made.handle_facts([ALONE], [QUIET], ready_at)
    return made


@pytest.mark.parametrize(
    ("groups", "shards"),
    [
        ([ALONE, ALONE._replace(is_ready=False)], [QUIET]),
        ([ALONE], [QUIET, QUIET._replace(has_iterator=False)]),
    ],
)
def test_it_is_ready_when_every_group_and_every_shard_is(groups, shards):
    made = bounds(ready_at=None)
    assert made.is_awaited
    assert not made.handle_facts(groups, shards, 100.0)
    assert (made.is_ready, made.next_deadline(), made.is_open_ended) == (False, NEVER, False)
    assert made.handle_facts([ALONE, ALONE], [QUIET, QUIET], 101.0)
    assert (made.is_ready, made.is_exhausted, made.is_awaited, made.is_open_ended) == (True, False, False, True)


@pytest.mark.parametrize(
    "shard",
    [QUIET._replace(has_records=True), QUIET._replace(has_caught_up=False), QUIET._replace(has_ended=True)],
)
def test_until_latest_waits_for_records_for_the_newest_and_for_the_children(shard):
    made = bounds(until_latest=True)
    assert made.is_awaited
    assert not made.is_open_ended
    assert not made.handle_facts([ALONE], [QUIET, shard], 101.0)
    assert made.handle_facts([ALONE], [QUIET], 102.0)
    assert made.is_exhausted
    assert made.is_open_ended
    assert not made.handle_facts([ALONE], [QUIET], 103.0), "it is news once"


def test_until_latest_waits_for_shards_without_a_row():
    made = bounds(until_latest=True)
    assert not made.handle_facts([ALONE, ALONE._replace(is_listed=False)], [QUIET], 101.0)
    assert made.handle_facts([ALONE, ALONE], [QUIET], 102.0)


def test_a_worker_that_holds_all_it_may_does_not_wait_for_other_leases():
    made = bounds(until_latest=True, max_leases=2)
    group = ALONE._replace(others=[OTHER])
    assert not made.handle_facts([group], [QUIET], 101.0)
    assert made.handle_facts([group], [QUIET, QUIET], 102.0)


def test_idleness_is_over_at_its_deadline_however_sums_are_rounded():
    made = bounds(idle_timeout=0.2, ready_at=300.13107241970924)
    assert made.handle_facts([ALONE], [QUIET], made.next_deadline())


def test_the_facts_of_a_group_are_those_of_its_coordinator():
    rows = {
        "mine": Lease("mine", 3, "me"),
        "held": Lease("held", 4, "me"),
        "free": Lease("free", 5),
        "theirs": Lease("theirs", 6, "other"),
        "finished": Lease("finished", 7, checkpoint=Checkpoint(SHARD_END)),
    }
    graph = SimpleNamespace(covers=lambda found: found is rows)
    coordinator = SimpleNamespace(
        me="me",
        is_ready=True,
        held=SimpleNamespace(holdings=["held"]),
        view=SimpleNamespace(rows=rows),
        topology=SimpleNamespace(is_settled=True, graph=graph),
    )
    others = [
        OtherLease(("s", "mine"), has_other_holder=False, counter=3),
        OtherLease(("s", "free"), has_other_holder=False, counter=5),
        OtherLease(("s", "theirs"), has_other_holder=True, counter=6),
    ]
    assert group_facts("s", coordinator, {("s", "held"), ("t", "mine")}) == GroupFacts(
        is_ready=True, is_listed=True, others=others
    )
    coordinator.view = SimpleNamespace(rows={})
    assert not group_facts("s", coordinator, ()).is_listed
    assert not group_facts("s", coordinator, {("t", "held")}).is_ready, "its reader was not started yet"


def test_the_limit_of_leases_may_change():
    made = bounds(until_latest=True, max_leases=2)
    group = ALONE._replace(others=[OTHER])
    made.limit_leases(None)
    assert not made.handle_facts([group], [QUIET, QUIET], 101.0)
    made.limit_leases(1)
    assert made.handle_facts([group], [QUIET], 102.0)
