"""Read a stream as one worker of a group, until Ctrl-C: ``python examples/consume.py STREAM GROUP STORE``.

The store is ``sqlite:///leases.db``, say. Start it twice: the two share the shards. Stop it and start it again: it
goes on where it was.
"""

import asyncio
import sys

from shardline import Consumer


async def main(stream: str, group: str, store: str) -> None:
    async with Consumer(stream, group=group, store=store) as consumer:
        print(f"{consumer.worker_id} reads {stream} for {group}", file=sys.stderr)
        async for record in consumer:  # the one before is done now, and will be committed
            print(record.shard_id, record.key, record.data.decode(errors="replace"), flush=True)


if __name__ == "__main__":
    try:
        asyncio.run(main(*sys.argv[1:4]))
    except KeyboardInterrupt:  # the leases are free: another worker has them at its next look
        sys.exit(130)
