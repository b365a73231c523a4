"""What can go wrong with a file that several processes share?"""

import contextlib
import json
import os
import signal
import sqlite3
import subprocess
from pathlib import Path

import anyio
import pytest
from tests.programs import command_for

from shardline.adapters.leases import sqlite as module
from shardline.adapters.leases.sqlite import APPLICATION_ID, SqliteLeases
from shardline.core.error_codes import FailureKind
from shardline.core.leases import CreateLease, DeleteLease, RenewLease, TakeLease
from shardline.model.lease import Lease

pytestmark = pytest.mark.anyio
SHARD = "shardId-000000000000"


@pytest.fixture
def path(tmp_path):
    return tmp_path / "leases.db"


@pytest.fixture
async def store(path):
    one = SqliteLeases(path, "billing", "orders", busy_timeout=0.1)
    assert await one.open() is None
    yield one
    await one.close()


# ---- processes


def start(script, *arguments):
    return subprocess.Popen([*command_for(script), *arguments], stdout=subprocess.PIPE)


TAKER = """
import sys, anyio
from pathlib import Path
from shardline.adapters.leases.sqlite import SqliteLeases
from shardline.core.leases import TakeLease
from shardline.core.error_codes import Failure
from shardline.model.lease import Lease

async def main(path, name, times):
    store = SqliteLeases(Path(path), "billing", "orders")
    failed = await store.open()
    assert failed is None, failed
    refused = 0
    while times:
        (row,) = await store.list_leases()
        answer = await store.apply(TakeLease("shardId-000000000000", name, row.fence))
        assert not isinstance(answer, Failure), answer
        times -= isinstance(answer, Lease)
        refused += not isinstance(answer, Lease)
    await store.close()
    print(refused)

anyio.run(main, sys.argv[1], sys.argv[2], int(sys.argv[3]))
"""


async def test_processes_lose_no_update(store, path):
    """Four processes take one lease from each other: the counter counts every success, and some takes were refused."""
    await store.apply(CreateLease(Lease(SHARD)))
    takers = [start(TAKER, path, f"worker-{number}", "60") for number in range(4)]
    refused = sum(int(taker.communicate(timeout=60)[0]) for taker in takers)
    assert [taker.returncode for taker in takers] == [0] * 4
    (row,) = await store.list_leases()
    assert row.counter == 240
    assert refused > 0


HOLDER = """
import sqlite3, sys, time
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("BEGIN IMMEDIATE")
connection.execute("DELETE FROM leases")
print("held", flush=True)
time.sleep(600)
"""


async def test_a_process_that_is_killed_amid_a_write_leaves_nothing_behind(store, path):
    lease = await store.apply(CreateLease(Lease(SHARD, owner="a")))
    holder = start(HOLDER, path)
    try:
        assert holder.stdout.readline() == b"held\n"
        assert await store.list_leases() == [lease]  # readers do not wait for a writer
        locked = await store.apply(RenewLease(SHARD, "a", 0))
        assert (locked.kind, locked.code, locked.maybe_received) == (FailureKind.TRANSIENT, "Locked", False)
    finally:
        os.kill(holder.pid, signal.SIGKILL)
        holder.communicate()
    assert (await store.apply(RenewLease(SHARD, "a", 0))).counter == 1


async def test_a_database_that_stays_locked_cannot_be_opened(path, monkeypatch):
    monkeypatch.setattr(module, "_OPEN_ATTEMPTS", 2)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    store = SqliteLeases(path, "billing", "orders", busy_timeout=0.05)
    assert (await store.open()).code == "Locked"
    other.close()
    assert await store.open() is None
    await store.close()


# ---- files that are not ours


async def test_what_is_no_database_is_left_alone(path):
    path.write_bytes(b"precious words, no database" * 100)
    failure = await SqliteLeases(path, "billing", "orders").open()
    assert (failure.kind, failure.code) == (FailureKind.INVALID, "NoDatabase")
    assert str(path) in failure.message
    assert path.read_bytes() == b"precious words, no database" * 100


async def test_a_database_of_another_program_is_left_alone(path):
    with sqlite3.connect(path) as other:
        other.execute("CREATE TABLE bookmarks (url)")
    other.close()
    before = path.read_bytes()
    failure = await SqliteLeases(path, "billing", "orders").open()
    assert (failure.kind, failure.code) == (FailureKind.INVALID, "ForeignDatabase")
    assert path.read_bytes() == before


