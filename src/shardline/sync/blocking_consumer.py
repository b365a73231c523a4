"""The blocking consumer, for programs without an event loop.

The async consumer's session runs in its own thread and passes records to the caller page by page. Handlers run in
further threads.

Invariants (docs/guarantees.md defines C5 and L5):

- C5: the same as for the async consumer. Closing the consumer acknowledges the records that were handed to the closing
  thread, and waits for other threads to finish theirs. Leaving the block because of an exception, including Ctrl-C,
  does not acknowledge the last record: it is delivered again.
- L5: leases are released on exit, even if the block is left because of an exception.
- Any thread may acknowledge records, and query and close the consumer. Only one thread may iterate at a time.
- The network thread never waits for a user's thread. A call in a callback that would wait for the network thread is
  refused.
- A handler may close the consumer that runs it. That ``close`` does not wait, because it would wait for the handler
  itself.
"""

import threading
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from datetime import datetime
from functools import partial
from types import TracebackType
from typing import Any, Final, Generic, Literal, Self, Unpack, final, overload

from shardline.aio.client import ConnectionArguments
from shardline.aio.consumer.async_consumer import ConsumerFacade
from shardline.aio.consumer.batches import Batch
from shardline.aio.consumer.consumer_arguments import ConsumerArguments, DeserializedT, Streams, check_batch
from shardline.aio.consumer.consumer_control import commit, pause, reconfigure, resume, seek
from shardline.aio.consumer.consumer_session import ConsumerSession, is_handler_of
from shardline.aio.consumer.consumer_status import ConsumerStatus, Health
from shardline.aio.consumer.fan_out import FanOut
from shardline.aio.consumer.handler_runs import run_handlers
from shardline.aio.consumer.lifecycle_callbacks import OnAssigned, OnRevoked
from shardline.aio.loop.fork_and_exit import watch_forks
from shardline.aio.producer.put_chain import check_middleware
from shardline.aio.producer.validation import check_timeout
from shardline.core.consumer.consumer_config import ConsumerConfig, Order
from shardline.core.consumer.failure_policy import FailurePolicy
from shardline.core.consumer.handout import Iteration
from shardline.errors import Closed, UsageError
from shardline.events import ConsumerEvent, EventSink, Sink
from shardline.middleware import ConsumerMiddleware
from shardline.model.position import Position
from shardline.model.record import Record, ValueT_co
from shardline.ports import LeaseStore
from shardline.sync.blocking_dead_letters import DeadLetterTarget, in_threads
from shardline.sync.blocking_delivery import refuse_to_wait_in_callback
from shardline.sync.blocking_iteration import BatchIterator, ChangedIterator, RecordIterator
from shardline.sync.host_thread import LoopThread

_NOT_STARTED: Final = "this Consumer is not started: use 'with', or start()"


