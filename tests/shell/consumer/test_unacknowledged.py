"""With manual acknowledgements, a shard pauses when too many records are unacknowledged, and continues when some are
acknowledged.
"""

import anyio
import pytest
from tests.shell.blocking import EVERY_API

from shardline.core.consumer.consumer_events import TooManyUnacknowledged

pytestmark = pytest.mark.anyio

MANUAL = {"ack": "manual", "max_unacknowledged": 100}


@EVERY_API
@pytest.mark.parametrize("way", ["iteration", "batches", "run"])
async def test_no_more_are_handed_out_until_some_are_acknowledged(
    make_consumer, put, group, ledger, eventually, complaints, way
):
    await put(range(1_000))
    events = []
    async with (
        make_consumer(group=group, store="memory:", sinks=[events.append], page_max_records=50, **MANUAL) as consumer,
        anyio.create_task_group() as tasks,
    ):

        async def read():
            if way == "iteration":
                async for record in consumer:
                    ledger(record)
            elif way == "batches":
                async for batch in consumer.batches(max_records=20):
                    for record in batch:
                        ledger(record)
            else:

                async def handle(record):
                    ledger(record)

                await consumer.run(handle)

        tasks.start_soon(read)
        await eventually(lambda: sum(isinstance(event, TooManyUnacknowledged) for event in events) == 2)
        await anyio.sleep(0.5)
        limit = 2 * 120 if way == "batches" else 2 * 100  # a batch may exceed the limit
        assert len(ledger.records) <= limit
        assert max(shard.unacknowledged for shard in consumer.status().shards) >= 100
        acknowledged = 0
        with anyio.fail_after(30):
            while acknowledged < 1_000:
                while acknowledged < len(ledger.records):
                    assert consumer.ack(ledger.records[acknowledged])
                    acknowledged += 1
                await anyio.sleep(0.005)
        assert {*ledger.numbers} == {*range(1_000)}
        ledger.check_order()
        await consumer.close()
    assert any("max_unacknowledged" in text for _, text in complaints())


async def test_one_shard_that_is_full_delays_no_other(make_consumer, put, group, eventually):
    await put(range(600))
    seen = []
    async with (
        make_consumer(group=group, store="memory:", page_max_records=50, **MANUAL) as consumer,
        anyio.create_task_group() as tasks,
    ):
        await consumer.wait_ready()
        stuck = consumer.status().shards[0].shard_id

        async def read():
            async for record in consumer:
                seen.append(record.shard_id)
                if record.shard_id != stuck:
                    consumer.ack(record)

        tasks.start_soon(read)
        await eventually(lambda: sum(shard_id != stuck for shard_id in seen) > 200)
        await anyio.sleep(0.3)
        assert seen.count(stuck) == 100
        await consumer.close()
