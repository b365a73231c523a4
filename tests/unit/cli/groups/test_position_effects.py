"""Which records does a change of position deliver again, and which does it skip?"""

import pytest

from shardline.cli.groups.position_effects import Effect, EffectKind, effect_of
from shardline.model.lease import Checkpoint, Lease
from shardline.model.position import LATEST, SHARD_END, TRIM_HORIZON, at_sequence_number, at_timestamp
from shardline.model.sequence import SequenceNumber


def at(position, **more):
    return Lease("s0", checkpoint=Checkpoint(position), **more)


def number(value, sub_sequence=0):
    return at(at_sequence_number(SequenceNumber(value, sub_sequence)))


START, END, TIME = at(TRIM_HORIZON), at(SHARD_END), at(at_timestamp(100))
PINNED, UNPINNED = at(LATEST, latest_at=160.0), at(LATEST)


@pytest.mark.parametrize(
    ("before", "after", "times", "kind", "seconds"),
    [
        (None, number(7), (), "start", None),
        (None, None, (), "start", None),
        (number(7), number(7), (), "none", None),
        (START, None, (), "none", None),
        (number(7), None, (), "replay", None),
        (END, number(7), (), "replay", None),
        (number(7), START, (), "replay", None),
        (START, number(7), (), "skip", None),
        (number(7), END, (), "skip", None),
        (number(7), number(6), (), "replay", None),
        (number(7), number(6), (50.0, 20.0), "replay", 30.0),
        (number(7, 1), number(7, 2), (50.0, 50.0), "skip", 0.0),
        (number(10), number(9), (), "replay", None),
        (TIME, PINNED, (), "skip", 60.0),
        (PINNED, TIME, (), "replay", 60.0),
        (number(7), TIME, (), "unknown", None),
        (number(7), TIME, (90.0,), "skip", 10.0),
        (TIME, number(7), (None, 90.0), "replay", 10.0),
        (UNPINNED, TIME, (), "unknown", None),
    ],
)
def test_the_effect_of_a_change(before, after, times, kind, seconds):
    assert effect_of(before, after, *times) == Effect(EffectKind(kind), seconds)
