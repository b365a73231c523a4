"""Does ``shardline groups`` show the true state, and make the changes that it reports, on every store?

The tests run the real command in a separate process, on our own Kinesis server and on real stores. A consumer that runs
after a reset shows its effect.
"""

import asyncio
import contextlib
import importlib.util
import json
import os
import pty
import re
import resource
import secrets
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from pathlib import Path

import boto3
import pytest

from shardline import Consumer, ConsumerConfig, Credentials, Entry, Producer
from shardline.adapters.aws.aws_service import AwsAccess
from shardline.adapters.leases.store_urls import lease_store
from shardline.core.leases import CreateLease, DeleteLease
from shardline.model.hashing import HashRange
from shardline.model.lease import Checkpoint, Lease
from shardline.model.position import SHARD_END, at_sequence_number
from shardline.sync import Consumer as SyncConsumer
from shardline.testing import LocalKinesis

DRILLS = Path(__file__).parents[1] / "drills" / "stores.py"
COMMAND = [sys.executable, "-m", "shardline"]
KEYS = Credentials("AKIDEXAMPLE", "secret")
PARENT, SECOND = "shardId-000000000000", "shardId-000000000001"
PATIENCE = 60.0


def drill_stores():
    spec = importlib.util.spec_from_file_location("drill_stores", DRILLS)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def store_servers(tmp_path_factory):
    """Each server starts when it is first needed, and serves all tests."""
    with contextlib.ExitStack() as stack:
        running = {}

        def server(kind):
            if kind not in running:
                directory = tmp_path_factory.mktemp(kind)
                if kind == "ministack":
                    port = stack.enter_context(drill_stores().contract_servers().ministack(directory))
                    running[kind] = f"http://127.0.0.1:{port}"
                else:
                    running[kind] = stack.enter_context(drill_stores().STORES[kind](directory)).watched_url
            return running[kind]

        yield server


@pytest.fixture(scope="module")
def shared_kinesis():
    with LocalKinesis(limits=False) as running:
        yield running


class World:
    """A stream, a lease store, and the command."""

    def __init__(self, kinesis, store):
        self.kinesis, self.store = kinesis, store
        self.stream = f"s{secrets.token_hex(4)}"
        self.group = f"g{secrets.token_hex(4)}"
        kinesis.create_stream(self.stream, shards=2)
        secret = {"AWS_ACCESS_KEY_ID": KEYS.access_key, "AWS_SECRET_ACCESS_KEY": KEYS.secret_key}
        base = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "SHARDLINE_"))}
        self.environment = base | kinesis.environment | secret | {"SHARDLINE_STORE": store, "COLUMNS": "80"}

    def begin(self, *arguments, **options):
        options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "stdin": subprocess.DEVNULL} | options
        return subprocess.Popen([*COMMAND, "groups", *arguments], text=True, env=self.environment, **options)

    def run(self, *arguments):
        """Return the exit code and the output."""
        with self.begin(*arguments) as process:
            output, errors = process.communicate(timeout=PATIENCE)
        assert "Traceback" not in errors, errors
        return process.returncode, output, errors

    def ok(self, *arguments):
        code, output, errors = self.run(*arguments)
        assert code == 0, errors
        return output

    def json(self, *arguments, code=0):
        ended, output, errors = self.run(*arguments, "--output", "json")
        assert ended == code, errors
        return json.loads(output)

    def refused(self, *arguments):
        code, output, errors = self.run(*arguments)
        assert output == ""
        (sentence,) = [line for line in errors.splitlines() if not line.startswith("watching ")]
        assert sentence.startswith("Error: ")
        return code, sentence

    def reset(self, to, *options):
        """Reset the group. Return the action for each shard."""
        told = self.json("reset", self.group, "--to", to, *options)
        assert told["complete"]
        assert (told["group"], told["stream"], told["stopped_by"]) == (self.group, self.stream, None)
        assert all(one["done"] for one in told["shards"])
        return {one["shard_id"]: one["action"] for one in told["shards"]}

    # ---- with the library

    def in_loop(self, work):
        async def main():
            async with asyncio.timeout(PATIENCE), self.kinesis.client() as client:
                return await work(client)

        return asyncio.run(main())

    def put(self, *names, key=None):
        entries = [Entry(name.encode(), key or name) for name in names]
        return self.in_loop(lambda client: client.put_records(self.stream, entries)).records

    def reshard(self):
        """Split the first shard, put, merge the two new ones, put: four generations together with the first."""

        async def change(client):
            await client.split_shard(self.stream, PARENT, wait=True)
            await client.put_records(self.stream, [Entry(f"split-{n}".encode(), str(n)) for n in range(20)])
            await client.merge_shards(self.stream, "shardId-000000000002", "shardId-000000000003", wait=True)
            await client.put_records(self.stream, [Entry(f"merged-{n}".encode(), str(n)) for n in range(20)])

        self.in_loop(change)

    def consume(self, **arguments):
        """Return the records that a consumer of the group reads, up to the newest one."""

        async def read(client):
            settings = {"group": self.group, "store": self.store, "client": client, "until": "latest"} | arguments
            if settings["store"].startswith("dynamodb:"):
                settings["store"] = lease_store(self.store, group=self.group, stream=self.stream, aws=aws())
            async with Consumer(self.stream, **settings) as consumer:
                found = [record async for record in consumer]
            if not isinstance(settings["store"], str):
                await settings["store"].close()
            return found

        return self.in_loop(read)

    def leases(self, work=None):
        """Return the rows, after ``work(store)``."""

        async def look(_):
            store = lease_store(self.store, group=self.group, stream=self.stream, aws=aws())
            assert await store.open() is None
            try:
                if work is not None:
                    await work(store)
                return {row.shard_id: row for row in await store.list_leases()}
            finally:
                await store.close()

        return self.in_loop(look)

    def make(self, *leases):
        async def create(store):
            for lease in leases:
                assert await store.apply(CreateLease(lease)) == lease

        return self.leases(create)

    @property
    def everything(self):
        return sorted(record.data for record in self.kinesis.streams[self.stream].records)


