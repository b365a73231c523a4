"""Leaves the records that do not pass the user's filter out of a page.

The shell calls the filter, which is user code, and passes its answers to ``leave_out``. The hand-out (``handout``) and
``HeldShard`` then handle the remaining records.

Invariants:

- A record that does not pass counts as done for the checkpoint, like a record that the user has finished: together with
  the records before it, and not earlier. For this purpose, a page keeps its last record (``Page.through``) if that
  record did not pass. If another record follows, the checkpoint of that record covers it.
- The memory of records that did not pass is freed immediately (``Page.freed_bytes``).
"""

from collections.abc import Sequence
from itertools import compress

from shardline.core.consumer.prefetch import RECORD_BYTES
from shardline.core.consumer.reader import Page


def leave_out(page: Page, passed: Sequence[object]) -> Page:
    """Return the page with the records that passed the filter. ``passed`` has the filter's answer for each record."""
    kept = list(compress(page.records, passed))
    count = len(page.records) - len(kept)
    if count == 0:
        return page
    kept_bytes = sum([len(record.data) + RECORD_BYTES for record in kept])
    # This is an estimate. It must not exceed the bytes that were counted for the whole page.
    held_bytes = min(page.held_bytes, kept_bytes)
    # A copy after the last record was left out before (``dedup_window``).
    through = page.through or (None if passed[-1] else page.records[-1])
    freed_bytes = page.held_bytes - held_bytes
    return page._replace(records=kept, held_bytes=held_bytes, filtered=count, through=through, freed_bytes=freed_bytes)
