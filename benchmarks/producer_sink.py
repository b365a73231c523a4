"""A server for producers, so cheap that a benchmark measures only the producer's CPU.

The sink is a separate process on loopback, with HTTP/1.1 and keep-alive, plain or TLS 1.3. It has one stream that was
never resharded. ListShards and DescribeStreamSummary describe its shards, and PutRecords returns for each entry the
shard that its key belongs to, so that a producer that predicts shards is right. Only the keys of a body are read. The
sink keeps only counts, which GET /counts returns. `--delay` delays each PutRecords answer; if it is negative,
PutRecords is never answered. `--ca-path` makes it serve TLS, and names the file for its authority's certificate.

    python benchmarks/producer_sink.py [--delay 0.002] [--shards 32]   # prints its URL, ends when its input does
"""

import argparse
import asyncio
import contextlib
import hashlib
import http.client
import json
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import msgspec
from sink import JSON, READ_BYTES, UNKNOWN_OPERATION, header, http_answer, tls_context

SHARDS = 32  # every number of shards here must be a power of two
HASH_BITS = 128
SEQUENCE_START = "4959033827149025660855969253836157109592"  # followed by 16 digits of a counter
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
STREAM_ARN = "arn:aws:kinesis:us-east-1:000000000000:bench"


class Entry(msgspec.Struct, gc=False):
    key: str = msgspec.field(name="PartitionKey")
    explicit_hash_key: str | None = msgspec.field(name="ExplicitHashKey", default=None)


class PutRecords(msgspec.Struct, gc=False):
    records: list[Entry] = msgspec.field(name="Records")


def as_answer(body: object) -> bytes:
    return http_answer(JSON, json.dumps(body, separators=(",", ":")).encode())


def shard_list(shard_ids: list[str]) -> bytes:
    width = (1 << HASH_BITS) // len(shard_ids)
    shards = [
        {
            "ShardId": shard_id,
            "HashKeyRange": {
                "StartingHashKey": str(width * number),
                "EndingHashKey": str(width * (number + 1) - 1),
            },
            "SequenceNumberRange": {"StartingSequenceNumber": SEQUENCE_START + "0" * 16},
        }
        for number, shard_id in enumerate(shard_ids)
    ]
    return as_answer({"Shards": shards})


def summary(shards: int) -> bytes:
    description = {
        "StreamName": "bench",
        "StreamARN": STREAM_ARN,
        "StreamStatus": "ACTIVE",
        "StreamModeDetails": {"StreamMode": "PROVISIONED"},
        "RetentionPeriodHours": 24,
        "StreamCreationTimestamp": 1_700_000_000,
        "EnhancedMonitoring": [{"ShardLevelMetrics": []}],
        "EncryptionType": "NONE",
        "OpenShardCount": shards,
        "ConsumerCount": 0,
        "MaxRecordSizeInKiB": 1024,
    }
    return as_answer({"StreamDescriptionSummary": description})


class Stream:
    """The answers of the stream, and the counts of requests."""

    def __init__(self, shards: int) -> None:
        shard_ids = [f"shardId-{number:012}" for number in range(shards)]
        self._shard_bits = shards.bit_length() - 1
        # A template of an entry's result for each shard; the sequence number is filled in.
        self._results = [f'{{"SequenceNumber":"{SEQUENCE_START}%016d","ShardId":"{name}"}}' for name in shard_ids]
        self._fixed = {b"listshards": shard_list(shard_ids), b"describestreamsummary": summary(shards)}
        self._decoder = msgspec.json.Decoder(PutRecords)
        self._requests = self._entries = self._bytes = self._lists = 0

    def put(self, body: bytes) -> bytes:
        entries = self._decoder.decode(body).records
        number = self._entries
        self._requests += 1
        self._entries += len(entries)
        self._bytes += len(body)
        md5, shift, of_shard = hashlib.md5, HASH_BITS - self._shard_bits, self._results
        results = []
        for entry in entries:
            number += 1
            if entry.explicit_hash_key is None:
                shard = int.from_bytes(md5(entry.key.encode()).digest()) >> shift
            else:
                shard = int(entry.explicit_hash_key) >> shift
            results.append(of_shard[shard] % number)
        return http_answer(JSON, f'{{"FailedRecordCount":0,"Records":[{",".join(results)}]}}'.encode())

    def other(self, operation: bytes) -> bytes:
        self._lists += operation == b"listshards"
        return self._fixed.get(operation, UNKNOWN_OPERATION)

    def counts(self) -> bytes:
        counts = {
            "requests": self._requests,
            "entries": self._entries,
            "body_bytes": self._bytes,
            "list_shards": self._lists,
            "cpu": time.process_time(),
        }
        return as_answer(counts)


