"""Read all records of a stream, then stop: ``python examples/read_to_the_end.py STREAM``. No group, no event loop."""

import sys
from collections import Counter

from shardline.sync import Consumer


def main(stream: str) -> int:
    shards: Counter[str] = Counter()
    size = 0
    with Consumer(stream, until="latest") as consumer:
        for batch in consumer.batches():
            shards[batch.shard_id] += len(batch)
            size += sum(len(record.data) for record in batch)
    for shard_id, count in sorted(shards.items()):
        print(f"{shard_id} {count}")
    print(f"{shards.total()} records, {size} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
