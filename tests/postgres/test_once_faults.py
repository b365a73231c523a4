"""What does ``exactly_once`` do if a handler, its connection or the database behaves badly?"""

import contextlib
import json
import re
import signal
import threading
from pathlib import Path

import anyio
import psycopg
import pytest
from psycopg.rows import dict_row

from shardline import Batch, Consumer, ConsumerConfig, Producer, Record, UsageError
from shardline.core.consumer.grant import Grant
from shardline.exactly_once import in_postgres
from shardline.model.record import Origin
from shardline.testing import LocalKinesis

pytestmark = pytest.mark.anyio
GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "consumer" / "exactly-once.md"


@pytest.fixture(params=["asyncio"])
def anyio_backend(request):
    return request.param


def lease(token=1):
    grant = Grant("shard-0", token, 1e9)
    grant.is_in_order = True
    return grant


def record(number, grant=None):
    origin = Origin(grant or lease())
    return Record(b"%d" % number, "k", None, str(number), shard_id="shard-0", stream="orders", origin=origin)


def batch(*numbers):
    grant = lease()
    return Batch([record(number, grant) for number in numbers], lambda _: True)


@pytest.fixture
def raw(database):
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("CREATE TABLE seen (number integer)")
        yield connection


def seen(raw):
    return [number for (number,) in raw.execute("SELECT number FROM seen ORDER BY number").fetchall()]


def positions(raw):
    return [number for (number,) in raw.execute("SELECT sequence_number FROM shardline_positions").fetchall()]


def insert(given, connection):
    for each in given if isinstance(given, Batch) else [given]:
        connection.execute("INSERT INTO seen VALUES (%s)", (int(each.data),))


async def insert_async(given, connection):
    for each in given if isinstance(given, Batch) else [given]:
        await connection.execute("INSERT INTO seen VALUES (%s)", (int(each.data),))


# ---- connections


class RawByDefault(psycopg.Connection):
    def __init__(self, *arguments, **settings):
        super().__init__(*arguments, **settings)
        self.cursor_factory = psycopg.RawCursor


async def test_rows_and_cursors_of_any_kind(database, raw):
    def as_dicts():
        return psycopg.connect(database, row_factory=dict_row)

    def with_raw_cursors():
        return RawByDefault.connect(database)

    async def as_dicts_async():
        return await psycopg.AsyncConnection.connect(database, row_factory=dict_row)

    with in_postgres(insert, as_dicts, group="a") as handle:
        handle(batch(1, 2))
        handle(batch(2, 3))
    with in_postgres(
        lambda given, connection: connection.execute("INSERT INTO seen VALUES ($1)", (int(given.data),)),
        with_raw_cursors,
        group="b",
    ) as handle:
        handle(record(4))
    async with in_postgres(insert_async, as_dicts_async, group="c") as handle:
        await handle(batch(5, 6))
        await handle(batch(6, 7))
    assert seen(raw) == [1, 2, 3, 4, 5, 6, 7]


@pytest.mark.parametrize("is_autocommit", [True, False])
async def test_connections_with_and_without_autocommit(database, raw, is_autocommit):
    def connect():
        return psycopg.connect(database, autocommit=is_autocommit)

    async def connect_async():
        return await psycopg.AsyncConnection.connect(database, autocommit=is_autocommit)

    def fail(given, connection):
        insert(given, connection)
        raise ValueError("no")

    with in_postgres(fail, connect, group="a") as handle, pytest.raises(ValueError, match="no"):
        handle(record(1))
    with in_postgres(insert, connect, group="a") as handle:
        handle(record(1))
    async with in_postgres(insert_async, connect_async, group="b") as handle:
        await handle(record(2))
    assert seen(raw) == [1, 2]


def test_a_connection_with_an_open_transaction_is_refused(database, raw):
    """All transactions on it would be savepoints, and nothing would ever be committed."""
    opened = []

    def connect():
        opened.append(psycopg.connect(database))
        opened[-1].execute("SET search_path TO public")
        return opened[-1]

    with in_postgres(insert, connect, group="a") as handle, pytest.raises(UsageError, match="this one is INTRANS"):
        handle(record(1))
    assert opened[0].closed
    assert seen(raw) == []


def test_a_closed_connection_is_refused(database, raw):
    def connect():
        connection = psycopg.connect(database)
        connection.close()
        return connection

    with in_postgres(insert, connect, group="a") as handle, pytest.raises(UsageError, match="this one is UNKNOWN"):
        handle(record(1))


