"""Tests of ``shardline.core.consumer.dedup_window``."""

from dataclasses import replace

import pytest

from shardline.codec.stamps import NUMBERS, StampRun
from shardline.core.consumer import dedup_window as module
from shardline.core.consumer.dedup_window import DedupWindow, SeenStamps
from shardline.model.lease import Checkpoint, Lease
from shardline.model.position import LATEST, SHARD_END, TRIM_HORIZON, at_sequence_number, at_timestamp
from shardline.model.sequence import SequenceNumber

ID = b"abcdefghij"
OTHER = b"0123456789"


def at(number, sub_sequence=0):
    return Checkpoint(at_sequence_number(SequenceNumber(number, sub_sequence)))


END = Checkpoint(SHARD_END)


def window(row=None, *parents):
    return DedupWindow.inherited(row or Lease("shard"), parents)


def run(first, length=1, place=0, producer=ID):
    return StampRun(place, producer, first, length)


def seen(text):
    return SeenStamps.decode(text)


def known(one, numbers, producer=ID):
    """Which of the numbers are known to a window? Afterwards, all are."""
    return [number for number in numbers if not one.admit(10**6, run(number, producer=producer), 0.0)]


# ---- the set


def test_consecutive_numbers_are_one_range():
    one = SeenStamps()
    assert all(one.add(ID, number, number + 1, 1.0) for number in range(1000))
    assert not any(one.add(ID, number, number + 1, 1.0) for number in range(1000))
    assert (len(one), one.producers) == (1, 1)
    assert one.encode() == "abcdefghij@1:0-3e8"


@pytest.mark.parametrize(
    ("order", "text"),
    [
        ([(0, 1), (2, 3), (1, 2)], "0-3"),
        ([(5, 6), (0, 1)], "0-1,5-6"),
        ([(5, 6), (4, 5)], "4-6"),
        ([(0, 1), (3, 4), (1, 2)], "0-2,3-4"),
        ([(0, 1), (3, 4), (6, 7), (1, 6)], "0-7"),
        ([(0, 5), (2, 9)], "0-9"),
        ([(0, 5), (2, 4)], "0-5"),
        ([(0, 5), (7, 9), (2, 7)], "0-9"),
        ([(3, 5), (0, 9)], "0-9"),
    ],
)
def test_ranges_are_joined(order, text):
    one = SeenStamps()
    for first, end in order:
        one.add(ID, first, end, 0.0)
    assert one.encode() == f"abcdefghij@0:{text}"
    assert len(one) == text.count("-")


def test_the_first_number_says_whether_a_range_is_new():
    one = seen("abcdefghij@0:0-5")
    assert not one.add(ID, 4, 9, 0.0)
    assert one.add(ID, 9, 10, 0.0)


@pytest.mark.parametrize(
    ("first", "end", "is_new", "text"),
    [
        (0, 1, True, "1:0-1,2-5,8-9"),
        (0, 2, True, "1:0-5,8-9"),
        (0, 3, None, "0:2-5,8-9"),
        (2, 3, False, "0:2-5,8-9"),
        (2, 5, False, "0:2-5,8-9"),
        (3, 6, None, "0:2-5,8-9"),
        (5, 7, True, "1:2-7,8-9"),
        (5, 8, True, "1:2-9"),
        (6, 7, True, "1:2-5,6-7,8-9"),
        (6, 8, True, "1:2-5,6-9"),
        (5, 9, None, "0:2-5,8-9"),
        (8, 9, False, "0:2-5,8-9"),
        (8, 12, None, "0:2-5,8-9"),
        (9, 12, True, "1:2-5,8-c"),
        (12, 13, True, "1:2-5,8-9,c-d"),
    ],
)
def test_a_set_admits_a_range_of_which_it_knows_nothing(first, end, is_new, text):
    one = seen("abcdefghij@0:2-5,8-9")
    assert one.admit(ID, first, end, 1.0) is is_new
    assert one.encode() == f"abcdefghij@{text}"
    assert len(one) == text.count("-")
    assert one.admit(OTHER, first, end, 1.0) is True


def test_records_may_arrive_out_of_order():
    one = seen("abcdefghij@5:2-5")
    assert one.admit(ID, 7, 8, 4.0)
    assert one.encode() == "abcdefghij@5:2-5,7-8"


def test_a_full_set_forgets_the_lowest_ranges_and_counts_them(monkeypatch):
    monkeypatch.setattr(module, "RANGES_MAX", 3)
    one = seen("0123456789@0:0-1")
    for number in (0, 2, 4, 6):
        assert one.add(ID, number, number + 1, 0.0)
    assert (len(one), one.forgotten) == (3, 2)
    assert one.encode() == "0123456789@0:0-1;abcdefghij@0:4-5,6-7"
    assert one.add(ID, 0, 1, 0.0), "a copy gets through"


