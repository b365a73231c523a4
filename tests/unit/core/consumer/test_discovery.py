"""Tests of ``shardline.core.consumer.discovery``."""

from itertools import count, repeat
from random import Random

import pytest

from shardline.codec.shapes import (
    HashKeyRangeShape,
    ListShardsResponse,
    SequenceNumberRangeShape,
    ShardShape,
    StreamSummary,
)
from shardline.core.clock import NEVER
from shardline.core.consumer.consumer_events import ConsumerFailed, ListingFailed
from shardline.core.consumer.discovery import Discovery
from shardline.core.error_codes import Failure, FailureKind
from shardline.core.requests import DescribeStreamSummary, ListShards, ShardFilter
from shardline.model.position import LATEST, at_timestamp
from shardline.model.stream import StreamRef

STREAM = StreamRef("orders")
SUMMARY = StreamSummary(name="orders", arn="arn", status="ACTIVE", created_at=1.0)


def failure(kind, **facts):
    return Failure(kind, "Code", "message", 400, **facts)


def shape(name):
    return ShardShape(name, HashKeyRangeShape("0", "9"), SequenceNumberRangeShape("1"))


def begun(start=LATEST, *, summary=True):
    discovery = Discovery(STREAM, start, 60.0, Random(0), 100.0)
    if summary:
        assert discovery.poll_request(100.0) == DescribeStreamSummary(STREAM)
        discovery.handle_summary(SUMMARY, 100.0)
    return discovery


def page(discovery, *names, token=None, now=100.0):
    request = discovery.poll_request(now)
    discovery.handle_page(ListShardsResponse([shape(name) for name in names], token), now)
    return request


def listed(discovery):
    listing = discovery.take_listing()
    return None if listing is None else [shard.shard_id for shard in listing.shards]


def test_first_the_summary_then_the_shards_then_again_after_the_interval():
    discovery = begun()
    assert discovery.summary == SUMMARY
    assert page(discovery, "a", "b") == ListShards(STREAM)
    assert listed(discovery) == ["a", "b"]
    assert listed(discovery) is None
    assert 154.0 <= discovery.next_deadline() <= 160.0
    assert discovery.poll_request(150.0) is None
    assert discovery.poll_request(160.0) == DescribeStreamSummary(STREAM)


def test_a_listing_of_many_pages_is_handed_out_whole():
    discovery = begun()
    page(discovery, *(f"s{number}" for number in range(100)), token="t1")
    assert listed(discovery) is None
    assert page(discovery, "x", token="t2") == ListShards(STREAM, next_token="t1")
    assert page(discovery) == ListShards(STREAM, next_token="t2")
    assert len(listed(discovery)) == 101


def test_an_empty_token_is_none():
    discovery = begun()
    page(discovery, "a", token="")
    assert listed(discovery) == ["a"]


@pytest.mark.parametrize(("tokens", "pages"), [(repeat("t"), 2), (map(str, count()), 1_001)])
def test_a_listing_that_does_not_end_has_failed(tokens, pages):
    discovery, now = begun(), 100.0
    for ceiling in (1, 2, 4):
        requests = 0
        while discovery.next_deadline() <= now and requests <= pages:
            page(discovery, "a", token=next(tokens), now=now)
            requests += 1
        assert requests == pages
        assert listed(discovery) is None
        (event,) = discovery.take_events()
        assert (event.operation, event.failure.code) == ("ListShards", "BadShardList")
        assert ceiling / 2 <= discovery.next_deadline() - now <= ceiling
        now = discovery.next_deadline()
    assert discovery.poll_request(now) == ListShards(STREAM)


def test_a_listing_of_nothing_is_a_listing():
    discovery = begun()
    discovery.poll_request(100.0)
    discovery.handle_page(ListShardsResponse(None, None), 100.0)
    assert listed(discovery) == []


def test_one_request_at_a_time():
    discovery = begun()
    discovery.poll_request(100.0)
    assert discovery.poll_request(999.0) is None
    assert discovery.next_deadline() == NEVER


def test_failures_back_off_with_jitter():
    discovery = begun()
    now = 100.0
    for ceiling in (1, 2, 4, 8, 16, 30, 30):
        assert discovery.poll_request(now) is not None
        discovery.handle_failure(failure(FailureKind.TRANSIENT), now)
        wait = discovery.next_deadline() - now
        assert ceiling / 2 <= wait <= ceiling
        (event,) = discovery.take_events()
        assert event == ListingFailed("ListShards", failure(FailureKind.TRANSIENT), now + wait)
        now += wait
    discovery.poll_request(now)
    discovery.handle_failure(failure(FailureKind.TRANSIENT, retry_after=77.0), now)
    assert discovery.next_deadline() == now + 30.0


