"""Decides which rows a group needs, which can be deleted, and whether rows belong to this stream.

The functions of this module depend only on the topology and the rows. Every worker calls them. Rows are created and
deleted by conditional writes, so it does not matter which worker writes, or how many workers write at the same time.

Invariants (docs/guarantees.md defines L3 and L6):

- A new group gets rows for the shards that match its start. At TRIM_HORIZON, these are the oldest shards; at LATEST,
  the open shards; at a timestamp, the shards that were open at that time according to the service. Older shards count
  as finished (L3).
- A shard that is found later and descends from a shard with a row starts at TRIM_HORIZON, whatever the start position
  is. It gets its row when its parents are finished.
- Such a shard may have a parent that descends from no shard with a row (the other side of a merge). That side gets a
  row at the start position, because otherwise the child would wait for it forever. If the group starts at LATEST, this
  row is for the parent itself. If it starts at a timestamp, the row is for the shard that was open at that time.
  Otherwise, the row is for the oldest shard of that side.
- A row is deleted when its shard is finished, its parents have no rows, and each child has a row that has left its
  first position (the KCL's rule). If the row were deleted earlier, the shard or its children would look new.
- Rows of a stream that was deleted and re-created are recognised by a checkpoint before the beginning or after the end
  of the shard, by another hash range, or by SHARD_END on an open shard.
- If a group that started at LATEST lacks rows, the missing rows are created for the shards that were open at the time
  to which the existing rows were pinned, and they start at that time. The shards that are open now are not used: they
  may differ for each worker that creates rows, and records that were written to the parents of these shards meanwhile
  would be skipped.
- If no row shows that time any more, the group must have been complete. Then a shard that has no relatives among the
  rows, and whose parents are gone, descends from shards that no worker has read. This shard is read from its beginning,
  and its descendants are read after it, whether they are open or not.
"""

import math
from collections.abc import Iterator
from typing import final

from shardline.core.consumer.shard_graph import Rows, ShardGraph
from shardline.model.lease import Checkpoint, Lease
from shardline.model.position import LATEST, TRIM_HORIZON, Position
from shardline.model.shard import Shard


@final
class GroupStart:
    """Where a new group starts: the position, and the facts that are needed to write it into rows."""

    def __init__(
        self,
        position: Position,
        latest_at: float,
        matching: frozenset[str] = frozenset(),
        begun_at: float = math.inf,
    ) -> None:
        self.position: Position = position
        self.is_pinned: bool = begun_at < math.inf
        """Whether it is known when a group at LATEST began."""
        self.latest_at: float = min(latest_at, begun_at)
        """The time to which LATEST is pinned (L6): the time at which the group began, or the service's time minus 1 s
        when this worker started.
        """
        self.matching: frozenset[str] = matching
        """The shards that were open at the start time, or when a group at LATEST began. The set is empty if they are
        unknown.
        """

    def matches(self, shard_id: str, graph: ShardGraph, without: set[str], *, begun: bool) -> bool:
        """Return whether a shard without a row gets a row at the start position.

        Args:
            shard_id: the shard.
            graph: the shards of the stream.
            without: all shards without a row, including this one.
            begun: whether the group has rows already.
        """
        if self.position == LATEST and not (begun and self.matching):
            shard = graph.shard(shard_id)
            return shard is None or shard.is_open
        if shard_id in self.matching:
            return True
        # Whether this is one of the oldest remaining shards. The group may be new, or a sibling may have a row, which
        # makes the parents count as finished.
        is_oldest = without.isdisjoint(graph.parents(shard_id))
        if self.position == TRIM_HORIZON:
            return is_oldest
        # Parents that are gone may have been created and trimmed after the service listed the shards of the start time.
        # A shard that was closed before the start time also gets a row. It contains no records from that time on.
        parents = graph.parents(shard_id)
        return is_oldest and (any(map(graph.is_present, parents)) or (begun and bool(parents)))


