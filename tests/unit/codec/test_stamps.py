"""Tests of ``shardline.codec.stamps``."""

from random import Random

import pytest

from shardline.codec.aggregation import decode_tags, encode_aggregate, encode_tags, split_columns
from shardline.codec.stamps import (
    ANY_STAMP,
    ID_BITS,
    ID_CHARACTERS,
    NUMBERS,
    SHARED_BYTES,
    STAMP_BYTES,
    StampRun,
    encode_stamp,
    id_of_bits,
    shorten,
    split_stamps,
    stamped_by,
)
from shardline.model.headers import NO_HEADERS

ID = b"abcdefghij"
OTHER = b"0123456789"


def test_a_stamp_has_a_long_and_a_short_form():
    long = encode_stamp(ID, 7)
    assert len(long) == STAMP_BYTES == len(ANY_STAMP) == 21
    assert len(shorten(long)) == STAMP_BYTES - SHARED_BYTES == 11
    assert stamped_by(long) == ID
    assert stamped_by(shorten(long)) == stamped_by(encode_tags({"a": "b"})) == stamped_by(b"") == b""


@pytest.mark.parametrize("bits", [0, 1, 2**ID_BITS - 1, Random(1).getrandbits(ID_BITS)])
def test_an_id_has_ten_printable_characters(bits):
    producer = id_of_bits(bits)
    assert len(producer) == ID_CHARACTERS
    assert producer.decode().isprintable()


def test_different_bits_give_different_ids():
    assert len({id_of_bits(bits << shift) for bits in range(64) for shift in (0, 6, 30, 54)}) == 4 * 63 + 1


@pytest.mark.parametrize("number", [0, 1, 255, 256, NUMBERS - 1])
def test_every_number_is_read_back(number):
    runs, others = split_stamps({0: encode_stamp(ID, number)})
    assert (runs, others) == ([StampRun(0, ID, number, 1)], {})


def test_a_short_stamp_has_the_id_of_the_stamp_before_it():
    tags = {
        0: encode_stamp(ID, 5),
        1: shorten(encode_stamp(ID, 6)),
        2: shorten(encode_stamp(ID, 9)),
        4: shorten(encode_stamp(ID, 10)),
        5: encode_stamp(OTHER, 11),
        6: shorten(encode_stamp(OTHER, 12)),
    }
    runs, others = split_stamps(tags)
    assert runs == [StampRun(0, ID, 5, 2), StampRun(2, ID, 9, 1), StampRun(4, ID, 10, 1), StampRun(5, OTHER, 11, 2)]
    assert others == {}


def test_headers_stay_apart_from_stamps():
    headers = encode_tags({"a": "b"})
    tags = {0: encode_stamp(ID, 0) + headers, 1: headers, 2: shorten(encode_stamp(ID, 1)) + headers}
    runs, others = split_stamps(tags)
    assert runs == [StampRun(0, ID, 0, 1), StampRun(2, ID, 1, 1)]
    assert others == dict.fromkeys(range(3), headers)
    columns = split_columns(encode_aggregate(["k"] * 3, [b"1", b"2", b"3"], {}, tags))
    assert columns.stamps == runs
    assert columns.all_headers() == [{"a": "b"}] * 3


def test_a_stamp_is_not_a_header():
    assert decode_tags(encode_stamp(ID, 1)) is NO_HEADERS
    assert decode_tags(shorten(encode_stamp(ID, 1))) is NO_HEADERS
    columns = split_columns(encode_aggregate(["k"], [b"1"], {}, {0: encode_stamp(ID, 1)}))
    assert columns.all_headers() == [NO_HEADERS]


@pytest.mark.parametrize(
    "tags",
    [
        shorten(encode_stamp(ID, 1)),  # no stamp before it
        encode_stamp(ID, 1)[:-1] + b"\xff",
        encode_stamp(ID, 1)[:-4] + b"A===",
        encode_stamp(ID, 1)[:-4] + b"AA==",
        encode_stamp(ID, 1)[:-4] + b"----",
        encode_tags({"a": "b"}) + encode_stamp(ID, 1),
    ],
)
def test_a_tag_that_is_not_a_stamp_counts_as_no_stamp(tags):
    assert split_stamps({0: tags})[0] == []
