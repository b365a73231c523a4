"""Runs the acts of the demo.

The demo has a local Kinesis with AWS's limits, four producers in this process, and two worker processes. Orders flow; a
flash sale fills one shard until it throttles; that shard is split; a worker is killed; the other worker takes over.
Then an independent reader verifies the result (``independent_reader``, ``loss_check``).

Invariants:

- Every wait has a time limit. If the limit is reached, the demo ends with an error, or the verdict shows what is
  missing.
- However the demo ends, it leaves no process, no server and no file behind.
- Each act waits for its preconditions: a worker is killed only when both workers hold shards, and the flow ends only
  when the survivor has taken over. On a slow machine the demo takes longer, but shows the same acts.
"""

import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, Protocol, final

import anyio
import anyio.to_thread

from shardline.adapters.blocking_calls import BlockingCalls
from shardline.aio.client import Client
from shardline.aio.producer.async_producer import Producer
from shardline.aio.producer.delivery import Delivery
from shardline.cli.demo import demo_metrics
from shardline.cli.demo.fleet import LEASE_DURATION, DemoFailedError, Fleet, Worker
from shardline.cli.demo.independent_reader import Stored, read_stream
from shardline.cli.demo.loss_check import Verdict, judge
from shardline.cli.demo.orders import CUSTOMERS, PRODUCERS, Order, Shop, producer_of, resellers_of
from shardline.cli.demo.scene import Scene, listed, shards_named, short
from shardline.cli.demo.scene_observer import Observer
from shardline.cli.invocation import Invocation
from shardline.core.consumer.consumer_config import ConsumerConfig
from shardline.core.producer.producer_config import ProducerConfig
from shardline.model.shard import Shard
from shardline.testing.local_kinesis import LocalKinesis

STREAM: Final = "orders"
WORKERS: Final = ("A", "B")
COUNTING: Final = "counting"
"""The name of the demo's last act."""
_TICK: Final = 0.1
_PAUSE: Final = 0.02
# When the flash sale, the split and the kill begin, as fractions of the time during which orders flow.
_SALE_AT, _SPLIT_AT, _KILL_AT = 0.15, 0.42, 0.62
_SALE_BYTES: Final = 7 * 1024 * 1024  # a shard takes seven seconds to accept this much; it is split before that
_START_LIMIT: Final = 60.0
_STEP_LIMIT: Final = 60.0
_THROTTLE_LIMIT: Final = 30.0
_DRAIN_LIMIT: Final = 90.0
_END_LIMIT: Final = 10.0
_COUNT_LIMIT: Final = 60.0
_AGGREGATE_MAX_BYTES: Final = 128 * 1024  # large, because an ordered lane has only one aggregate in flight
_RECORD_TTL: Final = 120.0  # long, so that no order expires on a busy machine


@final
@dataclass(frozen=True, slots=True)
class DemoSettings:
    seconds: float = 16.0
    rate: int = 400
    shards: int = 3
    seed: int = 1
    metrics: int | None = None
    """The port on which the producers serve their metrics. The workers use the next ports."""
    console: bool = False
    """Whether the web console shows the demo."""


class Display(Protocol):
    """Shows the scene to the user: as a live picture, or as plain lines."""

    def update(self, scene: Scene) -> None: ...


@final
@dataclass(frozen=True, slots=True)
class Ending:
    """The result of the demo: the verdict, and the name of the killed worker."""

    verdict: Verdict
    killed: str


async def play(
    settings: DemoSettings, scene: Scene, show: Display, stay: Callable[[Ending], Awaitable[None]] | None = None
) -> Ending:
    """Run the whole demo and remove everything that it created. ``stay`` is awaited before anything is removed.

    Raises:
        DemoFailedError: the demo ended without a verdict.
    """
    show.update(scene)
    async with AsyncExitStack() as stack:
        directory = stack.enter_context(TemporaryDirectory(prefix="shardline-demo-", ignore_cleanup_errors=True))
        local = LocalKinesis(shards=settings.shards, stream=STREAM, limits=True, seed=settings.seed)
        kinesis = await stack.enter_async_context(local)
        client = await stack.enter_async_context(_client(kinesis))
        fleet = await stack.enter_async_context(Fleet(kinesis, STREAM, Path(directory), settings.metrics))
        observer = Observer(scene, kinesis.streams[STREAM], fleet)
        config = ProducerConfig(ordered=True, record_ttl=_RECORD_TTL, aggregate_max_bytes=_AGGREGATE_MAX_BYTES)
        producers = [
            await stack.enter_async_context(
                Producer(
                    STREAM,
                    config=config,
                    client=client,
                    sinks=[observer.events.append, *demo_metrics.sinks(settings.metrics)],
                    close_timeout=_END_LIMIT,
                    drain_on_cancel=False,
                )
            )
            for _ in range(PRODUCERS)
        ]
        stack.enter_context(demo_metrics.serve(settings.metrics, *producers))
        scene.add_event(f"a local Kinesis on {kinesis.endpoint_url}, with AWS's limits")
        if settings.metrics is not None:
            ports = listed(str(settings.metrics + 1 + number) for number in range(len(WORKERS)))
            scene.add_event(f"metrics on http://127.0.0.1:{settings.metrics}/metrics; of the workers on ports {ports}")
        if settings.console:
            url = await stack.enter_async_context(_console(settings, kinesis, fleet))
            scene.add_event(f"the console is on {url}")
        story = _Story(settings, client=client, fleet=fleet, producers=producers, observer=observer, show=show)
        stored: list[Stored] = []
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(story.observe)
            tasks.start_soon(story.present)
            await story.run()
            stored = await _read_back(kinesis)
            tasks.cancel_scope.cancel()
        show.update(scene)
        handled = {worker.name: worker.handled for worker in fleet.workers.values()}
        ending = Ending(judge(observer.put, observer.given_up + observer.pending, stored, handled), story.killed)
        if stay is not None:
            await stay(ending)
        return ending
    raise AssertionError("an exit stack suppresses no exception here")


