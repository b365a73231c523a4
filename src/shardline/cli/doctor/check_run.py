"""Collects findings and retries requests, for both kinds of diagnosis that ``shardline doctor`` makes.

Invariants:

- A throttled request is retried a few times. A request that was refused because of its signing time is retried with the
  service's time from the response, and the clock check fails.
- A check is reported once: a check with a finding is not reported as skipped.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final, TypeVar

from shardline.cli.doctor.diagnoses import Finding, not_checked
from shardline.cli.invocation import Invocation
from shardline.cli.retrying import retry_while
from shardline.core.error_codes import Failure, FailureKind

T = TypeVar("T")

CONNECT_TIMEOUT: Final = 5.0
READ_TIMEOUT: Final = 10.0
_PAUSE: Final = 0.3
_RETRYABLE: Final = frozenset({FailureKind.THROTTLED, FailureKind.LIMIT_EXCEEDED, FailureKind.CLOCK_SKEW})
# Error codes of requests that were refused because of the sender's identity, not because of the operation.
_IDENTITY_CODES: Final = frozenset(
    {
        "UnrecognizedClientException",
        "InvalidClientTokenId",
        "InvalidSignatureException",
        "SignatureDoesNotMatch",
        "IncompleteSignature",
        "IncompleteSignatureException",
        "MissingAuthenticationToken",
        "MissingAuthenticationTokenException",
    }
)


@dataclass
class CheckRun:
    """The checks of one call of ``shardline doctor``."""

    invocation: Invocation
    findings: list[Finding] = field(default_factory=list[Finding], kw_only=True)
    is_clock_refused: bool = field(default=False, init=False)
    """Whether a request was refused because of its signing time."""

    async def ask(self, call: Callable[[], Awaitable[T | Failure]]) -> T | Failure:
        """Send a request, retry it while that may help, and return the answer."""
        return await retry_while(call, self._is_retryable, _PAUSE)

    def _is_retryable(self, failure: Failure) -> bool:
        self.is_clock_refused = self.is_clock_refused or failure.kind is FailureKind.CLOCK_SKEW
        return failure.kind in _RETRYABLE

    def skip(self, why: str, *checks: str) -> None:
        """Add a finding "not checked" for each check that has no finding yet."""
        reported = {finding.check for finding in self.findings}
        self.findings += [not_checked(check, why) for check in checks if check not in reported]


def is_unanswered(answer: object) -> bool:
    return isinstance(answer, Failure) and answer.status is None


def identity_failure_of(*answers: object) -> Failure | None:
    """Return the first failure that means that the caller's credentials were rejected, if there is one."""
    for answer in answers:
        if isinstance(answer, Failure) and (
            answer.code in _IDENTITY_CODES or answer.kind in {FailureKind.EXPIRED_CREDENTIALS, FailureKind.CLOCK_SKEW}
        ):
            return answer
    return None


def why_unanswered(answer: object) -> str:
    """Return why the checks that need an answer from Kinesis are skipped."""
    is_anonymous = isinstance(answer, Failure) and answer.kind is FailureKind.NO_CREDENTIALS
    return "nothing is sent without credentials" if is_anonymous else "Kinesis was not reached"
