"""Leases as rows of a KCL table."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardline.adapters.leases.dynamodb_items import decode_item, encode_item, foreign_user, is_lease
from shardline.adapters.leases.lease_rows import RowError
from shardline.model.hashing import HASH_KEY_MAX, HashRange
from shardline.model.lease import Checkpoint, Incarnation, Lease
from shardline.model.position import LATEST, SHARD_END, TRIM_HORIZON, at_sequence_number, at_timestamp
from shardline.model.sequence import SequenceNumber

SHARD = "shardId-000000000000"
END = "113427455640312821154458202477256070484"

# A row that the Java KCL 3.1.3 wrote.
JAVA_ROW = {
    "leaseKey": {"S": SHARD},
    "leaseOwner": {"S": "java-1"},
    "leaseCounter": {"N": "38"},
    "checkpoint": {"S": "12"},
    "checkpointSubSequenceNumber": {"N": "0"},
    "ownerSwitchesSinceCheckpoint": {"N": "0"},
    "startingHashKey": {"S": "0"},
    "endingHashKey": {"S": END},
    "throughputKBps": {"N": "0.0"},
}


def test_a_row_of_the_java_kcl_is_read():
    assert decode_item(JAVA_ROW) == Lease(
        SHARD,
        counter=38,
        owner="java-1",
        checkpoint=Checkpoint(at_sequence_number("12")),
        hash_range=HashRange(0, int(END)),
        throughput=0.0,
    )


def test_a_row_of_the_java_kcl_in_a_hand_over_with_a_pending_checkpoint_is_read():
    row = JAVA_ROW | {
        "checkpointOwner": {"S": "java-0"},
        "parentShardId": {"SS": ["p", "q"]},
        "childShardIds": {"SS": ["c"]},
        "pendingCheckpoint": {"S": "14"},
        "pendingCheckpointSubSequenceNumber": {"N": "2"},
        "pendingCheckpointState": {"B": "AAAA"},
        "entityType": {"S": "LEASE"},
    }
    lease = decode_item(row)
    assert (lease.owner, lease.checkpoint_owner, lease.holder) == ("java-1", "java-0", "java-0")
    assert (lease.parent_ids, lease.child_ids) == ({"p", "q"}, {"c"})
    assert lease.pending_checkpoint == Checkpoint(at_sequence_number(SequenceNumber(14, 2)))


def test_a_row_of_an_old_kcl_is_read():
    """Before 1.4 there was no sub-sequence, before 1.14 no hash range."""
    row = {name: JAVA_ROW[name] for name in ("leaseKey", "leaseCounter", "checkpoint")}
    assert decode_item(row) == Lease(SHARD, counter=38, checkpoint=Checkpoint(at_sequence_number("12")))


@pytest.mark.parametrize(
    ("text", "position"), [("TRIM_HORIZON", TRIM_HORIZON), ("LATEST", LATEST), ("SHARD_END", SHARD_END)]
)
def test_the_names_of_checkpoints_are_the_kcls(text, position):
    row = JAVA_ROW | {"checkpoint": {"S": text}, "shardlineStartAt": {"N": "5"}}
    lease = decode_item(row)
    assert lease.checkpoint == Checkpoint(position)
    assert lease.latest_at == (5.0 if text == "LATEST" else None)


def test_a_start_time_that_java_does_not_store_is_the_oldest():
    assert decode_item(JAVA_ROW | {"checkpoint": {"S": "AT_TIMESTAMP"}}).checkpoint == Checkpoint(at_timestamp(0))


def test_what_java_committed_since_makes_our_start_time_meaningless():
    assert decode_item(JAVA_ROW | {"shardlineStartAt": {"N": "1700000000"}}).latest_at is None


def test_a_negative_throughput_is_ignored():
    assert decode_item(JAVA_ROW | {"throughputKBps": {"N": "-1"}}).throughput is None


def test_the_smallest_row_has_all_that_a_java_reader_needs():
    assert encode_item(Lease(SHARD), "billing", "orders") == {
        "leaseKey": {"S": SHARD},
        "leaseCounter": {"N": "0"},
        "ownerSwitchesSinceCheckpoint": {"N": "0"},
        "checkpoint": {"S": "TRIM_HORIZON"},
        "checkpointSubSequenceNumber": {"N": "0"},
        "entityType": {"S": "LEASE"},
        "shardlineGroup": {"S": "billing"},
        "shardlineStream": {"S": "orders"},
    }


def test_the_fullest_row_has_the_kcls_types():
    lease = Lease(
        SHARD,
        counter=7,
        owner="b",
        checkpoint=Checkpoint(at_sequence_number(SequenceNumber(49, 3))),
        parent_ids=frozenset({"q", "p"}),
        child_ids=frozenset({"c"}),
        hash_range=HashRange(0, HASH_KEY_MAX),
        owner_switches=2,
        checkpoint_owner="a",
        pending_checkpoint=Checkpoint(SHARD_END),
        throughput=1.5,
    )
    item = encode_item(lease, "billing", "orders")
    assert {name: value for name, value in item.items() if not name.startswith("shardline")} == {
        "leaseKey": {"S": SHARD},
        "leaseOwner": {"S": "b"},
        "leaseCounter": {"N": "7"},
        "ownerSwitchesSinceCheckpoint": {"N": "2"},
        "checkpoint": {"S": "49"},
        "checkpointSubSequenceNumber": {"N": "3"},
        "pendingCheckpoint": {"S": "SHARD_END"},
        "pendingCheckpointSubSequenceNumber": {"N": "0"},
        "parentShardId": {"SS": ["p", "q"]},
        "childShardIds": {"SS": ["c"]},
        "startingHashKey": {"S": "0"},
        "endingHashKey": {"S": str(HASH_KEY_MAX)},
        "throughputKBps": {"N": "1.5"},
        "checkpointOwner": {"S": "a"},
        "entityType": {"S": "LEASE"},
    }
    assert decode_item(item) == lease


def test_latest_is_the_kcls_word_and_the_time_stands_beside_it():
    item = encode_item(Lease(SHARD, checkpoint=Checkpoint(LATEST), latest_at=1_700_000_000.25), "g", "s")
    assert (item["checkpoint"], item["shardlineStartAt"]) == ({"S": "LATEST"}, {"N": "1700000000.25"})


@pytest.mark.parametrize(
    ("row", "lease"),
    [({}, True), ({"entityType": {"S": "LEASE"}}, True), ({"entityType": {"S": "WORKER_METRIC_STATS"}}, False)],
)
def test_rows_of_other_kinds_are_known(row, lease):
    assert is_lease(JAVA_ROW | row) is lease


SAID = {
    "shardlineOwner": {"S": "java-1"},
    "shardlineIncarnation": {"S": "1f"},
    "shardlineLeaseDuration": {"N": "10.0"},
}


def test_a_row_says_which_process_took_it():
    incarnation = Incarnation("java-1", "1f", 10.0)
    assert decode_item(JAVA_ROW | SAID).incarnation == incarnation
    item = encode_item(Lease(SHARD, owner="java-1", incarnation=incarnation), "g", "s")
    assert {name: item[name] for name in SAID} == SAID
    assert SAID.keys().isdisjoint(encode_item(Lease(SHARD, owner="java-1"), "g", "s"))


@pytest.mark.parametrize("name", SAID)
def test_who_says_it_in_part_says_nothing(name):
    said = {other: value for other, value in SAID.items() if other != name}
    assert decode_item(JAVA_ROW | said).incarnation is None


def test_whom_a_row_serves():
    assert foreign_user(JAVA_ROW, "billing", "orders") is None
    ours = encode_item(Lease(SHARD), "billing", "orders")
    assert foreign_user(ours, "billing", "orders") is None
    assert "'billing'" in foreign_user(ours, "audit", "orders")
    assert "'orders'" in foreign_user(ours, "billing", "clicks")
    several = JAVA_ROW | {"leaseKey": {"S": f"123456789012:orders:1700000000:{SHARD}"}}
    assert "several streams" in foreign_user(several, "billing", "orders")
    assert "several streams" in foreign_user(JAVA_ROW | {"streamName": {"S": "x"}}, "billing", "orders")


@pytest.mark.parametrize(
    "change",
    [
        {"leaseKey": None},
        {"leaseKey": {"N": "1"}},
        {"leaseCounter": None},
        {"leaseCounter": {"S": "38"}},
        {"leaseCounter": {"N": "x"}},
        {"leaseCounter": {"N": "-1"}},
        {"checkpoint": None},
        {"checkpoint": {"S": "SOMEWHERE"}},
        {"checkpoint": {"S": ""}},
        {"endingHashKey": {"S": "-1"}},
        {"throughputKBps": {"N": "inf"}},
        {"parentShardId": {"S": "p"}},
        {"parentShardId": {"SS": 7}},
        {"pendingCheckpoint": {"S": "x"}},
        {"checkpoint": {"S": "LATEST"}, "shardlineStartAt": {"N": "-1"}},
    ],
)
def test_what_is_no_lease_is_said_to_be_none(change):
    row = {name: value for name, value in (JAVA_ROW | change).items() if value is not None}
    with pytest.raises(RowError):
        decode_item(row)


@given(
    st.sampled_from(sorted(JAVA_ROW)),
    st.dictionaries(
        st.sampled_from(["S", "N", "SS", "B"]), st.none() | st.text(max_size=3) | st.integers(), max_size=2
    ),
)
def test_no_attribute_raises_anything_else(name, attribute):
    lease = None
    with contextlib.suppress(RowError):
        lease = decode_item(JAVA_ROW | {name: attribute})
    assert lease is None or isinstance(lease, Lease)
