"""The methods of ``Client`` that create, change and describe streams.

Methods are named after AWS's operations, in snake case. A stream is given by its name or its ARN.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from typing import Final, Literal, TypeVar

from shardline.adapters.kinesis import KinesisHttp, stream_members
from shardline.aio.stream_waiters import Wait, wait_limit, wait_until
from shardline.codec.envelope import BodyError
from shardline.codec.shapes import (
    DescribeStreamConsumerResponse,
    ListStreamConsumersResponse,
    ListStreamsResponse,
    ListTagsForStreamResponse,
    RegisterStreamConsumerResponse,
    ShardCountUpdate,
    StreamConsumer,
    StreamListing,
    StreamSummary,
)
from shardline.core.error_codes import Failure, to_error
from shardline.core.page_tokens import PageTokens
from shardline.core.requests import DescribeStreamSummary, ListShards, ShardFilter
from shardline.errors import UsageError
from shardline.model.hashing import parse_explicit_hash_key
from shardline.model.limits import LIST_SHARDS_MAX_RESULTS
from shardline.model.shard import Shard
from shardline.model.stream import StreamRef, parse_consumer_arn, parse_stream

T = TypeVar("T")

_LISTING: Final = "BadAnswer", "the listing"


class ControlPlane:
    """The base class of ``Client``: all operations except those on records."""

    @property
    def api(self) -> KinesisHttp:
        """The low-level API, which returns failures as values instead of raising them."""
        raise AssertionError("Client defines it")

    async def describe_stream_summary(self, stream: str) -> StreamSummary:
        ref = parse_stream(stream)
        return value_of(await self.api.describe_stream_summary(DescribeStreamSummary(ref)), "DescribeStreamSummary")

    async def list_shards(self, stream: str, shard_filter: ShardFilter | str | None = None) -> list[Shard]:
        """Return all shards, open and closed. The ``shard_filter`` ``"AT_LATEST"`` selects the open ones."""
        ref = parse_stream(stream)
        wanted = ShardFilter(shard_filter) if isinstance(shard_filter, str) else shard_filter
        shards: list[Shard] = []
        token: str | None = None
        tokens = PageTokens(*_LISTING)
        while True:
            request = ListShards(ref, wanted, token, LIST_SHARDS_MAX_RESULTS)
            page = value_of(await self.api.list_shards(request), "ListShards")
            shards.extend(shape.to_shard() for shape in page.shards or ())
            token = value_of(tokens.follow(page.next_token), "ListShards")
            if token is None:
                return shards

    async def list_streams(self) -> list[StreamListing]:
        """Return all streams of the account and region."""
        streams: list[StreamListing] = []
        async for page in self._pages("ListStreams", {}, ListStreamsResponse, _next_streams):
            streams.extend(page.stream_summaries or [StreamListing(name=name) for name in page.stream_names])
        return streams

    async def create_stream(
        self,
        name: str,
        *,
        shards: int | None = None,
        mode: Literal["PROVISIONED", "ON_DEMAND"] = "PROVISIONED",
        tags: Mapping[str, str] | None = None,
        wait: Wait = False,
    ) -> None:
        """Create a stream.

        Args:
            name: the new stream's name.
            shards: the number of shards (default 1). Not allowed with ``mode="ON_DEMAND"``.
            mode: the capacity mode.
            tags: the tags of the stream.
            wait: wait until the stream is ACTIVE: ``True`` (up to 300 s), or a number of seconds.
        """
        ref = parse_stream(name)
        if ref.arn is not None:
            raise UsageError("create_stream takes a name, not an ARN: a stream has no ARN before it is created")
        params: dict[str, object] = {"StreamName": ref.name}
        _check_mode(mode)
        if mode == "ON_DEMAND":
            if shards is not None:
                raise UsageError("an on-demand stream has no fixed number of shards: omit shards")
            params["StreamModeDetails"] = {"StreamMode": mode}
        else:
            params["ShardCount"] = _count("shards", 1 if shards is None else shards)
        if tags:
            params["Tags"] = dict(tags)
        limit = wait_limit(wait)
        await self._send("CreateStream", params)
        await self._wait_until_active(ref, limit)

    async def delete_stream(self, stream: str, *, enforce_consumer_deletion: bool = False, wait: Wait = False) -> None:
        """Delete a stream. With ``wait``, return when it no longer exists."""
        ref = parse_stream(stream)
        limit = wait_limit(wait)
        params = stream_members(ref)
        if enforce_consumer_deletion:
            params["EnforceConsumerDeletion"] = True
        await self._send("DeleteStream", params)
        await wait_until(None, limit, f"stream {ref.name}", self._status_of(ref))

    async def split_shard(self, stream: str, shard_id: str, at: int | str | None = None, *, wait: Wait = False) -> None:
        """Split a shard at the hash key ``at``, the first hash key of the upper child. By default, split it in the
        middle.
        """
        ref = parse_stream(stream)
        limit = wait_limit(wait)
        if at is None:
            found = [shard for shard in await self.list_shards(stream) if shard.shard_id == shard_id]
            if not found:
                raise UsageError(f"the stream {ref} has no shard {shard_id!r}")
            at = found[0].hash_range.middle
        starting = str(parse_explicit_hash_key(str(at)))
        await self._send("SplitShard", stream_members(ref) | {"ShardToSplit": shard_id, "NewStartingHashKey": starting})
        await self._wait_until_active(ref, limit)

    async def merge_shards(self, stream: str, shard_id: str, adjacent_id: str, *, wait: Wait = False) -> None:
        """Merge two shards with adjacent hash ranges."""
        ref = parse_stream(stream)
        limit = wait_limit(wait)
        members = {"ShardToMerge": shard_id, "AdjacentShardToMerge": adjacent_id}
        await self._send("MergeShards", stream_members(ref) | members)
        await self._wait_until_active(ref, limit)

    async def update_shard_count(self, stream: str, count: int, *, wait: Wait = False) -> ShardCountUpdate:
        """Scale a stream uniformly to ``count`` open shards: at least half and at most double the current number."""
        ref = parse_stream(stream)
        limit = wait_limit(wait)
        members = {"TargetShardCount": _count("count", count), "ScalingType": "UNIFORM_SCALING"}
        update = await self._typed_call("UpdateShardCount", stream_members(ref) | members, ShardCountUpdate)
        await self._wait_until_active(ref, limit)
        return update

    async def register_stream_consumer(self, stream: str, name: str, *, wait: Wait = False) -> StreamConsumer:
        """Register a consumer for enhanced fan-out. With ``wait``, return when it is ACTIVE."""
        arn = await self._arn_of(stream)
        limit = wait_limit(wait)
        members = {"StreamARN": arn, "ConsumerName": name}
        response = await self._typed_call("RegisterStreamConsumer", members, RegisterStreamConsumerResponse)
        consumer = response.consumer
        if limit is None:
            return consumer
        members = {"ConsumerARN": consumer.arn}

        async def status() -> str | Failure:
            found = await self.api.typed_call("DescribeStreamConsumer", members, DescribeStreamConsumerResponse)
            return found if isinstance(found, Failure) else found.consumer_description.status

        await wait_until("ACTIVE", limit, f"consumer {name}", status)
        return await self.describe_stream_consumer(consumer.arn)

    async def describe_stream_consumer(
        self, consumer_arn: str | None = None, *, stream: str | None = None, name: str | None = None
    ) -> StreamConsumer:
        """Describe a registered consumer, given its ARN, or its stream and name."""
        members = await self._consumer_members(consumer_arn, stream, name)
        return (
            await self._typed_call("DescribeStreamConsumer", members, DescribeStreamConsumerResponse)
        ).consumer_description

    async def deregister_stream_consumer(
        self, consumer_arn: str | None = None, *, stream: str | None = None, name: str | None = None
    ) -> None:
        """Deregister a consumer, given its ARN, or its stream and name."""
        await self._send("DeregisterStreamConsumer", await self._consumer_members(consumer_arn, stream, name))

    async def list_stream_consumers(self, stream: str) -> list[StreamConsumer]:
        """Return all registered consumers of a stream."""
        consumers: list[StreamConsumer] = []
        params = {"StreamARN": await self._arn_of(stream)}
        async for page in self._pages(
            "ListStreamConsumers", params, ListStreamConsumersResponse, lambda page: ("NextToken", page.next_token)
        ):
            consumers.extend(page.consumers)
        return consumers

    async def update_max_record_size(self, stream: str, kib: int) -> None:
        """Set the maximum record size of the stream: 1024 to 10240 KiB."""
        if not isinstance(kib, int) or not 1024 <= kib <= 10_240:  # noqa: PLR2004 - [MODEL] MaxRecordSizeInKiB
            raise UsageError(f"kib must be a whole number from 1024 to 10240, not {kib!r}")
        await self._send("UpdateMaxRecordSize", {"StreamARN": await self._arn_of(stream), "MaxRecordSizeInKiB": kib})

    async def increase_stream_retention_period(self, stream: str, hours: int) -> None:
        members = {"RetentionPeriodHours": _count("hours", hours)}
        await self._send("IncreaseStreamRetentionPeriod", stream_members(parse_stream(stream)) | members)

    async def decrease_stream_retention_period(self, stream: str, hours: int) -> None:
        members = {"RetentionPeriodHours": _count("hours", hours)}
        await self._send("DecreaseStreamRetentionPeriod", stream_members(parse_stream(stream)) | members)

    async def update_stream_mode(
        self, stream: str, mode: Literal["PROVISIONED", "ON_DEMAND"], *, wait: Wait = False
    ) -> None:
        """Change the capacity mode. The service allows this twice in 24 hours."""
        _check_mode(mode)
        limit = wait_limit(wait)
        ref = parse_stream(stream)
        members = {"StreamARN": await self._arn_of(stream), "StreamModeDetails": {"StreamMode": mode}}
        await self._send("UpdateStreamMode", members)
        await self._wait_until_active(ref, limit)

    async def start_stream_encryption(self, stream: str, key_id: str, *, wait: Wait = False) -> None:
        """Encrypt new records with a KMS key, given by its id, its ARN, or its alias such as ``alias/aws/kinesis``."""
        await self._change_encryption("StartStreamEncryption", stream, key_id, wait)

    async def stop_stream_encryption(self, stream: str, key_id: str, *, wait: Wait = False) -> None:
        """Store new records unencrypted. ``key_id`` is the stream's current key."""
        await self._change_encryption("StopStreamEncryption", stream, key_id, wait)

    async def _change_encryption(self, operation: str, stream: str, key_id: str, wait: Wait) -> None:
        ref = parse_stream(stream)
        limit = wait_limit(wait)
        await self._send(operation, stream_members(ref) | {"EncryptionType": "KMS", "KeyId": key_id})
        await self._wait_until_active(ref, limit)

    async def add_tags_to_stream(self, stream: str, tags: Mapping[str, str]) -> None:
        await self._send("AddTagsToStream", stream_members(parse_stream(stream)) | {"Tags": dict(tags)})

    async def remove_tags_from_stream(self, stream: str, keys: Iterable[str]) -> None:
        if isinstance(keys, str):
            raise UsageError("keys must be a list of tag keys, not one str")
        await self._send("RemoveTagsFromStream", stream_members(parse_stream(stream)) | {"TagKeys": list(keys)})

    async def list_tags_for_stream(self, stream: str) -> dict[str, str]:
        """Return all tags of a stream."""
        tags: dict[str, str] = {}
        params = stream_members(parse_stream(stream))
        async for page in self._pages("ListTagsForStream", params, ListTagsForStreamResponse, _next_tags):
            tags.update({tag.key: tag.value or "" for tag in page.tags})
        return tags

    async def _pages(
        self,
        operation: str,
        params: Mapping[str, object],
        shape: type[T],
        follow: Callable[[T], tuple[str, str | None]],
    ) -> AsyncIterator[T]:
        """Iterate over the pages of a listing.

        ``follow`` returns the member that requests the next page, and its value.
        """
        tokens, page_params = PageTokens(*_LISTING), params
        while True:
            page = await self._typed_call(operation, page_params, shape)
            yield page
            member, value = follow(page)
            token = value_of(tokens.follow(value), operation)
            if token is None:
                return
            page_params = {**params, member: token}

    async def _typed_call(self, operation: str, params: Mapping[str, object], shape: type[T]) -> T:
        try:
            return value_of(await self.api.typed_call(operation, params, shape), operation)
        except BodyError as error:
            raise UsageError(f"{operation}: {error}") from None

    async def _send(self, operation: str, params: Mapping[str, object]) -> None:
        await self._typed_call(operation, params, dict[str, object])

    async def _wait_until_active(self, ref: StreamRef, limit: float | None) -> None:
        await wait_until("ACTIVE", limit, f"stream {ref.name}", self._status_of(ref))

    def _status_of(self, ref: StreamRef) -> Callable[[], Awaitable[str | Failure]]:
        async def status() -> str | Failure:
            summary = await self.api.describe_stream_summary(DescribeStreamSummary(ref))
            return summary if isinstance(summary, Failure) else summary.status

        return status

    async def _arn_of(self, stream: str) -> str:
        """Return the ARN, for operations that do not accept a name. Look it up if ``stream`` is a name."""
        ref = parse_stream(stream)
        return ref.arn if ref.arn is not None else (await self.describe_stream_summary(stream)).arn

    async def _consumer_members(self, arn: str | None, stream: str | None, name: str | None) -> dict[str, object]:
        if arn is not None and stream is None and name is None:
            parse_consumer_arn(arn)
            return {"ConsumerARN": arn}
        if arn is None and stream is not None and name is not None:
            return {"StreamARN": await self._arn_of(stream), "ConsumerName": name}
        raise UsageError("identify a consumer by its ARN alone, or by both stream= and name=")


def _next_streams(page: ListStreamsResponse) -> tuple[str, str | None]:
    last = page.stream_names[-1] if page.has_more_streams and page.stream_names else None
    by_token = last and page.next_token
    return ("NextToken", by_token) if by_token else ("ExclusiveStartStreamName", last)


def _next_tags(page: ListTagsForStreamResponse) -> tuple[str, str | None]:
    return "ExclusiveStartTagKey", page.tags[-1].key if page.has_more_tags and page.tags else None


def value_of(response: T | Failure, operation: str) -> T:
    """Return the response, or raise the failure as an exception."""
    if isinstance(response, Failure):
        raise to_error(response, operation)
    return response


def _check_mode(mode: object) -> None:
    if mode not in {"PROVISIONED", "ON_DEMAND"}:
        raise UsageError(f"mode must be 'PROVISIONED' or 'ON_DEMAND', not {mode!r}")


def _count(name: str, value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise UsageError(f"{name} must be a whole number, 1 or more, not {value!r}")
    return value
