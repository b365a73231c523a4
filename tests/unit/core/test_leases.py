"""When is each write to a lease allowed, and what does it do?"""

from dataclasses import replace

import pytest

from shardline.core.leases import (
    AskHandOver,
    CancelHandOver,
    CommitCheckpoint,
    CreateLease,
    DeleteLease,
    FinishHandOver,
    Refused,
    ReleaseLease,
    RenewLease,
    ResetLease,
    TakeLease,
    WriteChildren,
    apply,
    apply_to,
    landed,
)
from shardline.errors import UsageError
from shardline.model.hashing import HashRange
from shardline.model.lease import Checkpoint, Fence, Incarnation, Lease
from shardline.model.position import LATEST, SHARD_END, at_sequence_number

SHARD = "shardId-000000000000"
FREE = Lease(SHARD, counter=4)
HELD = Lease(SHARD, counter=4, owner="a", owner_switches=2, throughput=1.0)
ASKED = Lease(SHARD, counter=4, owner="b", checkpoint_owner="a")
ENDED = replace(HELD, checkpoint=Checkpoint(SHARD_END))
FIVE = Checkpoint(at_sequence_number("5"))

RENEW = RenewLease(SHARD, "a", 4)
COMMIT = CommitCheckpoint(SHARD, "a", 4, FIVE)
ASK = AskHandOver(SHARD, "b", "a")
CANCEL = CancelHandOver(SHARD, "b", "a")
FINISH = FinishHandOver(SHARD, "a", 4)
RELEASE = ReleaseLease(SHARD, "a", 4)
CHILDREN = WriteChildren(SHARD, frozenset({"x", "y"}))
DELETE = DeleteLease(SHARD, 4)
CREATE = CreateLease(FREE)
A = Incarnation("a", "first", 10.0)
C = Incarnation("c", "other", 60.0)


def reset(row):
    return ResetLease(SHARD, row.fence, FIVE)


def take(row, by="c"):
    return TakeLease(SHARD, by, row.fence)


