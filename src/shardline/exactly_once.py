"""Handlers whose rows and position are committed in one transaction of your database.

``in_postgres`` and ``in_sqlite`` turn a function that takes a record, or a ``Batch``, and a connection into a handler
for ``Consumer.run``. The function writes its rows with the connection. Shardline adds the position of the records to
the same transaction and commits it. A record that is already in the database is skipped, so each record takes effect
exactly once.

Invariants:

- The next owner of a lease claims the shard in the database before it handles a record. From then on, the worker that
  lost the lease commits nothing.
- If the outcome of a commit is unknown, the records are handled again only if the commit has not taken effect.
- A transaction that the database rolled back in favour of another one (a deadlock, or a serialization failure) is
  retried immediately. Every other error is left to the failure policy of the run.
- The position is written only in the transaction that began before the handler was called. If the handler has ended
  this transaction, that is an error, because its rows and the position would not be committed together. (Only SQLite
  shows that a handler has also begun another transaction.)
- A transaction ends, or its connection is closed, before the handler returns.
- ``core/consumer/done_records`` makes all decisions. This module only carries them out.

A transaction has the same steps for coroutine functions and for plain functions, so ``_Transactions`` has them once, as
coroutines. For a plain function, all calls of the database block, so these coroutines never wait: ``_finish`` runs them
in the caller's thread, without an event loop.
"""

import inspect
import sqlite3
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, Protocol, TypeAlias, TypeVar, final, overload

import anyio
import anyio.to_thread

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
_Remake: TypeAlias = tuple[Callable[..., Any], tuple[Any, ...]]  # a function and its arguments, as pickle needs them
_ATTEMPTS: Final = 3
_ROLLED_BACK: Final = frozenset({"40001", "40P01"})  # SQLSTATE of a serialization failure, and of a deadlock
_SQLITE_TIMEOUT: Final = 30.0  # how long to wait for the writers of other processes


class _ChangedError(Exception):
    """Raised to roll a transaction back, because the positions in the database differ from those in memory."""


class _LostError(Exception):
    """Raised to abandon an attempt before the handler is called, because the connection was lost while it was idle."""


class _Call(NamedTuple):
    """One call of the user's handler, with its records and their lease."""

    key: ShardKey
    token: int
    grant: Grant | None
    is_in_order: bool
    """Whether all earlier records of the shard were done when the call began. The grant does not say this later: it may
    then describe another run, while a thread of this run is still working.
    """
    numbers: list[SequenceNumber]
    given: Any

    def argument(self, new: Sequence[int]) -> Any:
        """Return the argument for the handler: the record, or a batch with the records that are new."""
        given: Any = self.given
        if len(new) == len(self.numbers):  # a single record is always new here
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
        grant = lease if isinstance(lease, Grant) else None
        return _Call(key, lease.token, grant, grant is not None and grant.is_in_order, numbers, given)

    def known(self, call: _Call) -> DoneRecords | None:
        """Return the done records of the shard, if it was claimed with this token or a later one."""
        done = self._known.get(call.key)
        if done is not None and done.token > call.token:
            raise call.fenced()
        return done if done is not None and done.token == call.token else None

    def load(self, call: _Call, row: Sequence[Any] | None, beyond: Sequence[Sequence[Any]]) -> DoneRecords:
        """Store the positions that the database contains, after the shard was claimed."""
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
                is_in_order=call.is_in_order,
                done_through=None if grant is None else grant.done_through,
            )

    def handle_committed(self, done: DoneRecords, write: PositionWrite) -> None:
        with self._lock:
            done.handle_committed(write)


def _check(call: _Call, done: DoneRecords, write: PositionWrite, rows: Sequence[Sequence[Any]]) -> PositionWrite:
    """Return the rows that the transaction has to write, now that it has locked the row of the shard."""
    stored = _stored(rows[0] if rows else None)
    verdict = done.check(write, stored)
    if verdict is Verdict.FENCED:
        raise call.fenced()
    if stored is None or verdict is Verdict.CHANGED:
        raise _ChangedError
    return write.after(stored)


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