def new_scene(settings: DemoSettings) -> Scene:
    """Return the scene as it is before the demo starts."""
    return Scene(settings.seconds, LEASE_DURATION, ConsumerConfig().lease_duration)


def _client(kinesis: LocalKinesis) -> Client:
    """Return a client that ignores the user's AWS settings and proxies."""
    return Client(endpoint_url=kinesis.endpoint_url, region=kinesis.region, credentials=kinesis.credentials, proxies={})


def _console(settings: DemoSettings, kinesis: LocalKinesis, fleet: Fleet) -> AbstractAsyncContextManager[str]:
    """Return the console of the demo. It is read-only, because the verdict counts every record in the stream."""
    from shardline.cli.console_beside import console_for  # noqa: PLC0415 - only if it is asked for
    from shardline.cli.groups.group_store import StorePlace  # noqa: PLC0415 - only if it is asked for

    first = settings.metrics
    ports = range(0) if first is None else range(first, first + 1 + len(WORKERS))
    stores = [StorePlace.of(fleet.store_url, Invocation(region=kinesis.region))]
    return console_for(kinesis, _client(kinesis), stores, metrics=[f"http://127.0.0.1:{port}" for port in ports])


async def _read_back(kinesis: LocalKinesis) -> list[Stored]:
    with anyio.move_on_after(_COUNT_LIMIT):
        try:
            reading = BlockingCalls[list[Stored]]()
            return await reading.run(STREAM, lambda: read_stream(STREAM, kinesis.boto3_arguments))
        except Exception as error:
            raise DemoFailedError(f"the stream could not be read back: {error}") from error
    raise DemoFailedError(f"the stream could not be read back within {_COUNT_LIMIT:.0f} s")


