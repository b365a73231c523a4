"""How does a worker do with the records that it has read?"""

from collections.abc import Iterable
from typing import final

from shardline.core.clock import NEVER
from shardline.core.consumer.events import DeadLetterFailed, HandlerRetried, HandlingEvent, RecordsDeadLettered


@final
class HandlingCounts:
    """What became of records that handlers failed on, since the consumer was started."""

    __slots__ = ("dead_letters", "failed_records", "retries")

    def __init__(self) -> None:
        self.retries: int = 0
        """Calls of a handler that failed, and after which the records were handed to it again."""
        self.dead_letters: int = 0
        """Records that were written as dead letters."""
        self.failed_records: int = 0
        """Records that ended a ``run`` with ``HandlerFailed``."""

    def handle_events(self, events: Iterable[HandlingEvent]) -> None:
        """Count what the failure policy tells."""
        for event in events:
            if isinstance(event, HandlerRetried):
                self.retries += 1
            elif isinstance(event, RecordsDeadLettered):
                self.dead_letters += event.records
            elif not isinstance(event, DeadLetterFailed) or event.retry_at == NEVER:
                self.failed_records += event.records
