"""Tests of ``shared_reader``."""

import asyncio

from shardline.console.shared_reader import SharedReader, is_background


def test_a_reader_runs_while_a_page_is_open():
    async def run():
        running, ended = [], []

        async def read():
            running.append(is_background.get())
            await asyncio.Event().wait()

        reader = SharedReader(read, lambda: ended.append(True))
        async with reader.page():
            async with reader.page():
                await asyncio.sleep(0)
                assert (running, reader.has_pages) == ([True], True)
            assert ended == []
        assert (ended, reader.has_pages) == ([True], False)
        async with reader.page():
            await asyncio.sleep(0)
            assert running == [True, True]  # a new reader
        assert not is_background.get()

    asyncio.run(run())


def test_a_reader_that_ends_with_a_bug_says_so_until_the_next_reader_starts():
    async def run():
        failures = [ZeroDivisionError("a text with a secret")]

        async def read():
            if failures:
                raise failures.pop()
            await asyncio.Event().wait()

        reader = SharedReader(read, lambda: None)
        async with reader.page():
            await asyncio.sleep(0)
            assert reader.problem == "internal error: ZeroDivisionError. Start the console with -v to see more."
        async with reader.page():
            await asyncio.sleep(0)
            assert reader.problem is None

    asyncio.run(run())
