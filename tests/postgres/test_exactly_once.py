"""Are the rows of a handler in PostgreSQL exactly once, although workers are killed or suspended at random moments?

``make once-kills`` kills 100 workers, ``TIMES`` times in a row. SHARDLINE_KILLS sets the number of kills, and
SHARDLINE_KILL_SEED the seed.
"""

import json
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import anyio
import psycopg
import pytest

from shardline import Client, LeaseNotHeld, Record, deaggregate
from shardline.core.consumer.done_records import PRUNE_AT
from shardline.core.consumer.grant import Grant
from shardline.exactly_once import in_postgres
from shardline.model.record import Origin
from shardline.sync import Producer
from shardline.testing import LocalKinesis

WORKER = Path(__file__).with_name("once_worker.py")
GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "consumer" / "exactly-once.md"
KILLS = int(os.environ.get("SHARDLINE_KILLS", "8"))
SUSPENSIONS = 8
KEYS = 12
BEHIND_MAX = 500
STALL_LIMIT = 120.0


# ---- one handler after the other


def lease(token, *, is_in_order=True):
    grant = Grant("shard-0", token, 1e9)
    grant.is_in_order = is_in_order
    return grant


def record(number, grant):
    return Record(b"%d" % number, "k", None, str(number), shard_id="shard-0", stream="orders", origin=Origin(grant))


@pytest.fixture
def raw(database):
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("CREATE TABLE seen (number integer, key text, sequence_number text, sub_sequence integer)")
        yield connection


def seen(raw):
    return [number for (number,) in raw.execute("SELECT number FROM seen ORDER BY number").fetchall()]


def insert(given, connection):
    connection.execute("INSERT INTO seen VALUES (%s, %s)", (int(given.data), given.key))


def test_a_worker_whose_transaction_is_open_when_another_claims_the_shard_commits_nothing(database, raw):
    """The zombie has handled its record before the claim, and wants to commit after it."""
    has_handled, may_end = threading.Event(), threading.Event()

    def wait(given, connection):
        insert(given, connection)
        has_handled.set()
        assert may_end.wait(30)

    errors = []

    def run_zombie():
        with in_postgres(wait, database, group="billing") as zombie, pytest.raises(LeaseNotHeld) as found:
            zombie(record(1, lease(1)))
        errors.append(found.value)

    thread = threading.Thread(target=run_zombie)
    thread.start()
    assert has_handled.wait(30)
    with in_postgres(insert, database, group="billing") as owner:
        owner(record(1, lease(2)))
        may_end.set()
        thread.join()
        owner(record(2, lease(2)))
    assert len(errors) == 1
    assert seen(raw) == [1, 2]


@pytest.mark.parametrize("isolation", psycopg.IsolationLevel)
def test_a_claim_waits_for_a_commit_of_the_earlier_owner_and_sees_it(database, raw, isolation):
    """The earlier owner has locked the position, and commits while the claim waits."""

    def connect():
        connection = psycopg.connect(database)
        connection.isolation_level = isolation
        return connection

    old, new = lease(1, is_in_order=False), lease(2, is_in_order=False)
    with (
        in_postgres(insert, connect, group="billing") as first,
        in_postgres(insert, connect, group="billing") as second,
    ):
        first(record(1, old))
        with psycopg.connect(database) as other:  # stands for a transaction of the earlier owner, before its commit
            other.execute("SELECT * FROM shardline_positions FOR SHARE")
            other.execute("INSERT INTO shardline_done VALUES ('billing', 'orders', 'shard-0', '2', 0)")
            thread = threading.Thread(target=second, args=(record(2, new),))
            thread.start()
            thread.join(0.3)
            assert thread.is_alive()
        thread.join()
        second(record(3, new))
    assert seen(raw) == [1, 3]


