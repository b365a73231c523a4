"""Accesses PostgreSQL for ``exactly_once``, over psycopg's blocking or async connections.

Importing this module needs the extra ``postgres``. With blocking connections, none of the coroutines waits for an event
loop.

Invariants:

- A transaction is committed when its block ends. A transaction is never a part of a transaction that was open before.
- Shardline's statements do not depend on the kind of cursor that the user has chosen for the connection.
- The connections to a URL keep no state on the server, so they work behind pgbouncer in transaction mode.
- A connection belongs to no pool, because it is kept for the next handler, and closed after an error.
- If an async handler is cancelled, the server ends its statement before the handler returns, unless the server does not
  answer.
"""

import asyncio
import inspect
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, Final, final

import anyio
from psycopg import AsyncConnection, AsyncCursor, Connection, Cursor
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row

from shardline.adapters.event_loop import is_trio
from shardline.adapters.position_tables import PositionTables, Statement
from shardline.errors import UsageError

_KINDS: Final[tuple[type[Any], ...]] = (Connection, AsyncConnection)
_CANCEL_LIMIT: Final = 15.0
"""How many seconds to wait for work that was cancelled. psycopg waits for its request to cancel a statement, and then
for the end of the statement, up to 5 seconds each.
"""


@final
class PostgresDatabase:
    """A database in PostgreSQL.

    Args:
        connect: the URL of the database, or a function that returns a connection or an awaitable of one.
        is_async: whether to connect to the URL with an ``AsyncConnection``.
    """

    def __init__(self, connect: str | Callable[[], Any], *, is_async: bool) -> None:
        self.tables: PositionTables = PositionTables(is_postgres=True)
        self._connect = connect
        self._is_async = is_async

    async def connect(self) -> Any:
        """Return a new connection.

        Raises:
            UsageError: the user's function returned something that cannot be used.
        """
        connection = await self._open()
        if not issubclass(type(connection), _KINDS):
            raise UsageError(f"connect must return a connection of psycopg, not {type(connection).__name__}")
        if (status := connection.info.transaction_status) != TransactionStatus.IDLE:
            await self.close(connection)
            raise UsageError(
                "connect must return a new connection that has no open transaction, such as one with autocommit=True: "
                f"the status of this one is {TransactionStatus(status).name}"
            )
        # psycopg then begins no transaction of its own after a COMMIT of the handler, so ``is_in_transaction`` sees it.
        await _settle(connection.set_autocommit(True))
        return connection

    async def close(self, connection: Any) -> None:
        """Close a connection, even if the caller is cancelled. The server rolls back its transaction."""
        closing = connection.close()
        if closing is not None:
            with anyio.CancelScope(shield=True):
                await closing

    def is_in_transaction(self, connection: Any) -> bool:
        """Whether a transaction is open or has failed."""
        return bool(connection.info.transaction_status != TransactionStatus.IDLE)

    @asynccontextmanager
    async def transaction(self, connection: Any) -> AsyncGenerator[None, None]:
        """Enclose a transaction. Inside it, psycopg refuses ``commit()`` and ``rollback()``."""
        transaction = connection.transaction()
        if isinstance(connection, AsyncConnection):
            async with transaction:
                yield
        else:
            with transaction:
                yield

    async def execute(self, connection: Any, statement: Statement) -> list[Any]:
        """Execute a statement, and return its rows as tuples."""
        kind: Any = AsyncCursor if isinstance(connection, AsyncConnection) else Cursor
        cursor = kind(connection, row_factory=tuple_row)
        await _settle(cursor.execute(*statement))
        rows: list[Any] = await _settle(cursor.fetchall()) if cursor.description else []
        return rows

    async def _open(self) -> Any:
        url = self._connect
        if not isinstance(url, str):
            connection = await _settle(url())
            await _refuse_pooled(connection)
            return connection
        # Prepared statements belong to a session, which pgbouncer may exchange between two transactions.
        if not self._is_async:
            return Connection.connect(url, prepare_threshold=None)
        if is_trio():
            raise UsageError("psycopg's AsyncConnection does not support trio: use a plain function as the handler")
        return await AsyncConnection.connect(url, prepare_threshold=None)


async def cancel_once(work: Coroutine[Any, Any, None]) -> None:
    """Run the coroutine in a task that is cancelled once if the caller is cancelled.

    A scope of anyio cancels its tasks again whenever they wait. When psycopg is cancelled, it asks the server to end
    the statement, and waits for that. If psycopg was cancelled again meanwhile, it would give up, and the server would
    continue with the statement and keep its locks.
    """
    if is_trio():  # there are no async connections on trio
        await work
        return
    task = asyncio.get_running_loop().create_task(_caught(work))
    try:
        await asyncio.wait([task])
    except asyncio.CancelledError:
        task.cancel()
        with anyio.CancelScope(shield=True):
            await asyncio.wait([task], timeout=_CANCEL_LIMIT)
            while not task.done():  # the handler has ignored the cancellation, or is cleaning up
                task.cancel()
                await asyncio.wait([task], timeout=1.0)
        if not task.cancelled() and (error := task.result()) is not None and not isinstance(error, Exception):
            raise error from None
        raise
    if (error := task.result()) is not None:
        raise error


async def _caught(work: Coroutine[Any, Any, None]) -> BaseException | None:
    """Await the coroutine, and return the exception that it raises. If a task itself raised ``SystemExit`` or
    ``KeyboardInterrupt``, the event loop would end.
    """
    try:
        await work
    except (Exception, KeyboardInterrupt, SystemExit) as error:  # noqa: BLE001 - the caller raises it
        return error
    return None


async def _refuse_pooled(connection: Any) -> None:
    """Give a connection of a pool back to the pool, and raise an error."""
    pool = getattr(connection, "_pool", None)
    if pool is not None:
        await _settle(pool.putconn(connection))
        raise UsageError(
            "connect must not return a connection of a pool, because Shardline keeps its connections and closes them "
            "after an error: pass a function that opens a new connection"
        )


async def _settle(value: Any) -> Any:
    """Return the value, or the result of the awaitable that an async connection returns instead."""
    return await value if inspect.isawaitable(value) else value
