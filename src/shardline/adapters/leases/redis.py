"""A lease store in Redis or Valkey.

Each group on a stream has one hash, on one server (``redis_servers``). Each field is a shard, and its value is the JSON
of ``lease_rows``. ``row_swaps`` decides what to write, and a script swaps each row atomically. The client is redis-py.
The blocking API of redis-py runs in worker threads, because the asyncio API does not support trio.

Invariants:

- Connections are opened with the store, so that no write has to connect.
- A fencing token is never less than the server's time, which the script reads.
- No key expires, and a server that may evict any key is refused.
- One call is one attempt. Every exception from redis-py becomes a ``Failure``.
- No password gets into a message or a repr.
"""

import ssl
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, TypeVar, cast, final
from urllib.parse import quote, unquote

import anyio
import anyio.to_thread
import redis
import redis.exceptions

from shardline.adapters.leases.lease_rows import split_at_counter
from shardline.adapters.leases.redis_servers import Command, parse_address, redis_servers
from shardline.adapters.leases.row_swaps import RowSwaps, Swap, SwapReply
from shardline.core.error_codes import Failure, FailureKind
from shardline.core.leases import LeaseOperation
from shardline.errors import UsageError
from shardline.model.lease import Lease
from shardline.ports import GroupOnStream, LeaseAnswer

PREFIX: Final = "shardline:leases:"
TIMEOUT: Final = 5.0
_THREADS: Final = 4
_WRITERS: Final = 3  # at most this many of the threads write, so that a thread is left for listings
_EXACT_MAX: Final = 2**53  # Lua's numbers are floats: larger integers are inexact

# KEYS: the hash. ARGV: the field, its expected value ("" for no value) and the new value ("" to remove the field).
# For a take, the new value is split at its counter: ARGV holds the part before it, the lowest permitted counter, and
# the part after it. The script inserts this counter, or the server's time in milliseconds if that is higher.
# The script returns {found value} if the value was not as expected, {"", counter} after a take, and {} after any other
# write. Servers before Redis 5 replicate the script itself, which reads the clock: replicate_commands() makes them
# replicate its writes instead.
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

# The failure of an exception is that of the first class that matches. A request without a response may have been
# carried out.
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
    (redis.exceptions.AskError, FailureKind.TRANSIENT, "SlotIsMoving"),
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
        url: ``redis://``, ``redis+sentinel://`` or ``redis+cluster://``, or the same with ``rediss`` for TLS.
        group: the consumer group.
        stream: the stream.
        limit: how many seconds connecting may take, and the response to a command.

    Raises:
        UsageError: redis-py cannot read the URL, or the URL contains a parameter that is not allowed.
    """

    scan_interval: float = 0.5
    checkpoint_interval: float = 1.0

    def __init__(self, url: str, group: str, stream: str, *, limit: float = TIMEOUT) -> None:
        self.group: Final = group
        self.stream: Final = stream
        self._hash = f"{PREFIX}{quote(group, safe='')}:{quote(stream, safe='')}"
        address = parse_address(url)
        if address is None:
            raise UsageError("the store's URL names no Redis database")
        self._host = address.shown
        self._servers = redis_servers(address, self._hash, limit)
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
            await self._in_thread(self._servers.close)

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
        client = self._servers.client()
        client.ping()
        self._connect(client)
        try:
            memory: dict[str, object] = client.info("memory")
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

    def _connect(self, client: Any) -> None:
        """Open one connection per thread, so that no later call has to connect."""
        pool, connections = client.connection_pool, list[Any]()
        try:
            connections.extend(pool.get_connection() for _ in range(_THREADS))
        finally:
            for connection in connections:
                pool.release(connection)

    def _read(self) -> Iterable[bytes]:
        (rows,) = self._servers.send([("HVALS", self._hash)])
        if isinstance(rows, Exception):
            raise rows
        return cast("Iterable[bytes]", rows)

    def _swap(self, swaps: Sequence[Swap]) -> list[SwapReply | Failure]:
        replies = self._servers.send([self._command(swap) for swap in swaps])
        return [self._reply(swap, reply) for swap, reply in zip(swaps, replies, strict=True)]

    def _command(self, swap: Swap) -> Command:
        if swap.row is None:
            return ("HGET", self._hash, swap.shard_id)
        arguments = swap.shard_id, swap.expected, *_script_arguments(swap.row, swap.floor)
        return ("EVAL", _SWAP, 1, self._hash, *arguments)

    def _reply(self, swap: Swap, reply: Any) -> SwapReply | Failure:
        if isinstance(reply, Exception):
            return self._failure(reply)
        if swap.row is None:
            return SwapReply(reply or b"", is_swapped=False)
        if len(reply) == 1:
            return SwapReply(reply[0], is_swapped=False)
        return SwapReply(reply[1].join(split_at_counter(swap.row)) if reply else swap.row, is_swapped=True)

    def _groups(self) -> list[GroupOnStream]:
        keys = self._servers.scan(f"{PREFIX}*")
        pairs = {tuple(key.decode().removeprefix(PREFIX).split(":")) for key in keys}
        return sorted(GroupOnStream(*map(unquote, pair)) for pair in pairs if len(pair) == 2)  # noqa: PLR2004 - a pair

    # ---- failures

    def _failure(self, error: Exception) -> Failure:
        if isinstance(error.__cause__ or error.__context__, ssl.SSLCertVerificationError):
            kind, code = FailureKind.UNTRUSTED, "CertificateError"
        else:
            kind, code = next((kind, code) for cause, kind, code in _FAILURES if isinstance(error, cause))
        words = " ".join(str(error).split()) or type(error).__name__
        hint = ": this is a node of a cluster: use redis+cluster://" if code == "RedisCluster" else ""
        return Failure(kind, code, f"{self._host}: {words}{hint}", maybe_received=code in _UNANSWERED)


def _script_arguments(row: bytes, floor: int) -> list[bytes | int]:
    """Return the new row as arguments of the script. If there is a floor, the row is split at its counter."""
    if not floor or floor >= _EXACT_MAX:
        return [row]
    before, after = split_at_counter(row)
    return [before, floor, after]
