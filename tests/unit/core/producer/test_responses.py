"""What happens to each aggregate when a response arrives?"""

import pytest
from tests.harness.producer_shell import ProducerShell, shard, stream_summary

from shardline.codec.shapes import ListShardsResponse, PutRecordsResponse, PutRecordsResult
from shardline.core.producer.lane import TRUST
from shardline.core.producer.producer_config import ProducerConfig
from shardline.core.producer.producer_record import Receipt
from shardline.core.producer.responses import PARKING_TIMEOUT
from shardline.core.producer_events import (
    AggregationStopped,
    DistributionChanged,
    RecordsDelivered,
    RecordsRetried,
    RequestAnswered,
    ShardDelivery,
)
from shardline.model.sequence import NumberRange

THROTTLED = "ProvisionedThroughputExceededException"
SPLIT = {"b": (8, 16), "c": (0, 4), "d": (4, 8)}


def codes(record):
    return [attempt.code for attempt in record.conclusion.attempts]


# ---- entries


def test_every_record_of_an_entry_has_its_place_in_it(rig):
    one = rig()
    records = one.puts(1, 2, 9)
    assert one.flush() == [[b"0", b"1"], [b"2"]]
    one.stored()
    places = [(record.conclusion.shard_id, record.conclusion.sub_sequence) for record in records]
    assert places == [("a", 0), ("a", 1), ("b", 0)]
    assert records[0].data is None
    events = one.machine.take_events()
    assert [event for event in events if type(event) is RecordsDelivered] == [
        RecordsDelivered(3, 18, 0.0, (ShardDelivery("a", 2, 2 * (5 + 1), 0.0), ShardDelivery("b", 1, 5 + 1, 0.0)))
    ]
    assert [
        (event.entries, event.records, event.refused_entries) for event in events if type(event) is RequestAnswered
    ] == [(2, 3, 0)]


def test_an_answered_request_says_when_it_was_sent(rig):
    one = rig()
    one.machine.ledger.wall_offset = 1_000_000.0
    one.puts(1)
    one.flush()
    sent_at, one.now = one.now, one.now + 0.25
    one.stored()
    [event] = [event for event in one.machine.take_events() if type(event) is RequestAnswered]
    assert (event.started_at, event.duration) == (sent_at + 1_000_000.0, 0.25)


def test_p5_a_refused_entry_is_sent_again_after_a_pause_and_the_others_are_not(rig):
    one = rig()
    first, second = one.puts(1, 9)
    one.flush()
    one.results("a", "InternalFailure")
    assert type(first.conclusion) is Receipt
    assert one.send() is None
    one.to_deadline()
    assert one.send() == [[b"1"]]
    one.stored()
    assert codes(second) == ["InternalFailure", None]
    assert second.conclusion.attempt_count == 2
    assert RecordsRetried(1, "b", "InternalFailure", "why") in one.machine.take_events()


def test_p5_throttling_lowers_the_rates_of_that_lane_alone(rig):
    one = rig()
    one.puts(1, 9)
    one.flush()
    one.results("a", THROTTLED)
    assert (one.lane("a").share, one.lane("b").share) == (1.0, pytest.approx(0.7))


@pytest.mark.parametrize("code", ["KMSDisabledException", "AccessDeniedException"])
def test_p5_a_fatal_code_fails_the_entry_at_once(rig, code):
    one = rig()
    bad, good = one.puts(1, 9)
    one.flush()
    one.results(code, "b")
    assert (bad.conclusion.code, bad.conclusion.maybe_stored, bad.data) == (code, False, b"0")
    assert good.conclusion.delivered
    assert one.is_empty


def test_a_result_that_says_nothing_counts_as_refused(rig):
    one = rig()
    (record,) = one.puts(1)
    one.flush()
    one.results("")
    assert one.send() is None
    one.to_deadline()
    assert one.send() == [[b"0"]]
    assert record.history.kept[0].code == "Unknown"


