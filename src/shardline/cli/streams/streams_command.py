"""Lists, creates, describes, changes, deletes and reshards streams from the command line.

``setting_commands`` contains the commands that change one setting each, and ``consumer_commands`` contains those for
the registered consumers of a stream.

Invariants:

- A command that changes a stream waits until the change is complete, unless ``--no-wait`` is given.
- Nothing is deleted without a confirmation: typed at a terminal, or given as ``--yes``.
- A reshard in several steps is announced before it starts, and each step is shown.
"""

from functools import partial
from typing import Any, Final

import click

from shardline.aio.client import Client
from shardline.cli.completion.suggestions import complete_open_shard, complete_stream
from shardline.cli.confirmation import require_confirmation
from shardline.cli.error_messages import WrongUsage
from shardline.cli.invocation import Invocation, global_options
from shardline.cli.quantities import counted
from shardline.cli.retrying import call_for_each, wait_for_stream, with_retries
from shardline.cli.streams.consumer_commands import consumers
from shardline.cli.streams.resharding import Change, merge_of, shard_id_of, split_of, steps_to
from shardline.cli.streams.setting_commands import encrypt, mode, record_size, retention, tag
from shardline.cli.streams.stream_settings import parse_tag, shown_mode
from shardline.cli.streams.stream_views import (
    StreamView,
    UndescribedStream,
    listed_json,
    listed_row,
    print_stream,
    stream_json,
    summary_json,
)
from shardline.cli.terminal import notice, print_table, waiting
from shardline.cli.time_arguments import duration_option
from shardline.codec.shapes import StreamConsumer, StreamListing, StreamSummary
from shardline.errors import ServiceError

_CONCURRENCY: Final = 8  # parallel DescribeStreamSummary requests: the service answers 20 per second

_stream = click.argument("stream", metavar="STREAM", shell_complete=complete_stream)
_wait = click.option("--wait/--no-wait", default=True, show_default=True, help="Wait until the change is complete.")
_timeout = duration_option("--timeout", "5m", "Maximum time to wait for each step.")


@click.group()
@global_options
def streams() -> None:
    """List, create, describe, change, delete and reshard streams.

    \b
    Examples:
      shardline streams list
      shardline streams create orders --shards 4
      shardline streams describe orders
      shardline streams reshard orders --shards 8
      shardline streams retention orders 7d
    """


for command in (consumers, encrypt, mode, record_size, retention, tag):
    streams.add_command(command)


# ---- list


@streams.command("list")
@click.option("-q", "--names", is_flag=True, help="Print only the names, one per line.")
@global_options
@click.pass_obj
def list_(invocation: Invocation, *, names: bool) -> None:
    """List the streams of the account and region.

    \b
    Examples:
      shardline streams list
      shardline streams list --names | xargs -n 1 shardline streams describe
      shardline streams list --output json | jq '.[] | select(.mode == "ON_DEMAND")'
    """
    found = invocation.run(_list, invocation, names)
    if names:
        if invocation.is_json:
            invocation.print_json(found)
        else:
            click.echo("".join(f"{name}\n" for name in found), nl=False)
    elif invocation.is_json:
        invocation.print_json([listed_json(stream) for stream in found])
    elif found:
        headings = ["NAME", "STATUS", "MODE", "SHARDS", "RETENTION"]
        print_table(headings, [listed_row(stream) for stream in found], right=["SHARDS", "RETENTION"])
        for stream in found:
            if isinstance(stream, UndescribedStream):
                notice(f"{stream.listing.name}: {stream.problem}")
    else:
        notice(f"there are no streams in {invocation.place()}")


async def _list(invocation: Invocation, names: bool) -> list[Any]:
    async with invocation.client() as client:
        if names:
            return [stream.name for stream in await with_retries(client.list_streams)]
        return await read_summaries(client)


