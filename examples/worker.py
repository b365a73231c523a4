"""A worker for a container: ``python examples/worker.py STREAM GROUP STORE DEAD_LETTERS``.

Shards are handled side by side, each in order. An order that cannot be handled is tried three times, and then goes to a
file; nothing else waits for it longer than that. On SIGTERM (and Ctrl-C) the worker finishes what it has, commits, and
lets go of its shards.
"""

import asyncio
import json
import logging
import signal
import sys
from pathlib import Path

from shardline import Consumer, FailurePolicy, Record


async def handle(record: Record) -> None:
    order = record.value
    await asyncio.sleep(0)  # the work
    print(f"{record.key}: order {order['order']}", flush=True)


async def main(stream: str, group: str, store: str, dead_letters: Path) -> None:
    loop = asyncio.get_running_loop()
    told = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, told.set)

    async with Consumer(stream, group=group, store=store, deserializer=json.loads) as consumer:

        async def stop() -> None:
            await told.wait()
            await consumer.close(timeout=25)  # a container has 30 s

        stopping = asyncio.create_task(stop())
        policy = FailurePolicy(attempts=3, backoff=0.1)
        try:
            await consumer.run(handle, policy=policy, dead_letter=dead_letters)
        finally:
            told.set()
            await stopping
    print("stopped", flush=True)


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)
    asyncio.run(main(*sys.argv[1:4], Path(sys.argv[4])))
