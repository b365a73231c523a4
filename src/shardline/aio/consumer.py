"""How does a program read a stream?

``Consumer`` reads the shards of a stream, alone or as one worker of a group that shares them, and hands the records
out: one by one, in batches, or to a handler.

Invariants (docs/guarantees.md):

- C5: a record is done when the next one is asked for; a clean ``close``, or end of the block, counts as asking. Leaving
  by an exception or by cancellation does not: the record comes again.
- L5: leases are let go on the way out, also on that of an exception, within the time that ``close`` has.
- CO1: ``start`` enters no cancel scope of the caller: ``close`` may be called from another task.
- CO2: one iteration at a time: with two, asking in one would acknowledge what the other has. A new one is refused while
  somebody waits in the older; otherwise the older is over.
"""

import warnings
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from types import TracebackType
from typing import Any, Final, Literal, Self, final
from weakref import ref

import anyio

from shardline.aio.acknowledging import Acknowledger
from shardline.aio.batches import Batch
from shardline.aio.boot_clock import boot_time
from shardline.aio.client import Client
from shardline.aio.consumer_arguments import (
    check_batch,
    check_client,
    check_done,
    check_handler,
    check_settings,
    check_start,
    make_milestones,
    make_store,
)
from shardline.aio.consumer_driver import ConsumerDriver, store_error
from shardline.aio.consumer_host import end_host, host_consumer, let_go, make_driver, take_over, wind_down
from shardline.aio.consumer_status import ConsumerStatus, consumer_status, health
from shardline.aio.custody import Custody
from shardline.aio.dead_letters import DeadLetterTarget, dead_letter_office
from shardline.aio.fork_and_exit import CONSUMER_FORKED, watch_forks
from shardline.aio.handler_runs import HandlerRun, is_handler_of
from shardline.aio.host_tasks import Flag, make_flag, spawn
from shardline.aio.intake import check_callable, check_timeout
from shardline.aio.iteration import BatchIterator, RecordIterator
from shardline.aio.reporting import ConsumerSink
from shardline.aio.worker_identity import new_worker_id
from shardline.core.consumer.config import ConsumerConfig
from shardline.core.consumer.failure_policy import FailurePolicy
from shardline.core.requests import DescribeStreamSummary
from shardline.errors import Closed, WaitTimeout
from shardline.model.position import LATEST, Position
from shardline.model.record import Record
from shardline.model.stream import parse_stream
from shardline.ports import LeaseStore

_LATEST_MARGIN: Final = 1.0  # L6
_CLOSED: Final = "this Consumer is closed"
_NOT_STARTED: Final = "this Consumer is not started: use 'async with', or start()"


