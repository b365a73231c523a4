"""What may this identity do with the stream?

Each operation is asked for. Nothing is written, and nothing is taken from anyone who reads:

Invariants:

- A put is only ever sent as a dry run, and only to a service that was just seen to heed dry runs. Where that
  cannot be seen because reading is denied, it is sent to AWS alone, which documents them, and with a hash key that no
  shard has: it could not be stored even if it were meant. To a server that passes over ``DryRun`` no put is sent.
- What is denied is a failure if Shardline needs it, and a warning if it can do without.
- No subscription is taken from a consumer: SubscribeToShard is asked for by a dry run alone.
"""

import re
from enum import Enum, auto
from typing import Final

from shardline.adapters.kinesis import KinesisHttp, stream_members
from shardline.cli.doctor.diagnoses import Finding, Verdict, not_checked, of_failure, ok, warning
from shardline.core.failures import Failure, FailureKind
from shardline.model.stream import StreamRef

_NEEDED: Final = frozenset({"DescribeStreamSummary", "ListShards", "GetShardIterator", "GetRecords", "PutRecords"})
_WHAT_FOR: Final = {
    "PutRecord": "Shardline puts by PutRecords; other programs may need it",
    "ListStreamConsumers": "needed by those who use enhanced fan-out",
    "SubscribeToShard": "needed by those who use enhanced fan-out",
}
_AWS: Final = re.compile(r"https://[^/]+\.(amazonaws\.com|amazonaws\.com\.cn|api\.aws)(:443)?(/.*)?")
_PROBE: Final[dict[str, object]] = {"Data": b"x", "PartitionKey": "shardline-doctor"}
_NO_SHARD: Final[dict[str, object]] = {"ExplicitHashKey": "9" * 39}  # beyond 2 ** 128


class DryRuns(Enum):
    """What a service makes of ``DryRun``, as far as was seen."""

    HEEDED = auto()
    PASSED_OVER = auto()
    NOT_SEEN = auto()


def judged(operation: str, answer: object, stream: str) -> Finding:
    """What an answer says about a permission."""
    check = f"may {operation}"
    if not isinstance(answer, Failure) or answer.kind is FailureKind.DRY_RUN:
        return ok(check, "allowed")
    found = of_failure(check, answer, operation, stream)
    if answer.kind is FailureKind.DENIED and operation not in _NEEDED:
        return warning(check, found.seen, f"{_WHAT_FOR[operation]}: {found.advice}")
    if found.verdict is Verdict.FAILED and answer.kind is FailureKind.INVALID:
        return not_checked(check, f"the service refused the question itself: {found.seen}")
    return found


async def check_reads(api: KinesisHttp, ref: StreamRef, shard_id: str) -> tuple[list[Finding], DryRuns]:
    """GetShardIterator and GetRecords, and what the service makes of dry runs."""
    members = stream_members(ref) | {"ShardId": shard_id, "ShardIteratorType": "LATEST"}
    dry = await api.call("GetShardIterator", members | {"DryRun": True})
    real = await api.call("GetShardIterator", members)
    findings = [judged("GetShardIterator", real, str(ref))]
    if isinstance(real, Failure):
        return [*findings, not_checked("may GetRecords", "there is no iterator to ask with")], _heeded(dry)
    reading: dict[str, object] = {"ShardIterator": real["ShardIterator"], "Limit": 1}
    if ref.arn is not None:
        reading["StreamARN"] = ref.arn
    dry_read = await api.call("GetRecords", reading | {"DryRun": True})
    read = await api.call("GetRecords", reading) if _heeded(dry_read) is DryRuns.PASSED_OVER else dry_read
    findings.append(judged("GetRecords", read, str(ref)))
    seen = {_heeded(dry), _heeded(dry_read)}
    if DryRuns.PASSED_OVER in seen:
        return findings, DryRuns.PASSED_OVER
    return findings, DryRuns.HEEDED if DryRuns.HEEDED in seen else DryRuns.NOT_SEEN


def _heeded(answer: object) -> DryRuns:
    if not isinstance(answer, Failure):
        return DryRuns.PASSED_OVER
    return DryRuns.HEEDED if answer.kind is FailureKind.DRY_RUN else DryRuns.NOT_SEEN


async def check_puts(api: KinesisHttp, ref: StreamRef, url: str, dry_runs: DryRuns) -> list[Finding]:
    """PutRecords and PutRecord."""
    if dry_runs is DryRuns.PASSED_OVER or (dry_runs is DryRuns.NOT_SEEN and not _AWS.fullmatch(url)):
        is_known = dry_runs is DryRuns.PASSED_OVER
        seen = "this server passes over DryRun" if is_known else "whether this server heeds DryRun could not be seen"
        why = f"{seen}, and a real put would leave a record"
        return [not_checked("may PutRecords", why), not_checked("may PutRecord", why)]
    entry = _PROBE if dry_runs is DryRuns.HEEDED else _PROBE | _NO_SHARD
    members = stream_members(ref) | {"DryRun": True}
    several = await api.call("PutRecords", members | {"Records": [entry]})
    single = await api.call("PutRecord", members | entry)
    return [_judged_put("PutRecords", several, ref), _judged_put("PutRecord", single, ref)]


def _judged_put(operation: str, answer: object, ref: StreamRef) -> Finding:
    """The service looks at permissions before it looks at arguments: who gets as far as these is allowed."""
    if isinstance(answer, Failure) and answer.code == "InvalidArgumentException":
        return ok(f"may {operation}", "allowed")
    return judged(operation, answer, str(ref))


async def check_subscribing(
    api: KinesisHttp, stream: str, consumers: list[str] | Failure, shard_id: str, dry_runs: DryRuns
) -> list[Finding]:
    """ListStreamConsumers, which was asked before, and SubscribeToShard."""
    findings = [judged("ListStreamConsumers", consumers, stream)]
    check = "may SubscribeToShard"
    if dry_runs is not DryRuns.HEEDED:
        why = "this server was not seen to heed DryRun, and a real one would take a subscription"
        return [*findings, not_checked(check, why)]
    if isinstance(consumers, Failure) or not consumers:
        return [*findings, not_checked(check, "there is no registered consumer to ask for")]
    members = {"ConsumerARN": consumers[0], "ShardId": shard_id, "StartingPosition": {"Type": "LATEST"}, "DryRun": True}
    return [*findings, judged("SubscribeToShard", await api.call("SubscribeToShard", members), stream)]
