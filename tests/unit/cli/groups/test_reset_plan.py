"""Which rows does a reset write?

That a consumer then reads the right records is tested twice: here by the consumer's own rules on shards of any lineage,
and in ``tests/cli`` by consumers.
"""

import random
from itertools import pairwise

import pytest

from shardline.cli.groups.reset_plan import Action, Target, operations, plan, target_of
from shardline.core.consumer.group_rows import GroupStart, child_rows, missing_rows
from shardline.core.consumer.shard_graph import ShardGraph
from shardline.core.leases import CreateLease, DeleteLease, Refused, ResetLease, apply_to
from shardline.errors import UsageError
from shardline.model.hashing import HASH_KEY_MAX, HashRange
from shardline.model.lease import Checkpoint, Lease
from shardline.model.position import LATEST, SHARD_END, TRIM_HORIZON, at_sequence_number, at_timestamp
from shardline.model.sequence import SequenceNumber
from shardline.model.shard import Shard


def name(index):
    return f"shardId-{index:012d}"


class Stream:
    """Shards that were split and merged at random, each with its creation and end times."""

    def __init__(self, choose):
        self.shards, self.ends = {}, {}
        for index in range(choose.randint(1, 3)):
            width = (HASH_KEY_MAX + 1) // 4
            self._add(HashRange(index * width, (index + 1) * width - 1))
        for _ in range(choose.randint(0, 6)):
            opened = sorted((one for one in self.shards.values() if one.is_open), key=lambda one: one.hash_range)
            touching = [pair for pair in pairwise(opened) if pair[0].hash_range.end + 1 == pair[1].hash_range.start]
            if touching and choose.random() < 0.4:
                low, high = choose.choice(touching)
                self._end(low, high)
                self._add(HashRange(low.hash_range.start, high.hash_range.end), low, high)
            else:
                one = choose.choice(opened)
                middle = one.hash_range.middle
                self._end(one)
                self._add(HashRange(one.hash_range.start, middle - 1), one)
                self._add(HashRange(middle, one.hash_range.end), one)
        for _ in range(choose.randint(0, 2)):  # out of retention
            old = [
                one for one in self.shards.values() if not one.is_open and self.shards.keys().isdisjoint(one.parent_ids)
            ]
            if old:
                del self.shards[old[0].shard_id]

    def _add(self, hash_range, *parents):
        index = len(self.ends) + sum(one.is_open for one in self.shards.values())
        parent_ids = [one.shard_id for one in parents] + [None, None]
        begin = SequenceNumber(1_000 * (index + 1))
        self.shards[name(index)] = Shard(name(index), hash_range, begin, None, *parent_ids[:2])

    def _end(self, *shards):
        for one in shards:
            end = SequenceNumber(one.starting_sequence_number.number + 500)
            self.ends[one.shard_id] = end
            self.shards[one.shard_id] = Shard(
                one.shard_id, one.hash_range, one.starting_sequence_number, end, one.parent_id, one.adjacent_parent_id
            )

    @property
    def listed(self):
        return list(self.shards.values())

    def graph(self, rows):
        graph = ShardGraph()
        for now in (100.0, 101.0):  # missing shards are believed to be gone
            graph.handle_listing(self.listed, rows, now, now)
        return graph


def some_rows(choose, stream):
    """Return rows that a group may have at some time: some finished, some deleted, some never created."""
    rows = {}
    for shard in stream.listed:
        if choose.random() < 0.6:
            position = choose.choice(
                [TRIM_HORIZON, at_sequence_number(SequenceNumber(shard.starting_sequence_number.number + 3))]
                + ([] if shard.is_open else [SHARD_END, SHARD_END])
            )
            rows[shard.shard_id] = Lease(
                shard.shard_id,
                counter=choose.randrange(9),
                owner=choose.choice([None, "someone"]),
                checkpoint=Checkpoint(position),
                parent_ids=frozenset(shard.parent_ids),
                hash_range=shard.hash_range,
            )
    if choose.random() < 0.3:
        rows[name(900)] = Lease(name(900), checkpoint=Checkpoint(SHARD_END))
    return rows


def carried_out(rows, steps):
    rows = dict(rows)
    for step in steps:
        for operation in operations(rows.get(step.shard_id), step.after):
            assert not isinstance(apply_to(rows, operation), Refused)
    return rows


def read_by_a_consumer(stream, rows):
    """Return which shards a fleet reads, from where and in which order, by the rules of ``core.consumer``."""
    order = []
    rows = dict(rows)
    start = GroupStart(TRIM_HORIZON, 0.0)
    for _ in range(1_000):
        graph = stream.graph(rows)
        for row in missing_rows(graph, rows, start):
            rows.setdefault(row.shard_id, row)
        ready = [
            shard_id for shard_id in sorted(rows) if graph.is_readable(shard_id, rows) and shard_id not in dict(order)
        ]
        if not ready:
            return order
        shard_id = ready[0]
        order.append((shard_id, rows[shard_id].resume_at))
        if not stream.shards[shard_id].is_open:
            for row in child_rows(graph, shard_id, rows):
                rows.setdefault(row.shard_id, row)
            rows[shard_id] = Lease(shard_id, checkpoint=Checkpoint(SHARD_END), hash_range=rows[shard_id].hash_range)
    raise AssertionError("it does not end")


