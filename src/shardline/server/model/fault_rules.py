"""What is a fault, how is it written down, and where does it hook in?

A rule is a flat JSON object; a file of rules is a list of them::

    [
      {"kind": "throttle", "operation": "PutRecords", "stream": "orders", "shard": 2, "count": 3},
      {"kind": "fail_entries", "share": 0.1, "chance": 0.5},
      {"kind": "error", "operation": ["GetRecords", "ListShards"], "code": "InternalFailureException", "count": 1},
      {"kind": "latency", "seconds": {"mean": 0.02, "p99": 0.2}},
      {"kind": "reset", "where": "after", "operation": "PutRecords", "after": 10, "count": 1},
      {"kind": "reshard", "delay": 5, "stream": "orders", "action": "split", "shard": 0}
    ]

Which requests it hits, the same for every kind (a ``reshard`` has ``stream`` and ``shard`` alone):

- ``operation``: one or a list; without it every operation that the kind can hit.
- ``stream``, ``shard``: the stream's name; the shard's id or its number. A request hits a shard if it names it, or if
  one of its records goes there.
- ``after``: that many requests that match pass first. ``chance``: each that matches then is hit with that probability.
  ``count``: after so many hits the rule is done. Without it the rule stays until it is removed.

The kinds and their own keys are the classes in ``fault_kinds``. A kind overrides the hooks that it needs, and
``Faults`` asks a rule only where its kind hooks in; a rule that hits a request at two hooks has hit twice.

Invariants:

- A rule that exists is valid: an unknown kind, key or value is a ``UsageError`` that names what is allowed.
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


# ---- what the hooks write


@final
class Plan:
    """What happens to one request, beyond what the model answers."""

    def __init__(self, operation: str, target: Target, account: str, chance: "Random") -> None:
        self.operation = operation
        self.target = target
        self.account = account
        self.chance = chance
        self.hits: list[FaultRule] = []
        """The rules that hit the request, in their order."""
        self.skew = 0.0
        """How far the clock is off, as the client sees it."""
        self.delay = 0.0
        """How many seconds to wait: before the request is carried out, if ``waits_first``, or after it."""
        self.waits_first = False
        self.is_handled = True
        """Whether the request is carried out at all."""
        self.refusal: Refused | None = None


@final
class ReplyPlan:
    """The reply to one request, and how it is sent."""

    def __init__(self, status: int, headers: dict[str, str], body: bytes, *, has_pushes: bool, delay: float) -> None:
        self.status = status
        self.headers = headers
        self.body = body
        self.has_pushes = has_pushes
        """Whether the pushes of a subscription follow the head."""
        self.delay = delay
        self.is_silent = False
        self.cut: int | None = None
        """How many bytes of the body are sent, if not all."""
        self.ending: Literal["keep", "close", "reset"] = "keep"
        """What becomes of the connection."""


@final
class PushEnding(NamedTuple):
    """How a subscription ends before its time."""

    exception: tuple[str, str] | None = None
    """Code and message of the exception frame that it ends with."""
    is_reset: bool = False


# ---- rules


class FaultRule(Struct, kw_only=True, omit_defaults=True, forbid_unknown_fields=True, tag_field="kind"):
    """What every kind has: which requests are hit, and how often."""

    operation: str | list[str] | None = None
    stream: str | None = None
    shard: str | Count | None = None
    count: Some | None = None
    after: Count = 0
    chance: Share = 1.0

    sort: ClassVar[str] = ""
    """Of the rules of one sort, the first that hits a request is taken."""
    usual: ClassVar[frozenset[str] | None] = None
    """The operations that the kind hits when none is named."""

    @property
    def kind(self) -> str:
        return str(type(self).__struct_config__.tag)

    @property
    def operations(self) -> frozenset[str] | None:
        """Those it can hit; ``None`` is every one."""
        if self.operation is None:
            return self.usual
        return frozenset([self.operation] if isinstance(self.operation, str) else self.operation)

    @property
    def shard_id(self) -> str | None:
        return shard_id_of(self.shard) if isinstance(self.shard, int) else self.shard

    def problem(self) -> str | None:
        """What is wrong with it although each key by itself is right."""
        return None

    @classmethod
    def hooks(cls) -> set[str]:
        """The hooks that the kind overrides. A rule that changes replies is asked when the request comes."""
        own = {name for name in HOOKS if getattr(cls, name) is not getattr(FaultRule, name)}
        return {"on_request" if name == "on_reply" else name for name in own}

    # ---- hooks: a kind overrides those that it needs

    def expand(self, chance: "Random") -> "list[FaultRule]":
        """The rules that live when this one is added."""
        del chance
        return [self]

    def is_open(self, plan: Plan) -> bool:
        """Whether the earlier rules leave something for this one to do; if not, it keeps its count."""
        return all(rule.sort != self.sort for rule in plan.hits)

    def on_request(self, plan: Plan) -> None:
        """A request has come, and the rule hits it: write into its plan what happens to it."""

    def on_entries(self, places: Sequence[int], chance: "Random") -> dict[int, tuple[str, str]]:
        """A PutRecords has entries for the rule's stream and shard at these places, and the rule hits it.

        Returns the entries that fail, with code and message (without a message: that the shard is throttled).
        """
        del places, chance
        return {}

    def on_results(self) -> int:
        """The rule hits a PutRecords that was carried out. Returns by how many its results are too many."""
        return 0

    def on_reply(self, reply: ReplyPlan) -> None:
        """A request that the rule hit has its reply: change it."""

    def on_push(self) -> PushEnding:
        """The rule hits a subscription that is about to push, and ends it."""
        return PushEnding()

    def due_at(self, now: float) -> float | None:
        """When ``on_time`` is due for a rule that is added now; ``None``: never."""

    def on_time(self, stream: "ServerStream", at: float, now: float) -> str | None:
        """The rule was due ``at`` that time. Returns why it could not be carried out, ``None`` if it was."""

    # ---- as data

    def to_dict(self) -> dict[str, object]:
        return cast("dict[str, object]", msgspec.to_builtins(self))

    @classmethod
    def make(cls, **members: object) -> Self:
        """A rule of this kind.

        Raises:
            UsageError: a key or a value is wrong.
        """
        kind = str(cls.__struct_config__.tag)
        unknown = sorted(set(members) - set(cls.__struct_fields__))
        if unknown:
            allowed = ", ".join(sorted(cls.__struct_fields__))
            raise UsageError(f"a {kind} fault has no {unknown[0]!r}: it may have {allowed}")
        try:
            rule = msgspec.convert({"kind": kind, **members}, cls)
        except msgspec.ValidationError as error:
            raise UsageError(f"a {kind} fault: {error}") from None
        problem = _wrong_operation(rule) or rule.problem()
        if problem is not None:
            raise UsageError(f"a {kind} fault {problem}")
        return rule


def _wrong_operation(rule: FaultRule) -> str | None:
    asked, usual = rule.operations, rule.usual
    for operation in sorted(asked or ()):
        if operation not in INPUTS:
            return f"names an operation that Kinesis does not have: {operation!r}"
        if usual is not None and operation not in usual:
            return f"hits {', '.join(sorted(usual))}, never {operation}"
    return None