async def read_summaries(client: Client) -> list[StreamSummary | UndescribedStream]:
    """Return the summaries of all streams. A stream that the caller is not allowed to describe does not hide the
    others.
    """
    listed = await with_retries(client.list_streams)
    found = await call_for_each(listed, partial(_summary_if_exists, client), _CONCURRENCY)
    return [summary for stream in listed if (summary := found[stream]) is not None]


async def _summary_if_exists(client: Client, stream: StreamListing) -> StreamSummary | UndescribedStream | None:
    """Return the stream's summary, or ``None`` if it has been deleted since it was listed."""
    try:
        return await with_retries(lambda: client.describe_stream_summary(stream.name))
    except ServiceError as error:
        if error.kind == "not-found":
            return None
        if error.kind == "denied":  # a policy may allow the call for some streams only
            return UndescribedStream(stream, str(error))
        raise


# ---- describe


@streams.command()
@_stream
@click.option("--open", "only_open", is_flag=True, help="Show only open shards, by hash range.")
@global_options
@click.pass_obj
def describe(invocation: Invocation, stream: str, *, only_open: bool) -> None:
    """Show a stream, and the lineage of its shards.

    The percentage after a shard is its share of all hash keys: the share of the records that it gets if their keys are
    spread evenly. With --output json, the output is one JSON document.

    \b
    Examples:
      shardline streams describe orders
      shardline streams describe orders --output json | jq '.shards[] | select(.state == "open") | .shard_id'
    """
    view = invocation.run(_view, invocation, stream)
    if invocation.is_json:
        invocation.print_json(stream_json(view))
    else:
        print_stream(view, only_open=only_open)


async def _view(invocation: Invocation, stream: str) -> StreamView:
    async with invocation.client() as client:
        return await read_stream_view(client, stream)


async def read_stream_view(client: Client, stream: str) -> StreamView:
    """Return the stream with its shards and registered consumers."""
    summary = await with_retries(lambda: client.describe_stream_summary(stream))
    shards = [] if summary.status == "CREATING" else await with_retries(lambda: client.list_shards(stream))
    return StreamView(summary, shards, await _consumers(client, summary))


async def _consumers(client: Client, summary: StreamSummary) -> list[StreamConsumer] | None:
    """Return the registered consumers, or ``None`` if they cannot be listed.

    Listing them needs a separate permission, and not every emulator supports it.
    """
    try:
        return await with_retries(lambda: client.list_stream_consumers(summary.arn))
    except ServiceError as error:
        if error.kind in {"denied", "invalid"}:
            return None
        raise


# ---- create


@streams.command()
@click.argument("stream", metavar="STREAM")
@click.option("--shards", type=click.IntRange(1), metavar="N", help="Number of shards (default 1).")
@click.option("--on-demand", is_flag=True, help="Let the service choose the number of shards.")
@click.option("--tag", "tags", multiple=True, metavar="KEY=VALUE", help="Add a tag; repeatable.")
@click.option("--exist-ok", is_flag=True, help="Succeed if the stream already exists.")
@_wait
@_timeout
@global_options
@click.pass_obj
def create(invocation: Invocation, /, stream: str, **settings: Any) -> None:
    """Create a stream.

    \b
    Examples:
      shardline streams create orders --shards 4
      shardline streams create orders --on-demand --tag team=billing
      shardline streams create orders --exist-ok --output json
    """
    if settings["on_demand"] and settings["shards"] is not None:
        raise WrongUsage("--shards cannot be combined with --on-demand: the service chooses the number of shards")
    summary, is_new = invocation.run(_create, invocation, stream, settings)
    if invocation.is_json:
        invocation.print_json(summary_json(summary) | {"created": is_new})
        return
    shards = "" if summary.open_shard_count is None else f", {counted(summary.open_shard_count, 'shard')}"
    result = f"created {summary.name}" if is_new else f"{summary.name} already exists"
    click.echo(f"{result}: {summary.status}, {shown_mode(summary)}{shards}")


