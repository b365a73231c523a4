"""Tests what a group guarantees about the holder of a lease: fencing tokens never go back, whatever the store has
forgotten; processes may share a worker_id, and a restart may look as if they did; owners may have different lease
durations. The tests use the group of ``tests/harness``.
"""

from dataclasses import replace

import pytest
from tests.harness.coordinator import LOST, A, Group, at, hold_one, names

from shardline.core.consumer.consumer_events import (
    HandOverAsked,
    LeaseGained,
    LeaseLost,
    LeaseReleased,
    WorkerIdShared,
)
from shardline.core.leases import AskHandOver, CommitCheckpoint, ReleaseLease, RenewLease, TakeLease
from shardline.model.lease import Lease

YEAR = 365 * 86_400.0


def tokens(*workers):
    """The tokens of one shard, in the order in which they were given out."""
    given = [(moment, event.grant.token) for worker in workers for moment, event in worker.events if is_gain(event)]
    return [token for _, token in sorted(given)]


def is_gain(event):
    return isinstance(event, LeaseGained) and event.shard_id == A


def kill(group, worker):
    """End a worker as kill -9 does."""
    group.workers.remove(worker)


# ---- tokens


def test_a_token_is_the_services_time_in_milliseconds():
    group, worker = hold_one(latest_at=1.7e9)
    assert tokens(worker) == [1_700_000_000_000]
    kill(group, worker)
    later = group.worker(latest_at=1.7e9 + 30.0)
    group.run(12.0)
    assert 1_700_000_040_000 <= tokens(later)[0] <= 1_700_000_042_000


def test_the_service_is_believed_when_it_says_another_time():
    group = Group()
    worker = group.worker(latest_at=1.6e9)
    worker.machine.handle_service_time(1.7e9, group.now)
    group.run(1.0)
    assert tokens(worker)[0] >= 1_700_000_000_000


@pytest.mark.parametrize("is_behind", [False, True])
def test_tokens_grow_though_the_store_comes_back_empty(is_behind):
    """This holds even if the clock is a year behind, because this worker has seen the tokens."""
    group, worker = hold_one(latest_at=1.7e9)
    group.run(20.0)
    group.rows.clear()
    if is_behind:
        worker.machine.handle_service_time(1.7e9 - YEAR, group.now)
    group.run(20.0)
    first, second = tokens(worker)
    assert A in worker.held
    assert second > first


def test_tokens_grow_for_who_comes_after_the_store_was_emptied():
    group, worker = hold_one(latest_at=1.7e9)
    group.run(20.0)
    kill(group, worker)
    group.rows.clear()
    fresh = group.worker(latest_at=1.7e9 + 49.0)  # the worker's clock is a second behind
    group.run(1.0)
    assert tokens(fresh) > tokens(worker)


def test_tokens_grow_though_the_store_is_restored_from_a_backup():
    group, first = hold_one(latest_at=1.7e9)
    backup = dict(group.rows)
    group.run(5.0)
    kill(group, first)
    second = group.worker(latest_at=1.7e9 - YEAR)  # the clock is far behind, but the row has a later token
    group.run(15.0)
    assert A in second.held
    group.rows.update(backup)
    third = group.worker(latest_at=1.7e9 + 20.0)
    group.run(40.0)
    given = tokens(first, second, third)
    assert len(given) >= 3
    assert given == sorted(set(given))


def test_who_holds_the_lease_when_the_store_is_set_back_commits_again_what_it_has_done():
    group, worker = hold_one()
    worker.read(A, 5)
    group.run(5.0)
    backup = dict(group.rows)
    worker.read(A, 9)
    group.run(5.0)
    assert group.rows[A].checkpoint == at(9)
    group.rows.update(backup)
    group.run(5.0)
    assert A in worker.held
    assert group.rows[A].checkpoint == at(9)
    assert len(group.done(CommitCheckpoint)) == 3
    group.run(20.0)
    assert len(group.done(CommitCheckpoint)) == 3


def test_renewals_move_the_counter_by_one():
    group, worker = hold_one(latest_at=1.7e9)
    group.run(30.0)
    renewals = len(group.done(RenewLease))
    assert renewals > 5
    assert group.rows[A].counter == tokens(worker)[0] + renewals


# ---- two processes under one name


