"""From the caller's arguments and AWS's settings, how is the connection to the service put together?

The one place that picks adapters. What reads a file or asks the network for settings runs in a worker thread.
"""

import asyncio
import re
import ssl
import sys
import time
from dataclasses import dataclass, field
from typing import Any, Final, Literal, final

import anyio.to_thread

from shardline import __version__
from shardline.adapters.credentials import CredentialSource
from shardline.adapters.endpoints import Endpoint, Endpoints, parse_endpoint
from shardline.adapters.http1 import Http1Transport
from shardline.adapters.http_settings import HttpSettings, environment_ca_bundle, make_ssl_context
from shardline.adapters.kinesis import SERVICE, TARGET_PREFIX, BodyCodec, KinesisHttp
from shardline.adapters.signed_http import SignedHttp
from shardline.adapters.wire_streams import AnyioStream, AsyncioStream
from shardline.codec import awscbor, awsjson
from shardline.errors import UsageError
from shardline.model.credentials import Credentials
from shardline.ports import HttpTransport

_REGION: Final = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
_USER_AGENT: Final = f"shardline/{__version__} python/{sys.version_info.major}.{sys.version_info.minor}"


@final
@dataclass(frozen=True, slots=True)
class ConnectionSettings:
    """How to reach the service, as the caller said it. Nothing is looked up yet."""

    region: str | None = None
    endpoint_url: str | None = None
    profile: str | None = None
    session: Any = field(default=None, repr=False)
    credentials: Credentials | None = None
    protocol: Literal["json", "cbor"] = "json"
    use_fips: bool | None = None
    use_dualstack: bool | None = None
    http: HttpSettings = field(default_factory=HttpSettings)

    def __post_init__(self) -> None:
        if self.region is not None and (not isinstance(self.region, str) or not _REGION.fullmatch(self.region)):
            raise UsageError(f"region must look like 'eu-west-1', not {self.region!r}")
        if self.endpoint_url is not None:
            parse_endpoint(self.endpoint_url)
        if self.protocol not in {"json", "cbor"}:
            raise UsageError(f"protocol must be 'json' or 'cbor', not {self.protocol!r}")
        if self.credentials is not None and not isinstance(self.credentials, Credentials):
            raise UsageError(f"credentials must be a shardline.Credentials, not {type(self.credentials).__name__}")
        for name in ("use_fips", "use_dualstack"):
            wanted = getattr(self, name)
            if wanted is not None and not isinstance(wanted, bool):
                raise UsageError(f"{name} must be True, False or None, not {wanted!r}")
            if wanted and self.endpoint_url is not None:  # ignoring it in silence would break a promise of compliance
                raise UsageError(f"{name} goes with no endpoint_url: that one says where to connect")
        if self.profile is not None and (self.session is not None or self.credentials is not None):
            raise UsageError("profile goes with neither session nor credentials: each of them says who calls")


@final
@dataclass(frozen=True, slots=True)
class _Resolved:
    """The settings after AWS's chains have spoken."""

    region: str
    endpoint: Endpoint | None
    chain: Any  # a BotocoreSession, typed so that botocore loads only where it is needed
    ssl_context: ssl.SSLContext | None


def _resolve(settings: ConnectionSettings) -> _Resolved:
    """Ask AWS's chains for what the caller left open. Blocks."""
    endpoint = None if settings.endpoint_url is None else parse_endpoint(settings.endpoint_url)
    chain = None
    if endpoint is None or settings.credentials is None or settings.region is None:
        from shardline.adapters.botocore_session import BotocoreSession  # noqa: PLC0415 - see _Resolved.chain

        chain = BotocoreSession(
            session=settings.session,
            profile=settings.profile,
            region=settings.region,
            use_fips=settings.use_fips,
            use_dualstack=settings.use_dualstack,
            credentials=settings.credentials,
        )
    region = settings.region if chain is None else chain.region
    assert region is not None, "without a chain the region was given"
    ssl_context = None
    if endpoint is None or endpoint.url.startswith("https:"):
        ca_bundle = environment_ca_bundle() if chain is None else chain.ca_bundle
        ssl_context = make_ssl_context(settings.http.verify, ca_bundle)
    return _Resolved(region, endpoint, chain, ssl_context)


def current_backend() -> Literal["asyncio", "trio"]:
    """The kind of event loop that runs the calling task.

    Raises:
        UsageError: none does.
    """
    trio = sys.modules.get("trio")
    if trio is not None and trio.lowlevel.in_trio_task():
        return "trio"
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        raise UsageError("a Client is opened inside a running asyncio or trio loop") from None
    return "asyncio"


def _make_transport(settings: HttpSettings, ssl_context: ssl.SSLContext | None) -> HttpTransport:
    if not settings.http2:
        dial = AsyncioStream.connect if current_backend() == "asyncio" else AnyioStream.connect
        return Http1Transport(settings, ssl_context, dial)
    try:
        from shardline.adapters.http_httpcore import HttpcoreTransport  # noqa: PLC0415 - an extra
    except ImportError:
        raise UsageError("HTTP/2 needs an extra: pip install 'shardline[http2]'") from None
    return HttpcoreTransport(settings, ssl_context)


@final
@dataclass(frozen=True, slots=True)
class Connection:
    """An open connection to the service: the API and what it was resolved to."""

    api: KinesisHttp
    region: str


async def connect(settings: ConnectionSettings) -> Connection:
    """Put the adapters together.

    Raises:
        UsageError: the settings lead nowhere.
    """
    resolved = await anyio.to_thread.run_sync(_resolve, settings)
    codec: BodyCodec = awsjson if settings.protocol == "json" else awscbor
    fixed = settings.credentials
    http = SignedHttp(
        transport=_make_transport(settings.http, resolved.ssl_context),
        credentials=CredentialSource(None if fixed is not None else resolved.chain, fixed),
        endpoints=Endpoints(None if resolved.endpoint is not None else resolved.chain, resolved.endpoint),
        region=resolved.region,
        service=SERVICE,
        target_prefix=TARGET_PREFIX,
        user_agent=_USER_AGENT,
        wall_time=time.time,
    )
    return Connection(KinesisHttp(http, codec), resolved.region)
