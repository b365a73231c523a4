"""How does a worker of a drill read, and what does it leave behind?

A process of its own, which reads its settings from a JSON file. Every line it writes is one ``write`` to a file opened for
appending, so that what a killed worker did is all there:

    W time                                    it is ready
    S time shard key name                     its handler has begun with a record (only with ``trace``)
    R time shard key name sequence sub        a record was handled
    C time shard key name                     its handler was cancelled (only with ``trace``)
    E time event shard details                an event of the consumer
    X time how                                it has ended

The time is CLOCK_MONOTONIC, which all processes of a machine share.

    python tests/drills/worker.py SETTINGS.json
"""

import hashlib
import json
import os
import signal
import sys
import time
from pathlib import Path

import anyio

from shardline import Consumer, ConsumerConfig, Credentials, FailurePolicy


def name_of(data):
    """Return a record's name: its number, or a digest if the data is not a number."""
    return data.decode() if data.isdigit() else hashlib.sha256(data).hexdigest()[:20]


class Journal:
    def __init__(self, path):
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def write(self, kind, *cells):
        line = "\t".join([kind, f"{time.monotonic():.6f}", *map(str, cells)])
        os.write(self._file, line.encode("utf-8", "backslashreplace") + b"\n")

    def record(self, kind, record):
        cells = [record.shard_id, ascii(record.key), name_of(record.data)]
        if kind == "R":
            cells += [record.sequence_number, record.sub_sequence]
        self.write(kind, *cells)

    def event(self, event):
        details = " ".join(ascii(cell) for cell in event[1:])[:300]
        self.write("E", type(event).__name__, ascii(event[0]).strip("'"), details)


class Work:
    """The user's code of a drill."""

    def __init__(self, journal, settings):
        self.journal = journal
        self.trace = settings.get("trace", False)
        self.delay = settings.get("delay", 0.0)
        self.slow = settings.get("slow", {})  # name of a record: seconds to spend on it
        self.blocking = settings.get("blocking", {})  # the same, while the event loop is blocked
        self.poison = set(settings.get("poison", []))
        self._heavy = settings.get("heavy")  # a file with the name of a shard, and the seconds that its records take
        self._heavy_now, self._looked_at = ("", 0.0), 0.0

    def begin(self, record):
        """Return how long the record takes."""
        if self.trace:
            self.journal.record("S", record)
        name = name_of(record.data)
        if name in self.poison:
            raise ValueError(f"record {name} is poison")
        if name in self.blocking:
            time.sleep(self.blocking[name])
        return self.slow.get(name, self._delay_of(record))

    def _delay_of(self, record):
        if self._heavy is not None and time.monotonic() > self._looked_at + 0.2:
            shard, delay = Path(self._heavy).read_text().split()
            self._heavy_now, self._looked_at = (shard, float(delay)), time.monotonic()
        shard, delay = self._heavy_now
        return delay if record.shard_id == shard else self.delay

    async def handle(self, record):
        try:
            pause = self.begin(record)
            if pause:
                await anyio.sleep(pause)
        except anyio.get_cancelled_exc_class():
            if self.trace:
                self.journal.record("C", record)
            raise
        self.journal.record("R", record)

    def handle_in_thread(self, record):
        pause = self.begin(record)
        if pause:
            time.sleep(pause)
        self.journal.record("R", record)


async def read(consumer, work, settings):
    mode = settings.get("mode", "records")
    if mode == "records":
        async for record in consumer:
            await work.handle(record)
    elif mode == "batches":
        async for batch in consumer.batches():
            for record in batch:
                await work.handle(record)
    else:
        handler = work.handle if mode == "run" else work.handle_in_thread
        dead_letter = settings.get("dead_letter")
        await consumer.run(
            handler,
            policy=FailurePolicy(attempts=2, backoff=0.05),
            dead_letter=None if dead_letter is None else Path(dead_letter),
        )


async def close_on_signal(consumer, scope):
    with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async for _ in signals:
            await consumer.close()
            scope.cancel()
            return


async def tell_ready(consumer, journal):
    await consumer.wait_ready(60)
    journal.write("W")


def skew_clock(journal, skew, jump):
    """Set the wall clock of this process wrong by ``skew`` from now on. At SIGUSR1 it jumps."""
    true_time, offsets = time.time, [skew]
    time.time = lambda: true_time() + sum(offsets)

    def jump_now(*_):
        offsets.append(jump)
        journal.write("E", "ClockJumped", "", jump)

    signal.signal(signal.SIGUSR1, jump_now)


async def main(settings):
    journal = Journal(settings["journal"])
    if "clock" in settings:
        skew_clock(journal, *settings["clock"])
    consumer = Consumer(
        settings["stream"],
        group=settings["group"],
        store=settings["store"],
        start=settings.get("start", "TRIM_HORIZON"),
        worker_id=settings["worker_id"],
        until=settings.get("until"),
        config=ConsumerConfig(**settings["config"]),
        sinks=[journal.event],
        fan_out=settings.get("fan_out"),
        endpoint_url=settings["url"],
        region=settings["region"],
        credentials=Credentials(*settings["keys"]),
    )
    how = "failed"
    try:
        async with consumer, anyio.create_task_group() as tasks:
            tasks.start_soon(close_on_signal, consumer, tasks.cancel_scope)
            tasks.start_soon(tell_ready, consumer, journal)
            await read(consumer, Work(journal, settings), settings)
            if not settings.get("until"):
                await anyio.sleep(0.05)
            tasks.cancel_scope.cancel()
        how = "ended"
    except* Exception as errors:
        how = ascii(str(errors.exceptions[0]))[:300]
        raise
    finally:
        journal.write("X", how)


if __name__ == "__main__":
    anyio.run(main, json.loads(Path(sys.argv[1]).read_bytes()))
