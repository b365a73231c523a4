"""Do the examples of the page about middleware run unchanged?"""

import anyio
import pytest
from tests.docs import pages
from tests.docs.pages import run_block

from shardline import UsageError, deaggregate
from shardline.sync import Producer as SyncProducer

BLOCKS = pages.blocks_of("docs/guides/middleware.md", "python")


def test_orders_are_validated_and_compressed(kinesis, backend):
    assert len(BLOCKS) == 3
    example = run_block(BLOCKS, "def put_orders(")
    long = b'{"id": 1, "note": "%s"}' % (b"please " * 100)
    anyio.run(example.put_orders, [long, b'{"id": 2}'], backend=backend)
    stored = deaggregate(kinesis.streams["orders"].records)
    assert sorted(dict(record.headers).get("content-encoding", "") for record in stored) == ["", "gzip"]
    assert max(len(record.data) for record in stored) < 100
    found = anyio.run(example.read_orders, backend=backend)
    assert sorted(order.id for order in found) == [1, 2]
    with pytest.raises(UsageError, match="record 0: the data is not a valid Order"):
        anyio.run(example.put_orders, [b"{}"], backend=backend)


def test_your_own_middleware(kinesis, backend):
    found = anyio.run(run_block(BLOCKS, "def add_source(").copy_orders, backend=backend)
    assert found == ["web-shop: name of customer-7"]


def test_around_a_handler(kinesis, backend, capsys):
    with SyncProducer("orders") as producer:
        producer.put(b"{}", key="customer-7").result()
    example = run_block(BLOCKS, "def timed(")
    anyio.run(example.store_orders, backend=backend)
    assert [seconds >= 0.0 for seconds in example.seconds] == [True]
    announced, stored = capsys.readouterr().out.splitlines()
    assert (announced[:13], stored) == ("1 records of ", "store [b'{}']")
