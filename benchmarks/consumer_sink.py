"""A server for consumers, so cheap that a benchmark measures only the consumer's CPU.

The sink is a separate process on loopback, with plain HTTP/1.1 and keep-alive. It has one stream with any number of
shards and of records, JSON of 200 B. No record is stored: a page is a template with the numbers filled in. After its
last record a shard returns empty pages.

    python benchmarks/consumer_sink.py --shards 4 --records 2500     # prints its URL, ends when its standard input does
"""

import argparse
import asyncio
import base64
import contextlib
import functools
import json
import subprocess
import sys
from collections.abc import Iterator

from producer_sink import SEQUENCE_START, as_answer, shard_list, summary
from sink import JSON, READ_BYTES, UNKNOWN_OPERATION, header, http_answer

PAGE = 1_000
SIZE = 200
VALUE = {"user": "user-00001", "amount": 0.5, "note": ""}
DATA = base64.b64encode(json.dumps(VALUE | {"note": "x" * (SIZE - len(json.dumps(VALUE)))}).encode()).decode()
ARRIVED_AT = 1_700_000_000.123


@functools.cache
def template(records: int) -> str:
    """Return a page of this many records, with placeholders for the sequence numbers and the next iterator."""
    record = (
        f'{{"ApproximateArrivalTimestamp":{ARRIVED_AT},"Data":"{DATA}","PartitionKey":"user-00001",'
        f'"SequenceNumber":"{SEQUENCE_START}%016d"}}'
    )
    listed = ",".join([record] * records)
    return f'{{"MillisBehindLatest":0,"NextShardIterator":"%s:%d","Records":[{listed}]}}'


class Stream:
    """The answers of one stream."""

    def __init__(self, shards: int, records: int) -> None:
        self._records = records
        shard_ids = [f"shardId-{number:012}" for number in range(shards)]
        self._fixed = {b"listshards": shard_list(shard_ids), b"describestreamsummary": summary(shards)}

    def answer(self, operation: bytes, body: bytes) -> bytes:
        if operation == b"getsharditerator":
            return as_answer({"ShardIterator": f"{json.loads(body)['ShardId']}:0"})
        if operation == b"getrecords":
            shard_id, _, begins_at = json.loads(body)["ShardIterator"].partition(":")
            return http_answer(JSON, self._page(shard_id, int(begins_at)).encode())
        return self._fixed.get(operation, UNKNOWN_OPERATION)

    def _page(self, shard_id: str, begins_at: int) -> str:
        ends_at = min(begins_at + PAGE, self._records)
        return template(ends_at - begins_at) % (shard_id, ends_at, *range(begins_at + 1, ends_at + 1))


class StreamProtocol(asyncio.Protocol):
    """One connection. Its requests are short and are not pipelined."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._received = b""
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.set_write_buffer_limits(high=READ_BYTES)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._received += data
        head, blank, body = self._received.partition(b"\r\n\r\n")
        if not blank:
            return
        head = head.lower()
        if len(body) == int(header(head, b"content-length")):
            self._received = b""
            self._transport.write(self._stream.answer(header(head, b"x-amz-target").rpartition(b".")[2], body))


async def serve(shards: int, records: int) -> None:
    stream = Stream(shards, records)
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: StreamProtocol(stream), "127.0.0.1", 0)
    print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    await loop.run_in_executor(None, sys.stdin.read)  # until the parent process closes it or ends


@contextlib.contextmanager
def running_consumer_sink(shards: int, records: int) -> Iterator[str]:
    """Run a sink with ``records`` records per shard until the block ends; yield its URL."""
    command = [sys.executable, __file__, f"--shards={shards}", f"--records={records}"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            url = process.stdout.readline().strip()
            if not url:
                raise RuntimeError("the sink did not start")
            yield url
        finally:
            process.kill()


def main() -> None:
    parser = argparse.ArgumentParser(description="Feed consumers from a stream of any length, for benchmarks.")
    parser.add_argument("--shards", type=int, required=True)
    parser.add_argument("--records", type=int, required=True, help="number of records in each shard")
    options = parser.parse_args()
    asyncio.run(serve(options.shards, options.records))


if __name__ == "__main__":
    main()
