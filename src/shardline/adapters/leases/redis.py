"""A lease store in Redis or Valkey.

Each group on a stream has one hash. Each field is a shard, and its value is the JSON of ``lease_rows``. ``row_swaps``
decides what to write, and a script swaps each row atomically. The client is redis-py. Its blocking API runs in worker
threads, because its asyncio API does not support trio.

Invariants:

- Connections are opened with the store, so that no write has to connect.
- A fencing token is never less than the server's time, which the script reads.
- No key expires, and a server that may evict any key is refused.
- One call is one attempt. Every exception of redis-py becomes a ``Failure``.
- No password gets into a message or a repr.
"""

import re
import ssl
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, TypeVar, cast, final
from urllib.parse import parse_qsl, quote, unquote, urlsplit

import anyio
import anyio.to_thread
import redis
import redis.exceptions
from redis.backoff import NoBackoff
from redis.retry import Retry

from shardline.adapters.leases.lease_rows import split_at_counter
from shardline.adapters.leases.row_swaps import RowSwaps, Swap, SwapReply
from shardline.core.failures import Failure, FailureKind
from shardline.core.leases import LeaseOperation
from shardline.errors import UsageError
from shardline.model.lease import Lease
from shardline.ports import GroupOnStream, LeaseAnswer

PREFIX: Final = "shardline:leases:"
TIMEOUT: Final = 5.0
# The parameters of redis-py that are allowed in the URL. A password is not allowed, because it would end up in logs.
_QUERY: Final = re.compile(r"ssl_\w+|socket_timeout|socket_connect_timeout|client_name")
_THREADS: Final = 4
_WRITERS: Final = 3  # at most this many of the threads write, so that a thread is left for listings
_EXACT_MAX: Final = 2**53  # Lua's numbers are floats: larger integers are inexact

# KEYS: the hash. ARGV: the field, its expected value ("" for no value) and the new value ("" to remove the field).
# For a take, the new value is split at its counter: ARGV holds the part before it, the lowest permitted counter, and
# the part after it. The script inserts this counter, or the server's time in milliseconds if that is higher.
# The script returns {found value} if the value was not as expected, otherwise {}, or {"", counter} after a take.
# Servers before Redis 5 replicate the script itself, which reads the clock: replicate_commands() makes them replicate
# its writes instead.
_SWAP: Final = """
local found = redis.call('HGET', KEYS[1], ARGV[1]) or ''
if found ~= ARGV[2] then return {found} end
if ARGV[3] == '' then redis.call('HDEL', KEYS[1], ARGV[1]) return {} end
if #ARGV == 3 then redis.call('HSET', KEYS[1], ARGV[1], ARGV[3]) return {} end
if redis.replicate_commands then redis.replicate_commands() end
local time = redis.call('TIME')
local token = math.max(tonumber(ARGV[4]), time[1] * 1000 + math.floor(time[2] / 1000))
redis.call('HSET', KEYS[1], ARGV[1], ARGV[3] .. string.format('%.0f', token) .. ARGV[5])
return {'', string.format('%.0f', token)}
"""

# The first class that matches an exception decides. A request without a response may have been carried out.
_FAILURES: Final[tuple[tuple[type[Exception], FailureKind, str], ...]] = (
    (redis.exceptions.AuthenticationError, FailureKind.DENIED, "Denied"),
    (redis.exceptions.AuthorizationError, FailureKind.DENIED, "Denied"),
    (redis.exceptions.NoPermissionError, FailureKind.DENIED, "Denied"),
    (redis.exceptions.BusyLoadingError, FailureKind.TRANSIENT, "Loading"),
    (redis.exceptions.TimeoutError, FailureKind.TRANSIENT, "Timeout"),
    (redis.exceptions.ConnectionError, FailureKind.TRANSIENT, "ConnectionError"),
    (redis.exceptions.OutOfMemoryError, FailureKind.LIMIT_EXCEEDED, "OutOfMemory"),
    (redis.exceptions.ReadOnlyError, FailureKind.TRANSIENT, "ReadOnly"),
    (redis.exceptions.MovedError, FailureKind.INVALID, "RedisCluster"),
    (redis.exceptions.ClusterDownError, FailureKind.TRANSIENT, "ClusterDown"),
    (redis.exceptions.TryAgainError, FailureKind.TRANSIENT, "TryAgain"),
    (redis.exceptions.ResponseError, FailureKind.INVALID, "RedisError"),
    (redis.exceptions.RedisError, FailureKind.TRANSIENT, "BadAnswer"),
    (OSError, FailureKind.TRANSIENT, "ConnectionError"),
)
_UNANSWERED: Final = frozenset({"Timeout", "ConnectionError", "BadAnswer"})

T = TypeVar("T")


