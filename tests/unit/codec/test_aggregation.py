"""The aggregate format by example.

Messages are assembled by hand here, so that the reader is not tested with the writer.
"""

import tracemalloc
from hashlib import md5
from time import process_time

import pytest
from tests.aggregates import build_aggregate, build_headed, split_aggregate, split_headed

from shardline.codec.aggregation import (
    MAGIC,
    Columns,
    decode_tags,
    encode_aggregate,
    encode_tags,
    is_framed,
    split_columns,
)

HUGE = bytes.fromhex("ffffffffffffffff7f")  # the varint of 2^63 - 1


def frame(message):
    return MAGIC + message + md5(message, usedforsecurity=False).digest()


def varint(number):
    low, rest = number & 0x7F, number >> 7
    return bytes((low | 0x80,)) + varint(rest) if rest else bytes((low,))


def sized(tag, content):
    return bytes((tag,)) + varint(len(content)) + content


def key(text):
    return sized(0x0A, text.encode())


def hash_key(text):
    return sized(0x12, text.encode())


def record(*fields):
    return sized(0x1A, b"".join(fields))


def key_index(number):
    return b"\x08" + varint(number)


def hash_key_index(number):
    return b"\x10" + varint(number)


def data(payload):
    return sized(0x1A, payload)


def simple(number, payload):
    return record(key_index(number), data(payload))


def built(*records):
    return build_aggregate(records)


class TestBuilding:
    def test_two_records(self):
        assert built(("a", b"x"), ("b", b"y")).hex() == (
            "f3899ac2" + "0a0161" + "0a0162" + "1a0508001a0178" + "1a0508011a0179" + "b0031909ae75891ca94acec2ecce3125"
        )

    @pytest.mark.parametrize(
        "length",
        [0, 121, 122, 123, 124, 127, 128, 1024, 2_031, 2_032, 2_033, 2_047, 2_048, 16_383, 16_384, 3_000_000],
    )
    def test_any_length_of_data(self, length):
        payload = b"x" * length
        assert built(("k", payload), ("l", b"small")) == frame(
            key("k") + key("l") + simple(0, payload) + simple(1, b"small")
        )

    @pytest.mark.parametrize("length", [1, 127, 128, 256, 1023, 1024, 20_000])
    def test_any_length_of_keys(self, length):
        text = "k" * length
        assert built((text, b"", text)) == frame(
            key(text) + hash_key(text) + record(key_index(0), hash_key_index(0), data(b""))
        )

    @pytest.mark.parametrize("count", [127, 128, 129, 2_047, 2_048, 2_049, 3_000])
    def test_any_number_of_keys(self, count):
        texts = [f"key-{number}" for number in range(count)]
        blob = built(*((text, b"x") for text in [*texts, texts[-1]]))
        places = [*range(count), count - 1]
        assert blob == frame(b"".join(map(key, texts)) + b"".join(simple(place, b"x") for place in places))

    @pytest.mark.internal_error
    def test_nothing_is_no_aggregate(self):
        with pytest.raises(AssertionError, match="at least one record"):
            encode_aggregate([], [], {})

    @pytest.mark.parametrize("hash_keys", [{}, {0: "7"}])
    def test_lists_of_different_lengths_are_an_internal_error(self, hash_keys):
        with pytest.raises(ValueError, match="zip"):
            encode_aggregate(["a", "b"], [b"x"], hash_keys)
        with pytest.raises(ValueError, match="zip"):
            encode_aggregate(["a"], [b"x", b"y"], hash_keys)


