"""Tests of ``shardline.core.consumer.release_on_exit``."""

from dataclasses import replace

import pytest

from shardline.core.clock import NEVER
from shardline.core.consumer.release_on_exit import ReleaseOnExit
from shardline.core.leases import (
    AskHandOver,
    CancelHandOver,
    CreateLease,
    FinishHandOver,
    Refused,
    ReleaseLease,
    TakeLease,
)
from shardline.model.lease import KEPT, Checkpoint, Fence, Incarnation, Lease
from shardline.model.position import SHARD_END

ASKED = Lease("s", counter=5, owner="me", checkpoint_owner="other")
GIVEN = replace(ASKED, checkpoint_owner=None, counter=6)
CANCEL = CancelHandOver("s", "me", "other")
RELEASE = ReleaseLease("s", "me", 6)
ASKED_AGAIN = replace(GIVEN, owner="third", checkpoint_owner="me")  # before we had begun
FINISH = FinishHandOver("s", "me", 6)


def farewell(*rows, held=()):
    one = ReleaseOnExit(Incarnation("me", "this", 10.0))
    one.handle_rows(rows, held)
    return one


@pytest.mark.parametrize(("row", "operation"), [(ASKED, CANCEL), (GIVEN, RELEASE), (ASKED_AGAIN, FINISH)])
def test_a_row_that_names_us_is_given_back(row, operation):
    one = farewell(row)
    assert not one.is_over
    assert one.next_deadline() == -NEVER
    assert one.poll_operation(["s"], 100.0) is None
    assert one.poll_operation([], 100.0) == operation
    assert one.is_over
    assert one.next_deadline() == NEVER
    assert one.poll_operation([], 100.0) is None


@pytest.mark.parametrize(
    "row",
    [
        Lease("s"),
        Lease("s", owner="other"),
        Lease("s", owner="other", checkpoint_owner="third"),
        replace(GIVEN, checkpoint=Checkpoint(SHARD_END)),
    ],
    ids=["nobody's", "another's", "others' hand-over", "finished"],
)
def test_others_are_left_alone(row):
    assert farewell(row).is_over


def test_what_is_held_is_let_go_of_elsewhere():
    assert farewell(GIVEN, held={"s"}).is_over


def test_what_was_handed_over_meanwhile_is_let_go_of():
    one = farewell(ASKED)
    one.poll_operation([], 100.0)
    one.handle_applied(CANCEL, Refused(GIVEN))
    assert one.poll_operation([], 100.0) == RELEASE
    one.handle_applied(RELEASE, Lease("s", counter=7))
    assert one.is_over


@pytest.mark.parametrize("answer", [Lease("s", counter=5, owner="other"), Refused(None), Refused(Lease("s"))])
def test_then_nothing_is_left_to_do(answer):
    one = farewell(ASKED)
    one.poll_operation([], 100.0)
    one.handle_applied(CANCEL, answer)
    assert one.is_over


@pytest.mark.parametrize(
    ("under_way", "undone"),
    [
        (AskHandOver("s", "me", "other"), CANCEL),
        (TakeLease("s", "me", replace(GIVEN, counter=5).fence), RELEASE),
        (CANCEL, CANCEL),
        (RELEASE, RELEASE),
        (FINISH, FINISH),
        (CreateLease(Lease("s")), None),
    ],
)
def test_what_failed_may_have_been_applied_and_is_undone_later(under_way, undone):
    one = ReleaseOnExit(Incarnation("me", "this", 10.0))
    one.handle_failure(under_way, 101.0)
    assert one.poll_operation([], 100.0) is None
    assert one.next_deadline() == (NEVER if undone is None else 101.0)
    assert one.poll_operation([], 101.0) == undone


@pytest.mark.parametrize("row", [GIVEN, ASKED_AGAIN])
def test_what_another_process_took_under_our_name_is_not_ours_to_give_back(row):
    assert farewell(replace(row, incarnation=Incarnation("me", "another", 10.0))).is_over
    assert not farewell(replace(row, incarnation=Incarnation("me", "this", 10.0))).is_over
    assert not farewell(replace(row, incarnation=Incarnation("other", "another", 10.0))).is_over


def test_a_take_whose_answer_was_lost_is_undone_at_its_token():
    one = ReleaseOnExit(Incarnation("me", "this", 10.0))
    one.handle_failure(TakeLease("s", "me", Fence(3, None, None), floor=1_000), 101.0)
    assert one.poll_operation([], 101.0) == ReleaseLease("s", "me", 1_000)


def test_for_one_lease_duration():
    one = farewell(ASKED)
    for now in (100.0, 104.0, 109.9):
        assert one.poll_operation([], now) == CANCEL
        one.handle_failure(CANCEL, now + 1.0)
    assert one.next_deadline() == 110.0
    assert one.poll_operation([], 110.0) is None
    assert one.is_over


KEPT_FOR_US = replace(GIVEN, incarnation=Incarnation("me", KEPT, 10.0))


@pytest.mark.parametrize(
    ("keeps", "row", "operation"),
    [
        (True, KEPT_FOR_US, None),
        (False, KEPT_FOR_US, RELEASE),
        (True, GIVEN, RELEASE),  # handed over to us, and never held
        (True, replace(KEPT_FOR_US, owner="third", checkpoint_owner="me"), FINISH),
    ],
)
def test_a_lease_that_an_earlier_life_kept_stays_kept_if_we_keep_leases(keeps, row, operation):
    one = ReleaseOnExit(Incarnation("me", "this", 10.0))
    one.keeps_leases = keeps
    one.handle_rows([row], ())
    assert one.poll_operation([], 100.0) == operation
