"""Implements ``KinesisApi`` over HTTP, in JSON 1.1 or CBOR 1.1. The codecs for JSON and CBOR have the same functions.

Invariants:

- One call is one attempt. Every expected failure is returned as a ``Failure``, as ``ports`` requires.
- An unparseable response is a transient failure of a request that may have been carried out.
"""

import math
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Final, Literal, Protocol, TypeVar, final, overload

import anyio

from shardline.adapters.aws.endpoints import ROUTING_MEMBERS
from shardline.adapters.aws.signed_http import SignedHttp
from shardline.adapters.http.http_failures import broken
from shardline.codec import eventstream
from shardline.codec.envelope import BodyError, bare_code, read_error
from shardline.codec.shapes import (
    DescribeStreamSummaryResponse,
    GetRecordsResponse,
    GetShardIteratorResponse,
    ListShardsResponse,
    PutRecordsResponse,
    StreamSummary,
    SubscribeToShardEvent,
)
from shardline.core.error_codes import COUNT_MISMATCH, Failure, classify
from shardline.core.requests import (
    DescribeStreamSummary,
    GetRecords,
    GetShardIterator,
    ListShards,
    PutRecords,
    ShardFilter,
    SubscribeToShard,
)
from shardline.model.position import Position
from shardline.model.record import Entry
from shardline.model.stream import StreamRef
from shardline.ports import Body, HttpStream, ShardEvents

SERVICE: Final = "kinesis"
TARGET_PREFIX: Final = "Kinesis_20131202"

T = TypeVar("T")


class BodyCodec(Protocol):
    """The functions that the modules ``codec.awsjson`` and ``codec.awscbor`` have in common."""

    @property
    def CONTENT_TYPE(self) -> str: ...  # noqa: N802 - a constant of those modules
    def encode_put_records(self, stream: StreamRef, entries: Sequence[Entry]) -> Body: ...
    def encode(self, params: Mapping[str, object]) -> bytes: ...
    def decode(self, body: bytes | memoryview, shape: type[T]) -> T: ...
    def decode_any(self, body: bytes) -> dict[str, object]: ...


@final
class KinesisHttp:
    """``KinesisApi`` over signed HTTP requests."""

    def __init__(self, http: SignedHttp, codec: BodyCodec) -> None:
        self._http = http
        self._codec = codec
        self.before_call: Callable[[str], Awaitable[None]] | None = None
        """A function that is called with the operation, and awaited, before each request. A caller that limits its
        requests sets this.
        """

    async def put_records(self, request: PutRecords) -> PutRecordsResponse | Failure:
        stream = request.stream
        body = self._codec.encode_put_records(stream, request.entries)
        answer = await self._post("PutRecords", body, _stream_routing(stream.arn), PutRecordsResponse)
        if not isinstance(answer, Failure) and len(answer.records) != len(request.entries):
            counts = f"{len(answer.records)} results for {len(request.entries)} entries"
            return broken(COUNT_MISMATCH, self._http.host_of("PutRecords", stream.arn), counts)
        return answer

    async def get_shard_iterator(self, request: GetShardIterator) -> GetShardIteratorResponse | Failure:
        params = stream_members(request.stream)
        params |= {"ShardId": request.shard_id, "ShardIteratorType": request.position.kind.value}
        params |= _position_members(request.position, "StartingSequenceNumber")
        return await self.typed_call("GetShardIterator", params, GetShardIteratorResponse)

    async def get_records(self, request: GetRecords) -> GetRecordsResponse | Failure:
        params: dict[str, object] = {"ShardIterator": request.iterator}
        if request.limit is not None:
            params["Limit"] = request.limit
        routing = _stream_routing(None if request.stream is None else request.stream.arn)
        return await self._post("GetRecords", self._codec.encode(params | routing), routing, GetRecordsResponse)

    async def list_shards(self, request: ListShards) -> ListShardsResponse | Failure:
        if request.next_token is not None:  # the service refuses a token together with a stream
            params: dict[str, object] = {"NextToken": request.next_token}
        else:
            params = stream_members(request.stream)
            if request.shard_filter is not None:
                params["ShardFilter"] = _filter_members(request.shard_filter)
        if request.max_results is not None:
            params["MaxResults"] = request.max_results
        routing = _stream_routing(request.stream.arn)  # later pages come from the endpoint of the first one
        return await self._post("ListShards", self._codec.encode(params), routing, ListShardsResponse)

    async def describe_stream_summary(self, request: DescribeStreamSummary) -> StreamSummary | Failure:
        members = stream_members(request.stream)
        answer = await self.typed_call("DescribeStreamSummary", members, DescribeStreamSummaryResponse)
        return answer if isinstance(answer, Failure) else answer.stream_description_summary

    @asynccontextmanager
    async def subscribe_to_shard(self, request: SubscribeToShard) -> AsyncGenerator[ShardEvents | Failure]:
        params: dict[str, object] = {
            "ConsumerARN": request.consumer_arn,
            "ShardId": request.shard_id,
            "StartingPosition": {"Type": request.position.kind.value}
            | _position_members(request.position, "SequenceNumber"),
        }
        body = self._codec.encode(params)
        routing = {"ConsumerARN": request.consumer_arn}
        async with self._http.stream(
            "SubscribeToShard", self._codec.CONTENT_TYPE, body, routing, request.consumer_arn
        ) as answer:
            if isinstance(answer, Failure):
                yield answer
                return
            host = self._http.host_of("SubscribeToShard", request.consumer_arn)
            yield _Events(answer, self._codec, host)

    async def subscription_protocol(self, consumer_arn: str) -> Literal["h2", "http/1.1"] | Failure:
        """Return the protocol that carries the events of subscriptions."""
        return await self._http.stream_protocol("SubscribeToShard", {"ConsumerARN": consumer_arn}, consumer_arn)

    async def call(self, operation: str, params: Mapping[str, object]) -> dict[str, object] | Failure:
        return await self._post(operation, self._codec.encode(params), _routing(params), None)

    async def typed_call(self, operation: str, params: Mapping[str, object], shape: type[T]) -> T | Failure:
        """Like ``call``, but decode the response into a struct."""
        return await self._post(operation, self._codec.encode(params), _routing(params), shape)

    def service_time(self) -> float:
        """Return the service's current time, estimated from its last response."""
        return self._http.service_time()

    async def close(self) -> None:
        await self._http.close()

    @overload
    async def _post(self, operation: str, body: Body, routing: dict[str, str], shape: type[T]) -> T | Failure: ...
    @overload
    async def _post(
        self, operation: str, body: Body, routing: dict[str, str], shape: None
    ) -> dict[str, object] | Failure: ...
    async def _post(
        self, operation: str, body: Body, routing: dict[str, str], shape: type[T] | None
    ) -> T | dict[str, object] | Failure:
        """Send one request. The endpoint is cached under the first of the ``routing`` members."""
        arn = next(iter(routing.values()), None)
        if self.before_call is not None:
            await self.before_call(operation)
        answer = await self._http.post(operation, self._codec.CONTENT_TYPE, body, routing, arn)
        if isinstance(answer, Failure):
            return answer
        try:
            return self._codec.decode_any(answer.body) if shape is None else self._codec.decode(answer.body, shape)
        except BodyError as error:
            return broken("BadAnswer", self._http.host_of(operation, arn), error)


