"""Who waits for a call that blocks: a name look-up, botocore's chains?

Nobody who does not want to. Such a call can hang for minutes, and a thread cannot be stopped. So it gets a daemon
thread of its own, not one of a pool that is joined at the end (``asyncio.run`` joins the one that asyncio uses).

Invariants:

- BC1: who waits can leave at any time, also the last; the call goes on.
- BC2: a call that is asked for while the same one runs, also one that was left, is not made again: all share its
  outcome. So there is never more than one thread for each.
- BC3: at the interpreter's end, where no thread can begin (Python 3.12 on), the call is made in the caller's.
"""

import threading
from collections.abc import Callable, Hashable
from contextlib import suppress
from contextvars import copy_context
from typing import Generic, TypeVar, final

import anyio

from shardline.adapters.event_loop import call_soon_from_threads

_T = TypeVar("_T")


@final
class BlockingCalls(Generic[_T]):
    """Calls under way, by what they ask."""

    def __init__(self) -> None:
        self._running: dict[Hashable, _Call[_T]] = {}

    async def ask(self, question: Hashable, call: Callable[[], _T]) -> _T:
        """What ``call()`` returns or raises, or one that asks the same and runs already (BC2)."""
        running = self._running.get(question)
        if running is None:
            running = self._running[question] = _Call(call, lambda: self._running.pop(question, None))
            running.start()
        return await running.outcome()


@final
class _Call(Generic[_T]):
    """One call in a thread of its own."""

    def __init__(self, call: Callable[[], _T], forget: Callable[[], object]) -> None:
        self._call = call
        self._forget = forget
        self._soon = call_soon_from_threads()
        self._ended = anyio.Event()
        self._results: list[_T] = []
        self._error: Exception | None = None

    def start(self) -> None:
        thread = threading.Thread(target=copy_context().run, args=(self._run,), name="shardline look-up", daemon=True)
        started = False
        try:
            thread.start()
            started = True
        except RuntimeError:
            if threading.main_thread().is_alive():
                raise
            self._make()  # BC3
            self._finish()
            started = True
        finally:
            if not started:
                self._forget()

    async def outcome(self) -> _T:
        await self._ended.wait()
        if self._error is not None:
            raise self._error
        return self._results[0]

    def _run(self) -> None:
        self._make()
        with suppress(RuntimeError):  # the loop has ended, and whoever waited with it
            self._soon(self._finish)

    def _make(self) -> None:
        try:
            self._results.append(self._call())
        except Exception as error:  # noqa: BLE001 - raised again by whoever waits
            self._error = error

    def _finish(self) -> None:
        self._forget()
        self._ended.set()
