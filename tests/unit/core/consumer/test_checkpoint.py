"""Tests of ``shardline.core.consumer.checkpoint`` (C1 to C5)."""

import pytest
from tests.sim.interrupting import interrupted

from shardline.core.clock import NEVER
from shardline.core.consumer.checkpoint import CheckpointTracker
from shardline.model.lease import Checkpoint
from shardline.model.position import SHARD_END, TRIM_HORIZON, at_sequence_number
from shardline.model.record import Record
from shardline.model.sequence import SequenceNumber

START = Checkpoint(TRIM_HORIZON)


def record(number, sub_sequence=0):
    return Record(b"x", "k", sequence_number=str(number), sub_sequence=sub_sequence)


def at(number, sub_sequence=0):
    return Checkpoint(at_sequence_number(SequenceNumber(number, sub_sequence)))


def tracker(*, manual=False, interval=1.0, checkpoint=START):
    return CheckpointTracker(checkpoint, interval=interval, now=100.0, manual=manual)


def delivered(*numbers, **facts):
    one = tracker(**facts)
    one.deliver([record(number) for number in numbers])
    return one


def test_in_order_a_single_acknowledgement_counts_for_nothing():
    one = delivered(1, 2)
    assert not one.ack(record(1))


def test_c4_one_commit_at_a_time_and_what_came_meanwhile_is_not_lost():
    one = delivered(1, 2, 3, interval=1.0)
    one.ack_through(record(1))
    assert one.poll_commit(101.0) == at(1)
    one.ack_through(record(2))
    assert one.poll_commit(200.0) is None
    assert one.next_deadline() == NEVER
    assert not one.is_committed
    one.handle_committed()
    assert not one.is_committed
    assert one.next_deadline() == 102.0
    assert one.poll_commit(102.0) == at(2)
    one.handle_committed()
    assert one.poll_commit(999.0) is None


def test_c3_shard_end_waits_for_the_children_and_the_records_do_not():
    one = delivered(1, interval=60.0)
    one.end()
    one.ack_through(record(1))
    assert one.poll_commit(100.0, may_end=False) is None
    assert one.next_deadline(may_end=False) == 160.0
    assert one.poll_commit(160.0, may_end=False) == at(1)
    one.handle_committed()
    assert one.next_deadline(may_end=False) == NEVER
    assert one.next_deadline() == -NEVER
    assert one.poll_commit(160.0) == Checkpoint(SHARD_END)


@pytest.mark.internal_error
def test_c3_nothing_is_delivered_after_the_end():
    one = tracker()
    one.end()
    with pytest.raises(AssertionError, match="C3"):
        one.deliver([record(1)])


def test_a_sealed_tracker_writes_what_it_has_and_takes_no_more():
    one = delivered(1, 2, interval=60.0)
    one.ack_through(record(1))
    one.seal()
    assert not one.ack_through(record(2))
    one.deliver([record(3)])
    assert one.poll_commit(100.0) == at(1)
    one.handle_committed()
    assert one.is_committed


def test_a_closed_tracker_writes_nothing():
    one = delivered(1, 2, manual=True, interval=0.0)
    one.ack(record(1))
    one.close()
    assert not one.ack(record(2))
    assert one.poll_commit(999.0) is None
    assert one.next_deadline() == NEVER


@pytest.mark.internal_error
def test_an_answer_without_a_question_is_a_bug():
    with pytest.raises(AssertionError, match="C4"):
        tracker().handle_committed()
    with pytest.raises(AssertionError, match="C4"):
        tracker().handle_commit_failed()


@pytest.mark.parametrize("call", ["deliver", "ack", "ack_through"])
def test_a_call_that_was_interrupted_anywhere_can_be_made_again(call):
    after, where = 0, "not yet"
    while where is not None:
        one = tracker(manual=True)
        records = [record(number) for number in range(1, 5)]
        calls = {"deliver": records, "ack": records[3], "ack_through": records[3]}
        if call != "deliver":
            one.deliver(records)
        if call == "ack":
            assert all(map(one.ack, records[:3]))
        with interrupted(after, "core/consumer/checkpoint", steps="signal") as interruption:
            getattr(one, call)(calls[call])
        where = interruption.where
        getattr(one, call)(calls[call])
        if call == "deliver":
            assert all(map(one.ack, reversed(records)))
        assert (one.watermark, one.is_settled) == (SequenceNumber(4), True), where
        after += 1


def test_the_oldest_that_is_not_acknowledged_is_known_with_its_arrival():
    one = tracker(manual=True)
    assert (one.unacknowledged, one.oldest_unacknowledged) == (0, None)
    records = [Record(b"x", "k", sequence_number="7", sub_sequence=sub, arrived_at=10.0 + sub) for sub in range(3)]
    one.deliver(records)
    assert (one.unacknowledged, one.oldest_unacknowledged) == (3, (SequenceNumber(7, 0), 10.0))
    one.ack(records[1])
    assert (one.unacknowledged, one.oldest_unacknowledged) == (2, (SequenceNumber(7, 0), 10.0))
    one.ack(records[0])
    assert (one.unacknowledged, one.oldest_unacknowledged) == (1, (SequenceNumber(7, 2), 12.0))
    assert not one.ack(records[0])
    one.ack(records[2])
    assert (one.unacknowledged, one.oldest_unacknowledged) == (0, None)
    one.deliver([record(9)])
    assert one.oldest_unacknowledged == (SequenceNumber(9), None)
    one.close()
    assert (one.unacknowledged, one.oldest_unacknowledged) == (0, None)


def test_what_is_acknowledged_behind_a_gap_is_remembered():
    tracker = CheckpointTracker(Checkpoint(TRIM_HORIZON), interval=1.0, now=0.0, manual=True)
    records = [Record(b"", "k", sequence_number=str(number)) for number in (1, 2, 3)]
    tracker.deliver(records)
    tracker.ack(records[2])
    assert (tracker.unacknowledged, tracker.remembered) == (2, 3)
    tracker.ack(records[0])
    assert (tracker.unacknowledged, tracker.remembered) == (1, 2)
    tracker.ack(records[1])
    assert (tracker.unacknowledged, tracker.remembered) == (0, 0)


def test_records_that_were_given_back_are_not_with_the_user_until_they_are_delivered_again():
    tracker = CheckpointTracker(Checkpoint(TRIM_HORIZON), interval=1.0, now=0.0, manual=True)
    records = [Record(b"", "k", sequence_number=str(number)) for number in range(1, 6)]
    tracker.deliver(records)
    tracker.ack(records[3])
    tracker.take_back(records[1:])
    assert (tracker.unacknowledged, tracker.returned, tracker.remembered) == (1, 3, 5)
    tracker.ack(records[0])
    assert (tracker.unacknowledged, tracker.oldest_unacknowledged, tracker.is_settled) == (0, None, False)
    tracker.ack(records[4])  # an acknowledgement that comes late counts
    assert (tracker.unacknowledged, tracker.returned) == (0, 2)
    tracker.deliver(records[1:3])
    assert (tracker.unacknowledged, tracker.returned, tracker.remembered) == (2, 0, 4)
    tracker.take_back(records[1:3])
    tracker.ack_through(records[4])
    assert (tracker.unacknowledged, tracker.returned, tracker.is_settled) == (0, 0, True)
    tracker.deliver([Record(b"", "k", sequence_number="6")])
    tracker.take_back([Record(b"", "k", sequence_number="6")])
    tracker.close()
    assert (tracker.unacknowledged, tracker.returned) == (0, 0)
