"""Which steps lead from the shards that a stream has to those that are wanted?

Invariants:

- UpdateShardCount at most doubles and at least halves what is open: a longer way goes in steps of that size, and
  as few of them as possible.
- What cannot be is refused before anything is sent, with the reason.
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
    """The numbers of shards on the way, the target last; none if it is reached.

    Raises:
        UsageError: it takes more steps than the service allows in a day.
    """
    steps: list[int] = []
    while current != target:
        current = min(target, 2 * current) if target > current else max(target, math.ceil(current / 2))
        steps.append(current)
    if len(steps) > UPDATE_SHARD_COUNT_PER_DAY:
        raise UsageError(
            f"that takes {len(steps)} steps of at most double or half, and the service allows"
            f" {UPDATE_SHARD_COUNT_PER_DAY} in 24 hours"
        )
    return steps


def shard_id_of(text: str) -> str:
    """The id of a shard, also from its number alone: ``3`` is ``shardId-000000000003``."""
    if text.isascii() and text.isdigit() and len(text) <= _ID_DIGITS:
        return f"shardId-{int(text):0{_ID_DIGITS}}"
    return text


@final
class Change(NamedTuple):
    """A split or a merge that can be carried out."""

    before: tuple[Shard, ...]
    after: tuple[HashRange, ...]

    @property
    def sentence(self) -> str:
        """What it does, without a verb: before, then after."""
        before = " and ".join(f"{shard.shard_id} ({shard.hash_range.share:.2%})" for shard in self.before)
        after = " and ".join(f"{one.share:.2%}" for one in self.after)
        return f"{before} -> {after}"

    def to_json(self) -> dict[str, Any]:
        return {
            "shards": [shard.shard_id for shard in self.before],
            "ranges": [
                {"starting_hash_key": str(one.start), "ending_hash_key": str(one.end), "share": one.share}
                for one in self.after
            ],
        }


def split_of(shards: Iterable[Shard], shard_id: str, at: str | None) -> Change:
    """Splitting this shard: at the hash key ``at``, the first of the upper half, or in its middle.

    Raises:
        UsageError: there is no such open shard, or it does not hold that hash key beyond its first.
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
    """Merging these two.

    Raises:
        UsageError: one of them is not open, or their hash ranges do not touch.
    """
    known = list(shards)
    pair = sorted((_open_shard(known, one_id), _open_shard(known, other_id)), key=lambda shard: shard.hash_range)
    lower, upper = pair
    if lower.hash_range.end + 1 != upper.hash_range.start:
        raise UsageError(f"{one_id} and {other_id} cannot be merged: their hash ranges do not touch")
    return Change((lower, upper), (HashRange(lower.hash_range.start, upper.hash_range.end),))


def _open_shard(shards: Iterable[Shard], shard_id: str) -> Shard:
    for shard in shards:
        if shard.shard_id == shard_id:
            if not shard.is_open:
                raise UsageError(f"{shard_id} is closed: only open shards are split and merged")
            return shard
    raise UsageError(f"the stream has no shard {shard_id}")
