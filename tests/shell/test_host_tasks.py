"""Ctrl-C interrupts the program's own code, never a host task or a task of its ``HostTasks``."""

import signal

import anyio
import anyio.lowlevel
import pytest
import trio
from tests.sim.interrupting import entered_once_more

from shardline.aio.loop.host_tasks import HostTasks, spawn

PLACES = (
    *(f"shardline/aio/loop/host_tasks.py:{name}" for name in ("_", "start_soon", "run")),
    "anyio/_core/_tasks.py",
    "anyio/_backends/_trio.py",
)
"""The functions at the bottom of a host task's stack. ``spawn`` is not one of them, because the caller runs it. trio
protects its own.
"""


def run_with_an_interrupt(after, within):
    """Run a host with two tasks on trio, and press Ctrl-C after this many of their steps. Return where it came, and
    what ran.
    """
    done = []

    async def work(name):
        await anyio.lowlevel.checkpoint()
        done.append(name)

    async def host(ended):
        async with HostTasks() as tasks:
            tasks.start_soon(work, "one")
            tasks.start_soon(work, "two")
        done.append("host")
        ended.set()

    async def main():
        ended = trio.Event()
        spawn(host(ended), "host", ended.set)
        with trio.CancelScope(shield=True):
            while not ended.is_set():
                try:
                    await ended.wait()
                except KeyboardInterrupt:
                    done.append("Ctrl-C")

    with entered_once_more(after, lambda: signal.raise_signal(signal.SIGINT), within) as interruption:
        try:
            trio.run(main)
        except KeyboardInterrupt:  # the main task had already ended
            done.append("Ctrl-C")
    return interruption.where, done


@pytest.mark.parametrize("within", PLACES)
def test_an_interrupt_at_any_place_of_a_task_goes_to_the_main_one(within):
    places = set()
    for after in range(1_000):
        where, done = run_with_an_interrupt(after, within)
        if where is None:
            break
        places.add(where)
        assert sorted(done) == ["Ctrl-C", "host", "one", "two"], where
    assert where is None
    assert any("_run_protected" in place for place in places) == (within == PLACES[0])


@pytest.mark.anyio
@pytest.mark.parametrize("wire", [("asyncio", False), ("uvloop", False), ("trio", False)], indirect=True, ids=str)
async def test_a_task_that_fails_ends_the_others_and_is_reported():
    async def sleep():
        await anyio.sleep(60)

    async def fail():
        raise LookupError("broken")

    async def both():
        async with HostTasks() as tasks:
            tasks.start_soon(sleep)
            tasks.start_soon(fail)

    with pytest.raises(ExceptionGroup) as caught:
        await both()
    assert [str(one) for one in caught.value.exceptions] == ["broken"]


@pytest.mark.anyio
@pytest.mark.parametrize("wire", [("asyncio", False), ("uvloop", False), ("trio", False)], indirect=True, ids=str)
async def test_its_scope_ends_all_of_it():
    async with HostTasks() as tasks:
        tasks.start_soon(anyio.sleep, 60)
        tasks.cancel_scope.cancel()
    assert tasks.cancel_scope.cancelled_caught
    async with HostTasks() as tasks:
        tasks.start_soon(anyio.sleep, 60)
        tasks.cancel_scope.deadline = anyio.current_time() + 0.01
    assert tasks.cancel_scope.cancelled_caught
