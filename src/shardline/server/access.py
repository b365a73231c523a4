"""May this request be served, going by its headers alone?

The server has no users, and believes every signature unless told otherwise. So the browser of the person who runs it
must not give a web page access to it, and on a shared machine other users must be kept out:

- **Another web page** can send requests here without asking, and without reading the answer, as long as they look like
  those of a form: any path, a few content types, no header of its own. So a control request with a body must be
  ``application/json``, and no control request may come from another origin. The API needs no such rule: a page cannot
  send ``X-Amz-Target`` without a CORS preflight, and a preflight is never granted.
- **DNS rebinding** makes this server look like the attacker's own: the page's name is changed to resolve to 127.0.0.1,
  and every request is then same-origin. That needs a name, and the name is in ``Host``. So ``Host`` must be an IP
  address, ``localhost``, a name under it (``.localhost`` is reserved, no public DNS has it), or a name that the user
  allowed. This holds for the API too.
- **Other users of the machine** can connect to its loopback interface. A token keeps them out: a control request must
  carry it as ``Authorization: Bearer``. For the API it is the secret key that requests are signed with
  (``signatures``), so that it never travels. The health path answers without it.

Invariants:

- A request with no ``Host``, or with one that is malformed or not allowed, is refused, for every path.
- A control request that a page of another origin caused is refused, whatever it asks for.
- Tokens are compared in constant time, and shown nowhere: in no refusal and no ``repr``.
- A host that was allowed before costs one lookup.
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
_HOSTS_KEPT: Final = 100
_SHOWN_MAX: Final = 100
_OWN_SITE: Final = frozenset({"same-origin", "none"})  # none: the user typed the address, or opened a bookmark


@final
class Access:
    """Judges the headers of requests.

    ``allowed`` are names that ``Host`` may have besides addresses and ``localhost``; ``*.NAME`` allows all under it.

    Raises:
        UsageError: a name or the token is invalid.
    """

    def __init__(self, allowed: Iterable[object] = (), *, token: object = None) -> None:
        names = [check_allowed_host(name) for name in allowed]
        self._names = frozenset({"localhost", *(name for name in names if not name.startswith("*"))})
        self._suffixes = (".localhost", *(name[1:] for name in names if name.startswith("*")))
        self._token = None if token is None else check_token(token).encode()
        self._served: set[str] = set()

    def __repr__(self) -> str:
        return f"<Access by {', '.join(self.names)}{'' if self._token is None else ', with a token'}>"

    @property
    def names(self) -> list[str]:
        """The names that ``Host`` may have, some with a wildcard: a certificate for this server has them too."""
        return sorted([*self._names, *(f"*{suffix}" for suffix in self._suffixes)])

    def judge_host(self, host: str | None) -> Refused | None:
        """Why a request for this host is refused, ``None`` if it is not.

        ``host`` is the ``Host`` header, the ``:authority`` of HTTP/2, or the authority of a target that is a URL.
        """
        if host in self._served:
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
        if len(self._served) < _HOSTS_KEPT:
            self._served.add(host)
        return None

    def judge_control(self, headers: Mapping[str, str], *, has_body: bool, is_health: bool = False) -> Refused | None:
        """Why a control request for an allowed host is refused, ``None`` if it is not."""
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
    """The host of ``host:port``, in lower case; ``None`` if it is neither a name nor an address."""
    found = _AUTHORITY.fullmatch(authority.lower())
    if found is None or int(found[2] or 0) > _PORT_MAX:
        return None
    host = found[1].removesuffix(".")
    is_name = len(host) <= _NAME_MAX and _NAME.fullmatch(host) is not None
    return host if is_name or _is_address(host) else None


def check_allowed_host(name: object) -> str:
    """A name that ``Host`` may have, in lower case: ``kinesis``, or ``*.example.com`` for every name under that one.

    Raises:
        UsageError: it is neither.
    """
    plain = name.lower().removesuffix(".") if isinstance(name, str) else ""
    if not _NAME.fullmatch(plain.removeprefix("*.")) or len(plain) > _NAME_MAX:
        allowed = "a name such as 'kinesis' or '*.example.com', without scheme and port"
        raise UsageError(f"an allowed host must be {allowed}, not {name!r}")
    return plain


def check_token(token: object) -> str:
    """A token that a header can carry, and that takes long to guess. No message shows it.

    Raises:
        UsageError: it is too short, too long, or has other characters.
    """
    if not isinstance(token, str) or not _TOKEN.fullmatch(token):
        raise UsageError("a token must be a str of 16 to 256 visible ASCII characters (no spaces); this one is not")
    return token


def _is_same_origin(origin: str, host: str | None) -> bool:
    """Whether a page at the host itself sent it. The scheme is not compared: a proxy may have ended TLS.

    A page without an origin (a sandboxed frame, a file) has ``null``: it could be anyone's.
    """
    scheme, _, authority = origin.lower().partition("://")
    return scheme in {"http", "https"} and host is not None and authority == host.lower()


def _is_address(host: str) -> bool:
    """An IPv4 address, or an IPv6 address in brackets."""
    try:
        IPv6Address(host[1:-1]) if host.startswith("[") else IPv4Address(host)
    except AddressValueError:
        return False
    return True


def _denied(message: str, status: int = 403) -> Refused:
    return Refused("AccessDeniedException", message, status)


def _shown(text: str) -> str:
    """Quoted, with escapes for all that is no text, and not too long."""
    return repr(text if len(text) <= _SHOWN_MAX else f"{text[:_SHOWN_MAX]}...")
