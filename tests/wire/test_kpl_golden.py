"""Aggregates that the KPL itself wrote."""

from pathlib import Path
from runpy import run_path

import pytest
from tests.aggregates import build_aggregate, split_aggregate

from shardline.codec.raw_records import aggregate, deaggregate
from shardline.model.hashing import HashRange

golden = run_path(str(Path(__file__).with_name("kpl_golden.py")))

every_blob = pytest.mark.parametrize(
    ("name", "size", "count"),
    [("WITH_EXPLICIT_HASH_KEYS", 495, 4), ("WITHOUT_EXPLICIT_HASH_KEYS", 628, 8), ("SHARED_KEYS", 240, 4)],
)


@every_blob
def test_the_kpls_aggregates_are_opened(name, size, count):
    blob, records = golden[name]
    assert (len(blob), len(records)) == (size, count)
    assert split_aggregate(blob) == records


@every_blob
def test_the_same_records_give_the_same_bytes(name, size, count):
    blob, records = golden[name]
    assert build_aggregate(records) == blob


@every_blob
def test_the_functions_for_raw_records_agree(name, size, count):
    blob, records = golden[name]
    assert aggregate(records) == blob
    found = deaggregate(blob)
    assert [(record.key, record.data, record.explicit_hash_key) for record in found] == records
    assert [record.sub_sequence for record in found] == list(range(count))


def test_the_kpl_kept_shared_keys_within_one_shard():
    blob, records = golden["SHARED_KEYS"]
    upper_half = HashRange(2**127, 2**128 - 1)
    assert aggregate(records, within=upper_half) == blob


def test_what_the_kpl_sent_alone_is_plain():
    assert split_aggregate(golden["PLAIN"]) is None
    assert deaggregate(golden["PLAIN"])[0].data == b"RECORD 749 pjqrcfbxafzdndzmbgane"