@pytest.mark.parametrize("failed_count", [None, 0, 1])
def test_an_entry_with_a_number_and_an_error_is_refused_where_entries_failed(rig, failed_count):
    one = rig()
    (record,) = one.puts(1)
    one.flush()
    told = PutRecordsResult("7", "a", "InternalFailure", "why")
    one.machine.handle_put(one.number, PutRecordsResponse([told], failed_count), one.now)
    assert (record.ending is None) == (failed_count != 0)


# ---- P4


def test_p4_an_aggregate_in_an_unknown_shard_is_parked_until_the_map_is_read(rig):
    one = rig()
    records = one.puts(1, 2)
    one.flush()
    one.stored("c")
    assert {record.conclusion for record in records} == {None}
    assert one.asks_for_map()
    one.machine.take_events()
    one.listed(**SPLIT)
    assert {record.conclusion.shard_id for record in records} == {"c"}
    assert [event for event in one.machine.take_events() if type(event) is RecordsDelivered] == [
        RecordsDelivered(2, 12, 0.0, (ShardDelivery("c", 2, 12, 0.0),))
    ]
    assert one.is_empty


def test_p4_a_parked_record_expires_and_the_others_of_its_aggregate_go_again(rig):
    one = rig(record_ttl=2.0, linger=1.9)
    old = one.put(b"old", "x", 1)
    one.wait(1.6)
    young = one.put(b"young", "y", 5)
    one.flush()
    one.stored("c")
    assert one.asks_for_map()  # and no answer arrives
    while old.conclusion is None:
        one.to_deadline()
        sent = one.send()
    assert old.conclusion.code == "Expired"
    assert old.conclusion.maybe_stored
    assert "WrongShard" in old.conclusion.message
    assert young.conclusion is None
    assert sent == [[b"young"]] or one.to_deadline().send() == [[b"young"]]


def test_a_map_that_does_not_know_the_shard_is_stale_and_read_again_but_not_at_once(rig):
    one = rig()
    records = one.puts(1, 5)
    one.flush()
    one.stored("c")
    assert one.asks_for_map()
    one.wait(0.01).listed(a=(0, 8), b=(8, 16))
    assert one.send() is None  # another listing is expected soon
    assert not one.asks_for_map()
    assert one.wait(0.9).asks_for_map()
    one.listed(**SPLIT)
    assert one.send() == [[b"0"], [b"1"]]
    one.stored()
    assert all(record.conclusion.attempt_count == 2 for record in records)


def test_p4_a_lane_that_is_right_again_aggregates_again(rig):
    one = rig()
    one.puts(1, 5)
    one.flush()
    one.stored("c")  # a wrong answer: the shard was never split
    one.wait(PARKING_TIMEOUT)
    assert one.send() == [[b"0"], [b"1"]]
    one.wait(0.1).stored()
    one.puts(*[1] * (TRUST - 3))
    one.flush()
    one.stored()
    one.puts(1, 2)
    assert one.flush() == [[b"0"], [b"1"]]
    late = one.number
    one.puts(1, 2)
    assert one.flush() == [[b"0"], [b"1"]]
    one.wait(0.1).stored()
    one.puts(1, 2)
    assert one.flush() == [[b"0", b"1"]]
    one.stored("c", "c", number=late)  # and wrong again
    one.puts(1, 2)
    assert one.flush() == [[b"0"], [b"1"]]


@pytest.mark.parametrize("released", [False, True])
def test_p4_records_that_wait_in_a_wrong_lane_are_packed_again_and_keep_their_time(rig, released):
    one = rig()
    one.puts(1, 5)
    one.flush()
    one.puts(2, 6)
    one.sort()
    if released:
        one.lane("a").release()
    one.stored("c")
    if not released:
        assert one.wait(0.05).send() is None
        one.wait(0.05)
    assert one.send() == [[b"0"], [b"1"]]


def test_p4_a_lane_with_what_was_astray_twice_does_not_aggregate_before_that_has_left(rig):
    one = rig(records_per_second=1.0)
    one.puts(1, 5)
    one.flush()
    one.stored("c")
    assert one.asks_for_map()
    one.listed(m=(0, 16))
    one.wait(0.1)
    one.send()
    one.wait(0.1).stored("d")
    assert one.asks_for_map()
    one.listed(n=(0, 16))
    assert one.send() == [[b"0"]]  # the other has to wait for tokens
    lane = one.lane("n")
    lane.note_as_predicted(TRUST, one.now + 1.0)
    one.wait(0.1).stored()
    assert not lane.aggregates
    assert one.wait(1.0).send() == [[b"1"]]
    one.stored()
    assert lane.aggregates