def aws():
    return AwsAccess(time.time, credentials=KEYS)


def data_of(records):
    return sorted(record.data for record in records)


@pytest.fixture
def place(request, tmp_path, store_servers):
    """Create a new lease store of some kind."""

    def make(kind):
        if kind == "sqlite":
            return f"sqlite:///{tmp_path / 'leases.db'}"
        if kind == "redis":
            return store_servers(kind)
        table = f"t{secrets.token_hex(6)}"
        server = store_servers(kind)
        endpoint = server if kind == "ministack" else server.rpartition("endpoint_url=")[2]
        return f"dynamodb://{table}?region=us-east-1&endpoint_url={endpoint}"

    return make


@pytest.fixture(params=["sqlite", "redis", "dynamodb", "ministack"])
def any_world(request, shared_kinesis, place):
    return World(shared_kinesis, place(request.param))


@pytest.fixture
def world(shared_kinesis, place):
    return World(shared_kinesis, place("sqlite"))


@pytest.fixture
def own_world(place):
    """A world with its own Kinesis, for faults and for its clock."""
    with LocalKinesis(limits=False) as kinesis:
        yield World(kinesis, place("sqlite"))


@contextlib.contextmanager
def working(world, **settings):
    """A live consumer of the group. Yields the records that it was handed so far."""
    seen = []
    with world_client(world) as connection:
        consumer = SyncConsumer(
            world.stream, group=world.group, store=world.store, worker_id="the-worker", **settings, **connection
        )
        consumer.start()

        def read():
            for record in consumer:
                seen.append(record.data)

        thread = threading.Thread(target=read, daemon=True)
        thread.start()
        try:
            yield seen
        finally:
            consumer.close()
            thread.join(PATIENCE)


@contextlib.contextmanager
def world_client(world):
    yield {"endpoint_url": world.kinesis.endpoint_url, "region": "us-east-1", "credentials": KEYS}


def wait_for(condition):
    give_up_at = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < give_up_at, "it did not come to pass"
        time.sleep(0.02)


# ---- lag


def test_describe_says_how_each_shard_is_read(any_world):
    world = any_world
    for fan_out, read_by in (("billing", "fan-out"), (None, "polling")):
        with world_client(world) as connection:
            settings = {"group": world.group, "store": world.store, "fan_out": fan_out} | connection
            with SyncConsumer(world.stream, **settings) as consumer:
                consumer.wait_ready(PATIENCE)
                shards = world.json("describe", world.group, "--observe", "0s", "--no-lag")["shards"]
                assert {shard["read_by"] for shard in shards if shard["owner"] is not None} == {read_by}
                assert {shard.read_by for shard in consumer.status().shards} == {read_by}


def test_describe_and_status_agree_about_a_slow_handler(own_world):
    """``describe`` knows the committed position: it may be behind ``status()`` by a checkpoint interval and a second."""
    world, interval = own_world, 1.0
    world.put(*(f"old-{n}" for n in range(80)), key="k")
    world.kinesis.clock.advance(20)
    compared = []
    with world_client(world) as connection:
        config = ConsumerConfig(checkpoint_interval=interval)
        settings = {"group": world.group, "store": world.store, "config": config} | connection
        with SyncConsumer(world.stream, **settings) as consumer:
            running = threading.Thread(target=consumer.run, args=(lambda _: time.sleep(0.5),))
            running.start()
            wait_for(lambda: consumer.status().in_hand and consumer.status().reading_lag == 0.0)
            for _ in range(3):
                time.sleep(1.5)
                before = consumer.status().handling_lag
                shards = world.json("describe", world.group)["shards"]
                after = consumer.status()
                compared.append((before, max(one["lag_ms"] for one in shards) / 1000, after.handling_lag))
                assert after.reading_lag == 0.0, "which made it useless as an alarm"
            consumer.close(timeout=5)
            running.join(PATIENCE)
    for before, described, after in compared:
        assert before > 15
        assert before - interval - 1 <= described <= after + interval + 1, compared


# ---- every store


