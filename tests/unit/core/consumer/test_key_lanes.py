"""Which record may be handled next, given the keys in flight?"""

import pytest

from shardline.core.clock import NEVER
from shardline.core.consumer.key_lanes import HotKey, KeyLanes, ShardLanes
from shardline.model.record import Record

MANY = 1_000_000
ALL = 1_000


def records(keys):
    """Return one record for each letter. ``-`` means no key."""
    return [Record(b"", None if key == "-" else key) for key in keys]


def lanes(keys, *, by_key=True, shared=None, first=0, done=(), name="a"):
    made = ShardLanes(
        KeyLanes() if shared is None else shared, ("s", name), by_key=by_key, first=first, done=frozenset(done)
    )
    made.add(records(keys), 5.0)
    return made


def take(made, limit=1, end=MANY):
    """Return the places and the keys of the records that may be handled now."""
    return [(place, record.key) for place, record in made.take(limit, end)]


def places(made, limit=ALL, end=MANY):
    return [place for place, _ in made.take(limit, end)]


def one_by_one(made):
    """Take one record after the other, until no more may be handled."""
    found = []
    while taken := made.take(1, MANY):
        found += [place for place, _ in taken]
    return found


def test_records_of_different_keys_are_taken_one_after_the_other():
    assert one_by_one(lanes("abc")) == [0, 1, 2]


def test_a_record_waits_for_the_record_of_its_key_and_others_overtake_it():
    made = lanes("aab")
    assert one_by_one(made) == [0, 2]
    made.release(records("a"))
    assert one_by_one(made) == [1]
    made.release(records("ab"))
    assert one_by_one(made) == []


def test_c6_the_records_of_a_key_are_taken_in_order_however_many_wait():
    made, found = lanes("aaaa"), []
    for _ in range(4):
        found += one_by_one(made)
        made.release(records("a"))
    assert found == [0, 1, 2, 3]


def test_a_record_without_a_key_never_waits():
    made = lanes("---")
    assert one_by_one(made) == [0, 1, 2]
    made.release(records("-"))
    assert not made.has_waiting(MANY)


def test_without_order_no_record_waits():
    made = lanes("aaa", by_key=False)
    assert one_by_one(made) == [0, 1, 2]
    made.release(records("a"))
    assert made._keys.lanes == {}


def test_a_batch_has_several_records_of_a_key_in_order():
    assert take(lanes("abab"), 3) == [(0, "a"), (1, "b"), (2, "a")]


def test_a_key_is_in_one_batch_at_a_time():
    made = lanes("abcab")
    assert places(made, 2) == [0, 1]
    assert places(made, 2) == [2]
    made.release(records("ab"))
    assert places(made, 2) == [3, 4]


def test_a_batch_takes_the_records_that_waited_for_a_key_and_sorts_them():
    made = lanes("aabbab")
    assert (places(made, 1), places(made, 1)) == ([0], [2])
    assert places(made) == []
    made.release(records("b"))
    made.release(records("a"))
    assert places(made, 9) == [1, 3, 4, 5]
    assert made.waiting == 0


def test_a_full_batch_leaves_the_rest_of_a_key_in_its_lane():
    made = lanes("aaaaa")
    assert places(made, 1) == [0]
    assert places(made) == []
    made.release(records("a"))
    assert places(made, 2) == [1, 2]
    assert places(made, 2) == []
    made.release(records("a"))
    assert places(made, 9) == [3, 4]


def test_a_later_record_does_not_join_a_batch_before_one_that_waits():
    """The batch has the key, but it was full when the earlier record of the key was due."""
    shared = KeyLanes()
    made, other = lanes("a", shared=shared), lanes("aa", shared=shared, name="b")
    assert places(made) == [0]
    assert places(other, 1) == []
    made.release(records("a"))
    made.add(records("a"), 6.0)
    assert places(made) == [], "the record of the other shard comes first"
    assert places(other, 1) == [0]
    other.add(records("a"), 6.0)
    assert places(other) == []
    other.release(records("a"))
    assert places(made) == [], "two of the other shard were there before"
    assert places(other, 1) == [1]
    other.release(records("a"))
    assert (places(made), places(other)) == ([1], [])
    made.release(records("a"))
    assert places(other) == [2]


