"""How does a program read a stream?

``Consumer`` reads the shards of a stream, alone or as one worker of a group that shares them, and hands the records
out: one by one, in batches, or to a handler.

Everything below the arguments and docstrings is ``ConsumerSession``'s, which the blocking ``Consumer`` shares.
"""

import warnings
from collections.abc import Callable
from datetime import datetime
from functools import partial
from types import TracebackType
from typing import Any, Final, Literal, Self, final

from shardline.aio.client import Client
from shardline.aio.consumer.async_iteration import BatchIterator, RecordIterator
from shardline.aio.consumer.batches import Batch
from shardline.aio.consumer.consumer_arguments import check_batch
from shardline.aio.consumer.consumer_session import ConsumerSession
from shardline.aio.consumer.consumer_status import ConsumerStatus
from shardline.aio.consumer.dead_letters import DeadLetterTarget
from shardline.aio.consumer.handler_runs import is_handler_of, run_handlers
from shardline.aio.loop.fork_and_exit import watch_forks
from shardline.aio.loop.host_tasks import running_task
from shardline.aio.reporting import ConsumerSink
from shardline.core.consumer.consumer_config import ConsumerConfig
from shardline.core.consumer.failure_policy import FailurePolicy
from shardline.core.consumer.handout import Iteration
from shardline.model.position import Position
from shardline.model.record import Record
from shardline.ports import LeaseStore

_NOT_STARTED: Final = "this Consumer is not started: use 'async with', or start()"


class ConsumerFacade:
    """The half of ``Consumer`` that the async and the blocking class share."""

    _session: ConsumerSession

    def ack(self, record: Record | Batch, *, through: bool = False) -> bool:
        """Say that a record, or a batch, is done. With ``ack="auto"`` asking for the next one says it too.

        May be called from any thread.

        Args:
            record: what is done.
            through: all that was handed out before it is done as well.

        Returns:
            Whether the lease is held. If not, the record comes again elsewhere.

        Raises:
            UsageError: it is neither.
            Closed: nothing was read here: it is not started.
        """
        return self._session.ack(record, through=through)

    @property
    def is_ready(self) -> bool:
        """Whether every shard that is ours is being read: what is put from now on will be seen."""
        return self._session.is_ready

    @property
    def worker_id(self) -> str:
        """This worker's name in the lease store."""
        return self._session.worker_id

    def __repr__(self) -> str:
        return repr(self._session)


