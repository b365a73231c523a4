"""The kinds of faults that can be requested.

Each kind is a class. Its fields are the keys of the rule, and it overrides the hooks of ``FaultRule`` that it needs. To
add a kind, add a class.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TypeAlias, final

from msgspec import Meta, Struct

from shardline.errors import UsageError
from shardline.server.model.fault_rules import Count, FaultRule, Plan, PushEnding, ReplyPlan, Share, Some
from shardline.server.model.inputs import DATA_PLANE
from shardline.server.model.refusals import (
    THROTTLED,
    Refused,
    call_throttled,
    limit_exceeded,
    shard_throttling,
    throttled,
)
from shardline.server.model.settings import CLOCK_END

if TYPE_CHECKING:
    from random import Random

    from shardline.server.model.streams import ServerStream

Seconds: TypeAlias = Annotated[float, Meta(ge=0, le=CLOCK_END)]
Status: TypeAlias = Annotated[int, Meta(ge=400, le=599)]

_DELAY_MAX: Final = 3600
_P99: Final = 2.3263478740408408  # the 99th percentile of a normal distribution, in standard deviations above the mean
_SERVER_ERRORS: Final = {"InternalFailure": 500, "InternalServerError": 500, "ServiceUnavailable": 503}
_INCLUDED: Final = 0.7  # the share of the choices that a random mixture contains, on average
_READS: Final = ["GetRecords", "GetShardIterator"]


# ---- refusals


class _Refusal(FaultRule):
    sort = "refusal"

    def is_open(self, plan: Plan) -> bool:
        return plan.is_handled and super().is_open(plan)


@final
class Throttle(_Refusal, tag="throttle"):
    """Throttle entries of PutRecords (those for ``shard``, if it is set), or the whole request of other operations.

    ``count`` counts requests, even for PutRecords. Control operations get LimitExceededException.
    """

    def is_open(self, plan: Plan) -> bool:
        return plan.operation != "PutRecords" and super().is_open(plan)  # PutRecords is throttled by on_entries

    def on_request(self, plan: Plan) -> None:
        stream, shards = plan.target
        if plan.operation not in DATA_PLANE:
            plan.refusal = call_throttled(stream, plan.account)
            return
        shard = self.shard_id or next(iter(shards), "shardId-000000000000")
        message = shard_throttling(plan.operation, shard, stream, plan.account)
        plan.refusal = limit_exceeded(message) if plan.operation == "SubscribeToShard" else throttled(message)

    def on_entries(self, places: Sequence[int], rng: "Random") -> dict[int, tuple[str, str]]:
        del rng
        return dict.fromkeys(places, (THROTTLED, ""))


@final
class FailEntries(FaultRule, tag="fail_entries"):
    """Fail ``k`` random entries of a PutRecords request, or a ``share`` of its entries (rounded up). They are not
    stored.

    If ``shard`` is set, only entries for that shard fail.
    """

    k: Some | None = None
    share: Share | None = None
    code: str = "InternalFailure"
    message: str = "Internal Service Failure"

    usual = frozenset({"PutRecords"})

    def problem(self) -> str | None:
        return None if (self.k is None) != (self.share is None) else "needs either k or share"

    def on_entries(self, places: Sequence[int], rng: "Random") -> dict[int, tuple[str, str]]:
        share = math.ceil(len(places) * (self.share or 0.0))
        count = min(len(places), share if self.k is None else self.k)
        return dict.fromkeys(rng.sample(places, count), (self.code, self.message))


@final
class Error(_Refusal, tag="error"):
    """Answer the request with an error and do not carry it out. The default ``status`` depends on the code."""

    code: Annotated[str, Meta(pattern=r"^[A-Za-z][A-Za-z0-9.]*$", max_length=128)]
    message: str = ""
    status: Status | None = None

    def on_request(self, plan: Plan) -> None:
        status = self.status or _SERVER_ERRORS.get(self.code.removesuffix("Exception"), 400)
        plan.refusal = Refused(self.code, self.message, status)


# ---- time


class Lognormal(Struct, forbid_unknown_fields=True):
    mean: Annotated[float, Meta(gt=0, le=3600)]
    p99: Annotated[float, Meta(gt=0, le=3600)]

    def parameters(self) -> tuple[float, float] | None:
        """Return mu and sigma, or ``None`` if no lognormal distribution has this mean and 99th percentile."""
        spread = math.log(self.p99 / self.mean)
        inside = _P99 * _P99 - 2 * spread
        if spread < 0 or inside < 0:
            return None
        sigma = _P99 - math.sqrt(inside)
        return math.log(self.mean) - sigma * sigma / 2, sigma


@final
class Latency(FaultRule, tag="latency"):
    """Delay the answer by ``seconds``: a number, ``[low, high]`` (uniform), or ``{"mean":, "p99":}`` (lognormal).

    ``where`` is ``before`` to wait and then carry out the request, or ``after`` to carry it out and then wait.
    """

    # This type has no tuple and no constraints: in a union with a struct, msgspec 0.22 reads them from wrong memory.
    seconds: float | list[float] | Lognormal
    where: Literal["before", "after"] = "before"
    sort = "wait"

    def problem(self) -> str | None:
        if isinstance(self.seconds, Lognormal):
            return None if self.seconds.parameters() is not None else "needs a p99 of 1 to 14 times the mean"
        seconds = self.seconds if isinstance(self.seconds, list) else [self.seconds] * 2
        if len(seconds) != 2 or not 0 <= seconds[0] <= seconds[1] <= _DELAY_MAX:  # noqa: PLR2004 - low and high
            return f"needs seconds from 0 to {_DELAY_MAX}, or [low, high] in that range, not {self.seconds}"
        return None

    def on_request(self, plan: Plan) -> None:
        plan.delay, plan.waits_first = self._draw_seconds(plan.rng), self.where == "before"

    def _draw_seconds(self, rng: "Random") -> float:
        seconds = self.seconds
        if isinstance(seconds, list):
            return rng.uniform(seconds[0], seconds[1])
        if isinstance(seconds, Lognormal):
            parameters = seconds.parameters()
            assert parameters is not None, "every rule was validated"
            return rng.lognormvariate(*parameters)
        return seconds


@final
class ClockSkew(FaultRule, tag="clock_skew"):
    """Shift the clock of the Date header and of the signature check. Nothing else uses the shifted clock."""

    seconds: Annotated[float, Meta(ge=-86_400_000, le=86_400_000)]
    sort = "skew"

    def on_request(self, plan: Plan) -> None:
        plan.skew = self.seconds


@final
class Reshard(FaultRule, tag="reshard"):
    """Reshard a stream at a time of the server's clock, or as soon after that as the stream is ACTIVE.

    Set ``at`` to the time, or ``delay`` to the number of seconds from now. ``split`` halves ``shard``; ``merge`` merges
    it with its upper neighbour. Without ``shard``, ``split`` and ``merge`` use the first suitable shard. ``scale``
    changes the stream to ``shards`` uniform shards.
    """

    action: Literal["split", "merge", "scale"]
    at: Seconds | None = None
    delay: Seconds | None = None
    shards: Annotated[int, Meta(ge=1, le=10_000)] | None = None

    def problem(self) -> str | None:
        if self.stream is None:
            return "needs a stream"
        if (self.at is None) == (self.delay is None):
            return "needs either at (a time) or delay (seconds from now)"
        if (self.action == "scale") != (self.shards is not None):
            return "needs shards for the action scale, and accepts shards for no other action"
        if self.operation is not None or self.count is not None or self.after or self.chance < 1:
            return "happens once, at its time: it accepts no operation, count, after or chance"
        return None

    def due_at(self, now: float) -> float | None:
        return self.at if self.delay is None else now + self.delay

    def on_time(self, stream: "ServerStream", at: float, now: float) -> str | None:
        """Change the shards as of ``at``: immediately, without the state UPDATING, and without limits."""
        # Another change may have created shards between `at` and `now`. A shard must not be closed before its creation.
        when = min(now, max([at, *(shard.created_at for shard in stream.open_shards)]))
        if self.action == "scale":
            assert self.shards is not None, "every rule was validated"
            stream.scale(self.shards, when)
            return None
        shards = stream.open_shards
        for shard, upper in zip(shards, [*shards[1:], None], strict=True):
            if self.shard_id not in {None, shard.shard_id}:
                continue
            start, end = shard.hash_range.start, shard.hash_range.end
            if self.action == "split" and start < end:
                stream.split(shard, start + (end - start + 1) // 2, when)
                return None
            if self.action == "merge" and upper is not None:
                stream.merge(shard, upper, when)
                return None
        return f"there is no open shard {self.shard_id or ''} to {self.action} in stream {stream.name}"


# ---- connections and answers


@final
class Reset(FaultRule, tag="reset"):
    """Reset the connection: ``before`` the request is carried out; ``after`` it is carried out, so that the answer is
    lost; or ``inside`` the answer, after its head and half of its body.
    """

    where: Literal["before", "after", "inside"] = "before"
    sort = "reset"

    def on_request(self, plan: Plan) -> None:
        plan.is_handled = plan.is_handled and self.where != "before"

    def on_reply(self, reply: ReplyPlan) -> None:
        reply.is_silent, reply.ending = self.where != "inside", "reset"
        reply.cut = len(reply.body) // 2 if self.where == "inside" else None


class _Answer(FaultRule):
    sort = "answer"

    def is_open(self, plan: Plan) -> bool:
        return all(rule.sort not in {"answer", "reset"} for rule in plan.hits)


@final
class Truncate(_Answer, tag="truncate"):
    """Carry out the request, and end its answer early: at byte ``at`` of its body, or after this ``share`` of its
    body.
    """

    at: Count | None = None
    share: Share | None = None

    def problem(self) -> str | None:
        return "needs at or share, not both" if self.at is not None and self.share is not None else None

    def on_reply(self, reply: ReplyPlan) -> None:
        if not reply.has_pushes:
            size, share = len(reply.body), 0.5 if self.share is None else self.share
            reply.cut = int(size * share) if self.at is None else min(self.at, size)
            reply.ending = "close"


class _Substitute(_Answer):
    handled: bool = True

    def on_request(self, plan: Plan) -> None:
        plan.is_handled = plan.is_handled and self.handled


@final
class Malformed(_Substitute, tag="malformed"):
    """Answer with status 200 and this body (text, or bytes in base64). The request is carried out if ``handled`` is
    true.
    """

    body: str = '{"Records": [{"Sequence'
    body_base64: bytes | None = None

    def on_reply(self, reply: ReplyPlan) -> None:
        reply.status, reply.has_pushes = 200, False
        reply.body = self.body.encode() if self.body_base64 is None else self.body_base64


@final
class Html(_Substitute, tag="html"):
    """Answer with an HTML page, as a proxy would. The request is not carried out, unless ``handled`` is true."""

    status: Annotated[int, Meta(ge=200, le=599)] = 503
    handled: bool = False

    def on_reply(self, reply: ReplyPlan) -> None:
        reply.status, reply.headers, reply.has_pushes = self.status, {"Content-Type": "text/html"}, False
        reply.body = f"<html><body><h1>{self.status} from a proxy</h1></body></html>\r\n".encode()


@final
class WrongCount(FaultRule, tag="wrong_count"):
    """Answer PutRecords with fewer or more results than entries. The records are stored nevertheless."""

    delta: Annotated[int, Meta(ge=-500, le=500)] = -1

    usual = frozenset({"PutRecords"})

    def on_results(self) -> int:
        return self.delta


# ---- enhanced fan-out: faults of established subscriptions, after ``after`` pushes


class _FanOut(FaultRule):
    usual = frozenset({"SubscribeToShard"})


@final
class FanOutException(_FanOut, tag="fan_out_exception"):
    """End the subscription with an exception frame."""

    code: Annotated[str, Meta(min_length=1, max_length=128)] = "InternalFailureException"
    message: str = "Internal Service Failure"

    def on_push(self) -> PushEnding:
        return PushEnding(exception=(self.code, self.message))


@final
class FanOutEnd(_FanOut, tag="fan_out_end"):
    """End the subscription cleanly, but early."""

    def on_push(self) -> PushEnding:
        return PushEnding()


@final
class FanOutReset(_FanOut, tag="fan_out_reset"):
    """End the subscription with a reset of its connection."""

    def on_push(self) -> PushEnding:
        return PushEnding(is_reset=True)


@final
class Chaos(FaultRule, tag="random"):
    """Add a random mixture of faults, drawn from the seed. Each fault has a chance of up to ``intensity``."""

    intensity: Annotated[float, Meta(gt=0, le=1)] = 0.05

    def problem(self) -> str | None:
        if self.count is not None or self.after or self.chance < 1 or self.shard is not None or self.operation:
            return "accepts a stream and an intensity, and nothing else"
        return None

    def expand(self, rng: "Random") -> list[FaultRule]:
        """Return the rules of the mixture, at least one. A robust client can survive each of them."""
        choices = _choices(rng)
        chosen = [choice for choice in choices if rng.random() < _INCLUDED] or choices[:1]
        where = {} if self.stream is None else {"stream": self.stream}
        return [read_rule(rule | where | {"chance": self.intensity * rng.uniform(0.1, 1.0)}) for rule in chosen]


def _choices(rng: "Random") -> list[dict[str, Any]]:
    mean = rng.uniform(0.001, 0.02)
    return [
        {"kind": "throttle", "operation": "PutRecords"},
        {"kind": "throttle", "operation": _READS},
        {"kind": "throttle", "operation": ["ListShards", "DescribeStreamSummary"]},
        {"kind": "fail_entries", "share": round(rng.uniform(0.05, 1.0), 3)},
        {"kind": "error", "code": "InternalFailureException", "message": "Internal Service Failure"},
        {"kind": "error", "code": "ServiceUnavailableException", "message": "Service Unavailable"},
        {"kind": "error", "operation": _READS[0], "code": "ExpiredIteratorException", "message": "Iterator expired."},
        {"kind": "latency", "seconds": {"mean": mean, "p99": mean * rng.uniform(2, 10)}},
        {"kind": "latency", "seconds": [0.0, 0.05], "where": "after"},
        *({"kind": "reset", "where": where} for where in ("before", "after", "inside")),
        {"kind": "truncate", "share": round(rng.random(), 3)},
        {"kind": "malformed"},
        {"kind": "html", "status": rng.choice([502, 503, 504])},
        {"kind": "wrong_count", "delta": rng.choice([-1, 1])},
        *({"kind": kind} for kind in ("fan_out_exception", "fan_out_end", "fan_out_reset")),
    ]


def _leaves(kind: type[FaultRule]) -> Iterable[type[FaultRule]]:
    subclasses = kind.__subclasses__()
    return [leaf for subclass in subclasses for leaf in _leaves(subclass)] if subclasses else [kind]


KINDS: Final = {str(kind.__struct_config__.tag): kind for kind in _leaves(FaultRule)}


def read_rule(members: Mapping[str, object]) -> FaultRule:
    """Return the rule that a JSON object describes.

    Raises:
        UsageError: the object does not describe a valid rule.
    """
    kind = members.get("kind")
    if not isinstance(kind, str) or kind not in KINDS:
        raise UsageError(f"a fault's kind must be one of {', '.join(sorted(KINDS))}, not {kind!r}")
    return KINDS[kind].make(**{name: value for name, value in members.items() if name != "kind"})
