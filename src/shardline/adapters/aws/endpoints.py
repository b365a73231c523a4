"""Finds the endpoint for each call.

Invariants:

- An explicit ``endpoint_url`` overrides everything, and needs no botocore.
- Without an ``endpoint_url``, botocore's rules decide, by operation and ARN. The endpoint for each pair of operation
  and ARN is looked up once.
- No password gets into a message, not even from an invalid URL.
- No request waits longer than ``limit`` for the result of the rules: they may need credentials, whose lookup may hang.
  A timeout is a transient failure. Cancelling a request ends its wait.
"""

import ipaddress
import re
from collections.abc import Mapping
from typing import Final, NamedTuple, Protocol, final
from urllib.parse import urlsplit

import anyio

from shardline.adapters.blocking_calls import BlockingCalls
from shardline.core.error_codes import Failure, FailureKind
from shardline.errors import CredentialsError, UsageError

# The request members that botocore's endpoint rules depend on.
ROUTING_MEMBERS: Final = ("StreamARN", "ConsumerARN", "ResourceARN", "ChannelARN", "StreamId")
_CACHE_MAX: Final = 4_096
_LIMIT: Final = 30.0
_DEFAULT_PORTS: Final = {"http": 80, "https": 443}
_URL_TEXT: Final = re.compile(r"[!-~]+")  # the characters of a request line; urlsplit silently drops tabs and line ends
# Matches an @, or a colon in the host that is not followed by a port.
_LOGIN: Final = re.compile(r"@|%40|//[^/?#]*:(?!\d{1,5}(?:[/?#]|$))", re.IGNORECASE)


class EndpointRules(Protocol):
    """Finds the endpoint of a call. All methods block."""

    def endpoint(self, operation: str, params: Mapping[str, object]) -> str: ...


@final
class Endpoint(NamedTuple):
    url: str
    host: str
    """The value of the Host header, which is signed."""
    path: str


def shown_url(url: object) -> str:
    """Return an invalid URL in the form for error messages. If the URL may contain a password, it is masked."""
    return "'***'" if _LOGIN.search(str(url)) else repr(url)


def parse_endpoint(url: object) -> Endpoint:
    """Parse an endpoint's URL.

    Raises:
        UsageError: ``url`` is not an http or https URL with a host, or contains a login, a query or a fragment.
    """
    problem = f"endpoint_url must look like https://host or http://host:port, not {shown_url(url)}"
    if not isinstance(url, str) or not _URL_TEXT.fullmatch(url.strip()):
        raise UsageError(problem)
    try:
        parts = urlsplit(url.strip())
        host, port = parts.hostname, parts.port
        if host and ":" in host:
            ipaddress.ip_address(host)
    except ValueError:
        raise UsageError(problem) from None
    if parts.scheme not in _DEFAULT_PORTS or not host or "%" in host:
        raise UsageError(problem)
    if parts.username is not None or parts.password is not None or parts.query or parts.fragment:
        raise UsageError("endpoint_url must not contain a login, a query or a fragment")
    shown = f"[{host}]" if ":" in host else host
    if port is not None and port != _DEFAULT_PORTS[parts.scheme]:
        shown = f"{shown}:{port}"
    path = parts.path or "/"
    return Endpoint(f"{parts.scheme}://{shown}{path}", shown, path)


@final
class Endpoints:
    """Caches endpoints and looks up new ones in a worker thread."""

    def __init__(self, rules: EndpointRules | None, fixed: Endpoint | None = None, *, limit: float = _LIMIT) -> None:
        assert (rules is None) != (fixed is None), "either rules or a fixed endpoint"
        self._rules = rules
        self._fixed = fixed
        self._known: dict[tuple[str, str | None], Endpoint] = {}
        self._look_up_lock = anyio.Lock()
        self._limit = limit
        # This does not use anyio's threads: all of them may be occupied by callers that wait for this endpoint.
        self._calls = BlockingCalls[str]()

    def cached(self, operation: str, arn: str | None) -> Endpoint | None:
        """Return the endpoint if it has already been looked up, or ``None`` if it has not."""
        return self._fixed or self._known.get((operation, arn))

    async def find(self, operation: str, routing: Mapping[str, object], arn: str | None) -> Endpoint | Failure:
        """Return the endpoint, after looking it up in the rules if necessary."""
        async with self._look_up_lock:  # another request may have found the endpoint while this one waited
            return self.cached(operation, arn) or await self._ask(operation, routing, arn)

    async def _ask(self, operation: str, routing: Mapping[str, object], arn: str | None) -> Endpoint | Failure:
        rules = self._rules
        assert rules is not None, "a fixed endpoint is always cached"
        try:
            with anyio.fail_after(self._limit):
                url = await self._calls.run((operation, arn), lambda: rules.endpoint(operation, routing))
            endpoint = parse_endpoint(url)
        except UsageError as error:
            return Failure(FailureKind.INVALID, "NoEndpoint", str(error), maybe_received=False)
        except CredentialsError as error:
            return Failure(FailureKind.NO_CREDENTIALS, "NoCredentials", str(error), maybe_received=False)
        except TimeoutError:
            message = f"no endpoint was found within {self._limit:g} s; the look-up continues: pass endpoint_url="
            return Failure(FailureKind.TRANSIENT, "EndpointTimeout", message, maybe_received=False)
        if len(self._known) >= _CACHE_MAX:
            self._known.clear()
        self._known[operation, arn] = endpoint
        return endpoint
