"""Reports the health of producers and consumers over HTTP: ``/livez``, ``/readyz`` and ``/metrics``.

The server runs in its own threads, so that it answers even while the event loop is blocked, and reports the blocked
loop.

Invariants:

- For each producer or consumer, a thread repeatedly asks the event loop of that producer or consumer for the current
  state. While the question is unanswered, the loop counts as blocked since the question was asked. HTTP requests are
  answered immediately, from the last known state.
- ``/livez`` fails only because of problems that a restart can cure: a blocked event loop, a stuck handler or a failed
  consumer. Lag, a lease store that is down, and a closed producer or consumer are not reasons for a restart.
- ``/readyz`` fails until every producer and consumer has reached its stream, and once one of them is closed.
- The threads do not keep the program from exiting.
"""

import gzip
import json
import os
import selectors
import socket
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self, TypeAlias, final
from urllib.parse import urlsplit

from shardline.adapters.event_loop import CallSoon, call_soon_from_threads, running_loop
from shardline.aio.consumer.async_consumer import Consumer as AsyncConsumer
from shardline.aio.producer.async_producer import Producer as AsyncProducer
from shardline.errors import UsageError
from shardline.sync import Consumer as BlockingConsumer
from shardline.sync import Producer as BlockingProducer

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

__all__ = ["HealthAnswer", "HealthServer"]

Watched: TypeAlias = AsyncProducer | AsyncConsumer[Any] | BlockingProducer | BlockingConsumer[Any]

_INTERVAL: Final = 0.5  # seconds between two questions to a producer or consumer
_REQUEST_TIMEOUT: Final = 5.0  # how many seconds a client has to send its request
_PORT_MAX: Final = 65_535
_NOT_ALIVE: Final = {
    "failed": "it has failed: the next call raises the reason",
    "handler-stuck": "a handler has had the same records for longer than stuck_after",
}
_LOOP_ENDED: Final = "its event loop has ended"
_NO_METRICS: Final = "metrics need an extra: pip install 'shardline[health]'\n"
_JSON: Final = "application/json"
_TEXT: Final = "text/plain; charset=utf-8"


@final
@dataclass(frozen=True, slots=True)
class HealthAnswer:
    """The answer to a request, for any web framework."""

    status: int
    content_type: str
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    """The headers of the answer besides ``Content-Type``."""


@final
@dataclass(frozen=True, slots=True)
class _State:
    """The state of a producer or consumer, as it answered a probe."""

    health: str
    is_ready: bool
    loop_ended: bool = False


