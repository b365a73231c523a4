"""Emulates the operations that create, change and delete streams.

Invariants:

- A change is accepted only if the stream is ACTIVE (a stream that is CREATING can be deleted, too). It is carried out
  after its delay.
- The limits of the account are checked before anything changes.
"""

from typing import Final, get_args

from shardline.model.limits import (
    RETENTION_MAX_HOURS,
    RETENTION_MIN_HOURS,
    SHARDS_PER_STREAM_BY_UPDATE,
)
from shardline.server.model import inputs
from shardline.server.model.account import check_warm_throughput
from shardline.server.model.channels import check_no_channels
from shardline.server.model.member_types import MetricsName
from shardline.server.model.refusals import in_use, invalid, limit_exceeded, provisioned_only
from shardline.server.model.shards import ServerShard
from shardline.server.model.state import ServiceState
from shardline.server.model.streams import Change, ServerStream
from shardline.server.model.tags import merged_tags, stream_resource

_DAY: Final = 86_400.0
_BY_KEY: Final = "USER_PARTITION_KEY"
_METRICS: Final[tuple[str, ...]] = tuple(name for name in get_args(MetricsName) if name != "ALL")


def create_stream(state: ServiceState, request: inputs.CreateStream) -> None:
    account, limits = state.settings.account_id, state.settings.limits
    if request.stream_name in state.streams:
        raise in_use(f"Stream {request.stream_name} under account {account} already exists.")
    mode = _mode_of(request)
    if mode == "ON_DEMAND":
        if request.shard_count is not None:
            raise invalid("ShardCount must not be set for an on-demand stream.")
        _check_on_demand(state)
    elif request.shard_count is None:
        raise invalid("ShardCount must be set for a provisioned stream.")
    elif request.record_distribution_strategy is not None:
        raise invalid("Only an on-demand stream has a record distribution strategy.")
    check_warm_throughput(state, mode, request.warm_throughput, "CreateStream")
    count = request.shard_count or state.settings.on_demand_shards
    _check_shards(state, count)
    creating = sum(stream.status == "CREATING" for stream in state.streams.values())
    if limits.streams_creating_at_once is not None and creating >= limits.streams_creating_at_once:
        raise limit_exceeded(
            "This request would have exceed the limit on the number  of streams that can simultaneously be in CREATING "
            f"or DELETING for the account {account}. Limit: {limits.streams_creating_at_once}."
        )
    stream = ServerStream(request.stream_name, state.arn_of(request.stream_name), limits, state.now, state.records_held)
    stream.mode = mode
    stream.tags = merged_tags({}, request.tags or {}, stream_resource(state, stream.name))
    stream.max_record_kib = request.max_record_size or stream.max_record_kib
    if mode == "ON_DEMAND":
        stream.record_distribution = request.record_distribution_strategy or _BY_KEY
    stream.warm_mibps = request.warm_throughput
    stream.begin("CREATING", Change(state.now + state.settings.delays.create, "create", number=count))
    state.make_distinct(stream)
    state.streams[stream.name] = stream
    state.note_change(stream)


def _mode_of(request: inputs.CreateStream) -> str:
    """Return the mode that the request asks for. A request with neither mode nor shard count means an on-demand stream.

    [API] CreateStream: a provisioned stream needs a count. For a request with neither, AWS creates a stream of four
    shards, the initial number of on-demand streams (recorded in LocalStack's tests, see docs/tested/differences.md).
    """
    if request.stream_mode_details is not None:
        return request.stream_mode_details.stream_mode
    return "ON_DEMAND" if request.shard_count is None else "PROVISIONED"


def _check_on_demand(state: ServiceState) -> None:
    limit = state.settings.limits.on_demand_streams
    if limit is not None and sum(stream.mode == "ON_DEMAND" for stream in state.streams.values()) >= limit:
        raise limit_exceeded(f"The account has {limit} on-demand streams, which is its limit.")


def delete_stream(state: ServiceState, request: inputs.DeleteStream) -> None:
    stream = state.find(request.stream_name, request.stream_arn)
    if stream.status != "CREATING":  # AWS deletes a stream that is CREATING, too (kinesalite, deleteStream.js)
        state.check_active(stream)
    check_no_channels(state, stream)
    if state.consumers_of(stream) and not request.enforce_consumer_deletion:
        raise in_use(
            f"DeleteStream can\u2019t delete {state.settings.account_id}:{stream.name} because there are consumers "
            f"associated with this data stream. To delete {stream.name} anyway, set the EnforceConsumerDeletion "
            "parameter to true to force the deletion of all the consumers that are associated with it."
        )
    stream.begin("DELETING", Change(state.now + state.settings.delays.delete, "delete"))
    state.note_change(stream)


