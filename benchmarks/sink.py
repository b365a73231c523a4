"""A server with canned answers, so cheap that a benchmark measures only the client's CPU.

The sink is a separate process on loopback: HTTP/1.1 with keep-alive, plain or TLS 1.3. Every answer is built at the
start, including its head, and chosen by target, content type and (for GetRecords) shard iterator. A PutRecords body is
skipped, not kept. The answers fit only the case that the process was started for: each PutRecords gets `entries`
results, whatever it contains.

    python benchmarks/sink.py --entries 500 --ca-path ca.pem      # prints its URL, ends when its standard input does
"""

import argparse
import asyncio
import base64
import contextlib
import json
import random
import ssl
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import cbor2
import trustme

JSON = b"application/x-amz-json-1.1"
CBOR = b"application/x-amz-cbor-1.1"
PAGES = {"small": (10_000, 200), "agg": (100, 50_000), "empty": (0, 0)}  # iterator: records, bytes of data in each
FIRST_SEQUENCE_NUMBER = 49590338271490256608559692538361571095921575989136588898
ARRIVED_AT_MS = 1_700_000_000_123
READ_BYTES = 256 * 1024
UNKNOWN_OPERATION = (
    b"HTTP/1.1 400 Bad Request\r\nContent-Type: application/x-amz-json-1.1\r\nContent-Length: 39\r\n\r\n"
    b'{"__type":"UnknownOperationException"}\n'
)


def http_answer(content_type: bytes, body: bytes) -> bytes:
    return (
        b"HTTP/1.1 200 OK\r\nx-amzn-RequestId: c96a8a5c-0f0b-4b4e-9d5c-2f1f3a0c7b11\r\n"
        b"x-amz-id-2: 5cYIyPoDQ0YB8pBhzs0rxqS0hW5cEuYDm2rYyYtk8pKq0j1t5y4Yv8vR8g3yfG8c2n1yT3wq0Lk=\r\n"
        b"Date: Tue, 14 Nov 2023 22:13:20 GMT\r\n"
        b"Content-Type: %b\r\nContent-Length: %d\r\n\r\n%b" % (content_type, len(body), body)
    )


def both_protocols(operation: bytes, iterator: bytes, as_json: object, as_cbor: object) -> dict[tuple, bytes]:
    return {
        (operation, iterator, JSON): http_answer(JSON, json.dumps(as_json, separators=(",", ":")).encode()),
        (operation, iterator, CBOR): http_answer(CBOR, cbor2.dumps(as_cbor)),
    }


def put_answers(entries: int) -> dict[tuple, bytes]:
    results = [
        {"SequenceNumber": str(FIRST_SEQUENCE_NUMBER + 16 * i), "ShardId": f"shardId-{i % 32:012}"}
        for i in range(entries)
    ]
    answer = {"FailedRecordCount": 0, "Records": results}
    return both_protocols(b"putrecords", b"", answer, answer)


def page_answers(iterator: str, count: int, size: int) -> dict[tuple, bytes]:
    rng = random.Random(size)
    payloads = [rng.randbytes(size) for _ in range(count)]
    next_iterator = base64.b64encode(rng.randbytes(159)).decode()

    def page(data: list, arrived_at: object) -> dict:
        records = [
            {
                "SequenceNumber": str(FIRST_SEQUENCE_NUMBER + 16 * i),
                "ApproximateArrivalTimestamp": arrived_at,
                "Data": payload,
                "PartitionKey": f"user-{i:08}",
            }
            for i, payload in enumerate(data)
        ]
        return {"Records": records, "NextShardIterator": next_iterator, "MillisBehindLatest": 0}

    encoded = [base64.b64encode(payload).decode() for payload in payloads]
    as_json = page(encoded, ARRIVED_AT_MS / 1000)
    # The service sends milliseconds under the CBOR tag for seconds.
    as_cbor = page(payloads, cbor2.CBORTag(1, ARRIVED_AT_MS))
    return both_protocols(b"getrecords", iterator.encode(), as_json, as_cbor)


