"""Tracks how the shards are related, and decides which of them may be read.

The graph holds the topology of a stream. It is built from complete listings (``handle_listing``) and from the children
that ended shards name (``handle_children``). Queries compare the graph with the rows of a group.

Invariants (docs/guarantees.md defines L3):

- L3: a shard is read only when each parent is finished. A shard is finished if its row is at SHARD_END, if it is absent
  from the stream, or if it has no row while a descendant has a row (the rows of finished shards are deleted). If a
  parent has no row, its own parents must be finished, too. Every generation counts, and so do both parents of a merge.
- If a shard without a row has an unfinished ancestor, and the rows of its descendants have not begun, the shard was
  never read: two workers began the group with different shards. The row of this shard is created before the ancestor
  ends (C3).
- Only complete, unfiltered listings show that a shard is absent. If the shard has a row, one listing is not enough,
  because it may be older than the split that created the shard. A second listing, begun at least a second after the
  first arrived, must confirm that the shard is absent.
- The children that a shard names are known immediately. A listing that does not contain them yet does not remove them.
- A graph that is older than the rows proves nothing about unknown shards: a shard without a row may have descendants
  with rows. If the shard of a row, or its place in the graph, is unknown, nothing is concluded before the next listing.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Final, TypeAlias, final

from shardline.core.clock import NEVER, Instant
from shardline.model.hashing import HashRange
from shardline.model.lease import Lease
from shardline.model.shard import ChildShard, Shard

Rows: TypeAlias = Mapping[str, Lease]
"""The leases of a group, by shard."""

CONFIRM_AFTER: Final = 1.0
"""A listing may be out of date. A contradiction is believed only if another listing, begun this many seconds later,
confirms it."""


@final
class ShardGraph:
    """The known shards of a stream and how they descend from each other."""

    def __init__(self) -> None:
        self._shards: dict[str, Shard] = {}  # from the last complete listing
        self._announced: dict[str, ChildShard] = {}  # shards that a parent named and no listing contained yet
        self._parents: dict[str, tuple[str, ...]] = {}
        self._children: dict[str, set[str]] = {}
        self._ranges: dict[str, HashRange] = {}
        self._missed_since: dict[str, Instant] = {}  # since when listings lack a shard that has a row
        self._trimmed: set[str] = set()
        self.listings: int = 0
        """How many complete listings have arrived."""
        self.begun_at: Instant = -NEVER
        """When the last complete listing was begun."""
        self.came_at: Instant = -NEVER
        """When the last complete listing arrived."""

    # ---- inputs

    def handle_listing(self, shards: Iterable[Shard], rows: Rows, begun_at: Instant, now: Instant) -> None:
        """Handle a complete, unfiltered listing, begun after ``rows`` were read."""
        known = {shard.shard_id: shard for shard in shards}
        # If the listing contains a parent but not its announced child, the listing is out of date. If it contains
        # neither, both shards were trimmed. If it contains one parent of a merge, and the other one is surely gone, an
        # earlier stream of this name had the child: in one stream, the child of a merge outlives both parents.
        self._announced = {
            child.shard_id: child
            for child in self._announced.values()
            if child.shard_id not in known
            and not known.keys().isdisjoint(child.parent_ids)
            and self._trimmed.isdisjoint(child.parent_ids)
        }
        # A complete listing replaces the last one: shards that it lacks may be gone.
        self._shards = known
        # Keep the time of the first listing that lacked a shard, so that a later listing can confirm the absence.
        since = self._missed_since
        self._missed_since = {shard_id: since.get(shard_id, now) for shard_id in rows if not self.is_present(shard_id)}
        self._trimmed = {shard_id for shard_id, at in self._missed_since.items() if begun_at >= at + CONFIRM_AFTER}
        self.listings += 1
        self.begun_at, self.came_at = begun_at, now
        self._index()

    def handle_children(self, children: Iterable[ChildShard]) -> None:
        """Add the child shards that Kinesis announced at the end of a shard."""
        for child in children:
            if child.shard_id not in self._shards:
                self._announced[child.shard_id] = child
        self._index()

    def reset(self) -> None:
        """Forget the announced shards, which belong to the old stream, because the stream was re-created."""
        self._announced = {}
        self._index()

    # ---- topology

    @property
    def shard_ids(self) -> list[str]:
        """All known shards, listed or announced."""
        return [*self._shards, *self._announced]

    def shard(self, shard_id: str) -> Shard | None:
        """Return the shard as of the last listing."""
        return self._shards.get(shard_id)

    def hash_range(self, shard_id: str) -> HashRange | None:
        return self._ranges.get(shard_id)

    def parents(self, shard_id: str) -> tuple[str, ...]:
        """Return the ids of the shard's parents, even of parents that are gone."""
        return self._parents.get(shard_id, ())

    def children(self, shard_id: str) -> frozenset[str]:
        return frozenset(self._children.get(shard_id, ()))

    def is_present(self, shard_id: str) -> bool:
        return shard_id in self._shards or shard_id in self._announced

    def is_placed(self, shard_id: str) -> bool:
        """Return whether the shard's place in the graph is known: it is in a listing, or all its ancestors are placed.

        The parents of an announced shard may be younger than the last listing. Their absence from the listing then does
        not mean that they are gone.
        """
        if shard_id in self._shards:
            return True
        return shard_id in self._announced and all(map(self.is_placed, self.parents(shard_id)))

    def ancestors(self, shard_id: str) -> Iterator[str]:
        """Iterate over the shard's parents, their parents, and so on. Each shard is yielded once."""
        return self._walk(shard_id, self._parents)

    def descendants(self, shard_id: str) -> Iterator[str]:
        """Iterate over the shard's children, their children, and so on. Each shard is yielded once."""
        return self._walk(shard_id, self._children)

    @staticmethod
    def _walk(shard_id: str, links: Mapping[str, Iterable[str]]) -> Iterator[str]:
        seen = {shard_id}
        left = [shard_id]
        while left:
            for other in sorted(links.get(left.pop(), ())):
                if other not in seen:
                    seen.add(other)
                    left.append(other)
                    yield other

    def _index(self) -> None:
        self._parents = {shard_id: shard.parent_ids for shard_id, shard in self._shards.items()}
        self._parents |= {shard_id: child.parent_ids for shard_id, child in self._announced.items()}
        self._ranges = {shard_id: child.hash_range for shard_id, child in self._announced.items()}
        self._ranges |= {shard_id: shard.hash_range for shard_id, shard in self._shards.items()}
        self._children = {}
        for shard_id, parents in self._parents.items():
            for parent in parents:
                self._children.setdefault(parent, set()).add(shard_id)

    # ---- comparisons with the rows

    def covers(self, rows: Rows) -> bool:
        """Return whether the shard of every row has a known place in the graph."""
        return all(map(self._has_place, rows))

    def _has_place(self, shard_id: str) -> bool:
        return shard_id in self._missed_since or self.is_placed(shard_id)

    def is_trimmed(self, shard_id: str) -> bool:
        """Return whether a shard that has a row was removed from the stream after its retention period."""
        return shard_id in self._trimmed

    @property
    def has_doubts(self) -> bool:
        """Whether the shard of a row is missing from the last listing, and another listing has to confirm this."""
        return len(self._trimmed) < len(self._missed_since)

    def is_left_out(self, shard_id: str, rows: Rows) -> bool:
        """Return whether this shard needs a row although a descendant has one, because no worker has read the shard."""
        if shard_id in rows or not self.is_present(shard_id):
            return False
        older = [rows[other].checkpoint for other in self.ancestors(shard_id) if other in rows]
        younger = [rows[other].checkpoint for other in self.descendants(shard_id) if other in rows]
        has_begun = any(checkpoint.has_begun for checkpoint in younger)
        return not has_begun and not all(checkpoint.is_finished for checkpoint in older)

    def is_finished(self, shard_id: str, rows: Rows) -> bool:
        """Return whether this shard is finished. If so, its children may be read (L3)."""
        left, seen = [shard_id], {shard_id}
        while left:
            other = left.pop()
            row = rows.get(other)
            if row is None:
                if self.is_left_out(other, rows):
                    return False
                older = [parent for parent in self.parents(other) if parent not in seen]
                seen.update(older)
                left += older
            elif not row.checkpoint.is_finished and not self.is_trimmed(other):
                return False
        return True

    def is_readable(self, shard_id: str, rows: Rows) -> bool:
        """Return whether this shard, which has a row, may be read now (L3).

        Before the first listing, no shard may be read.
        """
        row = rows[shard_id]
        if not self.listings or row.checkpoint.is_finished or self.is_trimmed(shard_id):
            return False
        if not self._has_place(shard_id) and not row.parent_ids <= rows.keys():
            return False  # a parent without a row may exist and be younger than the last listing
        return all(self.is_finished(parent, rows) for parent in {*self.parents(shard_id), *row.parent_ids})
