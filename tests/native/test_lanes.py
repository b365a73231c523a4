"""Does the compiled form sort records into lanes as the pure form does?"""

from hashlib import md5

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.native.forms import records

from shardline._speedups import native
from shardline.core.producer.aggregate import digest_of
from shardline.core.producer.producer_record import BufferedRecord
from shardline.model.hashing import HASH_KEY_MAX

pytestmark = pytest.mark.skipif(native is None, reason="compares the compiled form with the pure one")


def endings_of(cuts):
    return tuple(cut.to_bytes(16, "big") for cut in sorted({*cuts, HASH_KEY_MAX}))


def expected(endings, given_records):
    """Return the result by comparing each hash key with each ending."""
    lanes, others = {}, []
    for record in given_records:
        if record.key is None:
            others.append(record)
            continue
        digest = digest_of(record.key, record.explicit_hash_key)
        number = next(number for number, ending in enumerate(endings) if digest <= ending)
        lanes.setdefault(number, []).append(record)
    return sorted(lanes.items()), others


def digest_number(record):
    return int.from_bytes(digest_of(record.key, record.explicit_hash_key), "big")


@given(st.lists(records(), max_size=80), st.lists(st.integers(0, HASH_KEY_MAX), max_size=40), st.data())
def test_records_are_sorted_into_their_lanes_in_order(some, cuts, data):
    keyed = [record for record in some if record.key is not None]
    if keyed:  # the hash key of a record is the last one of a lane, the first one, or one beyond
        cuts += [max(0, digest_number(record) - data.draw(st.integers(0, 1))) for record in keyed[:5]]
    endings = endings_of(cuts)
    assert native.make_lane_table(endings).sort(some) == expected(endings, some)


@pytest.mark.parametrize("lanes", [1, 2, 3, 32, 1024, 5000])
def test_lanes_of_equal_size(lanes):
    endings = tuple(((number + 1) * 2**128 // lanes - 1).to_bytes(16, "big") for number in range(lanes))
    some = [BufferedRecord(b"", f"key {number}", None, 0.0) for number in range(2_000)]
    found, others = native.make_lane_table(endings).sort(some)
    assert others == []
    assert sum(len(group) for _, group in found) == len(some)
    for number, group in found:
        for record in group:
            digest = md5(record.key.encode()).digest()
            assert digest <= endings[number]
            assert number == 0 or digest > endings[number - 1]


def test_a_hash_key_beyond_the_last_lane_is_refused():
    table = native.make_lane_table((bytes(16),))
    with pytest.raises(IndexError):
        table.sort([BufferedRecord(b"", "k", None, 0.0)])
    with pytest.raises(IndexError):
        native.make_lane_table(()).sort([BufferedRecord(b"", "k", None, 0.0)])
    assert native.make_lane_table(()).sort([]) == ([], [])


@pytest.mark.parametrize("endings", [None, [bytes(16)], ("a" * 16,), (b"short",)])
def test_endings_of_another_type_are_refused(endings):
    with pytest.raises((TypeError, ValueError)):
        native.make_lane_table(endings)


@pytest.mark.parametrize(
    "some",
    [
        None,
        (),
        [None],
        [BufferedRecord(b"", 5, None, 0.0)],
        [BufferedRecord(b"", "\ud800", None, 0.0)],
        [BufferedRecord(b"", "k", "-1", 0.0)],
        [BufferedRecord(b"", "k", "ü", 0.0)],
        [BufferedRecord(b"", "k", 5, 0.0)],
        [BufferedRecord(b"", "k", str(2**128), 0.0)],
    ],
)
def test_sort_refuses_what_is_not_a_list_of_valid_records(some):
    with pytest.raises((TypeError, ValueError, OverflowError)):
        native.make_lane_table((b"\xff" * 16,)).sort(some)


def test_a_table_is_made_by_its_function_alone():
    with pytest.raises(TypeError):
        native.LaneTable(())
