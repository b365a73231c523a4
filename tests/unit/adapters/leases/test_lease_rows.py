"""Leases as JSON."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardline.adapters.leases.lease_rows import RowError, decode_row, encode_row, split_at_counter
from shardline.model.hashing import HASH_KEY_MAX, HashRange
from shardline.model.lease import Checkpoint, Incarnation, Lease
from shardline.model.position import (
    LATEST,
    SHARD_END,
    TRIM_HORIZON,
    Position,
    PositionKind,
    at_sequence_number,
    at_timestamp,
)
from shardline.model.sequence import SequenceNumber

names = st.text(max_size=20)
times = st.floats(0, 2e11)
checkpoints = st.one_of(
    st.sampled_from([TRIM_HORIZON, LATEST, SHARD_END]),
    times.map(at_timestamp),
    st.builds(SequenceNumber, st.integers(0, 10**129 - 1), st.integers(0, 2**31)).map(at_sequence_number),
).map(Checkpoint)


@st.composite
def leases(draw):
    checkpoint = draw(checkpoints)
    ends = sorted(draw(st.tuples(st.integers(0, HASH_KEY_MAX), st.integers(0, HASH_KEY_MAX))))
    return Lease(
        draw(names),
        counter=draw(st.integers(0, 2**62)),
        owner=draw(st.none() | names),
        checkpoint=checkpoint,
        parent_ids=draw(st.frozensets(names, max_size=2)),
        child_ids=draw(st.frozensets(names, max_size=2)),
        hash_range=draw(st.none() | st.just(HashRange(*ends))),
        owner_switches=draw(st.integers(0, 2**31)),
        checkpoint_owner=draw(st.none() | names),
        latest_at=draw(st.none() | times) if checkpoint.position == LATEST else None,
        pending_checkpoint=draw(st.none() | checkpoints),
        throughput=draw(st.none() | st.floats(0, 1e9)),
        handling=draw(st.none() | st.floats(0, 1e9)),
        incarnation=draw(st.none() | st.builds(Incarnation, names, names, st.floats(0.1, 3600.0))),
    )


@given(leases())
def test_what_is_written_is_read_back(lease):
    assert decode_row(encode_row(lease)) == lease


@given(leases(), st.integers(0, 2**62), st.booleans())
def test_a_row_is_cut_at_its_own_counter(lease, counter, with_unknown):
    previous = b'{"counter":99,"deep":{"counter":1}}' if with_unknown else None
    before, after = split_at_counter(encode_row(lease, previous))
    assert decode_row(b"%s%d%s" % (before, counter, after)) == replace(lease, counter=counter)


@pytest.mark.parametrize("name", ['"counter":7', '\\"counter":7,', "counter"])
def test_a_shard_id_that_looks_like_a_counter_is_not_a_counter(name):
    lease = Lease(name, counter=5)
    assert decode_row(b"6".join(split_at_counter(encode_row(lease)))) == replace(lease, counter=6)


def test_a_row_says_which_process_took_it():
    row = b'{"shard_id":"s","counter":7,"checkpoint":"LATEST","owner":"b"'
    assert decode_row(row + b"}").incarnation is None
    row += b',"incarnation":{"owner":"b","id":"1f","lease_duration":10.0}}'
    lease = decode_row(row)
    assert lease.incarnation == Incarnation("b", "1f", 10.0)
    assert encode_row(lease) == row


def test_a_row_has_the_stamps_of_a_consumer_with_dedup():
    row = b'{"shard_id":"s","counter":7,"checkpoint":"8","window":"1 8.0 abcdefghij@1:0-1"}'
    assert decode_row(row).window == "1 8.0 abcdefghij@1:0-1"
    assert encode_row(decode_row(row)) == row


def test_the_format_of_a_row_never_changes():
    """Stored rows outlive versions, so this row must always be readable."""
    row = (
        b'{"shard_id":"shardId-000000000001","counter":7,"checkpoint":"4960","sub_sequence":3,"owner":"b",'
        b'"checkpoint_owner":"a","owner_switches":2,"parent_ids":["p","q"],"child_ids":["c"],'
        b'"hash_range":["0","340282366920938463463374607431768211455"],"pending":["4970",1,null],"throughput":1.5}'
    )
    lease = Lease(
        "shardId-000000000001",
        counter=7,
        owner="b",
        checkpoint=Checkpoint(at_sequence_number(SequenceNumber(4960, 3))),
        parent_ids=frozenset("pq"),
        child_ids=frozenset("c"),
        hash_range=HashRange(0, HASH_KEY_MAX),
        owner_switches=2,
        checkpoint_owner="a",
        pending_checkpoint=Checkpoint(at_sequence_number(SequenceNumber(4970, 1))),
        throughput=1.5,
    )
    assert decode_row(row) == lease
    assert json.loads(encode_row(lease)) == json.loads(row)
    latest = b'{"shard_id":"s","counter":0,"checkpoint":"LATEST","checkpoint_at":1700000000.25}'
    assert decode_row(latest) == Lease("s", checkpoint=Checkpoint(LATEST), latest_at=1_700_000_000.25)


def test_what_this_version_does_not_know_stays():
    old = encode_row(Lease("s", owner="a"))
    newer = json.dumps(json.loads(old) | {"added_in_2030": {"x": [1]}, "owner": "b"}).encode()
    assert decode_row(newer).owner == "b"
    written = json.loads(encode_row(Lease("s", counter=1), newer))
    assert written == {"shard_id": "s", "counter": 1, "checkpoint": "TRIM_HORIZON", "added_in_2030": {"x": [1]}}


def test_a_missing_time_counts_as_the_oldest():
    row = b'{"shard_id":"s","counter":0,"checkpoint":"AT_TIMESTAMP"}'
    assert decode_row(row).checkpoint.position == Position(PositionKind.AT_TIMESTAMP, timestamp=0.0)


@pytest.mark.parametrize(
    "row",
    [
        b"",
        b"null",
        b"[]",
        b"{}",
        b"\xff",
        b"[" * 10_000,
        b'{"shard_id":"s","counter":-1,"checkpoint":"LATEST"}',
        b'{"shard_id":"s","counter":"1","checkpoint":"LATEST"}',
        b'{"shard_id":"s","counter":1,"checkpoint":""}',
        b'{"shard_id":"s","counter":1,"checkpoint":"12x"}',
        b'{"shard_id":"s","counter":1,"checkpoint":"AFTER_SEQUENCE_NUMBER"}',
        b'{"shard_id":"s","counter":1,"checkpoint":"1","sub_sequence":-2}',
        b'{"shard_id":"s","counter":1,"checkpoint":"1","hash_range":["5","4"]}',
        b'{"shard_id":"s","counter":1,"checkpoint":"1","pending":["x",0,null]}',
        b'{"shard_id":"s","counter":1,"checkpoint":"LATEST","checkpoint_at":-5}',
    ],
)
def test_what_is_no_lease_is_said_to_be_none(row):
    with pytest.raises(RowError):
        decode_row(row)
    if row in {b"", b"null", b"\xff"}:
        with pytest.raises(RowError):
            encode_row(Lease("s"), row)


@given(st.binary(max_size=40))
def test_no_bytes_raise_anything_else(row):
    with pytest.raises(RowError):
        decode_row(row)
