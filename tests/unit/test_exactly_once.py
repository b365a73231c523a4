"""Tests of ``shardline.exactly_once``, on SQLite. tests/postgres has those on PostgreSQL."""

import sqlite3
import threading

import anyio
import psycopg
import pytest

from shardline import Batch, LeaseNotHeld, Record, UsageError
from shardline.core.consumer.done_records import PRUNE_AT
from shardline.core.consumer.grant import Grant
from shardline.exactly_once import in_postgres, in_sqlite
from shardline.model.record import Origin

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request):
    return request.param


def lease(token=1, *, is_in_order=True):
    grant = Grant("shard-0", token, 1e9)
    grant.is_in_order = is_in_order
    return grant


def record(number, grant, sub_sequence=0):
    return Record(
        b"%d" % number, "k", None, str(number), sub_sequence, shard_id="shard-0", stream="orders", origin=Origin(grant)
    )


@pytest.fixture
def path(tmp_path):
    file = tmp_path / "app.db"
    connection = sqlite3.connect(file)
    connection.execute("CREATE TABLE seen (data text)")
    connection.commit()
    connection.close()
    return file


def query(path, sql):
    connection = sqlite3.connect(path)
    try:
        return connection.execute(sql).fetchall()
    finally:
        connection.close()


def seen(path):
    return [int(data) for (data,) in query(path, "SELECT data FROM seen ORDER BY rowid")]


def insert(given, connection):
    for each in given if isinstance(given, Batch) else [given]:
        connection.execute("INSERT INTO seen VALUES (?)", (each.data.decode(),))


async def insert_async(given, connection):
    await anyio.lowlevel.checkpoint()
    insert(given, connection)


def batch(grant, *numbers):
    return Batch([record(number, grant) for number in numbers], lambda _: True)


def test_a_repeated_record_takes_effect_once(path):
    grant = lease()
    with in_sqlite(insert, path, group="billing") as handle:
        for number in (1, 2, 2, 1, 3):
            handle(record(number, grant))
    assert seen(path) == [1, 2, 3]
    assert query(path, "SELECT token, sequence_number, sub_sequence FROM shardline_positions") == [(1, "3", 0)]
    assert query(path, "SELECT * FROM shardline_done") == []


def test_a_restart_goes_on_after_the_position_in_the_database(path):
    with in_sqlite(insert, path, group="billing") as handle:
        handle(batch(lease(1), 1, 2, 3))
    with in_sqlite(insert, path, group="billing") as handle:
        handle(batch(lease(2), 2, 3, 4, 5))
        handle(batch(lease(2), 4, 5))
    with in_sqlite(insert, path, group="audit") as handle:
        handle(record(1, lease(2)))
    assert seen(path) == [1, 2, 3, 4, 5, 1]


def test_a_batch_without_its_done_records_acknowledges_all_of_them(path):
    acknowledged, given = [], []
    with in_sqlite(lambda batch, _: given.append(batch), path, group="billing") as handle:
        handle(record(1, lease()))
        whole = Batch([record(1, lease()), record(2, lease())], lambda batch: acknowledged.append(batch) or True)
        handle(whole)
    assert [each.data for each in given[1]] == [b"2"]
    assert given[1].ack()
    assert acknowledged == [whole]


def test_a_worker_that_lost_its_lease_commits_nothing(path):
    old, new = lease(1), lease(2)
    with in_sqlite(insert, path, group="billing") as zombie, in_sqlite(insert, path, group="billing") as owner:
        zombie(record(1, old))
        owner(record(2, new))
        with pytest.raises(LeaseNotHeld, match="shard-0: a later owner"):
            zombie(record(2, old))
        with pytest.raises(LeaseNotHeld):  # it claims the shard again, and is refused again
            zombie(record(3, old))
        with pytest.raises(LeaseNotHeld):  # an old thread of the same worker
            owner(record(3, old))
        owner(record(3, new))
    assert seen(path) == [1, 2, 3]


