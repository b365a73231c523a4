"""From the caller's arguments and AWS's settings, how is the connection to the service put together?

The one place that picks adapters. What reads a file or asks the network for settings runs in a worker thread.
"""

import asyncio
import re
import ssl
import sys
import time
from dataclasses import dataclass
from typing import Final, Literal, final

from shardline import __version__
from shardline.adapters.aws.aws_service import AwsService, AwsWishes, find_service
from shardline.adapters.aws.endpoints import parse_endpoint
from shardline.adapters.blocking_calls import BlockingCalls
from shardline.adapters.http.http1_transport import Http1Transport
from shardline.adapters.http.http_settings import HttpSettings
from shardline.adapters.http.wire_streams import AnyioStream, AsyncioStream
from shardline.adapters.kinesis import SERVICE, TARGET_PREFIX, BodyCodec, KinesisHttp
from shardline.codec import awscbor, awsjson
from shardline.errors import UsageError
from shardline.model.credentials import Credentials
from shardline.ports import HttpTransport

_REGION: Final = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
_USER_AGENT: Final = f"shardline/{__version__} python/{sys.version_info.major}.{sys.version_info.minor}"


@final
@dataclass(frozen=True, slots=True)
class ConnectionSettings(AwsWishes):
    """How to reach the service, as the caller said it. Nothing is looked up yet."""

    protocol: Literal["json", "cbor"] = "json"

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


def current_backend() -> Literal["asyncio", "trio"]:
    """The kind of event loop that runs the calling task.

    Raises:
        UsageError: none does.
    """
    # Another thread may be in the middle of importing trio: then its modules are there, and empty.
    in_trio_task = getattr(sys.modules.get("trio.lowlevel"), "in_trio_task", None)
    if in_trio_task is not None and in_trio_task():
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
        from shardline.adapters.http.httpcore_transport import HttpcoreTransport  # noqa: PLC0415 - an extra
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
    # Not in a thread of anyio's pool: the program's exit waits for those, and an interrupt can keep them from ending.
    service = await BlockingCalls[AwsService]().ask("service", lambda: find_service(SERVICE, settings))
    codec: BodyCodec = awsjson if settings.protocol == "json" else awscbor
    transport = _make_transport(settings.http, service.ssl_context)
    http = service.connect(transport, target_prefix=TARGET_PREFIX, user_agent=_USER_AGENT, wall_time=time.time)
    return Connection(KinesisHttp(http, codec), service.region)
