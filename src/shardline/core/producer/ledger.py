"""Stores whether each record was delivered or has failed, and counts the records.

A record *ends* when it is delivered or has failed.

Invariants:

- P1: a record ends exactly once, by ``deliver``, ``deliver_alone`` or ``fail``.
- P7: the room of a record is released when it has ended.
- P11: delivery costs a few assignments per record. Everything else is done once per aggregate. ``data`` is dropped on
  delivery and kept on failure.
"""

from collections import deque
from typing import NamedTuple, final

from shardline._speedups import twin
from shardline.codec.shapes import PutRecordsResult
from shardline.core.clock import Instant
from shardline.core.producer.aggregate import Aggregate
from shardline.core.producer.intake import Intake
from shardline.core.producer.producer_record import (
    INVALID,
    Attempt,
    BufferedRecord,
    Landing,
    Sent,
    payload_bytes,
    undelivered,
)
from shardline.core.producer_events import Event, RecordsFailed


@final
class Landed(NamedTuple):
    """Counts the records that one shard stored since the last report."""

    records: int
    payload_bytes: int
    expires_at: Instant
    """When the oldest of these records would have expired: the time of its put plus ``record_ttl``."""


@twin
def settle_delivered(records: list[BufferedRecord], landing: Landing, finished: deque[BufferedRecord], /) -> int:
    """Settle the records of an aggregate as delivered, and append those with waiters to ``finished``.

    Return the number of settled records.
    """
    place = 0
    for record in records:
        assert record.ending is None, "P1: a record ends once"
        record.place = place
        record.data = None
        # The ending is set after the other fields, because another thread may be waiting for the ending. It is set
        # before the waiters are read, so that a thread that starts to wait at this moment is not forgotten.
        record.ending = landing
        if record.waiters is not None:
            finished.append(record)
        place += 1
    return place


