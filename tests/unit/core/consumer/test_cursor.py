"""Who may take which record of a page in hand, and which records are done (C5)?"""

import dis

import pytest

from shardline.core.clock import NEVER
from shardline.core.consumer.cursor import SLICE, Cursor
from shardline.core.consumer.grant import Grant
from shardline.core.consumer.handling import HandlingState

RECORDS = ["r0", "r1", "r2", "r3"]


@pytest.fixture
def lease():
    return Grant("shard", 1, 200.0, clock=lambda: 100.0)


def test_records_are_taken_one_after_another_until_the_end(lease):
    cursor = Cursor(RECORDS, lease, is_last=True)
    assert cursor.is_last
    assert [cursor.take(100.0 + number) for number in range(4)] == RECORDS
    assert not cursor.is_open
    assert (cursor.place, cursor.taken_at, cursor.slice_end) == (4, 103.0, 103.0 + SLICE)


def test_a_slice_begins_when_a_record_is_taken_and_not_before(lease):
    assert Cursor(RECORDS, lease).slice_end == -NEVER


def test_all_before_the_last_take_are_done(lease):
    cursor = Cursor(RECORDS, lease)
    assert cursor.done == 0
    cursor.take(100.0)
    assert cursor.done == 0, "the first is in hand"
    cursor.take(100.0)
    assert cursor.done == 1


def test_a_batch_is_taken_at_once_and_done_at_once(lease):
    cursor = Cursor(RECORDS, lease, whole=True)
    assert cursor.take_all() == RECORDS
    assert (cursor.place, cursor.done, cursor.taken_at) == (4, 0, None)
    cursor.finished = 3
    assert cursor.done == 3, "a failure policy is through with these"


def test_nothing_is_taken_of_a_lease_that_is_gone_or_of_no_page(lease):
    cursor = Cursor(RECORDS, lease)
    assert cursor.is_open
    assert cursor.is_current(199.0)
    assert not cursor.is_current(200.0)
    lease.revoke()
    assert not cursor.is_open
    assert not Cursor().is_open
    assert not Cursor().is_current(0.0)


def test_the_host_takes_back_what_was_not_taken(lease):
    cursor = Cursor(RECORDS, lease)
    cursor.take(100.0)
    cursor.take_back()
    assert (cursor.end, cursor.is_open) == (1, False)


def test_a_record_that_a_thread_took_meanwhile_counts_as_taken(lease):
    cursor = Cursor(RECORDS, lease)
    cursor.take_back()
    cursor.place = 1  # the thread had looked before
    cursor.take_back()
    assert (cursor.end, cursor.done, cursor.place) == (0, 0, 1)
    assert cursor.look(is_manual=False) == HandlingState("r0", 1, 0, None)


@pytest.mark.parametrize(
    ("taken", "whole", "is_manual", "expected"),
    [
        (0, False, False, HandlingState("r0", 0, 4, None)),
        (2, False, False, HandlingState("r1", 1, 2, 100.0)),
        (4, False, False, HandlingState("r3", 1, 0, 100.0)),
        (2, False, True, HandlingState("r0", 1, 2, 100.0)),
        (0, True, False, HandlingState("r0", 0, 4, None)),
        (4, True, False, HandlingState("r0", 4, 0, 100.0)),
    ],
)
def test_what_user_code_has_and_what_waits_for_it(lease, taken, whole, is_manual, expected):
    cursor = Cursor(RECORDS, lease, whole=whole)
    if whole and taken:
        cursor.begin_slice(100.0)
        cursor.take_all()
    else:
        for _ in range(taken):
            cursor.take(100.0)
    assert cursor.look(is_manual=is_manual) == expected


def test_what_was_reported_is_the_trackers_and_a_part_of_a_batch_is_in_hand_alone(lease):
    cursor = Cursor(RECORDS, lease)
    cursor.take(100.0)
    cursor.reported = 1
    assert cursor.look(is_manual=True).oldest == "r1"
    batch = Cursor(RECORDS, lease, whole=True)
    batch.begin_slice(100.0)
    batch.take_all()
    batch.given, batch.finished = 1, 2
    assert batch.look(is_manual=False) == HandlingState("r2", 1, 1, 100.0)
    batch.finished = 4
    assert batch.look(is_manual=False) == HandlingState(None, 0, 0, None)


@pytest.mark.parametrize("method", [Cursor.take, Cursor.take_all])
def test_a_record_is_taken_by_the_last_store(method):
    """An interrupt finds the record taken or not taken: nothing follows the store but the return."""
    code = list(dis.get_instructions(method))
    (store,) = [at for at, one in enumerate(code) if one.opname == "STORE_ATTR" and one.argval == "place"]
    after = {one.opname for one in code[store + 1 :]}
    assert not any(name.startswith(("STORE", "CALL")) for name in after)
