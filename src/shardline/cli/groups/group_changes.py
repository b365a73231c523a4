"""Checks whether a group may be changed, and reports the change.

``reset``, ``delete`` and ``import`` share this code.

Invariants:

- A change is refused while the group is alive, unless ``--force`` is given.
- After an interruption or a failure, the completed steps are reported.
"""

from collections.abc import Mapping, Sequence
from typing import Final

import click

from shardline.cli.groups import group_report
from shardline.cli.groups.apply_reset import Outcome
from shardline.cli.groups.group_store import Watch, list_rows, require_quiet
from shardline.cli.groups.position_effects import Effect
from shardline.cli.groups.reset_plan import Step
from shardline.cli.invocation import Invocation
from shardline.cli.quantities import counted
from shardline.cli.terminal import notice, waiting
from shardline.model.lease import Lease
from shardline.ports import GroupOnStream, LeaseStore

_SIGNAL_EXIT_BASE: Final = 128


async def rows_to_change(
    leases: LeaseStore, *, dry_run: bool, force: bool, lease_duration: float, **_: object
) -> dict[str, Lease]:
    """Return the rows of the group. If they will be changed without ``force``, check first that no worker is alive.

    Raises:
        ClickException: a worker is alive, or the store failed.
    """
    if dry_run or force:
        return await list_rows(leases)
    with waiting(f"watching the leases for up to {lease_duration:g} s to see whether the group is alive"):
        return await require_quiet(leases, lease_duration)


def report_change(
    invocation: Invocation,
    name: GroupOnStream,
    steps: Sequence[Step],
    outcome: Outcome | None,
    *,
    verb: str,
    effects: Mapping[str, Effect] | None = None,
) -> None:
    """Print the steps and their outcome; an ``outcome`` of ``None`` means a dry run.

    Raises:
        Exit: some steps were not taken.
    """
    if invocation.is_json:
        result = {"group": name.group, "stream": name.stream, "dry_run": outcome is None}
        result["complete"] = outcome is not None and outcome.stopped_by is None
        result["stopped_by"] = None if outcome is None else outcome.stopped_by
        invocation.print_json(result | {"shards": group_report.step_objects(steps, outcome, effects)})
    else:
        group_report.print_steps(steps, outcome, effects)
    if outcome is None:
        held = len(Watch({step.shard_id: step.before for step in steps if step.before is not None}).held)
        notice(f"dry run: nothing was written; {counted(held, 'lease')} with an owner")
    elif outcome.stopped_by is not None:
        done = f"{len(outcome.done)} of {counted(len(steps), 'shard')} done"
        notice(f"the {verb} is incomplete, {done}: {outcome.stopped_by}")
        raise click.exceptions.Exit(1 if outcome.interrupted_by is None else _SIGNAL_EXIT_BASE + outcome.interrupted_by)
