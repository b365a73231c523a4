"""Emulates the operations that describe and list streams and shards.

Invariants:

- The token of a listing contains everything that is needed to continue the listing. Tokens expire.
- Shards are listed in the order of their ids, which is also their order in ``ServerStream.shards``.
"""

from hashlib import blake2b
from string import ascii_lowercase, digits
from typing import Final

from shardline.server.model import inputs
from shardline.server.model.account import warm_throughput
from shardline.server.model.next_tokens import PageToken
from shardline.server.model.records import hash_key_range
from shardline.server.model.refusals import expired_token, in_use, invalid, not_found
from shardline.server.model.shards import ServerShard, full_shard_id
from shardline.server.model.state import ServiceState
from shardline.server.model.streams import ServerStream

_SHARDS_PER_PAGE: Final = 1_000
_SHARDS_PER_DESCRIPTION: Final = 100
_STREAMS_PER_PAGE: Final = 100
_ID_DIGITS: Final = ascii_lowercase + digits


def describe_stream(state: ServiceState, request: inputs.DescribeStream) -> dict[str, object]:
    stream = state.find(request.stream_name, request.stream_arn)
    after = _full(request.exclusive_start_shard_id)
    shards = [shard for shard in stream.shards.values() if shard.shard_id > after]
    shown = shards[: min(request.limit or _SHARDS_PER_DESCRIPTION, _SHARDS_PER_DESCRIPTION)]
    description = _description(stream) | {
        "Shards": [describe_shard(shard) for shard in shown],
        "HasMoreShards": len(shown) < len(shards),
    }
    return {"StreamDescription": description}


def describe_stream_summary(state: ServiceState, request: inputs.DescribeStreamSummary) -> dict[str, object]:
    stream = state.find(request.stream_name, request.stream_arn)
    summary = _description(stream) | {
        "OpenShardCount": len(stream.open_shards),
        "ConsumerCount": len(state.consumers_of(stream)),
        "ChannelCount": len(state.channels_of(stream)),
        "StreamId": id_of(stream.arn, stream.creation_second),
        "MaxRecordSizeInKiB": stream.max_record_kib,
        "RecordDistributionStrategy": stream.record_distribution,
        "WarmThroughput": warm_throughput(state, stream),
    }
    return {"StreamDescriptionSummary": present(summary)}


def present(members: dict[str, object]) -> dict[str, object]:
    """Return those members of an answer that are not ``None``."""
    return {name: member for name, member in members.items() if member is not None}


def _description(stream: ServerStream) -> dict[str, object]:
    return present(
        {
            "StreamName": stream.name,
            "StreamARN": stream.arn,
            "StreamStatus": stream.status,
            "StreamModeDetails": {"StreamMode": stream.mode},
            "RetentionPeriodHours": stream.retention_hours,
            "StreamCreationTimestamp": stream.creation_second,
            "EnhancedMonitoring": [{"ShardLevelMetrics": stream.shard_level_metrics}],
            "EncryptionType": stream.encryption_type,
            "KeyId": stream.key_id,
        }
    )


