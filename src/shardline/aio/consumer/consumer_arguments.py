"""Validates the arguments of a consumer.

An invalid argument raises a ``UsageError`` that names the argument, its value and the allowed values.
"""

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from datetime import datetime
from math import inf
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, cast

from shardline.adapters.aws.aws_service import AwsAccess
from shardline.adapters.leases.memory import MemoryLeases
from shardline.adapters.leases.store_urls import lease_store
from shardline.aio.client import Client, ConnectionArguments
from shardline.aio.consumer.batches import Batch
from shardline.aio.consumer.fan_out import FanOut
from shardline.aio.consumer.lifecycle_callbacks import OnAssigned, OnRevoked
from shardline.aio.consumer.worker_identity import new_worker_id
from shardline.aio.producer.validation import check_callable, check_timeout
from shardline.core.consumer.consumer_config import ConsumerConfig
from shardline.core.consumer.handler_checks import is_async_callable
from shardline.errors import UsageError
from shardline.events import ConsumerEvent, EventSink, Sink
from shardline.middleware import ConsumerMiddleware
from shardline.model.position import Position, PositionKind, as_position
from shardline.model.record import Record
from shardline.model.stream import StreamRef, parse_stream
from shardline.ports import LeaseStore, SharedLeaseStore

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    DeserializedT = TypeVar("DeserializedT", default=Any)
else:  # type checkers know the default of a type variable; at run time, only Python 3.13 and later do
    from typing import TypeVar

    DeserializedT = TypeVar("DeserializedT")

_STARTS: Final = frozenset({PositionKind.TRIM_HORIZON, PositionKind.LATEST, PositionKind.AT_TIMESTAMP})
_SHARED_WITH_DYNAMODB: Final = ("region", "profile", "session", "credentials", "use_fips", "use_dualstack")


Streams: TypeAlias = str | Iterable[str] | Mapping[str, Position | str | datetime | float]
"""The streams of a consumer: a name or ARN, several of them, or a mapping from each to its start position."""


class ConsumerArguments(ConnectionArguments, total=False):
    """The keyword arguments that the async and the blocking ``Consumer`` share."""

    group: str | None
    store: str | LeaseStore | None
    start: Position | str | datetime | float
    config: ConsumerConfig | None
    filter: Callable[[Record[bytes]], object] | None
    middleware: Iterable[ConsumerMiddleware]
    worker_id: str | None
    until: Literal["latest"] | None
    idle_timeout: float | None
    max_leases: int | None
    dedup: bool | None
    fan_out: str | FanOut | None
    sinks: Iterable[Sink | EventSink[ConsumerEvent]]
    on_assigned: OnAssigned | None
    on_revoked: OnRevoked | None
    on_shard_end: OnAssigned | None
    close_timeout: float | None


def check_settings(
    config: object, worker_id: str | None, max_leases: int | None, dedup: bool | None
) -> tuple[ConsumerConfig, str]:
    """Return the config, in which the other arguments override the settings, and the worker's name."""
    if config is None:
        config = ConsumerConfig()
    if not isinstance(config, ConsumerConfig):
        raise UsageError(f"config must be a ConsumerConfig, not {type(config).__name__}")
    if max_leases is not None:
        config = replace(config, max_leases=max_leases)
    if dedup is not None:
        config = replace(config, dedup=dedup)
    if worker_id is not None:
        config = replace(config, worker_id=worker_id)
    if config.keep_leases and config.worker_id is None:
        raise UsageError(
            "keep_leases needs a worker_id: a worker can only get its leases back if it restarts under the same name"
        )
    return config, config.worker_id or new_worker_id()


def check_start(start: object) -> Position:
    """Return the position where a new group starts. The position must exist in every shard."""
    position = as_position(start)
    if position.kind not in _STARTS:
        raise UsageError(
            f"start must be TRIM_HORIZON, LATEST or a time, because it applies to all shards, not {position}"
        )
    return position


