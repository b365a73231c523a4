"""What does the table consist of? Scenarios: streams to make, and steps with the answers that AWS gives.

A step is data. ``player.py`` carries it out and compares its outcome, a tree, with ``expect``:

- ``Call``: one request; the outcome is ``{"status":, "body":}`` or ``{"status":, "error":}``.
- ``Wait``: until a stream or a consumer has reached a state; the outcome is that state.
- ``Pause``: let time pass: really, or on the server's own clock where the target has one.
- ``Read``: the records of a shard, page after page; the outcome has them, and how the reading ended.
- ``Flood``: repeat a call, side by side, until it is throttled; the outcome is the refusal.
- ``Subscribe``: the events of a SubscribeToShard over HTTP/1.1.
- ``Program``: an async function of ``programs.py`` on our own client, producer or consumer; the outcome is what it returns.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.conformance.expectation import ANY_TEXT

LIMITED = ("LimitExceededException", "ProvisionedThroughputExceededException", "ThrottlingException")


@dataclass(frozen=True)
class Call:
    operation: str
    members: Mapping[str, Any]
    expect: Any
    keep: Mapping[str, str] = field(default_factory=dict)
    """Names for parts of the answer, which later steps use as ``$name``: ``{"first": "Records[0].SequenceNumber"}``."""
    cbor: bool = False
    body: bytes | None = None
    """The raw body, instead of the members."""
    headers: Mapping[str, str | None] = field(default_factory=dict)
    """Additional headers. ``None`` omits a header."""
    signing: str = "right"
    """How the request is signed: see ``wire.SIGNING``."""
    method: str = "POST"
    show_headers: tuple[str, ...] = ()
    """The headers of the answer that belong to the outcome."""
    eventually: float = 0.0
    """Repeat the call for this many seconds until the answer is as expected: AWS's lists are eventually consistent."""

    @property
    def label(self) -> str:
        return self.operation or f"{self.method} without a target"


@dataclass(frozen=True)
class Wait:
    stream: str
    state: str = "ACTIVE"
    consumer: str = ""
    expect: Any = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "expect", {"state": self.state})

    @property
    def label(self) -> str:
        return f"wait until {self.state}"


@dataclass(frozen=True)
class Pause:
    seconds: float
    expect: Any = None

    @property
    def label(self) -> str:
        return f"pause of {self.seconds:g} s"


@dataclass(frozen=True)
class Read:
    members: Mapping[str, Any]
    """The type of the shard iterator."""
    expect: Any
    records: int | None = None
    """Stop after this many records. ``None`` reads to the end of a closed shard."""

    @property
    def label(self) -> str:
        return "GetRecords until all is read"


@dataclass(frozen=True)
class Flood:
    operation: str
    members: Mapping[str, Any]
    expect: Any
    at_most: int = 60
    side_by_side: int = 8

    @property
    def label(self) -> str:
        return f"{self.operation} until it is throttled"


@dataclass(frozen=True)
class Subscribe:
    members: Mapping[str, Any]
    expect: Any
    records: int = 0
    """Stop after this many records; with 0, after the first event."""
    cbor: bool = False
    keep: Mapping[str, str] = field(default_factory=dict)

    @property
    def label(self) -> str:
        return "SubscribeToShard"


@dataclass(frozen=True)
class Program:
    run: Callable[[Any], Awaitable[Any]]
    expect: Any

    @property
    def label(self) -> str:
        return self.run.__name__


Step = Call | Wait | Pause | Read | Flood | Subscribe | Program


@dataclass(frozen=True)
class Stream:
    """A stream that is created before the first step. The cost of a run depends on it."""

    shards: int = 1
    on_demand: bool = False
    shared: bool = False
    """Whether all scenarios of a run that need the same number of shards share one stream. This is for scenarios that
    do not change the stream and can live with records of others. It keeps a run on AWS cheap.
    """


@dataclass(frozen=True)
class Scenario:
    name: str
    title: str
    steps: Sequence[Step]
    streams: Mapping[str, Stream] = field(default_factory=dict)
    """The streams to create, each named ``$key``, with the ARN ``$key_arn``."""
    makes: Mapping[str, Stream] = field(default_factory=dict)
    """Streams that the steps create themselves. They are named, tagged, remembered and deleted like the others."""
    shards_at_most: int = 0
    """With resharding: the largest number of shards at one time, if that is more than at the creation."""
    consumer_shards: int = 0
    """Registered consumers times shards."""
    put_units: int = 0
    """The number of records of up to 25 KB that are put, if there are many."""
    extended_retention_shards: int = 0
    seconds: float = 30.0
    """The approximate duration on AWS."""
    slow: str = ""
    """Why the scenario takes minutes on AWS."""
    not_on_aws: str = ""
    """Why the scenario is not played on AWS."""
    account_wide: bool = False
    """Whether the scenario changes settings of the account: then it is played on AWS only on request."""


def ok(body: Any = None) -> dict[str, Any]:
    """Status 200. Many operations answer without a body."""
    return {"status": 200} if body is None else {"status": 200, "body": body}


def refused(code: str, message: Any = ANY_TEXT, status: int = 400) -> dict[str, Any]:
    return {"status": status, "error": {"__type": code, "message": message}}


def bare(code: str, status: int = 400) -> dict[str, Any]:
    """An error without a text."""
    return {"status": status, "error": {"__type": code}}


def not_found(stream: str = "$nothing") -> dict[str, Any]:
    return refused("ResourceNotFoundException", f"Stream {stream} under account $account not found.")


def invalid(message: Any = ANY_TEXT) -> dict[str, Any]:
    return refused("InvalidArgumentException", message)


def violation(*errors: str) -> dict[str, Any]:
    """A ValidationException about these members, in AWS's words."""
    count = "1 validation error" if len(errors) == 1 else f"{len(errors)} validation errors"
    return refused("ValidationException", f"{count} detected: {'; '.join(errors)}")


def broken(value: str, member: str, constraint: str) -> str:
    """One member that violates one constraint."""
    shown = "null" if value == "null" else f"'{value}'"
    return f"Value {shown} at '{member}' failed to satisfy constraint: Member must {constraint}"
