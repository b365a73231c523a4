"""Plans an import: the changes that give a group the positions in a file.

Invariants:

- After an import, the group has a row for exactly those shards of the file that the stream still has. A row of another
  shard is deleted: if the shard is a child of a shard in the file, it is read from its beginning after its parents
  (L3).
- An import is refused if a shard of the stream is neither in the file nor related to a shard in the file. The group
  would read such a shard from its beginning, which the file does not specify.
- An import is refused if a position cannot belong to the stream: the stream was deleted and re-created, or the file
  describes another stream.
- As in a reset, the rows of the oldest shards are written first, so that parents hold their children back.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

import click

from shardline.aio.client import Client
from shardline.cli.groups.group_store import foreign_reasons
from shardline.cli.groups.reset_plan import Action, Step, make_step
from shardline.cli.retrying import call_for_each, with_retries
from shardline.cli.streams.shard_tree import age
from shardline.errors import RequestError
from shardline.model.lease import Lease
from shardline.model.shard import Shard

_CONCURRENCY: Final = 8


def plan_import(shards: Sequence[Shard], rows: Mapping[str, Lease], wanted: Mapping[str, Lease]) -> list[Step]:
    """Return the steps that replace the rows of a group with the wanted rows.

    Args:
        shards: all shards of the stream.
        rows: the rows of the group, by shard id.
        wanted: the rows of the file, by shard id.

    Raises:
        ClickException: the wanted rows do not fit the stream.
    """
    known = {shard.shard_id: shard for shard in sorted(shards, key=age)}
    _check_fit(known, wanted)
    steps: list[Step] = []
    for shard_id, shard in known.items():
        before, after = rows.get(shard_id), wanted.get(shard_id)
        if after is not None:
            after = replace(after, parent_ids=frozenset(shard.parent_ids), hash_range=shard.hash_range)
            steps.append(make_step(before, after))
        elif before is not None:
            steps.append(Step(shard_id, Action.DELETE, before, None))
    gone = sorted(rows.keys() - known.keys())
    return steps + [Step(shard_id, Action.DELETE, rows[shard_id], None) for shard_id in gone]


async def check_sequence_numbers(client: Client, stream: str, steps: Iterable[Step]) -> None:
    """Ask Kinesis whether each new sequence number belongs to its shard.

    Raises:
        ClickException: a sequence number belongs to another shard.
    """
    numbered = {
        step.shard_id: step.after.resume_at
        for step in steps
        if step.after is not None and step.after.checkpoint.sequence_number is not None
    }

    async def check(shard_id: str) -> None:
        try:
            await with_retries(lambda: client.get_shard_iterator(stream, shard_id, numbered[shard_id]))
        except RequestError as error:
            if error.kind != "invalid":
                raise
            number = numbered[shard_id].sequence_number
            raise click.ClickException(f"{shard_id} has no position {number}: {error.message}") from None

    await call_for_each(numbered, check, _CONCURRENCY)


def _check_fit(known: Mapping[str, Shard], wanted: Mapping[str, Lease]) -> None:
    if known.keys().isdisjoint(wanted):
        raise click.ClickException("the stream has none of the shards in the file: is the file that of another stream?")
    reason = next(iter(foreign_reasons(wanted, known).values()), None)
    if reason is not None:
        raise click.ClickException(f"the positions do not fit the stream: {reason}")
    unrelated = sorted(known.keys() - _related(known, wanted))
    if unrelated:
        raise click.ClickException(
            f"the file has no position for {', '.join(unrelated)}, nor for a parent or a child of it: the group would "
            "read it from its beginning; add it to the file"
        )


def _related(known: Mapping[str, Shard], wanted: Mapping[str, Lease]) -> set[str]:
    """Return the shards of the file, with their ancestors and descendants. ``known`` lists parents before children."""
    descendants = set(wanted)
    for shard_id, shard in known.items():
        # If its parents have left the stream, it is unknown whether they are related to a shard of the file.
        is_orphan = bool(shard.parent_ids) and known.keys().isdisjoint(shard.parent_ids)
        if is_orphan or not descendants.isdisjoint(shard.parent_ids):
            descendants.add(shard_id)
    ancestors = set(wanted)
    for shard_id, shard in reversed(list(known.items())):
        if shard_id in ancestors:
            ancestors.update(shard.parent_ids)
    return descendants | ancestors
