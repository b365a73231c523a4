"""The status of a consumer: its health, and the owners, checkpoints and lag of its shards.

Invariants:

- ``handling_lag`` is the age of the oldest record that is not done, whether it is in hand, prefetched or unread.
  ``reading_lag`` stays at 0 while a slow handler falls behind, so do not alert on it.
- Reading the status changes nothing that the group or the user could notice.
"""

import time
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Final, Literal, TypeAlias, final

from shardline.aio.loop.boot_clock import boot_time
from shardline.core.clock import Instant
from shardline.core.consumer.consumer_totals import ConsumerRates, ConsumerTotals
from shardline.core.consumer.coordinator import Coordinator
from shardline.core.consumer.handout import HandOut
from shardline.core.consumer.held_shard import HeldShard
from shardline.core.consumer.key_lanes import HotKey
from shardline.core.consumer.lag_measurement import shard_lag
from shardline.core.consumer.lease_phases import Holding, Phase
from shardline.core.consumer.reader import ShardKey
from shardline.model.lease import Lease
from shardline.model.position import Position

_HOT_KEYS: Final = 10

Health: TypeAlias = Literal["starting", "ok", "store-down", "handler-stuck", "failed", "closing", "closed"]
ShardState: TypeAlias = Literal["reading", "handing-over", "ending", "other", "free", "waiting", "finished", "unknown"]


@final
@dataclass(frozen=True, slots=True)
class ShardStatus:
    """The status of one shard, as this worker knows it."""

    shard_id: str
    state: ShardState
    """``reading``: this worker reads the shard. ``handing-over``: this worker is about to release it. ``ending``: this
    worker has read it to its end. ``other``: another worker reads it. ``free``: no worker reads it yet. ``waiting``:
    its parents are not finished. ``finished``: all its records are done. ``unknown``: it has no lease."""
    owner: str | None
    checkpoint: Position | None
    """The committed position. All records at or before it are done."""
    reading_lag: float | None
    """How many seconds the last page was behind the end of the shard, or ``None`` if no page has been read yet."""
    parents: tuple[str, ...]
    children: tuple[str, ...]
    prefetched: int = 0
    """How many records have been read but not handed out yet."""
    token: int | None = None
    """The fencing token, if this worker holds the lease."""
    out_of_range: int = 0
    """How many records of aggregates were outside the shard's hash range."""
    handling_lag: float | None = None
    """The age of the oldest record that is not done, in seconds: 0 if all are done, or ``None`` if unknown."""
    in_hand: int = 0
    """How many records have been handed out to your code and are not done."""
    handler_started_at: float | None = None
    """When your code got the records that it has, in seconds since 1970, or ``None`` if it has no records."""
    unacknowledged: int = 0
    """With manual acknowledgements: how many records are handed out and not acknowledged, or are acknowledged and wait
    for an older record. At ``max_unacknowledged``, no more records of the shard are handed out or read."""
    stream: str = ""
    """The name of the stream."""
    read_by: Literal["polling", "fan-out"] | None = None
    """How this worker reads the shard, or ``None`` if this worker does not read it."""
    is_paused: bool = False
    """Whether your code has paused the shard (``pause``)."""
    filtered: int = 0
    """How many records have not passed your filter since this worker began to read the shard."""

    @property
    def lag(self) -> float | None:
        """The former name of ``reading_lag``."""
        return self.reading_lag


@final
@dataclass(frozen=True, slots=True)
class KeyStatus:
    """The keys of a ``run`` with ``order="key"``. Keys may be personal data: be careful where you show them."""

    in_flight: int = 0
    """The number of keys that handlers are working on."""
    oldest: str | None = None
    """The key that a handler has been working on for the longest time."""
    oldest_started_at: float | None = None
    """When the handler of the ``oldest`` key got its records, in seconds since 1970."""
    hot: tuple[HotKey, ...] = ()
    """Up to ten keys with the most waiting records. A record waits while a handler has an earlier one of its key."""


