"""From AWS's settings, how is a connection to DynamoDB put together?

The same signed HTTP as for Kinesis, for another service: no second AWS client, no threads per call, and the same
credentials, proxies, certificates and failures. What is left open is looked up in a worker thread.
"""

import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, final

import anyio.to_thread

from shardline.adapters.credentials import CredentialSource
from shardline.adapters.endpoints import Endpoint, Endpoints, parse_endpoint
from shardline.adapters.http1 import Http1Transport
from shardline.adapters.http_settings import HttpSettings, environment_ca_bundle, make_ssl_context
from shardline.adapters.signed_http import SignedHttp
from shardline.adapters.wire_streams import AnyioStream
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


@final
@dataclass(frozen=True, slots=True)
class _Resolved:
    region: str
    endpoint: Endpoint | None
    chain: Any  # a BotocoreSession, typed so that botocore loads only where it is needed
    ssl_context: ssl.SSLContext | None


def _resolve(access: AwsAccess) -> _Resolved:
    """Ask AWS's chains for what the caller left open. Blocks."""
    endpoint = None if access.endpoint_url is None else parse_endpoint(access.endpoint_url)
    chain = None
    if endpoint is None or access.credentials is None or access.region is None:
        from shardline.adapters.botocore_session import BotocoreSession  # noqa: PLC0415 - see _Resolved.chain

        chain = BotocoreSession(
            service=SERVICE,
            session=access.session,
            profile=access.profile,
            region=access.region,
            use_fips=access.use_fips,
            use_dualstack=access.use_dualstack,
            credentials=access.credentials,
        )
    region = access.region if chain is None else chain.region
    assert region is not None, "without a chain the region was given"
    ssl_context = None
    if endpoint is None or endpoint.url.startswith("https:"):
        ca_bundle = environment_ca_bundle() if chain is None else chain.ca_bundle
        ssl_context = make_ssl_context(access.http.verify, ca_bundle)
    return _Resolved(region, endpoint, chain, ssl_context)


async def connect(access: AwsAccess) -> SignedHttp:
    """Put the adapters together.

    Raises:
        UsageError: the settings lead nowhere.
    """
    resolved = await anyio.to_thread.run_sync(_resolve, access)
    fixed = access.credentials
    return SignedHttp(
        transport=Http1Transport(access.http, resolved.ssl_context, AnyioStream.connect),
        credentials=CredentialSource(None if fixed is not None else resolved.chain, fixed),
        endpoints=Endpoints(None if resolved.endpoint is not None else resolved.chain, resolved.endpoint),
        region=resolved.region,
        service=SERVICE,
        target_prefix=TARGET_PREFIX,
        user_agent=access.user_agent,
        wall_time=access.wall_time,
    )
