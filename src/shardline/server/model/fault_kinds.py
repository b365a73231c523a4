"""How does a test say what shall go wrong?

One method a kind; each gives a ``Fault``, which tells how often it has hit and can be removed.
"""

from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import Final, Literal, TypedDict, Unpack, final

from shardline.server.model import fault_rules as rules
from shardline.server.model.fault_rules import FaultRule, plain

_EXPIRED_ITERATOR: Final[dict[str, object]] = {"code": "ExpiredIteratorException", "message": "Iterator expired."}
_EXPIRED_TOKEN: Final[dict[str, object]] = {
    "code": "ExpiredTokenException",
    "message": "The security token included in the request is expired",
}
_UNAVAILABLE: Final[dict[str, object]] = {"code": "ServiceUnavailableException", "message": "Service Unavailable"}


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


class FaultKinds:
    """The methods by which faults are added. Every one raises ``UsageError`` for what is wrong (FR1)."""

    @abstractmethod
    def _live(self, rule: FaultRule) -> Fault:
        """Let a rule live."""

    def throttle(self, **filters: Unpack[Filters]) -> Fault:
        """Too fast: see ``fault_rules.Throttle``."""
        return self._make(rules.Throttle, dict(filters))

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
        own = {"k": k, "share": share, "code": code, "message": message}
        return self._make(rules.FailEntries, dict(filters) | own)

    def error(self, code: str, message: str = "", *, status: int | None = None, **filters: Unpack[Filters]) -> Fault:
        """The request is answered with an error of any type."""
        return self._make(rules.Error, dict(filters) | {"code": code, "message": message, "status": status})

    def expired_iterator(self, **filters: Unpack[Filters]) -> Fault:
        """GetRecords: the iterator is too old."""
        return self._make(rules.Error, {"operation": "GetRecords", **filters} | _EXPIRED_ITERATOR)

    def expired_token(self, **filters: Unpack[Filters]) -> Fault:
        """The caller's credentials have expired."""
        return self._make(rules.Error, dict(filters) | _EXPIRED_TOKEN)

    def unavailable(self, **filters: Unpack[Filters]) -> Fault:
        """503, as AWS says it."""
        return self._make(rules.Error, dict(filters) | _UNAVAILABLE)

    def latency(
        self,
        seconds: float | tuple[float, float] | dict[str, float],
        *,
        where: Literal["before", "after"] = "before",
        **filters: Unpack[Filters],
    ) -> Fault:
        """The answer is late."""
        return self._make(rules.Latency, dict(filters) | {"seconds": seconds, "where": where})

    def reset(self, where: Literal["before", "after", "inside"] = "before", **filters: Unpack[Filters]) -> Fault:
        """The connection is reset before, after (the answer is lost) or inside the answer."""
        return self._make(rules.Reset, dict(filters) | {"where": where})

    def truncate(self, *, at: int | None = None, share: float | None = None, **filters: Unpack[Filters]) -> Fault:
        """The answer's body ends early; by half, unless told."""
        return self._make(rules.Truncate, dict(filters) | {"at": at, "share": share})

    def malformed(self, body: bytes | str | None = None, *, handled: bool = True, **filters: Unpack[Filters]) -> Fault:
        """200, and garbage."""
        name = "body_base64" if isinstance(body, bytes) else "body"
        return self._make(rules.Malformed, dict(filters) | {name: body, "handled": handled})

    def html(self, status: int = 503, *, handled: bool = False, **filters: Unpack[Filters]) -> Fault:
        """A proxy's page."""
        return self._make(rules.Html, dict(filters) | {"status": status, "handled": handled})

    def wrong_count(self, delta: int = -1, **filters: Unpack[Filters]) -> Fault:
        """PutRecords answers with too few or too many results."""
        return self._make(rules.WrongCount, dict(filters) | {"delta": delta})

    def clock_skew(self, seconds: float, **filters: Unpack[Filters]) -> Fault:
        """The service's clock, as clients see it, is off."""
        return self._make(rules.ClockSkew, dict(filters) | {"seconds": seconds})

    def fan_out_exception(
        self, code: str = "InternalFailureException", message: str = "Internal Service Failure",
        **filters: Unpack[Filters],
    ) -> Fault:  # fmt: skip
        """An exception frame in the event stream, then its end."""
        return self._make(rules.FanOutException, dict(filters) | {"code": code, "message": message})

    def fan_out_end(self, **filters: Unpack[Filters]) -> Fault:
        """The event stream ends cleanly, before its time."""
        return self._make(rules.FanOutEnd, dict(filters))

    def fan_out_reset(self, **filters: Unpack[Filters]) -> Fault:
        """The event stream's connection is reset."""
        return self._make(rules.FanOutReset, dict(filters))

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
        own = {"at": at, "delay": delay, "stream": stream, "action": action, "shard": shard, "shards": shards}
        return self._make(rules.Reshard, own)

    def _make(self, kind: type[FaultRule], members: Mapping[str, object]) -> Fault:
        return self._live(kind.make(**plain(members)))
