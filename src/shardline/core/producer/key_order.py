"""Which record of a key may be sent next, where every record is an entry of its own?

PutRecords does not keep the order of its entries. In order, therefore, at most one record of a key is on its way, the
*head* of its key; the records that were put after it wait here until it has ended. Keyless records have no order.

Invariants:

- P9: a record of a key becomes the head only when the head before it was delivered or has failed, and the records of a
  key become heads in the order in which they were admitted.
- A head that is refused stays the head: it is sent again before any other record of its key.
- Every record is looked at a fixed number of times, however many of one key wait.
"""

from collections import deque
from collections.abc import Iterable
from typing import final

from shardline.core.clock import NEVER, Instant
from shardline.core.producer.record import BufferedRecord


@final
class KeyOrder:
    """The heads of one lane's keys, and the records that wait behind them."""

    __slots__ = ("_behind", "_heads", "expires_at", "waiting")

    def __init__(self) -> None:
        self._heads: dict[str, BufferedRecord] = {}
        self._behind: dict[str, deque[BufferedRecord]] = {}  # never an empty one
        self.expires_at: Instant = NEVER
        """When the first that waits expires, or earlier."""
        self.waiting: int = 0
        """How many records wait behind a head."""

    @property
    def has_heads(self) -> bool:
        """Whether any record was admitted and has not ended."""
        return bool(self._heads)

    def admit(self, records: list[BufferedRecord]) -> list[BufferedRecord]:
        """Those of the records, in the order of their puts, that may go now. The others wait here from now on."""
        heads = self._heads
        admitted: list[BufferedRecord] = []
        for record in records:
            key = record.key
            if key is None or heads.setdefault(key, record) is record:
                admitted.append(record)
            else:
                self._behind.setdefault(key, deque()).append(record)
                self.expires_at = min(self.expires_at, record.expires_at)
                self.waiting += 1
        return admitted

    def end(self, records: Iterable[BufferedRecord]) -> list[BufferedRecord]:
        """These records were delivered or have failed. Returns those that follow them, which are heads now."""
        following: list[BufferedRecord] = []
        for record in records:
            key = record.key
            if key is None or self._heads.get(key) is not record:
                continue
            behind = self._behind.get(key)
            if behind is None:
                del self._heads[key]
                continue
            self._heads[key] = behind.popleft()
            following.append(self._heads[key])
            self.waiting -= 1
            if not behind:
                del self._behind[key]
        if not self._behind:
            self.expires_at = NEVER
        return following

    def take_expired(self, now: Instant) -> list[BufferedRecord]:
        """The records whose life ended while they waited."""
        if now < self.expires_at:
            return []
        waiting = self.in_order([])
        self.forget([])
        self.admit([record for record in waiting if record.expires_at > now])  # their heads are under way: none goes
        return [record for record in waiting if record.expires_at <= now]

    def in_order(self, queued: list[BufferedRecord]) -> list[BufferedRecord]:
        """What is queued and what waits, by the time of the puts. Of one key: its head, those behind it, the others."""
        heads = [record for record in queued if self._is_head(record)]
        others = [record for record in queued if not self._is_head(record)]
        waiting = [record for behind in self._behind.values() for record in behind]
        return sorted(heads + waiting + others, key=lambda record: record.expires_at)

    def forget(self, records: Iterable[BufferedRecord]) -> None:
        """None waits any more, and these records are to be admitted again."""
        self._behind, self.expires_at, self.waiting = {}, NEVER, 0
        for record in records:
            key = record.key
            if key is not None and self._heads.get(key) is record:
                del self._heads[key]

    def _is_head(self, record: BufferedRecord) -> bool:
        return record.key is not None and self._heads.get(record.key) is record
