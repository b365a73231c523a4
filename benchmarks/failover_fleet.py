"""The load and the workers of the failover benchmark, and the records that the workers handled.

The fleet has a local Kinesis of 8 shards in this process, a thread that puts numbered records at a steady pace, each
shard in turn, and worker processes (failover_worker.py) over one SQLite file. Only the workers' journals say which
worker handled which record of which shard, and when. Everything ends with the ``with`` block.
"""

import collections
import contextlib
import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from shardline import ProducerConfig
from shardline.sync import Producer
from shardline.testing import LocalKinesis

STREAM = "bench"
SHARDS = 8
RATE = 200  # records per second, over all shards
LINGER = 0.02
PAUSE = SHARDS / RATE  # between two records of a shard
RECENT = 1.0  # a worker that handled records of a shard in the last second counts as its owner
SETTLE_LIMIT = 60.0
WORKER = Path(__file__).with_name("failover_worker.py")


class Handled(NamedTuple):
    at: float
    shard: str
    number: int
    worker: str


class Worker:
    """A worker process, and its journal."""

    def __init__(self, name: str, settings: dict[str, object], directory: Path) -> None:
        self.name = name
        self._journal = directory / f"{name}.journal"
        self._journal.touch()
        self._read_bytes = 0
        self._errors = directory / f"{name}.stderr"
        worker_settings = {**settings, "worker_id": name, "journal": str(self._journal)}
        self.started_at = time.monotonic()
        self.consumer_started_at = float("nan")  # set by ``news``, from the journal
        with self._errors.open("wb") as errors:
            command = [sys.executable, str(WORKER), json.dumps(worker_settings)]
            self.process = subprocess.Popen(command, stderr=errors)

    def signal(self, number: signal.Signals) -> float:
        """Send a signal, and return the time."""
        at = time.monotonic()
        self.process.send_signal(number)
        return at

    def end(self) -> None:
        self.signal(signal.SIGTERM)
        self.wait()

    def wait(self) -> None:
        if self.process.wait(30) != 0:
            raise SystemExit(f"worker {self.name} ended with {self.process.returncode}: {self.errors}")

    @property
    def errors(self) -> str:
        return self._errors.read_text(errors="replace")[-2000:]

    def news(self) -> list[Handled]:
        """Return the records that were added to the journal since the last call."""
        with self._journal.open("rb") as file:
            file.seek(self._read_bytes)
            whole_lines = file.read().rpartition(b"\n")[0]
        self._read_bytes += len(whole_lines) + 1 if whole_lines else 0
        found = []
        for cells in map(str.split, whole_lines.decode().splitlines()):
            if len(cells) == 1:
                self.consumer_started_at = float(cells[0])
            else:
                at, shard, number = cells
                found.append(Handled(float(at), shard, int(number), self.name))
        return found


class Load:
    """Puts numbered records until it is stopped."""

    def __init__(self, kinesis: LocalKinesis) -> None:
        self._kinesis = kinesis
        self._stopping = threading.Event()
        self._failure: Exception | None = None
        self.put = 0
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._put_all()
        except Exception as error:  # noqa: BLE001 - ``stop`` reports it
            self._failure = error

    def _put_all(self) -> None:
        kinesis = self._kinesis
        hash_keys = [str(shard.hash_range.start) for shard in kinesis.streams[STREAM].shards]
        connection = {"endpoint_url": kinesis.endpoint_url, "region": kinesis.region}
        config = ProducerConfig(linger=LINGER)
        with Producer(STREAM, config=config, credentials=kinesis.credentials, **connection) as producer:
            deliveries = []
            next_at = time.monotonic()
            while not self._stopping.is_set():
                for hash_key in hash_keys:
                    data = b"%d" % len(deliveries)
                    deliveries.append(producer.put(data, key=hash_key, explicit_hash_key=hash_key))
                next_at += PAUSE
                time.sleep(max(0.0, next_at - time.monotonic()))
            for delivery in deliveries:
                delivery.result(timeout=30)
            self.put = len(deliveries)

    def stop(self) -> int:
        """Stop the load, and return how many records were delivered. Their numbers count from 0."""
        self._stopping.set()
        self._thread.join(60)
        if self._failure is not None or not self.put:
            raise SystemExit(f"the load failed: {self._failure!r}")
        return self.put


