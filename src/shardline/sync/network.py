"""In which thread does a blocking producer send?

In a daemon thread of its own, with an event loop and a client of its own.

Invariants:

- It never waits for a user's thread, and takes no lock of one.
- NT1: every call from another thread goes through the loop; one that comes when the loop has ended is harmless.
- NT2: a start that failed leaves nothing behind; one that nobody waits for any more ends by itself.
"""

import asyncio
import logging
import threading
from collections.abc import Callable
from concurrent.futures import CancelledError
from contextlib import suppress
from typing import Any, Final, TypeVar, final

from shardline.aio.client import Client
from shardline.aio.driver import Driver
from shardline.sync.gate import Gate

_T = TypeVar("_T")
_GLANCE: Final = 0.05  # seconds: how soon a caller sees that the thread has ended without an answer
_log: Final = logging.getLogger("shardline.producer")


@final
class Network:
    """The thread with the event loop. It holds no reference to the ``Producer``."""

    def __init__(self, driver: Driver, connection: dict[str, Any]) -> None:
        self._driver = driver
        self._connection = connection
        self._loop: asyncio.AbstractEventLoop | None = None
        self._started = Gate()
        self._given_up = False
        self._error: BaseException | None = None
        self._has_ended = False
        self.ident: int | None = None
        """Of the thread; not known before it runs."""

    def run(self) -> None:
        self.ident = threading.get_ident()
        try:
            asyncio.run(self._main())
        finally:
            self._has_ended = True

    async def _main(self) -> None:
        client = Client(**self._connection)  # here: what it is made of belongs to the event loop around it
        try:
            await client.start()
        except Exception as error:  # noqa: BLE001 - raised again by whoever starts
            self._error = error
            return
        finally:
            self._loop = asyncio.get_running_loop()
            self._started.open()
        try:
            if not self._given_up:
                await self._driver.run(client.api)
        finally:
            await client.close()

    def wait_started(self) -> None:
        """Raises what the start failed with. If it is interrupted, the thread ends by itself (NT2)."""
        is_started = False
        try:
            self._started.wait()
            if self._error is not None:
                raise self._error
            is_started = True
        finally:
            if not is_started:
                self._give_up()

    def _give_up(self) -> None:
        """Nobody waits for the start any more; one that failed has ended by itself."""
        self._given_up = True
        if self._loop is not None and self._error is None:
            self.stop()

    def wake(self) -> None:
        self._in_loop(self._driver.wake)

    def flush(self) -> None:
        """Send what was put, without lingering."""

        def flush() -> None:
            self._driver.machine.flush()
            self._driver.wake()

        self._in_loop(flush)

    def ask(self, question: Callable[[], _T]) -> _T:
        """What the host's machine answers. Only the network thread may look into it; once that has ended, any may."""
        if threading.get_ident() == self.ident:
            return question()
        answered = Gate()
        answers: list[_T] = []

        def answer() -> None:
            try:
                answers.append(question())
            finally:
                answered.open()

        self._in_loop(answer)
        while not (self._has_ended or answered.wait(_GLANCE)):
            continue
        return answers[0] if answers else question()

    def stop(self) -> None:
        self._in_loop(self._driver.stop)

    def orphan(self) -> None:
        self._driver.orphaned = True
        self.wake()

    def wait_ready(self, limit: float | None, stream: str) -> None:
        """As the driver's, in the caller's thread. A thread that has ended makes nobody wait."""
        assert self._loop is not None
        asked = self._driver.wait_ready(limit, stream)
        try:
            found = asyncio.run_coroutine_threadsafe(asked, self._loop)
        except RuntimeError:  # the loop is closed
            asked.close()
            return
        with suppress(CancelledError):  # the thread ended meanwhile
            found.result()

    def _in_loop(self, call: Callable[[], None]) -> None:
        try:
            if self._loop is not None:
                self._loop.call_soon_threadsafe(call)
        except RuntimeError:  # the loop is closed: it has ended by itself
            _log.debug("the network thread has ended")