@final
@dataclass(frozen=True, slots=True)
class ConsumerStatus:
    """The status of a consumer and its group."""

    stream: str
    """The stream as you named it, or the streams, separated by commas."""
    group: str | None
    worker_id: str
    health: Health
    is_ready: bool
    shards: tuple[ShardStatus, ...]
    workers: dict[str, int]
    """How many leases each worker of the group holds."""
    retries: int = 0
    """How many calls to a handler have failed and been repeated since the consumer started."""
    dead_letters: int = 0
    """How many records were written as dead letters."""
    failed_records: int = 0
    """How many records failed and so ended a ``run`` with ``HandlerFailed``. These records will be delivered again."""
    totals: ConsumerTotals = field(default_factory=ConsumerTotals)
    """The work of this worker since it was started."""
    rates: ConsumerRates = field(default_factory=ConsumerRates)
    """How fast this worker works now."""
    is_paused: bool = False
    """Whether your code has paused all shards, including those that this worker gains later (``pause``)."""
    keys: KeyStatus = field(default_factory=KeyStatus)
    """The keys that handlers work on, with ``run(..., order="key")``."""
    streams: tuple[str, ...] = ()
    """The names of the streams that this worker reads."""

    def of_stream(self, stream: str) -> "ConsumerStatus":
        """Return this status with the shards of one stream, so that the lags and ``in_hand`` are those of this stream.

        Everything else, such as ``totals``, is still about all streams.
        """
        shards = tuple(shard for shard in self.shards if shard.stream == stream)
        return replace(self, stream=stream, streams=(stream,), shards=shards)

    @property
    def handling_lag(self) -> float | None:
        """The age of the oldest record that is not done, in all shards that this worker reads. Alert on this value."""
        return max((shard.handling_lag for shard in self.shards if shard.handling_lag is not None), default=None)

    @property
    def reading_lag(self) -> float | None:
        """The largest ``reading_lag`` of the shards that this worker reads. Slow handlers do not affect this value."""
        return max((shard.reading_lag for shard in self.shards if shard.reading_lag is not None), default=None)

    @property
    def lag(self) -> float | None:
        """The former name of ``reading_lag``."""
        return self.reading_lag

    @property
    def in_hand(self) -> int:
        """How many records have been handed out to your code and are not done."""
        return sum(shard.in_hand for shard in self.shards)

    @property
    def handler_started_at(self) -> float | None:
        """When the longest-running handler got the records that it has, in seconds since 1970."""
        started = [shard.handler_started_at for shard in self.shards if shard.handler_started_at is not None]
        return min(started, default=None)

    @property
    def is_resharding(self) -> bool:
        """Whether any shard with children is still unfinished."""
        return any(shard.children and shard.state not in ("finished", "unknown") for shard in self.shards)


def consumer_status(
    stream: str,
    group: str | None,
    worker_id: str,
    hand_out: HandOut | None,
    service_now: float,
    *,
    is_closed: bool,
    streams: Iterable[str],
) -> ConsumerStatus:
    """Return the status of a consumer. ``service_now`` is the service's time, in seconds since 1970."""
    return ConsumerStatus(
        stream=stream,
        group=group,
        worker_id=worker_id,
        health=health(hand_out, is_closed=is_closed),
        is_ready=hand_out is not None and hand_out.bounds.is_ready and not is_closed,
        shards=() if hand_out is None else _shard_statuses(hand_out, service_now),
        workers={} if hand_out is None else _owners(hand_out),
        retries=0 if hand_out is None else hand_out.counts.retries,
        dead_letters=0 if hand_out is None else hand_out.counts.dead_letters,
        failed_records=0 if hand_out is None else hand_out.counts.failed_records,
        totals=ConsumerTotals() if hand_out is None else hand_out.work.totals(),
        rates=ConsumerRates() if hand_out is None else hand_out.work.rates(boot_time()),
        is_paused=hand_out is not None and hand_out.is_paused,
        keys=KeyStatus() if hand_out is None else _key_status(hand_out),
        streams=tuple(streams),
    )


