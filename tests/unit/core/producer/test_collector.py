"""When is a request sent, and which entries does it have?"""

from dataclasses import replace
from random import Random

import pytest

from shardline.core.clock import NEVER
from shardline.core.error_codes import Failure, FailureKind
from shardline.core.producer.collector import Collector
from shardline.core.producer.isolation import Isolation
from shardline.core.producer.lane import Lane
from shardline.core.producer.producer_config import ProducerConfig
from shardline.core.producer.producer_record import BufferedRecord
from shardline.model.hashing import WHOLE_RING

CONFIG = ProducerConfig(linger=0.1, record_ttl=10.0, aggregate_max_count=1)


class Bench:
    """A collector, and its lanes."""

    def __init__(self, lanes=2, **changes):
        self.config = replace(CONFIG, **changes)
        self.isolation = Isolation(self.config)
        self.collector = Collector(self.config, Random(1), self.isolation)
        self.lanes = [Lane(f"shard {n}", WHOLE_RING, self.config, Random(n), 0.0) for n in range(lanes)]

    def seal(self, lane=0, *sizes, put_at=0.0):
        """Seal an aggregate of each size in the lane."""
        for size in sizes or (10,):
            self.lanes[lane].add(BufferedRecord(bytes(size - 1), "k", None, put_at + self.config.record_ttl))
            self.collector.note_sealed(self.lanes[lane])

    def poll(self, now=0.0):
        group = self.collector.poll_group(now)
        return None if group is None else [one.lane.shard_id[-1] for one in group.shipments]

    def drain(self, now=0.0):
        self.collector.drain()
        return self.poll(now)


@pytest.fixture
def bench():
    return Bench()


def test_nothing_goes_before_it_is_due_or_fills_a_request(bench):
    bench.seal()
    assert bench.poll() is None
    assert bench.collector.next_deadline() == NEVER
    assert bench.drain() == ["0"]
    assert bench.poll() is None


@pytest.mark.parametrize(
    "changes", [{"request_max_entries": 3}, {"request_max_bytes": 1024, "aggregate_max_bytes": 64}]
)
def test_a_full_request_goes_at_once_and_holds_no_more(changes):
    bench = Bench(**changes)
    size = 400 if "request_max_bytes" in changes else 10
    bench.seal(0, size, size)
    assert bench.poll() is None
    bench.seal(0, size)
    bench.seal(1, size)
    group = bench.collector.poll_group(0.0)
    assert len(group.shipments) == (3 if size == 10 else 2)
    assert bench.poll() is None


def test_a_shard_with_enough_waiting_sends_at_once():
    bench = Bench(shard_burst_bytes=25)
    bench.seal(0, 10, 10)
    assert bench.poll() is None
    bench.seal(0, 10)
    assert bench.poll() == ["0", "0", "0"]


def test_one_that_is_larger_by_itself_goes_alone():
    bench = Bench(request_max_bytes=1024, aggregate_max_bytes=64)
    bench.seal(0, 5000)
    bench.seal(1, 10)
    assert bench.drain() == ["0"]
    assert bench.poll() == ["1"]


def test_lanes_take_turns():
    bench = Bench(lanes=3)
    bench.seal(0, 10, 10, 10)
    bench.seal(1, 10)
    bench.seal(2, 10, 10)
    assert bench.drain() == ["0", "1", "2", "0", "2", "0"]


def test_who_did_not_fit_is_the_first_of_the_next_request():
    bench = Bench(request_max_entries=2)
    bench.seal(0, 10, 10)
    bench.seal(1, 10)
    assert bench.drain() == ["0", "1"]
    assert bench.poll() == ["0"]


def test_at_most_so_many_requests_are_under_way():
    bench = Bench(max_in_flight=2, request_max_entries=1)
    bench.seal(0, 10, 10, 10)
    bench.collector.drain()
    groups = [bench.collector.poll_group(0.0) for _ in range(3)]
    assert [group is not None for group in groups] == [True, True, False]
    assert bench.collector.next_deadline() == NEVER
    bench.collector.handle_answered()
    assert bench.poll() == ["0"]