def test_a_failed_handler_leaves_nothing(path):
    def fail(given, connection):
        insert(given, connection)
        raise ValueError("no")

    with in_sqlite(fail, path, group="billing") as handle, pytest.raises(ValueError, match="no"):
        handle(record(1, lease()))
    with in_sqlite(insert, path, group="billing") as handle:
        handle(record(1, lease()))
    assert seen(path) == [1]


def test_a_handler_must_not_end_the_transaction(path):
    def commit(given, connection):
        insert(given, connection)
        connection.commit()

    with in_sqlite(commit, path, group="billing") as handle, pytest.raises(UsageError, match="ended the transaction"):
        handle(record(1, lease()))


def leave_block(given, connection):
    with connection:  # commits
        insert(given, connection)


def run_script(given, connection):
    connection.executescript("INSERT INTO seen VALUES ('5')")  # commits before the script


def go_on(given, connection):
    connection.execute("COMMIT")
    insert(given, connection)


def begin_another(given, connection):
    connection.execute("ROLLBACK")
    connection.execute("BEGIN")


@pytest.mark.parametrize("handler", [leave_block, run_script, go_on, begin_another])
def test_a_handler_that_ended_the_transaction_moves_no_position(path, handler):
    with in_sqlite(handler, path, group="billing") as handle, pytest.raises(UsageError, match="ended the transaction"):
        handle(record(1, lease()))
    assert query(path, "SELECT sequence_number FROM shardline_positions") == [("0",)]


def test_a_table_of_another_program_is_left_alone(path):
    query(path, "CREATE TABLE shardline_positions (number integer)")
    with (
        in_sqlite(insert, path, group="billing") as handle,
        pytest.raises(sqlite3.OperationalError, match="has no column"),
    ):
        handle(record(1, lease()))
    assert seen(path) == []
    assert query(path, "SELECT * FROM shardline_positions") == []


def test_a_database_that_stays_locked_fails_the_record(path, monkeypatch):
    monkeypatch.setattr("shardline.exactly_once._SQLITE_TIMEOUT", 0.05)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with in_sqlite(insert, path, group="billing") as handle:
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            handle(record(1, lease()))
        other.execute("ROLLBACK")
        other.close()
        handle(record(1, lease()))
    assert seen(path) == [1]


def test_records_that_finish_out_of_order_are_remembered_until_the_watermark_passes_them(path):
    grant = lease(is_in_order=False)
    with in_sqlite(insert, path, group="billing") as handle:
        for number in range(2, PRUNE_AT + 2):
            handle(record(number, grant))
        grant.done_place = record(1, grant).sequence_number, 0  # record 1 was dead-lettered
        handle(record(PRUNE_AT + 2, grant))
    assert query(path, "SELECT sequence_number FROM shardline_positions") == [("1",)]
    grant = lease(2, is_in_order=False)
    grant.done_place = record(PRUNE_AT, grant).sequence_number, 0
    with in_sqlite(insert, path, group="billing") as handle:
        for number in range(1, PRUNE_AT + 4):
            handle(record(number, grant))
    assert seen(path) == list(range(2, PRUNE_AT + 4))
    assert query(path, "SELECT sequence_number FROM shardline_positions") == [(str(PRUNE_AT),)]
    assert len(query(path, "SELECT * FROM shardline_done")) == 3
    with in_sqlite(insert, path, group="billing") as handle:  # a later run handles the shard in order
        handle(batch(lease(3), PRUNE_AT + 3, PRUNE_AT + 4))
    assert query(path, "SELECT * FROM shardline_done") == []
    assert seen(path)[-1] == PRUNE_AT + 4


@pytest.mark.parametrize("is_in_order", [True, False])
def test_a_commit_whose_outcome_was_unknown_is_found(path, is_in_order):
    """The first handler committed, and does not know it: another copy of the handler with the same token stands for it."""
    grant = lease(is_in_order=is_in_order)
    with in_sqlite(insert, path, group="billing") as first, in_sqlite(insert, path, group="billing") as second:
        first(record(1, grant))
        second(record(2, grant))
        first(record(2, grant))
    assert seen(path) == [1, 2]


