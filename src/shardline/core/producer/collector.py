"""Decides when a request is sent and which aggregates it contains.

Sealed aggregates wait in their lanes. A request is made when enough aggregates wait to fill it, or when any aggregate
is due. In the second case, all sealed aggregates are sent.

Invariants:

- A request holds at most ``request_max_entries`` entries and ``request_max_bytes`` bytes. An aggregate that exceeds
  the limit in bytes is sent alone.
- Lanes take turns: each lane contributes one aggregate and then goes to the end of the queue.
- At most ``max_in_flight`` requests are in flight. After a whole request has failed, the collector pauses with jitter,
  and then sends one request at a time until one succeeds, so that a recovering service is not flooded.
- A lane that must not send (it has no tokens, is paused, or waits for an answer) is set aside until it may send, and
  costs nothing in the meantime.
- Parts of refused requests (``isolation``) and normal requests take turns, so that neither starves the other.
- ``next_deadline`` is in the past only if ``poll_group`` would return a group.
"""

from collections import deque
from math import inf
from typing import Final, NamedTuple, final

from shardline.core.backoff import Backoff, Chance
from shardline.core.clock import NEVER, Instant
from shardline.core.producer.aggregate import Aggregate
from shardline.core.producer.isolation import Isolation, Part
from shardline.core.producer.lane import Lane, Shipment
from shardline.core.producer.producer_config import ProducerConfig

# Lanes that wait for tokens become ready one by one. When the first such lane is ready, the collector waits for this
# share of ``linger`` for others, so that they share a request. It never waits longer than the KPL's collector does.
_GATHER_SHARE: Final = 0.2
_GATHER_MAX: Final = 0.05


# Every aggregate that is sent needs a Shipment. Calling the class would take three times as long as this function.
_new_tuple: Final = tuple[Aggregate | Lane, ...].__new__


@final
class Group(NamedTuple):
    """The aggregates of one request."""

    shipments: list[Shipment]
    part: Part | None = None
    """The part of a refused request that this group sends, or ``None`` for a normal request."""