def test_a_group_is_listed_described_reset_and_deleted(any_world):
    """After a reset to TRIM_HORIZON, all records come again, once, parents before children."""
    world = any_world
    world.put(*(f"old-{n}" for n in range(20)))
    world.reshard()
    assert data_of(world.consume()) == world.everything

    (listed,) = [one for one in world.json("list") if one["group"] in {world.group, None}]
    assert (listed["group"], listed["stream"], listed["rows"]) == (world.group, world.stream, 5)
    assert (listed["alive"], listed["held"], listed["owners"]) == (False, 0, [])

    before = world.json("describe", world.group)
    assert {one["shard_id"]: one["finished"] for one in before["shards"]} == {
        PARENT: True,
        SECOND: False,
        "shardId-000000000002": True,
        "shardId-000000000003": True,
        "shardId-000000000004": False,
    }
    assert [one["lag_ms"] for one in before["shards"] if not one["finished"]] == [0, 0]

    assert set(world.reset("TRIM_HORIZON").values()) == {"reset"}
    again = world.consume()
    assert data_of(again) == world.everything
    assert_lineage(again)
    assert data_of(world.consume()) == []

    assert world.json("delete", world.group, "--yes")["complete"]
    assert world.leases() == {}
    assert data_of(world.consume()) == world.everything


def assert_lineage(records):
    """Check that no record of a child came before one of its parents."""
    parents = {
        "shardId-000000000002": {PARENT},
        "shardId-000000000003": {PARENT},
        "shardId-000000000004": {"shardId-000000000002", "shardId-000000000003"},
    }
    order = [record.shard_id for record in records]
    assert set(parents) < set(order)
    for child, older in parents.items():
        for parent in older:
            assert len(order) - 1 - order[::-1].index(parent) < order.index(child), (parent, child)


def test_a_reset_to_latest_skips_what_lies_there_and_nothing_else(any_world):
    world = any_world
    world.put("old-1", "old-2")
    world.consume()
    world.reshard()
    time.sleep(2.1)  # LATEST is set a second early, and the clock of Kinesis is known to a second
    actions = world.reset("LATEST")
    assert actions[PARENT] == "reset"  # the shard is finished now: nothing waits for it
    world.put("new-1", "new-2")
    assert data_of(world.consume()) == [b"new-1", b"new-2"]


# ---- read-only commands


def test_two_groups_are_a_table(world):
    world.put("a")
    world.consume()
    first, world.group = world.group, "zebra"
    world.consume()
    lines = world.ok("list").splitlines()
    assert lines[0].split() == ["GROUP", "STREAM", "SHARDS", "HELD", "WORKERS", "STATE"]
    assert [line.split()[:3] for line in lines[1:]] == [[first, world.stream, "2"], ["zebra", world.stream, "2"]]
    assert all(line.endswith("no owner") for line in lines[1:])


def test_a_group_that_works_is_seen_alive_by_its_counters(world):
    world.put("a")
    with working(world) as seen:
        wait_for(lambda: seen == [b"a"])
        (listed,) = world.json("list", "--observe", "30s")
        assert listed["alive"] is True
        assert listed["judged_by"].startswith("a lease changed within ")
        assert listed["owners"] == [{"worker": "the-worker", "leases": 2, "alive": True}]
        assert "alive" in world.ok("list", "--observe", "30s")
        told = world.json("describe", world.group)
        assert [one["owner"] for one in told["shards"]] == ["the-worker"] * 2
        assert [one["owner_alive"] for one in told["shards"]] == [True] * 2


def test_silence_is_called_silence_and_not_death(world):
    world.make(Lease(PARENT, owner="ghost", counter=3), Lease(SECOND))
    (listed,) = world.json("list", "--observe", "1s")
    assert (listed["alive"], listed["held"]) == (None, 1)
    assert listed["owners"] == [{"worker": "ghost", "leases": 1, "alive": None}]
    assert listed["watched_seconds"] >= 1
    assert re.fullmatch(r"no lease changed for \d+\.\d s", listed["judged_by"])
    assert re.search(r" silent for \d+ s$", world.ok("list", "--observe", "1s").splitlines()[1])
    code, output, errors = world.run("list")
    assert (code, output.splitlines()[1].endswith("not watched")) == (0, True)
    assert errors == "--observe 4s shows which owners are alive\n"
    assert "ghost (silent)" in world.ok("describe", world.group, "--observe", "600ms")


def test_a_list_takes_less_than_a_second(own_world):
    """This holds even with a silent owner, because nothing is waited for. CPU time is measured, so that a busy machine
    does not matter.
    """
    own_world.make(Lease(PARENT, owner="ghost", counter=3), Lease(SECOND))

    def used():
        usage = resource.getrusage(resource.RUSAGE_CHILDREN)
        return usage.ru_utime + usage.ru_stime

    before = used()
    assert own_world.json("list")[0]["watched_seconds"] == 0
    assert used() - before < 1