def delete_at_once(state: ServiceState, stream: ServerStream) -> None:
    """Delete a stream in any state, together with its consumers and channels, without a delay."""
    stream.begin("DELETING", Change(state.now, "delete"))
    state.note_change(stream)


def split_shard(state: ServiceState, request: inputs.SplitShard) -> None:
    shard_id = state.resolve_shard_id(request.shard_to_split, state.name_of(request.stream_name, request.stream_arn))
    stream = _provisioned(state, request)
    shard = _shard(state, stream, shard_id)
    at = int(request.new_starting_hash_key)
    _check_open(state, stream, shard)
    if not shard.hash_range.start + 1 < at < shard.hash_range.end:  # stricter than the reference, as AWS is
        raise invalid(
            f"NewStartingHashKey {at} used in SplitShard() on shard {shard.shard_id} in stream {stream.name} under "
            f"account {state.settings.account_id} is not both greater than one plus the shard's StartingHashKey "
            f"{shard.hash_range.start} and less than the shard's EndingHashKey {shard.hash_range.end}."
        )
    _check_shards(state, 1)
    stream.begin("UPDATING", Change(_updated_at(state), "split", shard.shard_id, number=at))
    state.note_change(stream)


def merge_shards(state: ServiceState, request: inputs.MergeShards) -> None:
    name = state.name_of(request.stream_name, request.stream_arn)
    named = (request.shard_to_merge, request.adjacent_shard_to_merge)
    ids = [state.resolve_shard_id(text, name) for text in named]
    stream = _provisioned(state, request)
    shard, adjacent = (_shard(state, stream, shard_id) for shard_id in ids)
    _check_open(state, stream, shard)
    _check_open(state, stream, adjacent)
    if shard.hash_range.end + 1 != adjacent.hash_range.start:  # AWS requires the lower shard to be the first one
        raise invalid(
            f"Shards {shard.shard_id} and {adjacent.shard_id} in stream {stream.name} under account "
            f"{state.settings.account_id} are not an adjacent pair of shards eligible for merging"
        )
    stream.begin("UPDATING", Change(_updated_at(state), "merge", shard.shard_id, adjacent.shard_id))
    state.note_change(stream)


def _shard(state: ServiceState, stream: ServerStream, shard_id: str) -> ServerShard:
    shard = stream.shards.get(shard_id)
    if shard is None:
        raise state.shard_not_found(shard_id, stream.name)
    return shard


def _check_open(state: ServiceState, stream: ServerStream, shard: ServerShard) -> None:
    if not shard.is_open:
        raise invalid(
            f"Shard {shard.shard_id} in stream {stream.name} under account {state.settings.account_id} has already "
            "been merged or split, and thus is not eligible for merging or splitting."
        )


def update_shard_count(state: ServiceState, request: inputs.UpdateShardCount) -> dict[str, object]:
    stream = _provisioned(state, request)
    current, target = len(stream.open_shards), request.target_shard_count
    if target > 2 * current or 2 * target < current:
        how = "up over double" if target > current else "down below half"
        raise invalid(
            f"UpdateShardCount cannot scale {how} your current open shard count. Current open shard count: {current} "
            f"Target shard count: {target}"
        )
    if target > SHARDS_PER_STREAM_BY_UPDATE:
        raise limit_exceeded(f"UpdateShardCount cannot scale up to more than {SHARDS_PER_STREAM_BY_UPDATE} shards.")
    _check_shards(state, target - current)
    _count_for_the_day(
        state, stream.count_updates, state.settings.limits.update_shard_count_per_day, "UpdateShardCount"
    )
    stream.begin("UPDATING", Change(_updated_at(state), "scale", number=target))
    state.note_change(stream)
    return {
        "StreamName": stream.name,
        "CurrentShardCount": current,
        "TargetShardCount": target,
        "StreamARN": stream.arn,
    }


def _count_for_the_day(state: ServiceState, calls: list[float], limit: int | None, operation: str) -> None:
    """Count a call against the limit for 24 hours, and refuse it if it exceeds the limit."""
    calls[:] = [when for when in calls if when > state.now - _DAY]
    if limit is not None and len(calls) >= limit:
        raise limit_exceeded(f"{operation} was called {limit} times within 24 hours, which is the limit.")
    calls.append(state.now)


def _check_shards(state: ServiceState, more: int) -> None:
    limit = state.settings.limits.shards_per_account
    if limit is not None and state.shard_count() + more > limit:
        raise limit_exceeded(
            f"This request would exceed the shard limit for the account {state.settings.account_id} in "
            f"{state.settings.region}. Current shard count for the account: {state.shard_count()}. Limit: {limit}. "
            f"Number of additional shards that would have resulted from this request: {more}. Refer to the AWS Service "
            "Limits page (http://docs.aws.amazon.com/general/latest/gr/aws_service_limits.html) for current limits and "
            "how to request higher limits."
        )


