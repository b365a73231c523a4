"""How does a program without an event loop read a stream?

The async ``Consumer`` reads, in a thread of its own; records go over by the page. Handlers run in further threads.

Invariants (C5 and L5 are of docs/guarantees.md):

- C5: as the async consumer's. A thread that closes the consumer is done with what it was handed; what another thread
  has is waited for. Leaving the block by an exception, Ctrl-C included, is no asking: the record comes again.
- L5: leases are let go on the way out, also on that of an exception.
- Any thread may acknowledge, look and close; one thread iterates at a time.
- The loop's thread never waits for a user's: a callback that would wait for the loop is refused.
- A handler may close the consumer that calls it: it does not wait there, for it would wait for itself.
"""

import threading
import warnings
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from functools import partial
from types import TracebackType
from typing import Any, Final, Literal, Self, final

from shardline.aio.consumer.async_consumer import ConsumerFacade
from shardline.aio.consumer.consumer_arguments import check_batch
from shardline.aio.consumer.consumer_session import ConsumerSession
from shardline.aio.consumer.consumer_status import ConsumerStatus
from shardline.aio.consumer.handler_runs import is_handler_of, run_handlers
from shardline.aio.loop.fork_and_exit import watch_forks
from shardline.aio.producer.validation import check_timeout
from shardline.aio.reporting import ConsumerSink
from shardline.core.consumer.consumer_config import ConsumerConfig
from shardline.core.consumer.failure_policy import FailurePolicy
from shardline.core.consumer.handout import Iteration
from shardline.errors import Closed, UsageError
from shardline.model.position import Position
from shardline.ports import LeaseStore
from shardline.sync.blocking_dead_letters import DeadLetterTarget, in_threads
from shardline.sync.blocking_delivery import refuse_to_wait_in_callback
from shardline.sync.blocking_iteration import BatchIterator, RecordIterator
from shardline.sync.host_thread import LoopThread

_NOT_STARTED: Final = "this Consumer is not started: use 'with', or start()"


