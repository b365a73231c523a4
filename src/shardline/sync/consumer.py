"""How does a program without an event loop read a stream?

The async ``Consumer`` reads, in a thread of its own; records go over by the page. Handlers run in further threads.

Invariants (C5 and L5 are of docs/guarantees.md):

- C5: as the async consumer's. A thread that closes the consumer is done with what it was handed; what another thread
  has is waited for. Leaving the block by an exception, Ctrl-C included, is no asking: the record comes again.
- L5: leases are let go on the way out, also on that of an exception.
- SC1: any thread may acknowledge, look and close; one thread iterates at a time.
- SC2: the loop's thread never waits for a user's: a callback that would wait for the loop is refused.
- SC3: a handler may close the consumer that calls it: it does not wait there, for it would wait for itself.
"""

import inspect
import threading
import warnings
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from functools import wraps
from types import TracebackType
from typing import Any, Final, Literal, Self, final
from weakref import ref

import anyio
import anyio.lowlevel

from shardline.aio.batches import Batch
from shardline.aio.boot_clock import boot_time
from shardline.aio.consumer import Consumer as AsyncConsumer
from shardline.aio.consumer_arguments import check_batch, check_done, is_generator_function
from shardline.aio.consumer_status import ConsumerStatus
from shardline.aio.fork_and_exit import CONSUMER_FORKED, watch_forks
from shardline.aio.host_tasks import running_task
from shardline.aio.intake import check_timeout
from shardline.aio.iteration import BatchIterator as AsyncBatchIterator
from shardline.aio.reporting import ConsumerSink
from shardline.core.consumer.config import ConsumerConfig
from shardline.core.consumer.failure_policy import FailurePolicy
from shardline.errors import Closed, UsageError
from shardline.model.position import Position
from shardline.model.record import Record
from shardline.ports import LeaseStore
from shardline.sync.dead_letters import DeadLetterTarget, in_threads
from shardline.sync.delivery import refuse_to_wait_in_callback
from shardline.sync.iteration import BatchIterator, RecordIterator
from shardline.sync.loop_thread import LoopThread

_NOT_STARTED: Final = "this Consumer is not started: use 'with', or start()"


