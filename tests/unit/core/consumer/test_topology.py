"""Tests of ``shardline.core.consumer.topology``. The stream is drawn in ``conftest``."""

import math
from random import Random

import pytest
from tests.harness.coordinator import shape

from shardline.codec.shapes import (
    ListShardsResponse,
    StreamSummary,
)
from shardline.core.consumer.consumer_events import ListingFailed, ShardTrimmed, StreamMissing, StreamReplaced
from shardline.core.consumer.discovery import Discovery
from shardline.core.consumer.topology import Topology
from shardline.core.error_codes import Failure, FailureKind
from shardline.core.requests import DescribeStreamSummary
from shardline.model.position import SHARD_END, TRIM_HORIZON, at_timestamp
from shardline.model.stream import StreamRef


class World:
    def __init__(self, if_recreated="stop"):
        self.now = 100.0
        self.topology = Topology(Discovery(StreamRef("s"), TRIM_HORIZON, 60.0, Random(0), self.now), if_recreated)
        self.created_at = 1.0

    def look(self, shards, rows):
        """Run one round: the summary, if it is due, and a listing."""
        self.now = max(self.now, self.topology.next_deadline())
        request = self.topology.poll_request(rows, self.now)
        if isinstance(request, DescribeStreamSummary):
            summary = StreamSummary(name="s", arn="a", status="ACTIVE", created_at=self.created_at)
            self.topology.handle_summary(summary, self.now)
            if self.topology.poll_request(rows, self.now) is None:
                return
        self.topology.handle_page(ListShardsResponse([shape(shard) for shard in shards]), self.now)


def test_nothing_is_planned_before_a_complete_listing(stream):
    world = World()
    assert not world.topology.is_settled
    assert world.topology.matching == frozenset()
    world.look(stream.all, {})
    assert world.topology.is_settled
    assert world.topology.take_news()
    assert not world.topology.take_news()
    assert world.topology.discovery.summary.created_at == 1.0


def test_a_page_that_is_not_the_last_is_no_news(stream):
    world = World()
    world.topology.poll_request({}, 100.0)
    world.topology.handle_summary(StreamSummary(name="s", arn="a", status="ACTIVE"), 100.0)
    world.topology.poll_request({}, 100.0)
    world.topology.handle_page(ListShardsResponse([shape(stream.shard(0))], "token"), 100.0)
    assert not world.topology.take_news()
    world.topology.poll_request(stream.rows(0), 100.0)
    world.topology.handle_failure(Failure(FailureKind.TRANSIENT, "c", "m"), 100.0)
    (event,) = world.topology.take_events()
    assert isinstance(event, ListingFailed)


def test_two_listings_that_were_late_for_different_splits_do_no_harm(stream):
    world = World()
    for number in (8, 4):
        world.look(stream.all, {stream.name(number): stream.row(number, SHARD_END)})
    assert world.topology.take_events() == []
    world.look(stream.all, {})
    assert world.topology.is_settled


def test_or_gives_up_the_rows_that_are_not_of_this_stream(stream):
    world = World("restart")
    foreign = stream.row(8, 150)
    rows = {foreign.shard_id: foreign, stream.name(4): stream.row(4)}
    for _ in range(2):
        world.look(stream.all, rows)
    (event,) = world.topology.take_events()
    assert isinstance(event, StreamReplaced)
    assert world.topology.take_foreign() == [foreign]
    assert world.topology.take_foreign() == []
    assert not world.topology.is_settled
    world.look(stream.all, {stream.name(4): stream.row(4)})
    assert world.topology.is_settled


@pytest.mark.parametrize(("if_recreated", "halted"), [("stop", True), ("restart", False)])
def test_another_time_of_creation_is_another_stream(stream, if_recreated, halted):
    world = World(if_recreated)
    world.look(stream.all, {})
    world.created_at = 2.0
    world.look(stream.all, {})
    (event,) = world.topology.take_events()
    assert event == StreamReplaced("it was created at 2.0, the earlier one at 1.0")
    assert world.topology.is_halted == halted


def test_what_was_open_at_the_start_time_of_the_old_stream_says_nothing_about_the_new_one(stream):
    discovery = Discovery(StreamRef("s"), at_timestamp(50.0), 60.0, Random(0), 100.0)
    topology = Topology(discovery, "restart")
    one = ListShardsResponse([shape(stream.shard(4))])
    for now, created_at in ((100.0, 1.0), (160.0, 2.0)):
        topology.poll_request({}, now)
        topology.handle_summary(StreamSummary(name="s", arn="a", status="ACTIVE", created_at=created_at), now)
        assert not topology.is_settled
        for _ in ("open at the start time", "all"):
            topology.poll_request({}, now)
            topology.handle_page(one, now)
        assert topology.is_settled


def test_nothing_is_settled_before_it_is_known_what_was_open_when_the_group_was_begun(stream):
    world = World()
    world.look(stream.all, {})
    topology = world.topology
    topology.match_at(math.inf, world.now)  # the rows do not show it
    assert topology.is_settled
    topology.match_at(50.0, world.now)
    assert not topology.is_settled
    assert topology.next_deadline() == world.now
    topology.poll_request({}, world.now)
    topology.handle_summary(StreamSummary(name="s", arn="a", status="ACTIVE", created_at=1.0), world.now)
    topology.poll_request({}, world.now)
    topology.handle_page(ListShardsResponse([shape(stream.shard(4))]), world.now)
    assert topology.is_settled
    assert topology.matching == stream.names(4)


def test_a_shard_that_is_trimmed_before_it_was_finished_is_reported_once(stream):
    world = World()
    rows = stream.rows(5, 9, finished=[0])
    left = [stream.shard(number) for number in (4, 8, 9, 10)]
    world.look(left, rows)
    assert world.topology.take_events() == []
    assert world.topology.next_deadline() == 101.0
    world.look(left, rows)
    assert world.topology.take_events() == [ShardTrimmed(stream.name(5))]
    assert world.topology.next_deadline() > 150.0
    world.look(left, rows)
    assert world.topology.take_events() == []


def test_a_listing_can_be_asked_for(stream):
    world = World()
    world.look(stream.all, {})
    world.topology.discovery.list_by(105.0)
    assert world.topology.next_deadline() == 105.0


def test_a_missing_stream_is_waited_for_and_reported_once(stream):
    world = World("restart")
    world.look(stream.all, {})
    missing = Failure(FailureKind.NOT_FOUND, "ResourceNotFoundException", "no stream")
    for _ in range(2):
        world.now = world.topology.next_deadline()
        world.topology.poll_request({}, world.now)
        world.topology.handle_failure(missing, world.now)
        assert not world.topology.is_settled
    assert world.topology.take_events() == [StreamMissing(missing)]
    world.look(stream.all, {})
    assert world.topology.is_settled
