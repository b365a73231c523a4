"""The async ``Consumer``.

A consumer reads the shards of a stream, alone or as one worker of a group that shares the shards, and hands out the
records one by one, in batches, or to a handler.

This module contains the public methods and their documentation. ``ConsumerSession``, which the blocking ``Consumer``
also uses, implements them.
"""

import warnings
from collections.abc import AsyncIterator, Callable, Iterable
from datetime import datetime
from functools import partial
from types import TracebackType
from typing import Any, Final, Generic, Literal, Self, Unpack, final, overload

from shardline.aio.client import Client, ConnectionArguments
from shardline.aio.consumer.async_iteration import BatchIterator, ChangedIterator, RecordIterator
from shardline.aio.consumer.batches import Batch
from shardline.aio.consumer.consumer_arguments import ConsumerArguments, DeserializedT, Streams, check_batch
from shardline.aio.consumer.consumer_control import commit, pause, reconfigure, resume, seek
from shardline.aio.consumer.consumer_session import ConsumerSession, is_handler_of
from shardline.aio.consumer.consumer_status import ConsumerStatus, Health
from shardline.aio.consumer.dead_letters import DeadLetterTarget
from shardline.aio.consumer.fan_out import FanOut
from shardline.aio.consumer.handler_runs import run_handlers
from shardline.aio.consumer.lifecycle_callbacks import OnAssigned, OnRevoked
from shardline.aio.loop.fork_and_exit import watch_forks
from shardline.aio.loop.host_tasks import running_task
from shardline.core.consumer.consumer_config import ConsumerConfig, Order
from shardline.core.consumer.failure_policy import FailurePolicy
from shardline.core.consumer.handout import Iteration
from shardline.events import ConsumerEvent, EventSink, Sink
from shardline.middleware import ConsumerMiddleware
from shardline.model.position import Position
from shardline.model.record import Record, ValueT_co
from shardline.ports import LeaseStore

_NOT_STARTED: Final = "this Consumer is not started: use 'async with', or start()"


class ConsumerFacade:
    """The methods that the async and the blocking ``Consumer`` share."""

    _session: ConsumerSession

    def ack(self, record: Record[Any] | Batch[Any], *, through: bool = False) -> bool:
        """Acknowledge a record or a batch. With ``ack="auto"``, requesting the next one also acknowledges the last one.

        Any thread may call this.

        Args:
            record: the record or the batch that is done.
            through: also acknowledge all records of the shard that were handed out before this one.

        Returns:
            Whether this worker still holds the lease. If not, another worker gets the record again.

        Raises:
            UsageError: the argument is neither a record nor a batch.
            Closed: the consumer was not started.
        """
        return self._session.ack(record, through=through)

    @property
    def is_ready(self) -> bool:
        """Whether this worker reads all of its shards. If so, it will see every record that is put from now on."""
        return self._session.is_ready

    @property
    def health(self) -> Health:
        """The ``health`` of ``status()``. Reading only the health costs less if there are many shards."""
        return self._session.health

    @property
    def config(self) -> ConsumerConfig:
        """The settings that are in force. ``reconfigure`` changes them."""
        return self._session.current_config

    @property
    def worker_id(self) -> str:
        """This worker's name in the lease store."""
        return self._session.worker_id

    def __repr__(self) -> str:
        return repr(self._session)