def test_a_listing_that_is_asked_for_comes_soon():
    discovery = begun()
    page(discovery, "a")
    discovery.list_by(101.0)
    assert discovery.next_deadline() == 101.0
    discovery.list_by(105.0)
    assert discovery.next_deadline() == 101.0


def test_a_listing_that_is_not_begun_is_new_enough():
    discovery = Discovery(STREAM, LATEST, 60.0, Random(0), 100.0)
    discovery.poll_request(100.0)
    discovery.list_by(100.0)
    discovery.handle_summary(SUMMARY, 100.0)
    page(discovery, "a")
    assert discovery.next_deadline() > 150.0


def test_a_start_time_is_asked_for_once():
    discovery = begun(at_timestamp(50.0))
    assert discovery.matching is None
    assert page(discovery, "old") == ListShards(STREAM, ShardFilter("AT_TIMESTAMP", timestamp=50.0))
    assert discovery.matching == {"old"}
    assert listed(discovery) is None
    assert page(discovery, "old", "new") == ListShards(STREAM)
    assert listed(discovery) == ["old", "new"]
    discovery.poll_request(200.0)
    discovery.handle_summary(SUMMARY, 200.0)
    assert page(discovery, "new", now=200.0) == ListShards(STREAM)


def test_the_time_at_which_a_group_was_begun_is_asked_for_once():
    discovery = begun(LATEST)
    page(discovery, "a", "b")
    assert discovery.matching == frozenset()
    assert discovery.match_at(50.0)
    assert discovery.matching is None
    discovery.list_by(101.0)
    assert discovery.poll_request(101.0) == DescribeStreamSummary(STREAM)
    discovery.handle_summary(SUMMARY, 101.0)
    assert page(discovery, "a", now=101.0) == ListShards(STREAM, ShardFilter("AT_TIMESTAMP", timestamp=50.0))
    assert discovery.matching == {"a"}
    assert page(discovery, "a", "b", now=101.0) == ListShards(STREAM)
    assert not discovery.match_at(50.0)
    assert discovery.matching == {"a"}


def test_an_answer_for_another_time_than_is_wanted_by_now_does_not_count():
    discovery = begun(at_timestamp(50.0))
    assert discovery.poll_request(100.0) == ListShards(STREAM, ShardFilter("AT_TIMESTAMP", timestamp=50.0))
    assert discovery.match_at(40.0)
    discovery.handle_page(ListShardsResponse([shape("young")], None), 100.0)
    assert discovery.matching is None
    assert page(discovery, "old") == ListShards(STREAM, ShardFilter("AT_TIMESTAMP", timestamp=40.0))
    assert discovery.matching == {"old"}


@pytest.mark.parametrize("in_a_round", [False, True])
def test_a_recreated_stream_is_described_again(in_a_round):
    discovery = begun(at_timestamp(50.0))
    page(discovery, "a")
    page(discovery, "a", "b")
    if in_a_round:
        discovery.poll_request(160.0)
        discovery.handle_summary(SUMMARY, 160.0)
    discovery.reset()
    assert discovery.matching is None
    if not in_a_round:
        discovery.poll_request(160.0)
        discovery.handle_summary(SUMMARY, 160.0)
    assert page(discovery, "c", now=160.0) == ListShards(STREAM, ShardFilter("AT_TIMESTAMP", timestamp=50.0))
    assert discovery.matching == {"c"}
    assert page(discovery, "c", "d", now=160.0) == ListShards(STREAM)


@pytest.mark.parametrize("pages", [1, 2])
def test_a_listing_under_way_is_not_taken_for_the_answer_to_that(pages):
    discovery = begun(at_timestamp(50.0))
    page(discovery, "a")
    if pages == 2:
        page(discovery, "a", token="t")
    else:
        discovery.poll_request(100.0)
    discovery.reset()
    discovery.list_by(100.0)
    if pages == 2:
        page(discovery, "b")
    else:
        discovery.handle_page(ListShardsResponse([shape("a"), shape("b")]), 100.0)
    assert listed(discovery) == ["a", "b"]
    assert discovery.matching is None
    assert page(discovery, "c") == ListShards(STREAM, ShardFilter("AT_TIMESTAMP", timestamp=50.0))
    assert discovery.matching == {"c"}
    assert page(discovery, "c", "d") == ListShards(STREAM)
    assert listed(discovery) == ["c", "d"]


