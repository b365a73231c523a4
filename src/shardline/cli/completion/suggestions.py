"""Suggests values to the shell: streams, shards, registered consumers and positions.

``groups.group_suggestions`` suggests the names of groups.

Invariants:

- Completion never shows an error and never keeps the user waiting: without a timely answer it suggests nothing.
- Completion uses the endpoint, the region, the profile and the store that the user has already typed on the line.
- Every suggestion is looked up when it is needed. Nothing is cached.
"""

import contextlib
import logging
import threading
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Final

import click
from click.shell_completion import CompletionItem

from shardline.cli.invocation import Invocation

if TYPE_CHECKING:
    from shardline.aio.client import Client
    from shardline.model.shard import Shard

TIMEOUT: Final = 1.5
_GRACE: Final = 0.3
POSITIONS: Final = {
    "TRIM_HORIZON": "the oldest record",
    "LATEST": "only new records",
    "15m": "15 minutes ago",
    "1h": "an hour ago",
    "24h": "a day ago",
}
_ENDS: Final = {
    "latest": "the newest record now",
    "+30s": "30 seconds from now",
    "+5m": "5 minutes from now",
    "15m": "15 minutes ago",
}


def complete_stream(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return the stream names that begin with ``incomplete``."""
    del parameter

    async def find(invocation: Invocation) -> list[CompletionItem]:
        return await stream_items(invocation, incomplete)

    return look_up(context, find)


async def stream_items(invocation: Invocation, incomplete: str) -> list[CompletionItem]:
    """List the streams, and return the names that begin with ``incomplete``."""
    async with quick_client(invocation) as client:
        return starting_with(incomplete, {stream.name: None for stream in await client.list_streams()}.items())


def complete_shard(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return the ids (or after a digit, the numbers) of the stream's shards that are not on the line yet."""
    del parameter
    return _complete_shard(context, incomplete, only_open=False)


def complete_open_shard(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Like ``complete_shard``, but suggest only open shards."""
    del parameter
    return _complete_shard(context, incomplete, only_open=True)


def _complete_shard(context: click.Context, incomplete: str, *, only_open: bool) -> list[CompletionItem]:
    stream = typed(context, "stream")
    if stream is None:
        return []
    already = frozenset(_typed_shards(context))

    async def find(invocation: Invocation) -> list[CompletionItem]:
        async with quick_client(invocation) as client:
            shards = await client.list_shards(stream)
        wanted = [shard for shard in shards if shard.is_open or not only_open]
        if incomplete.isdigit():
            numbers = {str(int(shard.shard_id.rpartition("-")[2])): _state(shard) for shard in wanted}
            return starting_with(incomplete, numbers.items())
        return shard_items(wanted, incomplete, already)

    return look_up(context, find)


def shard_items(
    shards: Iterable["Shard"], incomplete: str, already: frozenset[str] = frozenset()
) -> list[CompletionItem]:
    """Return the shard ids that begin with ``incomplete`` and are not on the line yet."""
    states = {shard.shard_id: _state(shard) for shard in shards if shard.shard_id not in already}
    return starting_with(incomplete, states.items())


def _state(shard: "Shard") -> str:
    return "open" if shard.is_open else "closed"


def complete_consumer(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return the names of the consumers that are registered with the stream that the line names."""
    del parameter
    stream = typed(context, "stream")
    if stream is None:
        return []

    async def find(invocation: Invocation) -> list[CompletionItem]:
        async with quick_client(invocation) as client:
            registered = await client.list_stream_consumers(stream)
        return starting_with(incomplete, [(consumer.name, consumer.status) for consumer in registered])

    return look_up(context, find)


def complete_start(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return positions to start from. If the line names one shard, also return its first sequence number."""
    del parameter
    items = starting_with(incomplete, POSITIONS.items())
    stream, shards = typed(context, "stream"), _typed_shards(context)
    if stream is None or len(shards) != 1 or (incomplete and not incomplete.isdigit()):
        return items

    async def find(invocation: Invocation) -> list[CompletionItem]:
        async with quick_client(invocation) as client:
            first = {
                str(shard.starting_sequence_number): f"the start of {shard.shard_id}"
                for shard in await client.list_shards(stream)
                if shards[0] in {shard.shard_id, str(int(shard.shard_id.rpartition("-")[2]))}
            }
        return starting_with(incomplete, first.items())

    return items + look_up(context, find)


def complete_end(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return suggestions for ``--until``: ``latest``, and some times."""
    del context, parameter
    return starting_with(incomplete, _ENDS.items())


def look_up(
    context: click.Context, find: Callable[[Invocation], Awaitable[list[CompletionItem]]]
) -> list[CompletionItem]:
    """Return the items that ``find`` returns. If it fails or takes longer than the timeout, return no items.

    The search runs in a thread, because closing an unresponsive connection to a store may take longer than the timeout.
    """
    import anyio  # noqa: PLC0415 - the other completions start faster without it

    invocation = context.find_object(Invocation) or Invocation()
    found: list[CompletionItem] = []

    async def search() -> None:
        with anyio.move_on_after(TIMEOUT):
            found.extend(await find(invocation))

    def run() -> None:
        with contextlib.suppress(Exception):  # completion has no place to show an error
            anyio.run(search)

    logging.disable()  # a warning would be printed into the line that the user is typing
    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(TIMEOUT + _GRACE)
    if not thread.is_alive():
        logging.disable(logging.NOTSET)
    return [*found]


def quick_client(invocation: Invocation) -> "Client":
    """Return a client with short timeouts."""
    return invocation.client(connect_timeout=TIMEOUT, read_timeout=TIMEOUT)


def typed(context: click.Context, name: str) -> str | None:
    """Return the value of an argument or option, from the line typed so far or from its environment variable.

    While the last option still lacks its value, click has parsed only the options before it, and has left the arguments
    in ``context.args``.
    """
    value = context.params.get(name)
    if isinstance(value, str) and value:
        return value
    arguments = [found.name for found in context.command.params if isinstance(found, click.Argument)]
    if name not in arguments:
        return None
    left_over = dict(zip(arguments, context.args, strict=False))
    return left_over.get(name)


def _typed_shards(context: click.Context) -> list[str]:
    found: tuple[str, ...] | None = context.params.get("shards")
    return [*(found or ())]


def starting_with(incomplete: str, values: Iterable[tuple[str, str | None]]) -> list[CompletionItem]:
    """Return the values that begin with ``incomplete``, each with its explanation."""
    return [CompletionItem(value, help=help_) for value, help_ in values if value.startswith(incomplete)]