class TestSplitting:
    def test_gives_columns_for_readers_with_records_of_their_own(self):
        assert split_columns(built(("a", b"x"), ("b", b"y", "7"))) == Columns(["a", "b"], [b"x", b"y"], [None, "7"])
        assert split_columns(b"plain") is None

    @pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
    def test_takes_any_kind_of_bytes(self, kind):
        blob = kind(built(("a", b"x")))
        assert split_aggregate(blob) == [("a", b"x", None)]
        assert is_framed(blob)
        assert not is_framed(kind(b"plain"))

    @pytest.mark.parametrize("number", [0, 1, 127, 128, 300, 16_383, 16_384])
    def test_reads_indices_of_any_length(self, number):
        keys = [f"key {place}" for place in range(number + 1)]
        blob = frame(b"".join(map(key, keys)) + simple(number, b"x"))
        assert split_aggregate(blob) == [(keys[number], b"x", None)]

    @pytest.mark.parametrize("length", [0, 1, 122, 123, 124, 125, 126, 127, 128, 129, 16_380, 16_384, 100_000])
    @pytest.mark.parametrize("number", [0, 200])
    def test_reads_data_of_any_length(self, length, number):
        blob = frame(key("k") * 201 + simple(number, b"\x1a" * length) + simple(0, b"next"))
        assert split_aggregate(blob) == [("k", b"\x1a" * length, None), ("k", b"next", None)]

    @pytest.mark.parametrize("length", [0, 1, 36, 127, 128, 300])
    def test_reads_keys_of_one_length(self, length):
        texts = [str(place) * length for place in range(5)]
        blob = frame(b"".join(map(key, texts)) + b"".join(simple(place, b"x") for place in range(5)))
        assert split_aggregate(blob) == [(text, b"x", None) for text in texts]

    @pytest.mark.parametrize("lengths", [(3, 3, 4, 3), (3, 4), (130, 3, 3), (3, 130)])
    def test_reads_keys_of_several_lengths(self, lengths):
        texts = [str(place) * length for place, length in enumerate(lengths)]
        blob = frame(b"".join(map(key, texts)) + b"".join(simple(place, b"x") for place in range(len(texts))))
        assert split_aggregate(blob) == [(text, b"x", None) for text in texts]

    def test_tables_may_follow_the_records_and_come_in_parts(self):
        message = (
            record(key_index(1), hash_key_index(1), data(b"1"))
            + key("a")
            + hash_key("0")
            + simple(0, b"2")
            + key("b")
            + hash_key("7")
        )
        assert split_aggregate(frame(message)) == [("b", b"1", "7"), ("a", b"2", None)]

    def test_fields_of_a_record_may_come_in_any_order(self):
        message = key("a") + hash_key("7") + record(data(b"x"), hash_key_index(0), key_index(0))
        assert split_aggregate(frame(message)) == [("a", b"x", "7")]


class TestExplicitHashKeys:
    def test_an_unreferenced_table_does_no_harm(self):
        assert split_aggregate(frame(key("a") + hash_key("7") + simple(0, b"1"))) == [("a", b"1", None)]

    def test_are_handed_out_as_written(self):
        message = key("a") + hash_key("no number") + record(key_index(0), hash_key_index(0), data(b""))
        assert split_aggregate(frame(message)) == [("a", b"", "no number")]


class TestLookalikes:
    """Heads that begin like those of small records, which are read in one step, and continue differently."""

    def test_an_index_of_two_bytes_whose_second_is_the_tag_of_data(self):
        keys = [str(number) for number in range(3_329)]
        message = b"".join(map(key, keys)) + simple(0x1A << 7, b"x" * 25)
        assert message[-32:-25] == b"\x1a\x1e\x08\x80\x1a\x1a\x19"
        assert split_aggregate(frame(message)) == [("3328", b"x" * 25, None)]

    def test_a_hash_key_index_that_is_the_tag_of_data(self):
        texts = [str(number) for number in range(27)]
        message = key("a") + b"".join(map(hash_key, texts)) + record(key_index(0), hash_key_index(26), data(b"x" * 25))
        assert message[-33:-25] == b"\x1a\x1f\x08\x00\x10\x1a\x1a\x19"
        assert split_aggregate(frame(message)) == [("a", b"x" * 25, "26")]

    def test_an_index_of_three_bytes_whose_third_is_the_tag_of_data(self):
        message = key("") * 17_000 + record(key_index(0x1A << 14), data(b"x" * 25))
        assert message[-33:-25] == b"\x1a\x1f\x08\x80\x80\x1a\x1a\x19"
        assert split_aggregate(frame(message)) is None

    def test_a_size_of_two_bytes_whose_second_is_the_tag_of_an_index(self):
        texts = [str(number) for number in range(27)]
        one = record(key_index(26), b"\xfa\x01\x00", data(b"x" * 1142))
        assert one[:7] == b"\x1a\xfe\x08\x08\x1a\xfa\x01"
        assert split_aggregate(frame(b"".join(map(key, texts)) + one)) == [("26", b"x" * 1142, None)]


