"""The settings of HTTP connections: timeouts, certificates and proxies.

Invariants:

- Certificates are verified unless the caller passes ``verify=False``.
- An explicit proxy overrides the proxy in the environment. ``NO_PROXY`` in the environment is honoured.
- A proxy's password appears in no repr.
"""

import os
import ssl
from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, final
from urllib.parse import unquote, urlsplit
from urllib.request import getproxies, proxy_bypass

from shardline.errors import UsageError

SLOWEST_ANSWER: Final = 16 * 1024
"""Minimum speed of a response, in bytes per second.

A response must be complete within ``read_timeout`` seconds after its request was sent, plus one second for each
``SLOWEST_ANSWER`` bytes. So a response that trickles in is soon abandoned, but a page of 10 MiB can still arrive over a
slow line. Event streams have no such limit: an event stream fails only if a pause is longer than ``read_timeout``, or
than the caller's own timeout.
"""

# The message does not quote the URL, which may contain a password.
_NO_PROXY: Final = "a proxy must look like http://host:port or http://user:password@host:port"


@final
@dataclass(frozen=True, slots=True)
class HttpSettings:
    connect_timeout: float = 5.0
    read_timeout: float = 30.0
    max_connections: int = 50
    idle_timeout: float = 15.0
    """Connections that have been idle for longer than this many seconds are closed, before the service can close them
    during a request."""
    proxies: Mapping[str, str] | None = field(default=None, repr=False)
    verify: bool | str | ssl.SSLContext = True
    http2: bool = False

    def __post_init__(self) -> None:
        for name in ("connect_timeout", "read_timeout", "idle_timeout"):
            value = getattr(self, name)
            if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 < value <= 3600:  # noqa: PLR2004
                raise UsageError(f"{name} must be a number of seconds above 0 and up to 3600, not {value!r}")
        connections = self.max_connections
        if not isinstance(connections, int) or isinstance(connections, bool) or not 1 <= connections <= 10_000:  # noqa: PLR2004
            raise UsageError(f"max_connections must be a whole number from 1 to 10000, not {connections!r}")
        if not isinstance(self.verify, (bool, str, ssl.SSLContext)):
            raise UsageError(
                f"verify must be True, False, the path of a CA file or an ssl.SSLContext, not {self.verify!r}"
            )
        if self.proxies is not None and not isinstance(self.proxies, Mapping):
            raise UsageError("proxies must map 'http' and 'https' to proxy URLs")
        for scheme, proxy in (self.proxies or {}).items():
            if scheme not in {"http", "https"} or not isinstance(proxy, str):
                raise UsageError("proxies must map 'http' and 'https' to proxy URLs")
            parse_proxy(proxy)


@final
@dataclass(frozen=True, slots=True)
class Proxy:
    """The URL of a proxy and the login for it."""

    url: str
    username: str | None = None
    password: str | None = field(default=None, repr=False)

    @property
    def authorization(self) -> str:
        """The value of the Proxy-Authorization header for this proxy."""
        login = f"{self.username or ''}:{self.password or ''}".encode()
        return f"Basic {b64encode(login).decode()}"


def parse_proxy(text: str) -> Proxy:
    """Parse a proxy's URL and separate the login from it.

    Raises:
        UsageError: the text is not an http or https URL with a host.
    """
    try:
        parts = urlsplit(text if "://" in text else f"http://{text}")
        host, port = parts.hostname, parts.port
    except ValueError:
        raise UsageError(_NO_PROXY) from None
    if parts.scheme not in {"http", "https"} or not host or not host.isascii():
        raise UsageError(_NO_PROXY)
    shown_host = f"[{host}]" if ":" in host else host
    return Proxy(
        url=f"{parts.scheme}://{shown_host}" + (f":{port}" if port is not None else ""),
        username=unquote(parts.username) if parts.username else None,
        password=unquote(parts.password) if parts.password else None,
    )


def proxy_for(url: str, proxies: Mapping[str, str] | None) -> Proxy | None:
    """Return the proxy for ``url``: the proxy that the caller set, or the one that the environment names."""
    parts = urlsplit(url)
    if proxies is not None:
        found = proxies.get(parts.scheme)
    elif proxy_bypass(parts.hostname or "") or proxy_bypass(parts.netloc):  # NO_PROXY may name a port
        found = None
    else:
        environment = getproxies()
        found = environment.get(parts.scheme) or environment.get("all")
    return parse_proxy(found) if found else None


def environment_ca_bundle() -> str | None:
    """Return the CA file that the environment names, in the same variables that botocore reads."""
    return os.environ.get("AWS_CA_BUNDLE") or os.environ.get("REQUESTS_CA_BUNDLE") or None


def make_ssl_context(verify: bool | str | ssl.SSLContext, ca_bundle: str | None) -> ssl.SSLContext:
    """Return the TLS context for ``verify``. This reads files, so call it in a thread.

    Raises:
        UsageError: the CA file cannot be read.
    """
    if isinstance(verify, ssl.SSLContext):
        return verify
    path = verify if isinstance(verify, str) else ca_bundle
    if verify is False:
        context = ssl.create_default_context()
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        return context
    try:
        return ssl.create_default_context(cafile=path) if path else _default_trust()
    except (OSError, ssl.SSLError) as error:
        raise UsageError(f"the CA file {path!r} cannot be read: {error}") from None


def _default_trust() -> ssl.SSLContext:
    """Return a context that trusts the system's certificates, and botocore's bundle: a slim container may have no
    certificates.
    """
    from botocore.httpsession import DEFAULT_CA_BUNDLE  # noqa: PLC0415 - botocore is loaded only if needed

    context = ssl.create_default_context()
    context.load_verify_locations(cafile=DEFAULT_CA_BUNDLE)
    return context
