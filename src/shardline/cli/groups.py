"""How are consumer groups looked at, moved and removed?

``shardline groups``, over any lease store that another process can look into.

Invariants:

- GR1: what changes a group is refused while the group is alive, unless ``--force`` is said; and it is refused by the
  store, row by row, if a worker writes meanwhile.
- GR2: exit codes are those of every command; what was done before an interruption or a failure is told.
"""

import sys
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import click

from shardline.cli import group_report
from shardline.cli.group_changes import Outcome, carry_out
from shardline.cli.group_lag import Lag, find_lags
from shardline.cli.group_places import find_target
from shardline.cli.group_reset import Action, Step, plan
from shardline.cli.group_store import (
    StorePlace,
    Watch,
    find_group,
    list_groups,
    list_rows,
    opened,
    require_quiet,
    watch_groups,
)
from shardline.cli.invocation import Invocation, global_options
from shardline.cli.mistakes import WrongUsage
from shardline.cli.moments import DURATION
from shardline.cli.patience import patiently
from shardline.cli.terminal import notice, waiting
from shardline.model.lease import Lease
from shardline.model.shard import Shard
from shardline.ports import GroupOnStream, LeaseStore

_INTERRUPTED: Final = 130

_store = click.option(
    "--store",
    envvar="SHARDLINE_STORE",
    required=True,
    metavar="URL",
    help="Where the leases are (also SHARDLINE_STORE).",
)
_watch = click.option(
    "--watch",
    type=DURATION,
    default="4s",
    show_default=True,
    metavar="DURATION",
    help="How long to watch the leases to see who is alive; 0: not at all.",
)
_lease_duration = click.option(
    "--lease-duration",
    type=DURATION,
    default="10s",
    show_default=True,
    metavar="DURATION",
    help="That of the group's consumers: who is silent for so long is dead.",
)
_force = click.option("--force", is_flag=True, help="Also while the group is alive: its workers lose their leases.")
_dry_run = click.option("--dry-run", is_flag=True, help="Only print what would be done.")


@click.group()
@global_options
def groups() -> None:
    """Look at consumer groups, and change where they stand.

    The leases of a group tell who reads which shard, and how far it is. They are where its consumers keep them:

    \b
      sqlite:///leases.db      sqlite:////absolute/leases.db
      redis://host/0           rediss://user:password@host/0
      dynamodb://table?region=eu-west-1
      dynamodb://table?endpoint_url=http://localhost:8000
    """


# ---- looking


@groups.command("list")
@_store
@_watch
@global_options
@click.pass_obj
def list_(invocation: Invocation, /, *, store: str, watch: float) -> None:
    """Every group in a store.

    A group is called alive if one of its leases changes while it is watched; consumers renew theirs every third of the
    lease duration (10 s unless set).
    """

    async def look() -> list[tuple[GroupOnStream, Watch]]:
        place = StorePlace.of(store, invocation)
        names = await list_groups(place)
        async with opened(place, *names) as stores:
            return list(zip(names, await watch_groups(stores, watch), strict=True))

    found = invocation.run(look)
    if invocation.is_json:
        invocation.print_json([group_report.group_object(name, seen) for name, seen in found])
    elif found:
        group_report.print_groups(found)
    else:
        notice("this store has no groups")


class _Description(NamedTuple):
    name: GroupOnStream
    seen: Watch
    shards: Mapping[str, Shard] | None = None
    lags: Mapping[str, Lag] | None = None


@groups.command()
@click.argument("group")
@click.argument("stream", required=False)
@_store
@_watch
@click.option("--lag/--no-lag", default=True, help="Ask Kinesis for the shards, and how far behind each is; or not.")
@global_options
@click.pass_obj
def describe(invocation: Invocation, /, *, group: str, stream: str | None, store: str, watch: float, lag: bool) -> None:
    """One group, shard by shard: where it stands, who reads.

    And how far behind it is: to ask for that takes one of the five reads a second that Kinesis grants a shard. STREAM
    is needed only if the group reads several.
    """

    async def look() -> _Description:
        place = StorePlace.of(store, invocation)
        name = await find_group(place, group, stream)
        async with opened(place, name) as stores:
            (seen,) = await watch_groups(stores, watch)
        if not lag:
            return _Description(name, seen)
        async with invocation.client() as client:
            shards = {shard.shard_id: shard for shard in await patiently(lambda: client.list_shards(str(name.stream)))}
            there = [row for row in seen.rows.values() if row.shard_id in shards]
            return _Description(name, seen, shards, await find_lags(client, str(name.stream), there))

    name, seen, shards, lags = invocation.run(look)
    if invocation.is_json:
        told = group_report.group_object(name, seen)
        invocation.print_json(told | {"shards": group_report.shard_objects(seen, shards, lags)})
    else:
        group_report.print_shards(seen, shards, lags)
        notice(f"{name.group} on {name.stream}: {seen.judgement}")
    for problem in sorted({lag.problem for lag in (lags or {}).values() if lag.problem is not None})[:3]:
        notice(f"how far behind is not known everywhere: {problem}")


