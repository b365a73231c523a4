"""The processes in which the handlers of ``run(processes=...)`` are called.

Each process is started when a handler needs it. For each busy process, a thread of this process waits for the answer.

Invariants:

- A process gets one message at a time. ``core/consumer/process_messages`` decides how large a message is, when a
  process counts as hung, and which records are then done.
- A process that ends or hangs is killed and replaced. The record or batch that it was handling has failed, as if the
  handler had raised ``HandlerProcessFailed``. If no process can be started, the record or batch has failed, too.
- No message and no answer waits without a limit for a process that has stopped in the middle of it.
- When a call is cancelled, because the lease is lost or the run ends, its process is dead before the cancellation
  continues (L2, which docs/guarantees.md defines). So no two handlers have the same record.
- No process outlives its run: ``close`` kills all of them.
"""

import multiprocessing as mp
import pickle
import signal
import socket
import struct
import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from ctypes import c_ulonglong
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from typing import Any, Final, final

import anyio
import anyio.to_thread

from shardline.aio.consumer.handler_child import (
    ERROR_MAX_BYTES,
    IGNORED_SIGNALS,
    UNGUARDED_MAIN,
    Answer,
    Handlers,
    Work,
    lease_row,
    row_of,
    work,
)
from shardline.core.consumer.handler_errors import summarize_error
from shardline.core.consumer.process_messages import MessageWatch
from shardline.errors import HandlerProcessFailed, UsageError
from shardline.model.record import Record

_LOOK_INTERVAL: Final = 0.25  # seconds between two looks at a busy process
_START_TIMEOUT: Final = 60.0  # seconds for the start of a process, and the import of the handler's module
_ANSWER_MAX_BYTES: Final = ERROR_MAX_BYTES + 1_048_576
_spawn: Final = mp.get_context("spawn")


def pickle_handlers(handlers: Handlers) -> bytes:
    """Pickle the functions that a process calls.

    Raises:
        UsageError: the handler or the deserializer cannot be imported by another process.
    """
    for name, value in (("handler", handlers.handler), ("deserializer", handlers.deserializer)):
        try:
            pickle.dumps(value)
        except Exception as error:
            raise UsageError(
                f"processes: the {name} must be importable by another process, such as a function of a module, and "
                f"{getattr(value, '__qualname__', type(value).__name__)} is not: {error}"
            ) from error
    return pickle.dumps(handlers)


@final
class HandlerProcess:
    """A process that calls the handler. All methods except ``kill`` block, and are called in threads."""

    def __init__(self, handlers: bytes, timeout: float | None) -> None:
        self._handlers = handlers
        self._timeout = timeout
        self._ours, self._theirs = _spawn.Pipe()
        self.progress = _spawn.RawValue(c_ulonglong, 0)
        self.watch = MessageWatch(None, 0.0)
        """Watches the progress of the last message that was sent to the process."""
        self._process = _spawn.Process(target=work, args=(self._theirs, self.progress), name="shardline handler")
        self._is_killed = False
        self.is_started = False

    def start(self) -> None:
        """Start the process, and wait until it has imported the handler.

        Raises:
            UsageError: the process could not import the handler.
            HandlerProcessFailed: the process could not be started, or ended first.
        """
        try:
            with _signals_blocked():
                self._process.start()
        except OSError as error:
            raise HandlerProcessFailed(f"a handler's process could not be started: {error}") from error
        self._theirs.close()
        if self._is_killed:  # kill() came before the process had started
            self._process.kill()
        _limit_transfers(self._ours, _START_TIMEOUT)
        answer = self._ask(self._handlers, _START_TIMEOUT)
        if answer.error is not None:
            cause = load_error(answer.error)
            raise UsageError(
                f"processes: another process cannot import the handler: {answer.summary.error_type}: {cause}"
            ) from cause
        _limit_transfers(self._ours, self._timeout)
        self.is_started = True

    def call(self, message: Work) -> Answer:
        """Have the process call the handler with the records of this message."""
        self.progress.value = 0
        return self._ask(pickle.dumps(message), self._timeout)

    def kill(self) -> None:
        """Kill the process. It ends a moment later."""
        self._is_killed = True
        if self._process.pid is not None:
            self._process.kill()

    def end(self) -> None:
        """Kill the process, wait for its end, and release its resources."""
        self.kill()
        if self._process.pid is not None:
            self._process.join()
        self._ours.close()
        self._theirs.close()

    def _ask(self, message: bytes, timeout: float | None) -> Answer:
        watch = self.watch = MessageWatch(timeout, 0.0)
        try:
            self._ours.send_bytes(message)
            # The clock of the watch counts only the time in which this thread runs. If the program was suspended, the
            # handler was probably suspended, too.
            waited = 0.0
            pause = _LOOK_INTERVAL if timeout is None else min(_LOOK_INTERVAL, timeout)
            while not wait([self._ours, self._process.sentinel], pause) and self._process.exitcode is None:
                waited += pause
                watch.handle_progress(self.progress.value, waited)
                if watch.is_hung(waited):
                    raise HandlerProcessFailed(
                        f"a handler did not return within {timeout or 0:g} s: its process was killed"
                    )
            if self._ours.poll():
                return _load_answer(self._ours.recv_bytes(_ANSWER_MAX_BYTES))
        except BlockingIOError as error:
            watch.handle_progress(self.progress.value, 0.0)
            raise HandlerProcessFailed(
                "a handler's process has stopped in the middle of a message: it was killed"
            ) from error
        except (EOFError, OSError):  # the process has ended, or is about to
            pass
        self._process.join(_LOOK_INTERVAL)
        watch.handle_progress(self.progress.value, 0.0)
        raise self._died()

    def _died(self) -> Exception:
        code = self._process.exitcode
        if code == UNGUARDED_MAIN:
            return UsageError(
                "processes: each process imports the main module of the program, which started the consumer again: put "
                "the start of the program under 'if __name__ == \"__main__\":'"
            )
        how = "ended" if code is None else f"was killed by signal {-code}" if code < 0 else f"exited with code {code}"
        when = "while it handled records" if self.is_started else "before it had imported the handler"
        return HandlerProcessFailed(f"a handler's process {how} {when}")


