"""The events of a consumer: everything to report that is neither a request nor a record.

The set is closed. The machines return events as values (``take_events``), and the shell turns them into log lines,
metrics and exceptions. The events in the first section are commands to the shell, which must act on each of them.
"""

from typing import Literal, NamedTuple, TypeAlias, final

from shardline.core.clock import NEVER, Instant
from shardline.core.consumer.grant import Grant
from shardline.core.failures import Failure
from shardline.model.hashing import HashRange
from shardline.model.lease import Checkpoint
from shardline.model.position import Position

# ---- events that the shell must act on


@final
class LeaseGained(NamedTuple):
    """Start a reader for this shard."""

    shard_id: str
    grant: Grant
    start: Position
    """Where to ask for the first iterator."""
    checkpoint: Checkpoint
    """The records at or before the checkpoint are done. Skip them."""
    hash_range: HashRange | None


@final
class HandOverAsked(NamedTuple):
    """Another worker asked for the lease: stop the reader, drop the records that the user has not seen, and call
    ``leave`` once the user is done with the records in hand.
    """

    shard_id: str
    by: str
    until: Instant
    """The worker gives the lease away at this time, even if the user is not done."""


@final
class HandOverOverdue(NamedTuple):
    """The user did not finish in time: cancel its code for this shard. The worker commits the acknowledged records and
    gives the lease away.
    """

    shard_id: str


@final
class LeaseLost(NamedTuple):
    """The lease was lost: stop the reader and cancel the user's code. Another worker may read the shard (L2)."""

    shard_id: str
    why: str


@final
class LeaseReleased(NamedTuple):
    """The lease was released in an orderly way: on exit, after a hand-over, or because the shard is finished."""

    shard_id: str
    finished: bool


@final
class StreamReplaced(NamedTuple):
    """The stream was deleted and re-created under its name. The consumer reads no more of the old stream."""

    why: str


@final
class ConsumerFailed(NamedTuple):
    """The consumer cannot go on, and retrying will not help: access was denied, or there is no such stream."""

    operation: str
    failure: Failure


# ---- events to report to the user


@final
class StreamMissing(NamedTuple):
    """The stream was deleted. With ``if_recreated="restart"``, the consumer waits until it is re-created."""

    failure: Failure


@final
class PositionLost(NamedTuple):
    """The service refused the reader's position. Reading continues at TRIM_HORIZON, and records may be missing."""

    shard_id: str
    position: Position
    failure: Failure


@final
class RecordsTrimmed(NamedTuple):
    """The reader's position went out of retention. Records may have been removed before they were read."""

    shard_id: str
    why: str


@final
class ShardTrimmed(NamedTuple):
    """A whole shard went out of retention before it was finished. Its unread records are lost."""

    shard_id: str


@final
class TooManyUnacknowledged(NamedTuple):
    """The shard reached ``max_unacknowledged``. It hands out no more records until some are acknowledged."""

    shard_id: str
    unacknowledged: int


@final
class ReadFailed(NamedTuple):
    """A call to a shard failed. The reader retries it at ``retry_at`` (NEVER: no retry)."""

    shard_id: str
    operation: str
    failure: Failure
    retry_at: Instant


@final
class Subscribed(NamedTuple):
    """A subscription to the shard began (enhanced fan-out)."""

    shard_id: str
    position: Position


@final
class SubscriptionEnded(NamedTuple):
    """A subscription to the shard ended or was refused. The reader subscribes again at ``retry_at``.

    This is normal: the service ends every subscription after 5 minutes. If subscribing fails repeatedly, the further
    failures are reported as ``ReadFailed``.
    """

    shard_id: str
    failure: Failure | None
    """Why it ended. ``None``: the service ended it in good order."""
    retry_at: Instant


@final
class StoreFailed(NamedTuple):
    """The lease store failed. Reading continues until the leases expire."""

    failure: Failure
    failures: int
    gives_up_at: Instant = NEVER
    """When the consumer fails if the store does not recover (NEVER: it keeps retrying)."""


@final
class StoreRecovered(NamedTuple):
    """The lease store answers again."""

    failures: int