# ---- changing


@groups.command()
@click.argument("group")
@click.argument("stream", required=False)
@click.option(
    "--to",
    required=True,
    metavar="WHERE",
    help="TRIM_HORIZON, LATEST, a time (2026-03-01T09:30Z), an age (15m), or with --shard a sequence number.",
)
@click.option("--shard", metavar="ID", help="This shard alone.")
@_dry_run
@_force
@_lease_duration
@_store
@global_options
@click.pass_obj
def reset(invocation: Invocation, /, *, group: str, stream: str | None, to: str, shard: str | None, **how: Any) -> None:
    """Let a group go on from somewhere else.

    The whole group then stands as a new one that starts there: at TRIM_HORIZON it reads every shard again, parents
    before children; at LATEST only what comes from now on. A sequence number, as `describe` shows it, counts as done:
    the record after it comes next.

    It is refused while the group is alive. With --force its workers lose their leases, and go on from the new place;
    what they were at work on comes again.
    """

    async def change() -> tuple[GroupOnStream, list[Step], Outcome | None]:
        place = StorePlace.of(how["store"], invocation)
        name = await find_group(place, group, stream)
        async with invocation.client() as client, opened(place, name) as (leases,):
            shards = await patiently(lambda: client.list_shards(str(name.stream)))
            target = await find_target(client, str(name.stream), shards, to, shard)
            steps = plan(shards, await _rows_to_change(leases, **how), target, shard)
            return name, steps, None if how["dry_run"] else await carry_out(leases, steps, force=how["force"])

    _report(invocation, *invocation.run(change), verb="reset")


@groups.command()
@click.argument("group")
@click.argument("stream", required=False)
@click.option("--yes", is_flag=True, help="Do not ask.")
@_dry_run
@_force
@_lease_duration
@_store
@global_options
@click.pass_obj
def delete(invocation: Invocation, /, *, group: str, stream: str | None, yes: bool, **how: Any) -> None:
    """Forget a group: how far it was, and who reads.

    A consumer of that name is then a new group, and begins where its start says. A DynamoDB table stays, empty.
    """
    place = StorePlace.of(how["store"], invocation)
    if not yes and not how["dry_run"] and not sys.stdin.isatty():
        raise WrongUsage("there is nobody to ask: say --yes")

    async def look() -> tuple[GroupOnStream, list[Step]]:
        name = await find_group(place, group, stream)
        async with opened(place, name) as (leases,):
            rows = await _rows_to_change(leases, **how)
        return name, [Step(shard_id, Action.DELETE, row, None) for shard_id, row in sorted(rows.items())]

    name, steps = invocation.run(look)
    if how["dry_run"]:
        _report(invocation, name, steps, None, verb="delete")
        return
    if not yes and not click.confirm(f"Delete the group {name.group} on {name.stream}, {len(steps)} leases?", err=True):
        raise click.exceptions.Exit(1)

    async def remove() -> Outcome:
        async with opened(place, name) as (leases,):
            return await carry_out(leases, steps, force=how["force"])

    _report(invocation, name, steps, invocation.run(remove), verb="delete")


async def _rows_to_change(
    leases: LeaseStore, *, dry_run: bool, force: bool, lease_duration: float, **_: object
) -> dict[str, Lease]:
    """GR1."""
    if dry_run or force:
        return await list_rows(leases)
    with waiting(f"watching for up to {lease_duration:g} s whether the group is alive"):
        return await require_quiet(leases, lease_duration)


def _report(
    invocation: Invocation, name: GroupOnStream, steps: Sequence[Step], outcome: Outcome | None, *, verb: str
) -> None:
    """GR2."""
    if invocation.is_json:
        told = {"group": name.group, "stream": name.stream, "dry_run": outcome is None}
        told["complete"] = outcome is not None and outcome.stopped_by is None
        told["stopped_by"] = None if outcome is None else outcome.stopped_by
        invocation.print_json(told | {"shards": group_report.step_objects(steps, outcome)})
    else:
        group_report.print_steps(steps, outcome)
    if outcome is None:
        held = len(Watch({step.shard_id: step.before for step in steps if step.before is not None}).held)
        notice(f"a dry run: nothing was written; {held} of these leases have an owner")
    elif outcome.stopped_by is not None:
        done = f"{len(outcome.done)} of {len(steps)} shards are done"
        notice(f"the {verb} is not finished, {done}: {outcome.stopped_by}")
        raise click.exceptions.Exit(_INTERRUPTED if outcome.is_interrupted else 1)
