"""The environment of a drill.

It has a local Kinesis in this process, a lease store, workers that are processes (worker.py), a producer that makes the
load (in this process, or putter.py), an observer that watches the leases in the store, and a count of the records
(tally.py). All of it ends with the block.
"""

import contextlib
import json
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

from anyio.from_thread import start_blocking_portal
from stores import OTHERS, STORES
from tally import Tally
from worker import name_of

from shardline import ProducerConfig
from shardline.adapters.aws.aws_service import AwsAccess
from shardline.adapters.leases.store_urls import lease_store
from shardline.core.error_codes import Failure
from shardline.model.position import PositionKind
from shardline.sync import Producer
from shardline.testing import LocalKinesis

WORKER = Path(__file__).with_name("worker.py")
PUTTER = Path(__file__).with_name("putter.py")
STREAM, GROUP = "drill", "drillers"
KEYS = 60
START_LIMIT = 60.0
LISTINGS = 3


class DrillError(AssertionError):
    """The drill observed something that must not happen."""


class BrokenPromiseError(DrillError):
    """A guarantee of the library did not hold. No state of the machine excuses that."""


def require(holds, what):
    if not holds:
        raise DrillError(what)


def require_promise(holds, what):
    if not holds:
        raise BrokenPromiseError(what)


class Process:
    """One of our programs, with its settings in a file."""

    def __init__(self, name, program, settings, directory):
        self.name = name
        # Whether SIGTERM was sent: a second one, after the program has removed its handler, would kill it.
        self._is_asked = False
        self._errors = directory / f"{name}.stderr"
        path = directory / f"{name}.json"
        path.write_text(json.dumps(settings))
        with self._errors.open("wb") as errors:
            self.process = subprocess.Popen([sys.executable, str(program), str(path)], stdout=errors, stderr=errors)

    def signal(self, number):
        """Send a signal, and return the time."""
        self._is_asked |= number == signal.SIGTERM
        sent_at = time.monotonic()  # taken before, because the process may react in the same moment
        self.process.send_signal(number)
        return sent_at

    def end(self, limit=10.0):
        """Send SIGTERM, unless it was sent before, and return the exit code."""
        if self.process.poll() is None and not self._is_asked:
            self.signal(signal.SIGTERM)
        try:
            code = self.process.wait(limit)
        except subprocess.TimeoutExpired:
            raise DrillError(f"{self.name} does not end within {limit} s of SIGTERM") from None
        require(code == 0, f"{self.name} ended with {code}: {self.errors}")

    @property
    def errors(self):
        return self._errors.read_text(errors="replace")[-3000:]

    def kill(self):
        if self.process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                self.process.send_signal(signal.SIGCONT)
            self.process.kill()
        self.process.wait()


class Worker(Process):
    """A process that reads."""

    def __init__(self, name, settings, directory):
        self.journal = directory / f"{name}.journal"
        settings = {**settings, "worker_id": name, "journal": str(self.journal)}
        super().__init__(name, WORKER, settings, directory)

    def wait_ready(self):
        def is_ready():
            require(self.process.poll() is None, f"worker {self.name} ended: {self.errors}")
            return self.journal.exists() and "\nW\t" in "\n" + self.journal.read_text()

        wait_for(is_ready, START_LIMIT, f"worker {self.name} is ready")

    def end(self, limit=10.0):
        if self.process.poll() is None and not self._is_asked:
            self.wait_ready()  # until it is ready, it does not handle SIGTERM
        super().end(limit)


class Putter(Process):
    """A process that puts."""

    def __init__(self, known, rate, config, directory):
        self._report = directory / "putter.report"
        files = {"put": str(directory / "put.tsv"), "report": str(self._report)}
        super().__init__("putter", PUTTER, {**known, **files, "rate": rate, "config": config}, directory)

    def end(self, limit=150.0):
        super().end(limit)

    @property
    def report(self):
        return json.loads(self._report.read_text())