@final
class _Story:
    """Runs the acts in order and keeps the scene up to date."""

    def __init__(
        self,
        settings: DemoSettings,
        *,
        client: Client,
        fleet: Fleet,
        producers: list[Producer],
        observer: Observer,
        show: Display,
    ) -> None:
        self._settings = settings
        self._client = client
        self._fleet = fleet
        self._producers = producers
        self._observer = observer
        self._scene = observer.scene
        self._show = show
        self._shop = Shop(settings.seed)
        self._flow_began_at = 0.0
        self._is_flowing = True
        self._is_sale_over = False
        self.killed = ""
        """The name of the killed worker."""

    async def observe(self) -> None:
        """Keep the scene up to date until the task is cancelled."""
        while True:
            await self._update_scene()
            await anyio.sleep(_TICK)

    async def present(self) -> None:
        """Show the scene until the task is cancelled. A thread draws it, so that a slow terminal does not delay the
        orders.
        """
        while True:
            await anyio.to_thread.run_sync(self._show.update, deepcopy(self._scene))
            await anyio.sleep(_TICK)

    async def _update_scene(self) -> None:
        await self._observer.update(self._producers)
        if self._flow_began_at and self._is_flowing:
            self._scene.flowing_for = time.monotonic() - self._flow_began_at

    async def run(self) -> None:
        await self._start_workers()
        async with anyio.create_task_group() as tasks:
            self._begin("orders flow")
            self._scene.add_event(
                f"orders flow: {self._settings.rate}/s of {CUSTOMERS} customers, through {PRODUCERS} producers"
            )
            self._flow_began_at = time.monotonic()
            tasks.start_soon(self._flow)
            hot = await self._hot_shard()
            await self._until(_SALE_AT)
            tasks.start_soon(self._sale, hot)
            await self._until(_SPLIT_AT)
            await self._until_throttled()
            await self._split(hot)
            await self._until(_KILL_AT)
            await self._kill()
            await self._until(1.0)
            self._is_flowing = False
        await self._drain()

    # ---- acts

    async def _start_workers(self) -> None:
        self._begin("workers start")
        for name in WORKERS:
            self._fleet.start(name)
        workers = self._fleet.workers.values()
        await self._wait(lambda: all(worker.is_ready for worker in workers), _START_LIMIT, "the workers are ready")

    async def _flow(self) -> None:
        """Put orders at the chosen rate. Orders that a busy machine delays are put later."""
        made = 0
        while self._is_flowing:
            due = int((time.monotonic() - self._flow_began_at) * self._settings.rate) - made
            made += due
            await self._put([self._shop.order() for _ in range(due)])
            await anyio.sleep(_PAUSE)

    async def _put(self, orders: list[Order]) -> list[Delivery]:
        all_deliveries: list[Delivery] = []
        for index, producer in enumerate(self._producers):
            own = [order for order in orders if producer_of(order.customer) == index]
            deliveries = await producer.put_many([(order.customer, order.data) for order in own])
            self._observer.add_deliveries(own, deliveries)
            all_deliveries += deliveries
        return all_deliveries

    async def _hot_shard(self) -> Shard:
        """Return the shard in the middle of the hash keys, which the flash sale will fill."""
        shards = await self._client.list_shards(STREAM)
        return sorted(shards, key=lambda shard: shard.hash_range)[len(shards) // 2]

    async def _sale(self, hot: Shard) -> None:
        resellers = resellers_of(hot.hash_range)
        self._begin("flash sale")
        self._scene.add_event(
            f"flash sale: {len(resellers)} resellers order, and all hash into shard {short(hot.shard_id)}", "act"
        )
        left = _SALE_BYTES
        deliveries: list[Delivery] = []
        while left > 0:
            orders = [self._shop.large_order(reseller) for reseller in resellers]
            left -= sum(len(order.data) for order in orders)
            deliveries += await self._put(orders)
        for delivery in deliveries:
            await delivery.outcome()
        self._is_sale_over = True

    async def _split(self, hot: Shard) -> None:
        self._begin("split")
        await self._client.split_shard(STREAM, hot.shard_id, wait=True)
        shards = await self._client.list_shards(STREAM)
        children = listed(short(shard.shard_id) for shard in shards if hot.shard_id in shard.parent_ids)
        self._scene.add_event(f"shard {short(hot.shard_id)} is split into {children}", "act")

    async def _kill(self) -> None:
        """Kill a worker when both workers hold shards, and wait until the survivor holds all shards."""
        await self._wait(
            lambda: all(self._shards_of(name) for name in WORKERS), _STEP_LIMIT, "both workers hold shards"
        )
        self._begin("kill -9")
        victim, survivor = (self._fleet.workers[name] for name in reversed(WORKERS))
        held = self._shards_of(victim.name)
        victim.kill()
        self.killed = victim.name
        self._scene.add_event(f"kill -9: worker {victim.name} is gone, and still owns {shards_named(held)}", "bad")
        self._begin("take-over")
        await self._wait(lambda: self._has_all(survivor), _STEP_LIMIT, f"worker {survivor.name} has taken over")
        self._begin("orders flow")

    async def _drain(self) -> None:
        """Wait until every order has its receipt and has been handled, or until time is up. The verdict counts missing
        orders.
        """
        self._begin("the rest")
        self._scene.add_event("the last order is put: the rest is delivered")
        with anyio.move_on_after(_DRAIN_LIMIT):
            for producer in self._producers:
                await producer.flush()
            while self._observer.pending or not self._observer.waiting.are_handled(self._observer.put):
                self._check()
                await anyio.sleep(_PAUSE)
        await self._fleet.end(_END_LIMIT)
        self._begin(COUNTING)
        self._scene.add_event("the workers have ended; botocore reads the stream, and counts")
        await self._update_scene()  # reads the last lines of the journals

    # ---- waiting

    async def _until_throttled(self) -> None:
        """Wait until the shard throttles and has to be split, or until the machine proves too slow to fill it."""
        with anyio.move_on_after(_THROTTLE_LIMIT):
            while not (self._scene.throttled or self._is_sale_over):
                self._check()
                await anyio.sleep(_PAUSE)

    def _begin(self, act: str) -> None:
        self._scene.act, self._scene.now = act, self._observer.now

    def _check(self) -> None:
        for worker in self._fleet.workers.values():
            worker.check()

    async def _until(self, fraction: float) -> None:
        """Wait until this fraction of the flow is over. A worker that fails ends the demo."""
        while time.monotonic() - self._flow_began_at < fraction * self._settings.seconds:
            self._check()
            await anyio.sleep(_PAUSE)

    async def _wait(self, condition: Callable[[], bool], limit: float, what: str) -> None:
        with anyio.move_on_after(limit):
            while not condition():
                self._check()
                await anyio.sleep(_PAUSE)
            return
        raise DemoFailedError(f"timed out after {limit:.0f} s waiting until {what}")

    def _shards_of(self, name: str) -> list[str]:
        return [view.name for view in self._scene.shards.values() if view.owner == name]

    def _has_all(self, worker: Worker) -> bool:
        views = self._scene.shards.values()
        return all(view.is_finished or view.owner == worker.name for view in views)