@final
class Ledger:
    """Sets the ``ending`` of each record and counts the records."""

    def __init__(self, intake: Intake) -> None:
        self._intake = intake
        self.delivered_records = 0
        self.delivered_bytes = 0
        self.failed_records = 0
        self.retried_records = 0
        self.failed_requests = 0
        self.retries_by_code: dict[str, int] = {}
        """How many records were sent again, by the code of the error."""
        self.failures_by_code: dict[str, int] = {}
        """How many records failed, by the code of the error."""
        self._is_observed = False  # whether a sink wants to know which shards stored the records
        self._landed: dict[str, Landed] = {}
        self.wall_offset = 0.0
        """The offset that converts an instant to seconds since 1970. The shell writes this field."""
        self.events: list[Event] = []
        self.finished: deque[BufferedRecord] = deque()
        """Delivered or failed records with waiters. The shell removes each record after it has woken the waiters."""
        self.failed: deque[BufferedRecord] = deque()
        """Records that have failed. The shell removes each record after it has called ``on_failure``."""

    def deliver(self, aggregate: Aggregate, landing: Landing) -> None:
        """Settle all records of an aggregate as delivered."""
        count = settle_delivered(aggregate.records, landing, self.finished)
        self._intake.release(count, aggregate.payload_bytes)
        self.delivered_records += count
        self.delivered_bytes += aggregate.payload_bytes
        if self._is_observed:
            self._note_landed(landing.shard_id, count, aggregate.payload_bytes, aggregate.records[0])

    def deliver_alone(
        self, bundle: Aggregate, results: list[PutRecordsResult], shard_id: str | None, sent: Sent
    ) -> list[int]:
        """Settle the records of a bundle that were stored in ``shard_id``, or in any shard if ``shard_id`` is ``None``.

        Return the indexes of the other records.
        """
        finished = self.finished
        # If the service chooses the shards, each record may be in a different shard. Delivery drops the data, so the
        # sizes are computed before the delivery.
        sizes = [payload_bytes(record) for record in bundle.records] if shard_id is None and self._is_observed else []
        home, all_landed = Landing(shard_id or "", "", sent), True  # all records of the shard share one Landing
        for record, result in zip(bundle.records, results, strict=True):
            landed_in, number = result.shard_id, result.sequence_number
            assert record.ending is None, "P1: a record ends once"
            landing = home
            if not number or not landed_in or landed_in != shard_id:
                if not number or not landed_in or shard_id is not None:
                    all_landed = False
                    continue
                landing = Landing(landed_in, "", sent)
            record.data = None
            record.place = number
            record.ending = landing  # set after the other fields and before the waiters are read, as in ``deliver``
            if record.waiters is not None:
                finished.append(record)
        others = [] if all_landed else [at for at, record in enumerate(bundle.records) if record.ending is None]
        landed = len(results) - len(others)
        size = bundle.payload_bytes - sum([payload_bytes(bundle.records[place]) for place in others])
        self._intake.release(landed, size)
        self.delivered_records += landed
        self.delivered_bytes += size
        if self._is_observed and shard_id is not None and landed:
            self._note_landed(shard_id, landed, size, bundle.records[0])
        for record, record_bytes in zip(bundle.records, sizes, strict=False):
            if isinstance(record.ending, Landing):
                self._note_landed(record.ending.shard_id, 1, record_bytes, record)
        return others

    def observe(self) -> None:
        """From now on, count the delivered records by shard, because a sink needs these counts."""
        self._is_observed = True

    def take_landed(self) -> dict[str, Landed]:
        """Return the counts of the records that have been delivered since the last call, by shard."""
        landed, self._landed = self._landed, {}
        return landed

    def note_retried(self, records: int, code: str) -> None:
        """Count records that are sent again, by the code of the error."""
        self.retried_records += records
        self.retries_by_code[code] = self.retries_by_code.get(code, 0) + records

    def fail(self, records: list[BufferedRecord], code: str, message: str, last: Attempt | None = None) -> None:
        """Settle records as failed. If ``last`` is given, append it to their attempts."""
        if not records:
            return
        for record in records:
            assert record.ending is None, "P1: a record ends once"
            record.ending = undelivered(record, code, message, last)
            if record.waiters is not None:
                self.finished.append(record)
        self._intake.release(len(records), sum([payload_bytes(record) for record in records]))
        self._note_failed(records, code)
        self.events.append(RecordsFailed(len(records), code, message))

    def drop_tags(self, records: list[BufferedRecord]) -> None:
        """Remove the headers from records, and free the room that the headers took (P7)."""
        self._intake.release(0, sum([len(record.tags) for record in records]))
        for record in records:
            record.tags = b""

    def pin(self, aggregate: Aggregate) -> None:
        """Let the keyless records of an aggregate keep their key (``Aggregate.pin``), and take room for it (P7)."""
        self._intake.charge(aggregate.pin())

    def note_invalid(self, records: list[BufferedRecord]) -> None:
        """Count and report records that ``put_many`` refused. Such records were never accepted, so they take no room.

        The event contains no details, because details might quote a key.
        """
        self._note_failed(records, INVALID)
        self.events.append(RecordsFailed(len(records), INVALID, "put_many was passed an invalid record"))

    def _note_failed(self, records: list[BufferedRecord], code: str) -> None:
        self.failed_records += len(records)
        self.failures_by_code[code] = self.failures_by_code.get(code, 0) + len(records)
        self.failed += records

    def _note_landed(self, shard_id: str, records: int, size_bytes: int, first: BufferedRecord) -> None:
        """Add records to the count for a shard. ``first`` is the oldest of them: aggregates are filled in order."""
        expires_at = first.expires_at
        known = self._landed.get(shard_id)
        if known is not None:
            records, size_bytes = known.records + records, known.payload_bytes + size_bytes
            expires_at = min(known.expires_at, expires_at)
        self._landed[shard_id] = Landed(records, size_bytes, expires_at)
