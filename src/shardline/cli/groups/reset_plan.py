"""Plans a reset: the new checkpoint of each shard, and the writes that set it.

Invariants:

- After a reset, the whole group is in the state of a new group that starts at the target. At TRIM_HORIZON it reads
  every shard of the stream again, even closed shards, parents before children; at LATEST it reads no stored record; at
  a time it reads the records that arrived since then.
- So every shard that the group will read gets a row, because a parent without a row counts as read if its child has one
  (L3).
- The rows of the oldest shards are written first, so that parents hold their children back before the children restart.
- A row changes in one conditional write, so an interrupted reset leaves each row either old or new. A worker that holds
  a lease loses it, and cannot write to it any more.
- If the stream was re-created, a row that belongs to the old stream is deleted and re-created.
- Times are read from the Kinesis service, so that LATEST and "15 minutes ago" mean the same on every machine.
- A sequence number counts as processed, with its whole aggregate: a reset to the output of `describe` leads back to
  that position.
- A sequence number is accepted only if its shard contains that record. No consumer could resume from a sequence number
  of another shard.
"""

from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Final, NamedTuple, final

import click

from shardline.aio.client import Client
from shardline.cli.error_messages import WrongUsage
from shardline.cli.groups.group_lag import first_page
from shardline.cli.retrying import with_retries
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

_SEQUENCE_DIGITS_MIN: Final = 13  # as in ``time_arguments``: fewer digits are seconds since 1970
_LATEST_MARGIN: Final = 1.0


@final
class Action(StrEnum):
    """How a step changes the row of a shard."""

    RESET = "reset"
    CREATE = "create"
    REPLACE = "replace"
    DELETE = "delete"
    KEEP = "keep"


@final
class Target(NamedTuple):
    """The position that a reset moves a group to."""

    position: Position
    latest_at: float
    """The time that LATEST stands for: the service's time, less 1 s (L6)."""
    read: frozenset[str]
    """The shards that have records to read at or after the position. All other shards are finished."""

    def lease_of(self, shard: Shard) -> Lease:
        """Return the row that a group has for this shard if it starts at the target."""
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
    """The change of one row: the row before and after."""

    shard_id: str
    action: Action
    before: Lease | None
    after: Lease | None


async def find_target(client: Client, stream: str, shards: Sequence[Shard], to: str, shard_id: str | None) -> Target:
    """Return the target that ``to`` names. ``shards`` must be a fresh listing of all shards of the stream."""
    now = client.api.service_time()
    position = await _find_position(client, stream, to, shard_id, now)
    since = frozenset(shard.shard_id for shard in shards)
    if position.timestamp is not None:
        since &= await _shards_since(client, stream, position.timestamp) or since
    return target_of(position, max(0.0, now - _LATEST_MARGIN), shards, since)


async def _find_position(client: Client, stream: str, to: str, shard_id: str | None, now: float) -> Position:
    number, _, sub_sequence = to.partition(":")
    if number.isascii() and number.isdigit() and len(number) >= _SEQUENCE_DIGITS_MIN:
        if shard_id is None:
            raise WrongUsage("a sequence number belongs to one shard: name the shard with --shard")
        return await _position_after(client, stream, shard_id, number, sub_sequence)
    position = parse_start(to.removeprefix("-"), now)
    if position.timestamp is not None and position.timestamp > now + _LATEST_MARGIN:
        raise WrongUsage(f"--to {to} is in the future, by the clock of Kinesis")
    return position


async def _position_after(client: Client, stream: str, shard_id: str, number: str, sub_sequence: str) -> Position:
    """Return the checkpoint of a consumer that has processed this record."""
    if sub_sequence and not (sub_sequence.isascii() and sub_sequence.isdigit()):
        raise WrongUsage(f"the position inside an aggregate is a whole number, not {sub_sequence!r}")
    wanted = at_sequence_number(number)
    try:
        page = await first_page(client, stream, Lease(shard_id, checkpoint=Checkpoint(wanted)))
        records = page.records
    except RequestError as error:
        if error.kind != "invalid":
            raise
        records = []
    if not records or SequenceNumber.parse(records[0].sequence_number) != wanted.sequence_number:
        raise click.ClickException(
            f"{shard_id} has no record {number}: give the number of an existing record, TRIM_HORIZON, or a time"
        )
    last = max(0, len(deaggregate(records[0])) - 1)
    return at_sequence_number(SequenceNumber.parse(number, int(sub_sequence) if sub_sequence else last))


async def _shards_since(client: Client, stream: str, moment: float) -> frozenset[str]:
    """Return the shards that were open at that time or were created later, or no shards if the server cannot filter."""
    wanted = ShardFilter("FROM_TIMESTAMP", timestamp=moment)
    try:
        found = await with_retries(lambda: client.list_shards(stream, wanted))
    except RequestError as error:
        if error.kind != "invalid":
            raise
        found = []
    return frozenset(shard.shard_id for shard in found)


def target_of(position: Position, latest_at: float, shards: Iterable[Shard], since: frozenset[str]) -> Target:
    """Return the target of a reset to ``position``.

    Args:
        position: the position that the user named.
        latest_at: the service's time, less 1 s.
        shards: all shards of the stream.
        since: if ``position`` is a time, the shards that were open at that time or were created later.
    """
    if position == LATEST:
        return Target(position, latest_at, frozenset(shard.shard_id for shard in shards if shard.is_open))
    if position.timestamp is not None:
        return Target(position, latest_at, since)
    return Target(position, latest_at, frozenset(shard.shard_id for shard in shards))


def plan(shards: Sequence[Shard], rows: Mapping[str, Lease], target: Target, only: str | None = None) -> list[Step]:
    """Return the steps that move the group to the target; with ``only``, return only the step of that shard.

    Raises:
        UsageError: the stream has no such shard.
    """
    known = {shard.shard_id: shard for shard in sorted(shards, key=age)}
    if only is not None:
        if only not in known:
            raise UsageError(f"the stream has no shard {only!r}")
        return [make_step(rows.get(only), target.lease_of(known[only]))]
    steps = [
        make_step(rows.get(shard_id), target.lease_of(shard))
        for shard_id, shard in known.items()
        if shard_id in rows or shard_id in target.read
    ]
    missing = sorted(rows.keys() - known.keys())
    return steps + [Step(shard_id, Action.DELETE, rows[shard_id], None) for shard_id in missing]


def make_step(before: Lease | None, after: Lease) -> Step:
    """Return the step from one row of a shard to another."""
    return Step(after.shard_id, _action(before, after), before, after)


def _action(row: Lease | None, after: Lease) -> Action:
    if row is None:
        return Action.CREATE
    if _is_of_another_stream(row, after):
        return Action.REPLACE
    is_unchanged = (row.checkpoint, row.latest_at) == (after.checkpoint, after.latest_at)
    return Action.KEEP if is_unchanged and (row.holder is None or after.checkpoint.is_finished) else Action.RESET


def _is_of_another_stream(row: Lease, after: Lease) -> bool:
    other_range = row.hash_range is not None and row.hash_range != after.hash_range
    return other_range or bool(row.parent_ids - after.parent_ids)


def operations(row: Lease | None, after: Lease | None) -> list[LeaseOperation]:
    """Return the conditional writes that turn ``row`` into ``after``, in order."""
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
