"""What did an examination find, and what is to be done about it?

Invariants:

- A finding says what was seen, and if something is wrong, what to do about it.
- What could not be looked at is "not checked", with the reason: never "ok".
- No finding carries a secret: it is made of answers and of our own words.
"""

from enum import StrEnum
from typing import Final, NamedTuple, final

from shardline.core.failures import Failure, FailureKind


@final
class Verdict(StrEnum):
    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"
    NOT_CHECKED = "not checked"


@final
class Finding(NamedTuple):
    """One check."""

    check: str
    verdict: Verdict
    seen: str
    advice: str | None = None


def ok(check: str, seen: str) -> Finding:
    return Finding(check, Verdict.OK, seen)


def warning(check: str, seen: str, advice: str) -> Finding:
    return Finding(check, Verdict.WARNING, seen, advice)


def failed(check: str, seen: str, advice: str) -> Finding:
    return Finding(check, Verdict.FAILED, seen, advice)


def not_checked(check: str, why: str) -> Finding:
    return Finding(check, Verdict.NOT_CHECKED, why)


_NETWORK: Final = "check --endpoint-url, the network and its firewalls"
# By the service's code first, then by the kind of the failure.
_BY_CODE: Final = {
    "UnrecognizedClientException": "the access key is not known: it was deleted, is of another partition, or its "
    "session token is missing",
    "InvalidClientTokenId": "the access key is not known: it was deleted, is of another partition, or its session "
    "token is missing",
    "CertificateError": "if the server has a CA of its own, name its file in AWS_CA_BUNDLE",
    "TlsError": "does it speak https on that port? check the endpoint",
    "ConnectError": _NETWORK,
    "ConnectTimeout": _NETWORK,
    "DnsError": "check the region and --endpoint-url, and DNS",
    "ProxyError": "check HTTPS_PROXY, HTTP_PROXY and NO_PROXY",
    "ProxyLoginError": "give the proxy's login in HTTPS_PROXY",
}
_BY_KIND: Final = {
    FailureKind.NO_CREDENTIALS: "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or name a profile with --profile",
    FailureKind.EXPIRED_CREDENTIALS: "get new ones: log in again (aws sso login), or renew what the variables were "
    "filled from",
    FailureKind.CLOCK_SKEW: "set this machine's clock (NTP)",
    FailureKind.NOT_FOUND: "check the name and the region; `shardline streams list` shows what is there",
    FailureKind.KMS: "the stream's key has to be enabled, and its policy has to let this identity use it",
    FailureKind.THROTTLED: "others use up what the service grants; run it again later",
    FailureKind.LIMIT_EXCEEDED: "others use up what the service grants; run it again later",
    FailureKind.TRANSIENT: f"run it again; if it stays, {_NETWORK}",
}


def advice_for(failure: Failure, operation: str, stream: str) -> str:
    """What to do about a failed request."""
    if failure.code in _BY_CODE:
        return _BY_CODE[failure.code]
    if failure.code in {"InvalidSignatureException", "SignatureDoesNotMatch"}:
        if "region" in failure.message.lower():
            return "the endpoint is of another region than the one that requests are signed for: check --region"
        if failure.kind is not FailureKind.CLOCK_SKEW:
            return "the secret key does not belong to the access key: check both"
    if failure.kind is FailureKind.DENIED:
        return f"allow kinesis:{operation} on {stream} to this identity (docs: Deploying, IAM policies)"
    return _BY_KIND.get(failure.kind, "see the service's message")


def of_failure(check: str, failure: Failure, operation: str, stream: str) -> Finding:
    """A request failed: that is what was found, unless it was only asked too often."""
    seen = failure.message.strip() if failure.status is not None else failure.message.partition(": check ")[0]
    seen = f"{failure.code}: {seen}" if failure.status is not None else seen  # our own words say enough
    if failure.kind in {FailureKind.THROTTLED, FailureKind.LIMIT_EXCEEDED}:
        return not_checked(check, f"{operation} was throttled: {seen}")
    return failed(check, seen, advice_for(failure, operation, stream))
