"""Draws the lineage of a stream's shards as a tree.

A shard stands below its parent. The child of a merge stands below the first parent, and the line of the second parent
names the child::

    shardId-000000000000        closed   50.00%  split
    ├─ shardId-000000000002     open     25.00%
    └─ shardId-000000000003     closed   25.00%  merged
       └─ shardId-000000000004  open     75.00%  of 3 and 1
    shardId-000000000001        closed   50.00%  merged into 4

Invariants:

- Every shard is drawn exactly once. A shard whose parents have expired is a root.
- Siblings are in the order of their hash ranges; roots are in the order of their age.
- The tree is drawn without recursion, so that a stream that was resharded a thousand times can be drawn.
"""

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple, final

from shardline.model.shard import Shard

FANCY: Final = ("├─ ", "└─ ", "│  ", "   ")
PLAIN: Final = ("|- ", "`- ", "|  ", "   ")


@final
class TreeLine(NamedTuple):
    """The line of the tree that shows one shard."""

    branches: str
    """The tree lines that are drawn before the shard's id."""
    shard: Shard
    note: str
    """How the shard was created, and how it was closed."""


def draw(shards: Iterable[Shard], glyphs: Sequence[str] = FANCY) -> list[TreeLine]:
    """Return the lines of the tree, from top to bottom."""
    known = {shard.shard_id: shard for shard in shards}
    drawn_below: dict[str, list[Shard]] = {}
    roots: list[Shard] = []
    for shard in known.values():
        parents = [parent for parent in shard.parent_ids if parent in known]
        if parents:
            drawn_below.setdefault(parents[0], []).append(shard)
        else:
            roots.append(shard)
    children_of = _children_by_parent(known)
    lines: list[TreeLine] = []
    undrawn = [(root, "", "") for root in sorted(roots, key=age, reverse=True)]  # a stack: its end is drawn next
    while undrawn:
        shard, branches, inherited = undrawn.pop()
        lines.append(TreeLine(branches, shard, _note(shard, children_of.get(shard.shard_id, []), known)))
        children = sorted(drawn_below.get(shard.shard_id, ()), key=lambda child: child.hash_range)
        for child in reversed(children):
            is_last = child is children[-1]
            branch, continuation = (glyphs[1], glyphs[3]) if is_last else (glyphs[0], glyphs[2])
            undrawn.append((child, inherited + branch, inherited + continuation))
    assert len(lines) == len(known), "every shard is drawn exactly once"
    return lines


def _children_by_parent(known: dict[str, Shard]) -> dict[str, list[Shard]]:
    """Return the children of each shard. The child of a merge is listed under both parents."""
    children: dict[str, list[Shard]] = {}
    for shard in known.values():
        for parent in shard.parent_ids:
            children.setdefault(parent, []).append(shard)
    return children


def _note(shard: Shard, children: list[Shard], known: dict[str, Shard]) -> str:
    notes: list[str] = []
    if len(shard.parent_ids) > 1:
        notes.append(f"of {' and '.join(map(short_id, shard.parent_ids))}")
    elif shard.parent_ids and shard.parent_ids[0] not in known:
        notes.append(f"of {short_id(shard.parent_ids[0])}, which is gone")
    merged = [child for child in children if len(child.parent_ids) > 1]
    if len(children) > 1:
        notes.append("split")
    elif merged and merged[0].parent_ids[0] == shard.shard_id:
        notes.append("merged")
    elif merged:
        notes.append(f"merged into {short_id(merged[0].shard_id)}")
    return "; ".join(notes)


def short_id(shard_id: str) -> str:
    """Return the number of a shard: ``3`` for ``shardId-000000000003``."""
    number = shard_id.removeprefix("shardId-")
    return str(int(number)) if number.isascii() and number.isdigit() else shard_id


def age(shard: Shard) -> tuple[int, str]:
    """Return a sort key that puts the oldest shard first."""
    return shard.starting_sequence_number.number, shard.shard_id