UNKNOWN = {
    "varint": b"\x28\xff\xff\x01",
    "eight bytes": b"\x29" + b"\xff" * 8,
    "bytes": b"\x2a\x03abc",
    "four bytes": b"\x2d" + b"\xff" * 4,
    "high field number": b"\xfa\xff\xff\xff\x0f\x01x",
    "tag of a record": sized(0x22, b"\x0a\x03key\x12\x05value"),
    "broken tag of a record": sized(0x22, b"\xff\xff\xff"),
}


class TestHeaders:
    def test_are_tags_after_the_data(self):
        headers = {"a": "1", "long": "x" * 200, "empty": ""}
        tags = sized(0x22, b"\x0a\x01a\x12\x011") + sized(0x22, b"\x0a\x04long" + sized(0x12, b"x" * 200))
        tags += sized(0x22, b"\x0a\x05empty\x12\x00")
        assert encode_tags(headers) == tags
        assert encode_tags({}) == b""
        assert decode_tags(tags) == headers
        message = key("k") + record(key_index(0), data(b"x"), tags) + simple(0, b"y")
        assert build_headed([("k", b"x", None, headers), ("k", b"y", None, {})]) == frame(message)
        assert split_headed(frame(message)) == [("k", b"x", None, headers), ("k", b"y", None, {})]

    def test_with_explicit_hash_keys_and_data_of_any_length(self):
        records = [
            ("a", b"x" * length, hash_key, {"n": str(length)} if length % 2 else {})
            for length in (0, 1, 126, 127, 2_047, 2_048, 16_385, 70_001)
            for hash_key in (None, "7")
        ]
        assert split_headed(build_headed(records)) == records

    def test_may_stand_anywhere_in_a_record(self):
        parts = [key_index(0), data(b"x")]
        tag, other = sized(0x22, b"\x0a\x01a\x12\x011"), sized(0x22, b"\x12\x012\x0a\x01b")
        for place in range(3):
            message = key("k") + record(*parts[:place], tag, *parts[place:], other)
            assert split_headed(frame(message)) == [("k", b"x", None, {"a": "1", "b": "2"})]

    @pytest.mark.parametrize(
        ("tag", "headers"),
        {
            "no value": (b"\x0a\x01a", {"a": ""}),
            "the last name and value count": (b"\x0a\x01x\x0a\x01a\x12\x011\x12\x012", {"a": "2"}),
            "an unknown field": (b"\x0a\x01a\x1a\x01x\x20\x05", {"a": ""}),
            "a padded length": (b"\x0a\x81\x00a", {"a": ""}),
            "no name": (b"\x12\x011", {}),
            "nothing": (b"", {}),
            "a name that is not UTF-8": (b"\x0a\x01\xff\x12\x011", {}),
            "a value that is not UTF-8": (b"\x0a\x01a\x12\x01\xff", {}),
            "a value with an encoded surrogate": (b"\x0a\x01a\x12\x03\xed\xa0\x80", {}),
            "a value with NUL": (b"\x0a\x01a\x12\x01\x00", {"a": "\x00"}),
            "a name with NUL": (b"\x0a\x02a\x00\x12\x011", {}),
            "a name of another case": (b"\x0a\x04Good\x12\x011", {"Good": "1"}),
            "a value that claims more than there is": (b"\x0a\x01a\x12\xff\xff\xff\xff\x0f1", {}),
            "a name that no header has": (b"\x0a\x03a b\x12\x011", {}),
            "too short for its name": (b"\x0a\x05a", {}),
            "a length without an end": (b"\x0a" + b"\xff" * 11, {}),
            "cut in a length": (b"\x0a\xff", {}),
            "a name of another type": (b"\x08\x01", {}),
            "a group": (b"\x0a\x01a\x1b", {}),
        }.values(),
    )
    def test_a_tag_never_harms_its_record_nor_other_tags(self, tag, headers):
        good = sized(0x22, b"\x0a\x04good\x12\x01g")
        message = key("k") + record(key_index(0), data(b"x"), sized(0x22, tag), good) + simple(0, b"y")
        assert split_headed(frame(message)) == [("k", b"x", None, headers | {"good": "g"}), ("k", b"y", None, {})]
        message = key("k") + record(key_index(0), data(b"x"), sized(0x22, tag))
        assert split_headed(frame(message)) == [("k", b"x", None, headers)]

    @pytest.mark.parametrize("field", [b"\x20\x05", b"\x21" + bytes(8), b"\x25" + bytes(4), b"\xa2\x00\x03\x0a\x01a"])
    def test_a_tag_of_another_wire_type_is_skipped(self, field):
        message = key("k") + record(key_index(0), data(b"x"), field)
        assert split_headed(frame(message)) == [("k", b"x", None, {})]

    def test_a_tag_that_is_longer_than_its_record_makes_no_aggregate(self):
        message = key("k") + record(key_index(0), data(b"x"), b"\x22\x09\x0a\x01a")
        assert split_headed(frame(message)) is None

    def test_of_thousands_of_tags_the_first_that_fit_are_headers(self):
        tags = [sized(0x22, sized(0x0A, b"h%d" % place) + b"\x12\x011") for place in range(5_000)]
        message = key("k") + record(key_index(0), data(b"x"), *tags, *tags) + simple(0, b"y")
        expected = {f"h{place}": "1" for place in range(64)}
        assert split_headed(frame(message)) == [("k", b"x", None, expected), ("k", b"y", None, {})]

    def test_a_tag_larger_than_all_headers_may_be_is_left_out(self):
        tags = sized(0x22, b"\x0a\x01a" + sized(0x12, b"x" * (1 << 20))) + sized(0x22, b"\x0a\x01b\x12\x011")
        message = key("k") + record(key_index(0), data(b"x"), tags)
        assert split_headed(frame(message)) == [("k", b"x", None, {"b": "1"})]

    def test_an_index_out_of_range_beside_tags_makes_no_aggregate(self):
        tag = sized(0x22, b"\x0a\x01a\x12\x011")
        assert split_headed(frame(key("k") + record(key_index(1), data(b"x"), tag))) is None
        assert split_headed(frame(key("k") + record(key_index(0), hash_key_index(0), data(b"x"), tag))) is None

    def test_equal_ones_are_shared(self):
        records = [("k", b"%d" % place, None, {"traceparent": str(place % 2)}) for place in range(6)]
        headers = [one.headers for one in split_headed(build_headed(records))]
        assert headers[0] is headers[2] is headers[4]
        assert headers[1] is headers[3] is headers[5]
        assert headers[0] != headers[1]

    def test_no_headers_cost_nothing(self):
        first, second = split_columns(built(("k", b"x"))), split_columns(built(("k", b"x")))
        assert first.headers is second.headers


