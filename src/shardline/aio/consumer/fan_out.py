"""Finds the registered consumer that a worker subscribes with (enhanced fan-out), and registers it if it is missing.

Invariants:

- A consumer that is given by its ARN is used without being looked up: its stream may belong to another account, in
  which we possibly have no permission to describe the consumer.
- A consumer that is given by its name is looked up at every start. Such a consumer is never deregistered, because other
  workers may use it.
- Workers that start together register one consumer: all registrations but one are refused, and the refused workers find
  the registered consumer.
- Throttling and broken connections are retried. A request that the service refuses because of a limit is retried for a
  few seconds, because it may be a limit on the rate of calls. After that, the error is raised, or the worker polls if
  the user asked for this.
"""

import logging
from dataclasses import dataclass
from typing import Final, Literal, final

import anyio

from shardline.aio.client import Client
from shardline.codec.shapes import DescribeStreamConsumerResponse, StreamConsumer
from shardline.core.error_codes import Failure, FailureKind, to_error
from shardline.core.requests import DescribeStreamSummary
from shardline.errors import UsageError, WaitTimeout
from shardline.model.stream import StreamRef, is_consumer_name, parse_consumer_arn

_log: Final = logging.getLogger("shardline.consumer")
_TIMEOUT: Final = 120.0  # seconds until a consumer that is registered should be ACTIVE
_LIMIT_RETRIES: Final = 4
_FIRST_PAUSE: Final = 0.1
_LONGEST_PAUSE: Final = 2.0


@final
@dataclass(frozen=True, slots=True)
class FanOut:
    """The registered consumer to read with (enhanced fan-out), and what to do if it cannot be registered."""

    name: str
    """The name or the ARN of a registered consumer. A name is registered if the stream has no such consumer."""
    fallback: Literal["polling"] | None = None
    """The fallback if a limit prevents registration: ``"polling"`` polls instead, and ``None`` raises the error."""

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not (self.is_arn or is_consumer_name(self.name)):
            raise UsageError(
                f"fan_out takes the name of a registered consumer (1 to 128 of the characters a-z A-Z 0-9 _ . -) or "
                f"its ARN, not {self.name!r}"
            )
        if self.is_arn:
            parse_consumer_arn(self.name)
        if self.fallback not in (None, "polling"):
            raise UsageError(f"fallback must be 'polling' or None, not {self.fallback!r}")

    @property
    def is_arn(self) -> bool:
        return self.name.startswith("arn:")


def check_fan_out(fan_out: object, stream: StreamRef, *, is_one: bool = True) -> FanOut | None:
    """Return how to read by fan-out, or ``None`` to poll. ``is_one`` means that the consumer reads one stream.

    Raises:
        UsageError: the argument is invalid, or names a consumer of another stream.
    """
    if fan_out is None:
        return None
    if isinstance(fan_out, str):
        fan_out = FanOut(fan_out)
    if not isinstance(fan_out, FanOut):
        raise UsageError(f"fan_out must be a consumer name, a consumer ARN or a FanOut, not {type(fan_out).__name__}")
    if fan_out.is_arn and not is_one:
        raise UsageError("a consumer of several streams needs the name of a registered consumer, which each stream has")
    if fan_out.is_arn:
        of = parse_consumer_arn(fan_out.name)
        if str(stream) not in (of.name, of.arn):
            raise UsageError(f"fan_out names a consumer of the stream {of}, but this Consumer reads {stream}")
    return fan_out


async def find_consumer(client: Client, stream: StreamRef, fan_out: FanOut) -> str | None:
    """Return the ARN of the registered consumer, once it is ACTIVE, or ``None`` if the caller should poll instead.

    Raises:
        ServiceError, TransportError: the consumer can be neither found nor registered.
        WaitTimeout: the consumer is not ACTIVE after 120 s.
    """
    if fan_out.is_arn:
        return fan_out.name
    registration = _Registration(client, stream, fan_out)
    with anyio.move_on_after(_TIMEOUT):
        return await registration.finish()
    raise WaitTimeout(
        f"the registered consumer {fan_out.name!r} of {stream} is not ACTIVE after {_TIMEOUT:g} s: "
        f"it is {registration.last_seen}"
    )


@final
class _Registration:
    """One attempt to find a consumer by its name, or to register it."""

    def __init__(self, client: Client, stream: StreamRef, fan_out: FanOut) -> None:
        self._api = client.api
        self._stream = stream
        self._fan_out = fan_out
        self._limited = 0
        self.last_seen = "not known"

    async def finish(self) -> str | None:
        pause = _FIRST_PAUSE
        while True:
            found = await self._step()
            if isinstance(found, Failure):
                if found.kind is FailureKind.LIMIT_EXCEEDED and self._limited >= _LIMIT_RETRIES:
                    self._fall_back(found)
                    return None
                self._limited += found.kind is FailureKind.LIMIT_EXCEEDED
                if not found.retryable:
                    raise to_error(found, f"finding the registered consumer {self._fan_out.name!r}")
                self.last_seen = found.code
            elif found.status == "ACTIVE":
                return found.arn
            else:
                self.last_seen = found.status
            await anyio.sleep(pause)
            pause = min(pause * 2, _LONGEST_PAUSE)

    async def _step(self) -> StreamConsumer | Failure:
        """Describe the consumer. Register it if the stream has no such consumer."""
        arn = await self._stream_arn()
        if isinstance(arn, Failure):
            return arn
        members = {"StreamARN": arn, "ConsumerName": self._fan_out.name}
        found = await self._api.typed_call("DescribeStreamConsumer", members, DescribeStreamConsumerResponse)
        if not isinstance(found, Failure):
            return found.consumer_description
        if found.kind is not FailureKind.NOT_FOUND:
            return found
        registered = await self._api.call("RegisterStreamConsumer", members)
        if isinstance(registered, Failure):
            return registered  # IN_USE: another worker has registered the consumer, and the next step finds it
        _log.info("registered the consumer %s of %s for enhanced fan-out", self._fan_out.name, self._stream)
        return StreamConsumer(name=self._fan_out.name, arn="", status="CREATING")

    async def _stream_arn(self) -> str | Failure:
        if self._stream.arn is not None:
            return self._stream.arn
        summary = await self._api.describe_stream_summary(DescribeStreamSummary(self._stream))
        return summary if isinstance(summary, Failure) else summary.arn

    def _fall_back(self, failure: Failure) -> None:
        """Warn that the worker falls back to polling, or raise the error."""
        if self._fan_out.fallback is None:
            raise to_error(failure, f"registering the consumer {self._fan_out.name!r}")
        _log.warning(
            "%s: the consumer %s cannot be registered, so this worker polls: %s: %s",
            self._stream,
            self._fan_out.name,
            failure.code,
            failure.message,
        )
