"""Which records go to a handler's process in one message, and which of them are done if the process dies or hangs?

A process handles the records of a message one after the other, and a batch as a whole. It counts the records whose
handling has *begun*. The shell looks at this number from time to time.

Invariants:

- A message has at most ``MESSAGE_MAX_BYTES`` of data, or a single record of any size. A process has one message at a
  time, so the memory for messages is bounded.
- A process *hangs* if it handles the same record or batch for longer than ``timeout``.
- If a process dies or hangs, the record that it was handling has failed. The records before it are done, and the
  records after it were not handled. If the process had not begun, the first record counts as failed, so that a record
  that kills its process immediately is not sent again and again.
- A batch is done or has failed as a whole.
"""

from collections.abc import Sequence
from typing import Any, Final, NamedTuple, final

from shardline.core.clock import NEVER, Instant
from shardline.core.consumer.cursor import Cursor
from shardline.model.record import Record

MESSAGE_MAX_BYTES: Final = 1_048_576


def split_messages(records: Sequence[Record[Any]]) -> list[Sequence[Record[Any]]]:
    """Split records into messages. Each message has at least one record."""
    found: list[Sequence[Record[Any]]] = []
    start = size = 0
    for place, record in enumerate(records):
        if size and size + len(record.data) > MESSAGE_MAX_BYTES:
            found.append(records[start:place])
            start, size = place, 0
        size += len(record.data) + 1
    return [*found, records[start:]]


@final
class Handled(NamedTuple):
    """How far a process has come with the records of a message."""

    done: int
    """How many of the records are done."""
    has_failed: bool
    """Whether the record that follows the done records has failed."""

    def report(self, cursor: Cursor, first: int) -> None:
        """Move the cursor past the handled records. The first record of the message is at ``first`` in the cursor."""
        cursor.place = first + self.done + self.has_failed


@final
class MessageWatch:
    """The progress of a process with one message.

    Args:
        timeout: how long one record or batch may take. ``None`` means that there is no limit.
        now: when the message was sent.
    """

    def __init__(self, timeout: float | None, now: Instant) -> None:
        self._timeout: float = NEVER if timeout is None else timeout
        self._begun: int = 0
        self._moved_at: Instant = now

    @property
    def handled(self) -> Handled:
        """How far the process has come, if it has died or hangs."""
        return Handled(max(0, self._begun - 1), has_failed=True)

    def handle_progress(self, begun: int, now: Instant) -> None:
        """Note that the process has begun to handle this many records."""
        if begun != self._begun:
            self._begun, self._moved_at = begun, now

    def is_hung(self, now: Instant) -> bool:
        """Whether the process hangs. Call ``handle_progress`` first."""
        return now >= self.next_deadline()

    def next_deadline(self) -> Instant:
        """Return the time from which the process will count as hung, unless it makes progress."""
        return self._moved_at + self._timeout
