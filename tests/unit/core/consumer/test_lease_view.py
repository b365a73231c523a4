"""Tests of ``shardline.core.consumer.lease_view``."""

import math
from dataclasses import replace

import pytest

from shardline.core.consumer.lease_view import LeaseView
from shardline.model.lease import Checkpoint, Incarnation, Lease
from shardline.model.position import LATEST, SHARD_END

OWNED = Lease("s", counter=5, owner="other")
FREE = Lease("f")


@pytest.fixture
def view():
    view = LeaseView(10.0)
    view.handle_rows([OWNED, FREE], 99.0, 100.0)
    return view


def test_a_new_row_is_fresh_if_owned_and_available_if_not(view):
    assert not view.is_available(OWNED, 110.0)
    assert view.is_available(OWNED, 110.1)
    assert view.is_available(FREE, 100.0)
    assert view.age("s", 103.0) == 3.0


@pytest.mark.parametrize(
    ("row", "duration"),
    [
        (OWNED, 10.0),
        (replace(OWNED, incarnation=Incarnation(OWNED.owner, "1f", 60.0)), 60.0),
        (replace(OWNED, incarnation=Incarnation(OWNED.owner, "1f", 2.0)), 2.0),
        (replace(OWNED, incarnation=Incarnation("an earlier owner", "1f", 2.0)), 10.0),
        (replace(OWNED, checkpoint_owner="old", incarnation=Incarnation("old", "1f", 60.0)), 60.0),
        (replace(OWNED, checkpoint_owner="old", incarnation=Incarnation(OWNED.owner, "1f", 2.0)), 10.0),
    ],
)
def test_each_holder_is_judged_by_the_duration_that_it_states(view, row, duration):
    view.handle_rows([row], 99.0, 100.0)
    assert view.duration_of(row) == duration
    assert not view.is_available(row, 100.0 + duration)
    assert view.is_available(row, 100.1 + duration)


def test_a_finished_row_is_never_available(view):
    assert not view.is_available(replace(FREE, checkpoint=Checkpoint(SHARD_END)), 999.0)


def test_a_row_that_goes_before_it_is_finished_is_reported_once(view):
    assert not view.take_loss()
    view.handle_rows([FREE], 100.0, 101.0)
    assert view.take_loss()
    assert not view.take_loss()
    view.handle_written("f", None, 102.0)
    assert view.take_loss()
    view.handle_written("f", None, 102.0)
    assert not view.take_loss()


def test_when_the_group_began_is_remembered(view):
    assert view.begun_at == math.inf
    first = replace(FREE, checkpoint=Checkpoint(LATEST), latest_at=50.0)
    view.handle_rows([OWNED, first], 100.0, 101.0)
    view.handle_written("new", replace(first, shard_id="new", latest_at=60.0), 102.0)
    view.handle_rows([OWNED, FREE], 103.0, 104.0)
    assert view.begun_at == 50.0


def test_finished_rows_go_silently(view):
    done = replace(OWNED, checkpoint=Checkpoint(SHARD_END))
    view.handle_rows([done, FREE], 100.0, 101.0)
    view.handle_rows([FREE], 102.0, 103.0)
    assert not view.take_loss()


def test_a_scan_that_was_begun_before_our_write_was_answered_is_older(view):
    mine = replace(FREE, owner="me", counter=1)
    view.handle_written("f", mine, 101.0)
    view.handle_written("s", None, 101.0)
    view.handle_written("new", Lease("new"), 101.0)
    view.handle_rows([OWNED, FREE], 100.5, 101.5)
    assert view.rows == {"f": mine, "new": Lease("new")}
    view.handle_rows([OWNED, FREE], 102.0, 102.5)
    assert view.rows == {"f": FREE, "s": OWNED}


def test_how_long_a_lease_could_have_been_taken(view):
    assert view.available_for("f", 104.0) == 4.0
    assert view.available_for("s", 104.0) == 0.0
    view.handle_rows([OWNED, FREE], 110.5, 111.0)
    assert view.available_for("s", 113.0) == 2.0
    view.handle_rows([replace(OWNED, counter=6), FREE], 111.5, 112.0)
    assert view.available_for("s", 113.0) == 0.0
