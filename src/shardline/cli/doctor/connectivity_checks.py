"""Checks the connection to Kinesis (settings, credentials, network and clock), and the installation.

Invariants:

- Only the last characters of the access key and the source of the credentials are shown, never a secret.
- The clock is compared with the Date header of Kinesis's own responses. The result is exact to a second or two.
"""

import os
import time
from typing import Final, NamedTuple, final
from urllib.parse import urlsplit

from shardline import _speedups
from shardline.adapters.aws.aws_service import AwsSettings
from shardline.adapters.aws.botocore_session import BotocoreSession, CredentialFacts
from shardline.cli.doctor.diagnoses import Finding, failed, not_checked, of_failure, ok, warning
from shardline.cli.invocation import Invocation
from shardline.core.error_codes import Failure, FailureKind
from shardline.errors import CredentialsError, UsageError
from shardline.model.stream import StreamRef

_EXPIRES_SOON: Final = 900
_SKEW_WARNING: Final = 5.0
_SKEW_REFUSED: Final = 300.0
_SLOW: Final = 1.0
_KEY_CHARACTERS_SHOWN: Final = 4

# botocore's names for the sources of credentials.
_SOURCES: Final = {
    "env": "environment variables",
    "shared-credentials-file": "the credentials file",
    "config-file": "the config file",
    "custom-process": "a credential_process",
    "assume-role": "an assumed role",
    "assume-role-with-web-identity": "a role assumed by web identity",
    "sso": "IAM Identity Center (SSO)",
    "login": "aws login",
    "container-role": "the container's role",
    "iam-role": "the instance's role",
}


@final
class ConnectionSettings(NamedTuple):
    """The configured region and endpoint, each ``None`` if it is not configured."""

    region: str | None
    endpoint_url: str | None
    findings: list[Finding]
    session: BotocoreSession | None = None


def check_implementation() -> Finding:
    """Report whether this process uses the compiled or the pure Python form of the performance-critical functions. Both
    forms are complete, so neither is a problem.
    """
    if _speedups.native is not None:
        return ok("implementation", "native: the C extension is in use")
    return ok("implementation", f"pure Python: {_speedups.reason}")


def check_settings(invocation: Invocation, stream: StreamRef | None) -> ConnectionSettings:
    """Look up the region, the credentials and the endpoint as the client does, and check them. The call blocks."""
    operation, members = (
        ("ListStreams", {}) if stream is None else ("DescribeStreamSummary", {"StreamName": stream.name})
    )
    findings: list[Finding] = []
    try:
        session = BotocoreSession(AwsSettings(profile=invocation.profile, region=invocation.region))
        region = session.region
    except UsageError as error:
        advice = "give --region, or set AWS_REGION; `aws configure list-profiles` shows the profiles"
        return ConnectionSettings(None, None, [failed("region", str(error), advice)])
    findings.append(_region_finding(region, invocation, stream))
    findings.append(_credentials_finding(session))
    try:
        url = invocation.endpoint_url or session.endpoint(operation, members)
    except (UsageError, CredentialsError) as error:
        findings.append(failed("endpoint", str(error), "check the region and --endpoint-url"))
        return ConnectionSettings(region, None, findings)
    return ConnectionSettings(region, url, findings, session)


def _region_finding(region: str, invocation: Invocation, stream: StreamRef | None) -> Finding:
    source = (
        "--region"
        if invocation.region
        else next((name for name in ("AWS_REGION", "AWS_DEFAULT_REGION") if os.environ.get(name)), "the profile")
    )
    if stream is not None and stream.region is not None and stream.region != region:
        advice = f"give --region {stream.region}, or the ARN of a stream in {region}"
        return failed("region", f"{region} (from {source}), but the ARN names {stream.region}", advice)
    return ok("region", f"{region} (from {source})")


def _credentials_finding(session: BotocoreSession) -> Finding:
    try:
        facts = session.credential_facts()
    except CredentialsError as error:
        advice = "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or name a profile with --profile"
        return failed("credentials", str(error).partition(": set AWS_ACCESS_KEY_ID")[0], advice)
    kind = "temporary keys" if facts.is_temporary else "long-lived keys of a user"
    source = _SOURCES.get(facts.method, facts.method)
    seen = f"{kind} ..{facts.access_key[-_KEY_CHARACTERS_SHOWN:]} from {source}, {_expiry(facts)}"
    if facts.seconds_left is not None and facts.seconds_left < _EXPIRES_SOON:
        return warning("credentials", seen, "they expire soon and could not be renewed: log in again")
    return ok("credentials", seen)


def _expiry(facts: CredentialFacts) -> str:
    if facts.seconds_left is not None:
        return f"expire in {facts.seconds_left // 3600} h {facts.seconds_left % 3600 // 60} min"
    return "expiry unknown" if facts.is_temporary else "do not expire"


def check_endpoint(url: str, answer: object, first: float, second: float | None) -> Finding:
    """Check whether the endpoint answers, how quickly it answers, and which protocol it uses.

    Args:
        url: the endpoint.
        answer: the answer to the first request.
        first: how long the first request took, including the connection.
        second: how long the second request took, or ``None`` if it was not sent.
    """
    parts = urlsplit(url)
    place = f"{parts.scheme}://{parts.netloc}"
    if isinstance(answer, Failure) and answer.status is None and answer.kind is not FailureKind.NO_CREDENTIALS:
        return of_failure("endpoint", answer, "DescribeStreamSummary", "the stream")
    if isinstance(answer, Failure) and answer.status is None:
        return not_checked("endpoint", f"{place}: nothing is sent without credentials")
    times = f"first answer after {first * 1000:.0f} ms, later ones {(second or first) * 1000:.0f} ms"
    is_local = _is_local(parts.hostname or "")
    if parts.scheme == "http" and not is_local:
        return warning("endpoint", f"{place}, {times}; not encrypted", "use https for anything but tests")
    if (second or first) > _SLOW and not is_local:
        return warning("endpoint", f"{place}, {times}", "slow: is the region far away, or the network busy?")
    tls = ", certificate verified" if parts.scheme == "https" else ""
    return ok("endpoint", f"{place}, {times}{tls}")


def _is_local(host: str) -> bool:
    return host in {"localhost", "::1"} or host.startswith("127.")


def check_clock(service_time: float, *, answered: bool, refused: bool) -> Finding:
    """Compare this machine's clock with the service's.

    Args:
        service_time: the service's time, from its responses.
        answered: whether there was a response.
        refused: whether a request was refused because of its signing time.
    """
    if not answered:
        return not_checked("clock", "there was no response to compare the time with")
    off_by = time.time() - service_time
    seen = f"this machine's clock is {abs(off_by):.0f} s {'ahead of' if off_by > 0 else 'behind'} Kinesis's"
    advice = "set this machine's clock (NTP)"
    if refused or abs(off_by) > _SKEW_REFUSED:
        seen += ": requests signed with this time are refused"
        return failed("clock", seen, f"{advice}; until then, other AWS tools fail, too")
    if abs(off_by) > _SKEW_WARNING:
        return warning("clock", seen, f"{advice}: signatures are refused from 5 minutes on")
    return ok("clock", "agrees with Kinesis's clock to within a few seconds")