def check_streams(streams: object, start: object) -> tuple[dict[str, tuple[StreamRef, Position]], bool]:
    """Return the streams by their names, each with the position where a new group starts, and whether the argument may
    name several streams.

    Raises:
        UsageError: there is no stream, or the name of a stream occurs twice.
    """
    default = check_start(start)
    if isinstance(streams, Mapping):
        starts = cast("Mapping[object, object]", streams)
        given = [(parse_stream(stream), check_start(position)) for stream, position in starts.items()]
    elif isinstance(streams, Iterable) and not isinstance(streams, str | bytes):
        given = [(parse_stream(stream), default) for stream in cast("Iterable[object]", streams)]
    else:
        stream = parse_stream(streams)
        return {stream.name: (stream, default)}, False
    if not given:
        raise UsageError("a Consumer needs at least one stream, not an empty list")
    found: dict[str, tuple[StreamRef, Position]] = {}
    for stream, position in given:
        check_new_stream(stream, found)
        found[stream.name] = stream, position
    return found, True


def check_new_stream(stream: StreamRef, known: Collection[str]) -> None:
    """Refuse a stream whose name the consumer knows already."""
    if stream.name in known:
        raise UsageError(
            f"this Consumer reads a stream named {stream.name!r} already, and tells its streams apart by their names: "
            "use another Consumer for a stream of the same name in another account or region"
        )


def aws_access(connection: Mapping[str, Any], client: Client) -> AwsAccess:
    """Return the AWS settings for a store in DynamoDB: the settings for Kinesis, except the endpoint."""
    settings = connection or client.access_settings()
    return AwsAccess(time.time, **{name: settings[name] for name in _SHARED_WITH_DYNAMODB if name in settings})


def check_batch(size: object, max_wait: object) -> float:
    """Check the two arguments of a batch, and return the maximum time that a batch waits to fill, in seconds."""
    if size is not None and (isinstance(size, bool) or not isinstance(size, int) or size < 1):
        raise UsageError(f"the size of a batch must be a whole number of records, 1 or more, or None, not {size!r}")
    wait = check_timeout("max_wait", max_wait)
    if wait is None or wait == inf:
        raise UsageError(
            f"max_wait must be a number of seconds, 0 or more, not {max_wait!r}: a batch cannot wait forever"
        )
    return wait


def check_done(done: object) -> None:
    if not isinstance(done, Record | Batch):
        raise UsageError(f"ack takes a Record or a Batch, not {type(done).__name__}")


def check_filter(record_filter: Callable[[Record[bytes]], object] | None) -> Callable[[Record[bytes]], object] | None:
    """Check and return the filter. The filter must be a plain function, because records are filtered while they are
    read.
    """
    check_callable("filter", record_filter)
    if record_filter is not None and is_async_callable(record_filter):
        raise UsageError("filter must be a plain function that returns whether to hand out a record, not an async one")
    return record_filter


def check_bounds(until: object, idle_timeout: object) -> tuple[bool, float | None]:
    """Return the bounds of a run: whether it ends at the newest record, and how many idle seconds end it."""
    if until not in (None, "latest"):
        raise UsageError(f"until must be 'latest' or None, not {until!r}")
    return until is not None, check_timeout("idle_timeout", idle_timeout)


def make_store(
    store: object,
    *,
    group: str | None,
    stream: str,
    worker_id: str,
    connection: Mapping[str, Any],
    client: Client,
    is_shared: bool = False,
) -> LeaseStore:
    """Return the lease store of one stream. With ``is_shared``, the consumer may read several streams.

    Without a group, leases are neither shared nor kept, so they are in memory.

    Raises:
        UsageError: there is a group without a store (a silent default would let two machines read everything twice), a
            store without a group, or an invalid store.
    """
    if group is None:
        if store is not None:
            raise UsageError("a store needs a group: pass group=, the name of the group whose leases it keeps")
        return MemoryLeases(f"reader {worker_id}", stream)
    if store is None:
        raise UsageError(
            "a group needs a store: 'sqlite:///leases.db' for the processes of one machine, 'redis://host', "
            "'postgresql://host/database' or 'dynamodb://table' for many machines, 'memory:' for this process alone"
        )
    if is_shared and not isinstance(store, str):
        if not isinstance(store, SharedLeaseStore):
            raise UsageError(
                "a consumer of several streams needs the URL of a store, or a store with for_stream, "
                f"not {type(store).__name__}"
            )
        store = store.for_stream(stream)
    found = lease_store(store, group=group, stream=stream, aws=aws_access(connection, client))
    # The rows of several streams in DynamoDB have another format than those of one stream.
    return found.for_stream(stream) if is_shared and isinstance(found, SharedLeaseStore) else found