class Load:
    """Puts numbered records at a steady rate until it is stopped. Each record is listed when it is confirmed."""

    def __init__(self, connection, directory, rate):
        self._path = directory / "put.tsv"
        self._pause = max(0.02, 1 / rate)
        self._each = max(1, round(rate * self._pause))
        self._stopping = threading.Event()
        self._failure = None
        self._connection = connection
        self._first = len(self._path.read_text().splitlines()) if self._path.exists() else 0
        self.names = []
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self):
        try:
            # On a busy machine, a delivery may take long, and a record that is given up would end the drill.
            config = ProducerConfig(linger=0.03, ordered=True, record_ttl=300.0)
            with Producer(STREAM, config=config, **self._connection) as producer:
                deliveries = []
                number = self._first
                next_at = time.monotonic()
                while not self._stopping.is_set():
                    for _ in range(self._each):
                        key = f"key-{number % KEYS}"
                        deliveries.append((producer.put(b"%d" % number, key=key), str(number), key))
                        number += 1
                    next_at += self._pause
                    time.sleep(max(0.0, next_at - time.monotonic()))
                producer.flush(timeout=30)
                for delivery, name, _ in deliveries:
                    delivery.result(timeout=30)
                    self.names.append(name)
            with self._path.open("a") as file:
                file.writelines(f"{time.monotonic():.6f}\t{name}\t{key!a}\n" for _, name, key in deliveries)
        except Exception as error:  # noqa: BLE001 - told by stop
            self._failure = error

    def end(self):
        self._stopping.set()
        self._thread.join(60)

    def stop(self):
        """Stop the load, and return the names of all records that were put."""
        self.end()
        require(self._failure is None, f"the load failed: {self._failure!r}")
        return self.names


