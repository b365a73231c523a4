"""Emulates the operations on channels.

On AWS, a channel delivers the records of a stream to a bucket or to tables. This model delivers nothing: it validates,
stores, describes and counts channels.

Invariants:

- A stream has at most one channel for each kind of destination [GUIDE, data-delivery-quotas].
- A stream with a channel that is not being deleted cannot be deleted.
"""

from typing import Final

import msgspec

from shardline.model.limits import DATA_FRESHNESS_MAX, DATA_FRESHNESS_MIN
from shardline.server.model import channel_inputs
from shardline.server.model.channel_inputs import (
    ChannelInput,
    ChannelLogging,
    CloudWatchLogs,
    CreateChannel,
    DeadLetterQueue,
    ListChannels,
    S3Destination,
    UpdateChannel,
)
from shardline.server.model.descriptions import id_of, present, read_page_token
from shardline.server.model.next_tokens import PageToken
from shardline.server.model.refusals import Refused, in_use, invalid, limit_exceeded
from shardline.server.model.state import ChannelSettings, ServerChannel, ServiceState
from shardline.server.model.streams import ServerStream
from shardline.server.model.tags import merged_tags

_CHANNELS_PER_PAGE: Final = 100
_FORMATS: Final = {"S3": {"JSON", "STRING", "BYTE_ARRAY"}, "S3_TABLES": {"JSON", "GSR_JSON"}}
_SERVICE_KEY: Final = "alias/aws/kinesis"
_ERROR_PREFIX: Final = "error/"
_LOG_STREAM: Final = "DestinationDelivery"


def create_channel(state: ServiceState, request: CreateChannel) -> dict[str, object]:
    settings = _settings_of(request)
    if any(channel.name == request.channel_name for channel in state.channels.values()):
        raise in_use(f"Channel {request.channel_name} under account {state.settings.account_id} already exists.")
    stream = state.active(None, request.streams[0].stream_arn)
    if stream.mode != "ON_DEMAND":
        raise Refused("ValidationException", "CreateChannel is only supported for streams in the on-demand mode.")
    _check_limits(state, stream, settings)
    channel = ServerChannel(
        name=request.channel_name,
        arn=f"arn:aws:kinesis:{state.settings.region}:{state.settings.account_id}:channel/{request.channel_name}",
        stream_name=stream.name,
        created_at=state.now,
        ready_at=state.now + state.settings.delays.create,
        tags=merged_tags({}, request.tags or {}),
        settings=settings,
    )
    channel.settings = _with_log_names(settings, channel)
    state.channels[channel.arn] = channel
    described = _describe(state, channel)
    state.note_change(channel)
    return described


def describe_channel(state: ServiceState, request: ChannelInput) -> dict[str, object]:
    return _describe(state, state.channel(request.channel_arn))


def list_channels(state: ServiceState, request: ListChannels) -> dict[str, object]:
    after = ""
    if request.next_token is not None:
        after = read_page_token(state, request.next_token, "ListChannels").after
    found = [
        channel for channel in state.channels.values() if channel.name > after and _matches(state, request, channel)
    ]
    found.sort(key=lambda channel: channel.name)
    shown = found[: min(request.max_results or _CHANNELS_PER_PAGE, _CHANNELS_PER_PAGE)]
    answer: dict[str, object] = {"ChannelSummaries": [_summarize(state, channel) for channel in shown]}
    if len(shown) < len(found):
        answer["NextToken"] = state.tokens.write(PageToken("ListChannels", "", 0, shown[-1].name, None, state.now))
    return answer


def update_channel(state: ServiceState, request: UpdateChannel) -> dict[str, object]:
    channel = state.channel(request.channel_arn)
    settings = _updated(channel, request)
    if channel.status != "ACTIVE":
        raise in_use(f"Channel {channel.arn} is not ACTIVE, instead in state {channel.status}.")
    channel.settings = settings
    channel.status, channel.ready_at = "UPDATING", state.now + state.settings.delays.update
    described = _describe(state, channel)
    state.note_change(channel)
    return described