def test_a_connection_that_another_handler_uses_is_refused(database, raw):
    shared = psycopg.connect(database)
    has_begun, may_end = threading.Event(), threading.Event()

    def wait(given, connection):
        insert(given, connection)
        has_begun.set()
        assert may_end.wait(30)

    def lose():
        with pytest.raises(psycopg.OperationalError):  # the refused connection was closed
            handle(record(1))

    with in_postgres(wait, lambda: shared, group="a") as handle:
        thread = threading.Thread(target=lose)
        thread.start()
        assert has_begun.wait(30)
        with pytest.raises(UsageError, match="this one is INTRANS"):
            handle(Record(b"2", "k", None, "2", shard_id="shard-1", stream="orders", origin=Origin(lease())))
        may_end.set()
        thread.join()
    with in_postgres(insert, database, group="a") as handle:
        handle(record(1))
    assert seen(raw) == [1]


async def test_pgbouncer_in_transaction_mode(pgbouncer_url, server, unique):
    """Each transaction may get another session of the server."""
    server.execute(f"CREATE TABLE {unique} (number integer)")

    def add(given, connection):
        for each in given:
            connection.execute(f"INSERT INTO {unique} VALUES (%s)", (int(each.data),))

    async def add_async(given, connection):
        for each in given:
            await connection.execute(f"INSERT INTO {unique} VALUES (%s)", (int(each.data),))

    with in_postgres(add, pgbouncer_url, group=f"{unique}-a") as handle:
        for first in range(0, 100, 5):
            handle(batch(*range(first + 1, first + 6)))
    async with in_postgres(add_async, pgbouncer_url, group=f"{unique}-b") as handle:
        for first in range(100, 200, 5):
            await handle(batch(*range(first + 1, first + 6)))
    found = server.execute(f"SELECT number FROM {unique} ORDER BY number")
    assert [number for (number,) in found] == list(range(1, 201))


def test_a_connection_of_a_pool_is_refused_and_given_back(database, raw):
    """Otherwise a pool of one connection would be empty after the first error."""
    given_back = []

    class Pool:
        def putconn(self, connection):
            given_back.append(connection)

    def getconn():
        connection = psycopg.connect(database)
        connection._pool = Pool()  # as psycopg_pool does
        return connection

    with in_postgres(insert, getconn, group="a") as handle, pytest.raises(UsageError, match="connection of a pool"):
        handle(record(1))
    assert [connection.closed for connection in given_back] == [False]
    given_back[0].close()
    assert seen(raw) == []


async def test_everything_goes_through_a_single_connection_to_the_server(narrow_url, raw):
    """The leases, and handlers side by side, behind a pgbouncer with a pool of one connection."""
    with LocalKinesis(shards=2, stream="orders") as kinesis:
        place = {"endpoint_url": kinesis.endpoint_url, "region": kinesis.region, "credentials": kinesis.credentials}
        async with Producer("orders", **place) as producer:
            await producer.put_many([(f"key-{number % 7}", b"%d" % number) for number in range(100)])
        for handler, count in ((insert, 100), (insert_async, 200)):
            group = f"billing-{count}"
            async with (
                Consumer("orders", group=group, store=narrow_url, until="latest", **place) as consumer,
                contextlib.AsyncExitStack() as stack,
            ):
                handle = in_postgres(handler, narrow_url, group=group)
                stack.callback(handle.close) if handler is insert else stack.push_async_callback(handle.close)
                await consumer.run(handle, concurrency=4, order="key")
            assert len(seen(raw)) == count
    assert seen(raw) == sorted([*range(100), *range(100)])


# ---- connections that end


def test_a_restart_of_the_server_fails_no_record_for_its_idle_connections(start_server):
    """Four handlers have worked side by side, and then one shard is left. Each idle connection is found to be lost."""
    server = start_server()
    server.execute("CREATE TABLE seen (number integer)")
    together = threading.Barrier(4)
    is_alone = threading.Event()
    used = set()

    def work(given, connection):
        insert(given, connection)
        used.add(id(connection))
        if not is_alone.is_set():
            together.wait(30)

    given = [
        Record(b"%d" % number, "k", None, "1", shard_id=f"shard-{number}", stream="orders", origin=Origin(lease()))
        for number in range(4)
    ]
    with in_postgres(work, server.url(), group="a") as handle:
        threads = [threading.Thread(target=handle, args=(each,)) for each in given]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(used) == 4
        is_alone.set()
        server.stop()
        with pytest.raises(psycopg.OperationalError, match="refused"):  # the server is down: left to the policy
            handle(record(5))
        server.start()
        handle(record(5))
        server.stop(signal.SIGKILL)
        server.start()
        handle(record(6))
    assert [number for (number,) in server.execute("SELECT number FROM seen ORDER BY number")] == [0, 1, 2, 3, 5, 6]


