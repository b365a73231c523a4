"""How are the rows of a group changed, and what is told if that is broken off?

Invariants:

- Rows are changed one after the other. A Ctrl-C stops before the next one: the row at hand is brought to its end.
- What was done is known, whatever ends it: an interruption, a store that fails, a worker that writes meanwhile.
- A refused write means that someone else wrote. Then nothing more is written, unless the user said ``--force``:
  then it is tried again on the row as it now stands.
- A write whose answer was lost is sent again, and known by its effect.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, final

import anyio

from shardline.cli.groups.reset_plan import Step, operations
from shardline.cli.interrupts import interrupts
from shardline.core.failures import Failure
from shardline.core.leases import LeaseOperation, Refused, landed
from shardline.model.lease import Lease
from shardline.ports import LeaseStore

_ATTEMPTS: Final = 5
_PAUSE: Final = 0.2


class _StoppedError(Exception):
    """Carries out why nothing more is written."""


@final
@dataclass
class Outcome:
    """What became of the steps."""

    done: list[str] = field(default_factory=list[str])
    """The shards whose rows are as they should be."""
    stopped_by: str | None = None
    """Why the others are not."""
    interrupted_by: int | None = None
    """The signal that stopped them."""


async def carry_out(store: LeaseStore, steps: Sequence[Step], *, force: bool) -> Outcome:
    """Take the steps, one by one."""
    outcome = Outcome()
    with interrupts() as heard:  # which break nothing off meanwhile
        for step in steps:
            if heard.first is not None:
                outcome.interrupted_by, outcome.stopped_by = heard.first, "interrupted"
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
            raise _StoppedError(f"someone else wrote to the lease of {step.shard_id} meanwhile: the group is alive")
        row = refused.current
    raise _StoppedError(f"the lease of {step.shard_id} is written to faster than it can be changed: stop its workers")


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
            known = isinstance(answer, Refused) and may_have_landed and landed(write, answer.current)
            return answer.current if known and isinstance(answer, Refused) else answer
        failure = answer
        may_have_landed = may_have_landed or failure.maybe_received
        if not failure.retryable:
            break
    assert failure is not None, "at least one attempt was made"
    doubt = "; the last write may have been made" if may_have_landed else ""
    raise _StoppedError(f"the store failed: {failure.message}{doubt}")