def test_a_stream_that_was_recreated_is_said_once(own_world):
    world = own_world
    world.put("a", "b", "c", "d", "e", "f")
    world.consume()
    assert world.json("describe", world.group)["recreated"] is False

    async def recreate(client):
        await client.delete_stream(world.stream, wait=True)
        await client.create_stream(world.stream, shards=2, wait=True)

    world.kinesis.clock.advance(10)
    world.in_loop(recreate)
    calls = world.kinesis.requests.count("GetShardIterator")
    code, _, errors = world.run("describe", world.group)
    assert (code, errors.splitlines()) == (
        0,
        [
            f"{world.group} on {world.stream}: no owner",
            (
                f"the stream {world.stream} was deleted and re-created: the group's positions belong to the old stream; "
                f"reset it with `shardline groups reset {world.group} --to TRIM_HORIZON`"
            ),
        ],
    )
    assert world.kinesis.requests.count("GetShardIterator") == calls
    described = world.json("describe", world.group)
    assert described["recreated"] is True
    assert [one["lag_ms"] for one in described["shards"]] == [None, None]
    world.ok("reset", world.group, "--to", "TRIM_HORIZON")  # as it says
    assert world.json("describe", world.group)["recreated"] is False


def test_lag_is_the_age_of_what_waits(own_world):
    world = own_world
    world.put("a", "b", "c", "d", "e", "f")
    world.consume()
    world.kinesis.clock.advance(30)
    world.put("late", key="a")
    world.kinesis.clock.advance(90)
    lags = {one["shard_id"]: one for one in world.json("describe", world.group)["shards"]}
    behind = [one for one in lags.values() if one["lag_ms"]]
    assert len(behind) == 1
    assert 89_000 <= behind[0]["lag_ms"] < 150_000
    assert all(one["checkpoint"]["kind"] == "AT_SEQUENCE_NUMBER" for one in lags.values())
    assert all(one["checkpoint_arrived_at"] for one in lags.values())
    assert re.search(r" [12] min ", world.ok("describe", world.group))


def test_a_group_that_never_read_is_behind_by_its_oldest_record(own_world):
    world = own_world
    world.put("a", key="a")
    (shard_id,) = {record.shard_id for record in world.kinesis.streams[world.stream].records}
    world.kinesis.clock.advance(100)
    world.make(Lease(PARENT), Lease(SECOND))
    told = {one["shard_id"]: one for one in world.json("describe", world.group)["shards"]}
    assert 99_000 <= told.pop(shard_id)["lag_ms"] < 160_000
    ((_, other),) = told.items()
    assert other["lag_ms"] == 0


def test_an_aggregate_that_is_half_done_is_not_done(own_world):
    world = own_world

    async def put(client):
        async with Producer(world.stream, client=client) as producer:
            await producer.put_many([("a", b"one"), ("a", b"two"), ("a", b"three")])

    world.in_loop(put)
    (record,) = world.kinesis.streams[world.stream].records
    world.kinesis.clock.advance(50)
    rows = {PARENT: Lease(PARENT, checkpoint=Checkpoint(SHARD_END)), SECOND: Lease(SECOND)}
    half = Checkpoint(at_sequence_number(str(record.sequence_number)))
    rows[record.shard_id] = Lease(record.shard_id, checkpoint=half)
    world.make(*rows.values())
    told = {one["shard_id"]: one for one in world.json("describe", world.group)["shards"]}
    assert told[record.shard_id]["lag_ms"] >= 49_000
    assert world.reset(str(record.sequence_number), "--shard", record.shard_id) == {record.shard_id: "reset"}
    told = {one["shard_id"]: one for one in world.json("describe", world.group)["shards"]}
    assert told[record.shard_id]["lag_ms"] == 0
    assert told[record.shard_id]["checkpoint"]["sub_sequence"] == 2


def test_shards_without_rows_and_rows_without_shards_are_reported(world):
    world.make(Lease(PARENT), Lease("shardId-000000000077", checkpoint=Checkpoint(SHARD_END)))
    told = {one["shard_id"]: one for one in world.json("describe", world.group)["shards"]}
    assert {name: (one["state"], one["has_row"]) for name, one in told.items()} == {
        PARENT: ("open", True),
        SECOND: ("open", False),
        "shardId-000000000077": ("gone", True),
    }
    lines = {line.split()[0]: line.split()[1:] for line in world.ok("describe", world.group).splitlines()}
    assert lines[SECOND] == ["open", "no", "row"]
    assert lines["shardId-000000000077"][:2] == ["gone", "finished"]


def test_without_lag_kinesis_is_left_alone(own_world):
    own_world.put("a")
    own_world.consume()
    own_world.kinesis.requests.clear()
    told = own_world.json("describe", own_world.group, "--no-lag")
    assert own_world.kinesis.requests.total == 0
    assert [one["state"] for one in told["shards"]] == [None, None]
    assert [one["lag_ms"] for one in told["shards"]] == [None, None]