@final
class Consumer:
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
        sink: called with every event: see ``shardline.core.consumer.events``.
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
        self._driver: ConsumerDriver | None = None  # first: __del__ also sees what __init__ refused
        self._custody: Custody | None = None
        self._closed = False
        self._why_closed = _CLOSED
        self._stream = parse_stream(stream)
        self._group = group
        self._config, self.worker_id = check_settings(config, worker_id, max_leases)
        self._start_at = check_start(start)
        self._client, self._owns_client = check_client(client, connection)
        self._connection = connection
        self._deserializer = check_callable("deserializer", deserializer)
        self._sink = check_callable("sink", sink)
        self._close_timeout = check_timeout("close_timeout", close_timeout)
        self._milestones = make_milestones(self.worker_id, until, idle_timeout, self._config.max_leases)
        self._store = make_store(
            store,
            group=group,
            stream=self._stream.name,
            worker_id=self.worker_id,
            connection=connection,
            client=self._client,
        )
        owned_store = self._store if store is None or isinstance(store, str) else None
        self._owned = (owned_store, self._client if self._owns_client else None)
        self._starting = anyio.Lock()
        self._ended: Flag | None = None
        self._in_loop: Callable[[Callable[[], None]], object] | None = None
        self._live: Callable[[], RecordIterator | BatchIterator | None] = _nobody
        self._acks: Acknowledger | None = None
        self._run_scope: anyio.CancelScope | None = None
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
        async with self._starting:
            if self._driver is not None or self._closed:
                self._check_open()
                return
            try:
                await self._start()
            finally:
                if self._driver is None:
                    await let_go(*self._owned)
                    if self._owns_client:  # the next attempt has another: one that was closed stays so
                        self._client = Client(**self._connection)
                        self._owned = (self._owned[0], self._client)

    async def _start(self) -> None:
        if self._owns_client:
            await self._client.start()
        api = self._client.api
        failure = await self._store.open()
        if failure is not None and not failure.retryable:
            raise store_error("OpenStore", failure)
        if self._start_at == LATEST:
            await api.describe_stream_summary(DescribeStreamSummary(self._stream))  # it tells the service's time
        if self._closed:  # meanwhile
            raise Closed(self._why_closed)
        self._driver = make_driver(
            self._stream,
            self.worker_id,
            self._start_at,
            config=self._config,
            store=self._store,
            latest_at=max(0.0, api.service_time() - _LATEST_MARGIN),
            service_time=api.service_time,
            milestones=self._milestones,
            deserializer=self._deserializer,
            sink=self._sink,
        )
        self._custody = self._driver.custody
        driver, self._ended = self._driver, make_flag()
        ended = self._ended
        hosted = host_consumer(driver, api, failure, self._owned, ended)
        self._in_loop = spawn(hosted, "shardline consumer", lambda: end_host(driver, ended))
        self._acks = Acknowledger(self._custody, self._in_loop)

    async def close(self, timeout: float | None = None) -> None:  # noqa: ASYNC109 - it returns, never raises
        """Hand out no more, let handlers finish what they have, commit, and let go of the leases.

        What was handed out counts as done (C5), unless another task still works on it: then that task is waited for.
        Harmless when done before. A handler that calls it only ends its own run.

        Args:
            timeout: how long to wait for those at work; ``None``: ``close_timeout``.
        """
        await self._close(timeout, clean=True)

    async def _close(self, timeout: float | None, *, clean: bool) -> None:  # noqa: ASYNC109 - it returns, never raises
        limit = self._close_timeout if timeout is None else check_timeout("timeout", timeout)
        if self._custody is not None:
            self._custody.shut()
            if is_handler_of(self._custody):
                return  # run() waits for this very handler: it returns, and whoever closes then does the rest
        first, self._closed = not self._closed, True
        driver, ended = self._driver, self._ended
        if driver is None or ended is None:
            return
        with anyio.CancelScope(shield=True):
            if first:
                await wind_down(driver, ended, lambda: self._run_scope, self._live, limit, clean=clean)
            await ended.wait()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._close(None if kind is None else 0.0, clean=kind is None)

    def _check_open(self) -> None:
        if self._closed:
            raise Closed(self._why_closed)
        if self._driver is None:
            raise Closed(_NOT_STARTED)

    def _opened(self) -> Custody:
        self._check_open()
        assert self._custody is not None
        return self._custody

    # ---- reading

    def __aiter__(self) -> RecordIterator:
        """Records one by one; each is done when the next is asked for.

        Raises:
            UsageError: somebody waits in another iteration.
            Closed: it is closed, or not started.
        """
        custody, _ = self._begin()
        iterator = RecordIterator(custody, boot_time)
        self._live = ref(iterator)
        return iterator

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
        custody, acks = self._begin()
        iterator = BatchIterator(custody, boot_time, acks.ack_batch, max_records=max_records, max_wait=wait)
        self._live = ref(iterator)
        return iterator

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
        wait = check_batch(batch, max_wait)
        chosen = check_handler(handler, policy, has_dead_letter=dead_letter is not None)
        office = None if dead_letter is None else dead_letter_office(dead_letter, self._client)
        custody, acks = self._begin()
        run = HandlerRun(custody, handler, chosen, office, acks.ack_batch, batch=batch, max_wait=wait)
        try:
            with anyio.CancelScope() as self._run_scope:
                await run.run()
        finally:
            self._run_scope = None
            custody.ring()
            if office is not None:
                with anyio.CancelScope(shield=True):
                    await office.close()

    def _begin(self, caller: object = None) -> tuple[Custody, Acknowledger]:
        """CO2. ``caller``: the thread that asks, if it is not the running task."""
        custody = self._opened()
        take_over(custody, self._live(), caller, is_run=self._run_scope is not None)
        self._milestones.begin_anew(boot_time())
        assert self._acks is not None
        return custody, self._acks

    # ---- acknowledging

    def ack(self, record: Record | Batch, *, through: bool = False) -> bool:
        """Say that a record, or a batch, is done. With ``ack="auto"`` asking for the next one says it too.

        May be called from any thread.

        Args:
            record: what is done.
            through: all that was handed out before it is done as well.

        Returns:
            False if that was known, or if the lease is gone: then the record comes again elsewhere. From another
            thread: whether the lease is held.
        """
        check_done(record)
        if self._acks is None:
            raise Closed(self._why_closed if self._closed else _NOT_STARTED)
        return self._acks.ack_batch(record) if isinstance(record, Batch) else self._acks.ack(record, through=through)

    # ---- looking

    @property
    def is_ready(self) -> bool:
        """Whether every shard that is ours is being read: what is put from now on will be seen."""
        return self._milestones.is_ready and not self._closed

    async def wait_ready(self, timeout: float | None = 30.0) -> None:  # noqa: ASYNC109 - it raises an error of ours
        """Until ``is_ready``.

        Raises:
            WaitTimeout: not within ``timeout`` seconds.
            ShardlineError: it never will be: no such stream, access denied, ...
            Closed: it is closed, or not started.
        """
        limit = check_timeout("timeout", timeout)
        with anyio.move_on_after(limit):
            while True:
                custody = self._opened()
                if custody.failure is not None:
                    raise custody.failure
                if self._milestones.is_ready:
                    break
                await custody.changes.wait()
        self._check_open()
        if not self._milestones.is_ready:
            raise WaitTimeout(f"the consumer of {self._stream} is not ready after {limit:g} s")

    def status(self) -> ConsumerStatus:
        """Shards, owners, positions, lag and health, as this worker knows them."""
        return consumer_status(str(self._stream), self._group, self.worker_id, self._custody, is_closed=self._closed)

    def __repr__(self) -> str:
        group = "" if self._group is None else f" of group {self._group!r}"
        return f"<Consumer of {self._stream}{group}, {health(self._custody, is_closed=self._closed)}>"

    def handle_fork(self) -> None:
        """In the child: see ``forks``."""
        if self._driver is not None:
            self._driver.disown(Closed(CONSUMER_FORKED))
            self._driver = self._acks = None
            self._closed, self._why_closed = True, CONSUMER_FORKED
        elif self._config.worker_id is None:
            self.worker_id = self._milestones.me = new_worker_id()

    def __del__(self) -> None:
        driver = self._driver
        if driver is None or self._closed:
            return
        if self._in_loop is not None:
            with suppress(RuntimeError):  # the loop has ended
                self._in_loop(driver.close)
        warnings.warn(f"{self!r} was never closed", ResourceWarning, source=self, stacklevel=2)


def _nobody() -> None:
    """No iteration."""
