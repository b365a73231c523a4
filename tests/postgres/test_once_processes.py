"""Do handlers in processes write each record exactly once, and keep the tables of positions small?"""

import pickle

import anyio
import psycopg
import pytest
from tests.postgres import process_handlers as handlers

from shardline import Consumer, ConsumerConfig, Producer
from shardline.core.consumer.done_records import PRUNE_AT
from shardline.exactly_once import in_postgres, in_sqlite
from shardline.testing import LocalKinesis

pytestmark = pytest.mark.anyio

KEYS = 40


@pytest.fixture(params=["asyncio"])
def anyio_backend(request):
    return request.param


@pytest.fixture
def raw(database, monkeypatch):
    monkeypatch.setenv(handlers.DATABASE, database)
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(
            "CREATE TABLE seen (id serial, number integer, key text, sequence_number text, sub_sequence integer, "
            "process integer)"
        )
        yield connection


MODES = {
    "record": (handlers.add, {}, 300),
    "batch": (handlers.add_batch, {"batch": 50}, 300),
    "key": (handlers.add, {"order": "key"}, 8 * PRUNE_AT),
    "key-batch": (handlers.add_batch, {"order": "key", "batch": 5}, 300),
    "async": (handlers.add_later, {"order": "key"}, 300),
}


@pytest.mark.parametrize("mode", MODES)
async def test_handlers_in_processes_write_each_record_once(database, raw, mode, tmp_path):
    handler, options, count = MODES[mode]
    with LocalKinesis(shards=1, stream="orders") as kinesis:
        place = {"endpoint_url": kinesis.endpoint_url, "region": kinesis.region, "credentials": kinesis.credentials}
        async with Producer("orders", **place) as producer:
            await producer.put_many([(f"k{number % KEYS}", b"%d" % number) for number in range(count)])
        settings = {"group": "billing", "config": ConsumerConfig(checkpoint_interval=0.1), "until": "latest", **place}
        for store in (database, f"sqlite:///{tmp_path}/another.db"):  # with another store, the records come again
            async with Consumer("orders", store=store, **settings) as consumer:
                await consumer.run(handlers.make(handler), processes=3, **options)
            # The stores share no row, so only the service's time, in whole seconds, makes the next token greater.
            await anyio.sleep(1.1)
    rows = raw.execute("SELECT number, key FROM seen ORDER BY id").fetchall()
    assert sorted(number for number, _ in rows) == list(range(count))
    for key in {key for _, key in rows}:
        numbers = [number for number, its in rows if its == key]
        assert numbers == sorted(numbers)
    (left,) = raw.execute("SELECT count(*) FROM shardline_done").fetchone()
    assert left <= (4 * PRUNE_AT if "order" in options else 0), "each process removes the records that are passed"


def test_a_handler_can_be_pickled(database, raw, tmp_path):
    for made in (
        in_postgres(handlers.add, database, group="a"),
        in_postgres(handlers.add_later, database, group="a"),
        in_sqlite(handlers.add, tmp_path / "app.db", group="a"),
        in_sqlite(handlers.add_later, tmp_path / "app.db", group="a"),
    ):
        assert type(pickle.loads(pickle.dumps(made))) is type(made)
