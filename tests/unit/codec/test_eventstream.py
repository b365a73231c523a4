"""Event stream frames by example."""

import struct
import tracemalloc
from datetime import UTC, datetime, timedelta, timezone
from zlib import crc32

import pytest

from shardline.codec.eventstream import (
    HEADERS_MAX_BYTES,
    PAYLOAD_MAX_BYTES,
    FrameError,
    Message,
    MessageDecoder,
    encode_message,
)

EVENT = {":message-type": "event", ":event-type": "SubscribeToShardEvent", ":content-type": "application/json"}


def prelude(total, headers):
    lengths = struct.pack(">II", total, headers)
    return lengths + struct.pack(">I", crc32(lengths))


def frame(headers=b"", payload=b""):
    """Return a frame with right lengths and checksums around any header bytes, written independently of the codec."""
    body = prelude(16 + len(headers) + len(payload), len(headers)) + headers + payload
    return body + struct.pack(">I", crc32(body))


def header(name, kind, value=b""):
    return bytes((len(name),)) + name + bytes((kind,)) + value


def decode(data):
    decoder = MessageDecoder()
    messages = decoder.feed(data)
    decoder.close()
    return messages


def in_pieces(data, size):
    decoder = MessageDecoder()
    messages = [m for at in range(0, len(data), size) for m in decoder.feed(data[at : at + size])]
    decoder.close()
    return messages


# header bytes (type and value), the value
VALUES = [
    (b"\x00", True),
    (b"\x01", False),
    (b"\x02\xff", -1),
    (b"\x03\x80\x00", -32_768),
    (b"\x04\x7f\xff\xff\xff", 2**31 - 1),
    (b"\x05\x80" + bytes(7), -(2**63)),
    (b"\x06\x00\x03abc", b"abc"),
    (b"\x06\x00\x00", b""),
    (b"\x07\x00\x03a\xc3\xbc", "aü"),
    (b"\x07\xff\xff" + b"x" * 65_535, "x" * 65_535),
    (b"\x08" + struct.pack(">q", 1_700_000_000_123), datetime(2023, 11, 14, 22, 13, 20, 123_000, tzinfo=UTC)),
    (b"\x08" + struct.pack(">q", -62_135_596_800_000), datetime(1, 1, 1, tzinfo=UTC)),
    (b"\x09" + bytes(range(16)), bytes(range(16))),
]


@pytest.mark.parametrize(("raw", "value"), VALUES)
def test_every_type_of_header_is_read(raw, value):
    [message] = decode(frame(b"\x01h" + raw, b"payload"))
    assert message == Message({"h": value}, b"payload")
    assert type(message.headers["h"]) is type(value)


def test_a_known_frame():
    # the empty message and one with a header: botocore accepts these checksums (see the properties)
    assert frame().hex() == encode_message({}, b"").hex() == "000000100000000005c248eb7d98c8ff"
    assert encode_message({"a": True, "b": 1}, b"{}") == frame(b"\x01a\x00\x01b\x04\x00\x00\x00\x01", b"{}")


