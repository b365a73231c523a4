"""A worker for a container: ``python examples/worker.py STREAM GROUP STORE DEAD_LETTERS``.

Shards are processed in parallel, and the records of a shard in order. An order that fails is tried three times and then
written to a file, so that it does not hold up the others. On SIGTERM (and Ctrl-C) the worker finishes the current
orders, commits, and releases its shards.

If the environment variable ``ALIVE_FILE`` names a file, the worker touches that file while it is healthy, for a
liveness probe. The file of ``READY_FILE`` exists while the worker reads all of its shards, for a readiness probe. See
the page on deploying.
"""

import asyncio
import json
import logging
import os
import signal
import sys
from pathlib import Path
from typing import Any

from shardline import Consumer, ConsumerConfig, FailurePolicy, Record

CONFIG = ConsumerConfig(stuck_after=120)  # an order that takes more than two minutes counts as stuck
POLICY = FailurePolicy(attempts=3, backoff=0.1)


async def handle(record: Record[dict[str, Any]]) -> None:
    order = record.value
    await asyncio.sleep(0)  # the work
    print(f"{record.key}: order {order['order']}", flush=True)


async def touch_while_healthy(consumer: Consumer[Any], file: Path, every: float = 2.0) -> None:
    """Touch the file regularly for a probe that checks its age. Return when the consumer ends."""
    while (health := consumer.status().health) not in ("failed", "closing", "closed"):
        if health != "handler-stuck":
            file.touch()  # noqa: ASYNC240 - quick: the file is on a file system in memory
        await asyncio.sleep(every)


async def keep_file_while_ready(consumer: Consumer, file: Path, every: float = 1.0) -> None:
    """Create the file when the worker reads all of its shards, and remove it when it does not."""
    try:
        while consumer.status().health not in ("failed", "closing", "closed"):
            if consumer.is_ready:
                file.touch()  # noqa: ASYNC240 - in memory, and quick
            else:
                file.unlink(missing_ok=True)  # noqa: ASYNC240
            await asyncio.sleep(every)
    finally:
        file.unlink(missing_ok=True)  # noqa: ASYNC240


async def main(
    stream: str,
    group: str,
    store: str,
    dead_letters: Path,
    *,
    alive_file: Path | None = None,
    ready_file: Path | None = None,
) -> None:
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    consumer = Consumer(stream, group=group, store=store, config=CONFIG, deserializer=json.loads)
    helpers: list[asyncio.Task[None]] = []
    if alive_file is not None:
        helpers.append(asyncio.create_task(touch_while_healthy(consumer, alive_file)))

    if ready_file is not None:
        helpers.append(asyncio.create_task(keep_file_while_ready(consumer, ready_file)))

    async def close_when_stopped() -> None:
        await stop.wait()
        await consumer.close(timeout=25)  # Kubernetes and ECS kill a container 30 s after SIGTERM

    try:
        async with consumer:
            helpers.append(asyncio.create_task(close_when_stopped()))
            await consumer.run(handle, policy=POLICY, dead_letter=dead_letters)
    finally:
        await consumer.close()
        for helper in helpers:
            helper.cancel()
    print("stopped", flush=True)


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)
    alive, ready = (Path(os.environ[name]) if name in os.environ else None for name in ("ALIVE_FILE", "READY_FILE"))
    if alive is not None:
        alive.touch()  # fails at the start if the file cannot be written
    try:
        stream, group, store, dead_letters = sys.argv[1:]
        asyncio.run(main(stream, group, store, Path(dead_letters), alive_file=alive, ready_file=ready))
    finally:
        if alive is not None:
            alive.unlink(missing_ok=True)
