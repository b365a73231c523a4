"""Tests of ``shardline.core.consumer.stream_shares``: workers that read several streams, with one coordinator each."""

import pytest
from tests.harness.coordinator import FOUR, HALVES, A, B, Group, shard

from shardline.core.consumer.assignment import ReadableLease, assign
from shardline.core.consumer.consumer_events import LeaseSurplus
from shardline.core.consumer.stream_shares import KnownLeases, StreamShares
from shardline.core.leases import AskHandOver, TakeLease
from shardline.model.lease import Lease

ONE = [shard(0)]
STEP = 0.05


class Streams:
    """Some streams, and workers that read several of them."""

    def __init__(self, **streams):
        self.groups = {name: Group(*shards) for name, shards in streams.items()}

    def worker(self, name, *streams, **settings):
        shares = StreamShares()
        read = streams or tuple(self.groups)
        made = {one: self.groups[one].sleeper(name, shares=shares, stream=one, **settings) for one in read}
        for one in made.values():
            one.pump()
        return made

    def run(self, seconds):
        for _ in range(round(seconds / STEP)):
            for group in self.groups.values():
                group.run(STEP)

    def done(self, kind):
        return [one for group in self.groups.values() for one in group.done(kind)]


def load(worker):
    return sum(len(one.numbers) for one in worker.values())


def test_a_worker_of_one_stream_has_no_others():
    shares = StreamShares()
    (only,) = Streams(s=FOUR).worker("w").values()
    shares.join(only.machine)
    assert not shares.is_shared
    assert shares.others(only.machine, 0.0) == KnownLeases([], 0)
    assert shares.kept_by_others(only.machine) == 0
    shares.leave(only.machine)
    shares.leave(only.machine)


def test_streams_of_one_shard_each_are_shared_by_two_workers():
    # Each stream alone would leave its only lease where it is.
    streams = Streams(s=ONE, t=ONE)
    first = streams.worker("w0")
    streams.run(2)
    assert load(first) == 2
    second = streams.worker("w1")
    streams.run(5)
    assert (load(first), load(second)) == (1, 1)


def test_streams_of_one_shard_each_are_shared_by_load():
    streams = Streams(s=ONE, t=ONE)
    first = streams.worker("w0", assign_by="load")
    streams.run(2)
    assert load(first) == 2
    second = streams.worker("w1", assign_by="load")
    streams.run(30)
    assert (load(first), load(second)) == (1, 1)


@pytest.mark.parametrize("count", [2, 3, 5])
def test_shares_are_computed_over_the_leases_of_all_streams(count):
    streams = Streams(s=FOUR, t=HALVES, u=ONE)
    workers = [streams.worker(f"w{number}") for number in range(count)]
    streams.run(15)
    loads = [load(worker) for worker in workers]
    assert sum(loads) == 7
    assert max(loads) - min(loads) <= 1
    before = len(streams.done(AskHandOver)) + len(streams.done(TakeLease))
    streams.run(30)
    assert len(streams.done(AskHandOver)) + len(streams.done(TakeLease)) == before, "nothing moves any more"


def test_a_limit_counts_the_leases_of_all_streams():
    streams = Streams(s=FOUR, t=FOUR)
    worker = streams.worker("w0", max_leases=3)
    for _ in range(100):
        streams.run(STEP)
        assert load(worker) <= 3
    assert load(worker) == 3
    for one in worker.values():
        one.machine.limit_leases(1, one.now)
    streams.run(2)
    assert load(worker) == 1
    for one in worker.values():
        one.machine.limit_leases(None, one.now)
    streams.run(3)
    assert load(worker) == 8


def test_two_streams_together_ask_for_no_more_than_one_may():
    streams = Streams(s=FOUR, t=FOUR)
    streams.worker("w0")
    streams.run(2)
    second = streams.worker("w1")
    streams.run(3 * STEP)
    assert len(streams.done(AskHandOver)) <= 1, "it has no lease, so it asks for one at a time"
    streams.run(10)
    assert load(second) == 4
    assert len(streams.done(AskHandOver)) == 4, "no lease moves twice"


def test_leases_that_were_asked_for_do_not_raise_what_may_be_asked_for():
    owned = [ReadableLease(f"a{number}", "a", stream="s") for number in range(9)]
    mine = [
        ReadableLease("m", "me", stream="t"),
        ReadableLease("n", "me", in_hand_over=True, stream="t", is_asked=True),
    ]

    class Fixed:
        def random(self):
            return 0.5

    assert assign([*owned, *mine], "me", None, Fixed(), spill_after=1.0, stream="s").ask == []
    assert assign([*owned, *mine[:1]], "me", None, Fixed(), spill_after=1.0, stream="s").ask == owned[:1]
    assert assign([*owned, *mine[:1]], "me", None, Fixed(), spill_after=1.0, stream="t").ask == []


def test_a_stream_that_is_given_up_goes_to_the_other_worker():
    streams = Streams(s=HALVES, t=HALVES)
    first, second = streams.worker("w0"), streams.worker("w1")
    streams.run(10)
    assert (load(first), load(second)) == (2, 2)
    stream = "s" if first["s"].numbers else "t"
    held = first[stream].numbers
    first[stream].machine.retire(first[stream].now)
    assert len(held) > 0
    streams.run(10)
    assert first[stream].machine.is_closed
    assert first[stream].numbers == set()
    assert second[stream].numbers == {0, 1}
    assert load(first) >= 1, "it reads on in the other stream"
    assert len(first[stream].seen(LeaseSurplus)) == len(held)


def test_a_lease_that_arrives_while_its_stream_is_given_up_is_released():
    streams = Streams(s=HALVES, t=HALVES)
    (one, other) = streams.worker("w0").values()
    take = one.wait_for(TakeLease)
    one.machine.retire(one.now)
    one.answer(take)
    streams.run(5)
    assert one.machine.is_closed
    assert all(row.owner is None for row in streams.groups["s"].rows.values())
    assert other.numbers == {0, 1}


def test_a_child_that_waits_for_its_parent_does_not_count():
    streams = Streams(s=[shard(0, end=9), shard(1, 0, begin=10)], t=ONE)
    streams.groups["s"].rows = {A: Lease(A), B: Lease(B, parent_ids=frozenset({A}))}
    (one, _) = streams.worker("w0").values()
    streams.run(2)
    assert [lease.shard_id for lease in one.machine.known_leases(one.now).readable] == [A]


def test_workers_with_different_lists_come_to_rest():
    streams = Streams(s=FOUR, t=FOUR)
    both, only = streams.worker("w0"), streams.worker("w1", "t")
    streams.run(20)
    assert both["s"].numbers == {0, 1, 2, 3}
    assert load(both) + load(only) == 8
    assert load(only) >= 2
    before = len(streams.done(AskHandOver))
    streams.run(60)
    assert len(streams.done(AskHandOver)) == before


def test_a_stream_whose_shards_are_not_known_keeps_its_last_count():
    streams = Streams(s=HALVES, t=HALVES)
    (one, other) = streams.worker("w0").values()
    streams.run(2)
    known = one.machine.known_leases(one.now)
    assert len(known.readable) == 2
    one.machine.topology.distrust(one.now)
    one.machine._is_known_old = True
    assert one.machine.known_leases(one.now) == known
    assert other.machine.kept_leases == 2
