"""Keeps the records of each key in order when every record is a separate entry.

PutRecords does not keep the order of its entries. With ``ordered``, therefore, at most one record with a given key is
in flight: the *head* of that key. The later records with the key wait behind the head until it is delivered or has
failed. Keyless records have no order.

Invariants:

- P9: a record becomes the head of its key only when the previous head was delivered or has failed, and records with the
  same key become heads in the order in which they were admitted.
- A head that is refused stays the head: it is sent again before any other record of its key.
- Adding, releasing and expiring a waiting record take time logarithmic in the number of waiting records.
"""

import heapq
from collections import deque
from collections.abc import Iterable
from typing import Final, TypeAlias, final

from shardline.core.clock import NEVER, Instant
from shardline.core.producer.producer_record import BufferedRecord

_Expiry: TypeAlias = tuple[Instant, int, BufferedRecord]

_STALE_MIN: Final = 64  # fewer stale entries in the heap are not worth a clean-up


@final
class KeyOrder:
    """The heads of one lane's keys and the records that wait behind them."""

    __slots__ = ("_admitted", "_behind", "_by_expiry", "_heads", "waiting")

    def __init__(self) -> None:
        self._heads: dict[str, BufferedRecord] = {}
        self._behind: dict[str, deque[BufferedRecord]] = {}  # the records behind the head of a key; never empty
        self._by_expiry: list[_Expiry] = []  # a heap of all waiting records, and of some that no longer wait
        self._admitted: int = 0  # breaks ties in the heap
        self.waiting: int = 0
        """The number of records that wait behind a head."""

    @property
    def has_heads(self) -> bool:
        """Whether any key has a head, that is, an admitted record that has neither been delivered nor failed."""
        return bool(self._heads)

    def expires_at(self) -> Instant:
        """Return a time before which no waiting record expires."""
        return self._by_expiry[0][0] if self._by_expiry else NEVER

    def oldest(self) -> Instant:
        """Return the ``expires_at`` of the waiting record that was put first."""
        return min([behind[0].expires_at for behind in self._behind.values()], default=NEVER)

    def admit(self, records: list[BufferedRecord]) -> list[BufferedRecord]:
        """Return the records that may be sent now, and keep the other records waiting.

        Args:
            records: the records, in the order of their puts.
        """
        heads = self._heads
        admitted: list[BufferedRecord] = []
        for record in records:
            key = record.key
            if key is None or heads.setdefault(key, record) is record:
                admitted.append(record)
            else:
                self._behind.setdefault(key, deque()).append(record)
                self._admitted += 1
                deadline = record.expires_at + record.extra_ttl
                heapq.heappush(self._by_expiry, (deadline, self._admitted, record))
                self.waiting += 1
        return admitted

    def end(self, records: Iterable[BufferedRecord]) -> list[BufferedRecord]:
        """Remove records that were delivered or have failed. Return the records that become heads in their place."""
        following: list[BufferedRecord] = []
        for record in records:
            key = record.key
            # Another record follows only when the current head was delivered or has failed.
            if key is None or self._heads.get(key) is not record:
                continue
            if key in self._behind:
                self._heads[key] = self._take_next(key)
                following.append(self._heads[key])
            else:
                del self._heads[key]
        self._drop_stale()
        return following

    def take_expired(self, now: Instant) -> list[BufferedRecord]:
        """Remove and return the waiting records whose TTL has expired."""
        expired: list[BufferedRecord] = []
        by_expiry = self._by_expiry
        while by_expiry and by_expiry[0][0] <= now:
            _, _, record = heapq.heappop(by_expiry)
            key = record.key
            # The heap's entry may be stale: the record may have become the head, have been delivered or have failed.
            if key is None or key not in self._behind or record.ending is not None or self._is_head(record):
                continue
            behind = self._behind[key]
            # Records with the same key wait in the order of their puts. Unless records have their own TTLs, the record
            # that was put first also expires first.
            if behind[0] is not record:
                behind.remove(record)
                behind.appendleft(record)
            expired.append(self._take_next(key))
        return expired

    def _take_next(self, key: str) -> BufferedRecord:
        """Take the first record that waits behind the head of this key."""
        behind = self._behind[key]
        record = behind.popleft()
        self.waiting -= 1
        if not behind:
            del self._behind[key]
        return record

    def _drop_stale(self) -> None:
        """Remove the stale entries from the heap, once most entries are stale."""
        if not self.waiting:
            self._by_expiry = []
        elif len(self._by_expiry) > 2 * self.waiting + _STALE_MIN:
            waiting = {id(record) for behind in self._behind.values() for record in behind}
            self._by_expiry = [entry for entry in self._by_expiry if id(entry[2]) in waiting]
            heapq.heapify(self._by_expiry)

    def in_order(self, queued: list[BufferedRecord]) -> list[BufferedRecord]:
        """Return the queued and the waiting records, ordered by the time of their puts.

        Among records with the same key and equal times, the head comes first, then the waiting records, then the other
        queued records.
        """
        heads = [record for record in queued if self._is_head(record)]
        others = [record for record in queued if not self._is_head(record)]
        waiting = [record for behind in self._behind.values() for record in behind]
        return sorted(heads + waiting + others, key=lambda record: record.expires_at)

    def forget(self, records: Iterable[BufferedRecord]) -> None:
        """Drop all waiting records, and those heads that are among ``records``. The caller admits all of them again."""
        self._behind, self._by_expiry, self.waiting = {}, [], 0
        for record in records:
            key = record.key
            if key is not None and self._heads.get(key) is record:
                del self._heads[key]

    def _is_head(self, record: BufferedRecord) -> bool:
        return record.key is not None and self._heads.get(record.key) is record
