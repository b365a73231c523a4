"""Do callers share a blocking call, and can each of them be cancelled?"""

import asyncio
import contextvars
import threading
import time

import anyio
import pytest

from shardline.adapters import blocking_calls
from shardline.adapters.blocking_calls import BlockingCalls

pytestmark = pytest.mark.anyio


class Slow:
    """A call that ends on request."""

    def __init__(self, answer="found"):
        self.answer = answer
        self.calls = 0
        self.gate = threading.Event()

    def __call__(self):
        self.calls += 1
        self.gate.wait(5)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


async def test_what_it_returns_and_what_it_raises():
    calls = BlockingCalls()
    assert await calls.run("a", lambda: 7) == 7
    with pytest.raises(LookupError, match="none"):
        await calls.run("a", Slow(LookupError("none")))


async def test_it_runs_in_a_daemon_thread_with_the_callers_context():
    variable = contextvars.ContextVar("variable")
    variable.set("mine")
    thread, value = await BlockingCalls().run("a", lambda: (threading.current_thread(), variable.get()))
    assert thread is not threading.current_thread()
    assert thread.daemon
    assert value == "mine"


async def test_that_a_wake_up_is_lost_or_half_done_does_not_matter(monkeypatch):
    """A signal handler that raises in the event loop can cause this."""
    make = blocking_calls.call_soon_from_threads

    def lossy():
        soon, lost = make(), []
        return lambda call: soon(call) if lost else lost.append(call)

    monkeypatch.setattr(blocking_calls, "call_soon_from_threads", lossy)
    with anyio.fail_after(5):
        assert await BlockingCalls().run("a", lambda: 7) == 7


async def test_who_waits_can_leave_and_the_next_gets_the_outcome_of_the_same_call():
    calls, slow = BlockingCalls(), Slow()
    for _ in range(3):
        with anyio.move_on_after(0.01) as scope:
            await calls.run("a", slow)
        assert scope.cancelled_caught
    slow.gate.set()
    assert await calls.run("a", slow) == "found"
    assert slow.calls == 1


async def test_many_share_one_call_and_other_questions_do_not_wait():
    calls, slow, found = BlockingCalls(), Slow(), []

    async def ask():
        found.append(await calls.run("a", slow))

    async with anyio.create_task_group() as tasks:
        for _ in range(20):
            tasks.start_soon(ask)
        await anyio.sleep(0.01)
        assert await calls.run("b", lambda: "other") == "other"
        slow.gate.set()
    assert found == ["found"] * 20
    assert slow.calls == 1


async def test_a_call_that_ended_is_made_again():
    calls, asked = BlockingCalls(), []
    for _ in range(2):
        await calls.run("a", lambda: asked.append(1))
    assert len(asked) == 2


def test_a_loop_ends_while_a_call_hangs():
    slow = Slow()

    async def leave():
        with anyio.move_on_after(0.01):
            await BlockingCalls().run("a", slow)

    began = time.monotonic()
    asyncio.run(leave())
    assert time.monotonic() - began < 2
    slow.gate.set()  # for a loop that has ended


class NoThread:
    """``threading.Thread`` as in Python 3.12 during interpreter shutdown."""

    def __init__(self, **_):
        pass

    def start(self):
        raise RuntimeError("can't create new thread at interpreter shutdown")


async def test_where_no_thread_can_begin_any_more_the_caller_makes_the_call(monkeypatch):
    class Ended:
        def is_alive(self):
            return False

    with monkeypatch.context() as patched:
        patched.setattr(threading, "Thread", NoThread)
        patched.setattr(threading, "main_thread", Ended)
        assert await BlockingCalls().run("a", threading.get_ident) == threading.get_ident()


async def test_a_thread_that_cannot_start_is_reported_and_the_next_call_tries_again(monkeypatch):
    calls = BlockingCalls()
    with monkeypatch.context() as patched:
        patched.setattr(threading, "Thread", NoThread)
        with pytest.raises(RuntimeError, match="new thread"):
            await calls.run("a", lambda: 1)
    assert await calls.run("a", lambda: 2) == 2
