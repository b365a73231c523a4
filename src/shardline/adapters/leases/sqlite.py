"""A lease store in a SQLite file, for the processes of one machine.

SQLite is called in worker threads. A row holds the JSON of ``lease_rows``. The key of a row consists of the group, the
stream and the shard id.

Invariants:

- An operation reads the row, calls ``core.leases.apply`` and writes the result, all in one ``BEGIN IMMEDIATE``
  transaction, so no other process can write in between. Operations that arrive together share a transaction. A row that
  cannot be read makes only its own operation fail. A failed transaction makes all of its operations fail.
- The file is new, or its application id is ours. Any other file is refused and left untouched.
- A file on a network file system is refused. So is a file that was replaced or deleted while it was open, because its
  users would no longer see each other's writes.
- Every error of SQLite becomes a ``Failure``.
"""

import os
import sqlite3
import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final, TypeVar, cast, final

import anyio

from shardline.adapters.blocking_calls import BlockingCalls
from shardline.adapters.leases.lease_rows import RowError, decode_row, decode_rows, encode_row
from shardline.adapters.leases.network_mounts import network_file_system, read_mount_table
from shardline.core.error_codes import Failure, FailureKind
from shardline.core.leases import LeaseOperation, apply
from shardline.model.lease import Lease
from shardline.ports import GroupOnStream, LeaseAnswer

APPLICATION_ID: Final = 0x5368_6C6E  # "Shln"
FORMAT: Final = 1
BUSY_TIMEOUT: Final = 5.0
_OPEN_ATTEMPTS: Final = 100
_OPEN_PAUSE: Final = 0.05

_TABLE: Final = """
CREATE TABLE leases (
    consumer_group TEXT NOT NULL,
    stream TEXT NOT NULL,
    shard_id TEXT NOT NULL,
    lease TEXT NOT NULL,
    PRIMARY KEY (consumer_group, stream, shard_id)
) WITHOUT ROWID
"""

# The kind, our code and the message of each failure, by SQLite's primary result code (https://sqlite.org/rescode.html).
_FAILURES: Final[dict[int, tuple[FailureKind, str, str]]] = {
    sqlite3.SQLITE_BUSY: (FailureKind.TRANSIENT, "Locked", "another process keeps it locked"),
    sqlite3.SQLITE_LOCKED: (FailureKind.TRANSIENT, "Locked", "another process keeps it locked"),
    sqlite3.SQLITE_PROTOCOL: (FailureKind.TRANSIENT, "Locked", "too many processes want its lock"),
    sqlite3.SQLITE_FULL: (FailureKind.LIMIT_EXCEEDED, "DiskFull", "the disk is full"),
    sqlite3.SQLITE_IOERR: (FailureKind.TRANSIENT, "DiskError", "the disk failed"),
    sqlite3.SQLITE_CANTOPEN: (FailureKind.DENIED, "CannotOpen", "check the directory and its permissions"),
    sqlite3.SQLITE_PERM: (FailureKind.DENIED, "CannotOpen", "check the directory and its permissions"),
    sqlite3.SQLITE_AUTH: (FailureKind.DENIED, "CannotOpen", "check the directory and its permissions"),
    sqlite3.SQLITE_READONLY: (FailureKind.DENIED, "ReadOnly", "the file or its directory cannot be written"),
    sqlite3.SQLITE_NOTADB: (FailureKind.INVALID, "NoDatabase", "it is not a SQLite file: use another, or remove it"),
    sqlite3.SQLITE_CORRUPT: (FailureKind.INVALID, "Corrupt", "it is damaged: restore a backup, or remove it"),
}

T = TypeVar("T")