def _key_status(hand_out: HandOut) -> KeyStatus:
    in_flight = hand_out.keys_in_flight()
    oldest = min(in_flight, key=in_flight.__getitem__, default=None)
    started_at = None if oldest is None else _since_1970(in_flight[oldest])
    return KeyStatus(len(in_flight), oldest, started_at, tuple(hand_out.keys.hot_keys(_HOT_KEYS)))


def health(hand_out: HandOut | None, *, is_closed: bool) -> Health:
    if hand_out is not None and hand_out.failure is not None:
        return "failed"
    if is_closed:
        return "closed" if hand_out is None or hand_out.has_ended else "closing"
    if hand_out is not None and hand_out.watch.is_stuck:
        return "handler-stuck"
    if hand_out is None or not hand_out.bounds.is_ready:
        return "starting"
    return "store-down" if any(group.is_store_down for group in hand_out.coordinators.values()) else "ok"


def _shard_statuses(hand_out: HandOut, service_now: float) -> tuple[ShardStatus, ...]:
    """Return the status of every known shard, sorted by stream and shard id."""
    return tuple(
        _status(hand_out, group, (stream, shard_id), service_now)
        for stream, group in sorted(hand_out.coordinators.items())
        for shard_id in sorted({*group.topology.graph.shard_ids, *group.view.rows})
    )


def _owners(hand_out: HandOut) -> dict[str, int]:
    """Return how many leases each worker holds."""
    counts: dict[str, int] = {}
    for group in hand_out.coordinators.values():
        for row in group.view.rows.values():
            if row.holder is not None and not row.checkpoint.is_finished:
                counts[row.holder] = counts.get(row.holder, 0) + 1
    return counts


def _status(hand_out: HandOut, group: Coordinator, key: ShardKey, service_now: float) -> ShardStatus:
    stream, shard_id = key
    graph, row = group.topology.graph, group.view.rows.get(shard_id)
    shard, holding = hand_out.shards.get(key), group.held.holdings.get(shard_id)
    known = ShardStatus(
        stream=stream,
        shard_id=shard_id,
        state=_state(group, holding, row),
        owner=None if row is None else row.holder,
        checkpoint=None if row is None else row.checkpoint.position,
        reading_lag=None,
        parents=graph.parents(shard_id),
        children=tuple(sorted(graph.children(shard_id))),
        token=None if holding is None else holding.grant.token,
        handler_started_at=_since_1970(hand_out.watch.since(key)),
    )
    return known if shard is None else _with_records(known, hand_out, shard, service_now)


def _with_records(known: ShardStatus, hand_out: HandOut, shard: HeldShard, service_now: float) -> ShardStatus:
    """Return the status of a held shard, with the numbers of records that were read, prefetched and handed out."""
    state, tracker = hand_out.handling_state(shard), None if shard.holding is None else shard.holding.tracker
    lag = shard_lag(hand_out, shard, boot_time(), service_now)
    since = hand_out.watch.since(shard.key) or state.since if shard.is_manual else state.since
    return replace(
        known,
        reading_lag=lag.reading_lag,
        read_by=shard.reader.read_by,
        prefetched=lag.prefetched,
        out_of_range=shard.reader.out_of_range,
        unacknowledged=0 if tracker is None else tracker.remembered + shard.unreported,
        handling_lag=lag.handling_lag,
        in_hand=lag.in_hand,
        is_paused=shard.is_paused,
        filtered=shard.filtered,
        handler_started_at=known.handler_started_at if since is None else _since_1970(since),
    )


def _since_1970(at: Instant | None) -> float | None:
    return None if at is None else time.time() - (boot_time() - at)


def _state(group: Coordinator, holding: Holding | None, row: Lease | None) -> ShardState:
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
    return "free" if group.topology.graph.is_readable(row.shard_id, group.view.rows) else "waiting"