def test_a_full_set_forgets_an_eighth_at_once_from_the_ids_with_the_most_ranges(monkeypatch):
    monkeypatch.setattr(module, "RANGES_MAX", 16)
    one = seen("0123456789@0:0-1,2-3,4-5,6-7")
    for number in range(0, 26, 2):
        assert one.add(ID, number, number + 1, 0.0)
    assert (len(one), one.forgotten) == (14, 3)
    assert one.encode() == "0123456789@0:0-1,2-3,4-5,6-7;abcdefghij@0:" + ",".join(
        f"{number:x}-{number + 1:x}" for number in range(6, 26, 2)
    )


def test_no_id_loses_its_last_range():
    one = SeenStamps()
    for number in range(3_000):
        one.add(b"%010d" % (number % module.PRODUCERS_MAX), 2 * number, 2 * number + 1, 0.0)
    assert one.producers == module.PRODUCERS_MAX
    assert len(one) + one.forgotten == 3_000
    assert min(len(numbers.bounds) for numbers in one.by_id.values()) >= 2
    assert seen(one.encode()).encode() == one.encode()


def test_a_full_set_forgets_the_id_that_was_silent_for_longest(monkeypatch):
    monkeypatch.setattr(module, "PRODUCERS_MAX", 2)
    one = SeenStamps()
    one.add(ID, 0, 1, 100.0)
    one.add(OTHER, 0, 1, 50.0)
    one.add(ID, 1, 2, 20.0)
    one.add(b"xxxxxxxxxx", 0, 1, 120.0)
    assert (one.producers, len(one), one.forgotten) == (2, 2, 1)
    assert one.encode() == "abcdefghij@64:0-2;xxxxxxxxxx@78:0-1"


def test_ids_that_take_turns_are_forgotten_in_the_order_of_their_last_records(monkeypatch):
    monkeypatch.setattr(module, "PRODUCERS_MAX", 3)
    one = SeenStamps()
    for number, producer in enumerate(b"abcabdaefaeg"):
        one.add(b"%c" % producer * 10, number, number + 1, float(number))
    assert sorted(one.by_id) == [b"aaaaaaaaaa", b"eeeeeeeeee", b"gggggggggg"]
    assert one.forgotten == 4  # c, b, d and f


def test_an_id_that_was_silent_for_an_hour_is_forgotten_without_being_counted(monkeypatch):
    monkeypatch.setattr(module, "PRODUCERS_MAX", 2)
    one = seen("abcdefghij@0:0-1,5-6;0123456789@0:0-1")
    one.add(b"xxxxxxxxxx", 0, 1, module.SILENCE_MAX + 1)
    assert (one.producers, len(one), one.forgotten) == (1, 1, 0)


@pytest.mark.parametrize(
    "text",
    [
        "x",
        "short@0:0-1",
        "abcdefghij",
        "abcdefghij@0",
        "abcdefghij@0:",
        "abcdefghij@x:0-1",
        "abcdefghij@0:1-1",
        "abcdefghij@0:2-1",
        "abcdefghij@0:0-1,",
        f"abcdefghij@0:0-{NUMBERS + 1:x}",
        "abcdefghij@0:-1-2",
    ],
)
def test_a_broken_text_is_refused(text):
    with pytest.raises(ValueError, match=r"."):
        seen(text)


def test_a_full_window_takes_a_few_kilobytes():
    one = SeenStamps()
    for number in range(2 * module.PRODUCERS_MAX):
        for first in (NUMBERS - 1, NUMBERS - 3):
            one.add(b"%010d" % number, first, first + 1, 1.8e9)
    assert (one.producers, len(one)) == (module.PRODUCERS_MAX, module.RANGES_MAX)
    assert len(one.encode()) < 7_000
    assert seen(one.encode()).encode() == one.encode()


# ---- the window of a lease


def test_a_copy_is_recognised_wherever_it_is():
    one = window()
    assert one.admit_run(5, run(0, 3), 1.0)
    assert one.admit_run(6, run(2, 2), 1.0) is None, "one of them is a copy"
    assert one.admit_run(6, run(0, 3), 1.0) is False
    assert not one.admit(6, run(2), 1.0)
    assert one.admit(6, run(3), 1.0)
    assert one.admit(6, run(2, producer=OTHER), 1.0)