def _ended() -> UsageError:
    return UsageError("the handler ended the transaction: leave commit and rollback to Shardline")


def _is_closed(connection: Any) -> bool:
    """Whether a connection of psycopg is closed or lost. A connection of sqlite3 always counts as open."""
    return bool(getattr(connection, "closed", False))


class _Database(Protocol):
    """Executes statements in a database. If the handler is a plain function, none of these coroutines waits for an
    event loop.
    """

    tables: PositionTables

    async def connect(self) -> Any: ...
    async def close(self, connection: Any) -> None: ...
    def is_in_transaction(self, connection: Any) -> bool: ...
    def transaction(self, connection: Any) -> AbstractAsyncContextManager[None]: ...
    async def execute(self, connection: Any, statement: Statement) -> list[Any]: ...


class _Transactions:
    """Handles records in transactions, for both kinds of handlers."""

    def __init__(self, handler: Callable[[Any, Any], Any], database: _Database, shards: _Shards) -> None:
        self._handler = handler
        self._is_async = is_async_callable(handler)
        self._database = database
        self._shards = shards
        self._idle: list[Any] = []
        self._has_tables = False

    async def handle(self, given: object) -> None:
        """Handle the record or batch in a transaction."""
        call, attempts = self._shards.call(given), 0
        while attempts < _ATTEMPTS:
            connection, is_new = await self._take()
            try:
                is_done = await self._attempt(connection, call, is_new=is_new)
            except BaseException as error:
                self._shards.forget(call)
                self._has_tables = False  # the database may have lost its tables
                await self._database.close(connection)  # closing the connection ends the transaction
                if isinstance(error, _LostError):
                    continue
                attempts += 1
                if attempts < _ATTEMPTS and getattr(error, "sqlstate", None) in _ROLLED_BACK:
                    continue
                raise
            self._idle.append(connection)
            if is_done:
                return
            attempts += 1
        raise _contended(call)

    async def close(self) -> None:
        while self._idle:
            await self._database.close(self._idle.pop())

    async def _take(self) -> tuple[Any, bool]:
        """Return an idle connection or a new one, and whether it is new."""
        try:
            connection = self._idle.pop()
        except IndexError:
            return await self._database.connect(), True
        return (await self._database.connect(), True) if _is_closed(connection) else (connection, False)

    async def _attempt(self, connection: Any, call: _Call, *, is_new: bool) -> bool:
        """Handle the records in a transaction. Return whether the records are done. If they are not, the caller tries
        again.
        """
        shards, has_begun = self._shards, False
        try:
            done = shards.known(call) or await self._claim(connection, call)
            new = shards.select_new(call, done)
            if not new:
                return True
            async with self._database.transaction(connection):
                has_begun = True
                await self._call_handler(call.argument(new), connection)
                write = await self._write(connection, call, done, new)
        except _ChangedError:
            shards.forget(call)
            return False
        except Exception as error:
            # A server that restarts closes all idle connections. A lost connection must not count as a failure of the
            # record.
            if not is_new and not has_begun and _is_closed(connection):
                raise _LostError from error
            raise
        shards.handle_committed(done, write)
        return True

    async def _call_handler(self, argument: Any, connection: Any) -> None:
        result = self._handler(argument, connection)
        if self._is_async:
            await result
        elif inspect.isawaitable(result):
            raise UsageError("the handler returned an awaitable: make it a coroutine function (async def)")
        if not self._database.is_in_transaction(connection):
            raise _ended()

    async def _claim(self, connection: Any, call: _Call) -> DoneRecords:
        tables = self._database.tables
        if not self._has_tables:
            if (await self._transact(connection, tables.find()))[0][0][0] < 2:  # noqa: PLR2004 - our two tables
                await self._transact(connection, *tables.create())
            self._has_tables = True
        await self._transact(connection, tables.claim(call.key, call.token))
        # Read in a new transaction: under a stricter isolation level, the transaction of the claim would not see the
        # changes that the claim has waited for.
        rows, beyond = await self._transact(connection, tables.read(call.key), tables.read_done(call.key))
        return self._shards.load(call, rows[0] if rows else None, beyond)

    async def _transact(self, connection: Any, *statements: Statement) -> list[list[Any]]:
        """Execute the statements in a transaction of their own. Return the rows of each statement."""
        async with self._database.transaction(connection):
            return [await self._database.execute(connection, statement) for statement in statements]

    async def _write(self, connection: Any, call: _Call, done: DoneRecords, new: Sequence[int]) -> PositionWrite:
        database, write = self._database, self._shards.plan(call, done, new)
        lock = database.tables.lock(call.key, is_exclusive=write.through is not None)
        write = _check(call, done, write, await database.execute(connection, lock))
        additions, moves = _writes(database.tables, call.key, done, write)
        added = [len(await database.execute(connection, statement)) for statement in additions]
        if sum(added) < len(write.beyond):
            raise _ChangedError
        for statement in moves:
            await database.execute(connection, statement)
        return write


