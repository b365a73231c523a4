"""AWS's dialect of CBOR, by example."""

import math
import tracemalloc
from collections import OrderedDict
from datetime import UTC, datetime, timedelta, timezone
from enum import IntEnum, StrEnum
from types import MappingProxyType

import pytest

from shardline.codec import cbor
from shardline.codec.cbor import CborError, decode, encode, head

# value, its only encoding here, both directions
SAME_BOTH_WAYS = [
    (None, "f6"),
    (False, "f4"),
    (True, "f5"),
    (0, "00"),
    (23, "17"),
    (24, "1818"),
    (255, "18ff"),
    (256, "190100"),
    (65_535, "19ffff"),
    (65_536, "1a00010000"),
    (4_294_967_295, "1affffffff"),
    (4_294_967_296, "1b0000000100000000"),
    (18_446_744_073_709_551_615, "1bffffffffffffffff"),
    (-1, "20"),
    (-24, "37"),
    (-25, "3818"),
    (-256, "38ff"),
    (-257, "390100"),
    (-18_446_744_073_709_551_616, "3bffffffffffffffff"),
    (0.0, "fb0000000000000000"),
    (1.1, "fb3ff199999999999a"),
    (-4.1, "fbc010666666666666"),
    (math.inf, "fb7ff0000000000000"),
    ("", "60"),
    ("a", "6161"),
    ("ü水𐅑", "69c3bce6b0b4f0908591"),
    ("x" * 24, "7818" + "78" * 24),
    (b"", "40"),
    (b"\x01\x02", "420102"),
    (b"y" * 300, "59012c" + "79" * 300),
    ([], "80"),
    ([1, [2, 3], [4, 5]], "8301820203820405"),
    ({}, "a0"),
    ({"a": 1, "b": [2, 3]}, "a26161016162820203"),
    (
        {"k": {"Data": b"z" * 24, "Text": "t" * 255}},
        "a1616ba26444617461" + "5818" + "7a" * 24 + "6454657874" + "78ff" + "74" * 255,
    ),
]


@pytest.mark.parametrize(("value", "hexadecimal"), SAME_BOTH_WAYS)
def test_values_and_bytes_correspond(value, hexadecimal):
    assert encode(value).hex() == hexadecimal
    decoded = decode(bytes.fromhex(hexadecimal))
    assert decoded == value
    assert type(decoded) is type(value)


def test_what_resembles_a_supported_type_is_written_as_it():
    class Colour(StrEnum):
        RED = "red"

    class Number(IntEnum):
        TWO = 2

    assert encode([bytearray(b"ab"), memoryview(b"abcd")[::2], (1,), Colour.RED, Number.TWO]) == encode(
        [b"ab", b"ac", [1], "red", 2]
    )
    assert encode(MappingProxyType({"a": OrderedDict(b=1)})) == encode({"a": {"b": 1}})


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_any_bytes_like_object_is_read(kind):
    assert decode(kind(b"\x82\x41\x07\x01")) == [b"\x07", 1]


def test_equal_keys_of_one_answer_share_one_string():
    first, second = decode(encode([{"SequenceNumber": 1}, {"SequenceNumber": 2}]))
    assert next(iter(first)) is next(iter(second))