async def test_an_empty_file_stays_one_for_those_who_only_look(path):
    path.touch()
    store = SqliteLeases(path, "g", "s", existing=True)
    failure = await store.open()
    assert (failure.kind, failure.code) == (FailureKind.NOT_FOUND, "NoSuchStore")
    assert "is empty" in failure.message
    await store.close()
    with contextlib.closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT count(*) FROM sqlite_master").fetchone() == (0,)


async def test_a_file_of_a_newer_version_is_left_alone(path, store):
    await store.close()
    with sqlite3.connect(path) as other:
        other.execute("PRAGMA user_version = 99")
    other.close()
    failure = await SqliteLeases(path, "billing", "orders").open()
    assert (failure.kind, failure.code) == (FailureKind.INVALID, "NewerFormat")


async def test_a_damaged_file_is_an_error_not_an_empty_store(path, store):
    for number in range(200):
        await store.apply(CreateLease(Lease(f"shardId-{number:012d}", owner="x" * 200)))
    await store.close()
    content = bytearray(path.read_bytes())
    content[4096:] = b"\xa5" * (len(content) - 4096)
    path.write_bytes(content)
    again = SqliteLeases(path, "billing", "orders")
    opened = await again.open()
    failure = opened or await again.list_leases()
    assert (failure.kind, failure.code) == (FailureKind.INVALID, "Corrupt")
    await again.close()


async def test_a_row_that_cannot_be_read_is_an_error_that_says_so(path, store):
    await store.apply(CreateLease(Lease(SHARD, owner="a")))
    with sqlite3.connect(path) as other:
        other.execute("UPDATE leases SET lease = 'nonsense'")
    other.close()
    for failure in (await store.list_leases(), await store.apply(RenewLease(SHARD, "a", 0))):
        assert (failure.kind, failure.code) == (FailureKind.INVALID, "UnreadableRow")


async def test_a_new_file_is_marked_as_ours_and_uses_the_write_ahead_log(path, store):
    await store.apply(CreateLease(Lease(SHARD)))
    other = sqlite3.connect(path)
    assert other.execute("PRAGMA application_id").fetchone() == (APPLICATION_ID,)
    assert other.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    ((group, stream, shard_id, lease),) = other.execute("SELECT * FROM leases").fetchall()
    other.close()
    assert (group, stream, shard_id) == ("billing", "orders", SHARD)
    assert json.loads(lease) == {"shard_id": SHARD, "counter": 0, "checkpoint": "TRIM_HORIZON"}


async def test_what_a_newer_version_wrote_into_a_row_stays(path, store):
    await store.apply(CreateLease(Lease(SHARD)))
    with sqlite3.connect(path) as other:
        other.execute("""UPDATE leases SET lease = json_set(lease, '$.added_in_2030', 'x')""")
    taken = await store.apply(TakeLease(SHARD, "a", Lease(SHARD).fence))
    await store.apply(RenewLease(SHARD, "a", taken.counter))
    assert json.loads(other.execute("SELECT lease FROM leases").fetchone()[0])["added_in_2030"] == "x"
    other.close()


# ---- places


async def test_a_network_file_system_is_refused(path, monkeypatch):
    monkeypatch.setattr(module, "read_mount_table", lambda: f"nas:/x {path.parent.resolve()} nfs4 rw 0 0\n")
    failure = await SqliteLeases(path, "billing", "orders").open()
    assert (failure.kind, failure.code) == (FailureKind.INVALID, "NetworkFileSystem")
    assert "nfs4" in failure.message
    assert not path.exists()


async def test_a_link_is_followed_to_where_the_file_lies(path, tmp_path, monkeypatch):
    (tmp_path / "remote").mkdir()
    path.symlink_to(tmp_path / "remote" / "leases.db")
    monkeypatch.setattr(module, "read_mount_table", lambda: f"nas:/x {tmp_path.resolve()}/remote nfs rw 0 0\n")
    assert (await SqliteLeases(path, "billing", "orders").open()).code == "NetworkFileSystem"


@pytest.mark.parametrize("replaced", [True, False])
async def test_a_file_that_was_taken_away_is_noticed(path, store, tmp_path, replaced):
    await store.apply(CreateLease(Lease(SHARD, owner="a")))
    path.rename(tmp_path / "elsewhere.db")
    if replaced:
        path.touch()
    for failure in (await store.list_leases(), await store.apply(RenewLease(SHARD, "a", 0))):
        assert (failure.kind, failure.code) == (FailureKind.INVALID, "FileReplaced")