def test_a_busy_shard_is_asked_again_and_a_denied_one_is_reported(own_world):
    world = own_world
    world.put("a")
    world.consume()
    world.kinesis.faults.throttle(operation="GetRecords", count=2)
    assert [one["lag_ms"] for one in world.json("describe", world.group)["shards"]] == [0, 0]
    world.kinesis.faults.error("AccessDeniedException", "not authorized", operation="GetRecords", shard=SECOND)
    code, output, errors = world.run("describe", world.group)
    assert code == 0
    assert "?" in next(line for line in output.splitlines() if line.startswith(SECOND))
    assert "the lag of some shards is unknown: GetRecords: not authorized" in errors


# ---- choosing the group


def test_a_group_of_two_streams_has_to_be_named_with_its_stream(world):
    world.make(Lease(PARENT))
    first, world.stream = world.stream, "other"
    world.kinesis.create_stream("other") if "other" not in world.kinesis.streams else None
    world.make(Lease(PARENT))
    code, sentence = world.refused("describe", world.group)
    assert code == 2
    assert first in sentence
    assert "other" in sentence
    assert world.json("describe", world.group, "other")["stream"] == "other"
    assert world.refused("describe", world.group, "third")[0] == 1


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("list", "--store", "memory:"), 2, "exists only inside the process that uses it"),
        (("list", "--store", "sqlite:///no-such-file.db"), 1, "no-such-file.db does not exist"),
        (("list", "--store", "carrier-pigeon://x"), 2, "a store is one of"),
        (("list", "--store", "redis://user:pa55word@127.0.0.1:1/0"), 1, "127.0.0.1:1"),
        (("describe", "nobody"), 1, "there is no group 'nobody'"),
        (("reset", "nobody", "--to", "LATEST"), 1, "there is no group 'nobody'"),
        (("delete", "nobody", "--yes"), 1, "there is no group 'nobody'"),
        (("delete", "{group}"), 2, "not a terminal: pass --yes to confirm"),
        (("reset", "{group}", "--to", "yesterday"), 2, "neither TRIM_HORIZON, LATEST"),
        (("reset", "{group}", "--to", "+1h"), 2, "is in the future, by the clock of Kinesis"),
        (("reset", "{group}", "--to", "9" * 56), 2, "--shard"),
        (("reset", "{group}", "--to", "9" * 56, "--shard", PARENT), 1, "has no record"),
        (("reset", "{group}", "--to", f"{'9' * 56}:x", "--shard", PARENT), 2, "whole number"),
        (("reset", "{group}", "--to", "LATEST", "--shard", "shardId-9"), 2, "no shard 'shardId-9'"),
    ],
)
def test_what_is_wrong_is_one_sentence(world, tmp_path, arguments, code, words):
    world.make(Lease(PARENT), Lease(SECOND))
    before = world.leases()
    ended, sentence = world.refused(*(one.format(group=world.group) for one in arguments))
    assert ended == code, sentence
    assert words in sentence
    assert "pa55word" not in sentence
    assert world.leases() == before
    assert not Path("no-such-file.db").exists()


def test_a_store_has_to_be_named(world):
    del world.environment["SHARDLINE_STORE"]
    code, _, errors = world.run("list")
    assert code == 2
    assert "--store" in errors


# ---- resetting


def test_a_reset_to_a_time_gives_what_arrived_since_by_the_clock_of_kinesis(own_world):
    """That clock is an hour ahead of this machine's, and "10 minutes ago" refers to it."""
    world = own_world
    world.kinesis.clock.advance(3600)
    world.put(*(f"old-{n}" for n in range(10)))
    world.kinesis.clock.advance(1200)
    world.reshard()  # its records arrive now
    assert data_of(world.consume()) == world.everything
    old = [f"old-{n}".encode() for n in range(10)]
    for age in ("10m", "-10m"):
        actions = world.reset(age)
        assert actions[SECOND] == "reset"
        again = world.consume()
        assert data_of(again) == sorted(set(world.everything) - set(old))
    assert set(world.reset("2h").values()) == {"reset"}
    again = world.consume()
    assert data_of(again) == world.everything
    assert_lineage(again)


def test_rows_of_finished_parents_that_were_deleted_come_back(world):
    """A group that has run for long keeps no rows of finished shards: a reset has to find these shards in the stream
    (L3).
    """
    world.put(*(f"old-{n}" for n in range(20)))
    world.reshard()
    world.consume()

    async def forget(store):
        for row in await store.list_leases():
            if row.checkpoint.is_finished:
                assert await store.apply(DeleteLease(row.shard_id, row.counter)) is None

    assert set(world.leases(forget)) == {SECOND, "shardId-000000000004"}
    actions = world.reset("TRIM_HORIZON")
    assert actions[PARENT] == "create"
    assert actions["shardId-000000000003"] == "create"
    again = world.consume()
    assert data_of(again) == world.everything
    assert_lineage(again)


def test_one_shard_is_reset_alone(world):
    results = world.put(*(f"r-{n}" for n in range(20)))
    world.consume()
    mine = [record for record in world.kinesis.streams[world.stream].records if record.shard_id == SECOND]
    assert len(mine) > 4
    world.reset("TRIM_HORIZON", "--shard", SECOND)
    assert data_of(world.consume()) == sorted(record.data for record in mine)
    world.reset(str(mine[2].sequence_number), "--shard", SECOND)
    assert [record.data for record in world.consume()] == [record.data for record in mine[3:]]
    assert len(results) == 20


