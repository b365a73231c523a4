"""The client for Kinesis.

Many producers, consumers and direct callers can share a ``Client``. One call is one request: the client does not retry.
A failure is raised as a ``ServiceError`` or ``TransportError``, which carries all details.
"""

import ssl
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager
from datetime import datetime
from types import TracebackType
from typing import Any, Final, Literal, Self, TypedDict, final
from urllib.parse import urlsplit
from weakref import WeakSet

import anyio

from shardline.adapters.http.http_settings import HttpSettings
from shardline.adapters.kinesis import KinesisHttp, stream_members
from shardline.aio.connection import Connection, ConnectionSettings, connect
from shardline.aio.control_plane import ControlPlane, value_of
from shardline.aio.subscription import Subscription
from shardline.codec.envelope import BodyError
from shardline.codec.shapes import GetRecordsResponse, PutRecordResponse, PutRecordsResponse
from shardline.core.requests import GetRecords, GetShardIterator, PutRecords, SubscribeToShard
from shardline.errors import Closed, UsageError
from shardline.model.credentials import Credentials
from shardline.model.limits import GET_RECORDS_MAX_RECORDS, ITERATOR_MAX_LENGTH
from shardline.model.position import Position, as_position
from shardline.model.record import Entry, check_entries
from shardline.model.stream import parse_consumer_arn, parse_stream

_ITERATOR_MAX_LENGTH: Final = 4 * ITERATOR_MAX_LENGTH  # emulators exceed the service's limit of 512


class ConnectionArguments(TypedDict, total=False):
    """The arguments of ``Client``, which explains them. ``Producer`` and ``Consumer`` also take them.

    Annotate a dict of settings with this type, so that type checkers find misspelt and invalid arguments::

        connection: ConnectionArguments = {"region": "eu-west-1", "read_timeout": 10}
        async with Producer("orders", **connection) as producer: ...
    """

    region: str | None
    endpoint_url: str | None
    profile: str | None
    session: Any
    credentials: Credentials | None
    protocol: Literal["json", "cbor"]
    verify: bool | str | ssl.SSLContext
    connect_timeout: float
    read_timeout: float
    max_connections: int
    proxies: Mapping[str, str] | None
    use_fips: bool | None
    use_dualstack: bool | None
    http2: bool


