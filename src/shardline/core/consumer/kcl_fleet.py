"""Decides how a worker behaves on a lease table that Java KCL workers may share.

A KCL 3 fleet has a leader that assigns the leases. A KCL 2 fleet has no leader: each worker takes its share itself. The
worker finds out which kind of fleet uses the table from rows that the KCL keeps beside the leases, and takes one of
three roles: it is alone (no KCL worker is alive), it follows the leader, or it takes leases by the rules of KCL 2.

Invariants:

- A KCL worker counts as alive only if *we* saw one of its rows change: a lease of an owner that states no incarnation,
  its metrics row, or the leader's row. Rows that never change are left over from earlier, and the worker stays alone.
- A worker that is alone writes nothing: it has no metrics row, and deletes the one that it had.
- A follower takes only leases that name it as their owner. It takes another lease only if no worker has read the shard
  for so long that the leader must have failed.
- A follower writes its metrics row every 30 s. On exit, it deletes the row before it releases a lease. Otherwise the
  leader would assign the leases to this worker again.
- The metrics row is in the KCL's own table for these rows. It is in the lease table only if the KCL keeps its rows
  there, because older KCLs cannot read a lease table that has other rows. While a KCL 3.5 fleet moves its rows to
  another table, the worker moves its own row, too, because the KCL finishes the move only when no live worker writes to
  the old table.
- A fleet that upgrades from KCL 2, or that was rolled back to it, takes leases by the rules of KCL 2, whatever the
  leader's row contains.
- If reading the KCL's rows is denied, the worker assumes that no KCL worker is alive, and reports the denial once.
- At most one request is in flight.
"""

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from enum import Enum
from typing import Final, NamedTuple, final

from shardline.core.backoff import Chance
from shardline.core.clock import NEVER, Instant
from shardline.core.consumer.assignment import Assignment, ReadableLease
from shardline.core.error_codes import Failure, FailureKind
from shardline.core.kcl_requests import (
    DeleteMetrics,
    KclRequest,
    KclRows,
    LeaderRow,
    MetricsPlace,
    ReadKclRows,
    WriteMetrics,
)
from shardline.model.lease import Lease

DISCOVERY: Final = 10.0
"""Seconds within which a KCL worker discovers that a lease was assigned to it."""
METRICS_INTERVAL: Final = 30.0
"""Seconds between two writes of a metrics row."""
METRICS_EXPIRY: Final = 2 * METRICS_INTERVAL
"""Seconds after which the KCL ignores a metrics row that has not changed."""
_WORKER_SILENCE: Final = 45.0  # a metrics row is written every 30 s, and read every 10 s
_LEADER_SILENCE: Final = 75.0  # the leader writes its row every 30 s
_LOOK_INTERVAL: Final = 10.0
_LOOK_INTERVAL_ALONE: Final = 30.0
_LOOK_INTERVAL_DENIED: Final = 300.0
_VERY_OLD: Final = 3  # failover times after which a KCL 2 worker takes an available lease beyond its share
_KCL_2_RULES: Final = frozenset({"CLIENT_VERSION_2X", "CLIENT_VERSION_UPGRADE_FROM_2X"})
_ROLLED_BACK: Final = "CLIENT_VERSION_2X"
_OURS: Final = "Shardline"
_CAN_MOVE: Final = "TABLE_MIGRATION_STATUS_DEPLOYED"
_MOVED: Final = frozenset({"TABLE_MIGRATION_STATUS_PENDING", "TABLE_MIGRATION_STATUS_COMPLETE"})


@final
class KclRole(Enum):
    """How a worker behaves towards KCL workers."""

    __hash__ = object.__hash__

    ALONE = "no KCL worker uses the table"
    FOLLOWER = "a KCL 3 leader assigns the leases"
    TAKER = "KCL 2 workers take leases by themselves"


def longest_silence(failover: float) -> float:
    """Return how long a live KCL owner may be silent. The KCL assigns leases every two failover times, and the new
    owner then has to discover the assignment.
    """
    return 2 * failover + DISCOVERY


