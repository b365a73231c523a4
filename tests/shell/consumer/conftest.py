"""Fixtures of the consumer's tests: a Kinesis, lease stores and event loops."""

import gc
import threading
from itertools import count

import pytest
from tests.reading import check_order, take
from tests.shell.blocking import BlockingConsumer, kind_for

import shardline.sync
from shardline import Client, Consumer, ConsumerConfig
from shardline.testing import LocalKinesis

# Short leases and quick scans, so that no test waits longer than necessary.
QUICK = {
    "lease_duration": 1.0,
    "checkpoint_interval": 0.05,
    "scan_interval": 0.05,
    "list_interval": 1.0,
    "idle_poll_interval": 0.05,
    "calls_per_second": 200.0,
    "hand_over_timeout": 2.0,
}
groups = count(1)


@pytest.fixture(params=["asyncio", "uvloop", "trio"])
def event_loop_kind(request):
    return "asyncio" if request.param == "blocking" else request.param


@pytest.fixture
def kinesis():
    """A Kinesis with two shards and no rate limits."""
    with LocalKinesis(shards=2, limits=False, stream="s") as running:
        yield running


@pytest.fixture
def connection(kinesis):
    return {"endpoint_url": kinesis.endpoint_url, "region": kinesis.region, "credentials": kinesis.credentials}


@pytest.fixture
def group():
    """A new group name: the whole process shares the store ``memory:``."""
    return f"group-{next(groups)}"


@pytest.fixture(params=["memory", "sqlite"])
def store(request, tmp_path):
    return "memory:" if request.param == "memory" else f"sqlite:///{tmp_path}/leases.db"


def maker(kind, connection):
    """Make consumers of a kind, with ``QUICK`` and the given settings in their config."""

    def make(stream="s", **arguments):
        knobs = {name: arguments.pop(name) for name in list(arguments) if name in ConsumerConfig.__dataclass_fields__}
        config = ConsumerConfig(**(QUICK | knobs))
        return kind(stream, config=config, **({} if "client" in arguments else connection), **arguments)

    return make


@pytest.fixture
def make_consumer(connection, request):
    return maker(kind_for(request, Consumer, BlockingConsumer), connection)


@pytest.fixture
def make_sync_consumer(connection):
    return maker(shardline.sync.Consumer, connection)


@pytest.fixture
def put(connection):
    """Put numbered records: data ``b"<number>"``, key ``k<number modulo keys>``."""

    async def put(numbers, *, stream="s", keys=50):
        async with Client(**connection) as client:
            rows = [(b"%d" % number, f"k{number % keys}") for number in numbers]
            for at in range(0, len(rows), 500):
                answer = await client.put_records(stream, rows[at : at + 500])
                assert not answer.failed_count

    return put


@pytest.fixture
def client_of(connection):
    return lambda: Client(**connection)


class Ledger:
    """The records that a consumer was handed, in order."""

    def __init__(self):
        self.records = []

    def __call__(self, record):
        self.records.append(record)

    @property
    def numbers(self):
        return [int(record.data) for record in self.records]

    def check_order(self):
        check_order(self.records)


@pytest.fixture
def ledger():
    return Ledger()


@pytest.fixture
def make_ledger():
    return Ledger


@pytest.fixture(name="take")
def take_fixture():
    return take


@pytest.fixture(autouse=True)
def nothing_is_left_open():
    """Fail if something is left open: unclosed objects warn when they are collected, and warnings are errors here."""
    yield
    gc.collect()
    assert "shardline consumer" not in {one.name for one in threading.enumerate()}
