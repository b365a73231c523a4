"""How does a worker of the demo read the stream?

It is a process of its own: ``python -m shardline.cli.demo.demo_worker``. The first line of its input is its task, as
JSON; it stops when its input ends. Its journal lists the orders that it has handled.

Invariants:

- A line of the journal is one ``write`` to a file opened for appending, made when the order was handled: what a
  killed worker did is all there, and nothing that it did not do.
- It ends with its parent, however that ends: nobody then holds the other end of its input.
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
from shardline.core.consumer.consumer_config import ConsumerConfig
from shardline.model.credentials import Credentials

READY: Final = "ready"
_CLOSE_TIMEOUT: Final = 5.0
_CHUNK: Final = 4096


@final
class WorkerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker is told."""

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


@final
class Handled(NamedTuple):
    """An order that a worker was done with, and where in the stream it had found it."""

    name: str
    customer: str
    place: tuple[str, str, int]
    """Shard, sequence number, and the place in the aggregate."""
    at: float

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

    async def tell_ready() -> None:
        await consumer.wait_ready(None)
        write(READY)

    async def close_at_end_of_input() -> None:
        await BlockingCalls[None]().ask("end of input", _wait_for_end_of_input)
        await consumer.close()

    consumer = Consumer(
        settings.stream,
        group=settings.group,
        store=settings.store,
        worker_id=settings.name,
        config=ConsumerConfig(lease_duration=settings.lease_duration),
        close_timeout=_CLOSE_TIMEOUT,
        endpoint_url=settings.endpoint_url,
        region=settings.region,
        credentials=Credentials(settings.access_key, settings.secret_key),
        proxies={},
    )
    async with consumer, anyio.create_task_group() as tasks:
        tasks.start_soon(tell_ready)
        tasks.start_soon(close_at_end_of_input)
        async for record in consumer:
            order = json.loads(record.data)
            place = (str(record.shard_id), str(record.sequence_number), record.sub_sequence)
            write(Handled(order["order"], order["customer"], place, time.monotonic()).to_line())
        tasks.cancel_scope.cancel()


def _wait_for_end_of_input() -> None:
    while os.read(sys.stdin.fileno(), _CHUNK):  # not through sys.stdin, whose lock the end of the process wants
        continue


def _first_line() -> bytes:
    line = b""
    while not line.endswith(b"\n"):
        more = os.read(sys.stdin.fileno(), 1)  # no more than the line: its end is waited for later
        if not more:
            break
        line += more
    return line


def main() -> None:
    """Run a worker. A parent that is gone before it has said a word wants nothing."""
    if told := _first_line():
        anyio.run(work, msgspec.json.decode(told, type=WorkerSettings))


if __name__ == "__main__":
    main()