async def test_a_restart_of_the_server_fails_no_record_of_an_async_handler(start_server):
    server = start_server()
    server.execute("CREATE TABLE seen (number integer)")

    async def add(given, connection):
        await connection.execute("INSERT INTO seen VALUES (%s)", (int(given.data),))

    async with in_postgres(add, server.url(), group="a") as handle:
        await handle(record(1))
        server.stop()
        server.start()
        await handle(record(2))
    assert [number for (number,) in server.execute("SELECT number FROM seen ORDER BY number")] == [1, 2]


def test_a_handler_that_closes_its_connection_commits_nothing(database, raw):
    is_closing = [True]

    def close(given, connection):
        insert(given, connection)
        if is_closing.pop():
            is_closing.append(False)
            connection.close()
        else:
            is_closing.append(False)

    with in_postgres(close, database, group="a") as handle:
        with pytest.raises(psycopg.OperationalError, match="closed"):
            handle(record(1))
        assert seen(raw) == []
        handle(record(1))
    assert seen(raw) == [1]


def test_a_connection_that_breaks_in_the_handler_is_a_failure_of_the_record(database, raw):
    """Otherwise a handler that always breaks its connection would be called forever."""
    calls = []

    def end(given, connection):
        calls.append(given)
        raw.execute("SELECT pg_terminate_backend(%s)", (connection.info.backend_pid,))
        insert(given, connection)

    with in_postgres(end, database, group="a") as handle:
        for _ in range(2):
            with pytest.raises(psycopg.OperationalError):
                handle(record(1))
    assert len(calls) == 2
    assert seen(raw) == []


def test_a_handler_that_changes_the_schema_or_the_role_fails_and_writes_nothing(database, raw):
    """Shardline's tables are not found, or must not be read. With the setting taken back, the handler succeeds."""
    raw.execute("CREATE SCHEMA tenant")
    raw.execute("CREATE TABLE tenant.seen (number integer)")

    def change(given, connection):
        connection.execute("SET LOCAL search_path TO tenant")
        insert(given, connection)
        if is_tidy:
            connection.execute("RESET search_path")

    is_tidy = False
    with in_postgres(change, database, group="a") as handle:
        with pytest.raises(psycopg.errors.UndefinedTable, match="shardline_positions"):
            handle(record(1))
        assert raw.execute("SELECT count(*) FROM tenant.seen").fetchone() == (0,)
        is_tidy = True
        handle(record(1))
    assert raw.execute("SELECT number FROM tenant.seen").fetchall() == [(1,)]
    assert seen(raw) == []


# ---- handlers that end the transaction


@pytest.mark.parametrize("word", ["COMMIT", "ROLLBACK"])
@pytest.mark.parametrize("is_autocommit", [True, False])
@pytest.mark.parametrize("goes_on", [True, False])
def test_a_handler_that_ends_the_transaction_by_sql_moves_no_position(database, raw, word, is_autocommit, goes_on):
    def end(given, connection):
        insert(given, connection)
        connection.execute(word)
        if goes_on:
            insert(given, connection)

    def connect():
        return psycopg.connect(database, autocommit=is_autocommit)

    ended = pytest.raises(UsageError, match="the handler ended the transaction")
    with in_postgres(end, connect, group="a") as handle, ended:
        handle(record(1))
    assert positions(raw) == ["0"]


async def test_an_async_handler_that_ends_the_transaction(database, raw):
    async def by_sql(given, connection):
        await connection.execute("COMMIT")

    async def by_psycopg(given, connection):
        await connection.commit()

    async with in_postgres(by_sql, database, group="a") as handle:
        with pytest.raises(UsageError, match="the handler ended the transaction"):
            await handle(record(1))
    async with in_postgres(by_psycopg, database, group="a") as handle:
        with pytest.raises(psycopg.ProgrammingError, match="commit"):
            await handle(record(1))
    assert positions(raw) == ["0"]


def test_a_handler_may_use_savepoints(database, raw):
    def try_both(given, connection):
        insert(given, connection)
        try:
            with connection.transaction():
                connection.execute("INSERT INTO seen VALUES ('not a number')")
        except psycopg.DataError:
            connection.execute("INSERT INTO seen VALUES (10)")

    with in_postgres(try_both, database, group="a") as handle:
        handle(record(1))
    assert seen(raw) == [1, 10]


