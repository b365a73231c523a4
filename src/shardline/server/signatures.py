"""Did the caller prove who it is?

AWS Signature Version 4, as a server checks it: from the headers that the request names as signed. It shares no code
with the signer (``codec.sigv4``), whose judge it is.

The types and statuses are AWS's for JSON services: every refusal is a 400, InvalidSignatureException for what does not
match or is out of time, UnrecognizedClientException for a key or token that nobody has.

Invariants:

- SC1: a request passes only if its signature is that of a known key over this method, path, body and these headers, in
  this region and service, and its date is within the tolerance of ``now``.
- SC2: host, the date, and every ``x-amz-`` header that came must be among the signed ones.
- SC3: signatures are compared in constant time; no refusal shows a secret or the right signature.
"""

import hashlib
import hmac
import re
from collections.abc import Collection, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Final, NamedTuple, final
from urllib.parse import quote

from shardline.errors import UsageError
from shardline.server.model.refusals import Refused

_ALGORITHM: Final = "AWS4-HMAC-SHA256"
_FORMAT: Final = "%Y%m%dT%H%M%SZ"
_MISMATCH: Final = (
    "The request signature we calculated does not match the signature you provided. Check your AWS Secret Access Key "
    "and signing method. Consult the service documentation for details."
)
_UNKNOWN: Final = "The security token included in the request is invalid."
_ACCESS_KEY: Final = re.compile(r"Credential=([^/,\s]+)/")
_KEYS_KEPT: Final = 256


def access_key_of(headers: Mapping[str, str]) -> str | None:
    """The access key that a request claims to be signed with."""
    found = _ACCESS_KEY.search(headers.get("authorization", ""))
    return None if found is None else found[1]


@final
class _Claim(NamedTuple):
    """What an Authorization header says."""

    access_key: str
    day: str
    region: str
    service: str
    signed: list[str]
    signature: str

    @property
    def scope(self) -> str:
        return f"{self.day}/{self.region}/{self.service}/aws4_request"


@final
class Signatures:
    """Checks signatures against known keys: ``{access_key: (secret, session_token or None)}``.

    ``expired`` are session tokens that were good once; ``expire`` adds one. ``rotate`` replaces the keys.

    Raises:
        UsageError: there is no key, or the tolerance is negative.
    """

    def __init__(
        self,
        credentials: Mapping[str, tuple[str, str | None]],
        region: str,
        service: str = "kinesis",
        *,
        tolerance: float = 300.0,
        expired: Collection[str] = (),
    ) -> None:
        if not credentials:
            raise UsageError("signatures cannot be checked without a key: credentials is empty")
        if not tolerance >= 0:
            raise UsageError(f"tolerance must be a number of seconds from 0, not {tolerance!r}")
        self._credentials = dict(credentials)
        self._region = region
        self._service = service
        self._tolerance = tolerance
        self._expired = set(expired)
        self._keys: dict[tuple[str, str], bytes] = {}

    def __repr__(self) -> str:
        return f"<Signatures of {len(self._credentials)} keys, {self._region}, {self._service}>"

    def expire(self, session_token: str) -> None:
        """From now on this token has expired."""
        self._expired.add(session_token)

    def rotate(self, credentials: Mapping[str, tuple[str, str | None]]) -> None:
        """From now on these are the known keys, and no others."""
        self._credentials = dict(credentials)
        self._keys.clear()

    def check(self, method: str, path: str, headers: Mapping[str, str], body: bytes, now: float) -> Refused | None:
        """Why the request is not believed, ``None`` if it is (SC1)."""
        try:
            self._check(method, path, headers, body, now)
        except Refused as refusal:
            return refusal
        return None

    def _check(self, method: str, path: str, headers: Mapping[str, str], body: bytes, now: float) -> None:
        lower = {name.lower(): value for name, value in headers.items()}
        claim = _read_claim(lower)
        date = _read_date(lower)
        if claim.day != date[:8]:
            raise _wrong(
                f"Date in Credential scope does not match YYYYMMDD from ISO-8601 version of date from HTTP: "
                f"'{claim.day}' != '{date[:8]}', from '{date}'."
            )
        if claim.region != self._region:
            raise _wrong(f"Credential should be scoped to a valid region, not '{claim.region}'. ")
        if claim.service != self._service:
            raise _wrong(f"Credential should be scoped to correct service: '{self._service}'. ")
        secret = self._secret_of(claim.access_key, lower.get("x-amz-security-token"))
        self._check_time(date, now)
        _check_signed(claim.signed, lower)
        request = _canonical_request(method, path, claim.signed, lower, body)
        text = f"{_ALGORITHM}\n{date}\n{claim.scope}\n{hashlib.sha256(request).hexdigest()}"
        right = hmac.new(self._key(claim, secret), text.encode(), "sha256").hexdigest()
        if not hmac.compare_digest(right.encode(), claim.signature.encode(errors="surrogateescape")):
            raise _wrong(_MISMATCH)

    def _secret_of(self, access_key: str, token: str | None) -> str:
        known = self._credentials.get(access_key)
        if known is None:
            raise Refused("UnrecognizedClientException", _UNKNOWN)
        secret, wanted = known
        if token is not None and token in self._expired:
            raise Refused("ExpiredTokenException", "The security token included in the request is expired")
        if (token or "") != (wanted or ""):
            raise Refused("UnrecognizedClientException", _UNKNOWN)
        return secret

    def _check_time(self, date: str, now: float) -> None:
        signed_at = datetime.strptime(date, _FORMAT).replace(tzinfo=UTC).timestamp()
        minutes = f"{self._tolerance / 60:g} min."
        if signed_at < now - self._tolerance:
            bound = _written(now - self._tolerance)
            raise _wrong(f"Signature expired: {date} is now earlier than {bound} ({_written(now)} - {minutes})")
        if signed_at > now + self._tolerance:
            bound = _written(now + self._tolerance)
            raise _wrong(f"Signature not yet current: {date} is still later than {bound} ({_written(now)} + {minutes})")

    def _key(self, claim: _Claim, secret: str) -> bytes:
        kept = (claim.access_key, claim.day)
        key = self._keys.get(kept)
        if key is None:
            key = f"AWS4{secret}".encode()
            for part in (claim.day, claim.region, claim.service, "aws4_request"):
                key = hmac.new(key, part.encode(), "sha256").digest()
            if len(self._keys) >= _KEYS_KEPT:
                self._keys.clear()
            self._keys[kept] = key
        return key


