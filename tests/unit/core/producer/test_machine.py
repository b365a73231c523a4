"""What happens between ``put`` and the end (P1, P3, P7, P9 to P11)?"""

import pytest
from tests.aggregates import split_aggregate

from shardline.core.clock import NEVER
from shardline.core.producer.intake import ROUND_BYTES, ROUND_RECORDS, Put
from shardline.core.producer.machine import BLIND_TIMEOUT, SLICE_RECORDS
from shardline.core.producer.producer_config import SettingChanges
from shardline.core.producer.producer_record import BufferedRecord, Receipt, Undelivered
from shardline.core.producer_events import (
    ProducerMeasured,
    ProducerReconfigured,
    RecordsDelivered,
    RecordsFailed,
    RequestAnswered,
    ShardMapFailed,
    ShardsChanged,
)

NO_MAP = {"shards": None}


def test_a_record_is_sent_when_it_has_lingered_and_ends_with_a_receipt(rig):
    one = rig(linger=0.1)
    record = one.put(place=3)
    assert one.answer is Put.WAKE
    assert one.send() is None
    assert one.to_deadline().elapsed == pytest.approx(0.1)
    assert one.send() == [[b"data"]]
    assert record.conclusion is None
    one.wait(0.02).stored()
    assert record.conclusion == Receipt("a", "1", 0, record.conclusion.attempts)
    (attempt,) = record.conclusion.attempts
    assert (attempt.duration, attempt.code) == (pytest.approx(0.02), None)
    assert [*one.machine.ledger.finished] == [record]
    assert one.is_empty
    assert one.machine.next_deadline() == NEVER


def test_the_first_poll_asks_for_map_and_summary_once(rig):
    one = rig(facts=False, **NO_MAP)
    assert one.asks_for_summary()
    assert one.asks_for_map()
    assert not one.asks_for_summary()
    assert not one.asks_for_map()
    assert one.machine.next_deadline() == NEVER


def test_p11_a_put_wakes_to_arm_a_deadline_or_to_end_a_round_and_is_quiet_else(rig):
    one = rig(aggregation=False, request_max_entries=3)
    seen = []
    for _ in range(4):
        one.put()
        seen.append((one.answer, one.send()))
    assert seen == [
        (Put.WAKE, None),
        (Put.QUIET, None),
        (Put.WAKE, [[b"data"]] * 3),
        (Put.QUIET, None),  # the deadline of the first is still armed
    ]


def test_p11_once_nothing_is_due_any_more_the_next_put_wakes(rig):
    one = rig()
    one.put()
    assert one.to_deadline().send() == [[b"data"]]
    one.put()
    assert one.answer is Put.WAKE


def many(one, *datas, key="k"):
    records = [one.record(data, key) for data in datas]
    return records, one.accept_many(records)


