"""What do the consumers of the benchmark read from?

The embedded server in a process of its own, limits off, with a stream of 4 shards of plain records, one of the same
records in aggregates, and two without any: of 100 shards, and of 1,000. It says its URL on a line of JSON, then answers
each line on its standard input with what was asked of it so far, and ends when that does.

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
EMPTY = {"empty": 100, "vast": 1_000}  # streams without records, and how many shards each has
SIZE = 200
PER_AGGREGATE = 200  # some 45 KB
ENTRIES = 100  # of a PutRecords: 20 aggregates and more would be too large


def make_records(count: int) -> Iterator[tuple[str, bytes]]:
    """JSON objects of 200 bytes."""
    chance = random.Random(5)
    for number in range(count):
        event = {"number": number, "user": f"user-{chance.randrange(10_000):05}", "amount": chance.random(), "tags": []}
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
            home = next(shard.shard_id for shard in shards if hash_key_of(key) in shard.hash_range)
            waiting[home].append((key, data))
            if len(waiting[home]) == PER_AGGREGATE:
                ready.append((aggregate(waiting[home]), waiting[home][0][0]))
                waiting[home] = []
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
        for name, shards in {PLAIN: SHARDS, AGGREGATED: SHARDS, **EMPTY}.items():
            kinesis.create_stream(name, shards=shards)
        asyncio.run(fill(kinesis, count))
        keys = kinesis.credentials
        say(url=kinesis.endpoint_url, access_key=keys.access_key, secret_key=keys.secret_key)
        for _ in sys.stdin:
            say(**collections.Counter(seen.operation for seen in kinesis.requests), total=kinesis.requests.total)
            kinesis.requests.clear()


def say(**facts: object) -> None:
    print(json.dumps(facts), flush=True)


class Server:
    """The server's process, seen from outside."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        line = process.stdout.readline()
        if not line:
            raise SystemExit(f"the server ended with {process.wait()}")
        self.facts: dict[str, str] = json.loads(line)

    def requests(self) -> dict[str, int]:
        """How many of each operation since the last time."""
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
