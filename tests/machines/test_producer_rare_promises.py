"""Tests what the producer guarantees when two rare events coincide: an unexplained landing and a stream that does not
answer; AUTO distribution that is switched while records are in flight; a stream that is re-created while it is listed.
The tests use the stream of ``test_producer_promises.py``.
"""

from itertools import count
from random import Random

import pytest
from tests.harness.producer_shell import ACCEPTED
from tests.machines.test_producer_promises import (
    HALF,
    HASH_KEY_MAX,
    Stream,
    many_shards,
    place_of,
    shard,
    whole_request,
)
from tests.sim.interrupting import entered_once_more

from shardline.codec.shapes import ListShardsResponse, PutRecordsResponse, PutRecordsResult, StreamSummary
from shardline.core.clock import NEVER
from shardline.core.error_codes import Failure, FailureKind
from shardline.core.producer.aggregate import WRAP_MAX_BYTES
from shardline.core.producer.producer_config import ProducerConfig
from shardline.core.producer.producer_record import BufferedRecord
from shardline.core.producer.shard_map import ShardMap
from shardline.core.producer.stream_summary import StreamFacts
from shardline.model.limits import MIB
from shardline.model.stream import StreamRef


def fresh(stream, data=b"x", key="k"):
    return BufferedRecord(data, key, None, stream.now + stream.config.record_ttl, waiters=[])


def idle_behind_a_slow_shard():
    """Nothing waits, so nothing is armed, and the shard accepts one record in a hundred seconds."""
    stream = Stream(linger=0.5, record_ttl=2.0, records_per_second=0.01)
    stream.run(0.1)
    stream.put()
    stream.flush()
    stream.run(1.0)
    assert stream.delivered() == [True]
    return stream


def test_what_is_put_in_the_middle_of_a_poll_expires_in_its_time():
    for after in count():
        stream, accepted = idle_behind_a_slow_shard(), []

        def put(stream=stream, accepted=accepted):
            accepted.append(fresh(stream))
            assert stream.accept(accepted[-1]) in ACCEPTED

        with entered_once_more(after, put) as once_more:
            assert stream.machine.poll_put(stream.now) is None
        if once_more.where is None:
            break
        stream.run(3.0)
        assert [one.conclusion and one.conclusion.code for one in accepted] == ["Expired"], once_more.where
    assert after > 10


def test_the_limit_of_what_goes_in_without_a_look_is_the_streams():
    """Like ``test_the_round_under_way_shrinks_with_the_limit_of_a_record``, but with the limit that the stream reports."""
    stream = Stream(*many_shards("s", 600), latency=0.0)
    stream.run(0.1)
    stream.put()
    limit = stream.intake.record_max_bytes - WRAP_MAX_BYTES
    assert stream.intake.plain_max_bytes == limit
    assert 0 < stream.intake.quiet_bytes - stream.intake.reserved_bytes <= limit


def test_what_landed_where_nothing_explains_it_is_sent_again_when_the_stream_has_no_explanation():
    stream = Stream(shard("a", 0, HALF - 1), shard("b", HALF, HASH_KEY_MAX), linger=0.1)
    stream.run(1.0)
    truth, odd = stream.shard_of, ["b"]
    stream.shard_of = lambda place: odd.pop() if odd else truth(place)
    for place in (1, 2):
        stream.put(hash_key=place)
    stream.run(0.5)  # as soon as the stream has answered
    assert not odd
    assert stream.delivered() == [True, True]
    assert [record.conclusion.attempt_count for record in stream.records] == [2, 2]


@pytest.mark.parametrize("denied_for_good", [True, False])
def test_p9_what_landed_where_nothing_explains_it_is_sent_in_order_when_the_stream_may_not_be_asked(denied_for_good):
    stream = Stream(shard("a", 0, HALF - 1), shard("b", HALF, HASH_KEY_MAX), linger=0.1, ordered=True)
    stream.run(1.0)
    denied = Failure(FailureKind.DENIED, "AccessDeniedException", "no", 400)
    describe = stream.describe_stream
    stream.describe_stream = lambda _: stream.answers.append((stream.now, stream.machine.handle_summary, denied))
    truth, odd = stream.shard_of, ["b"]
    stream.shard_of = lambda place: odd.pop() if odd else truth(place)
    for number in range(4):
        stream.put(b"%d" % number, "k", hash_key=1)
    stream.run(0.5)
    if not denied_for_good:  # the map is used again, while a record of the key is in flight without one
        stream.put(b"4", "k", hash_key=1)
        stream.flush()
        stream.describe_stream = describe
        stream.machine._facts.query_again(stream.now)
        stream.refuse = lambda entry, _: None if entry.data != b"4" else stream.refusals.pop()
        stream.refusals = [None, "ProvisionedThroughputExceededException"]
    stream.put(b"5", "k", hash_key=1)
    stream.run(2.0)
    assert not odd
    assert all(stream.delivered())
    first = dict.fromkeys(stream.stored()[4:])  # the records after the copies that landed elsewhere
    assert list(first) == sorted(first)


