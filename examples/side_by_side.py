"""Handle many records at once, in order by key: ``python examples/side_by_side.py STREAM GROUP STORE [PROCESSES]``.

Without PROCESSES, 64 async handlers work side by side. With it, the handler computes in this many processes.
"""

import asyncio
import hashlib
import sys

from shardline import Consumer, Record


async def notify(record: Record) -> None:
    """A handler that waits, as for a call over the network."""
    await asyncio.sleep(0.05)
    print(f"{record.key}: {record.data.decode()}", flush=True)


def digest(record: Record) -> None:
    """A handler that computes. It runs in a process of its own, so it must be importable."""
    found = record.data
    for _ in range(1_000):
        found = hashlib.sha256(found).digest()
    print(f"{record.key}: {found.hex()[:8]}", flush=True)


async def main(stream: str, group: str, store: str, processes: str | None = None) -> None:
    async with Consumer(stream, group=group, store=store, until="latest") as consumer:
        if processes is None:
            await consumer.run(notify, concurrency=64, order="key")
        else:
            await consumer.run(digest, processes=int(processes), order="key")
        print(f"{consumer.status().totals.records_handled} records", flush=True)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