@final
class RedisLeases:
    """``LeaseStore`` in Redis.

    Args:
        url: ``redis://`` or ``rediss://``, with query parameters of redis-py.
        group: the consumer group.
        stream: the stream.
        limit: timeout in seconds, for connecting and for the response to a command.

    Raises:
        UsageError: redis-py cannot read the URL, or the URL contains a parameter that is not allowed.
    """

    scan_interval: float = 0.5
    checkpoint_interval: float = 1.0

    def __init__(self, url: str, group: str, stream: str, *, limit: float = TIMEOUT) -> None:
        self.group: Final = group
        self.stream: Final = stream
        self._hash = f"{PREFIX}{quote(group, safe='')}:{quote(stream, safe='')}"
        parts = urlsplit(url)
        self._host = parts.netloc.rpartition("@")[2]
        unknown = [name for name, _ in parse_qsl(parts.query) if not _QUERY.fullmatch(name)]
        if unknown:
            raise UsageError(
                f"a Redis store's URL must not have the parameter {unknown[0]!r}; allowed are: ssl_..., "
                "socket_timeout, socket_connect_timeout, client_name"
            )
        connect: Callable[..., Any] = cast("Any", redis.Redis).from_url
        try:
            self._client = connect(
                url,
                socket_timeout=limit,
                socket_connect_timeout=limit,
                retry=Retry(NoBackoff(), 0),
                protocol=2,  # every server since Redis 2.6 and every Valkey supports it
                health_check_interval=0,  # redis-py notices closed connections without health checks
            )
        except (ValueError, TypeError) as error:
            raise UsageError(f"redis-py cannot read the store's URL at {self._host}: {error}") from None
        # This limiter is our own: all of anyio's default threads may be occupied by callers that wait for this store.
        self._threads = anyio.CapacityLimiter(_THREADS)
        self._rows = RowSwaps(f"{self._hash!r} at {self._host}", self._swap, self._in_thread, writers=_WRITERS)

    async def open(self) -> Failure | None:
        return await self._in_thread(self._open)

    async def list_leases(self) -> list[Lease] | Failure:
        return await self._in_thread(lambda: self._rows.list_leases(self._read))

    async def apply(self, operation: LeaseOperation) -> LeaseAnswer:
        return (await self.apply_many([operation]))[0]

    async def apply_many(self, operations: Sequence[LeaseOperation]) -> list[LeaseAnswer]:
        return await self._rows.apply_many(operations)

    async def list_groups(self) -> list[GroupOnStream] | Failure:
        """Return every group and stream with leases in this database."""
        return await self._in_thread(self._groups)

    async def close(self) -> None:
        with anyio.CancelScope(shield=True):
            await self._in_thread(self._client.close)

    def __repr__(self) -> str:
        return f"<RedisLeases of group {self.group!r} on {self.stream!r} at {self._host}>"

    async def _in_thread(self, work: Callable[[], T | Failure]) -> T | Failure:
        def guarded() -> T | Failure:
            try:
                return work()
            except (redis.exceptions.RedisError, OSError) as error:
                return self._failure(error)

        return await anyio.to_thread.run_sync(guarded, limiter=self._threads)

    # ---- called in a worker thread

    def _open(self) -> Failure | None:
        self._client.ping()
        self._connect()
        try:
            memory: dict[str, object] = self._client.info("memory")
        except redis.exceptions.ResponseError:
            return None  # this user may not run INFO, so the policy stays unknown
        policy = str(memory.get("maxmemory_policy", ""))
        if memory.get("maxmemory") and policy.startswith("allkeys-"):
            message = (
                f"{self._host} evicts any key, even leases, when its memory is full (maxmemory-policy {policy}): "
                "use a server with noeviction or a volatile-* policy"
            )
            return Failure(FailureKind.INVALID, "EvictingServer", message, maybe_received=False)
        return None

    def _connect(self) -> None:
        """Open one connection per thread, so that no later call has to connect."""
        pool, connections = self._client.connection_pool, list[Any]()
        try:
            connections.extend(pool.get_connection() for _ in range(_THREADS))
        finally:
            for connection in connections:
                pool.release(connection)

    def _read(self) -> Iterable[bytes]:
        return cast("Iterable[bytes]", self._client.hvals(self._hash))

    def _swap(self, swaps: Sequence[Swap]) -> list[SwapReply | Failure]:
        pipeline = self._client.pipeline(transaction=False)
        for swap in swaps:
            if swap.row is None:
                pipeline.hget(self._hash, swap.shard_id)
            else:
                pipeline.eval(
                    _SWAP, 1, self._hash, swap.shard_id, swap.expected, *_script_arguments(swap.row, swap.floor)
                )
        replies: list[Any] = pipeline.execute(raise_on_error=False)
        return [self._reply(swap, reply) for swap, reply in zip(swaps, replies, strict=True)]

    def _reply(self, swap: Swap, reply: Any) -> SwapReply | Failure:
        if isinstance(reply, Exception):
            return self._failure(reply)
        if swap.row is None:
            return SwapReply(reply or b"", is_swapped=False)
        if len(reply) == 1:
            return SwapReply(reply[0], is_swapped=False)
        return SwapReply(reply[1].join(split_at_counter(swap.row)) if reply else swap.row, is_swapped=True)

    def _groups(self) -> list[GroupOnStream]:
        keys = cast("Iterable[bytes]", self._client.scan_iter(f"{PREFIX}*", count=1_000))
        pairs = {tuple(key.decode().removeprefix(PREFIX).split(":")) for key in keys}
        return sorted(GroupOnStream(*map(unquote, pair)) for pair in pairs if len(pair) == 2)  # noqa: PLR2004 - a pair

    # ---- failures

    def _failure(self, error: Exception) -> Failure:
        if isinstance(error.__cause__ or error.__context__, ssl.SSLCertVerificationError):
            kind, code = FailureKind.UNTRUSTED, "CertificateError"
        else:
            kind, code = next((kind, code) for cause, kind, code in _FAILURES if isinstance(error, cause))
        words = " ".join(str(error).split()) or type(error).__name__
        hint = ": a Redis Cluster is not supported" if code == "RedisCluster" else ""
        return Failure(kind, code, f"{self._host}: {words}{hint}", maybe_received=code in _UNANSWERED)


def _script_arguments(row: bytes, floor: int) -> list[bytes | int]:
    """Return the new row as arguments of the script. If there is a floor, the row is split at its counter."""
    if not floor or floor >= _EXACT_MAX:
        return [row]
    before, after = split_at_counter(row)
    return [before, floor, after]