class TestChunks:
    messages = (Message(EVENT, b"x" * 300), Message({}, b""), Message({"n": 2**40, "t": False}, b""), Message({}, b"y"))
    stream = b"".join(encode_message(m.headers, m.payload) for m in messages)

    @pytest.mark.parametrize("size", [1, 2, 3, 11, 12, 13, 16, 17, 100, 457, 10_000])
    def test_how_the_bytes_are_cut_does_not_matter(self, size):
        assert in_pieces(self.stream, size) == list(self.messages)

    def test_empty_chunks_do_nothing(self):
        decoder = MessageDecoder()
        assert decoder.feed(b"") == []
        assert decoder.feed(self.stream[:20]) == []
        assert decoder.feed(b"") == []
        assert decoder.feed(self.stream[20:]) == list(self.messages)
        decoder.close()
        decoder.close()

    def test_a_message_is_handed_out_with_its_last_byte(self):
        data = encode_message(EVENT, b"abc")
        decoder = MessageDecoder()
        assert [len(decoder.feed(data[at : at + 1])) for at in range(len(data))] == [0] * (len(data) - 1) + [1]

    def test_a_message_does_not_depend_on_the_buffer_that_was_fed(self):
        buffer = bytearray(encode_message({"h": b"v"}, b"abc"))
        [message] = MessageDecoder().feed(buffer)
        buffer.clear()
        assert (message.payload, message.payload.readonly) == (b"abc", True)
        assert type(message.headers["h"]) is bytes

    @pytest.mark.parametrize("size", [1, 7, 50, 10_000])
    def test_messages_before_a_broken_frame_are_handed_out_then_every_call_raises(self, size):
        data = self.stream + b"\xff" * 40
        decoder = MessageDecoder()
        messages = []
        with pytest.raises(FrameError, match="prelude"):  # noqa: PT012 - which call raises depends on the size
            for at in range(0, len(data), size):
                messages += decoder.feed(data[at : at + size])
            decoder.close()
        assert messages == list(self.messages)
        for again in (lambda: decoder.feed(self.stream), lambda: decoder.feed(b""), decoder.close):
            with pytest.raises(FrameError, match="prelude"):
                again()


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"\x00" * 12, "prelude of a frame does not match its checksum"),
        (frame(payload=b"abc")[:-1] + b"\x00", "frame does not match its checksum"),
        (frame(payload=b"abc").replace(b"abc", b"abd"), "frame does not match its checksum"),
        (prelude(15, 0) + bytes(3), "15 bytes cannot hold 0"),
        (prelude(0, 0), "0 bytes cannot hold 0"),
        (prelude(20, 5) + bytes(8), "20 bytes cannot hold 5"),
        (prelude(16, 0xFFFF_FFFF), "cannot hold"),
        (frame(header(b"a", 0) + header(b"a", 1)), "same header twice"),
        (frame(header(b"", 0) + header(b"", 0)), "same header twice"),
        (frame(header(b"a", 10)), "unknown type 10"),
        (frame(header(b"a", 255)), "unknown type 255"),
        (frame(b"\x01a"), "longer than the headers"),
        (frame(b"\x05a\x00"), "longer than the headers"),
        (frame(b"\x01"), "longer than the headers"),
        (frame(header(b"a", 2)), "longer than the headers"),
        (frame(header(b"a", 5, bytes(7)), b"payload"), "longer than the headers"),
        (frame(header(b"a", 9, bytes(15)), b"payload"), "longer than the headers"),
        (frame(header(b"a", 7, b"\x00"), b"payload"), "longer than the headers"),
        (frame(header(b"a", 7, b"\x00\x02x"), b"payload"), "longer than the headers"),
        (frame(header(b"a", 6, b"\xff\xff"), b"payload"), "longer than the headers"),
        (frame(header(b"\xff", 0)), "UTF-8"),
        (frame(header(b"a", 7, b"\x00\x01\xff")), "UTF-8"),
        (frame(header(b"a", 8, struct.pack(">q", 253_402_300_800_000))), "years 1 to 9999"),
        (frame(header(b"a", 8, struct.pack(">q", -(2**63)))), "years 1 to 9999"),
        (frame(header(b"a", 8, struct.pack(">q", 2**63 - 1))), "years 1 to 9999"),
    ],
)
def test_a_broken_frame_is_refused_for_good(data, why):
    decoder = MessageDecoder()
    for _ in range(2):
        with pytest.raises(FrameError, match=why):
            decoder.feed(data)
    for _ in range(2):
        with pytest.raises(FrameError, match=why):
            decoder.close()
    with pytest.raises(FrameError, match=why):
        in_pieces(data, 1)


def test_the_decoder_says_how_many_bytes_are_missing():
    decoder, whole = MessageDecoder(), frame(payload=b"abc")
    assert decoder.missing == 12
    decoder.feed(whole[:5])
    assert decoder.missing == 7
    decoder.feed(whole[5:13])
    assert decoder.missing == len(whole) - 13
    decoder.feed(whole[13:] + whole[:14])
    assert decoder.missing == len(whole) - 14
    decoder.feed(whole[14:])
    assert decoder.missing == 12


def test_a_header_without_a_name_is_read():
    assert decode(frame(header(b"", 0))) == [Message({"": True}, b"")]  # as botocore does


class TestGiants:
    @pytest.mark.parametrize(
        ("total", "headers", "why"),
        [
            (16 + HEADERS_MAX_BYTES + 1, HEADERS_MAX_BYTES + 1, "131072 bytes of headers, not 131073"),
            (16 + PAYLOAD_MAX_BYTES + 1, 0, "25165824 bytes of payload, not 25165825"),
            (0xFFFF_FFFF, 0, "payload"),
            (0xFFFF_FFFF, 0xFFFF_FFEF, "headers"),
        ],
    )
    def test_are_refused_at_the_twelfth_byte(self, total, headers, why):
        decoder = MessageDecoder()
        assert decoder.feed(prelude(total, headers)[:11]) == []
        with pytest.raises(FrameError, match=why):
            decoder.feed(prelude(total, headers)[11:])

    def test_the_largest_are_read(self):
        decoder = MessageDecoder()
        assert decoder.feed(prelude(16 + HEADERS_MAX_BYTES + PAYLOAD_MAX_BYTES, HEADERS_MAX_BYTES)) == []
        many = b"".join(header(b"%03d" % n, 6, struct.pack(">H", 32_000) + bytes(32_000)) for n in range(4))
        rest = header(b"rest", 6, struct.pack(">H", HEADERS_MAX_BYTES - len(many) - 8))
        full = many + rest + bytes(HEADERS_MAX_BYTES - len(many) - len(rest))
        [message] = decode(frame(full, b"p"))
        assert list(message.headers) == ["000", "001", "002", "003", "rest"]