def delete_channel(state: ServiceState, request: ChannelInput) -> None:
    channel = state.channel(request.channel_arn)
    if channel.status == "DELETING":
        return  # a repeated request must not restart the delay
    channel.status, channel.ready_at = "DELETING", state.now + state.settings.delays.delete
    state.note_change(channel)


# ---- checks


def _settings_of(request: CreateChannel) -> ChannelSettings:
    """Return the settings that the request asks for, with AWS's defaults [API].

    Raises:
        Refused: a setting is invalid.
    """
    if (request.s3 is None) == (request.s3_tables is None):
        raise invalid(
            "Exactly one of S3DestinationConfiguration and S3TablesDestinationConfiguration must be provided."
        )
    if len(request.streams) > 1:
        raise invalid(f"A channel has one stream: StreamConfigurationList has {len(request.streams)}.")
    if request.s3_tables is not None and len(request.s3_tables.tables) > 1:
        raise invalid(f"A channel has one table: S3TablesConfigurationList has {len(request.s3_tables.tables)}.")
    if request.encryption is not None and request.encryption.key_id.endswith(_SERVICE_KEY):
        raise invalid(f"A channel cannot use the key of the service, {_SERVICE_KEY}.")
    settings = ChannelSettings(
        request.role_arn,
        request.streams[0].record_configuration,
        None if request.s3 is None else _with_defaults(request.s3),
        None if request.s3_tables is None else _with_freshness(request.s3_tables, request.s3_tables.data_freshness),
        request.encryption,
        request.logging or ChannelLogging(CloudWatchLogs(enabled=False)),
    )
    _check_format(settings)
    return settings


def _with_defaults(s3: S3Destination) -> S3Destination:
    storage = s3.storage_configuration
    queue = s3.dead_letter_queue or DeadLetterQueue(storage.bucket_arn, storage.expected_bucket_owner, _ERROR_PREFIX)
    storage = msgspec.structs.replace(storage, storage_class=storage.storage_class or "STANDARD")
    return _with_freshness(
        msgspec.structs.replace(s3, storage_configuration=storage, dead_letter_queue=queue), s3.data_freshness
    )


def _with_freshness(destination: channel_inputs.Destination, seconds: int | None) -> channel_inputs.Destination:
    """Return the destination with the requested data freshness, or the default [GUIDE, data-delivery-concepts]."""
    seconds = DATA_FRESHNESS_MIN if seconds is None else seconds
    if not DATA_FRESHNESS_MIN <= seconds <= DATA_FRESHNESS_MAX:
        raise invalid(
            f"DataFreshnessInSeconds must be from {DATA_FRESHNESS_MIN} to {DATA_FRESHNESS_MAX}, not {seconds}."
        )
    return msgspec.structs.replace(destination, data_freshness=seconds)


def _check_format(settings: ChannelSettings) -> None:
    record = settings.record
    if record.record_format_type not in _FORMATS[settings.destination_type]:
        raise invalid(
            f"RecordFormatType {record.record_format_type} is not supported for destinations of the type "
            f"{settings.destination_type}."
        )
    if settings.s3_tables is not None and record.record_format_type == "JSON" and record.schema_arn is None:
        raise invalid("GSRSchemaARN must be provided for JSON records that are delivered to tables.")


def _check_limits(state: ServiceState, stream: ServerStream, settings: ChannelSettings) -> None:
    """Refuse a second channel of a stream for the same kind of destination, and a channel over the account's limit."""
    limit, account = state.settings.limits.channels_per_account, state.settings.account_id
    if any(channel.settings.destination_type == settings.destination_type for channel in state.channels_of(stream)):
        raise limit_exceeded(
            f"Stream {stream.name} under account {account} already has a channel for destinations of the type "
            f"{settings.destination_type}."
        )
    if limit is not None and len(state.channels) >= limit:
        raise limit_exceeded(f"The account {account} has {limit} channels, which is its limit.")