def two_keys_in_flight(rig):
    """Return a lane that sends one record per entry, and the numbers of two requests. Each request holds the first record
    of a key, and the second record of the key waits.
    """
    one = rig(ordered=True, shards={"a": (0, 16)})
    lane = one.lane("a")
    one.machine._retries.distrust(lane, one.now, one.now)
    numbers = []
    for key in "cb":
        one.wait(0.2)
        one.put(f"{key}1".encode(), key)
        one.put(f"{key}2".encode(), key)
        assert one.flush() == [[f"{key}1".encode()]]
        numbers.append(one.number)
    return one, lane, numbers


def test_p9_a_lane_that_is_trusted_again_packs_the_refused_records_of_the_same_answer_with_the_others(rig):
    one, lane, numbers = two_keys_in_flight(rig)
    for number in numbers:
        one.results(THROTTLED, number=number)
    assert one.wait(1.0).send() == [[b"c1"], [b"b1"]]
    lane.note_as_predicted(TRUST, one.now)
    one.results("a", THROTTLED)
    assert lane.aggregates
    assert one.wait(1.0).send() == [[b"c2", b"b1", b"b2"]]


def test_p9_a_lane_is_trusted_again_only_when_nothing_of_it_is_in_flight(rig):
    one, lane, numbers = two_keys_in_flight(rig)
    lane.note_as_predicted(TRUST, one.now)
    one.stored(number=numbers[0])
    assert not lane.aggregates
    assert one.wait(0.1).send() is None
    one.results(THROTTLED, number=numbers[1])
    assert lane.aggregates
    assert one.wait(1.0).send() == [[b"c2", b"b1", b"b2"]]


def test_what_a_lane_of_a_stream_that_is_gone_had_under_way_is_no_news(rig):
    """A shard of the re-created stream has the id of an old one: by its id it is still among the open shards."""
    one = rig(shards={"a": (0, 16)})
    records = [one.put(b"%d" % number, f"key {number}", 9) for number in range(20)]
    one.flush()
    one.failed("ValidationException", 400)
    one.machine._map.invalidate(one.now, "a", one.now)
    assert one.asks_for_map()
    one.wait(0.1).listed(a=(0, 8), b=(8, 16))
    assert one.wait(0.1).send() == [[b"%d" % number for number in range(10)]]
    one.stored("b")
    assert not one.asks_for_map()
    while one.machine.intake.outstanding:
        one.wait(0.1).send()
        one.stored("b")
        assert not one.asks_for_map()
    assert {record.conclusion.shard_id for record in records} == {"b"}


# ---- packs


@pytest.mark.parametrize("landed_in", ["b", "unknown shard"])
def test_p4_a_pack_is_delivered_wherever_it_landed_and_the_lane_goes_on_packing(rig, landed_in):
    one = rig(packing="netstrings")
    records = [one.put(b"%d" % number, "k", 1) for number in range(3)]
    assert one.flush() == [[b"1:0,1:1,1:2,"]]
    answer = PutRecordsResponse([PutRecordsResult("7", landed_in)])
    one.machine.handle_put(one.number, answer, one.now)
    assert [record.conclusion.shard_id for record in records] == [landed_in] * 3
    assert [record.conclusion.sub_sequence for record in records] == [0, 1, 2]
    assert one.asks_for_map() or one.asks_for_summary()
    for number in range(2):
        one.put(b"%d" % number, "k", 1)
    assert one.flush() == [[b"1:0,1:1,"]]


