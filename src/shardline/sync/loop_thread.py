"""In which thread does a blocking consumer read?

In a daemon thread of its own, with an event loop. Other threads hand it coroutines, and wait for what comes of them.

Invariants:

- LT1: every call ends: with what the coroutine returned or raised, or with ``Closed`` if the loop ended before.
- LT2: a thread that is interrupted while it waits (Ctrl-C) waits no more: its coroutine is cancelled.
- LT3: after a fork the child's copy refuses: the thread is the parent's.
"""

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError, Future
from typing import Any, Final, TypeAlias, TypeVar, final

from shardline.aio.forks import FORKED
from shardline.errors import Closed
from shardline.sync.delivery import NetworkThread

_T = TypeVar("_T")
Work: TypeAlias = Callable[[], Coroutine[Any, Any, _T]]

_ENDED: Final = "this Consumer does not run any more"


@final
class LoopThread:
    """A thread with an event loop. It holds no reference to the ``Consumer``."""

    def __init__(self, name: str) -> None:
        self._thread = NetworkThread(target=self._run, name=name, daemon=True)
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._pending: set[Future[Any]] = set()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._last: Work[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._end: asyncio.Event | None = None
        self._started = threading.Event()
        self._has_ended = False

    # ---- life

    def start(self) -> None:
        self._thread.start()
        self._started.wait()

    def stop(self, last: Work[None] | None = None) -> None:
        """End, after ``last``. Nobody waits for it here."""
        self._last = last
        self.soon(self._set_end)

    def join(self) -> None:
        if os.getpid() == self._pid:
            self._thread.join()

    @property
    def is_forked(self) -> bool:
        return os.getpid() != self._pid

    @property
    def is_current(self) -> bool:
        """Whether this is it."""
        return threading.current_thread() is self._thread

    def _run(self) -> None:
        try:
            asyncio.run(self._main())
        finally:
            with self._lock:
                self._has_ended = True
            for future in [*self._pending]:  # LT1
                future.cancel()

    async def _main(self) -> None:
        self._end = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._started.set()
        await self._end.wait()
        if self._last is not None:
            await self._last()

    def _set_end(self) -> None:
        assert self._end is not None
        self._end.set()

    # ---- calls from other threads

    def call(self, work: Work[_T]) -> _T:
        """``await work()`` in the loop, and wait for it.

        Raises:
            Closed: the loop has ended.
        """
        if os.getpid() != self._pid:
            raise Closed(FORKED)  # LT3; before the lock, which may be held for ever
        with self._lock:
            if self._has_ended or self._loop is None:
                raise Closed(_ENDED)
            future = asyncio.run_coroutine_threadsafe(work(), self._loop)
            self._pending.add(future)
        try:
            return future.result()
        except CancelledError:
            raise Closed(_ENDED) from None
        finally:
            self._pending.discard(future)
            if not future.done():
                future.cancel()  # LT2

    def soon(self, call: Callable[[], object]) -> None:
        """``call()`` in the loop, without waiting. Harmless when the loop has ended."""
        if os.getpid() != self._pid:
            return
        with self._lock:
            if not self._has_ended and self._loop is not None:
                self._loop.call_soon_threadsafe(call)

    def begin(self, work: Work[object]) -> None:
        """``await work()`` in the loop, without waiting."""

        def spawn() -> None:
            task = asyncio.ensure_future(work())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

        self.soon(spawn)