def _read_claim(headers: Mapping[str, str]) -> _Claim:
    header = headers.get("authorization")
    if not header:
        raise Refused("MissingAuthenticationTokenException", "Missing Authentication Token")
    algorithm, _, rest = header.strip().partition(" ")
    pairs = [part.strip().partition("=") for part in rest.split(",")]
    members = {name: value for name, _, value in pairs if value}
    needed = ("Credential", "Signature", "SignedHeaders")
    missing = [f"Authorization header requires '{name}' parameter. " for name in needed if name not in members]
    if not (headers.get("x-amz-date") or headers.get("date")):
        missing.append("Authorization header requires existence of either a 'X-Amz-Date' or a 'Date' header. ")
    if algorithm != _ALGORITHM:
        raise Refused("IncompleteSignatureException", f"Unsupported AWS 'algorithm': '{algorithm}'.")
    if missing:
        raise Refused("IncompleteSignatureException", f"{''.join(missing)}Authorization={header}")
    scope = members["Credential"].rsplit("/", 4)
    if len(scope) != 5 or scope[4] != "aws4_request":  # noqa: PLR2004 - key, day, region, service, terminator
        wanted = "Credential must have exactly 5 slash-delimited elements, e.g. keyid/date/region/service/term"
        raise Refused("IncompleteSignatureException", f"{wanted}, got '{members['Credential']}'")
    signed = members["SignedHeaders"].split(";")
    return _Claim(scope[0], scope[1], scope[2], scope[3], signed, members["Signature"])


def _read_date(headers: Mapping[str, str]) -> str:
    """When the request says it was signed, as ``X-Amz-Date`` writes it."""
    text = headers.get("x-amz-date")
    try:
        if text is None:
            return parsedate_to_datetime(headers["date"]).astimezone(UTC).strftime(_FORMAT)
        datetime.strptime(text, _FORMAT)  # noqa: DTZ007 - only whether it is one
    except (ValueError, OverflowError):
        raise Refused(
            "IncompleteSignatureException",
            f"Date must be in ISO-8601 'basic format'. Got '{text or headers['date']}'. "
            "See http://en.wikipedia.org/wiki/ISO_8601",
        ) from None
    return text


def _check_signed(signed: list[str], headers: Mapping[str, str]) -> None:
    """SC2."""
    required = {"host", *(name for name in headers if name.startswith("x-amz-"))}
    if "x-amz-date" not in headers:
        required.add("date")
    unsigned = sorted(required - set(signed))
    if unsigned:
        raise _wrong(f"'{unsigned[0]}' must be a 'SignedHeader' in the AWS Authorization.")
    if signed != sorted(signed):
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
    pairs = [part.partition("=") for part in query.split("&") if part]
    return "&".join(f"{name}={value}" for name, _, value in sorted(pairs))


def _written(when: float) -> str:
    return datetime.fromtimestamp(int(when), UTC).strftime(_FORMAT)


def _wrong(message: str) -> Refused:
    return Refused("InvalidSignatureException", message)
