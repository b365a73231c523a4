"""The server of the consumer benchmark.

This is the embedded server in a separate process, without rate limits. It has a stream of 4 shards with plain records,
a stream with the same records in aggregates, and empty streams of 4, 8, 100 and 1,000 shards. The process prints
its URL as a line of JSON. For each line on its standard input, it prints the number of requests since the previous
line. It ends when its standard input ends.

    python benchmarks/consumer_server.py --records 100000
"""

import argparse
import asyncio
import collections
import contextlib
import json
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

PLAIN, AGGREGATED = "plain", "aggregated"
SHARDS = 4
EMPTY = {"empty": 100, "vast": 1_000}  # streams without records, and the number of their shards
BLANK = {"blank": SHARDS}  # a stream without records that has as many shards as the full ones
STEADY = {"steady": 8}  # a stream that bench_fanout.py puts into
SIZE = 200
PER_AGGREGATE = 200  # about 45 KB
ENTRIES = 100  # per PutRecords: 500 aggregates would exceed the 10 MiB of a request


def make_records(count: int) -> Iterator[tuple[str, bytes]]:
    """Yield keys and JSON objects of 200 bytes."""
    rng = random.Random(5)
    for number in range(count):
        event = {"number": number, "user": f"user-{rng.randrange(10_000):05}", "amount": rng.random(), "tags": []}
        bare = json.dumps({**event, "note": ""})
        yield event["user"], json.dumps({**event, "note": "x" * (SIZE - len(bare))}).encode()


async def fill(kinesis, count: int) -> None:
    from shardline import aggregate, hash_key_of

    records = list(make_records(count))
    async with kinesis.client() as client:
        for begin in range(0, count, 500):
            await put(client, PLAIN, [(data, key) for key, data in records[begin : begin + 500]])
        shards = await client.list_shards(AGGREGATED)
        waiting = {shard.shard_id: [] for shard in shards}
        ready = []
        for key, data in records:
            shard_id = next(shard.shard_id for shard in shards if hash_key_of(key) in shard.hash_range)
            waiting[shard_id].append((key, data))
            if len(waiting[shard_id]) == PER_AGGREGATE:
                ready.append((aggregate(waiting[shard_id]), waiting[shard_id][0][0]))
                waiting[shard_id] = []
        ready += [(aggregate(rest), rest[0][0]) for rest in waiting.values() if rest]
        for begin in range(0, len(ready), ENTRIES):
            await put(client, AGGREGATED, ready[begin : begin + ENTRIES])


async def put(client, stream: str, entries: list[tuple[bytes, str]]) -> None:
    answer = await client.put_records(stream, entries)
    if answer.failed_count:
        raise RuntimeError(f"{answer.failed_count} records were refused")


def serve(count: int) -> None:
    from shardline.testing import LocalKinesis

    with LocalKinesis(limits=False) as kinesis:
        for name, shards in {PLAIN: SHARDS, AGGREGATED: SHARDS, **EMPTY, **BLANK, **STEADY}.items():
            kinesis.create_stream(name, shards=shards)
        asyncio.run(fill(kinesis, count))
        keys = kinesis.credentials
        print_json(url=kinesis.endpoint_url, access_key=keys.access_key, secret_key=keys.secret_key)
        for _ in sys.stdin:
            print_json(**collections.Counter(seen.operation for seen in kinesis.requests), total=kinesis.requests.total)
            kinesis.requests.clear()


def print_json(**facts: object) -> None:
    print(json.dumps(facts), flush=True)


class Server:
    """The server's process, as its parent uses it."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        line = process.stdout.readline()
        if not line:
            raise SystemExit(f"the server ended with {process.wait()}")
        self.facts: dict[str, str] = json.loads(line)

    def requests(self) -> dict[str, int]:
        """Return the number of requests of each operation since the last call."""
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())


@contextlib.contextmanager
def running_consumer_server(records: int) -> Iterator[Server]:
    line = [sys.executable, str(Path(__file__)), "--records", str(records)]
    with subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield Server(process)
        finally:
            process.kill()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Serve streams of records, for bench_consumer.py.")
    parser.add_argument("--records", type=int, default=100_000)
    serve(parser.parse_args().records)
