"""Checks C1 to C5, L1 to L6 and the end-to-end guarantees of a simulated fleet.

- C1 to C3, and that only the holder writes: at every write that the store applies (``see_write``).
- L3, and that no two users ever act on one shard: when a lease is gained and when records are handed out.
- End to end: every record that the stream accepted since the group's start was handled; the records of an ordered
  producer's key were first handed out in the order of their puts; nothing is left when the fleet is at rest.
"""

from producer_endpoint import BEGIN
from producer_oracles import check_effort, check_end
from producer_world import START

from shardline.core.clock import NEVER
from shardline.core.consumer.assignment import ReadableLease
from shardline.core.consumer.consumer_events import RecordsTrimmed
from shardline.core.consumer.load_assignment import weigh
from shardline.core.consumer.shard_load import load_of
from shardline.core.leases import (
    AskHandOver,
    CancelHandOver,
    CommitCheckpoint,
    CreateLease,
    DeleteLease,
    FinishHandOver,
    Refused,
    ReleaseLease,
    RenewLease,
    TakeLease,
)
from shardline.core.producer.producer_record import Undelivered
from shardline.model.position import PositionKind

_HOLDERS = (RenewLease, CommitCheckpoint, FinishHandOver, ReleaseLease)
SLACK = 1e-6