ALLOWED = {
    "create": (None, CREATE, FREE),
    "renew": (HELD, RENEW, replace(HELD, counter=5)),
    "renew with a handling time": (HELD, replace(RENEW, handling=0.3), replace(HELD, counter=5, handling=0.3)),
    "renew with a throughput": (HELD, replace(RENEW, throughput=2.00000049), replace(HELD, counter=5, throughput=2.0)),
    "renew while draining": (ASKED, RENEW, replace(ASKED, counter=5)),
    "renew at the end": (ENDED, RENEW, replace(ENDED, counter=5)),
    "take what is free": (FREE, take(FREE), replace(FREE, counter=5, owner="c", owner_switches=1)),
    "take from another": (HELD, take(HELD), replace(HELD, counter=5, owner="c", owner_switches=3)),
    "take one's own again": (HELD, take(HELD, "a"), replace(HELD, counter=5)),
    "take amid a hand-over": (ASKED, take(ASKED), Lease(SHARD, counter=5, owner="c", owner_switches=1)),
    "take as the one that asked": (ASKED, take(ASKED, "b"), Lease(SHARD, counter=5, owner="b", owner_switches=1)),
    "take back amid a hand-over": (ASKED, take(ASKED, "a"), Lease(SHARD, counter=5, owner="a")),
    "take, and say who one is": (
        replace(HELD, incarnation=A),
        replace(take(HELD), incarnation=C),
        replace(HELD, counter=5, owner="c", owner_switches=3, incarnation=C),
    ),
    "take, and say nothing": (
        replace(HELD, incarnation=A),
        take(HELD),
        replace(HELD, counter=5, owner="c", owner_switches=3, incarnation=A),
    ),
    "take with a floor below": (
        FREE,
        replace(take(FREE), floor=4),
        replace(FREE, counter=5, owner="c", owner_switches=1),
    ),
    "renew what one took": (replace(HELD, incarnation=A), RENEW, replace(HELD, counter=5, incarnation=A)),
    "ask one that said who it is": (
        replace(HELD, incarnation=A),
        ASK,
        replace(HELD, owner="b", checkpoint_owner="a", incarnation=A),
    ),
    "finish, and say no more": (
        replace(ASKED, incarnation=A),
        FINISH,
        Lease(SHARD, counter=5, owner="b", owner_switches=1),
    ),
    "release, and say no more": (replace(HELD, incarnation=A), RELEASE, replace(HELD, counter=5, owner=None)),
    "reset what one took": (
        replace(HELD, incarnation=A),
        reset(HELD),
        replace(HELD, counter=5, owner=None, checkpoint=FIVE, owner_switches=0),
    ),
    "ask": (HELD, ASK, replace(HELD, owner="b", checkpoint_owner="a")),
    "call off": (ASKED, CANCEL, replace(ASKED, owner="a", checkpoint_owner=None)),
    "finish": (ASKED, FINISH, Lease(SHARD, counter=5, owner="b", owner_switches=1)),
    "release": (HELD, RELEASE, replace(HELD, counter=5, owner=None)),
    "release at the end": (ENDED, RELEASE, replace(ENDED, counter=5, owner=None)),
    "commit": (HELD, COMMIT, replace(HELD, counter=5, checkpoint=FIVE, owner_switches=0)),
    "commit while draining": (ASKED, COMMIT, replace(ASKED, counter=5, checkpoint=FIVE)),
    "commit drops what was pending": (
        replace(HELD, pending_checkpoint=FIVE),
        COMMIT,
        replace(HELD, counter=5, checkpoint=FIVE, owner_switches=0),
    ),
    "commit ends LATEST": (
        replace(HELD, checkpoint=Checkpoint(LATEST), latest_at=1.0),
        COMMIT,
        replace(HELD, counter=5, checkpoint=FIVE, owner_switches=0),
    ),
    "children": (HELD, CHILDREN, replace(HELD, child_ids=frozenset({"x", "y"}))),
    "children at the end": (ENDED, CHILDREN, replace(ENDED, child_ids=frozenset({"x", "y"}))),
    "reset what is free": (FREE, reset(FREE), replace(FREE, counter=5, checkpoint=FIVE)),
    "reset under a holder": (
        HELD,
        reset(HELD),
        replace(HELD, counter=5, owner=None, checkpoint=FIVE, owner_switches=0),
    ),
    "reset amid a hand-over": (ASKED, reset(ASKED), Lease(SHARD, counter=5, checkpoint=FIVE)),
    "reset what is finished": (
        replace(ENDED, pending_checkpoint=FIVE),
        ResetLease(SHARD, ENDED.fence, Checkpoint(LATEST), 7.0),
        replace(HELD, counter=5, owner=None, checkpoint=Checkpoint(LATEST), latest_at=7.0, owner_switches=0),
    ),
    "delete": (HELD, DELETE, None),
    "delete what is gone": (None, DELETE, None),
}

REFUSED = {
    "create what exists": (FREE, CREATE),
    **{
        f"{type(operation).__name__} without a row": (None, operation)
        for operation in (RENEW, take(FREE), ASK, CANCEL, FINISH, RELEASE, COMMIT, CHILDREN, reset(FREE))
    },
    "reset after another's write": (HELD, ResetLease(SHARD, HELD.fence._replace(counter=3), FIVE)),
    "reset after another took it": (HELD, reset(FREE)),
    "reset after someone asked": (ASKED, ResetLease(SHARD, Fence(4, "b", None), FIVE)),
    "renew after another's write": (HELD, replace(RENEW, counter=3)),
    "renew what is not written yet": (HELD, replace(RENEW, counter=5)),
    "renew another's": (HELD, replace(RENEW, by="b")),
    "renew what is free": (FREE, RENEW),
    "renew as the one that asked": (ASKED, replace(RENEW, by="b")),
    "take after another's write": (HELD, TakeLease(SHARD, "c", HELD.fence._replace(counter=3))),
    "take from another than was seen": (HELD, TakeLease(SHARD, "c", FREE.fence)),
    "take after someone asked": (ASKED, TakeLease(SHARD, "c", Fence(4, "b", None))),
    "take what is finished": (ENDED, take(ENDED)),
    "ask the wrong one": (HELD, AskHandOver(SHARD, "b", "c")),
    "ask when someone asked": (ASKED, AskHandOver(SHARD, "c", "b")),
    "ask for what is free": (FREE, ASK),
    "ask for what is finished": (ENDED, ASK),
    "call off what is over": (replace(ASKED, checkpoint_owner=None), CANCEL),
    "call off what another asked for": (ASKED, replace(CANCEL, by="c")),
    "call off as the one that was asked": (ASKED, replace(CANCEL, by="a")),
    "call off what another was asked for": (ASKED, replace(CANCEL, owner="c")),
    "call off what nobody asked for": (HELD, CANCEL),
    "finish after another's write": (ASKED, replace(FINISH, counter=3)),
    "finish what nobody asked for": (HELD, FINISH),
    "finish as the one that asked": (ASKED, replace(FINISH, by="b")),
    "release after another's write": (HELD, replace(RELEASE, counter=3)),
    "release another's": (HELD, replace(RELEASE, by="b")),
    "release what someone asked for": (ASKED, RELEASE),
    "release what one asked for": (ASKED, replace(RELEASE, by="b")),
    "commit after another's write": (HELD, replace(COMMIT, counter=3)),
    "commit another's": (HELD, replace(COMMIT, by="b")),
    "commit as the one that asked": (ASKED, replace(COMMIT, by="b")),
    "commit after the end": (ENDED, COMMIT),
    "delete what has changed": (HELD, DeleteLease(SHARD, 3)),
}


