"""Event streams for any messages and bytes, alone and against botocore."""

import struct
from datetime import UTC, datetime, timedelta
from zlib import crc32

import pytest
from botocore.eventstream import EventStreamBuffer, ParserError
from hypothesis import given, settings
from hypothesis import strategies as st

from shardline.codec.eventstream import FrameError, Message, MessageDecoder, encode_message

thorough = settings(max_examples=70, deadline=None)

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20)
times = st.datetimes(timezones=st.just(UTC)).map(lambda when: when.replace(microsecond=when.microsecond // 1000 * 1000))
header_values = st.booleans() | st.integers(-(2**63), 2**63 - 1) | texts | st.binary(max_size=40) | times
messages = st.builds(
    Message,
    st.dictionaries(names, header_values, max_size=4),
    st.binary(max_size=60) | st.binary(min_size=500, max_size=600),
)


def framed(message):
    return encode_message(message.headers, message.payload)


def frame(headers, payload):
    """Return a frame with right lengths and checksums around any header bytes."""
    body = struct.pack(">II", 16 + len(headers) + len(payload), len(headers))
    body += struct.pack(">I", crc32(body)) + headers + payload
    return body + struct.pack(">I", crc32(body))


def cut(data, places):
    ends = sorted(place % (len(data) + 1) for place in places)
    return [data[start:end] for start, end in zip([0, *ends], [*ends, len(data)], strict=True)]


def read(chunks):
    decoder = MessageDecoder()
    found = [message for chunk in chunks for message in decoder.feed(chunk)]
    decoder.close()
    return found


def theirs(data):
    """Return the message that botocore reads. It returns a time as the milliseconds on the wire."""
    buffer = EventStreamBuffer()
    buffer.add_data(data)
    return [(message.headers, message.payload) for message in buffer]


def as_theirs(message):
    headers = {
        name: (value - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)
        if isinstance(value, datetime)
        else value
        for name, value in message.headers.items()
    }
    return headers, message.payload


@thorough
@given(st.lists(messages, max_size=5), st.lists(st.integers(0, 5_000), max_size=12))
def test_any_messages_in_any_chunks_come_out_the_same(sent, places):
    stream = b"".join(map(framed, sent))
    assert read(cut(stream, places)) == sent
    assert [[*map(type, message.headers.values())] for message in read([stream])] == [
        [*map(type, message.headers.values())] for message in sent
    ]


@thorough
@given(st.lists(messages, max_size=4), st.binary(min_size=12, max_size=60), st.lists(st.integers(0, 5_000), max_size=6))
def test_the_messages_before_garbage_do_not_depend_on_the_chunks(sent, garbage, places):
    # the CRC of twelve random bytes is right once in four billion times; Hypothesis does not compute it
    decoder = MessageDecoder()
    found = []
    with pytest.raises(FrameError):  # noqa: PT012 - which call raises depends on the chunks
        for chunk in cut(b"".join(map(framed, sent)) + garbage, places):
            found += decoder.feed(chunk)
        decoder.close()
    assert found == sent


@thorough
@given(st.lists(messages, max_size=3))
def test_botocore_reads_what_we_write(sent):
    assert theirs(b"".join(map(framed, sent))) == [as_theirs(message) for message in sent]


# all ten types, written by hand: (header bytes after the name)
raw_values = st.one_of(
    st.sampled_from([b"\x00", b"\x01"]),
    st.binary(min_size=1, max_size=1).map(b"\x02".__add__),
    st.binary(min_size=2, max_size=2).map(b"\x03".__add__),
    st.binary(min_size=4, max_size=4).map(b"\x04".__add__),
    st.binary(min_size=8, max_size=8).map(b"\x05".__add__),
    st.binary(max_size=300).map(lambda raw: b"\x06" + struct.pack(">H", len(raw)) + raw),
    texts.map(lambda text: b"\x07" + struct.pack(">H", len(text.encode())) + text.encode()),
    st.integers(-62_135_596_800_000, 253_402_300_799_999).map(lambda time: b"\x08" + struct.pack(">q", time)),
    st.binary(min_size=16, max_size=16).map(b"\x09".__add__),
)


@thorough
@given(st.dictionaries(texts, raw_values, max_size=8), st.binary(max_size=30))
def test_we_read_what_botocore_reads(headers, payload):
    block = b"".join(bytes((len(name.encode()),)) + name.encode() + raw for name, raw in headers.items())
    [message] = read([frame(block, payload)])
    assert [as_theirs(message)] == theirs(frame(block, payload))
    assert list(message.headers) == list(headers)


@settings(max_examples=150, deadline=None)
@given(
    st.binary(max_size=40)
    | st.lists(st.tuples(st.sampled_from([b"\x00", b"\x01a", b"\x01b"]), raw_values | st.binary(max_size=4))).map(
        lambda pairs: b"".join(name + value for name, value in pairs)
    ),
    st.binary(max_size=8),
)
def test_any_header_bytes_are_headers_or_an_error(block, payload):
    data = frame(block, payload)
    try:
        [message] = read([data])
    except FrameError:
        return
    assert [as_theirs(message)] == theirs(data)  # botocore, which ignores overruns, reads the same


@settings(max_examples=25, deadline=None)
@given(st.builds(Message, st.dictionaries(names, header_values, max_size=2), st.binary(max_size=20)))
def test_every_flipped_bit_is_noticed(message):
    data = framed(message)
    for bit in range(len(data) * 8):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(FrameError):
            read([bytes(flipped)])


@thorough
@given(st.lists(messages, min_size=1, max_size=3), st.integers(0, 5_000))
def test_no_beginning_of_a_stream_is_a_whole_one(sent, place):
    stream = b"".join(map(framed, sent))
    ends = {0}
    for message in sent:
        ends.add(max(ends) + len(framed(message)))
    end = place % len(stream)
    if end in ends:
        assert read([stream[:end]]) == sent[: sorted(ends).index(end)]
    else:
        with pytest.raises(FrameError, match="ended inside"):
            read([stream[:end]])


@settings(max_examples=150, deadline=None)
@given(st.lists(st.binary(max_size=40), max_size=6))
def test_random_bytes_raise_nothing_else(chunks):
    decoder = MessageDecoder()
    failed = False
    for chunk in chunks:
        try:
            assert decoder.feed(chunk) == []
        except FrameError:
            failed = True
        else:
            assert not failed
    if sum(map(len, chunks)):
        with pytest.raises(FrameError):
            decoder.close()


@thorough
@given(st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1))
def test_any_prelude_with_a_right_checksum_is_refused_or_waited_for(total, headers):
    lengths = struct.pack(">II", total, headers)
    prelude = lengths + struct.pack(">I", crc32(lengths))
    sane = 16 + headers <= total and headers <= 128 * 1024 and total - headers - 16 <= 24 * 1024 * 1024
    decoder = MessageDecoder()
    if sane:
        assert decoder.feed(prelude) == []
        return
    with pytest.raises(FrameError):
        decoder.feed(prelude)
    if total >= headers + 16:
        buffer = EventStreamBuffer()
        buffer.add_data(prelude)
        with pytest.raises(ParserError):
            next(buffer)
