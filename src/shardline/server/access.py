"""Decides from the headers alone whether a request may be served.

The server has no users, and by default it accepts every signature. It must therefore protect itself against web pages
in the browser of the person who runs it, and against other users of a shared machine:

- **Another web page** can send requests to this server without a CORS preflight, although it cannot read the answers,
  as long as the requests look like those of an HTML form: any path, a few content types, and no custom header. So a
  control request with a body must be ``application/json``, and no control request may come from another origin. The API
  needs no such rule: a page cannot send ``X-Amz-Target`` without a preflight, and the server never grants a preflight.
- **DNS rebinding** makes this server look like the attacker's own: the attacker changes the DNS name of the page to
  resolve to 127.0.0.1, and every request is then same-origin. The attack needs a name, and the name is in ``Host``. So
  ``Host`` must be an IP address, ``localhost``, a name under it (``.localhost`` is reserved: public DNS never has it),
  or a name that the user allowed. The same holds for the API.
- **Other users of the machine** can connect to its loopback interface. A token keeps them out: a control request must
  carry it as ``Authorization: Bearer``. For the API, the token is the secret key that requests are signed with
  (``signatures``), so it is never transmitted. The health path needs no token.

Invariants:

- A request for any path is refused if its ``Host`` is missing, malformed or not allowed.
- Every control request sent by a page from another origin is refused.
- Tokens are compared in constant time. No refusal and no ``repr`` shows a token.
- A host that has already been allowed costs one lookup.
"""

import hmac
import re
from collections.abc import Iterable, Mapping
from ipaddress import AddressValueError, IPv4Address, IPv6Address
from typing import Final, final

from shardline.errors import UsageError
from shardline.server.model.refusals import Refused

_AUTHORITY: Final = re.compile(r"(\[[0-9a-f:.]+\]|[^\[\]:]+)(?::([0-9]{0,5}))?")
_NAME: Final = re.compile(r"[a-z0-9_-]{1,63}(\.[a-z0-9_-]{1,63})*")
_NAME_MAX: Final = 253
_PORT_MAX: Final = 65_535
_TOKEN: Final = re.compile(r"[!-~]{16,256}")
_HOSTS_CACHED: Final = 100
_SHOWN_MAX: Final = 100
_OWN_SITE: Final = frozenset({"same-origin", "none"})  # none: the user typed the address, or opened a bookmark


@final
class Access:
    """Decides from the headers of a request whether it may be served.

    ``allowed`` lists the names that ``Host`` may have besides addresses and ``localhost``. ``*.NAME`` allows every name
    under NAME.

    Raises:
        UsageError: a name or the token is invalid.
    """

    def __init__(self, allowed: Iterable[object] = (), *, token: object = None) -> None:
        names = [check_allowed_host(name) for name in allowed]
        self._names = frozenset({"localhost", *(name for name in names if not name.startswith("*"))})
        self._suffixes = (".localhost", *(name[1:] for name in names if name.startswith("*")))
        self._token = None if token is None else check_token(token).encode()
        self._allowed_hosts: set[str] = set()  # values of Host that have already been checked and allowed

    def __repr__(self) -> str:
        return f"<Access by {', '.join(self.names)}{'' if self._token is None else ', with a token'}>"

    @property
    def names(self) -> list[str]:
        """The names that ``Host`` may have, some with a wildcard. The server's certificate also covers these names."""
        return sorted([*self._names, *(f"*{suffix}" for suffix in self._suffixes)])

    def judge_host(self, host: str | None) -> Refused | None:
        """Return the refusal of a request for this host, or ``None`` if the host is allowed.

        ``host`` is the ``Host`` header, the ``:authority`` of HTTP/2, or the authority of a target that is a URL.
        """
        if host in self._allowed_hosts:
            return None
        if host is None:
            return _denied("the request has no Host header", 400)
        name = host_of(host)
        if name is None:
            return _denied(f"the Host header is malformed: {_shown(host)}", 400)
        if not _is_address(name) and name not in self._names and not name.endswith(self._suffixes):
            return _denied(
                f"the host name {_shown(name)} is not allowed: start the server with --allow-host {name}, or with "
                f"LocalKinesis(allow_host={name!r}), or use an IP address or localhost"
            )
        if len(self._allowed_hosts) < _HOSTS_CACHED:
            self._allowed_hosts.add(host)
        return None

    def judge_control(self, headers: Mapping[str, str], *, has_body: bool, is_health: bool = False) -> Refused | None:
        """Return the refusal of a control request whose host has been checked, or ``None`` if it may be served."""
        origin, site = headers.get("origin"), headers.get("sec-fetch-site")
        if origin is not None and not _is_same_origin(origin, headers.get("host")):
            return _denied(f"a control request must not come from a web page of another origin: {_shown(origin)}")
        if site is not None and site not in _OWN_SITE:
            return _denied(f"a control request must not come from a web page of another origin: {_shown(site)}")
        content_type = headers.get("content-type", "")
        if has_body and content_type.partition(";")[0].strip().lower() != "application/json":
            wanted = "a control request with a body needs the header Content-Type: application/json"
            return _denied(f"{wanted}, not {_shown(content_type)}" if content_type else wanted, 415)
        if self._token is not None and not is_health and not self._has_token(headers.get("authorization", "")):
            return _denied("this server needs its token: send the header Authorization: Bearer TOKEN")
        return None

    def _has_token(self, authorization: str) -> bool:
        scheme, _, given = authorization.partition(" ")
        is_right = hmac.compare_digest(given.strip().encode(errors="surrogateescape"), self._token or b"")
        return is_right and scheme.lower() == "bearer"


