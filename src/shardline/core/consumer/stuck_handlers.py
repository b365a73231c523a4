"""Detects handlers that are stuck.

For each shard, the hand-out reports which records user code has, and since when user code has had them. Code that has
had the same records for ``stuck_after`` seconds counts as stuck. The body of a loop is watched like a handler. With
manual acknowledgements, code counts as stuck if one record has blocked the checkpoint of its shard for that time.

Invariants:

- Each time a handler gets stuck, there are two events: ``HandlerStuck`` when the watch notices it, and
  ``HandlerRecovered`` when the code returns, fails, or continues with other records, or when its shard's lease is lost
  or released.
- A handler whose records wait for a retry is not stuck, because it is not running.
- If ``stuck_after`` is ``None``, no handler counts as stuck.
"""

from collections.abc import Mapping
from typing import NamedTuple, TypeAlias, final

from shardline.core.clock import NEVER, Instant
from shardline.core.consumer.consumer_events import HandlerRecovered, HandlerStuck
from shardline.core.consumer.reader import ShardKey

WatchEvent: TypeAlias = HandlerStuck | HandlerRecovered


@final
class Work(NamedTuple):
    """The records of one shard that user code has."""

    sequence_number: str
    """The sequence number of the oldest of these records."""
    sub_sequence: int
    records: int
    since: Instant | None
    """When user code got the records, or ``None`` if this is unknown, as with manual acknowledgements. In this case,
    the time counts from the moment when the watch first saw this record as the oldest."""


@final
class HandlerWatch:
    """Watches the handlers of one consumer."""

    def __init__(self, stuck_after: float | None) -> None:
        self._stuck_after: float = NEVER if stuck_after is None else stuck_after
        self._seen: dict[ShardKey, tuple[Work, Instant]] = {}  # the records of each shard, and when user code got them
        self._stuck: dict[ShardKey, Instant] = {}  # when user code got the records of a shard that is stuck
        self._events: list[tuple[str, WatchEvent]] = []  # each with its stream

    @property
    def is_stuck(self) -> bool:
        return bool(self._stuck)

    def since(self, key: ShardKey) -> Instant | None:
        """Return the time at which user code got the records of this shard that it now has, or ``None`` if it has no
        records.
        """
        found = self._seen.get(key)
        return None if found is None else found[1]

    # ---- input

    def handle_work(self, at_work: Mapping[ShardKey, Work], now: Instant) -> None:
        """Compare the records that user code has now with the records at the last call. Idle shards are not in
        ``at_work``.
        """
        self._seen = {key: (work, self._since(key, work, now)) for key, work in at_work.items()}
        for key, since in [*self._stuck.items()]:
            # The code returned, or has other records by now.
            if self.since(key) != since:
                del self._stuck[key]
                self._events.append((key[0], HandlerRecovered(key[1], now - since)))
        for key, (work, since) in self._seen.items():
            if now >= since + self._stuck_after and key not in self._stuck:
                self._stuck[key] = since
                self._events.append((key[0], HandlerStuck(key[1], *work[:3], now - since)))

    def _since(self, key: ShardKey, work: Work, now: Instant) -> Instant:
        if work.since is not None:
            return work.since
        before = self._seen.get(key)
        # If the oldest record is the same as before, its time continues.
        return before[1] if before is not None and before[0][:2] == work[:2] else now

    # ---- outputs, time

    def take_events(self) -> list[tuple[str, WatchEvent]]:
        """Return the events, each with the name of its stream."""
        events, self._events = self._events, []
        return events

    def next_deadline(self) -> Instant:
        """Return the time at which the next handler will count as stuck."""
        waiting = [since for key, (_, since) in self._seen.items() if key not in self._stuck]
        return min(waiting, default=NEVER) + self._stuck_after
