"""Tests of ``shardline.core.consumer.deaggregator``."""

import pytest

from shardline.codec.aggregation import encode_aggregate, encode_tags
from shardline.codec.raw_records import aggregate
from shardline.codec.shapes import RawRecord
from shardline.codec.stamps import encode_stamp, shorten
from shardline.core.consumer import deaggregator as module
from shardline.core.consumer.deaggregator import Deaggregator
from shardline.core.consumer.dedup_window import DedupWindow, SeenStamps
from shardline.model.hashing import HASH_KEY_MAX, HashRange, hash_key_of
from shardline.model.headers import NO_HEADERS
from shardline.model.lease import Checkpoint
from shardline.model.position import at_sequence_number
from shardline.model.record import Origin, Record
from shardline.model.sequence import SequenceNumber

ORIGIN = Origin()
LOW = HashRange(0, HASH_KEY_MAX // 2)


def keys(inside, count):
    found = (f"k{number}" for number in range(1000))
    return [key for key in found if (hash_key_of(key) in LOW) == inside][:count]


IN, OUT = keys(inside=True, count=3), keys(inside=False, count=3)


def raw(data, number, key="k"):
    return RawRecord(data, str(number), key, 5.0)


def opener(**facts):
    return Deaggregator("orders", "shard", **facts)


def test_plain_records_come_as_they_are():
    (record,) = opener().open([raw(b"x", 12)], ORIGIN)
    assert record == Record(b"x", "k", None, "12", 0, "shard", 5.0, "orders", aggregated=False)
    assert record.origin is ORIGIN


def test_the_records_of_an_aggregate_come_in_order_between_plain_ones():
    blob = aggregate([("a", b"1"), ("b", b"2", "7")])
    records = opener().open([raw(b"x", 1), raw(blob, 2), raw(b"y", 3)], ORIGIN)
    assert [(one.data, one.key, one.sequence_number, one.sub_sequence, one.aggregated) for one in records] == [
        (b"x", "k", "1", 0, False),
        (b"1", "a", "2", 0, True),
        (b"2", "b", "2", 1, True),
        (b"y", "k", "3", 0, False),
    ]
    assert records[2].explicit_hash_key == "7"
    assert {(one.shard_id, one.stream, one.arrived_at) for one in records} == {("shard", "orders", 5.0)}
    assert all(one.origin is ORIGIN for one in records)


def test_no_records_give_none():
    assert opener().open([], ORIGIN) == []


@pytest.mark.parametrize(
    ("done", "left"),
    [
        (SequenceNumber(1, 0), [("2", 0), ("2", 1), ("2", 2), ("3", 0)]),
        (SequenceNumber(2, 0), [("2", 1), ("2", 2), ("3", 0)]),
        (SequenceNumber(2, 1), [("2", 2), ("3", 0)]),
        (SequenceNumber(2, 2), [("3", 0)]),
        (SequenceNumber(2, 99), [("3", 0)]),
        (SequenceNumber(3, 0), []),
        (SequenceNumber(0, 0), [("1", 0), ("2", 0), ("2", 1), ("2", 2), ("3", 0)]),
    ],
)
def test_what_is_at_or_before_the_checkpoint_is_skipped(done, left):
    blob = aggregate([("a", b"1"), ("b", b"2"), ("c", b"3")])
    found = opener(done=done).open([raw(b"x", 1), raw(blob, 2), raw(b"y", 3)], ORIGIN)
    assert [(one.sequence_number, one.sub_sequence) for one in found] == left


def test_the_checkpoint_is_forgotten_after_the_first_record_beyond_it():
    one = opener(done=SequenceNumber(5))
    assert one.open([raw(b"x", 5)], ORIGIN) == []
    assert len(one.open([raw(b"x", 6)], ORIGIN)) == 1
    assert len(one.open([raw(b"x", 4)], ORIGIN)) == 1


def test_nothing_is_skipped_once_the_checkpoint_means_nothing():
    one = opener(done=SequenceNumber(5))
    one.stop_skipping()
    assert len(one.open([raw(b"x", 1)], ORIGIN)) == 1


MIXED = aggregate([(IN[0], b"in"), (OUT[0], b"out"), (IN[1], b"in"), (OUT[0], b"out")])


def test_or_dropped_one_by_one():
    one = opener(hash_range=LOW, drop=True)
    found = one.open([raw(MIXED, 1)], ORIGIN)
    assert [(record.data, record.sub_sequence) for record in found] == [(b"in", 0), (b"in", 2)]
    assert one.out_of_range == 2


def test_an_aggregate_of_this_shard_alone_is_left_as_it_is():
    one = opener(hash_range=LOW, drop=True)
    assert len(one.open([raw(aggregate([(key, b"x") for key in IN]), 1)], ORIGIN)) == 3
    assert one.out_of_range == 0


def test_without_a_range_nothing_is_outside():
    one = opener(drop=True)
    assert len(one.open([raw(MIXED, 1)], ORIGIN)) == 4


def test_what_is_no_hash_key_decides_nothing(monkeypatch):
    columns = module.Columns([IN[0], OUT[0]], [b"in", b"out"], ["not a number", "-1"])
    monkeypatch.setattr(module, "split_frame", lambda _: columns)
    one = opener(hash_range=LOW, drop=True)
    assert [record.data for record in one.open([raw(MIXED, 1)], ORIGIN)] == [b"in"]


def test_plain_records_are_never_out_of_range():
    one = opener(hash_range=LOW, drop=True)
    assert len(one.open([raw(b"x", 1, OUT[0])], ORIGIN)) == 1
    assert one.out_of_range == 0


def test_an_explicit_hash_key_decides_instead_of_the_key():
    inside, outside = str(LOW.end), str(LOW.end + 1)
    blob = aggregate([(IN[0], b"out", outside), (OUT[0], b"in", inside), (IN[1], b"in")])
    one = opener(hash_range=LOW, drop=True)
    assert [record.data for record in one.open([raw(blob, 1)], ORIGIN)] == [b"in", b"in"]
    assert one.out_of_range == 1


@pytest.mark.parametrize(("enough", "opened"), [(1, 1), (2, 1), (3, 2), (35, 18), (1_000, 40)])
@pytest.mark.parametrize("at_once", [1, 16])
def test_no_entry_is_opened_after_enough_records(monkeypatch, enough, opened, at_once):
    monkeypatch.setattr(module, "FRAMES_AT_ONCE", at_once)
    raws = [raw(aggregate([("a", b"1"), ("b", b"2")]), number) for number in range(40)]
    records, count = opener().open_some(raws, ORIGIN, enough)
    assert count == opened
    assert [record.data for record in records] == [b"1", b"2"] * opened


# ---- dedup


def stamped(*numbers, keys=None, headers=None):
    """An aggregate whose records have these numbers as stamps and as data. ``None`` stands for no stamp."""
    tags, has_id = {}, False
    for place, number in enumerate(numbers):
        if number is not None:
            long = encode_stamp(b"abcdefghij", number) + encode_tags(headers or {})
            tags[place], has_id = shorten(long) if has_id else long, True
    return encode_aggregate(keys or ["k"] * len(numbers), [b"%d" % (one or 0) for one in numbers], {}, tags)


def opened(one, *blobs):
    raws = [raw(blob, 10 + place) for place, blob in enumerate(blobs)]
    return [(int(record.sequence_number) - 10, record.sub_sequence) for record in one.open(raws, ORIGIN)]


def window():
    return DedupWindow(SeenStamps())


def test_copies_are_left_out_and_counted():
    one = opener(window=window())
    assert opened(one, stamped(0, 1), stamped(1, 2), stamped(0), stamped(3, None)) == [
        (0, 0),
        (0, 1),
        (1, 1),
        (3, 0),
        (3, 1),
    ]
    count, last = one.take_left_out()
    assert (count, last.sequence_number, last.sub_sequence) == (2, "12", 0)
    assert one.take_left_out() == (0, None)


def test_without_dedup_copies_are_delivered_and_stamps_are_hidden():
    one = opener()
    records = one.open([raw(stamped(0), 1), raw(stamped(0, headers={"a": "b"}), 2)], ORIGIN)
    assert [record.headers for record in records] == [NO_HEADERS, {"a": "b"}]
    assert one.take_left_out() == (0, None)


def test_a_copy_inside_one_aggregate_is_left_out():
    one = opener(window=window())
    assert opened(one, stamped(5, 5, 6)) == [(0, 0), (0, 2)]


def test_a_record_that_is_dropped_for_its_hash_key_is_not_remembered():
    one = opener(window=window(), hash_range=LOW, drop=True)
    assert opened(one, stamped(0, 1, keys=[IN[0], OUT[0]]), stamped(1, keys=[IN[1]])) == [(0, 0), (1, 0)]
    one = opener(window=window(), hash_range=LOW, drop=True)
    assert opened(one, stamped(0, 1, keys=[OUT[0], OUT[0]]), stamped(0, keys=[IN[1]])) == [(1, 0)]


def test_a_record_that_the_checkpoint_covers_is_not_remembered_again():
    one = opener(window=window(), done=SequenceNumber(10, 1))
    assert opened(one, stamped(0, 1, 2), stamped(1), stamped(2)) == [(0, 2), (1, 0)]
    assert one.window.encode_through(Checkpoint(at_sequence_number(SequenceNumber(10, 2)))).endswith(":2-3")


def test_a_lost_position_lets_everything_through():
    one = opener(window=window())
    assert opened(one, stamped(0)) == [(0, 0)]
    one.stop_skipping()
    assert opened(one, stamped(0)) == [(0, 0)]


def test_the_origin_says_whether_a_record_may_have_headers():
    plain, without, with_headers = Origin(), Origin(), Origin()
    assert plain.may_have_headers, "nothing is known yet"
    opener().open([raw(b"plain", 1)], plain)
    opener().open([raw(aggregate([("a", b"1"), ("b", b"2")]), 1)], without)
    opener().open([raw(aggregate([("a", b"1"), ("b", b"2", {"name": "value"})]), 1), raw(b"plain", 2)], with_headers)
    assert [origin.may_have_headers for origin in (plain, without, with_headers)] == [False, False, True]
