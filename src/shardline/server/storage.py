"""Persists streams, records, consumers, channels and the account's settings.

The data is in one SQLite file in WAL mode. A commit survives a crash of the process (``kill -9``). A crash of the
machine may lose the last commits, but does not damage the file. One row holds the records that one request put into one
shard, so that a request with 500 records writes only a few rows.

Invariants:

- Acknowledged data is still there after a restart: ``keep`` commits it before the reply is sent.
- Each shard's records are restored in order, without gaps, with their sequence numbers and times. New records continue
  the numbering, even if all earlier records have been trimmed.
- Iterators and page tokens from before a restart remain valid, because their secret is persisted.
- Only one process at a time can use a file; a second process is refused. A file that is another kind of database, or
  that belongs to a later version or to another account, is refused and left unchanged.
- Data that ``keep`` could not write is written by the next ``keep``: a full disk leaves no gap.
"""

import sqlite3
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self, TypeVar, final

import msgspec

from shardline.errors import UsageError
from shardline.server.model.commitment import Commitment
from shardline.server.model.next_tokens import Tokens
from shardline.server.model.service import Service
from shardline.server.model.settings import ServiceSettings
from shardline.server.model.shard_log import StoredRecord
from shardline.server.model.state import ServiceState, Stored
from shardline.server.model.streams import ServerStream
from shardline.server.stream_rows import StreamRow, make_stream_row, restore_stream

if TYPE_CHECKING:
    from random import Random

T = TypeVar("T")

APPLICATION_ID: Final = 0x5348_4C4E  # "SHLN"
SCHEMA_VERSION: Final = 2  # in version 1, shards had no layout (see ShardRow)
_SWEEP_EVERY: Final = 60.0
_SCHEMA: Final = f"""
BEGIN;
CREATE TABLE setting (name TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE stream (id INTEGER PRIMARY KEY AUTOINCREMENT, description BLOB NOT NULL);
CREATE TABLE batch (
    stream INTEGER NOT NULL,
    shard INTEGER NOT NULL,
    first INTEGER NOT NULL, -- the first record's number in the shard
    arrived REAL NOT NULL,  -- the arrival time of all records
    encryption TEXT,
    body BLOB NOT NULL,     -- MessagePack: [data, partition key or nil] of each record
    PRIMARY KEY (stream, shard, first)
);
PRAGMA application_id = {APPLICATION_ID};
PRAGMA user_version = {SCHEMA_VERSION};
COMMIT;
"""


_write_json: Final = msgspec.json.Encoder().encode
_read_stream: Final = msgspec.json.Decoder(StreamRow).decode
_read_commitment: Final = msgspec.json.Decoder(Commitment).decode
_write_batch: Final = msgspec.msgpack.Encoder().encode
_read_batch: Final = msgspec.msgpack.Decoder(list[tuple[bytes, str | None]]).decode


