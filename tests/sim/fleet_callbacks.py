"""The lifecycle callbacks of one simulated worker: they take time, fail and are cancelled. What must hold of them?

- No record of a lease is handed out before its ``on_assigned`` has returned.
- ``on_revoked`` begins when user code has no record of the shard, and returns before the lease is released, unless it
  was called because the lease is gone, or the time of the user was up.
- ``on_shard_end`` returns before SHARD_END is written.
- The callbacks of a shard are called one after another, and each at most once for a lease. ``on_revoked`` is called for
  each lease whose ``on_assigned`` has returned and whose shard is not finished.
"""

from functools import partial
from random import Random

from shardline.core.consumer.consumer_events import HandOverOverdue
from shardline.core.consumer.lifecycle import CallbackKind
from shardline.core.leases import CommitCheckpoint, FinishHandOver, ReleaseLease, TakeLease

ASSIGNED, SHARD_END, REVOKED = CallbackKind.ASSIGNED, CallbackKind.SHARD_END, CallbackKind.REVOKED


class Callbacks:
    """Of one worker."""

    def __init__(self, worker, life):
        fleet = worker.world.fleet
        self.worker = worker
        self.plan = fleet.user
        self.reached = worker.world.reached
        self._rng = Random(f"callbacks {fleet.seed} {worker.place} {life}")
        self.wanted = {CallbackKind[name] for name in self.plan.callbacks}
        self.running = {}  # by shard: the call that is being made
        self.begun, self.returned = set(), set()  # of both: kind and grant
        self.posted = set()  # shards: the end of a callback is on its way to the host
        self.gone = set()  # grants of leases that are lost, or were taken away
        self.unassigned = set()  # grants that came when the consumer was closing
        self.is_time_up = False

    @property
    def _is_calm(self):
        return self.worker.world.time >= self.worker.world.fleet.calm_at

    # ---- calls

    def begin(self, call):
        grant, key = call.shard.grant, call.shard.key
        self.worker.note(call.kind.value, *call.argument)
        assert call.kind in self.wanted, "the user has no such callback"
        assert key not in self.running, "two callbacks of a shard at a time"
        assert (call.kind, grant) not in self.begun, f"{call.kind.value} is called again"
        calls = self.worker.books.open_calls(key)
        if call.kind is REVOKED:
            assert self.was_assigned(grant), "it was never assigned"
            assert all(user.lease is not grant for user in calls), "the user has a record of it"
            assert call.lost == (grant in self.gone or call.shard.is_over), f"lost: {call.lost}"
            self.reached.add("on_revoked after a loss" if call.lost else f"on_revoked before a {call.reason}")
        if call.kind is SHARD_END:
            assert not calls, "the user has a record of it"
            self.reached.add("on_shard_end")
        self.begun.add((call.kind, grant))
        self.running[key] = call
        self.worker.at_local(self.worker.now + self._draw_duration(call), self._end, call)

    def _draw_duration(self, call):
        if self._is_calm or self._rng.random() < 0.7:
            return self._rng.choice([0.0, 0.01])
        lease = self.worker.config.lease_duration
        return self._rng.uniform(0.0, (0.5 if call.kind is REVOKED else 2.0) * lease)

    def cancel(self, call):
        """The lease is gone. A thread goes on."""
        assert call.shard.is_over, "the lease is held"
        assert call.kind is not REVOKED, "it cleans up"
        if not self.plan.threaded and self.running.get(call.shard.key) is call:
            self.reached.add("a callback was cancelled")
            self._end(call, is_cancelled=True)

    def _end(self, call, *, is_cancelled=False):
        if self.running.get(call.shard.key) is not call:
            return  # it was cancelled
        del self.running[call.shard.key]
        fails = self._rng.random() < self.plan.callback_fail_chance and not self._is_calm
        has_returned = not (is_cancelled or fails)
        if has_returned:
            self.returned.add((call.kind, call.shard.grant))
        error = "a callback failed" if fails and not is_cancelled else None
        if error:
            self.reached.add("a callback failed")
        self.worker.note(call.kind.value, "returns" if has_returned else error or "is cancelled")
        self.posted.add(call.shard.key)
        self.worker.post(partial(self._handle, call, has_returned=has_returned, error=error))
        self.worker.close_if_idle()

    def _handle(self, call, now, **outcome):
        self.posted.discard(call.shard.key)
        self.worker.hand_out.handle_called_back(call, now, **outcome)

    def see_gained(self, grant):
        if self.worker.hand_out.is_over:
            self.unassigned.add(grant)

    # ---- checks

    def was_assigned(self, grant):
        """Whether records of the lease may have been handed out."""
        is_assigned = ASSIGNED not in self.wanted or (ASSIGNED, grant) in self.returned
        return is_assigned and grant not in self.unassigned

    def check_handed_out(self, lease, key):
        assert self.was_assigned(lease), "a record is handed out before on_assigned has returned"
        assert (REVOKED, lease) not in self.begun, "a record is handed out after on_revoked"
        running = self.running.get(key)
        assert running is None or lease in self.gone or not lease.held, "a record is handed out during a callback"

    def check_write(self, part, operation):
        """The coordinator writes something for a lease that it holds."""
        holding = part.machine.held.holdings.get(operation.shard_id)
        shard = part.held_shard(operation.shard_id)
        if holding is None or shard is None or shard.grant is not holding.grant:
            return
        grant = holding.grant
        if isinstance(operation, CommitCheckpoint) and operation.checkpoint.is_finished and shard.has_ended:
            is_called = SHARD_END not in self.wanted or (SHARD_END, grant) in self.returned
            assert is_called, "SHARD_END is written before on_shard_end has returned"
        overdue = [event.shard_id for event in part.machine.held._events if isinstance(event, HandOverOverdue)]
        is_time_up = self.is_time_up or operation.shard_id in overdue  # the host hears of it next
        if isinstance(operation, ReleaseLease | FinishHandOver | TakeLease) and not is_time_up:
            is_called = REVOKED not in self.wanted or self._has_ended(grant) or not self.was_assigned(grant)
            is_called = is_called or shard.reader.failure is not None  # the coordinator lets go of a missing shard
            assert is_called, "the lease is released before on_revoked has returned"

    def _has_ended(self, grant):
        return (REVOKED, grant) in self.begun and all(
            call.kind is not REVOKED or call.shard.grant is not grant for call in self.running.values()
        )

    def is_busy(self, shard):
        """Whether the release of the shard waits for a callback, or for a handler before it."""
        waits_for_user = bool(self.wanted) and self.worker.hand_out._has_user_code(shard)
        return shard.key in self.running or shard.key in self.posted or waits_for_user

    def see_gone(self, key):
        """A lease was lost, or taken away because its time was up."""
        shard = self.worker.hand_out.shards.get(key)
        if shard is not None:
            self.gone.add(shard.grant)

    @property
    def is_settled(self):
        return self.is_time_up or self.worker.hand_out.lifecycle.is_settled

    def wait_until(self, until):
        """The consumer closes, and waits for callbacks until then."""
        self.worker.at_local(until, self._give_up)

    def _give_up(self):
        if not self.worker.hand_out.lifecycle.is_settled:
            self.reached.add("the time for closing was up before a callback was done")
        self.is_time_up = True
        self.worker.close_if_idle()

    def check_end(self):
        """The worker has closed in good order."""
        if REVOKED in self.wanted and not self.is_time_up:
            lifecycle = self.worker.hand_out.lifecycle
            assert not lifecycle._lost, "on_revoked was not called"
