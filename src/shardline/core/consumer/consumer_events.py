"""The events of a consumer. An event reports anything that is neither a request nor a record.

The set of events is fixed. The machines return events as values (``take_events``), and the shell turns them into log
lines, metrics and exceptions. The events in the first section are commands to the shell, which must act on each of
them.
"""

from typing import Literal, NamedTuple, TypeAlias, final

from shardline.core.clock import NEVER, Instant
from shardline.core.consumer.grant import Grant
from shardline.core.error_codes import Failure
from shardline.model.hashing import HashRange
from shardline.model.lease import Checkpoint
from shardline.model.position import Position

# ---- events that the shell must act on


@final
class LeaseGained(NamedTuple):
    """The worker gained a lease. The shell must start a reader for this shard."""

    shard_id: str
    grant: Grant
    start: Position
    """The position of the first iterator to request."""
    checkpoint: Checkpoint
    """The position up to which all records are done. The reader skips these records."""
    hash_range: HashRange | None


@final
class ShardSought(NamedTuple):
    """The store has written the position that your code passed to ``seek``. Unless the lease is being released, the
    shell must start a new reader for this shard.
    """

    shard_id: str
    grant: Grant
    """The grant for the records from this position on. Records that were read earlier have an older grant."""
    start: Position
    """The position of the first iterator to request."""
    checkpoint: Checkpoint
    """The new checkpoint. The reader skips the records at or before it."""
    hash_range: HashRange | None
    before: Position
    """The checkpoint before the seek."""


@final
class HandOverAsked(NamedTuple):
    """Another worker asked for the lease. The shell must stop the reader, drop the records that the user has not seen,
    and call ``leave`` once the user is done with the records in hand.
    """

    shard_id: str
    by: str
    until: Instant
    """The time at which the worker hands the lease over, even if the user is not done."""


@final
class LeaseSurplus(NamedTuple):
    """This worker has more leases than ``max_leases`` allows, or gives up the stream (``remove_stream``), and releases
    this lease. The user has until ``until`` to finish the records in hand.
    """

    shard_id: str
    until: Instant


@final
class HandOverOverdue(NamedTuple):
    """The user did not finish in time. The shell must cancel the user's code for this shard. The worker commits the
    acknowledged records and hands the lease over.
    """

    shard_id: str


@final
class LeaseLost(NamedTuple):
    """The lease was lost, and another worker may read the shard (L2). The shell must stop the reader and cancel the
    user's code.
    """

    shard_id: str
    why: str


@final
class LeaseReleased(NamedTuple):
    """The lease was released in an orderly way: on exit, after a hand-over, or because the shard is finished."""

    shard_id: str
    finished: bool


@final
class StreamReplaced(NamedTuple):
    """The stream was deleted and re-created under the same name. The consumer stops reading the old stream."""

    why: str


@final
class ConsumerFailed(NamedTuple):
    """The consumer cannot continue, and retrying will not help: access was denied, or the stream does not exist."""

    operation: str
    failure: Failure


# ---- events to report to the user


@final
class StreamMissing(NamedTuple):
    """The stream was deleted. With ``if_recreated="restart"``, the consumer waits until the stream is re-created."""

    failure: Failure


@final
class PositionLost(NamedTuple):
    """The service refused the reader's position. Reading continues at TRIM_HORIZON, and records may be missing."""

    shard_id: str
    position: Position
    failure: Failure


@final
class RecordsTrimmed(NamedTuple):
    """The reader's position is older than the retention period. Records may have been removed before they were read."""

    shard_id: str
    why: str


@final
class ShardTrimmed(NamedTuple):
    """A whole shard was removed after the retention period, before the group had finished it. Its unread records are
    lost.
    """

    shard_id: str


@final
class HashRangesUncovered(NamedTuple):
    """No lease of the group covers these hash ranges, so no worker reads the records in them. The event is emitted
    once, after two audits in a row have found such ranges.
    """

    ranges: tuple[HashRange, ...]


@final
class HashRangesCovered(NamedTuple):
    """The leases of the group cover all hash keys again. For ``seconds`` seconds, they did not."""

    seconds: float


@final
class TooManyUnacknowledged(NamedTuple):
    """The shard reached ``max_unacknowledged``. No more of its records are handed out until some are acknowledged."""

    shard_id: str
    unacknowledged: int


@final
class ShardsPaused(NamedTuple):
    """Your code paused shards. The worker keeps their leases and hands out none of their records."""

    shard_ids: tuple[str, ...]
    """The shards that had not been paused before."""
    is_all: bool
    """Whether all shards are paused now, including shards that the worker gains later."""