@final
class Storage:
    """A data file and the service that it persists. One thread at a time may use it."""

    def __init__(self, database: sqlite3.Connection, service: Service) -> None:
        self._database = database
        self._ids: dict[str, tuple[int, ServerStream]] = {}
        self._unwritten: list[Stored] = []
        self._unwritten_streams: set[str] = set()
        self._sweep_at = service.state.now
        self._commitment = service.state.commitment
        """The commitment in the file. The service replaces its object when the commitment changes."""
        self._is_closed = False
        self.service = service

    @classmethod
    def open(cls, path: str | Path, settings: ServiceSettings, rng: "Random", now: float) -> Self:
        """Open a data file and restore its service. If there is no file, create it with an empty service.

        Raises:
            UsageError: the file cannot be used.
        """
        database = _connect(Path(path))
        with ExitStack() as undo:
            undo.callback(database.close)
            storage = cls(database, Service(settings, rng, now))
            try:
                storage._restore(path, now)
            except sqlite3.DatabaseError as error:
                raise UsageError(f"{path} is damaged: {error}") from None
            undo.pop_all()
        return storage

    def close(self) -> None:
        """Write the remaining changes and close the file. Calling it again is harmless."""
        if not self._is_closed:
            self.keep()
            self._database.close()
            self._is_closed = True

    # ---- writing

    def keep(self) -> None:
        """Write the changes of the service since the last call. Without changes, this costs nothing."""
        service = self.service
        self._unwritten += service.take_stored()
        self._unwritten_streams |= service.take_changed()
        sweeps = service.state.now >= self._sweep_at
        commitment = service.state.commitment
        is_new = commitment is not self._commitment
        if not (self._unwritten or self._unwritten_streams or sweeps or is_new):
            return
        ids, self._ids = self._ids, dict(self._ids)
        try:
            _in_transaction(self._database, lambda: self._write(commitment if is_new else None, sweeps=sweeps))
            ids = self._ids
        finally:
            self._ids = ids  # after a rollback, the ids of rows that were not written are forgotten
        self._unwritten.clear()
        self._unwritten_streams.clear()
        self._commitment = commitment
        if sweeps:
            self._sweep_at = service.state.now + _SWEEP_EVERY

    def _write(self, commitment: Commitment | None, *, sweeps: bool) -> None:
        if commitment is not None:
            update = "INSERT OR REPLACE INTO setting (name, value) VALUES ('commitment', ?)"
            self._database.execute(update, (_write_json(commitment),))
        for name in sorted(self._unwritten_streams):
            self._write_stream(name)
        if self._unwritten:
            insert = "INSERT INTO batch (stream, shard, first, arrived, encryption, body) VALUES (?, ?, ?, ?, ?, ?)"
            self._database.executemany(insert, [row for stored in self._unwritten for row in self._rows(stored)])
        if sweeps:
            self._sweep()

    def _write_stream(self, name: str) -> None:
        """Write a stream's description. Delete the rows of a deleted stream of that name, if there are any."""
        state, database = self.service.state, self._database
        stream = state.streams.get(name)
        known = self._ids.get(name)
        if known is not None and known[1] is not stream:
            database.execute("DELETE FROM batch WHERE stream = ?", (known[0],))
            database.execute("DELETE FROM stream WHERE id = ?", (known[0],))
            del self._ids[name]
            known = None
        if stream is None:
            return
        description = _write_json(make_stream_row(state, stream))
        if known is not None:
            database.execute("UPDATE stream SET description = ? WHERE id = ?", (description, known[0]))
            return
        row = database.execute("INSERT INTO stream (description) VALUES (?)", (description,))
        if row.lastrowid is None:  # never happens: SQLite has an id for every row that it inserts
            raise sqlite3.InternalError("SQLite returned no id for a new row")
        self._ids[name] = (row.lastrowid, stream)

    def _rows(self, stored: Stored) -> list[tuple[object, ...]]:
        """Return the row with the records that one request put into one shard, or no row if the stream was deleted."""
        known = self._ids.get(stored.stream.name)
        if known is None or known[1] is not stored.stream:
            return []
        records = stored.records
        body = _write_batch([(record.data, _or_none(record.key)) for record in records])
        first = records[0]
        return [(known[0], stored.shard.index, stored.first, first.arrived_at, _or_none(first.encryption), body)]

    def _sweep(self) -> None:
        """Delete trimmed records. The description, written in the same transaction, contains each shard's new start."""
        state = self.service.state
        for name, (stream_id, stream) in list(self._ids.items()):
            stream.trim(state.now)
            horizon = stream.trim_horizon(state.now)
            deleted = self._database.execute("DELETE FROM batch WHERE stream = ? AND arrived < ?", (stream_id, horizon))
            if deleted.rowcount:
                self._write_stream(name)

    # ---- reading

    def _restore(self, path: str | Path, now: float) -> None:
        state = self.service.state
        account = f"{state.settings.account_id} {state.settings.region}"
        secret = self._setting("secret", state.tokens.secret)
        owner = self._setting("owner", account.encode()).decode()
        if owner != account:
            raise UsageError(f"{path} holds the streams of account and region {owner}, not {account}")
        state.tokens = Tokens(secret)
        try:
            state.commitment = _read_commitment(self._setting("commitment", _write_json(state.commitment)))
        except msgspec.MsgspecError as error:
            raise UsageError(f"{path} is damaged: {error}") from None
        self._commitment = state.commitment
        for stream_id, description in self._database.execute("SELECT id, description FROM stream ORDER BY id"):
            try:
                self._restore_stream(stream_id, _read_stream(description))
            except (msgspec.MsgspecError, _DamagedError, KeyError) as error:
                raise UsageError(f"{path} is damaged: {error}") from None
        state.keeps_stored = True
        committed_at = state.commitment.started_at or 0.0
        state.advance(max([now, committed_at, *(_latest(stream, state) for stream in state.streams.values())]))
        self._sweep_at = state.now
        self.keep()

    def _setting(self, name: str, initial: bytes) -> bytes:
        """Return a setting of the file. If the file does not have it yet, store ``initial``."""
        row = self._database.execute("SELECT value FROM setting WHERE name = ?", (name,)).fetchone()
        if row is None:
            self._database.execute("INSERT INTO setting (name, value) VALUES (?, ?)", (name, initial))
            return initial
        return bytes(row[0])

    def _restore_stream(self, stream_id: int, row: StreamRow) -> None:
        stream = restore_stream(self.service.state, row)
        self._ids[stream.name] = (stream_id, stream)
        self._restore_records(stream_id, stream)

    def _restore_records(self, stream_id: int, stream: ServerStream) -> None:
        by_index = {shard.index: shard for shard in stream.shards.values()}
        query = "SELECT shard, first, arrived, encryption, body FROM batch WHERE stream = ? ORDER BY shard, first"
        for index, first, arrived, encryption, body in self._database.execute(query, (stream_id,)):
            shard = by_index.get(index)
            if shard is None:
                continue  # the shard was closed and has expired: the next sweep deletes its rows
            second = int(arrived)
            encryption_type = encryption or msgspec.UNSET
            records: list[StoredRecord] = []
            sizes: list[int] = []
            for number, (data, key) in enumerate(_read_batch(body), first):
                if number < shard.log.next:
                    continue  # this record was trimmed, but later records of its row were not
                if not records and number != shard.log.next:
                    raise _DamagedError(f"records are missing in {shard.shard_id} of {stream.name}")
                text = str(shard.numbering.make(number, second))
                partition_key = msgspec.UNSET if key is None else key
                records.append(StoredRecord(text, arrived, data, partition_key, encryption_type))
                sizes.append(len(data) + (0 if key is None else len(key.encode())))
            if records:
                shard.log.extend(records, sizes)