def test_a_handler_that_hides_an_error_of_the_database_commits_nothing(database, raw):
    def hide(given, connection):
        insert(given, connection)
        with contextlib.suppress(psycopg.DataError):
            connection.execute("INSERT INTO seen VALUES ('not a number')")

    with in_postgres(hide, database, group="a") as handle, pytest.raises(psycopg.errors.InFailedSqlTransaction):
        handle(record(1))
    assert seen(raw) == []
    assert positions(raw) == ["0"]


# ---- handlers that are cancelled


def sessions(raw):
    """The statements that the server executes for others."""
    found = raw.execute("SELECT query FROM pg_stat_activity WHERE state = 'active' AND pid <> pg_backend_pid()")
    return [query for (query,) in found.fetchall()]


async def test_the_statement_of_a_cancelled_handler_ends_on_the_server(database, raw):
    """Otherwise it would keep its locks, and the next owner of the shard would wait for it."""

    async def hang(given, connection):
        await insert_async(given, connection)
        await connection.execute("LOCK TABLE seen")
        await connection.execute("SELECT pg_sleep(60)")

    async with in_postgres(hang, database, group="a") as handle:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(handle, record(1))
            with anyio.fail_after(30):
                while not any("pg_sleep" in query for query in sessions(raw)):  # noqa: ASYNC110 - in the server
                    await anyio.sleep(0.05)
            tasks.cancel_scope.cancel()
        assert sessions(raw) == []
    async with in_postgres(insert_async, database, group="a") as handle:
        with anyio.fail_after(20):
            await handle(record(1, lease(2)))
    assert seen(raw) == [1]


async def test_a_worker_that_loses_its_lease_in_a_transaction_neither_commits_nor_blocks_the_next_owner(database, raw):
    raw.execute("CREATE TABLE totals (count integer)")
    raw.execute("INSERT INTO totals VALUES (0)")
    workers, has_begun = [], anyio.Event()

    async def add(given, connection):
        await insert_async(given, connection)
        await connection.execute("UPDATE totals SET count = count + 1")
        workers.append(given.lease.token)
        if len(workers) == 1:
            has_begun.set()
            await connection.execute("SELECT pg_sleep(60)")

    with LocalKinesis(shards=1, stream="orders") as kinesis:
        place = {"endpoint_url": kinesis.endpoint_url, "region": kinesis.region, "credentials": kinesis.credentials}
        async with Producer("orders", **place) as producer:
            await producer.put(b"1", key="k")

        async def work(name):
            config = ConsumerConfig(lease_duration=2.0, scan_interval=0.2)
            handle = in_postgres(add, database, group="billing")
            async with (
                handle,
                Consumer("orders", group="billing", store=database, worker_id=name, config=config, **place) as consumer,
            ):
                await consumer.run(handle)

        with anyio.fail_after(45):  # less than the statement takes
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(work, "a")
                await has_begun.wait()
                ((text,),) = raw.execute("SELECT lease FROM shardline_leases").fetchall()
                row = json.loads(text)
                row |= {"owner": "another", "counter": row["counter"] + 1}
                raw.execute("UPDATE shardline_leases SET lease = %s", (json.dumps(row),))
                tasks.start_soon(work, "b")
                while not seen(raw):  # noqa: ASYNC110 - a table
                    await anyio.sleep(0.05)
                tasks.cancel_scope.cancel()
    assert seen(raw) == [1]
    assert raw.execute("SELECT count FROM totals").fetchone() == (1,)
    assert workers[-1] > workers[0]


async def test_an_exit_in_an_async_handler_leaves_nothing_and_is_raised(database, raw):
    async def leave(given, connection):
        await insert_async(given, connection)
        raise SystemExit(3)

    async with in_postgres(leave, database, group="a") as handle:
        with pytest.raises(SystemExit):
            await handle(record(1))
    assert seen(raw) == []


# ---- transactions that fail


def test_a_serialization_failure_is_tried_again(database, raw):
    raw.execute("CREATE TABLE total (count integer)")
    raw.execute("INSERT INTO total VALUES (0)")
    calls = []

    def add(given, connection):
        (count,) = connection.execute("SELECT count FROM total").fetchone()
        if not calls:
            raw.execute("UPDATE total SET count = count + 10")
        calls.append(count)
        connection.execute("UPDATE total SET count = %s", (count + 1,))

    def connect():
        connection = psycopg.connect(database)
        connection.isolation_level = psycopg.IsolationLevel.SERIALIZABLE
        return connection

    with in_postgres(add, connect, group="a") as handle:
        handle(record(1))
    assert calls == [0, 10]
    assert raw.execute("SELECT count FROM total").fetchone() == (11,)


