"""Does a fleet share a stream by leases in PostgreSQL, and go on where a worker stopped?"""

import signal

import anyio
import pytest
from tests.reading import check_dedup_window

from shardline import Consumer, ConsumerConfig, Producer
from shardline.testing import LocalKinesis

pytestmark = pytest.mark.anyio
CONFIG = ConsumerConfig(lease_duration=3.0, checkpoint_interval=0.2)


async def test_two_workers_share_the_shards_and_a_restart_of_the_server_loses_nothing(start_server):
    server = start_server("fsync=on")
    seen, owners = [], {"a": set(), "b": set()}
    with LocalKinesis(shards=4, limits=False, stream="orders") as kinesis:
        connection = {
            "endpoint_url": kinesis.endpoint_url,
            "region": kinesis.region,
            "credentials": kinesis.credentials,
        }

        async def work(name, ready):
            async def handle(record):
                seen.append(record.data)
                owners[name].add(record.shard_id)

            async with Consumer(
                "orders", group="billing", store=server.url(), worker_id=name, config=CONFIG, **connection
            ) as consumer:
                ready.set()
                await consumer.run(handle)

        async def put(first, count):
            async with Producer("orders", **connection) as producer:
                for number in range(first, first + count):
                    await producer.put(b"%d" % number, key=f"key-{number}")

        with anyio.fail_after(120):
            async with anyio.create_task_group() as tasks:
                for name in owners:
                    ready = anyio.Event()
                    tasks.start_soon(work, name, ready)
                    await ready.wait()
                await put(0, 400)
                while len(set(seen)) < 400 or not all(owners.values()):
                    if not all(owners.values()):
                        await put(0, 40)
                    await anyio.sleep(0.2)
                await anyio.to_thread.run_sync(server.stop, signal.SIGKILL)
                await put(400, 400)
                await anyio.to_thread.run_sync(server.start)
                while len(set(seen)) < 800:  # noqa: ASYNC110 - the handlers run in many tasks
                    await anyio.sleep(0.2)
                tasks.cancel_scope.cancel()
    assert set(seen) == {b"%d" % number for number in range(800)}


async def test_the_dedup_window_passes_to_the_next_owner_and_to_children(database):
    with LocalKinesis(shards=2, limits=False, stream="orders") as kinesis:
        place = {"endpoint_url": kinesis.endpoint_url, "region": kinesis.region, "credentials": kinesis.credentials}

        def make(name, **settings):
            config = ConsumerConfig(lease_duration=3.0, checkpoint_interval=0.2, scan_interval=0.1, list_interval=1.0)
            return Consumer(
                "orders", group="billing", store=database, worker_id=name, config=config, **place, **settings
            )

        await check_dedup_window(make, place, "shardId-000000000001")
