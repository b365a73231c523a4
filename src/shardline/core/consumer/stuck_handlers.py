"""Is a handler stuck?

The watch is given what the user's code has of each shard, and since when. Code that has had the same records for
``stuck_after`` seconds is stuck: it hangs, or is as slow as if it did. The body of a loop is a handler like any other.
With manual acknowledgements, a record that holds up the checkpoint of its shard for that long counts.

Invariants:

- A stuck spell makes two events: ``HandlerStuck`` when it is noticed, ``HandlerRecovered`` when it is over. The
  spell ends when the code returns, fails, goes on to other records, or its shard is let go of.
- Code that waits for a retry is not stuck: it does not run.
- Without a threshold nothing is ever stuck.
"""

from collections.abc import Mapping
from typing import NamedTuple, TypeAlias, final

from shardline.core.clock import NEVER, Instant
from shardline.core.consumer.consumer_events import HandlerRecovered, HandlerStuck
from shardline.core.consumer.reader import ShardKey

WatchEvent: TypeAlias = HandlerStuck | HandlerRecovered


@final
class Work(NamedTuple):
    """What the user's code has of one shard."""

    sequence_number: str
    """Of the oldest record that it has."""
    sub_sequence: int
    records: int
    since: Instant | None
    """When it was given the records. ``None``: not known, as with manual acknowledgements; then it counts from when
    the oldest record was first seen to be the oldest."""


@final
class HandlerWatch:
    """Watches the handlers of one consumer."""

    def __init__(self, stuck_after: float | None) -> None:
        self._stuck_after: float = NEVER if stuck_after is None else stuck_after
        self._seen: dict[ShardKey, tuple[Work, Instant]] = {}  # by shard: what is at work, and since when
        self._stuck: dict[ShardKey, Instant] = {}  # by shard: since when, of those that were told
        self._events: list[WatchEvent] = []

    @property
    def is_stuck(self) -> bool:
        return bool(self._stuck)

    def since(self, key: ShardKey) -> Instant | None:
        """Since when the user's code has had what it has of the shard."""
        found = self._seen.get(key)
        return None if found is None else found[1]

    # ---- input

    def handle_work(self, at_work: Mapping[ShardKey, Work], now: Instant) -> None:
        """What the user's code has of each shard now. Shards of which it has nothing are left out."""
        self._seen = {key: (work, self._since(key, work, now)) for key, work in at_work.items()}
        for key, since in [*self._stuck.items()]:
            if self.since(key) != since:
                del self._stuck[key]
                self._events.append(HandlerRecovered(key[1], now - since))
        for key, (work, since) in self._seen.items():
            if now >= since + self._stuck_after and key not in self._stuck:
                self._stuck[key] = since
                self._events.append(HandlerStuck(key[1], *work[:3], now - since))

    def _since(self, key: ShardKey, work: Work, now: Instant) -> Instant:
        if work.since is not None:
            return work.since
        before = self._seen.get(key)
        return before[1] if before is not None and before[0][:2] == work[:2] else now

    # ---- outputs, time

    def take_events(self) -> list[WatchEvent]:
        events, self._events = self._events, []
        return events

    def next_deadline(self) -> Instant:
        """When the next handler will be stuck."""
        waiting = [since for key, (_, since) in self._seen.items() if key not in self._stuck]
        return min(waiting, default=NEVER) + self._stuck_after
