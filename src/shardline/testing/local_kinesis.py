"""Runs the embedded Kinesis server for tests.

``LocalKinesis`` starts the server in a thread, in well under a second, on a free loopback port, without Docker and
without an account. ``LocalKinesis`` works with ``with`` and with ``async with`` (asyncio and trio), and any client can
use it::

    with LocalKinesis(limits=True) as kinesis:
        kinesis.create_stream("orders", shards=4)
        boto3.client("kinesis", **kinesis.boto3_arguments)

Invariants:

- Leaving the block stops the server, whatever happened inside. The server is also stopped if starting fails or is
  cancelled.
- ``create_stream`` and ``streams`` bypass HTTP, rate limits, faults and signatures.
- All methods and properties may be used from any thread while the server runs.
- A stopped server can be started again, at the same address and with the same clock, faults and request log. The
  streams are gone, unless ``data`` keeps them.
- The clock is moved between two requests, never during one.
- When ``advance`` returns, the changes that came due (statuses, resharding, retention) are complete.
- The clock can be set before the server starts, and keeps its time when the server is restarted.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self, final

import anyio.to_thread

from shardline.errors import Closed, UsageError
from shardline.model.credentials import Credentials
from shardline.server.model import inputs
from shardline.server.model.management import create_stream, delete_at_once
from shardline.server.model.refusals import Refused
from shardline.server.model.settings import Delays, Limits, ServiceSettings
from shardline.server.model.state import ServiceState
from shardline.server.running_server import RunningServer, ServerSettings, Traffic
from shardline.server.signatures import Signatures
from shardline.testing import arguments
from shardline.testing.local_streams import LocalStream, LocalStreams, access_state

if TYPE_CHECKING:
    from shardline.aio.client import Client
    from shardline.server.model.faults import Faults
    from shardline.server.request_log import RequestLog

ACCESS_KEY: Final = "AKIASHARDLINELOCAL00"
SECRET_KEY: Final = "shardline-local"  # noqa: S105 - the key of a server on loopback
_NOT_STARTED: Final = "this LocalKinesis is not running: use 'with' or 'async with', or call start()"


@final
class LocalClock:
    """The server's clock, in seconds since 1970."""

    def __init__(self, server: Any) -> None:
        self._server: RunningServer = server

    def __repr__(self) -> str:
        return f"<LocalClock {self.now():.3f}{', frozen' if self.is_frozen else ''}>"

    def now(self) -> float:
        """Return the server's current time."""
        return self._server.call(self._server.clock.now)

    @property
    def is_frozen(self) -> bool:
        return self._server.clock.is_frozen

    def freeze(self) -> None:
        """Stop the clock at the current time."""
        self._server.call(self._server.clock.freeze)

    def resume(self) -> None:
        """Let a frozen clock run again."""
        self._server.call(self._server.clock.resume)

    def advance(self, seconds: float) -> None:
        """Move the clock ahead immediately, whether it is frozen or not.

        Raises:
            UsageError: ``seconds`` is not a positive number. The clock cannot go back.
        """

        def work() -> None:
            server = self._server
            server.clock.advance(seconds)
            if server.service is not None:
                server.service.state.advance(server.clock.now())
                server.keep()

        self._server.call(work)


@final
class Outage:
    """Makes the server unreachable for the duration of a ``with`` or ``async with`` block."""

    def __init__(self, server: RunningServer) -> None:
        self._server = server

    def __enter__(self) -> None:
        self._server.disconnect()

    def __exit__(self, *_: object) -> None:
        self._server.reconnect()

    async def __aenter__(self) -> None:
        try:
            await anyio.to_thread.run_sync(self._server.disconnect)
        except anyio.get_cancelled_exc_class():
            await self.__aexit__()
            raise

    async def __aexit__(self, *_: object) -> None:
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(self._server.reconnect)


