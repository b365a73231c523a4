"""From AWS's settings, how is a connection to DynamoDB put together?

The same signed HTTP as for Kinesis, for another service: no second AWS client, no threads per call, and the same
credentials, proxies, certificates and failures. What is left open is looked up in a worker thread.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, final

import anyio.to_thread

from shardline.adapters.aws_service import find_service
from shardline.adapters.http1 import Http1Transport
from shardline.adapters.http_settings import HttpSettings
from shardline.adapters.signed_http import SignedHttp
from shardline.adapters.wire_streams import dial
from shardline.model.credentials import Credentials

SERVICE: Final = "dynamodb"
TARGET_PREFIX: Final = "DynamoDB_20120810"


def lease_http() -> HttpSettings:
    """Limits that fit leases: an answer that comes after many seconds is of no use to who must renew in ten."""
    return HttpSettings(connect_timeout=3.0, read_timeout=5.0, max_connections=20)


@final
@dataclass(frozen=True, slots=True)
class AwsAccess:
    """How to reach an AWS service, as the caller said it."""

    wall_time: Callable[[], float]
    region: str | None = None
    endpoint_url: str | None = None
    profile: str | None = None
    session: Any = field(default=None, repr=False)
    credentials: Credentials | None = None
    use_fips: bool | None = None
    use_dualstack: bool | None = None
    user_agent: str = "shardline"
    http: HttpSettings = field(default_factory=lease_http)


async def connect(access: AwsAccess) -> SignedHttp:
    """Put the adapters together.

    Raises:
        UsageError: the settings lead nowhere.
    """
    service = await anyio.to_thread.run_sync(find_service, SERVICE, access)
    transport = Http1Transport(access.http, service.ssl_context, dial)
    return service.connect(
        transport, target_prefix=TARGET_PREFIX, user_agent=access.user_agent, wall_time=access.wall_time
    )