def all_answers(entries: int) -> dict[tuple, bytes]:
    answers = put_answers(entries)
    for iterator, (count, size) in PAGES.items():
        answers |= page_answers(iterator, count, size)
    return answers


def header(head: bytes, name: bytes) -> bytes:
    start = head.index(b"\r\n%b:" % name) + len(name) + 3
    end = head.find(b"\r\n", start)
    return (head[start:] if end < 0 else head[start:end]).strip()


class SinkProtocol(asyncio.BufferedProtocol):
    """One connection. Body bytes are read into one reused buffer and are not kept."""

    def __init__(self, answers: dict[tuple, bytes]) -> None:
        self._answers = answers
        self._view = memoryview(bytearray(READ_BYTES))
        self._pending = b""  # the received part of a request whose head, or whose iterator, is not complete yet
        self._skip = 0  # the number of bytes of the body that have not arrived yet
        self._due = b""  # the answer to send when they have arrived
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - the signature is asyncio's
        return self._view

    def buffer_updated(self, nbytes: int) -> None:
        if nbytes < self._skip:
            self._skip -= nbytes
            return
        if self._skip:
            self._transport.write(self._due)
        self._pending += self._view[self._skip : nbytes]
        self._skip = 0
        while self._pending and self._take_request():
            pass

    def _take_request(self) -> bool:
        head, end, rest = self._pending.partition(b"\r\n\r\n")
        if not end:
            return False
        head = head.lower()
        operation = header(head, b"x-amz-target").rpartition(b".")[2]
        length = int(header(head, b"content-length"))
        missing = length - len(rest)
        iterator = b""
        if operation == b"getrecords":
            if missing > 0:
                return False
            iterator = next((name for name in (b"small", b"agg", b"empty") if name in rest[:length]), b"")
        answer = self._answers.get((operation, iterator, header(head, b"content-type")), UNKNOWN_OPERATION)
        if missing > 0:
            self._skip, self._due, self._pending = missing, answer, b""
            return False
        self._transport.write(answer)
        self._pending = rest[length:]
        return True


def tls_context(ca_path: Path) -> ssl.SSLContext:
    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    authority.issue_cert("127.0.0.1", "localhost").configure_cert(context)
    authority.cert_pem.write_to_path(ca_path)
    return context


async def serve(entries: int, ca_path: Path | None) -> None:
    answers = all_answers(entries)
    context = tls_context(ca_path) if ca_path else None
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: SinkProtocol(answers), "127.0.0.1", 0, ssl=context)
    port = server.sockets[0].getsockname()[1]
    print(f"{'https' if context else 'http'}://127.0.0.1:{port}", flush=True)
    # until the parent process closes it or ends
    await loop.run_in_executor(None, sys.stdin.read)


@dataclass(frozen=True)
class Sink:
    url: str
    ca_path: str | None


@contextlib.contextmanager
def running_sink(entries: int, *, tls: bool = True) -> Iterator[Sink]:
    """Run a sink on the CPUs that this process may use, until the block ends."""
    with tempfile.TemporaryDirectory() as directory:
        ca_path = str(Path(directory) / "ca.pem") if tls else None
        command = [sys.executable, __file__, "--entries", str(entries), *(["--ca-path", ca_path] if ca_path else [])]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
            try:
                url = process.stdout.readline().strip()
                if not url:
                    raise RuntimeError("the sink did not start")
                yield Sink(url, ca_path)
            finally:
                process.kill()


def main() -> None:
    parser = argparse.ArgumentParser(description="Answer Kinesis clients with canned responses, for benchmarks.")
    parser.add_argument("--entries", type=int, default=500, help="results in each PutRecords answer")
    parser.add_argument("--ca-path", type=Path, help="serve TLS and write the authority's certificate here")
    options = parser.parse_args()
    asyncio.run(serve(options.entries, options.ca_path))


if __name__ == "__main__":
    main()
