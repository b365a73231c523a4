"""A worker of the failover benchmark: reads the stream, and writes a journal of the records that it handled.

A worker is a separate process. Its settings are a JSON object. Each record that it handled is one line in its journal,
written at once, so that the journal of a killed worker is complete: the time (CLOCK_MONOTONIC, which all processes of a
machine share), the shard, and the number of the record. The first line has only the time when the imports were done and
the consumer was started. On SIGTERM the worker closes its consumer and ends.

    python benchmarks/failover_worker.py '{"stream": "bench", "store": "sqlite:////tmp/leases.db", ...}'
"""

import asyncio
import json
import os
import signal
import sys
import time

from shardline import Consumer, ConsumerConfig, Credentials


async def work(settings: dict[str, object]) -> None:
    journal = os.open(settings["journal"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    os.write(journal, f"{time.monotonic():.6f}\n".encode())

    async def handle(record) -> None:
        os.write(journal, f"{time.monotonic():.6f} {record.shard_id} {int(record.data)}\n".encode())

    async with Consumer(
        settings["stream"],
        group="failover",
        store=settings["store"],
        worker_id=settings["worker_id"],
        config=ConsumerConfig(**settings["config"]),
        endpoint_url=settings["url"],
        region=settings["region"],
        credentials=Credentials(*settings["keys"]),
    ) as consumer:
        loop = asyncio.get_running_loop()
        closing: list[asyncio.Task[None]] = []
        loop.add_signal_handler(signal.SIGTERM, lambda: closing.append(loop.create_task(consumer.close(timeout=20))))
        await consumer.run(handle)
        await asyncio.gather(*closing)


if __name__ == "__main__":
    asyncio.run(work(json.loads(sys.argv[1])))