@pytest.mark.parametrize("auto", [True, False])
def test_records_are_packed_without_a_map(rig, auto):
    one = rig(packing="netstrings", auto=auto, shards=None)
    for data, key in ((b"1", "a"), (b"2", None), (b"3", "a"), (b"4", None)):
        one.put(data, key)
    one.wait(1.5)
    one.flush()
    assert sorted((entry.data, entry.key == "a") for entry in one.request.entries) == [
        (b"1:1,1:3,", True),
        (b"1:2,1:4,", False),
    ]
    assert [entry.key is None for entry in one.request.entries if entry.key != "a"] == [auto]
    one.stored()
    assert one.machine.ledger.delivered_records == 4


def test_the_values_of_a_refused_pack_are_tried_apart(rig):
    one = rig(packing="netstrings")
    records = [one.put(b"%d" % number, "k", 1) for number in range(4)]
    one.flush()
    sent = []
    while one.machine.ledger.failed_records + one.machine.ledger.delivered_records < 4:
        sent += [entry.data for entry in one.request.entries]
        if any(b"1:2," in entry.data for entry in one.request.entries):
            one.failed("ValidationException", 400)
        else:
            one.stored()
        one.wait(1.0).send()
    assert [record.conclusion.delivered for record in records] == [True, True, False, True]
    assert b"1:2," in sent


# ---- AUTO record distribution


def test_what_lands_in_a_known_shard_that_cannot_hold_it_makes_us_ask_the_stream(rig):
    one = rig()
    records = one.puts(1, 2)
    one.flush()
    one.stored("b")
    assert not one.asks_for_map()
    assert one.send() is None
    assert one.asks_for_summary()
    one.summary(auto=True)
    assert DistributionChanged(auto=True) in one.machine.take_events()
    assert sorted(one.send()) == [[b"0"], [b"1"]]
    one.stored("a", "b")
    assert [codes(record) for record in records] == [["WrongShard", None]] * 2


def test_a_record_that_went_alone_asks_too_and_is_delivered(rig):
    one = rig(aggregation=False)
    for _ in range(3):
        (record,) = one.puts(1)
        one.flush()
        one.stored("b")
        assert record.conclusion.delivered
    assert not one.asks_for_map()
    assert one.asks_for_summary()
    assert not one.asks_for_summary()


def test_the_stream_is_asked_once_for_a_landing_and_then_it_is_sent_again(rig):
    one = rig()
    one.puts(1, 2)
    one.flush()
    one.stored("b")
    assert one.asks_for_summary()
    one.summary(auto=False)
    assert not one.asks_for_summary()
    assert one.send() == [[b"0"], [b"1"]]


def test_records_that_land_where_nothing_explains_it_ask_the_stream_after_growing_pauses(rig):
    one = rig()
    asked_at = []
    while one.elapsed < 120.0:
        record = one.put(place=1)
        one.flush()
        one.stored("b")
        assert record.conclusion.delivered  # it was sent alone
        if one.asks_for_summary():
            asked_at.append(one.elapsed)
            one.summary(auto=False)
        one.wait(0.1)
    assert len(asked_at) <= 40
    assert asked_at[-1] - asked_at[-2] >= one.config.retry_backoff_max / 2


@pytest.mark.parametrize("keys_count", [True, False])
def test_what_was_refused_without_a_key_is_sent_again_with_one(rig, keys_count):
    """AUTO was switched off without our knowledge: the records themselves are valid."""
    one = rig(auto=True, shards=None)
    records = [one.put(b"%d" % number, None) for number in range(3)]
    one.flush()
    assert {entry.key for entry in one.request.entries} == {None}
    one.failed("ValidationException", 400)
    assert one.asks_for_summary()
    one.wait(0.1).summary(auto=not keys_count)
    if keys_count:
        assert one.asks_for_map()
        one.listed(a=(0, 16))
    one.flush()
    assert all(entry.key for entry in one.request.entries)
    one.stored(*(["a"] * len(one.request.entries)))
    assert all(record.conclusion.delivered for record in records)
    assert not any(attempt.maybe_stored for attempt in records[0].conclusion.attempts[:1])


def test_what_is_refused_with_a_key_too_is_to_blame_itself(rig):
    one = rig(auto=True, shards=None)
    bad = one.put(b"bad", None)
    for _ in range(2):
        one.flush()
        one.failed("ValidationException", 400)
    assert bad.conclusion.code == "ValidationException"


