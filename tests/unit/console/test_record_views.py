"""Tests of ``record_views``."""

import base64

import cbor2
import msgspec
import pytest

from shardline.console.record_views import SHOWN_MAX, RecordFilter, record_json, views_of
from shardline.model.headers import Headers
from shardline.model.record import Record

ORDER = {"order": 1}


def record(data=b'{"order": 1}', key="k"):
    return Record(data, key, None, "7", 2, "shardId-000000000000", 0.0, "orders", headers=Headers({"trace": "t1"}))


@pytest.mark.parametrize(
    ("data", "names"),
    [
        (b'{"order":1}', ["json", "text", "hex"]),
        (msgspec.msgpack.encode(ORDER), ["msgpack", "text", "hex"]),
        (cbor2.dumps(ORDER), ["cbor", "text", "hex"]),
        (b"plain \xff", ["text", "hex"]),
    ],
)
def test_the_views_are_those_that_fit(data, names):
    views = views_of(data)
    assert list(views) == names
    assert names[0] == "text" or msgspec.json.decode(views[names[0]]) == ORDER


def test_an_object_has_the_whole_data_and_says_that_views_are_cut():
    large = b"x" * (SHOWN_MAX + 1)
    shown = record_json(record(large), "shardId-000000000003")
    assert (shown["cut"], shown["shard_id"], shown["headers"]) == (True, "shardId-000000000003", {"trace": "t1"})
    assert base64.b64decode(shown["base64"]) == large
    assert len(shown["views"]["text"]) == SHOWN_MAX


@pytest.mark.parametrize(
    ("wanted", "accepted"),
    [
        (RecordFilter(), True),
        (RecordFilter(key="k"), True),
        (RecordFilter(key="other"), False),
        (RecordFilter(text="order"), True),
        (RecordFilter(text="invoice"), False),
        (RecordFilter(header="trace"), True),
        (RecordFilter(header="trace=t1"), True),
        (RecordFilter(header="trace=t2"), False),
        (RecordFilter(header="span"), False),
    ],
)
def test_a_filter_selects(wanted, accepted):
    assert wanted.accepts(record()) is accepted