def test_a_recreated_stream_is_read_from_its_beginning(world):
    """A consumer refuses the rows of the earlier stream; a reset replaces them with rows of this one."""
    world.put("gone-1", "gone-2")
    world.consume()

    async def recreate(client):
        await client.delete_stream(world.stream, wait=True)
        await client.create_stream(world.stream, shards=3, wait=True)
        await client.put_records(world.stream, [Entry(f"new-{n}".encode(), str(n)) for n in range(12)])

    world.in_loop(recreate)
    actions = world.reset("TRIM_HORIZON")
    assert actions == {PARENT: "replace", SECOND: "replace", "shardId-000000000002": "create"}
    assert data_of(world.consume()) == world.everything
    assert len(world.everything) == 12


def test_a_dry_run_changes_nothing(world):
    world.put("a", "b")
    world.consume()
    before = world.leases()
    for command in (("reset", world.group, "--to", "TRIM_HORIZON"), ("delete", world.group)):
        told = world.json(*command, "--dry-run")
        assert (told["dry_run"], told["complete"]) == (True, False)
        assert {one["shard_id"] for one in told["shards"]} == {PARENT, SECOND}
        assert not any(one["done"] for one in told["shards"])
        code, output, errors = world.run(*command, "--dry-run")
        assert code == 0
        assert PARENT in output
        assert "nothing was written" in errors
    assert world.leases() == before


# ---- live groups


def test_a_live_group_is_left_alone(world):
    world.put("a")
    with working(world) as seen:
        wait_for(lambda: seen == [b"a"])
        for command in (("reset", world.group, "--to", "TRIM_HORIZON"), ("delete", world.group, "--yes")):
            code, sentence = world.refused(*command)
            assert code == 1
            assert "the group is alive: the-worker wrote to its leases" in sentence
        world.put("b")
        wait_for(lambda: b"b" in seen)
        assert seen == [b"a", b"b"]


def test_by_force_a_live_worker_loses_its_leases_and_reads_again(world):
    """The worker is fenced, and nothing that it still commits counts: all records come again, and the group reaches the
    end.
    """
    world.put(*(f"r-{n}" for n in range(30)))
    with working(world) as seen:
        wait_for(lambda: len(seen) == 30)
        assert set(world.reset("TRIM_HORIZON", "--force").values()) == {"reset"}
        wait_for(lambda: len(seen) == 60)
        world.put("last")
        wait_for(lambda: b"last" in seen)
    assert sorted(seen[30:60]) == sorted(seen[:30])
    assert len(seen) == 61
    assert data_of(world.consume()) == []


def test_by_force_a_live_worker_reads_closed_shards_again_too(world):
    """Shards that the worker knows as finished are open to it again."""
    world.put(*(f"old-{n}" for n in range(20)))
    world.reshard()
    everything = world.everything
    with working(world) as seen:
        wait_for(lambda: len(seen) == len(everything))
        actions = world.reset("TRIM_HORIZON", "--force")
        assert len(actions) == 5
        wait_for(lambda: len(seen) >= 2 * len(everything))
    assert sorted(seen[len(everything) :]) == everything
    assert data_of(world.consume()) == []


def test_a_silent_group_is_waited_for_and_then_changed(world):
    """A lease whose owner crashed: no worker wrote to it for the lease duration."""
    world.put("a", "b")
    world.make(Lease(PARENT, owner="ghost", counter=3), Lease(SECOND, owner="ghost", counter=9))
    began_at = time.monotonic()
    world.reset("TRIM_HORIZON", "--lease-duration", "2s")
    assert time.monotonic() - began_at >= 2
    rows = world.leases()
    assert [(row.owner, row.counter) for row in rows.values()] == [(None, 4), (None, 10)]
    assert data_of(world.consume()) == [b"a", b"b"]


# ---- deleting


@pytest.mark.parametrize(("answer", "code", "rows"), [("n", 1, 2), ("y", 0, 0)])
def test_who_deletes_is_asked(world, answer, code, rows):
    world.make(Lease(PARENT), Lease(SECOND))
    ours, theirs = pty.openpty()
    try:
        with world.begin("delete", world.group, stdin=theirs, stderr=theirs) as process:
            os.write(ours, f"{answer}\n".encode())
            output, _ = process.communicate(timeout=PATIENCE)
        shown = os.read(ours, 10_000).decode()
    finally:
        os.close(ours)
        os.close(theirs)
    assert process.returncode == code
    assert f"Delete the group {world.group} on {world.stream}, 2 leases?" in shown
    assert len(world.leases()) == rows
    assert output.count("deleted") == 2 - rows


def test_other_groups_stay(world):
    world.make(Lease(PARENT))
    first, world.group = world.group, "stays"
    kept = world.make(Lease(SECOND))
    world.json("delete", first, "--yes")
    assert world.leases() == kept
    assert [one["group"] for one in world.json("list", "--observe", "0")] == ["stays"]


# ---- Ctrl-C


