"""Retries control-plane calls and waits until a change to a stream is complete.

``Client`` sends every request once. But the service answers only 20 such calls per second, and a user who lists 40
streams should not have to repeat the command.

Invariants:

- A throttled call is retried for ``RETRY_TIMEOUT`` seconds. A call that failed in transit is retried a few times.
- A call that changes something is retried only if it was throttled, because then the service has changed nothing.
"""

import math
import random
from collections.abc import Awaitable, Callable, Iterable
from typing import Final, TypeVar

import anyio

from shardline.aio.client import Client
from shardline.aio.stream_waiters import wait_until
from shardline.core.error_codes import Failure
from shardline.core.requests import DescribeStreamSummary
from shardline.errors import RequestError
from shardline.model.stream import parse_stream

K = TypeVar("K")
T = TypeVar("T")

RETRY_TIMEOUT: Final = 30.0
_TRANSIENT_RETRIES_MAX: Final = 2
_ATTEMPTS_MAX: Final = 4
_PAUSE_MAX: Final = 2.0


async def with_retries(call: Callable[[], Awaitable[T]], *, changes: bool = False) -> T:
    """Return the result of ``call``, retrying it if that may help.

    Args:
        call: sends one request.
        changes: whether the request modifies something. If so, the call is retried only if it was throttled.
    """
    give_up_at = anyio.current_time() + RETRY_TIMEOUT
    pause = 0.2
    transient_count = 0
    while True:
        try:
            return await call()
        except RequestError as error:
            is_throttled = error.kind == "throttled" or (error.kind == "limit-exceeded" and not changes)
            is_transient = error.kind == "transient" and not changes
            transient_count += is_transient
            can_retry = is_throttled or (is_transient and transient_count <= _TRANSIENT_RETRIES_MAX)
            if not can_retry or anyio.current_time() + pause > give_up_at:
                raise
            await anyio.sleep(max(error.retry_after or 0.0, pause * (0.5 + random.random() / 2)))  # noqa: S311
            pause = min(pause * 2, _PAUSE_MAX)


async def retry_while(
    call: Callable[[], Awaitable[T | Failure]], is_retryable: Callable[[Failure], bool], pause: float
) -> T | Failure:
    """Return the result of ``call``, retrying it a few times while ``is_retryable`` accepts the failure."""
    answer = await call()
    for attempt in range(1, _ATTEMPTS_MAX):
        if not isinstance(answer, Failure) or not is_retryable(answer):
            break
        await anyio.sleep(pause * attempt)
        answer = await call()
    return answer


async def call_for_each(
    keys: Iterable[K], call: Callable[[K], Awaitable[T]], concurrency: float = math.inf
) -> dict[K, T]:
    """Call ``call`` for each key, at most ``concurrency`` at a time, and return the results by key."""
    results: dict[K, T] = {}
    limiter = anyio.CapacityLimiter(concurrency)

    async def call_for(key: K) -> None:
        async with limiter:
            results[key] = await call(key)

    async with anyio.create_task_group() as tasks:
        for key in keys:
            tasks.start_soon(call_for, key)
    return results


async def wait_for_stream(client: Client, stream: str, wanted: str | None, limit: float) -> None:
    """Wait until the stream has the status ``wanted``; ``None`` waits until the stream is deleted.

    Raises:
        WaitTimeout: the status was not reached within ``limit`` seconds. The change continues.
    """
    ref = parse_stream(stream)

    async def status() -> str | Failure:
        answer = await client.api.describe_stream_summary(DescribeStreamSummary(ref))
        return answer if isinstance(answer, Failure) else answer.status

    await wait_until(wanted, limit, f"the stream {ref.name}", status)
