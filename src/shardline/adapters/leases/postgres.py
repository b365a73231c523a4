"""A lease store in PostgreSQL.

All groups share one table, ``shardline_leases``. A row holds the JSON of ``lease_rows``. ``row_swaps`` decides what to
write, and one statement swaps all rows of a write. The client is psycopg 3. The blocking API of psycopg runs in worker
threads, because the asyncio API does not support trio.

Invariants:

- A write is one statement and one round trip. A write locks its rows in the order of the shard ids, so that two writers
  never wait for each other, and compares each row after it has locked the row.
- No connection has state: there are no prepared statements, settings or advisory locks. So the store works behind
  pgbouncer in transaction mode.
- A fencing token is never less than the server's time.
- The table is new, or its comment is ours. Any other table is refused and left untouched.
- One call is one attempt, and ends within the time limit. Every exception from psycopg becomes a ``Failure``.
- No password gets into a message or a repr.
"""

import os
import re
import socket
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, TypeVar, final

import anyio
import anyio.to_thread
import psycopg
from psycopg import errors
from psycopg.conninfo import conninfo_to_dict

from shardline.adapters.leases.lease_rows import split_at_counter
from shardline.adapters.leases.row_swaps import RowSwaps, Swap, SwapReply
from shardline.core.error_codes import Failure, FailureKind
from shardline.core.leases import LeaseOperation
from shardline.errors import UsageError
from shardline.model.lease import Lease
from shardline.ports import GroupOnStream, LeaseAnswer

TABLE: Final = "shardline_leases"
TIMEOUT: Final = 5.0
# The parameters of libpq that are allowed in the URL. A password is not allowed there, because it would end up in logs.
_PARAMETERS: Final = re.compile(
    r"ssl(?!password)\w*|channel_binding|require_auth|gssencmode|krbsrvname|connect_timeout|application_name|options|"
    r"target_session_attrs|load_balance_hosts|hostaddr|keepalives\w*|tcp_user_timeout"
)
_OWN_PARAMETERS: Final = frozenset({"user", "password", "host", "port", "dbname"})  # the parts of the URL itself
_THREADS: Final = 2  # one thread writes, and one lists
_COMMENT: Final = "Shardline leases, format "
_FORMAT: Final = 1

# Rows stay on their page (HOT updates), because no index contains the lease and half of each page is left for updates.
_CREATE: Final = f"""
CREATE TABLE {TABLE} (
    consumer_group text COLLATE "C" NOT NULL,
    stream text COLLATE "C" NOT NULL,
    shard_id text COLLATE "C" NOT NULL,
    lease text COLLATE "C" NOT NULL,
    PRIMARY KEY (consumer_group, stream, shard_id)
) WITH (fillfactor = 50)
"""
_FACTS: Final = f"""
SELECT to_regclass('{TABLE}') IS NOT NULL, obj_description(to_regclass('{TABLE}'), 'pg_class'),
    pg_is_in_recovery(), current_setting('server_encoding')
"""

# The parameters are the shard ids, the expected rows ('' for no row), the new rows in two parts, and the floors.
# A new row is head || counter || tail if it has a floor, else its head. If the head is empty, the row is removed; if it
# is NULL, the row is only read. "locked" waits for other writers and then sees their rows, although the statement began
# before these rows were committed. A row that another writer inserts meanwhile is not visible: "inserted" skips it, and
# the caller tries again.
_SWAP: Final = f"""
WITH wanted AS (
    SELECT * FROM unnest(%(shards)s::text[], %(expected)s::text[], %(heads)s::text[], %(tails)s::text[],
        %(floors)s::numeric[]) AS wanted (shard_id, expected, head, tail, floor)
), written AS (
    SELECT shard_id, expected, CASE floor WHEN 0 THEN head ELSE
        head || greatest(floor, trunc(extract(epoch FROM clock_timestamp()) * 1000))::text || tail END AS lease
    FROM wanted WHERE head IS NOT NULL
), locked AS MATERIALIZED (
    SELECT shard_id, lease FROM {TABLE}
    WHERE consumer_group = %(group)s AND stream = %(stream)s AND shard_id = ANY(%(shards)s::text[])
    ORDER BY shard_id FOR UPDATE
), updated AS (
    UPDATE {TABLE} AS stored SET lease = written.lease FROM written JOIN locked USING (shard_id)
    WHERE consumer_group = %(group)s AND stream = %(stream)s AND stored.shard_id = written.shard_id
        AND locked.lease = written.expected AND written.lease <> ''
    RETURNING stored.shard_id, stored.lease
), removed AS (
    DELETE FROM {TABLE} AS stored USING written JOIN locked USING (shard_id)
    WHERE consumer_group = %(group)s AND stream = %(stream)s AND stored.shard_id = written.shard_id
        AND locked.lease = written.expected AND written.lease = ''
    RETURNING stored.shard_id, '' AS lease
), inserted AS (
    INSERT INTO {TABLE} (consumer_group, stream, shard_id, lease)
    SELECT %(group)s, %(stream)s, shard_id, lease FROM written WHERE expected = '' AND lease <> '' ORDER BY shard_id
    ON CONFLICT DO NOTHING RETURNING shard_id, lease
), swapped AS (
    SELECT * FROM updated UNION ALL SELECT * FROM removed UNION ALL SELECT * FROM inserted
)
SELECT shard_id, coalesce(swapped.lease, locked.lease, ''),
    swapped.shard_id IS NOT NULL OR (expected = '' AND head = '' AND locked.shard_id IS NULL)
FROM wanted LEFT JOIN swapped USING (shard_id) LEFT JOIN locked USING (shard_id)
"""  # noqa: S608 - the table is a constant