class _DamagedError(Exception):
    """The data file is inconsistent."""


def _connect(path: Path) -> sqlite3.Connection:
    """Open and lock a data file. Nothing is written to a file that is not a data file of this server."""
    try:
        database = sqlite3.connect(path, isolation_level=None, timeout=0.0, check_same_thread=False)
    except sqlite3.OperationalError as error:
        raise UsageError(f"data file {path} cannot be opened: {error}") from None
    with ExitStack() as undo:
        undo.callback(database.close)
        try:
            # The lock is held until the connection is closed. The system releases it if the process dies.
            database.execute("PRAGMA locking_mode = EXCLUSIVE")
            _in_transaction(database, lambda: None, "EXCLUSIVE")
            _check_schema(database, path)
            database.execute("PRAGMA journal_mode = WAL")
            database.execute("PRAGMA synchronous = NORMAL")
            database.execute("PRAGMA wal_autocheckpoint = 4000")  # in pages; a third faster than the default of 1000
        except sqlite3.OperationalError as error:
            if "locked" in str(error):
                raise UsageError(f"data file {path} is in use by another process: one server at a time") from None
            raise UsageError(f"data file {path} cannot be used: {error}") from None
        except sqlite3.DatabaseError:
            raise UsageError(f"{path} is not a data file of Shardline's local server") from None
        undo.pop_all()
    return database


def _check_schema(database: sqlite3.Connection, path: Path) -> None:
    application = database.execute("PRAGMA application_id").fetchone()[0]
    version = database.execute("PRAGMA user_version").fetchone()[0]
    tables = database.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    if not tables and not application and not version:
        database.executescript(_SCHEMA)
    elif application != APPLICATION_ID:
        raise UsageError(f"{path} is not a data file of Shardline's local server: it belongs to another application")
    elif version > SCHEMA_VERSION:
        raise UsageError(
            f"{path} was written by a later version of Shardline: its schema version is {version}, and this version of "
            f"Shardline reads versions up to {SCHEMA_VERSION}"
        )
    elif version < SCHEMA_VERSION:
        # Earlier versions of Shardline would misread the rows that this version writes, so they must refuse the file.
        database.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")


def _in_transaction(database: sqlite3.Connection, work: Callable[[], None], kind: str = "IMMEDIATE") -> None:
    database.execute(f"BEGIN {kind}")
    try:
        work()
        database.execute("COMMIT")
    finally:
        if database.in_transaction:
            database.execute("ROLLBACK")


def _latest(stream: ServerStream, state: ServiceState) -> float:
    """Return the latest time in a stream's data. After a restart, the service's time must not be earlier."""
    resources = [*state.consumers_of(stream), *state.channels_of(stream)]
    times = [stream.created_at, *(resource.created_at for resource in resources)]
    for shard in stream.shards.values():
        times += [shard.created_at, shard.closed_at or 0.0, shard.log.arrival_of(shard.log.next - 1) or 0.0]
    return max(times)


def _or_none(value: T | msgspec.UnsetType) -> T | None:
    return None if isinstance(value, msgspec.UnsetType) else value
