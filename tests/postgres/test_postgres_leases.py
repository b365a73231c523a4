"""Does the store in PostgreSQL fulfil the published contract, also behind pgbouncer, and what can go wrong?"""

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import threading
import time
from pathlib import Path

import anyio
import psycopg
import pytest

from shardline import UsageError
from shardline.adapters.aws.aws_service import AwsAccess
from shardline.adapters.leases.lease_rows import encode_row
from shardline.adapters.leases.postgres import TABLE, PostgresLeases
from shardline.adapters.leases.store_urls import lease_catalog, lease_store
from shardline.core.error_codes import Failure, FailureKind
from shardline.core.leases import CommitCheckpoint, CreateLease, DeleteLease, Refused, RenewLease, TakeLease
from shardline.model.lease import Checkpoint, Lease
from shardline.model.position import at_sequence_number
from shardline.testing import BatchingLeaseStoreContract

pytestmark = pytest.mark.anyio
SHARD = "shardId-000000000000"
AWS = AwsAccess(wall_time=time.time)


class TestPostgres(BatchingLeaseStoreContract):
    @pytest.fixture
    def make_store(self, database):
        return lambda group, stream: lease_store(database, group=group, stream=stream, aws=AWS)


class TestBehindPgbouncer(BatchingLeaseStoreContract):
    @pytest.fixture
    def make_store(self, pgbouncer_url):
        return lambda group, stream: lease_store(pgbouncer_url, group=group, stream=stream, aws=AWS)


@contextlib.asynccontextmanager
async def opened(url, group="billing", **settings):
    store = PostgresLeases(url, group, "orders", **settings)
    try:
        assert await store.open() is None
        yield store
    finally:
        await store.close()


@pytest.fixture
async def store(database):
    async with opened(database) as made:
        yield made


@pytest.fixture
def raw(database):
    with psycopg.connect(database, autocommit=True) as connection:
        yield connection


def put_row(raw, text, shard_id=SHARD):
    raw.execute(
        f"INSERT INTO {TABLE} VALUES ('billing', 'orders', %s, %s) "
        "ON CONFLICT (consumer_group, stream, shard_id) DO UPDATE SET lease = excluded.lease",
        (shard_id, text),
    )


async def test_rows_are_readable(store, raw):
    await store.apply(CreateLease(Lease(SHARD)))
    (row,) = raw.execute(f"SELECT * FROM {TABLE}").fetchall()
    assert row[:3] == ("billing", "orders", SHARD)
    assert json.loads(row[3]) == {"shard_id": SHARD, "counter": 0, "checkpoint": "TRIM_HORIZON"}


async def test_nothing_is_refused_because_of_a_cached_row(store, raw):
    await store.apply(CreateLease(Lease(SHARD, owner="b")))
    put_row(raw, encode_row(Lease(SHARD, counter=7, owner="a")).decode())
    assert (await store.apply(RenewLease(SHARD, "a", 7))).counter == 8
    raw.execute(f"DELETE FROM {TABLE}")
    assert await store.apply(CreateLease(Lease(SHARD))) == Lease(SHARD)
    put_row(raw, "nonsense")
    assert (await store.apply(RenewLease(SHARD, "a", 0))).code == "UnreadableRow"
    assert (await store.list_leases()).code == "UnreadableRow"
    put_row(raw, encode_row(Lease(SHARD, counter=3, owner="a")).decode())
    assert (await store.apply(RenewLease(SHARD, "a", 3))).counter == 4
    raw.execute(f"DELETE FROM {TABLE}")
    assert await store.apply(DeleteLease(SHARD, 4)) is None
    assert await store.apply(RenewLease(SHARD, "a", 4)) == Refused(None)