@final
class _Sqlite:
    """An SQLite database file. ``run`` calls the blocking functions of sqlite3, in this thread or in another one."""

    def __init__(self, path: "str | PathLike[str]", run: Callable[..., Awaitable[Any]]) -> None:
        self.tables = PositionTables(is_postgres=False)
        self._path = path
        self._run = run

    async def connect(self) -> sqlite3.Connection:
        connect = partial(sqlite3.connect, timeout=_SQLITE_TIMEOUT, isolation_level=None, check_same_thread=False)
        connection: sqlite3.Connection = await self._run(connect, self._path)
        return connection

    async def close(self, connection: sqlite3.Connection) -> None:
        connection.close()

    def is_in_transaction(self, connection: sqlite3.Connection) -> bool:
        return connection.in_transaction

    @asynccontextmanager
    async def transaction(self, connection: sqlite3.Connection) -> AsyncGenerator[None, None]:
        try:
            await self._run(_begin_sqlite, connection)
            yield
            await self._run(_commit_sqlite, connection)
        except BaseException:
            connection.rollback()
            raise

    async def execute(self, connection: sqlite3.Connection, statement: Statement) -> list[Any]:
        rows: list[Any] = await self._run(_execute_sqlite, connection, statement)
        return rows


@final
class BlockingOnce(Generic[GivenT]):
    """A handler for ``Consumer.run`` that calls a plain function with the record or batch, and a connection."""

    def __init__(self, transactions: _Transactions, gate: AbstractContextManager[Any], remake: _Remake) -> None:
        self._transactions = transactions
        self._gate = gate
        self._remake = remake

    def __reduce__(self) -> _Remake:
        """Pickle the arguments alone, so that each process of ``run(processes=...)`` opens its own connections."""
        return self._remake

    def __call__(self, given: GivenT) -> None:
        """Handle the record or batch in a transaction.

        Raises:
            LeaseNotHeld: a later owner of the shard has claimed it. Nothing was committed.
        """
        with self._gate:
            _finish(self._transactions.handle(given))

    def close(self) -> None:
        """Close the connections. Call this after the run."""
        _finish(self._transactions.close())

    def __enter__(self) -> "BlockingOnce[GivenT]":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


