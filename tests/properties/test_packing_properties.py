"""Packs of any values come back unchanged, and have the announced size. Tests of ``shardline.codec.value_packing``."""

import json
from random import Random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.aggregates import split_entry

from shardline import deserializers
from shardline.codec.aggregation import MAGIC, split_columns
from shardline.codec.value_packing import PACKINGS, split_length_prefixed, split_netstrings
from shardline.core.producer.lane import Lane
from shardline.core.producer.producer_config import ProducerConfig
from shardline.core.producer.producer_record import BufferedRecord, payload_bytes
from shardline.errors import UsageError
from shardline.model.hashing import WHOLE_RING

thorough = settings(max_examples=150, deadline=None)

scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"]))
)
values = st.recursive(scalars, lambda inner: st.lists(inner) | st.dictionaries(st.text("ab"), inner), max_leaves=8)
texts = st.builds(lambda value, ascii_only: json.dumps(value, ensure_ascii=ascii_only).encode(), values, st.booleans())
blobs = (
    st.binary(max_size=60) | st.integers(95, 105).map(bytes) | st.just(MAGIC) | st.sampled_from([b"1:a,", b"\n", b","])
)


def size_of(packing, packed):
    return packing.base_bytes + sum(packing.value_bytes(len(value)) for value in packed)


@pytest.mark.parametrize("name", ["netstrings", "length-prefixed"])
@thorough
@given(packed=st.lists(blobs, min_size=1, max_size=30))
def test_bytes_come_back_and_the_size_is_exact(name, packed):
    packing = PACKINGS[name]
    data = packing.encode(packed)
    reader = {"netstrings": deserializers.netstrings, "length-prefixed": deserializers.length_prefixed}[name]
    assert reader(data) == packed
    assert len(data) == size_of(packing, packed)
    assert split_columns(data) is None
    assert not data.startswith(MAGIC)


@pytest.mark.parametrize("name", ["json-lines", "json-list"])
@thorough
@given(packed=st.lists(texts, min_size=1, max_size=30))
def test_json_comes_back_and_the_size_is_exact(name, packed):
    packing = PACKINGS[name]
    for text in packed:
        packing.check(text)
    data = packing.encode(packed)
    reader = {"json-lines": deserializers.json_lines, "json-list": deserializers.json_list}[name]
    assert reader(data) == [json.loads(text) for text in packed]
    assert len(data) == size_of(packing, packed)
    assert not data.startswith(MAGIC)


@pytest.mark.parametrize("name", ["json-lines", "json-list"])
@thorough
@given(
    text=st.binary(max_size=30) | st.text('[]{}",:0123456789.eE-+ \\ntruefals\n\t').map(str.encode),
    others=st.lists(texts),
)
@example(text=b"1,2", others=[])
@example(text=b"1\n2", others=[])
@example(text=b"", others=[b"1"])
def test_a_value_that_is_accepted_stays_one_value(name, text, others):
    """Any bytes that pass the check are read as one JSON text, and do not change the values beside them."""
    packing = PACKINGS[name]
    try:
        packing.check(text)
    except UsageError:
        return
    reader = {"json-lines": deserializers.json_lines, "json-list": deserializers.json_list}[name]
    assert reader(packing.encode([*others, text, *others])) == [json.loads(one) for one in (*others, text, *others)]


@pytest.mark.parametrize("split", [split_netstrings, split_length_prefixed])
@thorough
@given(data=st.binary(max_size=80) | st.text("0123456789:,a", max_size=40).map(str.encode))
def test_any_bytes_are_split_whole_or_refused(split, data):
    """A split pack is packed to the same bytes again, except for zeros before the length of a netstring."""
    try:
        found = split(data)
    except ValueError:
        return
    name = "netstrings" if split is split_netstrings else "length-prefixed"
    again = PACKINGS[name].encode(found)
    assert split(again) == found
    assert again == data or (name == "netstrings" and len(again) < len(data))


puts = st.lists(st.tuples(st.sampled_from(["a", "b", "é", None]), st.sampled_from([None, "7"]), blobs), min_size=1)


@thorough
@given(
    puts=puts,
    packing=st.sampled_from(["netstrings", "length-prefixed"]),
    max_bytes=st.sampled_from([64, 150, 51_200]),
    max_count=st.sampled_from([None, 1, 3]),
    ordered=st.booleans(),
    at_once=st.booleans(),
)
def test_a_lane_packs_every_record_once_under_its_own_key_within_the_limits(
    puts, packing, max_bytes, max_count, ordered, at_once
):
    config = ProducerConfig(
        packing=packing, aggregate_max_bytes=max_bytes, aggregate_max_count=max_count, ordered=ordered
    )
    lane = Lane("shardId-0", WHOLE_RING, config, Random(0), 0.0)
    records = [BufferedRecord(data, key, hash_key if key else None, 30.0) for key, hash_key, data in puts]
    sealed = lane.add_all(records) if at_once else sum(lane.add(record) for record in records)
    sealed += lane.seal()
    assert sealed == lane.queued
    found, payload = {}, 0
    while (pack := lane.poll_aggregate(0.0, 1e9)) is not None:
        entry = pack.entry()
        assert len(entry.data) == pack.size
        assert pack.cost_bytes == len(entry.data) + len(entry.key.encode())
        assert len(entry.data) <= max_bytes or len(pack.records) == 1
        assert len(pack.records) <= (max_count or len(records))
        key = pack.records[0].key
        assert entry.key == key or key is None
        place = (key, None if key is None else entry.explicit_hash_key)
        found.setdefault(place, []).extend(one.data for one in split_entry(entry, packing))
        payload += pack.payload_bytes
        lane.note_settled()
    wanted = {}
    for record in records:
        wanted.setdefault((record.key, record.explicit_hash_key), []).append(record.data)
    if ordered:
        assert found == wanted
    assert {place: sorted(data) for place, data in found.items()} == {
        place: sorted(data) for place, data in wanted.items()
    }
    assert payload == sum(map(payload_bytes, records))
