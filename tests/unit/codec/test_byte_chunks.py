"""Pieces of bytes come out in order, with few copies, and in memory that is in proportion to the bytes."""

import sys

from hypothesis import given
from hypothesis import strategies as st

from shardline.codec.byte_chunks import ByteChunks

LARGE = bytes(range(256)) * 32  # 8 KiB


def of(*pieces):
    chunks = ByteChunks()
    for piece in pieces:
        chunks.append(piece)
    return chunks


@given(
    st.lists(
        st.one_of(
            st.binary(max_size=20).map(lambda piece: ("append", piece)),
            st.integers(4_090, 9_000).map(lambda size: ("append", bytes(size))),
            st.integers(4_090, 9_000).map(lambda size: ("append", memoryview(bytes(size)))),
            st.just(("take", b"")),
            st.just(("take_some", b"")),
        )
    )
)
def test_what_is_taken_is_what_was_appended(steps):
    chunks, appended, taken = ByteChunks(), b"", b""
    for step, piece in steps:
        if step == "append":
            chunks.append(piece)
            appended += piece
        elif step == "take":
            taken += chunks.take()
            assert not chunks
        else:
            some = chunks.take_some()
            taken += some
            assert some or not chunks
        assert len(chunks) == len(appended) - len(taken)
    assert taken + chunks.take() == appended


def test_large_pieces_are_not_copied():
    assert of(LARGE).take() is LARGE
    assert of(LARGE).take_some() is LARGE
    assert of(b"small", LARGE, LARGE).take_some() == b"small"


def test_a_large_view_is_copied_only_when_it_is_joined():
    view = memoryview(LARGE)
    assert of(view).take_some() is view
    assert of(view).take() == LARGE
    assert isinstance(of(view).take(), bytes)
    assert of(view, b"small", view).take() == LARGE + b"small" + LARGE


def test_a_small_view_is_copied():
    buffer = bytearray(b"small")
    with memoryview(buffer) as view:
        chunks = of(view)
    buffer.clear()  # fails while a view of the buffer is held
    assert chunks.take() == b"small"


def test_some_are_one_large_piece_or_all_small_ones():
    chunks = of(b"a", b"b", LARGE, LARGE, b"c", b"d")
    found = []
    while chunks:
        found.append(chunks.take_some())
    assert found == [b"ab", LARGE, LARGE, b"cd"]
    assert chunks.take_some() == chunks.take() == b""


def test_small_pieces_are_merged():
    chunks = of(*[b"x"] * 100_000)
    held = sys.getsizeof(chunks._small) + sum(map(sys.getsizeof, chunks._large))
    assert held < 150_000
    assert chunks.take() == b"x" * 100_000


def test_pieces_are_taken_without_a_copy():
    view = memoryview(LARGE)
    chunks = of(LARGE, b"small", b"est", view, b"end")
    pieces = chunks.take_pieces()
    assert pieces == [LARGE, b"smallest", view, b"end"]
    assert pieces[0] is LARGE
    assert pieces[2] is view
    assert len(chunks) == 0
    assert chunks.take_pieces() == []
