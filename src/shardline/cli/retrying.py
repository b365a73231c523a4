"""Which calls of the control plane are made again, and when has a change come to pass?

``Client`` sends every request once. A person who lists forty streams should not have to repeat the command because the
service answers twenty of such calls a second.

Invariants:

- A call that was throttled is made again for ``PATIENCE`` seconds; one that broke on the way a few times.
- A call that changes something is made again only if it was throttled: then nothing was done.
"""

import math
import random
from collections.abc import Awaitable, Callable, Iterable
from typing import Final, TypeVar

import anyio

from shardline.aio.client import Client
from shardline.aio.stream_waiters import wait_until
from shardline.core.failures import Failure
from shardline.core.requests import DescribeStreamSummary
from shardline.errors import RequestError
from shardline.model.stream import parse_stream

K = TypeVar("K")
T = TypeVar("T")

PATIENCE: Final = 30.0
_BREAKS_MAX: Final = 2
_ATTEMPTS: Final = 4
_LONGEST: Final = 2.0


async def patiently(call: Callable[[], Awaitable[T]], *, changes: bool = False) -> T:
    """The answer to ``call``, which is made again where that may help."""
    give_up_at = anyio.current_time() + PATIENCE
    pause = 0.2
    breaks = 0
    while True:
        try:
            return await call()
        except RequestError as error:
            too_fast = error.kind == "throttled" or (error.kind == "limit-exceeded" and not changes)
            broken = error.kind == "transient" and not changes
            breaks += broken
            if not (too_fast or (broken and breaks <= _BREAKS_MAX)) or anyio.current_time() + pause > give_up_at:
                raise
            await anyio.sleep(max(error.retry_after or 0.0, pause * (0.5 + random.random() / 2)))  # noqa: S311
            pause = min(pause * 2, _LONGEST)


async def ask_again(
    call: Callable[[], Awaitable[T | Failure]], may_help: Callable[[Failure], bool], pause: float
) -> T | Failure:
    """The answer to ``call``, which is made a few times as long as its failures are such that it ``may_help``."""
    answer = await call()
    for attempt in range(1, _ATTEMPTS):
        if not isinstance(answer, Failure) or not may_help(answer):
            break
        await anyio.sleep(pause * attempt)
        answer = await call()
    return answer


async def ask_all(questions: Iterable[K], ask: Callable[[K], Awaitable[T]], at_once: float = math.inf) -> dict[K, T]:
    """The answer to each question, of which at most so many are asked at a time."""
    answers: dict[K, T] = {}
    room = anyio.CapacityLimiter(at_once)

    async def ask_one(question: K) -> None:
        async with room:
            answers[question] = await ask(question)

    async with anyio.create_task_group() as tasks:
        for question in questions:
            tasks.start_soon(ask_one, question)
    return answers


async def wait_for_stream(client: Client, stream: str, wanted: str | None, limit: float) -> None:
    """Until the stream has this status; ``None``: until it is gone.

    Raises:
        WaitTimeout: not within ``limit`` seconds. The change goes on.
    """
    ref = parse_stream(stream)

    async def status() -> str | Failure:
        answer = await client.api.describe_stream_summary(DescribeStreamSummary(ref))
        return answer if isinstance(answer, Failure) else answer.status

    await wait_until(wanted, limit, f"the stream {ref.name}", status)