def missing_rows(graph: ShardGraph, rows: Rows, start: GroupStart) -> list[Lease]:
    """Return the rows to create now, oldest shards first, so that after a crash another worker can create the rest."""
    assert graph.listings, "without a listing, no row is known to be missing"
    assert graph.covers(rows), "a graph that is older than the rows proves nothing"
    older = {other for shard_id in rows for other in graph.ancestors(shard_id)}
    # Ancestors of a shard with a row count as finished. The KCL deletes the rows of finished shards, so a missing row
    # alone is no reason to create a row.
    covered = {shard_id for shard_id in older if not graph.is_left_out(shard_id, rows)}
    missing = {shard_id for shard_id in graph.shard_ids if shard_id not in rows and shard_id not in covered}
    # Heirs descend from a shard with a row and start at TRIM_HORIZON. Outsiders descend from no such shard. Outsiders
    # that are ancestors of an heir, the other sides of merges, are ``beside`` the known line.
    heirs = {other for shard_id in rows for other in graph.descendants(shard_id)} & missing
    outsiders = missing - heirs
    beside = {other for shard_id in heirs for other in graph.ancestors(shard_id)} & outsiders
    new = [_row(graph, shard_id, None) for shard_id in heirs if _has_finished_parents(graph, shard_id, rows, missing)]
    unfollowed: set[str] = (
        set()
    )  # lines that the group never followed, although the group was complete: see the last invariant
    if rows and start.position == LATEST and not start.is_pinned:
        orphans = [shard_id for shard_id in outsiders if _is_orphan(graph, shard_id)]
        unfollowed = outsiders & _with_descendants(graph, orphans)
    new += [_row(graph, shard_id, None) for shard_id in unfollowed if outsiders.isdisjoint(graph.parents(shard_id))]
    for shard_id in outsiders - unfollowed:
        # There are three kinds of outsiders. Ordinary outsiders are read if they match the start. At LATEST, a direct
        # parent of an heir is read from LATEST. Otherwise the line that leads to the heir is read from the shard of the
        # start time, or from the oldest shard of the line.
        if shard_id not in beside:
            wanted = start.matches(shard_id, graph, outsiders, begun=bool(rows))
        elif start.position == LATEST and not start.matching:
            wanted = not heirs.isdisjoint(graph.children(shard_id))
        else:
            line = {shard_id, *graph.descendants(shard_id)} & beside
            is_oldest = beside.isdisjoint(graph.parents(shard_id))
            wanted = shard_id in start.matching or (is_oldest and line.isdisjoint(start.matching))
        if wanted:
            new.append(_row(graph, shard_id, start))
    return sorted(new, key=lambda row: (_begin(graph, row.shard_id), row.shard_id))


def _with_descendants(graph: ShardGraph, shard_ids: list[str]) -> set[str]:
    return {*shard_ids, *(other for shard_id in shard_ids for other in graph.descendants(shard_id))}


def _is_orphan(graph: ShardGraph, shard_id: str) -> bool:
    """Return whether the shard had parents, and all of them are gone from the stream."""
    parents = graph.parents(shard_id)
    return bool(parents) and not any(map(graph.is_present, parents))


def _has_finished_parents(graph: ShardGraph, shard_id: str, rows: Rows, missing: set[str]) -> bool:
    parents = graph.parents(shard_id)
    return (
        graph.is_placed(shard_id)
        and missing.isdisjoint(parents)
        and all(graph.is_finished(parent, rows) for parent in parents)
    )


def child_rows(graph: ShardGraph, shard_id: str, rows: Rows) -> list[Lease]:
    """Return the rows to create before this shard is marked as finished (L3). The shard has been read to its end.

    The child of a merge gets no row until the other parent has a row. Otherwise the child's row would make that parent
    count as finished.
    """
    new: list[Lease] = []
    for child in sorted(unrowed_children(graph, shard_id, rows)):
        others = [parent for parent in graph.parents(child) if parent != shard_id]
        if graph.is_placed(child) and not any(_is_new(graph, other, rows) for other in others):
            new.append(_row(graph, child, None))
    return new


