"""A lease store in Redis or Valkey.

Each group on a stream has one hash. Each field is a shard, and its value is the JSON of ``lease_rows``. The client is
redis-py. Its blocking API runs in worker threads, because its asyncio API does not support trio.

Invariants:

- A write contains the bytes that it replaces, and a script compares and swaps them atomically. So a decision about one
  version of a row never overwrites another version. If the row has changed, the operation is decided again on the
  version that the script found. Operations that arrive together are sent together, and each is swapped separately.
- A write takes one round trip: it is decided on the cached row, which the script verifies. It takes a second round trip
  only if another worker has changed the row since. No operation is refused because of a cached row. Operations that
  wait for a connection are sent together on the next free one, so that no operation waits long on a slow network.
  Connections are opened with the store.
- A fencing token is never less than the server's time, which the script reads.
- No key expires, and a server that may evict any key is refused.
- One call is one attempt. Every exception of redis-py becomes a ``Failure``.
- No password gets into a message or a repr.
"""

import re
import ssl
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple, TypeVar, cast, final
from urllib.parse import parse_qsl, quote, unquote, urlsplit

import anyio
import anyio.to_thread
import redis
import redis.exceptions
from redis.backoff import NoBackoff
from redis.retry import Retry

from shardline.adapters.leases.lease_rows import RowError, decode_row, decode_rows, encode_row, split_at_counter
from shardline.core.failures import Failure, FailureKind
from shardline.core.leases import LeaseOperation, Refused, TakeLease, apply
from shardline.errors import UsageError
from shardline.model.lease import Lease
from shardline.ports import GroupOnStream, LeaseAnswer

PREFIX: Final = "shardline:leases:"
TIMEOUT: Final = 5.0
# The parameters of redis-py that are allowed in the URL. A password is not allowed, because it would end up in logs.
_QUERY: Final = re.compile(r"ssl_\w+|socket_timeout|socket_connect_timeout|client_name")
_SWAPS_MAX: Final = 20
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


class _Seen(NamedTuple):
    """A cached row."""

    row: bytes
    writes: int
    """The value of ``_writes`` when the row was cached. A listing that began at a lower value is older than the row."""


class _Attempt(NamedTuple):
    """The row that an operation is decided on."""

    previous: bytes
    is_current: bool = False
    """Whether the server returned the row during this call. If not, the row is from the cache."""


