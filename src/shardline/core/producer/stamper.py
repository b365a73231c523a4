"""Numbers the records of a lane, so that a consumer can recognise a record that was stored twice (``dedup``).

Each lane has its own id and numbers its own records, because the records of a lane are stored in one shard, so a
consumer of this shard sees consecutive numbers, and remembers thousands of them as one range.

Invariants:

- No two records have the same stamp. A record gets its stamp when it first enters a lane, and keeps it through all
  retries, even if it moves to another lane.
- A lane that has used all numbers takes a new id.
"""

from typing import final

from shardline.codec.stamps import ID_BITS, NUMBERS, encode_stamp, id_of_bits
from shardline.core.backoff import Chance
from shardline.core.producer.producer_record import BufferedRecord


@final
class Stamper:
    """Stamps the records of one lane."""

    __slots__ = ("_next", "_producer", "_rng")

    def __init__(self, rng: Chance) -> None:
        self._rng: Chance = rng
        self._producer: bytes = b""
        self._next: int = NUMBERS  # the first record draws the first id

    def stamp(self, records: list[BufferedRecord]) -> int:
        """Stamp records that have no stamp yet. Return how many bytes larger the records become."""
        added = 0
        for record in records:
            if self._next == NUMBERS:
                self._producer, self._next = id_of_bits(self._rng.getrandbits(ID_BITS)), 0
            stamp = encode_stamp(self._producer, self._next)
            # Plain bytes, even if these were the headers of a trace: a record must not lose its stamp.
            record.tags = stamp + record.tags
            self._next += 1
            added += len(stamp)
        return added
