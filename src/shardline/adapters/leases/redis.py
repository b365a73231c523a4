"""How do workers of a fleet share leases through Redis (or Valkey)?

In one hash per group and stream: a field a shard, whose value is the JSON of ``rows``. The maintained client, redis-py,
does the talking; its blocking half in worker threads, for its asyncio half knows no trio.

Invariants:

- D1: a write says which bytes it replaces, and a script compares and swaps them in one step: what was decided on one
  row is never written over another. A swap that comes too late decides again on what it found. Operations that come
  together travel together, and each is swapped by itself.
- D2: nothing expires, and a server that may evict any key is refused.
- D3: one call is one attempt; whatever redis-py raises is a ``Failure``.
- D4: no password gets into a message or a repr.
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

from shardline.adapters.leases.rows import RowError, decode_row, decode_rows, encode_row
from shardline.core.failures import Failure, FailureKind
from shardline.core.leases import LeaseOperation, Refused, apply
from shardline.errors import UsageError
from shardline.model.lease import Lease
from shardline.ports import GroupOnStream, LeaseAnswer

PREFIX: Final = "shardline:leases:"
TIMEOUT: Final = 5.0
# Of redis-py's own parameters those that say how to connect; a password in a query would end up in logs.
_QUERY: Final = re.compile(r"ssl_\w+|socket_timeout|socket_connect_timeout|client_name")
_SWAPS: Final = 20
_THREADS: Final = 4

# KEYS: the hash. ARGV: the field, the value it must have ("" for none), the new value ("" to remove it).
# Answers nothing after the swap, and else what it found.
_SWAP: Final = """
local found = redis.call('HGET', KEYS[1], ARGV[1]) or ''
if found ~= ARGV[2] then return {found} end
if ARGV[3] == '' then redis.call('HDEL', KEYS[1], ARGV[1]) else redis.call('HSET', KEYS[1], ARGV[1], ARGV[3]) end
return {}
"""

# The first that fits. Those without an answer may have been carried out.
_WAYS: Final[tuple[tuple[type[Exception], FailureKind, str], ...]] = (
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
        url: ``redis://`` or ``rediss://``, with redis-py's own query parameters.
        group: the consumer group.
        stream: the stream.
        limit: seconds until a connection must stand, and until a command must be answered.

    Raises:
        UsageError: redis-py cannot read the URL.
    """

    scan_interval: float = 0.5
    checkpoint_interval: float = 1.0

    def __init__(self, url: str, group: str, stream: str, *, limit: float = TIMEOUT) -> None:
        self._key = (group, stream)
        self._hash = f"{PREFIX}{quote(group, safe='')}:{quote(stream, safe='')}"
        parts = urlsplit(url)
        self._host = parts.netloc.rpartition("@")[2]  # D4
        unknown = [name for name, _ in parse_qsl(parts.query) if not _QUERY.fullmatch(name)]
        if unknown:
            raise UsageError(f"a store in Redis takes no {unknown[0]!r} in its URL")
        connect: Callable[..., Any] = cast("Any", redis.Redis).from_url
        try:
            self._client = connect(
                url,
                socket_timeout=limit,
                socket_connect_timeout=limit,
                retry=Retry(NoBackoff(), 0),  # D3
                protocol=2,  # which every server since Redis 2.6 speaks, and every Valkey
                health_check_interval=15,
            )
        except (ValueError, TypeError) as error:
            raise UsageError(f"redis-py cannot read the store's URL at {self._host}: {error}") from None
        self._known: dict[bytes, Lease] = {}  # what the last listing found
        # Threads of our own: anyio's may all be taken by callers that wait for us.
        self._threads = anyio.CapacityLimiter(_THREADS)

    @property
    def group(self) -> str:
        return self._key[0]

    @property
    def stream(self) -> str:
        return self._key[1]

    async def open(self) -> Failure | None:
        return await self._in_thread(self._open)

    async def list_leases(self) -> list[Lease] | Failure:
        return await self._in_thread(self._list)

    async def apply(self, operation: LeaseOperation) -> LeaseAnswer:
        return (await self.apply_many([operation]))[0]

    async def apply_many(self, operations: Sequence[LeaseOperation]) -> list[LeaseAnswer]:
        answers = await self._in_thread(lambda: self._apply_all(operations))
        return [answers] * len(operations) if isinstance(answers, Failure) else answers

    async def list_groups(self) -> list[GroupOnStream] | Failure:
        """Every group and stream with leases in this database."""
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

    # ---- in the thread

    def _open(self) -> Failure | None:
        self._client.ping()
        try:
            memory: dict[str, object] = self._client.info("memory")
        except redis.exceptions.ResponseError:
            return None  # who may not ask cannot know
        policy = str(memory.get("maxmemory_policy", ""))
        if memory.get("maxmemory") and policy.startswith("allkeys-"):  # D2
            told = (
                f"{self._host} evicts any key when its memory is full (maxmemory-policy {policy}), leases too: "
                "use a server with noeviction or a volatile-* policy"
            )
            return Failure(FailureKind.INVALID, "EvictingServer", told, maybe_received=False)
        return None

    def _list(self) -> list[Lease]:
        rows = cast("Iterable[bytes]", self._client.hvals(self._hash))
        self._known = decode_rows(rows, self._known)
        return sorted(self._known.values(), key=lambda lease: lease.shard_id)

    def _apply_all(self, operations: Sequence[LeaseOperation]) -> list[LeaseAnswer]:
        """D1."""
        answers: dict[int, LeaseAnswer] = {}
        fields = [operation.shard_id for operation in operations]
        rows = cast("list[bytes | None]", self._client.hmget(self._hash, fields))
        found = {place: row or b"" for place, row in enumerate(rows)}
        for _ in range(_SWAPS):
            found = self._swap(operations, found, answers)
            if not found:
                break
        for place in found:
            crowd = f"{self._host}: others changed the lease {fields[place]} {_SWAPS} times meanwhile"
            answers[place] = Failure(FailureKind.TRANSIENT, "Contended", crowd, maybe_received=False)
        return [answers[place] for place in range(len(operations))]

    def _swap(
        self, operations: Sequence[LeaseOperation], found: dict[int, bytes], answers: dict[int, LeaseAnswer]
    ) -> dict[int, bytes]:
        """Decide on what was ``found`` of each, by its place, and write it. Returns what those found that came late."""
        pipeline = self._client.pipeline(transaction=False)
        sent: list[int] = []
        for place, previous in found.items():
            operation = operations[place]
            try:
                answer = answers[place] = apply(decode_row(previous) if previous else None, operation)
            except RowError as error:
                answers[place] = self._unreadable(error)
                continue
            if not isinstance(answer, Refused):
                row = b"" if answer is None else encode_row(answer, previous or None)
                pipeline.eval(_SWAP, 1, self._hash, operation.shard_id, previous, row)
                sent.append(place)
        late: dict[int, bytes] = {}
        for place, told in zip(sent, pipeline.execute(raise_on_error=False), strict=True):
            if isinstance(told, Exception):
                answers[place] = self._failure(told)
            elif told:
                late[place] = told[0]
        return late

    def _groups(self) -> list[GroupOnStream]:
        keys = cast("Iterable[bytes]", self._client.scan_iter(f"{PREFIX}*", count=1_000))
        named = {tuple(key.decode().removeprefix(PREFIX).split(":")) for key in keys}
        return sorted(GroupOnStream(*map(unquote, pair)) for pair in named if len(pair) == 2)  # noqa: PLR2004 - a pair

    # ---- failures

    def _unreadable(self, error: RowError) -> Failure:
        told = f"a row of {self._hash!r} at {self._host} cannot be read: {error}"
        return Failure(FailureKind.INVALID, "UnreadableRow", told, maybe_received=False)

    def _failure(self, error: Exception) -> Failure:
        """D3."""
        if isinstance(error.__cause__ or error.__context__, ssl.SSLCertVerificationError):
            kind, code = FailureKind.UNTRUSTED, "CertificateError"
        else:
            kind, code = next((kind, code) for cause, kind, code in _WAYS if isinstance(error, cause))
        words = " ".join(str(error).split()) or type(error).__name__
        hint = ": a Redis Cluster is not supported" if code == "RedisCluster" else ""
        return Failure(kind, code, f"{self._host}: {words}{hint}", maybe_received=code in _UNANSWERED)
