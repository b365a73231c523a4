"""How is a service of AWS reached, once its chains have said what the caller left open?

For Kinesis and for DynamoDB: the same credentials, endpoints, certificates and signatures.
"""

import ssl
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, final

from shardline.adapters.credentials import CredentialSource
from shardline.adapters.endpoints import Endpoint, Endpoints, parse_endpoint
from shardline.adapters.http_settings import HttpSettings, environment_ca_bundle, make_ssl_context
from shardline.adapters.signed_http import SignedHttp
from shardline.model.credentials import Credentials
from shardline.ports import HttpTransport


class AwsWishes(Protocol):
    """What the caller said. ``None``: AWS's own settings say it."""

    @property
    def region(self) -> str | None: ...
    @property
    def endpoint_url(self) -> str | None: ...
    @property
    def profile(self) -> str | None: ...
    @property
    def session(self) -> Any: ...
    @property
    def credentials(self) -> Credentials | None: ...
    @property
    def use_fips(self) -> bool | None: ...
    @property
    def use_dualstack(self) -> bool | None: ...
    @property
    def http(self) -> HttpSettings: ...


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
        from shardline.adapters.botocore_session import BotocoreSession  # noqa: PLC0415 - see AwsService._chain

        chain = BotocoreSession(
            service=name,
            session=wishes.session,
            profile=wishes.profile,
            region=wishes.region,
            use_fips=wishes.use_fips,
            use_dualstack=wishes.use_dualstack,
            credentials=wishes.credentials,
        )
    region = wishes.region if chain is None else chain.region
    assert region is not None, "without a chain the region was given"
    ssl_context = None
    if endpoint is None or endpoint.url.startswith("https:"):
        ca_bundle = environment_ca_bundle() if chain is None else chain.ca_bundle
        ssl_context = make_ssl_context(wishes.http.verify, ca_bundle)
    return AwsService(name, region, ssl_context, endpoint, wishes.credentials, chain, wishes.http.read_timeout)
