"""Handlers whose rows and position are committed in one transaction of your database.

``in_postgres`` and ``in_sqlite`` turn a function that takes a record, or a ``Batch``, and a connection into a handler
for ``Consumer.run``. The function writes its rows with the connection. Shardline adds the position of the records to
the same transaction and commits it. A record that the database has already is skipped, so each record takes effect
exactly once.

Invariants:

- A worker that lost its lease commits nothing once the next owner has claimed the shard in the database, which that
  owner does before it handles a record.
- If the outcome of a commit is unknown, the records are handled again only if it has not taken effect.
- A transaction ends, or its connection is closed, before the handler returns.
- ``core/consumer/done_records`` makes all decisions. This module only carries them out.
"""

import inspect
import sqlite3
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    asynccontextmanager,
    contextmanager,
    nullcontext,
)
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, TypeVar, final, overload

import anyio
import anyio.to_thread

from shardline.adapters.event_loop import is_trio
from shardline.adapters.position_tables import PositionTables, ShardKey, Statement, parse_numbers
from shardline.aio.consumer.batches import Batch
from shardline.core.consumer.done_records import DoneRecords, PositionWrite, StoredPosition, Verdict
from shardline.core.consumer.grant import Grant
from shardline.core.consumer.handler_checks import is_async_callable
from shardline.errors import LeaseNotHeld, UsageError
from shardline.model.record import LeaseInForce, Record
from shardline.model.sequence import SequenceNumber

if TYPE_CHECKING:
    from os import PathLike

    from psycopg import AsyncConnection, Connection

__all__ = ["AsyncOnce", "BlockingOnce", "in_postgres", "in_sqlite"]

GivenT = TypeVar("GivenT")
_ATTEMPTS: Final = 3
_SQLITE_TIMEOUT: Final = 30.0  # how long to wait for the writers of other processes
_POSTGRES: Final = PositionTables(is_postgres=True)
_SQLITE: Final = PositionTables(is_postgres=False)


class _ChangedError(Exception):
    """Leaves a transaction, which is rolled back, because the database has other positions than we know."""


class _Call(NamedTuple):
    """One call of the handler."""

    key: ShardKey
    token: int
    grant: Grant | None
    numbers: list[SequenceNumber]
    given: Any

    def argument(self, new: Sequence[int]) -> Any:
        """Return what the handler gets: the record, or a batch with the records that are new."""
        given: Any = self.given
        if len(new) == len(self.numbers):  # always so for a single record
            return given
        return Batch([given.records[index] for index in new], lambda _: given.ack())

    def fenced(self) -> LeaseNotHeld:
        reason = "a later owner of the shard has claimed it in the database, so the transaction was rolled back"
        return LeaseNotHeld("exactly_once", {self.key.shard_id: reason})


class _Shards:
    """The done records of each shard, as far as they are known. Threads share this object."""

    def __init__(self, group: str) -> None:
        if not isinstance(group, str) or not group:
            raise UsageError(f"group must be the name of the consumer's group, not {group!r}")
        self._group = group
        self._known: dict[ShardKey, DoneRecords] = {}
        self._lock = threading.Lock()

    def call(self, given: object) -> _Call:
        batch: Any = given
        records: list[Any] = batch.records if isinstance(given, Batch) else [given]
        first = records[0]
        if not isinstance(first, Record) or first.lease is None or first.shard_id is None or first.stream is None:
            raise UsageError("an exactly-once handler takes records and batches that a Consumer with a group has read")
        lease: LeaseInForce = first.lease
        numbers = [record.order for record in records]
        key = ShardKey(self._group, first.stream, first.shard_id)
        return _Call(key, lease.token, lease if isinstance(lease, Grant) else None, numbers, given)

    def known(self, call: _Call) -> DoneRecords | None:
        """Return the done records of the shard, if it was claimed with this token or a later one."""
        done = self._known.get(call.key)
        if done is not None and done.token > call.token:
            raise call.fenced()
        return done if done is not None and done.token == call.token else None

    def load(self, call: _Call, row: Sequence[Any] | None, beyond: Sequence[Sequence[Any]]) -> DoneRecords:
        """Store what the database has, after the shard was claimed."""
        stored = _stored(row)
        if stored is None or stored.token != call.token:
            raise call.fenced()
        done = DoneRecords(stored, parse_numbers(beyond))
        with self._lock:
            self._known[call.key] = done
        return done

    def forget(self, call: _Call) -> None:
        with self._lock:
            self._known.pop(call.key, None)

    def select_new(self, call: _Call, done: DoneRecords) -> list[int]:
        with self._lock:
            return done.select_new(call.numbers)

    def plan(self, call: _Call, done: DoneRecords, new: Sequence[int]) -> PositionWrite:
        grant, numbers = call.grant, [call.numbers[index] for index in new]
        with self._lock:
            return done.plan(
                numbers,
                is_in_order=grant is not None and grant.is_in_order,
                done_through=None if grant is None else grant.done_through,
            )

    def handle_committed(self, done: DoneRecords, write: PositionWrite) -> None:
        with self._lock:
            done.handle_committed(write)


