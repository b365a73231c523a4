"""Describes why a request failed and whether it may be sent again.

Every expected failure is a ``Failure`` value. Its ``kind`` alone decides how the failure is handled.

Invariants:

- Every error code and HTTP status has exactly one kind. An unknown code is classified by the status. A response that
  names no error type was not written by the service, but by a proxy, a firewall or a captive portal. Such a response
  says nothing about the request, so the request is sent again.
- ``retryable`` says whether the *same* request may succeed later, even if the caller changes nothing.
- ``maybe_received`` is false only if the request cannot have reached the service.
- No failure contains a secret: a failure is built from the answer and our own words, never from the request.
"""

from enum import StrEnum
from typing import Final, NamedTuple, final

from shardline.errors import CredentialsError, RequestError, ServiceError, TransportError

COUNT_MISMATCH: Final = (
    "RecordCountMismatch"  # a PutRecords response contains more or fewer results than the request had entries
)


@final
class FailureKind(StrEnum):
    """Failures, grouped by how they are handled."""

    THROTTLED = "throttled"  # too many requests: back off
    TRANSIENT = "transient"  # the connection or the service failed: back off
    EXPIRED_CREDENTIALS = "expired-credentials"  # refresh the credentials and retry
    CLOCK_SKEW = "clock-skew"  # our clock is wrong: correct the offset and retry
    EXPIRED_ITERATOR = "expired-iterator"  # get a new iterator for the last position
    EXPIRED_TOKEN = "expired-token"  # noqa: S105 - a page token: start the listing again
    IN_USE = "in-use"  # the resource is being changed, or has a subscriber: wait
    LIMIT_EXCEEDED = "limit-exceeded"  # a quota of the account, or too many control calls: wait
    NOT_FOUND = "not-found"
    DENIED = "denied"
    INVALID = "invalid"
    KMS = "kms"  # the stream's key is disabled, denied or missing: an operator must repair it
    NO_CREDENTIALS = "no-credentials"
    UNTRUSTED = "untrusted"  # TLS: the server's certificate cannot be verified
    DRY_RUN = "dry-run"  # the answer to a request with DryRun


_RETRYABLE: Final = frozenset(
    {
        FailureKind.THROTTLED,
        FailureKind.TRANSIENT,
        FailureKind.EXPIRED_CREDENTIALS,
        FailureKind.CLOCK_SKEW,
        FailureKind.IN_USE,
        FailureKind.LIMIT_EXCEEDED,
    }
)

# Sources: the errors and the "Common Errors" of the Kinesis API reference, botocore's retry tables, and codes that
# AWS's front end sends although the service model does not list them.
KIND_BY_CODE: Final[dict[str, FailureKind]] = {
    "ProvisionedThroughputExceededException": FailureKind.THROTTLED,
    "KMSThrottlingException": FailureKind.THROTTLED,
    "Throttling": FailureKind.THROTTLED,
    "ThrottlingException": FailureKind.THROTTLED,
    "ThrottledException": FailureKind.THROTTLED,
    "RequestThrottled": FailureKind.THROTTLED,
    "RequestThrottledException": FailureKind.THROTTLED,
    "RequestLimitExceeded": FailureKind.THROTTLED,
    "TooManyRequestsException": FailureKind.THROTTLED,
    "BandwidthLimitExceeded": FailureKind.THROTTLED,
    "SlowDown": FailureKind.THROTTLED,
    "InternalFailure": FailureKind.TRANSIENT,
    "InternalFailureException": FailureKind.TRANSIENT,
    "InternalServerError": FailureKind.TRANSIENT,
    "InternalError": FailureKind.TRANSIENT,
    "ServiceUnavailable": FailureKind.TRANSIENT,
    "ServiceUnavailableException": FailureKind.TRANSIENT,
    "RequestTimeout": FailureKind.TRANSIENT,
    "RequestTimeoutException": FailureKind.TRANSIENT,
    "ReplicatedWriteConflictException": FailureKind.TRANSIENT,  # DynamoDB: the item is being changed in another region
    "TransactionConflictException": FailureKind.TRANSIENT,  # DynamoDB: the item is being changed by a transaction
    "ExpiredToken": FailureKind.EXPIRED_CREDENTIALS,
    "ExpiredTokenException": FailureKind.EXPIRED_CREDENTIALS,
    "RequestExpired": FailureKind.CLOCK_SKEW,
    "RequestTimeTooSkewed": FailureKind.CLOCK_SKEW,
    "RequestInTheFuture": FailureKind.CLOCK_SKEW,
    "ExpiredIteratorException": FailureKind.EXPIRED_ITERATOR,
    "ExpiredNextTokenException": FailureKind.EXPIRED_TOKEN,
    "ResourceInUseException": FailureKind.IN_USE,
    "LimitExceededException": FailureKind.LIMIT_EXCEEDED,
    "ResourceNotFoundException": FailureKind.NOT_FOUND,
    "AccessDenied": FailureKind.DENIED,
    "AccessDeniedException": FailureKind.DENIED,
    "UnrecognizedClientException": FailureKind.DENIED,
    "InvalidClientTokenId": FailureKind.DENIED,
    "InvalidAccessKeyId": FailureKind.DENIED,
    "InvalidSignatureException": FailureKind.DENIED,
    "SignatureDoesNotMatch": FailureKind.DENIED,
    "IncompleteSignature": FailureKind.DENIED,
    "IncompleteSignatureException": FailureKind.DENIED,
    "MissingAuthenticationToken": FailureKind.DENIED,
    "MissingAuthenticationTokenException": FailureKind.DENIED,
    "NotAuthorized": FailureKind.DENIED,
    "OptInRequired": FailureKind.DENIED,
    "SubscriptionRequiredException": FailureKind.DENIED,
    "InvalidArgumentException": FailureKind.INVALID,
    "ValidationException": FailureKind.INVALID,
    "ValidationError": FailureKind.INVALID,
    "SerializationException": FailureKind.INVALID,
    "UnknownOperationException": FailureKind.INVALID,
    "InvalidAction": FailureKind.INVALID,
    "RequestEntityTooLargeException": FailureKind.INVALID,
    "KMSDisabledException": FailureKind.KMS,
    "KMSInvalidStateException": FailureKind.KMS,
    "KMSAccessDeniedException": FailureKind.KMS,
    "KMSNotFoundException": FailureKind.KMS,
    "KMSOptInRequired": FailureKind.KMS,
    "DryRunOperationException": FailureKind.DRY_RUN,
}