async def _create(invocation: Invocation, stream: str, settings: dict[str, Any]) -> tuple[StreamSummary, bool]:
    tags = dict(map(parse_tag, settings["tags"]))
    is_new = True
    async with invocation.client() as client:
        try:
            await with_retries(
                lambda: client.create_stream(
                    stream,
                    shards=settings["shards"],
                    mode="ON_DEMAND" if settings["on_demand"] else "PROVISIONED",
                    tags=tags,
                ),
                changes=True,
            )
        except ServiceError as error:
            if error.kind != "in-use" or not settings["exist_ok"]:
                raise
            is_new = False
        if settings["wait"]:
            with waiting(f"waiting until {stream} is ACTIVE"):
                await wait_for_stream(client, stream, "ACTIVE", settings["timeout"])
        return await with_retries(lambda: client.describe_stream_summary(stream)), is_new


# ---- delete


@streams.command()
@_stream
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@click.option("--with-consumers", is_flag=True, help="Also delete its registered consumers.")
@_wait
@_timeout
@global_options
@click.pass_obj
def delete(invocation: Invocation, /, stream: str, *, yes: bool, **settings: Any) -> None:
    """Delete a stream, and all records in it.

    \b
    Examples:
      shardline streams delete orders
      shardline streams delete orders --yes --no-wait
    """
    if not yes:
        _confirm(invocation.run(_summary, invocation, stream), invocation)
    invocation.run(_delete, invocation, stream, settings)
    if invocation.is_json:
        invocation.print_json({"name": stream, "deleted": True})
    else:
        click.echo(f"deleted {stream}" if settings["wait"] else f"deleting {stream}")


def _confirm(summary: StreamSummary, invocation: Invocation) -> None:
    question = f"Delete the stream {summary.name} in {invocation.place()}, with all its records?"
    require_confirmation(question, f"that {summary.name} is deleted", "nothing was deleted")


async def _summary(invocation: Invocation, stream: str) -> StreamSummary:
    async with invocation.client() as client:
        return await with_retries(lambda: client.describe_stream_summary(stream))


async def _delete(invocation: Invocation, stream: str, settings: dict[str, Any]) -> None:
    with_consumers = settings["with_consumers"]
    async with invocation.client() as client:
        await with_retries(lambda: client.delete_stream(stream, enforce_consumer_deletion=with_consumers), changes=True)
        if settings["wait"]:
            with waiting(f"waiting until {stream} is deleted"):
                await wait_for_stream(client, stream, None, settings["timeout"])


# ---- reshard


@streams.command()
@_stream
@click.option("--shards", type=click.IntRange(1), metavar="N", help="Spread the stream evenly over this many shards.")
@click.option("--split", metavar="SHARD", shell_complete=complete_open_shard, help="Split this shard (id or number).")
@click.option("--at", metavar="HASH", help="With --split: first hash key of the upper half (default: the middle).")
@click.option(
    "--merge", nargs=2, metavar="SHARD SHARD", shell_complete=complete_open_shard, help="Merge two adjacent shards."
)
@click.option("--dry-run", is_flag=True, help="Print what would be done, and do nothing.")
@_wait
@_timeout
@global_options
@click.pass_obj
def reshard(invocation: Invocation, /, stream: str, **settings: Any) -> None:
    """Change the shards of a stream.

    The service at most doubles or halves the number of shards at a time, ten times in 24 hours. Larger changes take the
    minimum number of steps; the command waits for each.

    \b
    Examples:
      shardline streams reshard orders --shards 8
      shardline streams reshard orders --shards 8 --dry-run
      shardline streams reshard orders --split shardId-000000000003
      shardline streams reshard orders --merge 4 5
    """
    given = [name for name in ("shards", "split", "merge") if settings[name]]
    if len(given) != 1:
        raise WrongUsage("give one of --shards N, --split SHARD and --merge SHARD SHARD")
    if settings["at"] is not None and not settings["split"]:
        raise WrongUsage("--at works only with --split")
    work = _reshard_evenly if given == ["shards"] else _change_shards
    result = invocation.run(work, invocation, stream, settings)
    if invocation.is_json:
        invocation.print_json(result)