def _check(call: _Call, done: DoneRecords, write: PositionWrite, rows: Sequence[Sequence[Any]]) -> None:
    verdict = done.check(write, _stored(rows[0] if rows else None))
    if verdict is Verdict.FENCED:
        raise call.fenced()
    if verdict is Verdict.CHANGED:
        raise _ChangedError


def _stored(row: Sequence[Any] | None) -> StoredPosition | None:
    return None if row is None else StoredPosition(row[0], *parse_numbers([row]))


def _writes(
    tables: PositionTables, key: ShardKey, done: DoneRecords, write: PositionWrite
) -> tuple[list[Statement], list[Statement]]:
    """Return the statements that add records, and those that move the watermark."""
    moves: list[Statement] = []
    if write.through is not None:
        moves.append(tables.move(key, write.through))
        if done.beyond or write.beyond:
            moves.append(tables.prune(key, write.through))
    return tables.add_done(key, write.beyond), moves


def _contended(call: _Call) -> RuntimeError:
    return RuntimeError(
        f"the position of {call.key.shard_id} changed during each of {_ATTEMPTS} attempts: does another program use the"
        f" group {call.key.group!r} in this database?"
    )


@final
class BlockingOnce(Generic[GivenT]):
    """A handler for ``Consumer.run`` that calls a plain function with the record or batch, and a connection."""

    def __init__(
        self,
        handler: Callable[[GivenT, Any], object],
        connect: Callable[[], Any],
        tables: PositionTables,
        transaction: Callable[[Any], AbstractContextManager[Any]],
        shards: _Shards,
        *,
        one_at_a_time: bool,
    ) -> None:
        self._handler = handler
        self._connect = connect
        self._tables = tables
        self._transaction = transaction
        self._shards = shards
        self._gate: AbstractContextManager[Any] = threading.Lock() if one_at_a_time else nullcontext()
        self._idle: list[Any] = []
        self._has_tables = False

    def __call__(self, given: GivenT) -> None:
        """Handle the record or batch in a transaction.

        Raises:
            LeaseNotHeld: a later owner of the shard has claimed it. Nothing was committed.
        """
        call = self._shards.call(given)
        with self._gate:
            for _ in range(_ATTEMPTS):
                connection = self._take()
                try:
                    is_done = self._attempt(connection, call)
                except BaseException:
                    self._shards.forget(call)
                    connection.close()  # this ends the transaction
                    raise
                self._idle.append(connection)
                if is_done:
                    return
        raise _contended(call)

    def close(self) -> None:
        """Close the connections. Call this after the run."""
        while self._idle:
            self._idle.pop().close()

    def __enter__(self) -> "BlockingOnce[GivenT]":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _take(self) -> Any:
        try:
            connection = self._idle.pop()
        except IndexError:
            return self._connect()
        return self._connect() if getattr(connection, "closed", False) else connection

    def _attempt(self, connection: Any, call: _Call) -> bool:
        """Return whether the records are done. If not, decide again."""
        shards = self._shards
        done = shards.known(call) or self._claim(connection, call)
        new = shards.select_new(call, done)
        if not new:
            return True
        try:
            with self._transaction(connection):
                result = self._handler(call.argument(new), connection)
                if inspect.isawaitable(result):
                    raise UsageError("the handler returned an awaitable: make it a coroutine function (async def)")
                write = self._write(connection, call, done, new)
        except _ChangedError:
            shards.forget(call)
            return False
        shards.handle_committed(done, write)
        return True

    def _claim(self, connection: Any, call: _Call) -> DoneRecords:
        tables = self._tables
        if not self._has_tables:
            with self._transaction(connection):
                if self._execute(connection, tables.find())[0][0] < 2:  # noqa: PLR2004 - our two tables
                    for statement in tables.create():
                        self._execute(connection, statement)
            self._has_tables = True
        with self._transaction(connection):
            self._execute(connection, tables.claim(call.key, call.token))
        # A new transaction, because in a stricter isolation the claim's would not see what it has waited for.
        with self._transaction(connection):
            rows = self._execute(connection, tables.read(call.key))
            beyond = self._execute(connection, tables.read_done(call.key))
        return self._shards.load(call, rows[0] if rows else None, beyond)

    def _write(self, connection: Any, call: _Call, done: DoneRecords, new: Sequence[int]) -> PositionWrite:
        tables, write = self._tables, self._shards.plan(call, done, new)
        rows = self._execute(connection, tables.lock(call.key, is_exclusive=write.through is not None))
        _check(call, done, write, rows)
        additions, moves = _writes(tables, call.key, done, write)
        if sum(len(self._execute(connection, statement)) for statement in additions) < len(write.beyond):
            raise _ChangedError
        for statement in moves:
            self._execute(connection, statement)
        return write

    def _execute(self, connection: Any, statement: Statement) -> list[Any]:
        cursor = connection.execute(*statement)
        return cursor.fetchall() if cursor.description else []


