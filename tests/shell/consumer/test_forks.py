"""What happens to a consumer in a process that forks?"""

import os
import sqlite3
import subprocess

import pytest
from tests.programs import command_for

PRELUDE = """
import asyncio, os, sys, time, traceback
from shardline import Closed, Consumer, ConsumerConfig, Credentials
from shardline import sync

def in_child(work, leave=os._exit):
    pid = os.fork()
    if not pid:
        status = 1
        try:
            work()
            status = 0
        except BaseException:
            traceback.print_exc()
        sys.stdout.flush(), sys.stderr.flush()
        leave(status)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

def refused(*uses):
    for use in uses:
        try:
            use()
        except Closed as error:
            assert str(error) == "this Consumer was created before a fork: create a new one in the child", error
        else:
            raise AssertionError(use)

CONFIG = ConsumerConfig(lease_duration=2.0, checkpoint_interval=0.05, idle_poll_interval=0.1, calls_per_second=200.0)
"""


@pytest.fixture
def run_program(connection, tmp_path):
    """Run a program to its end. It has ``ARGUMENTS`` for a consumer of a group on SQLite."""

    def run(source):
        keys = connection["credentials"]
        arguments = f"""
ARGUMENTS = dict(
    group="g", store={f"sqlite:///{tmp_path}/leases.db"!r}, config=CONFIG, endpoint_url={connection["endpoint_url"]!r},
    region={connection["region"]!r}, credentials=Credentials({keys.access_key!r}, {keys.secret_key!r}),
)
"""
        done = subprocess.run(
            command_for(PRELUDE + arguments + source, "-W", "always::ResourceWarning"),
            env={name: value for name, value in os.environ.items() if not name.startswith("PYTEST")},
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, ""), done
        return done.stdout

    return run


pytestmark = [pytest.mark.anyio, pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")]


@pytest.fixture
def anyio_backend():
    return "asyncio"  # for ``put``: the programs choose their own


@pytest.fixture
def unharmed(tmp_path):
    """Check that the parent held the leases to the end and released them, and that the file is intact."""

    def check(owners=1):
        with sqlite3.connect(tmp_path / "leases.db") as raw:
            assert raw.execute("PRAGMA integrity_check").fetchone() == ("ok",)
            rows = [row[0] for row in raw.execute("SELECT lease FROM leases")]
        raw.close()
        assert len(rows) == 2
        assert all('"owner_switches"' not in row or owners > 1 for row in rows), rows
        assert all('"owner"' not in row for row in rows), "released"

    return check


async def test_the_blocking_consumer_refuses_and_a_new_one_works(run_program, put, unharmed):
    await put(range(40))
    out = run_program("""
seen = []
with sync.Consumer("s", **ARGUMENTS) as consumer:
    records = iter(consumer)
    first = next(records)
    seen.append(int(first.data))
    def work():
        refused(lambda: next(records), lambda: iter(consumer), consumer.batches, consumer.start, consumer.wait_ready,
                lambda: consumer.run(print), lambda: consumer.ack(first))
        assert not first.lease.held and not consumer.is_ready
        assert consumer.status().health == "failed"
        consumer.close()
        own = {name: value for name, value in ARGUMENTS.items() if name not in ("group", "store")}
        with sync.Consumer("s", **own, until="latest") as mine:
            assert len(list(mine)) == 40
    assert in_child(work) == 0
    assert in_child(work, sys.exit) == 0
    while len(seen) < 40:
        seen.append(int(next(records).data))
    assert first.lease.held
print(sorted(seen) == list(range(40)))
""")
    assert out == "True\n"
    unharmed()


async def test_a_child_that_goes_on_with_the_loop_is_refused(run_program, put, unharmed):
    """The page that was there at the fork belongs to the parent: the child gets none of it, and its iteration does not
    end normally.
    """
    await put(range(40))
    out = run_program("""
with sync.Consumer("s", **ARGUMENTS) as consumer:
    seen, child = 0, None
    try:
        for record in consumer:
            seen += 1
            if seen == 3:
                child = os.fork()
            if seen == 40:
                break
    except Closed as error:
        assert child == 0 and "before a fork" in str(error) and seen == 3
        os._exit(7)
    print(seen, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
""")
    assert out == "40 7\n"
    unharmed()


async def test_the_async_consumer_refuses(run_program, put, unharmed):
    await put(range(40))
    out = run_program("""
async def main():
    seen = []
    async with Consumer("s", **ARGUMENTS) as consumer:
        await consumer.wait_ready()
        records = aiter(consumer)
        first = await anext(records)
        def work():
            refused(lambda: asyncio.run(records.__anext__()), lambda: aiter(consumer), consumer.batches,
                    lambda: asyncio.run(consumer.start()), lambda: asyncio.run(consumer.wait_ready()),
                    lambda: asyncio.run(consumer.run(print)), lambda: consumer.ack(first))
            assert not first.lease.held and not consumer.is_ready
            asyncio.run(consumer.close())
        assert in_child(work) == 0
        seen = [first]
        while len(seen) < 40:
            seen.append(await anext(records))
        assert first.lease.held
    print(len(seen))
asyncio.run(main())
""")
    assert out == "40\n"
    unharmed()


async def test_one_that_was_not_started_may_cross_a_fork_under_a_new_name(run_program, put, unharmed):
    await put(range(40))
    out = run_program("""
consumer, named = sync.Consumer("s", **ARGUMENTS), sync.Consumer("s", **ARGUMENTS, worker_id="mine")
name = consumer.worker_id
def work():
    assert consumer.worker_id != name and named.worker_id == "mine"
    with consumer:
        consumer.wait_ready()
assert in_child(work) == 0
assert consumer.worker_id == name
with consumer:
    print(len([next(records) for records in [iter(consumer)] for _ in range(40)]))
""")
    assert out == "40\n"
    unharmed(owners=2)