@final
class Collector:
    """Fills requests with aggregates from the lanes."""

    def __init__(self, config: ProducerConfig, rng: Chance, isolation: Isolation) -> None:
        self._isolation = isolation
        self._max_entries = config.request_max_entries
        self._max_bytes = config.request_max_bytes
        self._burst_bytes = config.shard_burst_bytes
        self._max_in_flight = config.max_in_flight
        self._gather = _gather_time(config)
        self._backoff = Backoff(config.retry_backoff, config.retry_backoff_max, rng)
        self._blocked_until: Instant = -NEVER
        self._ready: deque[Lane] = deque()  # the lane at the front contributes the next aggregate
        self._aside: dict[Lane, Instant] = {}  # lanes that may not send now, and when to check them again
        self._waiting_bytes = 0  # counts only the lanes that are ready
        self._waiting_entries = 0
        self._draining = False
        self._isolated_last = False
        self.in_flight = 0

    # ---- commands

    def reconfigure(self, config: ProducerConfig, now: Instant) -> None:
        """Apply a new ``linger`` and new rates. Lanes that wait for tokens may now have to wait for a shorter time."""
        self._gather = _gather_time(config)
        for lane in [*self._aside]:
            self.note_returned(lane, now)

    # ---- inputs

    def note_sealed(self, lane: Lane) -> None:
        # A lane that is set aside may not send yet, so it would only be set aside again.
        if lane not in self._aside:
            self._count(lane)

    def note_returned(self, lane: Lane, now: Instant) -> None:
        """Check again whether a lane may send: one of its requests was answered, or aggregates came back to it."""
        self._aside.pop(lane, None)
        if lane.queued:
            self._count(lane)
            if lane.is_due(now):
                self._draining = True

    def note_expired(self, lane: Lane, now: Instant) -> None:
        """Check again when a lane may send: records in it have expired, and its new first aggregate may be sent
        earlier.
        """
        if lane.is_ready or lane in self._aside:
            self.forget(lane)
            self.note_returned(lane, now)

    def forget(self, lane: Lane) -> None:
        """Remove a lane from the queue, because it has nothing to send or must not send."""
        self._aside.pop(lane, None)
        if lane.is_ready:
            self._ready.remove(lane)
            self._uncount(lane)

    def drain(self) -> None:
        """Send all sealed aggregates, even if the requests are not full."""
        self._draining = True

    def handle_answered(self) -> None:
        """Called when a request has succeeded or failed."""
        self.in_flight -= 1

    def handle_success(self) -> None:
        """End the pause, because the service answered."""
        self._backoff.reset()
        self._blocked_until = -NEVER

    def handle_failure(self, retry_after: float | None, now: Instant) -> None:
        """Pause, because a whole request failed. Requests that fail during the pause do not extend it."""
        if now >= self._blocked_until:
            self._blocked_until = now + self._backoff.next_delay(retry_after)

    # ---- outputs

    def poll_group(self, now: Instant) -> Group | None:
        """Return the content of the next request, if a request should be sent now."""
        if not self._may_send(now):
            return None
        polls = (self._poll_ordinary, self._poll_isolated)
        group: Group | None = None
        for poll in polls if self._isolated_last else reversed(polls):
            group = group or poll(now)
        if group is not None:
            self.in_flight += 1
            self._isolated_last = group.part is not None
        return group

    def _poll_isolated(self, now: Instant) -> Group | None:
        part = self._isolation.poll_part(now)
        return None if part is None else Group(part.shipments, part)

    def _poll_ordinary(self, now: Instant) -> Group | None:
        self._wake(now)
        if not self._draining and not self._is_full():
            return None
        shipments = self._fill(now)
        if not self._ready:
            self._draining = False
        return Group(shipments) if shipments else None

    def next_deadline(self) -> Instant:
        """Return the time at which to call ``poll_group`` again, unless a request is answered earlier."""
        if not self._has_slot():
            return NEVER
        work = -NEVER if self._draining and self._ready else min(self._aside.values(), default=NEVER)
        return max(min(work, self._isolation.next_deadline()), self._blocked_until)

    # ---- internal

    def _has_slot(self) -> bool:
        # After a failure, a single request tests whether the service is back.
        return self.in_flight < (1 if self._backoff.failures else self._max_in_flight)

    def _may_send(self, now: Instant) -> bool:
        return now >= self._blocked_until and self._has_slot()

    def _is_full(self) -> bool:
        return (
            self._waiting_entries >= self._max_entries
            or self._waiting_bytes >= self._max_bytes
            # As in the KPL, one shard for which much data waits is enough to send a request.
            or any(lane.queued_bytes >= self._burst_bytes for lane in self._ready)
        )

    def _wake(self, now: Instant) -> None:
        """Make ready every lane that was set aside until ``now`` or earlier. Start draining if an aggregate of such a
        lane is due.
        """
        for lane in [lane for lane, at in self._aside.items() if at <= now]:
            self.note_returned(lane, now)

    def _count(self, lane: Lane) -> None:
        """Make a lane ready, and count the aggregates that it sealed since it was last counted."""
        if not lane.is_ready:
            lane.is_ready = True
            self._ready.append(lane)
        queued, queued_bytes = lane.queued, lane.queued_bytes
        self._waiting_bytes += queued_bytes - lane.counted_bytes
        self._waiting_entries += queued - lane.counted_entries
        lane.counted_bytes, lane.counted_entries = queued_bytes, queued

    def _uncount(self, lane: Lane) -> None:
        """Subtract the aggregates of a lane from the totals, because the lane is no longer ready."""
        lane.is_ready = False
        self._waiting_bytes -= lane.counted_bytes
        self._waiting_entries -= lane.counted_entries
        lane.counted_bytes = lane.counted_entries = 0

    def _fill(self, now: Instant) -> list[Shipment]:
        ready = self._ready
        shipments: list[Shipment] = []
        room = inf  # the first aggregate may be larger than a request
        entries = self._max_entries
        while ready and entries:
            lane = ready[0]
            aggregate = lane.poll_aggregate(now, room, entries)
            if aggregate is None and lane.wakes_at(now) <= now:
                break  # the aggregate does not fit: it becomes the first of the next request
            ready.popleft()
            self._uncount(lane)
            if aggregate is None:
                # The lane waits for tokens, for a pause to end or for an answer.
                if lane.queued:
                    self._aside[lane] = max(lane.wakes_at(now), now + self._gather)
                continue
            shipments.append(_new_tuple(Shipment, (aggregate, lane)))
            room = (self._max_bytes if room == inf else room) - aggregate.cost_bytes
            entries -= aggregate.entry_count
            if lane.queued:
                self._count(lane)  # puts the lane behind the others
        return shipments


def _gather_time(config: ProducerConfig) -> float:
    """Return how long the collector gathers lanes that wait for tokens."""
    return min(_GATHER_SHARE * config.linger, _GATHER_MAX)