def check_no_channels(state: ServiceState, stream: ServerStream) -> None:
    names = [channel.name for channel in state.channels_of(stream) if channel.status != "DELETING"]
    if names:
        raise in_use(
            f"Stream {stream.name} under account {state.settings.account_id} has channels: {', '.join(sorted(names))}. "
            "Delete them first."
        )


# ---- updates


def _updated(channel: ServerChannel, request: UpdateChannel) -> ChannelSettings:
    settings = channel.settings
    if (request.s3, request.s3_tables, request.logging) == (None, None, None):
        raise invalid("There is nothing to update: a data freshness or a LoggingConfiguration must be provided.")
    if request.s3 is not None:
        if settings.s3 is None:
            raise invalid(f"Channel {channel.arn} delivers to tables: it has no S3DestinationConfiguration.")
        settings = msgspec.structs.replace(settings, s3=_with_freshness(settings.s3, request.s3.data_freshness))
    if request.s3_tables is not None:
        if settings.s3_tables is None:
            raise invalid(f"Channel {channel.arn} delivers to a bucket: it has no S3TablesDestinationConfiguration.")
        tables = _with_freshness(settings.s3_tables, request.s3_tables.data_freshness)
        settings = msgspec.structs.replace(settings, s3_tables=tables)
    if request.logging is not None:
        settings = _with_log_names(msgspec.structs.replace(settings, logging=request.logging), channel)
    return settings


def _with_log_names(settings: ChannelSettings, channel: ServerChannel) -> ChannelSettings:
    """Return the settings with default names for the log group and the log stream, if logs are enabled [API]."""
    logs = settings.logging.cloud_watch_logs
    if not logs.enabled:
        return settings
    named = CloudWatchLogs(
        enabled=True,
        log_group_name=logs.log_group_name or f"/aws/kinesis/{channel.name}/{_id_of(channel)}",
        log_stream_name=logs.log_stream_name or _LOG_STREAM,
    )
    return msgspec.structs.replace(settings, logging=ChannelLogging(named))


# ---- descriptions


def _describe(state: ServiceState, channel: ServerChannel) -> dict[str, object]:
    stream, settings = state.streams[channel.stream_name], channel.settings
    described = _identify(channel) | {
        "ServiceExecutionRoleARN": settings.role_arn,
        "StreamConfigurationList": [_identify_stream(stream) | {"RecordConfiguration": settings.record}],
        "S3DestinationConfiguration": settings.s3,
        "S3TablesDestinationConfiguration": settings.s3_tables,
        "EncryptionConfiguration": settings.encryption,
        "LoggingConfiguration": settings.logging,
    }
    return {"ChannelDescription": present(described)}


def _summarize(state: ServiceState, channel: ServerChannel) -> dict[str, object]:
    stream = state.streams[channel.stream_name]
    return _identify(channel) | {
        "ChannelDestinationType": channel.settings.destination_type,
        "Streams": [_identify_stream(stream)],
    }


def _identify(channel: ServerChannel) -> dict[str, object]:
    return {
        "ChannelName": channel.name,
        "ChannelARN": channel.arn,
        "ChannelId": _id_of(channel),
        "ChannelStatus": channel.status,
        "ChannelCreationTimestamp": int(channel.created_at),
    }


def _id_of(channel: ServerChannel) -> str:
    return id_of(channel.arn, channel.created_at)


def _identify_stream(stream: ServerStream) -> dict[str, object]:
    return {"StreamARN": stream.arn, "StreamCreationTimestamp": stream.creation_second}


def _matches(state: ServiceState, request: ListChannels, channel: ServerChannel) -> bool:
    if request.stream_filter is None:
        return True
    stream = state.streams[channel.stream_name]
    return any(
        state.name_of(None, wanted.stream_arn) == stream.name
        and (wanted.stream_creation_timestamp is None or stream.was_created_in(wanted.stream_creation_timestamp))
        for wanted in request.stream_filter
    )
