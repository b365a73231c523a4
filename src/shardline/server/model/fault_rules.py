"""What can go wrong on demand, and how is it written down?

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

The kinds and their own keys are the classes below, in ``KINDS``.

Invariants:

- FR1: a rule that exists is valid: an unknown kind, key or value is a ``UsageError`` that names what is allowed.
- FR2: ``from_dict(rule.to_dict())`` equals ``rule``.
"""

import math
from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal, Self, TypeAlias, cast, final

import msgspec
from msgspec import Meta, Struct

from shardline.errors import UsageError
from shardline.server.model.inputs import INPUTS
from shardline.server.model.settings import CLOCK_END
from shardline.server.model.shards import shard_id_of

Count: TypeAlias = Annotated[int, Meta(ge=0, le=1_000_000_000)]
Some: TypeAlias = Annotated[int, Meta(ge=1, le=1_000_000_000)]
Seconds: TypeAlias = Annotated[float, Meta(ge=0, le=CLOCK_END)]
Share: TypeAlias = Annotated[float, Meta(ge=0, le=1)]
Status: TypeAlias = Annotated[int, Meta(ge=400, le=599)]

_LONGEST: Final = 3600
_P99: Final = 2.3263478740408408  # standard deviations above the mean, of a normal distribution
_SERVER_ERRORS: Final = {"InternalFailure": 500, "InternalServerError": 500, "ServiceUnavailable": 503}


class FaultRule(Struct, kw_only=True, omit_defaults=True, forbid_unknown_fields=True, tag_field="kind"):
    """What every kind has: which requests are hit, and how often."""

    operation: str | list[str] | None = None
    stream: str | None = None
    shard: str | Count | None = None
    count: Some | None = None
    after: Count = 0
    chance: Share = 1.0

    @property
    def kind(self) -> str:
        return str(type(self).__struct_config__.tag)

    @property
    def operations(self) -> frozenset[str] | None:
        """Those it can hit; ``None`` is every one."""
        if self.operation is None:
            return self.usual()
        return frozenset([self.operation] if isinstance(self.operation, str) else self.operation)

    @property
    def shard_id(self) -> str | None:
        return shard_id_of(self.shard) if isinstance(self.shard, int) else self.shard

    @classmethod
    def usual(cls) -> frozenset[str] | None:
        """The operations that the kind hits when none is named."""
        return None

    def problem(self) -> str | None:
        """What is wrong with it although each key by itself is right."""
        return None

    def to_dict(self) -> dict[str, object]:
        return cast("dict[str, object]", msgspec.to_builtins(self))

    @staticmethod
    def from_dict(members: Mapping[str, object]) -> "FaultRule":
        """The rule that a JSON object describes (FR1).

        Raises:
            UsageError: it describes none.
        """
        kind = members.get("kind")
        if not isinstance(kind, str) or kind not in KINDS:
            raise UsageError(f"a fault's kind is one of {', '.join(sorted(KINDS))}, not {kind!r}")
        return KINDS[kind].make(**{name: value for name, value in members.items() if name != "kind"})

    @classmethod
    def make(cls, **members: object) -> Self:
        """A rule of this kind (FR1).

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
    asked, usual = rule.operations, rule.usual()
    for operation in sorted(asked or ()):
        if operation not in INPUTS:
            return f"names an operation that Kinesis does not have: {operation!r}"
        if usual is not None and operation not in usual:
            return f"hits {', '.join(sorted(usual))}, never {operation}"
    return None


# ---- refusals


@final
class Throttle(FaultRule, tag="throttle"):
    """Too fast: entries of PutRecords (those of the shard, if one is named), or the request of any other operation.

    ``count`` counts requests, of PutRecords too. Control operations get LimitExceededException.
    """


@final
class FailEntries(FaultRule, tag="fail_entries"):
    """``k`` entries of a PutRecords, or that ``share`` of them (rounded up), drawn by chance, fail and are not stored.

    If a shard is named, they are drawn from those that go there.
    """

    k: Some | None = None
    share: Share | None = None
    code: str = "InternalFailure"
    message: str = "Internal Service Failure"

    @classmethod
    def usual(cls) -> frozenset[str]:
        return frozenset({"PutRecords"})

    def problem(self) -> str | None:
        return None if (self.k is None) != (self.share is None) else "needs either k or share"


@final
class Error(FaultRule, tag="error"):
    """The request is answered with this error, and not carried out. ``status`` follows from the code, if not given."""

    code: Annotated[str, Meta(pattern=r"^[A-Za-z][A-Za-z0-9.]*$", max_length=128)]
    message: str = ""
    status: Status | None = None

    @property
    def http_status(self) -> int:
        return self.status or _SERVER_ERRORS.get(self.code.removesuffix("Exception"), 400)


# ---- time


class Lognormal(Struct, forbid_unknown_fields=True):
    mean: Annotated[float, Meta(gt=0, le=3600)]
    p99: Annotated[float, Meta(gt=0, le=3600)]

    def parameters(self) -> tuple[float, float] | None:
        """Mu and sigma, ``None`` if no such distribution has that mean and 99th percentile."""
        spread = math.log(self.p99 / self.mean)
        inside = _P99 * _P99 - 2 * spread
        if spread < 0 or inside < 0:
            return None
        sigma = _P99 - math.sqrt(inside)
        return math.log(self.mean) - sigma * sigma / 2, sigma


@final
class Latency(FaultRule, tag="latency"):
    """The answer is late: by ``seconds``, by ``[low, high]`` uniformly, or by ``{"mean":, "p99":}`` (lognormal).

    With ``where`` ``before`` the wait comes first, then the request is carried out; with ``after`` it is the other way.
    """

    # Neither a tuple nor constraints here: in a union with a struct msgspec 0.22 reads them from the wrong memory.
    seconds: float | list[float] | Lognormal
    where: Literal["before", "after"] = "before"

    def problem(self) -> str | None:
        if isinstance(self.seconds, Lognormal):
            return None if self.seconds.parameters() is not None else "needs a p99 of 1 to 14 times the mean"
        seconds = self.seconds if isinstance(self.seconds, list) else [self.seconds] * 2
        if len(seconds) != 2 or not 0 <= seconds[0] <= seconds[1] <= _LONGEST:  # noqa: PLR2004 - low and high
            return f"waits some seconds, or from low to high, of 0 to {_LONGEST}, not {self.seconds}"
        return None


@final
class ClockSkew(FaultRule, tag="clock_skew"):
    """The service's Date and its check of signatures are off by that much; nothing else is."""

    seconds: Annotated[float, Meta(ge=-86_400_000, le=86_400_000)]


