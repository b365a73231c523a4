"""When does a request go out, and what travels in it?

Sealed aggregates wait in their lanes. A request is made when enough of them wait to fill one, or when the first of all
is due: then everything goes.

Invariants:

- A request holds at most ``request_max_entries`` entries and ``request_max_bytes`` bytes; one that is larger by
  itself goes alone.
- Fair over lanes: each lane in turn gives one aggregate, and lanes that gave one stand behind those that wait.
- At most ``max_in_flight`` requests are under way. After a request failed whole there is a pause with jitter, and
  one request at a time until one succeeds: a server that is down sees a trickle, not a storm.
- A lane that may not send (tokens, pause, order) is set aside until its time comes, and costs nothing meanwhile.
- Parts of refused requests (``isolation``) and the normal flow take turns, so that neither starves the other.
- ``next_deadline`` never lies in the past unless ``poll_group`` has something to give.
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

_GATHER_SHARE: Final = 0.2  # of linger: lanes whose tokens come back one by one are gathered for so long ...
_GATHER_MAX: Final = 0.05  # ... but no longer than this: the KPL's collector waits as much


# By the class it takes three times as long, and it is made for every entry.
_new_tuple: Final = tuple[Aggregate | Lane, ...].__new__


@final
class Group(NamedTuple):
    """What travels in one request."""

    shipments: list[Shipment]
    part: Part | None = None
    """The part of a refused request that it is, if it is one."""


@final
class Collector:
    """Composes requests out of lanes."""

    def __init__(self, config: ProducerConfig, chance: Chance, isolation: Isolation) -> None:
        self._isolation = isolation
        self._max_entries = config.request_max_entries
        self._max_bytes = config.request_max_bytes
        self._burst_bytes = config.shard_burst_bytes
        self._max_in_flight = config.max_in_flight
        self._gather = min(_GATHER_SHARE * config.linger, _GATHER_MAX)
        self._backoff = Backoff(config.retry_backoff, config.retry_backoff_max, chance)
        self._blocked_until: Instant = -NEVER
        self._ready: deque[Lane] = deque()  # in turn
        self._aside: dict[Lane, Instant] = {}  # may not send now, and when to look again
        self._waiting_bytes = 0  # in lanes that are ready
        self._waiting_entries = 0
        self._draining = False
        self._isolated_last = False
        self.in_flight = 0

    # ---- inputs

    def note_sealed(self, lane: Lane) -> None:
        """A lane sealed aggregates."""
        if lane not in self._aside:
            self._count(lane)

    def note_returned(self, lane: Lane, now: Instant) -> None:
        """Something changed for a lane: an answer came, or aggregates came back to it. Look at it again."""
        self._aside.pop(lane, None)
        if lane.queued:
            self._count(lane)
            if lane.is_due(now):
                self._draining = True

    def note_expired(self, lane: Lane, now: Instant) -> None:
        """Something left a lane otherwise than by a request: what is first there now may go earlier."""
        if lane.is_ready or lane in self._aside:
            self.forget(lane)
            self.note_returned(lane, now)

    def forget(self, lane: Lane) -> None:
        """A lane that has nothing to send any more."""
        self._aside.pop(lane, None)
        if lane.is_ready:
            self._ready.remove(lane)
            self._uncount(lane)

    def drain(self) -> None:
        """Send all that is sealed, full requests or not."""
        self._draining = True

    def handle_answered(self) -> None:
        """A request came to its end, well or badly."""
        self.in_flight -= 1

    def handle_success(self) -> None:
        """The service answered: requests may flow again."""
        self._backoff.reset()
        self._blocked_until = -NEVER

    def handle_failure(self, retry_after: float | None, now: Instant) -> None:
        """A request failed whole. Requests that were under way together make one failure."""
        if now >= self._blocked_until:
            self._blocked_until = now + self._backoff.next_delay(retry_after)

    # ---- outputs

    def poll_group(self, now: Instant) -> Group | None:
        """What the next request carries, if one is to go now."""
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
        """When ``poll_group`` is worth another try, if no answer comes before."""
        if not self._has_slot():
            return NEVER
        work = -NEVER if self._draining and self._ready else min(self._aside.values(), default=NEVER)
        return max(min(work, self._isolation.next_deadline()), self._blocked_until)

    # ---- inside

    def _has_slot(self) -> bool:
        return self.in_flight < (1 if self._backoff.failures else self._max_in_flight)

    def _may_send(self, now: Instant) -> bool:
        return now >= self._blocked_until and self._has_slot()

    def _is_full(self) -> bool:
        return (
            self._waiting_entries >= self._max_entries
            or self._waiting_bytes >= self._max_bytes
            or any(lane.queued_bytes >= self._burst_bytes for lane in self._ready)
        )

    def _wake(self, now: Instant) -> None:
        """Lanes whose time has come are ready again; if what they hold is due, it goes."""
        for lane in [lane for lane, at in self._aside.items() if at <= now]:
            self.note_returned(lane, now)

    def _count(self, lane: Lane) -> None:
        """A lane is ready: count what was sealed in it since it was last counted."""
        if not lane.is_ready:
            lane.is_ready = True
            self._ready.append(lane)
        queued, queued_bytes = lane.queued, lane.queued_bytes
        self._waiting_bytes += queued_bytes - lane.counted_bytes
        self._waiting_entries += queued - lane.counted_entries
        lane.counted_bytes, lane.counted_entries = queued_bytes, queued

    def _uncount(self, lane: Lane) -> None:
        """A lane is no longer ready."""
        lane.is_ready = False
        self._waiting_bytes -= lane.counted_bytes
        self._waiting_entries -= lane.counted_entries
        lane.counted_bytes = lane.counted_entries = 0

    def _fill(self, now: Instant) -> list[Shipment]:
        ready = self._ready
        shipments: list[Shipment] = []
        room = inf  # The first may be larger than a request
        entries = self._max_entries
        while ready and entries:
            lane = ready[0]
            aggregate = lane.poll_aggregate(now, room, entries)
            if aggregate is None and lane.wakes_at(now) <= now:
                break  # it does not fit: it is the first of the next request
            ready.popleft()
            self._uncount(lane)
            if aggregate is None:
                if lane.queued:
                    self._aside[lane] = max(lane.wakes_at(now), now + self._gather)
                continue
            shipments.append(_new_tuple(Shipment, (aggregate, lane)))
            room = (self._max_bytes if room == inf else room) - aggregate.cost_bytes
            entries -= aggregate.entry_count
            if lane.queued:
                self._count(lane)  # Behind the others
        return shipments
