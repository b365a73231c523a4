"""Does the compiled CRC-32 equal zlib's?"""

from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardline._speedups import native

pytestmark = pytest.mark.skipif(native is None, reason="the pure form is zlib's function")

PATTERN = bytes(range(251)) * 10


@given(st.binary(max_size=700), st.integers(0, 15))
def test_messages_of_any_size_and_place(message, begin):
    assert native.checksum(memoryview(message)[begin:]) == crc32(message[begin:])


@pytest.mark.parametrize("size", [0, 1, 15, 16, 63, 64, 65, 255, *range(256, 512), 1_024, 2_047])
def test_every_edge(size):
    assert native.checksum(PATTERN[:size]) == crc32(PATTERN[:size])
    assert native.checksum(b"\xff" * size) == crc32(b"\xff" * size)


@pytest.mark.parametrize("size", [65_536, 1_048_576 + 13])
def test_a_large_event(size):
    message = (PATTERN * (size // len(PATTERN) + 1))[:size]
    assert native.checksum(message) == crc32(message)


def test_one_bit_changes_it():
    message = bytearray(PATTERN)
    before = native.checksum(message)
    for place in (0, 63, 64, 1_000, len(message) - 1):
        message[place] ^= 1
        assert native.checksum(message) != before
        message[place] ^= 1


@pytest.mark.parametrize("wrong", [None, "text", 5, memoryview(PATTERN)[::2]])
def test_another_type_is_refused(wrong):
    with pytest.raises((TypeError, BufferError)):
        native.checksum(wrong)