def test_handlers_of_one_shard_do_not_wait_for_each_other(database, raw):
    grant, both = lease(1, is_in_order=False), threading.Barrier(2)

    def meet(given, connection):
        insert(given, connection)
        both.wait(30)

    with in_postgres(meet, database, group="billing") as handle:
        threads = [threading.Thread(target=handle, args=(record(number, grant),)) for number in (1, 2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert seen(raw) == [1, 2]


def test_the_watermark_does_not_move_back_if_two_transactions_lock_it_in_the_other_order(database, raw):
    """The first transaction has planned its watermark, and waits for the row while the second one moves it further."""
    grant = lease(1, is_in_order=False)
    last = PRUNE_AT + 10
    with in_postgres(insert, database, group="billing") as handle:
        for number in range(1, last + 1):
            handle(record(number, grant))
        with psycopg.connect(database) as other:  # stands for the second transaction
            other.execute("SELECT * FROM shardline_positions FOR NO KEY UPDATE")
            grant.done_place = record(last - 5, grant).sequence_number, 0
            thread = threading.Thread(target=handle, args=(record(last + 1, grant),))
            thread.start()
            thread.join(0.5)
            assert thread.is_alive()
            other.execute("UPDATE shardline_positions SET sequence_number = %s, sub_sequence = 0", (str(last),))
            other.execute("DELETE FROM shardline_done")
        thread.join()
    assert raw.execute("SELECT sequence_number FROM shardline_positions").fetchall() == [(str(last),)]
    with in_postgres(insert, database, group="billing") as handle:  # the next owner, with an older checkpoint
        for number in range(1, last + 3):
            handle(record(number, lease(2)))
    assert seen(raw) == list(range(1, last + 3))


def test_a_handler_must_not_commit(database, raw):
    def commit(given, connection):
        connection.commit()

    refused = pytest.raises(psycopg.ProgrammingError, match="commit")
    with in_postgres(commit, database, group="billing") as handle, refused:
        handle(record(1, lease(1)))
    assert seen(raw) == []


def test_a_lost_connection_is_replaced(database, raw):
    grant = lease(1)
    with in_postgres(insert, database, group="billing") as handle:
        handle(record(1, grant))
        others = "FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
        raw.execute(f"SELECT pg_terminate_backend(pid) {others}")
        while raw.execute(f"SELECT count(*) {others}").fetchone() != (0,):
            time.sleep(0.01)
        handle(record(2, grant))  # the connection was lost while it was idle, which is no failure of the record
    assert seen(raw) == [1, 2]


def test_workers_create_the_tables_at_the_same_time(database, raw):
    def work(number):
        grant = Grant(f"shard-{number}", 1, 1e9)
        given = Record(b"%d" % number, "k", None, "1", shard_id=grant.shard_id, stream="orders", origin=Origin(grant))
        with in_postgres(insert, database, group="billing") as handle:
            handle(given)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen(raw) == list(range(8))


def test_the_example_of_the_guide(database, raw, monkeypatch):
    raw.execute("CREATE TABLE orders (id text, body bytea)")
    monkeypatch.setenv("DATABASE_URL", database)
    (source,) = re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    example = {}
    exec(compile(source, "exactly-once.md", "exec"), example)
    with LocalKinesis(shards=1, stream="orders") as kinesis:
        monkeypatch.setenv("AWS_ENDPOINT_URL_KINESIS", kinesis.endpoint_url)
        monkeypatch.setenv("AWS_REGION", kinesis.region)
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "local")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "local")
        place = {"endpoint_url": kinesis.endpoint_url, "region": kinesis.region, "credentials": kinesis.credentials}
        with Producer("orders", **place) as producer:
            for number in range(50):
                producer.put(b"%d" % number, key=f"order-{number}")

        async def run_until_all_are_there():
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(example["main"])
                with anyio.fail_after(30):
                    while raw.execute("SELECT count(*) FROM orders").fetchone()[0] < 50:  # noqa: ASYNC110 - a table
                        await anyio.sleep(0.1)
                tasks.cancel_scope.cancel()

        anyio.run(run_until_all_are_there)
    found = raw.execute("SELECT id, body FROM orders").fetchall()
    assert sorted(found) == sorted((f"order-{number}", b"%d" % number) for number in range(50))


# ---- kills