class TestOtherFields:
    @pytest.mark.parametrize("unknown", UNKNOWN.values(), ids=UNKNOWN)
    def test_are_stepped_over_in_the_aggregate(self, unknown):
        parts = [key("a"), key("b"), simple(1, b"x"), simple(0, b"y")]
        for place in range(len(parts) + 1):
            message = b"".join(parts[:place]) + unknown * 2 + b"".join(parts[place:])
            assert split_aggregate(frame(message)) == [("b", b"x", None), ("a", b"y", None)]

    @pytest.mark.parametrize("unknown", UNKNOWN.values(), ids=UNKNOWN)
    def test_are_stepped_over_in_a_record(self, unknown):
        parts = [key_index(0), hash_key_index(0), data(b"x")]
        for place in range(len(parts) + 1):
            one = record(*parts[:place], unknown, *parts[place:])
            message = key("a") + hash_key("7") + one + simple(0, b"y")
            assert split_aggregate(frame(message)) == [("a", b"x", "7"), ("a", b"y", None)]

    def test_the_last_of_a_repeated_field_counts(self):
        one = record(key_index(9), hash_key_index(9), data(b"no"), key_index(1), data(b"yes"), hash_key_index(0))
        message = key("a") + key("b") + hash_key("7") + one
        assert split_aggregate(frame(message)) == [("b", b"yes", "7")]

    def test_numbers_may_be_padded(self):
        message = b"\x0a\x81\x00a" + b"\x1a\x89\x80\x00" + b"\x08\x80\x00" + b"\x1a\x84\x00data"
        assert len(message) == 4 + 4 + 3 + 7
        message = message.replace(b"\x1a\x89\x80\x00", b"\x1a\x8a\x80\x00")
        assert split_aggregate(frame(message)) == [("a", b"data", None)]


