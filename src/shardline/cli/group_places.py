"""Which place in a stream does the user want a group to be at?

Invariants:

- GA1: times are Kinesis's own, not this machine's: LATEST and "15 minutes ago" mean the same on every machine.
- GA2: a sequence number counts as done, with all that is in its aggregate: what `describe` shows leads back there.
- GA3: a sequence number is only believed if its shard has that record: from one of another shard no consumer could go
  on.
"""

from collections.abc import Sequence
from typing import Final

import click

from shardline.aio.client import Client
from shardline.cli.group_lag import first_page
from shardline.cli.group_reset import Target, target_of
from shardline.cli.mistakes import WrongUsage
from shardline.cli.moments import parse_start
from shardline.cli.patience import patiently
from shardline.codec.raw_records import deaggregate
from shardline.core.requests import ShardFilter
from shardline.errors import RequestError
from shardline.model.lease import Checkpoint, Lease
from shardline.model.position import Position, at_sequence_number
from shardline.model.sequence import SequenceNumber
from shardline.model.shard import Shard

_SEQUENCE_DIGITS: Final = 13  # as in moments: fewer are seconds since 1970
_LATEST_MARGIN: Final = 1.0


async def find_target(client: Client, stream: str, shards: Sequence[Shard], to: str, shard_id: str | None) -> Target:
    """Where ``to`` leads; ``shards`` are all of the stream, listed just now."""
    now = client.api.service_time()  # GA1
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
    """The checkpoint of someone who is done with this record (GA2, GA3)."""
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
