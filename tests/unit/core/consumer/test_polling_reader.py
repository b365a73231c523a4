"""Tests of ``shardline.core.consumer.polling_reader``."""

from functools import partial

import pytest
from tests.harness.reader import STREAM, ReaderShell

from shardline.codec.raw_records import aggregate
from shardline.codec.shapes import (
    ChildShardShape,
    GetRecordsResponse,
    GetShardIteratorResponse,
    HashKeyRangeShape,
    RawRecord,
)
from shardline.core.clock import NEVER
from shardline.core.consumer.consumer_events import PageRead, PositionLost, ReadFailed, RecordsTrimmed
from shardline.core.consumer.consumer_totals import ReadCounts
from shardline.core.consumer.grant import Grant
from shardline.core.consumer.polling_reader import ReaderState
from shardline.core.consumer.prefetch import RECORD_BYTES, PrefetchBudget
from shardline.core.error_codes import Failure, FailureKind
from shardline.core.requests import GetRecords, GetShardIterator
from shardline.model.position import (
    LATEST,
    SHARD_END,
    TRIM_HORIZON,
    after_sequence_number,
    at_sequence_number,
    at_timestamp,
)
from shardline.model.sequence import SequenceNumber

Setting = partial(ReaderShell, idle=1.0, page_max_records=500)


def failure(kind, **facts):
    return Failure(kind, "Code", "message", 400, **facts)


def test_without_room_nothing_is_asked_until_the_user_took_something():
    setting = Setting(budget=PrefetchBudget(1000)).start()
    setting.page(1, data=bytes(2000))
    assert setting.ask() is None
    assert setting.reader.next_deadline() == NEVER
    (page,) = setting.reader.take_pages()
    assert page.held_bytes == 2000 + RECORD_BYTES
    setting.budget.release(setting.reader.key, page.held_bytes)
    assert setting.budget.take_admitted() == [setting.reader.key]
    assert isinstance(setting.reader.poll_request(setting.now + 1), GetRecords)


def test_pages_tell_their_lag_and_records_their_lease():
    grant = Grant("a", 7, 200.0)
    setting = Setting(lease=grant).start()
    setting.page(1, behind=1500)
    (page,) = setting.reader.take_pages()
    assert (page.shard_id, page.lag, page.is_last) == ("a", 1.5, False)
    assert (page.records[0].lag, page.records[0].lease) == (None, grant), "it was not handed out"
    assert setting.reader.lag == 1.5


@pytest.mark.parametrize(("numbers", "wait"), [((1,), 0.2), ((), 0.36)])
def test_an_emulator_that_tells_no_lag_is_taken_to_be_behind_while_it_has_records(numbers, wait):
    setting = Setting().start()
    setting.page(*numbers, behind=None)
    assert setting.reader.lag is None
    assert setting.reader.next_deadline() >= 100.0 + wait - 1e-9


def test_an_expired_iterator_before_the_first_record_starts_again():
    setting = Setting(at_timestamp(5.0)).start()
    setting.page()
    setting.fail(failure(FailureKind.EXPIRED_ITERATOR))
    assert setting.ask() == GetShardIterator(STREAM, "a", at_timestamp(5.0))


@pytest.mark.parametrize(
    "kind", [FailureKind.THROTTLED, FailureKind.TRANSIENT, FailureKind.EXPIRED_CREDENTIALS, FailureKind.LIMIT_EXCEEDED]
)
def test_after_a_failure_the_same_is_asked_again_later(kind):
    setting = Setting()
    setting.fail(failure(kind))
    (event,) = setting.reader.take_events()
    assert event == ReadFailed("a", "GetShardIterator", failure(kind), setting.reader.next_deadline())
    setting.start()
    setting.page(1)
    setting.fail(failure(kind, retry_after=7.0))
    assert setting.reader.next_deadline() >= setting.now + 7.0
    setting.page(2)
    assert setting.request.iterator == "it-1"
    assert setting.numbers() == [1, 2]
    assert [event.operation for event in setting.reader.take_events()] == ["GetRecords"]


