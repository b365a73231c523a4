"""In which task does a consumer read, and how does it end?

In one that belongs to nobody who calls: see ``host_tasks.spawn``.

Invariants:

- CO1: no cancel scope of a caller is entered: a consumer may be closed by another task than started it.
- CH1: however it ends, what the consumer owns is closed, and whoever waits for the end is told. The task holds no
  reference to the ``Consumer``: one that was forgotten is collected, says so, and lets go of its leases.
- C5: what a task has while another closes the consumer is waited for; it is done when that task asks for the next. A
  task that has ended, as that of ``asyncio.wait_for`` has, is not waited for: what it was handed and returned is
  the closer's, and if it failed that comes again.
"""

import math
import random
import time
from collections.abc import Callable
from typing import Any, Final, Protocol

import anyio

from shardline.aio.boot_clock import boot_time
from shardline.aio.client import Client
from shardline.aio.consumer_driver import ConsumerDriver
from shardline.aio.custody import Custody
from shardline.aio.host_tasks import Flag, has_ended, has_ended_well, running_task
from shardline.aio.milestones import Milestones
from shardline.aio.reporting import ConsumerReporter, ConsumerSink
from shardline.aio.worker_identity import new_incarnation
from shardline.core.consumer.config import ConsumerConfig
from shardline.core.consumer.coordinator import Coordinator
from shardline.core.consumer.handling import service_now
from shardline.core.failures import Failure
from shardline.errors import UsageError
from shardline.model.position import Position
from shardline.model.stream import StreamRef
from shardline.ports import KclLeaseStore, LeaseStore

_POLL: Final = 0.05
_RELEASE_LEAST: Final = 2.0  # seconds that letting go has, however short the timeout is


class Iteration(Protocol):
    """An iterator of a consumer."""

    asker: object
    is_over: bool

    @property
    def has_records(self) -> bool: ...
    def is_asked_by_another(self, caller: object) -> bool: ...
    def end_for_another(self) -> None: ...
    def release(self, *, done: bool) -> None: ...


def make_driver(
    stream: StreamRef,
    worker_id: str,
    start: Position,
    *,
    config: ConsumerConfig,
    store: LeaseStore,
    latest_at: float,
    service_time: Callable[[], float],
    milestones: Milestones,
    deserializer: Callable[[bytes], Any] | None,
    sink: ConsumerSink | None,
) -> ConsumerDriver:
    """The machine, and what drives it. To be called when it begins: the machine's time runs from now on."""
    coordinator = Coordinator(
        stream,
        worker_id,
        start,
        incarnation=new_incarnation(),
        config=config,
        scan_interval=store.scan_interval,
        checkpoint_interval=store.checkpoint_interval,
        latest_at=latest_at,
        chance=random.Random(),  # noqa: S311 - no secret
        now=boot_time(),
        clock=boot_time,
        kcl_failover=store.kcl_failover if isinstance(store, KclLeaseStore) else None,
    )
    return ConsumerDriver(
        Custody(coordinator, config, boot_time, lambda: service_now(service_time(), time.time()), milestones),
        stream=stream,
        store=store,
        reporter=ConsumerReporter(f"{stream.name} ({worker_id})", sink, time.monotonic),
        deserializer=deserializer,
        service_time=service_time,
    )


async def host_consumer(
    driver: ConsumerDriver,
    api: Any,
    store_failure: Failure | None,
    owned: tuple[LeaseStore | None, Client | None],
    ended: Flag,
) -> None:
    """The task that owns a consumer's requests (CH1)."""
    try:
        await driver.run(api, store_failure=store_failure)
    finally:
        try:
            if not driver.is_disowned:
                await let_go(*owned)
        finally:
            ended.set()


def end_host(driver: ConsumerDriver, ended: Flag) -> None:
    """The task is over: do what its end left undone, if that was interrupted."""
    driver.make_sure_of_end()
    ended.set()


async def let_go(store: LeaseStore | None, client: Client | None) -> None:
    """Close what is ours."""
    with anyio.CancelScope(shield=True):
        try:
            if store is not None:
                await store.close()
        finally:
            if client is not None:
                await client.close()


def take_over(custody: Custody, live: Iteration | None, caller: object, *, is_run: bool) -> None:
    """A new iteration begins: it asks for the next, and what an older one has left in the user's hands is done (CO2).

    Raises:
        UsageError: somebody waits for a record at this moment, or ``run`` does.
    """
    if live is not None and not live.is_over:
        is_run = is_run or live.is_asked_by_another(running_task() if caller is None else caller)
    if is_run:
        raise UsageError("this Consumer is iterated already: one iteration at a time, for asking acknowledges")
    if live is not None:
        live.end_for_another()
    custody.release_all(done=True)


async def wind_down(
    driver: ConsumerDriver,
    ended: Flag,
    run_scope: Callable[[], anyio.CancelScope | None],
    live: Callable[[], Iteration | None],
    limit: float | None,
    *,
    clean: bool,
) -> None:
    """End the users, commit, let go of the leases, and end the host: within ``limit``, or a little more to let go."""
    until = time.monotonic() + (math.inf if limit is None else limit)
    try:
        await end_of_users(driver.custody, run_scope, live, until, clean=clean)
        driver.close()
        with anyio.move_on_after(max(until - time.monotonic(), _RELEASE_LEAST)):
            await ended.wait()
    finally:
        driver.stop()


async def end_of_users(
    custody: Custody,
    run_scope: Callable[[], anyio.CancelScope | None],
    live: Callable[[], Iteration | None],
    until: float,
    *,
    clean: bool,
) -> None:
    """See to it that nobody has records any more; wait for other tasks, if it is a clean close, no longer than that."""
    while clean and run_scope() is not None and time.monotonic() < until:
        await custody.changes.wait(_POLL)
    running = run_scope()
    if running is not None:
        running.cancel()
    task = running_task()
    while clean and is_at_work(live(), task) and time.monotonic() < until:
        await custody.changes.wait(_POLL)
    iteration = live()
    if iteration is not None:
        iteration.release(done=clean and (iteration.asker is task or has_ended_well(iteration.asker)))
    custody.release_all(done=clean)


def is_at_work(iteration: Iteration | None, task: object) -> bool:
    """Whether another task than this one has records. One that has ended works on nothing."""
    if iteration is None or not iteration.has_records:
        return False
    return iteration.asker is not task and not has_ended(iteration.asker)