class TestTags:
    @pytest.mark.parametrize(
        ("when", "milliseconds"),
        [
            (datetime(1970, 1, 1, tzinfo=UTC), 0),
            (datetime(2023, 11, 14, 22, 13, 20, 123_999, tzinfo=UTC), 1_700_000_000_123),
            (datetime(2023, 11, 15, 0, 13, 20, tzinfo=timezone(timedelta(hours=2))), 1_700_000_000_000),
            (datetime(1969, 12, 31, 23, 59, 59, 999_500, tzinfo=UTC), -1),
            (datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=14))), -62_135_596_800_000 - 14 * 3_600_000),
        ],
    )
    def test_a_datetime_is_whole_milliseconds_rounded_down(self, when, milliseconds):
        assert encode(when) == b"\xc1" + encode(milliseconds)
        assert decode(encode({"when": when, "in a list": [when]})) == {
            "when": milliseconds / 1000.0,
            "in a list": [milliseconds / 1000.0],
        }

    @pytest.mark.parametrize(
        ("hexadecimal", "seconds"),
        [
            ("c100", 0.0),
            ("c120", -0.001),
            ("c11b0000018bcfe5687b", 1_700_000_000.123),
            ("c1fb4278bcfe5687f000", 1_700_000_000.127),  # a float is milliseconds too
            ("c1f93e00", 0.0015),
            ("c1c24203e8", 1.0),  # a big number is a number
            ("c1d9d9f71903e8", 1.0),
        ],
    )
    def test_tag_1_is_read_as_seconds(self, hexadecimal, seconds):
        for data, value in ((hexadecimal, seconds), ("a16174" + hexadecimal, {"t": seconds})):
            decoded = decode(bytes.fromhex(data))
            assert decoded == pytest.approx(value, abs=1e-6)
        assert type(decode(bytes.fromhex(hexadecimal))) is float

    @pytest.mark.parametrize(
        "content",
        ["f4", "f6", "6161", "80", "a0", "f97e00", "f97c00", "c259" + "0100" + "ff" * 256],
        ids=["false", "null", "text", "array", "map", "nan", "infinity", "beyond a float"],
    )
    def test_tag_1_around_what_is_no_time_is_refused(self, content):
        with pytest.raises(CborError, match="timestamp"):
            decode(bytes.fromhex("c1" + content))

    @pytest.mark.parametrize(
        ("hexadecimal", "value"),
        [
            ("c249010000000000000000", 1 << 64),
            ("c349010000000000000000", -1 - (1 << 64)),
            ("c25f42010043000000ff", 1 << 32),
            ("c240", 0),
            ("c074323031332d30332d32315432303a30343a30305a", "2013-03-21T20:04:00Z"),
            ("d9d9f7a161610f", {"a": 15}),
            ("dbffffffffffffffff81d82a01", [1]),
            ("a1c0616101", {"a": 1}),
        ],
    )
    def test_other_tags_vanish_but_big_numbers_become_ints(self, hexadecimal, value):
        assert decode(bytes.fromhex(hexadecimal)) == value

    def test_a_big_number_that_is_no_bytes_is_refused(self):
        with pytest.raises(CborError, match="big number in CBOR is a byte string, not str"):
            decode(b"\xc2\x61a")


@pytest.mark.parametrize(
    ("hexadecimal", "value"),
    [
        ("5f42010243030405ff", b"\x01\x02\x03\x04\x05"),
        ("5fff", b""),
        ("5f5803616263590001" + "64" + "ff", b"abcd"),
        ("7f657374726561646d696e67ff", "streaming"),
        ("7fff", ""),
        ("9fff", []),
        ("9f018202039f0405ffff", [1, [2, 3], [4, 5]]),
        ("83018202039f0405ff", [1, [2, 3], [4, 5]]),
        ("bfff", {}),
        ("bf61610161629f0203ffff", {"a": 1, "b": [2, 3]}),
        ("bf6346756ef563416d7421ff", {"Fun": True, "Amt": -2}),
        ("bf7f6161ff01ff", {"a": 1}),
        ("f90000", 0.0),
        ("f93c00", 1.0),
        ("f97bff", 65_504.0),
        ("f90001", 5.960464477539063e-8),
        ("fa47c35000", 100_000.0),
        ("fb7e37e43c8800759c", 1.0e300),
        ("f97c00", math.inf),
        ("faff800000", -math.inf),
        ("f7", None),
        ("1900ff", 255),
        ("1b0000000000000001", 1),
        ("7a0000000161", "a"),
        ("a178" + "18" + "6b" * 24 + "01", {"k" * 24: 1}),
        ("a161615a00000001ff", {"a": b"\xff"}),
        ("a1616162c3bc", {"a": "ü"}),
        ("a2616101616102", {"a": 2}),
        ("bf616101616102ff", {"a": 2}),
    ],
)
def test_every_form_of_a_value_is_read(hexadecimal, value):
    assert decode(bytes.fromhex(hexadecimal)) == value