@pytest.mark.parametrize("case", ALLOWED)
def test_an_allowed_write_gives_the_row_as_it_then_stands(case):
    row, operation, expected = ALLOWED[case]
    assert operation.shard_id == SHARD
    assert apply(row, operation) == expected


@pytest.mark.parametrize("case", REFUSED)
def test_a_refused_write_gives_the_row_that_refused(case):
    row, operation = REFUSED[case]
    assert apply(row, operation) == Refused(row)


@pytest.mark.parametrize("case", ALLOWED)
def test_the_counter_grows_with_every_write_but_those_that_need_no_fence(case):
    row, operation, expected = ALLOWED[case]
    if row is not None and expected is not None:
        unfenced = isinstance(operation, (AskHandOver, CancelHandOver, WriteChildren))
        assert expected.counter == row.counter + (not unfenced)


@pytest.mark.parametrize("case", ALLOWED)
def test_of_two_that_saw_the_same_row_one_is_refused(case):
    row, operation, expected = ALLOWED[case]
    if row is not None and expected is not None and not isinstance(operation, WriteChildren):
        assert apply(expected, operation) == Refused(expected)


@pytest.mark.parametrize("operation", [RENEW, COMMIT], ids=["renewal", "commit"])
def test_the_holder_learns_of_a_hand_over_from_its_next_write(operation):
    asked = apply(HELD, ASK)
    answer = apply(asked, operation)
    assert isinstance(answer, Lease)
    assert (answer.checkpoint_owner, answer.owner, answer.holder) == ("a", "b", "a")


@pytest.mark.parametrize("operation", [RENEW, COMMIT, RELEASE, take(HELD)], ids=lambda one: type(one).__name__)
def test_after_a_reset_who_held_the_lease_writes_nothing(operation):
    row = apply(HELD, reset(HELD))
    assert apply(row, operation) == Refused(row)
    # The write makes no difference for a worker that has released the lease.
    if not isinstance(operation, ReleaseLease):
        assert not landed(operation, row)


def test_a_take_raises_the_counter_to_its_floor():
    operation = replace(take(HELD), floor=1_700_000_000_000)
    taken = apply(HELD, operation)
    assert taken.counter == operation.token == 1_700_000_000_000
    assert landed(operation, taken)
    assert not landed(operation, replace(taken, counter=5))
    assert apply(taken, RENEW) == Refused(taken)
    assert apply(taken, replace(RENEW, by="c", counter=taken.counter)).counter == taken.counter + 1


def test_no_worker_takes_a_lease_under_another_name():
    with pytest.raises(UsageError, match="cannot take"):
        TakeLease(SHARD, "b", FREE.fence, C)


@pytest.mark.internal_error
def test_a_row_of_another_shard_is_a_bug():
    with pytest.raises(AssertionError):
        apply(Lease("shardId-000000000001"), RENEW)


