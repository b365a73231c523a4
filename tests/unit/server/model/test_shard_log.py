"""Tests of ``server.model.shard_log``."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardline.server.model.shard_log import ShardLog, StoredRecord


def filled(sizes, step=1.0):
    log = ShardLog()
    for number, size in enumerate(sizes, 1):
        log.extend([StoredRecord(str(number), number * step, b"x" * size)], [size])
    return log


def numbers(records):
    return [int(record.sequence_number) for record in records]


@given(st.lists(st.integers(0, 50), max_size=30), st.integers(1, 10), st.integers(1, 100), st.integers(0, 30))
def test_pages_go_through_everything_once_within_their_limits(sizes, most, most_bytes, trimmed):
    log = filled(sizes)
    log.trim(trimmed + 0.5)
    left = list(range(min(trimmed, len(sizes)) + 1, len(sizes) + 1))
    place, seen = 0, []
    while True:
        records, after, size = log.page(place, most, most_bytes)
        assert size == sum(sizes[number - 1] for number in numbers(records))
        assert len(records) <= most
        assert size <= most_bytes or len(records) == 1
        if not records:
            assert after == log.next
            break
        fits_more = len(records) < most and after < log.next
        assert not fits_more or size + sizes[after - 1] > most_bytes
        seen += numbers(records)
        place = after
    assert seen == left


def test_an_empty_log_gives_an_empty_page_and_keeps_the_place():
    log = ShardLog()
    for place, after in ((0, 1), (7, 7)):
        page, *rest = log.page(place, 10, 10)
        assert (list(page), rest) == ([], [after, 0])
    assert log.arrival_of(1) is None


def test_a_time_is_found():
    log = filled([1] * 5, step=10.0)
    assert [log.place_of_time(when) for when in (0, 10, 10.001, 50, 51)] == [1, 1, 2, 5, 6]
    assert log.arrival_of(0) == 10.0
    assert log.arrival_of(5) == 50.0
    assert log.arrival_of(6) is None


def test_trimming_takes_the_front_and_numbers_go_on():
    log = filled([1] * 5)
    assert log.trim(3.0) == 2
    assert log.trim(3.0) == 0
    assert (log.first, log.next) == (3, 6)
    assert log.trim(99.0) == 3
    assert (log.first, log.next) == (6, 6)
    log.extend([StoredRecord("6", 6.0, b"x")], [1])
    assert numbers(log.page(1, 10, 10)[0]) == [6]


@pytest.mark.internal_error
def test_a_restored_log_begins_later():
    log = ShardLog()
    log.restore(41)
    assert (log.first, log.next) == (41, 41)
    log.extend([StoredRecord("41", 1.0, b"")], [0])
    with pytest.raises(AssertionError):
        log.restore(1)


@given(
    st.lists(st.lists(st.integers(0, 9_000), min_size=1, max_size=6), max_size=8),
    st.integers(0, 8),
    st.integers(1, 50),
    st.integers(1, 9),
)
def test_pages_cut_batches_anywhere(batches, trimmed, place, most):
    log = ShardLog()
    expected = []
    for time, sizes in enumerate(batches, 1):
        records = [StoredRecord(str(log.next + at), time, bytes(size), f"k-{time}") for at, size in enumerate(sizes)]
        log.extend(records, sizes)
        expected += records
    assert log.trim(trimmed + 0.5) == sum(map(len, batches[:trimmed]))
    assert list(log.records) == expected[log.first - 1 :]
    assert log.records[-1:] == expected[log.first - 1 :][-1:]
    assert [log.records[at] for at in range(len(log.records))] == expected[log.first - 1 :]
    page, after, size = log.page(place, most, 1_000_000)
    start = max(place, log.first)
    assert list(page) == expected[start - 1 : start - 1 + most]
    assert (len(page), size) == (len(list(page)), sum(len(one.data) for one in page))
    assert after == start + len(page)
    assert msgspec.json.decode(page.to_json(b'{"a":', b',"b":1}')) == {"a": msgspec.to_builtins(list(page)), "b": 1}
    if len(page):
        assert page[0] == expected[start - 1]
        assert log.arrival_of(place) == page[0].arrived_at
        assert log.place_of_time(page[0].arrived_at) <= start


def test_memory_of_what_was_trimmed_is_let_go_of():
    log = ShardLog()
    for time in range(300):
        log.extend([StoredRecord(str(time), time, bytes(10_000))], [10_000])
    held = list(log._segments._segments.values())
    assert sum(map(len, held)) < 300 * 14_000 + 1024 * 1024
    log.trim(299)
    assert list(log._segments._segments.values()) == held[-1:]
    log.trim(999)
    assert log._segments._segments == {}
    log.extend([StoredRecord("301", 1_000.0, b"x")], [1])
    assert [one.data for one in log.records] == [b"x"]