def test_after_a_failure_there_is_a_pause_then_one_at_a_time_until_one_succeeds():
    bench = Bench(request_max_entries=1, retry_backoff=1.0)
    bench.seal(0, *[10] * 6)
    bench.collector.drain()
    first, second = (bench.collector.poll_group(0.0) for _ in range(2))
    for _group in (first, second):  # in flight together: one failure
        bench.collector.handle_answered()
        bench.collector.handle_failure(None, 0.0)
    until = bench.collector.next_deadline()
    assert 0.5 <= until <= 1.0
    assert bench.poll(until - 0.001) is None
    bench.collector.poll_group(until)
    assert bench.poll(until) is None
    bench.collector.handle_answered()
    bench.collector.handle_success()
    assert [bench.poll(until), bench.poll(until)] == [["0"], ["0"]]


@pytest.mark.parametrize(("asked", "pause"), [(4.0, 4.0), (3600.0, 5.0)])
def test_the_service_may_ask_for_a_longer_pause_up_to_the_longest(bench, asked, pause):
    bench.seal()
    bench.collector.drain()
    bench.collector.handle_failure(asked, 0.0)
    assert bench.collector.next_deadline() == pause


def test_a_full_request_waits_for_the_end_of_a_pause():
    bench = Bench(request_max_entries=1)
    bench.collector.handle_failure(7.0, 0.0)
    bench.seal()
    assert bench.poll(0.0) is None
    assert bench.poll(7.0) == ["0"]


def test_a_lane_without_tokens_is_set_aside_and_gathered():
    bench = Bench(records_per_second=1.0)
    bench.seal(0, 10, 10)
    bench.seal(1, 10)
    assert bench.drain() == ["0", "1"]
    assert bench.poll() is None
    at = bench.collector.next_deadline()
    assert at == pytest.approx(1.0)
    bench.seal(0, 10)  # it waits with the others
    assert bench.poll(at - 0.01) is None
    assert bench.poll(at) == ["0"]


def test_the_shortest_wait_is_a_fifth_of_linger():
    bench = Bench(records_per_second=1000.0)
    bench.seal(0, *[10] * 1001)
    bench.collector.drain()
    while bench.poll():
        pass
    assert bench.collector.next_deadline() == pytest.approx(0.02)


def test_what_was_released_goes_when_its_lane_wakes_though_it_is_not_due():
    bench = Bench(records_per_second=10.0, linger=5.0, record_ttl=20.0)
    bench.seal(0, *[10] * 11, put_at=5.0)
    bench.lanes[0].released = True
    assert len(bench.drain(5.0)) == 10
    at = bench.collector.next_deadline()
    assert bench.poll(at) == ["0"]


def test_what_is_not_due_waits_for_company_again():
    bench = Bench(records_per_second=10.0, linger=5.0, record_ttl=20.0)
    bench.seal(0, *[10] * 11, put_at=5.0)
    assert len(bench.drain(5.0)) == 10
    assert bench.poll(bench.collector.next_deadline()) is None
    assert bench.collector.next_deadline() == NEVER


def test_a_lane_that_returns_is_looked_at_again(bench):
    bench.lanes[0].held = True
    bench.seal(0, 10)
    assert bench.drain() is None
    assert bench.collector.next_deadline() == NEVER
    bench.lanes[0].held = False
    bench.collector.note_returned(bench.lanes[0], 0.2)
    assert bench.poll(0.2) == ["0"]
    bench.collector.note_returned(bench.lanes[0], 0.2)
    assert bench.poll(0.2) is None


