"""What goes wrong with this request?

Rules (``fault_rules``), each live from when it was added until its count is used up or it is removed. The service asks
at three places: ``plan`` when a request has come, ``doom`` and ``miscount`` inside PutRecords, ``push_fault`` when a
subscription is about to push. Reshards happen as the service's time passes.

Invariants:

- FA1: rules are asked in the order in which they were added. Of each sort (wait, reset, refusal, answer, skew) the
  first that hits is taken, and the later ones are not asked: they keep their counts.
- FA2: the same seed, rules and requests give the same faults. A rule whose chance is 1 draws nothing.
- FA3: what a fault refuses is not stored; what it only hides (an answer lost, cut or wrong) is stored.
- FA4: an entry is refused by one rule at most; the entries that no rule names are stored.
- FA5: without rules nothing is looked at: a request costs the test of an empty dict.
- FA6: rules may be added and removed while another thread serves: each change is one operation of a dict.
- FA7: there are at most ``MOST_RULES``: each of them costs every request a look.
"""

from collections.abc import Callable, Iterable, Mapping
from itertools import count as count_up
from typing import TYPE_CHECKING, Final, Literal, Self, final

from shardline.errors import UsageError
from shardline.server.model import fault_rules as kinds
from shardline.server.model.fault_kinds import Fault, FaultKinds
from shardline.server.model.fault_mixture import draw_mixture
from shardline.server.model.fault_reshards import carry_out
from shardline.server.model.fault_rules import FaultRule
from shardline.server.model.refusals import Refused, call_throttled, limit_exceeded, shard_throttling, throttled
from shardline.server.model.targets import Target, shards_of_records, target_of

if TYPE_CHECKING:
    from random import Random

    from shardline.server.model.shards import ServerShard
    from shardline.server.model.state import ServiceState
    from shardline.server.model.streams import ServerStream

MOST_RULES: Final = 1_000
_DATA_PLANE: Final = frozenset({"PutRecord", "GetRecords", "GetShardIterator", "SubscribeToShard"})
_THROTTLED: Final = "ProvisionedThroughputExceededException"


@final
class Plan:
    """What happens to one request, beyond what the model answers."""

    __slots__ = ("answer", "delay", "refusal", "reset", "skew", "waits_first")

    def __init__(self) -> None:
        self.skew = 0.0
        self.delay = 0.0
        self.waits_first = False
        self.reset: Literal["before", "after", "inside"] | None = None
        self.refusal: Refused | None = None
        self.answer: kinds.Truncate | kinds.Malformed | kinds.Html | None = None

    @property
    def is_handled(self) -> bool:
        """Whether the model is asked at all."""
        hidden = isinstance(self.answer, (kinds.Malformed, kinds.Html)) and not self.answer.handled
        return self.reset != "before" and not hidden


