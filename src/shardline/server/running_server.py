"""Assembles a whole server and runs it in a thread.

This is the only module that connects model, clock, faults, persistence and shell. ``RunningServer`` runs in a thread
with its own event loop. It therefore serves asyncio, trio and blocking code alike, and a test that blocks its own event
loop does not block the server.

Invariants:

- The server binds to loopback by default. Port 0 picks a free port, and a server that is restarted keeps its port.
- ``stop`` ends the thread immediately, even if requests or subscriptions are open. Calling it again is harmless.
- If the server cannot start, ``start`` raises the error and leaves nothing running.
- One thread at a time uses the service: ``call`` runs its function between two requests.
"""

import asyncio
import tempfile
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar, final

from shardline.errors import Closed, UsageError
from shardline.server.access import Access
from shardline.server.certificates import Certificate, make_certificate
from shardline.server.control import Control
from shardline.server.endpoint import Endpoint
from shardline.server.front import Front
from shardline.server.model.faults import Faults
from shardline.server.model.service import Service
from shardline.server.model.settings import ServiceSettings
from shardline.server.model.state import ServiceState
from shardline.server.request_log import RequestLog
from shardline.server.server_clock import ServerClock
from shardline.server.signatures import Signatures
from shardline.server.storage import Storage

if TYPE_CHECKING:
    from shardline.server.http_server import HttpServer
    from shardline.server.wakeups import Wakeups

T = TypeVar("T")

_START_TIMEOUT: Final = 30.0
# The loopback addresses at which clients reach a server that listens on all interfaces.
_ANY_ADDRESS: Final = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - binds to nothing


@final
class Traffic(NamedTuple):
    """How many requests a server has received, and how many streams and records it holds."""

    requests: int
    """The number of requests since the request log was last cleared."""
    streams: int
    records: int
    """The number of records that all streams hold."""


@final
@dataclass(frozen=True, slots=True)
class ServerSettings:
    service: ServiceSettings = field(default_factory=ServiceSettings)
    host: str = "127.0.0.1"
    port: int = 0
    tls: bool = False
    data: str | Path | None = None
    seed: int = 0
    signatures: Signatures | None = None
    """The keys that requests must be signed with. ``None`` accepts every request, signed or not."""
    access: Access = field(default_factory=Access)
    """The rules that decide, by host, origin and token, which requests may be served."""

    def __post_init__(self) -> None:
        if not isinstance(self.port, int) or isinstance(self.port, bool) or not 0 <= self.port <= 65_535:  # noqa: PLR2004
            raise UsageError(f"port must be a whole number from 0 (any free port) to 65535, not {self.port!r}")


