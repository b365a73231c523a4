"""Checks the signatures of requests, as an AWS server does.

The module checks AWS Signature Version 4, from the Authorization header or from the query string of a presigned URL. It
shares no code with the signer (``codec.sigv4``), so that it can test the signer.

The types, statuses and texts of refusals, and the order of the checks, are those of AWS's JSON services: every refusal
has status 400. The author of kinesalite and dynalite recorded them from AWS: the refusals of incomplete signatures are
in kinesalite's test/connection.js, and the later checks are in the comments of dynalite's index.js. The text
``'Host' or ':authority' must be ...`` is from aws-sdk-php issue 2469.

Invariants:

- A request passes only if a known key signed its method, path, query, headers and body, for this region and service,
  and its date is within the tolerance of the server's time or of the machine's time. The machine's time counts because
  a test may move the server's clock while clients still sign by their own clocks. A presigned request passes until
  it expires (``X-Amz-Expires``).
- Host, the date, and every ``x-amz-`` header of the request must be signed.
- Signatures are compared in constant time. No refusal shows a secret or the correct signature.
"""

import hashlib
import hmac
import re
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Final, NamedTuple, final
from urllib.parse import quote, unquote

from shardline.errors import UsageError
from shardline.server.model.refusals import Refused

_ALGORITHM: Final = "AWS4-HMAC-SHA256"
_FORMAT: Final = "%Y%m%dT%H%M%SZ"
_MISMATCH: Final = (
    "The request signature we calculated does not match the signature you provided. Check your AWS Secret Access Key "
    "and signing method. Consult the service documentation for details."
)
_UNKNOWN: Final = "The security token included in the request is invalid."
_ACCESS_KEY: Final = re.compile(r"Credential=([^/,\s%]+)(?:/|%2F)", re.IGNORECASE)
_KEYS_KEPT: Final = 256
_IN_HEADER: Final = ("Credential", "Signature", "SignedHeaders")
_IN_QUERY: Final = ("X-Amz-Algorithm", "X-Amz-Credential", "X-Amz-Signature", "X-Amz-SignedHeaders", "X-Amz-Date")
_SERVICE: Final = "kinesis"
_TOLERANCE: Final = 300.0  # how many seconds the date of a request may be off
_EXPIRES: Final = re.compile(r"[0-9]{1,6}")
_EXPIRES_MOST: Final = 604_800  # [API] signing: a week


def access_key_of(headers: Mapping[str, str], path: str = "/") -> str | None:
    """Return the access key that a request claims to be signed with, in its header or its query."""
    found = _ACCESS_KEY.search(headers.get("authorization") or path)
    return None if found is None else found[1]


@final
class _Claim(NamedTuple):
    """The data about the signature that a request carries in its Authorization header or its query."""

    algorithm: str
    credential: str
    signed: list[str]
    """The names of the signed headers, in lower case."""
    signature: str
    date: str
    token: str | None
    expires: str | None = None

    @property
    def scope(self) -> list[str]:
        """The access key, the day, the region, the service and the terminator."""
        return self.credential.rstrip("/").split("/")


