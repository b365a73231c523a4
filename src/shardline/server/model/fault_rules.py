"""Defines the base class of fault rules, the JSON form of rules, and the hooks that a kind of rule can override.

A rule is a flat JSON object. A file of rules is a list of such objects::

    [
      {"kind": "throttle", "operation": "PutRecords", "stream": "orders", "shard": 2, "count": 3},
      {"kind": "fail_entries", "share": 0.1, "chance": 0.5},
      {"kind": "error", "operation": ["GetRecords", "ListShards"], "code": "InternalFailureException", "count": 1},
      {"kind": "latency", "seconds": {"mean": 0.02, "p99": 0.2}},
      {"kind": "reset", "where": "after", "operation": "PutRecords", "after": 10, "count": 1},
      {"kind": "reshard", "delay": 5, "stream": "orders", "action": "split", "shard": 0}
    ]

These keys select the requests that a rule hits. All kinds have them, except that a ``reshard`` accepts only ``stream``
and ``shard``:

- ``operation``: the name of an operation, or a list of names. The default is every operation that the kind can hit.
- ``stream``, ``shard``: the name of a stream, and the id or the number of a shard. A request matches a shard if it
  names the shard, or if one of its records goes to that shard.
- ``after``: the number of matching requests that pass first. ``chance``: the probability that a later matching
  request is hit. ``count``: the number of hits after which the rule is removed. By default, a rule stays until it is
  removed.

The classes in ``fault_kinds`` are the kinds, with their own keys. A kind overrides the hooks that it needs, and
``Faults`` calls only the hooks that the kind overrides. If a rule hits a request at two hooks, this counts as two hits.

Invariants:

- Every rule is valid: an unknown kind, key or value raises a ``UsageError`` that names the allowed ones.
- ``read_rule(rule.to_dict())`` equals ``rule``.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, ClassVar, Final, Literal, NamedTuple, Self, TypeAlias, cast, final

import msgspec
from msgspec import Meta, Struct

from shardline.errors import UsageError
from shardline.server.model.inputs import INPUTS
from shardline.server.model.shards import shard_id_of
from shardline.server.model.targets import Target

if TYPE_CHECKING:
    from random import Random

    from shardline.server.model.refusals import Refused
    from shardline.server.model.streams import ServerStream

Count: TypeAlias = Annotated[int, Meta(ge=0, le=1_000_000_000)]
Some: TypeAlias = Annotated[int, Meta(ge=1, le=1_000_000_000)]
Share: TypeAlias = Annotated[float, Meta(ge=0, le=1)]

HOOKS: Final = ("on_request", "on_entries", "on_results", "on_reply", "on_push", "on_time")


# ---- objects that the hooks change


@final
class Plan:
    """The effects of faults on one request. The hook ``on_request`` writes them."""

    def __init__(self, operation: str, target: Target, account: str, rng: "Random") -> None:
        self.operation = operation
        self.target = target
        self.account = account
        self.rng = rng
        self.hits: list[FaultRule] = []
        """The rules that hit the request, in the order in which they were added."""
        self.skew: float = 0.0
        """How many seconds the service's clock is ahead, as the client sees it."""
        self.delay: float = 0.0
        """How many seconds to wait. With ``waits_first``, the wait comes before the request is carried out, and else
        after it.
        """
        self.waits_first = False
        self.is_handled = True
        """Whether the request is carried out at all."""
        self.refusal: Refused | None = None


@final
class ReplyPlan:
    """The reply to one request and how it is sent. The hook ``on_reply`` changes it."""

    def __init__(self, status: int, headers: dict[str, str], body: bytes, *, has_pushes: bool, delay: float) -> None:
        self.status = status
        self.headers = headers
        self.body = body
        self.has_pushes = has_pushes
        """Whether the pushes of a subscription follow the head."""
        self.delay = delay
        self.is_silent = False
        self.cut: int | None = None
        """How many bytes of the body are sent. ``None`` means all."""
        self.ending: Literal["keep", "close", "reset"] = "keep"
        """Whether the connection is kept, closed or reset."""


@final
class PushEnding(NamedTuple):
    """How a fault ends a subscription."""

    exception: tuple[str, str] | None = None
    """The code and the message of the exception frame at the end, if there is one."""
    is_reset: bool = False


# ---- rules