def unrowed_children(graph: ShardGraph, shard_id: str, rows: Rows) -> set[str]:
    """Return the children that need a row.

    A child with a descendant that has a row needs no row: the child is finished, and its row was deleted.
    """
    return {child for child in graph.children(shard_id) if _is_new(graph, child, rows)}


def _is_new(graph: ShardGraph, shard_id: str, rows: Rows) -> bool:
    """Return whether the shard is in the stream, has no row, and has no descendant whose row proves that it is
    finished.
    """
    known = {shard_id, *graph.descendants(shard_id)}
    return graph.is_present(shard_id) and (known.isdisjoint(rows) or graph.is_left_out(shard_id, rows))


def deletable_rows(graph: ShardGraph, rows: Rows) -> list[Lease]:
    """Return the rows that no worker needs any more."""
    found: list[Lease] = []
    for shard_id, row in rows.items():
        if not row.checkpoint.is_finished and not graph.is_trimmed(shard_id):
            continue
        children = graph.children(shard_id) | row.child_ids
        parents = {*graph.parents(shard_id), *row.parent_ids}
        # The parents' rows are deleted first. If this row were deleted before each child has begun, this shard would
        # seem to be left out (``ShardGraph.is_left_out``), and would be read again.
        if not parents.isdisjoint(rows) or not all(_has_begun(graph, child, rows) for child in children):
            continue
        # A finished shard without known children may have children that no listing has shown so far.
        if children or not graph.is_present(shard_id):
            found.append(row)
    return found


def _has_begun(graph: ShardGraph, shard_id: str, rows: Rows) -> bool:
    row = rows.get(shard_id)
    if row is not None:
        return row.checkpoint.has_begun
    return not graph.is_present(shard_id) or any(other in rows for other in graph.descendants(shard_id))


def foreign_rows(graph: ShardGraph, rows: Rows) -> list[tuple[Lease, str]]:
    """Return the rows that cannot belong to this stream, and the reason for each row."""
    found: list[tuple[Lease, str]] = []
    for shard_id, row in rows.items():
        shard = graph.shard(shard_id)
        reason = None if shard is None else next(_contradictions(graph, row, shard), None)
        if reason is not None:
            found.append((row, f"the checkpoint of {shard_id} does not belong to this stream: {reason}"))
    return found


def _contradictions(graph: ShardGraph, row: Lease, shard: Shard) -> Iterator[str]:
    at = row.checkpoint.sequence_number
    begin, end = shard.starting_sequence_number, shard.ending_sequence_number
    if at is not None and at.number < begin.number:
        yield f"it is at {at}, but the shard begins at {begin}"
    # An end before the shard's own beginning proves nothing: kinesis-local reports 2^63 - 1 as the end.
    if at is not None and end is not None and begin.number <= end.number < at.number:
        yield f"it is at {at}, but the shard ends at {end}"
    if row.checkpoint.is_finished and shard.is_open:
        yield "it is at SHARD_END, but the shard is open"
    if row.hash_range is not None and row.hash_range != shard.hash_range:
        yield "its hash range differs from the shard's"
    # Such a row would never be read: a shard of the new stream that is not its parent would have to be finished first.
    if any(graph.shard(parent) is not None for parent in row.parent_ids.difference(shard.parent_ids)):
        yield "its parents differ from the shard's"


def _row(graph: ShardGraph, shard_id: str, start: GroupStart | None) -> Lease:
    position = TRIM_HORIZON if start is None else start.position
    return Lease(
        shard_id,
        checkpoint=Checkpoint(position),
        parent_ids=frozenset(graph.parents(shard_id)),
        hash_range=graph.hash_range(shard_id),
        latest_at=start.latest_at if start is not None and position == LATEST else None,
    )


def _begin(graph: ShardGraph, shard_id: str) -> float:
    """Return a sort key that puts the oldest shards first, and announced shards, which were never listed, last."""
    shard = graph.shard(shard_id)
    return float("inf") if shard is None else shard.starting_sequence_number.number