def test_a_refused_position_gives_way_to_the_trim_horizon_and_is_reported():
    start = at_sequence_number(SequenceNumber(50))
    setting = Setting(start, done=SequenceNumber(50))
    setting.fail(failure(FailureKind.INVALID))
    assert setting.reader.take_events() == [PositionLost("a", start, failure(FailureKind.INVALID))]
    assert setting.ask() == GetShardIterator(STREAM, "a", TRIM_HORIZON)
    setting.reader.handle_iterator(GetShardIteratorResponse("it-0"), setting.now)
    setting.page(7)
    assert setting.numbers() == [7]  # though its number is below that of the checkpoint
    assert setting.reader.take_events() == []


def test_a_trim_horizon_that_is_refused_is_the_end():
    setting = Setting()
    setting.fail(failure(FailureKind.INVALID))
    assert setting.reader.state is ReaderState.FAILED
    assert setting.reader.failure == failure(FailureKind.INVALID)
    assert setting.reader.take_events() == [ReadFailed("a", "GetShardIterator", failure(FailureKind.INVALID), NEVER)]
    assert setting.reader.is_over


def test_a_refused_iterator_is_replaced_three_times():
    setting = Setting().start()
    setting.page(1)
    for _ in range(3):
        setting.fail(failure(FailureKind.INVALID))
        assert setting.reader.state is ReaderState.STARTING
        setting.start()
    setting.fail(failure(FailureKind.INVALID))
    assert setting.reader.state is ReaderState.FAILED


def test_records_trimmed_before_the_checkpoint_could_be_read_again_are_reported():
    setting = Setting(at_sequence_number(SequenceNumber(50)), done=SequenceNumber(50)).start()
    setting.page()
    setting.page(70, 71)
    (event,) = setting.reader.take_events()
    assert isinstance(event, RecordsTrimmed)
    assert "50" in event.why
    assert "70" in event.why
    assert setting.numbers() == [70, 71]
    setting.page(72)
    assert setting.reader.take_events() == []


DAY = 24 * 3600.0


def trimmed(setting, hours=24):
    return [event.why for event in setting.summarize(hours)]


def test_an_empty_page_after_such_a_long_silence_is_a_gap_too():
    """Records that arrived and were trimmed in between are not visible any more."""
    setting = Setting().start()
    setting.page(1, behind=0)
    setting.now += DAY + 1
    setting.page(behind=0)
    assert len(trimmed(setting)) == 1
    setting.now += 10.0
    setting.page(2, behind=0)
    assert trimmed(setting) == []


def test_records_without_a_time_of_arrival_prove_nothing():
    setting = Setting().start()
    setting.page(1, behind=30 * 3600_000)
    setting.page(RawRecord(b"x", "2", "k", None), behind=0)
    assert len(trimmed(setting)) == 1


def test_a_page_of_records_that_are_done_moves_on_silently():
    setting = Setting(at_sequence_number(SequenceNumber(5)), done=SequenceNumber(5)).start()
    setting.page(5)
    assert setting.reader.take_pages() == []
    assert setting.reader.position == after_sequence_number("5")
    assert setting.budget.total_bytes == 0


CHILD = ChildShardShape("shard-2", ("a",), HashKeyRangeShape("0", "9"))


@pytest.mark.parametrize("numbers", [(), (1, 2)])
def test_the_end_comes_with_the_last_page_and_the_children(numbers):
    setting = Setting().start()
    setting.page(*numbers, following=None, children=(CHILD,))
    (page,) = setting.reader.take_pages()
    assert page.is_last
    assert page.child_shards == (CHILD.to_child(),)
    assert len(page.records) == len(numbers)
    assert setting.reader.state is ReaderState.ENDED
    assert setting.reader.next_deadline() == NEVER
    assert setting.reader.poll_request(9999.0) is None


def test_a_shard_that_the_service_does_not_know_is_gone():
    setting = Setting().start()
    setting.fail(failure(FailureKind.NOT_FOUND))
    assert setting.reader.state is ReaderState.GONE
    assert setting.reader.is_over


@pytest.mark.parametrize("kind", [FailureKind.DENIED, FailureKind.KMS, FailureKind.NO_CREDENTIALS])
def test_what_someone_must_repair_ends_the_reader(kind):
    setting = Setting()
    setting.fail(failure(kind))
    assert setting.reader.state is ReaderState.FAILED


