"""A shard that is read by one worker after another, with crashes, against a naive model: is a copy handed out only if
the window had to forget it, and is every record handled?
"""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardline.codec.aggregation import encode_aggregate
from shardline.codec.shapes import RawRecord
from shardline.codec.stamps import encode_stamp, shorten
from shardline.core.consumer import dedup_window
from shardline.core.consumer.deaggregator import Deaggregator
from shardline.core.consumer.dedup_window import DedupWindow, SeenStamps
from shardline.model.lease import Checkpoint, Lease
from shardline.model.position import SHARD_END, TRIM_HORIZON, at_sequence_number
from shardline.model.record import Origin
from shardline.model.sequence import SequenceNumber

IDS = [b"abcdefghij", b"0123456789", b"xxxxxxxxxx"]
# Aggregates of (id, number) pairs. Few ids and numbers make many copies.
stamp = st.tuples(st.sampled_from(IDS), st.integers(0, 12))
shard = st.lists(st.lists(stamp, min_size=1, max_size=6), min_size=1, max_size=10)
# For each owner: how many records it handles, and how many of these it commits.
owners = st.lists(st.tuples(st.integers(0, 20), st.floats(0, 1)), max_size=8)


def raw(number, stamps):
    last, tags = b"", {}
    for place, (producer, count) in enumerate(stamps):
        long = encode_stamp(producer, count)
        tags[place], last = shorten(long) if producer == last else long, producer
    data = [b"%s %d" % one for one in stamps]
    return RawRecord(encode_aggregate(["k"] * len(stamps), data, {}, tags), str(number), "k", float(number))


def read(row, raws, parents=()):
    """What the owner of the row hands out, and its window."""
    at = row.checkpoint.sequence_number
    left = [one for one in raws if at is None or int(one.sequence_number) >= at.number]
    opener = Deaggregator("s", "a", done=at, window=DedupWindow.inherited(row, parents))
    return opener.open(left, Origin()), opener.window


def follow(raws, plan, row=None, parents=()):
    """Let one owner after another read the shard, and the last one finish it. Return the handled places and the row."""
    row, handled = row or Lease("a", checkpoint=Checkpoint(TRIM_HORIZON)), []
    for count, share in [*plan, (10**6, 1.0)]:
        records, window = read(row, raws, parents)
        done = records[:count]
        handled.append([(int(one.sequence_number), one.sub_sequence, one.data) for one in done])
        committed = done[: int(share * len(done))]
        if committed:
            checkpoint = Checkpoint(at_sequence_number(committed[-1].order))
            row = Lease("a", checkpoint=checkpoint, window=window.encode_through(checkpoint))
    return handled, Lease("a", checkpoint=Checkpoint(SHARD_END), window=window.encode_through(Checkpoint(SHARD_END)))


@settings(max_examples=300, deadline=None)
@given(shard, owners)
def test_every_record_is_handled_and_of_its_copies_only_the_first(aggregates, plan):
    raws = [raw(number, stamps) for number, stamps in enumerate(aggregates, 10)]
    handled, _ = follow(raws, plan)
    first = {}
    for number, stamps in enumerate(aggregates, 10):
        for place, one in enumerate(stamps):
            first.setdefault(b"%s %d" % one, (number, place))
    places = {}
    for part in handled:
        for number, place, data in part:
            places.setdefault(data, set()).add((number, place))
    assert places == {data: {place} for data, place in first.items()}


@settings(max_examples=150, deadline=None)
@given(shard, shard, owners, owners)
def test_a_child_hands_out_no_copy_of_its_parents_records(before, after, first_plan, second_plan):
    parents = [raw(number, stamps) for number, stamps in enumerate(before, 10)]
    _, parent = follow(parents, first_plan)
    children = [raw(number, stamps) for number, stamps in enumerate(after, 1000)]
    handled, _ = follow(children, second_plan, parents=[parent])
    seen = {b"%s %d" % one for stamps in before for one in stamps}
    expected = {b"%s %d" % one for stamps in after for one in stamps} - seen
    assert {data for part in handled for _, _, data in part} == expected


@settings(max_examples=150, deadline=None)
@given(shard, owners, st.integers(1, 3), st.integers(1, 2))
def test_a_window_without_room_lets_copies_through_and_drops_no_record(aggregates, plan, ranges, producers):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dedup_window, "RANGES_MAX", producers + ranges)
        patch.setattr(dedup_window, "PRODUCERS_MAX", producers)
        raws = [raw(number, stamps) for number, stamps in enumerate(aggregates, 10)]
        handled, _ = follow(raws, plan)
    assert {data for part in handled for _, _, data in part} == {
        b"%s %d" % one for stamps in aggregates for one in stamps
    }


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 40), st.integers(1, 9))))
def test_a_set_of_ranges_is_a_set_of_numbers(ranges):
    seen, model = SeenStamps(), set()
    for first, length in ranges:
        assert seen.add(IDS[0], first, first + length, 0.0) == (first not in model)
        model |= {*range(first, first + length)}
        bounds = [(first, end) for _, first, end, _ in seen.ranges()]
        assert {number for first, end in bounds for number in range(first, end)} == model
        assert all(end < following for (_, end), (following, _) in pairwise(bounds))
        assert len(seen) == len(bounds)
        assert seen.admit(IDS[0], first, first + length, 0.0) is False
    assert SeenStamps.decode(seen.encode()).encode() == seen.encode()


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 40), st.integers(1, 9))))
def test_a_set_admits_only_ranges_without_known_numbers(ranges):
    seen, model = SeenStamps(), set()
    for first, length in ranges:
        numbers = {*range(first, first + length)}
        is_new = seen.admit(IDS[0], first, first + length, 0.0)
        assert is_new is (None if numbers & model and numbers - model else not numbers & model)
        model |= numbers if is_new else set()
        bounds = [(low, end) for _, low, end, _ in seen.ranges()]
        assert {number for low, end in bounds for number in range(low, end)} == model
        assert all(end < following for (_, end), (following, _) in pairwise(bounds))
        assert len(seen) == len(bounds)


def test_the_model_has_copies():
    raws = [raw(10, [(IDS[0], 1)]), raw(11, [(IDS[0], 1)])]
    assert SequenceNumber(10) == read(Lease("a"), raws)[0][0].order
    assert len(read(Lease("a"), raws)[0]) == 1
