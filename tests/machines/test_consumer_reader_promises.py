"""What the user of a shard relies on, one promise a test: no record is skipped silently, the service is not called too often,
no caller is left waiting, and the records of an aggregate come out as they were put. The reader's machine draws random events;
these tests check the required outcomes.
"""

from itertools import pairwise

import pytest
from tests.harness.reader import ReaderShell, polling_reader

from shardline.codec.raw_records import aggregate
from shardline.codec.shapes import (
    ChildShardShape,
    GetRecordsResponse,
    GetShardIteratorResponse,
    HashKeyRangeShape,
    RawRecord,
)
from shardline.core.clock import NEVER
from shardline.core.consumer.checkpoint import CheckpointTracker
from shardline.core.consumer.consumer_events import PositionLost, ReadFailed, RecordsTrimmed
from shardline.core.consumer.deaggregator import Deaggregator
from shardline.core.consumer.polling_reader import ReaderState
from shardline.core.consumer.prefetch import PrefetchBudget
from shardline.core.error_codes import Failure, FailureKind
from shardline.model.hashing import HASH_KEY_COUNT, HashRange, hash_key_of
from shardline.model.lease import Checkpoint
from shardline.model.limits import MIB
from shardline.model.position import TRIM_HORIZON, at_sequence_number
from shardline.model.record import Origin, Record
from shardline.model.sequence import SequenceNumber

THROTTLED = Failure(FailureKind.THROTTLED, "ProvisionedThroughputExceededException", "why", 400)
INVALID = Failure(FailureKind.INVALID, "InvalidArgumentException", "why", 400)
DENIED = Failure(FailureKind.DENIED, "AccessDeniedException", "why", 400)


# ---- nothing is skipped silently


def test_a_refused_position_is_reported_and_later_records_are_not_skipped_by_number():
    """The stream was re-created: its numbers are smaller than the checkpoint."""
    shard = ReaderShell(at_sequence_number("500"), done=SequenceNumber(500))
    request = shard.ask()
    assert str(request.position.sequence_number) == "500"
    shard.reader.handle_failure(INVALID, shard.now)
    assert [type(event) for event in shard.reader.take_events()] == [PositionLost]
    shard.start()
    shard.page(7, 8)
    (page,) = shard.reader.take_pages()
    assert [record.sequence_number for record in page.records] == ["7", "8"]


def test_after_a_position_that_is_refused_nothing_is_said_to_be_trimmed():
    """The numbers of another stream may be larger than the checkpoint, which does not prove a loss by retention."""
    shard = ReaderShell(at_sequence_number("500"), done=SequenceNumber(500))
    shard.fail(INVALID)
    assert [type(event) for event in shard.reader.take_events()] == [PositionLost]
    shard.start()
    shard.page(900, 901)
    assert shard.reader.take_events() == []
    (page,) = shard.reader.take_pages()
    assert [record.sequence_number for record in page.records] == ["900", "901"]


def test_iterators_that_are_refused_now_and_then_never_end_a_reader():
    """Only refusals in a row count, because a reader lives for months."""
    shard = ReaderShell().start()
    for number in range(1, 11):
        shard.fail(INVALID)
        assert not shard.reader.is_over
        shard.start()
        shard.page(number)
        (page,) = shard.reader.take_pages()
        assert [record.sequence_number for record in page.records] == [str(number)]
        shard.budget.forget(shard.reader.key)  # the record was read


def test_after_an_expired_iterator_reading_goes_on_after_the_last_record():
    shard = ReaderShell().start()
    shard.page(1, 2, 3)
    shard.fail(Failure(FailureKind.EXPIRED_ITERATOR, "ExpiredIteratorException", "why", 400))
    request = shard.ask()
    assert (request.position.kind.value, str(request.position.sequence_number)) == ("AFTER_SEQUENCE_NUMBER", "3")


