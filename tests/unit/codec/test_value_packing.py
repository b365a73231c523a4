"""Do packs have exactly the bytes of their formats, and the announced size?"""

import json

import pytest

from shardline.codec.aggregation import MAGIC
from shardline.codec.value_packing import (
    PACKINGS,
    check_json,
    check_json_line,
    packing_named,
    split_length_prefixed,
    split_netstrings,
)
from shardline.errors import UsageError
from shardline.model.limits import RECORD_HIGHEST_MAX_BYTES


@pytest.mark.parametrize(
    ("name", "values", "pack"),
    [
        ("json-lines", [b'{"a": 1}'], b'{"a": 1}\n'),
        ("json-lines", [b"1", b'"x"'], b'1\n"x"\n'),
        ("json-list", [b"1"], b"[1]"),
        ("json-list", [b'{"a": 1}', b" 2", b"[]"], b'[{"a": 1}, 2,[]]'),
        ("netstrings", [b""], b"0:,"),
        ("netstrings", [b"abc", b"x" * 10], b"3:abc,10:xxxxxxxxxx,"),
        ("length-prefixed", [b""], b"\0\0\0\0"),
        ("length-prefixed", [b"abc", b"x" * 258], b"\0\0\0\3abc\0\0\1\2" + b"x" * 258),
    ],
)
def test_a_pack_has_these_bytes_and_the_announced_size(name, values, pack):
    packing = packing_named(name)
    assert packing.encode(values) == pack
    assert packing.base_bytes + sum(packing.value_bytes(len(value)) for value in values) == len(pack)


def test_no_name_means_no_packing():
    assert packing_named(None) is None
    assert [packing.name for packing in PACKINGS.values()] == list(PACKINGS)


def test_a_length_prefix_is_never_the_magic_of_an_aggregate():
    assert int.from_bytes(MAGIC, "big") > RECORD_HIGHEST_MAX_BYTES


@pytest.mark.parametrize(
    "data", [b"1", b' {"a": [null]} ', b'"\xc3\xa9"', b"[1,\r2]", b"-1.5e9", b"[" * 300 + b"]" * 300]
)
def test_json_is_accepted(data):
    check_json(data)
    check_json_line(data)
    json.loads(data)


@pytest.mark.parametrize("check", [check_json, check_json_line])
@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "truncated"),
        (b"  ", "truncated"),
        (b"{", "truncated"),
        (b"1 2", "trailing characters"),
        (b"1,2", "trailing characters"),
        (b"NaN", "malformed"),
        (b"text", "malformed"),
        (b'"\n"', "malformed"),
        (b'"\xff"', "codec can't decode"),
        ("1".encode("utf-16"), "malformed"),
        (b"[" * 100_000 + b"]" * 100_000, "nested too deeply"),
    ],
)
def test_what_is_not_one_json_text_is_refused(check, data, reason):
    with pytest.raises(UsageError, match=f"must be one JSON text in UTF-8: .*{reason}"):
        check(data)


def test_json_with_a_newline_is_refused_in_lines_only():
    check_json(b"[1,\n2]")
    with pytest.raises(UsageError, match="must not contain a newline: serialize it without indentation"):
        check_json_line(b"[1,\n2]")


@pytest.mark.parametrize("name", ["netstrings", "length-prefixed"])
def test_other_formats_take_all_bytes(name):
    assert PACKINGS[name].check is None


@pytest.mark.parametrize(
    ("data", "values"),
    [(b"", []), (b"0:,", [b""]), (b"3:a:,,1:,,", [b"a:,", b","]), (b"10:0123456789,", [b"0123456789"])],
)
def test_netstrings_are_split(data, values):
    assert split_netstrings(data) == values


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"abc", "at byte 0: expected a length"),
        (b":abc,", "at byte 0: expected a length"),
        (b"-1:a,", "at byte 0: expected a length"),
        (b"000000000003:abc,", "at byte 0: expected a length"),
        (b"3:abc,4:abc,", "at byte 6: no comma after its 4 bytes"),
        (b"99999999999:a,", "at byte 0: no comma after its 99999999999 bytes"),
    ],
)
def test_invalid_netstrings_are_refused(data, message):
    with pytest.raises(ValueError, match=message):
        split_netstrings(data)


def test_length_prefixed_values_are_split():
    assert split_length_prefixed(b"") == []
    assert split_length_prefixed(b"\0\0\0\0\0\0\0\2ab") == [b"", b"ab"]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"\0\0\0", "invalid length prefix at byte 0: 3 of its 4 bytes"),
        (b"\0\0\0\1a\0", "invalid length prefix at byte 5: 1 of its 4 bytes"),
        (b"\0\0\0\2a", "invalid value at byte 0: 2 bytes announced, 1 found"),
        (b"\xff\xff\xff\xff", "invalid value at byte 0: 4294967295 bytes announced, 0 found"),
    ],
)
def test_invalid_lengths_are_refused(data, message):
    with pytest.raises(ValueError, match=message):
        split_length_prefixed(data)