def test_what_waits_when_keys_count_again_and_there_is_no_map_goes_on_by_itself():
    """The producer may not list the shards of a stream that was AUTO, while the service is down."""
    stream = Stream(linger=0.1, record_ttl=300.0)
    denied = Failure(FailureKind.DENIED, "AccessDeniedException", "no", 400)
    stream.answers = [
        (due, handle, denied if handle == stream.machine.handle_list_shards else what)
        for due, handle, what in stream.answers
    ]
    stream.listing = lambda: denied
    stream.run(5.0)
    stream.put()
    stream.run(1.0)
    stream.distribution = "AUTO"
    stream.machine._facts.query_again(stream.now)
    stream.run(1.0)
    down = Failure(FailureKind.TRANSIENT, "InternalFailure", "why", 500)
    stream.fail = lambda _: down
    stream.put()
    stream.run(50.0)
    stream.distribution = None
    stream.run(20.0)  # the stream has been described again
    assert stream.delivered() == [True, False]
    stream.fail = lambda _: None
    stream.run(60.0)
    assert stream.delivered() == [True, True]


def test_p9_lanes_that_wait_for_what_is_parked_go_on_when_that_has_expired():
    """An entry landed in an unexplained shard, the stream does not answer, and is resharded meanwhile."""
    stream = Stream(shard("a", 0, HALF - 1), shard("b", HALF, HASH_KEY_MAX), ordered=True, linger=0.1, record_ttl=10.0)
    stream.run(1.0)
    truth, odd = stream.shard_of, ["b"]
    stream.shard_of = lambda place: odd.pop() if odd else truth(place)
    silent = Failure(FailureKind.TRANSIENT, "InternalFailure", "why", 500)
    handle_summary = stream.machine.handle_summary
    stream.machine.handle_summary = lambda _, now: handle_summary(silent, now)
    stream.latency = 9.5  # they have nearly expired when the answer comes
    parked = [stream.put(hash_key=place) for place in (1, 2)]
    stream.run(0.2)
    stream.latency = 0.01
    stream.run(9.42)
    stream.shards = [
        shard("c", 0, HALF // 2 - 1),
        shard("d", HALF // 2, HALF - 1),
        shard("e", HALF, HALF + HALF // 2 - 1),
        shard("f", HALF + HALF // 2, HASH_KEY_MAX),
    ]
    stream.put(hash_key=HALF)  # lands in an unknown shard: the map is read again
    stream.flush()
    stream.run(0.1)
    assert [lane.shard_id for lane in stream.machine._router.lanes] == ["c", "d", "e", "f"]
    assert [record.conclusion for record in parked] == [None, None]
    younger = stream.put(hash_key=3)
    stream.flush()
    stream.run(0.1)
    assert younger.conclusion is None
    stream.run(0.3)
    assert [record.conclusion.code for record in parked] == ["Expired"] * 2
    assert younger.conclusion is not None
    assert younger.conclusion.delivered


def test_p9_what_waits_behind_what_is_parked_goes_on_when_that_has_expired():
    stream = Stream(ordered=True, linger=0.1, record_ttl=10.0)
    stream.run(1.0)
    truth, odd = stream.shard_of, ["nobody knows it"]
    stream.shard_of = lambda place: odd.pop() if odd else truth(place)
    stream.latency = 9.5  # they have nearly expired when the answer comes
    parked = [stream.put() for _ in range(2)]
    stream.run(0.2)
    stream.latency = 0.01
    stream.run(9.5)
    stream.listing = lambda: None
    younger = stream.put()
    stream.flush()
    stream.run(0.1)
    assert younger.conclusion is None
    stream.run(0.3)
    assert [record.conclusion.code for record in parked] == ["Expired"] * 2
    assert younger.conclusion is not None
    assert younger.conclusion.delivered


def test_a_record_of_its_own_that_the_service_placed_by_itself_is_sent_once():
    """The record was sent before the producer knew that the stream distributes records, and answered after that."""
    stream = Stream(shard("a", 0, HALF - 1), shard("b", HALF, HASH_KEY_MAX), linger=0.1)
    stream.run(1.0)
    stream.shard_of = lambda _: "b"
    stream.latency = 1.0
    stream.put(hash_key=1)
    stream.run(0.2)
    assert len(stream.requests) == 1
    stream.distribution, stream.latency = "AUTO", 0.1
    stream.machine._facts.query_again(stream.now)
    stream.pump()
    stream.run(5.0)
    assert stream.machine._facts.auto
    assert stream.delivered() == [True]
    assert len(stream.requests) == 1


@pytest.mark.parametrize("received", [False, True])
def test_an_abandoned_record_reports_whether_it_may_be_stored(received):
    stream = Stream(linger=0.1, record_ttl=5.0)
    stream.run(1.0)
    broken = Failure(FailureKind.TRANSIENT, "ConnectFailed", "why", maybe_received=received)
    stream.fail = lambda _: broken
    record = stream.put()
    stream.run(10.0)
    assert record.conclusion.code == "Expired"
    assert record.conclusion.attempt_count > 0
    assert record.conclusion.maybe_stored is received


def test_aggregates_for_shards_that_came_later_are_no_larger_than_the_stream_takes():
    stream = Stream(linger=0.1, aggregate_max_bytes=3 * MIB, request_max_bytes=4 * MIB)
    stream.run(1.0)
    stream.shards = [shard("c", 0, HALF - 1), shard("d", HALF, HASH_KEY_MAX)]
    stream.put()
    stream.run(1.0)
    assert len(stream.machine._router.lanes) == 2
    stream.requests.clear()
    for _ in range(20):
        stream.put(b"x" * 100_000)
    stream.run(10.0)
    assert all(stream.delivered())
    assert max(len(entry.data) + len(entry.key) for entry in stream.sent()) <= MIB


def test_a_listing_of_the_old_stream_that_comes_late_is_dropped():
    stream = Stream(shard("a"), linger=0.1)
    stream.run(1.0)
    stream.latency = 1.0
    assert stream.machine._map.invalidate(NEVER, None, stream.now)
    stream.pump()  # a listing is in flight
    stream.shards, stream.created_at, stream.latency = (
        [shard("a", 0, HALF - 1), shard("b", HALF, HASH_KEY_MAX)],
        2.0,
        0.1,
    )
    stream.machine._facts.query_again(stream.now)
    stream.pump()
    stream.run(3.0)
    assert [(lane.shard_id, lane.hash_range.start) for lane in stream.machine._router.lanes] == [("a", 0), ("b", HALF)]


def test_the_rest_of_a_listing_of_the_old_stream_is_not_asked_for():
    machine = ShardMap(StreamRef("s"), Random(0), closed_shard_ttl=60.0)
    assert machine.poll_request(1.0).next_token is None
    assert not machine.handle_page(ListShardsResponse([shard("a", 0, HALF - 1)], "more"), 1.0)
    machine.reset(1.0)
    assert machine.poll_request(1.0).next_token is None


def test_who_is_refused_without_a_key_asks_the_stream_at_once():
    stream = Stream(linger=0.1)
    stream.run(1.0)
    stream.distribution = "AUTO"
    stream.machine._facts.query_again(stream.now)
    stream.run(63.0)
    assert stream.machine._facts.auto
    stream.distribution = None
    invalid = Failure(FailureKind.INVALID, "ValidationException", "why", 400)
    stream.fail = lambda entries: invalid if any(entry.key is None for entry in entries) else None
    stream.run(5.0)
    since = stream.now
    stream.put(key=None)
    stream.run(1.0)
    assert [when for when in stream.summaries if when >= since]
    assert stream.delivered() == [True]


def test_what_the_stream_once_said_of_its_records_holds_also_when_it_says_no_more():
    facts = StreamFacts(StreamRef("s"), ProducerConfig(), Random(0))
    assert facts.poll_request(1.0) is not None
    facts.handle_summary(StreamSummary(name="s", arn="a", status="ACTIVE", max_record_kib=10_240), 1.0)
    assert facts.record_max_bytes == 10 * MIB
    facts.query_again(2.0)
    assert facts.poll_request(2.0) is not None
    facts.handle_summary(Failure(FailureKind.DENIED, "AccessDeniedException", "no", 400), 2.0)
    assert facts.record_max_bytes == 10 * MIB


@pytest.mark.parametrize("has_map", [True, False])
def test_a_record_stored_in_an_unknown_shard_is_reported_as_maybe_stored(has_map):
    """A broken service returns a sequence number, but no shard."""
    stream = Stream(linger=0.1, record_ttl=3.0)
    if not has_map:
        denied = Failure(FailureKind.DENIED, "AccessDeniedException", "no", 400)
        stream.answers = [
            (due, handle, denied if handle == stream.machine.handle_list_shards else what)
            for due, handle, what in stream.answers
        ]
    stream.run(2.0)
    stream.answer = lambda entries: PutRecordsResponse([PutRecordsResult("1", None) for _ in entries], 0)
    record = stream.put()
    stream.run(10.0)
    assert record.conclusion.code == "Expired"
    assert record.conclusion.attempt_count > 1
    assert record.conclusion.maybe_stored


def test_p8_after_an_hour_keyless_records_still_avoid_the_shard_that_is_in_trouble():
    """In a producer that has run for long, a new failure counts as much as in a young one."""
    stream = Stream(shard("a", 0, HALF - 1), shard("b", HALF), aggregate_max_count=2, record_ttl=60.0)
    stream.run(3_600.0)
    stream.refuse = lambda _, shard_id: "InternalFailure" if shard_id == "a" else None
    for number in range(100):
        stream.put(b"%d" % number, key=None)
        stream.run(1.0)
    tried = [stream.shard_of(place_of(entry)) for entry in stream.sent()]
    assert tried.count("a") < 10


def one_a_request(**config):
    stream = Stream(shard("a"), aggregation=False, request_max_entries=1, record_ttl=60.0, linger=0.0, **config)
    stream.run(1.0)
    return stream


def test_an_answer_that_is_good_ends_the_pause_after_one_that_was_not():
    """A request that succeeds after another failed ends the pause, so that the others flow."""
    stream = one_a_request(retry_backoff=5.0)
    stream.fail = whole_request("InternalFailure", 500, 1)
    stream.put(b"1")
    stream.run(0.005)
    stream.put(b"2")  # in flight when the first fails
    stream.run(0.02)
    stream.put(b"3")
    stream.run(1.0)
    assert stream.delivered() == [True] * 3


def test_requests_that_fail_together_are_one_failure():
    """After many requests failed together, the pause is as short as after one."""
    stream = one_a_request(retry_backoff=0.1, retry_backoff_max=60.0)
    stream.fail = whole_request("InternalFailure", 500, 10)
    for number in range(10):
        stream.put(b"%d" % number)
    assert len(stream.requests) == 10
    stream.run(1.0)
    assert all(stream.delivered())


def test_what_a_flush_released_does_not_linger_again_when_others_join_its_lane():
    """With order, records that wait in a lane do not linger again when records of a vanished lane join it."""
    parts = shard("a", 0, HALF // 2 - 1), shard("b", HALF // 2, HALF - 1), shard("c", HALF)
    limits = {"aggregate_max_count": 1, "shard_burst_bytes": 1 << 30, "record_ttl": 600.0}
    stream = Stream(*parts, ordered=True, linger=60.0, latency=2.0, **limits)
    stream.run(5.0)
    for data in (b"1", b"2"):
        released = stream.put(data, hash_key=HALF)
        stream.flush()
    for _ in range(20):
        stream.put(bytes(40_000), key=None)
    stream.shards = [shard("d", 0, HALF - 1), parts[2]]
    stream.latency = 0.1
    stream.machine._map.invalidate(stream.now, None, stream.now)
    stream.pump()
    stream.run(5.0)
    assert released.conclusion is not None


def test_a_recreated_stream_is_reported_once():
    """A request that fails after the stream was re-created does not clear the map once more."""
    facts = StreamFacts(StreamRef("s"), ProducerConfig(), Random(0))
    throttled = Failure(FailureKind.THROTTLED, "LimitExceededException", "why", 400)
    told = []
    for created_at in (1.0, 2.0, None):
        now = 100.0 * len(told)
        facts.query_again(now)
        assert facts.poll_request(now) is not None
        summary = StreamSummary(name="s", arn="a", status="ACTIVE", created_at=created_at)
        facts.handle_summary(summary if created_at is not None else throttled, now)
        told.append(facts.recreated)
    assert told == [False, True, False]


@pytest.mark.parametrize("condition", ["refused", "waiters", "serializer"])
def test_the_gate_stays_closed_whatever_the_machine_finds(condition):
    """While each put must be checked by the machine, a new round does not open the gate."""
    stream = Stream()
    stream.run(1.0)
    stream.put()
    if condition == "refused":
        stream.intake.refuse("closed")
    elif condition == "waiters":
        stream.intake.waiters.append("someone")
    else:
        stream.intake.serializes = True
    stream.run(5.0)
    assert stream.delivered() == [True]
    assert stream.intake.gate_records == 0
