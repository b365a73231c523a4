"""Tests of ``shardline.core.consumer.page_reader``: the same for both kinds of reader."""

import pytest
from tests.harness.fanout import CHILD, FanOutShell
from tests.harness.reader import ReaderShell

from shardline.codec.aggregation import encode_aggregate
from shardline.codec.raw_records import aggregate
from shardline.codec.shapes import RawRecord
from shardline.codec.stamps import encode_stamp
from shardline.core.consumer import dedup_window, page_reader
from shardline.core.consumer.consumer_events import DedupWindowOverflowed, PageRead, PositionLost
from shardline.core.consumer.consumer_totals import ReadCounts
from shardline.core.consumer.dedup_window import DedupWindow, SeenStamps
from shardline.core.consumer.prefetch import PrefetchBudget
from shardline.core.consumer.reader import ReaderState
from shardline.core.error_codes import Failure, FailureKind
from shardline.model.position import TRIM_HORIZON, at_sequence_number
from shardline.model.sequence import SequenceNumber

PAIR = aggregate([("k", b"1"), ("k", b"2")])
REFUSED = Failure(FailureKind.INVALID, "Code", "message", 400)


class Polling(ReaderShell):
    def begin(self):
        self.start()

    def last(self, *raws):
        self.page(*raws, following=None, children=(CHILD,))


class FanOut(FanOutShell):
    def begin(self):
        self.subscribe()

    def last(self, *raws):
        self.event(*raws, after=None, children=(CHILD,))


@pytest.fixture(params=[Polling, FanOut])
def shell_of(request):
    return request.param


def test_the_last_page_is_opened_in_slices_and_only_the_last_slice_ends_the_shard(shell_of, monkeypatch):
    monkeypatch.setattr(page_reader, "SLICE_RECORDS", 2)
    shell = shell_of(budget=PrefetchBudget(1))
    shell.begin()
    shell.last(*(RawRecord(PAIR, str(number), "k", 99.0) for number in (1, 2)))
    (first,) = shell.reader.take_pages()
    assert (len(first.records), first.is_last, first.child_shards) == (2, False, ())
    assert (shell.reader.take_pages(), shell.reader.has_unopened) == ([], True)
    shell.budget.release(shell.reader.key, first.held_bytes)
    (second,) = shell.reader.take_pages()
    assert (len(second.records), second.is_last, len(second.child_shards)) == (2, True, 1)
    assert shell.reader.state is ReaderState.ENDED
    assert not shell.reader.has_unopened


def test_the_end_is_reported_with_an_empty_page_if_all_its_records_are_done(shell_of):
    number = SequenceNumber(2)
    shell = shell_of(at_sequence_number(number), done=number)
    shell.begin()
    shell.last(2)
    (page,) = shell.reader.take_pages()
    assert (page.records, page.is_last, page.held_bytes) == ([], True, 0)


def test_stopping_drops_the_pages_and_the_unopened_rest(shell_of, monkeypatch):
    monkeypatch.setattr(page_reader, "SLICE_RECORDS", 2)
    shell = shell_of()
    shell.begin()
    shell.last(*(RawRecord(PAIR, str(number), "k", 99.0) for number in (1, 2)))
    shell.reader.stop()
    assert shell.reader.state is ReaderState.STOPPED
    assert shell.reader.take_pages() == []
    assert (shell.reader.has_unopened, shell.budget.total_bytes) == (False, 0)
    shell.reader.stop()  # a repeated call is harmless


def test_stopping_a_reader_that_has_ended_keeps_its_state(shell_of):
    shell = shell_of()
    shell.begin()
    shell.last()
    shell.reader.stop()
    assert shell.reader.state is ReaderState.ENDED


def test_a_refused_position_is_replaced_by_the_trim_horizon(shell_of):
    number = SequenceNumber(50)
    shell = shell_of(at_sequence_number(number), done=number)
    shell.fail(REFUSED)
    assert shell.reader.take_events() == [PositionLost("a", at_sequence_number(number), REFUSED)]
    assert shell.reader.position == TRIM_HORIZON
    shell.begin()
    shell.last(7)
    assert shell.numbers() == [7]


