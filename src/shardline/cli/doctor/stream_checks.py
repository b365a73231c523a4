"""Checks the stream itself: its state, its settings, and the load of its shards.

Invariants:

- Each shard is sampled with one small page from the last seconds, and only a few shards at a time, because
  these reads count against limits that the stream's consumers need.
- Rates are estimates from that page. The finding says so, and says how many shards were sampled.
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
from shardline.core.error_codes import Failure
from shardline.core.requests import GetRecords, GetShardIterator
from shardline.model.limits import SHARD_WRITE_BYTES_PER_SECOND, SHARD_WRITE_RECORDS_PER_SECOND
from shardline.model.position import at_timestamp
from shardline.model.shard import Shard
from shardline.model.stream import StreamRef

_WINDOW: Final = 5.0
_PAGE_RECORDS: Final = 200
_DURATION_MIN: Final = 0.1
_SAMPLED_MAX: Final = 64
_CONCURRENCY: Final = 8
_HOT: Final = 0.8
_UNEVEN_SHARE: Final = 1.9
_UNEVEN_LOAD: Final = 4.0
_UNEVEN_LOAD_MIN: Final = 10.0  # records per second; at a lower rate, one shard may get all records by chance


def check_stream(summary: StreamSummary) -> list[Finding]:
    """Check the status, the retention, the encryption, the distribution and the channels of the stream."""
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
        findings.append(ok("encryption", "none (no KMS key)"))
    else:
        findings.append(ok("encryption", f"{summary.encryption_type}, key {summary.key_id}"))
    if summary.record_distribution == "AUTO":
        advice = (
            "do nothing if no reader relies on the order of records with the same key; Shardline does not aggregate "
            "records for such a stream"
        )
        findings.append(warning("distribution", "AUTO: Kinesis chooses the shard and ignores keys", advice))
    if summary.channel_count:
        seen = f"{counted(summary.channel_count, 'channel')}, which cannot read aggregates"
        advice = (
            'do nothing if all producers use Shardline without aggregation="force", which then aggregates no records '
            "and refuses headers; switch aggregation off in other producers, such as the KPL"
        )
        findings.append(warning("channels", seen, advice))
    return findings


def check_consumers(consumers: Sequence[str] | Failure) -> Finding:
    """Report the names of the consumers that are registered for enhanced fan-out."""
    if isinstance(consumers, Failure):
        return not_checked("consumers", "ListStreamConsumers failed")
    names = ", ".join(arn.rpartition("/")[2].partition(":")[0] for arn in consumers)
    return ok("consumers", f"{len(consumers)} registered for enhanced fan-out{': ' if names else ''}{names}")


def check_ranges(shards: Sequence[Shard]) -> Finding:
    """Check whether the hash keys are spread evenly over the shards."""
    opened = [shard for shard in shards if shard.is_open]
    if not opened:
        return failed("hash ranges", "no open shard: nothing can be put", "wait until the reshard is complete")
    shares = {shard.shard_id: shard.hash_range.share for shard in opened}
    largest = max(shares, key=lambda shard_id: shares[shard_id])
    even = 1 / len(opened)
    if len(opened) == 1:
        return ok("hash ranges", "1 shard with all the keys")
    seen = f"{len(opened)} shards, each with {min(shares.values()):.1%} to {shares[largest]:.1%} of the keys"
    if shares[largest] > _UNEVEN_SHARE * even:
        advice = f"split {largest}, or reshard evenly: `shardline streams reshard`"
        return warning("hash ranges", f"{seen}: {largest} has the most", advice)
    return ok("hash ranges", seen)


@final
class Load(NamedTuple):
    """The records and bytes per second that a shard receives, estimated from a sample."""

    records: float
    bytes: float


async def sample(api: KinesisHttp, ref: StreamRef, shards: Sequence[Shard]) -> dict[str, Load | Failure]:
    """Return the load of the open shards. If there are many open shards, return only the load of the first ones."""
    opened = [shard.shard_id for shard in shards if shard.is_open][:_SAMPLED_MAX]
    return await call_for_each(opened, partial(_load_of, api, ref), _CONCURRENCY)


async def _load_of(api: KinesisHttp, ref: StreamRef, shard_id: str) -> Load | Failure:
    now = api.service_time()
    iterator = await api.get_shard_iterator(GetShardIterator(ref, shard_id, at_timestamp(max(0.0, now - _WINDOW))))
    if isinstance(iterator, Failure):
        return iterator
    page = await api.get_records(GetRecords(iterator.shard_iterator, _PAGE_RECORDS, ref))
    if isinstance(page, Failure):
        return page
    times = [record.arrived_at for record in page.records if record.arrived_at is not None]
    if not times:
        return Load(0.0, 0.0)
    # A full page covers the window only up to the page's last record; any other page covers the whole window.
    is_full = len(page.records) == _PAGE_RECORDS or bool(page.millis_behind_latest)
    seconds = max(times[-1] - (now - _WINDOW), _DURATION_MIN) if is_full else _WINDOW
    size = sum(len(record.data) + len(record.key or "") for record in page.records)
    return Load(len(page.records) / seconds, size / seconds)


def check_load(loads: dict[str, Load | Failure], open_count: int) -> Finding:
    """Check whether a shard is near its limits, or receives far more records than the other shards."""
    known = {shard_id: load for shard_id, load in loads.items() if isinstance(load, Load)}
    if not known:
        problem = next((load.message for load in loads.values() if isinstance(load, Failure)), "no open shard")
        return not_checked("load", f"no shard could be sampled: {problem}")
    basis = (
        f" (estimated from a sample of {len(known)} of {counted(open_count, 'shard')})"
        if len(known) < open_count
        else " (estimated from a sample)"
    )
    hottest = max(known, key=lambda shard_id: fill(known[shard_id]))
    load = known[hottest]
    rates = f"{hottest} receives about {load.records:,.0f} records/s and {in_units(load.bytes)}/s"
    if fill(load) > _HOT:
        limits = f"{SHARD_WRITE_RECORDS_PER_SECOND:,.0f} records/s and {in_units(SHARD_WRITE_BYTES_PER_SECOND)}/s"
        advice = f"its limits are {limits}: use more keys, keyless puts or aggregates, or split the shard"
        return warning("load", f"{rates}{basis}: it is hot", advice)
    median = statistics.median(sampled.records for sampled in known.values())
    if len(known) > 1 and load.records > _UNEVEN_LOAD_MIN and load.records > _UNEVEN_LOAD * max(median, 1.0):
        advice = "few keys carry most records: use more keys, or keyless puts where order does not matter"
        return warning("load", f"{rates}; half of the shards receive at most {median:,.0f} records/s{basis}", advice)
    return ok("load", f"at most {load.records:,.0f} records/s and {in_units(load.bytes)}/s in a shard{basis}")


def fill(load: Load) -> float:
    """Return the fraction of a shard's limits that is in use."""
    return max(load.records / SHARD_WRITE_RECORDS_PER_SECOND, load.bytes / SHARD_WRITE_BYTES_PER_SECOND)
