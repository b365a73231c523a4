"""Which shard does a hash key belong to?"""

from itertools import count, cycle, repeat
from random import Random

import pytest
from tests.harness.producer_shell import shard as shape

from shardline.codec.shapes import HashKeyRangeShape, ListShardsResponse, SequenceNumberRangeShape, ShardShape
from shardline.core.clock import NEVER
from shardline.core.error_codes import Failure, FailureKind
from shardline.core.producer.shard_map import MapState, ShardMap
from shardline.core.requests import ListShards, ShardFilter
from shardline.model.hashing import HASH_KEY_COUNT, HASH_KEY_MAX, HashRange
from shardline.model.sequence import ANY_NUMBER
from shardline.model.stream import StreamRef, parse_stream

STREAM = parse_stream("orders")
HALF = HASH_KEY_COUNT // 2
PARENT = ("shardId-000000000000", 0, HASH_KEY_MAX)
LOW = ("shardId-000000000001", 0, HALF - 1)
HIGH = ("shardId-000000000002", HALF, HASH_KEY_MAX)
THROTTLED = Failure(FailureKind.LIMIT_EXCEEDED, "LimitExceededException", "slow down", 400)


def page(*shards, token=None):
    return ListShardsResponse([shape(*shard) for shard in shards], token)


def new_map(**settings):
    return ShardMap(STREAM, Random(1), **settings)


def refresh(shard_map, now, *shards):
    """Run one complete refresh, with one page."""
    assert shard_map.poll_request(now) is not None
    return shard_map.handle_page(page(*shards), now)


def ready(*shards, now=0.0, **settings):
    shard_map = new_map(**settings)
    assert refresh(shard_map, now, *shards)
    return shard_map


def predict(shard_map, hash_key):
    return shard_map.snapshot.predict(hash_key.to_bytes(16, "big"))


# ---- the first refresh


def test_a_new_map_knows_nothing_and_wants_to_know_at_once():
    shard_map = new_map()
    assert shard_map.state is MapState.INVALID
    assert shard_map.snapshot is None
    assert shard_map.hash_range(PARENT[0], "1") is None
    assert shard_map.answered is False
    assert shard_map.next_deadline() <= 0.0


def test_it_asks_for_the_open_shards_of_its_stream():
    assert new_map().poll_request(0.0) == ListShards(STREAM, ShardFilter("AT_LATEST"), None, 1_000)


def test_a_stream_named_by_arn_is_asked_for_by_arn():
    stream = parse_stream("arn:aws:kinesis:eu-west-1:123456789012:stream/orders")
    request = ShardMap(stream, Random(1)).poll_request(0.0)
    assert request.stream == StreamRef("orders", stream.arn, "eu-west-1", "123456789012")


def test_with_all_pages_there_it_is_ready_and_wants_no_more():
    shard_map = ready(LOW, HIGH)
    assert shard_map.state is MapState.READY
    assert shard_map.answered is True
    assert shard_map.failure is None
    assert shard_map.next_deadline() == NEVER
    assert shard_map.poll_request(1_000.0) is None


@pytest.mark.internal_error
def test_an_answer_that_was_not_asked_for_is_an_internal_error():
    with pytest.raises(AssertionError):
        new_map().handle_page(page(PARENT), 0.0)
    with pytest.raises(AssertionError):
        ready(PARENT).handle_page(page(PARENT), 0.0)


# ---- prediction


# ---- pages


def test_further_pages_go_by_the_token_alone_and_at_once():
    shard_map = new_map()
    shard_map.poll_request(0.0)
    assert shard_map.handle_page(page(HIGH, token="t1"), 3.0) is False
    assert shard_map.answered is False
    assert shard_map.next_deadline() == 3.0
    assert shard_map.poll_request(3.0) == ListShards(STREAM, None, "t1", 1_000)
    assert shard_map.handle_page(page(token="t2"), 4.0) is False
    assert shard_map.poll_request(4.0).next_token == "t2"
    assert shard_map.handle_page(page(LOW), 5.0) is True
    assert predict(shard_map, 0) == LOW[0]


def test_an_empty_token_is_none():
    shard_map = new_map()
    shard_map.poll_request(0.0)
    assert shard_map.handle_page(page(PARENT, token=""), 0.0) is True