def test_listings_are_numbered_as_they_are_begun():
    discovery = begun(at_timestamp(50.0))
    page(discovery, "a")
    assert discovery.begun == 0
    page(discovery, "a", token="t")
    assert discovery.begun == 1
    discovery.list_by(100.0)
    page(discovery, "b")
    assert discovery.take_listing().number == 1
    page(discovery, "a")
    assert discovery.take_listing().number == discovery.begun == 2


def test_without_the_right_to_describe_the_stream_it_is_listed():
    discovery = begun(summary=False)
    discovery.poll_request(100.0)
    discovery.handle_failure(failure(FailureKind.DENIED), 100.0)
    assert discovery.take_events() == [ListingFailed("DescribeStreamSummary", failure(FailureKind.DENIED), NEVER)]
    page(discovery, "a")
    assert listed(discovery) == ["a"]
    assert discovery.poll_request(200.0) == ListShards(STREAM)
    assert discovery.summary is None


@pytest.mark.parametrize(
    ("summary", "kind", "operation"),
    [
        (True, FailureKind.DENIED, "ListShards"),
        (True, FailureKind.NOT_FOUND, "ListShards"),
        (False, FailureKind.NOT_FOUND, "DescribeStreamSummary"),
    ],
)
def test_what_cannot_be_listed_cannot_be_read(summary, kind, operation):
    discovery = begun(summary=summary)
    discovery.poll_request(100.0)
    discovery.handle_failure(failure(kind), 100.0)
    assert discovery.take_events() == [ConsumerFailed(operation, failure(kind))]
    assert discovery.has_failed
    assert discovery.poll_request(999.0) is None
    assert discovery.next_deadline() == NEVER


def test_a_summary_alone_comes_between_two_listings_and_puts_off_none():
    discovery = begun()
    page(discovery, "a")
    list_at = discovery.next_deadline()
    discovery.describe_by(110.0)
    discovery.describe_by(120.0)
    assert discovery.next_deadline() == 110.0
    assert discovery.poll_request(110.0) == DescribeStreamSummary(STREAM)
    assert discovery.described_at == 110.0
    discovery.handle_summary(SUMMARY, 111.0)
    assert discovery.next_deadline() == list_at
    discovery.describe_by(112.0)
    discovery.poll_request(112.0)
    discovery.handle_failure(failure(FailureKind.TRANSIENT), 112.0)
    retry_at = discovery.next_deadline()
    assert 112.0 < retry_at < 114.0
    assert discovery.poll_request(retry_at) == DescribeStreamSummary(STREAM)
    discovery.handle_summary(SUMMARY, retry_at)
    assert discovery.next_deadline() == list_at


def test_a_listing_that_is_asked_for_during_a_summary_alone_comes_after_it():
    discovery = begun()
    page(discovery, "a")
    discovery.describe_by(110.0)
    discovery.poll_request(110.0)
    discovery.list_by(110.0)
    discovery.handle_summary(SUMMARY, 110.0)
    assert discovery.poll_request(110.0) == DescribeStreamSummary(STREAM)
    discovery.handle_summary(SUMMARY, 110.0)
    assert page(discovery, "b", now=110.0) == ListShards(STREAM)


def test_a_service_that_refuses_to_describe_the_stream_is_not_asked_again():
    discovery = begun()
    page(discovery, "a")
    list_at = discovery.next_deadline()
    discovery.describe_by(110.0)
    discovery.poll_request(110.0)
    discovery.handle_failure(failure(FailureKind.DENIED), 110.0)
    assert discovery.has_no_summary
    discovery.describe_by(111.0)
    assert discovery.next_deadline() == list_at


def test_a_stream_that_is_missing_is_looked_at_again_from_its_summary_on():
    discovery = begun()
    page(discovery, "a")
    discovery.list_by(110.0)
    discovery.poll_request(110.0)
    discovery.handle_summary(SUMMARY, 110.0)
    discovery.poll_request(110.0)
    now = 110.0
    for ceiling in (1, 2, 4, 8, 16, 30, 30):
        discovery.handle_missing(now)
        discovery.list_by(now)  # readers find that their shards are gone: no reason to list more often
        wait = discovery.next_deadline() - now
        assert ceiling / 2 <= wait <= ceiling
        now += wait
        assert discovery.poll_request(now) == DescribeStreamSummary(STREAM)
    discovery.handle_summary(SUMMARY, now)
    assert page(discovery, "b", now=now) == ListShards(STREAM)
    assert listed(discovery) == ["b"]
    assert discovery.take_events() == []
