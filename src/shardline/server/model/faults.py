"""What goes wrong with this request?

Rules (``fault_rules``), each live from when it was added until its count is used up or it is removed. The service asks
where a rule can hook in: ``plan`` when a request has come, ``failed_entries`` and ``result_delta`` inside PutRecords,
``push_ending`` when a subscription is about to push, and ``handle_time`` as the service's time passes.

Invariants:

- Rules are asked in the order in which they were added. Of each sort (wait, reset, refusal, answer, skew) the
  first that hits is taken, and the later ones are not asked: they keep their counts.
- The same seed, rules and requests give the same faults. A rule whose chance is 1 draws nothing.
- What a fault refuses is not stored; what it only hides (an answer lost, cut or wrong) is stored.
- An entry is refused by one rule at most; the entries that no rule names are stored.
- Without rules nothing is looked at: a request costs the test of an empty dict.
- Rules may be added and removed while another thread serves: each change is one operation of a dict.
- There are at most ``MOST_RULES``: each of them costs every request a look.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import count as count_up
from typing import TYPE_CHECKING, Any, Final, Literal, TypedDict, Unpack, cast, final

from shardline.errors import UsageError
from shardline.server.model import fault_kinds as kinds
from shardline.server.model.fault_rules import HOOKS, FaultRule, Plan, PushEnding
from shardline.server.model.targets import shards_of_records, target_of

if TYPE_CHECKING:
    from random import Random

    from shardline.server.model.shards import ServerShard
    from shardline.server.model.state import ServiceState
    from shardline.server.model.streams import ServerStream

MOST_RULES: Final = 1_000


class Filters(TypedDict, total=False):
    """Which requests are hit, and how often: see ``fault_rules``."""

    operation: str | set[str] | list[str]
    stream: str
    shard: str | int
    count: int
    after: int
    chance: float


@final
class Fault:
    """A rule that was added: how often it has hit, and the way to end it."""

    def __init__(self, number: int, rule: FaultRule, end: Callable[["Fault"], None], at: float | None = None) -> None:
        self.id = number
        self.rule = rule
        self.hits = 0
        self.passes_left = rule.after
        self.at = at
        """For a reshard: when."""
        self.problem: str | None = None
        """For a reshard: why it could not be."""
        self.is_live = True
        self._end = end
        self._operations = rule.operations

    def __repr__(self) -> str:
        return f"<Fault {self.id} {self.rule.kind}, {self.hits} hits, {self.count_left} left>"

    @property
    def count_left(self) -> int | None:
        """How many hits are left, ``None`` without a limit."""
        if not self.is_live:
            return 0
        return None if self.rule.count is None else self.rule.count - self.hits

    def remove(self) -> None:
        """End it. Ending twice is harmless."""
        self.is_live = False
        self._end(self)

    def matches(self, operation: str, stream: str | None) -> bool:
        """Whether it is about such requests; shards are looked at apart, for they cost more."""
        named = self._operations
        return (named is None or operation in named) and (self.rule.stream is None or self.rule.stream == stream)

    def to_dict(self) -> dict[str, object]:
        """The rule, and where it stands."""
        state: dict[str, object] = {"id": self.id, "hits": self.hits, "count_left": self.count_left}
        if self.problem is not None:
            state["problem"] = self.problem
        return state | self.rule.to_dict()


@final
class Faults:
    """The rules that live. ``now`` tells the service's time, from which the delay of a reshard counts.

    One method a kind adds a rule of it and gives its ``Fault``; each raises ``UsageError`` for what is wrong.
    """

    def __init__(self, chance: "Random", now: Callable[[], float]) -> None:
        self._chance = chance
        self._now = now
        self._numbers = count_up(1)
        self._all: dict[int, Fault] = {}
        self._hooked: dict[str, dict[int, Fault]] = {hook: {} for hook in HOOKS}
        self.for_requests = self._hooked["on_request"]
        self.for_pushes = self._hooked["on_push"]
        self.for_time = self._hooked["on_time"]
        self.on_add: Callable[[], None] = lambda: None
        """Called whenever a rule was added, in the thread that adds it: some hit before any request comes."""

    # ---- rules

    @property
    def has_entries(self) -> bool:
        """Whether there is a rule about the entries of PutRecords."""
        return bool(self._hooked["on_entries"] or self._hooked["on_results"])

    @property
    def rules(self) -> list[Fault]:
        """Those that live, in the order in which they were added."""
        return list(self._all.values())

    def load(self, described: Iterable[Mapping[str, object]]) -> list[Fault]:
        """Add what JSON objects describe: all of them, or none if one is wrong.

        Raises:
            UsageError: one is wrong, or there would be too many.
        """
        made = [kinds.read_rule(one) for one in described]
        rules = [rule for one in made for rule in one.expand(self._chance)]
        self._check_room(len(rules))
        return [self._live(rule) for rule in rules]

    def _check_room(self, count: int) -> None:
        if len(self._all) + count > MOST_RULES:
            raise UsageError(
                f"there can be {MOST_RULES:,} faults at once, and there are {len(self._all):,}: remove some"
            )

    def add(self, rule: FaultRule | Mapping[str, object]) -> Fault:
        """Add one rule. A ``random`` one gives the first of its mixture.

        Raises:
            UsageError: it is wrong.
        """
        return self.load([rule.to_dict() if isinstance(rule, FaultRule) else rule])[0]

    def clear(self) -> None:
        """Remove every rule."""
        for fault in self.rules:
            fault.remove()

    def _live(self, rule: FaultRule) -> Fault:
        self._check_room(1)
        fault = Fault(next(self._numbers), rule, self._drop, rule.due_at(self._now()))
        self._all[fault.id] = fault
        for hook in rule.hooks():
            self._hooked[hook][fault.id] = fault
        self.on_add()
        return fault

    def _drop(self, fault: Fault) -> None:
        for held in (self._all, *self._hooked.values()):
            held.pop(fault.id, None)

    def _hits(self, fault: Fault) -> bool:
        """Whether a fault that matches hits this time."""
        if not fault.is_live:
            return False
        if fault.passes_left:
            fault.passes_left -= 1
            return False
        if fault.rule.chance < 1 and self._chance.random() >= fault.rule.chance:
            return False
        fault.hits += 1
        if fault.count_left == 0:
            fault.remove()
        return True

    # ---- what the service asks

    def plan(self, state: "ServiceState", operation: str, request: object) -> Plan:
        """What happens to a request that has come."""
        target = target_of(request, state)
        plan = Plan(operation, target, state.settings.account_id, self._chance)
        sent: set[str] | None = None
        for fault in list(self.for_requests.values()):
            rule = fault.rule
            if not fault.matches(operation, target.stream) or not rule.is_open(plan):
                continue
            if rule.shard_id is not None:
                if sent is None:
                    sent = {*target.shards, *shards_of_records(request, state.streams.get(target.stream or ""))}
                if rule.shard_id not in sent:
                    continue
            if self._hits(fault):
                plan.hits.append(rule)
                rule.on_request(plan)
        return plan

    def failed_entries(self, stream: "ServerStream", shards: "list[ServerShard]") -> dict[int, tuple[str, str]]:
        """Which entries of a PutRecords fail, with which code and message; ``shards`` is where each would go."""
        failed: dict[int, tuple[str, str]] = {}
        for fault, places in self._hit_entries("on_entries", stream, shards):
            failed = fault.rule.on_entries(places, self._chance) | failed
        return failed

    def result_delta(self, stream: "ServerStream", shards: "list[ServerShard]") -> int:
        """By how many the results of a PutRecords are too many."""
        hits = self._hit_entries("on_results", stream, shards)
        return next((fault.rule.on_results() for fault, _ in hits), 0)

    def _hit_entries(
        self, hook: str, stream: "ServerStream", shards: "list[ServerShard]"
    ) -> Iterator[tuple[Fault, list[int]]]:
        """The faults that hit a PutRecords, one after the other, and the places of the entries that each is about."""
        for fault in list(self._hooked[hook].values()):
            if fault.matches("PutRecords", stream.name):
                wanted = fault.rule.shard_id
                places = [at for at, shard in enumerate(shards) if wanted in {None, shard.shard_id}]
                if places and self._hits(fault):
                    yield fault, places

    def push_ending(self, stream: str, shard_id: str, *, due: bool) -> PushEnding | None:
        """What befalls a subscription: at once; rules that count pushes, or throw dice, only where one is ``due``."""
        for fault in list(self.for_pushes.values()):
            rule = fault.rule
            if not fault.matches("SubscribeToShard", stream) or (rule.shard_id or shard_id) != shard_id:
                continue
            if due is (fault.passes_left > 0 or rule.chance < 1) and self._hits(fault):
                return rule.on_push()
        return None

    def handle_time(self, streams: "dict[str, ServerStream]", now: float) -> set[str]:
        """Carry out what is due; give the names of the streams that changed."""
        changed: set[str] = set()
        for fault in sorted(self.for_time.values(), key=lambda one: (one.at, one.id)):
            stream = streams.get(fault.rule.stream or "")
            if fault.at is None or fault.at > now or stream is None or stream.status != "ACTIVE":
                continue
            fault.problem = fault.rule.on_time(stream, fault.at, now)
            if fault.problem is None:
                fault.hits += 1
                changed.add(stream.name)
            fault.remove()
        return changed

    # ---- rules by their kinds

    def throttle(self, **filters: Unpack[Filters]) -> Fault:
        """Too fast: see ``fault_kinds.Throttle``."""
        return self._make(kinds.Throttle, filters)

    def fail_entries(
        self,
        *,
        k: int | None = None,
        share: float | None = None,
        code: str = "InternalFailure",
        message: str = "Internal Service Failure",
        **filters: Unpack[Filters],
    ) -> Fault:
        """Some entries of PutRecords fail, and are not stored."""
        return self._make(kinds.FailEntries, filters, k=k, share=share, code=code, message=message)

    def error(self, code: str, message: str = "", *, status: int | None = None, **filters: Unpack[Filters]) -> Fault:
        """The request is answered with an error of any type."""
        return self._make(kinds.Error, filters, code=code, message=message, status=status)

    def expired_iterator(self, **filters: Unpack[Filters]) -> Fault:
        """GetRecords: the iterator is too old."""
        return self.error(
            "ExpiredIteratorException", "Iterator expired.", **(Filters(operation="GetRecords") | filters)
        )

    def expired_token(self, **filters: Unpack[Filters]) -> Fault:
        """The caller's credentials have expired."""
        return self.error("ExpiredTokenException", "The security token included in the request is expired", **filters)

    def unavailable(self, **filters: Unpack[Filters]) -> Fault:
        """503, as AWS says it."""
        return self.error("ServiceUnavailableException", "Service Unavailable", **filters)

    def latency(
        self,
        seconds: float | tuple[float, float] | dict[str, float],
        *,
        where: Literal["before", "after"] = "before",
        **filters: Unpack[Filters],
    ) -> Fault:
        """The answer is late."""
        return self._make(kinds.Latency, filters, seconds=seconds, where=where)

    def reset(self, where: Literal["before", "after", "inside"] = "before", **filters: Unpack[Filters]) -> Fault:
        """The connection is reset before, after (the answer is lost) or inside the answer."""
        return self._make(kinds.Reset, filters, where=where)

    def truncate(self, *, at: int | None = None, share: float | None = None, **filters: Unpack[Filters]) -> Fault:
        """The answer's body ends early; by half, unless told."""
        return self._make(kinds.Truncate, filters, at=at, share=share)

    def malformed(self, body: bytes | str | None = None, *, handled: bool = True, **filters: Unpack[Filters]) -> Fault:
        """200, and garbage."""
        members = {"body_base64" if isinstance(body, bytes) else "body": body}
        return self._make(kinds.Malformed, filters, **members, handled=handled)

    def html(self, status: int = 503, *, handled: bool = False, **filters: Unpack[Filters]) -> Fault:
        """A proxy's page."""
        return self._make(kinds.Html, filters, status=status, handled=handled)

    def wrong_count(self, delta: int = -1, **filters: Unpack[Filters]) -> Fault:
        """PutRecords answers with too few or too many results."""
        return self._make(kinds.WrongCount, filters, delta=delta)

    def clock_skew(self, seconds: float, **filters: Unpack[Filters]) -> Fault:
        """The service's clock, as clients see it, is off."""
        return self._make(kinds.ClockSkew, filters, seconds=seconds)

    def fan_out_exception(
        self, code: str = "InternalFailureException", message: str = "Internal Service Failure",
        **filters: Unpack[Filters],
    ) -> Fault:  # fmt: skip
        """An exception frame in the event stream, then its end."""
        return self._make(kinds.FanOutException, filters, code=code, message=message)

    def fan_out_end(self, **filters: Unpack[Filters]) -> Fault:
        """The event stream ends cleanly, before its time."""
        return self._make(kinds.FanOutEnd, filters)

    def fan_out_reset(self, **filters: Unpack[Filters]) -> Fault:
        """The event stream's connection is reset."""
        return self._make(kinds.FanOutReset, filters)

    def reshard_at(
        self,
        at: float | None = None,
        *,
        delay: float | None = None,
        stream: str,
        action: Literal["split", "merge", "scale"],
        shard: str | int | None = None,
        shards: int | None = None,
    ) -> Fault:
        """The stream's shards change at that time of the server's clock, or in ``delay`` seconds."""
        return self._make(
            kinds.Reshard, {"stream": stream}, at=at, delay=delay, action=action, shard=shard, shards=shards
        )

    def _make(self, kind: type[FaultRule], filters: Filters, **own: object) -> Fault:
        """Add a rule, from keyword arguments as JSON would have them: no ``None``, and lists for sets."""
        members: dict[str, Any] = {
            name: sorted(cast("set[str]", value)) if isinstance(value, (set, frozenset)) else value
            for name, value in {**filters, **own}.items()
            if value is not None
        }
        return self._live(kind.make(**members))