def set_retention(state: ServiceState, request: inputs.RetentionInput, *, increase: bool) -> None:
    stream = _active(state, request)
    hours = request.retention_period_hours
    if hours < RETENTION_MIN_HOURS:
        raise invalid(
            f"Minimum allowed retention period is {RETENTION_MIN_HOURS} hours. Requested retention period ({hours} "
            "hours) is too short."
        )
    if hours > RETENTION_MAX_HOURS:
        raise invalid(
            f"Maximum allowed retention period is {RETENTION_MAX_HOURS} hours. Requested retention period ({hours} "
            "hours) is too long."
        )
    if (increase and hours < stream.retention_hours) or (not increase and hours > stream.retention_hours):
        word, other = ("shorter", "Decrease") if increase else ("longer", "Increase")
        raise invalid(
            f"Requested retention period ({hours} hours) for stream {stream.name} can not be {word} than existing "
            f"retention period ({stream.retention_hours} hours). Use {other}RetentionPeriod API."
        )
    stream.trim(state.now)  # records that have expired remain inaccessible, even if the new period is longer
    stream.retention_hours = hours
    stream.trim(state.now)
    state.note_change(stream)


def start_encryption(state: ServiceState, request: inputs.EncryptionInput) -> None:
    stream = _active(state, request)
    if request.encryption_type != "KMS":
        raise invalid("The only encryption that can be started is of the type KMS.")
    stream.encryption_type, stream.key_id = request.encryption_type, request.key_id
    _settle(state, stream)


def stop_encryption(state: ServiceState, request: inputs.EncryptionInput) -> None:
    stream = _active(state, request)
    stream.encryption_type, stream.key_id = "NONE", None
    _settle(state, stream)


def set_monitoring(state: ServiceState, request: inputs.MonitoringInput, *, enable: bool) -> dict[str, object]:
    stream = state.find(request.stream_name, request.stream_arn)
    before = stream.shard_level_metrics
    # ALL stands for all metrics. It is not the name of a metric.
    named = set(_METRICS if "ALL" in request.shard_level_metrics else request.shard_level_metrics)
    chosen = {*before} | named if enable else {*before} - named
    metrics = stream.shard_level_metrics = [metric for metric in _METRICS if metric in chosen]
    state.note_change(stream)
    return {
        "StreamName": stream.name,
        "StreamARN": stream.arn,
        "CurrentShardLevelMetrics": before,
        "DesiredShardLevelMetrics": metrics,
    }


def update_stream_mode(state: ServiceState, request: inputs.UpdateStreamMode) -> None:
    stream = state.active(None, request.stream_arn)
    if request.stream_mode_details.stream_mode == "ON_DEMAND" and stream.mode != "ON_DEMAND":
        _check_on_demand(state)
    check_warm_throughput(state, request.stream_mode_details.stream_mode, request.warm_throughput, "UpdateStreamMode")
    if request.stream_mode_details.stream_mode != stream.mode:
        daily = state.settings.limits.update_stream_mode_per_day
        _count_for_the_day(state, stream.mode_updates, daily, "UpdateStreamMode")
        stream.mode = request.stream_mode_details.stream_mode
        stream.record_distribution = _BY_KEY if stream.mode == "ON_DEMAND" else None
        stream.warm_mibps = None
    if request.warm_throughput is not None:
        stream.warm_mibps = request.warm_throughput
    _settle(state, stream)


def update_max_record_size(state: ServiceState, request: inputs.UpdateMaxRecordSize) -> None:
    stream = state.active(None, request.stream_arn)
    stream.max_record_kib = request.max_record_size
    _settle(state, stream)


def update_record_distribution(state: ServiceState, request: inputs.UpdateStreamRecordDistributionStrategy) -> None:
    stream = state.active(None, request.stream_arn)
    if stream.mode != "ON_DEMAND":
        raise invalid("Only an on-demand stream has a record distribution strategy.")
    stream.record_distribution = request.record_distribution_strategy
    state.note_change(stream)


def _active(state: ServiceState, request: inputs.StreamInput) -> ServerStream:
    return state.active(request.stream_name, request.stream_arn)


def _provisioned(state: ServiceState, request: inputs.StreamInput) -> ServerStream:
    """Return the stream if the caller may change its shards: an on-demand stream manages them itself."""
    stream = _active(state, request)
    if stream.mode == "ON_DEMAND":
        raise provisioned_only(stream.name, state.settings.account_id)
    return stream


def _updated_at(state: ServiceState) -> float:
    return state.now + state.settings.delays.update


def _settle(state: ServiceState, stream: ServerStream) -> None:
    stream.begin("UPDATING", Change(_updated_at(state), "settle"))
    state.note_change(stream)
