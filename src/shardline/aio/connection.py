"""Builds the connection to the service from the caller's arguments and the AWS settings.

This is the only module that chooses adapters. Code that reads settings from files or the network runs in a worker
thread.
"""

import asyncio
import re
import ssl
import sys
import time
from dataclasses import dataclass
from typing import Final, Literal, final

from shardline import __version__
from shardline.adapters.aws.aws_service import AwsService, AwsSettings, find_service
from shardline.adapters.aws.endpoints import parse_endpoint
from shardline.adapters.blocking_calls import BlockingCalls
from shardline.adapters.http.http1_transport import Http1Transport
from shardline.adapters.http.http2_transport import Http2Transport
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
class ConnectionSettings(AwsSettings):
    """The caller's connection arguments, validated. Omitted settings are looked up later."""

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
            value = getattr(self, name)
            if value is not None and not isinstance(value, bool):
                raise UsageError(f"{name} must be True, False or None, not {value!r}")
            if value and self.endpoint_url is not None:  # a user may rely on FIPS for compliance
                raise UsageError(f"{name} cannot be combined with endpoint_url, which decides where to connect")
        if self.profile is not None and (self.session is not None or self.credentials is not None):
            raise UsageError("profile cannot be combined with session or credentials: each of them decides who calls")


def current_backend() -> Literal["asyncio", "trio"]:
    """Return the library whose event loop runs the calling task.

    Raises:
        UsageError: the caller is not in an event loop.
    """
    # While another thread is importing trio, trio's modules exist but are empty.
    in_trio_task = getattr(sys.modules.get("trio.lowlevel"), "in_trio_task", None)
    if in_trio_task is not None and in_trio_task():
        return "trio"
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        raise UsageError("a Client must be started inside a running asyncio or trio loop") from None
    return "asyncio"


def _make_transport(settings: HttpSettings, service: AwsService) -> HttpTransport:
    dial = AsyncioStream.connect if current_backend() == "asyncio" else AnyioStream.connect
    http1 = Http1Transport(settings, service.ssl_context, dial)
    if isinstance(settings.verify, ssl.SSLContext) and not settings.http2:
        return http1  # the protocols that such a context offers apply to every connection, even over HTTP/1.1
    return Http2Transport(settings, service.trust, dial, http1, service.ssl_context)


@final
@dataclass(frozen=True, slots=True)
class Connection:
    """An open connection to the service: the API, and the region that was looked up."""

    api: KinesisHttp
    region: str


async def connect(settings: ConnectionSettings) -> Connection:
    """Choose and connect the adapters.

    Raises:
        UsageError: the settings are incomplete or contradictory.
    """
    # This does not use anyio's thread pool: a program's exit waits for those threads, and an interrupt can keep them
    # from ending.
    service = await BlockingCalls[AwsService]().run("service", lambda: find_service(SERVICE, settings))
    codec: BodyCodec = awsjson if settings.protocol == "json" else awscbor
    transport = _make_transport(settings.http, service)
    http = service.connect(transport, target_prefix=TARGET_PREFIX, user_agent=_USER_AGENT, wall_time=time.time)
    return Connection(KinesisHttp(http, codec), service.region)
