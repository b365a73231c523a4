"""Exports the positions of a group to a file, and imports them into a group of any store.

Invariants:

- An export reads one store and changes nothing. A file is replaced as a whole, or not at all.
- An import is a reset with many targets: it is planned, refused for a live group, fenced and reported like ``reset``.
- A dry run creates neither a group nor a store.
"""

import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import click

from shardline.aio.client import Client
from shardline.cli import standard_streams
from shardline.cli.error_messages import WrongUsage
from shardline.cli.groups.apply_reset import Outcome, carry_out
from shardline.cli.groups.group_changes import report_change, rows_to_change
from shardline.cli.groups.group_lag import find_lags
from shardline.cli.groups.group_options import dry_run_option, force_option, lease_duration_option, store_option
from shardline.cli.groups.group_store import NO_SUCH_STORE, StorePlace, ask_groups, find_group, list_rows, opened
from shardline.cli.groups.group_suggestions import complete_group, complete_stream_of_group
from shardline.cli.groups.import_plan import check_sequence_numbers, plan_import
from shardline.cli.groups.position_effects import Effect, effect_of
from shardline.cli.groups.position_file import GroupPositions, decode_positions, encode_positions
from shardline.cli.groups.reset_plan import Step
from shardline.cli.invocation import Invocation, global_options
from shardline.cli.quantities import counted
from shardline.cli.retrying import with_retries
from shardline.cli.terminal import notice
from shardline.core.error_codes import Failure
from shardline.errors import UsageError
from shardline.model.lease import Lease
from shardline.ports import GroupOnStream

_STANDARD: Final = "-"


@click.command("export")
@click.argument("group", shell_complete=complete_group)
@click.argument("stream", required=False, shell_complete=complete_stream_of_group)
@click.option("--file", "path", default=_STANDARD, metavar="FILE", help="The file to write; `-` is standard output.")
@store_option
@global_options
@click.pass_obj
def export(invocation: Invocation, /, *, group: str, stream: str | None, path: str, store: str) -> None:
    """Write the positions of a group as JSON.

    `groups import` reads them, into the same store or into another one. The group may be alive: the file then has the
    positions that were committed at that time. STREAM is needed only if the group reads several streams.

    \b
    Examples:
      shardline groups export billing --store sqlite:///leases.db > positions.json
      shardline groups export billing orders --file positions.json --store dynamodb://leases
    """

    async def read() -> tuple[GroupOnStream, dict[str, Lease]]:
        place = StorePlace.of(store, invocation)
        name = await find_group(place, group, stream)
        async with opened(place, name) as (leases,):
            return name, await list_rows(leases)

    name, rows = invocation.run(read)
    data = encode_positions(name, rows.values(), time.time())
    if path == _STANDARD:
        click.echo(data, nl=False)
    else:
        _replace(Path(path), data)
    if not standard_streams.is_lost():
        notice(f"exported the positions of {name.group} on {name.stream}: {counted(len(rows), 'shard')}")


def _replace(path: Path, data: bytes) -> None:
    new = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        new.write_bytes(data)
        new.replace(path)
    except OSError as error:
        new.unlink(missing_ok=True)
        raise click.ClickException(f"{path}: {error.strerror}") from None


@click.command("import")
@click.argument("group")
@click.option("--file", "path", required=True, metavar="FILE", help="The file to read; `-` is standard input.")
@dry_run_option
@force_option
@lease_duration_option
@store_option
@global_options
@click.pass_obj
def import_(invocation: Invocation, /, *, group: str, path: str, **how: Any) -> None:
    """Give a group the positions in a file that `groups export` wrote.

    The group, and the file or table of its store, are created if they do not exist. An existing group loses its own
    positions. --dry-run shows for each shard which records would be delivered again or skipped.

    An import is refused while the group is alive. With --force its workers lose their leases and continue from the new
    positions; records that they were processing are delivered again.

    \b
    Examples:
      shardline groups import billing --file positions.json --dry-run --store redis://host/0
      shardline groups export billing --store sqlite:///leases.db |
        shardline groups import billing --file - --store dynamodb://leases
    """
    wanted = _read(path)
    name = GroupOnStream(group, wanted.name.stream)
    place = StorePlace.of(how["store"], invocation)

    async def change() -> tuple[list[Step], Outcome | None, dict[str, Effect] | None]:
        async with invocation.client() as client:
            shards = await with_retries(lambda: client.list_shards(str(name.stream)))
            # A file that does not fit the stream is refused before a store is created.
            await check_sequence_numbers(client, str(name.stream), plan_import(shards, {}, wanted.rows))
            if how["dry_run"]:
                steps = plan_import(shards, await _existing_rows(place, name), wanted.rows)
                return steps, None, await find_effects(client, str(name.stream), steps)
            async with opened(place, name, existing=False) as (leases,):
                steps = plan_import(shards, await rows_to_change(leases, **how), wanted.rows)
                return steps, await carry_out(leases, steps, force=how["force"]), None

    steps, outcome, effects = invocation.run(change)
    report_change(invocation, name, steps, outcome, verb="import", effects=effects)


def _read(path: str) -> GroupPositions:
    try:
        data = sys.stdin.buffer.read() if path == _STANDARD else Path(path).read_bytes()
    except OSError as error:
        raise WrongUsage(f"{path}: {error.strerror}") from None
    try:
        return decode_positions(data)
    except UsageError as error:
        raise WrongUsage(f"{'standard input' if path == _STANDARD else path}: {error}; nothing was written") from None


async def _existing_rows(place: StorePlace, name: GroupOnStream) -> Mapping[str, Lease]:
    found = await ask_groups(place)
    if isinstance(found, Failure) and found.code == NO_SUCH_STORE:
        return {}
    async with opened(place, name) as (leases,):
        return await list_rows(leases)


async def find_effects(client: Client, stream: str, steps: list[Step]) -> dict[str, Effect]:
    """Find the effects of the steps on the records of each shard."""
    before = {step.shard_id: step.before for step in steps if step.before is not None and step.after is not None}
    after = {step.shard_id: step.after for step in steps if step.before is not None and step.after is not None}
    lags_before = await find_lags(client, stream, before.values())
    lags_after = await find_lags(client, stream, after.values())

    def effect(step: Step) -> Effect:
        old, new = lags_before.get(step.shard_id), lags_after.get(step.shard_id)
        return effect_of(
            step.before,
            step.after,
            None if old is None else old.arrived_at,
            None if new is None else new.arrived_at,
        )

    return {step.shard_id: effect(step) for step in steps}
