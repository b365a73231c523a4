"""Another live process with our worker_id is distinguished from a lost answer and from a restart."""

from dataclasses import replace

import pytest

from shardline.core.consumer.consumer_events import WorkerIdShared
from shardline.core.consumer.duplicate_workers import DuplicateWorkers
from shardline.model.lease import KEPT, Incarnation, Lease

ME = Incarnation("me", "this", 10.0)
TWIN = Incarnation("me", "that", 10.0)
OURS = Lease("s", 5, "me", incarnation=ME)
ITS = Lease("s", 5, "me", incarnation=TWIN)
SHARED = [WorkerIdShared("s", "me")]


@pytest.fixture
def duplicates():
    return DuplicateWorkers(ME)


def move(duplicates, row, times):
    for step in range(times + 1):
        duplicates.handle_row(replace(row, counter=row.counter + step))
    return duplicates.take_events()


@pytest.mark.parametrize(
    ("row", "ours"),
    [
        (OURS, True),
        (Lease("s", 5, "me"), True),
        (Lease("s", 5, "me", incarnation=Incarnation("you", "that", 10.0)), True),
        (replace(ITS, incarnation=TWIN._replace(id=KEPT)), True),
        (ITS, False),
        (Lease("s", 5, "you", incarnation=ME), False),
        (Lease("s", 5), False),
    ],
)
def test_and_tw2_which_rows_are_ours_to_take_at_once(duplicates, row, ours):
    assert duplicates.is_ours(row) is ours


def test_a_row_under_our_name_that_moves_twice_is_a_twins(duplicates):
    assert move(duplicates, ITS, 1) == []
    assert move(duplicates, ITS, 2) == SHARED
    assert move(duplicates, ITS, 9) == []  # reported before
    assert move(duplicates, replace(ITS, shard_id="t"), 9) == []
    third = replace(ITS, incarnation=TWIN._replace(id="third"))
    assert move(duplicates, third, 1) == []
    assert move(duplicates, third, 2) == SHARED


def test_rows_that_are_kept_for_a_restart_are_no_twins(duplicates):
    assert move(duplicates, replace(ITS, incarnation=TWIN._replace(id=KEPT)), 9) == []


def test_a_restart_after_a_kill_finds_rows_that_stand_still_or_move_once(duplicates):
    assert move(duplicates, ITS, 0) == []
    assert move(duplicates, replace(ITS, counter=6), 0) == []  # its last write arrived late
    for _ in range(5):
        assert move(duplicates, replace(ITS, counter=6), 0) == []


@pytest.mark.parametrize("row", [OURS, Lease("s", 5, "me"), Lease("s", 5, "you", incarnation=TWIN), Lease("s", 5)])
def test_what_is_ours_or_anothers_by_name_is_no_twins(duplicates, row):
    assert move(duplicates, row, 9) == []
    move(duplicates, ITS, 1)
    duplicates.handle_row(replace(row, counter=60))  # the lease changed hands: earlier observations do not count
    assert move(duplicates, replace(ITS, counter=70), 1) == []


def test_what_another_writes_in_our_name_is_not_ours_until_it_is_free(duplicates):
    duplicates.handle_contested("s")
    assert duplicates.take_events() == SHARED
    duplicates.handle_row(OURS)
    assert not duplicates.is_ours(OURS)
    duplicates.handle_taken("s")
    assert duplicates.is_ours(OURS)
    duplicates.handle_contested("s")
    duplicates.handle_row(Lease("s", 9, "you"))
    assert duplicates.is_ours(OURS)