@contextmanager
def _signals_blocked() -> Generator[None]:
    """Block Ctrl-C and SIGTERM in this thread. A process that is started inside the block gets them only when
    ``handler_child.work`` handles them.

    Without this, a signal to the whole process group would kill a process that is still starting.
    """
    if sys.platform == "win32":
        yield
        return
    resource_tracker.ensure_running()  # it would unblock the signals if it were started together with the process
    before = signal.pthread_sigmask(signal.SIG_BLOCK, IGNORED_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _limit_transfers(connection: Connection, timeout: float | None) -> None:
    """Limit how long sending and receiving wait for a process that reads or writes nothing.

    Without a limit, a stopped process would block the sender of a large message endlessly, and damaged bytes that
    announce a large answer would block its receiver. On Windows, there is no limit.
    """
    if sys.platform != "win32":
        seconds = 0 if timeout is None else 1 + int(timeout)  # 0 means that there is no limit
        end = socket.socket(fileno=connection.fileno())
        try:
            end.settimeout(None)  # a new socket has the default timeout of the program, if there is one
            for option in (socket.SO_SNDTIMEO, socket.SO_RCVTIMEO):
                end.setsockopt(socket.SOL_SOCKET, option, struct.pack("ll", seconds, 0))  # a ``struct timeval``
        finally:
            end.detach()


def _load_answer(message: bytes) -> Answer:
    """Unpickle the answer of a process.

    Raises:
        HandlerProcessFailed: the message is not an answer, because the handler has written to the pipe of its process.
    """
    answer: object = None
    with suppress(Exception):  # damaged bytes may raise anything
        answer = pickle.loads(message)  # noqa: S301 - from our own process
    if not isinstance(answer, Answer):
        raise HandlerProcessFailed("a handler's process sent something that is not an answer")
    return answer


@final
class HandlerProcesses:
    """The processes that call the handler of one ``Consumer.run``."""

    def __init__(self, handlers: bytes, count: int, timeout: float | None) -> None:
        self._handlers = handlers
        self._timeout = timeout
        self._idle: list[HandlerProcess] = []
        self._all: set[HandlerProcess] = set()
        self._threads = anyio.CapacityLimiter(2 * count)  # twice as many, because ending a process takes a thread, too

    async def start(self) -> None:
        """Start the first process, to find out whether it can import the handler."""
        self._idle.append(await self._take())

    async def call(self, records: Sequence[Record[Any]], at: float) -> Answer:
        """Call the handler with records of one lease, in a process that is idle, or in a new one."""
        message = Work([row_of(record) for record in records], lease_row(records[0].lease), at)
        process: HandlerProcess | None = None
        is_well = False
        try:
            process = await self._take()
            answer = await anyio.to_thread.run_sync(
                process.call, message, abandon_on_cancel=True, limiter=self._threads
            )
            is_well = True
        except (HandlerProcessFailed, UsageError) as error:
            done = 0 if process is None else process.watch.handled.done
            return Answer(done, pickle.dumps(error), summarize_error(error, ()))
        finally:
            if process is not None:
                if is_well:
                    self._idle.append(process)
                else:
                    await self._end(process)
        return answer

    async def close(self) -> None:
        """Kill all processes of the run."""
        for process in self._all:
            process.kill()
        for process in [*self._all]:
            await self._end(process)

    async def _take(self) -> HandlerProcess:
        if self._idle:
            return self._idle.pop()
        try:
            process = HandlerProcess(self._handlers, self._timeout)
        except OSError as error:  # too many files are open, for example
            raise HandlerProcessFailed(f"a handler's process could not be started: {error}") from error
        self._all.add(process)
        is_started = False
        try:
            await anyio.to_thread.run_sync(process.start, abandon_on_cancel=True, limiter=self._threads)
            is_started = True
        finally:
            if not is_started:
                await self._end(process)
        return process

    async def _end(self, process: HandlerProcess) -> None:
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(process.end, limiter=self._threads)
        self._all.discard(process)


def load_error(error: bytes) -> BaseException:
    """Unpickle the exception that a process has sent."""
    loaded: object = None
    with suppress(Exception):  # the user's exception may do anything
        loaded = pickle.loads(error)  # noqa: S301 - from our own process
    if isinstance(loaded, BaseException):
        return loaded
    return HandlerProcessFailed("the handler raised an exception that cannot be unpickled")