async def test_a_commit_that_waited_for_another_writer_is_decided_again(store, database):
    """Another worker holds the lock of the row while our write arrives. Its commit stays, and ours is refused."""
    await store.apply(CreateLease(Lease(SHARD, owner="a")))
    commit = CommitCheckpoint(SHARD, "a", 0, Checkpoint(at_sequence_number("9")))
    theirs = Lease(SHARD, owner="a", counter=1, checkpoint=Checkpoint(at_sequence_number("5")))
    answers = []
    with psycopg.connect(database) as other:
        other.execute(f"UPDATE {TABLE} SET lease = %s", (encode_row(theirs).decode(),))

        async def write():
            answers.append(await store.apply(commit))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(write)
            await anyio.sleep(0.3)
            assert answers == []
            other.commit()
    assert answers == [Refused(theirs)]


async def test_two_workers_that_write_the_same_rows_in_opposite_orders_do_not_deadlock(database):
    names = [f"shard-{number:03}" for number in range(40)]
    async with opened(database) as first, opened(database) as second:
        await first.apply_many([CreateLease(Lease(name, owner="a")) for name in names])
        counts = {"done": 0}

        async def write(store, order):
            for _ in range(15):
                rows = {row.shard_id: row.counter for row in await store.list_leases()}
                answers = await store.apply_many([RenewLease(name, "a", rows[name]) for name in order])
                assert not [answer for answer in answers if isinstance(answer, Failure)]
                counts["done"] += sum(isinstance(answer, Lease) for answer in answers)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(write, first, names)
            tasks.start_soon(write, second, names[::-1])
        assert sum(row.counter for row in await first.list_leases()) == counts["done"]


async def test_many_threads_of_writers_lose_no_swap(database):
    """Each renewal that was accepted added exactly 1 to the counter."""
    async with contextlib.AsyncExitStack() as stack:
        stores = [await stack.enter_async_context(opened(database)) for _ in range(5)]
        await stores[0].apply(CreateLease(Lease(SHARD, owner="a")))
        accepted = []

        async def renew(store):
            for _ in range(30):
                (row,) = await store.list_leases()
                answer = await store.apply(RenewLease(SHARD, "a", row.counter))
                assert isinstance(answer, Lease | Refused), answer
                accepted.append(isinstance(answer, Lease))

        async with anyio.create_task_group() as tasks:
            for store in stores:
                tasks.start_soon(renew, store)
        assert (await stores[0].list_leases())[0].counter == sum(accepted)


def server_time(raw):
    return int(raw.execute("SELECT trunc(extract(epoch FROM clock_timestamp()) * 1000)").fetchone()[0])


def take(row, by="a"):
    return TakeLease(SHARD, by, row.fence, floor=1)


async def test_a_token_is_no_less_than_the_servers_time(store, raw):
    row = await store.apply(CreateLease(Lease(SHARD)))
    before = server_time(raw)
    taken = await store.apply(take(row))
    assert before <= taken.counter <= server_time(raw)
    assert await store.list_leases() == [taken]
    again = await store.apply(take(taken, "b"))
    assert again.counter > taken.counter
    assert await store.apply(RenewLease(SHARD, "a", taken.counter)) == Refused(again)


@pytest.mark.parametrize("last", [10**13, 2**53 + 5, 2**63 + 5])
async def test_a_server_whose_clock_is_behind_takes_back_no_token(store, last):
    row = await store.apply(CreateLease(Lease(SHARD, counter=last, owner="a")))
    assert (await store.apply(take(row, "b"))).counter == last + 1


async def test_a_store_that_lost_its_last_writes_gives_out_no_token_again(store, raw, database):
    """This happens after a fail-over to a replica that was behind."""
    first = await store.apply(take(await store.apply(CreateLease(Lease(SHARD)))))
    second = await store.apply(take(first, "b"))
    while server_time(raw) <= second.counter:
        pass
    put_row(raw, encode_row(first).decode())
    async with opened(database) as fresh:
        assert await fresh.list_leases() == [first]
        third = await fresh.apply(take(first, "c"))
    assert first.counter < second.counter < third.counter