def interrupted(process):
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130, errors
    assert "Traceback" not in errors
    return output, errors


def test_ctrl_c_while_it_watches_changes_nothing(world):
    before = world.make(Lease(PARENT, owner="ghost", counter=3), Lease(SECOND))
    with world.begin("reset", world.group, "--to", "TRIM_HORIZON", "--lease-duration", "60s") as process:
        assert process.stderr.readline().startswith("watching the leases for up to 60 s to see whether")
        output, _ = interrupted(process)
    assert output == ""
    assert world.leases() == before


def test_ctrl_c_during_a_kinesis_request_changes_nothing(own_world):
    world = own_world
    before = world.make(Lease(PARENT), Lease(SECOND))
    fault = world.kinesis.faults.latency(60.0, operation="ListShards")
    with world.begin("reset", world.group, "--to", "TRIM_HORIZON") as process:
        wait_for(lambda: fault.hits or process.poll() is not None)
        output, _ = interrupted(process)
    assert output == ""
    assert world.leases() == before


class HoldingRelay:
    """Passes bytes to a Redis, but holds back the first write to one row until it is released."""

    def __init__(self, port, row):
        self._port = port
        self._row = row.encode()
        self.holds, self.let_go = threading.Event(), threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._ends = [self._listener]
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        with contextlib.suppress(OSError):
            while True:
                caller, _ = self._listener.accept()
                callee = socket.create_connection(("127.0.0.1", self._port))
                self._ends += [caller, callee]
                threading.Thread(target=self._pass, args=(caller, callee), daemon=True).start()
                threading.Thread(target=self._pass, args=(callee, caller), daemon=True).start()

    def _pass(self, source, sink):
        with contextlib.suppress(OSError):
            while chunk := source.recv(65536):
                if b"EVAL" in chunk and self._row in chunk:
                    self.holds.set()
                    assert self.let_go.wait(PATIENCE)
                sink.sendall(chunk)
        with contextlib.suppress(OSError):
            sink.shutdown(socket.SHUT_RDWR)

    def close(self):
        self.let_go.set()
        for end in self._ends:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()


def test_ctrl_c_while_it_writes_ends_the_row_at_hand_and_says_what_was_done(shared_kinesis, place):
    world = World(shared_kinesis, place("redis"))
    names = [f"shardId-{n:012d}" for n in range(4)]
    before = world.make(*(Lease(name, counter=5) for name in names))
    port = int(world.store.rpartition(":")[2].partition("/")[0])
    with contextlib.closing(HoldingRelay(port, names[1])) as relay:
        through = f"redis://127.0.0.1:{relay.port}/0"
        with world.begin("delete", world.group, "--yes", "--store", through, "--output", "json") as process:
            assert relay.holds.wait(PATIENCE)
            process.send_signal(signal.SIGINT)
            process.send_signal(signal.SIGINT)
            time.sleep(0.2)  # the time of the answer does not matter: the signal came before
            relay.let_go.set()
            output, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130
    assert errors.strip() == "the delete is incomplete, 2 of 4 shards done: interrupted"
    told = json.loads(output)
    assert (told["complete"], told["stopped_by"]) == (False, "interrupted")
    assert [one["shard_id"] for one in told["shards"] if one["done"]] == names[:2]
    assert world.leases() == {name: before[name] for name in names[2:]}


def test_a_permanently_locked_store_is_reported(world):
    before = world.make(Lease(PARENT), Lease(SECOND))
    path = world.store.removeprefix("sqlite:///")
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as lock:
        lock.execute("BEGIN IMMEDIATE")
        with world.begin("list") as process:
            with pytest.raises(subprocess.TimeoutExpired):
                process.communicate(timeout=3)  # it waits for the lock
            output, _ = interrupted(process)
        lock.execute("ROLLBACK")
    assert output == ""
    assert world.leases() == before


# ---- tables of the KCL


@pytest.fixture
def kcl_world(shared_kinesis, place):
    """A table as a Java application leaves it: its rows name neither group nor stream."""
    world = World(shared_kinesis, place("dynamodb"))
    table, _, settings = world.store.removeprefix("dynamodb://").partition("?")
    client = boto3.client(
        "dynamodb",
        region_name="us-east-1",
        endpoint_url=settings.rpartition("endpoint_url=")[2],
        aws_access_key_id=KEYS.access_key,
        aws_secret_access_key=KEYS.secret_key,
    )
    client.create_table(
        TableName=table,
        AttributeDefinitions=[{"AttributeName": "leaseKey", "AttributeType": "S"}],
        KeySchema=[{"AttributeName": "leaseKey", "KeyType": "HASH"}],
        BillingMode="PAY_PER_REQUEST",
    )
    client.get_waiter("table_exists").wait(TableName=table, WaiterConfig={"Delay": 1, "MaxAttempts": 60})
    for shard_id in (PARENT, SECOND):
        item = {"leaseKey": {"S": shard_id}, "leaseCounter": {"N": "7"}, "checkpoint": {"S": "TRIM_HORIZON"}}
        item |= {"ownerSwitchesSinceCheckpoint": {"N": "0"}, "javaOnly": {"S": "kept"}}
        client.put_item(TableName=table, Item=item)
    world.items = lambda: client.scan(TableName=table, ConsistentRead=True)["Items"]
    world.add = lambda item: client.put_item(TableName=table, Item=item)
    yield world
    client.close()