class _UnusableError(Exception):
    """Carries a ``Failure``. It is raised inside a transaction, and the call then returns the ``Failure``."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


@final
class SqliteLeases:
    """``LeaseStore`` in a SQLite file. With ``existing``, the file must exist and is never created."""

    scan_interval: float = 0.5
    checkpoint_interval: float = 1.0

    def __init__(
        self, path: Path, group: str, stream: str, *, busy_timeout: float = BUSY_TIMEOUT, existing: bool = False
    ) -> None:
        self._path = path.absolute()  # the working directory may change
        self.group: Final = group
        self.stream: Final = stream
        self._busy_timeout = busy_timeout
        self._existing = existing
        self._connection: sqlite3.Connection | None = None
        self._identity = (0, 0)
        self._known: dict[bytes, Lease] = {}  # the leases of the last listing, by row
        self._calls = BlockingCalls[object]()
        self._connection_lock = threading.Lock()  # lets one call at a time use the connection

    async def open(self) -> Failure | None:
        opened = None
        for _ in range(_OPEN_ATTEMPTS):
            opened = await self._in_thread(self._open)
            # While another process switches a new file to write-ahead logging, SQLite reports "locked" immediately: the
            # busy timeout does not apply.
            if opened is None or opened.code != "Locked":
                return opened
            await anyio.sleep(_OPEN_PAUSE)
        return opened

    async def list_leases(self) -> list[Lease] | Failure:
        return await self._in_thread(self._list)

    async def apply(self, operation: LeaseOperation) -> LeaseAnswer:
        return (await self.apply_many([operation]))[0]

    async def apply_many(self, operations: Sequence[LeaseOperation]) -> list[LeaseAnswer]:
        answers = await self._in_thread(lambda: self._apply_all(operations))
        return [answers] * len(operations) if isinstance(answers, Failure) else answers

    async def list_groups(self) -> list[GroupOnStream] | Failure:
        """Return every group and stream in the file."""
        query = "SELECT DISTINCT consumer_group, stream FROM leases ORDER BY 1, 2"
        return await self._in_thread(lambda: [GroupOnStream(*row) for row in self._opened().execute(query)])

    async def close(self) -> None:
        with anyio.CancelScope(shield=True):
            await self._in_thread(self._close)

    def __repr__(self) -> str:
        return f"<SqliteLeases of group {self.group!r} on {self.stream!r} in {str(self._path)!r}>"

    async def _in_thread(self, work: Callable[[], T]) -> T | Failure:
        def guarded() -> T | Failure:
            try:
                with self._connection_lock:
                    return work()
            except sqlite3.Error as error:
                return self._failure(error)
            except _UnusableError as error:
                return error.failure

        return cast("T | Failure", await self._calls.run(object(), guarded))

    # ---- called in a worker thread

    def _open(self) -> Failure | None:
        if self._connection is not None:
            return None
        path = self._path
        remote = network_file_system(Path(os.path.realpath(path)), read_mount_table())
        if remote is not None:
            problem = f"{path} is on a network file system ({remote}), where SQLite's locks do not work"
            return self._invalid("NetworkFileSystem", f"{problem}: use a local disk")
        if self._existing and not path.exists():
            raise _UnusableError(self._missing("does not exist"))
        connection = sqlite3.connect(path, timeout=self._busy_timeout, isolation_level=None, check_same_thread=False)
        try:
            self._prepare(connection)
            self._identity = _identity(path)
        except (sqlite3.Error, _UnusableError):
            connection.close()
            raise
        self._connection = connection
        return None

    def _prepare(self, connection: sqlite3.Connection) -> None:
        """Create the table in a new file and check any other file.

        This is one transaction: if two processes open a new file at the same time, only one creates the table.
        """
        with _transaction(connection):
            owner = _pragma(connection, "application_id")
            if owner == 0 and not connection.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchall():
                if self._existing:
                    raise _UnusableError(self._missing("is empty"))
                connection.execute(_TABLE)
                connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
                connection.execute(f"PRAGMA user_version = {FORMAT}")
            elif owner != APPLICATION_ID:
                problem = f"{self._path} is a database of another program: use another file"
                raise _UnusableError(self._invalid("ForeignDatabase", problem))
            elif _pragma(connection, "user_version") != FORMAT:
                problem = f"{self._path} was written by a newer version of Shardline: upgrade this one"
                raise _UnusableError(self._invalid("NewerFormat", problem))
        connection.execute("PRAGMA journal_mode = WAL").close()
        # A power failure may undo the last writes, but it also kills the workers that made them. The records since the
        # older checkpoint are processed again.
        connection.execute("PRAGMA synchronous = NORMAL").close()

    def _opened(self) -> sqlite3.Connection:
        if self._connection is None:
            problem = f"{self._path} is not open: open the store first"
            raise _UnusableError(self._invalid("NotOpen", problem))
        if _identity(self._path) != self._identity:
            problem = f"{self._path} was moved, replaced or deleted while in use: restart the processes that use it"
            raise _UnusableError(self._invalid("FileReplaced", problem))
        return self._connection

    def _list(self) -> list[Lease]:
        query = "SELECT lease FROM leases WHERE consumer_group = ? AND stream = ? ORDER BY shard_id"
        rows: list[tuple[str]] = self._opened().execute(query, (self.group, self.stream)).fetchall()
        try:
            self._known = decode_rows([row[0].encode() for row in rows], self._known)
        except RowError as error:
            raise _UnusableError(self._unreadable(error)) from None
        return [*self._known.values()]

    def _apply_all(self, operations: Sequence[LeaseOperation]) -> list[LeaseAnswer]:
        connection = self._opened()
        with _transaction(connection):
            return [self._apply(connection, operation) for operation in operations]

    def _apply(self, connection: sqlite3.Connection, operation: LeaseOperation) -> LeaseAnswer:
        key = (self.group, self.stream, operation.shard_id)
        where = "WHERE consumer_group = ? AND stream = ? AND shard_id = ?"
        found: tuple[str] | None = connection.execute(f"SELECT lease FROM leases {where}", key).fetchone()  # noqa: S608
        previous = None if found is None else found[0].encode()
        try:
            row = None if previous is None else decode_row(previous)
        except RowError as error:
            return self._unreadable(error)
        answer = apply(row, operation)
        if answer is None:
            connection.execute(f"DELETE FROM leases {where}", key)  # noqa: S608 - a constant
        elif isinstance(answer, Lease):
            text = encode_row(answer, previous).decode()
            connection.execute("INSERT OR REPLACE INTO leases VALUES (?, ?, ?, ?)", (*key, text))
        return answer

    def _close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    # ---- failures

    def _failure(self, error: sqlite3.Error) -> Failure:
        code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR)
        kind, name, hint = _FAILURES.get(code & 0xFF, (FailureKind.INVALID, "SqliteError", "it cannot be used"))
        message = f"{self._path}: {hint} ({error})"
        return Failure(kind, name, message, maybe_received=name == "DiskError")

    def _missing(self, problem: str) -> Failure:
        message = f"{self._path} {problem}: no group has leases there"
        return Failure(FailureKind.NOT_FOUND, "NoSuchStore", message, maybe_received=False)

    def _unreadable(self, error: RowError) -> Failure:
        return self._invalid("UnreadableRow", f"a row of {self._path} cannot be read: {error}")

    @staticmethod
    def _invalid(code: str, message: str) -> Failure:
        return Failure(FailureKind.INVALID, code, message, maybe_received=False)


@contextmanager
def _transaction(connection: sqlite3.Connection) -> Generator[None]:
    """Run a transaction. If anything fails, even the commit, roll it back."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    finally:
        if connection.in_transaction:
            connection.rollback()


def _pragma(connection: sqlite3.Connection, name: str) -> int:
    with closing(connection.execute(f"PRAGMA {name}")) as found:
        return int(found.fetchone()[0])


def _identity(path: Path) -> tuple[int, int]:
    try:
        found = path.stat()
    except OSError:
        return (0, 0)
    return (found.st_dev, found.st_ino)
