"""How may a consumer be set, and what is wrong with a setting?

Invariants:

- CC1: a config that exists is valid: a wrong value is a ``UsageError`` that names the field, the value and the range.
- CC2: ``None`` means that the consumer chooses: the intervals are then the lease store's own.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Final, Literal, TypeAlias, final

from shardline.errors import UsageError
from shardline.model.limits import (
    GET_RECORDS_MAX_RECORDS,
    KIB,
    MIB,
    SHARD_READ_BYTES_PER_SECOND,
    SHARD_READ_CALLS_PER_SECOND,
)

Ack: TypeAlias = Literal["auto", "manual"]
OutOfRange: TypeAlias = Literal["deliver", "drop"]
IfRecreated: TypeAlias = Literal["stop", "restart"]

_WORKER_ID_MAX_LENGTH: Final = 255


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerConfig:
    """Every setting of a consumer. Durations are seconds, rates are per second and shard."""

    lease_duration: float = 10.0
    """A worker that is silent for this long has lost its leases. It bounds how soon a dead worker is replaced."""
    checkpoint_interval: float | None = None
    """At most one commit a shard in this time. ``None``: 1 s, on DynamoDB 10 s."""
    scan_interval: float | None = None
    """How often the leases are listed. ``None``: 0.5 s, on DynamoDB 2 s."""
    max_leases: int | None = None
    """How many shards this worker reads at most. ``None``: as many as are its share."""
    hand_over_timeout: float = 30.0
    """How long an owner that is asked for a lease may still work on what the user holds."""
    list_interval: float = 60.0
    """How often the shards are listed. Children of a shard that ends are found at once, without it."""
    prefetch_max_bytes: int = 64 * MIB
    """What the worker reads ahead over all shards. Each shard may have one page beyond it."""
    page_max_records: int = GET_RECORDS_MAX_RECORDS
    """How many records one GetRecords asks for."""
    idle_poll_interval: float = 1.0
    """The longest wait between two calls to a shard that has nothing new."""
    calls_per_second: float = SHARD_READ_CALLS_PER_SECOND
    bytes_per_second: float = SHARD_READ_BYTES_PER_SECOND
    ack: Ack = "auto"
    """``auto``: a record is done when the next one is asked for. ``manual``: when the user says so."""
    max_unacknowledged: int = 100_000
    """With ``manual``: while so many records of a shard are handed out and not acknowledged, or wait behind one that is
    not, no more of that shard are handed out or read."""
    out_of_range: OutOfRange = "deliver"
    """Records in an aggregate that belong to another shard: ``deliver`` or ``drop``. They are counted either way."""
    if_recreated: IfRecreated = "stop"
    """A stream that was deleted and made anew under its name: ``stop``, or ``restart`` from the start position."""
    store_patience: float = 300.0
    """How long a lease store may deny access before the consumer ends. A store that cannot be reached may take longer;
    one that was deleted or replaced ends the consumer after ``lease_duration``."""
    stuck_after: float | None = 300.0
    """A handler, or the body of a loop, that has had the same records for this long is reported as stuck: by an event,
    and by the health ``handler-stuck``. ``None``: never."""
    worker_id: str | None = None
    """The name in the lease store. ``None``: a new one for every consumer. Each process needs a name of its own."""

    def __post_init__(self) -> None:
        for field in fields(self):
            _CHECKS[field.name](field.name, getattr(self, field.name))


_Check: TypeAlias = Callable[[str, object], None]


def _number(low: float, high: float) -> _Check:
    def check(name: str, value: object) -> None:
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value <= high:
            raise UsageError(f"{name} must be a number from {low:g} to {high:g}, not {value!r}")

    return check


def _whole(low: int, high: float) -> _Check:
    bounds = f"{low} or more" if math.isinf(high) else f"{low} to {high:.0f}"

    def check(name: str, value: object) -> None:
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise UsageError(f"{name} must be a whole number, {bounds}, not {value!r}")

    return check


def _one_of(*allowed: str) -> _Check:
    words = " or ".join(repr(word) for word in allowed)

    def check(name: str, value: object) -> None:
        if value not in allowed:
            raise UsageError(f"{name} must be {words}, not {value!r}")

    return check


def _worker_id(name: str, value: object) -> None:
    if not isinstance(value, str) or not 1 <= len(value) <= _WORKER_ID_MAX_LENGTH or not value.isprintable():
        raise UsageError(f"{name} must be 1 to {_WORKER_ID_MAX_LENGTH} printable characters, or None, not {value!r}")


def _or_none(check: _Check) -> _Check:
    def optional(name: str, value: object) -> None:
        if value is not None:
            check(name, value)

    return optional


_CHECKS: Final[dict[str, _Check]] = {
    "lease_duration": _number(1.0, 3_600.0),
    "checkpoint_interval": _or_none(_number(0.0, 3_600.0)),
    "scan_interval": _or_none(_number(0.05, 60.0)),
    "max_leases": _or_none(_whole(1, math.inf)),
    "hand_over_timeout": _number(0.0, 3_600.0),
    "list_interval": _number(1.0, 3_600.0),
    "prefetch_max_bytes": _whole(64 * KIB, math.inf),
    "page_max_records": _whole(1, GET_RECORDS_MAX_RECORDS),
    "idle_poll_interval": _number(0.05, 60.0),
    "calls_per_second": _number(0.1, 1_000_000.0),
    "bytes_per_second": _number(1.0 * KIB, 1e12),
    "ack": _one_of("auto", "manual"),
    "max_unacknowledged": _whole(1, math.inf),
    "out_of_range": _one_of("deliver", "drop"),
    "if_recreated": _one_of("stop", "restart"),
    "store_patience": _number(0.0, 86_400.0),
    "stuck_after": _or_none(_number(0.1, 86_400.0)),
    "worker_id": _or_none(_worker_id),
}