@final
class AsyncOnce(Generic[GivenT]):
    """A handler for ``Consumer.run`` that awaits a coroutine function with the record or batch, and a connection."""

    def __init__(
        self,
        transactions: _Transactions,
        make_gate: Callable[[], AbstractAsyncContextManager[Any]],
        run: Callable[[Coroutine[Any, Any, None]], Awaitable[None]],
        remake: _Remake,
    ) -> None:
        self._transactions = transactions
        self._make_gate = make_gate  # called in the event loop
        self._run = run
        self._gate: AbstractAsyncContextManager[Any] | None = None
        self._remake = remake

    def __reduce__(self) -> _Remake:
        """Pickle the arguments alone, so that each process of ``run(processes=...)`` opens its own connections."""
        return self._remake

    async def __call__(self, given: GivenT) -> None:
        """Handle the record or batch in a transaction.

        Raises:
            LeaseNotHeld: a later owner of the shard has claimed it. Nothing was committed.
        """
        if self._gate is None:
            self._gate = self._make_gate()
        async with self._gate:
            await self._run(self._transactions.handle(given))

    async def close(self) -> None:
        """Close the connections. Call this after the run."""
        await self._transactions.close()

    async def __aenter__(self) -> "AsyncOnce[GivenT]":
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()


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
        handler: takes a record or batch, and a connection of psycopg 3. The handler must not end the transaction. A
            coroutine function gets an ``AsyncConnection``, which needs asyncio. A plain function gets a ``Connection``.
        connect: the URL of the database, or a function that returns a new connection. There are as many connections as
            handlers that run at the same time.
        group: the group of the consumer. Each group has its own positions.

    Raises:
        UsageError: an argument is invalid.
    """
    shards, is_async = _checked(handler, group), is_async_callable(handler)
    if not isinstance(connect, str) and not callable(connect):
        raise UsageError(f"connect must be a URL or a function that returns a connection, not {type(connect).__name__}")
    try:
        from shardline.adapters.postgres_database import (  # noqa: PLC0415 - of the extra "postgres"
            PostgresDatabase,
            cancel_once,
        )
    except ImportError:
        raise UsageError("in_postgres needs an extra: pip install 'shardline[postgres]'") from None
    transactions = _Transactions(handler, PostgresDatabase(connect, is_async=is_async), shards)
    remake = (partial(in_postgres, group=group), (handler, connect))
    if is_async:
        return AsyncOnce(transactions, nullcontext, cancel_once, remake)
    return BlockingOnce(transactions, nullcontext(), remake)


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
        handler: takes a record or batch, and a ``sqlite3.Connection``. The handler must not end the transaction. The
            statements of a coroutine function block the event loop, so prefer a plain function, which runs in a thread.
        path: the file of the database.
        group: the group of the consumer. Each group has its own positions.

    Raises:
        UsageError: an argument is invalid.
    """
    shards = _checked(handler, group)
    remake = (partial(in_sqlite, group=group), (handler, path))
    if is_async_callable(handler):
        return AsyncOnce(_Transactions(handler, _Sqlite(path, _in_thread), shards), anyio.Lock, _await, remake)
    return BlockingOnce(_Transactions(handler, _Sqlite(path, _here), shards), threading.Lock(), remake)


def _checked(handler: object, group: str) -> _Shards:
    if not callable(handler):
        raise UsageError(f"handler must be callable, not {type(handler).__name__}")
    return _Shards(group)


def _begin_sqlite(connection: sqlite3.Connection) -> None:
    connection.execute("BEGIN IMMEDIATE")
    connection.execute("SAVEPOINT shardline")


def _commit_sqlite(connection: sqlite3.Connection) -> None:
    try:
        connection.execute("RELEASE shardline")  # fails if the handler has ended the transaction
    except sqlite3.OperationalError as error:
        raise _ended() from error
    connection.execute("COMMIT")


def _execute_sqlite(connection: sqlite3.Connection, statement: Statement) -> list[Any]:
    return connection.execute(*statement).fetchall()


async def _in_thread(work: Callable[..., Any], *arguments: object) -> Any:
    """Call a blocking function in a thread. A cancelled caller still waits for the function, so that no statement
    continues after its caller has left.
    """
    with anyio.CancelScope(shield=True):
        return await anyio.to_thread.run_sync(work, *arguments)


async def _here(work: Callable[..., Any], *arguments: object) -> Any:
    """Call a blocking function in the caller's thread."""
    return work(*arguments)


async def _await(work: Coroutine[Any, Any, None]) -> None:
    await work


def _finish(work: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine to its end in this thread, without an event loop. Everything that it awaits must return
    immediately.
    """
    try:
        work.send(None)
    except StopIteration:
        return
    work.close()
    raise UsageError("connect must return a blocking connection, because the handler is a plain function")
