"""Which exceptions does Shardline raise?

All of them, drawn as the tree that they are::

    ShardlineError
    ├── UsageError (also ValueError)    an argument or setting is wrong: nothing was sent
    ├── Closed                          the object was closed, or was never opened
    ├── CredentialsError                no usable AWS credentials
    ├── WaitTimeout (also TimeoutError) a stream, consumer or delivery did not reach the state in time
    ├── BufferFull                      put_nowait found no room: nothing was accepted
    ├── DeliveryFailed                  a record was given up; carries the record and every attempt
    ├── HandlerFailed                   a handler failed for good, and its policy says stop; carries the records
    ├── StreamRecreated                 the stream was deleted and made anew under its name
    └── RequestError                    one request failed; carries the facts
        ├── ServiceError                the service answered with an error
        ├── StoreError                  the lease store failed, and waiting will not help
        └── TransportError              no usable answer: DNS, connect, TLS, timeout, reset, garbage

Policy is a matter of attributes, not of subclasses: ``ServiceError`` and ``TransportError`` carry a ``kind`` (see
``shardline.core.failures.FailureKind``), ``code``, ``status``, ``request_id``, ``retry_after`` and ``maybe_received``.

Exceptions exist only at the public edge. Inside, an expected failure is a ``Failure`` value.
"""

from typing import Any, final


class ShardlineError(Exception):
    """Root of every exception that Shardline raises on purpose."""


@final
class UsageError(ShardlineError, ValueError):
    """An argument or a setting is wrong. The message names it, its value and what is allowed. Nothing was sent."""


@final
class Closed(ShardlineError):  # noqa: N818 - a state, said as one
    """The object is closed (or not yet opened) and does nothing more."""


@final
class CredentialsError(ShardlineError):
    """No usable AWS credentials were found, or they could not be refreshed. Nothing was sent."""


@final
class WaitTimeout(ShardlineError, TimeoutError):  # noqa: N818 - named like the built-in it is
    """A stream, consumer or delivery did not reach the awaited state in time. What began it goes on."""


@final
class BufferFull(ShardlineError):  # noqa: N818 - a state, said as one
    """The producer's buffer has no room for the record: it was not accepted. Wait, or use ``put``, which waits."""


@final
class DeliveryFailed(ShardlineError):  # noqa: N818 - what happened, said as it is
    """A record was given up.

    Attributes:
        reason: the ``Undelivered`` that ``delivery.outcome()`` gives.
        delivery: the record: its ``data``, ``key`` and ``explicit_hash_key`` are still there.
        code: the service's error code, or ours: ``Expired``, ``Closed``, ...
        message: the reason, in words.
        attempts: what was tried; of very many only the first and the last. An expired record's end with ``Expired``.
        attempt_count: how often it was sent.
        maybe_stored: whether a copy may lie in the stream all the same.
    """

    def __init__(self, delivery: Any, reason: Any) -> None:
        tried = {0: "", 1: " after 1 attempt"}.get(reason.attempt_count, f" after {reason.attempt_count} attempts")
        super().__init__(f"not delivered{tried}: {reason.code}: {reason.message}")
        self.reason = reason
        self.delivery = delivery
        self.code: str = reason.code
        self.message: str = reason.message
        self.attempts: tuple[Any, ...] = reason.attempts
        self.attempt_count: int = reason.attempt_count
        self.maybe_stored: bool = reason.maybe_stored

    def __reduce__(self) -> tuple[Any, ...]:
        return (DeliveryFailed, (self.delivery, self.reason))


@final
class HandlerFailed(ShardlineError):  # noqa: N818 - what happened, said as it is
    """A handler failed for good, and its failure policy says ``stop``. The records come again at the next start.

    What the handler raised last is the cause (``__cause__``).

    Attributes:
        shard_id: the shard that they are of.
        records: what the handler could not handle.
        attempts: how often the last of the calls was tried.
    """

    def __init__(self, shard_id: str, records: Any, attempts: int) -> None:
        first = records[0]
        which = f"record {first.sequence_number}" if len(records) == 1 else f"{len(records)} records"
        super().__init__(f"the handler failed for good on {which} of {shard_id}, and the policy is to stop")
        self.shard_id = shard_id
        self.records = records
        self.attempts = attempts

    def __reduce__(self) -> tuple[Any, ...]:
        return (HandlerFailed, (self.shard_id, self.records, self.attempts))


@final
class StreamRecreated(ShardlineError):  # noqa: N818 - what happened, said as it is
    """The stream was deleted and made anew under its name: the checkpoints mean nothing in it.

    ``ConsumerConfig(if_recreated="restart")`` starts over instead.
    """


class RequestError(ShardlineError):
    """What ``ServiceError`` and ``TransportError`` have in common: the facts about one failed request.

    Attributes:
        operation: the AWS operation, such as ``"PutRecords"``.
        kind: what sort of failure it is, such as ``"throttled"`` or ``"not-found"``.
        code: the service's error code, or a short name for what broke on the way.
        message: the service's words, or ours.
        status: the HTTP status, ``None`` without an answer.
        request_id: AWS's request id, for support cases.
        retry_after: seconds that the service asked to wait, if it did.
        maybe_received: whether the service may have acted on the request.
        retryable: whether the same request may succeed later.
    """

    def __init__(
        self,
        sentence: str,
        *,
        operation: str = "",
        kind: str = "",
        code: str = "",
        message: str = "",
        status: int | None = None,
        request_id: str | None = None,
        retry_after: float | None = None,
        maybe_received: bool = True,
        retryable: bool = False,
    ) -> None:
        super().__init__(sentence)
        self.operation = operation
        self.kind = kind
        self.code = code
        self.message = message
        self.status = status
        self.request_id = request_id
        self.retry_after = retry_after
        self.maybe_received = maybe_received
        self.retryable = retryable


@final
class ServiceError(RequestError):
    """The service answered with an error."""


@final
class TransportError(RequestError):
    """No usable answer came: name resolution, connection, TLS, a timeout, a reset, or bytes that are no answer."""


@final
class StoreError(RequestError):
    """The lease store cannot be used, and waiting will not help: denied, damaged, or of something else."""
