"""Calls the handler in a process of its own, for ``run(processes=...)``.

``work`` is the main function of the process. The process receives the handler, then one message of records after
another.

Invariants:

- The process ends when its parent ends, even if the parent was killed, and even while a handler runs.
- Only the parent ends the process early: Ctrl-C and SIGTERM, which a whole process group may get, have no effect here.
- ``progress`` counts the records of the message whose handling has begun, so the parent knows after a crash which
  record was in the handler.
- An exception that cannot be pickled, or is too large, is replaced by its description. Nothing that a handler raises
  ends the process.
- If a handler forks, the copy of this process answers no message.
"""

import asyncio
import contextlib
import inspect
import multiprocessing as mp
import os
import pickle
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any, Final, NamedTuple, Protocol, TypeAlias, final

from shardline.aio.consumer.batches import Batch
from shardline.core.clock import NEVER
from shardline.core.consumer.grant import Grant
from shardline.core.consumer.handler_errors import ErrorSummary, summarize_error
from shardline.errors import HandlerProcessFailed, UsageError
from shardline.model.headers import NO_HEADERS
from shardline.model.record import LeaseInForce, Origin, Record, hand_out

Row: TypeAlias = tuple[Any, ...]

UNGUARDED_MAIN: Final = 117
"""The exit code of a process that ran the program's main module up to ``run(processes=...)``."""
IGNORED_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)
"""The signals that are blocked while a handler's process starts, and that have no effect in it."""
ERROR_MAX_BYTES: Final = 16_777_216
"""The maximum size of a pickled exception. An exception may contain more data than the records."""
_TRACEBACK_MAX_LENGTH: Final = 20_000
_forks: Final = threading.Event()  # set in a copy of the process


class Progress(Protocol):
    """A number in memory that the process shares with its parent."""

    value: int


@final
class Handlers(NamedTuple):
    """The first message to a handler's process. It contains the functions that the process calls."""

    handler: Callable[[Any], object]
    deserializer: Callable[[bytes], Any] | None
    whole: bool
    """Whether the handler takes batches."""


@final
class Work(NamedTuple):
    """A message of records, which are all from one shard and one lease."""

    rows: list[Row]
    lease: Row
    """The facts about the lease, from ``lease_row``."""
    at: float
    """When the records are handed out, by the clock of Kinesis."""


@final
class Answer(NamedTuple):
    """The answer to the first message, or to a message of records."""

    done: int = 0
    """How many records are done. If there is an error, the next record has failed."""
    error: bytes | None = None
    """The exception that was raised, in pickled form."""
    summary: ErrorSummary = ErrorSummary("", "", "")
    is_exit: bool = False
    """Whether the handler called ``sys.exit()``."""


def lease_row(lease: LeaseInForce | None) -> Row:
    """Return what is sent to another process about the lease of the records in a message.

    ``exactly_once`` needs more than the token: it writes less if the records are handled in order. If they are not, it
    removes the rows of records that the consumer has passed.
    """
    if not isinstance(lease, Grant):
        return (0 if lease is None else lease.token, False, None)
    return lease.token, lease.is_in_order, lease.done_place


def _lease_of(work: Work) -> Grant:
    """Return the lease of the records in this process. This object stays in force: if the lease is lost, the parent
    kills the process.
    """
    token, is_in_order, done_place = work.lease
    grant = Grant("", token, NEVER)
    grant.is_in_order = is_in_order
    grant.done_place = done_place
    return grant


def row_of(record: Record[Any]) -> Row:
    """Return the fields of a record that are sent to another process."""
    fields = record.data, record.key, record.explicit_hash_key, record.sequence_number, record.sub_sequence
    headers = dict(record.headers) if record.headers else None
    return (*fields, record.shard_id, record.arrived_at, record.stream, record.aggregated, headers)


def records_of(work: Work, deserializer: Callable[[bytes], Any] | None) -> list[Record[Any]]:
    """Rebuild the records of a message, and return them."""
    origin = Origin(_lease_of(work))
    origin.deserializer = deserializer
    rows: list[Row] = [(*row[:-1], origin, row[-1] or NO_HEADERS) for row in work.rows]
    records = [Record[Any](*row) for row in rows]
    hand_out(records, work.at)
    return records


def pickled_error(error: BaseException) -> bytes:
    """Pickle an exception, or a description of it if it cannot be pickled or unpickled, or is too large."""
    # The end of a traceback says the most.
    note = "in a handler's process:\n" + "".join(traceback.format_exception(error))[-_TRACEBACK_MAX_LENGTH:]
    problem = "which cannot be pickled"
    try:
        error.add_note(note)
        found = pickle.dumps(error)
        if len(found) <= ERROR_MAX_BYTES:
            pickle.loads(found)  # noqa: S301 - our own bytes: some exceptions can be pickled, but not unpickled
            return found
        problem = f"which has {len(found):,} bytes and is too large to send"
    except Exception:  # noqa: BLE001, S110 - the user's exception may do anything
        pass
    described = HandlerProcessFailed(f"the handler raised {type(error).__name__}, {problem}")
    described.add_note(note)
    return pickle.dumps(described)


