"""Applies a reset or a deletion to the rows of a group.

Invariants:

- Rows are changed one after the other. Ctrl-C stops the run before the next row: the current row is completed.
- The outcome lists the rows that were changed, even after an interruption, a store failure or a conflicting write by a
  worker.
- A refused write means that another process wrote the row. Without ``--force``, nothing more is written.
  With ``--force``, the write is retried on the current row.
- A write whose response was lost is sent again. If it is then refused, the current row shows whether the first try
  succeeded.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, final

import anyio

from shardline.cli.groups.reset_plan import Step, operations
from shardline.cli.interrupts import interrupts
from shardline.core.error_codes import Failure
from shardline.core.leases import LeaseOperation, Refused, landed
from shardline.model.lease import Lease
from shardline.ports import LeaseStore

_ATTEMPTS: Final = 5
_PAUSE: Final = 0.2


class _StoppedError(Exception):
    """Raised to stop the run. Its message says why nothing more is written."""


@final
@dataclass
class Outcome:
    """Says which steps were taken, and why the other steps were not taken."""

    done: list[str] = field(default_factory=list[str])
    """The shards whose steps are complete."""
    stopped_by: str | None = None
    """Why the other steps were not taken, or ``None`` if all steps were taken."""
    interrupted_by: int | None = None
    """The number of the signal that stopped the run, or ``None`` if no signal did."""


async def carry_out(store: LeaseStore, steps: Sequence[Step], *, force: bool) -> Outcome:
    """Take the steps one by one until a signal arrives, and return the outcome."""
    with interrupts() as signals:  # there is no stage to cancel, so a signal is only noted
        return await take_steps(store, steps, force=force, interrupted_by=lambda: signals.first)


async def take_steps(
    store: LeaseStore, steps: Sequence[Step], *, force: bool, interrupted_by: Callable[[], int | None] = lambda: None
) -> Outcome:
    """Take the steps one by one until ``interrupted_by`` returns the number of a signal, and return the outcome."""
    outcome = Outcome()
    for step in steps:
        if (number := interrupted_by()) is not None:
            outcome.interrupted_by, outcome.stopped_by = number, "interrupted"
            break
        try:
            await _take(store, step, force=force)
        except _StoppedError as reason:
            outcome.stopped_by = str(reason)
            break
        outcome.done.append(step.shard_id)
    return outcome


async def _take(store: LeaseStore, step: Step, *, force: bool) -> None:
    row = step.before
    for _ in range(_ATTEMPTS):
        refused = await _write_all(store, operations(row, step.after))
        if refused is None:
            return
        if not force:
            raise _StoppedError(f"another process wrote to the lease of {step.shard_id} meanwhile: the group is alive")
        row = refused.current
    raise _StoppedError(f"the lease of {step.shard_id} changes faster than it can be written: stop the group's workers")


async def _write_all(store: LeaseStore, writes: Sequence[LeaseOperation]) -> Refused | None:
    for write in writes:
        answer = await _write(store, write)
        if isinstance(answer, Refused):
            return answer
    return None


async def _write(store: LeaseStore, write: LeaseOperation) -> Lease | Refused | None:
    may_have_landed = False
    failure: Failure | None = None
    for attempt in range(_ATTEMPTS):
        await anyio.sleep(_PAUSE * attempt)
        answer = await store.apply(write)
        if not isinstance(answer, Failure):
            if isinstance(answer, Refused) and may_have_landed and landed(write, answer.current):
                return answer.current
            return answer
        failure = answer
        may_have_landed = may_have_landed or failure.maybe_received
        if not failure.retryable:
            break
    assert failure is not None, "at least one attempt was made"
    uncertainty = "; the last write may have been applied" if may_have_landed else ""
    raise _StoppedError(f"the store failed: {failure.message}{uncertainty}")
