"""The current state of the demo, which is shown as a live display or as plain lines. ``scene_observer`` updates it.

Invariants:

- A rate covers the last second, or the time since the beginning if that is shorter.
- An order counts as waiting from its receipt until a worker has handled it. The lag of a shard is how long its oldest
  order has been waiting.
- Nothing here reads a clock: the time is an argument.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple, TypeAlias, final

_WINDOW: Final = 1.0
_HISTORY: Final = 120
_HISTORY_STEP: Final = 0.25

Mood: TypeAlias = Literal["plain", "good", "bad", "act"]


@final
class Event(NamedTuple):
    """An event of the demo, as a line of text."""

    at: float
    """Seconds since the demo began."""
    text: str
    mood: Mood = "plain"


@final
class Flow:
    """A count that only increases, and the rate at which it increases."""

    def __init__(self) -> None:
        self.total = 0
        self.rate = 0.0
        self.history: deque[float] = deque(maxlen=_HISTORY)
        """The rates, sampled every quarter of a second, oldest first."""
        self._samples: deque[tuple[float, int]] = deque()
        self._history_at = 0.0

    def add(self, count: int) -> None:
        self.total += count

    def sample(self, now: float) -> None:
        """Update the rate with the current count."""
        samples = self._samples
        samples.append((now, self.total))
        while len(samples) > 2 and samples[1][0] <= now - _WINDOW:  # noqa: PLR2004 - a rate needs two samples
            samples.popleft()
        began_at, before = samples[0]
        self.rate = (self.total - before) / (now - began_at) if now > began_at else 0.0
        if now - self._history_at >= _HISTORY_STEP:
            self._history_at = now
            self.history.append(self.rate)


@final
class Waiting:
    """The orders that have a receipt but have not been handled yet, by shard."""

    def __init__(self) -> None:
        self._since: dict[str, dict[str, float]] = {}
        self._handled: set[str] = set()

    def add_put(self, name: str, shard_id: str, now: float) -> None:
        """Note that an order got its receipt."""
        if name not in self._handled:  # a worker may handle an order before its receipt arrives
            self._since.setdefault(shard_id, {})[name] = now

    def add_handled(self, name: str, shard_id: str) -> bool:
        """Note that a worker has handled an order. Return whether it was the first time."""
        is_first = name not in self._handled
        self._handled.add(name)
        self._since.get(shard_id, {}).pop(name, None)
        return is_first

    def are_handled(self, names: Iterable[str]) -> bool:
        return self._handled.issuperset(names)

    def count(self, shard_id: str) -> int:
        return len(self._since.get(shard_id, ()))

    def lag(self, shard_id: str, now: float) -> float:
        """Return how long the oldest order of a shard has been waiting, or 0 if no order is waiting."""
        since = self._since.get(shard_id)
        return now - next(iter(since.values())) if since else 0.0


@final
@dataclass
class ShardView:
    """A shard, as the picture shows it."""

    shard_id: str
    start: float
    """The beginning of the shard's hash keys, as a fraction of all hash keys."""
    share: float
    parent: str | None = None
    is_open: bool = True
    is_finished: bool = False
    owner: str | None = None
    rate_share: float = 1.0
    """The fraction of the full rate at which the producers send. They slow down when they are throttled."""
    lag: float = 0.0
    waiting: int = 0
    put: Flow = field(default_factory=Flow)
    handled: Flow = field(default_factory=Flow)

    @property
    def name(self) -> str:
        return short(self.shard_id)


@final
@dataclass
class WorkerView:
    """A worker, as the picture shows it."""

    name: str
    pid: int
    is_ready: bool = False
    is_dead: bool = False
    handled: int = 0


@final
@dataclass
class Scene:
    """The state of the whole demo."""

    seconds: float
    """For how many seconds the producers put orders."""
    lease_duration: float
    lease_default: float
    now: float = 0.0
    """Seconds since the demo began."""
    flowing_for: float = 0.0
    act: str = "starting"
    put: Flow = field(default_factory=Flow)
    handled: Flow = field(default_factory=Flow)
    """The count of distinct orders that workers have handled."""
    buffered: int = 0
    """The number of orders in the producers that have no receipt yet."""
    resent: int = 0
    throttled: int = 0
    """The number of aggregates that a shard throttled."""
    shards: dict[str, ShardView] = field(default_factory=dict[str, ShardView])
    workers: dict[str, WorkerView] = field(default_factory=dict[str, WorkerView])
    events: list[Event] = field(default_factory=list[Event])

    @property
    def waiting(self) -> int:
        return sum(shard.waiting for shard in self.shards.values())

    @property
    def lag(self) -> float:
        return max((shard.lag for shard in self.shards.values()), default=0.0)

    def shard_tree(self) -> list[tuple[str, ShardView]]:
        """Return every shard with the tree lines that are drawn before its name. Children come below their parents."""
        children: dict[str | None, list[ShardView]] = {}
        for shard in self.shards.values():
            children.setdefault(shard.parent, []).append(shard)

        def below(parent: str | None, indent: str) -> list[tuple[str, ShardView]]:
            rows: list[tuple[str, ShardView]] = []
            for shard in sorted(children.get(parent, ()), key=lambda child: child.start):
                is_last = shard is max(children[parent], key=lambda child: child.start)
                branch = "" if parent is None else indent + ("└ " if is_last else "├ ")
                rows.append((branch, shard))
                rows += below(shard.shard_id, "" if parent is None else indent + ("  " if is_last else "│ "))
            return rows

        return below(None, "")

    def add_event(self, text: str, mood: Mood = "plain") -> None:
        """Add an event with the current time."""
        self.events.append(Event(self.now, text, mood))


def shards_named(names: Sequence[str]) -> str:
    """Return ``shard 1`` or ``shards 1, 2 and 3``."""
    return f"shard{'' if len(names) == 1 else 's'} {listed(names)}"


def short(shard_id: str) -> str:
    """Return the number of a shard: ``3`` for ``shardId-000000000003``."""
    return str(int(shard_id.rpartition("-")[2]))


def listed(names: Iterable[str]) -> str:
    """Return the names as text: ``1, 2 and 3``."""
    items = list(names)
    return " and ".join([", ".join(items[:-1]), items[-1]]) if len(items) > 1 else "".join(items)
