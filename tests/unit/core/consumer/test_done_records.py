"""Tests of ``shardline.core.consumer.done_records``."""

from shardline.core.consumer.done_records import (
    NOTHING_DONE,
    PRUNE_AT,
    DoneRecords,
    PositionWrite,
    StoredPosition,
    Verdict,
)
from shardline.model.sequence import SequenceNumber


def numbers(*values):
    return [SequenceNumber(value) for value in values]


def test_a_shard_without_a_row_has_no_done_record():
    done = DoneRecords(StoredPosition(7))
    assert (done.token, done.through, list(done.beyond)) == (7, NOTHING_DONE, [])
    assert done.select_new([SequenceNumber(0, 0), SequenceNumber(1)]) == [0, 1]


def test_records_up_to_the_watermark_and_those_beyond_it_are_done():
    done = DoneRecords(StoredPosition(7, SequenceNumber(5, 1)), [SequenceNumber(3), SequenceNumber(8)])
    records = [SequenceNumber(5, 0), SequenceNumber(5, 1), SequenceNumber(5, 2), *numbers(7, 8, 9)]
    assert done.select_new(records) == [2, 3, 5]
    assert list(done.beyond) == numbers(8)


def test_in_order_the_watermark_moves_to_the_last_record():
    done = DoneRecords(StoredPosition(7, SequenceNumber(2)), numbers(4))
    write = done.plan(numbers(3, 5), is_in_order=True, done_through=None)
    assert write == PositionWrite(numbers(3, 5), (), SequenceNumber(5))
    done.handle_committed(write)
    assert (done.through, list(done.beyond)) == (SequenceNumber(5), [])


def test_out_of_order_the_records_are_added_beyond_the_watermark():
    done = DoneRecords(StoredPosition(7, SequenceNumber(2)))
    write = done.plan(numbers(9), is_in_order=False, done_through=None)
    assert write == PositionWrite(numbers(9), numbers(9), None)
    done.handle_committed(write)
    assert (done.through, list(done.beyond)) == (SequenceNumber(2), numbers(9))
    assert done.select_new(numbers(8, 9)) == [0]


def test_the_watermark_moves_only_when_many_records_are_beyond_it():
    fewer = DoneRecords(StoredPosition(7), numbers(*range(1, PRUNE_AT)))
    assert fewer.plan(numbers(1_000), is_in_order=False, done_through=SequenceNumber(5)).through is None
    done = DoneRecords(StoredPosition(7), numbers(*range(1, PRUNE_AT + 1)))
    assert done.plan(numbers(1_000), is_in_order=False, done_through=None).through is None
    assert done.plan(numbers(1_000), is_in_order=False, done_through=NOTHING_DONE).through is None
    write = done.plan(numbers(1_000), is_in_order=False, done_through=SequenceNumber(PRUNE_AT))
    assert write == PositionWrite(numbers(1_000), numbers(1_000), SequenceNumber(PRUNE_AT))
    done.handle_committed(write)
    assert (done.through, list(done.beyond)) == (SequenceNumber(PRUNE_AT), numbers(1_000))


def test_a_late_report_does_not_move_the_watermark_back():
    done = DoneRecords(StoredPosition(7, SequenceNumber(9)))
    done.handle_committed(PositionWrite(numbers(12), numbers(12), SequenceNumber(4)))
    assert (done.through, list(done.beyond)) == (SequenceNumber(9), numbers(12))


def test_a_transaction_is_checked_against_the_locked_row():
    done = DoneRecords(StoredPosition(7, SequenceNumber(2)))
    write = done.plan(numbers(4, 3), is_in_order=False, done_through=None)
    assert done.check(write, StoredPosition(7, SequenceNumber(2))) is Verdict.COMMIT
    assert done.check(write, StoredPosition(8, SequenceNumber(2))) is Verdict.FENCED
    assert done.check(write, StoredPosition(6, SequenceNumber(2))) is Verdict.CHANGED
    assert done.check(write, StoredPosition(7, SequenceNumber(3))) is Verdict.CHANGED
    assert done.check(write, None) is Verdict.CHANGED


def test_the_watermark_does_not_move_back_behind_that_of_a_transaction_that_was_faster():
    write = PositionWrite(numbers(9), numbers(9), SequenceNumber(5))
    assert write.after(StoredPosition(7, SequenceNumber(4))) is write
    for through in (5, 6):
        assert write.after(StoredPosition(7, SequenceNumber(through))) == PositionWrite(numbers(9), numbers(9), None)
    still = PositionWrite(numbers(9), numbers(9), None)
    assert still.after(StoredPosition(7, SequenceNumber(5))) is still
