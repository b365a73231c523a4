"""The calls with which the user's code of one simulated worker controls its consumer. What does each of them promise?

- When a commit is over, the store has at least the position that was done when the host got the request, or the request
  names the shard as lost.
- After a pause, no record of a paused shard is handed out until it is resumed, and no bound ends the run.
- Once ``max_leases`` has changed, the worker keeps at most this many leases. It releases the others.
- A seek is the only write with which a checkpoint goes back (``Watch`` checks this). The user seeks only positions that
  were done, so no record is skipped.
"""

from functools import partial
from random import Random

from shardline.core.consumer.control_requests import Request, sought_checkpoint
from shardline.core.consumer.handler_task import Attempt
from shardline.core.consumer.lease_phases import Phase
from shardline.model.position import TRIM_HORIZON, after_sequence_number, at_sequence_number
from shardline.model.sequence import SequenceNumber


class Control:
    """Of one worker."""

    def __init__(self, worker, life):
        fleet = worker.world.fleet
        self.worker = worker
        self.reached = worker.world.reached
        self.kinds = fleet.user.control
        self._rng = Random(f"control {fleet.seed} {worker.place} {life}")
        self.is_all_paused = False
        self.paused = set()  # grants
        self._commits = []  # requests, and the places that were done when the host got them
        if self.kinds:
            self._act_later()
        self._limits = Random(f"limits {fleet.seed} {worker.place} {life}")
        if fleet.user.limits:
            self._limit_later()

    def _limit_later(self):
        self.worker.at_local(self.worker.now + self._limits.uniform(0.1, 4.0), self._limit)

    def _limit(self):
        """Change ``max_leases``. In the end, the limit of the worker's plan applies again."""
        worker = self.worker
        is_calm = worker.world.time >= worker.world.fleet.calm_at
        limit = worker.plan.max_leases if is_calm else self._limits.choice([None, 1, 2, 3])
        worker.post(partial(self._limit_leases, limit))
        if not is_calm:
            self._limit_later()

    def _act_later(self):
        delay = self._rng.choice([0.05, 0.5, 1.5]) * self._rng.random()
        self.worker.at_local(self.worker.now + delay, self._act)

    def _act(self):
        worker = self.worker
        is_calm = worker.world.time >= worker.world.fleet.calm_at
        if is_calm or worker.is_closing:
            worker.post(partial(self._resume, Request()))
            return
        kind = self._rng.choice(self.kinds)
        worker.post(partial(getattr(self, f"_{kind}"), self._draw_request()))
        self._act_later()

    def _draw_request(self):
        held = sorted(self.worker.hand_out.shards)
        return Request([self._rng.choice(held)] if held and self._rng.random() < 0.5 else None)

    # ---- the host

    def _commit(self, request, now):
        hand_out = self.worker.hand_out
        hand_out.commit(request, now)
        done = {}
        for shard in hand_out.shards.values():
            holding = shard.holding
            number = None if holding is None or holding.tracker.is_replaced else holding.tracker.watermark
            if number is not None and (request.shards is None or shard.key in request.shards):
                done[hand_out.name_of(shard.key)] = (number.number, number.sub_sequence)
        self._commits.append((request, done))

    def _limit_leases(self, limit, now):
        hand_out, request = self.worker.hand_out, Request()
        before = hand_out.config.max_leases
        if limit is None or (before is not None and limit > before):
            self.reached.add("max_leases raised")
        elif limit < sum(len(part.machine.held.holdings) for part in self.worker.parts):
            self.reached.add("max_leases lowered below the leases that are held")
        hand_out.limit_leases(request, limit, now)
        assert request.is_over
        self.check_leases()

    def _pause(self, request, now):
        hand_out = self.worker.hand_out
        hand_out.pause(request, now)
        assert request.is_over
        self.is_all_paused = self.is_all_paused or request.shards is None
        for shard in self._chosen(request):
            self.paused.add(shard.grant)
            if shard.cursor is not None:
                self.reached.add("paused with records in hand")

    def _resume(self, request, now):
        self.is_all_paused = self.is_all_paused and request.shards is not None
        self.paused -= {shard.grant for shard in self._chosen(request)}
        self.worker.hand_out.resume(request, now)
        assert request.is_over

    def _seek(self, request, now):
        hand_out = self.worker.hand_out
        keys = [shard.key for shard in self._chosen(request)]
        if not keys:
            return
        request.shards = [self._rng.choice(keys)]
        (shard,) = self._chosen(request)
        world = self.worker.part_of(shard.key[0]).world
        known, holding = world.truth.shards.get(shard.shard_id), shard.holding
        number = None if holding is None else holding.tracker.watermark
        position = TRIM_HORIZON
        if number is not None and known is not None and self._rng.random() < 0.7:
            done = [place for place in known.places if place <= (number.number, number.sub_sequence)]
            target = SequenceNumber(*self._rng.choice(done or [(number.number, number.sub_sequence)]))
            position = self._rng.choice([at_sequence_number, after_sequence_number])(target)
        checkpoint = sought_checkpoint(position, 0.0)
        world.watch.sought.add((self.worker.name, shard.shard_id, checkpoint))
        if shard.cursor is not None:
            self.reached.add("sought with records in hand")
        hand_out.seek(request, checkpoint, now)

    def _chosen(self, request):
        shards = self.worker.hand_out.shards.values()
        return [shard for shard in shards if shard.holding is not None and self._is_chosen(request, shard.key)]

    def _is_chosen(self, request, key):
        return request.shards is None or key in request.shards

    # ---- checks

    def see_gained(self, grant, older=None):
        """Note a lease that was gained, or the grant that replaced ``older`` after a seek."""
        if (self.is_all_paused and older is None) or older in self.paused:
            self.paused.add(grant)
            self.reached.add("a shard gained while all are paused" if older is None else "sought while paused")

    def check_handed_out(self, lease, taker, *, is_in_hand):
        # A handler may be called with a batch or a message that was on its way before the pause, and again with failed
        # records.
        if not is_in_hand and (taker is None or not isinstance(taker.step, Attempt)):
            assert lease not in self.paused, "a record of a paused shard is handed out"

    def check(self):
        """Check the leases, and the commits that are over."""
        self.check_leases()
        world = self.worker.world
        open_ = [(request, done) for request, done in self._commits if not request.is_over]
        over = [(request, done) for request, done in self._commits if request.is_over]
        self._commits = open_
        for request, done in over:
            if request.lost:
                self.reached.add("a commit of a lost lease")
            if world.store.set_back_at is not None or world.truth.epoch:
                continue
            shards = {
                self.worker.hand_out.name_of((part.stream, shard_id)): known
                for part in self.worker.parts
                for shard_id, known in part.world.truth.shards.items()
            }
            for shard_id in request.done.keys() & done.keys() & shards.keys():
                known = shards[shard_id]
                is_written = known.finished or (known.highest is not None and known.highest >= done[shard_id])
                assert is_written, f"the commit of {shard_id} is over, and the store does not have {done[shard_id]}"
                self.reached.add("a commit was confirmed")

    def check_leases(self):
        """Check that the worker keeps no more leases than ``max_leases``."""
        limit = self.worker.hand_out.config.max_leases
        held = [one for part in self.worker.parts for one in part.machine.held.holdings.values()]
        kept = [one for one in held if one.phase is Phase.ACTIVE]
        assert limit is None or len(kept) <= limit, f"{len(kept)} leases are kept, and {limit} are allowed"

    def check_exhausted(self):
        assert not self.is_all_paused, "a bound ended a run that is paused"
        assert not self._is_any_paused, "a bound ended a run with a paused shard"

    @property
    def _is_any_paused(self):
        return any(shard.grant in self.paused for shard in self.worker.hand_out.shards.values())