@final
class Faults(FaultKinds):
    """The rules that live. ``now`` tells the service's time, from which the delay of a reshard counts."""

    def __init__(self, chance: "Random", now: Callable[[], float]) -> None:
        self._chance = chance
        self._now = now
        self._numbers = count_up(1)
        self._all: dict[int, Fault] = {}
        self.for_requests: dict[int, Fault] = {}
        self.for_entries: dict[int, Fault] = {}
        self.for_pushes: dict[int, Fault] = {}
        self.reshards: dict[int, Fault] = {}
        self._watchers: list[Callable[[], None]] = []

    @classmethod
    def random(cls, chance: "Random", now: Callable[[], float], intensity: float = 0.05) -> Self:
        """Faults of all kinds drawn from ``chance``, each with a chance of up to ``intensity``."""
        faults = cls(chance, now)
        faults.load([{"kind": "random", "intensity": intensity}])
        return faults

    # ---- rules

    @property
    def rules(self) -> list[Fault]:
        """Those that live, in the order in which they were added."""
        return list(self._all.values())

    def load(self, described: Iterable[Mapping[str, object]]) -> list[Fault]:
        """Add what JSON objects describe: all of them, or none if one is wrong.

        Raises:
            UsageError: one is wrong, or there would be too many (FA7).
        """
        made = [FaultRule.from_dict(one) for one in described]
        drawn = [draw_mixture(one, self._chance) if isinstance(one, kinds.Chaos) else [one] for one in made]
        rules = [rule for several in drawn for rule in several]
        self._check_room(len(rules))
        return [self._live(rule) for rule in rules]

    def _check_room(self, count: int) -> None:
        """FA7."""
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
        at = None
        if isinstance(rule, kinds.Reshard):
            at = rule.at if rule.delay is None else self._now() + rule.delay
        fault = Fault(next(self._numbers), rule, self._drop, at)
        self._all[fault.id] = fault
        if isinstance(rule, kinds.Reshard):
            self.reshards[fault.id] = fault
        elif isinstance(rule, kinds.FanOutRule):
            self.for_pushes[fault.id] = fault
        elif isinstance(rule, (kinds.FailEntries, kinds.WrongCount)):
            self.for_entries[fault.id] = fault
        else:
            self.for_requests[fault.id] = fault
            if isinstance(rule, kinds.Throttle) and fault.matches("PutRecords", rule.stream):
                self.for_entries[fault.id] = fault
        for watcher in self._watchers:
            watcher()
        return fault

    def watch(self, watcher: Callable[[], None]) -> None:
        """Call ``watcher`` whenever a rule was added, in the thread that adds it: some hit before any request comes."""
        self._watchers.append(watcher)

    def _drop(self, fault: Fault) -> None:
        for held in (self._all, self.for_requests, self.for_entries, self.for_pushes, self.reshards):
            held.pop(fault.id, None)

    def _hits(self, fault: Fault) -> bool:
        """Whether a fault that matches hits this time (FA2)."""
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
        plan = Plan()
        target = target_of(request, state)
        sent: set[str] | None = None
        for fault in list(self.for_requests.values()):
            rule = fault.rule
            if not fault.matches(operation, target.stream) or _is_taken(plan, rule, operation):
                continue
            if rule.shard_id is not None:
                if sent is None:
                    sent = {*target.shards, *shards_of_records(request, state.streams.get(target.stream or ""))}
                if rule.shard_id not in sent:
                    continue
            if self._hits(fault):
                self._take(plan, rule, state, operation, target)
        return plan

    def _take(self, plan: Plan, rule: FaultRule, state: "ServiceState", operation: str, target: Target) -> None:
        match rule:
            case kinds.ClockSkew():
                plan.skew = rule.seconds
            case kinds.Latency():
                plan.delay, plan.waits_first = self._draw_seconds(rule), rule.where == "before"
            case kinds.Reset():
                plan.reset = rule.where
            case kinds.Error():
                plan.refusal = Refused(rule.code, rule.message, rule.http_status)
            case kinds.Throttle():
                plan.refusal = _throttling(state.settings.account_id, operation, rule, target)
            case kinds.Truncate() | kinds.Malformed() | kinds.Html():
                plan.answer = rule
            case _:
                raise AssertionError(rule)

    def _draw_seconds(self, rule: kinds.Latency) -> float:
        seconds = rule.seconds
        if isinstance(seconds, list):
            return self._chance.uniform(seconds[0], seconds[1])
        if isinstance(seconds, kinds.Lognormal):
            parameters = seconds.parameters()
            assert parameters is not None, "a rule that exists is valid (FR1)"
            return self._chance.lognormvariate(*parameters)
        return seconds

    def doom(self, stream: "ServerStream", shards: "list[ServerShard]") -> dict[int, tuple[str, str]]:
        """Which entries of a PutRecords fail, with which code and message (FA4); ``shards`` is where each would go."""
        doomed: dict[int, tuple[str, str]] = {}
        for fault in list(self.for_entries.values()):
            rule = fault.rule
            if isinstance(rule, kinds.WrongCount) or not fault.matches("PutRecords", stream.name):
                continue
            wanted = rule.shard_id
            places = [at for at, shard in enumerate(shards) if wanted is None or shard.shard_id == wanted]
            if not places or not self._hits(fault):
                continue
            if isinstance(rule, kinds.FailEntries):
                share = -(-len(places) * (rule.share or 0.0) // 1)
                some = min(len(places), int(share) if rule.k is None else rule.k)
                why = (rule.code, rule.message)
                doomed |= {at: why for at in self._chance.sample(places, some) if at not in doomed}
            else:
                doomed |= {at: (_THROTTLED, "") for at in places if at not in doomed}
        return doomed

    def miscount(self, stream: "ServerStream", shards: "list[ServerShard]") -> int:
        """By how many the results of a PutRecords are too many."""
        for fault in list(self.for_entries.values()):
            rule = fault.rule
            if not isinstance(rule, kinds.WrongCount) or not fault.matches("PutRecords", stream.name):
                continue
            touched = rule.shard_id is None or any(shard.shard_id == rule.shard_id for shard in shards)
            if touched and self._hits(fault):
                return rule.delta
        return 0

    def push_fault(self, stream: str, shard_id: str, *, due: bool) -> kinds.FanOutRule | None:
        """What befalls a subscription: at once; rules that count pushes, or throw dice, only where one is ``due``."""
        for fault in list(self.for_pushes.values()):
            rule = fault.rule
            if not fault.matches("SubscribeToShard", stream) or (rule.shard_id or shard_id) != shard_id:
                continue
            if due is (fault.passes_left > 0 or rule.chance < 1) and self._hits(fault):
                assert isinstance(rule, kinds.FanOutRule)
                return rule
        return None

    def reshard(self, streams: "dict[str, ServerStream]", now: float) -> set[str]:
        """Carry out the reshards that are due; give the names of the streams that changed."""
        changed: set[str] = set()
        for fault in sorted(self.reshards.values(), key=lambda one: (one.at, one.id)):
            rule = fault.rule
            assert isinstance(rule, kinds.Reshard)
            assert fault.at is not None
            stream = streams.get(rule.stream or "")
            if fault.at > now or stream is None or stream.status != "ACTIVE":
                continue
            fault.problem = carry_out(rule, stream, fault.at, now)
            if fault.problem is None:
                fault.hits += 1
                changed.add(stream.name)
            fault.remove()
        return changed


def _is_taken(plan: Plan, rule: FaultRule, operation: str) -> bool:
    """Whether there is nothing left for such a rule to do (FA1)."""
    match rule:
        case kinds.ClockSkew():
            return plan.skew != 0.0
        case kinds.Latency():
            return plan.delay != 0.0
        case kinds.Reset():
            return plan.reset is not None
        case kinds.Truncate() | kinds.Malformed() | kinds.Html():
            return plan.answer is not None or plan.reset is not None
        case _:
            # PutRecords is throttled entry by entry, in `doom`
            is_done = isinstance(rule, kinds.Throttle) and operation == "PutRecords"
            return is_done or plan.refusal is not None or not plan.is_handled


def _throttling(account: str, operation: str, rule: kinds.Throttle, target: Target) -> Refused:
    if operation not in _DATA_PLANE:
        return call_throttled(target.stream, account)
    shard = rule.shard_id or next(iter(target.shards), "shardId-000000000000")
    message = shard_throttling(operation, shard, target.stream, account)
    return limit_exceeded(message) if operation == "SubscribeToShard" else throttled(message)