@final
class _Events:
    """Decodes the events of a SubscribeToShard response while it arrives."""

    def __init__(self, answer: HttpStream, codec: BodyCodec, host: str) -> None:
        self._answer = answer
        self._codec = codec
        self._host = host
        self._decoder = eventstream.MessageDecoder()
        self._messages: deque[eventstream.Message] = deque()

    async def next_event(self, timeout: float = math.inf) -> SubscribeToShardEvent | Failure | None:  # noqa: ASYNC109
        wait, ends_at = timeout, None
        try:
            while True:
                while self._messages:
                    event = self._event(self._messages.popleft())
                    if event is not None:
                        return event
                chunk = await self._answer.next_chunk(wait, self._decoder.missing)
                if isinstance(chunk, Failure):
                    return chunk
                if chunk is None:
                    self._decoder.close()
                    return None
                self._messages.extend(self._decoder.feed(chunk))
                if timeout < math.inf and not self._messages:
                    # Even a server that keeps sending parts of an event has to complete it in time. The clock is read
                    # only in this case, because most events of an idle shard arrive in one part.
                    now = anyio.current_time()
                    ends_at = now + timeout if ends_at is None else ends_at
                    wait = ends_at - now
        except (eventstream.FrameError, BodyError) as error:
            return broken("BadAnswer", self._host, error)

    def _event(self, message: eventstream.Message) -> SubscribeToShardEvent | Failure | None:
        headers = message.headers
        kind = headers.get(":message-type")
        if kind == "event":
            if headers.get(":event-type") == "SubscribeToShardEvent":
                return self._codec.decode(message.payload, SubscribeToShardEvent)
            return None  # an initial-response, or a type of event that the service may add later
        if kind == "exception":
            code = bare_code(str(headers.get(":exception-type", "")))
            reason = read_error(400, {"x-amzn-errortype": code}, bytes(message.payload)).message
        else:
            code = bare_code(str(headers.get(":error-code", "")))
            reason = str(headers.get(":error-message", ""))
        code = code or "InternalFailure"
        return Failure(classify(code, 500, reason), code, reason or "the service gave no reason", 200)


def stream_members(stream: StreamRef) -> dict[str, object]:
    """Return the member that names the stream in a request: the ARN if it is known, and the name if not."""
    return {"StreamName": stream.name} if stream.arn is None else {"StreamARN": stream.arn}


def _routing(params: Mapping[str, object]) -> dict[str, str]:
    """Return the members of a request that determine its endpoint, such as an ARN."""
    return {name: str(params[name]) for name in ROUTING_MEMBERS if name in params}


def _stream_routing(arn: str | None) -> dict[str, str]:
    return {} if arn is None else {"StreamARN": arn}


def _time(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def _position_members(position: Position, number: str) -> dict[str, object]:
    """Return the members of a request that state a position, except its type.

    ``number`` is the name of the member for the sequence number.
    """
    if position.sequence_number is not None:
        return {number: str(position.sequence_number)}
    return {} if position.timestamp is None else {"Timestamp": _time(position.timestamp)}


def _filter_members(wanted: ShardFilter) -> dict[str, object]:
    members: dict[str, object] = {"Type": wanted.kind}
    if wanted.shard_id is not None:
        members["ShardId"] = wanted.shard_id
    if wanted.timestamp is not None:
        members["Timestamp"] = _time(wanted.timestamp)
    return members