# The kind and our code of each failure, by SQLSTATE or its class (https://www.postgresql.org/docs/current/errcodes-appendix.html).
_FAILURES: Final[Mapping[str, tuple[FailureKind, str]]] = {
    "28": (FailureKind.DENIED, "Denied"),
    "42501": (FailureKind.DENIED, "Denied"),
    "3D": (FailureKind.NOT_FOUND, "NoSuchDatabase"),
    "42P01": (FailureKind.NOT_FOUND, "NoSuchStore"),
    "25006": (FailureKind.TRANSIENT, "ReadOnly"),
    "40": (FailureKind.TRANSIENT, "Contended"),
    "53100": (FailureKind.LIMIT_EXCEEDED, "DiskFull"),
    "53": (FailureKind.TRANSIENT, "Overloaded"),
    "54": (FailureKind.INVALID, "PostgresError"),
    "55": (FailureKind.TRANSIENT, "Locked"),
    "57014": (FailureKind.TRANSIENT, "Timeout"),
    "57": (FailureKind.TRANSIENT, "ShuttingDown"),
    "58": (FailureKind.TRANSIENT, "DiskError"),
    "08": (FailureKind.TRANSIENT, "ConnectionError"),
    "XX": (FailureKind.TRANSIENT, "InternalError"),
}
# libpq reports no SQLSTATE if it cannot connect, only the server's message.
_REFUSALS: Final = re.compile(
    r"authentication failed|no pg_hba\.conf entry|role .* does not exist|no password supplied"
)
_UNKNOWN_DATABASE: Final = re.compile(r"database .* does not exist")
_UNTRUSTED: Final = re.compile(r"certificate verify failed|root certificate|does not match host name")

Connection = psycopg.Connection[tuple[Any, ...]]
T = TypeVar("T")


class _UnusableError(Exception):
    """Carries a ``Failure``. It is raised inside a call, which then returns the ``Failure``."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


@final
class _Call:
    """One call in a worker thread, and the connection that it uses."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._connection: Connection | None = None
        self._is_cut = False

    def use(self, connection: Connection | None) -> None:
        """Set the connection that the call uses now, or ``None`` if the call uses no connection."""
        with self._lock:
            self._connection = connection
            if connection is not None and self._is_cut:
                _cut(connection)

    def cut(self) -> None:
        """End the call from another thread: the connection breaks, so the thread stops waiting for the server."""
        with self._lock:
            self._is_cut = True
            if self._connection is not None:
                _cut(self._connection)


