"""Finds the stream and the shards that a request refers to, for the fault rules and the request log.

The functions draw no random numbers and refuse nothing.
"""

from typing import TYPE_CHECKING, NamedTuple, final

from msgspec import Struct

from shardline.model.hashing import hash_digest_of
from shardline.server.model import inputs
from shardline.server.model.channel_inputs import ChannelInput, CreateChannel, ListChannels
from shardline.server.model.shards import full_shard_id, shard_id_of
from shardline.server.model.streams import ServerStream

if TYPE_CHECKING:
    from shardline.server.model.state import ServiceState

_HASH_KEYS = 1 << 128


@final
class Target(NamedTuple):
    """The stream and the shards that a request names. The shards that its records go to are not included."""

    stream: str | None
    shards: tuple[str, ...] = ()


def target_of(request: object, state: "ServiceState") -> Target:
    """Return the stream and the shards that a request names, in any of its members."""
    tokens = state.tokens
    match request:
        case inputs.GetRecords():
            token = tokens.read_iterator(request.shard_iterator)
            return Target(None) if token is None else Target(token.stream, (shard_id_of(token.shard_index),))
        case inputs.SubscribeToShard():
            return Target(_stream_in(request.consumer_arn), _full(request.shard_id))
        case inputs.GetShardIterator():
            return Target(stream_named(request), _full(request.shard_id))
        case inputs.SplitShard():
            return Target(stream_named(request), _full(request.shard_to_split))
        case inputs.MergeShards():
            return Target(stream_named(request), _full(request.shard_to_merge, request.adjacent_shard_to_merge))
        case inputs.ListShards() if request.next_token is not None:
            page = tokens.read_page(request.next_token)
            return Target(None if page is None else page.stream)
        case _:
            return Target(stream_named(request) or _stream_of_channels(request, state))


def shards_of_records(request: object, stream: ServerStream | None) -> set[str]:
    """Return the shards that a request's records go to, or no shards under AUTO distribution, which draws them."""
    if stream is None or stream.record_distribution == "AUTO" or not stream.open_shards:
        return set()
    entries: list[inputs.PutRecord] | list[inputs.PutRecordsRequestEntry] = []
    if isinstance(request, inputs.PutRecords):
        entries = request.records
    elif isinstance(request, inputs.PutRecord):
        entries = [request]
    return {shard for entry in entries if (shard := _shard_of(entry, stream)) is not None}


def _shard_of(entry: inputs.PutRecord | inputs.PutRecordsRequestEntry, stream: ServerStream) -> str | None:
    if entry.explicit_hash_key is not None:
        hash_key = int(entry.explicit_hash_key)
        return stream.shard_of(hash_key.to_bytes(16, "big")).shard_id if hash_key < _HASH_KEYS else None
    key = entry.partition_key
    return stream.shard_of(hash_digest_of(key)).shard_id if isinstance(key, str) else None


def _full(*shard_ids: str) -> tuple[str, ...]:
    return tuple(full_shard_id(shard_id) or shard_id for shard_id in shard_ids)


def stream_named(request: object) -> str | None:
    """Return the stream that a request names by name or ARN. The operation refuses an invalid name later."""
    name: str | None = getattr(request, "stream_name", None)
    if name is not None or not isinstance(request, Struct):
        return name
    for member in ("stream_arn", "resource_arn", "consumer_arn"):
        arn: str | None = getattr(request, member, None)
        if arn is not None:
            return _stream_in(arn)
    return None


def _stream_of_channels(request: object, state: "ServiceState") -> str | None:
    """Return the stream of the channel that a request names, creates or lists."""
    match request:
        case CreateChannel():
            return _stream_in(request.streams[0].stream_arn)
        case ListChannels(stream_filter=[wanted]):
            return _stream_in(wanted.stream_arn)
        case ChannelInput(channel_arn=arn) | inputs.ResourceInput(resource_arn=arn) if arn in state.channels:
            return state.channels[arn].stream_name
        case _:
            return None


def _stream_in(arn: str) -> str | None:
    return arn.partition(":stream/")[2].partition("/")[0] or None