def test_records_that_retention_removed_unread_are_reported():
    shard = ReaderShell(at_sequence_number("500"), done=SequenceNumber(500)).start()
    shard.page(501)
    assert [type(event) for event in shard.reader.take_events()] == [RecordsTrimmed]


HOUR = 3600.0


def summarize(shard, hours):
    return [type(event) for event in shard.summarize(hours)]


def test_records_that_retention_removed_after_a_late_page_are_reported():
    """The page states the age of the next record when the page was made, not when it arrived."""
    shard = ReaderShell().start()
    shard.page(1, behind=24 * 3_600_000 - 20_000, latency=30.0)
    assert summarize(shard, 24) == []
    shard.page(3, behind=0)
    assert summarize(shard, 24) == [RecordsTrimmed]


def test_records_that_a_shortened_retention_removed_are_reported():
    """A reader is 30 hours behind when the retention changes from 48 to 24 hours. It learns of the change after it has
    read past the gap.
    """
    shard = ReaderShell().start()
    assert summarize(shard, 48) == []
    shard.page(1, behind=30 * 3_600_000)
    shard.page(1_900, behind=24 * 3_600_000 - 60_000)
    assert shard.trims.take_events() == []
    assert shard.now < shard.trims.summary_by <= shard.now + 10.0
    assert summarize(shard, 24) == [RecordsTrimmed]
    assert summarize(shard, 24) == []


def test_what_the_known_retention_explains_is_looked_into_at_once():
    shard = ReaderShell().start()
    summarize(shard, 24)
    shard.page(1, behind=23 * 3_600_000)
    shard.now += 6.0 + 2 * HOUR
    shard.page(2, behind=3_600_000)
    assert shard.trims.take_events() == []
    assert shard.trims.summary_by <= shard.now
    assert summarize(shard, 24) == [RecordsTrimmed]


def test_under_a_raised_retention_nothing_is_reported():
    """The retention changes from 24 to 168 hours: a reader that is 30 hours behind reads on, and nothing is missing."""
    shard = ReaderShell().start()
    summarize(shard, 24)
    behind = 23.9 * HOUR
    shard.page(1, behind=round(behind * 1000))
    shard.now += 6 * HOUR
    for number in range(2, 20):
        behind += 6 * HOUR if number == 2 else 0.5
        shard.page(number, behind=round(behind * 1000))
        shard.budget.forget(shard.reader.key)
        assert shard.trims.take_events() == []
    assert summarize(shard, 168) == []


def test_a_quiet_stream_whose_retention_was_raised_lost_nothing():
    """No record arrived for hours: only the new retention shows that none was removed."""
    shard = ReaderShell().start()
    summarize(shard, 24)
    shard.page(1, behind=23 * 3_600_000)
    shard.now += 6 * HOUR
    shard.page(2, behind=10 * 3_600_000)
    assert shard.trims.take_events() == []
    assert summarize(shard, 168) == []


def test_records_removed_before_the_retention_was_raised_are_reported():
    """A reader stands still for 30 hours with a retention of 24 hours; then the retention becomes 168 hours, and it
    reads on.
    """
    shard = ReaderShell().start()
    shard.page(1, behind=HOUR * 1000)
    shard.now += 28 * HOUR
    assert summarize(shard, 24) == []
    shard.now += 2 * HOUR
    shard.page(1_900, behind=round(25.9 * HOUR * 1000))
    assert summarize(shard, 168) == [RecordsTrimmed]


def test_a_summary_that_was_asked_for_before_the_gap_judges_nothing():
    shard = ReaderShell().start()
    summarize(shard, 48)
    shard.page(1, behind=30 * 3_600_000)
    shard.trims.handle_requested(shard.now)
    requested_at = shard.now
    shard.page(1_900, behind=24 * 3_600_000 - 60_000)
    shard.trims.handle_summary(48, requested_at)
    assert shard.trims.take_events() == []
    assert shard.trims.summary_by < NEVER
    assert summarize(shard, 24) == [RecordsTrimmed]