async def _reshard_evenly(invocation: Invocation, stream: str, settings: dict[str, Any]) -> dict[str, Any]:
    target, dry_run, wait = settings["shards"], settings["dry_run"], settings["wait"]
    async with invocation.client() as client:
        name, current, steps = await plan_even_reshard(client, stream, target)
        _announce_steps(invocation, current, steps, dry_run=dry_run)
        if len(steps) > 1 and not wait and not dry_run:
            raise WrongUsage(f"that takes {len(steps)} steps, and each must complete before the next: omit --no-wait")
        before = current
        for number, count in enumerate([] if dry_run else steps, 1):
            await with_retries(partial(client.update_shard_count, stream, count), changes=True)
            if wait:
                with waiting(f"step {number} of {len(steps)}: {before} -> {counted(count, 'shard')}"):
                    await wait_for_stream(client, stream, "ACTIVE", settings["timeout"])
            before = count
    if steps and not dry_run and not invocation.is_json:
        click.echo(
            f"{stream} has {counted(target, 'shard')}"
            if wait
            else f"{stream} is changing to {counted(target, 'shard')}"
        )
    return {"name": name, "before": current, "after": target, "steps": steps, "dry_run": dry_run}


async def plan_even_reshard(client: Client, stream: str, target: int) -> tuple[str, int, list[int]]:
    """Return the name of the stream, its number of open shards, and that number after each step to ``target``.

    Raises:
        WrongUsage: the stream is on demand.
        UsageError: the change takes more steps than the service allows in a day.
    """
    summary = await with_retries(lambda: client.describe_stream_summary(stream))
    if summary.mode == "ON_DEMAND":
        raise WrongUsage(f"{summary.name} is on demand: the service decides how many shards it has")
    current = summary.open_shard_count
    if current is None:
        current = len(await with_retries(lambda: client.list_shards(stream, "AT_LATEST")))
    return summary.name, current, steps_to(current, target)


def _announce_steps(invocation: Invocation, current: int, steps: list[int], *, dry_run: bool) -> None:
    if invocation.is_json:
        return
    if not steps:
        click.echo(f"the stream already has {counted(current, 'shard')}")
    elif dry_run:
        click.echo(f"would change {shown_path(current, steps)}")
    elif len(steps) > 1:
        notice(f"the service at most doubles or halves the shards at a time: {shown_path(current, steps)}")


def shown_path(current: int, steps: list[int]) -> str:
    """Return the steps as text: ``8 -> 4 -> 2 -> 1 shard``."""
    return " -> ".join([*map(str, [current, *steps[:-1]]), counted(steps[-1], "shard")])


async def _change_shards(invocation: Invocation, stream: str, settings: dict[str, Any]) -> dict[str, Any]:
    """Split a shard or merge two, and return the change as a JSON object."""
    verb = "split" if settings["split"] else "merge"
    async with invocation.client() as client:
        shards = await with_retries(lambda: client.list_shards(stream))
        if settings["split"]:
            change = split_of(shards, shard_id_of(settings["split"]), settings["at"])
        else:
            first, second = settings["merge"]
            change = merge_of(shards, shard_id_of(first), shard_id_of(second))
        if not settings["dry_run"]:
            await with_retries(lambda: carry_out_change(client, stream, change), changes=True)
            if settings["wait"]:
                with waiting(f"{verb}: {change.sentence}"):
                    await wait_for_stream(client, stream, "ACTIVE", settings["timeout"])
    if not invocation.is_json:
        click.echo(f"{'would ' if settings['dry_run'] else ''}{verb} {change.sentence}")
    return {"name": stream, "change": verb, "dry_run": settings["dry_run"]} | change.to_json()


async def carry_out_change(client: Client, stream: str, change: Change) -> None:
    ids = [shard.shard_id for shard in change.before]
    if len(ids) == 1:
        await client.split_shard(stream, ids[0], change.after[1].start)
    else:
        await client.merge_shards(stream, ids[0], ids[1])