def host_of(authority: str) -> str | None:
    """Return the host of ``host:port`` in lower case, or ``None`` if it is neither a name nor an address."""
    found = _AUTHORITY.fullmatch(authority.lower())
    if found is None or int(found[2] or 0) > _PORT_MAX:
        return None
    host = found[1].removesuffix(".")
    is_name = len(host) <= _NAME_MAX and _NAME.fullmatch(host) is not None
    return host if is_name or _is_address(host) else None


def check_allowed_host(name: object) -> str:
    """Return a name to allow in ``Host``, in lower case.

    The name is a host name such as ``kinesis``, or a wildcard such as ``*.example.com`` for every name under that one.

    Raises:
        UsageError: ``name`` is neither a host name nor a wildcard.
    """
    plain = name.lower().removesuffix(".") if isinstance(name, str) else ""
    if not _NAME.fullmatch(plain.removeprefix("*.")) or len(plain) > _NAME_MAX:
        allowed = "a name such as 'kinesis' or '*.example.com', without scheme and port"
        raise UsageError(f"an allowed host must be {allowed}, not {name!r}")
    return plain


def check_token(token: object) -> str:
    """Return the token if a header can carry it and it is long enough to be hard to guess.

    Raises:
        UsageError: the token is too short, too long, or has characters that are not allowed. The message does not show
            the token.
    """
    if not isinstance(token, str) or not _TOKEN.fullmatch(token):
        raise UsageError("a token must be a str of 16 to 256 visible ASCII characters (no spaces); this one is not")
    return token


def _is_same_origin(origin: str, host: str | None) -> bool:
    """Return whether a page of the same host sent the request.

    The schemes are not compared, because a proxy may have terminated TLS. The origin ``null`` (a sandboxed frame, a
    local file) is never the same origin: any page can have it.
    """
    scheme, _, authority = origin.lower().partition("://")
    return scheme in {"http", "https"} and host is not None and authority == host.lower()


def _is_address(host: str) -> bool:
    """Return whether the host is an IPv4 address, or an IPv6 address in brackets."""
    try:
        IPv6Address(host[1:-1]) if host.startswith("[") else IPv4Address(host)
    except AddressValueError:
        return False
    return True


def _denied(message: str, status: int = 403) -> Refused:
    return Refused("AccessDeniedException", message, status)


def _shown(text: str) -> str:
    """Quote a text for a message: control characters are escaped, and a long text is cut."""
    return repr(text if len(text) <= _SHOWN_MAX else f"{text[:_SHOWN_MAX]}...")