class Fleet:
    """The workers, and all records that they handled."""

    def __init__(self, directory: Path, kinesis: LocalKinesis, config: dict[str, float]) -> None:
        self._directory = directory
        keys = kinesis.credentials
        self._settings = {
            "stream": STREAM,
            "store": f"sqlite:///{directory}/leases.db",
            "config": config,
            "url": kinesis.endpoint_url,
            "region": kinesis.region,
            "keys": [keys.access_key, keys.secret_key],
        }
        self.workers: dict[str, Worker] = {}  # those that are alive
        self._dead: list[Worker] = []
        self._started = 0
        self._handled: list[Handled] = []

    def start(self) -> Worker:
        self._started += 1
        worker = Worker(f"w{self._started}", self._settings, self._directory)
        self.workers[worker.name] = worker
        return worker

    def forget(self, worker: Worker) -> None:
        """Remove a dead worker. Its journal is still read."""
        self._dead.append(self.workers.pop(worker.name))

    def handled(self) -> list[Handled]:
        """Return all records that were handled so far, by time."""
        for worker in [*self.workers.values(), *self._dead]:
            self._handled += worker.news()
        self._handled.sort()
        return self._handled

    def owners(self, at: float) -> dict[str, str]:
        """Return the worker that handled the last record of each shard before this time."""
        return {entry.shard: entry.worker for entry in self.handled() if entry.at < at}

    def first_by_others(self, victim: str, since: float) -> dict[str, float]:
        """Return how long after this time another worker handled a record of each of the victim's shards.

        The result is empty until every one of these shards has been read by another worker.
        """
        waits: dict[str, float] = {}
        lost = {shard for shard, worker in self.owners(since).items() if worker == victim}
        for entry in self.handled():
            if entry.at >= since and entry.shard in lost and entry.worker != victim:
                waits.setdefault(entry.shard, entry.at - since)
        return waits if waits.keys() == lost else {}

    def is_settled(self) -> bool:
        """Return whether each shard has had one worker recently, and the live workers have equal shares."""
        since = time.monotonic() - RECENT
        recent = {(entry.shard, entry.worker) for entry in self.handled() if entry.at >= since}
        counts = collections.Counter(worker for _, worker in recent)
        shares = [counts.pop(name, 0) for name in self.workers]
        return len(recent) == SHARDS == sum(shares) and max(shares) - min(shares) <= 1

    def wait_settled(self) -> float:
        return self.wait_for(self.is_settled, SETTLE_LIMIT, "the workers share the shards")

    def wait_for(self, condition: Callable[[], object], limit: float, what: str) -> float:
        """Wait until the condition holds, and return the time."""
        give_up_at = time.monotonic() + limit
        while not condition():
            dead = [worker for worker in self.workers.values() if worker.process.poll() is not None]
            if dead or time.monotonic() > give_up_at:
                errors = "; ".join(f"{worker.name} ended: {worker.errors}" for worker in dead)
                raise SystemExit(f"timed out after {limit:.0f} s waiting until {what} {errors}")
            time.sleep(0.05)
        return time.monotonic()

    def kill_all(self) -> None:
        for worker in [*self.workers.values(), *self._dead]:
            worker.process.kill()  # works even if the worker is stopped by SIGSTOP
            worker.process.wait()


@contextlib.contextmanager
def running_fleet(directory: Path, config: dict[str, float]) -> Iterator[tuple[Fleet, Load]]:
    with LocalKinesis(shards=SHARDS, stream=STREAM) as kinesis, contextlib.ExitStack() as stack:
        fleet = Fleet(directory, kinesis, config)
        stack.callback(fleet.kill_all)
        load = Load(kinesis)
        stack.callback(load.stop)
        yield fleet, load