@final
class ShardsResumed(NamedTuple):
    """Your code resumed shards. The worker hands out their records again."""

    shard_ids: tuple[str, ...]
    """The shards that had been paused until now."""
    is_all: bool
    """Whether shards that the worker gains later are still paused."""


@final
class MaxLeasesChanged(NamedTuple):
    """Your code changed ``max_leases`` of the running consumer."""

    max_leases: int | None
    """The maximum number of shards that this worker reads from now on. ``None`` means the worker's fair share."""
    before: int | None
    """The former value."""


@final
class ReadFailed(NamedTuple):
    """A call to a shard failed. The reader retries it at ``retry_at``. If this time is NEVER, there is no retry."""

    shard_id: str
    operation: str
    failure: Failure
    retry_at: Instant


@final
class Subscribed(NamedTuple):
    """With enhanced fan-out, a subscription to the shard began."""

    shard_id: str
    position: Position


@final
class SubscriptionEnded(NamedTuple):
    """A subscription to the shard ended or was refused. The reader subscribes again at ``retry_at``.

    This is normal: the service ends every subscription after 5 minutes. If subscribing fails repeatedly, further
    failures are reported as ``ReadFailed``.
    """

    shard_id: str
    failure: Failure | None
    """Why the subscription ended, or ``None`` if the service ended it normally."""
    retry_at: Instant


@final
class StoreFailed(NamedTuple):
    """The lease store failed. Reading continues until the leases expire."""

    failure: Failure
    failures: int
    gives_up_at: Instant = NEVER
    """When the consumer fails if the store does not recover, or NEVER if the consumer keeps retrying."""


@final
class StoreRecovered(NamedTuple):
    """The lease store answers again."""

    failures: int


@final
class ProgressLost(NamedTuple):
    """The lease store lost all rows. The group's checkpoints are lost, and the group starts again at ``start``."""

    shards: int
    """How many unfinished shards the group had."""


@final
class ListingFailed(NamedTuple):
    """Listing the shards or describing the stream failed. The worker tries again at ``retry_at``. If this time is
    NEVER, there is no retry.
    """

    operation: str
    failure: Failure
    retry_at: Instant


@final
class WorkerIdShared(NamedTuple):
    """Another live process with the same worker_id holds this shard. Neither process takes leases from the other."""

    shard_id: str
    worker_id: str


@final
class Stalled(NamedTuple):
    """The coordinator was called so late that leases may expire. The event loop was blocked, or the computer was
    suspended.
    """

    seconds: float


@final
class HandlerRetried(NamedTuple):
    """Your handler failed. At ``retry_at``, the consumer passes the records, or a part of the batch, to it again."""

    shard_id: str
    sequence_number: str
    """The sequence number of the first record. ``sub_sequence`` is the index of this record in its aggregate."""
    sub_sequence: int
    records: int
    attempts: int
    """How many times the handler was called with these records."""
    error_type: str
    message: str
    """The exception's text, without words that occur in the records."""
    place: str
    """Where in your code the exception was raised."""
    retry_at: Instant


@final
class RecordsDeadLettered(NamedTuple):
    """Your handler failed on the last attempt, and the records were dead-lettered. Handling continues after them."""

    shard_id: str
    sequence_number: str
    sub_sequence: int
    records: int
    attempts: int
    error_type: str
    message: str
    place: str


@final
class DeadLetterFailed(NamedTuple):
    """A dead letter could not be written. The consumer retries at ``retry_at``. If this time is NEVER, ``run`` ends
    with ``HandlerFailed``, and the records are delivered again later.
    """

    shard_id: str
    sequence_number: str
    sub_sequence: int
    records: int
    attempts: int
    """How many times the consumer has tried to write the dead letter."""
    error_type: str
    message: str
    place: str
    retry_at: Instant


@final
class HandlingStopped(NamedTuple):
    """Your handler failed on the last attempt, and dead letters are not set up. ``run`` ends with ``HandlerFailed``.
    The records are delivered again later.
    """

    shard_id: str
    sequence_number: str
    sub_sequence: int
    records: int
    attempts: int
    error_type: str
    message: str
    place: str


@final
class HandlerStuck(NamedTuple):
    """Your code has had these records for longer than ``stuck_after``: the code hangs or is very slow."""

    shard_id: str
    sequence_number: str
    """The sequence number of the oldest record. ``sub_sequence`` is the index of this record in its aggregate."""
    sub_sequence: int
    records: int
    seconds: float