def test_a_page_from_before_the_retention_was_shortened_is_no_loss():
    """The retention changed from 48 to 24 hours while a reader was 30 hours behind. Everything that it had read before
    was there.
    """
    shard = ReaderShell().start()
    summarize(shard, 48)
    shard.page(1, behind=30 * 3_600_000)
    shard.page(2, behind=30 * 3_600_000)
    assert shard.trims.summary_by < NEVER
    assert summarize(shard, 24) == []


def test_where_no_summary_comes_any_more_the_last_one_decides():
    shard = ReaderShell().start()
    summarize(shard, 24)
    shard.page(1, behind=23 * 3_600_000)
    shard.now += 2 * HOUR
    shard.page(2, behind=0)
    assert shard.trims.take_events() == []
    shard.trims.handle_no_summary()
    assert [type(event) for event in shard.trims.take_events()] == [RecordsTrimmed]


def test_a_denied_read_is_a_permanent_failure():
    shard = ReaderShell().start()
    shard.fail(DENIED)
    assert shard.reader.state is ReaderState.FAILED
    (told,) = shard.reader.take_events()
    assert isinstance(told, ReadFailed)
    assert told.retry_at == NEVER


def test_a_reader_that_is_stopped_gives_its_room_back_and_hands_nothing_out():
    budget = PrefetchBudget(1_000)
    shard = ReaderShell(budget=budget).start()
    shard.page(1, 2, 3)
    assert budget.total_bytes > 0
    shard.now += 1.0
    assert shard.ask() is not None
    shard.reader.stop()
    shard.reader.handle_page(GetRecordsResponse([RawRecord(b"x", "9", "k", 1.0)], "next", 0, ()), shard.now)
    assert shard.reader.take_pages() == []
    assert budget.total_bytes == 0


def test_a_user_that_does_not_read_on_stops_the_reader():
    shard = ReaderShell(budget=PrefetchBudget(1_000)).start()
    for number in range(1, 50):
        if shard.reader.next_deadline() == NEVER:
            break
        shard.now = shard.reader.next_deadline()
        if shard.reader.poll_request(shard.now) is None:
            break
        shard.reader.handle_page(
            GetRecordsResponse([RawRecord(b"x" * 100, str(number), "k", 1.0)], "n", 9, ()), shard.now
        )
    assert number < 10


def test_the_end_is_reported_even_with_an_empty_page():
    shard = ReaderShell().start()
    shard.page(following=None)
    (page,) = shard.reader.take_pages()
    assert (page.is_last, page.records) == (True, [])


# ---- pace


def test_after_throttling_a_shard_is_read_as_fast_as_before_in_the_end():
    shard = ReaderShell().start()
    for _ in range(6):
        shard.fail(THROTTLED)
    waits = [shard.page(number, behind=5_000) for number in range(1, 60)]
    assert waits[0] > 0.5
    assert waits[-1] == pytest.approx(0.2, abs=0.01)


def test_a_large_page_is_paid_for_before_the_next_call():
    shard = ReaderShell(budget=PrefetchBudget(64 * MIB)).start()
    shard.page(RawRecord(bytes(6 * MIB), "1", "k", 1.0), behind=5_000)
    assert shard.page(2, behind=5_000) == pytest.approx(3.0, abs=0.01)


def test_the_first_record_after_a_quiet_night_makes_the_reader_quick_again():
    shard = ReaderShell().start()
    quiet = [shard.page() for _ in range(20)]
    assert quiet[-1] > 5.0
    shard.page(1)
    assert shard.page(2) < 0.3
    assert shard.page(3) < 0.3


def test_a_read_that_fails_is_repeated_with_growing_pauses():
    shard = ReaderShell().start()
    moments = []
    for _ in range(8):
        shard.ask()
        moments.append(shard.now)
        shard.reader.handle_failure(Failure(FailureKind.TRANSIENT, "InternalFailure", "why", 500), shard.now)
    pauses = [later - earlier for earlier, later in pairwise(moments)]
    assert min(pauses) >= 0.1
    assert max(pauses) > 3.0