class Watch:
    """Observes everything that happens in a world."""

    def __init__(self, world, truth, reached):
        self.world = world
        self.truth = truth
        self.reached = reached
        self.holders = {}  # by shard: the worker that was given the lease, by our own account
        self.row_epochs = {}  # by shard: the life of the stream that its row belongs to
        self.makers = {}  # by shard: the worker that created its row at LATEST
        # For each row at LATEST: when it was created, by which worker, and the time that LATEST stands for.
        self.pins = []
        self.tokens = {}  # by shard: the last token that was given out, whatever the store has forgotten
        self.kept = {}  # by shard: the worker that kept the lease on exit, when, and for how long it is reserved
        self.takers = {}  # by shard: the process that took it last, by name and incarnation
        self.alarms = set()  # shards for which a loss was reported
        self.places = {}  # by shard: since when its reader had not read, and when its next page came
        self.unjudged = set()  # shards whose worker ended before it could learn of a loss by retention
        self.sought = set()  # the worker, the shard and the checkpoint of each seek, written or not
        self.was_shortened = False  # whether the retention was changed while a reader was behind

    # ---- the store's writes

    def see_write(self, worker_id, operation, row, answer, *, late=False):
        """Check a write. ``late`` means that the worker has abandoned the write, and may have learned more since."""
        shard_id = operation.shard_id
        self._note(worker_id, operation, row, answer)
        if isinstance(answer, Refused):
            self._note_refused(operation, row)
            return
        if isinstance(operation, _HOLDERS):
            assert self.holders.get(shard_id) == operation.by, f"L4: written by {operation.by}, who does not hold it"
            assert row.holder == operation.by, "L4"
            assert answer.counter == row.counter + 1, "the counter counts the writes"
        match operation:
            case CreateLease(lease):
                self._see_created(worker_id, lease, late=late)
            case TakeLease() if operation.incarnation.is_kept:
                self._see_kept(worker_id, operation, row)
            case TakeLease():
                self._see_taken(operation, row, answer, late=late)
            case AskHandOver():
                self.reached.add("steal: a lease asked for")
                self._see_asked(operation)
            case CancelHandOver():
                self.reached.add("a hand-over called off on exit")
            case FinishHandOver():
                self._check_committed(worker_id, row)
                self.reached.add("hand-over completed")
                self.holders[shard_id] = row.owner
            case ReleaseLease():
                if any(operation in worker.unread for worker in self.world.processes):
                    self.reached.add("handed over to one that leaves: let go of unread")
                self._check_committed(worker_id, row)
                self.holders[shard_id] = None
            case CommitCheckpoint(checkpoint=checkpoint):
                self._see_commit(row, checkpoint)
            case DeleteLease() if row is not None:
                self._see_deleted(row)

    def _note(self, worker_id, operation, row, answer):
        verdict = "refuses" if isinstance(answer, Refused) else "applies"
        more = [operation.checkpoint] if isinstance(operation, CommitCheckpoint) else []
        self.world.note(
            "store", verdict, type(operation).__name__, *more, "by", worker_id, operation.shard_id, "to", row
        )

    def _note_refused(self, operation, row):
        if row is None or not isinstance(operation, _HOLDERS) or row.holder == operation.by:
            return
        if isinstance(operation, CommitCheckpoint):
            self.reached.add("zombie commit refused")
        elif isinstance(operation, RenewLease):
            self.reached.add("zombie renewal refused")

    def _see_created(self, worker_id, lease, *, late):
        shard_id, known = lease.shard_id, self.truth.shards.get(lease.shard_id)
        self.holders[shard_id] = None
        self.row_epochs[shard_id] = self.truth.epoch
        if known is None:
            return
        begin = lease.checkpoint.position
        starts_at = begin.timestamp if begin.kind is PositionKind.AT_TIMESTAMP else lease.latest_at
        assert (begin.kind is PositionKind.LATEST) == (lease.latest_at is not None), "L6: LATEST is pinned"
        if begin.kind is PositionKind.LATEST:
            younger = [self.truth.shards[one] for one in self.truth.descendants(shard_id)]
            # Two workers begin a group, with listings from before and after a reshard (docs/tested/simulation.md).
            is_race = any(one.ever_rowed and self.makers.get(one.shard_id) != worker_id for one in younger)
            known.rowed_late = is_race or (late and any(one.first_delivered for one in younger))
            self.makers[shard_id] = worker_id
            self._see_pinned(worker_id, lease, late=late)
        if known.starts_at is None:
            known.starts_at = 0.0 if starts_at is None else starts_at
            known.ever_rowed = True
        else:
            again = "a row is made again, and what was read under it is not done"
            assert self.truth.epoch or not self.truth.undone(known), again
            known.starts_at = 0.0 if starts_at is None else starts_at
            known.committed, known.finished, known.checked = None, False, 0

    def _see_pinned(self, worker_id, lease, *, late):
        """Check L6: a group begins once. A worker that creates a row starts it no later than the rows that it has seen."""
        if self.truth.epoch:
            return
        named = [one for one in self.world.processes if one.name == worker_id]
        worker = named[0] if len(named) == 1 else None
        if worker is not None and not late:
            scanned_at = worker.clock.world_time(worker.machine._rows_sent_at)
            seen = [(maker, since) for at, maker, since in self.pins if at < scanned_at]
            begun_at = min((since for _, since in seen), default=lease.latest_at)
            assert lease.latest_at <= begun_at, f"L6: the group began at {begun_at}, not at {lease.latest_at}"
            if any(maker != worker_id and since < worker.latest_at for maker, since in seen):
                self.reached.add("a group at LATEST begun in part, and completed by one that came later")
        self.pins.append((self.world.now, worker_id, lease.latest_at))
        if len(self.pins) == 1:
            self.world.handle_begun(worker_id)

    def _see_asked(self, operation):
        """Note a request that the numbers of leases do not explain."""
        owners = [row.owner for row in self.world.store.rows.values() if not row.checkpoint.is_finished]
        # The row names the asking worker by now.
        is_even = owners.count(operation.owner) + 1 < owners.count(operation.by) - 1 + 2
        if self.world.fleet.config.assign_by == "load" and is_even:
            self.reached.add("a lease moved because of its load")

    def _see_kept(self, worker_id, operation, row):
        """A worker has exited, and keeps its lease for its restart."""
        assert self.holders.get(row.shard_id) == operation.by == row.holder, "L4: kept by one that does not hold it"
        self._check_committed(worker_id, row)
        self.tokens[row.shard_id] = operation.token
        self.kept[row.shard_id] = (operation.by, self.world.now, operation.incarnation.lease_duration)
        self.reached.add("a lease kept on exit")

    def _check_kept(self, operation, row):
        """Check that a kept lease waits for its worker, as long as the worker's lease duration."""
        name, at, duration = self.kept.pop(row.shard_id, (None, 0.0, 0.0))
        if name is None or not row.is_kept_by(name) or self.world.store.is_forgetful or self.truth.epoch:
            return
        if operation.by == name:
            self.reached.add("a kept lease taken by its restarted worker")
            return
        drift = max(abs(plan.drift) for plan in self.world.fleet.workers)
        waited = self.world.now - at
        assert waited >= duration * (1.0 - 2 * drift) - SLACK, f"{row.shard_id} was kept for {name}, only {waited} s"
        self.reached.add("a kept lease taken by another worker in the end")

    def _see_taken(self, operation, row, answer, *, late):
        by, shard_id = operation.by, row.shard_id
        self._check_kept(operation, row)
        last = self.tokens.get(shard_id, 0)
        # A take that was sent before the store lost its rows may fit a row that was created again afterwards.
        is_from_before = late and self.world.store.set_back_at is not None
        assert answer.counter > last or is_from_before, (
            f"{shard_id} was given out with the token {last}, and now {answer.counter}"
        )
        self.tokens[shard_id] = answer.counter
        if row.counter < last:
            self.reached.add("a token above one that the store has forgotten")
        self._check_lapsed(operation, row)
        taker, before = (by, operation.incarnation.id), self.takers.get(shard_id)
        if before is not None and before[0] == by and before != taker and row.holder == by:
            self.reached.add("a process took what another of its name had left")
        self.takers[shard_id] = taker
        if row.holder not in {None, by}:
            self.reached.add("an expired lease taken")
        if row.owner == by and row.checkpoint_owner is None:
            self.reached.add("a take whose answer was lost was completed")
        self.holders[row.shard_id] = by

    def _check_lapsed(self, operation, row):
        """Check that no lease is taken from a live worker that renews within its own lease duration.

        Exceptions: a worker that was asked for the lease and had its time, and a store that was set back and names
        another.
        """
        if row.checkpoint_owner is not None or row.holder is None or self.world.store.is_forgetful or self.truth.epoch:
            return
        for other in self.world.processes:
            holding = other.machine.held.holdings.get(row.shard_id)
            if holding is None or other.incarnation == operation.incarnation.id:
                continue
            now = other.clock.read(self.world.now) + 2 * abs(other.clock.drift) * other.config.lease_duration + SLACK
            assert not holding.grant.in_force(now), f"{row.shard_id} is taken from {other.name}, which is alive"
        stated = row.incarnation_of(row.holder)
        if stated is not None and stated.lease_duration != operation.incarnation.lease_duration:
            self.reached.add("a dead worker of another lease duration replaced")

    def see_set_back(self, before, after):
        """Adjust to a store that has lost its last writes: from now on, only the remaining rows count."""
        self.holders = {shard_id: row.holder for shard_id, row in after.items()}
        for shard_id in before.keys() | after.keys():
            known, row = self.truth.shards.get(shard_id), after.get(shard_id)
            if known is None:
                continue
            number = None if row is None else row.checkpoint.sequence_number
            known.committed = None if number is None else (number.number, number.sub_sequence)
            known.finished = row is not None and row.checkpoint.is_finished
            known.checked = 0
            if row is None:
                known.starts_at = None

    def _check_committed(self, worker_id, row):
        """Check that a worker that releases a lease has committed the records that its user has finished."""
        if self.world.store.set_back_at is not None:
            return  # the store may have forgotten the commit
        named = [worker.machine.held.holdings for worker in self.world.processes if worker.name == worker_id]
        found = [holdings[row.shard_id] for holdings in named if row.shard_id in holdings]
        # Two workers may share a name. The one with the newest token has the lease.
        holding = max(found, key=lambda one: one.grant.token, default=None)
        if holding is not None and holding.tracker.watermark is not None and not holding.tracker.is_replaced:
            at = row.checkpoint.sequence_number
            assert at is not None, (
                "letting go (hand-over, exit) commits first what is acknowledged, and then gives the lease away"
            )
            assert at >= holding.tracker.watermark, "let go of before it was committed"

    def _see_deleted(self, row):
        self.reached.add("rows deleted")
        self.holders.pop(row.shard_id, None)
        known = self.truth.shards.get(row.shard_id)
        if known is not None and not self.truth.epoch and not known.is_gone:
            assert row.checkpoint.is_finished, "a row that is not finished was deleted"

    def _see_commit(self, row, checkpoint):
        shard_id = row.shard_id
        known = self.truth.shards.get(shard_id)
        if known is None or self.row_epochs[shard_id] != self.truth.epoch:
            return  # belongs to a deleted stream
        assert not known.finished, "C3: nothing comes after SHARD_END"
        if checkpoint.is_finished:
            self._see_end(known)
            ends = [one.machine for one in self.world.processes if one.name == row.holder]
            known.given_up = any(one.topology.graph.is_trimmed(shard_id) for one in ends)
            return
        number = checkpoint.sequence_number
        place = None if number is None else (number.number, number.sub_sequence)
        if (row.holder, shard_id, checkpoint) in self.sought:
            if known.committed is not None and (place is None or place < known.committed):
                self.reached.add("a checkpoint went back by a seek")
            known.committed = place
            known.highest = max(place or (0, 0), known.highest or (0, 0))
            return
        assert place is not None, "C1: a checkpoint went back to a position without a record"
        assert known.committed is None or known.committed < place, "C1: a checkpoint went back"
        known.committed = place
        known.highest = place if known.highest is None else max(known.highest, place)
        known.first_committed = known.first_committed or place
        while known.checked < len(known.places) and known.places[known.checked] <= place:
            self._check_done(known, known.places[known.checked])
            known.checked += 1

    def _check_done(self, known, place):
        if not known.is_required(place) or self.truth.is_done(known, place):
            return
        self.world.service.advance(self.world.time)  # it may have been trimmed since the worker read it
        if known.is_required(place):
            raise AssertionError(f"C2: committed beyond {place} of {known.shard_id}, which is not done")

    def _see_end(self, known):
        assert not known.is_open, "C3: SHARD_END of an open shard"
        for place in known.places[known.checked :]:
            self._check_done(known, place)
        self.world.service.advance(self.world.time)  # the shard may have been trimmed since its worker listed it
        for child in [] if known.is_gone else known.children:
            family = {child, *self.truth.descendants(child)}
            assert any(self.truth.shards[one].ever_rowed for one in family), "L3: children have rows before SHARD_END"
            self.reached.add("children's rows before SHARD_END")
        known.finished = True
        self.reached.add("SHARD_END committed last" if known.places else "an empty shard ended")

    # ---- leases and users

    def check_gained(self, worker, shard_id, checkpoint):
        """Check L3: a shard is read only when all of its ancestors are done."""
        is_pinned = checkpoint.position.kind is PositionKind.LATEST
        if is_pinned and self.makers.get(shard_id, worker.name) != worker.name:
            self.reached.add("LATEST pinned, and read by another than its maker")
        if shard_id not in self.truth.shards:
            return
        for ancestor in self.truth.ancestors(shard_id):
            known = self.truth.shards[ancestor]
            assert not known.is_open
            undone = [] if known.rowed_late else self.truth.undone(known)
            assert not undone, f"L3: {shard_id} is read, and of {ancestor} {len(undone)} are not done"
        self._note_resumed(shard_id, checkpoint)

    def _note_resumed(self, shard_id, checkpoint):
        number = checkpoint.sequence_number
        if number is not None:
            stored = self.truth.shards[shard_id].records.get((number.number, number.sub_sequence))
            if stored is not None and number.sub_sequence + 1 < stored.size:
                self.reached.add("resumed inside an aggregate")

    def check_alone(self, worker, shard_id):
        """Check L2: of all users that have records of a shard, at most one may act at any true time, by its own clock.

        This is not checked while a re-created stream is taken over: rows of the old stream are deleted while workers
        hold them.
        """
        if self.truth.epoch or self.world.store.is_forgetful:
            return
        for other in self.world.processes:
            held = None if other is worker else other.held_shard(shard_id)
            if held is None or not other.has_records(held):
                continue
            drift = (abs(worker.clock.drift) + abs(other.clock.drift)) * self.world.fleet.longest_lease
            assert not held.grant.in_force(other.clock.read(self.world.now) + drift + SLACK), (
                f"L2: {worker.name} and {other.name} both act on {shard_id}"
            )

    # ---- retention

    def see_retention(self, *, is_shorter):
        """An operator changed the retention while a worker lags behind. A worker that learns of a raised retention knows
        only what the old one had removed when it was last seen.
        """
        readers = [one.reader for worker in self.world.live for one in worker.hand_out.shards.values()]
        self.was_shortened |= is_shorter and any(reader.lag for reader in readers)
        if not is_shorter:
            self.unjudged.update(known.shard_id for known in self.truth.shards.values() if self._find_missed(known))

    def see_page(self, shard_id, unread_since):
        """Note a page for a reader that had read all records that arrived before ``unread_since``."""
        if self.world.fleet.retention is None:
            return
        self.places.setdefault(shard_id, []).append((unread_since - START, self.world.time))
        service, behind = self.world.service, self.world.now - unread_since
        is_safe = unread_since - START > service.horizon_at(self.world.time)
        if is_safe and any(behind > seconds for _, seconds in service.retentions):
            self.reached.add("retention raised under a reader that lags: nothing was lost")

    def see_trimmed(self, shard_id, *, is_closing):
        """Check that a loss is reported only if retention has passed the place of a reader: before its next page came,
        or between that page and the summary that shows the loss.
        """
        service, is_possible = self.world.service, False
        # A worker that closes, or that may not read summaries any more, goes by the last retention that it knows, even if
        # it was raised.
        is_denied = is_closing or "denied" in self.world.fleet.summary_faults
        for unread_since, came_at in self.places.get(shard_id, ()):
            known = [seconds for until, seconds in service.retentions if until >= came_at or is_denied]
            shortest = min([service.retention, *known])
            slack = SLACK + self.world.fleet.largest_drift * (came_at - unread_since)
            is_possible |= unread_since < max(service.horizon_at(came_at), came_at - shortest) + slack
        assert is_possible, f"nothing of {shard_id} can have been removed unread"
        self.reached.add("trimmed between two pages")
        if self.was_shortened:
            self.reached.add("retention shortened under a reader that lags: told")
        self.alarms.add(shard_id)

    def see_position_lost(self, shard_id, event, done):
        """Check a lost position: its record is gone, or the service refuses to read from there."""
        known = self.truth.shards.get(shard_id)
        if isinstance(event, RecordsTrimmed) and known is not None and not self.truth.epoch:
            self.world.service.advance(self.world.time)
            assert known.is_trimmed((done.number, done.sub_sequence)), "the record of the checkpoint is there"
        self.alarms.add(shard_id)

    def excuse(self, trims):
        """A worker ends: the gaps that it has not yet checked against a newer summary are never checked."""
        self.unjudged.update(gap.shard_id for gap in trims._gaps)

    # ---- in the end

    def find_unrest(self):
        """Return why the world is not at rest, or ``None`` if it is."""
        world = self.world
        for shell in world.shells:
            if shell.machine.intake.outstanding or shell.queue:
                return f"producer {shell.number} has records"
        if world.has_stopped:
            return None
        if world.service.is_changing:
            return "the stream is being changed"
        if any(worker.machine.trims._gaps for worker in world.live):
            return "gaps are not judged"
        for known in self.truth.shards.values():
            if known.is_gone:
                # A worker believes that a shard is gone only after two listings, a second apart.
                if world.fleet.retention is not None and self._count_untold(known):
                    return f"{known.shard_id} is gone, and nobody has said so"
                continue
            self._adopt(known)
            undone = self.truth.undone(known)
            if undone:
                return f"{len(undone)} records of {known.shard_id} are not done, from {undone[0]}"
            reason = self._find_uncommitted(known)
            if reason is not None:
                return reason
        unrest = [worker.books.find_unrest() for worker in world.live]
        return next(filter(None, unrest), None) or self._find_unbalanced()

    def _adopt(self, known):
        """A row that outlived its stream, and fits the re-created one, counts as a row of the new stream."""
        row = self.world.store.rows.get(known.shard_id)
        if row is not None and known.starts_at is None:
            known.starts_at = row.latest_at or row.checkpoint.position.timestamp or self._start_time()
            known.ever_rowed = True

    def _start_time(self):
        """Return the group's start time, for rows that no longer have it."""
        fleet = self.world.fleet
        return BEGIN + fleet.start_back if fleet.start == "AT_TIMESTAMP" else 0.0

    def _find_uncommitted(self, known):
        row = self.world.store.rows.get(known.shard_id)
        family = {known.shard_id, *self.truth.descendants(known.shard_id)}
        if row is None:
            if known.is_open or not any(one in self.world.store.rows for one in family):
                return f"{known.shard_id} has no row"
            return None
        if not known.is_open:
            return None if row.checkpoint.is_finished else f"{known.shard_id} is closed, and not finished"
        required = known.required
        if required:
            if row.checkpoint.sequence_number is None:
                return f"{known.shard_id} has no checkpoint"
            at = row.checkpoint.sequence_number
            last = max((place for place in required if not self._is_dropped(known, place)), default=None)
            if last is not None and (at.number, at.sub_sequence) < last:
                return f"{known.shard_id} is committed to {at}, not to {last}"
        live = {worker.name for worker in self.world.live}
        return None if row.holder in live else f"{known.shard_id} is held by {row.holder}"

    def _is_dropped(self, known, place):
        return self.truth.drops and not known.records[place].in_range

    def _find_unbalanced(self):
        if self.world.fleet.has_twins:
            return None  # they count as one worker, and neither asks the other for leases
        live = self.world.live
        # A worker renews three times per lease duration. One with a much shorter duration believes it dead in between.
        durations = [worker.config.lease_duration for worker in live]
        if max(durations, default=0.0) / 3 >= min(durations, default=1.0):
            return None
        if self.world.fleet.config.assign_by == "load":
            return self._find_overloaded()
        loads = [
            sum(len(part.machine.held.holdings) for part in worker.parts)
            for worker in live
            if worker.plan.max_leases is None
        ]
        if loads and max(loads) - min(loads) > 1:
            return f"unbalanced: {loads}"
        return None

    def _find_overloaded(self):
        """With ``assign_by="load"``: no load is above the mean plus the largest lease, by the loads in the rows. Workers
        with ``max_leases`` are left out. Without their part, the others come close to their mean only by a fifth.
        """
        rows = [row for row in self.world.store.rows.values() if not row.checkpoint.is_finished]
        rows = [ReadableLease(row.shard_id, row.owner, load=load_of(row)) for row in rows]
        if all(row.load is None for row in rows):
            return None
        rows = weigh(rows)
        free = [worker.name for worker in self.world.live if worker.plan.max_leases is None]
        loads = [sum(row.load for row in rows if row.owner == name) for name in free]
        largest = max(row.load for row in rows)
        slack = 1.0 + SLACK if len(free) == len(self.world.live) else 1.25
        if loads and max(loads) > slack * (sum(loads) / len(loads) + largest):
            return f"the loads are unbalanced: {loads}"
        return None

    def check_end(self):
        world, fleet = self.world, self.world.fleet
        for shell in world.shells:
            if fleet.retention is None and fleet.recreated_at is None:
                # The world may end before the deadline of records that were sent early, in a full request: let it pass.
                if shell.machine._due_at < NEVER:
                    shell.now = max(shell.now, shell.machine._due_at)
                    shell.pump()
                check_end(shell)
            else:
                assert shell.machine.intake.outstanding == 0, "P1"
                check_effort(shell)
        if world.has_stopped:
            return
        for known in self.truth.shards.values():
            assert known.is_gone or known.ever_rowed or self._is_before_start(known), f"{known.shard_id} was never read"
        if fleet.retention is not None:
            self._check_alarms()
        elif fleet.recreated_at is None:
            self._check_receipts()
        for shell in world.shells:
            is_ordered = shell.config.ordered and fleet.user.order != "none"
            if is_ordered and fleet.retention is None and fleet.recreated_at is None:
                self._check_order(shell)

    def _is_before_start(self, known):
        """Return whether the shard was closed before the group began, or is an ancestor of a shard with which the group
        began. Records that arrived in it since then would be skipped.
        """
        family = self.truth.descendants(known.shard_id)
        begun_at = BEGIN + self.pins[0][0] - START if self.pins and not self.truth.epoch else float("inf")
        is_needed = any(stored.arrived_at > begun_at for stored in known.records.values())
        return not known.is_open and not is_needed and any(self.truth.shards[one].ever_rowed for one in family)

    def _check_alarms(self):
        """Records that retention removed unread are reported where a worker could know: after a checkpoint, before a record
        that came later, or with the whole shard.
        """
        for known in self.truth.shards.values():
            untold = self._count_untold(known)
            assert not untold, f"{untold} records of {known.shard_id} were lost in silence"

    def _count_untold(self, known):
        """How many records retention removed unread, where a worker could know, without a report.

        A worker that may not request the stream's retention sees only that a shard is gone.
        """
        if self.world.fleet.summary_faults.get("denied") and not known.is_gone:
            return 0
        was_read = known.finished and not known.given_up
        if known.first_committed is None or was_read or known.shard_id in self.alarms | self.unjudged:
            return 0
        missed = self._find_missed(known)
        # With ``concurrency``, a record may be handled before earlier ones of the same page. So a handled record does not
        # show that a page after the gap was read; a checkpoint does.
        is_in_order = self.world.fleet.user.concurrency is None
        reached = max(known.first_delivered, default=None) if is_in_order else known.highest
        return len(missed) if missed and (known.is_gone or (reached is not None and reached > missed[0])) else 0

    def _find_missed(self, known):
        """The records that retention removed after the first checkpoint, and that no worker has seen."""
        seen, first = known.done | known.first_delivered.keys(), known.first_committed
        later = [place for place in known.places if first is not None and place > first and known.is_trimmed(place)]
        return [place for place in later if place not in seen and not self.truth.is_done(known, place)]

    def _check_receipts(self):
        """Check that every record with a receipt was handed to the group, and handled."""
        for shell in self.world.shells:
            for given in shell.given:
                if type(given.record.ending) is Undelivered:
                    continue
                result = given.record.conclusion
                known = self.truth.shards[result.shard_id]
                place = (int(result.sequence_number), result.sub_sequence)
                assert known.records[place].data == given.data
                if known.starts_at is not None and known.is_required(place):
                    assert self.truth.is_done(known, place), f"{given.data[:20]!r} has a receipt, and nobody handled it"
                    was_seen = self.truth.was_delivered(given.data) or self.truth.is_filtered(given.data)
                    assert was_seen, "handled, and never handed out"

    def _check_order(self, shell):
        """Check P9, L3 and the order within a shard: the records of a key are first delivered in the order of their
        puts.

        A worker that begins a group at LATEST and dies may leave a write that arrives after another worker has begun
        the group again, after a reshard. Its shard is then read late, but nothing is skipped. A seek may bring records
        from before the group's start, after later ones.
        """
        last = {}
        for given in shell.given:
            first = self.truth.first_by_data.get(given.data)
            if first is None or given.key is None or type(given.record.ending) is Undelivered:
                continue
            result = given.record.conclusion
            known = self.truth.shards[result.shard_id]
            if known.rowed_late or known.is_from_before_start((int(result.sequence_number), result.sub_sequence)):
                continue
            before = last.get(given.key)
            assert before is None or before < first, (
                f"{given.data[:20]!r} was handed out before one that was put earlier"
            )
            last[given.key] = first
        if self.world.service.changes and len(self.truth.shards) > self.world.fleet.producing.shards and last:
            self.reached.add("ordered keys through a reshard")