def test_not_a_number_of_any_width():
    for hexadecimal in ("f97e00", "fa7fc00000", "fb7ff8000000000000"):
        assert math.isnan(decode(bytes.fromhex(hexadecimal)))


@pytest.mark.parametrize(
    ("hexadecimal", "why"),
    [
        ("", "ends inside"),
        ("18", "ends inside"),
        ("1900", "ends inside"),
        ("1b00000000000000", "ends inside"),
        ("41", "ends inside"),
        ("6261", "ends inside"),
        ("81", "ends inside"),
        ("a1", "ends inside"),
        ("a16161", "ends inside"),
        ("a162", "ends inside"),
        ("a1616178", "ends inside"),
        ("a161617802" + "61", "ends inside"),
        ("a161615802" + "61", "ends inside"),
        ("a16161626a", "ends inside"),
        ("a16161c11b00000000000000", "ends inside"),
        ("a16161c1", "ends inside"),
        ("82a161617802" + "61", "ends inside"),
        ("c1", "ends inside"),
        ("f93c", "ends inside"),
        ("fb", "ends inside"),
        ("9f01", "ends inside"),
        ("bf616101", "ends inside"),
        ("5f4101", "ends inside"),
        ("5f42ff", "ends inside"),
        ("5f58", "ends inside"),
        ("0000", "1 bytes follow"),
        ("8000ff", "2 bytes follow"),
        ("1c", "reserved additional information 28"),
        ("5e", "reserved additional information 30"),
        ("7f7dff", "reserved additional information 29"),
        ("1f", "indefinite length"),
        ("3f", "indefinite length"),
        ("df00", "indefinite length"),
        ("5f6161ff", "another kind"),
        ("7f4161ff", "another kind"),
        ("5f5f4161ffff", "another kind"),
        ("5f00ff", "another kind"),
        ("ff", "break without a beginning"),
        ("81ff", "break without a beginning"),
        ("a1ff", "ends inside"),
        ("a1ff00", "break without a beginning"),
        ("bf6161ff", "break without a beginning"),
        ("c1ff", "break without a beginning"),
        ("f3", "unassigned"),
        ("e0", "unassigned"),
        ("f820", "unassigned"),
        ("f818", "unassigned"),
        ("fc", "unassigned"),
        ("a10102", "text keys, not int"),
        ("a1416102", "text keys, not bytes"),
        ("bff602ff", "text keys, not NoneType"),
        ("a18002", "text keys, not list"),
        ("61ff", "UTF-8"),
        ("63eda080", "UTF-8"),
        ("a161ff00", "UTF-8"),
        ("a1616161ff", "UTF-8"),
        ("7f61c361bcff", "UTF-8"),  # a character cut by a chunk's end: RFC 8949, 3.2.3
    ],
)
def test_what_is_no_item_is_refused(hexadecimal, why):
    with pytest.raises(CborError, match=why):
        decode(bytes.fromhex(hexadecimal))


@pytest.mark.parametrize(
    ("open_", "leaf", "close"),
    [
        ("81", "00", ""),
        ("9f", "00", "ff"),
        ("a16161", "00", ""),
        ("bf6161", "00", "ff"),
        ("d82a", "00", ""),
        ("a1", "616100", ""),
    ],
    ids=["array", "indefinite array", "map", "indefinite map", "tag", "map in a key"],
)
def test_depth_is_bounded(open_, leaf, close):
    def nested(levels):
        return bytes.fromhex(open_ * levels + leaf + close * levels)

    if leaf == "00":
        decode(nested(cbor.MAX_DEPTH))
    for levels in (cbor.MAX_DEPTH + 1, 100_000):
        with pytest.raises(CborError, match="deeper than 64 levels"):
            decode(nested(levels))


