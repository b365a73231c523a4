"""What went wrong with a request, and what follows from it?

Every expected failure is a ``Failure`` value; what to do about it is decided by its ``kind`` alone.

Invariants:

- Every error code and HTTP status has exactly one kind; an unknown code is judged by its status. A response that
  names no error type was not written by the service (a proxy, a firewall, a captive portal): it says nothing about the
  request, which is sent again.
- ``retryable`` says whether the *same* request may succeed later without the caller changing it.
- ``maybe_received`` is false only where the request cannot have reached the service.
- No failure carries a secret: it is built from the answer and our own words, never from the request.
"""

from enum import StrEnum
from typing import Final, NamedTuple, final

from shardline.errors import CredentialsError, RequestError, ServiceError, TransportError

COUNT_MISMATCH: Final = "RecordCountMismatch"  # a PutRecords answer with another number of results than entries


@final
class FailureKind(StrEnum):
    """What went wrong, by what follows from it."""

    THROTTLED = "throttled"  # too fast: back off
    TRANSIENT = "transient"  # broke on the way or inside the service: back off
    EXPIRED_CREDENTIALS = "expired-credentials"  # refresh them, then again
    CLOCK_SKEW = "clock-skew"  # our clock is off: the offset is corrected, then again
    EXPIRED_ITERATOR = "expired-iterator"  # make a new iterator from the last position
    EXPIRED_TOKEN = "expired-token"  # noqa: S105 - a page token: start the listing again
    IN_USE = "in-use"  # the resource is being changed, or has a subscriber: wait
    LIMIT_EXCEEDED = "limit-exceeded"  # a quota of the account or too many control calls: wait
    NOT_FOUND = "not-found"
    DENIED = "denied"
    INVALID = "invalid"
    KMS = "kms"  # the stream's key is disabled, denied, missing: someone must repair it
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

# Sources: the errors of the Kinesis API reference, "Common Errors" of the same, botocore's retry tables, and
# codes that the front end sends but the model does not name.
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
    "TransactionConflictException": FailureKind.TRANSIENT,  # DynamoDB: or by a transaction
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

# The service reports a skewed clock as a bad signature; only the words tell it apart.
_SIGNATURE_CODES: Final = frozenset({"InvalidSignatureException", "SignatureDoesNotMatch"})
_SKEW_WORDS: Final = ("signature expired", "signature not yet current", "is now earlier than", "is now later than")


# The keys themselves are wrong or have expired: the same request signed with other keys may succeed. Not among them:
# a signature that arrived without a part or not at all (IncompleteSignature, MissingAuthenticationToken), which other
# keys do not change, and whatever says that the caller is known and may not (AccessDenied).
_REFUSED_CREDENTIALS: Final = _SIGNATURE_CODES | {
    "ExpiredToken",
    "ExpiredTokenException",
    "UnrecognizedClientException",
    "InvalidClientTokenId",
    "InvalidAccessKeyId",
}


@final
class Failure(NamedTuple):
    """One failed request."""

    kind: FailureKind
    code: str
    """The service's code, or a short name for what broke on the way (``ConnectTimeout``, ``TlsError``, ...)."""
    message: str
    status: int | None = None
    """HTTP status; ``None`` where no answer came."""
    request_id: str | None = None
    retry_after: float | None = None
    maybe_received: bool = True

    @property
    def retryable(self) -> bool:
        return self.kind in _RETRYABLE

    @property
    def refuses_credentials(self) -> bool:
        """Whether the request may succeed with other keys."""
        return self.code in _REFUSED_CREDENTIALS and self.kind in {FailureKind.DENIED, FailureKind.EXPIRED_CREDENTIALS}

    def after_look_up(self, *, changed: bool) -> "Failure":
        """What follows from a refusal of the keys once they were looked up again.

        Keys that have changed since make it worth another attempt, whatever the code. Keys that have not stay wrong;
        only expired ones may still be renewed where they come from.
        """
        return self._replace(kind=FailureKind.EXPIRED_CREDENTIALS) if changed else self


def classify(code: str, status: int, message: str = "", *, is_typed: bool = True) -> FailureKind:
    """The kind of an error answer. ``is_typed``: it names the type of an AWS error."""
    if not is_typed:  # also if its code looks like one of AWS's: other services have a ValidationError too
        return FailureKind.THROTTLED if status in _TOO_MANY else FailureKind.TRANSIENT
    kind = KIND_BY_CODE.get(code)
    if code in _SIGNATURE_CODES and any(words in message.lower() for words in _SKEW_WORDS):
        return FailureKind.CLOCK_SKEW
    if kind is not None:
        return kind
    if status in _KIND_BY_STATUS:
        return _KIND_BY_STATUS[status]
    return FailureKind.TRANSIENT if status >= 500 else FailureKind.INVALID  # noqa: PLR2004 - HTTP: server errors


def to_error(failure: Failure, operation: str) -> RequestError | CredentialsError:
    """The exception for the public edge, with the same facts."""
    if failure.kind is FailureKind.NO_CREDENTIALS:
        return CredentialsError(failure.message)
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