class TestEnd:
    @pytest.mark.parametrize("left", [1, 11, 12, 13, 20])
    def test_inside_a_frame_is_an_error(self, left):
        decoder = MessageDecoder()
        whole = encode_message(EVENT, b"abc")
        assert len(decoder.feed(whole + whole[:left])) == 1
        for call in (decoder.close, decoder.close, lambda: decoder.feed(whole[left:])):
            with pytest.raises(FrameError, match=f"ended inside a frame, after {left} bytes"):
                call()

    def test_input_may_end_between_frames(self):
        assert decode(b"") == []
        assert len(decode(frame() * 3)) == 3


def test_a_large_frame_in_small_chunks_costs_little_more_than_itself():
    size = 1_000_000
    data = encode_message({}, bytes(size))
    decoder = MessageDecoder()
    chunks = [data[at : at + 100] for at in range(0, len(data), 100)]
    tracemalloc.start()
    try:
        messages = [m for chunk in chunks for m in decoder.feed(chunk)]
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert messages == [Message({}, bytes(size))]
    assert peak < 4 * size


class TestWriting:
    @pytest.mark.parametrize(
        ("value", "raw"),
        [
            (True, b"\x00"),
            (False, b"\x01"),
            (0, b"\x04\x00\x00\x00\x00"),
            (2**31 - 1, b"\x04\x7f\xff\xff\xff"),
            (-(2**31), b"\x04\x80\x00\x00\x00"),
            (2**31, b"\x05\x00\x00\x00\x00\x80\x00\x00\x00"),
            (-(2**31) - 1, b"\x05\xff\xff\xff\xff\x7f\xff\xff\xff"),
            (2**63 - 1, b"\x05\x7f" + b"\xff" * 7),
            (-(2**63), b"\x05\x80" + bytes(7)),
            (b"ab", b"\x06\x00\x02ab"),
            ("aü", b"\x07\x00\x03a\xc3\xbc"),
            ("x" * 32_767, b"\x07\x7f\xff" + b"x" * 32_767),
            (datetime(2023, 11, 14, 22, 13, 20, 123_999, tzinfo=UTC), b"\x08" + struct.pack(">q", 1_700_000_000_123)),
            (datetime(1970, 1, 1, 1, tzinfo=timezone(timedelta(hours=1))), b"\x08" + bytes(8)),
            (datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC), b"\x08" + b"\xff" * 8),
        ],
    )
    def test_values(self, value, raw):
        assert encode_message({"h": value}, b"p") == frame(b"\x01h" + raw, b"p")

    def test_names_of_up_to_127_bytes(self):
        name = "ü" * 63 + "n"
        assert decode(encode_message({name: True}, b"")) == [Message({name: True}, b"")]

    @pytest.mark.parametrize(
        ("headers", "why"),
        [
            ({"": True}, "1 to 127 bytes, not 0"),
            ({"ü" * 64: True}, "1 to 127 bytes, not 128"),
            ({"\ud800": True}, "surrogate"),
            ({"a": "\ud800"}, "surrogate"),
            ({"a": "x" * 32_768}, "32767 bytes, not 32768"),
            ({"a": b"x" * 32_768}, "32767 bytes, not 32768"),
            ({"a": 2**63}, "64 bits, not 65"),
            ({"a": -(2**63) - 1}, "64 bits, not 65"),
            ({"a": None}, "type NoneType"),
            ({"a": 1.5}, "type float"),
            ({"a": datetime(2024, 1, 1)}, "time zone"),  # noqa: DTZ001
            ({str(n): bytes(32_000) for n in range(5)}, "131072 bytes of headers"),
        ],
    )
    def test_what_cannot_be_framed_is_refused(self, headers, why):
        with pytest.raises(FrameError, match=why):
            encode_message(headers, b"")

    def test_a_payload_that_is_too_long_is_refused(self):
        with pytest.raises(FrameError, match="25165824 bytes of payload"):
            encode_message({}, bytes(PAYLOAD_MAX_BYTES + 1))