@final
class AsyncOnce(Generic[GivenT]):
    """A handler for ``Consumer.run`` that awaits a coroutine function with the record or batch, and a connection."""

    def __init__(
        self,
        handler: Callable[[GivenT, Any], Awaitable[object]],
        connect: Callable[[], Awaitable[Any]],
        tables: PositionTables,
        transaction: Callable[[Any], AbstractAsyncContextManager[Any]],
        shards: _Shards,
        *,
        one_at_a_time: bool,
    ) -> None:
        self._handler = handler
        self._connect = connect
        self._tables = tables
        self._transaction = transaction
        self._shards = shards
        self._one_at_a_time = one_at_a_time
        self._gate: AbstractAsyncContextManager[Any] | None = None  # made in the event loop
        self._idle: list[Any] = []
        self._has_tables = False

    async def __call__(self, given: GivenT) -> None:
        """Handle the record or batch in a transaction.

        Raises:
            LeaseNotHeld: a later owner of the shard has claimed it. Nothing was committed.
        """
        call = self._shards.call(given)
        if self._gate is None:
            self._gate = anyio.Lock() if self._one_at_a_time else nullcontext()
        async with self._gate:
            for _ in range(_ATTEMPTS):
                connection = await self._take()
                try:
                    is_done = await self._attempt(connection, call)
                except BaseException:
                    self._shards.forget(call)
                    await _close(connection)  # this ends the transaction
                    raise
                self._idle.append(connection)
                if is_done:
                    return
        raise _contended(call)

    async def close(self) -> None:
        """Close the connections. Call this after the run."""
        while self._idle:
            await _close(self._idle.pop())

    async def __aenter__(self) -> "AsyncOnce[GivenT]":
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    async def _take(self) -> Any:
        try:
            connection = self._idle.pop()
        except IndexError:
            return await self._connect()
        return await self._connect() if getattr(connection, "closed", False) else connection

    async def _attempt(self, connection: Any, call: _Call) -> bool:
        """Return whether the records are done. If not, decide again."""
        shards = self._shards
        done = shards.known(call) or await self._claim(connection, call)
        new = shards.select_new(call, done)
        if not new:
            return True
        try:
            async with self._transaction(connection):
                await self._handler(call.argument(new), connection)
                write = await self._write(connection, call, done, new)
        except _ChangedError:
            shards.forget(call)
            return False
        shards.handle_committed(done, write)
        return True

    async def _claim(self, connection: Any, call: _Call) -> DoneRecords:
        tables = self._tables
        if not self._has_tables:
            async with self._transaction(connection):
                if (await self._execute(connection, tables.find()))[0][0] < 2:  # noqa: PLR2004 - our two tables
                    for statement in tables.create():
                        await self._execute(connection, statement)
            self._has_tables = True
        async with self._transaction(connection):
            await self._execute(connection, tables.claim(call.key, call.token))
        # A new transaction, because in a stricter isolation the claim's would not see what it has waited for.
        async with self._transaction(connection):
            rows = await self._execute(connection, tables.read(call.key))
            beyond = await self._execute(connection, tables.read_done(call.key))
        return self._shards.load(call, rows[0] if rows else None, beyond)

    async def _write(self, connection: Any, call: _Call, done: DoneRecords, new: Sequence[int]) -> PositionWrite:
        tables, write = self._tables, self._shards.plan(call, done, new)
        rows = await self._execute(connection, tables.lock(call.key, is_exclusive=write.through is not None))
        _check(call, done, write, rows)
        additions, moves = _writes(tables, call.key, done, write)
        added = [len(await self._execute(connection, statement)) for statement in additions]
        if sum(added) < len(write.beyond):
            raise _ChangedError
        for statement in moves:
            await self._execute(connection, statement)
        return write

    async def _execute(self, connection: Any, statement: Statement) -> list[Any]:
        if isinstance(connection, sqlite3.Connection):
            found: list[Any] = await _in_thread(_execute_sqlite, connection, statement)
            return found
        cursor = await connection.execute(*statement)
        rows: list[Any] = await cursor.fetchall() if cursor.description else []
        return rows


