"""Are lines split correctly, however the input arrives?"""

import os
import threading

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardline.cli.put import line_input
from shardline.cli.put.line_input import BlockReader, LineSplitter


@given(st.lists(st.binary(max_size=20) | st.just(b"\n") | st.just(b"a\nb\n\nc"), max_size=30))
def test_lines_are_those_of_the_whole(blocks):
    splitter = LineSplitter()
    lines = [line for block in blocks for line in splitter.feed(block)] + splitter.end()
    whole = b"".join(blocks)
    expected = whole.split(b"\n")
    assert lines == (expected[:-1] if expected[-1] == b"" else expected)
    assert splitter.unfinished_bytes == 0


def test_a_line_that_is_too_long_is_refused_and_takes_no_memory(monkeypatch):
    monkeypatch.setattr(line_input, "LINE_MAX_BYTES", 10)
    splitter = LineSplitter()
    assert splitter.feed(b"x" * 10) == []
    assert splitter.feed(b"\nyyy") == [b"x" * 10]
    for _ in range(5):
        assert splitter.feed(b"y" * 9) == []
    assert splitter._parts == []
    assert splitter.unfinished_bytes == 48
    assert splitter.feed(b"\nz\n") == [None, b"z"]
    assert splitter.feed(b"y" * 11) == []
    assert splitter.end() == [None]


def test_a_pipe_is_read_as_it_comes_and_not_far_ahead():
    read_end, write_end = os.pipe()
    written = []

    def write():
        for number in range(8):
            os.write(write_end, bytes([number]) * line_input.BLOCK_BYTES)
            written.append(number)
        os.close(write_end)

    async def main():
        reader = BlockReader(read_end)
        writing = threading.Thread(target=write)
        writing.start()
        while reader._blocks.qsize() < line_input._BLOCKS_AHEAD:  # noqa: ASYNC110 - a queue that nobody waits for
            await anyio.sleep(0.001)
        assert len(written) < 8, "it is not read to its end"
        read = b"".join([block async for block in reader.blocks()])
        writing.join()
        assert reader.read_bytes == len(read)
        return read

    read = anyio.run(main)
    os.close(read_end)
    assert read == b"".join(bytes([number]) * line_input.BLOCK_BYTES for number in range(8))


def test_what_was_read_ahead_can_be_had():
    read_end, write_end = os.pipe()
    os.write(write_end, b"one\ntwo")
    os.close(write_end)

    async def main():
        reader = BlockReader(read_end)
        while reader._blocks.qsize() < 2:  # noqa: ASYNC110 - a queue that nobody waits for
            await anyio.sleep(0.001)
        return reader.read_ahead()

    assert anyio.run(main) == b"one\ntwo"
    os.close(read_end)


def test_unreadable_input_is_reported(tmp_path):
    directory = os.open(tmp_path, os.O_RDONLY)

    async def main():
        async for _ in BlockReader(directory).blocks():
            raise AssertionError("there is nothing to read")

    with pytest.raises(IsADirectoryError):
        anyio.run(main)
    os.close(directory)
