"""How does a user say that a record is done, from wherever it is?

Invariants:

- AK1: the machines are touched in the event loop's thread alone: what is said in another is carried there.
- AK2: a record counts only under the grant that it was read under (L4).
"""

import threading
from collections.abc import Callable
from typing import final

from shardline.aio.batches import Batch
from shardline.aio.custody import Custody
from shardline.model.record import Record


@final
class Acknowledger:
    """Takes acknowledgements for one consumer. To be made in the event loop's thread."""

    def __init__(self, custody: Custody, in_loop: Callable[[Callable[[], None]], object]) -> None:
        self._custody = custody
        self._in_loop = in_loop
        self._thread = threading.get_ident()
        self._is_auto = custody.config.ack == "auto"

    def ack(self, record: Record, *, through: bool) -> bool:
        """This one, and with ``through`` all before it. In order (``auto``) it is always so."""
        return self._ack([record], through=through or self._is_auto)

    def ack_batch(self, batch: Batch) -> bool:
        """The whole batch."""
        return self._ack([batch.records[-1]] if self._is_auto else batch.records, through=self._is_auto)

    def _ack(self, records: list[Record], *, through: bool) -> bool:
        if threading.get_ident() == self._thread:
            return self._ack_here(records, through=through)

        def later() -> None:
            self._ack_here(records, through=through)

        self._in_loop(later)  # AK1
        lease = records[-1].lease
        return lease is not None and lease.held

    def _ack_here(self, records: list[Record], *, through: bool) -> bool:
        custody = self._custody
        accepted = [custody.ack(record, through=through) for record in records]
        worker = custody.workers.get(records[-1].shard_id or "")
        if worker is not None and worker.is_stopping:
            custody.leave_if_done(worker)
        return any(accepted)
