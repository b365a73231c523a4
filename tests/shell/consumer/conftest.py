"""Against which Kinesis, which stores and on which event loops do the tests of the consumer run?"""

import gc
from collections import defaultdict
from itertools import count

import anyio
import pytest

from shardline import Client, Consumer, ConsumerConfig
from shardline.testing import LocalKinesis

# Short leases and quick scans: nothing here waits for the wall clock longer than it must.
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
    return request.param


@pytest.fixture
def kinesis():
    """Two shards, no limits of rates."""
    with LocalKinesis(shards=2, limits=False, stream="s") as running:
        yield running


@pytest.fixture
def connection(kinesis):
    return {"endpoint_url": kinesis.endpoint_url, "region": kinesis.region, "credentials": kinesis.credentials}


@pytest.fixture
def group():
    """A group of its own: the store ``memory:`` is the whole process's."""
    return f"group-{next(groups)}"


@pytest.fixture(params=["memory", "sqlite"])
def store(request, tmp_path):
    return "memory:" if request.param == "memory" else f"sqlite:///{tmp_path}/leases.db"


def quick(arguments):
    """A config of ``QUICK``, and of the arguments that belong there."""
    knobs = {name: arguments.pop(name) for name in list(arguments) if name in ConsumerConfig.__dataclass_fields__}
    return ConsumerConfig(**(QUICK | knobs))


@pytest.fixture
def quick_config():
    return ConsumerConfig(**QUICK)


@pytest.fixture
def make_consumer(connection):
    def make(stream="s", **arguments):
        config = quick(arguments)
        return Consumer(stream, config=config, **({} if "client" in arguments else connection), **arguments)

    return make


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
    """What a consumer was handed, in its order."""

    def __init__(self):
        self.records = []

    def __call__(self, record):
        self.records.append(record)

    @property
    def numbers(self):
        return [int(record.data) for record in self.records]

    def check_order(self):
        """Records of a shard are in order, and those of a key too, over all shards."""
        by_shard, by_key = defaultdict(list), defaultdict(list)
        for record in self.records:
            by_shard[record.shard_id].append(record.order)
            by_key[record.key].append(int(record.data))
        for orders in by_shard.values():
            assert orders == sorted(orders)
        for key, numbers in by_key.items():
            assert numbers == sorted(numbers), key


@pytest.fixture
def ledger():
    return Ledger()


@pytest.fixture
def make_ledger():
    return Ledger


async def take(consumer, number, limit=10.0):
    """The next ``number`` records, one by one, and no asking for more than these."""
    records = []
    with anyio.fail_after(limit):
        async for record in consumer:
            records.append(record)
            if len(records) == number:
                break
    return records


@pytest.fixture(name="take")
def take_fixture():
    return take


@pytest.fixture
def eventually():
    """Wait for what others are about to do."""

    async def wait(true, limit=20.0):
        with anyio.move_on_after(limit):
            while not true():  # noqa: ASYNC110 - what is waited for rings no bell
                await anyio.sleep(0.01)
        assert true()

    return wait


@pytest.fixture(autouse=True)
def nothing_is_left_open():
    """What is unclosed warns when it is collected, and a warning is a failure here."""
    yield
    gc.collect()
