"""Where will each shard of a group stand after a reset, and how does it get there?

Invariants:

- RS1: after a reset of the whole group it stands as a new one would that starts there: at TRIM_HORIZON every shard of
  the stream is read again, also closed ones, parents before children; at LATEST nothing that lies there; at a time
  what arrived since.
- RS2: so every shard that is to be read has a row. A parent without one, whose child has one, counts as read (L3).
- RS3: rows are written the oldest shard first: parents hold their children back before these begin again.
- RS4: a row changes in one conditional write (W7). Broken off, a reset leaves rows as they were and rows as they should
  be, nothing between; a worker that holds a lease loses it, and can write no more.
- RS5: a row that cannot be of this stream (it was made anew) is deleted and made again.
"""

from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import NamedTuple, final

from shardline.core.leases import CreateLease, DeleteLease, LeaseOperation, ResetLease
from shardline.errors import UsageError
from shardline.model.lease import Checkpoint, Lease
from shardline.model.position import LATEST, SHARD_END, Position
from shardline.model.shard import Shard


@final
class Action(StrEnum):
    """What happens to a row."""

    RESET = "reset"
    CREATE = "create"
    REPLACE = "replace"
    DELETE = "delete"
    KEEP = "keep"


@final
class Target(NamedTuple):
    """Where a reset leads."""

    position: Position
    latest_at: float
    """What LATEST means: the service's time, less 1 s (L6)."""
    read: frozenset[str]
    """The shards in which something is left to read from there; the others are finished."""

    def lease_of(self, shard: Shard) -> Lease:
        """The row of a group that starts here."""
        position = self.position if shard.shard_id in self.read else SHARD_END
        return Lease(
            shard.shard_id,
            checkpoint=Checkpoint(position),
            parent_ids=frozenset(shard.parent_ids),
            hash_range=shard.hash_range,
            latest_at=self.latest_at if position == LATEST else None,
        )


@final
class Step(NamedTuple):
    """One row's part in the reset."""

    shard_id: str
    action: Action
    before: Lease | None
    after: Lease | None


def target_of(position: Position, latest_at: float, shards: Iterable[Shard], since: frozenset[str]) -> Target:
    """Where a reset to ``position`` leads.

    Args:
        position: where the user wants the group to be.
        latest_at: the service's time, less 1 s.
        shards: all shards of the stream.
        since: the shards that were open at the time of ``position``, or came later, if it is a time.
    """
    if position == LATEST:
        return Target(position, latest_at, frozenset(shard.shard_id for shard in shards if shard.is_open))
    if position.timestamp is not None:
        return Target(position, latest_at, since)
    return Target(position, latest_at, frozenset(shard.shard_id for shard in shards))


def plan(shards: Sequence[Shard], rows: Mapping[str, Lease], target: Target, only: str | None = None) -> list[Step]:
    """What happens to each row (RS1 to RS3), or to one shard's alone.

    Raises:
        UsageError: the stream has no such shard.
    """
    known = {shard.shard_id: shard for shard in sorted(shards, key=_age)}
    if only is not None:
        if only not in known:
            raise UsageError(f"the stream has no shard {only!r}")
        return [_step(known[only], rows.get(only), target)]
    steps = [
        _step(shard, rows.get(shard_id), target)
        for shard_id, shard in known.items()
        if shard_id in rows or shard_id in target.read  # RS2
    ]
    gone = sorted(rows.keys() - known.keys())
    return steps + [Step(shard_id, Action.DELETE, rows[shard_id], None) for shard_id in gone]


def _step(shard: Shard, row: Lease | None, target: Target) -> Step:
    after = target.lease_of(shard)
    return Step(shard.shard_id, _action(row, after), row, after)


def _action(row: Lease | None, after: Lease) -> Action:
    if row is None:
        return Action.CREATE
    if _is_of_another_stream(row, after):
        return Action.REPLACE
    is_there = (row.checkpoint, row.latest_at) == (after.checkpoint, after.latest_at)
    return Action.KEEP if is_there and (row.holder is None or after.checkpoint.is_finished) else Action.RESET


def _is_of_another_stream(row: Lease, after: Lease) -> bool:
    """RS5."""
    other_range = row.hash_range is not None and row.hash_range != after.hash_range
    return other_range or bool(row.parent_ids - after.parent_ids)


def operations(row: Lease | None, after: Lease | None) -> list[LeaseOperation]:
    """The writes that lead from one to the other, each on the condition that the one before it holds (RS4)."""
    if after is None:
        return [] if row is None else [DeleteLease(row.shard_id, row.counter)]
    if row is None:
        return [CreateLease(after)]
    match _action(row, after):
        case Action.KEEP:
            return []
        case Action.REPLACE:
            return [DeleteLease(row.shard_id, row.counter), CreateLease(after)]
        case _:
            return [ResetLease(row.shard_id, row.fence, after.checkpoint, after.latest_at)]


def _age(shard: Shard) -> tuple[int, str]:
    return shard.starting_sequence_number.number, shard.shard_id
