"""How do workers of a fleet share leases through Redis (or Valkey)?

In one hash per group and stream: a field a shard, whose value is the JSON of ``rows``. The maintained client, redis-py,
does the talking; its blocking half in worker threads, for its asyncio half knows no trio.

Invariants:

- A write says which bytes it replaces, and a script compares and swaps them in one step: what was decided on one
  row is never written over another. A swap that comes too late decides again on what it found. Operations that come
  together travel together, and each is swapped by itself.
- A write takes one round trip: it is decided on the row that we last saw, which the script verifies. Only a row
  that another has changed since costs a second one. Nothing is refused because of what we remember. Operations that
  wait for a connection travel together on the next one, so that a slow network holds up none for long. Connections are
  made when the store is opened.
- A fencing token is no less than the server's own time, which the script reads.
- Nothing expires, and a server that may evict any key is refused.
- One call is one attempt; whatever redis-py raises is a ``Failure``.
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
# Of redis-py's own parameters those that say how to connect; a password in a query would end up in logs.
_QUERY: Final = re.compile(r"ssl_\w+|socket_timeout|socket_connect_timeout|client_name")
_SWAPS: Final = 20
_THREADS: Final = 4
_WRITERS: Final = 3  # of the threads: one is left for listings
_EXACT: Final = 2**53  # up to here a number of Lua is a whole one

# KEYS: the hash. ARGV: the field, the value it must have ("" for none), the new value ("" to remove it), for a take cut
# at its counter: then the least counter and the rest follow, and the server's time may raise it.
# Answers the value that it found instead; or nothing after the swap, or the counter that it put in.
# A server before Redis 5 replicates what a script wrote, instead of the script with its clock, if it is asked to.
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


class _Seen(NamedTuple):
    row: bytes
    writes: int
    """How many writes there were by then: a listing that was begun before knows less."""


class _Attempt(NamedTuple):
    """One operation on its way, and the row that it is decided on."""

    previous: bytes
    is_current: bool = False
    """Whether the server sent the row during this call, and not earlier."""


class _Call:
    """Operations that came together, and what became of them."""

    def __init__(self, operations: Sequence[LeaseOperation]) -> None:
        self.operations = operations
        self.answers: list[LeaseAnswer] | None = None
        self.settled = anyio.Event()
        """Set when whoever took it along has written it, or could not."""
        self.is_abandoned = False
        """Whether its caller has gone."""


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
        self.group: Final = group
        self.stream: Final = stream
        self._hash = f"{PREFIX}{quote(group, safe='')}:{quote(stream, safe='')}"
        parts = urlsplit(url)
        self._host = parts.netloc.rpartition("@")[2]
        unknown = [name for name, _ in parse_qsl(parts.query) if not _QUERY.fullmatch(name)]
        if unknown:
            raise UsageError(f"a store in Redis takes no {unknown[0]!r} in its URL")
        connect: Callable[..., Any] = cast("Any", redis.Redis).from_url
        try:
            self._client = connect(
                url,
                socket_timeout=limit,
                socket_connect_timeout=limit,
                retry=Retry(NoBackoff(), 0),
                protocol=2,  # which every server since Redis 2.6 speaks, and every Valkey
                health_check_interval=0,  # Redis-py notices closed connections without asking
            )
        except (ValueError, TypeError) as error:
            raise UsageError(f"redis-py cannot read the store's URL at {self._host}: {error}") from None
        self._known: dict[bytes, Lease] = {}  # what the last listing found
        self._seen: dict[str, _Seen] = {}  # each shard's row as it was last seen or written
        self._writes = 0
        # Threads of our own: anyio's may all be taken by callers that wait for us.
        self._threads = anyio.CapacityLimiter(_THREADS)
        self._writers = anyio.CapacityLimiter(_WRITERS)
        self._waiting: list[_Call] = []  # for a writer

    async def open(self) -> Failure | None:
        return await self._in_thread(self._open)

    async def list_leases(self) -> list[Lease] | Failure:
        return await self._in_thread(self._list)

    async def apply(self, operation: LeaseOperation) -> LeaseAnswer:
        return (await self.apply_many([operation]))[0]

    async def apply_many(self, operations: Sequence[LeaseOperation]) -> list[LeaseAnswer]:
        call = _Call(operations)
        self._waiting.append(call)
        try:
            while call.answers is None:
                if call in self._waiting:
                    await self._write_waiting(call)
                else:
                    await call.settled.wait()  # another took it along
        finally:
            call.is_abandoned = True
            if call in self._waiting:  # it was cancelled, and is not to be written by another
                self._waiting.remove(call)
        return call.answers

    async def _write_waiting(self, mine: _Call) -> None:
        """Write all that waits, unless another took ``mine`` along before us."""
        async with self._writers:
            if mine not in self._waiting:
                return
            calls, self._waiting = self._waiting, []
            operations = [operation for call in calls for operation in call.operations]
            for call in calls:
                call.settled = anyio.Event()
            try:
                answers = await self._in_thread(lambda: self._apply_all(operations))
                left = iter([answers] * len(operations) if isinstance(answers, Failure) else answers)
                for call in calls:
                    call.answers = [next(left) for _ in call.operations]
            finally:
                # Those without an answer, because we were cancelled before it began, are written by another.
                self._waiting[:0] = [call for call in calls if call.answers is None and not call.is_abandoned]
                for call in calls:
                    call.settled.set()

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
        self._connect()
        try:
            memory: dict[str, object] = self._client.info("memory")
        except redis.exceptions.ResponseError:
            return None  # who may not ask cannot know
        policy = str(memory.get("maxmemory_policy", ""))
        if memory.get("maxmemory") and policy.startswith("allkeys-"):
            told = (
                f"{self._host} evicts any key when its memory is full (maxmemory-policy {policy}), leases too: "
                "use a server with noeviction or a volatile-* policy"
            )
            return Failure(FailureKind.INVALID, "EvictingServer", told, maybe_received=False)
        return None

    def _connect(self) -> None:
        """Make all connections that there will be."""
        pool, made = self._client.connection_pool, list[Any]()
        try:
            made.extend(pool.get_connection() for _ in range(_THREADS))
        finally:
            for connection in made:
                pool.release(connection)

    def _list(self) -> list[Lease]:
        writes = self._writes
        rows = cast("Iterable[bytes]", self._client.hvals(self._hash))
        self._known = decode_rows(rows, self._known)
        for row, lease in self._known.items():
            seen = self._seen.get(lease.shard_id)
            if seen is None or seen.writes <= writes:  # else we wrote it while the listing was under way
                self._seen[lease.shard_id] = _Seen(row, writes)
        return sorted(self._known.values(), key=lambda lease: lease.shard_id)

    def _apply_all(self, operations: Sequence[LeaseOperation]) -> list[LeaseAnswer]:
        answers: dict[int, LeaseAnswer] = {}
        left = {place: _Attempt(self._remembered(one.shard_id)) for place, one in enumerate(operations)}
        for _ in range(_SWAPS):
            left = self._send(operations, left, answers)
            if not left:
                break
        for place in left:
            crowd = f"{self._host}: others changed the lease {operations[place].shard_id} {_SWAPS} times meanwhile"
            answers[place] = Failure(FailureKind.TRANSIENT, "Contended", crowd, maybe_received=False)
        return [answers[place] for place in range(len(operations))]

    def _send(
        self, operations: Sequence[LeaseOperation], left: dict[int, _Attempt], answers: dict[int, LeaseAnswer]
    ) -> dict[int, _Attempt]:
        """Decide each operation on the row that is known, and write it. Returns those whose row is another."""
        pipeline = self._client.pipeline(transaction=False)
        sent: dict[int, tuple[LeaseAnswer, bytes]] = {}  # what is answered if the row is as we know it, and the new row
        for place, (previous, is_current) in left.items():
            operation = operations[place]
            answer = self._decide(operation, previous)
            if not isinstance(answer, Refused | Failure):
                row = b"" if answer is None else encode_row(answer, previous or None)
                pipeline.eval(_SWAP, 1, self._hash, operation.shard_id, previous, *_cut(operation, row))
                sent[place] = answer, row
            elif is_current:
                answers[place] = answer
            else:
                pipeline.hget(self._hash, operation.shard_id)
                sent[place] = answer, previous
        told: list[Any] = pipeline.execute(raise_on_error=False)
        late: dict[int, _Attempt] = {}
        for (place, (answer, row)), reply in zip(sent.items(), told, strict=True):
            shard_id = operations[place].shard_id
            if isinstance(reply, Exception):
                answers[place] = self._failure(reply)
            elif isinstance(answer, Refused | Failure):
                late[place] = self._found(shard_id, reply or b"")
            elif len(reply) == 1:
                late[place] = self._found(shard_id, reply[0])
            else:
                answers[place] = self._written(shard_id, answer, row, reply)
        return late

    def _decide(self, operation: LeaseOperation, row: bytes) -> LeaseAnswer:
        try:
            return apply(decode_row(row) if row else None, operation)
        except RowError as error:
            return self._unreadable(error)

    def _remembered(self, shard_id: str) -> bytes:
        seen = self._seen.get(shard_id)
        return b"" if seen is None else seen.row

    def _found(self, shard_id: str, row: bytes) -> _Attempt:
        self._remember(shard_id, row)
        return _Attempt(row, is_current=True)

    def _written(self, shard_id: str, answer: LeaseAnswer, row: bytes, reply: list[bytes]) -> LeaseAnswer:
        if reply and isinstance(answer, Lease):
            answer = replace(answer, counter=int(reply[1]))
            row = reply[1].join(split_at_counter(row))
        self._remember(shard_id, row)
        return answer

    def _remember(self, shard_id: str, row: bytes) -> None:
        self._writes += 1
        self._seen[shard_id] = _Seen(row, self._writes)

    def _groups(self) -> list[GroupOnStream]:
        keys = cast("Iterable[bytes]", self._client.scan_iter(f"{PREFIX}*", count=1_000))
        named = {tuple(key.decode().removeprefix(PREFIX).split(":")) for key in keys}
        return sorted(GroupOnStream(*map(unquote, pair)) for pair in named if len(pair) == 2)  # noqa: PLR2004 - a pair

    # ---- failures

    def _unreadable(self, error: RowError) -> Failure:
        told = f"a row of {self._hash!r} at {self._host} cannot be read: {error}"
        return Failure(FailureKind.INVALID, "UnreadableRow", told, maybe_received=False)

    def _failure(self, error: Exception) -> Failure:
        if isinstance(error.__cause__ or error.__context__, ssl.SSLCertVerificationError):
            kind, code = FailureKind.UNTRUSTED, "CertificateError"
        else:
            kind, code = next((kind, code) for cause, kind, code in _WAYS if isinstance(error, cause))
        words = " ".join(str(error).split()) or type(error).__name__
        hint = ": a Redis Cluster is not supported" if code == "RedisCluster" else ""
        return Failure(kind, code, f"{self._host}: {words}{hint}", maybe_received=code in _UNANSWERED)


def _cut(operation: LeaseOperation, row: bytes) -> list[bytes | int]:
    """The new row as the script takes it: that of a take with a floor is cut at its counter."""
    if not isinstance(operation, TakeLease) or not operation.floor or operation.token >= _EXACT:
        return [row]
    before, after = split_at_counter(row)
    return [before, operation.token, after]