def test_a_table_of_the_kcl_is_looked_at_and_reset_under_any_name(kcl_world):
    world = kcl_world
    world.put("a", "b")
    (listed,) = world.json("list")
    assert (listed["group"], listed["stream"], listed["rows"]) == (None, None, 2)
    assert world.refused("describe", "my-app")[0] == 2
    assert world.json("describe", "my-app", world.stream)["rows"] == 2
    told = world.json("reset", "my-app", world.stream, "--to", "LATEST")
    assert told["complete"]
    for item in world.items():
        assert (item["checkpoint"]["S"], item["leaseCounter"]["N"]) == ("LATEST", "8")
        assert item["javaOnly"]["S"] == "kept"
        assert "shardlineGroup" not in item


def test_the_workers_of_a_kcl_fleet_are_shown_with_what_they_run(kcl_world):
    world = kcl_world
    among = {"lut": {"N": str(int(time.time()))}, "sup": {"N": "1"}, "entityType": {"S": "WORKER_METRIC_STATS"}}
    world.add({"leaseKey": {"S": "java"}} | among)
    world.add({"leaseKey": {"S": "ours"}, "shardlineVersion": {"S": "0.1.0"}} | among)
    lock = {"ownerName": {"S": "java"}, "recordVersionNumber": {"S": "v"}, "entityType": {"S": "LEADER"}}
    world.add({"leaseKey": {"S": "Leader"}} | lock)
    assert world.json("describe", "my-app", world.stream, "--observe", "0", "--no-lag")["kcl"] == {
        "leader": "java",
        "workers": [{"worker": "java", "runs": "KCL 3.5 or later"}, {"worker": "ours", "runs": "Shardline 0.1.0"}],
    }


def test_a_missing_table_is_not_made(kcl_world):
    world = kcl_world
    world.store = world.environment["SHARDLINE_STORE"] = world.store.replace("dynamodb://", "dynamodb://x")
    for _ in range(2):  # the second time, it would exist
        code, sentence = world.refused("list")
        assert code == 1
        assert "there is no table" in sentence


# ---- a terminal of 80 columns


def test_it_fits_into_80_columns(world):
    world.put(*(f"r-{n}" for n in range(20)))
    world.consume()
    rows = world.leases()
    world.make()

    async def hold(store):
        for row in rows.values():
            await store.apply(DeleteLease(row.shard_id, row.counter))
            worker = "ip-10-0-12-34.eu-west-1.compute.internal:123456:deadbeef"
            held = Lease(row.shard_id, owner=worker, checkpoint=row.checkpoint, hash_range=HashRange(0, 1))
            await store.apply(CreateLease(held))

    world.leases(hold)
    for command in (("list",), ("describe", world.group), ("reset", world.group, "--to", "LATEST", "--dry-run")):
        ours, theirs = pty.openpty()
        try:
            environment = world.environment | {"TERM": "xterm", "NO_COLOR": "1"}
            process = subprocess.Popen(
                [*COMMAND, "groups", *command, *([] if command[0] == "reset" else ["--observe", "600ms"])],
                stdout=theirs,
                stderr=subprocess.PIPE,
                env=environment,
            )
            _, errors = process.communicate(timeout=PATIENCE)
            shown = os.read(ours, 65_536).decode()
        finally:
            os.close(ours)
            os.close(theirs)
        assert process.returncode == 0, errors
        lines = re.sub(r"\x1b\[\d*m", "", shown).splitlines()  # headings are bold
        assert len(lines) == 3 or command == ("list",)
        assert max(map(len, lines)) <= 80, shown


# ---- export and import


@pytest.mark.parametrize(("source", "target"), [("sqlite", "redis"), ("redis", "dynamodb"), ("dynamodb", "sqlite")])
def test_positions_move_to_another_store(shared_kinesis, place, tmp_path, source, target):
    world = World(shared_kinesis, place(source))
    world.put(*(f"old-{n}" for n in range(20)))
    world.reshard()
    assert data_of(world.consume()) == world.everything
    before = {name: row.checkpoint for name, row in world.leases().items()}
    path = tmp_path / "positions.json"
    world.ok("export", world.group, "--file", str(path))
    world.put("new-1", "new-2")
    moved = tmp_path / "moved"
    moved.mkdir()
    world.store = world.environment["SHARDLINE_STORE"] = (
        f"sqlite:///{moved / 'leases.db'}" if target == "sqlite" else place(target)
    )
    planned = world.json("import", world.group, "--file", str(path), "--dry-run")
    assert {shard["effect"] for shard in planned["shards"]} == {"start"}
    assert world.json("import", world.group, "--file", str(path))["complete"]
    assert {name: row.checkpoint for name, row in world.leases().items()} == before
    assert data_of(world.consume()) == [b"new-1", b"new-2"]
