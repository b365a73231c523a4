"""How did each record end?

Invariants:

- P1: a record ends exactly once: ``deliver`` or ``fail``.
- P7: the room of a record is released when it has ended.
- P11: delivery costs a few assignments per record; everything else is counted per aggregate. ``data`` is dropped on
  delivery and kept on failure.
"""

from collections import deque
from typing import final

from shardline.codec.shapes import PutRecordsResult
from shardline.core.producer.aggregate import Aggregate
from shardline.core.producer.intake import Intake
from shardline.core.producer.producer_record import Attempt, BufferedRecord, Landing, Sent, payload_bytes, undelivered
from shardline.core.producer_events import Event, RecordsFailed


@final
class Ledger:
    """Ends records, and counts them."""

    def __init__(self, intake: Intake) -> None:
        self._intake = intake
        self.delivered_records = 0
        self.delivered_bytes = 0
        self.failed_records = 0
        self.retried_records = 0
        self.wall_offset = 0.0
        """What to add to an instant to get seconds since 1970; set by the shell."""
        self.events: list[Event] = []
        self.finished: deque[BufferedRecord] = deque()
        """Records that ended and that someone waits for. The shell takes each one out when its waiters are awake."""
        self.failed: deque[BufferedRecord] = deque()
        """Records that were given up. The shell takes each one out when ``on_failure`` was called."""

    def deliver(self, aggregate: Aggregate, landing: Landing) -> None:
        """All records of it are where they belong."""
        finished = self.finished
        place = 0
        for record in aggregate.records:
            assert record.ending is None, "P1: a record ends once"
            record.sub_sequence = place
            record.data = None
            record.ending = landing  # last but for the look at the waiters: another thread may wait for it
            if record.waiters is not None:
                finished.append(record)
            place += 1
        self._intake.release(place, aggregate.payload_bytes)
        self.delivered_records += place
        self.delivered_bytes += aggregate.payload_bytes

    def deliver_alone(
        self, bundle: Aggregate, results: list[PutRecordsResult], shard_id: str | None, sent: Sent
    ) -> list[int]:
        """Records of a bundle, each by its own result: stored in ``shard_id``, or anywhere if that is ``None``.

        Returns the places of the others.
        """
        finished = self.finished
        home, all_landed = Landing(shard_id or "", "", sent), True
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
            record.sequence_number = number
            record.ending = landing  # last but for the look at the waiters: another thread may wait for it
            if record.waiters is not None:
                finished.append(record)
        others = [] if all_landed else [place for place, one in enumerate(bundle.records) if one.ending is None]
        landed = len(results) - len(others)
        size = bundle.payload_bytes - sum([payload_bytes(bundle.records[place]) for place in others])
        self._intake.release(landed, size)
        self.delivered_records += landed
        self.delivered_bytes += size
        return others

    def fail(self, records: list[BufferedRecord], code: str, message: str, last: Attempt | None = None) -> None:
        """These are given up. Their attempts end with ``last``, if it is given."""
        if not records:
            return
        for record in records:
            assert record.ending is None, "P1: a record ends once"
            record.ending = undelivered(record, code, message, last)
            if record.waiters is not None:
                self.finished.append(record)
        self._intake.release(len(records), sum([payload_bytes(record) for record in records]))
        self.failed_records += len(records)
        self.failed += records
        self.events.append(RecordsFailed(len(records), code, message))