@final
class HealthServer:
    """Serves ``/livez``, ``/readyz`` and ``/metrics`` on its own port::

        async with Consumer("orders", group="billing", store="redis://redis/0") as consumer:
            with HealthServer(consumer, port=8080):
                await consumer.run(handle)

    Start it in the event loop of the async producers and consumers that it watches. Blocking ones can be watched from
    any thread.

    Args:
        watched: the producers and consumers.
        port: the port to listen on. 0 chooses a free port. With ``None``, the server does not listen, and only
            ``respond`` works.
        host: the address to listen on. The default is all addresses, because probes and scrapes come from elsewhere.
        blocked_after: how many seconds an event loop may be blocked before ``/livez`` and ``/readyz`` fail.
        registry: the metrics to serve. ``None`` means the default registry of ``prometheus_client``, or, in its
            multiprocess mode, the metrics of all processes.

    Raises:
        UsageError: an argument is invalid.
    """

    def __init__(
        self,
        *watched: Watched,
        port: int | None,
        host: str = "0.0.0.0",  # noqa: S104 - probes and scrapes come from other machines
        blocked_after: float = 10.0,
        registry: "CollectorRegistry | None" = None,
    ) -> None:
        if port is not None and (isinstance(port, bool) or not isinstance(port, int) or not 0 <= port <= _PORT_MAX):
            raise UsageError(f"port must be a whole number from 0 to {_PORT_MAX}, or None, not {port!r}")
        if isinstance(blocked_after, bool) or not isinstance(blocked_after, (int, float)) or blocked_after <= 0:
            raise UsageError(f"blocked_after must be a number of seconds above 0, not {blocked_after!r}")
        for each in watched:
            if not isinstance(each, AsyncProducer | AsyncConsumer | BlockingProducer | BlockingConsumer):
                raise UsageError(f"a HealthServer watches producers and consumers, not a {type(each).__name__}")
        self._watched = watched
        self._wanted_port = port
        self._host = host
        self._blocked_after = float(blocked_after)
        self._registry = registry
        self._probes: list[_Probe] = []
        self._listener: _Listener | None = None
        self._is_started = False

    # ---- start and close

    def start(self) -> None:
        """Start watching and listening.

        Raises:
            UsageError: the port cannot be used, or an async producer or consumer is watched outside an event loop.
        """
        if self._is_started:
            return
        needs_loop = any(isinstance(each, AsyncProducer | AsyncConsumer) for each in self._watched)
        if needs_loop and running_loop() is None:
            raise UsageError("start a HealthServer in the event loop of the producers and consumers that it watches")
        call_soon = call_soon_from_threads() if needs_loop else None
        if self._wanted_port is not None:
            self._listener = _Listener(self._host, self._wanted_port, self.respond)
        self._is_started = True
        self._probes = [_Probe(each, call_soon) for each in self._watched]
        for probe in self._probes:
            probe.start()
        if self._listener is not None:
            self._listener.start()

    def close(self) -> None:
        """Stop listening and watching. Closing twice is harmless."""
        listener, self._listener = self._listener, None
        if listener is not None:
            listener.close()
        for probe in self._probes:
            probe.stop()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def port(self) -> int | None:
        """The port that the server listens on, or ``None`` if it does not listen."""
        return None if self._listener is None else self._listener.port

    # ---- answers

    def respond(self, path: str, headers: Mapping[str, str] | None = None) -> HealthAnswer:
        """Return the answer to a request, from any thread. Use it to serve the same paths with a web framework.

        Args:
            path: ``/livez``, ``/readyz`` or ``/metrics``.
            headers: the headers of the request. ``/metrics`` chooses its format by ``Accept`` and ``Accept-Encoding``.
        """
        name = urlsplit(path).path.rstrip("/")
        if name == "/livez":
            return self._report("alive", _Probe.why_not_alive)
        if name == "/readyz":
            return self._report("ready", _Probe.why_not_ready)
        if name == "/metrics":
            lower = {key.lower(): value for key, value in (headers or {}).items()}
            return _metrics(self._registry, lower.get("accept", ""), lower.get("accept-encoding", ""))
        return HealthAnswer(HTTPStatus.NOT_FOUND, _TEXT, b"there are /livez, /readyz and /metrics\n")

    def _report(self, what: str, why_not: "Callable[[_Probe, float], str | None]") -> HealthAnswer:
        reasons = [(probe, why_not(probe, self._blocked_after)) for probe in self._probes]
        problems = [f"{probe.name}: {reason}" for probe, reason in reasons if reason is not None]
        if not self._is_started:
            problems = ["the HealthServer is not started"]
        report = {
            "status": what if not problems else f"not {what}",
            "problems": problems,
            "watched": [probe.report() for probe in self._probes],
        }
        status = HTTPStatus.SERVICE_UNAVAILABLE if problems else HTTPStatus.OK
        return HealthAnswer(status, _JSON, json.dumps(report).encode() + b"\n")


@final
class _Probe:
    """Asks one producer or consumer for its state, in a separate thread."""

    def __init__(self, watched: Watched, call_soon: CallSoon | None) -> None:
        self.name: Final = repr(watched).strip("<>").split(",")[0]  # the repr without the state, which changes
        self._watched = watched
        is_async = isinstance(watched, AsyncProducer | AsyncConsumer)
        self._call_soon = call_soon if is_async else None
        self._state = _State("starting", is_ready=False)
        self._asked_at: float | None = None  # when the open question was asked, or None if no question is open
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="shardline health probe", daemon=True)

    def start(self) -> None:
        if self._call_soon is not None:
            self._state = self._look()  # ``start`` runs in the event loop's thread
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()

    @property
    def blocked_for(self) -> float:
        """For how many seconds the event loop has left a question unanswered. The value is 0 if no question is open."""
        asked_at = self._asked_at
        return 0.0 if asked_at is None else time.monotonic() - asked_at

    def why_not_alive(self, blocked_after: float) -> str | None:
        """Return why a restart would help, or ``None`` if it would not."""
        if self._state.loop_ended and self._state.health != "closed":
            return _LOOP_ENDED
        if self.blocked_for >= blocked_after:
            return f"the event loop has been blocked for {self.blocked_for:.1f} s"
        return _NOT_ALIVE.get(self._state.health)

    def why_not_ready(self, blocked_after: float) -> str | None:
        """Return why the producer or consumer is not working now, or ``None`` if it is."""
        reason = self.why_not_alive(blocked_after)
        if reason is not None:
            return reason
        return None if self._state.is_ready else f"it is not ready ({self._state.health})"

    def report(self) -> dict[str, object]:
        return {
            "name": self.name,
            "health": self._state.health,
            "is_ready": self._state.is_ready,
            "blocked_for": round(self.blocked_for, 1),
        }

    # ---- the thread

    def _run(self) -> None:
        while not self._stopped.wait(_INTERVAL):
            self._asked_at = time.monotonic()
            state = self._ask()
            self._asked_at = None
            if state is None:
                return
            self._state = state
            if state.loop_ended:
                return

    def _ask(self) -> _State | None:
        """Return the state as the host's thread sees it, or ``None`` if this probe was stopped."""
        if self._call_soon is None:
            return self._look()  # a blocking producer or consumer asks its own network thread, and waits for the answer
        answers: list[_State] = []
        answered = threading.Event()

        def answer() -> None:
            answers.append(self._look())
            answered.set()

        try:
            self._call_soon(answer)
            while not answered.wait(_INTERVAL):
                if self._stopped.is_set():
                    return None
                self._call_soon(_do_nothing)  # raises if the loop has ended without an answer
        except RuntimeError:
            return _State(self._look().health, is_ready=False, loop_ended=True)
        return answers[0]

    def _look(self) -> _State:
        watched = self._watched
        is_ready = watched.is_ready
        if isinstance(watched, AsyncConsumer | BlockingConsumer):
            return _State(watched.health, is_ready)
        return _State("ok" if is_ready else "closed" if watched.is_closed else "starting", is_ready)