@final
class PostgresLeases:
    """``LeaseStore`` in PostgreSQL. With ``existing``, the table must exist and is never created.

    Args:
        url: ``postgresql://``, with parameters of libpq.
        group: the consumer group.
        stream: the stream.
        limit: how many seconds a call may take.
        existing: open only an existing table; never create one.

    Raises:
        UsageError: libpq cannot read the URL, or the URL contains a parameter that is not allowed.
    """

    scan_interval: float = 0.5
    checkpoint_interval: float = 1.0

    def __init__(self, url: str, group: str, stream: str, *, limit: float = TIMEOUT, existing: bool = False) -> None:
        self.group: Final = group
        self.stream: Final = stream
        self._settings = _parse(url)
        self._place = _shown(self._settings)
        self._limit = limit
        self._existing = existing
        # This limiter is our own: all of anyio's default threads may be occupied by callers that wait for this store.
        self._threads = anyio.CapacityLimiter(_THREADS)
        self._idle: list[Connection] = []
        self._is_closed = False
        self._idle_lock = threading.Lock()
        self._rows = RowSwaps(f"{TABLE} at {self._place}", self._swap, self._in_thread, writers=_THREADS - 1)
        self._local = threading.local()  # the call of each worker thread

    async def open(self) -> Failure | None:
        self._is_closed = False
        return await self._in_thread(self._open)

    async def list_leases(self) -> list[Lease] | Failure:
        return await self._in_thread(lambda: self._rows.list_leases(self._read))

    async def apply(self, operation: LeaseOperation) -> LeaseAnswer:
        return (await self.apply_many([operation]))[0]

    async def apply_many(self, operations: Sequence[LeaseOperation]) -> list[LeaseAnswer]:
        return await self._rows.apply_many(operations)

    async def list_groups(self) -> list[GroupOnStream] | Failure:
        """Return every group and stream in the table."""
        query = f"SELECT DISTINCT consumer_group, stream FROM {TABLE} ORDER BY 1, 2"  # noqa: S608 - a constant
        return await self._in_thread(lambda: [GroupOnStream(*row) for row in self._execute(query)])

    async def close(self) -> None:
        with anyio.CancelScope(shield=True):
            await self._in_thread(self._close)

    def __repr__(self) -> str:
        return f"<PostgresLeases of group {self.group!r} on {self.stream!r} at {self._place}>"

    async def _in_thread(self, work: Callable[[], T | Failure]) -> T | Failure:
        call = _Call()

        def guarded() -> T | Failure:
            self._local.call = call
            try:
                return work()
            except (psycopg.Error, OSError) as error:
                return self._failure(error)
            except _UnusableError as error:
                return error.failure

        # A cancelled caller waits for its call, so that no write goes on after its caller has left.
        with anyio.CancelScope(shield=True), anyio.move_on_after(self._limit):
            return await anyio.to_thread.run_sync(guarded, abandon_on_cancel=True, limiter=self._threads)
        call.cut()
        message = f"{self._place} did not answer within {self._limit:g} s"
        return Failure(FailureKind.TRANSIENT, "Timeout", message, maybe_received=True)

    # ---- called in a worker thread

    def _open(self) -> Failure | None:
        exists, comment, is_replica, encoding = self._execute(_FACTS)[0]
        if is_replica:
            message = f"{self._place} is a replica, which cannot be written: use the address of the primary"
            return Failure(FailureKind.TRANSIENT, "ReadOnly", message, maybe_received=False)
        if encoding != "UTF8":
            return self._invalid("Encoding", f"its encoding is {encoding}: use a database with the encoding UTF8")
        if not exists:
            if self._existing:
                message = f"{self._place} has no table {TABLE}: no group has leases there"
                return Failure(FailureKind.NOT_FOUND, "NoSuchStore", message, maybe_received=False)
            self._create()
        if comment is None:
            # The table may be new. ``to_regclass`` sees a table as soon as its transaction ends, while
            # ``obj_description`` sees comments only as they were when the statement began.
            _, comment, *_ = self._execute(_FACTS)[0]
        if not (comment or "").startswith(_COMMENT):
            return self._invalid("ForeignTable", f"its table {TABLE} belongs to another program: use another database")
        if comment != f"{_COMMENT}{_FORMAT}":
            return self._invalid(
                "NewerFormat", "its leases were written by a newer version of Shardline: upgrade this one"
            )
        return None

    def _create(self) -> None:
        """Create the table. Another worker may create the table at the same time, which does no harm."""
        connection = self._take()
        try:
            with connection.transaction():
                connection.execute(_CREATE.encode())
                connection.execute(f"COMMENT ON TABLE {TABLE} IS '{_COMMENT}{_FORMAT}'".encode())
        except (errors.DuplicateTable, errors.DuplicateObject, errors.UniqueViolation):
            return  # the server reports the race as one of these, depending on how far the other worker has come
        finally:
            self._give(connection)

    def _read(self) -> Iterable[bytes]:
        query = f"SELECT lease FROM {TABLE} WHERE consumer_group = %s AND stream = %s"  # noqa: S608 - a constant
        return [row[0].encode() for row in self._execute(query, (self.group, self.stream))]

    def _swap(self, swaps: Sequence[Swap]) -> list[SwapReply | Failure]:
        parts = [_parts(swap) for swap in swaps]
        found = self._execute(
            _SWAP,
            {
                "group": self.group,
                "stream": self.stream,
                "shards": [swap.shard_id for swap in swaps],
                "expected": [swap.expected.decode() for swap in swaps],
                "heads": [head for head, _ in parts],
                "tails": [tail for _, tail in parts],
                "floors": [swap.floor for swap in swaps],
            },
        )
        replies = {shard_id: SwapReply(lease.encode(), is_swapped) for shard_id, lease, is_swapped in found}
        return [replies[swap.shard_id] for swap in swaps]

    # ---- connections

    def _execute(self, query: str, parameters: Any = None) -> list[tuple[Any, ...]]:
        connection = self._take()
        try:
            return connection.execute(query.encode(), parameters).fetchall()
        finally:
            self._give(connection)

    def _take(self) -> Connection:
        call: _Call = self._local.call
        with self._idle_lock:
            connection = self._idle.pop() if self._idle else None
        if connection is None:
            connection = psycopg.connect(
                "",
                **self._settings,
                autocommit=True,
                prepare_threshold=None,  # prepared statements belong to a connection, which pgbouncer may exchange
            )
        call.use(connection)
        return connection

    def _give(self, connection: Connection) -> None:
        self._local.call.use(None)
        with self._idle_lock:
            if connection.broken or connection.closed:
                # The server has probably closed the idle connections as well.
                broken, self._idle = [connection, *self._idle], []
            elif self._is_closed:
                broken = [connection]
            else:
                self._idle.append(connection)
                return
        for idle in broken:
            idle.close()

    def _close(self) -> None:
        with self._idle_lock:
            idle, self._idle, self._is_closed = self._idle, [], True
        for connection in idle:
            connection.close()

    # ---- failures

    def _failure(self, error: Exception) -> Failure:
        words = " ".join(str(error).split()) or type(error).__name__
        state = getattr(error, "sqlstate", None)
        if state is not None:
            kind, code = _FAILURES.get(state) or _FAILURES.get(state[:2]) or (FailureKind.INVALID, "PostgresError")
        elif _UNTRUSTED.search(words):
            kind, code = FailureKind.UNTRUSTED, "CertificateError"
        elif _REFUSALS.search(words):
            kind, code = FailureKind.DENIED, "Denied"
        elif _UNKNOWN_DATABASE.search(words):
            kind, code = _FAILURES["3D"]
        elif isinstance(error, psycopg.OperationalError | OSError):
            kind, code = FailureKind.TRANSIENT, "ConnectionError"
        else:
            kind, code = FailureKind.INVALID, "PostgresError"
        # A statement whose answer was lost may have been carried out. A server that reports an error has undone the
        # statement.
        maybe_received = code == "ConnectionError" or (state or "").startswith("57P")
        return Failure(kind, code, f"{self._place}: {words}", maybe_received=maybe_received)

    def _invalid(self, code: str, problem: str) -> Failure:
        return Failure(FailureKind.INVALID, code, f"{self._place}: {problem}", maybe_received=False)


