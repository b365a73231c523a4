"""Runs the checks of ``shardline doctor`` without a stream: those of the connection, the credentials and the account.

Invariants:

- The diagnosis goes as far as it can, and every skipped check is reported as not checked.
- Nothing is changed: the requests only list and describe.
- STS, which knows the caller's identity, is asked only if the endpoint is AWS's or the settings name an STS endpoint.
  So the keys of an emulator are not sent to AWS.
"""

import os
import ssl
import time
from dataclasses import dataclass
from functools import partial
from typing import Final, final

import anyio
import anyio.to_thread

from shardline.adapters.aws.botocore_session import BotocoreSession
from shardline.adapters.http.http_settings import make_ssl_context
from shardline.adapters.kinesis import KinesisHttp
from shardline.cli.doctor import connectivity_checks, network_checks
from shardline.cli.doctor.check_run import (
    CONNECT_TIMEOUT,
    READ_TIMEOUT,
    CheckRun,
    identity_failure_of,
    is_unanswered,
    why_unanswered,
)
from shardline.cli.doctor.diagnoses import Finding, Verdict, failed, not_checked, of_failure, ok, warning
from shardline.cli.doctor.permission_checks import AWS_ENDPOINT, permission_finding
from shardline.cli.quantities import counted
from shardline.codec.shapes import ListStreamsResponse
from shardline.core.error_codes import Failure
from shardline.errors import CredentialsError, UsageError

_NETWORK: Final = network_checks.CHECKS
_ACCOUNT: Final = ("identity", "streams", "limits", "may ListStreams", "may DescribeLimits")
_STS_VARIABLES: Final = ("AWS_ENDPOINT_URL_STS", "AWS_ENDPOINT_URL")
_STREAMS_SHOWN: Final = 5
_NEARLY_FULL: Final = 0.9
_LIMITS: Final = (
    ("open shards", "OpenShardCount", "ShardLimit"),
    ("on-demand streams", "OnDemandStreamCount", "OnDemandStreamCountLimit"),
)


@final
@dataclass
class AccountDiagnosis(CheckRun):
    """Checks the connection to Kinesis and the account once, and collects the findings."""

    async def run(self) -> list[Finding]:
        """Run all checks and return the findings."""
        settings = await anyio.to_thread.run_sync(connectivity_checks.check_settings, self.invocation, None)
        self.findings += settings.findings
        session, url = settings.session, settings.endpoint_url
        if session is None or url is None:
            why = "the settings give no region or no endpoint"
            self.skip(why, *_NETWORK, "endpoint", "clock", *_ACCOUNT)
            return self.findings
        if not await self._check_network(url, session):
            self.skip("an earlier check failed", *_NETWORK, "endpoint", "clock", *_ACCOUNT)
            return self.findings
        async with self.invocation.client(connect_timeout=CONNECT_TIMEOUT, read_timeout=READ_TIMEOUT) as client:
            await self._check_kinesis(client.api, url, session)
        return self.findings

    async def _check_network(self, url: str, session: BotocoreSession) -> bool:
        """Check DNS, TCP and TLS, and return whether all of them passed."""
        try:
            context = await anyio.to_thread.run_sync(_tls_settings, url, session)
        except UsageError as error:
            self.findings.append(failed("TLS", str(error), "set AWS_CA_BUNDLE to a readable file of certificates"))
            return False
        found = await network_checks.check_network(url, context, time.time())
        self.findings += found
        return all(finding.verdict is not Verdict.FAILED for finding in found)

    async def _check_kinesis(self, api: KinesisHttp, url: str, session: BotocoreSession) -> None:
        began_at = anyio.current_time()
        listed = await self.ask(lambda: api.typed_call("ListStreams", {}, ListStreamsResponse))
        first = anyio.current_time() - began_at
        began_at = anyio.current_time()
        limits = None if is_unanswered(listed) else await self.ask(lambda: api.call("DescribeLimits", {}))
        second = None if limits is None else anyio.current_time() - began_at
        self.findings.append(connectivity_checks.check_endpoint(url, listed, first, second))
        self.findings.append(
            connectivity_checks.check_clock(
                api.service_time(), answered=limits is not None, refused=self.is_clock_refused
            )
        )
        if limits is None:
            self.skip(why_unanswered(listed), *_ACCOUNT)
        elif (identity_failure := identity_failure_of(listed, limits)) is not None:
            self.findings.append(of_failure("identity", identity_failure, "ListStreams", "*"))
            self.skip("the service does not accept the credentials", *_ACCOUNT)
        else:
            self.findings += [
                await _check_identity(url, session),
                check_streams(listed, self.invocation.place()),
                check_limits(limits),
                permission_finding("ListStreams", listed, "*"),
                permission_finding("DescribeLimits", limits, "*"),
            ]


def _tls_settings(url: str, session: BotocoreSession) -> ssl.SSLContext | None:
    """Return the TLS settings that the client uses, or ``None`` if the endpoint is not https. This reads files."""
    return make_ssl_context(verify=True, ca_bundle=session.ca_bundle) if url.startswith("https:") else None


async def _check_identity(url: str, session: BotocoreSession) -> Finding:
    """Report the caller's identity, which STS returns to every caller."""
    if not AWS_ENDPOINT.fullmatch(url) and not any(map(os.environ.get, _STS_VARIABLES)):
        return not_checked("identity", "the endpoint is not AWS's, so AWS is not asked for the caller's identity")
    ask = partial(session.caller_identity, CONNECT_TIMEOUT)
    try:
        return ok("identity", await anyio.to_thread.run_sync(ask, abandon_on_cancel=True))
    except CredentialsError as error:
        return not_checked("identity", str(error))


def check_streams(listed: ListStreamsResponse | Failure, place: str) -> Finding:
    """Report the names of the first streams of the account and region."""
    if isinstance(listed, Failure):
        return not_checked("streams", "ListStreams failed")
    names = listed.stream_names
    if not names:
        advice = "if you expected streams, check --region and the credentials; `shardline streams create` creates one"
        return warning("streams", f"there are no streams in {place}", advice)
    shown = ", ".join(names[:_STREAMS_SHOWN]) + (", .." if len(names) > _STREAMS_SHOWN else "")
    return ok("streams", f"{'at least ' if listed.has_more_streams else ''}{counted(len(names), 'stream')}: {shown}")


def check_limits(limits: dict[str, object] | Failure) -> Finding:
    """Check how much of the account's limits is used."""
    if isinstance(limits, Failure):
        return not_checked("limits", "DescribeLimits failed")
    parts: list[str] = []
    is_nearly_full = False
    for noun, used_member, most_member in _LIMITS:
        used, most = limits.get(used_member), limits.get(most_member)
        if isinstance(used, int) and isinstance(most, int):
            parts.append(f"{used:,} of {most:,} {noun}")
            is_nearly_full = is_nearly_full or used >= _NEARLY_FULL * most
    seen = ", ".join(parts) or "the service names none"
    if is_nearly_full:
        advice = "delete unused streams, or request a higher limit (AWS: Service Quotas)"
        return warning("limits", f"nearly used up: {seen}", advice)
    return ok("limits", seen)