GOOD = key("a") + hash_key("7") + record(key_index(0), hash_key_index(0), data(b"x"))

BROKEN = {
    "no record": key("a"),
    "only an unknown field": b"\x28\x01",
    "key index out of range": key("a") + simple(1, b"x"),
    "key index without a table": simple(0, b"x"),
    "huge key index": key("a") + record(b"\x08" + HUGE, data(b"x")),
    "hash key index out of range": key("a") + hash_key("7") + record(key_index(0), hash_key_index(1), data(b"x")),
    "hash key index without a table": key("a") + record(key_index(0), hash_key_index(0), data(b"x")),
    "huge hash key index": key("a") + hash_key("7") + record(key_index(0), b"\x10" + HUGE, data(b"x")),
    "second record out of range": key("a") + simple(0, b"x") + simple(1, b"y"),
    "record without a key": key("a") + record(data(b"x")),
    "record without data": key("a") + record(key_index(0)),
    "empty record": key("a") + record(),
    "empty record after a good one": GOOD + record(),
    "key is no UTF-8": sized(0x0A, b"\xff") + simple(0, b"x"),
    "one of the keys is no UTF-8": key("a") + key("b") + sized(0x0A, b"\xc3") + simple(0, b"x"),
    "long key is no UTF-8": sized(0x0A, b"\xff" * 200) + simple(0, b"x"),
    "key with a surrogate": sized(0x0A, b"\xed\xa0\x80") + simple(0, b"x"),
    "hash key is no UTF-8": key("a") + sized(0x12, b"\xff") + simple(0, b"x"),
    "key as varint": b"\x08\x00" + GOOD,
    "hash key as varint": GOOD + b"\x10\x00",
    "records as four bytes": GOOD + b"\x1d" + bytes(4),
    "key index as bytes": key("a") + record(b"\x0a\x01\x00", data(b"x")),
    "hash key index as eight bytes": key("a") + record(key_index(0), b"\x11" + bytes(8), data(b"x")),
    "data as varint": key("a") + record(key_index(0), b"\x18\x00"),
    "data as varint after data": key("a") + record(key_index(0), data(b"x"), b"\x18\x00"),
    "padded tag of a key": b"\x8a\x00\x01a" + simple(0, b"x"),
    "padded tag in a record": key("a") + record(b"\x88\x00\x00", data(b"x")),
    "field number 0": GOOD + b"\x00\x00",
    "group": GOOD + b"\x2b\x2c",
    "end of a group": GOOD + b"\x2c",
    "group in a record": key("a") + record(key_index(0), data(b"x"), b"\x2b\x2c"),
    "wire type 6": GOOD + b"\x2e",
    "wire type 7 in a record": key("a") + record(key_index(0), data(b"x"), b"\x2f"),
    "overlong varint": GOOD + b"\x28" + b"\x80" * 10 + b"\x00",
    "overlong key index": key("a") + record(b"\x08" + b"\x80" * 10 + b"\x00", data(b"x")),
    "overlong size of a key": b"\x0a" + b"\x80" * 10 + b"\x00" + GOOD,
    "overlong size of a record": GOOD + b"\x1a" + b"\x80" * 10 + b"\x00",
    "overlong tag": GOOD + b"\xff" * 11,
    "key longer than the message": b"\x0a\x7fa",
    "key longer than a long message": sized(0x2A, bytes(300)) + b"\x0a\x7fa",
    "first key longer than a message of its length": b"\x0a\x64" + b"k" * 80,
    "first key reaches into the MD5": b"\x0a\x0ak",
    "second of two equal keys reaches past everything": key("k" * 100) + b"\x0a\x64k",
    "last key reaches into the MD5": GOOD + b"\x0a\x0ak",
    "record reaches into the MD5": key("a") + b"\x1a\x0a" + key_index(0) + b"\x1a\x06x",
    "record longer than the message": key("a") + b"\x1a\x7f" + key_index(0) + data(b"x"),
    "huge record": key("a") + b"\x1a" + HUGE + key_index(0) + data(b"x"),
    "data shorter than its record": key("a") + sized(0x1A, key_index(0) + b"\x1a\x01xy"),
    "data shorter than its record, index of two bytes": key("a") * 200 + record(key_index(128), b"\x1a\x01xy"),
    "data longer than its record": key("a") + sized(0x1A, key_index(0) + b"\x1a\x03x") + simple(0, b"y"),
    "huge data": key("a") + record(key_index(0), b"\x1a" + HUGE),
    "huge key": b"\x0a" + HUGE + GOOD,
    "huge unknown field": GOOD + b"\x2a" + HUGE,
    "huge unknown field in a record": key("a") + record(key_index(0), data(b"x"), b"\x2a" + HUGE),
    "index crosses the end of its record": key("a") + b"\x1a\x02\x08\x80" + b"\x01" + data(b"x"),
    "two-byte index crosses the end of its record": key("a") * 200 + b"\x1a\x04\x08\x80\x01\x1a\x01x",
    "unknown field crosses the end of its record": key("a") + record(key_index(0), data(b"x"), b"\x29") + bytes(8),
    "unknown field crosses the end of the message": GOOD + b"\x29",
    "tag without a value": GOOD + b"\x1a",
}


