"""A worker of the demo: reads the stream, and writes the orders that it has handled to a journal.

A worker is a separate process: ``python -m shardline.cli.demo.demo_worker``. The first line of its input is its
settings, as JSON. The worker stops when its input ends.

Invariants:

- Each line of the journal is written when its order has been handled, by one ``write`` to a file opened for appending.
  So the journal of a killed worker contains exactly the orders that the worker handled.
- A worker ends when its parent ends, even if the parent was killed, because the worker's input then ends.
"""

import json
import os
import sys
import time
from typing import Final, NamedTuple, final

import anyio
import msgspec

from shardline.adapters.blocking_calls import BlockingCalls
from shardline.aio.consumer.async_consumer import Consumer
from shardline.cli.demo import demo_metrics
from shardline.core.consumer.consumer_config import ConsumerConfig
from shardline.model.credentials import Credentials

READY: Final = "ready"
_CLOSE_TIMEOUT: Final = 5.0
_CHUNK: Final = 4096


@final
class WorkerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a worker. The parent process writes them to the worker's input."""

    name: str
    stream: str
    group: str
    store: str
    journal: str
    endpoint_url: str
    region: str
    access_key: str
    secret_key: str
    lease_duration: float
    metrics_port: int | None = None
    """The port on which to serve metrics and probes. ``None`` serves neither."""


@final
class Handled(NamedTuple):
    """An order that a worker has handled, with its place in the stream."""

    name: str
    customer: str
    place: tuple[str, str, int]
    """The order's place in the stream: shard id, sequence number and sub-sequence number."""
    at: float
    """When the order was handled, by ``time.monotonic``."""

    def to_line(self) -> str:
        return "\t".join([self.name, self.customer, *map(str, self.place), f"{self.at:.6f}"])

    @classmethod
    def of_line(cls, line: str) -> "Handled":
        name, customer, shard_id, sequence_number, sub_sequence, at = line.split("\t")
        return cls(name, customer, (shard_id, sequence_number, int(sub_sequence)), float(at))


async def work(settings: WorkerSettings) -> None:
    """Handle orders until the input ends."""
    journal = os.open(settings.journal, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def write(line: str) -> None:
        os.write(journal, f"{line}\n".encode())

    async def report_ready() -> None:
        await consumer.wait_ready(None)
        write(READY)

    async def close_at_end_of_input() -> None:
        await BlockingCalls[None]().run("end of input", _wait_for_end_of_input)
        await consumer.close()

    consumer = Consumer(
        settings.stream,
        group=settings.group,
        store=settings.store,
        worker_id=settings.name,
        config=ConsumerConfig(lease_duration=settings.lease_duration),
        close_timeout=_CLOSE_TIMEOUT,
        sinks=demo_metrics.sinks(settings.metrics_port),
        endpoint_url=settings.endpoint_url,
        region=settings.region,
        credentials=Credentials(settings.access_key, settings.secret_key),
        proxies={},
    )
    async with consumer, anyio.create_task_group() as tasks:
        with demo_metrics.serve(settings.metrics_port, consumer):
            tasks.start_soon(report_ready)
            tasks.start_soon(close_at_end_of_input)
            async for record in consumer:
                order = json.loads(record.data)
                place = (str(record.shard_id), str(record.sequence_number), record.sub_sequence)
                write(Handled(order["order"], order["customer"], place, time.monotonic()).to_line())
            tasks.cancel_scope.cancel()


def _wait_for_end_of_input() -> None:
    while os.read(sys.stdin.fileno(), _CHUNK):  # not sys.stdin.read: the lock of sys.stdin would block the exit
        continue


def _first_line() -> bytes:
    line = b""
    while not line.endswith(b"\n"):
        byte = os.read(sys.stdin.fileno(), 1)  # reads byte by byte, so that the rest of the input can be read later
        if not byte:
            break
        line += byte
    return line


def main() -> None:
    """Run a worker, unless the input is empty because the parent has already ended."""
    if line := _first_line():
        anyio.run(work, msgspec.json.decode(line, type=WorkerSettings))


if __name__ == "__main__":
    main()
