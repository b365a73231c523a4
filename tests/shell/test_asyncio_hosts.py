"""Work that asyncio loses when a signal handler raises in its event loop is done again.

Here each loss is provoked; ``producer/test_raising_signals.py`` uses real signals.
"""

import asyncio
import contextlib
import json
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from tests.programs import command_for
from tests.sim.interrupting import interrupted

from shardline.aio.loop import asyncio_hosts
from shardline.aio.loop.asyncio_hosts import Flag, Group, supervisor_of_loop

WITHIN = "shardline/aio/loop/asyncio_hosts.py"
ROOT = Path(__file__).resolve().parents[2]


class Pressed(BaseException):
    """The exception that a signal handler raises."""


@pytest.fixture(autouse=True)
def quick_looks(monkeypatch):
    monkeypatch.setattr(asyncio_hosts, "CHECK_INTERVAL", 0.02)


@pytest.fixture(params=["asyncio", "uvloop"])
def run(request):
    """Run with ``asyncio.run`` and a time limit, on either event loop."""
    uvloop = pytest.importorskip("uvloop")
    factory = asyncio.new_event_loop if request.param == "asyncio" else uvloop.new_event_loop

    def run_limited(main):
        with asyncio.Runner(loop_factory=factory) as runner:
            return runner.run(asyncio.wait_for(main(), 5))

    return run_limited


def lose(task_name):
    """Remove the next step of this task from asyncio's queue, so that it does not run."""
    queue = asyncio.get_running_loop()._ready
    lost = [handle for handle in queue if task_name in repr(getattr(handle._callback, "__self__", None))]
    assert len(lost) == 1
    queue.remove(lost[0])


async def until(condition):
    while not condition():  # noqa: ASYNC110 - nothing tells
        await asyncio.sleep(0.005)


@pytest.mark.parametrize("waits", ["for a future", "for a turn", "for its begin"])
def test_a_task_whose_step_was_lost_goes_on(waits):
    done = []

    async def main():
        future = asyncio.get_running_loop().create_future()

        async def work():
            done.append("began")
            if waits == "for a turn":
                await asyncio.sleep(0)
            elif waits == "for a future":
                done.append(await future)
            done.append("went on")

        supervisor_of_loop().run(work(), "the host", lambda: done.append("ended"))
        if waits != "for its begin":
            await asyncio.sleep(0)
            if waits == "for a future":
                future.set_result("result")
        lose("the host")
        await until(lambda: "ended" in done)

    asyncio.run(asyncio.wait_for(main(), 5))
    assert [step for step in done if step != "result"] == ["began", "went on", "ended"]
    assert ("result" in done) == (waits == "for a future")


def test_the_end_of_the_loop_cancels_a_task_whose_step_was_lost():
    done = []

    async def main():
        async def work():
            try:
                await asyncio.sleep(0)
                await asyncio.sleep(60)
            finally:
                done.append("cancelled")

        supervisor_of_loop().run(work(), "the host", lambda: done.append("ended"))
        await asyncio.sleep(0)
        lose("the host")

    began_at = time.monotonic()
    asyncio.run(main())  # it cancels every task, and waits for each
    assert done == ["cancelled", "ended"]
    assert time.monotonic() - began_at < 5


def test_a_wake_up_and_a_timer_that_were_lost_come_later(run, monkeypatch):
    async def main():
        wakes = iter([False, True, False, True])
        wake = Flag._wake
        monkeypatch.setattr(Flag, "_wake", lambda flag: wake(flag) if next(wakes) else None)
        flag = Flag()
        asyncio.get_running_loop().call_later(0.01, flag.set)
        await flag.wait()
        assert flag.is_set()
        flag.clear()
        await flag.wait(0.01)
        return flag.is_set(), next(wakes, "looked at twice")

    assert run(main) == (False, "looked at twice")


def test_the_end_of_a_task_that_was_not_noted_is_noted_later(run, monkeypatch):
    async def main():
        collect, calls = Group.collect, []

        def collect_later(group, hosted):
            calls.append(group)
            if len(calls) > 2:  # the first is the check before the wait, the second is the one that is lost
                collect(group, hosted)

        monkeypatch.setattr(Group, "collect", collect_later)
        async with Group() as group:
            group.start_soon(asyncio.sleep, 0.01)
        return len(calls)

    assert run(main) > 2


