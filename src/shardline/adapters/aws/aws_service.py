"""How is a service of AWS reached, once its chains have said what the caller left open?

For Kinesis and for DynamoDB: the same credentials, proxies, endpoints, certificates, signatures and failures.
"""

import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
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
class AwsWishes:
    """What the caller said. ``None``: AWS's own settings say it."""

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
class AwsAccess(AwsWishes):
    """How to reach DynamoDB for leases: an answer that takes many seconds is of no use to who must renew in ten."""

    wall_time: Callable[[], float]
    user_agent: str = "shardline"
    http: HttpSettings = field(
        default_factory=lambda: HttpSettings(connect_timeout=3.0, read_timeout=5.0, max_connections=20), kw_only=True
    )


@final
@dataclass(frozen=True, slots=True)
class AwsService:
    """A service of AWS, and how it is reached."""

    name: str
    region: str
    ssl_context: ssl.SSLContext | None
    _endpoint: Endpoint | None
    _credentials: Credentials | None
    _chain: Any  # a BotocoreSession, typed so that botocore loads only where it is needed
    _look_up_limit: float

    def connect(
        self, transport: HttpTransport, *, target_prefix: str, user_agent: str, wall_time: Callable[[], float]
    ) -> SignedHttp:
        """Put the adapters together."""
        fixed, endpoint, limit = self._credentials, self._endpoint, self._look_up_limit
        return SignedHttp(
            transport=transport,
            credentials=CredentialSource(None if fixed is not None else self._chain, fixed, limit=limit),
            endpoints=Endpoints(None if endpoint is not None else self._chain, endpoint, limit=limit),
            region=self.region,
            service=self.name,
            target_prefix=target_prefix,
            user_agent=user_agent,
            wall_time=wall_time,
        )


def find_service(name: str, wishes: AwsWishes) -> AwsService:
    """Ask AWS's chains for what the caller left open. Blocks.

    Raises:
        UsageError: the settings lead nowhere.
    """
    endpoint = None if wishes.endpoint_url is None else parse_endpoint(wishes.endpoint_url)
    chain = None
    if endpoint is None or wishes.credentials is None or wishes.region is None:
        from shardline.adapters.aws.botocore_session import BotocoreSession  # noqa: PLC0415 - see AwsService._chain

        chain = BotocoreSession(wishes, name)
    region = wishes.region if chain is None else chain.region
    assert region is not None, "without a chain the region was given"
    ssl_context = None
    if endpoint is None or endpoint.url.startswith("https:"):
        ca_bundle = environment_ca_bundle() if chain is None else chain.ca_bundle
        ssl_context = make_ssl_context(wishes.http.verify, ca_bundle)
    return AwsService(name, region, ssl_context, endpoint, wishes.credentials, chain, wishes.http.read_timeout)


async def connect_dynamodb(access: AwsAccess) -> SignedHttp:
    """The same signed HTTP as for Kinesis, for DynamoDB. A worker thread looks up what the caller left open.

    Raises:
        UsageError: the settings lead nowhere.
    """
    service = await anyio.to_thread.run_sync(find_service, "dynamodb", access)
    return service.connect(
        Http1Transport(access.http, service.ssl_context, dial),
        target_prefix="DynamoDB_20120810",
        user_agent=access.user_agent,
        wall_time=access.wall_time,
    )