def test_twins_leave_each_others_leases_alone_and_both_say_so():
    group = Group()
    first = group.worker("w")
    group.run(5.0)
    second = group.worker("w")
    group.run(60.0)
    assert (len(first.held), len(second.held)) == (4, 0)
    assert first.seen(LeaseLost) == []
    assert [event.worker_id for event in second.seen(WorkerIdShared)] == ["w"]
    assert first.seen(WorkerIdShared) == []  # the other process holds nothing yet
    group.rows[A] = replace(group.rows[A], owner=None, counter=group.rows[A].counter + 1)
    first.mute = True
    group.run(2.0)
    first.mute = False
    group.run(60.0)
    assert A in second.held
    assert len(first.held) == 3
    assert [event.worker_id for event in first.seen(WorkerIdShared)] == ["w"]


def test_of_twins_that_start_together_each_lease_is_one_ones():
    group = Group()
    twins = [group.worker("w") for _ in range(3)]
    group.run(60.0)
    held = [shard_id for twin in twins for shard_id in twin.held]
    assert sorted(held) == sorted(group.rows)
    for twin in twins:
        others = sum(len(other.held) for other in twins if other is not twin)
        assert bool(twin.seen(WorkerIdShared)) == bool(others)
        assert twin.seen(LeaseLost) == []


def test_a_checkpoint_is_moved_by_one_of_two_twins():
    group, first = hold_one("w")
    second = group.worker("w")
    for number in range(5, 60, 5):
        first.read(A, number)
        group.run(2.0)
    assert A not in second.held
    commits = [operation.checkpoint for _, operation in group.done(CommitCheckpoint)]
    assert commits == [at(number) for number in range(5, 60, 5)]


def test_a_worker_that_was_killed_and_restarted_has_its_leases_back_after_one_lease_duration():
    group = Group()
    worker = group.worker("w")
    group.run(20.0)
    kill(group, worker)
    again = group.worker("w")
    group.run(9.9)
    assert again.held == {}
    group.run(1.0)
    assert len(again.held) == 4
    assert again.seen(WorkerIdShared) == []


def test_the_last_write_of_a_worker_that_was_killed_may_come_late():
    group, worker = hold_one("w")
    group.run(20.0)
    kill(group, worker)
    again = group.worker("w")
    group.run(1.0)
    group.apply("w", RenewLease(A, "w", group.rows[A].counter))
    group.run(12.0)
    assert A in again.held
    assert again.seen(WorkerIdShared) == []


def test_a_take_whose_answer_was_lost_is_no_twin():
    group = Group()
    group.rows = {name: Lease(name) for name in names(0, 1, 2, 3)}
    worker = group.worker("w")
    worker.failing = LOST
    while not group.done(TakeLease):
        worker.failing = LOST if any(isinstance(one, TakeLease) for one in worker.outbox) else None
        worker.answer_all()
        group.now += 0.01
        worker.pump()
    assert worker.held == {}
    worker.failing = None
    group.run(3.0)
    assert len(worker.held) == 4
    group.run(30.0)
    assert worker.seen(WorkerIdShared) == worker.seen(LeaseLost) == []


def test_a_renewal_whose_answer_was_lost_is_no_twin():
    group, worker = hold_one("w")
    worker.failing = LOST
    group.run(5.0)
    worker.failing = None
    group.run(30.0)
    assert worker.seen(WorkerIdShared) == worker.seen(LeaseLost) == []


def test_a_scan_that_shows_a_write_of_ours_whose_answer_was_lost_shows_no_twin():
    group, worker = hold_one("w")
    worker.mute = True
    group.run(4.0)
    scan, renewal = sorted(worker.outbox, key=lambda one: isinstance(one, RenewLease))
    worker.answer(renewal, LOST)
    worker.answer(scan)
    worker.mute = False
    group.run(30.0)
    assert worker.seen(WorkerIdShared) == worker.seen(LeaseLost) == []


def test_a_store_restored_to_an_earlier_life_gives_the_lease_to_no_worker_at_once():
    group, first = hold_one("w", latest_at=1.7e9)
    backup = dict(group.rows)
    kill(group, first)
    second = group.worker("w", latest_at=1.7e9 + 30.0)
    group.run(15.0)
    assert A in second.held
    group.rows.update(backup)
    group.run(4.0)
    assert A not in second.held
    group.run(10.0)
    assert A in second.held
    assert second.seen(WorkerIdShared) == []
    given = tokens(first, second)
    assert len(given) == 3
    assert given == sorted(set(given))


def test_a_twin_that_names_no_incarnation_is_found_by_the_first_write_and_not_fought():
    """The twin has an older version: it believes a row that names it, and leaves our incarnation in place."""
    group, worker = hold_one("w")
    for _ in range(12):
        group.run(3.0)
        row = group.rows[A]
        group.rows[A] = replace(row, counter=row.counter + 1)
    assert A not in worker.held
    assert len(worker.seen(LeaseLost)) == len(worker.seen(WorkerIdShared)) == 1
    group.run(11.0)  # the process has ended
    assert A in worker.held