class TestPlainRecords:
    @pytest.mark.parametrize(
        "plain",
        [
            b"",
            b"\xf3",
            MAGIC,
            MAGIC + bytes(16),
            MAGIC + md5(b"", usedforsecurity=False).digest(),
            b'{"json": true}',
            b"\xf3\x89\x9a\xc3" + frame(GOOD)[4:],
            frame(GOOD)[1:],
            frame(GOOD) + b"\x00",
            frame(GOOD)[:-1],
            frame(GOOD)[:-1] + b"\x00",
            MAGIC + GOOD + bytes(16),
        ],
    )
    def test_no_frame(self, plain):
        assert split_aggregate(plain) is None
        assert not is_framed(plain)

    def test_the_good_one_is_good(self):
        assert split_aggregate(frame(GOOD)) == [("a", b"x", "7")]

    @pytest.mark.parametrize("message", BROKEN.values(), ids=BROKEN)
    def test_a_broken_message_in_a_good_frame(self, message):
        blob = frame(message)
        assert split_aggregate(blob) is None
        assert is_framed(blob)  # other readers may accept it, so a producer wraps it (P12)

    def test_every_truncation(self):
        ends = {0: None, len(GOOD): [("a", b"x", "7")], len(GOOD) + 3: [("a", b"x", "7")]}
        message = GOOD + key("b") + simple(1, b"y")
        ends[len(message)] = [("a", b"x", "7"), ("b", b"y", None)]
        for end in range(len(message) + 1):
            assert split_aggregate(frame(message[:end])) == ends.get(end), end


class TestBombs:
    @pytest.mark.parametrize("name", ["huge key", "huge record", "huge data", "huge unknown field", "huge key index"])
    def test_a_declared_length_allocates_nothing(self, name):
        blob = frame(BROKEN[name])
        tracemalloc.start()
        try:
            assert split_aggregate(blob) is None
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert peak < 20_000

    def test_nesting_is_not_followed(self):
        nested = b"x"
        for _ in range(2_000):
            nested = sized(0x2A, nested)
        assert split_aggregate(frame(GOOD + nested)) == [("a", b"x", "7")]

    def test_work_grows_with_the_bytes_only(self):
        """3 MiB of the worst alternation take 0.3 s, a few times that under a tracer. Searching the whole rest at each
        step (see ``_read_key_grid``) would take much longer than this limit.
        """
        filler = key("k" * 36) + b"\x28\x00"
        blob = frame(GOOD + filler * (3 * 2**20 // len(filler)))
        started_at = process_time()
        assert split_aggregate(blob) == [("a", b"x", "7")]
        assert process_time() - started_at < 6