@final
class Consumer(ConsumerFacade, Generic[ValueT_co]):
    """Reads a stream, on asyncio or trio::

        async with Consumer("orders", group="billing", store="sqlite:///leases.db") as consumer:
            async for record in consumer:  # committed when you request the next record
                handle(record.key, record.data)

    A ``Consumer[Order]`` hands out records whose ``value`` is an ``Order``: the result of its deserializer. Without a
    deserializer, ``value`` is the data, and the consumer is a ``Consumer[bytes]``. ``Consumer`` is short for that type.

    Args:
        stream: the name or ARN of the stream, a list of them, or a mapping from each stream to its start position. All
            streams share the buffer and the settings, and the workers of a group share the leases of all streams.
        group: the name of the group of workers that share the stream. Without a group, this consumer reads all shards
            and keeps no checkpoints.
        store: where a group keeps its leases: ``memory:``, ``sqlite:///path``, ``redis://``,
            ``postgresql://`` or ``dynamodb://table``.
        start: where a new group starts: ``"TRIM_HORIZON"``, ``"LATEST"``, a ``Position`` or an aware datetime.
        config: the settings.
        client: a started ``Client`` to share. By default, the consumer creates one from the connection arguments.
        deserializer: converts ``record.data`` to ``record.value``, for example ``json.loads``.
        filter: called with each record before it is deserialized. If it returns a false value, the record is not handed
            out and counts as done. The filter must be fast, and must not block. An exception ends the consumer.
        middleware: functions that change or check each record, in this order, before you get it, or that are around
            your handler: see ``shardline.middleware``. If one raises, the record has failed.
        worker_id: this worker's name in the store. By default, a new unique name.
        until: with ``"latest"``, the iteration ends when all records up to the newest one are done.
        idle_timeout: the iteration ends after this many seconds without a record.
        max_leases: the maximum number of shards that this worker reads.
        dedup: drop the copies that retries of producers with ``dedup=True`` stored. ``None`` means the setting of
            ``config``.
        fan_out: read by enhanced fan-out with this registered consumer, instead of polling: its name (registered if it
            is missing), its ARN, or a ``FanOut``.
        sinks: callables and sinks such as ``LogSink()`` that receive every event: see ``shardline.events``.
        on_assigned: called with an ``AssignedShard`` before the first record of a shard is handed out. Like the other
            callbacks, it is awaited if it is async, and called in a thread otherwise. An exception ends the consumer.
        on_revoked: called with a ``RevokedShard`` before the lease of a shard is released, or after it was lost.
        on_shard_end: called with an ``AssignedShard`` after the last record of a shard, before the end is committed.
        close_timeout: how many seconds closing waits for handlers, and for the release of the leases. ``None`` means
            that there is no limit.
        connection: ``region``, ``endpoint_url``, ``profile``, ``session``, ``credentials``, ...: see ``Client``.

    Raises:
        UsageError: an argument is invalid.
    """

    @overload
    def __init__(
        self: "Consumer[bytes]",
        stream: Streams,
        *,
        client: Client | None = None,
        deserializer: None = None,
        **arguments: Unpack[ConsumerArguments],
    ) -> None: ...
    @overload
    def __init__(
        self: "Consumer[DeserializedT]",
        stream: Streams,
        *,
        client: Client | None = None,
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
        client: Client | None = None,
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
        self._session = ConsumerSession(
            stream,
            connection,
            group=group,
            store=store,
            start=start,
            config=config,
            client=client,
            deserializer=deserializer,
            record_filter=filter,
            middleware=middleware,
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
        watch_forks(self)

    # ---- start and close

    async def start(self) -> None:
        """Connect and start reading. Another task may call ``close``. After a failure, ``start`` may be called again.

        Raises:
            UsageError: there is no region, the profile is unknown, ...: see ``Client``.
            StoreError: the lease store cannot be used.
            Closed: the consumer has already been closed.
        """
        await self._session.start()

    async def close(self, timeout: float | None = None) -> None:  # noqa: ASYNC109 - it returns, never raises
        """Hand out no more records, let handlers finish their records, commit, and release the leases.

        Records that were handed out count as done (C5). If another task is still processing records, ``close`` waits
        for that task. Closing twice is harmless. If a handler calls ``close``, the run ends, but the call does not wait
        for the end.

        Args:
            timeout: how many seconds to wait for user code. ``None`` means ``close_timeout``.
        """
        await self._close(timeout, clean=True)

    async def _close(self, timeout: float | None, *, clean: bool) -> None:  # noqa: ASYNC109 - it returns, never raises
        session = self._session
        if is_handler_of(session):
            # Do no more than this, because run() waits for this very handler. The caller of run() closes later.
            await session.stop_handing_out()
        else:
            await session.close(running_task(), timeout, clean=clean)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._close(None if kind is None else 0.0, clean=kind is None)

    @property
    def _opened(self) -> ConsumerSession:
        self._session.check_open()
        self._session.check_loop()
        return self._session

    # ---- streams

    async def add_stream(self, stream: str, *, start: Position | str | datetime | float | None = None) -> None:
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
        await self._opened.add_stream(stream, start)

    async def remove_stream(self, stream: str, *, timeout: float | None = None) -> None:  # noqa: ASYNC109 - it raises WaitTimeout
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
        session = self._opened
        await session.remove_stream(stream, timeout, waits=not is_handler_of(session))

    # ---- reading

    def __aiter__(self) -> AsyncIterator[Record[ValueT_co]]:
        """Iterate over the records. A record is done when you request the next one.

        Raises:
            UsageError: another task is waiting in an iteration, or ``run`` is active.
            Closed: the consumer is closed, or not started.
        """
        session = self._opened
        taker = session.begin(running_task(), Iteration)
        if session.chain is not None:
            return ChangedIterator(session, taker, session.chain)
        return RecordIterator[ValueT_co](session, taker)

    def batches(self, *, max_records: int | None = None, max_wait: float = 0.0) -> AsyncIterator[Batch[ValueT_co]]:
        """Iterate over batches. All records of a batch are from one shard.

        A batch is done when you request the next one, or when you call ``batch.ack()``.

        Args:
            max_records: the maximum number of records in a batch. ``None`` means the records of one request, up to
                10,000.
            max_wait: how many seconds to wait for ``max_records`` records, after the first one.

        Raises:
            UsageError: an argument is invalid, another task waits in an iteration, or ``run`` is active.
            Closed: the consumer is closed, or not started.
        """
        wait = check_batch(max_records, max_wait)
        session = self._opened
        make = partial(Iteration, limit=max_records, max_wait=wait, whole=True)
        taker = session.begin(running_task(), make)
        if session.chain is not None:
            return ChangedIterator(session, taker, session.chain)
        return BatchIterator[ValueT_co](session, taker)

    @overload
    async def run(
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
    async def run(
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
    async def run(
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
        """Call ``handler`` with every record: in order within a shard, and concurrently for different shards.

        ``run`` returns when the consumer is closed, or when a bounded run has ended.

        Args:
            handler: takes a record, or a ``Batch``. A plain function runs in a thread.
            batch: call the handler with batches of up to this many records.
            max_wait: how many seconds to wait for ``batch`` records, after the first one.
            policy: what to do with a record whose handler fails. By default, the handler is called up to five times,
                then ``run`` raises.
            dead_letter: the target for records that failed for good: a callable, which gets a ``DeadLetter``, a
                stream's name or ARN, a ``Producer``, or the ``pathlib.Path`` of a file. With a target, a poison record
                does not stop the run.
            concurrency: how many handlers may work at the same time, over all shards. By default, one for each shard.
            order: with ``"key"``, handlers work on different keys of a shard concurrently, and the records of one key
                are handled in order. With ``"none"``, records are handled in any order. Both need ``concurrency`` or
                ``processes``.
            processes: run up to this many handlers concurrently, each in a process of its own, for handlers that use
                much CPU. The handler must be importable, and cannot see the variables of this process.
            handler_timeout: with ``processes``, a process that handles one record or batch for longer than this many
                seconds is killed, and the record or batch counts as failed. By default, ``stuck_after``.

        Raises:
            HandlerFailed: a handler failed for good, and there is no ``dead_letter``.
            UsageError: an argument is invalid, another task waits in an iteration, or ``run`` is active.
            Closed: the consumer is closed, or not started.
        """
        self._session.check_loop()
        await run_handlers(
            self._session,
            running_task(),
            handler,
            batch=batch,
            max_wait=max_wait,
            policy=policy,
            dead_letter=dead_letter,
            concurrency=concurrency,
            order=order,
            processes=processes,
            handler_timeout=handler_timeout,
        )

    # ---- control

    async def commit(self, shards: Iterable[str] | None = None, *, timeout: float | None = 30.0) -> dict[str, Position]:  # noqa: ASYNC109 - it raises WaitTimeout
        """Commit all records that are done by now, and wait until the lease store has the checkpoints.

        The record that your loop or handler has in hand is not done: acknowledge it first (``ack``) to include it.

        Args:
            shards: the ids of the shards to commit. ``None`` means all shards that this worker holds.
            timeout: how many seconds to wait for the lease store. ``None`` means that there is no limit.

        Returns:
            The checkpoint of each of these shards.

        Raises:
            WaitTimeout: the lease store has not answered in time. The consumer keeps trying to commit.
            StoreError: the lease store cannot be used, and waiting will not help.
            LeaseNotHeld: this worker does not hold the leases of some shards, or lost them before the commit.
            UsageError: an argument is invalid.
            Closed: the consumer is closed, or not started.
        """
        return await commit(self._opened, shards, timeout)

    async def pause(self, shards: Iterable[str] | None = None) -> None:
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
        await pause(self._opened, shards)

    async def resume(self, shards: Iterable[str] | None = None) -> None:
        """Hand out records again.

        Args:
            shards: the ids of the shards to resume. Shards that this worker no longer holds are ignored. ``None`` means
                all shards. If all shards are paused, and you resume some, shards that are gained later stay paused.

        Raises:
            UsageError: an argument is invalid.
            Closed: the consumer is closed, or not started.
        """
        await resume(self._opened, shards)

    async def seek(
        self,
        position: Position | str | datetime | float | Record[Any],
        shards: Iterable[str] | None = None,
        *,
        timeout: float | None = 30.0,  # noqa: ASYNC109 - it raises WaitTimeout
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
        await seek(self._opened, position, shards, timeout)

    async def reconfigure(self, *, max_leases: int | None) -> None:
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
        await reconfigure(self._opened, max_leases)

    # ---- state

    async def wait_ready(self, timeout: float | None = 30.0) -> None:  # noqa: ASYNC109 - it raises WaitTimeout
        """Wait until ``is_ready`` is true.

        Raises:
            WaitTimeout: the consumer was not ready within ``timeout`` seconds.
            ShardlineError: the consumer has failed: no such stream, access denied, ...
            Closed: the consumer is closed, or not started.
        """
        self._session.check_loop()
        await self._session.wait_ready(timeout)

    def status(self) -> ConsumerStatus:
        """Return the shards, owners, positions, lag and health, as this worker knows them."""
        return self._session.status()

    def handle_fork(self) -> None:
        """Refuse to work in the child of a fork: see ``fork_and_exit``."""
        self._session.handle_fork()

    def __del__(self) -> None:
        session = getattr(self, "_session", None)  # missing if __init__ raised
        if session is not None and session.is_started and not session.is_closed:
            session.abandon()
            warnings.warn(f"{self!r} was never closed", ResourceWarning, source=self, stacklevel=2)