def test_a_reader_makes_no_change_of_state_that_the_table_does_not_list(shell_of):
    reader = shell_of().reader
    with pytest.raises(AssertionError, match="does not go from"):
        reader._enter(ReaderState.READING)


# ---- events about pages


def test_each_page_is_counted_and_reported_once(shell_of, monkeypatch):
    monkeypatch.setattr(page_reader, "SLICE_RECORDS", 2)
    counts = ReadCounts()
    shell = shell_of(counts=counts)
    shell.begin()
    shell.reader.take_events()
    counts.is_observed = True
    shell.last(*(RawRecord(PAIR, str(number), "k", 99.0) for number in (1, 2)))
    shell.reader.take_pages()
    assert shell.reader.take_events() == []  # a half of it waits to be opened
    assert counts.pages == 0
    shell.reader.take_pages()
    (read,) = shell.reader.take_events()
    kind = "polling" if shell_of is Polling else "fan-out"
    assert read == PageRead("a", 4, 2 * len(PAIR), read.duration, 0.0, kind, read.started_at)
    assert (counts.pages, counts.records, counts.size_bytes) == (1, 4, 2 * len(PAIR))


def test_pages_are_counted_without_events_if_nobody_listens(shell_of):
    counts = ReadCounts()
    shell = shell_of(counts=counts)
    shell.begin()
    shell.reader.take_events()
    shell.last(RawRecord(b"data", "1", "k", 99.0))
    assert shell.reader.take_events() == []
    assert (counts.pages, counts.records, counts.size_bytes) == (1, 1, 4)


def _stamped(number, *stamps):
    tags = {place: encode_stamp(b"abcdefghij", stamp) for place, stamp in enumerate(stamps)}
    return RawRecord(encode_aggregate(["k"] * len(stamps), [b"x"] * len(stamps), {}, tags), str(number), "k", 99.0)


def _dedup(shell):
    shell.reader._deaggregator.window = DedupWindow(SeenStamps())
    shell.begin()
    return shell


def test_a_copy_at_the_end_of_a_page_is_done_with_the_records_before_it(shell_of):
    shell = _dedup(shell_of())
    shell.last(_stamped(1, 0), _stamped(2, 0))
    (page,) = shell.reader.take_pages()
    assert [record.sequence_number for record in page.records] == ["1"]
    assert (page.repeated, page.through.sequence_number, page.is_last) == (1, "2", True)


def test_a_copy_before_the_end_of_a_page_is_covered_by_the_last_record(shell_of):
    shell = _dedup(shell_of())
    shell.last(_stamped(1, 0), _stamped(2, 0), _stamped(3, 1))
    (page,) = shell.reader.take_pages()
    assert [record.sequence_number for record in page.records] == ["1", "3"]
    assert (page.repeated, page.through) == (1, None)


def test_a_page_of_copies_alone_is_a_page_without_records(monkeypatch):
    monkeypatch.setattr(page_reader, "SLICE_RECORDS", 1)
    shell = _dedup(Polling())
    shell.page(_stamped(1, 0), _stamped(2, 0, 0))
    pages = [page for _ in range(2) for page in shell.reader.take_pages()]
    assert [(len(page.records), page.repeated, page.held_bytes > 0) for page in pages] == [(1, 0, True), (0, 2, False)]
    assert (pages[1].through.sequence_number, pages[1].through.sub_sequence) == ("2", 1)


def test_a_window_that_overflows_says_so(shell_of, monkeypatch):
    monkeypatch.setattr(dedup_window, "RANGES_MAX", 2)
    shell = _dedup(shell_of())
    shell.last(_stamped(1, 0, 2, 4), _stamped(2, 6))
    shell.reader.take_pages()
    events = [event for event in shell.reader.take_events() if isinstance(event, DedupWindowOverflowed)]
    assert events == [DedupWindowOverflowed("a", 2)]
