"""The requests that control a running consumer. User code makes them, and this module decides when each is over.

User code creates a ``Request`` and posts it to the host. The hand-out carries out the request and writes the outcome.
Some requests, such as a commit, are over only when the lease store has confirmed a write for each of their shards
(``PendingWrites``).

Invariants:

- User code writes no field of a request after it has posted the request. The host sets ``is_over`` last.
- A request ends in one of two ways for each of its shards: the store has confirmed the write, or the shard is in
  ``lost`` with the reason. So if a request is over and ``lost`` is empty, all its writes are in the store.
- A request waits for the tracker that its shard had when the request arrived. A seek replaces the tracker: a commit
  that was not written before the seek is never written.
- If several seeks in a shard overlap, the last one wins, and all of them are over when it is written.
"""

from collections.abc import Collection, Mapping
from typing import NamedTuple, TypeAlias, final

from shardline.core.consumer.checkpoint import CheckpointTracker
from shardline.core.consumer.lease_phases import Holding
from shardline.core.consumer.reader import ShardKey
from shardline.errors import UsageError
from shardline.model.lease import Checkpoint
from shardline.model.position import Position, PositionKind, at_sequence_number, at_timestamp
from shardline.model.sequence import BEFORE_FIRST, SequenceNumber

Positions: TypeAlias = dict[str, Position]
"""A position for each shard, by the id of the shard."""


@final
class Request:
    """A request from user code: the mailbox between the caller and the host.

    ``shards`` are the shards to act on. ``None`` stands for all shards that this worker holds when the request arrives.
    ``done`` and ``lost`` are by the name of the shard (``HandOut.name_of``).
    """

    def __init__(self, shards: Collection[ShardKey] | None = None) -> None:
        self.shards: Collection[ShardKey] | None = shards
        self.done: Positions = {}
        """The position that the store contains for each shard whose write was confirmed."""
        self.lost: dict[str, str] = {}
        """The shards for which nothing was written, and why."""
        self.is_over: bool = False


class _Wait(NamedTuple):
    """A request that waits until the store contains the tracker's checkpoint up to ``number``, or the new position."""

    name: str
    holding: Holding
    tracker: CheckpointTracker
    number: SequenceNumber | None
    is_seek: bool

    @property
    def is_written(self) -> bool:
        if self.is_seek:
            return self.tracker.is_sought
        return self.number is None or self.tracker.has_written(self.number)


def sought_checkpoint(position: Position, latest_at: float) -> Checkpoint:
    """Return the checkpoint of a shard that will be read from ``position`` on.

    ``latest_at`` is the time that LATEST stands for. It must not move with each restart (L6).

    Raises:
        UsageError: no reader can start at this position.
    """
    number = position.sequence_number
    if not position.can_start:
        raise UsageError(f"a consumer cannot seek to {position}")
    if position.kind is PositionKind.LATEST:
        return Checkpoint(at_timestamp(latest_at))
    if number is None:
        return Checkpoint(position)
    if position.kind is PositionKind.AFTER_SEQUENCE_NUMBER:
        return Checkpoint(at_sequence_number(number))
    # A checkpoint is at the last record that is done. The record at the position passed to ``seek`` is not done.
    return Checkpoint(at_sequence_number(SequenceNumber(number.number, max(BEFORE_FIRST, number.sub_sequence - 1))))


@final
class PendingWrites:
    """The requests that are waiting for the lease store."""

    def __init__(self) -> None:
        self._waits: dict[Request, list[_Wait]] = {}

    def add(self, request: Request, holdings: Mapping[str, Holding], *, is_seek: bool = False) -> None:
        """Let the request wait until all records of these leases that are done by now are committed or, for a seek,
        until the new position is written. The leases are by the names of their shards.
        """
        self._waits[request] = [
            _Wait(name, holding, holding.tracker, holding.tracker.watermark, is_seek)
            for name, holding in holdings.items()
        ]
        self.check()

    def check(self, *, is_ending: bool = False) -> None:
        """End the requests whose writes are confirmed or have become impossible.

        ``is_ending`` means that the host is ending, so that no more answers will come from the store.
        """
        for request, waits in [*self._waits.items()]:
            left = [wait for wait in waits if not _settle(request, wait, is_ending=is_ending)]
            if left:
                self._waits[request] = left
            else:
                del self._waits[request]
                request.is_over = True


def _settle(request: Request, wait: _Wait, *, is_ending: bool) -> bool:
    """Write the outcome for one shard. Return False while the outcome is open."""
    holding = wait.holding
    if wait.is_written:
        request.done[wait.name] = holding.row.checkpoint.position
    elif holding.is_over:
        request.lost[wait.name] = holding.why or "the lease was released"
    elif wait.tracker.is_replaced and not wait.is_seek:
        request.lost[wait.name] = "seek() has moved its position"
    elif is_ending:
        request.lost[wait.name] = "the consumer has ended"
    else:
        return False
    return True