async def test_a_server_with_older_data_takes_over_behind_the_same_address(start_server):
    """A copy of the data, from before the last writes, is started at the port of the server that died."""
    server = start_server()
    async with opened(server.url()) as store:
        first = await store.apply(take(await store.apply(CreateLease(Lease(SHARD)))))
        server.stop()
        copy = server.path / "older"
        shutil.copytree(server.path / "data", copy)
        for path in (copy, *copy.rglob("*")):
            shutil.chown(path, (server.path / "data").owner(), (server.path / "data").group())
        server.start()
        second = await answered(store, take(first, "b"))
        renewed = await answered(store, RenewLease(SHARD, "b", second.counter))
        server.stop(signal.SIGKILL)
        shutil.rmtree(server.path / "data")
        copy.rename(server.path / "data")
        server.start()
        refused = await answered(store, RenewLease(SHARD, "b", renewed.counter))
        assert refused == Refused(first), "the older data does not have the second take"
        third = await answered(store, take(first, "c"))
        assert third.counter > renewed.counter, "the token grows all the same"
        assert isinstance(await store.apply(RenewLease(SHARD, "b", renewed.counter)), Refused)


async def test_a_replica_that_is_behind_is_promoted(start_server, start_replica):
    """The store names both servers, finds the one that can be written, and gives out no token again."""
    primary = start_server()
    replica = start_replica(primary)
    hosts = f"127.0.0.1:{primary.port},127.0.0.1:{replica.port}"
    async with opened(f"postgresql://postgres@{hosts}/postgres?target_session_attrs=read-write") as store:
        first = await store.apply(take(await store.apply(CreateLease(Lease(SHARD)))))
        primary.wait_for_replica(replica)
        on_replica = PostgresLeases(replica.url(), "billing", "orders")
        assert (await on_replica.open()).code == "ReadOnly"
        await on_replica.close()
        replica.stop()  # it misses the next writes
        second = await store.apply(take(first, "b"))
        renewed = await store.apply(RenewLease(SHARD, "b", second.counter))
        primary.stop(signal.SIGKILL)
        replica.start()
        lost = await store.apply(RenewLease(SHARD, "b", renewed.counter))
        assert isinstance(lost, Failure), "no server can be written"
        assert lost.retryable
        replica.execute("SELECT pg_promote()")
        assert await answered(store, RenewLease(SHARD, "b", renewed.counter)) == Refused(first)
        third = await answered(store, take(first, "c"))
        assert third.counter > renewed.counter


async def answered(store, operation):
    """Repeat an operation until the server answers it, as a worker does."""
    with anyio.fail_after(30):
        while isinstance(answer := await store.apply(operation), Failure):
            assert answer.retryable, answer
            await anyio.sleep(0.05)
    return answer


async def test_the_store_takes_no_advisory_lock_and_keeps_no_state_in_a_session(start_server):
    """Otherwise it would not work behind pgbouncer in transaction mode."""
    server = start_server("log_statement=all")
    async with opened(server.url()) as store:
        row = await store.apply(take(await store.apply(CreateLease(Lease(SHARD)))))
        await store.apply(RenewLease(SHARD, "a", row.counter))
        await store.list_leases()
    log = (server.path / "log.txt").read_text().lower()
    assert "insert into shardline_leases" in log
    for word in ("advisory", "listen ", "prepare ", " set session", "temporary table"):
        assert word not in log


async def test_unknown_members_of_a_row_stay(store, raw):
    await store.apply(CreateLease(Lease(SHARD)))
    put_row(
        raw, json.dumps({"shard_id": SHARD, "counter": 0, "checkpoint": "TRIM_HORIZON", "added_in_2030": "ü\u2028"})
    )
    taken = await store.apply(take(Lease(SHARD)))
    assert await store.apply(RenewLease(SHARD, "a", taken.counter))
    (text,) = raw.execute(f"SELECT lease FROM {TABLE}").fetchone()
    assert json.loads(text)["added_in_2030"] == "ü\u2028"


async def test_names_with_any_character_work(database, unique):
    group, stream = f"{unique}'; DROP TABLE x; -- %s ü", "o%(rd)ers\\"
    store = PostgresLeases(database, group, stream)
    assert await store.open() is None
    assert await store.apply(CreateLease(Lease("s'%s\"\\"))) == Lease("s'%s\"\\")
    assert await store.list_leases() == [Lease("s'%s\"\\")]
    assert (group, stream) in await store.list_groups()
    await store.close()