def test_if_the_stream_may_not_be_asked_nothing_is_aggregated_any_more(rig):
    one = rig()
    one.puts(1, 2)
    one.flush()
    one.stored("b")
    assert one.asks_for_summary()
    one.no_summary()
    assert [type(event) for event in one.machine.take_events()][-2:].count(AggregationStopped) == 1
    assert sorted(one.send()) == [[b"0"], [b"1"]]


def test_an_aggregate_under_way_when_the_service_began_to_choose_is_sent_again_unless_it_is_where_it_belongs(rig):
    one = rig()
    here, _ = one.puts(1, 2)
    one.flush()
    number = one.number
    there, _ = one.puts(9, 10)
    one.flush()
    one.machine._facts.query_again(one.now)
    assert one.asks_for_summary()
    one.summary(auto=True)
    one.stored("a", number=number)
    one.stored("a")
    assert here.conclusion.delivered
    assert there.conclusion is None
    assert sorted(one.send()) == [[b"0"], [b"1"]]


TRACE = {"traceparent": "00-1"}


def test_p4_a_lone_record_with_headers_that_landed_elsewhere_is_judged_by_its_range_like_an_aggregate(rig):
    """The KCL checks the hash keys inside an aggregate, even of one record."""
    one = rig()
    record = one.put(b"1", "k", 1, headers=TRACE)
    one.flush()
    one.stored("c")
    assert record.conclusion is None
    assert one.asks_for_map()
    one.listed(**SPLIT)
    assert (record.conclusion.shard_id, record.conclusion.attempt_count) == ("c", 1)


def test_p4_a_lone_record_with_headers_is_not_stored_a_fourth_time(rig):
    one = rig()
    record = one.put(b"1", "k", 1, headers=TRACE)
    one.flush()
    for _ in range(2):
        one.stored("b")
        assert record.conclusion is None
        one.wait(0.5)
        assert one.asks_for_summary()
        one.summary()
        one.flush()
    assert one.sent_headers() == [[TRACE]]
    one.stored("b")
    assert (record.conclusion.delivered, record.conclusion.attempt_count) == (True, 3)


def test_a_record_with_headers_under_way_when_the_service_began_to_choose_fails_unless_it_is_where_it_belongs(rig):
    one = rig()
    here, there = one.put(b"1", "k", 1, headers=TRACE), one.put(b"2", "k", 9, headers=TRACE)
    one.flush()
    one.new_summary(auto=True)
    one.stored("a", "a")
    assert here.conclusion.delivered
    assert (there.conclusion.code, there.conclusion.maybe_stored) == ("HeadersRefused", True)
    assert one.is_empty


# ---- whole requests


@pytest.mark.parametrize(
    ("code", "status", "stored"),
    [
        ("InternalFailure", 500, True),
        ("ServiceUnavailable", 503, True),
        ("ExpiredTokenException", 400, True),
        ("LimitExceededException", 400, True),
        (THROTTLED, 400, False),
    ],
)
def test_p5_a_request_that_failed_is_sent_again_unchanged(rig, code, status, stored):
    one = rig(record_ttl=0.5, retry_backoff=0.1)
    records = one.puts(1, 2)
    assert one.flush() == [[b"0", b"1"]]
    one.failed(code, status)
    assert one.send() is None
    one.to_deadline()
    while one.send() is None:
        one.to_deadline()
    one.failed(code, status)
    one.wait(1.0)
    assert one.send() is None
    assert [record.conclusion.maybe_stored for record in records] == [stored] * 2
    assert [record.conclusion.attempt_count for record in records] == [2, 2]
    assert (one.lane("a").share < 1.0) is (code == THROTTLED)


def test_a_request_that_never_left_is_not_maybe_stored(rig):
    one = rig(record_ttl=0.5)
    (record,) = one.puts(1)
    one.flush()
    one.lost(received=False)
    one.wait(1.0)
    one.send()
    assert not record.conclusion.maybe_stored


