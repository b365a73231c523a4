"""How do streams, records, consumers, channels and the account's settings outlive the process?

One SQLite file in WAL mode: a commit survives the death of the process (``kill -9``); the death of the machine may
take the last moments with it, and never the file's order. One row holds what one request put into one shard, so that
a request of 500 records costs a handful of rows.

Invariants:

- What was acknowledged is there after a restart: ``keep`` commits it before the reply goes out.
- Each shard's records come back in order, without gaps, with the sequence numbers and times that they had, and the
  next one goes on from there, also when all of them have been trimmed.
- Iterators and page tokens handed out before a restart stay good: their secret is kept.
- One process at a time: a second is refused. So is a file that is no such database, of a later version or of
  another account, and it is left as it was.
- What ``keep`` could not write stays with it, and goes with the next one: a full disk leaves no gap.
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
from shardline.server.stream_rows import WrittenStream, restore_stream, write_stream

if TYPE_CHECKING:
    from random import Random

T = TypeVar("T")

APPLICATION_ID: Final = 0x5348_4C4E  # "SHLN"
SCHEMA_VERSION: Final = 2  # 1: no shard had a layout (WrittenShard), which its reader takes for the layout of then
_SWEEP_EVERY: Final = 60.0
_SCHEMA: Final = f"""
BEGIN;
CREATE TABLE setting (name TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE stream (id INTEGER PRIMARY KEY AUTOINCREMENT, description BLOB NOT NULL);
CREATE TABLE batch (
    stream INTEGER NOT NULL,
    shard INTEGER NOT NULL,
    first INTEGER NOT NULL, -- the number in the shard of the first record
    arrived REAL NOT NULL,  -- when, all of them
    encryption TEXT,
    body BLOB NOT NULL,     -- MessagePack: [data, partition key or nil] of each
    PRIMARY KEY (stream, shard, first)
);
PRAGMA application_id = {APPLICATION_ID};
PRAGMA user_version = {SCHEMA_VERSION};
COMMIT;
"""


_write_json: Final = msgspec.json.Encoder().encode
_read_stream: Final = msgspec.json.Decoder(WrittenStream).decode
_read_commitment: Final = msgspec.json.Decoder(Commitment).decode
_write_batch: Final = msgspec.msgpack.Encoder().encode
_read_batch: Final = msgspec.msgpack.Decoder(list[tuple[bytes, str | None]]).decode


@final
class Storage:
    """A data file and the service that lives in it. Used by one thread at a time."""

    def __init__(self, database: sqlite3.Connection, service: Service) -> None:
        self._database = database
        self._ids: dict[str, tuple[int, ServerStream]] = {}
        self._unwritten: list[Stored] = []
        self._unwritten_streams: set[str] = set()
        self._sweep_at = service.state.now
        self._commitment = service.state.commitment
        """As it is written: the service makes another where it changes."""
        self._is_closed = False
        self.service = service

    @classmethod
    def open(cls, path: str | Path, settings: ServiceSettings, chance: "Random", now: float) -> Self:
        """The service as the file has it; a new one where there is no file.

        Raises:
            UsageError: the file cannot be used.
        """
        database = _connect(Path(path))
        with ExitStack() as undo:
            undo.callback(database.close)
            storage = cls(database, Service(settings, chance, now))
            try:
                storage._restore(path, now)
            except sqlite3.DatabaseError as error:
                raise UsageError(f"{path} is damaged: {error}") from None
            undo.pop_all()
        return storage

    def close(self) -> None:
        """Write what is left, and let go of the file. Harmless when repeated."""
        if not self._is_closed:
            self.keep()
            self._database.close()
            self._is_closed = True

    # ---- writing

    def keep(self) -> None:
        """Write what the service has changed since the last time. Where nothing has, it costs nothing."""
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
            self._ids = ids  # rows that were made in vain have no ids
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
            self._database.executemany(insert, [row for one in self._unwritten for row in self._rows(one)])
        if sweeps:
            self._sweep()

    def _write_stream(self, name: str) -> None:
        """Write a stream's description, or remove a stream that is gone: by that name there may be another by now."""
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
        description = _write_json(write_stream(state, stream))
        if known is not None:
            database.execute("UPDATE stream SET description = ? WHERE id = ?", (description, known[0]))
            return
        row = database.execute("INSERT INTO stream (description) VALUES (?)", (description,))
        if row.lastrowid is None:  # by its contract SQLite gives one for every row that it inserts
            raise sqlite3.InternalError("SQLite gave no id for a new row")
        self._ids[name] = (row.lastrowid, stream)

    def _rows(self, stored: Stored) -> list[tuple[object, ...]]:
        """What one request put into one shard; nothing if the stream has gone since."""
        known = self._ids.get(stored.stream.name)
        if known is None or known[1] is not stored.stream:
            return []
        records = stored.records
        body = _write_batch([(record.data, _or_none(record.key)) for record in records])
        first = records[0]
        return [(known[0], stored.shard.index, stored.first, first.arrived_at, _or_none(first.encryption), body)]

    def _sweep(self) -> None:
        """Delete what has been trimmed. The description that goes with it says where each shard now begins."""
        state = self.service.state
        for name, (stream_id, stream) in list(self._ids.items()):
            stream.trim(state.now)
            horizon = stream.trim_horizon(state.now)
            gone = self._database.execute("DELETE FROM batch WHERE stream = ? AND arrived < ?", (stream_id, horizon))
            if gone.rowcount:
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
        """A value of the file, made when the file is."""
        row = self._database.execute("SELECT value FROM setting WHERE name = ?", (name,)).fetchone()
        if row is None:
            self._database.execute("INSERT INTO setting (name, value) VALUES (?, ?)", (name, initial))
            return initial
        return bytes(row[0])

    def _restore_stream(self, stream_id: int, told: WrittenStream) -> None:
        stream = restore_stream(self.service.state, told)
        self._ids[stream.name] = (stream_id, stream)
        self._restore_records(stream_id, stream)

    def _restore_records(self, stream_id: int, stream: ServerStream) -> None:
        by_index = {shard.index: shard for shard in stream.shards.values()}
        query = "SELECT shard, first, arrived, encryption, body FROM batch WHERE stream = ? ORDER BY shard, first"
        for index, first, arrived, encryption, body in self._database.execute(query, (stream_id,)):
            shard = by_index.get(index)
            if shard is None:
                continue  # closed and past retention: its rows go with the next sweep
            second = int(arrived)
            unset = encryption or msgspec.UNSET
            records: list[StoredRecord] = []
            sizes: list[int] = []
            for number, (data, key) in enumerate(_read_batch(body), first):
                if number < shard.log.next:
                    continue  # trimmed, though the rest of its row is not
                if not records and number != shard.log.next:
                    raise _DamagedError(f"records are missing in {shard.shard_id} of {stream.name}")
                text = str(shard.numbering.make(number, second))
                records.append(StoredRecord(text, arrived, data, msgspec.UNSET if key is None else key, unset))
                sizes.append(len(data) + (0 if key is None else len(key.encode())))
            if records:
                shard.log.extend(records, sizes)


class _DamagedError(Exception):
    """The file does not hold what it should."""


def _connect(path: Path) -> sqlite3.Connection:
    """The file, locked for us, and known to be ours; nothing is written to a file that is not."""
    try:
        database = sqlite3.connect(path, isolation_level=None, timeout=0.0, check_same_thread=False)
    except sqlite3.OperationalError as error:
        raise UsageError(f"data file {path} cannot be opened: {error}") from None
    with ExitStack() as undo:
        undo.callback(database.close)
        try:
            # Held until the connection is closed, and let go of by the system if the process dies.
            database.execute("PRAGMA locking_mode = EXCLUSIVE")
            _in_transaction(database, lambda: None, "EXCLUSIVE")
            _check_schema(database, path)
            database.execute("PRAGMA journal_mode = WAL")
            database.execute("PRAGMA synchronous = NORMAL")
            database.execute("PRAGMA wal_autocheckpoint = 4000")  # pages: a third less time than with the usual 1,000
        except sqlite3.OperationalError as error:
            if "locked" in str(error):
                raise UsageError(f"data file {path} is in use by another process: one server at a time") from None
            raise UsageError(f"data file {path} cannot be used: {error}") from None
        except sqlite3.DatabaseError:
            raise UsageError(f"{path} is no data file of Shardline's local server") from None
        undo.pop_all()
    return database


def _check_schema(database: sqlite3.Connection, path: Path) -> None:
    application = database.execute("PRAGMA application_id").fetchone()[0]
    version = database.execute("PRAGMA user_version").fetchone()[0]
    tables = database.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    if not tables and not application and not version:
        database.executescript(_SCHEMA)
    elif application != APPLICATION_ID:
        raise UsageError(f"{path} is no data file of Shardline's local server: it is the database of something else")
    elif version > SCHEMA_VERSION:
        raise UsageError(
            f"{path} was written by a later version of Shardline: its schema is {version}, and this one knows up to "
            f"{SCHEMA_VERSION}"
        )
    elif version < SCHEMA_VERSION:
        database.execute(
            f"PRAGMA user_version = {SCHEMA_VERSION}"
        )  # what is written from now on, that version misreads


def _in_transaction(database: sqlite3.Connection, work: Callable[[], None], kind: str = "IMMEDIATE") -> None:
    database.execute(f"BEGIN {kind}")
    try:
        work()
        database.execute("COMMIT")
    finally:
        if database.in_transaction:
            database.execute("ROLLBACK")


def _latest(stream: ServerStream, state: ServiceState) -> float:
    """The latest time that a stream has seen: the service's time goes on from there, whatever the clock says."""
    consumers, channels = state.consumers_of(stream), state.channels_of(stream)
    times = [stream.created_at, *(one.created_at for one in consumers), *(one.created_at for one in channels)]
    for shard in stream.shards.values():
        times += [shard.created_at, shard.closed_at or 0.0, shard.log.arrival_of(shard.log.next - 1) or 0.0]
    return max(times)


def _or_none(value: T | msgspec.UnsetType) -> T | None:
    return None if isinstance(value, msgspec.UnsetType) else value