def test_a_deadlock_is_tried_again(database, raw):
    raw.execute("CREATE TABLE total (name text, count integer)")
    raw.execute("INSERT INTO total VALUES ('a', 0), ('b', 0)")
    both = threading.Barrier(2)
    calls = []

    def add(given, connection):
        names = ("a", "b") if given.shard_id == "shard-0" else ("b", "a")
        calls.append(given.shard_id)
        is_first = len(calls) <= 2
        connection.execute("UPDATE total SET count = count + 1 WHERE name = %s", names[:1])
        if is_first:
            both.wait(30)
        connection.execute("UPDATE total SET count = count + 1 WHERE name = %s", names[1:])

    given = [
        Record(b"1", "k", None, "1", shard_id=name, stream="orders", origin=Origin(Grant(name, 1, 1e9)))
        for name in ("shard-0", "shard-1")
    ]
    with in_postgres(add, database, group="a") as handle:
        threads = [threading.Thread(target=handle, args=(each,)) for each in given]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(calls) == 3, "one of the two was chosen to be rolled back"
    assert raw.execute("SELECT name, count FROM total ORDER BY name").fetchall() == [("a", 2), ("b", 2)]


def test_a_failure_that_always_comes_again_is_left_to_the_policy_of_the_run(database, raw):
    calls = []

    def fail(given, connection):
        calls.append(given)
        connection.execute("DO $$ BEGIN RAISE EXCEPTION 'again' USING ERRCODE = '40001'; END $$")

    with in_postgres(fail, database, group="a") as handle, pytest.raises(psycopg.errors.SerializationFailure):
        handle(record(1))
    assert len(calls) == 3


def test_a_statement_that_takes_too_long_leaves_nothing(database, raw):
    def slow(given, connection):
        insert(given, connection)
        connection.execute("SELECT pg_sleep(30)")

    def connect():
        return psycopg.connect(database, options="-c statement_timeout=200")

    with in_postgres(slow, connect, group="a") as handle, pytest.raises(psycopg.errors.QueryCanceled):
        handle(record(1))
    with in_postgres(insert, connect, group="a") as handle:
        handle(record(1))
    assert seen(raw) == [1]


def test_tables_that_were_dropped_are_created_again(database, raw):
    with in_postgres(insert, database, group="a") as handle:
        handle(record(1))
        raw.execute("DROP TABLE shardline_positions, shardline_done")
        with pytest.raises(psycopg.errors.UndefinedTable):
            handle(record(2))
        handle(record(2))
    assert seen(raw) == [1, 2]
    assert positions(raw) == ["2"]


def test_a_table_of_another_program_is_left_alone(database, raw):
    raw.execute("CREATE TABLE shardline_positions (number integer)")
    with in_postgres(insert, database, group="a") as handle, pytest.raises(psycopg.errors.UndefinedColumn):
        handle(record(1))
    assert seen(raw) == []
    assert raw.execute("SELECT count(*) FROM shardline_positions").fetchone() == (0,)


def test_the_permissions_of_the_guide_suffice_and_fewer_do_not(database, raw, unique):
    raw.execute(f"CREATE ROLE {unique} LOGIN")
    raw.execute(f"GRANT INSERT ON seen TO {unique}")
    url = database.replace("postgres@", f"{unique}@")
    with in_postgres(insert, url, group="a") as handle, pytest.raises(psycopg.errors.InsufficientPrivilege):
        handle(record(1))
    (statements,) = re.findall(r"```sql\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    raw.execute(statements.replace("TO worker", f"TO {unique}").encode())
    with in_postgres(insert, url, group="a") as handle:
        handle(record(1))
    assert seen(raw) == [1]


def test_names_with_quotes_and_schemas(database, raw):
    raw.execute('CREATE SCHEMA "my ""app"')

    def connect():
        return psycopg.connect(database, options='-c search_path="my\\ ""app",public')

    name = "a'; DROP TABLE seen; -- %s \"ü"
    given = [
        Record(b"1", "k", None, "1", shard_id=f"s{name}", stream=f"o{name}", origin=Origin(lease())) for _ in range(2)
    ]
    with in_postgres(insert, connect, group=name) as handle:
        for each in given:
            handle(each)
    assert seen(raw) == [1]
    found = raw.execute('SELECT consumer_group, stream, shard_id FROM "my ""app".shardline_positions').fetchall()
    assert found == [(name, f"o{name}", f"s{name}")]
