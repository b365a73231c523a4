"""Works out which records a change of position delivers again and which it skips.

Invariants:

- The two positions of a shard are compared as sequence numbers if both are sequence numbers, and otherwise as times. An
  effect that cannot be known is ``unknown``, never a guess.
"""

from enum import StrEnum
from typing import NamedTuple, final

from shardline.model.lease import Lease
from shardline.model.position import TRIM_HORIZON


@final
class EffectKind(StrEnum):
    """The effect of a change on the records of a shard."""

    NONE = "none"
    START = "start"  # the group has no position yet
    REPLAY = "replay"
    SKIP = "skip"
    UNKNOWN = "unknown"


@final
class Effect(NamedTuple):
    """The effect of a change on the records of a shard, and the time between the two positions, if that is known."""

    kind: EffectKind
    seconds: float | None = None


def effect_of(
    before: Lease | None, after: Lease | None, before_at: float | None = None, after_at: float | None = None
) -> Effect:
    """Return the effect of moving a shard from one row to another.

    Args:
        before: the current row.
        after: the new row. ``None`` means that the row is deleted and the shard is read from its beginning after its
            parents.
        before_at: when the record of the current checkpoint arrived, if that is known.
        after_at: when the record of the new checkpoint arrived, if that is known.
    """
    if before is None:
        return Effect(EffectKind.START)
    old = before.resume_at
    new = TRIM_HORIZON if after is None else after.resume_at
    if old == new:
        return Effect(EffectKind.NONE)
    if before.checkpoint.is_finished or new == TRIM_HORIZON:
        return Effect(EffectKind.REPLAY)
    if old == TRIM_HORIZON or (after is not None and after.checkpoint.is_finished):
        return Effect(EffectKind.SKIP)
    old_at = old.timestamp if before_at is None else before_at
    new_at = new.timestamp if after_at is None else after_at
    seconds = None if old_at is None or new_at is None else abs(new_at - old_at)
    if old.sequence_number is not None and new.sequence_number is not None:
        is_replay = new.sequence_number < old.sequence_number
    elif old_at is not None and new_at is not None:
        is_replay = new_at < old_at
    else:
        return Effect(EffectKind.UNKNOWN)
    return Effect(EffectKind.REPLAY if is_replay else EffectKind.SKIP, seconds)
