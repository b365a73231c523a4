"""Lists, resets and deletes consumer groups.

``shardline groups`` works on any lease store that another process can read. ``describe``, ``export`` and ``import`` are
in separate modules.

Invariants:

- A command that changes a group is refused while the group is alive, unless ``--force`` is given. The store also
  refuses a write to a row that a worker has changed in the meantime.
- ``main`` documents the exit codes.
"""

import sys
from typing import Any

import click

from shardline.cli.error_messages import WrongUsage
from shardline.cli.groups import group_report
from shardline.cli.groups.apply_reset import Outcome, carry_out
from shardline.cli.groups.describe_command import describe
from shardline.cli.groups.group_changes import report_change, rows_to_change
from shardline.cli.groups.group_options import (
    dry_run_option,
    force_option,
    lease_duration_option,
    observe_option,
    store_option,
)
from shardline.cli.groups.group_store import (
    StorePlace,
    Watch,
    answered,
    ask_groups,
    find_group,
    opened,
    watch_groups,
    watching,
)
from shardline.cli.groups.group_suggestions import (
    complete_group,
    complete_shard_of_group,
    complete_stream_of_group,
    complete_target,
)
from shardline.cli.groups.reset_plan import Action, Step, find_target, plan
from shardline.cli.groups.transfer_commands import export, import_
from shardline.cli.invocation import Invocation, global_options
from shardline.cli.quantities import counted
from shardline.cli.retrying import with_retries
from shardline.cli.terminal import notice
from shardline.ports import GroupOnStream


@click.group()
@global_options
def groups() -> None:
    """Show, move, copy and delete consumer groups.

    The leases of a group say which worker reads which shard, and up to which position. --store is the URL of the store
    in which the group's consumers keep their leases:

    \b
      sqlite:///leases.db      sqlite:////absolute/leases.db
      redis://host/0           rediss://user:password@host/0
      postgresql://user:password@host/database
      dynamodb://table?region=eu-west-1
      dynamodb://table?endpoint_url=http://localhost:8000

    \b
    Examples:
      shardline groups list --store sqlite:///leases.db
      shardline groups describe billing --store redis://host/0
      shardline groups reset billing --to 15m --store redis://host/0
    """


groups.add_command(describe)
groups.add_command(export)
groups.add_command(import_)


@groups.command("list")
@store_option
@observe_option("0s")
@global_options
@click.pass_obj
def list_(invocation: Invocation, /, *, store: str, observe: float) -> None:
    """List the groups of a store.

    The state of a group that has owners is known only with --observe: a group is alive if one of its leases changes
    while it is watched. Consumers renew their leases every third of the lease duration (which is 10 s by default).

    \b
    Examples:
      shardline groups list --store sqlite:///leases.db
      shardline groups list --store redis://host/0 --observe 4s
      shardline groups list --store dynamodb://leases --output json | jq '.[].group'
    """

    async def watch_all() -> list[tuple[GroupOnStream, Watch]]:
        place = StorePlace.of(store, invocation)
        names = answered(await ask_groups(place))
        async with opened(place, *names) as stores:
            with watching(observe):
                return list(zip(names, await watch_groups(stores, observe), strict=True))

    found = invocation.run(watch_all)
    if invocation.is_json:
        invocation.print_json([group_report.group_object(name, seen) for name, seen in found])
    elif found:
        group_report.print_groups(found)
        if not observe and any(seen.held for _, seen in found):
            notice("--observe 4s shows which owners are alive")
    else:
        notice("this store has no groups")


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
@dry_run_option
@force_option
@lease_duration_option
@store_option
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
            steps = plan(shards, await rows_to_change(leases, **how), target, shard)
            return name, steps, None if how["dry_run"] else await carry_out(leases, steps, force=how["force"])

    report_change(invocation, *invocation.run(change), verb="reset")


@groups.command()
@click.argument("group", shell_complete=complete_group)
@click.argument("stream", required=False, shell_complete=complete_stream_of_group)
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@dry_run_option
@force_option
@lease_duration_option
@store_option
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
            rows = await rows_to_change(leases, **how)
        return name, [Step(shard_id, Action.DELETE, row, None) for shard_id, row in sorted(rows.items())]

    name, steps = invocation.run(plan_deletion)
    if how["dry_run"]:
        report_change(invocation, name, steps, None, verb="delete")
        return
    leases = counted(len(steps), "lease")
    if not yes and not click.confirm(f"Delete the group {name.group} on {name.stream}, {leases}?", err=True):
        raise click.exceptions.Exit(1)

    async def remove() -> Outcome:
        async with opened(place, name) as (leases,):
            return await carry_out(leases, steps, force=how["force"])

    report_change(invocation, name, steps, invocation.run(remove), verb="delete")
