"""Decides how many records are sent to a handler's process at a time.

A message to a process takes about as long as a hundred calls of a short handler. So a message carries many records if
the handler is quick, and few if it is slow.

Invariants:

- The first message has one record. Each later message is expected to take at most ``TRAVEL_TIME``, and has one record
  if the handler takes longer. So no record waits long behind the other records of its message, and no hand-over or
  close waits long for the records that a process has.
- The number of records at most doubles from message to message, and is at most ``TRAVEL_MAX_RECORDS``.
"""

from typing import Final, final

TRAVEL_TIME: Final = 0.05
"""How many seconds the records of one message should take."""
TRAVEL_MAX_RECORDS: Final = 500


@final
class TravelSize:
    """Adjusts the maximum number of records in a message to how fast the handler is, for all processes of one run."""

    def __init__(self) -> None:
        self.limit: int = 1

    def handle_returned(self, records: int, duration: float) -> None:
        """Note that a process has handled this many records in ``duration`` seconds."""
        if records > 0:
            # A coarse clock may show no time at all for a few quick records.
            fitting = TRAVEL_MAX_RECORDS if duration <= 0.0 else int(records * TRAVEL_TIME / duration)
            self.limit = max(1, min(fitting, 2 * self.limit, TRAVEL_MAX_RECORDS))
