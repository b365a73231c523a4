"""Keeps the scene of the demo up to date.

The observer reads the producers' receipts, the workers' journals, the rows of the lease store and the server's shards.

Invariants:

- A change of owner is one event that names its cause: a new shard, a hand-over, or a take-over from a killed worker.
  The event of a take-over also shows how long the take-over took.
"""

import time
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Final, final

import anyio.to_thread

from shardline.aio.producer.async_producer import Producer
from shardline.aio.producer.delivery import Delivery
from shardline.cli.demo.fleet import Fleet
from shardline.cli.demo.orders import Order
from shardline.cli.demo.scene import Scene, ShardView, Waiting, WorkerView, shards_named, short
from shardline.core.producer.producer_record import Receipt
from shardline.core.producer_events import LaneStats
from shardline.events import ProducerEvent, RecordsRetried, RequestAnswered
from shardline.model.hashing import HASH_KEY_COUNT
from shardline.model.lease import Lease
from shardline.model.shard import Shard
from shardline.testing.local_streams import LocalStream

_LEASES_INTERVAL: Final = 0.2
_THROTTLED: Final = "ProvisionedThroughputExceededException"


@final
class Observer:
    """Keeps the scene of the demo up to date."""

    def __init__(self, scene: Scene, stream: LocalStream, fleet: Fleet) -> None:
        self.scene = scene
        self.put: list[str] = []
        """The names of the orders that have a receipt."""
        self.given_up = 0
        """The number of orders that the producers failed to deliver."""
        self.waiting = Waiting()
        self._stream = stream
        self._fleet = fleet
        self._began_at = time.monotonic()
        self.events: deque[ProducerEvent] = deque()
        """The events of the producers. The threads of the producers' sinks append to this queue."""
        self._pending: list[tuple[str, Delivery]] = []
        self._leases_read_at = 0.0
        self._owners: dict[str, str] = {}
        self._finished: set[str] = set()

    @property
    def now(self) -> float:
        return time.monotonic() - self._began_at

    @property
    def pending(self) -> int:
        return len(self._pending)

    # ---- the producers

    def add_deliveries(self, orders: Iterable[Order], deliveries: Iterable[Delivery]) -> None:
        """Follow the deliveries of these orders until they resolve."""
        self._pending += ((order.name, delivery) for order, delivery in zip(orders, deliveries, strict=True))

    def _take_events(self) -> None:
        while self.events:
            event = self.events.popleft()
            if isinstance(event, RecordsRetried):
                self.scene.resent += event.records
                if event.code == _THROTTLED and event.shard_id is not None:
                    self._report_throttled(event.shard_id)
            elif isinstance(event, RequestAnswered):
                self.scene.throttled += event.refused_entries

    def _report_throttled(self, shard_id: str) -> None:
        if not any(event.text.startswith("throttled") for event in self.scene.events):
            self.scene.add_event(f"throttled: shard {short(shard_id)} takes 1 MiB/s, the producers slow down", "bad")

    # ---- updating the scene

    async def update(self, producers: Iterable[Producer]) -> None:
        """Bring the scene up to date."""
        scene = self.scene
        scene.now = self.now
        if scene.now - self._leases_read_at >= _LEASES_INTERVAL:
            self._leases_read_at = scene.now
            for shard in await anyio.to_thread.run_sync(lambda: self._stream.shards):
                self._update_shard(shard)
            self._update_owners(await self._fleet.leases())
        self._take_events()
        self._read_receipts()
        self._read_journals()
        self._update_rate_shares([producer.stats().lanes for producer in producers])
        scene.buffered = len(self._pending)
        for flow in (scene.put, scene.handled):
            flow.sample(scene.now)
        for shard_id, view in scene.shards.items():
            view.put.sample(scene.now)
            view.handled.sample(scene.now)
            view.lag, view.waiting = self.waiting.lag(shard_id, scene.now), self.waiting.count(shard_id)

    def _update_shard(self, shard: Shard) -> None:
        view = self.scene.shards.get(shard.shard_id)
        if view is None:
            start, share = shard.hash_range.start / HASH_KEY_COUNT, shard.hash_range.share
            view = self.scene.shards[shard.shard_id] = ShardView(shard.shard_id, start, share, shard.parent_id)
        view.is_open = shard.is_open

    def _read_receipts(self) -> None:
        scene, still_pending = self.scene, list[tuple[str, Delivery]]()
        for name, delivery in self._pending:
            outcome = delivery.conclusion
            if outcome is None:
                still_pending.append((name, delivery))
            elif isinstance(outcome, Receipt):
                self.put.append(name)
                self.waiting.add_put(name, outcome.shard_id, scene.now)
                scene.put.add(1)
                if outcome.shard_id in scene.shards:
                    scene.shards[outcome.shard_id].put.add(1)
            else:
                self.given_up += 1
        self._pending = still_pending

    def _read_journals(self) -> None:
        scene = self.scene
        for worker in self._fleet.workers.values():
            view = scene.workers.setdefault(worker.name, WorkerView(worker.name, worker.pid))
            for order in worker.new_lines():
                shard_id = order.place[0]
                view.handled += 1
                if self.waiting.add_handled(order.name, shard_id):
                    scene.handled.add(1)
                if shard_id in scene.shards:
                    scene.shards[shard_id].handled.add(1)
            if worker.is_ready and not view.is_ready:
                scene.add_event(f"worker {worker.name} is ready (process {worker.pid})")
            view.is_ready, view.is_dead = worker.is_ready, worker.killed_at is not None

    def _update_rate_shares(self, lanes_by_producer: list[tuple[LaneStats, ...]]) -> None:
        for shard_id, view in self.scene.shards.items():
            shares = [lane.rate_share for lanes in lanes_by_producer for lane in lanes if lane.shard_id == shard_id]
            view.rate_share = min(shares, default=1.0)

    # ---- the owners of the shards

    def _update_owners(self, rows: Mapping[str, Lease]) -> None:
        gained: dict[tuple[str, str], list[str]] = {}
        for shard_id, row in sorted(rows.items()):
            if row.checkpoint.is_finished and shard_id not in self._finished:
                self._finished.add(shard_id)
                self.scene.add_event(f"shard {short(shard_id)} is read to its end; its children are next")
            owner = None if row.checkpoint.is_finished else row.holder
            before = self._owners.get(shard_id)
            if owner is not None and owner != before:
                self._owners[shard_id] = owner
                gained.setdefault((owner, before or ""), []).append(short(shard_id))
            if shard_id in self.scene.shards:
                view = self.scene.shards[shard_id]
                view.owner, view.is_finished = owner, row.checkpoint.is_finished
        for (owner, before), shards in gained.items():
            self._report_owner(owner, before, shards_named(shards))

    def _report_owner(self, owner: str, before: str, shards: str) -> None:
        old = self._fleet.workers.get(before)
        if old is None:
            self.scene.add_event(f"worker {owner} reads {shards}")
        elif old.killed_at is None:
            self.scene.add_event(f"worker {before} hands {shards} to worker {owner}")
        else:
            took = time.monotonic() - old.killed_at
            self.scene.add_event(f"worker {owner} took over {shards} after {took:.1f} s", "good")