@final
class Reshard(FaultRule, tag="reshard"):
    """The shards of a stream change, at once, at a moment of the server's clock (or as soon as the stream is ACTIVE).

    ``at`` is that moment, ``delay`` counts from now. ``split`` halves ``shard``; ``merge`` joins it with its upper
    neighbour; without a ``shard`` they take the first that they can. ``scale`` goes to ``shards`` uniform ones.
    """

    action: Literal["split", "merge", "scale"]
    at: Seconds | None = None
    delay: Seconds | None = None
    shards: Annotated[int, Meta(ge=1, le=10_000)] | None = None

    def problem(self) -> str | None:
        if self.stream is None:
            return "needs a stream"
        if (self.at is None) == (self.delay is None):
            return "needs either at (a moment) or delay (seconds from now)"
        if (self.action == "scale") != (self.shards is not None):
            return "needs shards to scale to, and has none otherwise"
        if self.operation is not None or self.count is not None or self.after or self.chance < 1:
            return "happens once, at its moment: it has no operation, count, after or chance"
        return None


# ---- connections and answers


@final
class Reset(FaultRule, tag="reset"):
    """The connection is reset: ``before`` the request is carried out; ``after`` (it is, but the answer is lost); or
    ``inside`` the answer, after its head and half of its body.
    """

    where: Literal["before", "after", "inside"] = "before"


@final
class Truncate(FaultRule, tag="truncate"):
    """The request is carried out; its answer ends early, ``at`` that byte or after that ``share`` of its body."""

    at: Count | None = None
    share: Share | None = None

    def problem(self) -> str | None:
        return "needs at or share, not both" if self.at is not None and self.share is not None else None


@final
class Malformed(FaultRule, tag="malformed"):
    """The request is carried out, if ``handled``; the answer is 200 with this body (text, or bytes in base64)."""

    body: str = '{"Records": [{"Sequence'
    body_base64: bytes | None = None
    handled: bool = True

    @property
    def raw(self) -> bytes:
        return self.body.encode() if self.body_base64 is None else self.body_base64


@final
class Html(FaultRule, tag="html"):
    """A proxy's page instead of the service's answer. The request is not carried out, unless ``handled``."""

    status: Annotated[int, Meta(ge=200, le=599)] = 503
    handled: bool = False


@final
class WrongCount(FaultRule, tag="wrong_count"):
    """PutRecords answers with results that are fewer or more than the entries; all that it stored is stored."""

    delta: Annotated[int, Meta(ge=-500, le=500)] = -1

    @classmethod
    def usual(cls) -> frozenset[str]:
        return frozenset({"PutRecords"})


# ---- enhanced fan-out: what a subscription that lives meets, after ``after`` of its pushes


class FanOutRule(FaultRule):
    @classmethod
    def usual(cls) -> frozenset[str]:
        return frozenset({"SubscribeToShard"})


@final
class FanOutException(FanOutRule, tag="fan_out_exception"):
    """An exception frame, then the end."""

    code: Annotated[str, Meta(min_length=1, max_length=128)] = "InternalFailureException"
    message: str = "Internal Service Failure"


@final
class FanOutEnd(FanOutRule, tag="fan_out_end"):
    """A clean end before its time."""


@final
class FanOutReset(FanOutRule, tag="fan_out_reset"):
    """The connection is reset."""


@final
class Chaos(FaultRule, tag="random"):
    """Not a fault but a mixture of them, drawn from the seed: each with a chance of up to ``intensity``."""

    intensity: Annotated[float, Meta(gt=0, le=1)] = 0.05

    def problem(self) -> str | None:
        if self.count is not None or self.after or self.chance < 1 or self.shard is not None or self.operation:
            return "has a stream and an intensity, no more"
        return None


KINDS: Final[dict[str, type[FaultRule]]] = {
    str(kind.__struct_config__.tag): kind
    for kind in (
        *(Throttle, FailEntries, Error, Latency, ClockSkew, Reshard, Reset, Truncate, Malformed, Html, WrongCount),
        *(FanOutException, FanOutEnd, FanOutReset, Chaos),
    )
}


def plain(members: Mapping[str, Any]) -> dict[str, Any]:
    """Keyword arguments as JSON would have them: no ``None``, lists for sets and tuples."""
    return {
        name: sorted(cast("set[str]", value)) if isinstance(value, (set, frozenset)) else value
        for name, value in members.items()
        if value is not None
    }
