"""The findings of ``shardline doctor`` and the advice for each problem.

Invariants:

- A finding says what was seen and, if something is wrong, what to do about it.
- A check that could not be made is "not checked", with the reason, and never "ok".
- No finding contains a secret: findings are built from responses and from our own text.
"""

from enum import StrEnum
from typing import Final, NamedTuple, final

from shardline.core.error_codes import Failure, FailureKind


@final
class Verdict(StrEnum):
    """The result of a check."""

    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"
    NOT_CHECKED = "not checked"


@final
class Finding(NamedTuple):
    """The result of one check and what to do about it."""

    check: str
    """The name of the check."""
    verdict: Verdict
    seen: str
    """The text of the finding: what was observed, or why the check was not made."""
    advice: str | None = None
    """The advice to the user, or ``None`` if the check is ok or was not made."""


def ok(check: str, seen: str) -> Finding:
    return Finding(check, Verdict.OK, seen)


def warning(check: str, seen: str, advice: str) -> Finding:
    return Finding(check, Verdict.WARNING, seen, advice)


def failed(check: str, seen: str, advice: str) -> Finding:
    return Finding(check, Verdict.FAILED, seen, advice)


def not_checked(check: str, why: str) -> Finding:
    return Finding(check, Verdict.NOT_CHECKED, why)


_NETWORK: Final = "check --endpoint-url, the network and its firewalls"
# Advice is looked up by the service's code first, and then by the kind of the failure.
_BY_CODE: Final = {
    "UnrecognizedClientException": "the access key is unknown: it was deleted, belongs to another partition, or its "
    "session token is missing",
    "InvalidClientTokenId": "the access key is unknown: it was deleted, belongs to another partition, or its session "
    "token is missing",
    "CertificateError": "if the server uses a private CA, set AWS_CA_BUNDLE to the file of its certificate",
    "TlsError": "does the server speak https on that port? check the endpoint",
    "ConnectError": _NETWORK,
    "ConnectTimeout": _NETWORK,
    "DnsError": "check the region and --endpoint-url, and DNS",
    "ProxyError": "check HTTPS_PROXY, HTTP_PROXY and NO_PROXY",
    "ProxyLoginError": "give the proxy's login in HTTPS_PROXY",
}
_BY_KIND: Final = {
    FailureKind.NO_CREDENTIALS: "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or name a profile with --profile",
    FailureKind.EXPIRED_CREDENTIALS: "get new credentials: log in again (aws sso login), or renew the source of the "
    "environment variables",
    FailureKind.CLOCK_SKEW: "set this machine's clock (NTP)",
    FailureKind.NOT_FOUND: "check the name and the region; `shardline streams list` shows the existing streams",
    FailureKind.KMS: "the stream's key must be enabled, and its policy must let this identity use it",
    FailureKind.THROTTLED: "other callers use up the service's limits; run the command again later",
    FailureKind.LIMIT_EXCEEDED: "other callers use up the service's limits; run the command again later",
    FailureKind.TRANSIENT: f"run the command again; if the failure persists, {_NETWORK}",
}


def advice_of(code: str) -> str:
    """Return what to do about a failed connection with this code."""
    return _BY_CODE[code]


def advice_for(failure: Failure, operation: str, stream: str) -> str:
    """Return what to do about a failed request."""
    if failure.code in _BY_CODE:
        return _BY_CODE[failure.code]
    if failure.code in {"InvalidSignatureException", "SignatureDoesNotMatch"}:
        if "region" in failure.message.lower():
            return "requests are signed for another region than the endpoint's: check --region"
        if failure.kind is not FailureKind.CLOCK_SKEW:
            return "the secret key does not belong to the access key: check both"
    if failure.kind is FailureKind.DENIED:
        return f"allow kinesis:{operation} on {stream} for this identity (docs: Deploying, IAM policies)"
    return _BY_KIND.get(failure.kind, "see the service's message")


def of_failure(check: str, failure: Failure, operation: str, stream: str) -> Finding:
    """Return the finding for a failed request. A throttled request means that nothing was checked."""
    seen = failure.message.strip() if failure.status is not None else failure.message.partition(": check ")[0]
    seen = f"{failure.code}: {seen}" if failure.status is not None else seen  # our own messages need no code
    if failure.kind in {FailureKind.THROTTLED, FailureKind.LIMIT_EXCEEDED}:
        return not_checked(check, f"{operation} was throttled: {seen}")
    return failed(check, seen, advice_for(failure, operation, stream))