@final
class Consumer:
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
        self._closed = False
        self._why_closed = "this Consumer is closed"
        if "client" in connection:
            raise UsageError("client: a blocking Consumer has its own connections: give it the connection arguments")
        self._inner = AsyncConsumer(
            stream,
            group=group,
            store=store,
            start=start,
            config=config,
            deserializer=deserializer,
            worker_id=worker_id,
            until=until,
            idle_timeout=idle_timeout,
            max_leases=max_leases,
            sink=sink,
            close_timeout=close_timeout,
            **connection,
        )
        self._hooks: Any = self._inner  # the two are one class in two shells: this one reaches into that
        self._life = threading.RLock()  # held by whoever starts or closes; a signal handler may come in between
        self._acks: deque[tuple[Record | Batch, bool]] = deque()
        self._acks_due = False
        self._here = threading.local()
        watch_forks(self)

    # ---- life

    def start(self) -> None:
        """Start the consumer's thread, connect and begin to read. Raises as the async ``start``."""
        refuse_to_wait_in_callback("start()")
        with self._life:
            if self._closed:
                raise Closed(self._why_closed)
            if self._thread is not None:
                return
            thread = LoopThread("shardline consumer")
            try:
                thread.start()
                thread.call(self._inner.start)
                self._thread = thread
            finally:
                if self._thread is None:  # it failed, or was interrupted
                    thread.stop(_undoing(self._hooks))

    def close(self, timeout: float | None = None) -> None:
        """Hand out no more, let others finish what they have, commit, and let go of the leases.

        What this thread was handed counts as done (C5). Harmless when done before. In a handler it does not wait.

        Args:
            timeout: how long to wait for those at work; ``None``: ``close_timeout``.
        """
        self._close(check_timeout("timeout", timeout), clean=True)

    def _close(self, timeout: float | None, *, clean: bool) -> None:
        thread = self._thread
        if thread is not None and getattr(self._here, "is_handler", False):  # SC3
            thread.begin(lambda: self._inner.close(timeout))
            with suppress(Closed):
                thread.call(anyio.lowlevel.checkpoint)  # it has begun: nothing more is handed out
            return
        refuse_to_wait_in_callback("close()")
        with self._life:
            thread, self._closed = self._thread, True
            if thread is None:
                self._hooks._closed = True  # noqa: SLF001 - _hooks
                return
            closer = threading.current_thread()  # not its ident, which the next thread may have
            try:
                with suppress(Closed):  # it has ended
                    thread.call(lambda: self._close_inner(timeout, closer, clean=clean))
            finally:
                thread.stop()
            thread.join()

    async def _close_inner(self, timeout: float | None, closer: threading.Thread, *, clean: bool) -> None:  # noqa: ASYNC109 - as close
        live = self._hooks._live()  # noqa: SLF001 - _hooks
        if live is not None and live.asking_thread is closer:
            live.asker = running_task()
        elif live is not None and live.asking_thread is not None and not live.asking_thread.is_alive():
            live.release(done=False)  # it will never ask for the next
        await self._hooks._close(timeout, clean=clean)  # noqa: SLF001 - _hooks

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close(None if kind is None else 0.0, clean=kind is None)

    def _running(self) -> LoopThread:
        if self._closed:
            raise Closed(self._why_closed)
        if self._thread is None:
            raise Closed(_NOT_STARTED)
        return self._thread

    # ---- reading

    def __iter__(self) -> RecordIterator:
        """Records one by one; each is done when the next is asked for.

        Raises:
            UsageError: somebody waits in another iteration.
            Closed: it is closed, or not started.
        """
        thread = self._running()
        refuse_to_wait_in_callback("iterating")

        caller = threading.current_thread()

        async def begin() -> RecordIterator:
            custody, _ = self._hooks._begin(caller)  # noqa: SLF001 - _hooks
            iterator = RecordIterator(custody, thread)
            self._hooks._live = ref(iterator)  # noqa: SLF001 - _hooks
            return iterator

        return thread.call(begin)

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
        thread = self._running()
        refuse_to_wait_in_callback("iterating")

        caller = threading.current_thread()

        async def begin() -> BatchIterator:
            custody, _ = self._hooks._begin(caller)  # noqa: SLF001 - _hooks
            batches = AsyncBatchIterator(custody, boot_time, self.ack, max_records=max_records, max_wait=wait)
            iterator = BatchIterator(batches, custody, thread)
            self._hooks._live = ref(iterator)  # noqa: SLF001 - _hooks
            return iterator

        return thread.call(begin)

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
        target = in_threads(dead_letter)
        called = self._noting(handler)
        thread.call(lambda: self._inner.run(called, batch=batch, max_wait=max_wait, policy=policy, dead_letter=target))

    def _noting(self, handler: Any) -> Any:
        """The handler, so that it is known where it runs (SC3)."""
        if not callable(handler) or inspect.iscoroutinefunction(handler) or is_generator_function(handler):
            return handler
        here = self._here

        @wraps(handler, updated=())
        def handle(given: Any) -> object:
            here.is_handler = True
            try:
                return handler(given)
            finally:
                here.is_handler = False

        return handle

    # ---- acknowledging

    def ack(self, record: Record | Batch, *, through: bool = False) -> bool:
        """Say that a record, or a batch, is done. With ``ack="auto"`` asking for the next one says it too.

        Args:
            record: what is done.
            through: all that was handed out before it is done as well.

        Returns:
            Whether the lease is held. If not, the record comes again elsewhere.

        Raises:
            UsageError: it is neither.
            Closed: nothing was read here: it is not started.
        """
        check_done(record)
        thread = self._thread
        if thread is None:
            raise Closed(self._why_closed if self._closed else _NOT_STARTED)
        self._acks.append((record, through))
        if not self._acks_due:
            is_told = False
            try:
                self._acks_due = True  # first: it is taken back in the other thread
                thread.soon(self._take_acks)
                is_told = True
            finally:
                if not is_told:  # an interrupt: the next one tells
                    self._acks_due = False
        lease = record.lease
        return lease is not None and lease.held

    def _take_acks(self) -> None:
        """In the loop's thread."""
        self._acks_due = False  # first: what comes from now on is seen, or comes back for
        self._hooks._custody.pull()  # noqa: SLF001 - _hooks; what was handed out is known then
        while self._acks:
            record, through = self._acks.popleft()
            self._inner.ack(record, through=through)

    # ---- looking

    @property
    def is_ready(self) -> bool:
        """Whether every shard that is ours is being read: what is put from now on will be seen."""
        return self._inner.is_ready

    def wait_ready(self, timeout: float | None = 30.0) -> None:
        """Until ``is_ready``.

        Raises:
            WaitTimeout: not within ``timeout`` seconds.
            ShardlineError: it never will be: no such stream, access denied, ...
            Closed: it is closed, or not started.
        """
        thread = self._running()
        refuse_to_wait_in_callback("wait_ready()")
        thread.call(lambda: self._inner.wait_ready(timeout))

    def status(self) -> ConsumerStatus:
        """Shards, owners, positions, lag and health, as this worker knows them."""
        thread = self._thread

        async def look() -> ConsumerStatus:
            return self._inner.status()

        if thread is not None and not thread.is_current:
            with suppress(Closed):  # it has ended: nothing changes any more
                return thread.call(look)
        return self._inner.status()

    @property
    def worker_id(self) -> str:
        return self._inner.worker_id

    def __repr__(self) -> str:
        return repr(self._inner)

    def handle_fork(self) -> None:
        """In the child: see ``forks``. A thread of the parent may have held the lock."""
        self._life = threading.RLock()
        if self._thread is not None:
            self._thread, self._closed, self._why_closed = None, True, CONSUMER_FORKED

    def __del__(self) -> None:
        if self._thread is None or self._closed:
            return
        self._thread.stop(_undoing(self._hooks))
        warnings.warn(f"{self!r} was never closed", ResourceWarning, source=self, stacklevel=2)


def _undoing(hooks: Any) -> Callable[[], Any]:
    """What ends a consumer that nobody has any more. It keeps no reference to its facade."""

    async def undo() -> None:
        if hooks._driver is not None:  # noqa: SLF001 - hooks
            await hooks._close(0.0, clean=False)  # noqa: SLF001 - hooks

    return undo
