"""The exceptions that Shardline raises.

This is the whole tree::

    ShardlineError
    ├── UsageError (also ValueError)    an argument, setting or record is invalid; it was not accepted
    ├── Closed                          the object was closed, or was never opened
    ├── CredentialsError                no usable AWS credentials
    ├── WaitTimeout (also TimeoutError) a stream, consumer or delivery did not reach a state in time
    ├── BufferFull                      there was no room in time; the record was not accepted
    ├── DeliveryFailed                  a record was not delivered; carries the record and every attempt
    ├── LeaseNotHeld                    the leases of some shards are lost, or were never held; names the shards
    ├── FilterFailed                    the consumer's filter raised an exception; carries the record
    ├── HandlerFailed                   a handler failed for good, and its policy is to stop; carries the records
    ├── HandlerProcessFailed            a handler's process died or hung, or its exception cannot be pickled
    ├── StreamRecreated                 the stream was deleted and re-created under its name
    └── RequestError                    a request failed; carries the details
        ├── ServiceError                the service answered with an error
        ├── StoreError                  the lease store failed, and waiting will not help
        └── TransportError              no usable answer: DNS, connect, TLS, timeout, reset, unparseable

To decide how to react, read the attributes. There is no subclass per error: ``ServiceError`` and ``TransportError``
carry a ``kind`` (see ``shardline.core.error_codes.FailureKind``), ``code``, ``status``, ``request_id``, ``retry_after``
and ``maybe_received``.

Only the public API raises exceptions. Inside the library, an expected failure is a ``Failure`` value.
"""

from typing import Any, final


class ShardlineError(Exception):
    """The base class of every exception that Shardline raises on purpose.

    Attributes:
        deliveries: if ``put_many`` raised, the deliveries of the records before the record that was not accepted. These
            records stay accepted. In all other cases, an empty tuple.
    """

    deliveries: tuple[Any, ...] = ()


@final
class UsageError(ShardlineError, ValueError):
    """An argument, a setting or a record is invalid, and was not accepted. The message says what is invalid, and what
    is allowed.

    Attributes:
        index: if ``put_many`` refused a record, the index of that record, counted from 0. In all other cases, ``None``.
    """

    def __init__(self, *message: object, index: int | None = None) -> None:
        super().__init__(*message)
        self.index = index


@final
class Closed(ShardlineError):  # noqa: N818 - names the state
    """The object is closed, or has not been opened yet."""


@final
class CredentialsError(ShardlineError):
    """No usable AWS credentials were found, or they could not be refreshed. Nothing was sent."""


@final
class WaitTimeout(ShardlineError, TimeoutError):  # noqa: N818 - names what happened
    """A stream, consumer or delivery did not reach the awaited state in time. The operation itself continues."""


@final
class BufferFull(ShardlineError):  # noqa: N818 - names the state
    """The producer's buffer has no room, so the record was not accepted. Try again later, or use ``put``, which waits
    for room.
    """


@final
class DeliveryFailed(ShardlineError):  # noqa: N818 - names what happened
    """A record could not be delivered.

    Attributes:
        reason: the ``Undelivered`` that ``delivery.outcome()`` returns.
        delivery: the delivery of the record, which still has its ``data``, ``key`` and ``explicit_hash_key``.
        code: the service's error code, or one of Shardline's own: ``Expired``, ``Closed``, ...
        message: the reason, in words.
        attempts: the attempts. If there were very many, only the first and the last ones are kept. The last attempt of
            an expired record has the code ``Expired``.
        attempt_count: how many times the record was sent.
        maybe_stored: whether the stream may still contain a copy.
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
class LeaseNotHeld(ShardlineError):  # noqa: N818 - names the state
    """This worker does not hold the leases of some shards, so nothing was written for them. Another worker has these
    leases, or will get them, and reads the shards from their last checkpoints. The call was carried out for all other
    shards.

    Attributes:
        call: the name of the call.
        shards: a mapping from the ids of these shards to the reasons.
    """

    def __init__(self, call: str, shards: dict[str, str]) -> None:
        reasons = "; ".join(f"{shard_id}: {why}" for shard_id, why in sorted(shards.items()))
        super().__init__(f"{call}: this worker does not hold the leases of all shards: {reasons}")
        self.call = call
        self.shards = shards

    def __reduce__(self) -> tuple[Any, ...]:
        return (LeaseNotHeld, (self.call, self.shards))


@final
class FilterFailed(ShardlineError):  # noqa: N818 - names what happened
    """The consumer's filter raised an exception, so the consumer has stopped. The record was neither handed out nor
    skipped: it is delivered again at the next start. ``__cause__`` is the exception.

    Attributes:
        shard_id: the shard of the record.
        record: the record on which the filter failed.
    """

    def __init__(self, shard_id: str, record: Any) -> None:
        super().__init__(f"the filter failed on record {record.sequence_number} of {shard_id}: the consumer stops")
        self.shard_id = shard_id
        self.record = record

    def __reduce__(self) -> tuple[Any, ...]:
        return (FilterFailed, (self.shard_id, self.record))


@final
class HandlerFailed(ShardlineError):  # noqa: N818 - names what happened
    """A handler failed for good, and its failure policy is to stop. The records are delivered again at the next start.

    ``__cause__`` is the last exception of the handler.

    Attributes:
        shard_id: the shard of the records.
        records: the records that the handler could not handle.
        attempts: how many times the handler was called with these records.
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
class HandlerProcessFailed(ShardlineError):  # noqa: N818 - names what happened
    """A process of ``run(processes=...)`` died or hung while it handled a record, or an exception from the handler
    could not be pickled.

    The failure policy treats this exception as if the handler had raised it, so it is the ``__cause__`` of a
    ``HandlerFailed``.
    """


@final
class StreamRecreated(ShardlineError):  # noqa: N818 - names what happened
    """The stream was deleted and re-created under its name, so the checkpoints do not apply to the new stream.

    With ``ConsumerConfig(if_recreated="restart")``, the consumer starts over instead.
    """


class RequestError(ShardlineError):
    """A request failed. This is the base class of ``ServiceError``, ``TransportError`` and ``StoreError``.

    Attributes:
        operation: the AWS operation, such as ``"PutRecords"``.
        kind: the kind of failure, such as ``"throttled"`` or ``"not-found"``.
        code: the service's error code, or a short name for a connection failure.
        message: the service's message, or Shardline's own.
        status: the HTTP status, or ``None`` if there was no answer.
        request_id: AWS's request id, for support cases.
        retry_after: the delay in seconds that the service requested, or ``None`` if it requested no delay.
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
    """There was no usable answer.

    Name resolution, the connection or TLS failed, the request timed out, or the answer could not be parsed.
    """


@final
class StoreError(RequestError):
    """The lease store cannot be used, and waiting will not help.

    For example, access is denied, or the file or table is damaged or holds other data.
    """