def test_a_paused_worker_whose_twin_took_over_loses_the_lease_and_does_not_take_it_back():
    group, first = hold_one("w")
    group.run(5.0)
    group.workers.remove(first)  # as SIGSTOP does
    second = group.worker("w")
    group.run(12.0)
    assert A in second.held
    group.workers.append(first)
    group.run(60.0)
    assert A in second.held
    assert A not in first.held
    assert len(first.seen(WorkerIdShared)) == 1


def test_a_twin_that_closes_lets_go_of_nothing_that_is_the_others():
    group = Group()
    first = group.worker("w")
    group.run(5.0)
    second = group.worker("w")
    group.run(5.0)
    other = group.worker("v")
    first.drains = False
    group.run(1.0)
    assert first.seen(HandOverAsked)  # one lease is being handed over: the other twin must not finish that
    held = dict(first.held)
    second.close()
    group.run(2.0)
    assert second.machine.is_closed
    assert first.held.keys() == held.keys()
    assert other.held == {}


# ---- owners of other lease durations


@pytest.mark.parametrize(("mine", "its"), [(10.0, 60.0), (60.0, 10.0), (2.0, 30.0), (3.0, 10.0)])
def test_no_lease_is_taken_from_a_live_worker_of_another_lease_duration(mine, its):
    group = Group()
    slow = group.worker("slow", lease_duration=its)
    group.run(10.0)
    group.worker("quick", lease_duration=mine)
    group.run(300.0)
    assert group.loads() == [2, 2]
    assert all(worker.seen(LeaseLost) == [] for worker in group.workers)
    assert len(slow.seen(LeaseGained)) == 4


def test_an_owner_that_drains_for_longer_than_we_would_has_its_own_lease_duration():
    group = Group()
    slow = group.worker("slow", lease_duration=60.0, hand_over_timeout=25.0)
    group.run(10.0)
    slow.drains = False
    group.worker("quick", lease_duration=10.0, hand_over_timeout=1.0)
    group.run(20.0)
    assert slow.seen(HandOverAsked)
    assert slow.seen(LeaseLost) == []
    assert len(slow.held) == 4
    group.run(60.0)
    assert slow.seen(LeaseLost) == []


def test_a_dead_worker_is_replaced_after_its_own_lease_duration():
    group = Group()
    dead = group.worker("dead", lease_duration=30.0)
    group.run(10.0)
    kill(group, dead)
    group.worker("alive", lease_duration=10.0)
    group.run(29.5)
    assert group.loads() == [0]
    group.run(2.0)
    assert group.loads() == [4]


def test_an_owner_that_states_none_is_judged_by_our_duration():
    group = Group()
    group.rows = {name: Lease(name, counter=5, owner="old") for name in names(0, 1, 2, 3)}
    group.worker("w", lease_duration=10.0)
    group.run(9.9)
    assert group.loads() == [0]
    group.run(2.0)
    assert group.loads() == [4]


@pytest.mark.parametrize(("kcl_failover", "after"), [(10.0, 30.0), (2.0, 14.0)])
def test_an_owner_on_a_kcls_table_that_states_none_is_judged_by_the_kcls_time(kcl_failover, after):
    """The lease duration of an earlier owner does not count: Java leaves it in the row."""
    group = Group()
    gone = group.worker("gone", lease_duration=1.0)
    group.run(3.0)
    kill(group, gone)
    group.rows = {name: replace(row, counter=5, owner="java-1") for name, row in group.rows.items()}
    group.worker("w", lease_duration=10.0, kcl_failover=kcl_failover)
    group.run(after - 0.1)
    assert group.loads() == [0]
    group.run(2.0)
    assert group.loads() == [4]


# ---- leases that are kept for a restart


def exit_of(group, worker, *, is_clean=True):
    """Let a worker exit in good order."""
    worker.machine.close(is_clean=is_clean)
    worker.pump()
    group.run(0.1)
    assert worker.machine.is_closed
    group.workers.remove(worker)


def keepers(**settings):
    """Two workers that keep their leases, with two shards each."""
    group = Group(keep_leases=True, **settings)
    workers = [group.worker(name) for name in "ab"]
    group.run(60.0)
    assert group.loads() == [2, 2]
    return group, *workers


def test_a_rolling_restart_moves_nothing():
    group, *workers = keepers()
    before = {worker.name: worker.numbers for worker in workers}
    for _ in range(3):
        for worker in [*workers]:
            exit_of(group, worker)
            group.run(8.0)
            workers.remove(worker)
            workers.append(group.worker(worker.name))
            group.run(3.0)
            assert {worker.name: worker.numbers for worker in workers} == before
    assert group.done(ReleaseLease, since=1_060.0) == group.done(AskHandOver, since=1_060.0) == []
    assert [worker.seen(WorkerIdShared) for worker in workers] == [[], []]