def read_after_a_reset(seed, position):
    """Return a stream with some rows, and what a consumer reads of it after a reset to that position."""
    choose = random.Random(seed)
    stream = Stream(choose)
    rows = some_rows(choose, stream)
    steps = plan(stream.listed, rows, target_of(position, 7.0, stream.listed, frozenset()))
    return stream, read_by_a_consumer(stream, carried_out(rows, steps))


@pytest.mark.parametrize("seed", range(80))
def test_at_trim_horizon_everything_is_read_from_its_beginning_parents_first(seed):
    stream, order = read_after_a_reset(seed, TRIM_HORIZON)
    assert {shard_id for shard_id, _ in order} == set(stream.shards)
    assert all(position == TRIM_HORIZON for _, position in order)
    places = {shard_id: place for place, (shard_id, _) in enumerate(order)}
    for shard_id, shard in stream.shards.items():
        assert all(places[parent] < places[shard_id] for parent in shard.parent_ids if parent in places)


@pytest.mark.parametrize("seed", range(80))
def test_at_latest_only_open_shards_are_read_and_from_the_time_that_was_pinned(seed):
    stream, order = read_after_a_reset(seed, LATEST)
    assert {shard_id for shard_id, _ in order} == {one.shard_id for one in stream.listed if one.is_open}
    assert all(position == at_timestamp(7.0) for _, position in order)


@pytest.mark.parametrize("seed", range(80))
def test_at_a_time_what_was_open_then_or_came_later_is_read_from_that_time(seed):
    choose = random.Random(seed)
    stream = Stream(choose)
    rows = some_rows(choose, stream)
    moment = choose.randrange(1_000, 9_000)
    since = frozenset(
        one.shard_id
        for one in stream.listed
        if one.ending_sequence_number is None or one.ending_sequence_number.number >= moment
    )
    steps = plan(stream.listed, rows, target_of(at_timestamp(float(moment)), 7.0, stream.listed, since))
    order = read_by_a_consumer(stream, carried_out(rows, steps))
    assert {shard_id for shard_id, _ in order} == since
    assert all(position == at_timestamp(float(moment)) for _, position in order)


@pytest.mark.parametrize("seed", range(40))
def test_broken_off_anywhere_it_skips_nothing_that_was_not_done(seed):
    """After each of its steps, a reset to TRIM_HORIZON can only add records to read."""
    choose = random.Random(seed)
    stream = Stream(choose)
    rows = some_rows(choose, stream)
    steps = plan(stream.listed, rows, target_of(TRIM_HORIZON, 7.0, stream.listed, frozenset()))
    before = dict(read_by_a_consumer(stream, rows)) if rows else {}
    for count in range(len(steps)):
        after = dict(read_by_a_consumer(stream, carried_out(rows, steps[:count])))
        for shard_id, position in before.items():
            assert after[shard_id] in {position, TRIM_HORIZON}, (count, shard_id)


def test_the_oldest_shards_come_first_and_what_is_gone_last():
    stream = Stream(random.Random(5))
    gone = Lease(name(900), counter=4)
    steps = plan(stream.listed, {name(900): gone}, target_of(TRIM_HORIZON, 7.0, stream.listed, frozenset()))
    begins = [stream.shards[step.shard_id].starting_sequence_number for step in steps[:-1]]
    assert begins == sorted(begins)
    assert steps[-1] == (name(900), Action.DELETE, gone, None)
    assert operations(gone, None) == [DeleteLease(name(900), 4)]


SHARD = Shard(name(0), HashRange(0, HASH_KEY_MAX), SequenceNumber(5))
HERE = Target(LATEST, 7.0, frozenset({name(0)}))


def test_a_row_changes_in_one_write_that_names_what_was_seen():
    row = Lease(name(0), counter=3, owner="b", checkpoint_owner="a", hash_range=SHARD.hash_range)
    (step,) = plan([SHARD], {name(0): row}, HERE)
    assert step.action is Action.RESET
    assert operations(row, step.after) == [ResetLease(name(0), row.fence, Checkpoint(LATEST), 7.0)]


def test_a_row_that_is_there_already_is_kept():
    row = Lease(name(0), counter=3, hash_range=SHARD.hash_range)
    (step,) = plan([SHARD], {name(0): row}, Target(TRIM_HORIZON, 7.0, frozenset({name(0)})))
    assert step.action is Action.KEEP
    assert operations(row, step.after) == []


@pytest.mark.parametrize(
    "row",
    [
        Lease(name(0), counter=3, hash_range=HashRange(0, 5)),
        Lease(name(0), counter=3, hash_range=SHARD.hash_range, parent_ids=frozenset({name(8)})),
    ],
    ids=["hash range", "parents"],
)
def test_a_row_of_another_stream_is_recreated(row):
    (step,) = plan([SHARD], {name(0): row}, HERE)
    assert step.action is Action.REPLACE
    assert operations(row, step.after) == [DeleteLease(name(0), 3), CreateLease(step.after)]
    assert step.after == Lease(name(0), checkpoint=Checkpoint(LATEST), latest_at=7.0, hash_range=SHARD.hash_range)


def test_one_shard_alone():
    stream = Stream(random.Random(5))
    target = target_of(TRIM_HORIZON, 7.0, stream.listed, frozenset())
    some = stream.listed[-1].shard_id
    assert [step.shard_id for step in plan(stream.listed, {}, target, some)] == [some]
    with pytest.raises(UsageError, match="no shard 'x'"):
        plan(stream.listed, {}, target, "x")