@overload
def in_postgres(
    handler: "Callable[[GivenT, AsyncConnection[Any]], Awaitable[object]]",
    connect: "str | Callable[[], Awaitable[AsyncConnection[Any]]]",
    *,
    group: str,
) -> AsyncOnce[GivenT]: ...
@overload
def in_postgres(
    handler: "Callable[[GivenT, Connection[Any]], object]",
    connect: "str | Callable[[], Connection[Any]]",
    *,
    group: str,
) -> BlockingOnce[GivenT]: ...
def in_postgres(handler: Any, connect: Any, *, group: str) -> AsyncOnce[Any] | BlockingOnce[Any]:
    """Return a handler for ``Consumer.run`` that commits rows and position in one transaction of PostgreSQL.

    Args:
        handler: takes a record or batch, and a connection of psycopg 3. It must not end the transaction. A coroutine
            function gets an ``AsyncConnection``, which needs asyncio. A plain function gets a ``Connection``.
        connect: the URL of the database, or a function that returns a new connection. There is one connection for each
            handler that works at the same time.
        group: the group of the consumer. Each group has its own positions.

    Raises:
        UsageError: an argument is wrong.
    """
    shards, is_async = _checked(handler, group), is_async_callable(handler)
    if not isinstance(connect, str) and not callable(connect):
        raise UsageError(f"connect must be a URL or a function that returns a connection, not {type(connect).__name__}")
    make_connection: Any = connect
    if isinstance(connect, str):
        make_connection = partial(_connect_async if is_async else _connect_blocking, connect)
    make: Any = AsyncOnce if is_async else BlockingOnce
    once: AsyncOnce[Any] | BlockingOnce[Any] = make(
        handler, make_connection, _POSTGRES, _postgres_transaction, shards, one_at_a_time=False
    )
    return once


