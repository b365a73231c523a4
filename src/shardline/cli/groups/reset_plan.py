"""Where will each shard of a group stand after a reset, and how does it get there?

Invariants:

- After a reset of the whole group it stands as a new one would that starts there: at TRIM_HORIZON every shard of
  the stream is read again, also closed ones, parents before children; at LATEST nothing that lies there; at a time
  what arrived since.
- So every shard that is to be read has a row. A parent without one, whose child has one, counts as read (L3).
- Rows are written the oldest shard first: parents hold their children back before these begin again.
- A row changes in one conditional write. Broken off, a reset leaves rows as they were and rows as they should
  be, nothing between; a worker that holds a lease loses it, and can write no more.
- A row that cannot be of this stream (it was made anew) is deleted and made again.
- Times are Kinesis's own, not this machine's: LATEST and "15 minutes ago" mean the same on every machine.
- A sequence number counts as done, with all that is in its aggregate: what `describe` shows leads back there.
- A sequence number is only believed if its shard has that record: from one of another shard no consumer could go
  on.
"""

from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Final, NamedTuple, final

import click

from shardline.aio.client import Client
from shardline.cli.error_messages import WrongUsage
from shardline.cli.groups.group_lag import first_page
from shardline.cli.retrying import patiently
from shardline.cli.streams.shard_tree import age
from shardline.cli.time_arguments import parse_start
from shardline.codec.raw_records import deaggregate
from shardline.core.leases import CreateLease, DeleteLease, LeaseOperation, ResetLease
from shardline.core.requests import ShardFilter
from shardline.errors import RequestError, UsageError
from shardline.model.lease import Checkpoint, Lease
from shardline.model.position import LATEST, SHARD_END, Position, at_sequence_number
from shardline.model.sequence import SequenceNumber
from shardline.model.shard import Shard

_SEQUENCE_DIGITS: Final = 13  # as in moments: fewer are seconds since 1970
_LATEST_MARGIN: Final = 1.0


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


async def find_target(client: Client, stream: str, shards: Sequence[Shard], to: str, shard_id: str | None) -> Target:
    """Where ``to`` leads; ``shards`` are all of the stream, listed just now."""
    now = client.api.service_time()
    position = await _find_position(client, stream, to, shard_id, now)
    since = frozenset(shard.shard_id for shard in shards)
    if position.timestamp is not None:
        since &= await _shards_since(client, stream, position.timestamp) or since
    return target_of(position, max(0.0, now - _LATEST_MARGIN), shards, since)


async def _find_position(client: Client, stream: str, to: str, shard_id: str | None, now: float) -> Position:
    number, _, sub_sequence = to.partition(":")
    if number.isascii() and number.isdigit() and len(number) >= _SEQUENCE_DIGITS:
        if shard_id is None:
            raise WrongUsage("a sequence number is one shard's: name it with --shard")
        return await _done_with(client, stream, shard_id, number, sub_sequence)
    position = parse_start(to.removeprefix("-"), now)
    if position.timestamp is not None and position.timestamp > now + _LATEST_MARGIN:
        raise WrongUsage(f"--to {to} lies ahead of the clock of Kinesis")
    return position


async def _done_with(client: Client, stream: str, shard_id: str, number: str, sub_sequence: str) -> Position:
    """The checkpoint of someone who is done with this record."""
    if sub_sequence and not (sub_sequence.isascii() and sub_sequence.isdigit()):
        raise WrongUsage(f"the place inside an aggregate is a whole number, not {sub_sequence!r}")
    wanted = at_sequence_number(number)
    try:
        page = await first_page(client, stream, Lease(shard_id, checkpoint=Checkpoint(wanted)))
        records = page.records
    except RequestError as error:
        if error.kind != "invalid":
            raise
        records = []
    if not records or SequenceNumber.parse(records[0].sequence_number) != wanted.sequence_number:
        raise click.ClickException(f"{shard_id} has no record {number}: name one that it has, TRIM_HORIZON, or a time")
    last = max(0, len(deaggregate(records[0])) - 1)
    return at_sequence_number(SequenceNumber.parse(number, int(sub_sequence) if sub_sequence else last))


async def _shards_since(client: Client, stream: str, moment: float) -> frozenset[str]:
    """The shards that were open then, or came later; none if the server cannot tell: then all of them are read."""
    wanted = ShardFilter("FROM_TIMESTAMP", timestamp=moment)
    try:
        found = await patiently(lambda: client.list_shards(stream, wanted))
    except RequestError as error:
        if error.kind != "invalid":
            raise
        found = []
    return frozenset(shard.shard_id for shard in found)


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
    """What happens to each row, or to one shard's alone.

    Raises:
        UsageError: the stream has no such shard.
    """
    known = {shard.shard_id: shard for shard in sorted(shards, key=age)}
    if only is not None:
        if only not in known:
            raise UsageError(f"the stream has no shard {only!r}")
        return [_step(known[only], rows.get(only), target)]
    steps = [
        _step(shard, rows.get(shard_id), target)
        for shard_id, shard in known.items()
        if shard_id in rows or shard_id in target.read
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
    other_range = row.hash_range is not None and row.hash_range != after.hash_range
    return other_range or bool(row.parent_ids - after.parent_ids)


def operations(row: Lease | None, after: Lease | None) -> list[LeaseOperation]:
    """The writes that lead from one to the other, each on the condition that the one before it holds."""
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
