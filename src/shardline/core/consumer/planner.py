"""Plans the writes that the state of the fleet requires.

The planner derives a plan from the rows, the topology and the held leases. The plan contains the rows to create, the
leases to take or to ask for, and the rows to delete. A new plan is made after every scan and listing. It replaces the
previous plan, whose unsent operations are dropped.

Invariants:

- A plan contains at most one operation per shard, and no operation for a shard whose lease we hold.
- A lease is taken or asked for only if its shard may be read (L3): the shard is not finished, and all its parents are
  finished.
- If a row names us as its owner although we do not hold the lease, we may take the lease immediately: the response to a
  write that takes the lease or hands it over was lost, or the hand-over has ended. If another process took the lease
  under our worker_id, it belongs to that process (``DuplicateWorkers``).
- A lease that its owner kept when it exited is not asked for. It becomes available after the owner's lease duration.
- If a hand-over that we asked for has not ended long after its timeout, we take the lease. The old owner had enough
  time, and its writes are fenced.
- A row is deleted when it has not changed for 30 lease durations (5 minutes, as with the KCL). A slow worker may be
  about to create the row from an older listing. While the row exists, the store refuses this creation. If the row were
  deleted too early, the slow worker would create it again.
"""

from collections.abc import Collection, Mapping
from typing import Final, TypeAlias, final

from shardline.core.backoff import Chance
from shardline.core.clock import Instant
from shardline.core.consumer.assignment import Assignment, ReadableLease, assign, is_uneven
from shardline.core.consumer.duplicate_workers import DuplicateWorkers
from shardline.core.consumer.group_rows import GroupStart, child_rows, deletable_rows, missing_rows
from shardline.core.consumer.kcl_fleet import KclFleet, KclRole
from shardline.core.consumer.lease_view import LeaseView
from shardline.core.consumer.load_assignment import LoadBalancer
from shardline.core.consumer.scan_pace import ScanPace
from shardline.core.consumer.shard_graph import ShardGraph
from shardline.core.consumer.shard_load import load_of
from shardline.core.consumer.stream_shares import KnownLeases
from shardline.core.consumer.token_floor import TokenFloor
from shardline.core.leases import AskHandOver, CreateLease, DeleteLease, LeaseOperation, TakeLease
from shardline.model.lease import Lease

PlannedOperation: TypeAlias = CreateLease | TakeLease | AskHandOver | DeleteLease

DELETE_AFTER_LEASES: Final = 30
_SPILL_SCANS: Final = 3  # for how many scans an available lease is reserved for its planned taker
_PATIENCE_SCANS: Final = 20  # for how many scans a worker leaves surplus leases to workers with fewer leases
_NONE_KNOWN: Final = KnownLeases()


