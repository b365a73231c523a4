"""Who may take which record of a page in hand, and which records are done (C5)?"""

import dis

import pytest

from shardline.core.consumer.cursor import Cursor
from shardline.core.consumer.grant import Grant
from shardline.core.consumer.handling_lag import HandlingState

RECORDS = ["r0", "r1", "r2", "r3"]


@pytest.fixture
def lease():
    return Grant("shard", 1, 200.0, clock=lambda: 100.0)


def test_a_record_that_a_thread_took_meanwhile_counts_as_taken(lease):
    cursor = Cursor(RECORDS, lease)
    cursor.take_back()
    cursor.place = 1  # the thread had checked before
    cursor.take_back()
    assert (cursor.end, cursor.done, cursor.place) == (0, 0, 1)
    assert cursor.handling_state(is_manual=False) == HandlingState("r0", 1, 0, None)


def test_what_was_reported_is_the_trackers_and_a_part_of_a_batch_is_in_hand_alone(lease):
    cursor = Cursor(RECORDS, lease)
    cursor.take(100.0)
    cursor.reported = 1
    assert cursor.handling_state(is_manual=True).oldest == "r1"
    batch = Cursor(RECORDS, lease, whole=True)
    batch.begin_slice(100.0)
    batch.take_all()
    batch.given, batch.finished = 1, 2
    assert batch.handling_state(is_manual=False) == HandlingState("r2", 1, 1, 100.0)
    batch.finished = 4
    assert batch.handling_state(is_manual=False) == HandlingState(None, 0, 0, None)


@pytest.mark.parametrize("method", [Cursor.take, Cursor.take_all])
def test_a_record_is_taken_by_the_last_store(method):
    """An interrupt finds the record taken or not taken: only the return follows the store."""
    code = list(dis.get_instructions(method))
    (store,) = [at for at, one in enumerate(code) if one.opname == "STORE_ATTR" and one.argval == "place"]
    after = {one.opname for one in code[store + 1 :]}
    assert not any(name.startswith(("STORE", "CALL")) for name in after)