async def test_a_write_and_a_listing_take_one_statement_each(start_server):
    server = start_server("log_statement=all")
    async with opened(server.url()) as store:
        rows = await store.apply_many([CreateLease(Lease(f"s{number}", owner="a")) for number in range(64)])
        before = count_statements(server)
        await store.apply_many([RenewLease(row.shard_id, "a", 0) for row in rows])
        await store.list_leases()
        assert count_statements(server) - before == 2


def count_statements(server):
    return len(re.findall(r"LOG:  (?:statement|execute)", (server.path / "log.txt").read_text()))


# ---- opening


async def test_a_table_is_not_created_for_a_reader(database):
    for reader in (lease_catalog(database, AWS), lease_store(database, group="g", stream="s", aws=AWS, existing=True)):
        failure = await reader.open()
        assert (failure.kind, failure.code) == (FailureKind.NOT_FOUND, "NoSuchStore")
        await reader.close()


async def test_many_workers_may_open_a_new_store_at_once(database):
    results = []

    async def open_one():
        store = PostgresLeases(database, "billing", "orders", limit=30)
        results.append(await store.open())
        await store.close()

    async with anyio.create_task_group() as tasks:
        for _ in range(12):
            tasks.start_soon(open_one)
    assert results == [None] * 12


async def test_a_table_of_another_program_is_refused(database, raw):
    raw.execute(f"CREATE TABLE {TABLE} (id int)")
    store = PostgresLeases(database, "billing", "orders")
    failure = await store.open()
    assert (failure.kind, failure.code) == (FailureKind.INVALID, "ForeignTable")
    raw.execute(f"COMMENT ON TABLE {TABLE} IS 'Shardline leases, format 2'")
    assert (await store.open()).code == "NewerFormat"
    await store.close()
    assert raw.execute(f"SELECT count(*) FROM {TABLE}").fetchone() == (0,)


async def test_another_encoding_is_refused(server):
    with contextlib.suppress(psycopg.errors.DuplicateDatabase):
        server.execute("CREATE DATABASE latin ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0")
    store = PostgresLeases(server.url("latin"), "billing", "orders")
    failure = await store.open()
    assert (failure.kind, failure.code) == (FailureKind.INVALID, "Encoding")
    await store.close()


async def test_an_unknown_database_is_a_failure(server):
    store = PostgresLeases(server.url("no_such_database"), "billing", "orders")
    failure = await store.open()
    assert (failure.kind, failure.code) == (FailureKind.NOT_FOUND, "NoSuchDatabase")
    await store.close()


async def test_a_user_without_rights_is_denied(server, database, unique):
    server.execute(f"CREATE ROLE {unique} LOGIN")
    url = re.sub("postgres@", f"{unique}@", database)
    store = PostgresLeases(url, "billing", "orders")
    failure = await store.open()  # since PostgreSQL 15, a new user may not create tables
    assert (failure.kind, failure.code, failure.maybe_received) == (FailureKind.DENIED, "Denied", False)
    await store.close()


async def test_the_table_and_the_rights_of_the_page_are_enough(server, database, unique):
    page = (Path(__file__).parents[2] / "docs/guides/stores/postgres.md").read_text()
    (statements,) = re.findall(r"```sql\n(.*?)```", page, re.DOTALL)
    server.execute(
        f"CREATE ROLE {unique} LOGIN",
        statements.replace("TO worker", f"TO {unique}"),
        database=database.rpartition("/")[2],
    )
    async with opened(re.sub("postgres@", f"{unique}@", database)) as store:
        row = await store.apply(CreateLease(Lease(SHARD)))
        taken = await store.apply(take(row))
        assert await store.apply(DeleteLease(SHARD, taken.counter)) is None


