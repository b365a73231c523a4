"""Which exceptions does Shardline raise?

All of them, drawn as the tree that they are::

    ShardlineError
    ├── UsageError (also ValueError)    an argument or setting is wrong: nothing was sent
    ├── Closed                          the object was closed, or was never opened
    ├── CredentialsError                no usable AWS credentials
    ├── WaitTimeout (also TimeoutError) a stream or consumer did not reach the state in time
    └── RequestError                    one request failed; carries the facts
        ├── ServiceError                the service answered with an error
        └── TransportError              no usable answer: DNS, connect, TLS, timeout, reset, garbage

Policy is a matter of attributes, not of subclasses: ``ServiceError`` and ``TransportError`` carry a ``kind`` (see
``shardline.core.failures.FailureKind``), ``code``, ``status``, ``request_id``, ``retry_after`` and ``maybe_received``.

Exceptions exist only at the public edge. Inside, an expected failure is a ``Failure`` value.
"""

from typing import final


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
    """A stream or consumer did not reach the awaited state in time. The request that began it was accepted."""


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
