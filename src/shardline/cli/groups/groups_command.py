"""Shows, resets and deletes consumer groups.

``shardline groups`` works on any lease store that another process can read.

Invariants:

- A command that changes a group is refused while the group is alive, unless ``--force`` is given. The store also
  refuses a write to a row that a worker has changed in the meantime.
- The exit codes are those of ``main``. After an interruption or a failure, the completed steps are reported.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final, NamedTuple

import click

from shardline.cli.error_messages import WrongUsage
from shardline.cli.groups import group_report
from shardline.cli.groups.apply_reset import Outcome, carry_out
from shardline.cli.groups.group_lag import Lag, find_lags
from shardline.cli.groups.group_store import (
    StorePlace,
    Watch,
    answered,
    ask_groups,
    find_group,
    foreign_shards,
    list_rows,
    opened,
    require_quiet,
    watch_groups,
)
from shardline.cli.groups.group_suggestions import (
    complete_group,
    complete_shard_of_group,
    complete_stream_of_group,
    complete_target,
)
from shardline.cli.groups.reset_plan import Action, Step, find_target, plan
from shardline.cli.invocation import Invocation, global_options
from shardline.cli.quantities import counted
from shardline.cli.retrying import with_retries
from shardline.cli.terminal import notice, waiting
from shardline.cli.time_arguments import duration_option
from shardline.model.lease import Lease
from shardline.model.shard import Shard
from shardline.ports import GroupOnStream, LeaseStore

_SIGNAL_EXIT_BASE: Final = 128

_store = click.option(
    "--store",
    envvar="SHARDLINE_STORE",
    required=True,
    metavar="URL",
    help="URL of the lease store (also SHARDLINE_STORE).",
)


def _watch(default: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    return duration_option(
        "--watch",
        default,
        "Maximum time to watch the leases, to see which owners are alive; 0 does not watch.",
        "DURATION",
    )


_lease_duration = duration_option(
    "--lease-duration", "10s", "The group's lease duration; owners silent for longer count as dead.", "DURATION"
)
_force = click.option("--force", is_flag=True, help="Change a live group too: its workers lose their leases.")
_dry_run = click.option("--dry-run", is_flag=True, help="Print what would be done, and do nothing.")


@click.group()
@global_options
def groups() -> None:
    """Show, reset and delete consumer groups.

    The leases of a group say which worker reads which shard, and up to which position. --store is the URL of the store
    in which the group's consumers keep their leases:

    \b
      sqlite:///leases.db      sqlite:////absolute/leases.db
      redis://host/0           rediss://user:password@host/0
      dynamodb://table?region=eu-west-1
      dynamodb://table?endpoint_url=http://localhost:8000

    \b
    Examples:
      shardline groups list --store sqlite:///leases.db
      shardline groups describe billing --store redis://host/0
      shardline groups reset billing --to 15m --store redis://host/0
    """


# ---- list and describe


@groups.command("list")
@_store
@_watch("0s")
@global_options
@click.pass_obj
def list_(invocation: Invocation, /, *, store: str, watch: float) -> None:
    """List the groups of a store.

    The state of a group that has owners is known only with --watch: a group is alive if one of its leases changes while
    it is watched. Consumers renew their leases every third of the lease duration (which is 10 s by default).

    \b
    Examples:
      shardline groups list --store sqlite:///leases.db
      shardline groups list --store redis://host/0 --watch 4s
      shardline groups list --store dynamodb://leases --output json | jq '.[].group'
    """

    async def watch_all() -> list[tuple[GroupOnStream, Watch]]:
        place = StorePlace.of(store, invocation)
        names = answered(await ask_groups(place))
        async with opened(place, *names) as stores:
            with _watching(watch):
                return list(zip(names, await watch_groups(stores, watch), strict=True))

    found = invocation.run(watch_all)
    if invocation.is_json:
        invocation.print_json([group_report.group_object(name, seen) for name, seen in found])
    elif found:
        group_report.print_groups(found)
        if not watch and any(seen.held for _, seen in found):
            notice("--watch 4s shows which owners are alive")
    else:
        notice("this store has no groups")


def _watching(seconds: float) -> AbstractContextManager[None]:
    return waiting(f"watching the leases for up to {seconds:g} s") if seconds else nullcontext()


class _Description(NamedTuple):
    name: GroupOnStream
    seen: Watch
    shards: Mapping[str, Shard] | None = None
    lags: Mapping[str, Lag] | None = None
    is_recreated: bool = False
    """Whether some rows belong to a deleted stream of the same name."""


@groups.command()
@click.argument("group", shell_complete=complete_group)
@click.argument("stream", required=False, shell_complete=complete_stream_of_group)
@_store
@_watch("4s")
@click.option("--lag/--no-lag", default=True, help="Ask Kinesis for the shards, and how far behind each is.")
@global_options
@click.pass_obj
def describe(invocation: Invocation, /, *, group: str, stream: str | None, store: str, watch: float, lag: bool) -> None:
    """Show one group, shard by shard: its position, its lag and its owner.

    Finding the lag uses one of the five reads per second that Kinesis allows per shard. STREAM is needed only if the
    group reads several streams.

    \b
    Examples:
      shardline groups describe billing --store sqlite:///leases.db
      shardline groups describe billing orders --store redis://host/0 --watch 0
      shardline groups describe billing --store redis://host/0 --output json | jq '.shards[].lag_ms'
    """

    async def read_group() -> _Description:
        place = StorePlace.of(store, invocation)
        name = await find_group(place, group, stream)
        async with opened(place, name) as stores:
            with _watching(watch):
                (seen,) = await watch_groups(stores, watch)
        if not lag:
            return _Description(name, seen)
        async with invocation.client() as client:
            shards = {
                shard.shard_id: shard for shard in await with_retries(lambda: client.list_shards(str(name.stream)))
            }
            foreign = foreign_shards(seen.rows, shards)
            rows = [row for row in seen.rows.values() if row.shard_id in shards and row.shard_id not in foreign]
            lags = await find_lags(client, str(name.stream), rows)
            return _Description(name, seen, shards, lags, is_recreated=bool(foreign))

    name, seen, shards, lags, is_recreated = invocation.run(read_group)
    if invocation.is_json:
        description = group_report.group_object(name, seen) | {"recreated": is_recreated if lag else None}
        invocation.print_json(description | {"shards": group_report.shard_objects(seen, shards, lags)})
    else:
        group_report.print_shards(seen, shards, lags)
        notice(f"{name.group} on {name.stream}: {seen.judgement}")
    if is_recreated:
        notice(
            f"the stream {name.stream} was deleted and re-created: the group's positions belong to the old stream; "
            f"reset it with `shardline groups reset {name.group} --to TRIM_HORIZON`"
        )
    for problem in sorted({found.problem for found in (lags or {}).values() if found.problem is not None})[:3]:
        notice(f"the lag of some shards is unknown: {problem}")


# ---- reset and delete


@groups.command()
@click.argument("group", shell_complete=complete_group)
@click.argument("stream", required=False, shell_complete=complete_stream_of_group)
@click.option(
    "--to",
    required=True,
    metavar="WHERE",
    shell_complete=complete_target,
    help="TRIM_HORIZON, LATEST, a time (2026-03-01T09:30Z), an age (15m), or with --shard a sequence number.",
)
@click.option("--shard", metavar="ID", shell_complete=complete_shard_of_group, help="Reset only this shard.")
@_dry_run
@_force
@_lease_duration
@_store
@global_options
@click.pass_obj
def reset(invocation: Invocation, /, *, group: str, stream: str | None, to: str, shard: str | None, **how: Any) -> None:
    """Move a group to another position.

    The group then continues like a new one that starts there: at TRIM_HORIZON it reads every shard again, parents
    before children; at LATEST only records that arrive from now on. A sequence number, as `describe` shows it, counts
    as processed: the group continues with the record after it.

    A reset is refused while the group is alive. With --force its workers lose their leases and continue from the new
    position; records that they were processing are delivered again.

    \b
    Examples:
      shardline groups reset billing --to TRIM_HORIZON --dry-run --store sqlite:///leases.db
      shardline groups reset billing --to 2026-03-01T09:30Z --store redis://host/0
      shardline groups reset billing orders --to LATEST --force --store dynamodb://leases
    """

    async def change() -> tuple[GroupOnStream, list[Step], Outcome | None]:
        place = StorePlace.of(how["store"], invocation)
        name = await find_group(place, group, stream)
        async with invocation.client() as client, opened(place, name) as (leases,):
            shards = await with_retries(lambda: client.list_shards(str(name.stream)))
            target = await find_target(client, str(name.stream), shards, to, shard)
            steps = plan(shards, await _rows_to_change(leases, **how), target, shard)
            return name, steps, None if how["dry_run"] else await carry_out(leases, steps, force=how["force"])

    _report(invocation, *invocation.run(change), verb="reset")


@groups.command()
@click.argument("group", shell_complete=complete_group)
@click.argument("stream", required=False, shell_complete=complete_stream_of_group)
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@_dry_run
@_force
@_lease_duration
@_store
@global_options
@click.pass_obj
def delete(invocation: Invocation, /, *, group: str, stream: str | None, yes: bool, **how: Any) -> None:
    """Delete a group: its positions and its leases.

    A consumer with that group name then starts as a new group. A DynamoDB table stays, empty.

    \b
    Examples:
      shardline groups delete billing --store sqlite:///leases.db
      shardline groups delete billing orders --yes --store redis://host/0
    """
    place = StorePlace.of(how["store"], invocation)
    if not yes and not how["dry_run"] and not sys.stdin.isatty():
        raise WrongUsage("not a terminal: pass --yes to confirm")

    async def plan_deletion() -> tuple[GroupOnStream, list[Step]]:
        name = await find_group(place, group, stream)
        async with opened(place, name) as (leases,):
            rows = await _rows_to_change(leases, **how)
        return name, [Step(shard_id, Action.DELETE, row, None) for shard_id, row in sorted(rows.items())]

    name, steps = invocation.run(plan_deletion)
    if how["dry_run"]:
        _report(invocation, name, steps, None, verb="delete")
        return
    leases = counted(len(steps), "lease")
    if not yes and not click.confirm(f"Delete the group {name.group} on {name.stream}, {leases}?", err=True):
        raise click.exceptions.Exit(1)

    async def remove() -> Outcome:
        async with opened(place, name) as (leases,):
            return await carry_out(leases, steps, force=how["force"])

    _report(invocation, name, steps, invocation.run(remove), verb="delete")


async def _rows_to_change(
    leases: LeaseStore, *, dry_run: bool, force: bool, lease_duration: float, **_: object
) -> dict[str, Lease]:
    if dry_run or force:
        return await list_rows(leases)
    with waiting(f"watching the leases for up to {lease_duration:g} s to see whether the group is alive"):
        return await require_quiet(leases, lease_duration)


def _report(
    invocation: Invocation, name: GroupOnStream, steps: Sequence[Step], outcome: Outcome | None, *, verb: str
) -> None:
    if invocation.is_json:
        result = {"group": name.group, "stream": name.stream, "dry_run": outcome is None}
        result["complete"] = outcome is not None and outcome.stopped_by is None
        result["stopped_by"] = None if outcome is None else outcome.stopped_by
        invocation.print_json(result | {"shards": group_report.step_objects(steps, outcome)})
    else:
        group_report.print_steps(steps, outcome)
    if outcome is None:
        held = len(Watch({step.shard_id: step.before for step in steps if step.before is not None}).held)
        notice(f"dry run: nothing was written; {counted(held, 'lease')} with an owner")
    elif outcome.stopped_by is not None:
        done = f"{len(outcome.done)} of {counted(len(steps), 'shard')} done"
        notice(f"the {verb} is incomplete, {done}: {outcome.stopped_by}")
        raise click.exceptions.Exit(1 if outcome.interrupted_by is None else _SIGNAL_EXIT_BASE + outcome.interrupted_by)