@pytest.mark.parametrize(("tokens", "pages"), [(repeat("t"), 2), (cycle("ab"), 3), (map(str, count()), 1_001)])
def test_a_listing_that_does_not_end_is_a_failed_refresh(tokens, pages):
    shard_map, now = new_map(), 0.0
    for ceiling in (1, 2, 4):
        requests = 0
        while shard_map.next_deadline() <= now and requests <= pages:
            shard_map.poll_request(now)
            requests += 1
            assert shard_map.handle_page(page(PARENT, token=next(tokens)), now) is False
        assert requests == pages
        assert (shard_map.failure.code, shard_map.failure.retryable) == ("BadShardList", True)
        assert ceiling / 2 <= shard_map.next_deadline() - now <= ceiling
        now = shard_map.next_deadline()
    assert shard_map.poll_request(now).next_token is None


def test_a_page_whose_list_is_missing_is_an_empty_one():
    shard_map = new_map()
    shard_map.poll_request(0.0)
    assert shard_map.handle_page(ListShardsResponse(None, "t1"), 0.0) is False
    shard_map.poll_request(0.0)
    assert shard_map.handle_page(page(PARENT), 0.0) is True


def test_a_shard_that_two_pages_name_counts_once():
    shard_map = new_map()
    shard_map.poll_request(0.0)
    shard_map.handle_page(page(LOW, HIGH, token="t1"), 0.0)
    shard_map.poll_request(0.0)
    assert shard_map.handle_page(page(HIGH), 0.0) is True
    assert shard_map.snapshot.shard_ids == (LOW[0], HIGH[0])


# ---- failures


@pytest.mark.parametrize(("asked", "pause"), [(17.0, 17.0), (3600.0, 30.0)])
def test_a_pause_that_the_service_asks_for_is_kept_within_reason(asked, pause):
    shard_map = new_map()
    shard_map.poll_request(0.0)
    shard_map.handle_page(THROTTLED._replace(retry_after=asked), 0.0)
    assert shard_map.next_deadline() == pause


@pytest.mark.parametrize(
    "shards",
    {
        "none": (),
        "a gap at the start": [("a", 1, HASH_KEY_MAX)],
        "a gap at the end": [("a", 0, HASH_KEY_MAX - 1)],
        "a gap between": [("a", 0, 5), ("b", 7, HASH_KEY_MAX)],
        "an overlap": [("a", 0, 5), ("b", 5, HASH_KEY_MAX)],
        "parent and children": [PARENT, LOW, HIGH],
        "an inverted range": [("a", 7, 6), ("b", 0, HASH_KEY_MAX)],
        "a negative number": [("a", -1, HASH_KEY_MAX)],
        "a number too large": [("a", 0, HASH_KEY_COUNT)],
        "no number": [("a", "zero", HASH_KEY_MAX)],
    }.items(),
    ids=lambda item: item[0],
)
def test_a_listing_that_does_not_cover_the_ring_once_is_a_failed_refresh(shards):
    _, listed = shards
    shard_map = ready(PARENT)
    before = shard_map.snapshot
    shard_map.invalidate(1.0, PARENT[0], 1.0)
    assert refresh(shard_map, 1.0, *listed) is False
    assert shard_map.snapshot is before
    assert shard_map.state is MapState.UPDATING
    assert shard_map.failure.code == "BadShardList"
    assert shard_map.failure.retryable
    assert 1.5 <= shard_map.next_deadline() <= 2.0


def test_a_shard_that_is_not_in_the_map_is_no_news():
    assert ready(PARENT).invalidate(5.0, LOW[0], 5.0) is False


# ---- invalidation


def test_a_split_costs_one_refresh_however_many_entries_tell_of_it():
    """Regression of the port of the KPL, which named the shard of the landing: it never refreshed."""
    shard_map = ready(PARENT)
    told = [shard_map.invalidate(5.0, PARENT[0], 5.0) for _ in range(100)]
    refresh(shard_map, 5.1, LOW, HIGH)
    told += [shard_map.invalidate(5.05, PARENT[0], 5.2) for _ in range(100)]
    assert sum(told) == 1
    assert predict(shard_map, HALF) == HIGH[0]


# ---- closed shards


def split(shard_map, now):
    assert shard_map.invalidate(now, PARENT[0], now)
    assert refresh(shard_map, now, LOW, HIGH)


@pytest.mark.parametrize(("ttl", "settings"), [(60.0, {}), (5.0, {"closed_shard_ttl": 5.0})])
def test_a_shard_that_disappeared_stays_answerable(ttl, settings):
    shard_map = ready(PARENT, **settings)
    split(shard_map, 100.0)
    assert shard_map.hash_range(PARENT[0], "1") == HashRange(0, HASH_KEY_MAX)
    shard_map.invalidate(100.0 + ttl - 0.5, LOW[0], 100.0 + ttl - 0.5)
    refresh(shard_map, 100.0 + ttl - 0.5, LOW, HIGH)
    assert shard_map.hash_range(PARENT[0], "1") == HashRange(0, HASH_KEY_MAX)


