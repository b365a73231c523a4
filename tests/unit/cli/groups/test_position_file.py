"""Are the positions that are read those that were written, and is everything else refused?"""

import json

import pytest

from shardline.cli.groups.position_file import decode_positions, encode_positions
from shardline.errors import UsageError
from shardline.model.hashing import HASH_KEY_MAX, HashRange
from shardline.model.lease import Checkpoint, Lease
from shardline.model.position import LATEST, SHARD_END, TRIM_HORIZON, at_sequence_number, at_timestamp
from shardline.model.sequence import SequenceNumber
from shardline.ports import GroupOnStream

NAME = GroupOnStream("billing", "orders")
POSITIONS = {
    "s0": (TRIM_HORIZON, {}),
    "s1": (LATEST, {"latest_at": 1.7e9 + 0.123456}),
    "s2": (LATEST, {}),
    "s3": (at_timestamp(1.7e9 + 0.000001), {}),
    "s4": (at_sequence_number(SequenceNumber(10**55 + 7, 12)), {"parent_ids": frozenset({"s0", "s1"})}),
    "s5": (SHARD_END, {"hash_range": HashRange(0, HASH_KEY_MAX)}),
}
ROWS = {name: Lease(name, checkpoint=Checkpoint(position), **more) for name, (position, more) in POSITIONS.items()}


def test_what_is_read_is_what_was_written():
    held = [
        Lease(**{name: getattr(row, name) for name in row.__slots__} | {"owner": "me", "counter": 9})
        for row in ROWS.values()
    ]
    data = encode_positions(NAME, reversed(held), 1.7e9)
    assert decode_positions(data) == (NAME, ROWS)
    assert b"me" not in data.replace(b"timestamp", b"")
    file = json.loads(data)
    assert (file["version"], file["exported_at"]) == (1, "2023-11-14T22:13:20.000Z")
    assert [shard["shard_id"] for shard in file["shards"]] == list(ROWS)


def file_with(*shards, **members):
    return json.dumps({"version": 1, "group": "g", "stream": "s", "shards": list(shards)} | members).encode()


def shard(**members):
    return {"shard_id": "s0", "position": "TRIM_HORIZON"} | members


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "not the positions of a group as JSON"),
        (b"\xff", "not the positions of a group as JSON"),
        (b"[]", "not the positions of a group as JSON"),
        (b"{}", "missing required field `version`"),
        (file_with(version=2), "in version 2 of the format: this Shardline reads 1"),
        (file_with(), "the file has no shards"),
        (file_with(shard(), surprise=1), "unknown field `surprise`"),
        (file_with(shard(sub_seqence=1)), "unknown field `sub_seqence`"),
        (file_with(shard(), shard()), "the file has the shard s0 twice"),
        (file_with(shard(position="EARLIEST")), "s0 is invalid: position must be one of TRIM_HORIZON, LATEST"),
        (file_with(shard(position="AFTER_SEQUENCE_NUMBER", sequence_number="7")), "position must be one of"),
        (file_with(shard(sequence_number="7")), "TRIM_HORIZON takes no sequence_number"),
        (file_with(shard(position="AT_SEQUENCE_NUMBER")), "AT_SEQUENCE_NUMBER needs a sequence_number"),
        (file_with(shard(position="AT_SEQUENCE_NUMBER", sequence_number="x")), "1 to 129 decimal digits, not 'x'"),
        (file_with(shard(position="AT_SEQUENCE_NUMBER", sequence_number="7", sub_sequence=-2)), "not negative"),
        (file_with(shard(sub_sequence=1)), "sub_sequence needs a sequence_number"),
        (file_with(shard(position="AT_TIMESTAMP")), "AT_TIMESTAMP needs a timestamp, in seconds since 1970"),
        (file_with(shard(position="AT_TIMESTAMP", timestamp=-1)), "a start time is 0 to"),
        (file_with(shard(timestamp=1)), "TRIM_HORIZON takes no timestamp"),
        (file_with(shard(position="LATEST", timestamp=-1)), "a start time is 0 to"),
        (file_with(shard(hash_range=["7", "3"])), "a hash range needs"),
        (file_with(shard(hash_range=["x", "3"])), "s0 is invalid: "),
    ],
)
def test_everything_else_is_refused_with_the_reason(data, words):
    with pytest.raises(UsageError) as refused:
        decode_positions(data)
    assert words in str(refused.value)
