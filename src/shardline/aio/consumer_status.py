"""How does a consumer stand: which shards, who reads them, how far, how late?"""

from dataclasses import dataclass
from typing import Literal, TypeAlias, final

from shardline.aio.custody import Custody
from shardline.core.consumer.holding import Phase
from shardline.model.lease import Lease
from shardline.model.position import Position

Health: TypeAlias = Literal["starting", "ok", "store-down", "failed", "closing", "closed"]
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
    lag: float | None
    """By how many seconds the last page that we read was behind the end of the shard."""
    parents: tuple[str, ...]
    children: tuple[str, ...]
    prefetched: int = 0
    """How many records were read and are not handed out."""
    token: int | None = None
    """The fencing token, if it is ours."""
    out_of_range: int = 0
    """How many records of aggregates lay outside of the shard's hash range."""


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
    def lag(self) -> float | None:
        """The largest of the shards that we read; ``None`` while nothing was read."""
        return max((shard.lag for shard in self.shards if shard.lag is not None), default=None)

    @property
    def is_resharding(self) -> bool:
        """Whether a shard that has children is not finished."""
        return any(shard.children and shard.state not in ("finished", "unknown") for shard in self.shards)


def consumer_status(
    stream: str, group: str | None, worker_id: str, custody: Custody | None, *, is_closed: bool
) -> ConsumerStatus:
    """All of it."""
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
    return ShardStatus(
        shard_id=shard_id,
        state=_state(custody, shard_id, row),
        owner=None if row is None else row.holder,
        checkpoint=None if row is None else row.checkpoint.position,
        lag=None if worker is None else worker.reader.lag,
        parents=graph.parents(shard_id),
        children=tuple(sorted(graph.children(shard_id))),
        prefetched=0 if worker is None else worker.queued,
        token=None if holding is None else holding.grant.token,
        out_of_range=0 if worker is None else worker.deaggregator.out_of_range,
    )


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
