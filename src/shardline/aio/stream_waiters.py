"""Waits until the service has carried out a change of a stream or consumer.

The service accepts a change immediately and carries it out later. The functions here poll the status.

Invariants:

- Throttling, quotas and broken connections do not end a wait. Errors that are not retryable do.
- While waiting for ACTIVE, "not found" is not an error: a new stream or consumer is possibly not visible yet.
- A wait does not give up before its time limit, and does not last longer.
"""

from collections.abc import Awaitable, Callable
from typing import Final, TypeAlias

import anyio

from shardline.core.error_codes import Failure, FailureKind, to_error
from shardline.errors import UsageError, WaitTimeout

Wait: TypeAlias = bool | float
"""``False``: do not wait. ``True``: up to 300 seconds. A number: up to that many seconds."""

_DEFAULT_LIMIT: Final = 300.0
_FIRST_PAUSE: Final = 0.05
_LONGEST_PAUSE: Final = 1.0


def wait_limit(wait: object) -> float | None:
    """Return how many seconds to wait, or ``None`` if the caller does not wait.

    Raises:
        UsageError: ``wait`` is neither a boolean nor a positive number.
    """
    if isinstance(wait, bool):
        return _DEFAULT_LIMIT if wait else None
    if not isinstance(wait, (int, float)) or not 0 < wait < float("inf"):
        raise UsageError(f"wait must be True, False or a number of seconds above 0, not {wait!r}")
    return float(wait)


async def wait_until(
    wanted: str | None, limit: float | None, what: str, status: Callable[[], Awaitable[str | Failure]]
) -> None:
    """Wait until ``status`` returns ``wanted``, or "not found" if ``wanted`` is ``None``. Without ``limit``, do not
    wait.

    Raises:
        WaitTimeout: the status was still different after ``limit`` seconds.
        ServiceError: an error that is not retryable.
    """
    if limit is None:
        return
    pause = _FIRST_PAUSE
    last = "not known"
    with anyio.move_on_after(limit):  # the limit includes the requests, which may take longer
        while True:
            seen = await status()
            if isinstance(seen, Failure):
                is_gone = seen.kind is FailureKind.NOT_FOUND
                if is_gone and wanted is None:
                    return
                if not is_gone and not seen.retryable:
                    raise to_error(seen, f"waiting for {what}")
                last = seen.code
            elif seen == wanted:
                return
            else:
                last = seen
            await anyio.sleep(pause)
            pause = min(pause * 1.5, _LONGEST_PAUSE)
    raise WaitTimeout(f"{what} is not {wanted or 'gone'} after {limit:g} s: it is {last}")
