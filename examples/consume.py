"""Read a stream as one worker of a group, until Ctrl-C: ``python examples/consume.py STREAM GROUP STORE``.

The store is, for example, ``sqlite:///leases.db``. Start the program twice, and the two processes share the shards.
Stop it and start it again, and it continues where it stopped.
"""

import asyncio
import sys

from shardline import Consumer


async def main(stream: str, group: str, store: str) -> None:
    async with Consumer(stream, group=group, store=store) as consumer:
        print(f"{consumer.worker_id} reads {stream} for {group}", file=sys.stderr)
        async for record in consumer:  # requesting a record marks the previous one as processed
            print(record.shard_id, record.key, record.data.decode(errors="replace"), flush=True)


if __name__ == "__main__":
    try:
        asyncio.run(main(*sys.argv[1:4]))
    except KeyboardInterrupt:  # the leases are released, and another worker takes them at its next scan
        sys.exit(130)