def _do_nothing() -> None:
    """Do nothing. Scheduling this function shows whether the event loop still exists."""


# ---- HTTP


@final
class _Listener:
    """Accepts connections in one thread, and answers each connection in its own thread."""

    def __init__(self, host: str, port: int, respond: Callable[[str, Mapping[str, str]], HealthAnswer]) -> None:
        try:
            self._server = _server_class(host)((host, port), _handler_class(respond))
        except (OSError, OverflowError) as error:
            raise UsageError(f"the health server cannot listen on port {port} of {host}: {error}") from None
        self.port: Final = int(self._server.server_address[1])
        self._wake, self._woken = socket.socketpair()
        self._thread = threading.Thread(target=self._run, name="shardline health server", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Stop accepting connections."""
        self._wake.send(b"x")
        self._thread.join()
        self._server.server_close()
        self._wake.close()
        self._woken.close()

    def _run(self) -> None:
        # Do not use serve_forever: its shutdown() waits up to half a second, which would block the caller's event loop.
        with selectors.DefaultSelector() as selector:
            selector.register(self._server, selectors.EVENT_READ)
            selector.register(self._woken, selectors.EVENT_READ)
            while not any(key.fileobj is self._woken for key, _ in selector.select()):
                self._server.handle_request()


def _server_class(host: str) -> type[ThreadingHTTPServer]:
    class Server(ThreadingHTTPServer):
        address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        daemon_threads = True
        block_on_close = False  # do not wait for slow clients

        def handle_error(self, request: object, client_address: object) -> None:
            """Ignore errors in a connection: the client has probably broken it."""

    return Server


def _handler_class(respond: Callable[[str, Mapping[str, str]], HealthAnswer]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = _REQUEST_TIMEOUT
        server_version = "shardline"
        sys_version = ""

        def do_GET(self) -> None:
            self._answer(with_body=True)

        def do_HEAD(self) -> None:
            self._answer(with_body=False)

        def _answer(self, *, with_body: bool) -> None:
            answer = respond(self.path, dict(self.headers.items()))
            self.send_response(answer.status)
            self.send_header("Content-Type", answer.content_type)
            self.send_header("Content-Length", str(len(answer.body)))
            for name, value in answer.headers.items():
                self.send_header(name, value)
            self.end_headers()
            if with_body:
                self.wfile.write(answer.body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name is inherited
            """Log nothing: probes come every few seconds."""

    return Handler


def _metrics(registry: "CollectorRegistry | None", accept: str, accept_encoding: str) -> HealthAnswer:
    try:
        from prometheus_client import REGISTRY, CollectorRegistry  # noqa: PLC0415 - an extra
        from prometheus_client.exposition import choose_encoder  # noqa: PLC0415
    except ImportError:
        return HealthAnswer(HTTPStatus.NOT_FOUND, _TEXT, _NO_METRICS.encode())
    if registry is None and "PROMETHEUS_MULTIPROC_DIR" in os.environ:
        from prometheus_client.multiprocess import MultiProcessCollector  # noqa: PLC0415

        registry = CollectorRegistry()
        MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
    encode, content_type = choose_encoder(accept)
    body = encode(REGISTRY if registry is None else registry)
    if "gzip" not in accept_encoding:
        return HealthAnswer(HTTPStatus.OK, content_type, body)
    headers = {"Content-Encoding": "gzip"}
    return HealthAnswer(HTTPStatus.OK, content_type, gzip.compress(body, 1), headers)