def test_a_time_of_zero_forgets_it_at_once():
    shard_map = ready(PARENT, closed_shard_ttl=0.0)
    split(shard_map, 100.0)
    assert shard_map.hash_range(PARENT[0], "1") is None


def test_a_number_of_another_shard_of_the_same_id_has_no_range():
    """A stream was re-created: the range of the shard in the map does not apply to the other shard."""
    own, foreign = "49" * 28, "48" * 28
    shard_map = new_map()
    assert shard_map.poll_request(0.0) is not None
    everything = HashKeyRangeShape("0", str(HASH_KEY_MAX))
    listed = ShardShape(PARENT[0], everything, SequenceNumberRangeShape("496" + "4" * 53))
    assert shard_map.handle_page(ListShardsResponse([listed], None), 0.0)
    [numbers] = shard_map.snapshot.numbers
    assert numbers.first < numbers.limit
    assert shard_map.hash_range(PARENT[0], numbers.first) == HashRange(0, HASH_KEY_MAX)
    assert shard_map.hash_range(PARENT[0], numbers.limit) is None
    assert shard_map.hash_range(PARENT[0], foreign) is None
    split(shard_map, 100.0)
    assert shard_map.hash_range(PARENT[0], numbers.first) == HashRange(0, HASH_KEY_MAX), "closed, and still known"
    assert shard_map.hash_range(PARENT[0], own) is None


def test_nothing_is_known_of_a_recreated_stream():
    shard_map = ready((PARENT[0], 0, HASH_KEY_MAX), now=1.0)
    shard_map.reset(2.0)
    assert (shard_map.snapshot, shard_map.hash_range(PARENT[0], "1")) == (None, None)
    assert refresh(shard_map, 2.0, (PARENT[0], 0, 9), ("other", 10, HASH_KEY_MAX))
    assert shard_map.hash_range(PARENT[0], "1") == HashRange(0, 9)


def test_what_was_asked_of_the_old_stream_is_no_map_of_the_new_one():
    shard_map = new_map()
    shard_map.poll_request(1.0)
    shard_map.reset(2.0)
    assert shard_map.poll_request(2.0) is None
    assert shard_map.handle_page(page((PARENT[0], 0, HASH_KEY_MAX)), 3.0) is False
    assert shard_map.snapshot is None
    assert refresh(shard_map, 3.0, ("other", 0, HASH_KEY_MAX))


# ---- two lives of a stream


def listed_with(number):
    return ListShardsResponse([ShardShape(PARENT[0], HashKeyRangeShape("0", str(HASH_KEY_MAX)), number)], None)


def test_numbers_that_tell_nothing_are_not_asked_about_a_third_time():
    numbers = SequenceNumberRangeShape(str((2 << 184) | (1_700_000_000 << 148) | 2))
    shard_map = new_map()
    shard_map.poll_request(0.0)
    shard_map.handle_page(listed_with(numbers), 0.0)
    (told,) = shard_map.snapshot.numbers
    assert told is not ANY_NUMBER
    for time, expected in ((1.0, told), (2.0, ANY_NUMBER), (3.0, ANY_NUMBER)):
        shard_map.note_foreign_number(PARENT[0], told)
        shard_map.reset(time)
        assert shard_map.poll_request(time) is not None
        assert shard_map.handle_page(listed_with(numbers), time)
        assert shard_map.snapshot.numbers == (expected,)


@pytest.mark.parametrize("kind", [FailureKind.INVALID, FailureKind.EXPIRED_TOKEN])
def test_a_token_that_is_refused_begins_the_listing_again(kind):
    shard_map = new_map()
    shard_map.poll_request(0.0)
    shard_map.handle_page(page(LOW, token="next"), 0.0)
    shard_map.poll_request(0.0)
    assert not shard_map.handle_page(Failure(kind, "Code", "words", 400), 0.0)
    assert shard_map.failure.retryable
    assert shard_map.poll_request(2.0).next_token is None


def test_closed_shards_are_left_out_whatever_the_filter_says():
    closed = ShardShape(PARENT[0], HashKeyRangeShape("0", str(HASH_KEY_MAX)), SequenceNumberRangeShape("1", "9"))
    shard_map = new_map()
    shard_map.poll_request(0.0)
    assert shard_map.handle_page(ListShardsResponse([closed, shape(*LOW), shape(*HIGH)], None), 0.0)
    assert shard_map.snapshot.shard_ids == (LOW[0], HIGH[0])