def test_a_position_that_always_changes_is_reported(path):
    def remove(given, connection):
        insert(given, connection)
        connection.execute("DELETE FROM shardline_positions")

    with in_sqlite(remove, path, group="billing") as handle, pytest.raises(RuntimeError, match="changed during each"):
        handle(record(1, lease()))
    assert seen(path) == []


def test_threads_share_a_handler(path):
    grant = lease(is_in_order=False)
    with in_sqlite(insert, path, group="billing") as handle:
        threads = [threading.Thread(target=handle, args=(record(number, grant),)) for number in range(1, 21)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(seen(path)) == list(range(1, 21))


async def test_coroutine_functions_work_alike(path):
    grant = lease(is_in_order=False)
    async with in_sqlite(insert_async, path, group="billing") as handle:
        async with anyio.create_task_group() as tasks:
            for number in range(1, 11):
                tasks.start_soon(handle, record(number, grant))
        await handle(record(3, grant))
    grant = lease(2)
    async with in_sqlite(insert_async, path, group="billing") as handle:
        await handle(batch(grant, 9, 10, 11))
        with pytest.raises(LeaseNotHeld):
            await handle(record(12, lease(1)))
    assert sorted(seen(path)) == list(range(1, 12))
    assert query(path, "SELECT sequence_number FROM shardline_positions") == [("11",)]
    assert query(path, "SELECT * FROM shardline_done") == []


async def test_a_changed_position_is_loaded_again_by_coroutines(path):
    grant = lease(is_in_order=False)
    async with in_sqlite(insert_async, path, group="b") as first, in_sqlite(insert_async, path, group="b") as second:
        await first(record(1, grant))
        await second(record(2, grant))
        await first(record(2, grant))
    assert seen(path) == [1, 2]

    async def remove(given, connection):
        connection.execute("DELETE FROM shardline_positions")

    async with in_sqlite(remove, path, group="billing") as handle:
        with pytest.raises(RuntimeError, match="changed during each"):
            await handle(record(1, lease()))


async def test_a_cancelled_handler_leaves_nothing(path):
    grant = lease()

    async def wait(given, connection):
        insert(given, connection)
        await anyio.sleep_forever()

    async with in_sqlite(wait, path, group="billing") as handle:
        with anyio.move_on_after(0.2) as scope:
            await handle(record(1, grant))
        assert scope.cancelled_caught
    async with in_sqlite(insert_async, path, group="billing") as handle:
        await handle(record(1, grant))
    assert seen(path) == [1]


def test_wrong_arguments_are_refused(path):
    with pytest.raises(UsageError, match="handler must be callable, not int"):
        in_sqlite(5, path, group="billing")
    with pytest.raises(UsageError, match="group must be the name"):
        in_sqlite(insert, path, group="")
    with pytest.raises(UsageError, match="connect must be a URL or a function that returns a connection, not int"):
        in_postgres(insert, 5, group="billing")
    with in_sqlite(insert, path, group="billing") as handle:
        for wrong in (5, Record(b"", "k")):
            with pytest.raises(UsageError, match="that a Consumer with a group has read"):
                handle(wrong)
    coroutines = []

    def forgot_async(given, connection):
        coroutines.append(insert_async(given, connection))
        return coroutines[0]

    with in_sqlite(forgot_async, path, group="billing") as handle, pytest.raises(UsageError, match="async def"):
        handle(record(1, lease()))
    coroutines[0].close()
    assert seen(path) == []


def test_a_plain_function_needs_blocking_connections():
    class Waits:
        def __await__(self):
            yield "to an event loop"

    handle = in_postgres(insert, Waits, group="billing")
    with pytest.raises(UsageError, match="connect must return a blocking connection"):
        handle(record(1, lease()))


async def test_async_postgres_needs_asyncio(anyio_backend_name):
    handle = in_postgres(insert_async, "postgresql://127.0.0.1:1/nowhere", group="billing")
    is_trio = anyio_backend_name == "trio"
    expected = UsageError if is_trio else psycopg.OperationalError
    with pytest.raises(expected, match="does not support trio" if is_trio else "connection"):
        await handle(record(1, lease()))
