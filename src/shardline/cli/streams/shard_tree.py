"""How does the lineage of a stream's shards look?

A shard stands below its parent. One that was merged of two stands below the first, and the second says where it went::

    shardId-000000000000        closed   50.00%  split
    ├─ shardId-000000000002     open     25.00%
    └─ shardId-000000000003     closed   25.00%  merged
       └─ shardId-000000000004  open     75.00%  of 3 and 1
    shardId-000000000001        closed   50.00%  merged into 4

Invariants:

- Every shard is drawn exactly once, whatever is missing: one whose parents went out of retention is a root.
- Siblings stand in the order of their hash ranges, roots in that of their age.
- It is drawn without recursion: a stream that was resharded a thousand times is drawn too.
"""

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple, final

from shardline.model.shard import Shard

FANCY: Final = ("├─ ", "└─ ", "│  ", "   ")
PLAIN: Final = ("|- ", "`- ", "|  ", "   ")


@final
class TreeLine(NamedTuple):
    """One shard in the picture."""

    branches: str
    """What stands before its name."""
    shard: Shard
    note: str


def draw(shards: Iterable[Shard], glyphs: Sequence[str] = FANCY) -> list[TreeLine]:
    """The picture, from top to bottom."""
    known = {shard.shard_id: shard for shard in shards}
    below: dict[str, list[Shard]] = {}
    roots: list[Shard] = []
    for shard in known.values():
        parents = [parent for parent in shard.parent_ids if parent in known]
        if parents:
            below.setdefault(parents[0], []).append(shard)
        else:
            roots.append(shard)
    became = _successors(known)
    lines: list[TreeLine] = []
    left = [(root, "", "") for root in sorted(roots, key=age, reverse=True)]
    while left:
        shard, branches, inherited = left.pop()
        lines.append(TreeLine(branches, shard, _note(shard, became.get(shard.shard_id, []), known)))
        children = sorted(below.get(shard.shard_id, ()), key=lambda child: child.hash_range)
        for child in reversed(children):
            is_last = child is children[-1]
            branch, further = (glyphs[1], glyphs[3]) if is_last else (glyphs[0], glyphs[2])
            left.append((child, inherited + branch, inherited + further))
    assert len(lines) == len(known), "every shard is drawn exactly once, whatever is missing"
    return lines


def _successors(known: dict[str, Shard]) -> dict[str, list[Shard]]:
    """The children of each shard, those of a merge under both parents."""
    became: dict[str, list[Shard]] = {}
    for shard in known.values():
        for parent in shard.parent_ids:
            became.setdefault(parent, []).append(shard)
    return became


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
    """The number of a shard without what all of them begin with."""
    number = shard_id.removeprefix("shardId-")
    return str(int(number)) if number.isascii() and number.isdigit() else shard_id


def age(shard: Shard) -> tuple[int, str]:
    """The sort key that puts the oldest shard first."""
    return shard.starting_sequence_number.number, shard.shard_id
