"""Decides which faults hit a request.

A rule (``fault_rules``) is live from the time when it is added until its count is used up or it is removed. The service
calls ``plan`` when a request arrives, ``failed_entries`` and ``result_delta`` inside PutRecords, ``push_ending`` when a
subscription is about to push, and ``handle_time`` when the service's time advances.

Invariants:

- Rules are applied in the order in which they were added. Of each sort (wait, reset, refusal, answer, skew), only the
  first rule that hits takes effect. The later ones are skipped, and their counts do not change.
- The same seed, rules and requests produce the same faults. A rule whose chance is 1 draws no random number.
- Records that a fault refuses are not stored. If a fault only loses, cuts or falsifies the answer, they are stored.
- At most one rule refuses an entry. Entries that no rule refuses are stored.
- Without rules, a request costs one check of an empty dict.
- Rules may be added and removed while another thread serves requests: each change is one operation of a dict.
- There are at most ``RULES_MAX`` rules, because every request is compared with each of them.
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

RULES_MAX: Final = 1_000


class Filters(TypedDict, total=False):
    """The keys that select which requests are hit, and how often: see ``fault_rules``."""

    operation: str | set[str] | list[str]
    stream: str
    shard: str | int
    count: int
    after: int
    chance: float


@final
class Fault:
    """A rule that was added. It counts its hits, and can be removed."""

    def __init__(self, number: int, rule: FaultRule, end: Callable[["Fault"], None], at: float | None = None) -> None:
        self.id = number
        self.rule = rule
        self.hits = 0
        self.passes_left: int = rule.after
        self.at = at
        """For a reshard: the time at which the reshard is due."""
        self.problem: str | None = None
        """For a reshard: why the reshard was not possible, or ``None``."""
        self.is_live: bool = True
        self._end = end
        self._operations = rule.operations

    def __repr__(self) -> str:
        return f"<Fault {self.id} {self.rule.kind}, {self.hits} hits, {self.count_left} left>"

    @property
    def count_left(self) -> int | None:
        """How many hits are left. ``None`` means no limit."""
        if not self.is_live:
            return 0
        return None if self.rule.count is None else self.rule.count - self.hits

    def remove(self) -> None:
        """Remove the rule. Removing it twice is harmless."""
        self.is_live = False
        self._end(self)

    def matches(self, operation: str, stream: str | None) -> bool:
        """Return whether the rule selects this operation and stream. The caller checks the shards, which costs more."""
        named = self._operations
        return (named is None or operation in named) and (self.rule.stream is None or self.rule.stream == stream)

    def to_dict(self) -> dict[str, object]:
        """Return the rule and its state as a JSON object."""
        state: dict[str, object] = {"id": self.id, "hits": self.hits, "count_left": self.count_left}
        if self.problem is not None:
            state["problem"] = self.problem
        return state | self.rule.to_dict()


@final
class Faults:
    """The live rules. ``now`` returns the service's time. The delay of a reshard counts from this time.

    For each kind, a method adds a rule of that kind and returns its ``Fault``. It raises ``UsageError`` if an argument
    is invalid.
    """

    def __init__(self, rng: "Random", now: Callable[[], float]) -> None:
        self._rng = rng
        self._now = now
        self._numbers = count_up(1)
        self._all: dict[int, Fault] = {}
        self._hooked: dict[str, dict[int, Fault]] = {hook: {} for hook in HOOKS}
        self.for_requests: dict[int, Fault] = self._hooked["on_request"]
        self.for_pushes: dict[int, Fault] = self._hooked["on_push"]
        self.for_time: dict[int, Fault] = self._hooked["on_time"]
        self.on_add: Callable[[], None] = lambda: None
        """Called after a rule was added, in the thread that added it, because some rules take effect without a request.

        ``RunningServer`` sets it.
        """

    # ---- rules

    @property
    def has_entries(self) -> bool:
        """Whether there is a rule about the entries of PutRecords."""
        return bool(self._hooked["on_entries"] or self._hooked["on_results"])

    @property
    def rules(self) -> list[Fault]:
        """The live rules, in the order in which they were added."""
        return list(self._all.values())

    def load(self, described: Iterable[Mapping[str, object]]) -> list[Fault]:
        """Add the rules that JSON objects describe: all of them, or none if one is invalid.

        Raises:
            UsageError: a rule is invalid, or there would be too many rules.
        """
        described_rules = [kinds.read_rule(members) for members in described]
        rules = [rule for described_rule in described_rules for rule in described_rule.expand(self._rng)]
        self._check_room(len(rules))
        return [self._activate(rule) for rule in rules]

    def _check_room(self, count: int) -> None:
        if len(self._all) + count > RULES_MAX:
            raise UsageError(
                f"there can be at most {RULES_MAX:,} faults at once, and there are {len(self._all):,}: remove some"
            )

    def add(self, rule: FaultRule | Mapping[str, object]) -> Fault:
        """Add one rule. For a ``random`` rule, return the first rule of its mixture.

        Raises:
            UsageError: the rule is invalid, or there are too many rules.
        """
        return self.load([rule.to_dict() if isinstance(rule, FaultRule) else rule])[0]

    def clear(self) -> None:
        """Remove every rule."""
        for fault in self.rules:
            fault.remove()

    def _activate(self, rule: FaultRule) -> Fault:
        self._check_room(1)
        fault = Fault(next(self._numbers), rule, self._drop, rule.due_at(self._now()))
        self._all[fault.id] = fault
        for hook in rule.hooks():
            self._hooked[hook][fault.id] = fault
        self.on_add()
        return fault

    def _drop(self, fault: Fault) -> None:
        for faults in (self._all, *self._hooked.values()):
            faults.pop(fault.id, None)

    def _hits(self, fault: Fault) -> bool:
        """Return whether a fault that matches hits this time, and count the hit."""
        if not fault.is_live:
            return False
        if fault.passes_left:
            fault.passes_left -= 1
            return False
        if fault.rule.chance < 1 and self._rng.random() >= fault.rule.chance:
            return False
        fault.hits += 1
        if fault.count_left == 0:
            fault.remove()
        return True

    # ---- called by the service

    def plan(self, state: "ServiceState", operation: str, request: object) -> Plan:
        """Return the effects of the faults on a request that has arrived."""
        target = target_of(request, state)
        plan = Plan(operation, target, state.settings.account_id, self._rng)
        shard_ids: set[str] | None = None  # computed only if a rule has a shard
        for fault in list(self.for_requests.values()):
            rule = fault.rule
            if not fault.matches(operation, target.stream) or not rule.is_open(plan):
                continue
            if rule.shard_id is not None:
                if shard_ids is None:
                    shard_ids = {*target.shards, *shards_of_records(request, state.streams.get(target.stream or ""))}
                if rule.shard_id not in shard_ids:
                    continue
            if self._hits(fault):
                plan.hits.append(rule)
                rule.on_request(plan)
        return plan

    def failed_entries(self, stream: "ServerStream", shards: "list[ServerShard]") -> dict[int, tuple[str, str]]:
        """Return the code and the message of each failing entry of a PutRecords request, by the index of the entry.

        ``shards`` are the shards that the entries go to.
        """
        failed: dict[int, tuple[str, str]] = {}
        for fault, places in self._hit_entries("on_entries", stream, shards):
            failed = fault.rule.on_entries(places, self._rng) | failed
        return failed

    def result_delta(self, stream: "ServerStream", shards: "list[ServerShard]") -> int:
        """Return the number of results to add to the answer to a PutRecords request. The number may be negative."""
        hits = self._hit_entries("on_results", stream, shards)
        return next((fault.rule.on_results() for fault, _ in hits), 0)

    def _hit_entries(
        self, hook: str, stream: "ServerStream", shards: "list[ServerShard]"
    ) -> Iterator[tuple[Fault, list[int]]]:
        """Yield the faults that hit a PutRecords request, each with the indexes of the entries that it selects."""
        for fault in list(self._hooked[hook].values()):
            if fault.matches("PutRecords", stream.name):
                wanted = fault.rule.shard_id
                places = [at for at, shard in enumerate(shards) if wanted in {None, shard.shard_id}]
                if places and self._hits(fault):
                    yield fault, places

    def push_ending(self, stream: str, shard_id: str, *, due: bool) -> PushEnding | None:
        """Return how a fault ends a subscription, or ``None`` if no fault hits it.

        Rules with ``after`` or ``chance`` count pushes, so they apply only if a push is ``due``. All other rules apply
        immediately, before a push is due.
        """
        for fault in list(self.for_pushes.values()):
            rule = fault.rule
            if not fault.matches("SubscribeToShard", stream) or (rule.shard_id or shard_id) != shard_id:
                continue
            if due is (fault.passes_left > 0 or rule.chance < 1) and self._hits(fault):
                return rule.on_push()
        return None

    def handle_time(self, streams: "dict[str, ServerStream]", now: float) -> set[str]:
        """Carry out the reshards that are due. Return the names of the streams that changed."""
        changed: set[str] = set()
        for fault in sorted(self.for_time.values(), key=lambda fault: (fault.at, fault.id)):
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
        """Throttle requests or entries of PutRecords: see ``fault_kinds.Throttle``."""
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
        """Fail some entries of PutRecords, so that they are not stored."""
        return self._make(kinds.FailEntries, filters, k=k, share=share, code=code, message=message)

    def error(self, code: str, message: str = "", *, status: int | None = None, **filters: Unpack[Filters]) -> Fault:
        """Answer requests with an error of any type, and do not carry them out."""
        return self._make(kinds.Error, filters, code=code, message=message, status=status)

    def expired_iterator(self, **filters: Unpack[Filters]) -> Fault:
        """Answer GetRecords with ExpiredIteratorException."""
        return self.error(
            "ExpiredIteratorException", "Iterator expired.", **(Filters(operation="GetRecords") | filters)
        )

    def expired_token(self, **filters: Unpack[Filters]) -> Fault:
        """Answer requests as if the caller's credentials had expired."""
        return self.error("ExpiredTokenException", "The security token included in the request is expired", **filters)

    def unavailable(self, **filters: Unpack[Filters]) -> Fault:
        """Answer requests with status 503, in AWS's form."""
        return self.error("ServiceUnavailableException", "Service Unavailable", **filters)

    def latency(
        self,
        seconds: float | tuple[float, float] | dict[str, float],
        *,
        where: Literal["before", "after"] = "before",
        **filters: Unpack[Filters],
    ) -> Fault:
        """Delay the answers to requests: see ``fault_kinds.Latency``."""
        return self._make(kinds.Latency, filters, seconds=seconds, where=where)

    def reset(self, where: Literal["before", "after", "inside"] = "before", **filters: Unpack[Filters]) -> Fault:
        """Reset connections before or after a request is carried out, or in the middle of the answer."""
        return self._make(kinds.Reset, filters, where=where)

    def truncate(self, *, at: int | None = None, share: float | None = None, **filters: Unpack[Filters]) -> Fault:
        """Cut the body of answers, by default in the middle."""
        return self._make(kinds.Truncate, filters, at=at, share=share)

    def malformed(self, body: bytes | str | None = None, *, handled: bool = True, **filters: Unpack[Filters]) -> Fault:
        """Answer with status 200 and an unparseable body."""
        members = {"body_base64" if isinstance(body, bytes) else "body": body}
        return self._make(kinds.Malformed, filters, **members, handled=handled)

    def html(self, status: int = 503, *, handled: bool = False, **filters: Unpack[Filters]) -> Fault:
        """Answer with an HTML page, as a proxy would."""
        return self._make(kinds.Html, filters, status=status, handled=handled)

    def wrong_count(self, delta: int = -1, **filters: Unpack[Filters]) -> Fault:
        """Answer PutRecords with too few or too many results."""
        return self._make(kinds.WrongCount, filters, delta=delta)

    def clock_skew(self, seconds: float, **filters: Unpack[Filters]) -> Fault:
        """Shift the service's clock, as clients see it."""
        return self._make(kinds.ClockSkew, filters, seconds=seconds)

    def fan_out_exception(
        self, code: str = "InternalFailureException", message: str = "Internal Service Failure",
        **filters: Unpack[Filters],
    ) -> Fault:  # fmt: skip
        """End subscriptions with an exception frame."""
        return self._make(kinds.FanOutException, filters, code=code, message=message)

    def fan_out_end(self, **filters: Unpack[Filters]) -> Fault:
        """End subscriptions cleanly, but early."""
        return self._make(kinds.FanOutEnd, filters)

    def fan_out_reset(self, **filters: Unpack[Filters]) -> Fault:
        """Reset the connections of subscriptions."""
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
        """Reshard the stream at a time of the server's clock, or in ``delay`` seconds."""
        return self._make(
            kinds.Reshard, {"stream": stream}, at=at, delay=delay, action=action, shard=shard, shards=shards
        )

    def _make(self, kind: type[FaultRule], filters: Filters, **own: object) -> Fault:
        """Add a rule from keyword arguments. For JSON, ``None`` values are left out, and sets become lists."""
        members: dict[str, Any] = {
            name: sorted(cast("set[str]", value)) if isinstance(value, (set, frozenset)) else value
            for name, value in {**filters, **own}.items()
            if value is not None
        }
        return self._activate(kind.make(**members))