# ---- aggregates


LOW = HashRange(0, HASH_KEY_COUNT // 2 - 1)
HIGH = HashRange(HASH_KEY_COUNT // 2, HASH_KEY_COUNT - 1)
IN = next(f"k{number}" for number in range(100) if hash_key_of(f"k{number}") in LOW)
OUT = next(f"k{number}" for number in range(100) if hash_key_of(f"k{number}") in HIGH)


def opened(data, **how):
    deaggregator = Deaggregator("s", "a", hash_range=LOW, **{key: value for key, value in how.items() if key != "auto"})
    deaggregator.by_auto = how.get("auto", False)
    records = deaggregator.open([RawRecord(data, "1", "k", 1.0)], Origin())
    return [record.data for record in records], deaggregator.out_of_range


MIXED = aggregate([(IN, b"in"), (OUT, b"out"), (IN, b"in too")])


def test_records_outside_of_the_shard_are_delivered_and_counted_by_default():
    assert opened(MIXED) == ([b"in", b"out", b"in too"], 1)
    assert opened(MIXED, drop=True) == ([b"in", b"in too"], 1)


def test_what_only_begins_like_an_aggregate_is_delivered_as_it_is():
    broken = MIXED[:-1] + bytes([MIXED[-1] ^ 1])
    assert opened(broken) == ([broken], 0)


def test_under_auto_distribution_keys_mean_nothing():
    assert opened(MIXED, drop=True, auto=True) == ([b"in", b"out", b"in too"], 0)


@pytest.mark.parametrize("edge", [LOW.start, LOW.end])
def test_an_explicit_hash_key_decides_and_both_edges_belong_to_the_shard(edge):
    data = aggregate([(OUT, b"by its hash key", str(edge)), (IN, b"not", str(LOW.end + 1))])
    assert opened(data, drop=True) == ([b"by its hash key"], 1)


# ---- commits


def test_c4_commits_keep_their_distance_and_a_flush_is_for_once():
    tracker = CheckpointTracker(Checkpoint(TRIM_HORIZON), interval=10.0, now=0.0)
    commits = []
    for second in range(100):
        record = Record(b"", "k", sequence_number=str(second + 1))
        tracker.deliver([record])
        tracker.ack_through(record)
        if second == 42:
            tracker.flush()
        if tracker.poll_commit(float(second)) is not None:
            commits.append(second)
            tracker.handle_committed()
    assert commits == [10, 20, 30, 40, 42, 52, 62, 72, 82, 92]


def test_l4_what_was_acknowledged_for_a_lease_that_is_gone_is_not_committed():
    tracker = CheckpointTracker(Checkpoint(TRIM_HORIZON), interval=0.0, now=0.0)
    record = Record(b"", "k", sequence_number="1")
    tracker.deliver([record])
    tracker.ack_through(record)
    tracker.close()
    assert (tracker.next_deadline(), tracker.poll_commit(99.0)) == (NEVER, None)


def test_c5_an_acknowledgement_of_what_was_not_handed_out_counts_for_nothing():
    tracker = CheckpointTracker(Checkpoint(TRIM_HORIZON), interval=0.0, now=0.0)
    tracker.deliver([Record(b"", "k", sequence_number="1")])
    assert not tracker.ack_through(Record(b"", "k", sequence_number="2"))
    assert (tracker.watermark, tracker.poll_commit(99.0)) == (None, None)


def test_aggregates_of_tiny_records_are_opened_only_as_there_is_room():
    """Each of them takes 1.5 MB of the budget when it is unpacked, and 42 KB before."""
    blob = aggregate([("k", b"x")] * 6_000)
    shard = ReaderShell(budget=PrefetchBudget(4 * MIB)).start()
    shard.page(*(RawRecord(blob, str(number), "k", 1.0) for number in range(1, 21)), following=None)
    numbers, waiting, most_bytes = [], [], 0
    while True:
        pages = shard.reader.take_pages()
        waiting += pages
        numbers += [record.sequence_number for page in pages for record in page.records[::6_000]]
        most_bytes = max(most_bytes, shard.budget.total_bytes)
        assert all(page.is_last == (page.records[-1].sequence_number == "20") for page in pages)
        if not pages:
            if not waiting:
                break
            shard.budget.release(shard.reader.key, waiting.pop(0).held_bytes)  # the user continues
    assert numbers == [str(number) for number in range(1, 21)]
    assert most_bytes < 4 * MIB + 2 * 6_000 * 300  # the budget, and one slice
    assert shard.reader.state is ReaderState.ENDED


def test_no_page_is_asked_for_before_the_last_one_is_open():
    blob = aggregate([("k", b"x")] * 6_000)
    shard = ReaderShell(budget=PrefetchBudget(1_000)).start()
    shard.page(*(RawRecord(blob, str(number), "k", 1.0) for number in range(1, 6)))
    shard.now += 100.0
    assert shard.reader.poll_request(shard.now) is None
    (page,) = shard.reader.take_pages()
    assert shard.reader.take_pages() == []
    assert shard.reader.poll_request(shard.now) is None
    shard.budget.release(shard.reader.key, page.held_bytes)
    assert shard.reader.poll_request(shard.now) is None
    (page,) = shard.reader.take_pages()
    assert page.records[0].sequence_number == "3"


# ---- queries of a reader


def test_the_age_of_what_is_unread_and_whether_the_newest_record_was_reached():
    shard = ReaderShell().start()
    reader = shard.reader
    assert (reader.unread_age(shard.now), reader.has_caught_up) == (None, False)
    shard.page(1, behind=None)
    assert (reader.unread_age(shard.now), reader.has_caught_up) == (None, False)
    shard.page(2, behind=4_000)
    assert (reader.unread_age(shard.now + 2.0), reader.has_caught_up) == (6.0, False)
    shard.page(3, behind=None)
    assert (reader.unread_age(shard.now), reader.has_caught_up) == (None, False)
    shard.page(4, behind=0)
    read_at = shard.now
    assert (reader.unread_age(shard.now + 2.0), reader.has_caught_up) == (0.0, True)
    shard.fail(THROTTLED)
    assert reader.unread_age(shard.now) == shard.now - read_at > 0.0
    shard.page(5, behind=0)
    assert reader.unread_age(shard.now + 2.0) == 0.0
    shard.page(6, behind=1_000)
    assert reader.has_caught_up, "once is enough"


def test_each_call_uses_the_newest_iterator_and_waits_for_its_time():
    shard = ReaderShell()
    assert shard.ask() is not None
    began = shard.now
    assert shard.reader.next_deadline() == NEVER
    shard.reader.handle_iterator(GetShardIteratorResponse("it-0"), began + 0.1)
    assert shard.reader.next_deadline() == began, "an iterator can be used at once"
    assert shard.ask().iterator == "it-0"
    shard.reader.handle_page(GetRecordsResponse([RawRecord(b"x", "1", "k", 1.0)], "it-1", 5_000, ()), shard.now)
    assert shard.reader.poll_request(shard.now) is None
    assert shard.ask().iterator == "it-1"
    shard.reader.handle_failure(INVALID, shard.now)
    assert shard.reader.next_deadline() > shard.now + 0.2, "a refused iterator is asked for again after a pause"
    slow = ReaderShell()
    slow.now += 50.0
    slow.fail(THROTTLED)
    assert slow.reader.next_deadline() >= slow.now + 0.4, "throttling doubles the distance between two calls"
    full = ReaderShell(budget=PrefetchBudget(1_000)).start()
    full.page(1, data=bytes(2_000), behind=5_000)
    full.now += 10.0
    assert full.reader.next_deadline() <= full.now
    assert (full.reader.poll_request(full.now), full.reader.next_deadline()) == (None, NEVER), "the budget names it"


class Ages:
    """A trim watch that only notes the minimum age of the first record of a page."""

    def __init__(self):
        self.noted = []

    def handle_page(self, shard_id, least_age, most_age, now):  # noqa: ARG002 - the form of a trim watch
        self.noted.append(least_age)


def test_the_age_of_a_record_follows_from_the_lag_of_its_page_and_from_the_page_before():
    ages, shard = Ages(), ReaderShell()
    shard.reader = polling_reader(TRIM_HORIZON, shard.now, budget=shard.budget, trims=ages)
    shard.start()

    def page(*arrivals, behind):
        before = shard.now
        shard.page(*(RawRecord(b"x", "1", "k", at) for at in arrivals), behind=behind)
        return shard.now - before

    page(50.0, behind=10_000)
    page(60.0, 64.0, behind=6_000)
    page(behind=6_000)
    waited = page(65.0, behind=0)
    assert ages.noted == [10.0, 6.0, pytest.approx(waited + 6.0 - 1.0)]
    page(None, 66.0, behind=3_000)
    page(70.0, None, behind=2_000)
    page(71.0, behind=None)
    assert ages.noted[3:] == [3.0, pytest.approx(2.0, abs=1.0), 0.0]


def test_a_failure_names_its_call_and_iterators_that_are_always_refused_end_a_reader():
    shard = ReaderShell()
    shard.fail(THROTTLED)
    (failed,) = shard.reader.take_events()
    assert (failed.operation, failed.retry_at, shard.reader.failure) == (
        "GetShardIterator",
        shard.reader.next_deadline(),
        None,
    )
    for _ in range(3):
        shard.start()
        shard.fail(INVALID)
    shard.start()
    assert shard.reader.take_events() == []
    shard.fail(INVALID)
    (failed,) = shard.reader.take_events()
    assert (failed.operation, shard.reader.failure, shard.reader.state) == ("GetRecords", INVALID, ReaderState.FAILED)


@pytest.mark.parametrize(("first", "events"), [(500, []), (501, [RecordsTrimmed])])
def test_only_a_checkpoint_whose_record_does_not_come_first_was_trimmed(first, events):
    shard = ReaderShell(at_sequence_number("500")).start()
    shard.page()
    shard.page(first)
    assert [type(event) for event in shard.reader.take_events()] == events
    shard.page(900)
    assert shard.reader.take_events() == []


def test_what_is_not_open_counts_against_the_budget_and_is_dropped_by_a_stop():
    blob, child = aggregate([("k", b"x")] * 6_000), ChildShardShape("b", ("a",), HashKeyRangeShape("0", "1"))
    shard = ReaderShell(budget=PrefetchBudget(100_000)).start()
    raws = [RawRecord(blob, str(number), "k", 1.0) for number in range(1, 6)]  # two of them make a slice
    shard.page(*raws, following=None, children=(child,))
    reader, budget, other = shard.reader, shard.budget, ("s", "b")
    budget.hold(other, 1)
    pages = reader.take_pages()
    assert (reader.take_pages(), reader.next_deadline(), reader.has_caught_up) == ([], NEVER, False)
    for place in range(3):
        (page,) = pages
        assert (page.is_last, page.child_shards) == ((True, (child.to_child(),)) if place == 2 else (False, ()))
        budget.release(reader.key, page.held_bytes)
        assert budget.admits(other) == (place > 0), "three aggregates wait, one, none"
        pages = reader.take_pages()
    assert (pages, reader.has_caught_up, reader.state) == ([], True, ReaderState.ENDED)
    roomy = ReaderShell(budget=PrefetchBudget(64 * MIB)).start()
    roomy.page(*raws)
    assert len(roomy.reader.take_pages()) == 1, "a slice at a time"
    again = ReaderShell(budget=PrefetchBudget(MIB)).start()
    again.page(*raws, following=None)
    again.reader.stop()
    assert (again.reader.take_pages(), again.reader.has_unopened, again.budget.total_bytes) == ([], False, 0)