async def test_a_wrong_password_is_denied_and_not_shown(start_server, unique):
    server = start_server()
    server.execute(f"CREATE ROLE {unique} LOGIN PASSWORD 'right-SECRET'")
    (server.path / "data/pg_hba.conf").write_text(
        "host all postgres 127.0.0.1/32 trust\nhost all all 127.0.0.1/32 scram-sha-256\n"
    )
    server.execute("SELECT pg_reload_conf()")
    for login in (f"{unique}:wrong-SECRET", unique, "nobody:wrong-SECRET"):
        store = PostgresLeases(f"postgresql://{login}@127.0.0.1:{server.port}/postgres", "billing", "orders")
        failure = await store.open()
        await store.close()
        assert (failure.kind, failure.code) == (FailureKind.DENIED, "Denied"), failure
        assert "SECRET" not in failure.message + repr(store) + repr(failure)


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://",
        "postgresql:///billing",
        "postgresql://host:port/db",
        "postgresql://u:SECRET@host/db?nonsense=1",
        "postgresql://u@host/db?password=SECRET",
        "postgresql://u@host/db?sslpassword=SECRET",
        "postgresql://u@host/db?passfile=/x",
        "postgresql://u@host/db?service=x",
        "postgresql://u:SECRET@host/db?sslmode",
    ],
)
def test_an_invalid_url_is_refused(url):
    with pytest.raises(UsageError) as caught:
        lease_store(url, group="g", stream="s", aws=AWS)
    assert "SECRET" not in str(caught.value)


# ---- faults


async def test_a_server_that_is_gone_is_a_failure():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    store = PostgresLeases(f"postgresql://postgres@127.0.0.1:{port}/postgres", "billing", "orders")
    for failure in (await store.open(), await store.list_leases(), await store.apply(RenewLease(SHARD, "a", 0))):
        assert (failure.kind, failure.code) == (FailureKind.TRANSIENT, "ConnectionError")
        assert str(port) in failure.message
    await store.close()


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
async def test_a_server_that_restarts_is_a_failure_and_then_works(start_server, how):
    server = start_server("fsync=on")
    async with opened(server.url()) as store:
        await store.apply(CreateLease(Lease(SHARD, owner="a")))
        server.stop(how)
        down = [await store.apply(RenewLease(SHARD, "a", 0)) for _ in range(2)]
        assert all(isinstance(answer, Failure) and answer.retryable for answer in down), down
        server.start()
        answers = [await store.apply(RenewLease(SHARD, "a", 0)) for _ in range(3)]
        assert isinstance(answers[-1], Lease | Refused), answers
        assert (await store.list_leases())[0].counter == 1