def test_a_stopped_reader_drops_what_it_has_and_what_comes():
    for answer in ("iterator", "page", "failure"):
        setting = Setting()
        if answer != "iterator":
            setting.start()
            setting.page(1)
        assert setting.ask() is not None
        setting.reader.stop()
        assert setting.reader.take_pages() == []
        assert setting.budget.total_bytes == 0
        if answer == "iterator":
            setting.reader.handle_iterator(GetShardIteratorResponse("it"), setting.now)
        elif answer == "page":
            setting.reader.handle_page(GetRecordsResponse([RawRecord(b"x", "2")], "it"), setting.now)
        else:
            setting.reader.handle_failure(failure(FailureKind.TRANSIENT), setting.now)
        assert setting.reader.state is ReaderState.STOPPED
        assert setting.reader.take_pages() == []
        assert setting.reader.next_deadline() == NEVER


def test_a_reader_that_has_ended_stays_ended():
    setting = Setting().start()
    setting.page(1, following=None)
    setting.reader.stop()
    assert setting.reader.state is ReaderState.ENDED


@pytest.mark.internal_error
@pytest.mark.parametrize("start", [LATEST, SHARD_END])
def test_it_starts_at_no_moving_place_and_at_no_end(start):
    with pytest.raises(AssertionError):
        Setting(start)


def test_nothing_is_unread_of_a_shard_that_was_read_to_its_end_unless_it_cannot_be_read_any_more():
    setting = Setting().start()
    setting.page(1, behind=0)
    read_at = setting.now
    assert setting.reader.unread_age(read_at + 5.0) == 0.0
    setting.fail(failure(FailureKind.TRANSIENT))
    assert setting.reader.unread_age(read_at + 60.0) == 60.0
    setting.page(behind=0)
    assert setting.reader.unread_age(setting.now + 60.0) == 0.0


def test_a_service_that_tells_no_lag_leaves_the_age_unknown():
    setting = Setting().start()
    setting.page(1, behind=0)
    setting.page(2, behind=None)
    assert setting.reader.unread_age(setting.now) is None


TINY = aggregate([("k", b"x")] * 6_000)


def tiny(count):
    """Aggregates of which two make a slice."""
    return [RawRecord(TINY, str(number), "k", 5.0) for number in range(1, count + 1)]


def test_a_page_of_aggregates_is_opened_slice_by_slice_as_there_is_room():
    setting = Setting(budget=PrefetchBudget(1_000)).start()
    setting.page(*tiny(3))
    (first,) = setting.reader.take_pages()
    assert [record.sequence_number for record in first.records[::6_000]] == ["1", "2"]
    assert setting.reader.has_unopened
    assert setting.reader.take_pages() == []  # no room
    assert setting.reader.next_deadline() == NEVER
    assert setting.reader.poll_request(setting.now + 100.0) is None  # the next page has to wait
    setting.budget.release(setting.reader.key, first.held_bytes)
    assert setting.budget.take_admitted() == [setting.reader.key]
    assert {*setting.numbers()} == {3}
    assert not setting.reader.has_unopened


@pytest.mark.parametrize("lag", [0, None])
def test_it_has_caught_up_once_it_was_read_to_the_newest_record_and_all_of_that_was_taken(lag):
    setting = Setting().start()
    assert not setting.reader.has_caught_up
    setting.page(1, behind=5000 if lag == 0 else None)
    assert not setting.reader.has_caught_up
    setting.page(behind=lag)
    assert setting.reader.has_caught_up
    setting.page(2, behind=5000)
    assert setting.reader.has_caught_up, "once is enough"
    assert setting.reader.out_of_range == 0


def test_an_empty_page_is_reported_with_the_duration_of_its_request():
    counts = ReadCounts()
    counts.is_observed, counts.wall_offset = True, 1_000_000.0
    shell = ReaderShell(counts=counts).start()
    shell.page(latency=0.25, behind=2_000)
    [read] = shell.reader.take_events()
    assert read == PageRead("a", 0, 0, 0.25, 2.0, "polling", read.started_at)
    assert read.started_at == pytest.approx(1_000_000.0 + shell.now - 0.25)
