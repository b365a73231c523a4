"""Runs blocking calls (name lookups, botocore's credential chain, SQLite) without blocking the event loop.

Such a call can hang for minutes, and a thread cannot be stopped. So each call gets its own daemon thread, not a
thread of a pool that is joined at exit (``asyncio.run`` joins asyncio's pool).

Invariants:

- Every waiter can be cancelled at any time, even the last one. The call then continues without a waiter.
- If a call is requested while an equal call runs, even one without a waiter, no second call is made: all waiters share
  one outcome. So there is never more than one thread per ``question``.
- During interpreter shutdown, when no thread can start (since Python 3.12), the call is made in the caller's thread.
- A signal handler that raises in the event loop loses no outcome, because each waiter is woken twice.
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
    """The blocking calls in progress. The key of each call is its ``question``."""

    def __init__(self) -> None:
        self._running: dict[Hashable, _ThreadedCall[_T]] = {}

    async def run(self, question: Hashable, call: Callable[[], _T]) -> _T:
        """Return or raise the outcome of ``call()``, or of a running call with an equal ``question``."""
        running = self._running.get(question)
        if running is None:
            running = self._running[question] = _ThreadedCall(call, lambda: self._forget(question, running))
            running.start()
        return await running.outcome()

    def _forget(self, question: Hashable, ended: "_ThreadedCall[_T] | None") -> None:
        if self._running.get(question) is ended:  # ``_finish`` runs twice: a new call may have started in between
            self._running.pop(question, None)


@final
class _ThreadedCall(Generic[_T]):
    """A call that runs in its own thread."""

    def __init__(self, call: Callable[[], _T], forget: Callable[[], object]) -> None:
        self._call = call
        self._forget = forget
        self._call_soon = call_soon_from_threads()
        self._is_over = False
        self._waiters: list[asyncio.Future[None] | anyio.Event] = []
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
            self._store_outcome()
            self._finish()
        except BaseException:  # a signal handler raised
            self._forget()
            raise

    async def outcome(self) -> _T:
        while not self._is_over:
            if is_trio():
                self._waiters.append(event := anyio.Event())
                await event.wait()
            else:  # a future instead of an event: an interrupt inside Event.set() would leave some waiters asleep
                self._waiters.append(future := asyncio.get_running_loop().create_future())
                await future
        if self._error is not None:
            raise self._error
        return self._results[0]

    def _run(self) -> None:
        self._store_outcome()
        with suppress(RuntimeError):  # the loop has ended, and so have its waiters
            self._call_soon(self._finish)
            self._call_soon(self._finish)  # twice, because asyncio may lose one of the calls if a signal handler raises

    def _store_outcome(self) -> None:
        try:
            self._results.append(self._call())
        except Exception as error:  # noqa: BLE001 - every waiter raises it again
            self._error = error

    def _finish(self) -> None:
        self._forget()
        self._is_over = True
        for waiter in self._waiters:
            if isinstance(waiter, anyio.Event):
                waiter.set()
            elif not waiter.done():
                waiter.set_result(None)