class FaultRule(Struct, kw_only=True, omit_defaults=True, forbid_unknown_fields=True, tag_field="kind"):
    """The base class of all kinds of rules. Its fields say which requests are hit, and how often."""

    operation: str | list[str] | None = None
    stream: str | None = None
    shard: str | Count | None = None
    count: Some | None = None
    after: Count = 0
    chance: Share = 1.0

    sort: ClassVar[str] = ""
    """The sort of fault. If several rules of the same sort hit a request, only the first one takes effect."""
    usual: ClassVar[frozenset[str] | None] = None
    """The operations that the kind can hit. ``None`` means every operation."""

    @property
    def kind(self) -> str:
        return str(type(self).__struct_config__.tag)

    @property
    def operations(self) -> frozenset[str] | None:
        """The operations that the rule can hit. ``None`` means every operation."""
        if self.operation is None:
            return self.usual
        return frozenset([self.operation] if isinstance(self.operation, str) else self.operation)

    @property
    def shard_id(self) -> str | None:
        return shard_id_of(self.shard) if isinstance(self.shard, int) else self.shard

    def problem(self) -> str | None:
        """Return why the keys contradict each other, or ``None`` if they do not. Each key is valid on its own."""
        return None

    @classmethod
    def hooks(cls) -> set[str]:
        """Return the hooks that the kind overrides.

        ``on_reply`` counts as ``on_request``: whether a rule changes a reply is decided when the request arrives.
        """
        own = {name for name in HOOKS if getattr(cls, name) is not getattr(FaultRule, name)}
        return {"on_request" if name == "on_reply" else name for name in own}

    # ---- hooks: a kind overrides those that it needs

    def expand(self, rng: "Random") -> "list[FaultRule]":
        """Return the rules to add for this rule: only the rule itself, unless it is a random mixture."""
        del rng
        return [self]

    def is_open(self, plan: Plan) -> bool:
        """Return whether this rule can still affect the request, after the rules that have hit it before.

        If it cannot, the rule does not hit, and its count does not change.
        """
        return all(rule.sort != self.sort for rule in plan.hits)

    def on_request(self, plan: Plan) -> None:
        """Write the effect of this rule into the plan of a request that the rule hits."""

    def on_entries(self, places: Sequence[int], rng: "Random") -> dict[int, tuple[str, str]]:
        """Return the entries that fail in a PutRecords request that the rule hits.

        ``places`` are the indexes of the entries for the rule's stream and shard. The result maps the index of each
        failed entry to its code and message. An empty message stands for AWS's message about a throttled shard.
        """
        del places, rng
        return {}

    def on_results(self) -> int:
        """Return the number of results to add to the answer to a PutRecords request that the rule hits. It may be
        negative.
        """
        return 0

    def on_reply(self, reply: ReplyPlan) -> None:
        """Change the reply to a request that the rule hit."""

    def on_push(self) -> PushEnding:
        """Return how the rule ends a subscription that it hits, when the subscription is about to push."""
        return PushEnding()

    def due_at(self, now: float) -> float | None:
        """Return the time at which ``on_time`` is due for a rule that is added now, or ``None`` for never."""

    def on_time(self, stream: "ServerStream", at: float, now: float) -> str | None:
        """Carry out a rule that was due at ``at``. Return why that was not possible, or ``None`` if it was."""

    # ---- conversion

    def to_dict(self) -> dict[str, object]:
        return cast("dict[str, object]", msgspec.to_builtins(self))

    @classmethod
    def make(cls, **members: object) -> Self:
        """Create a rule of this kind.

        Raises:
            UsageError: a key or a value is invalid.
        """
        kind = str(cls.__struct_config__.tag)
        unknown = sorted(set(members) - set(cls.__struct_fields__))
        if unknown:
            allowed = ", ".join(sorted(cls.__struct_fields__))
            raise UsageError(f"a {kind} fault has no key {unknown[0]!r}: the allowed keys are {allowed}")
        try:
            rule = msgspec.convert({"kind": kind, **members}, cls)
        except msgspec.ValidationError as error:
            raise UsageError(f"a {kind} fault: {error}") from None
        problem = _wrong_operation(rule) or rule.problem()
        if problem is not None:
            raise UsageError(f"a {kind} fault {problem}")
        return rule


def _wrong_operation(rule: FaultRule) -> str | None:
    """Return why one of the rule's operations is not allowed, or ``None`` if all are allowed."""
    usual = rule.usual
    for operation in sorted(rule.operations or ()):
        if operation not in INPUTS:
            return f"names an operation that Kinesis does not have: {operation!r}"
        if usual is not None and operation not in usual:
            return f"can hit only {', '.join(sorted(usual))}, not {operation}"
    return None