@final
class RunningServer:
    """A server that runs in its own thread."""

    def __init__(self, settings: ServerSettings, prepare: Callable[[ServiceState], None] | None = None) -> None:
        """Create a server that is not running yet.

        ``prepare`` is called with the service's state at every start, before the server listens.
        """
        self._settings = settings
        self._prepare = prepare
        self._make_http = _load_http_server()
        self.clock: ServerClock = ServerClock()
        self.faults: Faults = Faults(Random(settings.seed), self.clock.now)  # noqa: S311 - a seed on purpose
        self.requests: RequestLog = RequestLog()
        self.clock.on_move = self.faults.on_add = self._wake_subscriptions
        self.service: Service | None = None
        self.port: int = 0
        self.certificate: Certificate | None = None
        self._storage: Storage | None = None
        self._lifecycle = threading.Lock()
        self._thread: threading.Thread | None = None
        # The gate guards the fields below. Before the loop ends, `_serve` takes the gate, resets `_loop`, and then lets
        # the loop run once more. So a callback that a holder of the gate has scheduled on `_loop` always runs.
        self._gate = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping: asyncio.Event | None = None
        self._is_ending = False
        self._wakeups: Wakeups | None = None
        self.http: HttpServer | None = None
        self._main: asyncio.Task[None] | None = None
        self._failure: Exception | None = None

    @property
    def endpoint_url(self) -> str:
        host = _ANY_ADDRESS.get(self._settings.host, self._settings.host)
        shown = f"[{host}]" if ":" in host else host
        return f"{'https' if self._settings.tls else 'http'}://{shown}:{self.port}"

    @property
    def is_running(self) -> bool:
        return self._thread is not None

    def start(self) -> None:
        """Bind the port, start serving, and wait until the server accepts requests.

        Raises:
            UsageError: the server is already running, or the settings do not work: the port is taken, an extra is
                missing, or the data file is damaged.
        """
        with self._lifecycle:
            if self._thread is not None:
                raise UsageError(f"this server is already running at {self.endpoint_url}: stop it first")
            started: Future[None] = Future()
            self._failure, self._is_ending = None, False
            thread = threading.Thread(target=self._run, args=(started,), name="shardline-local-kinesis", daemon=True)
            self._thread = thread
            try:
                thread.start()
                started.result(_START_TIMEOUT)
            except TimeoutError:
                self._end()
                raise UsageError(f"the local server did not start within {_START_TIMEOUT:g} s") from None
            except BaseException:  # including KeyboardInterrupt
                self._end()
                raise

    def stop(self) -> None:
        """End the server. Raise the error if the server failed while it was running."""
        with self._lifecycle:
            self._end()
            failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def disconnect(self) -> None:
        """Refuse connections and reset those that are open, until ``reconnect``. The service keeps its state.

        Raises:
            Closed: the server is not running.
        """
        self._await(self._cut_off)

    def reconnect(self) -> None:
        """Serve again, at the same address.

        Raises:
            UsageError: another program has taken the port.
            Closed: the server is not running.
        """
        self._await(self._bind)

    def _await(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run a coroutine in the server's thread and wait for it."""
        with self._gate:
            if self._loop is None:
                raise Closed("this server does not run")
            done = asyncio.run_coroutine_threadsafe(work(), self._loop)
        done.result(_START_TIMEOUT)

    def call(self, work: Callable[[], T]) -> T:
        """Run ``work`` in the server's thread and return its result. If the server is not running, run ``work`` in the
        caller's thread.
        """
        done: Future[T] = Future()
        with self._gate:
            is_scheduled = self._loop is not None
            if self._loop is not None:
                self._loop.call_soon_threadsafe(self._carry_out, work, done)
        return done.result() if is_scheduled else work()

    def traffic(self) -> Traffic:
        """Return the server's counters. Any thread may call this at any time, because each counter is one number."""
        state = None if self.service is None else self.service.state
        if state is None:
            return Traffic(self.requests.total, 0, 0)
        return Traffic(self.requests.total, len(state.streams), state.records_held.value)

    def _wake_subscriptions(self) -> None:
        """Wake all subscriptions, because some thread has moved the clock or added a fault."""
        with self._gate:
            if self._loop is not None and self._wakeups is not None:
                self._loop.call_soon_threadsafe(self._wakeups.wake_all)

    def keep(self) -> None:
        """Persist the changes. Use this only inside ``call``."""
        if self._storage is not None and self._loop is not None:
            self._storage.keep()

    def _end(self) -> None:
        thread, self._thread = self._thread, None
        if thread is None:
            return
        with self._gate:
            self._is_ending = True
            if self._loop is not None and self._stopping is not None:
                self._loop.call_soon_threadsafe(self._stopping.set)
        # Ctrl-C may have interrupted thread.start(), so the thread may not be alive yet. It then ends by itself.
        if thread.is_alive():
            thread.join()

    # ---- in the server's thread

    def _run(self, started: "Future[None]") -> None:
        try:
            # Do not use the program's event loop policy: its loop may be one for tests, with a fake clock.
            with asyncio.Runner(loop_factory=asyncio.SelectorEventLoop) as runner:
                runner.run(self._serve(started))
        except Exception as error:  # noqa: BLE001 - raised again by start, or else by stop
            if started.done():
                self._failure = error
            else:
                started.set_exception(error)

    async def _serve(self, started: "Future[None]") -> None:
        stopping = asyncio.Event()
        self._main = asyncio.current_task()
        with ExitStack() as stack:
            await self._open(stack)
            try:
                with self._gate:
                    self._loop, self._stopping = asyncio.get_running_loop(), stopping
                    if self._is_ending:
                        stopping.set()
                started.set_result(None)
                await stopping.wait()
            finally:
                with self._gate:
                    self._loop = None
                await asyncio.sleep(0)  # runs the callbacks that `call` has scheduled
                await self._cut_off()

    async def _cut_off(self) -> None:
        """Close the port and end every connection immediately."""
        assert self.http is not None, "serving"
        for task in asyncio.all_tasks() - {asyncio.current_task(), self._main}:
            task.cancel()  # cancels the tasks of connections: aiohttp would wait for them
        await self.http.close()

    async def _open(self, stack: ExitStack) -> None:
        """Assemble the server, bind its port and start serving."""
        settings = self._settings
        if settings.tls:
            directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="shardline-"))
            # Clients check the certificate against the machine's clock, even if a test has moved the server's clock.
            self.certificate = make_certificate(
                Path(directory), settings.host, self.clock.machine_now(), settings.access.names
            )
        self._make_server(stack)
        self._prepare_state()
        await self._bind()

    async def _bind(self) -> None:
        """Listen on the port. If the server has listened before, keep the previous address."""
        assert self.http is not None, "put together"
        if self.http.is_serving:  # an outage that was cancelled before it began
            return
        host, port = self._settings.host, self._settings.port or self.port
        context = None if self.certificate is None else self.certificate.context
        try:
            await self.http.start(host, port, context)
        except OSError as error:
            await self.http.close()
            reason = (error.strerror or str(error)).lower()
            raise UsageError(f"cannot serve on {host} port {port}: {reason}") from None
        self.port = self.http.port

    def _prepare_state(self) -> None:
        if self._prepare is not None and self.service is not None:
            state = self.service.state
            self._prepare(state)
            state.advance(self.clock.now())
            if self._storage is not None:
                self._storage.keep()

    def _make_server(self, stack: ExitStack) -> None:
        """Create the model, its persistence, its faults and the HTTP shell, and connect them."""
        settings = self._settings
        rng = Random(settings.seed)  # noqa: S311 - a seed on purpose
        if settings.data is None:
            service = Service(settings.service, rng, self.clock.now())
        else:
            self._storage = Storage.open(settings.data, settings.service, rng, self.clock.now())
            stack.callback(self._storage.close)
            service = self._storage.service
        endpoint = Endpoint(
            service,
            self.clock,
            on_handled=None if self._storage is None else self._storage.keep,
            faults=self.faults,
            signatures=settings.signatures,
            requests=self.requests,
        )
        self.service, self._wakeups = service, endpoint.wakeups
        control = Control(service, self.clock, faults=self.faults, requests=self.requests)
        front = Front(endpoint, access=settings.access, control=control)
        self.http = self._make_http(front)

    def _carry_out(self, work: Callable[[], T], done: "Future[T]") -> None:
        try:
            done.set_result(work())
        except Exception as error:  # noqa: BLE001 - raised again in the thread that called `call`
            done.set_exception(error)
        if self._wakeups is not None:
            self._wakeups.wake_touched()


def _load_http_server() -> "type[HttpServer]":
    """Import the half of the server that speaks HTTP, which needs the extra ``local``.

    Raises:
        UsageError: the extra is not installed.
    """
    try:
        from shardline.server.http_server import HttpServer  # noqa: PLC0415 - aiohttp is an extra
    except ImportError:
        raise UsageError("the embedded Kinesis needs an extra: pip install 'shardline[local]'") from None
    return HttpServer