@pytest.mark.parametrize("size", [1, 2_000])
def test_what_is_put_is_sorted_when_enough_came_together(rig, size):
    one = rig(linger=5.0)
    one.put(b"")
    puts = 1
    assert one.send() is None
    while one.intake.records:
        one.put(b"x" * size)
        puts += 1
        assert (one.answer is Put.WAKE) is (puts > ROUND_RECORDS - 1 or puts * (size + 1) > ROUND_BYTES + size)
        one.send()
    assert puts == (ROUND_RECORDS if size == 1 else 2 + ROUND_BYTES // (size + 1))
    assert len(one.machine.intake.unfinished()) == puts


def test_what_can_fill_a_request_by_itself_does_not_wait_for_others(rig):
    one = rig(linger=5.0)
    one.put(b"x" * 300_000)
    assert one.answer is Put.WAKE
    assert one.send() == [[b"x" * 300_000]]
    one.wait(0.1)
    assert many(one, *[b"y" * 1_000] * 1_100)[1] is Put.WAKE
    assert one.send() is not None


def test_a_backlog_is_sorted_slice_by_slice_before_anything_is_released(rig):
    one, rest = rig(linger=0.1), SLICE_RECORDS * 7 // 8
    records, _ = many(one, *(b"%d" % number for number in range(2 * SLICE_RECORDS + rest)))
    one.wait(0.1)
    for left in (SLICE_RECORDS + rest, rest):
        assert one.machine.poll_put(one.now) is None
        assert len(one.intake.records) == left
        assert one.machine.next_deadline() == -NEVER
    _, request = one.machine.poll_put(one.now)
    assert sum(len(split_aggregate(entry.data)) for entry in request.entries) == len(records)
    assert one.machine.next_deadline() > one.now


def test_what_comes_while_a_backlog_is_sorted_waits_for_its_own_round(rig):
    one = rig(linger=0.1)
    many(one, *(b"%d" % number for number in range(2 * SLICE_RECORDS)))
    one.wait(0.1)
    assert one.machine.poll_put(one.now) is None
    late = one.put(b"late")
    assert one.machine.poll_put(one.now) is not None
    assert one.intake.records == [late]
    assert one.machine.next_deadline() == one.now + 0.1


@pytest.mark.parametrize("end", ["abandon", "flush", "expiry"])
def test_what_is_in_no_lane_yet_is_found_all_the_same(rig, end):
    one = rig()
    first = one.put(b"1")
    second = one.put(b"2")
    assert one.machine.intake.records == one.machine.intake.unfinished() == [first, second]
    if end == "flush":
        assert one.flush() == [[b"1", b"2"]]
        one.stored()
    elif end == "expiry":
        one.wait(31.0)
        assert one.send() is None
        assert first.ending.code == second.ending.code == "Expired"
    else:
        one.machine.abandon("Closed", "why")
        assert first.ending.code == second.ending.code == "Closed"
    assert one.machine.intake.unfinished() == []
    assert one.machine.intake.outstanding == 0


def test_the_order_of_puts_is_kept_when_shards_change_meanwhile(rig):
    one = rig(shards={"a": (0, 16)}, ordered=True)
    one.puts(1, 2)
    assert one.send() is None
    one.puts(1)
    one.machine._map.invalidate(one.now, "a", one.now)
    assert one.asks_for_map()
    one.listed(b=(0, 16))
    assert one.flush() == [[b"0", b"1", b"0"]]


def test_p11_a_full_aggregate_is_sealed_quietly(rig):
    one = rig(aggregate_max_count=2)
    answers = []
    for _ in range(5):
        one.put(place=1)
        answers.append(one.answer)
    assert answers == [Put.WAKE, *[Put.QUIET] * 4]
    one.to_deadline()
    assert [len(entry) for entry in one.send()] == [2, 2, 1]


def test_a_deadline_that_proves_too_early_is_armed_again(rig):
    one = rig(linger=0.1, request_max_entries=1)
    one.put(b"x" * 60_000, place=1)
    assert one.send()
    one.wait(0.05).put(place=2)
    one.wait(0.05)
    assert one.send() is None
    assert one.to_deadline().elapsed == pytest.approx(0.15)
    assert one.send() == [[b"data"]]


# ---- flush, close


def test_p10_what_is_flushed_while_its_lane_is_busy_goes_with_the_answer(rig):
    one = rig(linger=60.0, record_ttl=120.0, ordered=True)
    one.put(b"first", place=1)
    assert one.flush() == [[b"first"]]
    number = one.number
    one.wait(1.0).put(b"second", place=1)
    assert one.flush() is None
    one.stored(number=number)
    assert one.send() == [[b"second"]]


def test_p1_abandon_gives_up_all_that_is_not_under_way(rig):
    one = rig(aggregate_max_count=1, request_max_entries=1)
    sent, waiting = one.put(b"sent", place=1), one.put(b"waits", place=9)
    assert one.flush() == [[b"sent"]]
    one.machine.abandon("Closed", "it is over")
    assert waiting.conclusion == Undelivered("Closed", "it is over")
    assert [*one.machine.ledger.failed] == [waiting]
    assert one.send() is None
    one.stored()
    assert type(sent.conclusion) is Receipt
    assert one.is_empty


@pytest.mark.parametrize("code", ["InternalFailure", "ValidationException", "ThrottlingException"])
def test_p1_after_the_end_nothing_is_sent_again(rig, code):
    one = rig()
    records = one.puts(1, 1, 9)
    one.flush()
    one.machine.abandon("Closed", "it is over")
    one.failed(code, 400)
    assert {record.conclusion.code for record in records} == {"Closed"}
    assert one.send() is None
    assert one.is_empty


def test_p1_parked_and_cut_up_ones_end_with_it(rig):
    one = rig()
    one.puts(1, 2, 5)
    one.flush()
    one.stored("c")  # unknown: parked
    one.puts(9, 9)
    one.flush()
    one.failed("ValidationException", 400)  # in halves
    assert one.machine.intake.outstanding == len(one.machine.intake.unfinished()) == 5
    one.machine.abandon("Closed", "it is over")
    assert one.is_empty
    codes = [record.conclusion for record in one.machine.ledger.failed]
    assert [ending.maybe_stored for ending in codes] == [True] * 3 + [False] * 2


# ---- without a map


def test_what_waits_without_a_map_is_held_back_until_one_is_there(rig):
    one = rig(**NO_MAP)
    assert one.asks_for_map()
    one.puts(1, 2, 9)
    one.wait(0.5)
    assert one.send() is None
    one.listed(a=(0, 8), b=(8, 16))
    assert sorted(map(len, one.send())) == [1, 2]


def test_but_no_longer_than_patience_and_then_one_by_one(rig):
    one = rig(**NO_MAP)
    assert one.asks_for_map()
    one.puts(1, 2, 9)
    one.to_deadline()
    assert one.send() is None
    assert one.to_deadline().elapsed == BLIND_TIMEOUT
    assert [len(entry) for entry in one.send()] == [1, 1, 1]
    one.put()
    one.wait(0.1)
    assert one.send() == [[b"data"]]


def test_a_listing_that_failed_ends_the_patience(rig):
    one = rig(**NO_MAP)
    assert one.asks_for_map()
    one.puts(1, 2)
    one.wait(0.1)
    assert one.send() is None
    one.not_listed()
    assert len(one.send()) == 2


def test_a_service_that_is_down_sees_no_busy_loop(rig):
    """There is no map, and requests fail. Regression: the deadline stayed in the past during the whole outage."""
    one = rig(**NO_MAP)
    one.puts(1, 2, 9)
    polls = requests = 0
    while one.elapsed < 25.0:
        polls += 1
        if one.asks_for_map():
            one.not_listed()
        while one.send() is not None:
            requests += 1
            one.lost(received=False)
        one.to_deadline()
    assert polls < 60
    assert requests < 20


def test_p9_ordered_sends_nothing_before_the_first_map(rig):
    one = rig(ordered=True, **NO_MAP)
    one.asks_for_map()
    one.puts(1, 1, 9)
    one.not_listed()
    one.wait(5.0)
    assert one.send() is None
    assert one.asks_for_map()
    one.listed(a=(0, 8), b=(8, 16))
    assert one.send() == [[b"0", b"1"], [b"2"]]


def test_p9_ordered_fails_if_there_will_be_no_map(rig):
    one = rig(ordered=True, **NO_MAP)
    one.asks_for_map()
    record = one.put()
    one.not_listed("AccessDeniedException")
    assert one.send() is None
    assert record.conclusion.code == "AccessDeniedException"
    assert one.is_empty


def test_without_a_map_records_expire_too(rig):
    one = rig(ordered=True, record_ttl=2.0, **NO_MAP)
    one.asks_for_map()
    record = one.put()
    while record.conclusion is None:
        one.to_deadline()
        assert one.send() is None
    assert record.conclusion.code == "Expired"
    assert one.elapsed == pytest.approx(2.0)


# ---- expiry


def test_what_expires_in_a_lane_leaves_at_its_end_of_life(rig):
    one = rig(record_ttl=3.0, records_per_second=0.001, aggregation=False)
    first, second = one.put(place=1), one.put(place=1)
    assert one.flush() == [[b"data"]]
    one.stored()
    assert one.send() is None
    while second.conclusion is None:
        one.to_deadline()
        assert one.send() is None
    assert (one.elapsed, second.conclusion.code) == (pytest.approx(3.0), "Expired")
    assert second.conclusion.message == "not delivered within record_ttl (3 s)"
    assert first.conclusion.delivered
    assert one.is_empty


def test_what_expires_in_a_part_of_a_refused_request_leaves_too(rig):
    one = rig(record_ttl=3.0)
    records = one.puts(1, 1)
    one.flush()
    one.wait(1.0)
    records += one.puts(1)
    one.failed("ValidationException", 400)
    assert one.send() == [[b"0"]]
    one.wait(0.5).failed(retry_after=30.0)  # nothing may be sent
    assert one.send() is None
    while one.elapsed < 2.9:
        one.to_deadline()
        assert one.send() is None
    assert [record.conclusion.code for record in records[:2]] == ["Expired", "ValidationException"]
    assert one.lane("a").in_flight == 0


def until_ended(one, *records):
    """Advance from deadline to deadline. Return when each of the records ended, since the beginning."""
    ended = {}
    while len(ended) < len(records):
        one.to_deadline()
        assert one.send() is None
        for place, record in enumerate(records):
            if record.conclusion is not None:
                ended.setdefault(place, one.elapsed)
    return [ended[place] for place in range(len(records))]


@pytest.mark.parametrize("settings", [{}, {"aggregation": False}, {"ordered": True}, {"ordered": True, **NO_MAP}])
def test_records_with_ttls_of_their_own_expire_exactly_then(rig, settings):
    """P9: the order of puts decides what is due and sent first, not the order of deadlines."""
    one = rig(record_ttl=3.0, retry_backoff_max=60.0, **settings)
    one.asks_for_map()
    records = [one.put(b"%d" % place, place=1, ttl=ttl) for place, ttl in enumerate([None, 1.0, 7.0, None, 2.0])]
    one.machine._collector.handle_failure(30.0, one.now)  # nothing may be sent
    assert until_ended(one, *records) == pytest.approx([3.0, 1.0, 7.0, 3.0, 2.0])
    assert [record.conclusion.code for record in records] == ["Expired"] * 5
    messages = [record.conclusion.message for record in records[:3]]
    assert messages[0] == "not delivered within record_ttl (3 s)"
    assert messages[1:] == ["not delivered within its ttl (1 s)", "not delivered within its ttl (7 s)"]
    assert one.is_empty


def test_a_record_with_a_longer_ttl_is_sent_after_record_ttl_and_later_ones_stay_behind_it(rig):
    one = rig(record_ttl=2.0, linger=0.1, ordered=True, retry_backoff_max=60.0)
    long, plain = one.put(b"long", place=1, ttl=60.0), one.put(b"plain", place=1)
    one.machine._collector.handle_failure(10.0, one.now)
    assert until_ended(one, plain) == pytest.approx([2.0])
    assert one.machine.stats(one.now).oldest_waiting == pytest.approx(2.0)
    later = one.put(b"later", place=1, ttl=60.0)
    one.wait(30.0)
    assert one.flush() == [[b"long"]]  # an ordered lane has one aggregate in flight
    one.stored()
    assert one.send() == [[b"later"]]
    one.stored()
    assert (long.conclusion.delivered, later.conclusion.delivered, one.is_empty) == (True, True, True)


def test_a_record_that_expires_in_flight_fails_when_it_would_be_sent_again(rig):
    one = rig(record_ttl=20.0)
    short, plain = one.put(b"short", place=1, ttl=1.0), one.put(b"plain", place=1)
    one.flush()
    one.wait(2.0)
    assert one.send() is None
    assert short.conclusion is None
    one.failed()
    assert (short.conclusion.code, plain.conclusion) == ("Expired", None)


def test_the_parts_of_a_refused_request_expire_by_their_own_ttls(rig):
    one = rig(record_ttl=20.0, retry_backoff_max=60.0)
    records = [one.put(b"%d" % place, f"{place}", 1, ttl=ttl) for place, ttl in enumerate([None, 2.0, 3.0, 2.0])]
    one.flush()
    one.failed("ValidationException", 400)
    assert one.send() == [[b"0"]]
    one.machine._collector.handle_failure(30.0, one.now)  # nothing may be sent
    assert until_ended(one, *records[1:]) == pytest.approx([2.0, 3.0, 2.0])
    assert "its ttl (2 s) ended before this one was sent alone" in records[1].conclusion.message
    assert "its ttl (3 s) ended before this one was sent alone" in records[2].conclusion.message


def test_new_lanes_tell_ttls_apart_too(rig):
    one = rig(record_ttl=20.0)
    one.put(place=1, ttl=1.0)
    one.sort()
    one.machine._map.reset(one.now)
    assert one.asks_for_map()
    one.listed(c=(0, 4), d=(4, 16))
    assert all(lane.ttls_differ for lane in one.machine._router.all_lanes())
    one.put(place=5, ttl=2.0)
    one.sort()
    assert one.lane("c").expires_at() == pytest.approx(one.began + 1.0)
    assert one.lane("d").expires_at() == pytest.approx(one.began + 2.0)


# ---- invalid records


@pytest.mark.parametrize("end", [False, True])
def test_invalid_records_are_counted_and_reported_and_take_no_room(rig, end):
    one = rig()
    invalid = [BufferedRecord(17, None, None, 0.0, Undelivered("InvalidRecord", "why")) for _ in range(2)]
    one.intake.invalid += invalid
    if end:
        one.machine.abandon("Closed", "over")
    assert one.send() is None
    assert [*one.machine.ledger.failed] == invalid
    assert RecordsFailed(2, "InvalidRecord", "put_many was passed an invalid record") in one.machine.take_events()
    assert one.machine.stats(one.now).failed_records == 2
    assert one.is_empty


# ---- the map and the stream


def test_a_new_map_moves_what_was_not_sent(rig):
    one = rig()
    one.puts(1, 5, 9)
    one.put(place=12)
    assert one.flush()
    one.stored("c", "b")
    assert one.asks_for_map()
    one.puts(1, 5, 9)
    one.listed(b=(8, 16), c=(0, 4), d=(4, 8))
    assert sorted(map(sorted, one.flush())) == [[b"0"], [b"0"], [b"1"], [b"1"], [b"2"]] or one.request
    vanished = [event for event in one.machine.take_events() if isinstance(event, ShardsChanged)]
    assert vanished[-1] == ShardsChanged(3, ("c", "d"), ("a",))


def test_p9_children_wait_for_what_their_parent_has_under_way(rig):
    one = rig(ordered=True)
    one.puts(1, 9)
    assert one.flush()
    number = one.number
    one.put(b"later", "key 1", 1)
    one.put(b"other", "key 9", 9)
    one.machine._map.invalidate(one.now, "a", one.now)
    assert one.asks_for_map()
    one.listed(b=(8, 16), c=(0, 4), d=(4, 8))
    assert one.lane("c").held
    assert one.flush() is None
    one.stored(number=number)
    assert not one.lane("c").held
    assert sorted(one.send()) == [[b"later"], [b"other"]]


def test_events_tell_what_an_operator_wants_to_know(rig):
    one = rig(shards=None)
    one.asks_for_map()
    one.not_listed()
    one.put()
    one.flush()
    one.stored()
    kinds = [type(event) for event in one.machine.take_events()]
    assert kinds == [ShardMapFailed, RequestAnswered, RecordsDelivered]
    assert one.machine.take_events() == []


def test_auto_distribution_sends_records_one_by_one_and_without_keys(rig):
    one = rig(shards=None)
    one.asks_for_map()
    one.put(key=None)
    one.wait(0.2)
    assert one.send() is None  # it waits for the map
    one.machine._facts.query_again(one.now)
    assert one.asks_for_summary()
    one.summary(auto=True)
    assert one.send() == [[b"data"]]  # ... which is of no use now
    one.put(key=None)
    one.put(b"keyed", "k")
    one.flush()
    assert [(entry.data, entry.key) for entry in one.request.entries] == [(b"data", None), (b"keyed", "k")]


def test_auto_distribution_takes_the_lanes_away_and_its_end_brings_them_back(rig):
    one = rig()
    one.puts(1, 2, 9)
    one.machine._facts.query_again(one.now)
    assert one.asks_for_summary()
    one.summary(auto=True)
    assert sorted(one.flush()) == [[b"0"], [b"1"], [b"2"]]
    one.stored("b", "b", "b")
    one.puts(1, 2)
    one.machine._facts.query_again(one.now)
    assert one.asks_for_summary()
    one.summary()
    assert one.flush() == [[b"0", b"1"]]


def test_a_recreated_stream_has_other_shards_under_the_old_ids(rig):
    one = rig(facts=False)
    assert one.asks_for_summary()
    one.summary(created_at=1.0)
    one.puts(1, 6, 9)
    one.machine._facts.query_again(one.now)
    assert one.asks_for_summary()
    one.summary(created_at=2.0)
    assert one.asks_for_map()
    one.listed(a=(0, 4), b=(4, 16))
    assert one.flush() == [[b"0"], [b"1", b"2"]]


def test_a_stream_under_auto_refuses_order(rig):
    assert rig(ordered=True, auto=True).machine.refuses_order
    assert not rig(ordered=True).machine.refuses_order


def test_the_record_limit_is_the_streams(rig):
    one = rig(facts=False)
    assert one.machine.intake.record_max_bytes == 10 * 1024 * 1024
    assert one.asks_for_summary()
    one.summary(kib=2048)
    assert one.machine.intake.record_max_bytes == 2 * 1024 * 1024
    assert rig(record_max_bytes=5000).machine.intake.record_max_bytes == 5000


# ---- stats


def test_stats_count_and_tell_what_waits(rig):
    one = rig(aggregate_max_count=2)
    one.puts(1, 1, 9)
    one.flush()
    one.results("a", "ProvisionedThroughputExceededException")
    one.wait(0.1).puts(9)
    stats = one.machine.stats(one.now)
    assert (stats.outstanding, stats.delivered_records, stats.failed_records, stats.retried_records) == (2, 2, 0, 1)
    assert (stats.requests, stats.requests_in_flight, stats.entries, stats.map_requests) == (1, 0, 2, 1)
    assert (stats.map_state, stats.oldest_waiting) == ("ready", pytest.approx(0.1))
    (a, b) = stats.lanes
    assert (a.shard_id, a.queued_entries, a.rate_share, a.tripped) == ("a", 0, 1.0, False)
    assert (b.shard_id, b.queued_entries, b.rate_share) == ("b", 1, pytest.approx(0.7))
    assert rig().machine.stats(101.0).oldest_waiting == 0.0


def test_the_map_may_come_in_pages(rig):
    one = rig(shards=None)
    assert one.asks_for_map()
    one.listed(next_page="more", a=(0, 8))
    assert one.machine.take_events() == []
    assert one.asks_for_map()
    one.listed(b=(8, 16))
    assert one.machine.take_events() == [ShardsChanged(2, ("a", "b"), ())]


def test_p9_when_keys_count_again_and_there_is_no_map_yet_ordered_records_wait(rig):
    one = rig(shards=None, auto=True, ordered=True)
    assert one.asks_for_map()
    one.puts(1, 1)
    one.machine._facts.query_again(one.now)
    assert one.asks_for_summary()
    one.summary()
    assert one.flush() is None
    one.listed(a=(0, 16))
    assert one.flush() == [[b"0", b"1"]]


@pytest.mark.parametrize("answer", ["none", "summary", "no_summary"])
def test_nothing_goes_before_the_stream_has_answered_but_no_longer_than_patience(rig, answer):
    one = rig(facts=False)
    assert one.asks_for_summary()
    one.now = 100.5  # the map arrived at once
    one.put(place=1)
    assert one.flush() is None
    if answer == "none":
        assert one.machine.next_deadline() == pytest.approx(100.0 + BLIND_TIMEOUT)
        one.to_deadline()
    else:
        getattr(one, answer)()
    assert one.send() == [[b"data"]]


def test_when_the_stream_is_missing_map_and_facts_are_read_again_and_once(rig):
    one = rig()
    one.put()
    one.flush()
    one.failed("ResourceNotFoundException", 400)
    assert not one.machine._router.lanes
    assert one.asks_for_map()
    assert one.asks_for_summary()
    one.put()
    assert one.flush() is None
    one.not_listed("ResourceNotFoundException")
    one.no_summary("ResourceNotFoundException")
    assert one.send() is not None  # alone
    one.failed("ResourceNotFoundException", 400)
    assert not one.asks_for_map()  # there is nothing to forget: a pause first
    assert not one.asks_for_summary()


@pytest.mark.parametrize("listing", [True, False])
def test_whatever_says_that_the_stream_is_missing(rig, listing):
    one = rig()
    if listing:
        one.machine._map.invalidate(one.now, "a", one.now)
        assert one.asks_for_map()
        one.not_listed("ResourceNotFoundException")
    else:
        one.machine._facts.query_again(one.now)
        assert one.asks_for_summary()
        one.no_summary("ResourceNotFoundException")
    assert not one.machine._router.lanes
    assert one.asks_for_summary()
    assert one.asks_for_map()


def test_a_lane_whose_id_has_another_range_now_predicts_nothing(rig):
    one = rig()
    records = one.puts(1, 5)
    one.flush()
    one.machine._map.invalidate(one.now, "a", one.now)
    assert one.asks_for_map()
    one.listed(a=(0, 4), b=(4, 16))
    one.stored("a")
    assert [record.conclusion for record in records] == [None, None]


def test_p1_a_host_that_broke_ends_every_record_that_has_no_ending(rig):
    one = rig(aggregation=False, linger=0)
    delivered, under_way, waiting = one.put(place=3), one.put(place=3), None
    one.machine.ledger.finished.clear()
    delivered.ending = Receipt("a", "1", 0, ())
    waiting = one.put(place=3)
    one.machine.give_up_lost("a signal handler raised")
    assert delivered.ending == Receipt("a", "1", 0, ())
    for record in (under_way, waiting):
        assert record.ending == Undelivered("Internal", "a signal handler raised")
    assert [*one.machine.ledger.failed] == [under_way, waiting]
    assert [*one.machine.ledger.finished] == [delivered, under_way, waiting]


# ---- measurements


def test_the_state_is_emitted_every_five_seconds_to_those_who_listen(rig):
    one = rig(linger=3.0, buffer_max_bytes=1_000_000)
    one.machine.take_events()
    one.machine.observe(one.now)
    assert one.machine.next_deadline() <= one.now + 5.0
    one.wait(4.0)
    one.put(b"data", "k", 1)
    one.wait(0.5)
    one.machine.poll_put(one.now)
    assert one.machine.take_events() == []
    one.wait(0.5)
    one.machine.poll_put(one.now)
    (measured,) = one.machine.take_events()
    assert measured._replace(lanes=()) == ProducerMeasured(1, 5, 1_000_000, 1.0, 0, ())
    assert [lane.shard_id for lane in measured.lanes] == ["a", "b"]
    one.wait(1.0)
    one.machine.poll_put(one.now)
    assert one.machine.take_events() == []


def test_nothing_is_measured_unless_somebody_listens(rig):
    one = rig()
    one.machine.take_events()
    one.wait(60.0)
    one.machine.poll_put(one.now)
    assert ProducerMeasured not in [type(event) for event in one.machine.take_events()]


def test_stats_count_since_the_start_and_give_rates(rig):
    one = rig()
    for _ in range(10):
        one.puts(1, 2)
        one.flush()
        one.stored()
        one.wait(1.0)
    one.puts(1)
    one.flush()
    one.results("ProvisionedThroughputExceededException")
    one.wait(1.0)
    one.machine.flush()
    one.send()
    one.failed()
    stats = one.machine.stats(one.now)
    assert (stats.put_records, stats.delivered_records, stats.outstanding) == (21, 20, 1)
    assert stats.put_bytes == stats.delivered_bytes + stats.buffered_bytes
    assert stats.requests == 12
    assert stats.failed_requests == 1
    assert stats.request_bytes > stats.delivered_bytes
    assert stats.retries_by_code["ProvisionedThroughputExceededException"] == 1
    assert sum(stats.retries_by_code.values()) == stats.retried_records
    assert stats.delivered_records_per_second == pytest.approx(2, rel=0.3)
    assert stats.delivered_bytes_per_second == pytest.approx(12, rel=0.3)
    assert stats.put_records_per_second == pytest.approx(2, rel=0.3)
    assert stats.requests_per_second == pytest.approx(1.1, rel=0.3)
    one.machine.abandon("Closed", "closed")
    assert one.machine.stats(one.now).failures_by_code == {"Closed": 1}


# ---- settings that change


def test_another_linger_sends_waiting_records_and_applies_to_later_ones(rig):
    one = rig(linger=10.0)
    one.put(b"waits")
    assert one.send() is None
    one.machine.reconfigure(SettingChanges(linger=0.5), one.now)
    assert one.send() == [[b"waits"]]
    one.stored()
    began = one.now
    one.put(b"later")
    assert one.send() is None
    assert one.to_deadline().now - began == pytest.approx(0.5)
    assert one.send() == [[b"later"]]
    assert one.machine.config.linger == 0.5


def test_a_record_with_a_short_ttl_does_not_expire_because_linger_grows(rig):
    one = rig(linger=0.1)
    one.put(b"short", ttl=0.3)
    assert one.send() is None
    one.machine.reconfigure(SettingChanges(linger=5.0), one.now)
    assert one.send() == [[b"short"]]


def test_a_change_is_reported_once_with_all_settings(rig):
    one = rig(linger=0.1)
    one.machine.take_events()
    one.machine.reconfigure(SettingChanges(linger=0.1), one.now)
    assert one.machine.take_events() == []
    one.machine.reconfigure(SettingChanges(records_per_second=5.0, bytes_per_second=2_000.0), one.now)
    assert one.machine.take_events() == [ProducerReconfigured(0.1, 5.0, 2_000.0)]
    assert one.machine.next_deadline() == NEVER, "nothing is flushed"


def test_shards_that_are_found_later_have_the_new_rates(rig):
    one = rig(facts=True, **NO_MAP)
    one.machine.reconfigure(SettingChanges(records_per_second=7.0), one.now)
    assert one.machine.poll_list_shards(one.now) is not None
    one.listed(a=(0, 16))
    (lane,) = one.machine._router.lanes
    assert lane._rates[0] == 7.0