@final
class Signatures:
    """Checks signatures against known keys: ``{access_key: (secret, session_token or None)}``.

    ``rotate`` replaces the keys.

    Raises:
        UsageError: ``credentials`` is empty.
    """

    def __init__(self, credentials: Mapping[str, tuple[str, str | None]], region: str) -> None:
        if not credentials:
            raise UsageError("signatures cannot be checked without a key: credentials is empty")
        self._credentials = dict(credentials)
        self._region = region
        self._keys: dict[tuple[str, str], bytes] = {}

    def __repr__(self) -> str:
        return f"<Signatures of {len(self._credentials)} keys, {self._region}, {_SERVICE}>"

    def rotate(self, credentials: Mapping[str, tuple[str, str | None]]) -> None:
        """Replace all known keys with these."""
        self._credentials = dict(credentials)
        self._keys.clear()

    def check(
        self,
        method: str,
        path: str,
        headers: Mapping[str, str],
        body: bytes,
        now: float,
        *,
        machine_now: float | None = None,
    ) -> Refused | None:
        """Return the refusal of a request whose signature is missing or wrong, or ``None`` if the signature is right.

        ``now`` is the server's time. ``machine_now`` is the machine's time, if that time is also accepted.
        """
        try:
            self._check(method, path, headers, body, (now,) if machine_now is None else (now, machine_now))
        except Refused as refusal:
            return refusal
        return None

    def _check(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes, moments: tuple[float, ...]
    ) -> None:
        lower = {name.lower(): value for name, value in headers.items()}
        claim = _read_claim(lower, path.partition("?")[2])
        self._check_time(claim, moments)
        _check_signed(claim, lower)
        if claim.algorithm != _ALGORITHM:
            raise _incomplete(f"Unsupported AWS 'algorithm': '{claim.algorithm}' (only {_ALGORITHM} for now). ")
        self._check_scope(claim)
        known = self._credentials.get(claim.scope[0])
        if known is None:
            raise Refused("UnrecognizedClientException", _UNKNOWN)
        secret, token = known
        request = _canonical_request(method, path, claim.signed, lower, body)
        text = f"{_ALGORITHM}\n{claim.date}\n{'/'.join(claim.scope[1:])}\n{hashlib.sha256(request).hexdigest()}"
        right = hmac.new(self._key(claim, secret), text.encode(), "sha256").hexdigest()
        if not hmac.compare_digest(right.encode(), claim.signature.encode(errors="surrogateescape")):
            raise _wrong(_MISMATCH)
        if (claim.token or "") != (token or ""):
            raise Refused("UnrecognizedClientException", _UNKNOWN)

    def _check_time(self, claim: _Claim, moments: tuple[float, ...]) -> None:
        signed_at = datetime.strptime(claim.date, _FORMAT).replace(tzinfo=UTC).timestamp()
        life = _TOLERANCE if claim.expires is None else float(claim.expires)
        if any(moment - life <= signed_at <= moment + _TOLERANCE for moment in moments):
            return
        now, date = moments[0], claim.date
        if signed_at < now - life:
            bound, minutes = _written(now - life), f"{life / 60:g} min."
            raise _wrong(f"Signature expired: {date} is now earlier than {bound} ({_written(now)} - {minutes})")
        bound, minutes = _written(now + _TOLERANCE), f"{_TOLERANCE / 60:g} min."
        raise _wrong(f"Signature not yet current: {date} is still later than {bound} ({_written(now)} + {minutes})")

    def _check_scope(self, claim: _Claim) -> None:
        if len(claim.scope) != 5:  # noqa: PLR2004 - key, day, region, service, terminator
            wanted = "Credential must have exactly 5 slash-delimited elements, e.g. keyid/date/region/service/term"
            raise _incomplete(f"{wanted}, got '{claim.credential}'")
        _, day, region, service, terminator = claim.scope
        problems = (
            (region != self._region, f"Credential should be scoped to a valid region, not '{region}'. "),
            (service != _SERVICE, f"Credential should be scoped to correct service: '{_SERVICE}'. "),
            (
                terminator != "aws4_request",
                f"Credential should be scoped with a valid terminator: 'aws4_request', not '{terminator}'. ",
            ),
            (
                day != claim.date[:8],
                (
                    "Date in Credential scope does not match YYYYMMDD from ISO-8601 version of date from HTTP: "
                    f"'{day}' != '{claim.date[:8]}', from '{claim.date}'."
                ),
            ),
        )
        if any(is_wrong for is_wrong, _ in problems):
            raise _wrong("".join(text for is_wrong, text in problems if is_wrong))

    def _key(self, claim: _Claim, secret: str) -> bytes:
        access_key, day, *rest = claim.scope
        key = self._keys.get((access_key, day))
        if key is None:
            key = f"AWS4{secret}".encode()
            for part in (day, *rest):
                key = hmac.new(key, part.encode(), "sha256").digest()
            if len(self._keys) >= _KEYS_KEPT:
                self._keys.clear()
            self._keys[access_key, day] = key
        return key


def _read_claim(headers: Mapping[str, str], query: str) -> _Claim:
    """Return the request's claim, complete and with its date in the format of ``X-Amz-Date``.

    Raises:
        Refused: the request has no signature, or a part of it is missing.
    """
    header, parameters = headers.get("authorization"), dict(reversed(_pairs(query)))
    is_presigned = "X-Amz-Algorithm" in parameters
    if header and is_presigned:
        raise _wrong("Found both 'X-Amz-Algorithm' as a query-string param and 'Authorization' as HTTP header.")
    if header:
        return _read_header(header, headers)
    if is_presigned:
        return _read_query(parameters)
    raise Refused("MissingAuthenticationTokenException", "Missing Authentication Token")


def _read_header(header: str, headers: Mapping[str, str]) -> _Claim:
    algorithm, *parts = re.split(r"[, ]", header.strip())
    members = {name: value for name, _, value in (part.partition("=") for part in parts) if value}
    missing = [f"Authorization header requires '{name}' parameter. " for name in _IN_HEADER if name not in members]
    date = headers.get("x-amz-date") or headers.get("date")
    if not date:
        missing.append("Authorization header requires existence of either a 'X-Amz-Date' or a 'Date' header. ")
    if missing or not date:
        raise _incomplete(f"{''.join(missing)}Authorization={header}")
    signed = members["SignedHeaders"].lower().split(";")
    is_rfc = not headers.get("x-amz-date")
    token = headers.get("x-amz-security-token")
    return _Claim(
        algorithm, members["Credential"], signed, members["Signature"], _read_date(date, is_rfc=is_rfc), token
    )