@final
class Planner:
    """Plans one worker's writes to leases that the worker does not hold."""

    def __init__(
        self,
        view: LeaseView,
        graph: ShardGraph,
        *,
        duplicates: DuplicateWorkers,
        tokens: TokenFloor,
        max_leases: int | None,
        hand_over_timeout: float,
        scan_pace: ScanPace,
        rng: Chance,
        kcl: KclFleet | None = None,
        balancer: LoadBalancer | None = None,
        stream: str = "",
    ) -> None:
        self.view: LeaseView = view
        self.graph: ShardGraph = graph
        self._me: str = duplicates.me.owner
        self._duplicates: DuplicateWorkers = duplicates
        self._tokens: TokenFloor = tokens
        self._max_leases: int | None = max_leases
        self._hand_over_timeout: float = hand_over_timeout
        self._scan_pace: ScanPace = scan_pace
        self._rng: Chance = rng
        self._kcl: KclFleet | None = kcl
        self._balancer: LoadBalancer | None = balancer
        self._stream: str = stream
        self._uneven_since: Instant | None = None
        self._handed_over_since: dict[str, Instant] = {}  # when we first saw each hand-over to us

    def limit_leases(self, max_leases: int | None) -> None:
        """Change the maximum number of leases for this worker. The next plan respects it."""
        self._max_leases = max_leases

    def plan(
        self,
        held: Collection[str],
        ending: Collection[str],
        start: GroupStart,
        now: Instant,
        others: KnownLeases = _NONE_KNOWN,
    ) -> list[PlannedOperation]:
        """Return the rows to create, and the leases to take or to ask for.

        Args:
            held: the shards whose leases we hold.
            ending: the held shards that were read to their end. Their children need rows.
            start: where a new group starts.
            now: the current time.
            others: the leases of the worker's other streams.
        """
        rows = self.view.rows
        # If the graph is older than the rows, a shard without a row may only look new. Then create rows after the next
        # listing.
        known = missing_rows(self.graph, rows, start) if self.graph.covers(rows) else []
        new = {lease.shard_id: lease for lease in known}
        for shard_id in ending:
            for lease in child_rows(self.graph, shard_id, rows):
                new.setdefault(lease.shard_id, lease)
        return [*map(CreateLease, new.values()), *self._leases_to_get(held, now, others)]

    def known_leases(
        self,
        held: Collection[str],
        coming: Mapping[str, LeaseOperation],
        asked: Collection[str],
        now: Instant,
    ) -> KnownLeases:
        """Return the leases of this stream, for the plans of the worker's other streams.

        Args:
            held: the shards whose leases we hold.
            coming: the operations that are planned or in flight, by shard.
            asked: the shards whose leases we have asked for since the last scan.
            now: the current time.
        """
        leases: list[ReadableLease] = []
        rows = self.view.rows
        for row in rows.values():
            if self.graph.is_readable(row.shard_id, rows):
                lease, operation = self._readable_lease(row, held, now), coming.get(row.shard_id)
                if self._balancer is not None:
                    lease = self._weigh(lease)
                if isinstance(operation, TakeLease):
                    lease = lease._replace(owner=self._me)
                elif isinstance(operation, AskHandOver) or row.shard_id in asked:
                    lease = lease._replace(owner=self._me, in_hand_over=True, is_asked=True)
                leases.append(lease)
        readable = sum(lease.shard_id in held for lease in leases)
        return KnownLeases(leases, len(held) - readable)

    def plan_deletions(self, held: Collection[str], now: Instant) -> list[PlannedOperation]:
        """Return deletions of the rows that no worker needs any more."""
        quiet = DELETE_AFTER_LEASES * self._duplicates.me.lease_duration
        return [
            DeleteLease(row.shard_id, row.counter)
            for row in deletable_rows(self.graph, self.view.rows)
            if row.shard_id not in held and self.view.age(row.shard_id, now) > quiet
        ]

    def _leases_to_get(self, held: Collection[str], now: Instant, others: KnownLeases) -> list[PlannedOperation]:
        rows, me = self.view.rows, self._me
        if all(row.owner == me and row.shard_id in held for row in rows.values()):
            # There is nothing to get. This is worth a check, because a worker that is alone plans after each scan.
            self._handed_over_since, self._uneven_since = {}, None
            return []
        readable = [row for row in rows.values() if self.graph.is_readable(row.shard_id, rows)]
        leases = [self._readable_lease(row, held, now) for row in readable]
        ours = self._ours(readable, held, now)
        most = self._max_leases
        if most is not None:
            # The row of a parent may appear after its child was taken. The child is not readable then, but it counts:
            # if it did not, the parent would be taken, released as surplus, and taken again without end.
            most -= len(held) - sum(row.shard_id in held for row in readable) + others.unreadable
        assignment = self._assign(leases, [*leases, *others.readable], most, held, now)
        # A lease may be in both lists, but a plan contains only one operation per shard.
        takes = dict.fromkeys([*ours, *assignment.take])
        operations: list[PlannedOperation] = [self._take(rows[shard_id], now) for shard_id in takes]
        for lease in assignment.ask:
            if lease.owner is not None and self._can_ask(rows[lease.shard_id]):
                operations.append(AskHandOver(lease.shard_id, me, lease.owner))
            elif self._kcl is not None and self._kcl.role is KclRole.TAKER:
                operations.append(self._take(rows[lease.shard_id], now))  # KCL 2 workers steal, and hand nothing over
        return operations

    def _assign(
        self,
        leases: list[ReadableLease],
        everywhere: list[ReadableLease],
        most: int | None,
        held: Collection[str],
        now: Instant,
    ) -> Assignment:
        """Return the leases to get. ``everywhere`` contains the leases of all streams of the worker."""
        kcl = self._kcl
        if kcl is not None and kcl.role is KclRole.TAKER:
            readable = {lease.shard_id for lease in leases}
            others = [row for row in self.view.rows.values() if row.shard_id not in readable]
            owners = [None if self.view.is_expired(row.shard_id, now) else row.owner for row in others]
            return kcl.take_by_kcl_2(leases, owners, most, self._rng, now)
        if kcl is not None and kcl.role is KclRole.FOLLOWER:
            # The leader assigns the leases. The available leases that it should have assigned long ago are dealt out
            # among our workers, as if the KCL workers did not exist.
            ours = [lease for lease in leases if lease.owner is not None and self._is_ours(lease, held)]
            overdue = [lease for lease in leases if lease.owner is None and kcl.is_overdue(lease.available_for)]
            if not overdue:
                return Assignment([], [])
            everywhere = ours + overdue
        spill_after = _SPILL_SCANS * self._scan_pace.interval(len(self.view.rows))
        if self._balancer is not None and (kcl is None or kcl.role is KclRole.ALONE):
            own = {lease.shard_id: self._weigh(lease) for lease in leases}
            weighed = [*own.values(), *(lease for lease in everywhere if lease.stream != self._stream)]
            if any(lease.load is not None for lease in weighed):
                return self._balancer.assign(weighed, most, now, spill_after=spill_after, stream=self._stream)
        impatient = self._is_impatient(everywhere, now)
        me, stream = self._me, self._stream
        return assign(everywhere, me, most, self._rng, spill_after=spill_after, impatient=impatient, stream=stream)

    def _weigh(self, lease: ReadableLease) -> ReadableLease:
        """Return the lease with its load. A lease that its owner would not hand over counts, but is left out of the
        moves, like a lease that is being handed over.
        """
        row = self.view.rows[lease.shard_id]
        return lease._replace(load=load_of(row), in_hand_over=lease.in_hand_over or not self._can_ask(row))

    def _is_ours(self, lease: ReadableLease, held: Collection[str]) -> bool:
        """Return whether the owner of a lease runs this library, not the KCL."""
        return lease.shard_id in held or self.view.rows[lease.shard_id].incarnation_of(lease.owner) is not None

    def _can_ask(self, row: Lease) -> bool:
        """Return whether the owner would hand the lease over if we asked. A KCL owner is only asked if its rows are
        ignored: otherwise it is either dead, or its fleet decides who gets the lease. An owner that has exited, and has
        kept the lease for its restart, would not answer.
        """
        if row.owner is not None and row.is_kept_by(row.owner):
            return False
        return self._kcl is None or self._kcl.asks_kcl_owners or row.incarnation_of(row.owner) is not None

    def _take(self, row: Lease, now: Instant) -> TakeLease:
        floor = self._tokens.floor(row.shard_id, now)
        return TakeLease(row.shard_id, self._me, row.fence, self._duplicates.me, floor)

    def _readable_lease(self, row: Lease, held: Collection[str], now: Instant) -> ReadableLease:
        shard_id, owner = row.shard_id, row.owner
        if shard_id in held:
            owner = owner or self._me  # the row may be older than our take
        elif not self._duplicates.is_ours(row) and self.view.is_available(row, now):
            return ReadableLease(shard_id, None, self.view.available_for(shard_id, now), stream=self._stream)
        return ReadableLease(shard_id, owner, in_hand_over=row.checkpoint_owner is not None, stream=self._stream)

    def _ours(self, readable: list[Lease], held: Collection[str], now: Instant) -> list[str]:
        """Return the leases that we may take immediately, because their rows name us as the owner."""
        found: list[str] = []
        since: dict[str, Instant] = {}  # rebuilt each time, so hand-overs that have ended are forgotten
        for row in readable:
            shard_id = row.shard_id
            if row.owner != self._me or shard_id in held:
                continue
            # The holder is dead: the old owner in a hand-over to us, or an earlier process under our name.
            if self.view.is_available(row, now):
                found.append(shard_id)
            elif row.checkpoint_owner is not None:
                # The hand-over is in progress. If the old owner is still not done long after its time, take the lease
                # from it.
                since[shard_id] = self._handed_over_since.get(shard_id, now)
                if now - since[shard_id] > self._hand_over_timeout + self.view.duration_of(row):
                    found.append(shard_id)
            elif self._duplicates.is_ours(row):
                found.append(shard_id)
        self._handed_over_since = since
        return found

    def _is_impatient(self, leases: list[ReadableLease], now: Instant) -> bool:
        """Return whether the fleet has been uneven for so long that the workers with fewer leases seem unable to take
        more.
        """
        if not is_uneven(leases, self._me):
            self._uneven_since = None
            return False
        if self._uneven_since is None:
            self._uneven_since = now
        if now - self._uneven_since <= _PATIENCE_SCANS * self._scan_pace.interval(len(self.view.rows)):
            return False
        # Claim the surplus once. The other workers then get the same time again before the next claim.
        self._uneven_since = now
        return True