def test_the_end_of_a_task_looks_at_no_other_task(run, monkeypatch):
    monkeypatch.setattr(asyncio_hosts, "CHECK_INTERVAL", 60.0)  # a check looks at all of them

    async def main():
        looks = []
        collect = Group.collect
        monkeypatch.setattr(Group, "collect", lambda group, hosted: (looks.append(hosted), collect(group, hosted)))
        async with Group() as group:
            for _ in range(100):
                group.start_soon(asyncio.sleep, 60)
            await asyncio.sleep(0.01)
            for _ in range(10):
                group.start_soon(asyncio.sleep, 0)
            await asyncio.sleep(0.05)
            ended = len(looks)
            group.cancel()
        return ended

    assert 10 <= run(main) <= 20


def test_on_end_is_called_until_it_has_returned(run):
    calls = []

    async def main():
        asyncio.get_running_loop().set_exception_handler(lambda *_: None)

        def on_end():
            calls.append(1)
            if len(calls) < 3:
                raise Pressed

        supervisor_of_loop().run(asyncio.sleep(0), "the host", on_end)
        await asyncio.sleep(0.3)

    run(main)
    assert len(calls) == 3


def test_a_task_that_no_cancellation_ends_is_abandoned(run):
    async def main():
        async def stay():
            while True:
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.get_running_loop().create_future()

        async with Group() as group:
            group.start_soon(stay)
            await asyncio.sleep(0.01)
            group.cancel()
        return not group.cancelled_caught

    assert run(main)


def test_an_idle_host_is_not_looked_at(run):
    async def main():
        flag = Flag()
        supervisor = supervisor_of_loop()
        supervisor.run(flag.wait(), "the host", lambda: None)
        await until(lambda: supervisor._next_check is None)
        flag.set()
        is_looked_at = supervisor._next_check is not None
        await until(lambda: supervisor.is_over)
        return is_looked_at

    assert run(main)


def test_nor_one_outside_the_main_thread():
    seen = []

    async def main():
        flag = Flag()
        supervisor_of_loop().run(flag.wait(0.01), "the host", flag.set)
        await flag.wait()
        seen.append(supervisor_of_loop()._next_check)

    thread = threading.Thread(target=asyncio.run, args=(main(),))
    thread.start()
    thread.join()
    assert seen == [None]


def test_an_interrupt_at_any_place_of_it_leaves_nothing_hanging():
    """This runs in a separate process: if a trace function raises while Python handles another exception, the thread
    can stay in the state of handling it, and later exceptions would get it as their context.
    """
    program = command_for("from tests.shell.test_asyncio_hosts import interrupt_everywhere; interrupt_everywhere()")
    ran = subprocess.run(program, cwd=ROOT, capture_output=True, text=True, timeout=120, check=True)
    found = json.loads(ran.stdout)
    assert found["mistakes"] == []
    assert len(set(found["places"])) > 60


def interrupt_everywhere():
    """Run a host with two tasks, a wait and a deadline, with a KeyboardInterrupt at each place where a signal can come."""
    asyncio_hosts.CHECK_INTERVAL = 0.02
    places, mistakes = [], []
    for after in range(2_000):
        ended, started = [], []

        async def host(started=started):
            started.append(1)
            async with Group() as group:
                group.start_soon(asyncio.sleep, 0)
                group.start_soon(asyncio.sleep, 60)
                await Flag().wait(0.001)
                group.deadline = asyncio.get_running_loop().time() + 0.001

        async def main(ended=ended, host=host):
            asyncio.get_running_loop().set_exception_handler(lambda *_: None)
            over = Flag()

            def on_end():
                ended.append(1)
                over.set()

            supervisor_of_loop().run(host(), "the host", on_end)
            await over.wait()

        began_at = time.monotonic()
        with interrupted(after, WITHIN, steps="signal") as interruption:
            asyncio.run(main())
        if interruption.where is None:
            break
        places.append(interruption.where)
        if time.monotonic() - began_at >= 3:
            mistakes.append(f"it hung: {interruption.where}")
        if started and not ended:
            mistakes.append(f"its end was not noted: {interruption.where}")
    else:
        mistakes.append("no end")
    sys.stdout.write(json.dumps({"places": places, "mistakes": mistakes}))
