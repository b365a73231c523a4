"""Does the compiled form fill, size and encode aggregates as the pure form does?"""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.native.forms import DATA, KEYS, pure_aggregates, records

from shardline._speedups import native, pure_twins
from shardline.codec.aggregation import split_columns
from shardline.core.producer.aggregate import Aggregate, KeylessAddress, entries_of
from shardline.core.producer.producer_record import BufferedRecord

pytestmark = pytest.mark.skipif(native is None, reason="compares the compiled form with the pure one")

ADDRESS = KeylessAddress("keyless", str(2**100))
ORDINARY = records(kinds=("ordinary",))


def tables(aggregate):
    """Return the numbers of an aggregate's keys and explicit hash keys."""
    numbers = [aggregate._keys.number_of(record.key or ADDRESS.key) for record in aggregate.records]
    hash_keys = [record.explicit_hash_key for record in aggregate.records if record.explicit_hash_key is not None]
    return numbers, len(aggregate._keys), [aggregate._hash_keys.number_of(key) for key in hash_keys]


def filled(batches, max_bytes):
    """Return the aggregates that hold these records, each filled by several calls."""
    made, current, log = [], Aggregate(0.0, ADDRESS), []
    for batch in batches:
        at = 0
        while at < len(batch):
            added = current.add_all(batch[at:], max_bytes)
            log.append((added, current.size, current.payload_bytes, tables(current)))
            at += added
            if at < len(batch):
                made.append(current)
                current = Aggregate(0.0, ADDRESS)
    if current.records:
        made.append(current)
    for aggregate in made:
        aggregate.seal()
    return made, log


@given(st.lists(st.lists(records(), max_size=12), max_size=4), st.sampled_from([0, 30, 300, 2_000, 51_200, 1 << 62]))
def test_aggregates_are_filled_and_encoded_alike(batches, max_bytes):
    made, log = filled(batches, max_bytes)
    with pure_aggregates():
        expected, expected_log = filled(batches, max_bytes)
        expected_entries = entries_of(expected)
    entries = entries_of(made)
    assert [aggregate.records for aggregate in made] == [aggregate.records for aggregate in expected]
    assert [aggregate.cost_bytes for aggregate in made] == [aggregate.cost_bytes for aggregate in expected]
    assert log[-1:] == expected_log[-1:]
    assert entries == expected_entries
    for aggregate, entry in zip(made, entries, strict=True):
        if len(aggregate.records) > 1:
            assert len(entry.data) == aggregate.size


@given(
    st.lists(st.tuples(st.lists(ORDINARY | records(kinds=("keyless",)), min_size=1, max_size=40), KEYS), max_size=20)
)
def test_groups_are_encoded_alike_and_readers_get_them_back(groups):
    blobs = native.encode_records(groups)
    assert blobs == pure_twins["encode_records"](groups)
    for (group, keyless_key), blob in zip(groups, blobs, strict=True):
        columns = split_columns(blob)
        assert columns.keys == [record.key or keyless_key for record in group]
        assert columns.payloads == [record.data for record in group]


@given(st.lists(KEYS, min_size=200, max_size=400), DATA)
def test_many_keys_are_numbered_alike(keys, data):
    group = [BufferedRecord(data[:50], key, None, 0.0) for key in keys]
    assert native.encode_records([(group, "")]) == pure_twins["encode_records"]([(group, "")])


def test_more_keys_than_two_bytes_can_number():
    group = [BufferedRecord(b"", f"{number}", None, 0.0) for number in range(20_000)]
    [blob] = native.encode_records([(group, "")])
    assert [blob] == pure_twins["encode_records"]([(group, "")])
    keys, ours = native.KeyTable(), []
    assert native.add_ordinary(keys, ours, group, 0, 20, 1 << 62)[:2] == (20_000, len(blob))
    assert ours == group
    assert [keys.number_of(f"{number}") for number in range(20_000)] == list(range(20_000))


def test_records_that_are_not_ordinary_are_left_to_the_caller():
    for odd in (
        BufferedRecord(b"x", None, None, 0.0),
        BufferedRecord(b"x", "k", "5", 0.0),
        BufferedRecord(b"x", "k", None, 0.0, tags=b"t"),
    ):
        keys, ours = native.KeyTable(), []
        assert native.add_ordinary(keys, ours, [odd], 0, 20, 1_000) == (0, 20, 0)
        assert (len(keys), ours) == (0, [])


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        (native and native.KeyTable(), [], [object()], 0, 20, 100),
        (native and native.KeyTable(), [], (), 0, 20, 100),
        (native and native.KeyTable(), [], [], "0", 20, 100),
        ([], [], [], 0, 20, 100),
    ],
)
def test_add_ordinary_refuses_other_types(arguments):
    with pytest.raises(TypeError):
        native.add_ordinary(*arguments)


def test_add_ordinary_refuses_a_negative_place():
    with pytest.raises(ValueError, match="not negative"):
        native.add_ordinary(native.KeyTable(), [], [BufferedRecord(b"x", "k", None, 0.0)], -1, 20, 100)


@pytest.mark.parametrize(
    "groups",
    [
        None,
        [None],
        [([], "k")],
        [([object()], "k")],
        [([BufferedRecord(b"x", "k", None, 0.0)], None)],
        [([BufferedRecord(None, "k", None, 0.0)], "k")],
        [([BufferedRecord(b"x", 5, None, 0.0)], "k")],
        [([BufferedRecord(b"x", "\ud800", None, 0.0)], "k")],
    ],
)
def test_encode_records_refuses_what_it_cannot_encode(groups):
    with pytest.raises((TypeError, ValueError)):
        native.encode_records(groups)


@given(st.lists(KEYS | st.text(max_size=3), max_size=300))
def test_keys_are_numbered_alike(keys):
    ours, expected = native.KeyTable(), pure_twins["KeyTable"]()
    for key in keys:
        assert ours.number_of(key) == expected.number_of(key)
        ours.add(key)
        expected.add(key)
        assert len(ours) == len(expected)
    assert [ours.number_of(key) for key in keys] == [expected.number_of(key) for key in keys]


def test_a_key_table_takes_only_str():
    class Text(str):
        __slots__ = ()

    for wrong in (b"key", None, 5, Text("key")):
        for call in (native.KeyTable().number_of, native.KeyTable().add):
            with pytest.raises(TypeError, match="a key is a str"):
                call(wrong)


def test_a_key_table_keeps_its_keys():
    table = native.KeyTable()
    for number in range(1_000):
        table.add(f"key {number}")  # nothing else holds the key
    assert [table.number_of(f"key {number}") for number in range(1_000)] == list(range(1_000))
    assert (table.number_of("another"), len(table)) == (1_000, 1_000)
