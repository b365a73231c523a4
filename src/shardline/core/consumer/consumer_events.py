"""What does a consumer tell of itself?

The closed set of things worth telling that are neither a request nor a record: the machines hand them out as values
(``take_events``), and the shell makes log lines, metrics and exceptions of them. Those under "what the shell must act
on" are commands in the past tense: whoever drives the machines has to follow them.
"""

from typing import NamedTuple, TypeAlias, final

from shardline.core.clock import NEVER, Instant
from shardline.core.consumer.grant import Grant
from shardline.core.failures import Failure
from shardline.model.hashing import HashRange
from shardline.model.lease import Checkpoint
from shardline.model.position import Position

# ---- what the shell must act on


@final
class LeaseGained(NamedTuple):
    """Start a reader for this shard."""

    shard_id: str
    grant: Grant
    start: Position
    """Where to ask for the first iterator."""
    checkpoint: Checkpoint
    """What is at or before it was done before: to be skipped."""
    hash_range: HashRange | None


@final
class HandOverAsked(NamedTuple):
    """Another worker shall have it: stop the reader, drop what the user has not seen, and say ``leave`` once the
    user is done with the rest.
    """

    shard_id: str
    by: str
    until: Instant
    """Then the lease goes, finished or not."""


@final
class HandOverOverdue(NamedTuple):
    """The user was not done in time: cancel its code for this shard. The lease goes, with what was acknowledged."""

    shard_id: str


@final
class LeaseLost(NamedTuple):
    """Stop its reader and cancel the user's code for this shard: someone else may be reading it (L2)."""

    shard_id: str
    why: str


@final
class LeaseReleased(NamedTuple):
    """Let go in good order: on exit, after a hand-over, or when the shard was finished."""

    shard_id: str
    finished: bool


@final
class StreamRecreated(NamedTuple):
    """The stream was deleted and made anew under its name. Nothing more is read."""

    why: str


@final
class ConsumerFailed(NamedTuple):
    """Nothing more can be read, and waiting will not help: access denied, or no such stream."""

    operation: str
    failure: Failure


# ---- what the user should hear of


@final
class StreamMissing(NamedTuple):
    """The stream was deleted. With ``if_recreated="restart"`` the consumer waits until it is back."""

    failure: Failure


@final
class PositionLost(NamedTuple):
    """The service refused to read from where we were: reading goes on at TRIM_HORIZON, records may be missing."""

    shard_id: str
    position: Position
    failure: Failure


@final
class RecordsTrimmed(NamedTuple):
    """The place where we stood went out of retention: records may have gone with it before they were read."""

    shard_id: str
    why: str


@final
class ShardTrimmed(NamedTuple):
    """A whole shard went out of retention before it was finished: what was unread of it is gone."""

    shard_id: str


@final
class TooManyUnacknowledged(NamedTuple):
    """``max_unacknowledged`` is reached: no more of this shard are handed out until records are acknowledged."""

    shard_id: str
    unacknowledged: int


@final
class ReadFailed(NamedTuple):
    """A call to a shard failed; it is tried again at ``retry_at`` (NEVER: it is not)."""

    shard_id: str
    operation: str
    failure: Failure
    retry_at: Instant


@final
class StoreFailed(NamedTuple):
    """The lease store failed. Reading goes on until the leases lapse."""

    failure: Failure
    failures: int
    gives_up_at: Instant = NEVER
    """When the consumer ends if this goes on (NEVER: it keeps trying)."""


@final
class StoreRecovered(NamedTuple):
    """The lease store answers again."""

    failures: int


@final
class ProgressLost(NamedTuple):
    """The lease store came back empty: what the group had committed is lost, and it begins again at ``start``."""

    shards: int
    """How many shards it was reading."""


@final
class ListingFailed(NamedTuple):
    """The shards could not be listed, or the stream not be described; it is tried again at ``retry_at``."""

    operation: str
    failure: Failure
    retry_at: Instant


@final
class WorkerIdShared(NamedTuple):
    """Another live process works under our worker_id: it holds this shard. Neither takes what the other holds."""

    shard_id: str
    worker_id: str


@final
class Stalled(NamedTuple):
    """Nobody called for so long that leases are in danger: a blocked event loop, or a suspended machine."""

    seconds: float


@final
class HandlerRetried(NamedTuple):
    """Your handler failed. The records, or a part of the batch, are handed to it again at ``retry_at``."""

    shard_id: str
    sequence_number: str
    """Of the first of the records; ``sub_sequence`` is its place in an aggregate."""
    sub_sequence: int
    records: int
    attempts: int
    """How often the handler has had these records."""
    error_type: str
    message: str
    """The exception's text, without words that occur in the records."""
    place: str
    """Where in your code it was raised."""
    retry_at: Instant


@final
class RecordsDeadLettered(NamedTuple):
    """Your handler failed for good, and the records were written as dead letters. Handling goes on after them."""

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
    """A dead letter could not be written. It is tried again at ``retry_at``; NEVER: ``run`` ends with
    ``HandlerFailed``, and the records come again.
    """

    shard_id: str
    sequence_number: str
    sub_sequence: int
    records: int
    attempts: int
    """How often it was tried."""
    error_type: str
    message: str
    place: str
    retry_at: Instant


@final
class HandlingStopped(NamedTuple):
    """Your handler failed for good, and there are no dead letters: ``run`` ends with ``HandlerFailed``, and the
    records come again.
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
    """Of the oldest of the records; ``sub_sequence`` is its place in an aggregate."""
    sub_sequence: int
    records: int
    seconds: float


@final
class HandlerRecovered(NamedTuple):
    """Code that was stuck has gone on, or its shard was let go of."""

    shard_id: str
    seconds: float
    """For how long it had its records."""


HandlingEvent: TypeAlias = HandlerRetried | RecordsDeadLettered | DeadLetterFailed | HandlingStopped
"""What becomes of records that a handler fails on."""

Event: TypeAlias = (
    LeaseGained
    | HandOverAsked
    | HandOverOverdue
    | LeaseLost
    | LeaseReleased
    | StreamRecreated
    | ConsumerFailed
    | StreamMissing
    | PositionLost
    | RecordsTrimmed
    | ShardTrimmed
    | TooManyUnacknowledged
    | ReadFailed
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
)
