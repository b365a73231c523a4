"""A shard and its parents and children.

Invariants:

- A shard that was created with its stream has no parent. A shard that a split created has one parent, and a shard that
  a merge created has two (the parent and the adjacent parent).
- A shard with an ending sequence number is closed. A closed shard never opens again.
"""

from dataclasses import dataclass
from typing import final

from shardline.model.hashing import HashRange
from shardline.model.sequence import SequenceNumber


@final
@dataclass(frozen=True, slots=True)
class Shard:
    """A shard, as ListShards describes it."""

    shard_id: str
    hash_range: HashRange
    starting_sequence_number: SequenceNumber
    ending_sequence_number: SequenceNumber | None = None
    parent_id: str | None = None
    adjacent_parent_id: str | None = None

    @property
    def is_open(self) -> bool:
        return self.ending_sequence_number is None

    @property
    def parent_ids(self) -> tuple[str, ...]:
        """The ids of the parents: zero, one or two ids."""
        return tuple(parent for parent in (self.parent_id, self.adjacent_parent_id) if parent is not None)


@final
@dataclass(frozen=True, slots=True)
class ChildShard:
    """A child that the service names when a reader reaches the end of its parent."""

    shard_id: str
    parent_ids: tuple[str, ...]
    hash_range: HashRange
