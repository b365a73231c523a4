"""Which event loop runs here?"""

import asyncio
import threading

import anyio
import pytest
import trio

from shardline.adapters.event_loop import call_soon_from_threads, is_trio, running_loop


def test_it_is_told_which_one_runs(anyio_backend):
    async def look():
        return is_trio(), running_loop()

    backend, options = anyio_backend
    found, loop = anyio.run(look, backend=backend, backend_options=options)
    assert found == (backend == "trio")
    assert isinstance(loop, trio.lowlevel.TrioToken if found else asyncio.AbstractEventLoop)


def test_where_none_runs_there_is_none():
    assert not is_trio()
    assert running_loop() is None


def test_another_thread_can_make_it_call_a_function_until_it_is_over(anyio_backend):
    async def wait():
        soon, called = call_soon_from_threads(), anyio.Event()
        threading.Thread(target=soon, args=(called.set,)).start()
        with anyio.fail_after(10):
            await called.wait()
        return soon

    backend, options = anyio_backend
    soon = anyio.run(wait, backend=backend, backend_options=options)
    with pytest.raises(RuntimeError):
        soon(lambda: None)