def _parse(url: str) -> dict[str, Any]:
    """Return the parameters of libpq that the URL contains."""
    try:
        settings = {name: value for name, value in conninfo_to_dict(url).items() if value is not None}
        for port in str(settings.get("port", "")).split(","):  # libpq allows several hosts, each with its port
            int(port or 0)
    except (psycopg.Error, ValueError):
        raise UsageError(
            "the URL of a PostgreSQL store cannot be read; it looks like "
            "postgresql://user:password@host:5432/database?sslmode=verify-full"
        ) from None
    unknown = [name for name in settings if name not in _OWN_PARAMETERS and not _PARAMETERS.fullmatch(name)]
    if unknown or "password=" in url.partition("?")[2]:
        raise UsageError(
            f"a PostgreSQL store's URL must not have the parameter {(*unknown, 'password')[0]!r}; allowed are: ssl..., "
            "connect_timeout, application_name, options, target_session_attrs, load_balance_hosts, keepalives..., "
            "tcp_user_timeout"
        )
    return {
        "connect_timeout": str(int(TIMEOUT)),
        "application_name": "shardline",
        **settings,
        "client_encoding": "utf8",
    }


def _shown(settings: Mapping[str, Any]) -> str:
    """Return the server's address for messages, without user and password."""
    port = settings.get("port", "")
    address = f"{settings.get('host', 'localhost')}{port and ':'}{port}"
    return f"{address}/{settings['dbname']}" if "dbname" in settings else address


def _parts(swap: Swap) -> tuple[str | None, str]:
    """Return the new row in two parts, between which the server inserts the counter if the swap has a floor."""
    if not swap.row or not swap.floor:
        return (None if swap.row is None else swap.row.decode()), ""
    head, tail = split_at_counter(swap.row)
    return head.decode(), tail.decode()


def _cut(connection: Connection) -> None:
    """Break the connection, from any thread. The file descriptor stays open until its user closes the connection."""
    try:
        with socket.socket(fileno=os.dup(connection.fileno())) as peer:
            peer.shutdown(socket.SHUT_RDWR)
    except (OSError, psycopg.Error):
        return  # the connection is broken already