@final
class Consumer(ConsumerFacade, Generic[ValueT_co]):
    """Reads a stream, in any thread::

        with Consumer("orders", group="billing", store="sqlite:///leases.db") as consumer:
            for record in consumer:  # committed when you request the next record
                handle(record.key, record.data)

    It takes the same arguments as the async ``Consumer``, except ``client``: a blocking consumer has its own
    connections.
    """

    @overload
    def __init__(
        self: "Consumer[bytes]",
        stream: Streams,
        *,
        deserializer: None = None,
        **arguments: Unpack[ConsumerArguments],
    ) -> None: ...
    @overload
    def __init__(
        self: "Consumer[DeserializedT]",
        stream: Streams,
        *,
        deserializer: Callable[[bytes], DeserializedT] | None,
        **arguments: Unpack[ConsumerArguments],
    ) -> None: ...
    def __init__(
        self,
        stream: Streams,
        *,
        group: str | None = None,
        store: str | LeaseStore | None = None,
        start: Position | str | datetime | float = "TRIM_HORIZON",
        config: ConsumerConfig | None = None,
        deserializer: Callable[[bytes], Any] | None = None,
        filter: Callable[[Record[bytes]], object] | None = None,  # noqa: A002 - the natural name
        middleware: Iterable[ConsumerMiddleware] = (),
        worker_id: str | None = None,
        until: Literal["latest"] | None = None,
        idle_timeout: float | None = None,
        max_leases: int | None = None,
        dedup: bool | None = None,
        fan_out: str | FanOut | None = None,
        sinks: Iterable[Sink | EventSink[ConsumerEvent]] = (),
        on_assigned: OnAssigned | None = None,
        on_revoked: OnRevoked | None = None,
        on_shard_end: OnAssigned | None = None,
        close_timeout: float | None = 30.0,
        **connection: Unpack[ConnectionArguments],
    ) -> None:
        self._thread: LoopThread | None = None  # set first, because __del__ runs even if __init__ raises
        if "client" in connection:
            raise UsageError("client: a blocking Consumer has its own connections: pass the connection arguments")
        self._session = ConsumerSession(
            stream,
            connection,
            group=group,
            store=store,
            start=start,
            config=config,
            client=None,
            deserializer=deserializer,
            record_filter=filter,
            middleware=check_middleware(middleware, is_blocking=True, is_reading=True),
            worker_id=worker_id,
            until=until,
            idle_timeout=idle_timeout,
            max_leases=max_leases,
            dedup=dedup,
            fan_out=fan_out,
            sinks=sinks,
            on_assigned=on_assigned,
            on_revoked=on_revoked,
            on_shard_end=on_shard_end,
            close_timeout=close_timeout,
            not_started=_NOT_STARTED,
        )
        # Held during start and close. Re-entrant, because a signal handler may call close in the middle of a start or a
        # close.
        self._lifecycle_lock = threading.RLock()
        watch_forks(self)

    # ---- start and close

    def start(self) -> None:
        """Start the network thread, connect and begin to read. Raises the same errors as the async ``start``."""
        refuse_to_wait_in_callback("start()")
        with self._lifecycle_lock:
            if self._thread is not None or self._session.is_closed:
                self._session.check_open()
                return
            thread = LoopThread("shardline consumer")
            try:
                thread.start()
                thread.call(self._session.start)
                self._thread = thread
            finally:
                if self._thread is None:  # the start failed, or was interrupted
                    thread.stop(partial(_abandon, self._session))

    def close(self, timeout: float | None = None) -> None:
        """Stop handing out records, let other threads finish their records, commit, and release the leases.

        The records that were handed to this thread count as processed (C5). Closing twice is harmless. In a handler,
        ``close`` does not wait: the consumer closes in the background.

        Args:
            timeout: how many seconds to wait for other threads. ``None`` means ``close_timeout``.
        """
        self._close(check_timeout("timeout", timeout), clean=True)

    def _close(self, timeout: float | None, *, clean: bool) -> None:
        session, thread, closer = self._session, self._thread, threading.current_thread()
        if thread is not None and is_handler_of(session):
            with suppress(Closed):
                thread.call(session.stop_handing_out)  # when this returns, no more records are handed out
            thread.begin(lambda: session.close(closer, timeout, clean=True))
            return
        refuse_to_wait_in_callback("close()")
        session.handle_close_in_sink()
        if not clean:
            session.left_by_error = True  # set without the lock, which a waiting close in another thread may hold
        with self._lifecycle_lock:
            thread = self._thread
            if thread is None:
                session.is_closed = True
                return
            try:
                with suppress(Closed):  # the network thread has ended already
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

    def __iter__(self) -> Iterator[Record[ValueT_co]]:
        """Iterate over records. Each record is committed when you request the next one.

        Raises:
            UsageError: another thread waits in another iteration.
            Closed: the consumer is closed, or not started.
        """
        refuse_to_wait_in_callback("iterating")
        session = self._session
        taker = session.begin(threading.current_thread(), Iteration)
        if session.chain is not None:
            return ChangedIterator(session, taker, session.chain)
        return RecordIterator[ValueT_co](session, taker)

    def batches(self, *, max_records: int | None = None, max_wait: float = 0.0) -> Iterator[Batch[ValueT_co]]:
        """Iterate over batches. All records of a batch are from one shard.

        A batch is committed when you request the next one, or when you call ``batch.ack()``.

        Args:
            max_records: maximum number of records in a batch. ``None`` means as many as one request returned, up to
                10,000.
            max_wait: maximum time to wait for a batch to fill, in seconds, once it has its first record.

        Raises:
            UsageError: an argument is invalid, or another thread waits in another iteration.
            Closed: the consumer is closed, or not started.
        """
        wait = check_batch(max_records, max_wait)
        refuse_to_wait_in_callback("iterating")
        session = self._session
        make = partial(Iteration, limit=max_records, max_wait=wait, whole=True)
        taker = session.begin(threading.current_thread(), make)
        if session.chain is not None:
            return ChangedIterator(session, taker, session.chain)
        return BatchIterator[ValueT_co](session, taker)

    @overload
    def run(
        self,
        handler: Callable[[Record[ValueT_co]], object],
        *,
        batch: None = None,
        policy: FailurePolicy | None = None,
        dead_letter: DeadLetterTarget | None = None,
        concurrency: int | None = None,
        order: Order = "shard",
        processes: int | None = None,
        handler_timeout: float | None = None,
    ) -> None: ...
    @overload
    def run(
        self,
        handler: Callable[[Batch[ValueT_co]], object],
        *,
        batch: int,
        max_wait: float = 0.0,
        policy: FailurePolicy | None = None,
        dead_letter: DeadLetterTarget | None = None,
        concurrency: int | None = None,
        order: Order = "shard",
        processes: int | None = None,
        handler_timeout: float | None = None,
    ) -> None: ...
    def run(
        self,
        handler: Callable[[Any], object],
        *,
        batch: int | None = None,
        max_wait: float = 0.0,
        policy: FailurePolicy | None = None,
        dead_letter: DeadLetterTarget | None = None,
        concurrency: int | None = None,
        order: Order = "shard",
        processes: int | None = None,
        handler_timeout: float | None = None,
    ) -> None:
        """Call ``handler`` with every record, in threads: in order within a shard, concurrently across shards.

        The call returns when the consumer is closed, or when a bounded run is complete.

        Args:
            handler: is called with a record, or with a ``Batch`` if ``batch`` is set.
            batch: call the handler with batches of up to this many records.
            max_wait: maximum time to wait for a batch to fill, in seconds, once it has its first record.
            policy: how to retry a handler that fails. By default the handler is called up to five times, then ``run``
                raises.
            dead_letter: destination of records whose handler failed permanently: a callable, which is called with a
                ``DeadLetter`` in a thread, a stream's name or ARN, a ``shardline.sync.Producer``, or the
                ``pathlib.Path`` of a file.
            concurrency: how many handlers may work at the same time, over all shards. By default, one for each shard.
            order: with ``"key"``, handlers work on different keys of a shard concurrently, and the records of one key
                are handled in order. With ``"none"``, records are handled in any order. Both need ``concurrency`` or
                ``processes``.
            processes: run up to this many handlers concurrently, each in a process of its own, for handlers that use
                much CPU. The handler must be importable, and cannot see the variables of this process.
            handler_timeout: with ``processes``, a process that handles one record or batch for longer than this many
                seconds is killed, and the record or batch counts as failed. By default, ``stuck_after``.

        Raises:
            HandlerFailed: a handler failed permanently, and there is no ``dead_letter``.
            UsageError: an argument is invalid, or another thread waits in another iteration.
            Closed: the consumer is closed, or not started.
        """
        thread = self._running()
        refuse_to_wait_in_callback("run()")
        target, caller = in_threads(dead_letter), threading.current_thread()
        thread.call(
            lambda: run_handlers(
                self._session,
                caller,
                handler,
                batch=batch,
                max_wait=max_wait,
                policy=policy,
                dead_letter=target,
                concurrency=concurrency,
                order=order,
                processes=processes,
                handler_timeout=handler_timeout,
            )
        )

    # ---- control

    def commit(self, shards: Iterable[str] | None = None, *, timeout: float | None = 30.0) -> dict[str, Position]:
        """Commit all records that are done by now, and wait until the lease store has the checkpoints.

        The record that your loop or handler has in hand is not done: acknowledge it first (``ack``) to include it.

        Args:
            shards: the ids of the shards to commit. ``None`` means all shards that this worker holds.
            timeout: how many seconds to wait for the lease store. ``None`` means no limit.

        Returns:
            The checkpoint of each of these shards.

        Raises:
            WaitTimeout: the lease store has not answered in time. The consumer keeps trying to commit.
            StoreError: the lease store cannot be used, and waiting will not help.
            LeaseNotHeld: this worker does not hold the leases of some shards, or lost them before the commit.
            UsageError: an argument is invalid.
            Closed: the consumer is closed, or not started.
        """
        thread = self._running()
        refuse_to_wait_in_callback("commit()")
        return thread.call(lambda: commit(self._session, shards, timeout))

    def pause(self, shards: Iterable[str] | None = None) -> None:
        """Hand out no more records until ``resume``, and keep the leases.

        After this call has returned, no further record is handed out. Your code may finish the records that it has, and
        retries of failed records continue.

        The worker renews the leases of paused shards, and reads ahead until ``prefetch_max_bytes`` is reached. Neither
        ``idle_timeout`` nor ``until="latest"`` ends a run while a shard is paused.

        Args:
            shards: the ids of the shards to pause, until they are resumed or their leases end. ``None`` means all
                shards, including shards that this worker gains later.

        Raises:
            LeaseNotHeld: this worker does not hold some of these shards. The others are paused.
            UsageError: an argument is invalid.
            Closed: the consumer is closed, or not started.
        """
        thread = self._running()
        refuse_to_wait_in_callback("pause()")
        thread.call(lambda: pause(self._session, shards))

    def resume(self, shards: Iterable[str] | None = None) -> None:
        """Hand out records again.

        Args:
            shards: the ids of the shards to resume. Shards that this worker no longer holds are ignored. ``None`` means
                all shards. If all shards are paused, and you resume some, shards that are gained later stay paused.

        Raises:
            UsageError: an argument is invalid.
            Closed: the consumer is closed, or not started.
        """
        thread = self._running()
        refuse_to_wait_in_callback("resume()")
        thread.call(lambda: resume(self._session, shards))

    def seek(
        self,
        position: Position | str | datetime | float | Record[Any],
        shards: Iterable[str] | None = None,
        *,
        timeout: float | None = 30.0,
    ) -> None:
        """Continue at another position. The call returns when the lease store has the position, which a restart then
        uses.

        Records that have already been read are dropped. Your code may finish the record that it has, but acknowledging
        it has no effect: its ``lease.held`` is false. Other workers, and their shards, are unaffected.

        Args:
            position: ``"TRIM_HORIZON"``, ``"LATEST"``, an aware datetime, seconds since 1970, a ``Position``, or a
                record that was read, which is then handed out again.
            shards: the ids of the shards. ``None`` means all shards that this worker holds. A sequence number needs the
                id of its shard.
            timeout: how many seconds to wait for the lease store. ``None`` means that there is no limit.

        Raises:
            WaitTimeout: the lease store has not answered in time. The consumer keeps trying before it reads again.
            StoreError: the lease store cannot be used, and waiting will not help.
            LeaseNotHeld: this worker does not hold some of the shards, is handing them over, or has finished them.
            UsageError: an argument is invalid.
            Closed: the consumer is closed, or not started.
        """
        thread = self._running()
        refuse_to_wait_in_callback("seek()")
        thread.call(lambda: seek(self._session, position, shards, timeout))

    def reconfigure(self, *, max_leases: int | None) -> None:
        """Change the maximum number of shards that this worker reads. The call returns when the new limit applies.

        If this worker reads more shards than the new limit allows, it releases those that it gained last. Your code has
        ``hand_over_timeout`` seconds to finish the records in hand, as with a hand-over to another worker. If the limit
        is higher than before, the worker takes more shards, up to its fair share of the group's shards.

        Args:
            max_leases: the new maximum. ``None`` means the worker's fair share.

        Raises:
            UsageError: the value is invalid.
            Closed: the consumer is closed, or not started.
        """
        thread = self._running()
        refuse_to_wait_in_callback("reconfigure()")
        thread.call(lambda: reconfigure(self._session, max_leases))

    def add_stream(self, stream: str, *, start: Position | str | datetime | float | None = None) -> None:
        """Read another stream from now on.

        From then on, ``commit``, ``pause``, ``resume`` and ``seek`` name a shard together with its stream, as in
        ``"orders/shardId-000000000000"``.

        Args:
            stream: the name or ARN of the stream.
            start: where a new group starts in this stream. ``None`` means the consumer's ``start``.

        Raises:
            UsageError: the consumer reads a stream of this name already, or its store cannot keep several streams.
            ServiceError: there is no such stream. The consumer goes on with the other streams.
            StoreError: the lease store cannot be used.
            Closed: the consumer is closed, or not started.
        """
        thread = self._running()
        refuse_to_wait_in_callback("add_stream()")
        thread.call(lambda: self._session.add_stream(stream, start))

    def remove_stream(self, stream: str, *, timeout: float | None = None) -> None:
        """Give up a stream: hand out no more of its records, commit those that are done, and release its leases.

        Your code has ``hand_over_timeout`` seconds to finish the records in hand. If a handler calls this, the call
        does not wait.

        Args:
            stream: the name or ARN of the stream.
            timeout: how many seconds to wait until the leases are released. ``None`` means that there is no limit.

        Raises:
            UsageError: the consumer does not read this stream, or reads no other.
            WaitTimeout: the leases are not released yet. The consumer keeps trying.
            Closed: the consumer is closed, or not started.
        """
        thread, session = self._running(), self._session
        refuse_to_wait_in_callback("remove_stream()")
        waits = not is_handler_of(session)
        thread.call(lambda: session.remove_stream(stream, timeout, waits=waits))

    # ---- queries

    def wait_ready(self, timeout: float | None = 30.0) -> None:
        """Wait until ``is_ready`` is true.

        Raises:
            WaitTimeout: the consumer is not ready after ``timeout`` seconds.
            ShardlineError: the consumer cannot become ready: no such stream, access denied, ...
            Closed: the consumer is closed, or not started.
        """
        thread = self._running()
        refuse_to_wait_in_callback("wait_ready()")
        thread.call(lambda: self._session.wait_ready(timeout))

    def status(self) -> ConsumerStatus:
        """Return the shards, owners, positions, lag and health that this worker knows."""
        return self._session.status() if self._thread is None else self._thread.ask(self._session.status)

    @property
    def health(self) -> Health:
        """The ``health`` of ``status()``. Reading only the health costs less if there are many shards."""
        return self._session.health if self._thread is None else self._thread.ask(lambda: self._session.health)

    def handle_fork(self) -> None:
        """Disable this copy in the child of a fork (see ``fork_and_exit``).

        The lock is replaced, because a thread of the parent may have held it.
        """
        self._lifecycle_lock = threading.RLock()
        self._thread = None
        self._session.handle_fork()

    def __del__(self) -> None:
        if self._thread is None or self._session.is_closed:
            return
        self._thread.stop(partial(_abandon, self._session))
        warnings.warn(f"{self!r} was never closed", ResourceWarning, source=self, stacklevel=2)


async def _abandon(session: ConsumerSession) -> None:
    """Close the session of a consumer that failed to start or was garbage-collected without ``close``.

    The argument is the session, because a reference to the ``Consumer`` would keep the consumer alive.
    """
    if session.is_started:
        await session.close(None, 0.0, clean=False)
