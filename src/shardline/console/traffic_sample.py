"""Finds the rate of each shard, the hot keys and the split point that would help, from records that were read.

Invariants:

- A rate is a rate of arrival: a record counts in the second in which it arrived, whenever it was read.
- Rates count Kinesis records and their stored bytes, as the limits of a shard do. Keys are those of the records inside
  aggregates.
- The hot keys and the split point are computed for the scarcer resource: for bytes if the shard is nearer to its limit
  of bytes, and for records otherwise.
- Old traffic fades: the counts of keys are halved every ``FADE`` seconds.
- Memory is bounded: a shard keeps ``HISTORY`` seconds and ``KEYS_MAX`` keys. Rare keys are forgotten first.
- Nothing here reads a clock: the time is an argument.
"""

from collections import Counter, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import islice, pairwise
from typing import Any, Final, final

from shardline.codec.raw_records import deaggregate
from shardline.codec.shapes import RawRecord
from shardline.model.hashing import HashRange, hash_key_of
from shardline.model.limits import SHARD_WRITE_BYTES_PER_SECOND, SHARD_WRITE_RECORDS_PER_SECOND
from shardline.model.record import Record

HISTORY: Final = 120
KEYS_MAX: Final = 2_000
FADE: Final = 30
_HOT: Final = 0.8
_HOT_SECONDS: Final = 5
_KEYS_SHOWN: Final = 5
_SPLITS_SHOWN: Final = 5


