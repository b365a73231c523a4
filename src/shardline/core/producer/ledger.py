"""How much is in the buffer, and how did each record end?

Invariants:

- P1: a record ends exactly once: ``deliver`` or ``fail``.
- P7: what is accepted and not yet ended never exceeds the bounds in records and in bytes; only into an empty buffer
  does any single record go.
- P11: delivery costs a few assignments per record; everything else is counted per aggregate. ``data`` is dropped on
  delivery and kept on failure.
"""

from typing import final

from shardline.codec.shapes import PutRecordsResult
from shardline.core.events import Event, RecordsFailed
from shardline.core.producer.aggregate import Aggregate
from shardline.core.producer.config import ProducerConfig
from shardline.core.producer.record import BufferedRecord, Landing, payload_bytes, undelivered


@final
class Ledger:
    """What was accepted, minus what has ended."""

    def __init__(self, config: ProducerConfig) -> None:
        self.max_records = config.buffer_max_records
        self.max_bytes = config.buffer_max_bytes
        self.records = 0
        """Accepted and not ended. ``ProducerMachine.put`` counts them in itself: a call less per record."""
        self.payload_bytes = 0
        self.delivered_records = 0
        self.delivered_bytes = 0
        self.failed_records = 0
        self.retried_records = 0
        self.events: list[Event] = []
        self._finished: list[BufferedRecord] = []
        self._failed: list[BufferedRecord] = []

    @property
    def accepted_records(self) -> int:
        """All that were ever accepted."""
        return self.records + self.delivered_records + self.failed_records

    def deliver(self, aggregate: Aggregate, landing: Landing) -> None:
        """All records of it are where they belong."""
        finished = self._finished
        place = 0
        for record in aggregate.records:
            assert record.ending is None, "P1: a record ends once"
            record.sub_sequence = place
            record.data = None
            record.ending = landing  # last but for the look at the waiters: another thread may wait for it
            if record.waiters is not None:
                finished.append(record)
            place += 1
        self.records -= place
        self.payload_bytes -= aggregate.payload_bytes
        self.delivered_records += place
        self.delivered_bytes += aggregate.payload_bytes

    def deliver_each(self, bundle: Aggregate, results: list[PutRecordsResult], times: tuple[float, float]) -> None:
        """All records of a bundle landed, each by itself; ``times`` are when they were sent, and for how long."""
        finished = self._finished
        started_at, duration = times
        for record, result in zip(bundle.records, results, strict=True):
            shard_id, number = result.shard_id, result.sequence_number
            assert shard_id is not None
            assert number is not None
            assert record.ending is None, "P1: a record ends once"
            record.data = None
            record.ending = Landing(shard_id, number, (), started_at, duration)
            if record.waiters is not None:
                finished.append(record)
        count = len(results)
        self.records -= count
        self.payload_bytes -= bundle.payload_bytes
        self.delivered_records += count
        self.delivered_bytes += bundle.payload_bytes

    def deliver_separately(self, aggregate: Aggregate, landings: list[Landing | None]) -> list[int]:
        """Records of a bundle that landed, each by itself. Returns the places of those that did not."""
        others: list[int] = []
        size = 0
        for place, (record, landing) in enumerate(zip(aggregate.records, landings, strict=True)):
            if landing is None:
                others.append(place)
                continue
            data, key = record.data, record.key
            assert record.ending is None, "P1: a record ends once"
            assert data is not None
            size += len(data) if key is None else len(data) + len(key)
            record.data = None
            record.ending = landing
            if record.waiters is not None:
                self._finished.append(record)
        landed = len(landings) - len(others)
        self.records -= landed
        self.payload_bytes -= size
        self.delivered_records += landed
        self.delivered_bytes += size
        return others

    def fail(self, records: list[BufferedRecord], code: str, message: str) -> None:
        """These are given up."""
        if not records:
            return
        for record in records:
            assert record.ending is None, "P1: a record ends once"
            record.ending = undelivered(record, code, message)
            self.payload_bytes -= payload_bytes(record)
            if record.waiters is not None:
                self._finished.append(record)
        self.records -= len(records)
        self.failed_records += len(records)
        self._failed += records
        self.events.append(RecordsFailed(len(records), code, message))

    def take_finished(self) -> list[BufferedRecord]:
        """Records that ended and that someone waits for."""
        finished, self._finished = self._finished, []
        return finished

    def take_failed(self) -> list[BufferedRecord]:
        """All records that were given up."""
        failed, self._failed = self._failed, []
        return failed
