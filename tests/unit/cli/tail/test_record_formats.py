"""Is a record printed in its format?"""

import json

import pytest

from shardline import Record, UsageError
from shardline.cli.tail.record_formats import FIELDS, make_format
from shardline.model.headers import Headers

RECORD = Record(b"\xffx", "k", "5", "77", 2, "shardId-000000000001", 1e9, "orders", aggregated=True)


def shown(chosen, *, keys=False, times=False, headers=False, delimiter="\\n", is_terminal=False, record=RECORD):
    wanted = {"keys": keys, "times": times, "headers": headers}
    return make_format(chosen, **wanted, delimiter=delimiter, is_terminal=is_terminal)(record)


def test_headers_are_shown_as_json_before_the_data():
    headed = Record(b"x", "k", headers=Headers({"a": "1\t\x1b", "b": "é"}))
    assert shown("raw", keys=True, headers=True, record=headed) == 'k\t{"a":"1\\t\\u001b","b":"é"}\tx\n'.encode()
    assert shown("raw", headers=True) == b"{}\t\xffx\n"
    assert shown("{headers}|", record=headed, delimiter="") == '{"a":"1\\t\\u001b","b":"é"}|'.encode()
    assert json.loads(shown("json", record=headed))["headers"] == {"a": "1\t\x1b", "b": "é"}


def test_named_formats():
    assert shown("raw") == b"\xffx\n"
    assert shown("raw", delimiter=r"\0") == b"\xffx\0"
    assert shown("raw", delimiter="", keys=True, times=True) == b"2001-09-09T01:46:40.000Z\tk\t\xffx"
    assert shown("base64") == b"/3g=\n"
    assert shown("json", delimiter="ignored") == (
        b'{"version":1,"key":"k","explicit_hash_key":"5","data_base64":"/3g=","shard_id":"shardId-000000000001",'
        b'"sequence_number":"77","sub_sequence":2,"arrived_at":"2001-09-09T01:46:40.000Z"}\n'
    )


def test_a_template_has_every_field():
    template = " ".join(f"{{{name}}}" for name in FIELDS)
    assert shown(template).split(b" ") == [
        *[b"\xffx", b"/3g=", b"k", b"{}", b"5", b"2001-09-09T01:46:40.000Z", b"1000000000.0", b"shardId-000000000001"],
        *[b"77", b"2", b"2", b"0.0", b"orders\n"],
    ]


def test_escapes_braces_and_specifications():
    assert shown(r"{{{key:>3}}}\t\\{size:03}{data:>8}", delimiter="") == b"{  k}\t\\002   \\xffx"


def test_on_a_terminal_nothing_acts():
    record = Record(b"\x1b[31m\x00\xff\n\t\x9b", "k\x07")
    assert shown("raw", is_terminal=True, keys=True, record=record) == b"k\\x07\t\\x1b[31m\\x00\\xff\n\t\\x9b\n"


def test_what_is_not_known_is_empty():
    assert shown("{key}|{time}|{shard}|{lag}", record=Record(b"", None)) == b"|-||0.0\n"


@pytest.mark.parametrize(
    "chosen", ["xml", "", "{nothing}", "{data", "{}", "{data!r}", "{size:x>y}", "{data.__class__}"]
)
def test_what_is_no_format(chosen):
    with pytest.raises(UsageError):
        shown(chosen)