def test_only_stamps_at_or_before_the_checkpoint_are_stored():
    one = window()
    one.admit_run(5, run(0, 3), 1.0)
    one.admit_run(6, run(3, 4, place=2), 1.0)
    assert one.encode_through(at(4)) == "1 4.0 "
    assert one.encode_through(at(5, 1)) == "1 5.1 abcdefghij@1:0-2"
    assert one.encode_through(at(6, 1)) == "1 6.1 abcdefghij@1:0-3"
    assert one.encode_through(at(6, 3)) == "1 6.3 abcdefghij@1:0-5"
    assert one.encode_through(at(6, 3)) == "1 6.3 abcdefghij@1:0-5"
    assert one.encode_through(at(9)) == "1 9.0 abcdefghij@1:0-7"
    one.admit_run(10, run(9), 1.0)
    assert one.encode_through(END) == "1 END abcdefghij@1:0-7,9-a"


def test_consecutive_stamps_before_the_checkpoint_are_stored_as_one_range():
    one = window()
    for number in range(3):
        one.admit(5 + number, run(number), 1.0)
    one.admit(8, run(3, producer=OTHER), 1.0)
    one.admit(9, run(3), 1.0)
    one.admit(10, run(7), 1.0)
    assert one.encode_through(at(11)) == f"1 11.0 abcdefghij@1:0-4,7-8;{OTHER.decode()}@1:3-4"


def test_the_next_owner_knows_the_stored_stamps_and_no_others():
    one = window()
    one.admit_run(5, run(0, 3), 1.0)
    one.admit_run(6, run(3, 4), 1.0)
    row = Lease("shard", checkpoint=at(6, 1), window=one.encode_through(at(6, 1)))
    assert known(window(row), range(8)) == [0, 1, 2, 3, 4]
    assert known(window(replace(row, checkpoint=at(7))), range(8)) == [0, 1, 2, 3, 4], "another consumer went on"


@pytest.mark.parametrize(
    "checkpoint",
    [at(6, 0), at(5, 9), Checkpoint(TRIM_HORIZON), Checkpoint(LATEST), Checkpoint(at_timestamp(5.0))],
)
def test_stamps_do_not_count_after_a_checkpoint_went_back(checkpoint):
    row = Lease("shard", checkpoint=checkpoint, window="1 6.1 abcdefghij@1:0-5")
    assert known(window(row), range(3)) == []


@pytest.mark.parametrize("text", ["", "2 6.1 abcdefghij@1:0-5", "1 x.y abcdefghij@1:0-5", "1 6.1 x", "1", "1 END "])
def test_a_text_that_cannot_be_read_does_not_count(text):
    assert known(window(Lease("shard", checkpoint=at(7), window=text)), range(3)) == []


def test_a_child_inherits_the_stamps_of_its_finished_parents():
    parents = [
        Lease("one", checkpoint=END, window="1 END abcdefghij@1:0-2"),
        Lease("two", checkpoint=END, window="1 9.1 abcdefghij@2:5-6;0123456789@3:0-1"),
    ]
    child = window(Lease("child"), *parents)
    assert child.encode_through(END) == "1 END abcdefghij@2:0-2,5-6;0123456789@3:0-1"
    assert known(window(Lease("child"), parents[0], replace(parents[1], checkpoint=at(10))), range(8)) == [0, 1]
    assert known(window(Lease("child"), Lease("old", checkpoint=END)), range(8)) == []


def test_a_child_that_has_begun_has_its_own_stamps():
    parent = Lease("one", checkpoint=END, window="1 END abcdefghij@1:0-2")
    assert known(window(Lease("child", checkpoint=at(3), window="1 3.0 "), parent), range(3)) == []
    assert known(window(Lease("child", checkpoint=Checkpoint(LATEST)), parent), range(3)) == []


def test_a_lost_position_clears_the_window():
    one = window(Lease("shard", checkpoint=at(6), window="1 6.0 abcdefghij@1:0-5"))
    one.admit_run(7, run(5), 1.0)
    one.clear()
    assert one.encode_through(at(8)) == "1 8.0 "
    assert known(one, range(6)) == []


def test_forgotten_stamps_are_reported_once(monkeypatch):
    monkeypatch.setattr(module, "RANGES_MAX", 2)
    one = window()
    assert not one.has_forgotten
    for number in (0, 2, 4, 6):
        one.admit(1, run(number), 0.0)
    assert one.has_forgotten
    assert one.take_forgotten() == 2
    assert not one.has_forgotten
    inherited = window(Lease("shard", checkpoint=at(6), window="1 6.0 abcdefghij@1:0-1,2-3,4-5"))
    assert not inherited.has_forgotten