def test_a_throttled_request_can_be_made_to_fail(rig):
    one = rig(fail_if_throttled=True)
    (record,) = one.puts(1)
    one.flush()
    one.failed(THROTTLED, 400)
    assert record.conclusion.code == THROTTLED


@pytest.mark.parametrize("told", [(), ("a",), ("a", "b", "b")])
def test_an_answer_of_another_length_says_nothing_of_any_entry(rig, told):
    one = rig()
    records = one.puts(1, 9)
    one.flush()
    one.results(*told)
    assert {record.conclusion for record in records} == {None}
    one.to_deadline()
    assert one.send() == [[b"0"], [b"1"]]
    one.stored()
    assert codes(records[0]) == ["RecordCountMismatch", None]
    assert records[0].conclusion.attempts[0].maybe_stored


@pytest.mark.parametrize("result", [PutRecordsResult(), PutRecordsResult(shard_id="a"), PutRecordsResult("7")])
@pytest.mark.parametrize("aggregation", [True, False])
def test_a_result_without_an_error_and_without_a_place_may_be_stored(rig, result, aggregation):
    one = rig(aggregation=aggregation, record_ttl=5.0)
    records = one.puts(1, 2)
    one.flush()
    one.machine.handle_put(one.number, PutRecordsResponse([result] * (1 if aggregation else 2)), one.now)
    assert {record.conclusion for record in records} == {None}
    one.wait(5.0)
    assert one.send() is None
    assert [record.conclusion.maybe_stored for record in records] == [True, True]
    assert codes(records[0]) == ["Unknown", "Expired"]


def test_p5_the_entry_that_the_service_names_goes_alone_and_the_others_at_once(rig):
    one = rig(aggregation=False)
    records = [one.put(b"%d" % number, f"{number}", number % 16) for number in range(40)]
    entries = [entry[0] for entry in one.flush()]
    bad = entries.index(b"5") + 1
    one.failed("ValidationException", 400, message=f"1 validation error detected: Value at 'records.{bad}.member.data'")
    assert sorted(entry[0] for entry in one.send()) == sorted(set(entries) - {b"5"})
    others = one.number
    assert one.send() == [[b"5"]]
    one.failed("ValidationException", 400)
    one.stored(number=others)
    assert one.send() is None
    assert [record for record in records if not record.conclusion.delivered] == [records[5]]
    assert one.is_empty


TOO_LARGE = (
    "Value at 'records.1.member.data' failed to satisfy constraint: Member must have length less than or equal to 7"
)


@pytest.mark.parametrize(("message", "asks"), [(TOO_LARGE, True), ("why", False)])
def test_a_record_that_is_refused_for_its_size_makes_us_read_the_limit_of_the_stream_again(rig, message, asks):
    one = rig(record_ttl=100.0)
    one.wait(60.0).puts(1)
    one.flush()
    one.failed("ValidationException", 400, message=message)
    assert one.asks_for_summary() is asks
    if asks:
        one.summary(kib=2_048)
        assert one.machine.intake.record_max_bytes == 2 << 20, "later puts are checked by the new limit"
        one.puts(1)
        one.flush()
        one.failed("ValidationException", 400, message=message)
        assert not one.asks_for_summary(), "not at once again"
        one.wait(10.0)
        assert one.asks_for_summary()


@pytest.mark.parametrize("settings", [{"record_max_bytes": 5_000_000}, {"facts": False}])
def test_the_limit_is_not_read_again_where_it_was_set_or_could_not_be_read(rig, settings):
    one = rig(**settings)
    if settings.get("facts") is False:
        assert one.asks_for_summary()
        one.no_summary()
    one.wait(60.0).puts(1)
    one.flush()
    one.failed("ValidationException", 400, message=TOO_LARGE)
    assert not one.asks_for_summary()


