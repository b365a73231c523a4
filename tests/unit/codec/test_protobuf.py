"""The protobuf subset by example."""

import pytest

from shardline.codec.protobuf import WireError, encode_varint, read_varint, skip_unknown, varint_size

VARINTS = [
    (0, "00"),
    (1, "01"),
    (127, "7f"),
    (128, "8001"),
    (300, "ac02"),
    (16_383, "ff7f"),
    (16_384, "808001"),
    (2**32 - 1, "ffffffff0f"),
    (2**63 - 1, "ffffffffffffffff7f"),
    (2**64 - 1, "ffffffffffffffffff01"),
]


class TestVarints:
    @pytest.mark.parametrize(("value", "encoded"), VARINTS)
    def test_are_written_as_short_as_can_be(self, value, encoded):
        assert encode_varint(value).hex() == encoded
        assert varint_size(value) == len(encoded) // 2

    @pytest.mark.parametrize(("value", "encoded"), VARINTS)
    def test_are_read_from_where_they_start(self, value, encoded):
        buffer = b"\xff\xff" + bytes.fromhex(encoded) + b"\xff"
        assert read_varint(buffer, 2) == (value, 2 + len(encoded) // 2)

    @pytest.mark.parametrize(
        ("padded", "value"), [("8000", 0), ("8100", 1), ("ff8000", 127), ("ac8280808080808000", 300)]
    )
    def test_may_be_padded(self, padded, value):
        assert read_varint(bytes.fromhex(padded), 0) == (value, len(padded) // 2)

    @pytest.mark.parametrize("overlong", ["80" * 10 + "00", "ff" * 10 + "01", "80" * 20])
    def test_of_more_than_ten_bytes_are_broken(self, overlong):
        with pytest.raises(WireError, match="10 bytes"):
            read_varint(bytes.fromhex(overlong), 0)

    def test_of_more_than_64_bits_are_broken(self):
        with pytest.raises(WireError, match="64 bits"):
            read_varint(bytes.fromhex("ffffffffffffffffff02"), 0)

    @pytest.mark.parametrize("truncated", ["", "80", "8080", "ff" * 9])
    def test_that_end_too_early_are_noticed(self, truncated):
        with pytest.raises(IndexError):
            read_varint(bytes.fromhex(truncated), 0)


class TestUnknownFields:
    @pytest.mark.parametrize(
        "field",
        [
            "2000",  # field 4, varint
            "20ffffffffffffffffff01",
            "21ffffffffffffffff",  # field 4, eight bytes
            "2200",  # field 4, empty
            "2203616263",  # field 4, "abc"
            "25ffffffff",  # field 4, four bytes
            "82010161",  # field 16: a tag of two bytes
            "f8ffffff0f00",  # field 2^29 - 1, the highest
            "a2000161",  # field 4, padded tag
        ],
    )
    def test_are_stepped_over(self, field):
        buffer = b"\xff" + bytes.fromhex(field)
        assert skip_unknown(buffer + b"\xff" * 9, 1, 3) == len(buffer)

    def test_a_declared_length_is_only_a_position(self):
        assert skip_unknown(b"\x22" + encode_varint(2**62), 0, 3) == 2**62 + 10

    @pytest.mark.parametrize("group", ["23", "24", "2324"])
    def test_groups_are_broken(self, group):
        with pytest.raises(WireError, match="group"):
            skip_unknown(bytes.fromhex(group), 0, 3)

    @pytest.mark.parametrize("wire_type", [6, 7])
    def test_so_are_wire_types_that_do_not_exist(self, wire_type):
        with pytest.raises(WireError, match="wire type"):
            skip_unknown(bytes((4 << 3 | wire_type, 0)), 0, 3)

    @pytest.mark.parametrize(
        "tag",
        [
            "00",  # field 0 does not exist
            "02",
            "08",  # field 1, known: its reader wanted another wire type
            "1d",
            "9a00",  # field 3, known, padded
            "8080808010",  # a tag of 33 bits
        ],
    )
    def test_known_fields_and_bad_tags_are_refused(self, tag):
        with pytest.raises(WireError, match="tag"):
            skip_unknown(bytes.fromhex(tag) + bytes(9), 0, 3)

    @pytest.mark.parametrize("truncated", ["", "a2", "20", "2080", "22", "2280"])
    def test_the_end_inside_a_tag_or_a_number_is_noticed(self, truncated):
        with pytest.raises(IndexError):
            skip_unknown(bytes.fromhex(truncated), 0, 3)