_KIND_BY_STATUS: Final[dict[int, FailureKind]] = {
    401: FailureKind.DENIED,
    403: FailureKind.DENIED,
    407: FailureKind.DENIED,
    408: FailureKind.TRANSIENT,
    425: FailureKind.TRANSIENT,
    429: FailureKind.THROTTLED,
    509: FailureKind.THROTTLED,
}
_TOO_MANY: Final = frozenset({429, 509})

# The service reports a skewed clock as a bad signature. Only the message tells the two apart.
_SIGNATURE_CODES: Final = frozenset({"InvalidSignatureException", "SignatureDoesNotMatch"})
_SKEW_WORDS: Final = ("signature expired", "signature not yet current", "is now earlier than", "is now later than")


# These codes mean that the keys themselves are wrong or have expired: the same request, signed with other keys, may
# succeed. The codes for an incomplete or missing signature (IncompleteSignature, MissingAuthenticationToken) are left
# out, because other keys do not repair the signature. Codes that mean that the caller is known but not permitted
# (AccessDenied) are left out, too.
_REFUSED_CREDENTIALS: Final = _SIGNATURE_CODES | {
    "ExpiredToken",
    "ExpiredTokenException",
    "UnrecognizedClientException",
    "InvalidClientTokenId",
    "InvalidAccessKeyId",
}


@final
class Failure(NamedTuple):
    """Why one request failed."""

    kind: FailureKind
    code: str
    """The service's error code, or a short name for a connection failure (``ConnectTimeout``, ``TlsError``, ...)."""
    message: str
    status: int | None = None
    """The HTTP status, or ``None`` if there was no answer."""
    request_id: str | None = None
    retry_after: float | None = None
    """The delay in seconds that the service requested, if it requested one."""
    maybe_received: bool = True
    """Whether the service may have received the request."""

    @property
    def retryable(self) -> bool:
        return self.kind in _RETRYABLE

    @property
    def refuses_credentials(self) -> bool:
        """Whether the request may succeed with other credentials."""
        return self.code in _REFUSED_CREDENTIALS and self.kind in {FailureKind.DENIED, FailureKind.EXPIRED_CREDENTIALS}

    def after_look_up(self, *, changed: bool) -> "Failure":
        """Return this refusal of the credentials, reclassified after the credentials were looked up again.

        If the credentials changed, another attempt is worthwhile, whatever the code was. If they did not change,
        the failure stays the same: wrong keys stay wrong, and expired credentials may still be renewed by their source.
        """
        return self._replace(kind=FailureKind.EXPIRED_CREDENTIALS) if changed else self


def classify(code: str, status: int, message: str = "", *, is_typed: bool = True) -> FailureKind:
    """Return the kind of an error response. ``is_typed`` says whether the response names the type of an AWS error."""
    if not is_typed:  # ignore the code, even if AWS uses it: a proxy may also report a ValidationError
        return FailureKind.THROTTLED if status in _TOO_MANY else FailureKind.TRANSIENT
    kind = KIND_BY_CODE.get(code)
    # Check for a skewed clock before the table applies: the clock is corrected and the request retried, while a bad
    # signature is final.
    if code in _SIGNATURE_CODES and any(words in message.lower() for words in _SKEW_WORDS):
        return FailureKind.CLOCK_SKEW
    if kind is not None:
        return kind
    if status in _KIND_BY_STATUS:
        return _KIND_BY_STATUS[status]
    return FailureKind.TRANSIENT if status >= 500 else FailureKind.INVALID  # noqa: PLR2004 - HTTP: server errors


def to_error(failure: Failure, operation: str) -> RequestError | CredentialsError:
    """Return the failure as an exception of the public API."""
    if failure.kind is FailureKind.NO_CREDENTIALS:
        return CredentialsError(failure.message)
    # Without a status, the message is our own and already says what failed. A code such as ``ConnectTimeout`` would
    # repeat it.
    answered = failure.status is not None
    sentence = (
        f"{operation} failed: {failure.code}: {failure.message}" if answered else f"{operation}: {failure.message}"
    )
    if failure.request_id:
        sentence += f" (request id {failure.request_id})"
    exception = ServiceError if answered else TransportError
    return exception(
        sentence,
        operation=operation,
        kind=failure.kind.value,
        code=failure.code,
        message=failure.message,
        status=failure.status,
        request_id=failure.request_id,
        retry_after=failure.retry_after,
        maybe_received=failure.maybe_received,
        retryable=failure.retryable,
    )