@final
class ProgressLost(NamedTuple):
    """The lease store came back empty. The group's checkpoints are lost, and it starts again at ``start``."""

    shards: int
    """How many unfinished shards the group had."""


@final
class ListingFailed(NamedTuple):
    """Listing the shards or describing the stream failed. The worker retries it at ``retry_at`` (NEVER: no retry)."""

    operation: str
    failure: Failure
    retry_at: Instant


@final
class WorkerIdShared(NamedTuple):
    """Another live process uses this worker's worker_id and holds this shard. Neither takes leases from the other."""

    shard_id: str
    worker_id: str


@final
class Stalled(NamedTuple):
    """The coordinator was called so late that leases may expire. The event loop was blocked, or the machine slept."""

    seconds: float


@final
class HandlerRetried(NamedTuple):
    """Your handler failed. The consumer passes the records, or a part of the batch, to it again at ``retry_at``."""

    shard_id: str
    sequence_number: str
    """The sequence number of the first record; ``sub_sequence`` is its place in an aggregate."""
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
    """A dead letter could not be written. The consumer retries at ``retry_at``. If that is NEVER, ``run`` ends with
    ``HandlerFailed``, and the records are delivered again later.
    """

    shard_id: str
    sequence_number: str
    sub_sequence: int
    records: int
    attempts: int
    """How many times the consumer tried to write the dead letter."""
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
    """Your code has had these records for longer than ``stuck_after``: it hangs, or is very slow."""

    shard_id: str
    sequence_number: str
    """The sequence number of the oldest record; ``sub_sequence`` is its place in an aggregate."""
    sub_sequence: int
    records: int
    seconds: float


@final
class HandlerRecovered(NamedTuple):
    """Stuck code has continued, or the lease of its shard was released."""

    shard_id: str
    seconds: float
    """For how long the code had its records."""


# ---- events that measure


@final
class PageRead(NamedTuple):
    """A page of a shard was read. It may be empty."""

    shard_id: str
    records: int
    """User records. An aggregate counts as the records in it."""
    payload_bytes: int
    """The bytes of data, as they are stored in the stream."""
    duration: float
    """How long the request took, in seconds. With fan-out, how long the reader waited for the page."""
    reading_lag: float | None
    """How far this page is behind the end of the shard, in seconds. ``None`` if the service did not say."""
    read_by: Literal["polling", "fan-out"]


@final
class RecordsHandedOut(NamedTuple):
    """A page, or a part of it, was handed to your code."""

    shard_id: str
    records: int


@final
class RecordsHandled(NamedTuple):
    """Your code is done with a page, a part of it, or a batch.

    An iterator is done with a record when your code asks for the next one, a handler when it has returned. A page that
    takes long is reported in parts, about every second.
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
    """The time from the request of the other worker to the release, in seconds."""


@final
class ShardLag(NamedTuple):
    """How far the work on one shard is behind."""

    shard_id: str
    reading_lag: float | None
    """How far reading is behind the end of the shard, in seconds. ``None`` while it is unknown."""
    handling_lag: float | None
    """How far handling is behind the end of the shard, in seconds. ``None`` while it is unknown."""
    prefetched: int
    """Records that were read and not handed out yet."""
    in_hand: int
    """Records that your code has and is not done with."""


@final
class LagMeasured(NamedTuple):
    """The lag of all shards that this worker holds, measured every 5 seconds."""

    shards: tuple[ShardLag, ...]


HandlingEvent: TypeAlias = HandlerRetried | RecordsDeadLettered | DeadLetterFailed | HandlingStopped
"""An event about records that a handler failed on."""

Event: TypeAlias = (
    LeaseGained
    | HandOverAsked
    | HandOverOverdue
    | LeaseLost
    | LeaseReleased
    | StreamReplaced
    | ConsumerFailed
    | StreamMissing
    | PositionLost
    | RecordsTrimmed
    | ShardTrimmed
    | TooManyUnacknowledged
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
    | RecordsHandedOut
    | RecordsHandled
    | Committed
    | LeaseHandedOver
    | LagMeasured
)
