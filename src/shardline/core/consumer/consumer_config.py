"""The settings of a consumer and their checks.

Invariants:

- Every config is valid: an invalid value raises a ``UsageError`` that names the field, the value and the range.
- ``None`` means that the consumer chooses a value. Intervals then depend on the lease store.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import partial
from typing import Final, Literal, TypeAlias, final

from shardline.core.setting_checks import check_choice, check_number
from shardline.errors import UsageError
from shardline.model.limits import (
    GET_RECORDS_MAX_RECORDS,
    KIB,
    MIB,
    SHARD_READ_BYTES_PER_SECOND,
    SHARD_READ_CALLS_PER_SECOND,
)

Ack: TypeAlias = Literal["auto", "manual"]
AssignBy: TypeAlias = Literal["count", "load"]
Order: TypeAlias = Literal["shard", "key", "none"]
"""Which records are handled one after the other: those of the same shard, those with the same key, or none."""
OutOfRange: TypeAlias = Literal["deliver", "drop"]
IfRecreated: TypeAlias = Literal["stop", "restart"]

_WORKER_ID_MAX_LENGTH: Final = 255


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerConfig:
    """Every setting of a consumer. Durations are in seconds, and rates are per shard."""

    lease_duration: float = 10.0
    """A worker loses a lease that it does not renew for this long. Then another worker may take the lease. All workers
    of a group should use the same value.
    """
    checkpoint_interval: float | None = None
    """The shortest time between two commits for a shard. ``None`` means 1 s, or 10 s on DynamoDB."""
    scan_interval: float | None = None
    """How often the worker lists the group's leases. ``None`` means 0.5 s, or 2 s on DynamoDB. Above 250 shards, the
    interval grows in proportion to their number, up to half of ``lease_duration``.
    """
    max_leases: int | None = None
    """The maximum number of shards that this worker reads. ``None`` means the worker's fair share."""
    assign_by: AssignBy = "count"
    """Whether the group's workers share its shards by number or by load. All should use the same value."""
    hand_over_timeout: float = 30.0
    """How much time your code has to finish the records in hand when another worker asks for their shard."""
    list_interval: float = 60.0
    """How often the worker lists the shards. The children of a shard that ends are found even without a listing."""
    prefetch_max_bytes: int = 64 * MIB
    """How many bytes the worker reads ahead, across all shards. Each shard may exceed this limit by one page."""
    page_max_records: int = GET_RECORDS_MAX_RECORDS
    """The maximum number of records per GetRecords call."""
    idle_poll_interval: float = 1.0
    """The longest wait between two calls to a shard without new records."""
    calls_per_second: float = SHARD_READ_CALLS_PER_SECOND
    """The maximum number of GetRecords calls per second per shard."""
    bytes_per_second: float = SHARD_READ_BYTES_PER_SECOND
    """The maximum number of bytes read per second per shard."""
    ack: Ack = "auto"
    """With ``auto``, requesting the next record acknowledges the previous one. With ``manual``, you call ``ack``."""
    max_unacknowledged: int = 100_000
    """With ``ack="manual"``: a shard with this many unacknowledged records pauses. Acknowledged records behind an
    unacknowledged record also count. With ``run(..., order="key")``: how many records handlers may be ahead of the
    checkpoint."""
    out_of_range: OutOfRange = "deliver"
    """What happens to aggregated records that belong to another shard: ``deliver`` or ``drop``. Such records
    are counted in both cases."""
    dedup: bool = False
    """Whether to drop copies stored by retries of producers with ``dedup=True``."""
    if_recreated: IfRecreated = "stop"
    """What happens when the stream is deleted and re-created: ``stop``, or ``restart`` at the start position."""
    store_patience: float = 300.0
    """How long the lease store may deny access before the consumer fails."""
    stuck_after: float | None = 300.0
    """A handler or loop body that holds the same records for this long counts as stuck. ``None`` disables this check.
    """
    worker_id: str | None = None
    """The worker's name in the lease store, unique within the group. ``None`` means a new unique name."""
    keep_leases: bool = False
    """Whether a clean close keeps the shards for a restart with the same ``worker_id``."""

    def __post_init__(self) -> None:
        for field in fields(self):
            _CHECKS[field.name](field.name, getattr(self, field.name))


def _worker_id(name: str, value: object) -> None:
    if value is not None and (
        not isinstance(value, str) or not 1 <= len(value) <= _WORKER_ID_MAX_LENGTH or not value.isprintable()
    ):
        raise UsageError(f"{name} must be 1 to {_WORKER_ID_MAX_LENGTH} printable characters, or None, not {value!r}")


def _switch(name: str, value: object) -> None:
    if not isinstance(value, bool):
        raise UsageError(f"{name} must be True or False, not {value!r}")


# ``_number(lowest=..., ...)`` returns ``check_number`` with these bounds filled in. The name and the value are passed
# later.
_number: Final = partial(partial, check_number)
_CHECKS: Final[dict[str, Callable[[str, object], None]]] = {
    "lease_duration": _number(lowest=1.0, highest=3_600.0),
    "checkpoint_interval": _number(lowest=0.0, highest=3_600.0, optional=True),
    "scan_interval": _number(lowest=0.05, highest=60.0, optional=True),
    "max_leases": _number(lowest=1, highest=math.inf, whole=True, optional=True),
    "assign_by": lambda name, value: check_choice(name, value, "count", "load"),
    "hand_over_timeout": _number(lowest=0.0, highest=3_600.0),
    "list_interval": _number(lowest=1.0, highest=3_600.0),
    "prefetch_max_bytes": _number(lowest=64 * KIB, highest=math.inf, whole=True),
    "page_max_records": _number(lowest=1, highest=GET_RECORDS_MAX_RECORDS, whole=True),
    "idle_poll_interval": _number(lowest=0.05, highest=60.0),
    "calls_per_second": _number(lowest=0.1, highest=1_000_000.0),
    "bytes_per_second": _number(lowest=1.0 * KIB, highest=1e12),
    "ack": lambda name, value: check_choice(name, value, "auto", "manual"),
    "max_unacknowledged": _number(lowest=1, highest=math.inf, whole=True),
    "out_of_range": lambda name, value: check_choice(name, value, "deliver", "drop"),
    "dedup": _switch,
    "if_recreated": lambda name, value: check_choice(name, value, "stop", "restart"),
    "store_patience": _number(lowest=0.0, highest=86_400.0),
    "stuck_after": _number(lowest=0.1, highest=86_400.0, optional=True),
    "worker_id": _worker_id,
    "keep_leases": _switch,
}