def test_one_key_in_two_shards_is_handled_in_one_of_them_at_a_time():
    shared = KeyLanes()
    first, second = lanes("a", shared=shared), lanes("a", shared=shared, name="b")
    assert (one_by_one(first), one_by_one(second)) == ([0], [])
    assert shared.take_freed() == []
    first.release(records("a"))
    assert shared.take_freed() == [("s", "b")]
    assert shared.take_freed() == []
    assert one_by_one(second) == [0]


def test_no_record_is_taken_too_far_ahead():
    made = lanes("abcd")
    assert made.has_waiting(1)
    assert places(made, end=2) == [0, 1]
    assert not made.has_waiting(2)
    assert made.has_waiting(3)
    assert places(made, end=3) == [2]


def test_records_that_are_done_already_are_left_out():
    made = lanes("abcd", first=10, done={11, 12})
    assert places(made) == [10, 13]
    assert made.next_place == 14


def test_records_that_are_put_back_are_the_first_to_be_taken_again():
    made = lanes("abc")
    taken = made.take(2, MANY)
    made.put_back(taken)
    assert one_by_one(made) == [0, 1, 2]


@pytest.mark.parametrize("size", [1, 9])
def test_only_the_first_of_the_records_of_a_key_that_are_put_back_may_be_taken(size):
    made = lanes("aabaa-")
    taken = made.take(3, MANY)
    assert [place for place, _ in taken] == [0, 1, 2]
    made.put_back(taken[:2])
    assert places(made, size) == ([0] if size == 1 else [0, 1, 3, 4, 5])
    made.release(records("a"))
    assert places(made, 1) == ([1] if size == 1 else [])


def test_records_that_are_put_back_come_before_those_that_waited_for_their_key():
    made = lanes("aaaa")
    taken = made.take(2, MANY)
    assert places(made) == []
    made.put_back(taken)
    assert places(made) == [0, 1, 2, 3]


def test_without_order_all_records_that_are_put_back_may_be_taken():
    made = lanes("aa", by_key=False)
    made.put_back(made.take(2, MANY))
    assert one_by_one(made) == [0, 1]


def test_closed_lanes_forget_their_records_and_keep_the_keys_in_flight():
    shared = KeyLanes()
    made, other = lanes("aab", shared=shared), lanes("a", shared=shared, name="b")
    assert (places(made, 1), places(made, 1), places(other)) == ([0], [2], [])
    made.close()
    assert (made.is_closed, made.waiting, made.has_waiting(MANY), places(made)) == (True, 0, False, [])
    assert set(shared.lanes) == {"a", "b"}
    made.release(records("ab"))
    assert places(other) == [0], "the record of the closed shard is passed over"
    other.release(records("a"))
    assert shared.lanes == {}


def test_closing_frees_the_keys_of_the_records_that_could_be_taken():
    shared = KeyLanes()
    made, other = lanes("aa", shared=shared), lanes("a", shared=shared, name="b")
    assert (places(made, 1), places(made), places(other)) == ([0], [], [])
    made.release(records("a"))
    made.close()
    assert shared.take_freed() == [("s", "a"), ("s", "b")]
    assert places(other) == [0]


def test_a_batch_passes_over_the_records_of_a_closed_shard():
    shared = KeyLanes()
    made, gone = lanes("aa", shared=shared), lanes("aa", shared=shared, name="b")
    assert (places(made, 1), places(gone), places(made)) == ([0], [], [])
    made.put_back([(0, records("a")[0])])
    gone.close()
    assert places(made) == [0, 1]


def test_the_oldest_record_that_may_be_taken_decides_how_long_a_batch_waits():
    made = lanes("aa")
    made.add(records("b"), 7.0)
    assert (made.waiting, made.oldest_at) == (3, 5.0)
    assert one_by_one(made) == [0, 2]
    assert (made.waiting, made.oldest_at) == (0, -NEVER)
    made.add(records("c"), 9.0)
    assert (made.waiting, made.oldest_at) == (1, 9.0)
    made.release(records("a"))
    assert (made.waiting, made.oldest_at) == (2, -NEVER), "it has waited already"


def test_an_empty_page_adds_nothing():
    made = lanes("")
    assert (made.waiting, made.oldest_at, places(made)) == (0, -NEVER, [])


def test_the_hot_keys_are_those_for_which_the_most_records_wait():
    made = lanes("abcaaab-b")
    assert one_by_one(made) == [0, 1, 2, 7]
    keys = made._keys
    assert keys.hot_keys(9) == [HotKey("a", 3), HotKey("b", 2)]
    assert keys.hot_keys(1) == [HotKey("a", 3)]