class Workers:
    """Two workers, which are killed and started again in a random mode."""

    def __init__(self, chance, settings):
        self.chance, self.settings = chance, settings
        self.server = subprocess.Popen(
            [sys.executable, WORKER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.processes = {}

    def start(self, name):
        modes = ("record", "batch", "key", "key-batch")
        settings = self.settings | {
            "name": name,
            "mode": self.chance.choice(modes),
            "is_async": self.chance.random() < 0.5,
            "checkpoint_interval": self.chance.choice((0.1, 1.0, 5.0)),
        }
        self.server.stdin.write(json.dumps(settings) + "\n")
        self.server.stdin.flush()
        self.processes[name] = int(self.server.stdout.readline())

    def kill(self, name):
        state = Path(f"/proc/{self.processes[name]}/stat").read_text().rpartition(")")[2].split()[0]
        assert state != "Z", f"worker {name} ended by itself"
        os.kill(self.processes.pop(name), signal.SIGKILL)

    def suspend(self, name, duration):
        os.kill(self.processes[name], signal.SIGSTOP)
        time.sleep(duration)
        os.kill(self.processes[name], signal.SIGCONT)

    def stop(self):
        for process in self.processes.values():
            os.kill(process, signal.SIGKILL)
        self.server.kill()
        self.server.wait()
        self.server.stdin.close()
        self.server.stdout.close()


def put_until(is_over, connection, chance, database):
    """Put numbered records until the kills are over. On a slow machine, wait for the workers."""
    number = 0
    with Producer("orders", **connection) as producer, psycopg.connect(database, autocommit=True) as raw:
        while not is_over.is_set():
            if number - count_of(raw) < BEHIND_MAX:
                for _ in range(10):
                    producer.put(b"%d" % number, key=f"key-{chance.randrange(KEYS)}")
                    number += 1
            time.sleep(0.1)
        producer.flush()


def stored_in(kinesis):
    """Return all records of the stream. Those that the producer sent again because of the reshard are there twice."""
    return [each for found in kinesis.streams["orders"].records for each in deaggregate([found])]


def kill_workers(workers, kinesis, connection, chance, raw):
    async def change(count):
        async with Client(**connection) as client:
            await client.update_shard_count("orders", count, wait=True)

    for kill in range(KILLS):
        # A kill is worth more while a worker handles records than while both of them start.
        wait_for(raw, 1 + count_of(raw))
        time.sleep(chance.uniform(0.0, 0.5))
        name = chance.choice("ab")
        workers.kill(name)
        workers.start(name)
        if kill in (KILLS // 4, KILLS // 2):  # split the shards, and merge them again
            anyio.run(change, 4 if kill == KILLS // 4 else 2)
    assert len(kinesis.streams["orders"].shards) == 2 + 4 + 2


def suspend_workers(workers, kinesis, connection, chance, raw):
    """Suspend workers amid their transactions until their leases have expired, and let them continue as zombies."""
    for _ in range(SUSPENSIONS):
        wait_for(raw, 20 + count_of(raw))
        time.sleep(chance.uniform(0.0, 0.5))
        workers.suspend(chance.choice("ab"), chance.uniform(1.2, 3.0))


def count_of(raw):
    return raw.execute("SELECT count(*) FROM seen").fetchone()[0]


def wait_for(raw, count):
    """Wait for so many rows, as long as there is progress."""
    found, changed_at = 0, time.monotonic()
    while (now := count_of(raw)) < count:
        if now > found:
            found, changed_at = now, time.monotonic()
        assert time.monotonic() - changed_at < STALL_LIMIT, f"{now} of {count} records were handled"
        time.sleep(0.05)


@pytest.mark.timeout(1800)
def test_each_record_takes_effect_exactly_once_although_workers_are_killed(database, raw):
    check_exactly_once(database, raw, kill_workers)


@pytest.mark.timeout(1800)
def test_each_record_takes_effect_exactly_once_although_workers_are_suspended(database, raw):
    check_exactly_once(database, raw, suspend_workers)


def check_exactly_once(database, raw, disturb):
    raw.execute("CREATE TABLE totals (key text PRIMARY KEY, count bigint, sum bigint)")
    seed = int(os.environ.get("SHARDLINE_KILL_SEED") or random.randrange(10**6))
    sys.stdout.write(f"SHARDLINE_KILL_SEED={seed}\n")
    chance, is_over = random.Random(seed), threading.Event()
    with LocalKinesis(shards=2, stream="orders") as kinesis:
        place = {"endpoint_url": kinesis.endpoint_url, "region": kinesis.region}
        connection = place | {"credentials": kinesis.credentials}
        putting = threading.Thread(target=put_until, args=(is_over, connection, random.Random(seed), database))
        workers = Workers(chance, place | {"database": database})
        try:
            workers.start("a")
            workers.start("b")
            putting.start()
            disturb(workers, kinesis, connection, chance, raw)
            is_over.set()
            putting.join()
            put = stored_in(kinesis)
            wait_for(raw, len(put))
        finally:
            is_over.set()
            workers.stop()
    expected = sorted((int(each.data), each.key, each.sequence_number, each.sub_sequence) for each in put)
    assert sorted(raw.execute("SELECT number, key, sequence_number, sub_sequence FROM seen").fetchall()) == expected
    numbers = {key: [number for number, its, *_ in expected if its == key] for key in {each.key for each in put}}
    totals = {key: (count, total) for key, count, total in raw.execute("SELECT * FROM totals").fetchall()}
    assert totals == {key: (len(each), sum(each)) for key, each in numbers.items()}
    disturbance = f"{KILLS} kills" if disturb is kill_workers else f"{SUSPENSIONS} suspensions"
    sys.stdout.write(f"{disturbance}, {len(put)} records, each exactly once\n")
