"""How is a whole server put together, and kept running?

The one place that joins model, clock, faults, persistence and shell. ``RunningServer`` lives in a thread with a loop of
its own: it serves asyncio, trio and blocking code alike, and a test that blocks its own loop does not block it.

Invariants:

- It binds to loopback unless told otherwise; port 0 finds a free one, and a server that is started again keeps it.
- ``stop`` ends the thread at once, also when requests or subscriptions are open; it is harmless when repeated.
- A failure to start is raised where ``start`` was called, and leaves nothing running.
- The service is touched by one thread at a time: ``call`` does its work between two requests.
"""

import asyncio
import tempfile
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar, final

from shardline.errors import UsageError
from shardline.server.access import Access
from shardline.server.certificates import Certificate, make_certificate
from shardline.server.control import Control
from shardline.server.endpoint import Endpoint
from shardline.server.front import Front
from shardline.server.http_server import HttpServer
from shardline.server.model.faults import Faults
from shardline.server.model.service import Service
from shardline.server.model.settings import ServiceSettings
from shardline.server.model.state import ServiceState
from shardline.server.request_log import RequestsSeen
from shardline.server.server_clock import ServerClock
from shardline.server.signatures import Signatures
from shardline.server.storage import Storage

if TYPE_CHECKING:
    from shardline.server.wakeups import Wakeups

T = TypeVar("T")

_START_LIMIT: Final = 30.0
_ANY_ADDRESS: Final = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - only looked up: where clients find it


@final
class Traffic(NamedTuple):
    """What a server has done, and holds."""

    requests: int
    """All that were seen, since the record of requests was last cleared."""
    streams: int
    records: int
    """Of all streams."""


@final
@dataclass(frozen=True, slots=True)
class ServerSettings:
    """How a server is run."""

    service: ServiceSettings = field(default_factory=ServiceSettings)
    host: str = "127.0.0.1"
    port: int = 0
    tls: bool = False
    data: str | Path | None = None
    seed: int = 0
    signatures: Signatures | None = None
    """Who may call; anyone, signed or not, where there is none."""
    access: Access = field(default_factory=Access)
    """Which hosts, origins and tokens requests may have."""

    def __post_init__(self) -> None:
        if not isinstance(self.port, int) or isinstance(self.port, bool) or not 0 <= self.port <= 65_535:  # noqa: PLR2004
            raise UsageError(f"port must be a whole number from 0 (any free one) to 65535, not {self.port!r}")