@overload
def in_sqlite(  # type: ignore[overload-overlap]  # an awaitable is an object, too
    handler: Callable[[GivenT, sqlite3.Connection], Awaitable[object]], path: "str | PathLike[str]", *, group: str
) -> AsyncOnce[GivenT]: ...
@overload
def in_sqlite(
    handler: Callable[[GivenT, sqlite3.Connection], object], path: "str | PathLike[str]", *, group: str
) -> BlockingOnce[GivenT]: ...
def in_sqlite(handler: Any, path: "str | PathLike[str]", *, group: str) -> AsyncOnce[Any] | BlockingOnce[Any]:
    """Return a handler for ``Consumer.run`` that commits rows and position in one transaction of SQLite.

    SQLite has one writer at a time, so handlers wait for each other.

    Args:
        handler: takes a record or batch, and a ``sqlite3.Connection``. It must not end the transaction. The statements
            of a coroutine function block the event loop, so prefer a plain function, which runs in a thread.
        path: the file of the database.
        group: the group of the consumer. Each group has its own positions.

    Raises:
        UsageError: an argument is wrong.
    """
    shards = _checked(handler, group)
    if is_async_callable(handler):
        connect = partial(_in_thread, _connect_sqlite, path)
        return AsyncOnce(handler, connect, _SQLITE, _async_sqlite_transaction, shards, one_at_a_time=True)
    connect_here = partial(_connect_sqlite, path)
    return BlockingOnce(handler, connect_here, _SQLITE, _sqlite_transaction, shards, one_at_a_time=True)


def _checked(handler: object, group: str) -> _Shards:
    if not callable(handler):
        raise UsageError(f"handler must be callable, not {type(handler).__name__}")
    return _Shards(group)


def _connect_blocking(url: str) -> Any:
    import psycopg  # noqa: PLC0415 - of the extra "postgres"

    return psycopg.connect(url)


async def _connect_async(url: str) -> Any:
    import psycopg  # noqa: PLC0415 - of the extra "postgres"

    if is_trio():
        raise UsageError("psycopg's AsyncConnection does not support trio: use a plain function as the handler")
    return await psycopg.AsyncConnection.connect(url)


def _postgres_transaction(connection: Any) -> Any:
    return connection.transaction()  # inside of it, psycopg refuses commit() and rollback()


def _connect_sqlite(path: "str | PathLike[str]") -> sqlite3.Connection:
    return sqlite3.connect(path, timeout=_SQLITE_TIMEOUT, isolation_level=None, check_same_thread=False)


@contextmanager
def _sqlite_transaction(connection: sqlite3.Connection) -> Generator[None, None, None]:
    _begin_sqlite(connection)
    try:
        yield
        _commit_sqlite(connection)
    except BaseException:
        connection.rollback()
        raise


@asynccontextmanager
async def _async_sqlite_transaction(connection: sqlite3.Connection) -> AsyncGenerator[None, None]:
    try:
        await _in_thread(_begin_sqlite, connection)
        yield
        await _in_thread(_commit_sqlite, connection)
    except BaseException:
        connection.rollback()
        raise


def _begin_sqlite(connection: sqlite3.Connection) -> None:
    connection.execute("BEGIN IMMEDIATE")
    connection.execute("SAVEPOINT shardline")


def _commit_sqlite(connection: sqlite3.Connection) -> None:
    try:
        connection.execute("RELEASE shardline")  # fails if the handler has ended the transaction
    except sqlite3.OperationalError as error:
        raise UsageError("the handler ended the transaction: leave commit and rollback to Shardline") from error
    connection.execute("COMMIT")


def _execute_sqlite(connection: sqlite3.Connection, statement: Statement) -> list[Any]:
    return connection.execute(*statement).fetchall()


async def _in_thread(work: Callable[..., Any], *arguments: object) -> Any:
    """Run in a thread. A cancelled caller waits for it, so that no statement goes on after its caller has left."""
    with anyio.CancelScope(shield=True):
        return await anyio.to_thread.run_sync(work, *arguments)


async def _close(connection: Any) -> None:
    with anyio.CancelScope(shield=True):
        closing = connection.close()
        if closing is not None:
            await closing