@final
class HandlerRecovered(NamedTuple):
    """Stuck code has continued, or the lease of its shard was released."""

    shard_id: str
    seconds: float
    """How long the code had its records, in seconds."""


# ---- events that measure


@final
class PageRead(NamedTuple):
    """A page of a shard was read. It may be empty."""

    shard_id: str
    records: int
    """The number of user records. Each record in an aggregate counts."""
    payload_bytes: int
    """The size in bytes of the data, as it is stored in the stream."""
    duration: float
    """How long the request took, in seconds. With fan-out, how long the reader waited for the page."""
    reading_lag: float | None
    """How far this page is behind the end of the shard, in seconds, or ``None`` if the service did not report it."""
    read_by: Literal["polling", "fan-out"]
    started_at: float = 0.0
    """When the request was sent, in seconds since 1970. With fan-out, when the reader began to wait for the page."""


@final
class RecordsFiltered(NamedTuple):
    """Some records of a page did not pass your filter. These records are not handed out and count as done."""

    shard_id: str
    records: int


@final
class RepeatsDropped(NamedTuple):
    """Some records of a page are copies of earlier records, stored by a producer's retries. The copies are not handed
    out and count as done.
    """

    shard_id: str
    records: int


@final
class DedupWindowOverflowed(NamedTuple):
    """With ``dedup``, more stamps had to be remembered than there is room for. Copies of the records with the forgotten
    stamps will be handed out. No record is lost.
    """

    shard_id: str
    forgotten: int
    """How many producer ids, or ranges of their numbers, were forgotten since the shard's last event of this kind."""


@final
class RecordsHandedOut(NamedTuple):
    """A page or a part of a page was handed to your code."""

    shard_id: str
    records: int


@final
class RecordsHandled(NamedTuple):
    """Your code is done with a page, a part of a page, or a batch.

    Code that iterates is done with a record when it requests the next record. A handler is done when it has returned.
    If your code takes long for a page, the page is reported in parts, about one part every second.
    """

    shard_id: str
    records: int
    duration: float
    """How long your code had the records, in seconds."""


@final
class Committed(NamedTuple):
    """The lease store confirmed a checkpoint."""

    shard_id: str
    position: Position
    duration: float
    """How long the write took, in seconds."""


@final
class LeaseHandedOver(NamedTuple):
    """The lease was released because another worker asked for it."""

    shard_id: str
    to: str
    duration: float
    """The time from the other worker's request to the release, in seconds."""


@final
class ShardLag(NamedTuple):
    """How far reading and handling are behind the end of one shard."""

    shard_id: str
    reading_lag: float | None
    """How far reading is behind the end of the shard, in seconds, or ``None`` while this is unknown."""
    handling_lag: float | None
    """How far handling is behind the end of the shard, in seconds, or ``None`` while this is unknown."""
    prefetched: int
    """The number of records that have been read but not handed out yet."""
    in_hand: int
    """The number of records that your code has but is not done with."""


@final
class LagMeasured(NamedTuple):
    """The lag of all shards that this worker holds, measured every 5 seconds."""

    shards: tuple[ShardLag, ...]


HandlingEvent: TypeAlias = HandlerRetried | RecordsDeadLettered | DeadLetterFailed | HandlingStopped
"""An event about a handler that failed."""

Event: TypeAlias = (
    LeaseGained
    | ShardSought
    | HandOverAsked
    | LeaseSurplus
    | HandOverOverdue
    | LeaseLost
    | LeaseReleased
    | StreamReplaced
    | ConsumerFailed
    | StreamMissing
    | PositionLost
    | RecordsTrimmed
    | ShardTrimmed
    | HashRangesUncovered
    | HashRangesCovered
    | TooManyUnacknowledged
    | ShardsPaused
    | ShardsResumed
    | MaxLeasesChanged
    | ReadFailed
    | Subscribed
    | SubscriptionEnded
    | StoreFailed
    | StoreRecovered
    | ProgressLost
    | ListingFailed
    | WorkerIdShared
    | Stalled
    | HandlerRetried
    | RecordsDeadLettered
    | DeadLetterFailed
    | HandlingStopped
    | HandlerStuck
    | HandlerRecovered
    | PageRead
    | RecordsFiltered
    | RepeatsDropped
    | DedupWindowOverflowed
    | RecordsHandedOut
    | RecordsHandled
    | Committed
    | LeaseHandedOver
    | LagMeasured
)
