"""Plans the steps of a reshard.

Invariants:

- UpdateShardCount can at most double or halve the number of open shards. Larger changes take the minimum number of
  such steps.
- An impossible change is rejected with the reason before any request is sent.
"""

import math
from collections.abc import Iterable
from typing import Any, Final, NamedTuple, final

from shardline.errors import UsageError
from shardline.model.hashing import HashRange, parse_explicit_hash_key
from shardline.model.limits import UPDATE_SHARD_COUNT_PER_DAY
from shardline.model.shard import Shard

_ID_DIGITS: Final = 12


def steps_to(current: int, target: int) -> list[int]:
    """Return the number of shards after each step, ending with the target. If the target is already reached, there are
    no steps.

    Raises:
        UsageError: the change takes more steps than the service allows in a day.
    """
    steps: list[int] = []
    while current != target:
        current = min(target, 2 * current) if target > current else max(target, math.ceil(current / 2))
        steps.append(current)
    if len(steps) > UPDATE_SHARD_COUNT_PER_DAY:
        raise UsageError(
            f"that takes {len(steps)} steps that at most double or halve the shards, but the service allows only"
            f" {UPDATE_SHARD_COUNT_PER_DAY} in 24 hours"
        )
    return steps


def shard_id_of(text: str) -> str:
    """Return the full shard id. A bare number is a short form: ``3`` means ``shardId-000000000003``."""
    if text.isascii() and text.isdigit() and len(text) <= _ID_DIGITS:
        return f"shardId-{int(text):0{_ID_DIGITS}}"
    return text


@final
class Change(NamedTuple):
    """A split or a merge: the shards before, and the hash ranges after."""

    before: tuple[Shard, ...]
    after: tuple[HashRange, ...]

    @property
    def sentence(self) -> str:
        """The change as text, without a verb: ``shardId-000000000000 (50.00%) -> 25.00% and 25.00%``."""
        before = " and ".join(f"{shard.shard_id} ({shard.hash_range.share:.2%})" for shard in self.before)
        after = " and ".join(f"{hash_range.share:.2%}" for hash_range in self.after)
        return f"{before} -> {after}"

    def to_json(self) -> dict[str, Any]:
        return {
            "shards": [shard.shard_id for shard in self.before],
            "ranges": [
                {
                    "starting_hash_key": str(hash_range.start),
                    "ending_hash_key": str(hash_range.end),
                    "share": hash_range.share,
                }
                for hash_range in self.after
            ],
        }


def split_of(shards: Iterable[Shard], shard_id: str, at: str | None) -> Change:
    """Return the split of this shard at the hash key ``at``, which becomes the first hash key of the upper half.

    Without ``at``, the shard is split in the middle.

    Raises:
        UsageError: there is no such open shard, or it cannot be split at that hash key.
    """
    shard = _open_shard(shards, shard_id)
    whole = shard.hash_range
    first = whole.middle if at is None else parse_explicit_hash_key(at)
    if not whole.start < first <= whole.end:
        raise UsageError(
            f"{shard.shard_id} can be split at the hash keys {whole.start + 1} to {whole.end}, not at {first}"
        )
    return Change((shard,), (HashRange(whole.start, first - 1), HashRange(first, whole.end)))


def merge_of(shards: Iterable[Shard], one_id: str, other_id: str) -> Change:
    """Return the merge of these two shards.

    Raises:
        UsageError: one of the shards is not open, or their hash ranges are not adjacent.
    """
    known = list(shards)
    pair = sorted((_open_shard(known, one_id), _open_shard(known, other_id)), key=lambda shard: shard.hash_range)
    lower, upper = pair
    if lower.hash_range.end + 1 != upper.hash_range.start:
        raise UsageError(f"{one_id} and {other_id} cannot be merged: their hash ranges are not adjacent")
    return Change((lower, upper), (HashRange(lower.hash_range.start, upper.hash_range.end),))


def _open_shard(shards: Iterable[Shard], shard_id: str) -> Shard:
    for shard in shards:
        if shard.shard_id == shard_id:
            if not shard.is_open:
                raise UsageError(f"{shard_id} is closed: only open shards can be split or merged")
            return shard
    raise UsageError(f"the stream has no shard {shard_id}")