@final
class Client(ControlPlane):
    """A connection to Kinesis, on asyncio or trio::

        async with Client(region="eu-west-1") as client:
            await client.put_records("orders", [Entry(b"...", "user-1")])

    Arguments that you omit are looked up as the AWS SDKs do, for example in the environment and in config files.

    Args:
        region: the AWS region, such as ``"eu-west-1"``.
        endpoint_url: the address of the service. It overrides AWS's endpoint rules.
        profile: a profile of the AWS config files.
        session: a ``boto3.Session`` or botocore session that supplies settings and credentials.
        credentials: fixed credentials.
        protocol: ``"json"`` (the default) or ``"cbor"``, which needs fewer bytes, and less CPU for large records.
        verify: ``True``, ``False`` (do not verify certificates), the path of a CA file, or an ``ssl.SSLContext``.
        connect_timeout: seconds within which a connection must be established.
        read_timeout: seconds without data after which a request fails.
        max_connections: the maximum number of open connections. Further requests wait for a free connection.
        proxies: proxy URLs by scheme. By default, ``HTTPS_PROXY``, ``HTTP_PROXY`` and ``NO_PROXY`` apply.
        use_fips: use the FIPS endpoint. By default, the AWS settings decide.
        use_dualstack: use the dual-stack endpoint. By default, the AWS settings decide.
        http2: use HTTP/2 for all calls if the endpoint supports it. Subscriptions use HTTP/2 even without this setting.

    Raises:
        UsageError: an argument is invalid.
    """

    def __init__(
        self,
        *,
        region: str | None = None,
        endpoint_url: str | None = None,
        profile: str | None = None,
        session: Any = None,
        credentials: Credentials | None = None,
        protocol: Literal["json", "cbor"] = "json",
        verify: bool | str | ssl.SSLContext = True,
        connect_timeout: float = 5.0,
        read_timeout: float = 30.0,
        max_connections: int = 50,
        proxies: Mapping[str, str] | None = None,
        use_fips: bool | None = None,
        use_dualstack: bool | None = None,
        http2: bool = False,
    ) -> None:
        self._settings = ConnectionSettings(
            region=region,
            endpoint_url=endpoint_url,
            profile=profile,
            session=session,
            credentials=credentials,
            protocol=protocol,
            use_fips=use_fips,
            use_dualstack=use_dualstack,
            http=HttpSettings(
                connect_timeout=connect_timeout,
                read_timeout=read_timeout,
                max_connections=max_connections,
                proxies=proxies,
                verify=verify,
                http2=http2,
            ),
        )
        self._connection: Connection | None = None
        self._closed = False
        self._starting = anyio.Lock()
        # A weak set, so that a subscription that its reader has dropped does not keep its connection open.
        self._subscriptions: WeakSet[Subscription] = WeakSet()
        self._users: list[Callable[[], None]] = []

    async def start(self) -> None:
        """Look up the settings that were omitted. No request is sent to Kinesis.

        Raises:
            UsageError: there is no region, the profile is unknown, the CA file is unreadable or an extra is missing.
            Closed: the client has already been closed.
        """
        async with self._starting:  # if two tasks call start, the second must not replace the connection of the first
            if self._connection is None and not self._closed:
                self._connection = await connect(self._settings)
            if self._closed:
                await self.close()  # the client was closed during the lookup, when there was no connection yet
                raise Closed("this Client is closed: create a new one")

    @contextmanager
    def used_by(self, on_close: Callable[[], None]) -> Generator[None]:
        """Call ``on_close``, in this event loop, if the client is closed within the block. Producers use this."""
        self._users.append(on_close)
        try:
            if self._closed:
                on_close()
            yield
        finally:
            self._users.remove(on_close)

    async def close(self) -> None:
        """End the subscriptions and close the connections. Closing twice is harmless.

        Requests in flight fail as if their connection had broken. Producers that use the client stop, and their
        undelivered records fail with the code ``Closed``.
        """
        self._closed = True
        for on_close in [*self._users]:
            on_close()
        with anyio.CancelScope(shield=True):  # a cancelled block must also close; nothing here waits for the network
            try:
                for subscription in list(self._subscriptions):
                    await subscription.aclose()
            finally:
                connection, self._connection = self._connection, None
                if connection is not None:
                    await connection.api.close()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        state = "closed" if self._closed else "open" if self._connection is not None else "not started"
        return f"<Client {self._settings.endpoint_url or self._settings.region or 'of the AWS settings'}, {state}>"

    @property
    def api(self) -> KinesisHttp:
        """The low-level API, which returns failures as values instead of raising them."""
        return self._open().api

    @property
    def region(self) -> str:
        """The region in use, which is known after ``start``."""
        return self._open().region

    @property
    def server_address(self) -> str | None:
        """The host name in ``endpoint_url``, or ``None`` if AWS's endpoint rules decide."""
        url = self._settings.endpoint_url
        return None if url is None else urlsplit(url.strip()).hostname

    def access_settings(self) -> dict[str, Any]:
        """Return the settings for region and identity. A lease store in DynamoDB uses them too."""
        names = ("region", "profile", "session", "credentials", "use_fips", "use_dualstack")
        return {name: getattr(self._settings, name) for name in names}

    def _open(self) -> Connection:
        if self._connection is None:
            raise Closed(
                "this Client is closed" if self._closed else "this Client is not started: use 'async with', or start()"
            )
        return self._connection

    async def put_records(
        self, stream: str, entries: Iterable[Entry | tuple[bytes, str | None] | tuple[bytes, str | None, str | None]]
    ) -> PutRecordsResponse:
        """Send up to 500 entries in one request. The service may refuse some: check the ``error_code`` of each
        result.
        """
        request = PutRecords(parse_stream(stream), check_entries(entries))
        return value_of(await self.api.put_records(request), "PutRecords")

    async def put_record(
        self,
        stream: str,
        data: bytes,
        key: str | None,
        *,
        explicit_hash_key: str | None = None,
        sequence_number_for_ordering: str | None = None,
    ) -> PutRecordResponse:
        """Send one record."""
        (entry,) = check_entries([(data, key, explicit_hash_key)])
        params = stream_members(parse_stream(stream)) | {"Data": entry.data}
        if key is not None:
            params["PartitionKey"] = key
        if explicit_hash_key is not None:
            params["ExplicitHashKey"] = explicit_hash_key
        if sequence_number_for_ordering is not None:
            params["SequenceNumberForOrdering"] = sequence_number_for_ordering
        return await self._typed_call("PutRecord", params, PutRecordResponse)

    async def get_shard_iterator(self, stream: str, shard_id: str, position: Position | str | datetime | float) -> str:
        """Return an iterator that starts at a ``Position``, ``"TRIM_HORIZON"``, ``"LATEST"`` or a time."""
        start = _start_position(position)
        request = GetShardIterator(parse_stream(stream), _text("shard_id", shard_id), start)
        return value_of(await self.api.get_shard_iterator(request), "GetShardIterator").shard_iterator

    async def get_records(
        self, iterator: str, *, limit: int | None = None, stream: str | None = None
    ) -> GetRecordsResponse:
        """Return the next page of a shard. ``stream``, an ARN, is needed only for cross-account access."""
        if not isinstance(iterator, str) or not 0 < len(iterator) <= _ITERATOR_MAX_LENGTH:
            raise UsageError("iterator must be a value from get_shard_iterator, or from the previous page")
        is_whole = limit is None or (isinstance(limit, int) and not isinstance(limit, bool))
        if not is_whole or (limit is not None and not 1 <= limit <= GET_RECORDS_MAX_RECORDS):
            raise UsageError(f"limit must be a whole number from 1 to {GET_RECORDS_MAX_RECORDS}, not {limit!r}")
        request = GetRecords(iterator, limit, None if stream is None else parse_stream(stream))
        return value_of(await self.api.get_records(request), "GetRecords")

    def subscribe_to_shard(
        self, consumer_arn: str, shard_id: str, position: Position | str | datetime | float
    ) -> Subscription:
        """Subscribe to a shard. Return an async iterator of events, which is also an async context manager.

        A subscription ends after at most 5 minutes. To continue, subscribe again and pass
        ``after_sequence_number(...)`` with the ``continuation_sequence_number`` of the last event.
        """
        parse_consumer_arn(consumer_arn)
        request = SubscribeToShard(consumer_arn, _text("shard_id", shard_id), _start_position(position))
        subscription = Subscription(self.api.subscribe_to_shard(request), self._subscriptions.discard)
        self._subscriptions.add(subscription)
        return subscription

    async def call(self, operation: str, params: Mapping[str, object] | None = None) -> dict[str, object]:
        """Call any operation by its AWS name, with AWS's member names. Blobs are bytes, and times are aware
        datetimes.
        """
        if not isinstance(operation, str) or not operation.isascii() or not operation.isalpha():
            raise UsageError(f"operation must be an AWS operation name such as 'DescribeLimits', not {operation!r}")
        if operation == "SubscribeToShard":
            raise UsageError("SubscribeToShard answers with a stream of events: use subscribe_to_shard")
        if params is not None and not isinstance(params, Mapping):
            raise UsageError(f"params must map member names to values, not {type(params).__name__}")
        try:
            return value_of(await self.api.call(operation, params or {}), operation)
        except BodyError as error:
            raise UsageError(f"{operation}: {error}") from None


def _start_position(position: object) -> Position:
    start = as_position(position)
    if not start.can_start:
        raise UsageError(f"{start} is the position of a finished shard: reading cannot start there")
    return start


def _text(name: str, value: object) -> str:
    if not isinstance(value, str) or not value:
        raise UsageError(f"{name} must be a str with at least one character, not {value!r}")
    return value
