"""When has a change of a stream or consumer come to pass?

The service accepts a change at once and carries it out later. This polls its status.

Invariants:

- Throttling, quotas and broken connections do not end a wait; an error that stays does.
- A thing that is awaited ACTIVE may not be visible at first: not found counts as not yet.
- A wait takes its whole limit, and no longer.
"""

from collections.abc import Awaitable, Callable
from typing import Final, TypeAlias

import anyio

from shardline.core.failures import Failure, FailureKind, to_error
from shardline.errors import UsageError, WaitTimeout

Wait: TypeAlias = bool | float
"""``False``: do not wait. ``True``: up to 300 seconds. A number: up to that many seconds."""

_DEFAULT_LIMIT: Final = 300.0
_FIRST_PAUSE: Final = 0.05
_LONGEST_PAUSE: Final = 1.0


def wait_limit(wait: object) -> float | None:
    """How long to wait, ``None`` for not at all.

    Raises:
        UsageError: it is neither a boolean nor a positive number.
    """
    if isinstance(wait, bool):
        return _DEFAULT_LIMIT if wait else None
    if not isinstance(wait, (int, float)) or not 0 < wait < float("inf"):
        raise UsageError(f"wait must be True, False or a number of seconds above 0, not {wait!r}")
    return float(wait)


async def wait_until(
    wanted: str | None, limit: float | None, what: str, status: Callable[[], Awaitable[str | Failure]]
) -> None:
    """Return when ``status`` gives ``wanted`` (``None``: not found), at once where there is no ``limit``.

    Raises:
        WaitTimeout: it did not within ``limit`` seconds.
        ServiceError: an error that waiting does not cure.
    """
    if limit is None:
        return
    pause = _FIRST_PAUSE
    last = "not known"
    with anyio.move_on_after(limit):  # Around the requests too, which may take longer
        while True:
            seen = await status()
            if isinstance(seen, Failure):
                gone = seen.kind is FailureKind.NOT_FOUND
                if gone and wanted is None:
                    return
                if not gone and not seen.retryable:
                    raise to_error(seen, f"waiting for {what}")
                last = seen.code
            elif seen == wanted:
                return
            else:
                last = seen
            await anyio.sleep(pause)
            pause = min(pause * 1.5, _LONGEST_PAUSE)
    raise WaitTimeout(f"{what} is not {wanted or 'gone'} after {limit:g} s: it is {last}")