class StreamProtocol(asyncio.BufferedProtocol):
    """One connection without pipelining. A body is read into one buffer of its full length."""

    def __init__(self, stream: Stream, delay: float) -> None:
        self._stream = stream
        self._delay = delay
        self._view = memoryview(bytearray(READ_BYTES))
        self._head = b""  # the received part of the head
        self._operation = b""
        self._body: memoryview | None = None
        self._filled = 0
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - the signature is asyncio's
        return self._view if self._body is None else self._body[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        if self._body is None:
            self._head += self._view[:nbytes]
            if b"\r\n\r\n" not in self._head:
                return
            self._open_body()
        else:
            self._filled += nbytes
        if self._body is not None and self._filled == len(self._body):
            body, self._body = self._body, None
            self._answer(body.obj)

    def _open_body(self) -> None:
        head, _, rest = self._head.partition(b"\r\n\r\n")
        self._head = b""
        if head.startswith(b"GET "):
            self._transport.write(self._stream.counts())
            return
        head = head.lower()
        self._operation = header(head, b"x-amz-target").rpartition(b".")[2]
        if b"\r\nexpect: 100-continue" in head:
            self._transport.write(CONTINUE)  # the KPL waits for this, for up to a second
        self._body = memoryview(bytearray(int(header(head, b"content-length"))))
        self._filled = len(rest)
        self._body[: len(rest)] = rest

    def _answer(self, body: bytes) -> None:
        if self._operation != b"putrecords":
            self._transport.write(self._stream.other(self._operation))
            return
        answer = self._stream.put(body)
        if self._delay > 0.0:
            asyncio.get_running_loop().call_later(self._delay, self._transport.write, answer)
        elif self._delay == 0.0:
            self._transport.write(answer)


async def serve(delay: float, shards: int, ca_path: Path | None) -> None:
    stream = Stream(shards)
    context = tls_context(ca_path) if ca_path else None
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: StreamProtocol(stream, delay), "127.0.0.1", 0, ssl=context)
    print(f"{'https' if context else 'http'}://127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    # until the parent process closes it or ends
    await loop.run_in_executor(None, sys.stdin.read)


@dataclass(frozen=True)
class Counts:
    """The counts of a sink, in total or between two times."""

    requests: int
    entries: int
    body_bytes: int
    list_shards: int
    cpu: float  # seconds, of the sink

    def since(self, earlier: "Counts") -> "Counts":
        return Counts(*(getattr(self, name) - getattr(earlier, name) for name in self.__dataclass_fields__))


@dataclass(frozen=True)
class ProducerSink:
    url: str
    ca_path: str | None = None

    def counts(self) -> Counts:
        place = urlsplit(self.url).netloc
        if self.ca_path:
            trusted = ssl.create_default_context(cafile=self.ca_path)
            connection = http.client.HTTPSConnection(place, timeout=10, context=trusted)
        else:
            connection = http.client.HTTPConnection(place, timeout=10)
        with contextlib.closing(connection):
            connection.request("GET", "/counts")
            return Counts(**json.loads(connection.getresponse().read()))


@contextlib.contextmanager
def running_producer_sink(delay: float = 0.0, shards: int = SHARDS, *, tls: bool = False) -> Iterator[ProducerSink]:
    """Run a sink until the block ends."""
    with tempfile.TemporaryDirectory() as directory:
        ca_path = str(Path(directory) / "ca.pem") if tls else None
        command = [sys.executable, __file__, f"--delay={delay}", f"--shards={shards}"]
        command += ["--ca-path", ca_path] if ca_path else []
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
            try:
                url = process.stdout.readline().strip()
                if not url:
                    raise RuntimeError("the sink did not start")
                yield ProducerSink(url, ca_path)
            finally:
                process.kill()


def main() -> None:
    parser = argparse.ArgumentParser(description="Answer producers as a stream would, for benchmarks.")
    parser.add_argument("--delay", type=float, default=0.0, help="seconds before each PutRecords answer; -1: never")
    parser.add_argument("--shards", type=int, default=SHARDS, help="number of shards, a power of two")
    parser.add_argument("--ca-path", type=Path, help="serve TLS and write the authority's certificate here")
    options = parser.parse_args()
    asyncio.run(serve(options.delay, options.shards, options.ca_path))


if __name__ == "__main__":
    main()
