"""How does a consumer stand: which shards, who reads them, how far, how late?

Invariants:

- CS1: ``handling_lag`` is the age of the oldest record that is not done, wherever it is: in hand, prefetched or unread.
  ``reading_lag`` stays at 0 while a slow handler falls behind, and is no alarm.
- CS2: looking changes nothing that the group or the user could see.
"""

import time
from dataclasses import dataclass
from typing import Literal, TypeAlias, final

from shardline.aio.custody import Custody
from shardline.aio.shard_worker import ShardWorker
from shardline.core.consumer.handling import HandlingState, handling_lag
from shardline.core.consumer.holding import Phase
from shardline.model.lease import Lease
from shardline.model.position import Position

Health: TypeAlias = Literal["starting", "ok", "store-down", "handler-stuck", "failed", "closing", "closed"]
ShardState: TypeAlias = Literal["reading", "handing-over", "ending", "other", "free", "waiting", "finished", "unknown"]


@final
@dataclass(frozen=True, slots=True)
class ShardStatus:
    """One shard, as this worker knows it."""

    shard_id: str
    state: ShardState
    """``reading``: by us; ``handing-over``, ``ending``: by us, and not for long; ``other``: another worker reads it;
    ``free``: nobody does yet; ``waiting``: for its parents; ``finished``; ``unknown``: it has no lease."""
    owner: str | None
    checkpoint: Position | None
    """What is committed. All records at or before it are done."""
    reading_lag: float | None
    """How many seconds the last page that we read was behind the end of the shard. ``None``: nothing was read yet."""
    parents: tuple[str, ...]
    children: tuple[str, ...]
    prefetched: int = 0
    """How many records were read and wait for your code."""
    token: int | None = None
    """The fencing token, if it is ours."""
    out_of_range: int = 0
    """How many records of aggregates lay outside of the shard's hash range."""
    handling_lag: float | None = None
    """How many seconds ago the oldest record arrived that is not done; 0 if there is none, ``None`` if not known."""
    in_hand: int = 0
    """How many records your code has: it was handed them, and is not done with them."""
    handler_started_at: float | None = None
    """Since when your code has had the same records, in seconds since 1970; ``None`` if it has none."""
    unacknowledged: int = 0
    """With manual acknowledgements: how many records are handed out and not acknowledged, or wait behind one that is
    not. At ``max_unacknowledged`` no more of the shard are handed out or read."""

    @property
    def lag(self) -> float | None:
        """The former name of ``reading_lag``."""
        return self.reading_lag


@final
@dataclass(frozen=True, slots=True)
class ConsumerStatus:
    """A consumer and its group."""

    stream: str
    group: str | None
    worker_id: str
    health: Health
    is_ready: bool
    shards: tuple[ShardStatus, ...]
    workers: dict[str, int]
    """How many leases each worker of the group holds."""
    retries: int = 0
    """How many calls of a handler failed and were repeated, since the consumer was started."""
    dead_letters: int = 0
    """How many records were written as dead letters."""
    failed_records: int = 0
    """How many records ended a ``run`` with ``HandlerFailed``. They come again."""

    @property
    def handling_lag(self) -> float | None:
        """The largest of the shards that we read: the age of the oldest record that is not done. The one to watch."""
        return max((shard.handling_lag for shard in self.shards if shard.handling_lag is not None), default=None)

    @property
    def reading_lag(self) -> float | None:
        """The largest of the shards that we read. A slow handler does not show in it."""
        return max((shard.reading_lag for shard in self.shards if shard.reading_lag is not None), default=None)

    @property
    def lag(self) -> float | None:
        """The former name of ``reading_lag``."""
        return self.reading_lag

    @property
    def in_hand(self) -> int:
        """How many records your code has."""
        return sum(shard.in_hand for shard in self.shards)

    @property
    def handler_started_at(self) -> float | None:
        """Since when the handler that has worked the longest on the same records has had them."""
        started = [shard.handler_started_at for shard in self.shards if shard.handler_started_at is not None]
        return min(started, default=None)

    @property
    def is_resharding(self) -> bool:
        """Whether a shard that has children is not finished."""
        return any(shard.children and shard.state not in ("finished", "unknown") for shard in self.shards)