@final
class RunningServer:
    """A server in a thread of its own."""

    def __init__(self, settings: ServerSettings, prepare: Callable[[ServiceState], None] | None = None) -> None:
        """``prepare`` is called with the service's state at every start, before the server listens."""
        self._settings = settings
        self._prepare = prepare
        self.clock = ServerClock()
        self.faults = Faults(Random(settings.seed), self.clock.now)  # noqa: S311 - a seed on purpose
        self.requests = RequestsSeen()
        self.clock.on_move = self.faults.on_add = self._wake_subscriptions
        self.service: Service | None = None
        self.port = 0
        self.certificate: Certificate | None = None
        self._storage: Storage | None = None
        self._lifecycle = threading.Lock()
        self._thread: threading.Thread | None = None
        # The gate guards what follows: a loop that is seen behind it runs all that it is handed.
        self._gate = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping: asyncio.Event | None = None
        self._is_ending = False
        self._wakeups: Wakeups | None = None
        self.http: HttpServer | None = None
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
        """Bind and serve; return when the server answers.

        Raises:
            UsageError: the settings do not work: a port that is taken, a missing extra, a broken data file. Or the
                server runs already.
        """
        with self._lifecycle:
            if self._thread is not None:
                raise UsageError(f"this server runs already, at {self.endpoint_url}: stop it first")
            started: Future[None] = Future()
            self._failure, self._is_ending = None, False
            thread = threading.Thread(target=self._run, args=(started,), name="shardline-local-kinesis", daemon=True)
            self._thread = thread
            try:
                thread.start()
                started.result(_START_LIMIT)
            except TimeoutError:
                self._end()
                raise UsageError(f"the local server did not start within {_START_LIMIT:g} s") from None
            except BaseException:  # also when Ctrl-C came in the meantime
                self._end()
                raise

    def stop(self) -> None:
        """End the server."""
        with self._lifecycle:
            self._end()
            failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def call(self, work: Callable[[], T]) -> T:
        """Do it in the server's thread, and wait for it; here, if the server does not run."""
        done: Future[T] = Future()
        with self._gate:
            handed_over = self._loop is not None
            if self._loop is not None:
                self._loop.call_soon_threadsafe(self._carry_out, work, done)
        return done.result() if handed_over else work()

    def traffic(self) -> Traffic:
        """Counters that the server keeps. Any thread may read them, at any time: they are single numbers."""
        state = None if self.service is None else self.service.state
        if state is None:
            return Traffic(self.requests.total, 0, 0)
        return Traffic(self.requests.total, len(state.streams), state.records_held.value)

    def _wake_subscriptions(self) -> None:
        """The clock was moved or a fault was added, in any thread."""
        with self._gate:
            if self._loop is not None and self._wakeups is not None:
                self._loop.call_soon_threadsafe(self._wakeups.wake_all)

    def keep(self) -> None:
        """Write down what has changed. For the work of ``call``."""
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
        if thread.is_alive():  # where Ctrl-C came as it began, it may not be yet: then it ends by itself
            thread.join()

    # ---- in the thread

    def _run(self, started: "Future[None]") -> None:
        try:
            # Not what the program's policy would make: its loops may be made for its tests, and play with time.
            with asyncio.Runner(loop_factory=asyncio.SelectorEventLoop) as runner:
                runner.run(self._serve(started))
        except Exception as error:  # noqa: BLE001 - handed to whoever called start, or else stop
            if started.done():
                self._failure = error
            else:
                started.set_exception(error)

    async def _serve(self, started: "Future[None]") -> None:
        stopping = asyncio.Event()
        with ExitStack() as stack:
            server = await self._open(stack)
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
                await asyncio.sleep(0)  # what was handed over before that comes first
                for task in asyncio.all_tasks() - {asyncio.current_task()}:
                    task.cancel()  # a connection's: aiohttp would give it time
                await server.close()

    async def _open(self, stack: ExitStack) -> HttpServer:
        """Bind, and serve."""
        settings = self._settings
        context = None
        if settings.tls:
            directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="shardline-"))
            self.certificate = make_certificate(
                Path(directory), settings.host, self.clock.machine_now(), settings.access.names
            )  # clients judge it by the machine's time, wherever the server's clock was moved to
            context = self.certificate.context
        server = self._make_server(stack)
        self._prepare_state()
        port = settings.port or self.port
        try:
            await server.start(settings.host, port, context)
        except OSError as error:
            await server.close()
            reason = (error.strerror or str(error)).lower()
            raise UsageError(f"cannot serve on {settings.host} port {port}: {reason}") from None
        self.port = server.port
        return server

    def _prepare_state(self) -> None:
        if self._prepare is not None and self.service is not None:
            state = self.service.state
            self._prepare(state)
            state.advance(self.clock.now())
            if self._storage is not None:
                self._storage.keep()

    def _make_server(self, stack: ExitStack) -> HttpServer:
        """Model, persistence, faults and shell, joined."""
        settings = self._settings
        chance = Random(settings.seed)  # noqa: S311 - a seed on purpose
        if settings.data is None:
            service = Service(settings.service, chance, self.clock.now())
        else:
            self._storage = Storage.open(settings.data, settings.service, chance, self.clock.now())
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
        self.http = HttpServer(front)
        return self.http

    def _carry_out(self, work: Callable[[], T], done: "Future[T]") -> None:
        try:
            done.set_result(work())
        except Exception as error:  # noqa: BLE001 - raised where it was called from
            done.set_exception(error)
        if self._wakeups is not None:
            self._wakeups.look()
