"""How far behind is a group, shard by shard?

Kinesis is asked: an iterator where the group would go on, and one record from there.

Invariants:

- A shard is asked twice, and few shards at a time: a shard answers five reads a second, and the group needs them.
- What waits counts from its arrival: a page of one record tells how far behind one is *after* it.
- A shard that cannot be asked is told as such, and spoils nothing for the others.
"""

from collections.abc import Iterable
from typing import Final, NamedTuple, final

from shardline.aio.client import Client
from shardline.cli.retrying import ask_all, patiently
from shardline.codec.raw_records import deaggregate
from shardline.codec.shapes import GetRecordsResponse
from shardline.errors import RequestError
from shardline.model.lease import Lease
from shardline.model.sequence import SequenceNumber

_AT_ONCE: Final = 8


@final
class Lag(NamedTuple):
    """How one shard stands."""

    millis: int | None = None
    """Since when the next record waits; 0 if none does; ``None`` if it is not known."""
    arrived_at: float | None = None
    """When the record of the checkpoint arrived, if there is one, and it is still in the stream."""
    problem: str | None = None


async def find_lags(client: Client, stream: str, rows: Iterable[Lease]) -> dict[str, Lag]:
    """The lag of every row that is not finished."""
    by_shard = {row.shard_id: row for row in rows if not row.checkpoint.is_finished}

    async def find(shard_id: str) -> Lag:
        try:
            return await _find_lag(client, stream, by_shard[shard_id])
        except RequestError as error:
            return Lag(problem=f"{error.operation}: {error.message}")

    return await ask_all(by_shard, find, _AT_ONCE)


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
    """The record where the lease stands, or the next one there is."""
    iterator = await patiently(lambda: client.get_shard_iterator(stream, row.shard_id, row.resume_at))
    return await patiently(lambda: client.get_records(iterator, limit=1))