@final
@dataclass
class ShardTraffic:
    """The traffic of one shard."""

    seconds: deque[list[int]] = field(default_factory=lambda: deque[list[int]](maxlen=HISTORY))
    """For each second with records: the second since 1970, the records, the bytes, and when the row last changed."""
    keys: Counter[str] = field(default_factory=Counter[str])
    key_bytes: Counter[str] = field(default_factory=Counter[str])
    faded_at: int = 0
    peak: tuple[float, int] = (0.0, 0)
    """The highest load of the last ``HISTORY`` seconds, and the second in which it ended."""

    def add(self, raw: RawRecord, records: Iterable[Record], change: int = 0) -> None:
        second = int(raw.arrived_at or 0)
        if not self.seconds or self.seconds[-1][0] < second:
            if self.seconds:
                self._note_load(self.seconds[-1][0] + 1)
            self.seconds.append([second, 0, 0, 0])
        row = next((row for row in reversed(self.seconds) if row[0] <= second), self.seconds[0])
        row[1] += 1
        row[2] += len(raw.data) + len((raw.key or "").encode())
        row[3] = change
        for record in records:
            if record.key is not None:
                self.keys[record.key] += 1
                self.key_bytes[record.key] += len(record.data)
        if len(self.keys) > 2 * KEYS_MAX:
            self._keep({key for counts in (self.keys, self.key_bytes) for key, _ in counts.most_common(KEYS_MAX // 2)})
        if second >= self.faded_at + FADE:
            is_first, self.faded_at = self.faded_at == 0, second
            if not is_first:
                self.keys = Counter({key: count // 2 for key, count in self.keys.items() if count > 1})
                self._keep(set(self.keys))
                self.key_bytes = Counter({key: size // 2 for key, size in self.key_bytes.items()})

    def _note_load(self, second: int) -> None:
        load = self.load(second)
        if load >= self.peak[0] or self.peak[1] < second - HISTORY:
            self.peak = (load, second)

    def _keep(self, keys: set[str]) -> None:
        self.keys = Counter({key: self.keys[key] for key in keys})
        self.key_bytes = Counter({key: self.key_bytes[key] for key in keys})

    @property
    def weights(self) -> Counter[str]:
        """The use of the scarcer resource (bytes or records) by each key."""
        records, size = (sum(row[column] for row in self.seconds) for column in (1, 2))
        is_size = size / SHARD_WRITE_BYTES_PER_SECOND > records / SHARD_WRITE_RECORDS_PER_SECOND
        return self.key_bytes if is_size else self.keys

    def load(self, now: float) -> float:
        """Return the highest share of a limit that the shard used, on average over the last complete seconds."""
        last = list(islice(reversed(self.seconds), _HOT_SECONDS + 1))
        recent = [row for row in last if int(now) - _HOT_SECONDS <= row[0] < int(now)]
        records = sum(row[1] for row in recent) / _HOT_SECONDS
        size = sum(row[2] for row in recent) / _HOT_SECONDS
        return max(records / SHARD_WRITE_RECORDS_PER_SECOND, size / SHARD_WRITE_BYTES_PER_SECOND)


@final
class TrafficSample:
    """The traffic of a stream, counted from the records that were read."""

    def __init__(self) -> None:
        self.shards: dict[str, ShardTraffic] = {}
        self.read = 0
        self.changes = 0
        """How many pages of records have been counted. Each row of traffic has the value of this counter at its last
        change.
        """

    def add(self, shard_id: str, raws: Iterable[RawRecord]) -> list[Record]:
        """Count the records of one page, and return the user records in them."""
        shard = self.shards.setdefault(shard_id, ShardTraffic())
        found: list[Record] = []
        self.changes += 1
        for raw in raws:
            records = deaggregate(raw)
            shard.add(raw, records, self.changes)
            found += records
        self.read += len(found)
        return found

    def to_json(self, ranges: Mapping[str, HashRange], now: float, seen: int = 0) -> dict[str, Any]:
        """Return the shards with traffic as a JSON object, with only those rows that changed after change number
        ``seen``.

        A shard without traffic in the last seconds and without a change is left out: its load is 0. A shard that was
        hot less than ``HISTORY`` seconds ago is included, with its peak. Only the shards with the highest load have a
        split point, because finding it takes time.
        """
        loads = {shard_id: shard.load(now) for shard_id, shard in self.shards.items()}
        news = {
            shard_id: [row[:3] for row in shard.seconds if row[3] > seen and row[0] > now - HISTORY]
            for shard_id, shard in self.shards.items()
        }
        peaks = {
            shard_id: shard.peak
            for shard_id, shard in self.shards.items()
            if shard.peak[0] >= _HOT and shard.peak[1] > now - HISTORY
        }
        order = sorted(loads, key=lambda shard_id: (-loads[shard_id], -peaks.get(shard_id, (0.0, 0))[0]))
        hottest = set(order[:_SPLITS_SHOWN]) & ranges.keys()
        return {
            "now": now,
            "read": self.read,
            "shards": {
                shard_id: {
                    "seconds": news[shard_id],
                    "load": round(loads[shard_id], 3),
                    "hot": loads[shard_id] >= _HOT,
                    "peak": [round(peaks[shard_id][0], 3), peaks[shard_id][1]] if shard_id in peaks else None,
                    "keys": _hot_keys(shard),
                    "split_at": _shown(split_point(shard, ranges[shard_id])) if shard_id in hottest else None,
                }
                for shard_id, shard in sorted(self.shards.items())
                if loads[shard_id] > 0 or news[shard_id] or shard_id in peaks
            },
        }


def _hot_keys(shard: ShardTraffic) -> list[dict[str, Any]]:
    weights = shard.weights
    total = max(1, weights.total())
    return [
        {"key": key, "records": shard.keys[key], "share": round(weight / total, 4)}
        for key, weight in weights.most_common(_KEYS_SHOWN)
    ]


def _shown(at: int | None) -> str | None:
    return None if at is None else str(at)


def split_point(shard: ShardTraffic, whole: HashRange) -> int | None:
    """Return the hash key that divides the sampled traffic most evenly, as the first hash key of the upper half.

    The result is ``None`` if fewer than two keys were seen: no split helps, because records with the same key always go
    to the same shard.
    """
    weights = sorted((hash_key_of(key), count) for key, count in shard.weights.items() if hash_key_of(key) in whole)
    if len(weights) < 2:  # noqa: PLR2004 - a split divides at least two keys
        return None
    total, below, best = sum(count for _, count in weights), 0, (1.0, weights[1][0])
    for (_, count), (following, _) in pairwise(weights):
        below += count
        best = min(best, (abs(below / total - 0.5), following))
    return best[1]