def id_of(arn: str, created_at: float) -> str:
    """Return the id of a stream or a channel. It stays the same after a restart; a re-created stream or channel has
    another id.
    """
    number = int.from_bytes(blake2b(f"{arn} {created_at}".encode(), digest_size=16).digest(), "big")
    digits = "".join(_ID_DIGITS[number // len(_ID_DIGITS) ** place % len(_ID_DIGITS)] for place in range(23))
    return f"{digits[:20]}-{digits[20:]}"  # [MODEL] StreamId


def describe_shard(shard: ServerShard) -> dict[str, object]:
    numbers = {"StartingSequenceNumber": str(shard.starting_sequence_number)}
    if shard.ending_sequence_number is not None:
        numbers["EndingSequenceNumber"] = str(shard.ending_sequence_number)
    return present(
        {
            "ShardId": shard.shard_id,
            "ParentShardId": shard.parent_id,
            "AdjacentParentShardId": shard.adjacent_parent_id,
            "HashKeyRange": hash_key_range(shard),
            "SequenceNumberRange": numbers,
        }
    )


def list_shards(state: ServiceState, request: inputs.ListShards) -> dict[str, object]:
    stream, after, wanted = _listing(state, request)
    if stream.status not in {"ACTIVE", "UPDATING"}:
        account = state.settings.account_id
        raise in_use(f"Stream {stream.name} under account {account} not ACTIVE, instead in state {stream.status}")
    rows = [shard for shard in stream.shards.values() if shard.shard_id > after]
    matching = [shard for shard in rows if _matches(state, stream, shard, wanted)]
    most = min(request.max_results or _SHARDS_PER_PAGE, _SHARDS_PER_PAGE)
    shown = matching[:most]
    answer: dict[str, object] = {"Shards": [describe_shard(shard) for shard in shown]}
    if len(shown) < len(matching):
        token = PageToken("ListShards", stream.name, stream.creation_second, shown[-1].shard_id, wanted, state.now)
        answer["NextToken"] = state.tokens.write(token)
    return answer


Wanted = tuple[str, str | None, float | None]


def _listing(state: ServiceState, request: inputs.ListShards) -> tuple[ServerStream, str, Wanted | None]:
    """Return the stream, the id of the shard to continue after, and the filter, from the request or from its token."""
    if request.next_token is None:
        stream = state.find(request.stream_name, request.stream_arn)
        check_created(state, stream, request.stream_creation_timestamp)
        wanted = _check_filter(request.shard_filter)
        return stream, _full(request.exclusive_start_shard_id), wanted
    refuse_beside_token(
        StreamName=request.stream_name,
        StreamARN=request.stream_arn,
        StreamCreationTimestamp=request.stream_creation_timestamp,
        ExclusiveStartShardId=request.exclusive_start_shard_id,
        ShardFilter=request.shard_filter,
    )
    token = read_page_token(state, request.next_token, "ListShards")
    stream = state.find(token.stream, None)
    if stream.creation_second != token.creation_second:
        raise invalid("NextToken is invalid: its stream was deleted.")
    return stream, token.after, token.shard_filter


def refuse_beside_token(**members: object) -> None:
    """Refuse a request that has one of these members in addition to NextToken, with AWS's message.

    AWS's answers were reported on GitHub: StreamName in hashicorp/terraform-provider-aws#40494, StreamARN in
    aws/aws-cli#9635, ExclusiveStartShardId in awslabs/amazon-kinesis-scaling-utils#82, ShardFilter in
    awslabs/amazon-kinesis-client#788. The reference says the same about StreamCreationTimestamp.
    """
    for name, value in members.items():
        if value is not None:
            raise invalid(f"NextToken and {name} cannot be provided together.")


def _full(shard_id: str | None) -> str:
    """Return the full id of the shard to list after: ``0`` means ``shardId-000000000000``. Other texts are returned
    unchanged.
    """
    return "" if shard_id is None else full_shard_id(shard_id) or shard_id


def check_created(state: ServiceState, stream: ServerStream, at: float | None) -> None:
    """Refuse a request whose StreamCreationTimestamp does not match the stream. SDKs send whole seconds."""
    if at is not None and not stream.was_created_in(at):
        account = state.settings.account_id
        raise not_found(f"Stream {stream.name} under account {account} created at {at} not found.")


def read_page_token(state: ServiceState, text: str, operation: str) -> PageToken:
    token = state.tokens.read_page(text)
    if token is None or token.operation != operation:
        raise invalid("NextToken is invalid.")
    life = state.settings.limits.token_life
    if life is not None and state.now - token.made_at > life:
        raise expired_token(f"NextToken expired: it is good for {life:g} seconds.")
    return token


def _check_filter(wanted: inputs.ShardFilterInput | None) -> Wanted | None:
    if wanted is None:
        return None
    if (wanted.type == "AFTER_SHARD_ID") != (wanted.shard_id is not None):
        raise invalid("ShardFilter: ShardId goes with Type AFTER_SHARD_ID, and with no other.")
    if (wanted.type in {"AT_TIMESTAMP", "FROM_TIMESTAMP"}) != (wanted.timestamp is not None):
        raise invalid("ShardFilter: Timestamp goes with the Types AT_TIMESTAMP and FROM_TIMESTAMP, and with no other.")
    return wanted.type, wanted.shard_id, wanted.timestamp


def _matches(state: ServiceState, stream: ServerStream, shard: ServerShard, wanted: Wanted | None) -> bool:
    kind, shard_id, timestamp = wanted or ("FROM_TRIM_HORIZON", None, None)
    if kind == "AFTER_SHARD_ID":
        return shard.shard_id > _full(shard_id)
    if kind == "AT_LATEST":
        return shard.is_open
    horizon = max(stream.trim_horizon(state.now), stream.created_at)
    when = horizon if timestamp is None else max(timestamp, horizon)
    ends_after = shard.closed_at is None or shard.closed_at >= when  # [API] ShardFilter: "greater than or equal"
    if kind.startswith("FROM_"):
        return ends_after
    # A time before the stream was ready selects its first shards, although these are created only after the delay.
    oldest = min(shard.created_at for shard in stream.shards.values())
    return ends_after and shard.created_at <= max(when, oldest)


def list_streams(state: ServiceState, request: inputs.ListStreams) -> dict[str, object]:
    after = request.exclusive_start_stream_name or ""
    if request.next_token is not None:
        after = read_page_token(state, request.next_token, "ListStreams").after
    streams = [state.streams[name] for name in sorted(state.streams) if name > after]
    shown = streams[: min(request.limit or _STREAMS_PER_PAGE, _STREAMS_PER_PAGE)]
    more = len(shown) < len(streams)
    answer: dict[str, object] = {
        "StreamNames": [stream.name for stream in shown],
        "HasMoreStreams": more,
        "StreamSummaries": [
            {
                "StreamName": stream.name,
                "StreamARN": stream.arn,
                "StreamStatus": stream.status,
                "StreamModeDetails": {"StreamMode": stream.mode},
                "StreamCreationTimestamp": stream.creation_second,
            }
            for stream in shown
        ],
    }
    if more:
        token = PageToken("ListStreams", "", 0, shown[-1].name, None, state.now)
        answer["NextToken"] = state.tokens.write(token)
    return answer


def describe_limits(state: ServiceState, request: inputs.Nothing) -> dict[str, object]:
    del request
    limits = state.settings.limits
    return {
        "ShardLimit": limits.shards_per_account or 1_000_000,
        "OpenShardCount": state.shard_count(),
        "OnDemandStreamCount": sum(stream.mode == "ON_DEMAND" for stream in state.streams.values()),
        "OnDemandStreamCountLimit": limits.on_demand_streams or 1_000_000,
        "ChannelCount": len(state.channels),
        "ChannelCountLimit": limits.channels_per_account or 1_000_000,
    }
