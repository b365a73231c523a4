"""How does the stream itself do: its state, its settings, and the load of its shards?

Invariants:

- A shard is sampled by one small page of what arrived in the last moments, a few shards at a time: the stream's
  consumers need its reads.
- Rates are estimates from that page, and told as such, with how much was looked at.
"""

import statistics
from collections.abc import Sequence
from functools import partial
from typing import Final, NamedTuple, final

from shardline.adapters.kinesis import KinesisHttp
from shardline.cli.doctor.diagnoses import Finding, failed, not_checked, ok, warning
from shardline.cli.quantities import counted, in_units
from shardline.cli.retrying import call_for_each
from shardline.codec.shapes import StreamSummary
from shardline.core.failures import Failure
from shardline.core.requests import GetRecords, GetShardIterator
from shardline.model.limits import SHARD_WRITE_BYTES_PER_SECOND, SHARD_WRITE_RECORDS_PER_SECOND
from shardline.model.position import at_timestamp
from shardline.model.shard import Shard
from shardline.model.stream import StreamRef

_WINDOW: Final = 5.0
_PAGE: Final = 200
_SHORTEST: Final = 0.1
_SAMPLED_MAX: Final = 64
_AT_ONCE: Final = 8
_HOT: Final = 0.8
_UNEVEN_SHARE: Final = 1.9
_UNEVEN_LOAD: Final = 4.0
_WORTH_A_WORD: Final = 10.0  # records a second: below that one shard may well have all of them


def check_stream(summary: StreamSummary) -> list[Finding]:
    """What DescribeStreamSummary tells."""
    count = summary.open_shard_count
    shards = "open shards unknown" if count is None else counted(count, "open shard")
    seen = f"{summary.status}, {summary.mode}, {shards}"
    findings = [ok("stream", seen)]
    if summary.status != "ACTIVE":
        advice = "wait until it is ACTIVE" if summary.status in {"CREATING", "UPDATING"} else "create it again"
        usable = summary.status == "UPDATING"
        findings = [warning("stream", seen, advice) if usable else failed("stream", seen, advice)]
    limit = in_units(summary.max_record_bytes)
    findings.append(ok("retention", f"{summary.retention_hours} h; records of up to {limit}"))
    if summary.encryption_type in {None, "NONE"}:
        findings.append(ok("encryption", "none at rest by a key of KMS"))
    else:
        findings.append(ok("encryption", f"{summary.encryption_type}, key {summary.key_id}"))
    if summary.record_distribution == "AUTO":
        advice = (
            "nothing, if no reader relies on the order by key; Shardline sends one record per entry to such a stream"
        )
        findings.append(warning("distribution", "AUTO: Kinesis chooses the shard, and keys do not count", advice))
    return findings


def check_consumers(consumers: Sequence[str] | Failure) -> Finding:
    if isinstance(consumers, Failure):
        return not_checked("consumers", "ListStreamConsumers was not answered")
    names = ", ".join(arn.rpartition("/")[2].partition(":")[0] for arn in consumers)
    return ok("consumers", f"{len(consumers)} registered for enhanced fan-out{': ' if names else ''}{names}")


def check_ranges(shards: Sequence[Shard]) -> Finding:
    """Whether the shards share the keys evenly."""
    opened = [shard for shard in shards if shard.is_open]
    if not opened:
        return failed("hash ranges", "no open shard: nothing can be put", "wait until the reshard is over")
    shares = {shard.shard_id: shard.hash_range.share for shard in opened}
    largest = max(shares, key=lambda shard_id: shares[shard_id])
    even = 1 / len(opened)
    if len(opened) == 1:
        return ok("hash ranges", "1 shard, with all the keys")
    seen = f"{len(opened)} shards, each with {min(shares.values()):.1%} to {shares[largest]:.1%} of the keys"
    if shares[largest] > _UNEVEN_SHARE * even:
        advice = f"split {largest}, or reshard evenly: `shardline streams reshard`"
        return warning("hash ranges", f"{seen}: {largest} has the most", advice)
    return ok("hash ranges", seen)


@final
class Load(NamedTuple):
    """What one shard took lately, by a sample."""

    records: float
    bytes: float


async def sample(api: KinesisHttp, ref: StreamRef, shards: Sequence[Shard]) -> dict[str, Load | Failure]:
    """The load of the open shards."""
    opened = [shard.shard_id for shard in shards if shard.is_open][:_SAMPLED_MAX]
    return await call_for_each(opened, partial(_load_of, api, ref), _AT_ONCE)


async def _load_of(api: KinesisHttp, ref: StreamRef, shard_id: str) -> Load | Failure:
    now = api.service_time()
    place = await api.get_shard_iterator(GetShardIterator(ref, shard_id, at_timestamp(max(0.0, now - _WINDOW))))
    if isinstance(place, Failure):
        return place
    page = await api.get_records(GetRecords(place.shard_iterator, _PAGE, ref))
    if isinstance(page, Failure):
        return page
    times = [record.arrived_at for record in page.records if record.arrived_at is not None]
    if not times:
        return Load(0.0, 0.0)
    # A page that is full covers the window up to its last record, another the whole of it.
    is_full = len(page.records) == _PAGE or bool(page.millis_behind_latest)
    seconds = max(times[-1] - (now - _WINDOW), _SHORTEST) if is_full else _WINDOW
    size = sum(len(record.data) + len(record.key or "") for record in page.records)
    return Load(len(page.records) / seconds, size / seconds)


def check_load(loads: dict[str, Load | Failure], open_count: int) -> Finding:
    """Whether a shard is hot, or takes far more than the others."""
    known = {shard_id: load for shard_id, load in loads.items() if isinstance(load, Load)}
    if not known:
        problem = next((load.message for load in loads.values() if isinstance(load, Failure)), "no open shard")
        return not_checked("load", f"no shard could be sampled: {problem}")
    some = (
        f" (a sample of {len(known)} of {counted(open_count, 'shard')})"
        if len(known) < open_count
        else " (by a sample)"
    )
    hottest = max(known, key=lambda shard_id: _fill(known[shard_id]))
    load = known[hottest]
    rates = f"{hottest} takes about {load.records:,.0f} records/s and {in_units(load.bytes)}/s"
    if _fill(load) > _HOT:
        limits = f"{SHARD_WRITE_RECORDS_PER_SECOND:,.0f} records/s and {in_units(SHARD_WRITE_BYTES_PER_SECOND)}/s"
        advice = f"its limits are {limits}: use more keys, keyless puts or aggregates, or split it"
        return warning("load", f"{rates}{some}: it is hot", advice)
    middle = statistics.median(one.records for one in known.values())
    if len(known) > 1 and load.records > _WORTH_A_WORD and load.records > _UNEVEN_LOAD * max(middle, 1.0):
        advice = "few keys carry most records: use more of them, or keyless puts where order does not matter"
        return warning("load", f"{rates}, half of the shards at most {middle:,.0f}{some}", advice)
    return ok("load", f"at most {load.records:,.0f} records/s and {in_units(load.bytes)}/s in a shard{some}")


def _fill(load: Load) -> float:
    """How much of its limits a shard uses."""
    return max(load.records / SHARD_WRITE_RECORDS_PER_SECOND, load.bytes / SHARD_WRITE_BYTES_PER_SECOND)