def _read_query(parameters: Mapping[str, str]) -> _Claim:
    missing = [f"AWS query-string parameters must include '{name}'. " for name in _IN_QUERY if not parameters.get(name)]
    if missing:
        raise _incomplete(f"{''.join(missing)}Re-examine the query-string parameters.")
    algorithm, credential, signature, signed, date = (parameters[name] for name in _IN_QUERY)
    expires = parameters.get("X-Amz-Expires")
    if expires is not None and not (_EXPIRES.fullmatch(expires) and 1 <= int(expires) <= _EXPIRES_MOST):
        raise _incomplete(f"'X-Amz-Expires' must be a number of seconds from 1 to {_EXPIRES_MOST}, not '{expires}'.")
    token = parameters.get("X-Amz-Security-Token")
    return _Claim(algorithm, credential, signed.lower().split(";"), signature, _read_date(date), token, expires)


def _read_date(text: str, *, is_rfc: bool = False) -> str:
    """Return the date of the signature in the format of ``X-Amz-Date``. A ``Date`` header may have either format."""
    with suppress(ValueError):
        datetime.strptime(text, _FORMAT)  # noqa: DTZ007 - only checks the format
        return text
    with suppress(ValueError, OverflowError):
        if is_rfc:
            return parsedate_to_datetime(text).astimezone(UTC).strftime(_FORMAT)
    raise _incomplete(
        f"Date must be in ISO-8601 'basic format'. Got '{text}'. See http://en.wikipedia.org/wiki/ISO_8601"
    )


def _check_signed(claim: _Claim, headers: Mapping[str, str]) -> None:
    """Check that all headers that must be signed are signed.

    A presigned request needs no signed date header: its date is in the query, and the whole query is signed.
    """
    if "host" not in claim.signed:
        raise _wrong("'Host' or ':authority' must be a 'SignedHeader' in the AWS Authorization.")
    required = {name for name in headers if name.startswith("x-amz-")}
    if headers.get("authorization") and not headers.get("x-amz-date"):
        required.add("date")
    unsigned = sorted(required - set(claim.signed))
    if unsigned:
        raise _wrong(f"'{unsigned[0]}' must be a 'SignedHeader' in the AWS Authorization.")
    if claim.signed != sorted(claim.signed):
        raise _wrong("SignedHeaders must be sorted.")


def _canonical_request(method: str, path: str, signed: list[str], headers: Mapping[str, str], body: bytes) -> bytes:
    where, _, query = path.partition("?")
    lines = "".join(f"{name}:{' '.join(headers.get(name, '').split())}\n" for name in signed)
    payload = hashlib.sha256(body).hexdigest()
    request = f"{method}\n{_canonical_path(where)}\n{_canonical_query(query)}\n{lines}\n{';'.join(signed)}\n{payload}"
    return request.encode(errors="surrogateescape")


def _canonical_path(path: str) -> str:
    kept: list[str] = []
    for part in path.split("/"):
        if part == "..":
            del kept[-1:]
        elif part not in {"", "."}:
            kept.append(part)
    end = "/" if kept and path.endswith("/") else ""
    return quote(f"/{'/'.join(kept)}{end}", safe="/~")


def _canonical_query(query: str) -> str:
    """Return all parameters except the signature itself, sorted and escaped in the canonical way."""
    pairs = [(_escaped(name), _escaped(value)) for name, value in _pairs(query) if name != "X-Amz-Signature"]
    return "&".join(f"{name}={value}" for name, value in sorted(pairs))


def _pairs(query: str) -> list[tuple[str, str]]:
    """Return the parameters of a query. ``+`` means a plus sign: AWS's clients write a space as ``%20``."""
    split = [part.partition("=") for part in query.split("&") if part]
    return [
        (unquote(name, errors="surrogateescape"), unquote(value, errors="surrogateescape")) for name, _, value in split
    ]


def _escaped(text: str) -> str:
    return quote(text, safe="~", errors="surrogateescape")


def _written(when: float) -> str:
    return datetime.fromtimestamp(int(when), UTC).strftime(_FORMAT)


def _incomplete(message: str) -> Refused:
    return Refused("IncompleteSignatureException", _sendable(message))


def _wrong(message: str) -> Refused:
    return Refused("InvalidSignatureException", _sendable(message))


def _sendable(message: str) -> str:
    """Escape the parts of a message that cannot be encoded: it may quote bytes of the request that are not text."""
    return message.encode(errors="backslashreplace").decode()
