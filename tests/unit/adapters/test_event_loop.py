"""Which event loop runs in this thread?"""

import asyncio
import threading

import anyio
import pytest
import trio

from shardline.adapters.event_loop import call_soon_from_threads, is_trio, make_wakeup, running_loop, spawn_task


def test_the_running_event_loop_is_recognized(anyio_backend):
    async def look():
        return is_trio(), running_loop()

    backend, options = anyio_backend
    found, loop = anyio.run(look, backend=backend, backend_options=options)
    assert found == (backend == "trio")
    assert isinstance(loop, trio.lowlevel.TrioToken if found else asyncio.AbstractEventLoop)


def test_without_an_event_loop_none_is_found():
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


# ---- tasks and wake-ups


@pytest.mark.anyio
async def test_a_task_belongs_to_no_caller(anyio_backend):
    ended = anyio.Event()

    async def work():
        await anyio.sleep(0.02)
        ended.set()

    with anyio.move_on_after(0.001):
        spawn_task(work(), "work")
        await anyio.sleep(1)
    with anyio.fail_after(5):
        await ended.wait()


@pytest.mark.anyio
async def test_a_wake_up_is_remembered_until_it_is_waited_for(anyio_backend):
    wakeup = make_wakeup()
    wakeup.set()
    wakeup.set()
    assert await wakeup.wait(0.0)
    assert not await wakeup.wait(0.001)
    wakeup.set()
    assert await wakeup.wait()


@pytest.mark.anyio
async def test_a_wake_up_wakes_the_task_that_waits(anyio_backend):
    wakeup, woken = make_wakeup(), []

    async def wait():
        woken.append(await wakeup.wait(10))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(wait)
        await anyio.sleep(0.01)
        assert woken == []
        wakeup.set()
    assert woken == [True]
    assert not await wakeup.wait(0.001)


@pytest.mark.anyio
async def test_a_wait_that_is_cancelled_keeps_the_wake_up_for_the_next(anyio_backend):
    wakeup = make_wakeup()
    with anyio.move_on_after(0.01):
        await wakeup.wait()
    wakeup.set()
    assert await wakeup.wait()
