"""Connects to an AWS service. Botocore looks up the settings that the caller left out.

Kinesis and DynamoDB share this code: credentials, proxies, endpoints, certificates, signatures and failures.
"""

import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, final

import anyio.to_thread

from shardline.adapters.aws.credential_provider import CredentialSource
from shardline.adapters.aws.endpoints import Endpoint, Endpoints, parse_endpoint
from shardline.adapters.aws.signed_http import SignedHttp
from shardline.adapters.http.http1_transport import Http1Transport
from shardline.adapters.http.http_settings import HttpSettings, environment_ca_bundle, make_ssl_context
from shardline.adapters.http.wire_streams import dial
from shardline.model.credentials import Credentials
from shardline.ports import HttpTransport


@dataclass(frozen=True, slots=True, kw_only=True)
class AwsSettings:
    """The settings that the caller passed. ``None`` means that the ordinary AWS configuration decides."""

    region: str | None = None
    endpoint_url: str | None = None
    profile: str | None = None
    session: Any = field(default=None, repr=False)
    credentials: Credentials | None = None
    use_fips: bool | None = None
    use_dualstack: bool | None = None
    http: HttpSettings = field(default_factory=HttpSettings)


@final
@dataclass(frozen=True, slots=True)
class AwsAccess(AwsSettings):
    """The settings for a lease store in DynamoDB.

    The timeouts are short: a worker must renew its leases within seconds, so a slow response is useless.
    """

    wall_time: Callable[[], float]
    user_agent: str = "shardline"
    http: HttpSettings = field(
        default_factory=lambda: HttpSettings(connect_timeout=3.0, read_timeout=5.0, max_connections=20), kw_only=True
    )
    before_call: Callable[[str], Awaitable[None]] | None = field(default=None, repr=False)
    """A function that is called with the operation, and awaited, before each call."""


@final
@dataclass(frozen=True, slots=True)
class AwsService:
    """An AWS service with the settings that were found for it."""

    name: str
    region: str
    ssl_context: ssl.SSLContext | None
    trust: Callable[[], ssl.SSLContext]
    """A function that makes another TLS context with the same trusted certificates, or returns the caller's own
    context. The function blocks.
    """
    _endpoint: Endpoint | None
    _credentials: Credentials | None
    _chain: Any  # a BotocoreSession; Any, so that botocore is imported only if needed
    _look_up_limit: float

    def connect(
        self,
        transport: HttpTransport,
        *,
        target_prefix: str,
        user_agent: str,
        wall_time: Callable[[], float],
        signing_name: str | None = None,
    ) -> SignedHttp:
        """Return a client that sends signed requests to the service through ``transport``.

        ``signing_name`` is the name in the signatures, if it differs from botocore's name for the service.
        """
        fixed, endpoint, limit = self._credentials, self._endpoint, self._look_up_limit
        return SignedHttp(
            transport=transport,
            credentials=CredentialSource(None if fixed is not None else self._chain, fixed, limit=limit),
            endpoints=Endpoints(None if endpoint is not None else self._chain, endpoint, limit=limit),
            region=self.region,
            service=signing_name or self.name,
            target_prefix=target_prefix,
            user_agent=user_agent,
            wall_time=wall_time,
        )


def find_service(name: str, settings: AwsSettings) -> AwsService:
    """Look up, in the AWS configuration, the settings that the caller left out. This blocks.

    Raises:
        UsageError: the settings are incomplete or invalid.
    """
    endpoint = None if settings.endpoint_url is None else parse_endpoint(settings.endpoint_url)
    chain = None
    if endpoint is None or settings.credentials is None or settings.region is None:
        from shardline.adapters.aws.botocore_session import BotocoreSession  # noqa: PLC0415 - see AwsService._chain

        chain = BotocoreSession(settings, name)
    region = settings.region if chain is None else chain.region
    assert region is not None, "without a chain, the caller passed the region"
    ca_bundle = environment_ca_bundle() if chain is None else chain.ca_bundle
    trust = partial(make_ssl_context, settings.http.verify, ca_bundle)
    ssl_context = trust() if endpoint is None or endpoint.url.startswith("https:") else None
    return AwsService(
        name, region, ssl_context, trust, endpoint, settings.credentials, chain, settings.http.read_timeout
    )


async def connect_dynamodb(access: AwsAccess) -> SignedHttp:
    """Return a signed HTTP client for DynamoDB. A worker thread looks up the settings that the caller left out.

    Raises:
        UsageError: the settings are incomplete or invalid.
    """
    service = await anyio.to_thread.run_sync(find_service, "dynamodb", access)
    return service.connect(
        Http1Transport(access.http, service.ssl_context, dial),
        target_prefix="DynamoDB_20120810",
        user_agent=access.user_agent,
        wall_time=access.wall_time,
    )


def open_cloudwatch(
    service: AwsService, http: HttpSettings, user_agent: str, wall_time: Callable[[], float]
) -> SignedHttp:
    """Return a signed HTTP client for CloudWatch. ``service`` is the result of ``find_service("cloudwatch", ...)``."""
    return service.connect(
        Http1Transport(http, service.ssl_context, dial),
        target_prefix="GraniteServiceVersion20100801",
        user_agent=user_agent,
        wall_time=wall_time,
        signing_name="monitoring",
    )
