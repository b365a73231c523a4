"""The network thread: a daemon thread with an event loop, in which a blocking producer or consumer does its I/O.

Other threads pass coroutines to it and wait for their results.

Invariants:

- Every call ends: it returns the result of the coroutine, raises the exception of the coroutine, or raises ``Closed``
  if the loop ended first.
- A thread that is interrupted while it waits (Ctrl-C) stops waiting. Its coroutine is cancelled, or never starts.
- After a fork, calls in the child raise ``Closed``, because the thread exists only in the parent.
- A signal handler may make a call while its own thread is in a call: no caller waits for a lock that only the
  interrupted code can release.
"""

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, Final, Generic, TypeAlias, TypeVar, final

from shardline.aio.loop.fork_and_exit import CONSUMER_FORKED
from shardline.aio.loop.latch import Latch
from shardline.errors import Closed
from shardline.sync.blocking_delivery import NetworkThread

_T = TypeVar("_T")
Work: TypeAlias = Callable[[], Coroutine[Any, Any, _T]]

_ENDED: Final = "this Consumer does not run any more"


@final
class _CrossThreadCall(Generic[_T]):
    """A coroutine for the loop, and the thread that waits for its result."""

    __slots__ = ("_task", "_work", "error", "is_abandoned", "is_over", "latch", "results")

    def __init__(self, work: Work[_T]) -> None:
        self._work = work
        self._task: asyncio.Task[None] | None = None
        self.latch = Latch()
        self.results: list[_T] = []
        """A list for the coroutine's result. The list stays empty if the coroutine fails or is cancelled."""
        self.error: BaseException | None = None
        self.is_abandoned = False
        self.is_over = False

    # ---- called in the network thread

    def begin(self) -> None:
        if not self.is_abandoned:
            self._task = asyncio.ensure_future(self._run())
            self._task.add_done_callback(self._finish)

    async def _run(self) -> None:
        try:
            self.results.append(await self._work())
        except (SystemExit, KeyboardInterrupt) as exit_:  # for the waiting thread: raised here, it ends the loop
            self.error = exit_

    def cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def _finish(self, task: "asyncio.Task[None]") -> None:
        if not task.cancelled():
            self.error = self.error or task.exception()
        self.is_over = True
        self.latch.wake()


@final
class LoopThread:
    """A thread with an event loop. It has no lock, and does not refer to the producer or consumer that uses it."""

    def __init__(self, name: str) -> None:
        self._thread = NetworkThread(target=self._run, name=name, daemon=True)
        self._pid = os.getpid()
        self._pending: set[Latch] = set()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._last: Work[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._end: asyncio.Event | None = None
        self._started = Latch()
        self._is_stopping = False
        self._has_ended = False

    # ---- start and stop

    def start(self) -> None:
        self._thread.start()
        self._started.wait()

    def stop(self, last: Work[None] | None = None) -> None:
        """Ask the thread to run ``last`` and end, without waiting for it."""
        self._last = last
        self._is_stopping = True  # in case the loop is not running yet
        self.soon(self._set_end)

    def join(self) -> None:
        if os.getpid() == self._pid:
            self._thread.join()

    @property
    def ident(self) -> int | None:
        return self._thread.ident

    @property
    def is_current(self) -> bool:
        """Whether the caller runs in this thread."""
        return threading.current_thread() is self._thread

    def _run(self) -> None:
        try:
            asyncio.run(self._main())
        finally:
            # Set before the waiters are woken: a call that registers later sees the flag and does not wait.
            self._has_ended = True
            for latch in [*self._pending]:
                latch.wake()

    async def _main(self) -> None:
        self._end = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._started.wake()
        if not self._is_stopping:
            await self._end.wait()
        if self._last is not None:
            await self._last()

    def _set_end(self) -> None:
        assert self._end is not None
        self._end.set()

    # ---- called from other threads

    def call(self, work: Work[_T]) -> _T:
        """Run ``await work()`` in the loop, wait for it, and return its result.

        Raises:
            Closed: the loop has ended.
        """
        if os.getpid() != self._pid:
            raise Closed(CONSUMER_FORKED)
        call = _CrossThreadCall(work)
        try:
            self._pending.add(call.latch)
            if not self._has_ended and self._loop is not None:
                self.soon(call.begin)
                call.latch.wait()
        finally:
            self._pending.discard(call.latch)
            if not call.is_over:
                call.is_abandoned = True
                self.soon(call.cancel)
        if call.error is not None:
            try:
                raise call.error
            finally:
                del call  # if not deleted, the error and this frame would keep each other alive
        if not call.results:
            raise Closed(_ENDED)
        return call.results[0]

    def ask(self, question: Callable[[], _T]) -> _T:
        """Call ``question`` in the network thread and return its result, because only that thread may read the state
        machines.

        Once the network thread has ended, any thread may read the state machines.
        """

        async def ask() -> _T:
            return question()

        if not self.is_current:
            with suppress(Closed):
                return self.call(ask)
        return question()

    def soon(self, call: Callable[[], object]) -> None:
        """Call ``call()`` in the loop, without waiting. Nothing happens if the loop has ended."""
        if os.getpid() == self._pid and self._loop is not None:
            with suppress(RuntimeError):  # the loop has ended: ``_run`` wakes the threads that wait
                self._loop.call_soon_threadsafe(call)

    def begin(self, work: Work[object]) -> None:
        """Start ``work()`` as a task in the loop, without waiting for it."""

        def spawn() -> None:
            task = asyncio.ensure_future(work())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

        self.soon(spawn)
