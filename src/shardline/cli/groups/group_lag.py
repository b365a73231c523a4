"""Measures how far behind a group is, shard by shard.

This takes two requests per shard: one for an iterator at the group's checkpoint, and one for a record from there.

Invariants:

- Each shard gets one read, and only a few shards are read at a time: a shard answers only five reads per second, and
  the group needs them.
- The lag is the time since the arrival of the next record. ``MillisBehindLatest`` alone would be wrong: it is the lag
  *after* the returned record.
- If a shard has no row yet, because the group will read it after its parents, its lag is the age of its oldest record.
  Without this rule, a group that stopped before a reshard would never appear to be behind.
- If the lag of a shard cannot be found, its ``problem`` says why, and the other shards are unaffected.
"""

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple, final

from shardline.aio.client import Client
from shardline.cli.retrying import call_for_each, with_retries
from shardline.cli.streams.shard_tree import age
from shardline.codec.raw_records import deaggregate
from shardline.codec.shapes import GetRecordsResponse
from shardline.errors import RequestError
from shardline.model.lease import Lease
from shardline.model.sequence import SequenceNumber
from shardline.model.shard import Shard

_CONCURRENCY: Final = 8


@final
class Lag(NamedTuple):
    millis: int | None = None
    """How long the next record has been waiting; 0 if no record is waiting, or ``None`` if it is unknown."""
    arrived_at: float | None = None
    """When the record at the checkpoint arrived, or ``None`` if there is no such record in the stream."""
    problem: str | None = None
    """Why the lag could not be found, or ``None`` if it was found."""


def rows_to_come(rows: Mapping[str, Lease], shards: Mapping[str, Shard]) -> list[Lease]:
    """Return the rows that the group will create when the parents of shards without a row are finished (L3)."""
    to_come: dict[str, Lease] = {}
    for shard in sorted(shards.values(), key=age):
        unfinished = [
            parent
            for parent in shard.parent_ids
            if parent in to_come or (parent in rows and not rows[parent].checkpoint.is_finished)
        ]
        if unfinished and shard.shard_id not in rows:
            to_come[shard.shard_id] = Lease(shard.shard_id)
    return list(to_come.values())


async def find_lags(client: Client, stream: str, rows: Iterable[Lease]) -> dict[str, Lag]:
    """Return the lag of every row that is not finished, by shard id."""
    by_shard = {row.shard_id: row for row in rows if not row.checkpoint.is_finished}

    async def find(shard_id: str) -> Lag:
        try:
            return await _find_lag(client, stream, by_shard[shard_id])
        except RequestError as error:
            return Lag(problem=f"{error.operation}: {error.message}")

    return await call_for_each(by_shard, find, _CONCURRENCY)


async def _find_lag(client: Client, stream: str, row: Lease) -> Lag:
    page = await first_page(client, stream, row)
    if not page.records:
        return Lag(page.millis_behind_latest)
    first, done = page.records[0], row.checkpoint.sequence_number
    arrived_at = first.arrived_at
    is_done = done is not None and SequenceNumber.parse(first.sequence_number) <= SequenceNumber(done.number)
    if is_done and done is not None and len(deaggregate(first)) <= done.sub_sequence + 1:
        return Lag(page.millis_behind_latest, arrived_at)
    if arrived_at is None:
        return Lag(page.millis_behind_latest)
    waits = max(0, round((client.api.service_time() - arrived_at) * 1000))
    return Lag(max(waits, page.millis_behind_latest or 0), arrived_at if is_done else None)


async def first_page(client: Client, stream: str, row: Lease) -> GetRecordsResponse:
    """Read the record at the lease's checkpoint, or the next record if the record at the checkpoint has expired."""
    iterator = await with_retries(lambda: client.get_shard_iterator(stream, row.shard_id, row.resume_at))
    return await with_retries(lambda: client.get_records(iterator, limit=1))
