"""Shards and rows for the examples.

The stream of most tables, with time running down (a number is a shard, the last line is open)::

    0   1   2   3   4   5
     \\ /     \\ /    |   |
      6       7     4   5
       \\     /       |  / \\
         8         4  9  10
"""

import pytest

from shardline.model.hashing import HASH_KEY_COUNT, HashRange
from shardline.model.lease import Checkpoint, Lease
from shardline.model.position import SHARD_END, TRIM_HORIZON, at_sequence_number
from shardline.model.sequence import SequenceNumber
from shardline.model.shard import ChildShard, Shard

PART = HASH_KEY_COUNT // 6
PARENTS = {6: (0, 1), 7: (2, 3), 8: (6, 7), 9: (5,), 10: (5,)}
SPANS = {6: (0, 2), 7: (2, 4), 8: (0, 4), 9: (5, 5.5), 10: (5.5, 6)}
OPEN = {4, 8, 9, 10}


def name(number):
    return f"shardId-{number:012d}"


def names(*numbers):
    return {name(number) for number in numbers}


def span(number):
    begin, end = SPANS.get(number, (number, number + 1))
    return HashRange(int(begin * PART), int(end * PART) - 1)


def shard(number, *, is_open=None):
    begin = 0 if number < 6 else 100 if number < 8 else 200
    is_open = number in OPEN if is_open is None else is_open
    parents = [*map(name, PARENTS.get(number, ())), None, None]
    ending = None if is_open else SequenceNumber(begin + 100)
    return Shard(name(number), span(number), SequenceNumber(begin), ending, parents[0], parents[1])


def child(number):
    return ChildShard(name(number), tuple(map(name, PARENTS[number])), span(number))


def row(number, at=TRIM_HORIZON, **facts):
    """Return a row. ``at`` is a position, or the number of a record."""
    position = at_sequence_number(SequenceNumber(at)) if isinstance(at, int) else at
    parents = frozenset(map(name, PARENTS.get(number, ())))
    return Lease(name(number), checkpoint=Checkpoint(position), parent_ids=parents, **facts)


def rows(*unfinished, finished=(), **facts):
    found = [row(number, **facts) for number in unfinished] + [row(number, SHARD_END) for number in finished]
    return {one.shard_id: one for one in found}


class Stream:
    """Everything that the examples need, in one place: test files here import nothing from each other."""

    name = staticmethod(name)
    names = staticmethod(names)
    span = staticmethod(span)
    shard = staticmethod(shard)
    child = staticmethod(child)
    row = staticmethod(row)
    rows = staticmethod(rows)
    all = tuple(shard(number) for number in range(11))


@pytest.fixture
def stream():
    return Stream
