"""What does the service say when it refuses a request?

Each refusal has the type and the HTTP status that AWS uses. A ``Refused`` is raised inside the model and becomes the
answer in ``Service.handle``: it never leaves the model.
"""

from collections.abc import Iterable
from functools import partial
from itertools import islice
from typing import Final, final

NOT_NULL: Final = "Member must not be null"
THROTTLED: Final = "ProvisionedThroughputExceededException"
_PROBLEMS_MAX: Final = 10  # kinesalite, test/putRecords.js: of 501 entries without keys, 9 are named beside the list


@final
class Refused(Exception):  # noqa: N818 - the service's word, not a fault of ours
    """A request that is answered with an error."""

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
    """The constraints that a request breaks, each as ``broken`` words it. AWS counts no more than ten."""
    counted = list(islice(problems, _PROBLEMS_MAX))
    errors = "1 validation error" if len(counted) == 1 else f"{len(counted)} validation errors"
    return Refused("ValidationException", f"{errors} detected: {'; '.join(counted)}")


def broken(member: str, value: str | None, constraint: str) -> str:
    """One member breaks one constraint; ``None`` is null."""
    shown = "null" if value is None else f"'{value}'"
    return f"Value {shown} at '{member}' failed to satisfy constraint: {constraint}"


def blob(length: int) -> str:
    """Bytes, as AWS's messages show them."""
    return f"java.nio.HeapByteBuffer[pos=0 lim={length} cap={length}]"


def provisioned_only(stream: str, account: str) -> Refused:
    """The modelled meaning of ValidationException: the stream's capacity mode does not have this operation."""
    return Refused(
        "ValidationException", f"Request is invalid. Stream {stream} under account {account} is in On-Demand mode."
    )


def shard_throttling(operation: str, shard: str, stream: str | None, account: str) -> str:
    """What is said of a shard whose rate is exceeded: in the answer, or in an entry of PutRecords."""
    if operation == "GetRecords":
        return f"Rate exceeded for Shard - {account}/{stream}/{shard}"
    return f"Rate exceeded for shard {shard} in stream {stream} under account {account}."


def call_throttled(stream: str | None, account: str) -> Refused:
    """A control call comes too fast; it may name no stream."""
    what = f"stream {stream} under account {account}" if stream else f"account {account}"
    return limit_exceeded(f"Rate exceeded for {what}.")


def dry_run(operation: str) -> Refused:
    """Every check was passed, and nothing was done: with the status 400 (developer guide, kds-dryrun-validation)."""
    return Refused("DryRunOperationException", f"{operation} would be carried out: DryRun is set, so it was not.")


def serialization(message: str = "") -> Refused:
    """A member has a wrong type; without a message: the body as a whole cannot be read."""
    return Refused("SerializationException", message)


def is_unreadable(refusal: Refused | None) -> bool:
    """Whether the body as a whole cannot be read."""
    return refusal is not None and refusal.code == "SerializationException" and not refusal.message


def unknown_operation(status: int = 400) -> Refused:
    return Refused("UnknownOperationException", "", status)


def too_large(limit: int) -> Refused:
    return Refused("RequestEntityTooLargeException", f"The request is larger than {limit} bytes.", 413)


def internal_failure(message: str = "") -> Refused:
    """AWS's has no message."""
    return Refused("InternalFailure", message, 500)