def metrics_place(rows: KclRows, live: Collection[str]) -> MetricsPlace | None:
    """Return where the fleet keeps its metrics rows, or ``None`` if it has no such rows.

    Args:
        rows: the rows of the fleet.
        live: the KCL workers whose metrics rows change.
    """
    if rows.table_migration in _MOVED:
        return MetricsPlace.LEASE_TABLE
    if rows.has_metrics_table:
        places = {row.place for row in rows.metrics if row.worker in live}
        is_moving = rows.table_migration == _CAN_MOVE and places == {MetricsPlace.LEASE_TABLE}
        return MetricsPlace.LEASE_TABLE if is_moving else MetricsPlace.OWN_TABLE
    # A new KCL 3.5 application has one table from the start, and no migration.
    is_one_table = rows.table_migration is None and rows.has_rows_among_leases
    return MetricsPlace.LEASE_TABLE if is_one_table else None


@final
class KclFleet:
    """Tracks the KCL workers on a lease table, and decides the role of one worker towards them.

    Args:
        me: the worker's name.
        failover: the KCL's failover time, in seconds.
        now: the current time.
    """

    def __init__(self, me: str, failover: float, now: Instant) -> None:
        self._me: str = me
        self._failover: float = failover
        self.rows: KclRows = KclRows()
        self.role: KclRole = KclRole.ALONE
        self._has_looked: bool = False
        self._is_denied: bool = False
        self._counters: dict[str, tuple[str, int]] = {}  # holder and counter of each lease that a KCL may hold
        self._owners: dict[str, Instant] = {}  # when a lease of each KCL owner last changed
        self._workers: dict[str, Instant] = {}  # when the metrics row of each KCL worker last changed
        self._leader_changed_at: Instant = -NEVER
        self._leader_seen_at: Instant = -NEVER  # when the leader was first seen under its current version
        self._look_at: Instant = now
        self._write_at: Instant = now
        self._stole_at: Instant = -NEVER
        self._stolen: str | None = None  # the shard whose lease was stolen last
        self._place: MetricsPlace | None = None  # where a row of ours may exist
        self._in_flight: KclRequest | None = None
        self._is_closing: bool = False
        self._notes: list[str] = []

    # ---- queries

    @property
    def asks_kcl_owners(self) -> bool:
        """Whether this worker may ask KCL owners for leases, because the rows of the KCL cannot be read."""
        return self._is_denied

    @property
    def has_left(self) -> bool:
        """Whether no metrics row of ours is left, so that the leases can be released."""
        return self._place is None

    def renew_within(self, lease_duration: float) -> float:
        """Return how often a lease must be renewed so that all workers, including KCL workers, regard its owner as
        alive.
        """
        return lease_duration if self.role is KclRole.ALONE else min(lease_duration, self._failover)

    def is_overdue(self, available_for: float) -> bool:
        """Return whether the leader should have assigned an available lease long ago."""
        return available_for > METRICS_EXPIRY + longest_silence(self._failover)

    # ---- commands

    def close(self) -> None:
        """Delete the metrics row, because the worker is leaving the fleet."""
        self._is_closing = True

    # ---- inputs

    def handle_leases(self, leases: Mapping[str, Lease], now: Instant) -> None:
        """Look for leases that are renewed by an owner without an incarnation: such an owner is a KCL worker."""
        counters: dict[str, tuple[str, int]] = {}
        for shard_id, row in leases.items():
            holder = row.holder
            if holder is None or holder == self._me or row.incarnation_of(holder) is not None:
                continue
            known = self._counters.get(shard_id)
            # Another holder, or the leader's assignment, may have changed the counter together with the holder.
            if known is not None and known[0] == holder and known[1] != row.counter:
                self._owners[holder] = now
            counters[shard_id] = (holder, row.counter)
        self._counters = counters
        if self._owners and self._look_at > now + _LOOK_INTERVAL:
            self._look_at = now
        self._update_role(now)

    def handle_rows(self, rows: KclRows, now: Instant) -> None:
        """Handle the answer to ``ReadKclRows``."""
        assert isinstance(self._in_flight, ReadKclRows), "an answer needs a request"
        self._in_flight = None
        known = {row.worker: row.updated_at for row in self.rows.metrics}
        for row in rows.metrics:
            # A row that appears between two reads was written by a live worker.
            is_changed = self._has_looked and known.get(row.worker) != row.updated_at
            if is_changed and row.shardline is None and row.worker != self._me:
                self._workers[row.worker] = now
        self._handle_leader(rows.leader, now)
        self.rows, self._has_looked, self._is_denied = rows, True, False
        self._update_role(now)
        is_watched = self.role is not KclRole.ALONE or bool(self._owners) or rows.leader is not None
        self._look_at = now + (_LOOK_INTERVAL if is_watched else _LOOK_INTERVAL_ALONE)

    def handle_written(self, request: WriteMetrics | DeleteMetrics, now: Instant) -> None:
        assert self._in_flight == request, "an answer needs a request"
        self._in_flight = None
        if isinstance(request, DeleteMetrics):
            self._place = None
        else:
            self._write_at = now + METRICS_INTERVAL

    def handle_refused(self, shard_id: str) -> bool:
        """Handle a refused write. Return whether the write was a steal. If so, the worker has to plan again
        immediately.

        A KCL 2 worker that commits after each batch changes the row of a lease more often than we scan. So a steal is
        tried again with the row that the refusal returned, just as KCL 2 reads a row again before it steals the lease.
        """
        if shard_id != self._stolen:
            return False
        self._stolen, self._stole_at = None, -NEVER
        return True

    def handle_failed(self, request: KclRequest, failure: Failure, now: Instant) -> None:
        assert self._in_flight == request, "an answer needs a request"
        self._in_flight = None
        if isinstance(request, DeleteMetrics):
            self._place = None  # the KCL ignores the row after a minute
        elif isinstance(request, WriteMetrics):
            self._write_at = now + _LOOK_INTERVAL
        elif failure.kind is FailureKind.DENIED:
            if not self._is_denied:
                self._notes.append(
                    f"no KCL is assumed on the lease table, because reading its rows is denied: {failure}"
                )
            self._is_denied, self.rows = True, KclRows()
            self._look_at = now + _LOOK_INTERVAL_DENIED
            self._update_role(now)
        else:
            self._look_at = now + _LOOK_INTERVAL

    # ---- outputs, time

    def poll_request(self, service_time: float, now: Instant) -> KclRequest | None:
        """Return the next request for the rows of the KCL. ``service_time`` is in seconds since 1970."""
        if self._in_flight is not None:
            return None
        self._update_role(now)
        self._in_flight = self._next_request(service_time, now)
        return self._in_flight

    def _next_request(self, service_time: float, now: Instant) -> KclRequest | None:
        wanted = self._wanted_place
        if self._place not in {None, wanted}:
            assert self._place is not None
            return DeleteMetrics(self._me, self._place)
        if wanted is not None and now >= self._write_at:
            self._place = wanted
            can_share = wanted is MetricsPlace.LEASE_TABLE or any(row.can_share_table for row in self.rows.metrics)
            return WriteMetrics(self._me, int(service_time), wanted, can_share)
        return ReadKclRows() if now >= self._look_at and not self._is_closing else None

    def next_deadline(self) -> Instant:
        if self._in_flight is not None:
            return NEVER
        if self._place not in {None, self._wanted_place}:
            return -NEVER
        if self._is_closing:
            return NEVER
        return min(self._look_at, NEVER if self._wanted_place is None else self._write_at)

    def take_notes(self) -> list[str]:
        """Return messages for the log."""
        notes, self._notes = self._notes, []
        return notes

    # ---- KCL 2

    def take_by_kcl_2(
        self,
        leases: Sequence[ReadableLease],
        unreadable: Sequence[str | None],
        max_leases: int | None,
        rng: Chance,
        now: Instant,
    ) -> Assignment:
        """Return the leases to take or to steal, by the rules of KCL 2.

        Each worker takes available leases up to its share. If no lease is available, it steals one lease at a time from
        the worker with the most leases, at most once in two failover times.

        Args:
            leases: every lease whose shard can be read now.
            unreadable: the owners of the other leases, which the KCL counts too: their shards are finished, or have
                parents that are not finished.
            max_leases: the maximum number of leases for this worker.
            rng: shuffles leases that are otherwise equal.
            now: the current time.
        """
        owners = [*(lease.owner for lease in leases), *unreadable]
        loads = Counter(owner for owner in owners if owner is not None)
        mine = loads[self._me]
        loads[self._me] = mine
        share = -(-len(owners) // len(loads))
        room = math.inf if max_leases is None else max(0, max_leases - mine)
        available = sorted((lease for lease in leases if lease.owner is None), key=lambda _: rng.random())
        if available:
            old = [lease for lease in available if lease.available_for > _VERY_OLD * self._failover]
            most = max(share - mine, len(old))
            chosen = sorted(available, key=lambda lease: lease not in old)[: int(min(room, max(0, most)))]
            return Assignment([lease.shard_id for lease in chosen], [])
        most_loaded, load = max(loads.items(), key=lambda item: (item[1], item[0]))
        needs = min(room, share - mine)
        is_due = now - self._stole_at >= 2 * self._failover
        if not is_due or needs < 1 or not (load > share or (load == share and needs > 1)):
            return Assignment([], [])
        owned = [lease for lease in leases if lease.owner == most_loaded and not lease.in_hand_over]
        if not owned:
            return Assignment([], [])
        stolen = min(owned, key=lambda _: rng.random())
        self._stole_at, self._stolen = now, stolen.shard_id
        return Assignment([], [stolen])

    # ---- internal

    @property
    def _wanted_place(self) -> MetricsPlace | None:
        """Where our metrics row should be now."""
        is_member = self.role is KclRole.FOLLOWER or self.role is KclRole.TAKER
        if self._is_closing or not is_member or self.rows.client_version == _ROLLED_BACK:
            return None
        return metrics_place(self.rows, self._workers)

    def _handle_leader(self, leader: LeaderRow | None, now: Instant) -> None:
        known = self.rows.leader
        if leader is None or (known is not None and known.version == leader.version):
            return
        self._leader_seen_at = now
        if self._has_looked:
            self._leader_changed_at = now

    def _update_role(self, now: Instant) -> None:
        self._owners = _since(self._owners, now - longest_silence(self._failover))
        self._workers = _since(self._workers, now - _WORKER_SILENCE)
        role = self._find_role(now)
        if role is not self.role:
            leader = "" if self.rows.leader is None else f" (leader {self.rows.leader.worker!r})"
            self._notes.append(f"role on the KCL's lease table: {role.value}{leader}")
            self.role, self._write_at = role, now

    def _find_role(self, now: Instant) -> KclRole:
        if not self._has_looked or self._is_denied:
            return KclRole.ALONE
        has_leader = self.rows.leader is not None and not self.rows.leader.is_released
        is_led = has_leader and now - self._leader_changed_at < _LEADER_SILENCE
        if not (self._owners or self._workers or is_led):
            return KclRole.ALONE
        if self.rows.client_version in _KCL_2_RULES:
            return KclRole.TAKER
        # Owners renew their leases more often than the leader renews its lock. So a leader counts as alive until it was
        # silent for too long.
        is_watched = has_leader and now - self._leader_seen_at < _LEADER_SILENCE
        return KclRole.FOLLOWER if is_led or self._workers or is_watched else KclRole.TAKER


@final
class FleetMember(NamedTuple):
    """A worker on a lease table, as it is shown to people."""

    worker: str
    part: str
    """``"leader"``, ``"follower"``, or ``"worker"`` in a fleet without a leader."""
    version: str
    """The library that the worker runs, as far as the rows show."""


def fleet_members(rows: KclRows, leases: Iterable[Lease], service_time: float) -> list[FleetMember]:
    """Return the workers of a fleet with KCL workers, sorted. Without KCL workers, the list is empty.

    A metrics row that is too old belongs to a worker that has left, and so does the lock of a leader without a lease
    and without a metrics row. An owner of a lease counts as a worker. The counters of its leases show whether it is
    alive.

    Args:
        rows: the rows of the fleet.
        leases: the unfinished leases.
        service_time: the current time, in seconds since 1970.
    """
    versions: dict[str, str] = {}
    for row in rows.metrics:
        if service_time - row.updated_at <= METRICS_EXPIRY:
            kcl = "KCL 3.5 or later" if row.can_share_table else "KCL 3.0 to 3.4"
            versions[row.worker] = kcl if row.shardline is None else f"{_OURS} {row.shardline}"
    has_leader = rows.leader is not None and not rows.leader.is_released
    unknown = "KCL 3" if has_leader else "KCL 1 or 2"
    for lease in leases:
        holder = lease.holder
        if holder is not None:
            ours = lease.incarnation_of(holder) is not None
            versions.setdefault(holder, _OURS if ours else unknown)
    if all(version.startswith(_OURS) for version in versions.values()):
        return []
    leader = rows.leader.worker if rows.leader is not None and has_leader and rows.leader.worker in versions else None
    other = "worker" if leader is None else "follower"
    return [
        FleetMember(worker, "leader" if worker == leader else other, version)
        for worker, version in sorted(versions.items())
    ]


def _since(times: dict[str, Instant], earliest: Instant) -> dict[str, Instant]:
    return {name: at for name, at in times.items() if at > earliest}