@final
class LocalKinesis:
    """A local Kinesis endpoint.

    Args:
        shards: the default number of shards for ``create_stream``.
        limits: ``True`` for AWS's limits, ``False`` for no rate limits, or a custom ``Limits``.
        delays: how long the service takes to carry out changes. The default is no delay.
        stream: the stream, or the streams, to create before the server accepts requests, unless they exist already.
        data: keep all data in this file, so that it survives restarts.
        port: the port to listen on. 0 finds a free port.
        host: the address to bind to.
        tls: serve HTTPS, with a certificate that ``ca_path`` verifies (extra ``tls``).
        region: the region to emulate.
        account_id: the account to emulate.
        seed: the seed of the server's random numbers.
        verify_signatures: refuse requests that are not signed with ``credentials``.
        allow_host: serve requests for this host name, or these host names, in addition to ``localhost`` and IP
            addresses. Clients that use a host name, such as clients in other containers, need this. ``*.example.com``
            allows all names under ``example.com``.
        token: serve only callers that know this secret of at least 16 characters, for machines with several users. The
            token becomes the secret key of ``credentials``, signatures are verified, and requests under
            ``/_shardline/`` need the header ``Authorization: Bearer TOKEN``.

    Raises:
        UsageError: an argument is invalid.
    """

    def __init__(
        self,
        *,
        shards: int = 1,
        limits: bool | Limits = True,
        delays: Delays | None = None,
        stream: str | Iterable[str] | None = None,
        data: str | Path | None = None,
        port: int = 0,
        host: str = "127.0.0.1",
        tls: bool = False,
        region: str = "us-east-1",
        account_id: str = "000000000000",
        seed: int = 0,
        verify_signatures: bool = False,
        allow_host: str | Iterable[str] | None = None,
        token: str | None = None,
    ) -> None:
        arguments.check_flags(tls=tls, verify_signatures=verify_signatures)
        arguments.check_place(host=host, region=region, account_id=account_id)
        arguments.check_seed(seed)
        self._shards = arguments.check_shards(shards)
        self._first_streams = arguments.check_streams(stream)
        access = arguments.check_access(allow_host, host, token)
        self.has_token: bool = token is not None
        self._secret_key = SECRET_KEY if token is None else token
        is_signed = verify_signatures or self.has_token
        self.region = region
        self._server = RunningServer(
            ServerSettings(
                service=ServiceSettings(
                    region=region,
                    account_id=account_id,
                    limits=arguments.check_limits(limits),
                    delays=arguments.check_delays(delays),
                ),
                host=host,
                port=port,
                tls=tls,
                data=arguments.check_data(data),
                seed=seed,
                signatures=Signatures({ACCESS_KEY: (self._secret_key, None)}, region) if is_signed else None,
                access=access,
            ),
            prepare=self._create_first_streams,
        )
        self.clock: Final = LocalClock(self._server)
        """The server's clock: ``freeze()``, ``advance(seconds)``, ``resume()``."""
        self.faults: Final[Faults] = self._server.faults
        """Injects faults, for example with ``faults.throttle(operation="PutRecords", count=3)``."""
        self.requests: Final[RequestLog] = self._server.requests
        """The requests that the server received, for assertions."""

    def start(self) -> None:
        """Start the server, and wait until it accepts requests.

        Raises:
            UsageError: the port is in use, the data file cannot be used, an extra is missing, the stream cannot be
                created, or the server is already running.
        """
        self._server.start()

    def stop(self) -> None:
        """Stop the server immediately. Nothing happens if it is stopped already."""
        self._server.stop()

    def outage(self) -> Outage:
        """Make the server unreachable for its clients until the end of the block::

            with kinesis.outage():  # or: async with
                ...  # connections are refused

        Open connections and subscriptions are reset. Streams, records, faults and the clock stay.

        Raises:
            Closed: the server is not running when the block begins.
            UsageError: another program has taken the port when the block ends.
        """
        return Outage(self._server)

    def reset(self) -> None:
        """Delete all streams, faults and logged requests, and create the streams of ``stream=`` again.

        The clock keeps its time. Tests that share one server call this between two tests.

        Raises:
            Closed: the server is not running.
        """
        if not self._server.is_running:
            raise Closed(_NOT_STARTED)
        self.faults.clear()

        def start_over(state: ServiceState) -> None:
            for stream in list(state.streams.values()):
                delete_at_once(state, stream)
            self._create_first_streams(state)

        access_state(self._server, start_over)
        self.requests.clear()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    async def __aenter__(self) -> Self:
        try:
            await anyio.to_thread.run_sync(self.start)
        except BaseException:  # cancellation does not end the thread that starts the server: stop waits for it
            await self._stop()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stop()

    async def _stop(self) -> None:
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(self.stop)

    def __repr__(self) -> str:
        if not self._server.port:
            return "<LocalKinesis, not started>"
        return f"<LocalKinesis {self._server.endpoint_url}{'' if self._server.is_running else ', stopped'}>"

    @property
    def endpoint_url(self) -> str:
        """The URL of the server.

        Raises:
            Closed: the server was never started.
        """
        if not self._server.port:
            raise Closed(_NOT_STARTED)
        return self._server.endpoint_url

    @property
    def ca_path(self) -> str | None:
        """The CA file that verifies the server's certificate, or ``None`` without ``tls``."""
        return None if self._server.certificate is None else self._server.certificate.ca_path

    @property
    def traffic(self) -> Traffic:
        """The numbers of received requests, stored streams and stored records. Reading them is cheap."""
        return self._server.traffic()

    @property
    def streams(self) -> Mapping[str, LocalStream]:
        """The stored streams, by name."""
        return LocalStreams(self._server)

    @property
    def credentials(self) -> Credentials:
        return Credentials(ACCESS_KEY, self._secret_key)

    @property
    def boto3_arguments(self) -> dict[str, str]:
        """Arguments for ``boto3.client("kinesis", **kinesis.boto3_arguments)``, and aiobotocore's ``create_client``."""
        arguments = {
            "endpoint_url": self.endpoint_url,
            "region_name": self.region,
            "aws_access_key_id": ACCESS_KEY,
            "aws_secret_access_key": self._secret_key,
        }
        return arguments if self.ca_path is None else arguments | {"verify": self.ca_path}

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables that point every AWS SDK at this server."""
        variables = {
            "AWS_ENDPOINT_URL_KINESIS": self.endpoint_url,
            "AWS_REGION": self.region,
            "AWS_DEFAULT_REGION": self.region,
            "AWS_ACCESS_KEY_ID": ACCESS_KEY,
            "AWS_SECRET_ACCESS_KEY": self._secret_key,
        }
        return variables if self.ca_path is None else variables | {"AWS_CA_BUNDLE": self.ca_path}

    def client(self) -> "Client":
        """Return a Shardline ``Client`` for this server, to be used with ``async with``."""
        from shardline.aio.client import Client  # noqa: PLC0415 - the command line starts faster without it

        return Client(
            region=self.region,
            endpoint_url=self.endpoint_url,
            credentials=self.credentials,
            verify=True if self.ca_path is None else self.ca_path,
        )

    def create_stream(self, name: str, shards: int | None = None) -> LocalStream:
        """Create a stream without an HTTP request. The stream is ACTIVE when this call returns, unless a delay is set.

        Raises:
            UsageError: an argument is invalid, or the stream exists.
            Closed: the server is not running.
        """
        count = self._shards if shards is None else arguments.check_shards(shards)
        arguments.check_stream(name)
        if not self._server.is_running:
            raise Closed(_NOT_STARTED)

        access_state(self._server, lambda state: _create(state, name, count))
        return self.streams[name]

    def _create_first_streams(self, state: ServiceState) -> None:
        """Create the streams of the argument ``stream``. The server's thread calls this before it listens."""
        for name in self._first_streams:
            if name not in state.streams:
                _create(state, name, self._shards)


def _create(state: ServiceState, name: str, shards: int) -> None:
    request = inputs.read_values("CreateStream", {"StreamName": name, "ShardCount": shards})
    assert isinstance(request, inputs.CreateStream)
    try:
        create_stream(state, request)
    except Refused as refusal:
        raise UsageError(f"the stream {name!r} cannot be created: {refusal.message}") from None
