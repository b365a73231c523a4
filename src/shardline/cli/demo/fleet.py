"""Starts and ends the demo's workers and reads their leases and journals.

Invariants:

- No worker outlives the ``async with`` block of the fleet.
- A worker that ends on its own is a failure, which is reported with the last line of its output.
- Owners are read from the workers' lease store, so a dead worker counts as an owner until its leases expire.
"""

import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Self, final
from urllib.parse import quote

import anyio
import click
import msgspec

from shardline.adapters.leases.sqlite import SqliteLeases
from shardline.cli.demo.demo_worker import READY, Handled, WorkerSettings
from shardline.core.error_codes import Failure
from shardline.model.lease import Lease
from shardline.testing.local_kinesis import LocalKinesis

GROUP: Final = "billing"
LEASE_DURATION: Final = 2.0
_PAUSE: Final = 0.05


class DemoFailedError(click.ClickException):
    """The demo ended without a verdict."""

    def __init__(self, why: str) -> None:
        super().__init__(f"there is no verdict: {why}")


@final
class Worker:
    """A worker process and the journal that it writes."""

    def __init__(self, settings: WorkerSettings) -> None:
        self.name = settings.name
        self.is_ready = False
        self.killed_at: float | None = None
        self.handled: list[Handled] = []
        self._journal = Path(settings.journal)
        self._read_bytes = 0
        self._errors = self._journal.with_suffix(".errors")
        with self._errors.open("wb") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "shardline.cli.demo.demo_worker"],
                stdin=subprocess.PIPE,
                stdout=errors,
                stderr=errors,
                start_new_session=True,  # Ctrl-C must reach only the demo, which then ends its workers
            )
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # the worker has already ended: check() reports it
            self._process.stdin.write(msgspec.json.encode(settings) + b"\n")
            self._process.stdin.flush()

    @property
    def pid(self) -> int:
        return self._process.pid

    def kill(self) -> None:
        """Kill the process (``kill -9``), and note the time."""
        self.killed_at = time.monotonic()
        self._process.kill()

    def check(self) -> None:
        """Check that the worker is still running, unless the demo killed it.

        Raises:
            DemoFailedError: the worker ended on its own.
        """
        code = self._process.poll()
        if code is not None and self.killed_at is None:
            lines = self._errors.read_text(errors="replace").split("\n")
            last_line = next((line for line in reversed(lines) if line.strip()), "no output")
            raise DemoFailedError(f"worker {self.name} ended with exit code {code}: {last_line}")

    def new_lines(self) -> list[Handled]:
        """Return the orders added to the journal since the last call. Incomplete lines are left for later calls."""
        if not self._journal.exists():
            return []
        with self._journal.open("rb") as file:
            file.seek(self._read_bytes)
            whole, newline, _ = file.read().rpartition(b"\n")
        self._read_bytes += len(whole) + len(newline)
        lines = whole.decode().splitlines()
        if READY in lines:
            self.is_ready = True
        news = [Handled.of_line(line) for line in lines if line != READY]
        self.handled += news
        return news

    def ask_to_end(self) -> None:
        """Close the worker's input. The worker then commits its positions and ends."""
        assert self._process.stdin is not None
        self._process.stdin.close()

    @property
    def has_ended(self) -> bool:
        return self._process.poll() is not None

    def end(self) -> None:
        """Kill the process if it is still running, and release its resources."""
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        if self._process.stdin is not None:
            self._process.stdin.close()


@final
@dataclass
class Fleet:
    """The workers and the leases that they share."""

    kinesis: LocalKinesis
    stream: str
    directory: Path
    metrics: int | None = None
    """The port of the producers' metrics. The workers use the next ports."""
    workers: dict[str, Worker] = field(default_factory=dict[str, Worker])

    def __post_init__(self) -> None:
        self._path = self.directory / "leases.db"
        self._leases = SqliteLeases(self._path, GROUP, self.stream)
        self._rows: dict[str, Lease] = {}

    async def __aenter__(self) -> Self:
        failure = await self._leases.open()
        if failure is not None:
            raise DemoFailedError(f"the lease store does not open: {failure.message}")
        return self

    async def __aexit__(self, *_: object) -> None:
        for worker in self.workers.values():
            worker.end()
        with anyio.CancelScope(shield=True):
            await self._leases.close()

    @property
    def store_url(self) -> str:
        """The URL of the lease store that the workers share."""
        return f"sqlite:///{quote(str(self._path))}"

    def start(self, name: str) -> Worker:
        """Start a worker. It is ready when its ``is_ready`` is true."""
        keys = self.kinesis.credentials
        settings = WorkerSettings(
            name=name,
            stream=self.stream,
            group=GROUP,
            store=self.store_url,
            journal=str(self.directory / f"{name}.journal"),
            endpoint_url=self.kinesis.endpoint_url,
            region=self.kinesis.region,
            access_key=keys.access_key,
            secret_key=keys.secret_key,
            lease_duration=LEASE_DURATION,
            metrics_port=None if self.metrics is None else self.metrics + len(self.workers) + 1,
        )
        worker = self.workers[name] = Worker(settings)
        return worker

    async def leases(self) -> Mapping[str, Lease]:
        """Return the group's leases by shard id. While the file is locked, return the leases of the previous call."""
        rows = await self._leases.list_leases()
        if not isinstance(rows, Failure):
            self._rows = {row.shard_id: row for row in rows}
        elif not rows.retryable:
            raise DemoFailedError(f"the leases cannot be listed: {rows.message}")
        return self._rows

    async def end(self, timeout: float) -> None:  # noqa: ASYNC109 - workers that do not end in time are killed
        """Ask the running workers to end, wait up to ``timeout`` until they have ended, and release all workers."""
        running = [worker for worker in self.workers.values() if not worker.has_ended]
        for worker in running:
            worker.ask_to_end()
        with anyio.move_on_after(timeout):
            while not all(worker.has_ended for worker in running):  # noqa: ASYNC110 - no event signals the end
                await anyio.sleep(_PAUSE)
        for worker in self.workers.values():
            worker.end()
