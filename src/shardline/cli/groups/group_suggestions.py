"""Suggests groups to the shell, and the streams, shards and positions of groups.

The groups come from the lease store that the line names. A missing store is not created. The invariants of
``completion.suggestions`` hold here too.
"""

import click
from click.shell_completion import CompletionItem

from shardline.cli.completion.suggestions import (
    POSITIONS,
    look_up,
    quick_client,
    shard_items,
    starting_with,
    stream_items,
    typed,
)
from shardline.cli.groups.group_store import StorePlace, ask_groups, list_rows, opened
from shardline.cli.invocation import Invocation
from shardline.core.error_codes import Failure
from shardline.model.position import SHARD_END
from shardline.ports import GroupOnStream


def complete_group(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return the group names in the store that begin with ``incomplete``, each with its streams as explanation."""
    del parameter

    async def find(invocation: Invocation) -> list[CompletionItem]:
        streams: dict[str, list[str]] = {}
        for name in await _groups(context, invocation):
            if name.group is not None:
                streams.setdefault(name.group, []).append(str(name.stream))
        return starting_with(
            incomplete, ((group, f"on {', '.join(sorted(streams[group]))}") for group in sorted(streams))
        )

    return look_up(context, find)


def complete_stream_of_group(
    context: click.Context, parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Return the streams that the group on the line reads, or all streams if the store does not name them."""
    del parameter

    async def find(invocation: Invocation) -> list[CompletionItem]:
        group = typed(context, "group")
        names = await _groups(context, invocation)
        streams = sorted({name.stream for name in names if name.group == group and name.stream is not None})
        if streams:
            return starting_with(incomplete, [(stream, None) for stream in streams])
        return await stream_items(invocation, incomplete)

    return look_up(context, find)


def complete_shard_of_group(
    context: click.Context, parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Return the shards of the stream that the group on the line reads."""
    del parameter

    async def find(invocation: Invocation) -> list[CompletionItem]:
        name = await _group_on_line(context, invocation)
        if name is None or name.stream is None:
            return []
        async with quick_client(invocation) as client:
            return shard_items(await client.list_shards(name.stream), incomplete)

    return look_up(context, find)


def complete_target(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return positions to move a group to. If the line names a shard, also return the group's position in it."""
    del parameter
    items = starting_with(incomplete, POSITIONS.items())
    shard_id = typed(context, "shard")
    if shard_id is None or (incomplete and not incomplete.isdigit()):
        return items

    async def find(invocation: Invocation) -> list[CompletionItem]:
        name = await _group_on_line(context, invocation)
        if name is None:
            return []
        async with opened(_place(context, invocation), name) as (leases,):
            row = (await list_rows(leases)).get(shard_id)
        if row is None or row.checkpoint.position == SHARD_END or row.checkpoint.position.sequence_number is None:
            return []
        number = row.checkpoint.position.sequence_number
        position = f"{number}:{number.sub_sequence}" if number.sub_sequence else str(number)
        return starting_with(incomplete, [(position, f"the position of {name.group} now")])

    return items + look_up(context, find)


def _place(context: click.Context, invocation: Invocation) -> StorePlace:
    return StorePlace.of(typed(context, "store") or "", invocation)


async def _groups(context: click.Context, invocation: Invocation) -> list[GroupOnStream]:
    if typed(context, "store") is None:
        return []
    found = await ask_groups(_place(context, invocation))
    return [] if isinstance(found, Failure) else found


async def _group_on_line(context: click.Context, invocation: Invocation) -> GroupOnStream | None:
    """Return the group that the line names, with its stream, or ``None`` if it is unknown or ambiguous."""
    group, stream = typed(context, "group"), typed(context, "stream")
    if group is None:
        return None
    if stream is not None:
        return GroupOnStream(group, stream)
    names = [name for name in await _groups(context, invocation) if name.group == group]
    return names[0] if len(names) == 1 else None