@final
class Consumer(ConsumerFacade):
    """Reads a stream, on asyncio or trio::

        async with Consumer("orders", group="billing", store="sqlite:///leases.db") as consumer:
            async for record in consumer:  # done when the next one is asked for
                handle(record.key, record.data)

    Args:
        stream: its name or ARN.
        group: the workers that share the stream under this name. Without one it is read alone, and nothing is kept.
        store: where a group keeps its leases: ``memory:``, ``sqlite:///path``, ``redis://``, ``dynamodb://table``.
        start: where a new group starts: ``"TRIM_HORIZON"``, ``"LATEST"``, a ``Position`` or an aware datetime.
        config: the knobs.
        client: a started ``Client`` to share; else one is made of the connection arguments.
        deserializer: makes ``record.value`` of ``record.data``: ``json.loads``, say.
        worker_id: this worker's name in the store; unset, a new one.
        until: ``"latest"`` ends iteration when everything up to the newest record is done.
        idle_timeout: iteration ends when nothing came for this long.
        max_leases: how many shards this worker reads at most.
        sink: called with every event: see ``shardline.core.consumer.consumer_events``.
        close_timeout: how long the way out waits for handlers, and to let go of the leases; ``None``: for ever.
        connection: ``region``, ``endpoint_url``, ``profile``, ``session``, ``credentials``, ...: see ``Client``.

    Raises:
        UsageError: an argument is wrong.
    """

    def __init__(
        self,
        stream: str,
        *,
        group: str | None = None,
        store: str | LeaseStore | None = None,
        start: Position | str | datetime | float = "TRIM_HORIZON",
        config: ConsumerConfig | None = None,
        client: Client | None = None,
        deserializer: Callable[[bytes], Any] | None = None,
        worker_id: str | None = None,
        until: Literal["latest"] | None = None,
        idle_timeout: float | None = None,
        max_leases: int | None = None,
        sink: ConsumerSink | None = None,
        close_timeout: float | None = 30.0,
        **connection: Any,
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
            worker_id=worker_id,
            until=until,
            idle_timeout=idle_timeout,
            max_leases=max_leases,
            sink=sink,
            close_timeout=close_timeout,
            not_started=_NOT_STARTED,
        )
        watch_forks(self)

    # ---- life

    async def start(self) -> None:
        """Connect and begin to read. Nothing is asked of the caller's task: ``close`` may come from another.

        After a failure it may be tried again.

        Raises:
            UsageError: no region, an unknown profile, ...: see ``Client``.
            StoreError: the lease store cannot be used.
            Closed: it was closed before.
        """
        await self._session.start()

    async def close(self, timeout: float | None = None) -> None:  # noqa: ASYNC109 - it returns, never raises
        """Hand out no more, let handlers finish what they have, commit, and let go of the leases.

        What was handed out counts as done (C5), unless another task still works on it: then that task is waited for.
        Harmless when done before. A handler that calls it only ends its own run.

        Args:
            timeout: how long to wait for those at work; ``None``: ``close_timeout``.
        """
        await self._close(timeout, clean=True)

    async def _close(self, timeout: float | None, *, clean: bool) -> None:  # noqa: ASYNC109 - it returns, never raises
        session = self._session
        if is_handler_of(session):
            await session.shut()  # run() waits for this very handler: it returns, and whoever closes does the rest
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

    # ---- reading

    def __aiter__(self) -> RecordIterator:
        """Records one by one; each is done when the next is asked for.

        Raises:
            UsageError: somebody waits in another iteration.
            Closed: it is closed, or not started.
        """
        session = self._opened
        return RecordIterator(session, session.begin(running_task(), Iteration))

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
        session = self._opened
        make = partial(Iteration, limit=max_records, max_wait=wait, whole=True)
        return BatchIterator(session, session.begin(running_task(), make))

    async def run(
        self,
        handler: Callable[[Any], object],
        *,
        batch: int | None = None,
        max_wait: float = 0.0,
        policy: FailurePolicy | None = None,
        dead_letter: DeadLetterTarget | None = None,
    ) -> None:
        """Call ``handler`` with every record, in order within a shard, shards side by side.

        Args:
            handler: takes a record, or a ``Batch``. A plain function runs in a thread.
            batch: hand over batches of up to this many records.
            max_wait: how long to wait for ``batch`` records, once there is one.
            policy: what becomes of a record whose handler fails. By default it is tried five times; then this raises.
            dead_letter: where records go that failed for good: a callable, which gets a ``DeadLetter``, a stream's name
                or ARN, a ``Producer``, or the ``pathlib.Path`` of a file. With it, a poisonous record stops nothing.

        Returns:
            When the consumer is closed, or a bounded run has come to its end.

        Raises:
            HandlerFailed: a handler failed for good, and there is no ``dead_letter``.
            UsageError: an argument is wrong, or somebody waits in another iteration.
            Closed: it is closed, or not started.
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
        )

    # ---- looking

    async def wait_ready(self, timeout: float | None = 30.0) -> None:  # noqa: ASYNC109 - it raises an error of ours
        """Until ``is_ready``.

        Raises:
            WaitTimeout: not within ``timeout`` seconds.
            ShardlineError: it never will be: no such stream, access denied, ...
            Closed: it is closed, or not started.
        """
        self._session.check_loop()
        await self._session.wait_ready(timeout)

    def status(self) -> ConsumerStatus:
        """Shards, owners, positions, lag and health, as this worker knows them."""
        return self._session.status()

    def handle_fork(self) -> None:
        """In the child: see ``fork_and_exit``."""
        self._session.handle_fork()

    def __del__(self) -> None:
        session = getattr(self, "_session", None)  # none, if __init__ refused
        if session is not None and session.is_started and not session.is_closed:
            session.abandon()
            warnings.warn(f"{self!r} was never closed", ResourceWarning, source=self, stacklevel=2)