async def test_a_directory_that_is_not_there_is_named(tmp_path):
    failure = await SqliteLeases(tmp_path / "missing" / "leases.db", "billing", "orders").open()
    assert (failure.kind, failure.code) == (FailureKind.DENIED, "CannotOpen")
    assert "missing/leases.db" in failure.message


async def test_a_relative_path_is_fixed_when_the_store_is_made(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    store = SqliteLeases(Path("leases.db"), "billing", "orders")
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "other")
    assert await store.open() is None
    await store.close()
    assert (tmp_path / "leases.db").exists()


# ---- failures


async def test_a_full_disk_is_a_failure_and_then_it_goes_on(store):
    await store.apply(CreateLease(Lease(SHARD)))
    pages = store._connection.execute("PRAGMA page_count").fetchone()[0]
    store._connection.execute(f"PRAGMA max_page_count = {pages}").fetchone()
    big = CreateLease(Lease("shardId-000000000001", owner="x" * 50_000))
    failure = await store.apply(big)
    assert (failure.kind, failure.code, failure.retryable) == (FailureKind.LIMIT_EXCEEDED, "DiskFull", True)
    assert len(await store.list_leases()) == 1
    store._connection.execute("PRAGMA max_page_count = 100000").fetchone()
    assert await store.apply(big) == big.lease


async def test_a_read_only_file_is_a_failure(store, path):
    await store.apply(CreateLease(Lease(SHARD)))
    store._connection.execute("PRAGMA query_only = 1")
    failure = await store.apply(CreateLease(Lease("shardId-000000000001")))
    assert (failure.kind, failure.code) == (FailureKind.DENIED, "ReadOnly")


async def test_what_sqlite_has_no_name_for_is_a_failure(store):
    store._connection.execute("DROP TABLE leases")
    failure = await store.list_leases()
    assert (failure.kind, failure.code) == (FailureKind.INVALID, "SqliteError")


async def test_a_store_that_is_not_open_says_so(path):
    store = SqliteLeases(path, "billing", "orders")
    for failure in (await store.list_leases(), await store.apply(CreateLease(Lease(SHARD))), await store.list_groups()):
        assert (failure.kind, failure.code) == (FailureKind.INVALID, "NotOpen")


async def test_calls_at_once_take_turns(store):
    async with anyio.create_task_group() as group:
        for number in range(50):
            group.start_soon(store.apply, CreateLease(Lease(f"shardId-{number:012d}")))
    assert len(await store.list_leases()) == 50


async def test_of_many_operations_one_row_that_cannot_be_read_fails_its_own(store, path):
    await store.apply_many([CreateLease(Lease(name)) for name in "abc"])
    with sqlite3.connect(path) as raw:
        raw.execute("UPDATE leases SET lease = 'nonsense' WHERE shard_id = 'b'")
    raw.close()
    answers = await store.apply_many([TakeLease(name, "me", Lease(name).fence) for name in "abc"])
    assert [getattr(answer, "owner", None) for answer in answers] == ["me", None, "me"]
    assert (answers[1].kind, answers[1].code) == (FailureKind.INVALID, "UnreadableRow")
    with sqlite3.connect(path) as raw:
        assert raw.execute("SELECT count(*) FROM leases WHERE lease LIKE '%\"me\"%'").fetchone() == (2,)
    raw.close()


async def test_many_operations_fail_together_where_the_file_is_locked(store, path):
    await store.apply_many([CreateLease(Lease(name)) for name in "ab"])
    with sqlite3.connect(path, isolation_level=None) as raw:
        raw.execute("BEGIN IMMEDIATE")
        answers = await store.apply_many([TakeLease(name, "me", Lease(name).fence) for name in "ab"])
        raw.execute("ROLLBACK")
    raw.close()
    assert [(answer.code, answer.maybe_received) for answer in answers] == [("Locked", False)] * 2
    assert [row.owner for row in await store.list_leases()] == [None, None]


async def test_a_listing_shows_what_others_wrote_since_the_last(store, path):
    other = SqliteLeases(path, "billing", "orders")
    assert await other.open() is None
    await store.apply_many([CreateLease(Lease(name)) for name in "abc"])
    for owner in ("first", "second"):
        (row,) = [row for row in await store.list_leases() if row.shard_id == "b"]
        await other.apply(TakeLease("b", owner, row.fence))
        assert [row.owner for row in await store.list_leases()] == [None, owner, None]
    await other.apply_many([DeleteLease("b", 2), CreateLease(Lease("d"))])
    assert [row.shard_id for row in await store.list_leases()] == ["a", "c", "d"]
    await other.close()
