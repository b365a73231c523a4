"""Decides whether a shard may prefetch one more page.

The whole worker shares one budget of bytes. The budget counts the data that was read but that the user is not done with
yet: opened records, including the memory that each record object takes, and unopened entries.

Invariants:

- A shard without opened records may always open one slice of its current page or read the next page. So no shard waits
  for another.
- A shard with opened records may open and read more while the worker is below its budget and the shard is below its
  fair share. The share is the budget divided by the number of shards that hold records, so a thousand idle shards do
  not reduce the share of a busy shard.
- The worker holds at most the budget, plus one page and one opened slice per shard.
- Once a shard that was refused may read, ``take_admitted`` returns this shard, so it does not have to ask repeatedly.
"""

from typing import Final, final

from shardline.core.consumer.reader import ShardKey

RECORD_BYTES: Final = 256
"""The memory in bytes that a record takes besides its data: for the object, its sequence number and its key. The value
was measured and rounded up."""


@final
class PrefetchBudget:
    """The prefetch budget that all readers of a worker share."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes: int = max_bytes
        self._held: dict[ShardKey, int] = {}
        self._refused: dict[ShardKey, None] = {}
        self._unopened: dict[ShardKey, int] = {}
        self._unopened_bytes: int = 0
        self.total_bytes: int = 0

    def held_bytes(self, key: ShardKey) -> int:
        return self._held.get(key, 0)

    def admits(self, key: ShardKey) -> bool:
        """Return whether the shard may open a slice or read a page now.

        A refusal is remembered for ``take_admitted``.
        """
        if self._may_read(key):
            self._refused.pop(key, None)
            return True
        self._refused[key] = None
        return False

    def keep(self, key: ShardKey, unopened_bytes: int) -> None:
        """Set how many bytes of the shard's current page are unopened."""
        self._unopened_bytes += unopened_bytes - self._unopened.pop(key, 0)
        if unopened_bytes:
            self._unopened[key] = unopened_bytes

    def hold(self, key: ShardKey, size_bytes: int) -> None:
        """Count an opened slice of a page."""
        if size_bytes:
            self._held[key] = self.held_bytes(key) + size_bytes
            self.total_bytes += size_bytes

    def release(self, key: ShardKey, size_bytes: int) -> None:
        """Release the bytes of records that are done.

        This has no effect if the shard has been forgotten in the meantime.
        """
        held = self.held_bytes(key)
        # A page may be released after ``forget``, if the user finishes records of a lease that was lost.
        size_bytes = min(size_bytes, held)
        if held > size_bytes:
            self._held[key] = held - size_bytes
        else:
            self._held.pop(key, None)
        # If no shard holds records, the total is 0, even if a late release was cut short above.
        self.total_bytes = self.total_bytes - size_bytes if self._held else 0

    def forget(self, key: ShardKey) -> None:
        """Release everything that the shard holds, because the shard is no longer read."""
        self.keep(key, 0)
        self.release(key, self.held_bytes(key))
        self._refused.pop(key, None)

    def take_admitted(self) -> list[ShardKey]:
        """Return the shards that were refused and may read now. Each shard is returned once."""
        admitted = [key for key in self._refused if self._may_read(key)]
        for key in admitted:
            del self._refused[key]
        return admitted

    def _may_read(self, key: ShardKey) -> bool:
        held = self._held.get(key)
        # A shard without opened records is always admitted. Otherwise an exhausted budget could block it forever.
        if held is None:
            return True
        total_bytes = self.total_bytes + self._unopened_bytes
        return total_bytes < self._max_bytes and held < self._max_bytes / len(self._held)