def test_what_expired_counts_no_more_and_lets_the_next_go_earlier():
    bench = Bench(bytes_per_second=100.0)
    bench.seal(0, 100, 100)
    bench.seal(0, 10, put_at=1.0)
    assert bench.drain() == ["0"]
    assert bench.poll() is None
    later = bench.collector.next_deadline()
    assert later == pytest.approx(1.0)
    lane = bench.lanes[0]
    assert len(lane.take_expired(10.5)) == 1
    bench.collector.note_expired(lane, 10.5)
    assert bench.poll(10.5) == ["0"]
    bench.seal(1, 10, 10)
    bench.lanes[1].take_expired(20.0)
    bench.collector.note_expired(bench.lanes[1], 20.0)
    assert (bench.collector._waiting_bytes, bench.collector._waiting_entries) == (0, 0)
    bench.collector.note_expired(bench.lanes[0], 20.0)
    assert bench.poll(20.0) is None


def test_a_lane_that_is_forgotten_counts_no_more():
    bench = Bench(request_max_entries=3)
    bench.seal(0, 10, 10)
    bench.lanes[0].take_unsent()
    bench.collector.forget(bench.lanes[0])
    bench.collector.forget(bench.lanes[1])
    bench.seal(1, 10, 10)
    assert bench.poll() is None
    bench.seal(1, 10)
    assert bench.poll() == ["1"] * 3


# ---- halves


def shipments(bench, *lanes):
    bench.collector.drain()
    for lane in lanes:
        bench.seal(lane)
    return bench.collector.poll_group(0.0)


def refuse(bench, group):
    bench.collector.handle_answered()
    bench.isolation.handle_refused(group.shipments, None, Failure(FailureKind.INVALID, "ValidationException", "why"))


def test_parts_of_a_refused_request_and_the_normal_flow_take_turns():
    bench = Bench(max_in_flight=1)
    refuse(bench, shipments(bench, 0, 1, 0))
    bench.seal(1)
    bench.seal(0)
    bench.collector.drain()
    sent = []
    for _ in range(4):
        assert bench.collector.next_deadline() <= 0.0
        group = bench.collector.poll_group(0.0)
        assert bench.collector.poll_group(0.0) is None, "one at a time"
        bench.collector.handle_answered()
        sent.append(group.part is not None)
        if group.part is not None:
            bench.isolation.handle_stored(group.part)
    assert sent == [True, False, True, True], "all of the normal flow fits into one request"
    assert bench.collector.poll_group(0.0) is None


def test_parts_keep_the_pause(bench):
    refuse(bench, shipments(bench, 0, 0))
    bench.collector.handle_failure(3.0, 0.0)
    assert bench.collector.next_deadline() == 3.0
    assert bench.poll(2.9) is None
    assert bench.poll(3.0) == ["0"]


# ---- deadlines


def test_the_deadline_lies_in_the_past_only_with_something_to_give(bench):
    assert bench.collector.next_deadline() == NEVER
    bench.seal()
    bench.collector.drain()
    assert bench.collector.next_deadline() <= 0.0
    assert bench.poll() == ["0"]
    assert bench.collector.next_deadline() == NEVER


def test_a_lane_that_was_emptied_meanwhile_is_dropped_and_comes_again(bench):
    bench.seal()
    bench.lanes[0].take_unsent()
    assert bench.drain() is None
    bench.seal()
    assert bench.drain() == ["0"]


def test_lanes_that_wait_for_tokens_are_checked_again_if_the_rates_change():
    bench = Bench(1, records_per_second=1.0)
    bench.seal(0, 10, 10)
    assert bench.drain() == ["0"]
    assert bench.drain() is None
    assert bench.collector.next_deadline() == pytest.approx(1.0)
    config = replace(bench.config, records_per_second=100.0, linger=0.0)
    bench.lanes[0].reconfigure(config, 0.5)
    bench.collector.reconfigure(config, 0.5)
    assert bench.poll(0.5) is None
    assert bench.collector.next_deadline() == pytest.approx(0.505), "half a token was there"
    assert bench.poll(0.506) == ["0"]
