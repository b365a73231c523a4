"""What is there to see in the demo, at this moment?

Values for whoever shows them, a picture or plain lines: they are filled by ``demo_observer``.

Invariants:

- A rate is what changed within the last second, or since the beginning.
- An order waits from its receipt until a worker has handled it; the lag of a shard is for how long its oldest has.
- Everything here is told the time.
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
    """Something that happened."""

    at: float
    """Seconds since the demo began."""
    text: str
    mood: Mood = "plain"


@final
class Flow:
    """A count that grows, and how fast."""

    def __init__(self) -> None:
        self.total = 0
        self.rate = 0.0
        self.history: deque[float] = deque(maxlen=_HISTORY)
        """The rate, four times a second."""
        self._samples: deque[tuple[float, int]] = deque()
        self._noted_at = 0.0

    def add(self, count: int) -> None:
        self.total += count

    def look(self, now: float) -> None:
        samples = self._samples
        samples.append((now, self.total))
        while len(samples) > 2 and samples[1][0] <= now - _WINDOW:  # noqa: PLR2004 - two make a rate
            samples.popleft()
        began_at, before = samples[0]
        self.rate = (self.total - before) / (now - began_at) if now > began_at else 0.0
        if now - self._noted_at >= _HISTORY_STEP:
            self._noted_at = now
            self.history.append(self.rate)


@final
class Waiting:
    """The orders that have a receipt and were not handled, shard by shard."""

    def __init__(self) -> None:
        self._since: dict[str, dict[str, float]] = {}
        self._handled: set[str] = set()

    def landed(self, name: str, shard_id: str, now: float) -> None:
        if name not in self._handled:  # a worker may be quicker than the receipt
            self._since.setdefault(shard_id, {})[name] = now

    def handled(self, name: str, shard_id: str) -> bool:
        """Whether it is for the first time."""
        is_first = name not in self._handled
        self._handled.add(name)
        self._since.get(shard_id, {}).pop(name, None)
        return is_first

    def are_handled(self, names: Iterable[str]) -> bool:
        return self._handled.issuperset(names)

    def count(self, shard_id: str) -> int:
        return len(self._since.get(shard_id, ()))

    def lag(self, shard_id: str, now: float) -> float:
        """0 if nothing waits."""
        since = self._since.get(shard_id)
        return now - next(iter(since.values())) if since else 0.0


@final
@dataclass
class ShardView:
    """A row of the picture."""

    shard_id: str
    start: float
    """Where its keys begin on the ring, of 0 to 1."""
    share: float
    parent: str | None = None
    is_open: bool = True
    is_finished: bool = False
    owner: str | None = None
    rate_share: float = 1.0
    """What the producers still send of the full rate: they slow down when they are throttled."""
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
    """A worker, as the picture has it."""

    name: str
    pid: int
    is_ready: bool = False
    is_dead: bool = False
    handled: int = 0


@final
@dataclass
class Scene:
    """All of it."""

    seconds: float
    """How long orders flow."""
    lease_duration: float
    lease_default: float
    now: float = 0.0
    """Seconds since the demo began."""
    flowing_for: float = 0.0
    act: str = "starting"
    put: Flow = field(default_factory=Flow)
    handled: Flow = field(default_factory=Flow)
    """Orders, each counted once."""
    buffered: int = 0
    """Orders that the producers hold: not sent yet, or sent and not answered."""
    resent: int = 0
    throttled: int = 0
    """Aggregates that a shard refused."""
    shards: dict[str, ShardView] = field(default_factory=dict[str, ShardView])
    workers: dict[str, WorkerView] = field(default_factory=dict[str, WorkerView])
    events: list[Event] = field(default_factory=list[Event])

    @property
    def waiting(self) -> int:
        return sum(shard.waiting for shard in self.shards.values())

    @property
    def lag(self) -> float:
        return max((shard.lag for shard in self.shards.values()), default=0.0)

    def family(self) -> list[tuple[str, ShardView]]:
        """Every shard with the branch that leads to it; children below their parents."""
        children: dict[str | None, list[ShardView]] = {}
        for shard in self.shards.values():
            children.setdefault(shard.parent, []).append(shard)

        def below(parent: str | None, indent: str) -> list[tuple[str, ShardView]]:
            rows: list[tuple[str, ShardView]] = []
            for shard in sorted(children.get(parent, ()), key=lambda one: one.start):
                is_last = shard is max(children[parent], key=lambda one: one.start)
                branch = "" if parent is None else indent + ("└ " if is_last else "├ ")
                rows.append((branch, shard))
                rows += below(shard.shard_id, "" if parent is None else indent + ("  " if is_last else "│ "))
            return rows

        return below(None, "")

    def tell(self, text: str, mood: Mood = "plain") -> None:
        self.events.append(Event(self.now, text, mood))


def shards_named(names: Sequence[str]) -> str:
    """``shard 1``, ``shards 1, 2 and 3``."""
    return f"shard{'' if len(names) == 1 else 's'} {listed(names)}"


def short(shard_id: str) -> str:
    """``shardId-000000000003`` is 3."""
    return str(int(shard_id.rpartition("-")[2]))


def listed(names: Iterable[str]) -> str:
    """``1, 2 and 3``."""
    several = list(names)
    return " and ".join([", ".join(several[:-1]), several[-1]]) if len(several) > 1 else "".join(several)
