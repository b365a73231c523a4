"""Reads slowly from a stream of aggregates of tiny records, and prints by how much the process grew, in MiB.

``test_memory.py`` runs it in a separate process: ``python tiny_records_reader.py endpoint shards``.
"""

import resource
import sys
import time

from shardline import ConsumerConfig, Credentials
from shardline.sync import Consumer


def peak_mib():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main():
    endpoint, shards = sys.argv[1], int(sys.argv[2])
    config = ConsumerConfig(prefetch_max_bytes=64 * 1024 * 1024, calls_per_second=100.0, bytes_per_second=1e9)
    credentials = Credentials("AKIDEXAMPLE", "secret")
    before = peak_mib()
    with Consumer(
        "tiny", endpoint_url=endpoint, region="us-east-1", credentials=credentials, config=config
    ) as consumer:
        iterator = iter(consumer)
        for _ in range(1_000):
            next(iterator)
        deadline = time.monotonic() + 30.0
        while time.monotonic() < deadline:  # everything that may be read ahead has been
            prefetched = [shard.prefetched for shard in consumer.status().shards]
            if all(prefetched) and len(prefetched) == shards:
                break
            time.sleep(0.1)
        time.sleep(2.0)
        taken = sum(1 for _ in zip(range(2_000_000), iterator, strict=False))
    print(f"{peak_mib() - before:.0f} {taken}")  # noqa: T201 - the answer


main()
