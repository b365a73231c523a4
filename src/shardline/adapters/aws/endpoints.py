"""To which address does a call go?

Invariants:

- An explicit ``endpoint_url`` wins over everything, and needs no botocore.
- Otherwise botocore's rules decide, by operation and ARN; each distinct question is asked once.
- No password gets into a message, also not out of a URL that is none.
- No request waits for the rules for longer than ``limit``: they may need credentials, whose look-up hangs. That is
  a failure which may be tried again. A request that is cancelled does not wait at all.
"""

import ipaddress
import re
from collections.abc import Mapping
from typing import Final, NamedTuple, Protocol, final
from urllib.parse import urlsplit

import anyio

from shardline.adapters.blocking_calls import BlockingCalls
from shardline.core.failures import Failure, FailureKind
from shardline.errors import CredentialsError, UsageError

# The members that botocore's rules look at.
ROUTING_MEMBERS: Final = ("StreamARN", "ConsumerARN", "ResourceARN", "ChannelARN", "StreamId")
_CACHE_MAX: Final = 4_096
_LIMIT: Final = 30.0
_DEFAULT_PORTS: Final = {"http": 80, "https": 443}
_URL_TEXT: Final = re.compile(r"[!-~]+")  # what can stand in a request line: urlsplit drops tabs and line ends silently
_LOGIN: Final = re.compile(r"@|%40|//[^/?#]*:(?!\d{1,5}(?:[/?#]|$))", re.IGNORECASE)  # or a colon, and no port


class EndpointRules(Protocol):
    """Who knows the rules. Blocking."""

    def endpoint(self, operation: str, params: Mapping[str, object]) -> str: ...


@final
class Endpoint(NamedTuple):
    url: str
    host: str
    """As the Host header says it, and as it is signed."""
    path: str


def shown_url(url: object) -> str:
    """A URL that cannot be used, for the message about it; stars for one that may hold a password."""
    return "'***'" if _LOGIN.search(str(url)) else repr(url)


def parse_endpoint(url: object) -> Endpoint:
    """An endpoint from its URL.

    Raises:
        UsageError: it is no http or https URL with a host, or carries a login, a query or a fragment.
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
        raise UsageError("endpoint_url must be an address alone: no login, no query, no fragment")
    shown = f"[{host}]" if ":" in host else host
    if port is not None and port != _DEFAULT_PORTS[parts.scheme]:
        shown = f"{shown}:{port}"
    path = parts.path or "/"
    return Endpoint(f"{parts.scheme}://{shown}{path}", shown, path)


@final
class Endpoints:
    """Endpoints at hand, asked of the rules in a worker thread when new."""

    def __init__(self, rules: EndpointRules | None, fixed: Endpoint | None = None, *, limit: float = _LIMIT) -> None:
        assert (rules is None) != (fixed is None), "either rules or a fixed endpoint"
        self._rules = rules
        self._fixed = fixed
        self._known: dict[tuple[str, str | None], Endpoint] = {}
        self._asking = anyio.Lock()
        self._limit = limit
        # Not in anyio's threads: they may all be taken by callers that wait for us.
        self._questions = BlockingCalls[str]()

    def at_hand(self, operation: str, arn: str | None) -> Endpoint | None:
        """The endpoint, if it is known."""
        return self._fixed or self._known.get((operation, arn))

    async def find(self, operation: str, routing: Mapping[str, object], arn: str | None) -> Endpoint | Failure:
        """The endpoint, after asking the rules."""
        async with self._asking:  # Who asked the same meanwhile has the answer
            return self.at_hand(operation, arn) or await self._ask(operation, routing, arn)

    async def _ask(self, operation: str, routing: Mapping[str, object], arn: str | None) -> Endpoint | Failure:
        rules = self._rules
        assert rules is not None, "a fixed endpoint is always at hand"
        try:
            with anyio.fail_after(self._limit):
                url = await self._questions.ask((operation, arn), lambda: rules.endpoint(operation, routing))
            endpoint = parse_endpoint(url)
        except UsageError as error:
            return Failure(FailureKind.INVALID, "NoEndpoint", str(error), maybe_received=False)
        except CredentialsError as error:
            return Failure(FailureKind.NO_CREDENTIALS, "NoCredentials", str(error), maybe_received=False)
        except TimeoutError:
            told = f"AWS's settings gave no endpoint within {self._limit:g} s, and are still asked: pass endpoint_url="
            return Failure(FailureKind.TRANSIENT, "EndpointTimeout", told, maybe_received=False)
        if len(self._known) >= _CACHE_MAX:
            self._known.clear()
        self._known[operation, arn] = endpoint
        return endpoint