def test_the_rows_of_a_group_keep_what_was_written_and_nothing_else():
    rows = {}
    assert apply_to(rows, CreateLease(FREE)) == FREE
    assert apply_to(rows, CreateLease(HELD)) == Refused(FREE)
    assert rows == {SHARD: FREE}
    assert apply_to(rows, DeleteLease(SHARD, FREE.counter)) is None
    assert apply_to(rows, DeleteLease(SHARD, FREE.counter)) is None
    assert rows == {}


# ---- operations whose answer was lost


@pytest.mark.parametrize("case", ALLOWED)
def test_a_write_that_got_through_is_known_by_its_effect(case):
    _, operation, expected = ALLOWED[case]
    again = apply(expected, operation)
    if isinstance(again, Refused):
        assert landed(operation, again.current)
    else:
        assert isinstance(operation, (DeleteLease, WriteChildren))  # these need no check: they may be repeated


@pytest.mark.parametrize(
    "case",
    sorted(REFUSED.keys() - {"create what exists", "renew after another's write", "call off what nobody asked for"}),
)
def test_what_another_wrote_is_not_taken_for_ones_own(case):
    row, operation = REFUSED[case]
    assert not landed(operation, row)


def test_a_renewal_is_known_by_holder_and_counter():
    assert landed(RENEW, replace(HELD, counter=5))
    assert landed(RENEW, replace(ASKED, counter=5))
    assert not landed(RENEW, HELD)
    assert not landed(RENEW, replace(HELD, counter=6))
    assert not landed(RENEW, replace(HELD, counter=5, owner="b"))


def test_a_commit_is_known_by_its_checkpoint_too():
    """The earlier renewal may have succeeded instead: then the commit has not."""
    assert landed(COMMIT, replace(HELD, counter=5, checkpoint=FIVE))
    assert not landed(COMMIT, replace(HELD, counter=5))


def test_a_row_that_someone_made_is_not_ours_unless_it_is_the_same():
    assert landed(CREATE, FREE)
    assert not landed(CREATE, HELD)
    assert not landed(CREATE, None)


def test_children_that_are_there_are_written():
    assert landed(CHILDREN, replace(HELD, child_ids=frozenset({"x", "y"})))
    assert not landed(CHILDREN, HELD)


# ---- arguments


@pytest.mark.parametrize("throughput", [-1.0, float("nan"), float("inf"), 1e15])
def test_a_throughput_is_a_finite_number(throughput):
    with pytest.raises(UsageError, match="finite number from 0"):
        replace(RENEW, throughput=throughput)
    with pytest.raises(UsageError, match="a handling time is a finite number from 0"):
        replace(RENEW, handling=throughput)


def test_a_hand_over_needs_two():
    with pytest.raises(UsageError, match="needs two workers"):
        AskHandOver(SHARD, "a", "a")


def test_only_a_reset_to_latest_says_since_when():
    with pytest.raises(UsageError, match="latest_at"):
        ResetLease(SHARD, FREE.fence, FIVE, 7.0)


def test_a_set_of_children_is_not_empty():
    with pytest.raises(UsageError, match="not empty"):
        WriteChildren(SHARD, frozenset())


def test_a_commit_stores_the_stamps_or_keeps_them_and_a_reset_clears_them():
    stamped = apply(HELD, replace(COMMIT, window="stamps"))
    assert stamped.window == "stamps"
    assert apply(stamped, replace(COMMIT, counter=stamped.counter)).window == "stamps"
    assert apply(stamped, replace(COMMIT, counter=stamped.counter, window="")).window == ""
    assert apply(stamped, replace(RENEW, counter=stamped.counter)).window == "stamps"
    assert apply(stamped, reset(stamped)).window == ""


def test_a_renewal_keeps_every_field_but_the_counter_and_the_throughput():
    row = Lease(
        SHARD,
        counter=4,
        owner="a",
        checkpoint=FIVE,
        parent_ids=frozenset({"p"}),
        child_ids=frozenset({"x", "y"}),
        hash_range=HashRange(1, 2),
        owner_switches=2,
        pending_checkpoint=FIVE,
        throughput=1.0,
        incarnation=A,
        window="stamps",
    )
    assert apply(row, replace(RENEW, throughput=2.5)) == replace(row, counter=5, throughput=2.5)
