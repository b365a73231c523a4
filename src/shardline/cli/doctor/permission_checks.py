"""Checks which operations this identity may use, on the stream and in the account.

Each operation is tried. No record is written, and no other reader is affected.

Invariants:

- A put is only sent as a dry run, and only to a service that has just been seen to support ``DryRun``. If that is
  unknown because reading is denied, the put is sent only to AWS, which documents dry runs, and with a hash key that no
  shard has, so that the record could not be stored anyway. No put is sent to a server that ignores ``DryRun``.
- A denied operation is a failure if Shardline needs it, and a warning if it does not.
- No consumer loses its subscription: SubscribeToShard is only sent as a dry run.
"""

import re
from enum import Enum, auto
from typing import Final

from shardline.adapters.kinesis import KinesisHttp, stream_members
from shardline.cli.doctor.diagnoses import Finding, Verdict, not_checked, of_failure, ok, warning
from shardline.core.error_codes import Failure, FailureKind
from shardline.model.stream import StreamRef

_NEEDED: Final = frozenset({"DescribeStreamSummary", "ListShards", "GetShardIterator", "GetRecords", "PutRecords"})
_PURPOSES: Final = {
    "PutRecord": "Shardline uses PutRecords; other programs may need it",
    "ListStreamConsumers": "needed only for enhanced fan-out",
    "SubscribeToShard": "needed only for enhanced fan-out",
    "DescribeStreamConsumer": "with a consumer ARN, it only explains failures",
    "ListStreams": "needed only by `shardline streams list` and completion",
    "DescribeLimits": "needed only by this check",
}
AWS_ENDPOINT: Final = re.compile(r"https://[^/]+\.(amazonaws\.com|amazonaws\.com\.cn|api\.aws)(:443)?(/.*)?")
_PROBE: Final[dict[str, object]] = {"Data": b"x", "PartitionKey": "shardline-doctor"}
_NO_SHARD: Final[dict[str, object]] = {"ExplicitHashKey": "9" * 39}  # above 2 ** 128, so no shard has it


class DryRuns(Enum):
    """Whether a service supports ``DryRun``."""

    SUPPORTED = auto()
    IGNORED = auto()
    UNKNOWN = auto()


def permission_finding(operation: str, answer: object, stream: str, *, is_needed: bool = False) -> Finding:
    """Return the finding that says whether the operation is allowed, according to its answer.

    Args:
        operation: the AWS operation.
        answer: the response to the operation, or its failure.
        stream: the stream or consumer, for the advice.
        is_needed: whether the user's consumer needs an operation that Shardline does not always need.
    """
    check = f"may {operation}"
    if not isinstance(answer, Failure) or answer.kind is FailureKind.DRY_RUN:
        return ok(check, "allowed")
    found = of_failure(check, answer, operation, stream)
    if answer.kind is FailureKind.DENIED and operation not in _NEEDED and not is_needed:
        return warning(check, found.seen, f"{_PURPOSES[operation]}: {found.advice}")
    if found.verdict is Verdict.FAILED and answer.kind is FailureKind.INVALID:
        return not_checked(check, f"the service rejected the test request as invalid: {found.seen}")
    return found


async def check_reads(api: KinesisHttp, ref: StreamRef, shard_id: str) -> tuple[list[Finding], DryRuns]:
    """Check GetShardIterator and GetRecords, and find out whether the service supports dry runs."""
    members = stream_members(ref) | {"ShardId": shard_id, "ShardIteratorType": "LATEST"}
    dry = await api.call("GetShardIterator", members | {"DryRun": True})
    real = await api.call("GetShardIterator", members)
    findings = [permission_finding("GetShardIterator", real, str(ref))]
    if isinstance(real, Failure):
        return [*findings, not_checked("may GetRecords", "there is no iterator to test it with")], _dry_run_support(dry)
    reading: dict[str, object] = {"ShardIterator": real["ShardIterator"], "Limit": 1}
    if ref.arn is not None:
        reading["StreamARN"] = ref.arn
    dry_read = await api.call("GetRecords", reading | {"DryRun": True})
    read = await api.call("GetRecords", reading) if _dry_run_support(dry_read) is DryRuns.IGNORED else dry_read
    findings.append(permission_finding("GetRecords", read, str(ref)))
    seen = {_dry_run_support(dry), _dry_run_support(dry_read)}
    if DryRuns.IGNORED in seen:
        return findings, DryRuns.IGNORED
    return findings, DryRuns.SUPPORTED if DryRuns.SUPPORTED in seen else DryRuns.UNKNOWN


def _dry_run_support(answer: object) -> DryRuns:
    if not isinstance(answer, Failure):
        return DryRuns.IGNORED
    return DryRuns.SUPPORTED if answer.kind is FailureKind.DRY_RUN else DryRuns.UNKNOWN


async def check_puts(api: KinesisHttp, ref: StreamRef, url: str, dry_runs: DryRuns) -> list[Finding]:
    """Check PutRecords and PutRecord with dry runs."""
    if dry_runs is DryRuns.IGNORED or (dry_runs is DryRuns.UNKNOWN and not AWS_ENDPOINT.fullmatch(url)):
        is_known = dry_runs is DryRuns.IGNORED
        seen = "this server ignores DryRun" if is_known else "this server's support of DryRun is unknown"
        why = f"{seen}, and a real put would store a record"
        return [not_checked("may PutRecords", why), not_checked("may PutRecord", why)]
    entry = _PROBE if dry_runs is DryRuns.SUPPORTED else _PROBE | _NO_SHARD
    members = stream_members(ref) | {"DryRun": True}
    several = await api.call("PutRecords", members | {"Records": [entry]})
    single = await api.call("PutRecord", members | entry)
    return [_put_finding("PutRecords", several, ref), _put_finding("PutRecord", single, ref)]


def _put_finding(operation: str, answer: object, ref: StreamRef) -> Finding:
    """Return the finding for the dry run of a put.

    The service checks permissions before arguments, so a caller that gets InvalidArgumentException is allowed.
    """
    if isinstance(answer, Failure) and answer.code == "InvalidArgumentException":
        return ok(f"may {operation}", "allowed")
    return permission_finding(operation, answer, str(ref))


async def check_subscribing(
    api: KinesisHttp,
    stream: str,
    consumers: list[str] | Failure,
    shard_id: str,
    dry_runs: DryRuns,
    *,
    is_needed: bool = False,
) -> Finding:
    """Check SubscribeToShard with a dry run that uses the first registered consumer."""
    check = "may SubscribeToShard"
    if dry_runs is not DryRuns.SUPPORTED:
        return not_checked(
            check, "this server is not known to support DryRun, and a real call would take over a subscription"
        )
    if isinstance(consumers, Failure) or not consumers:
        return not_checked(check, "there is no registered consumer to test it with")
    members = {"ConsumerARN": consumers[0], "ShardId": shard_id, "StartingPosition": {"Type": "LATEST"}, "DryRun": True}
    answer = await api.call("SubscribeToShard", members)
    return permission_finding("SubscribeToShard", answer, stream, is_needed=is_needed)