class _PendingWrite:
    """The operations of one ``apply_many`` and their answers."""

    def __init__(self, operations: Sequence[LeaseOperation]) -> None:
        self.operations = operations
        self.answers: list[LeaseAnswer] | None = None
        self.settled = anyio.Event()
        """Set by the task that wrote these operations together with its own, or that failed to write them."""
        self.is_abandoned = False
        """Whether the caller no longer waits."""


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
        self._known: dict[bytes, Lease] = {}  # the leases of the last listing, by row
        self._seen: dict[str, _Seen] = {}  # the last row of each shard that was read or written
        self._writes = 0
        # These limiters are our own: all of anyio's default threads may be occupied by callers that wait for this
        # store.
        self._threads = anyio.CapacityLimiter(_THREADS)
        self._writers = anyio.CapacityLimiter(_WRITERS)
        self._waiting: list[_PendingWrite] = []  # in the order of their calls

    async def open(self) -> Failure | None:
        return await self._in_thread(self._open)

    async def list_leases(self) -> list[Lease] | Failure:
        return await self._in_thread(self._list)

    async def apply(self, operation: LeaseOperation) -> LeaseAnswer:
        return (await self.apply_many([operation]))[0]

    async def apply_many(self, operations: Sequence[LeaseOperation]) -> list[LeaseAnswer]:
        pending = _PendingWrite(operations)
        self._waiting.append(pending)
        try:
            while pending.answers is None:
                if pending in self._waiting:
                    await self._write_waiting(pending)
                else:
                    await pending.settled.wait()  # another task writes these operations together with its own
        finally:
            pending.is_abandoned = True
            if pending in self._waiting:  # the caller was cancelled: no other task may write its operations
                self._waiting.remove(pending)
        return pending.answers

    async def _write_waiting(self, mine: _PendingWrite) -> None:
        """Write all pending operations, unless another task has written ``mine`` in the meantime."""
        async with self._writers:
            if mine not in self._waiting:
                return
            batch, self._waiting = self._waiting, []
            operations = [operation for pending in batch for operation in pending.operations]
            for pending in batch:
                pending.settled = anyio.Event()
            try:
                answers = await self._in_thread(lambda: self._apply_all(operations))
                remaining = iter([answers] * len(operations) if isinstance(answers, Failure) else answers)
                for pending in batch:
                    pending.answers = [next(remaining) for _ in pending.operations]
            finally:
                # If this task was cancelled before the write began, there are no answers, and another task writes the
                # operations.
                self._waiting[:0] = [
                    pending for pending in batch if pending.answers is None and not pending.is_abandoned
                ]
                for pending in batch:
                    pending.settled.set()

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
            except RowError as error:
                return self._unreadable(error)

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

    def _list(self) -> list[Lease]:
        writes = self._writes
        rows = cast("Iterable[bytes]", self._client.hvals(self._hash))
        self._known = decode_rows(rows, self._known)
        for row, lease in self._known.items():
            seen = self._seen.get(lease.shard_id)
            if seen is None or seen.writes <= writes:  # otherwise this store wrote the row after the listing began
                self._seen[lease.shard_id] = _Seen(row, writes)
        return sorted(self._known.values(), key=lambda lease: lease.shard_id)

    def _apply_all(self, operations: Sequence[LeaseOperation]) -> list[LeaseAnswer]:
        answers: dict[int, LeaseAnswer] = {}
        left = {place: _Attempt(self._cached(operation.shard_id)) for place, operation in enumerate(operations)}
        for _ in range(_SWAPS_MAX):
            left = self._send(operations, left, answers)
            if not left:
                break
        for place in left:
            shard_id = operations[place].shard_id
            message = f"{self._host}: other workers changed the lease {shard_id} {_SWAPS_MAX} times during one write"
            answers[place] = Failure(FailureKind.TRANSIENT, "Contended", message, maybe_received=False)
        return [answers[place] for place in range(len(operations))]

    def _send(
        self, operations: Sequence[LeaseOperation], left: dict[int, _Attempt], answers: dict[int, LeaseAnswer]
    ) -> dict[int, _Attempt]:
        """Evaluate each operation against the row in its attempt, and write the result.

        Add the final answers to ``answers``. Return new attempts for the operations whose row has changed.
        """
        pipeline = self._client.pipeline(transaction=False)
        sent: dict[int, tuple[LeaseAnswer, bytes]] = {}  # the answer if the row is unchanged, and the new row
        for place, (previous, is_current) in left.items():
            operation = operations[place]
            answer = self._decide(operation, previous)
            if not isinstance(answer, Refused | Failure):
                row = b"" if answer is None else encode_row(answer, previous or None)
                pipeline.eval(_SWAP, 1, self._hash, operation.shard_id, previous, *_script_arguments(operation, row))
                sent[place] = answer, row
            elif is_current:
                answers[place] = answer
            else:
                pipeline.hget(self._hash, operation.shard_id)
                sent[place] = answer, previous
        replies: list[Any] = pipeline.execute(raise_on_error=False)
        again: dict[int, _Attempt] = {}
        for (place, (answer, row)), reply in zip(sent.items(), replies, strict=True):
            shard_id = operations[place].shard_id
            if isinstance(reply, Exception):
                answers[place] = self._failure(reply)
            elif isinstance(answer, Refused | Failure):
                again[place] = self._retry_on(shard_id, reply or b"")
            elif len(reply) == 1:
                again[place] = self._retry_on(shard_id, reply[0])
            else:
                answers[place] = self._written(shard_id, answer, row, reply)
        return again

    def _decide(self, operation: LeaseOperation, row: bytes) -> LeaseAnswer:
        try:
            return apply(decode_row(row) if row else None, operation)
        except RowError as error:
            return self._unreadable(error)

    def _cached(self, shard_id: str) -> bytes:
        seen = self._seen.get(shard_id)
        return b"" if seen is None else seen.row

    def _retry_on(self, shard_id: str, row: bytes) -> _Attempt:
        self._cache(shard_id, row)
        return _Attempt(row, is_current=True)

    def _written(self, shard_id: str, answer: LeaseAnswer, row: bytes, reply: list[bytes]) -> LeaseAnswer:
        if reply and isinstance(answer, Lease):
            answer = replace(answer, counter=int(reply[1]))
            row = reply[1].join(split_at_counter(row))
        self._cache(shard_id, row)
        return answer

    def _cache(self, shard_id: str, row: bytes) -> None:
        self._writes += 1
        self._seen[shard_id] = _Seen(row, self._writes)

    def _groups(self) -> list[GroupOnStream]:
        keys = cast("Iterable[bytes]", self._client.scan_iter(f"{PREFIX}*", count=1_000))
        pairs = {tuple(key.decode().removeprefix(PREFIX).split(":")) for key in keys}
        return sorted(GroupOnStream(*map(unquote, pair)) for pair in pairs if len(pair) == 2)  # noqa: PLR2004 - a pair

    # ---- failures

    def _unreadable(self, error: RowError) -> Failure:
        message = f"a row of {self._hash!r} at {self._host} cannot be read: {error}"
        return Failure(FailureKind.INVALID, "UnreadableRow", message, maybe_received=False)

    def _failure(self, error: Exception) -> Failure:
        if isinstance(error.__cause__ or error.__context__, ssl.SSLCertVerificationError):
            kind, code = FailureKind.UNTRUSTED, "CertificateError"
        else:
            kind, code = next((kind, code) for cause, kind, code in _FAILURES if isinstance(error, cause))
        words = " ".join(str(error).split()) or type(error).__name__
        hint = ": a Redis Cluster is not supported" if code == "RedisCluster" else ""
        return Failure(kind, code, f"{self._host}: {words}{hint}", maybe_received=code in _UNANSWERED)


def _script_arguments(operation: LeaseOperation, row: bytes) -> list[bytes | int]:
    """Return the new row as arguments of the script. For a take with a floor, the row is split at its counter."""
    if not isinstance(operation, TakeLease) or not operation.floor or operation.token >= _EXACT_MAX:
        return [row]
    before, after = split_at_counter(row)
    return [before, operation.token, after]