def consumer_status(
    stream: str, group: str | None, worker_id: str, custody: Custody | None, *, is_closed: bool
) -> ConsumerStatus:
    """All of it."""
    if custody is not None and not custody.has_ended:
        custody.look()
    return ConsumerStatus(
        stream=stream,
        group=group,
        worker_id=worker_id,
        health=health(custody, is_closed=is_closed),
        is_ready=custody is not None and custody.milestones.is_ready and not is_closed,
        shards=() if custody is None else shard_statuses(custody),
        workers={} if custody is None else owners(custody),
        retries=0 if custody is None else custody.counts.retries,
        dead_letters=0 if custody is None else custody.counts.dead_letters,
        failed_records=0 if custody is None else custody.counts.failed_records,
    )


def health(custody: Custody | None, *, is_closed: bool) -> Health:
    if custody is not None and custody.failure is not None:
        return "failed"
    if is_closed:
        return "closed" if custody is None or custody.has_ended else "closing"
    if custody is not None and custody.watch.is_stuck:
        return "handler-stuck"
    if custody is None or not custody.milestones.is_ready:
        return "starting"
    return "store-down" if custody.coordinator.is_store_down else "ok"


def shard_statuses(custody: Custody) -> tuple[ShardStatus, ...]:
    """Every shard that is known, by name."""
    coordinator = custody.coordinator
    graph, rows = coordinator.topology.graph, coordinator.view.rows
    return tuple(_status(custody, shard_id) for shard_id in sorted({*graph.shard_ids, *rows}))


def owners(custody: Custody) -> dict[str, int]:
    """The workers that hold leases, and how many."""
    counts: dict[str, int] = {}
    for row in custody.coordinator.view.rows.values():
        if row.holder is not None and not row.checkpoint.is_finished:
            counts[row.holder] = counts.get(row.holder, 0) + 1
    return counts


def _status(custody: Custody, shard_id: str) -> ShardStatus:
    coordinator = custody.coordinator
    graph, row = coordinator.topology.graph, coordinator.view.rows.get(shard_id)
    worker, holding = custody.workers.get(shard_id), coordinator.held.holdings.get(shard_id)
    since = None if worker is None else custody.watch.since(worker.reader.key)
    state = HandlingState() if worker is None or worker.in_hand is None else worker.in_hand.look()
    is_manual = custody.config.ack == "manual" and holding is not None
    return ShardStatus(
        shard_id=shard_id,
        state=_state(custody, shard_id, row),
        owner=None if row is None else row.holder,
        checkpoint=None if row is None else row.checkpoint.position,
        reading_lag=None if worker is None else worker.reader.lag,
        parents=graph.parents(shard_id),
        children=tuple(sorted(graph.children(shard_id))),
        prefetched=0 if worker is None else worker.queued + state.waiting,
        token=None if holding is None else holding.grant.token,
        out_of_range=0 if worker is None else worker.deaggregator.out_of_range,
        unacknowledged=0 if holding is None else holding.tracker.remembered,
        handling_lag=None if worker is None else _handling_lag(custody, worker, state),
        in_hand=holding.tracker.unacknowledged if holding is not None and is_manual else state.records,
        handler_started_at=None if since is None else time.time() - (custody.clock() - since),
    )


def _handling_lag(custody: Custody, worker: ShardWorker, state: HandlingState) -> float | None:
    """CS1."""
    holding, queued = custody.holding_of(worker), worker.next_record
    unacknowledged = None if holding is None else holding.tracker.oldest_unacknowledged
    arrivals = [record.arrived_at for record in (state.oldest, queued) if record is not None]
    if unacknowledged is not None:
        arrivals.append(unacknowledged[1])
    reader = worker.reader
    return handling_lag(arrivals, reader.unread_age(custody.clock()), reader.lag, custody.service_clock())


def _state(custody: Custody, shard_id: str, row: Lease | None) -> ShardState:
    coordinator = custody.coordinator
    holding = coordinator.held.holdings.get(shard_id)
    if holding is not None:
        if holding.phase is not Phase.ACTIVE:
            return "handing-over"
        return "ending" if holding.tracker.has_ended else "reading"
    if row is None:
        return "unknown"
    if row.checkpoint.is_finished:
        return "finished"
    if row.holder is not None:
        return "other"
    return "free" if coordinator.topology.graph.is_readable(shard_id, coordinator.view.rows) else "waiting"