def test_p4_parked_ones_expire_one_by_one(rig):
    one = rig(record_ttl=2.0)
    first = one.puts(1, 5)
    one.flush()
    earlier = one.number
    one.wait(0.2)
    second = one.puts(2, 6)
    one.flush()
    one.wait(1.6)
    one.stored("c", number=earlier)
    one.stored("c")
    assert one.asks_for_map()  # no answer arrives
    while first[0].conclusion is None:
        one.to_deadline()
        one.send()
    assert [record.conclusion.code for record in first] == ["Expired"] * 2
    assert {record.conclusion for record in second} == {None}
    while second[0].conclusion is None:
        one.to_deadline()
        one.send()
    assert one.elapsed == pytest.approx(2.2)
    assert one.is_empty


def test_the_same_shard_id_with_a_number_of_another_life_is_another_shard(rig):
    one = rig()
    one.lane("a").numbers = NumberRange("0", "1")  # as if the listing had shards that issue no such numbers
    alone = one.put(b"alone", "x", 1)
    one.flush()
    first = one.number
    one.wait(0.1)
    records = one.puts(1, 5)
    one.flush()
    one.stored(number=first)
    assert alone.conclusion.delivered  # it was sent alone
    assert not one.machine._router.lanes
    assert one.asks_for_map()
    assert one.asks_for_summary()
    one.stored("a")
    assert [record.conclusion for record in records] == [None, None]
    one.listed(a=(0, 4), b=(4, 16))
    one.summary()
    assert one.send() == [[b"0"], [b"1"]]  # each to its own shard


def test_also_for_a_lane_that_has_vanished(rig):
    one = rig(closed_shard_ttl=0.0)
    records = one.puts(1, 5)
    one.flush()
    lane = one.lane("a")
    lane.numbers = NumberRange("0", "1")
    one.machine._map.invalidate(one.now, "a", one.now)
    assert one.asks_for_map()
    one.listed(**SPLIT)
    one.stored("a")
    assert [record.conclusion for record in records] == [None, None]
    assert one.send() == [[b"0"], [b"1"]]


# ---- events about deliveries


def delivered(one):
    return [event for event in one.machine.take_events() if type(event) is RecordsDelivered]


def test_the_latency_counts_from_the_put_of_the_oldest_record(rig):
    one = rig(linger=1.0)
    one.put(b"old", "x", 1)
    one.wait(0.5)
    one.put(b"young", "y", 1)
    one.flush()
    one.wait(0.25)
    one.stored()
    assert delivered(one) == [RecordsDelivered(2, 10, 0.75, (ShardDelivery("a", 2, 10, 0.75),))]


def test_records_of_a_bundle_are_reported_by_the_shard_that_stored_them(rig):
    one = rig(auto=True)
    for data in (b"1", b"22", b"333"):
        one.put(data, "k")
    one.flush()
    results = [
        PutRecordsResult("1", "p"),
        PutRecordsResult(None, None, "InternalFailure", "why"),
        PutRecordsResult("2", "q"),
    ]
    one.machine.handle_put(one.number, PutRecordsResponse(results, 1), one.now)
    shards = ShardDelivery("p", 1, 2, 0.0), ShardDelivery("q", 1, 4, 0.0)
    assert delivered(one) == [RecordsDelivered(2, 6, 0.0, shards)]


def test_a_bundle_of_a_known_shard_is_one_event(rig):
    one = rig(aggregation=False)
    one.puts(1, 1)
    one.flush()
    one.stored()
    assert delivered(one) == [RecordsDelivered(2, 12, 0.0, (ShardDelivery("a", 2, 12, 0.0),))]
    one.puts(1, 1)
    one.flush()
    one.results("InternalFailure", "InternalFailure")
    assert delivered(one) == []


def test_deliveries_are_not_kept_if_nobody_listens():
    one = ProducerShell(ProducerConfig(), 100.0)
    one.machine.poll_summary(one.now)
    one.machine.handle_summary(stream_summary(), one.now)
    one.machine.poll_list_shards(one.now)
    one.machine.handle_list_shards(ListShardsResponse([shard("a")]), one.now)
    one.accept(one.record())
    one.machine.flush()
    number, _ = one.machine.poll_put(one.now)
    one.machine.handle_put(number, PutRecordsResponse([PutRecordsResult("1", "a")], 0), one.now)
    assert one.machine.ledger.delivered_records == 1
    assert not delivered(one)
    assert one.machine.ledger.take_landed() == {}