@final
class Consumer(ConsumerFacade):
    """Reads a stream, in any thread::

        with Consumer("orders", group="billing", store="sqlite:///leases.db") as consumer:
            for record in consumer:  # done when the next one is asked for
                handle(record.key, record.data)

    The arguments are those of the async ``Consumer``, without ``client``: it has its own connections. The ``sink`` is
    called in the consumer's thread.
    """

    def __init__(
        self,
        stream: str,
        *,
        group: str | None = None,
        store: str | LeaseStore | None = None,
        start: Position | str | datetime | float = "TRIM_HORIZON",
        config: ConsumerConfig | None = None,
        deserializer: Callable[[bytes], Any] | None = None,
        worker_id: str | None = None,
        until: Literal["latest"] | None = None,
        idle_timeout: float | None = None,
        max_leases: int | None = None,
        sink: ConsumerSink | None = None,
        close_timeout: float | None = 30.0,
        **connection: Any,
    ) -> None:
        self._thread: LoopThread | None = None  # first: __del__ also sees what __init__ refused
        if "client" in connection:
            raise UsageError("client: a blocking Consumer has its own connections: give it the connection arguments")
        self._session = ConsumerSession(
            stream,
            connection,
            group=group,
            store=store,
            start=start,
            config=config,
            client=None,
            deserializer=deserializer,
            worker_id=worker_id,
            until=until,
            idle_timeout=idle_timeout,
            max_leases=max_leases,
            sink=sink,
            close_timeout=close_timeout,
            not_started=_NOT_STARTED,
        )
        self._life = threading.RLock()  # held by whoever starts or closes; a signal handler may come in between
        watch_forks(self)

    # ---- life

    def start(self) -> None:
        """Start the consumer's thread, connect and begin to read. Raises as the async ``start``."""
        refuse_to_wait_in_callback("start()")
        with self._life:
            if self._thread is not None or self._session.is_closed:
                self._session.check_open()
                return
            thread = LoopThread("shardline consumer")
            try:
                thread.start()
                thread.call(self._session.start)
                self._thread = thread
            finally:
                if self._thread is None:  # it failed, or was interrupted
                    thread.stop(partial(_undo, self._session))

    def close(self, timeout: float | None = None) -> None:
        """Hand out no more, let others finish what they have, commit, and let go of the leases.

        What this thread was handed counts as done (C5). Harmless when done before. In a handler it does not wait.

        Args:
            timeout: how long to wait for those at work; ``None``: ``close_timeout``.
        """
        self._close(check_timeout("timeout", timeout), clean=True)

    def _close(self, timeout: float | None, *, clean: bool) -> None:
        session, thread, closer = self._session, self._thread, threading.current_thread()
        if thread is not None and is_handler_of(session):
            with suppress(Closed):
                thread.call(session.shut)  # when it returns, no more is handed out
            thread.begin(lambda: session.close(closer, timeout, clean=True))
            return
        refuse_to_wait_in_callback("close()")
        with self._life:
            thread = self._thread
            if thread is None:
                session.is_closed = True
                return
            try:
                with suppress(Closed):  # it has ended
                    thread.call(lambda: session.close(closer, timeout, clean=clean))
            finally:
                thread.stop()
            thread.join()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close(None if kind is None else 0.0, clean=kind is None)

    def _running(self) -> LoopThread:
        self._session.check_open()
        assert self._thread is not None
        return self._thread

    # ---- reading

    def __iter__(self) -> RecordIterator:
        """Records one by one; each is done when the next is asked for.

        Raises:
            UsageError: somebody waits in another iteration.
            Closed: it is closed, or not started.
        """
        refuse_to_wait_in_callback("iterating")
        session = self._session
        return RecordIterator(session, session.begin(threading.current_thread(), Iteration))

    def batches(self, *, max_records: int | None = None, max_wait: float = 0.0) -> BatchIterator:
        """Batches of one shard each; a batch is done when the next is asked for, or by ``batch.ack()``.

        Args:
            max_records: how many a batch has at most; ``None``: as many as one request brought, up to 10,000.
            max_wait: how long to wait for ``max_records``, once there is one.

        Raises:
            UsageError: an argument is wrong, or somebody waits in another iteration.
            Closed: it is closed, or not started.
        """
        wait = check_batch(max_records, max_wait)
        refuse_to_wait_in_callback("iterating")
        session = self._session
        make = partial(Iteration, limit=max_records, max_wait=wait, whole=True)
        return BatchIterator(session, session.begin(threading.current_thread(), make))

    def run(
        self,
        handler: Callable[[Any], object],
        *,
        batch: int | None = None,
        max_wait: float = 0.0,
        policy: FailurePolicy | None = None,
        dead_letter: DeadLetterTarget | None = None,
    ) -> None:
        """Call ``handler`` with every record, in threads: in order within a shard, shards side by side.

        Args:
            handler: takes a record, or a ``Batch``.
            batch: hand over batches of up to this many records.
            max_wait: how long to wait for ``batch`` records, once there is one.
            policy: what becomes of a record whose handler fails. By default it is tried five times; then this raises.
            dead_letter: where records go that failed for good: a callable, which gets a ``DeadLetter`` in a thread, a
                stream's name or ARN, a ``shardline.sync.Producer``, or the ``pathlib.Path`` of a file.

        Returns:
            When the consumer is closed, or a bounded run has come to its end.

        Raises:
            HandlerFailed: a handler failed for good, and there is no ``dead_letter``.
            UsageError: an argument is wrong, or somebody waits in another iteration.
            Closed: it is closed, or not started.
        """
        thread = self._running()
        refuse_to_wait_in_callback("run()")
        target, caller = in_threads(dead_letter), threading.current_thread()
        thread.call(
            lambda: run_handlers(
                self._session, caller, handler, batch=batch, max_wait=max_wait, policy=policy, dead_letter=target
            )
        )

    # ---- looking

    def wait_ready(self, timeout: float | None = 30.0) -> None:
        """Until ``is_ready``.

        Raises:
            WaitTimeout: not within ``timeout`` seconds.
            ShardlineError: it never will be: no such stream, access denied, ...
            Closed: it is closed, or not started.
        """
        thread = self._running()
        refuse_to_wait_in_callback("wait_ready()")
        thread.call(lambda: self._session.wait_ready(timeout))

    def status(self) -> ConsumerStatus:
        """Shards, owners, positions, lag and health, as this worker knows them."""
        return self._session.status() if self._thread is None else self._thread.ask(self._session.status)

    def handle_fork(self) -> None:
        """In the child: see ``fork_and_exit``. A thread of the parent may have held the lock."""
        self._life = threading.RLock()
        self._thread = None
        self._session.handle_fork()

    def __del__(self) -> None:
        if self._thread is None or self._session.is_closed:
            return
        self._thread.stop(partial(_undo, self._session))
        warnings.warn(f"{self!r} was never closed", ResourceWarning, source=self, stacklevel=2)


async def _undo(session: ConsumerSession) -> None:
    """End a consumer that nobody has any more. It keeps no reference to its facade."""
    if session.is_started:
        await session.close(None, 0.0, clean=False)
