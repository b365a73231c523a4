"""Creates the errors that the service answers requests with.

Each refusal has the type and the HTTP status that AWS uses. The model raises ``Refused``. ``Service.handle`` catches it
and returns it as the answer.
"""

from collections.abc import Iterable
from functools import partial
from itertools import islice
from typing import Final, final

NOT_NULL: Final = "Member must not be null"
THROTTLED: Final = "ProvisionedThroughputExceededException"
_PROBLEMS_MAX: Final = 10  # kinesalite, test/putRecords.js: for 501 entries without keys, AWS names the list and 9 keys


@final
class Refused(Exception):  # noqa: N818 - an answer of the service, not an error of the server
    """The error that a request is answered with."""

    def __init__(self, code: str, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.status = status


not_found: Final = partial(Refused, "ResourceNotFoundException")
in_use: Final = partial(Refused, "ResourceInUseException")
invalid: Final = partial(Refused, "InvalidArgumentException")
limit_exceeded: Final = partial(Refused, "LimitExceededException")
throttled: Final = partial(Refused, THROTTLED)
expired_iterator: Final = partial(Refused, "ExpiredIteratorException")
expired_token: Final = partial(Refused, "ExpiredNextTokenException")
access_denied: Final = partial(Refused, "AccessDeniedException", status=403)


def validation(problems: Iterable[str]) -> Refused:
    """Refuse a request that violates constraints. ``problems`` are texts from ``broken``. AWS reports at most ten."""
    counted = list(islice(problems, _PROBLEMS_MAX))
    errors = "1 validation error" if len(counted) == 1 else f"{len(counted)} validation errors"
    return Refused("ValidationException", f"{errors} detected: {'; '.join(counted)}")


def broken(member: str, value: str | None, constraint: str) -> str:
    """Return AWS's sentence for a member that violates a constraint. The value ``None`` means null."""
    shown = "null" if value is None else f"'{value}'"
    return f"Value {shown} at '{member}' failed to satisfy constraint: {constraint}"


def blob(length: int) -> str:
    """Return how AWS's messages show a value of ``length`` bytes."""
    return f"java.nio.HeapByteBuffer[pos=0 lim={length} cap={length}]"


def provisioned_only(stream: str, account: str) -> Refused:
    """Refuse an operation that on-demand streams do not support. The service model documents the type for this case."""
    return Refused(
        "ValidationException", f"Request is invalid. Stream {stream} under account {account} is in On-Demand mode."
    )


def shard_throttling(operation: str, shard: str, stream: str | None, account: str) -> str:
    """Return AWS's message for a shard whose rate is exceeded, in an answer or in an entry of PutRecords."""
    if operation == "GetRecords":
        return f"Rate exceeded for Shard - {account}/{stream}/{shard}"
    return f"Rate exceeded for shard {shard} in stream {stream} under account {account}."


def call_throttled(stream: str | None, account: str) -> Refused:
    """Refuse a control call that exceeds its rate. ``stream`` is ``None`` if the call names no stream."""
    what = f"stream {stream} under account {account}" if stream else f"account {account}"
    return limit_exceeded(f"Rate exceeded for {what}.")


def dry_run(operation: str) -> Refused:
    """Refuse a dry run that has passed all checks, with the status 400 (developer guide, kds-dryrun-validation)."""
    return Refused("DryRunOperationException", f"{operation} would be carried out: DryRun is set, so it was not.")


def serialization(message: str = "") -> Refused:
    """Refuse a request with a member of a wrong type, or (without a message) with an unreadable body."""
    return Refused("SerializationException", message)


def is_unreadable(refusal: Refused | None) -> bool:
    """Return whether the refusal means that the body as a whole cannot be read."""
    return refusal is not None and refusal.code == "SerializationException" and not refusal.message


def unknown_operation(status: int = 400) -> Refused:
    return Refused("UnknownOperationException", "", status)


def too_large(limit: int) -> Refused:
    return Refused("RequestEntityTooLargeException", f"The request is larger than {limit} bytes.", 413)


def internal_failure(message: str = "") -> Refused:
    """Answer with InternalFailure. AWS sends it without a message."""
    return Refused("InternalFailure", message, 500)
