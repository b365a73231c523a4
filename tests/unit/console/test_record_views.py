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
    assert list(views.texts) == names
    assert names[0] == "text" or msgspec.json.decode(views.texts[names[0]]) == ORDER
    assert not views.is_cut


def test_the_json_view_keeps_every_digit_and_every_name():
    assert views_of(b'{"a":12345678901234567890123,"a":1.10}').texts["json"] == (
        '{\n  "a": 12345678901234567890123,\n  "a": 1.10\n}'
    )


@pytest.mark.parametrize(
    "data",
    [
        b'{"broken": [1, 2',
        b'{"a": "\xff"}',
        b'"\\ud800"',
        b"[" * 100_000 + b"]" * 100_000,
        b"\x91" * 100_000,  # deep msgpack
        b"\x81" * 100_000,  # deep CBOR
        b"\xdd\xff\xff\xff\xff",  # a list of 4 GB, says msgpack
        b"\xdf\xff\xff\xff\xff",
        b"\x9a\xff\xff\xff\xff",
        cbor2.dumps({b"bytes": 1}),
        b"\x91\xa2\xff\xfe",
    ],
)
def test_hostile_data_has_a_text_and_a_hex_view(data):
    assert list(views_of(data).texts) == ["text", "hex"]


def test_values_that_json_does_not_have_are_shown():
    assert "extension 5: b'\\\\x01'" in views_of(b"\x91\xd4\x05\x01").texts["msgpack"]
    assert "1180591620717411303424" in views_of(cbor2.dumps([2**70])).texts["cbor"]
    assert "1970-01-01" in views_of(b"\x91\xd6\xff\x00\x00\x00\x00").texts["msgpack"]


def test_a_large_record_is_cut_and_says_so():
    large = b"x" * (SHOWN_MAX + 1)
    shown = record_json(record(large), "shardId-000000000003")
    assert (shown["cut"], shown["shard_id"], shown["headers"]) == (True, "shardId-000000000003", {"trace": "t1"})
    assert (shown["size"], shown["base64"], len(shown["views"]["text"])) == (len(large), None, SHOWN_MAX)
    whole = record_json(record(large), "shardId-000000000003", is_whole=True)
    assert (whole["cut"], whole["views"]["text"]) == (False, large.decode())
    assert base64.b64decode(whole["base64"]) == large


def test_a_view_that_is_longer_than_the_data_is_cut_and_says_so():
    data = msgspec.json.encode(list(range(1000)))
    assert len(data) < SHOWN_MAX
    shown = record_json(record(data), "shardId-000000000003")
    assert (shown["cut"], len(shown["views"]["json"]), len(shown["views"]["text"])) == (True, SHOWN_MAX, len(data))
    assert base64.b64decode(shown["base64"]) == data


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


def test_a_binary_format_is_read_only_if_the_whole_data_is_shown():
    """Reading 10 MiB of CBOR took ten seconds, in which every other page waited."""
    packed, listed = b"\xdd" + (30_000).to_bytes(4, "big") + b"\x01" * 30_000, b"\x99\x75\x30" + b"\x01" * 30_000
    for name, data in (("msgpack", packed), ("cbor", listed)):
        assert list(views_of(data).texts) == ["text", "hex"]
        assert name in views_of(data, 100_000).texts
        assert list(views_of(data * 10, 256 * 1024).texts) == ["text", "hex"]