def test_a_worker_that_keeps_its_leases_has_committed_and_says_that_they_are_gone():
    group, worker = hold_one(keep_leases=True)
    grant = worker.held[A].grant
    worker.read(A, 5)
    group.run(0.1)
    worker.read(A, 6)
    exit_of(group, worker)
    assert (group.rows[A].checkpoint, group.rows[A].owner) == (at(6), "me")
    assert group.rows[A].is_kept_by("me")
    assert not grant.held
    assert len(worker.seen(LeaseReleased)) == 1
    again = group.worker("me")
    group.run(0.6)
    assert A in again.held
    assert again.held[A].grant.token > grant.token


def test_a_kept_lease_is_taken_by_others_after_a_lease_duration():
    group, first, second = keepers()
    exit_of(group, first)
    group.run(9.5)
    assert len(second.held) == 2
    group.run(3.0)
    assert len(second.held) == 4


def test_a_worker_that_joins_does_not_ask_for_kept_leases():
    group, first, second = keepers()
    exit_of(group, first)
    began = group.now
    group.worker("c")
    group.run(5.0)
    assert group.done(AskHandOver, began) == []
    first_again = group.worker("a")
    group.run(0.1)
    assert (len(first_again.held), len(second.held)) == (2, 2)
    group.run(10.0)
    assert group.loads() == [1, 1, 2]  # the new worker asks the restarted one


def test_an_unclean_close_releases_the_leases():
    group, worker = hold_one(keep_leases=True)
    exit_of(group, worker, is_clean=False)
    assert group.rows[A].owner is None


def test_a_worker_that_exits_before_it_has_its_kept_leases_leaves_them_kept():
    group, worker = hold_one(keep_leases=True)
    exit_of(group, worker)
    again = group.sleeper("me")
    again.mute = True
    again.pump()
    (scan,) = again.outbox
    again.machine.close()
    again.mute = False
    again.answer(scan)
    group.run(0.1)
    assert again.machine.is_closed
    assert group.rows[A].is_kept_by("me")


def test_a_worker_that_keeps_no_leases_gives_back_what_its_earlier_life_kept():
    group, worker = hold_one(keep_leases=True)
    exit_of(group, worker)
    again = group.sleeper("me", keep_leases=False)
    again.mute = True
    again.pump()
    (scan,) = again.outbox
    again.machine.close()
    again.mute = False
    again.answer(scan)
    group.run(0.1)
    assert group.rows[A].owner is None


def test_a_lease_that_another_worker_asked_for_is_handed_over_and_not_kept():
    group, worker = hold_one(keep_leases=True)
    worker.drains = False
    group.apply("other", AskHandOver(A, "other", "me"))
    exit_of(group, worker)
    assert group.rows[A].holder == "other"


def test_a_request_that_comes_just_before_the_lease_is_kept_is_granted():
    group, worker = hold_one(keep_leases=True)
    worker.mute = True
    worker.machine.close()
    worker.pump()
    (keep,) = worker.waiting(TakeLease)
    assert keep.incarnation.is_kept
    group.apply("other", AskHandOver(A, "other", "me"))
    worker.mute = False
    group.run(0.1)
    assert group.rows[A].holder == "other"


def test_a_lost_answer_to_keeping_a_lease_is_no_loss():
    group, worker = hold_one(keep_leases=True)
    worker.close()
    (keep,) = worker.outbox
    worker.answer(keep, LOST)
    group.run(5.0)
    assert worker.machine.is_closed
    assert group.rows[A].is_kept_by("me")
    assert (worker.seen(LeaseLost), len(worker.seen(LeaseReleased))) == ([], 1)


def test_a_surplus_lease_is_released_and_not_kept():
    group, first, second = keepers()
    first.drains = False
    first.machine.limit_leases(1, group.now)
    exit_of(group, first)
    kept = [row for row in group.rows.values() if row.is_kept_by("a")]
    assert len(kept) == 1
    group.run(3.0)
    assert len(second.held) == 3


def test_live_twins_that_keep_leases_are_still_found():
    group, first, _ = keepers()
    twin = group.worker("a")
    group.run(30.0)
    assert twin.held == {}
    assert first.seen(LeaseLost) == []
    assert [event.worker_id for event in twin.seen(WorkerIdShared)] == ["a"]
    exit_of(group, first)
    group.run(2.0)
    assert len(twin.held) == 2