def refuse_in_unguarded_main() -> None:
    """End a handler's process that runs the whole program at its start, because the main module is not guarded."""
    if getattr(mp.current_process(), "_inheriting", False):
        sys.exit(UNGUARDED_MAIN)


def _ignore_signal(_number: int, _frame: object) -> None:
    """Do nothing: the program closes the consumer, and thereby ends the process."""


def work(connection: Connection, progress: Progress) -> None:
    """Handle messages until the process is ended. This is the main function of a handler's process."""
    # Functions, not SIG_IGN: programs that a handler starts would inherit SIG_IGN.
    for number in IGNORED_SIGNALS:
        signal.signal(number, _ignore_signal)
    if sys.platform != "win32":
        signal.pthread_sigmask(signal.SIG_UNBLOCK, IGNORED_SIGNALS)
    parent = mp.parent_process()
    assert parent is not None, "this process was started by another one"
    _kill_with_parent(parent.sentinel)
    threading.Thread(target=_end_with_parent, args=(parent,), daemon=True).start()
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_forks.set)
    with contextlib.suppress(EOFError, OSError), asyncio.Runner() as runner:
        message = connection.recv_bytes()
        try:
            handlers = _load_handlers(message)
        except BaseException as error:  # noqa: BLE001 - importing the user's module may raise anything
            connection.send_bytes(pickle.dumps(Answer(0, pickled_error(error), summarize_error(error, ()))))
            return
        connection.send_bytes(pickle.dumps(Answer()))
        while True:
            records: Work = pickle.loads(connection.recv_bytes())  # noqa: S301 - from our parent
            connection.send_bytes(pickle.dumps(_handle(handlers, records, progress, runner)))


def _load_handlers(message: bytes) -> Handlers:
    """Unpickle the first message. This imports the user's module.

    Raises:
        TypeError: the handler is no longer callable, because it defines how it is pickled.
    """
    handlers: Handlers = pickle.loads(message)  # noqa: S301 - from our parent
    if not callable(handlers.handler):
        raise TypeError(f"it is a {type(handlers.handler).__name__} after it was unpickled, and cannot be called")
    return handlers


def _kill_with_parent(sentinel: int) -> None:
    """Have the kernel kill this process when the parent has ended. A thread alone does not suffice: it does not run
    while a handler holds the interpreter's lock, as a long regular-expression match does.
    """
    if sys.platform == "linux":
        import fcntl  # noqa: PLC0415 - not on Windows

        # The parent alone has the other end of this pipe, and writes nothing to it.
        fcntl.fcntl(sentinel, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(sentinel, fcntl.F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(sentinel, fcntl.F_SETFL, fcntl.fcntl(sentinel, fcntl.F_GETFL) | os.O_ASYNC)


def _end_with_parent(parent: BaseProcess) -> None:
    """End this process when the parent has ended. This is needed on systems other than Linux, and if the parent had
    ended before ``_kill_with_parent`` was called.
    """
    parent.join()
    os._exit(1)


def _handle(handlers: Handlers, message: Work, progress: Progress, runner: asyncio.Runner) -> Answer:
    records = records_of(message, handlers.deserializer)
    if handlers.whole:
        answer = _call(handlers.handler, Batch(records, _refuse_ack), records, runner)
        return answer._replace(done=len(records)) if answer.error is None else answer
    for place, record in enumerate(records):
        progress.value = place + 1
        answer = _call(handlers.handler, record, (record,), runner)
        if answer.error is not None:
            return answer._replace(done=place)
    return Answer(len(records))


def _call(
    handler: Callable[[Any], object], argument: object, records: Sequence[Record[Any]], runner: asyncio.Runner
) -> Answer:
    try:
        result = handler(argument)
        if result is not None and inspect.isawaitable(result):
            runner.run(_wait_for(result))
    except (SystemExit, KeyboardInterrupt) as exit_:
        return Answer(0, pickled_error(exit_), is_exit=True)
    except BaseException as error:  # noqa: BLE001 - the parent's failure policy decides
        return Answer(0, pickled_error(error), summarize_error(error, records))
    finally:
        if _forks.is_set():  # the handler has forked, and this is the copy
            os._exit(0)
    return Answer()


async def _wait_for(result: Any) -> None:
    await result


def _refuse_ack(batch: Batch[Any]) -> bool:
    raise UsageError(
        f"{batch!r} is done when its handler returns: a handler in a process cannot acknowledge it earlier"
    )
