"""Workers of the kill test: they add every record to a table, and to the total of the record's key, exactly once.

This program starts a worker for each line of its input, SETTINGS(JSON), and prints the id of its process. Workers are
forks, because a new Python takes most of a second to import everything, which is longer than many workers live.

``mode`` says how the records are handled: "record", "batch" or "key", each by an async or a plain function.
"""

import contextlib
import json
import os
import random
import sys
import time

import anyio

from shardline import Batch, Consumer, ConsumerConfig, Credentials
from shardline.exactly_once import in_postgres

MODES = {
    "record": {},
    "batch": {"batch": 20},
    "key": {"concurrency": 8, "order": "key"},
    "key-batch": {"concurrency": 4, "order": "key", "batch": 5},
}
ROW = "INSERT INTO seen VALUES (%s, %s, %s, %s)"
TOTAL = (
    "INSERT INTO totals AS old (key, count, sum) VALUES (%s, 1, %s) "
    "ON CONFLICT (key) DO UPDATE SET count = old.count + 1, sum = old.sum + excluded.sum"
)


def records_of(given):
    # Sorted by key, because batches of two shards or keys could otherwise lock the totals in opposite orders.
    return sorted(given, key=lambda record: record.key) if isinstance(given, Batch) else [given]


def row_of(record):
    return int(record.data), record.key, record.sequence_number, record.sub_sequence


async def add(given, connection):
    for record in records_of(given):
        await connection.execute(ROW, row_of(record))
        await anyio.sleep(random.uniform(0, 0.003))
        await connection.execute(TOTAL, (record.key, int(record.data)))


def add_blocking(given, connection):
    for record in records_of(given):
        connection.execute(ROW, row_of(record))
        time.sleep(random.uniform(0, 0.003))
        connection.execute(TOTAL, (record.key, int(record.data)))


async def main(settings):
    handler = add if settings["is_async"] else add_blocking
    consumer = Consumer(
        "orders",
        group="billing",
        store=settings["database"],
        worker_id=settings["name"],
        config=ConsumerConfig(
            lease_duration=1.0,
            checkpoint_interval=settings["checkpoint_interval"],
            scan_interval=0.1,
            list_interval=1.0,
            idle_poll_interval=0.05,
        ),
        endpoint_url=settings["endpoint_url"],
        region=settings["region"],
        credentials=Credentials("local", "local"),
    )
    async with consumer:
        await consumer.run(in_postgres(handler, settings["database"], group="billing"), **MODES[settings["mode"]])


def serve():
    for line in sys.stdin:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(-1, os.WNOHANG)
        pid = os.fork()
        if pid == 0:
            try:
                anyio.run(main, json.loads(line))
            finally:
                os._exit(1)
        sys.stdout.write(f"{pid}\n")
        sys.stdout.flush()


serve()