class Fleet:
    """The workers of a drill, and everything around them."""

    def __init__(self, directory, store, *, shards, kinesis=None, fan_out=None, **config):
        self.directory = directory
        self.store = store
        self.config = {"lease_duration": 2.0, "checkpoint_interval": 0.5, "list_interval": 5.0, **config}
        if store.kind == "dynamodb":
            self.config = {**self.config, "checkpoint_interval": 1.0}
        self.kinesis = LocalKinesis(shards=shards, stream=STREAM, **(kinesis or {}))
        self.fan_out = fan_out  # the registered consumer of the workers; None: they poll
        self.workers = {}
        self.history = []  # (time, shard, owner, checkpoint) of each observed change
        self._stack = contextlib.ExitStack()
        self._load = None

    def __enter__(self):
        with contextlib.ExitStack() as stack:
            stack.enter_context(self.kinesis)
            stack.callback(lambda: [worker.kill() for worker in self.workers.values()])
            stack.callback(lambda: self._load is not None and self._load.end())
            self.portal = stack.enter_context(start_blocking_portal())
            self._leases = None
            stack.callback(lambda: self._leases is not None and self.portal.call(self._leases.close))
            self._client = self.kinesis.client()
            self.portal.call(self._client.start)
            stack.callback(lambda: self.portal.call(self._client.close))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_):
        self._stack.close()

    @property
    def connection(self):
        kinesis = self.kinesis
        return {"endpoint_url": kinesis.endpoint_url, "region": kinesis.region, "credentials": kinesis.credentials}

    def _watched_store(self):
        aws = AwsAccess(time.time, region="us-east-1", credentials=self.kinesis.credentials)
        store = lease_store(self.store.watched_url, group=GROUP, stream=STREAM, aws=aws)
        require(self.portal.call(store.open) is None, "the store opens")
        return store

    # ---- processes

    def _known(self):
        """Return the settings that a process needs."""
        keys = self.kinesis.credentials
        return {
            "url": self.kinesis.endpoint_url,
            "region": self.kinesis.region,
            "keys": [keys.access_key, keys.secret_key],
            "stream": STREAM,
        }

    def start(self, name, **settings):
        worker = Worker(
            name,
            {
                **self._known(),
                "group": GROUP,
                "store": self.store.url,
                "fan_out": self.fan_out,
                **settings,
                "config": {**self.config, **settings.get("config", {})},
            },
            self.directory,
        )
        self.workers[name] = worker
        return worker

    def start_all(self, *names, **settings):
        started = [self.start(name, **settings) for name in names]
        for worker in started:
            worker.wait_ready()
        return started

    def load(self, rate=300):
        self._load = Load(self.connection, self.directory, rate)
        return self._load

    def putter(self, *, rate=None, **config):
        """Return a process that puts until it is ended."""
        self.workers["putter"] = putter = Putter(self._known(), rate, config, self.directory)
        return putter

    def put(self, entries, *, aggregation=False, headers_of=lambda _data: None):
        """Put these (key, data) pairs at once, with the headers of each, and list them."""
        config = ProducerConfig(ordered=True, aggregation=aggregation, aggregate_max_count=100)
        with Producer(STREAM, config=config, **self.connection) as producer:
            deliveries = [producer.put(data, key=key, headers=headers_of(data)) for key, data in entries]
            for delivery in deliveries:
                delivery.result(timeout=60)
        with (self.directory / "put.tsv").open("a") as file:
            file.writelines(f"{time.monotonic():.6f}\t{name_of(data)}\t{key!a}\n" for key, data in entries)

    def call(self, method, *arguments, **options):
        """Call a method of the client: ``fleet.call("split_shard", STREAM, shard_id)``."""

        async def call():
            return await getattr(self._client, method)(*arguments, **options)

        return self.portal.call(call)

    # ---- observations

    def leases(self):
        """Return the rows of the unfinished shards, by shard."""
        if self._leases is None:  # created on first use: opening a store may create its table
            self._leases = self._watched_store()
        rows = {row.shard_id: row for row in listed(lambda: self.portal.call(self._leases.list_leases))}
        now = time.monotonic()
        for row in rows.values():
            self.history.append((now, row.shard_id, row.owner, row.checkpoint))
        return rows

    def owners(self):
        """Return how many unfinished leases each worker has; ``None`` stands for no worker."""
        return Counter(row.holder for row in self.leases().values() if not row.checkpoint.is_finished)

    def wait_owned(self, names, limit, what):
        """Wait until these workers hold all leases, evenly. Return the time."""

        def is_so():
            owners = self.owners()
            counts = [owners.get(name, 0) for name in names]
            return owners.keys() <= set(names) and owners and max(counts) - min(counts) <= 1

        return wait_for(is_so, limit, f"{what} (leases: {dict(self.owners())})")

    def checkpoints_went_back(self):
        """Return the checkpoints that went back (C1), as far as the observer saw them."""
        latest, found = {}, []
        for _, shard, _, checkpoint in self.history:
            place = place_of(checkpoint)
            if place < latest.get(shard, place):
                found.append((shard, latest[shard], place))
            latest[shard] = max(place, latest.get(shard, place))
        return found

    def tally(self):
        return Tally(self.directory)

    def wait_drained(self, limit=20.0):
        """Wait until every record that was put was handled, or until the limit. Return the tally."""
        give_up_at = time.monotonic() + limit
        while (tally := self.tally()).lost and time.monotonic() < give_up_at:
            time.sleep(0.2)
        return tally

    def parents(self):
        return {
            shard.shard_id: [one for one in (shard.parent_id, shard.adjacent_parent_id) if one]
            for shard in self.kinesis.streams[STREAM].shards
        }


def place_of(checkpoint):
    number = checkpoint.sequence_number
    if number is not None:
        return (1, number.number, number.sub_sequence)
    return (2, 0, 0) if checkpoint.position.kind is PositionKind.SHARD_END else (0, 0, 0)


def listed(listing):
    """Return the rows of a listing. On a busy machine it may fail for a moment; then the observer lists again, as a worker
    does.
    """
    for _ in range(LISTINGS):
        rows = listing()
        if not isinstance(rows, Failure):
            return rows
        if not rows.retryable:
            break
    raise DrillError(f"the leases cannot be listed: {rows}")


def wait_for(is_so, limit, what, pause=0.05):
    """Wait until the condition is true, and return the time."""
    give_up_at = time.monotonic() + limit
    while not is_so():
        require(time.monotonic() < give_up_at, f"not within {limit:.1f} s: {what}")
        time.sleep(pause)
    return time.monotonic()


@contextlib.contextmanager
def running_fleet(directory, store, *, shards, **settings):
    (directory / "store").mkdir()
    with (
        (STORES | OTHERS)[store](directory / "store") as place,
        Fleet(directory, place, shards=shards, **settings) as fleet,
    ):
        yield fleet