def test_a_timestamp_is_a_level_wherever_it_stands():
    timestamp = "c11b0000018bcfe5687b"
    for opening, levels in (("81", 64), ("a16161", 64)):
        assert decode(bytes.fromhex(opening * (levels - 1) + timestamp)) is not None
        with pytest.raises(CborError, match="deeper"):
            decode(bytes.fromhex(opening * levels + timestamp))


@pytest.mark.parametrize("first", ["5b", "7b", "9b", "bb", "5f5b", "a161615b", "a161619b"])
@pytest.mark.parametrize("length", ["ffffffffffffffff", "7fffffffffffffff", "0000000100000000"])
def test_a_length_beyond_the_input_makes_nothing(first, length):
    bomb = bytes.fromhex(first + length + "00")
    tracemalloc.start()
    try:
        with pytest.raises(CborError, match="ends inside"):
            decode(bomb)
        assert tracemalloc.get_traced_memory()[1] < 50_000
    finally:
        tracemalloc.stop()


def test_a_count_that_is_only_just_too_large_is_refused_before_the_items_are_read():
    # if the items were read first, the errors in them (a reserved head, a break) would be reported
    for hexadecimal in ("831c1c", "a2ffffff"):
        with pytest.raises(CborError, match="ends inside"):
            decode(bytes.fromhex(hexadecimal))


def test_many_tiny_items_take_linear_time_and_memory():
    count = 30_000
    assert decode(b"\x9f" + b"\x80" * count + b"\xff") == [[]] * count
    assert decode(b"\x5f" + b"\x40" * count + b"\xff") == b""
    assert decode(b"\xbf" + b"\x60\x00" * count + b"\xff") == {"": 0}


class TestRefusals:
    @pytest.mark.parametrize(
        ("value", "why"),
        [
            ({1, 2}, "type set"),
            (object(), "type object"),
            ([1, {"a": 1j}], "type complex"),
            (datetime(2024, 1, 1).date(), "type date"),  # noqa: DTZ001
            (datetime(2024, 1, 1), "time zone"),  # noqa: DTZ001
            ({1: "a"}, "str keys, not int"),
            ({b"a": "a"}, "str keys, not bytes"),
            (1 << 64, "65 bits"),
            (-(1 << 64) - 1, "65 bits"),
            ("\ud800", "surrogate"),
            ({"\udfff": 1}, "surrogate"),
        ],
    )
    def test_what_has_no_form_is_refused(self, value, why):
        with pytest.raises(CborError, match=why):
            encode(value)

    def test_no_value_is_in_the_message(self):
        for value in (["hunter2", {"hunter2"}], {"hunter2": "hunter2\ud800"}):
            with pytest.raises(CborError) as refused:
                encode(value)
            assert "hunter2" not in str(refused.value)

    def test_an_endless_value_is_refused(self):
        endless: list[object] = []
        endless.append(endless)
        with pytest.raises(CborError, match="deeper"):
            encode(endless)

    def test_what_is_written_can_be_read_up_to_the_last_level(self):
        when = datetime(2024, 1, 1, tzinfo=UTC)
        for leaf, levels in ((0, 64), ([], 63), ({}, 63), (when, 63)):
            value: object = leaf
            for _ in range(levels):
                value = [value]
            decode(encode(value))
            with pytest.raises(CborError, match="deeper"):
                encode([value])


def test_heads_for_shapes_that_are_joined_by_hand():
    parts = head(cbor.MAP, 2), head(cbor.TEXT, 1), b"a", head(cbor.ARRAY, 1), head(cbor.NEGATIVE, 0)
    more = head(cbor.TEXT, 1), b"b", head(cbor.TAG, 1), head(cbor.UNSIGNED, 5_000)
    assert decode(b"".join(parts + more)) == {"a": [-1], "b": 5.0}
    assert head(cbor.BYTES, 51_200).hex() == "59c800"


@pytest.mark.parametrize(("major", "length"), [(7, 0), (-1, 0), (2, -1), (2, 1 << 64)])
def test_heads_that_do_not_exist_are_refused(major, length):
    with pytest.raises(CborError, match="no CBOR head"):
        head(major, length)