async def test_connections_that_the_server_ends_are_failures_and_then_it_goes_on(store, server, database):
    await store.apply(CreateLease(Lease(SHARD, owner="a")))
    name = database.rpartition("/")[2]
    server.execute(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'")
    answers = [await store.apply(RenewLease(SHARD, "a", 0)) for _ in range(3)]
    assert isinstance(answers[-1], Lease | Refused)
    assert all(answer.retryable for answer in answers if isinstance(answer, Failure))


async def test_a_server_that_hangs_is_a_failure_in_time_and_then_it_goes_on(database):
    async with opened(database, limit=0.5) as store:
        await store.apply(CreateLease(Lease(SHARD, owner="a")))
        with psycopg.connect(database) as other:
            other.execute(f"LOCK TABLE {TABLE}")  # every statement waits, as for a server that is suspended
            began_at = time.monotonic()
            failure = await store.apply(RenewLease(SHARD, "a", 0))
            listed = await store.list_leases()
            assert time.monotonic() - began_at < 10
            assert (failure.kind, failure.code, failure.maybe_received) == (FailureKind.TRANSIENT, "Timeout", True)
            assert listed.code == "Timeout"
        with anyio.fail_after(20):
            while not isinstance(answer := await store.apply(RenewLease(SHARD, "a", 0)), Lease | Refused):
                assert answer.retryable
        threads = [thread for thread in threading.enumerate() if "AnyIO" in thread.name]
        assert len(threads) < 10


async def test_a_full_disk_is_a_failure_that_may_pass(database):
    """The server reports a full disk as this SQLSTATE; a rule of the table raises it here."""
    async with opened(database) as store:
        with psycopg.connect(database, autocommit=True) as other:
            other.execute(
                "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS "
                "$$ BEGIN RAISE EXCEPTION 'No space left on device' USING ERRCODE = '53100'; END $$"
            )
            other.execute(f"CREATE TRIGGER refuse BEFORE INSERT ON {TABLE} EXECUTE FUNCTION refuse()")
        failure = await store.apply(CreateLease(Lease(SHARD)))
        assert (failure.kind, failure.code, failure.retryable) == (FailureKind.LIMIT_EXCEEDED, "DiskFull", True)
        assert not failure.maybe_received


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a file system needs root")
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_disk_without_room_for_a_table_is_a_failure_that_may_pass(server, database, small_disk, unique):
    space = small_disk.path / "space"
    space.mkdir()
    shutil.chown(space, "postgres")
    name = database.rpartition("/")[2]
    server.execute(
        f"CREATE TABLESPACE {unique} LOCATION '{space}'", f"ALTER DATABASE {name} SET default_tablespace = {unique}"
    )
    try:
        async with opened(database) as store:
            with small_disk.full():
                created, failure = await create_until_refused(store)
                expected = (FailureKind.LIMIT_EXCEEDED, "DiskFull", True)
                assert (failure.kind, failure.code, failure.retryable) == expected
                assert {row.shard_id for row in await store.list_leases()} == created
            assert await store.apply(CreateLease(Lease("after"))) == Lease("after")
    finally:
        server.execute(f"DROP DATABASE {name} WITH (FORCE)", f"DROP TABLESPACE {unique}")


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a file system needs root")
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_server_without_room_for_its_log_loses_no_lease(start_server, small_disk):
    """It crashes when it cannot write its log. When there is room again, it starts and goes on."""
    server = start_server("fsync=on", "wal_recycle=off", "min_wal_size=32MB", "max_wal_size=32MB")
    server.stop()
    log = small_disk.path / "log"
    shutil.move(server.path / "data/pg_wal", log)
    (server.path / "data/pg_wal").symlink_to(log)
    for file in (log, *log.rglob("*")):
        shutil.chown(file, "postgres")
    server.start()
    async with opened(server.url()) as store:
        await store.apply(CreateLease(Lease("first", owner="a")))
        with small_disk.full():
            created, failure = await create_until_refused(store)
            assert failure.retryable, failure
            server.stop(signal.SIGKILL)
        server.start()
        await answered(store, RenewLease("first", "a", 0))
        assert created <= {row.shard_id for row in await store.list_leases()}


async def create_until_refused(store):
    """Return the shard ids of the leases that were created, and the failure that ended it."""
    created = set()
    with anyio.fail_after(120):
        while True:
            leases = [Lease(f"s{len(created) + number}" + "x" * 1000) for number in range(200)]
            answers = await store.apply_many([CreateLease(lease) for lease in leases])
            created |= {answer.shard_id for answer in answers if isinstance(answer, Lease)}
            for answer in answers:
                if isinstance(answer, Failure):
                    return created, answer


async def test_a_server_that_became_read_only_is_a_failure_that_may_pass(store, raw, database):
    name = database.rpartition("/")[2]
    await store.apply(CreateLease(Lease(SHARD, owner="a")))
    raw.execute(f"ALTER DATABASE {name} SET default_transaction_read_only = on")
    async with opened(database) as fresh:
        failure = await fresh.apply(RenewLease(SHARD, "a", 0))
    assert (failure.kind, failure.code, failure.maybe_received) == (FailureKind.TRANSIENT, "ReadOnly", False)
    raw.execute(f"ALTER DATABASE {name} RESET default_transaction_read_only")


async def test_a_table_that_was_dropped_is_a_failure(store, raw):
    raw.execute(f"DROP TABLE {TABLE}")
    failure = await store.list_leases()
    assert (failure.kind, failure.code) == (FailureKind.NOT_FOUND, "NoSuchStore")
