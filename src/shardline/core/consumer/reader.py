"""Defines what all readers of a shard have in common: pages, states, and the protocol that other code uses.

A reader returns the records of one shard in order, as ``Page`` values. The hand-out (``handout``) queues the pages for
the user and does not know how they were read. ``PollingReader`` calls GetRecords. ``FanOutReader`` calls
SubscribeToShard; its states use the word "iterator" for a subscription.

To add a third kind of reader, change two places:

1. Write a subclass of ``PageReader`` (``page_reader.py``) in this folder. The subclass decides which request to send
   next, and passes the records of each response to the methods that it inherits. Set its ``read_by``.
2. In ``aio/consumer/shard_reading.py``, write a subclass of ``ShardReading``, which sends the requests of the reader.
   Construct both in ``ShardReadings.make``, where a shard gets its reader.

Invariants:

- Pages are returned in the order of the shard, and no record is left out between two pages.
- ``TRANSITIONS`` lists every change of state that a reader may make. Each change is checked against this table.
  docs/pictures draws the states of a reader from the same table.
- A reader that is over (``OVER``) never changes its state again, and reads no further pages.
"""

from collections.abc import Mapping
from enum import Enum
from typing import ClassVar, Final, Literal, NamedTuple, Protocol, TypeAlias, final

from shardline.core.clock import Instant
from shardline.core.consumer.consumer_events import (
    DedupWindowOverflowed,
    PageRead,
    PositionLost,
    ReadFailed,
    RecordsTrimmed,
    Subscribed,
    SubscriptionEnded,
)
from shardline.core.error_codes import Failure
from shardline.model.record import Record
from shardline.model.shard import ChildShard

ReaderEvent: TypeAlias = (
    PageRead | PositionLost | RecordsTrimmed | ReadFailed | Subscribed | SubscriptionEnded | DedupWindowOverflowed
)

Children: TypeAlias = tuple[ChildShard, ...]
ShardKey: TypeAlias = tuple[str, str]
"""The name of a stream and the id of one of its shards. The id alone is not enough, because shards of two streams may
have the same id."""


@final
class Page(NamedTuple):
    """Records of one shard, in order: all or some of the records that one request returned."""

    shard_id: str
    records: list[Record]
    held_bytes: int
    """The number of bytes to release from the budget once the user is done with the whole page."""
    lag: float | None
    """How far the end of the page is behind the end of the shard, in seconds."""
    is_last: bool
    """Whether this is the last page of the shard."""
    child_shards: Children
    """The children of the shard if this is the last page. Any other page has none."""
    filtered: int = 0
    """How many records are missing from ``records`` because they did not pass the user's filter (``record_filter``)."""
    through: Record | None = None
    """The last record of the page, if it did not pass the filter or is a copy of an earlier one. It is done when all
    records before it are done."""
    freed_bytes: int = 0
    """The number of bytes to release from the budget immediately, because the filter left out records."""
    repeated: int = 0
    """How many records are missing from ``records`` because they are copies of earlier ones (``dedup_window``)."""


@final
class ReaderState(Enum):
    """The states of a reader, from the first iterator to the end of the shard."""

    __hash__ = object.__hash__  # members are unique, and the hash of an Enum is a slow Python function

    STARTING = "has no iterator"
    ASKING = "waits for an iterator"
    READY = "may read the next page"
    READING = "waits for a page"
    ENDED = "the shard has no more records"
    GONE = "the service does not know the shard"
    FAILED = "an error that retrying does not cure"
    STOPPED = "was stopped"


_S: TypeAlias = ReaderState
TRANSITIONS: Final[Mapping[ReaderState, frozenset[ReaderState]]] = {
    _S.STARTING: frozenset({_S.ASKING, _S.STOPPED}),
    _S.ASKING: frozenset({_S.READY, _S.STARTING, _S.GONE, _S.FAILED, _S.STOPPED}),
    _S.READY: frozenset({_S.READING, _S.ENDED, _S.STOPPED}),
    _S.READING: frozenset({_S.READY, _S.STARTING, _S.GONE, _S.FAILED, _S.STOPPED}),
    _S.ENDED: frozenset(),
    _S.GONE: frozenset(),
    _S.FAILED: frozenset(),
    _S.STOPPED: frozenset(),
}
OVER: Final = frozenset(state for state, following in TRANSITIONS.items() if not following)
WITH_ITERATOR: Final = frozenset({_S.READY, _S.READING, _S.ENDED})
"""The states in which a record that is put from now on will be read."""


class Reader(Protocol):
    """The part of a reader that the hand-out and the shells use.

    The methods for inputs (responses to requests, events of a subscription) are not part of this protocol: they differ
    for each kind of reader, and only the reader's own task calls them.
    """

    read_by: ClassVar[Literal["polling", "fan-out"]]
    """How the reader gets its records: by polling or by fan-out."""

    @property
    def key(self) -> ShardKey: ...
    @property
    def shard_id(self) -> str: ...
    @property
    def state(self) -> ReaderState: ...
    @property
    def failure(self) -> Failure | None:
        """Why the reader is in the state GONE or FAILED."""
        ...

    @property
    def lag(self) -> float | None:
        """How far behind the end of the shard the last page was, in seconds, or ``None`` if this is not known."""
        ...

    @property
    def is_over(self) -> bool: ...
    @property
    def has_unopened(self) -> bool:
        """Whether ``take_pages`` will return more pages once there is room."""
        ...

    @property
    def has_caught_up(self) -> bool:
        """Whether the shard was once read up to its newest record, and ``take_pages`` has returned all of these
        records.
        """
        ...

    @property
    def out_of_range(self) -> int:
        """How many records of aggregates were outside the shard's hash range."""
        ...

    def unread_age(self, now: Instant) -> float | None:
        """Return the age of the oldest unread record: 0 if all records were read, or ``None`` if the age is unknown."""
        ...

    def take_pages(self) -> list[Page]:
        """Return the pages that have been read since the last call, in order, if the budget has room for them."""
        ...

    def take_events(self) -> list[ReaderEvent]: ...

    def next_deadline(self) -> Instant:
        """Return the time of the next poll. If the budget has no room, the reader is polled again when the budget
        admits it.
        """
        ...

    def stop(self) -> None:
        """Stop reading and drop the pages that were not taken."""
        ...
