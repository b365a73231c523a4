"""Who waits for a call that blocks: a name look-up, botocore's chains, SQLite?

Nobody who does not want to. Such a call can hang for minutes, and a thread cannot be stopped. So it gets a daemon
thread of its own, not one of a pool that is joined at the end (``asyncio.run`` joins the one that asyncio uses).

Invariants:

- Who waits can leave at any time, also the last; the call goes on.
- A call that is asked for while the same one runs, also one that was left, is not made again: all share its
  outcome. So there is never more than one thread for each.
- At the interpreter's end, where no thread can begin (Python 3.12 on), the call is made in the caller's.
- A signal handler that raises in the event loop loses no outcome: whoever waits is woken twice.
"""

import asyncio
import threading
from collections.abc import Callable, Hashable
from contextlib import suppress
from contextvars import copy_context
from typing import Generic, TypeVar, final

import anyio

from shardline.adapters.event_loop import call_soon_from_threads, is_trio

_T = TypeVar("_T")


@final
class BlockingCalls(Generic[_T]):
    """Calls under way, by what they ask."""

    def __init__(self) -> None:
        self._running: dict[Hashable, _Call[_T]] = {}

    async def ask(self, question: Hashable, call: Callable[[], _T]) -> _T:
        """What ``call()`` returns or raises, or one that asks the same and runs already."""
        running = self._running.get(question)
        if running is None:
            running = self._running[question] = _Call(call, lambda: self._forget(question, running))
            running.start()
        return await running.outcome()

    def _forget(self, question: Hashable, ended: "_Call[_T] | None") -> None:
        if self._running.get(question) is ended:  # a call ends twice: the next one may have begun in between
            self._running.pop(question, None)


@final
class _Call(Generic[_T]):
    """One call in a thread of its own."""

    def __init__(self, call: Callable[[], _T], forget: Callable[[], object]) -> None:
        self._call = call
        self._forget = forget
        self._soon = call_soon_from_threads()
        self._is_over = False
        self._waiting: list[asyncio.Future[None] | anyio.Event] = []
        self._results: list[_T] = []
        self._error: Exception | None = None

    def start(self) -> None:
        thread = threading.Thread(target=copy_context().run, args=(self._run,), name="shardline look-up", daemon=True)
        try:
            thread.start()
        except RuntimeError:
            if threading.main_thread().is_alive():
                self._forget()
                raise
            self._make()
            self._finish()
        except BaseException:  # a signal handler raised
            self._forget()
            raise

    async def outcome(self) -> _T:
        while not self._is_over:
            if is_trio():
                self._waiting.append(event := anyio.Event())
                await event.wait()
            else:  # a future: what an interrupt leaves undone in the set() of an event is never done
                self._waiting.append(future := asyncio.get_running_loop().create_future())
                await future
        if self._error is not None:
            raise self._error
        return self._results[0]

    def _run(self) -> None:
        self._make()
        with suppress(RuntimeError):  # the loop has ended, and whoever waited with it
            self._soon(self._finish)
            self._soon(self._finish)  # twice: a signal handler that raises can make asyncio lose one of them

    def _make(self) -> None:
        try:
            self._results.append(self._call())
        except Exception as error:  # noqa: BLE001 - raised again by whoever waits
            self._error = error

    def _finish(self) -> None:
        self._forget()
        self._is_over = True
        for waiter in self._waiting:
            if isinstance(waiter, anyio.Event):
                waiter.set()
            elif not waiter.done():
                waiter.set_result(None)
