"""May this shard read one more page ahead of its user?

One budget of bytes for the whole worker. What is counted is what was read and not yet handed to the user: opened, with
the memory that each record takes, or not opened yet.

Invariants:

- A shard that holds no opened records may always go on, by one slice of the page that it has, or by the next page:
  no shard waits for another.
- Beyond that, a shard opens and reads on while the worker is below its budget and the shard below its fair share
  of it. The share is the budget over the shards that hold something: a thousand idle shards take nothing from a busy
  one.
- What is held is at most the budget, and one page and one opened slice of it a shard.
- A shard that was refused is named once it may read (``take_admitted``): nobody has to ask again and again.
"""

from typing import Final, final

from shardline.core.consumer.reader import ShardKey

RECORD_BYTES: Final = 256
"""What a record costs in memory beside its data: the object, its number, its key. Measured, rounded up."""


@final
class PrefetchBudget:
    """Shared by all readers of a worker."""

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
        """Whether the shard may open a slice, or read a page, now. A refusal is remembered."""
        if self._may_read(key):
            self._refused.pop(key, None)
            return True
        self._refused[key] = None
        return False

    def keep(self, key: ShardKey, unopened_bytes: int) -> None:
        """So much of the page that it read the shard has not opened yet."""
        self._unopened_bytes += unopened_bytes - self._unopened.pop(key, 0)
        if unopened_bytes:
            self._unopened[key] = unopened_bytes

    def hold(self, key: ShardKey, size_bytes: int) -> None:
        """A slice of a page was opened."""
        if size_bytes:
            self._held[key] = self.held_bytes(key) + size_bytes
            self.total_bytes += size_bytes

    def release(self, key: ShardKey, size_bytes: int) -> None:
        """The user was handed this much. For a shard that was forgotten meanwhile it means nothing."""
        held = self.held_bytes(key)
        size_bytes = min(size_bytes, held)
        if held > size_bytes:
            self._held[key] = held - size_bytes
        else:
            self._held.pop(key, None)
        self.total_bytes = self.total_bytes - size_bytes if self._held else 0

    def forget(self, key: ShardKey) -> None:
        """The shard is no longer read: what was read ahead of its user is dropped."""
        self.keep(key, 0)
        self.release(key, self.held_bytes(key))
        self._refused.pop(key, None)

    def take_admitted(self) -> list[ShardKey]:
        """The shards that were refused and may read now. They are named once."""
        admitted = [key for key in self._refused if self._may_read(key)]
        for key in admitted:
            del self._refused[key]
        return admitted

    def _may_read(self, key: ShardKey) -> bool:
        held = self._held.get(key)
        if held is None:
            return True
        total_bytes = self.total_bytes + self._unopened_bytes
        return total_bytes < self._max_bytes and held < self._max_bytes / len(self._held)
