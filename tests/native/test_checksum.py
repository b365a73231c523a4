"""Does the compiled function join the pieces of a frame, and compute the CRC-32 that zlib computes?"""

from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardline._speedups import native

pytestmark = pytest.mark.skipif(native is None, reason="the pure form is zlib's function")

PATTERN = bytes(range(251)) * 10


def expected(frame):
    return frame, crc32(frame[:-4])


@given(st.lists(st.binary(max_size=700), max_size=4), st.integers(0, 15))
def test_pieces_of_any_size_and_place(pieces, begin):
    frame = b"".join(piece[begin:] for piece in pieces)
    assert native.join_frame([memoryview(piece)[begin:] for piece in pieces]) == expected(frame)


@given(st.lists(st.integers(0, 5_000), max_size=12))
def test_large_pieces(sizes):
    pieces = [(PATTERN * 2)[:size] for size in sizes]
    assert native.join_frame(pieces) == expected(b"".join(pieces))


@pytest.mark.parametrize("size", [0, 1, 3, 4, 5, 19, 20, 67, 68, 132, 259, *range(260, 520), 1_024, 2_047, 2_052])
def test_every_edge(size):
    for frame in (PATTERN[:size], b"\xff" * size):
        assert native.join_frame([frame]) == expected(frame)
        assert native.join_frame([frame[:130], frame[130:]]) == expected(frame)


@pytest.mark.parametrize("size", [65_536, 1_048_576 + 13])
def test_a_large_event(size):
    frame = (PATTERN * (size // len(PATTERN) + 1))[:size]
    assert native.join_frame([frame]) == expected(frame)
    assert native.join_frame([frame[:7], frame[7:30_000], memoryview(frame)[30_000:]]) == expected(frame)


def test_one_bit_changes_it():
    frame = bytearray(PATTERN)
    before = native.join_frame([frame])[1]
    for place in (0, 63, 64, 127, 128, 1_000, len(frame) - 5):
        frame[place] ^= 1
        assert native.join_frame([frame])[1] != before
        frame[place] ^= 1
    frame[-4] ^= 1  # the frame's own checksum
    assert native.join_frame([frame]) == (bytes(frame), before)


@pytest.mark.parametrize("wrong", [None, "text", 5, memoryview(PATTERN)[::2]])
def test_another_type_is_refused(wrong):
    with pytest.raises((TypeError, BufferError)):
        native.join_frame([PATTERN, wrong])
    with pytest.raises(TypeError, match="expected a list"):
        native.join_frame((PATTERN,))
