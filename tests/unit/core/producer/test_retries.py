"""What happens to undelivered records? P1, P8 and P9 are invariants of ``shardline.core.producer.retries``."""

import pytest
from tests.unit.core.producer.conftest import at

from shardline.codec.aggregation import encode_tags
from shardline.core.producer.aggregate import bytes_alone
from shardline.core.producer.producer_record import OptionalTags, Receipt, Undelivered

THROTTLED = "ProvisionedThroughputExceededException"
SPLIT = {"b": (8, 16), "c": (0, 4), "d": (4, 8)}


def new_map(rig, **shards):
    """Change the map, for any reason."""
    machine = rig.machine
    machine._map.invalidate(rig.now, machine._router.lanes[0].shard_id, rig.now)
    rig.wait(0.001)
    assert rig.asks_for_map()
    rig.listed(**shards)


def until_sent(rig):
    sent = rig.send()
    while sent is None:
        rig.to_deadline()
        sent = rig.send()
    return sent


def test_p8_a_keyless_record_of_a_refused_entry_goes_elsewhere(rig):
    one = rig()
    record = one.put(key=None)
    one.flush()
    first = one.lanes()[0].shard_id
    one.results(THROTTLED)
    one.send()
    second = one.lanes()[0].shard_id
    assert {first, second} == {"a", "b"}
    one.stored()
    assert [attempt.shard_id for attempt in record.conclusion.attempts] == [first, second]


def test_p8_those_with_a_key_stay(rig):
    one = rig()
    free = one.put(b"free", None)
    one.sort()  # which moves it to its lane
    lane = one.machine._router._sticky
    keyed = one.put(b"keyed", "x", 1 if lane.shard_id == "a" else 9)
    assert one.flush() == [[b"free", b"keyed"]]
    one.results("InternalFailure")
    assert one.send() == [[b"free"]]
    one.stored()
    assert until_sent(one) == [[b"keyed"]]
    one.stored()
    assert free.conclusion.shard_id != keyed.conclusion.shard_id == lane.shard_id


def test_p8_when_a_request_failed_the_shard_is_not_to_blame(rig):
    one = rig()
    one.put(key=None)
    one.flush()
    first = one.lanes()[0]
    one.failed()
    until_sent(one)
    assert one.lanes()[0] is first


def test_max_attempts_gives_up(rig):
    one = rig(max_attempts=2)
    (record,) = one.puts(1)
    one.flush()
    one.results("InternalFailure")
    until_sent(one)
    one.results("InternalFailure")
    assert record.conclusion.code == "InternalFailure"
    assert record.conclusion.message == "why (given up after 2 attempts)"
    assert one.is_empty


def test_max_attempts_counts_for_each_record(rig):
    one = rig(max_attempts=2, ordered=True)
    (old,) = one.puts(1)
    one.flush()
    number = one.number
    young = one.put(b"young", "y", 2)
    one.sort()
    new_map(one, **SPLIT)
    one.results("InternalFailure", number=number)
    assert until_sent(one) == [[b"0", b"young"]]
    one.results("InternalFailure")
    assert type(old.conclusion) is Undelivered
    assert until_sent(one) == [[b"young"]]
    one.stored()
    assert young.conclusion.delivered


def test_what_expired_under_way_is_not_sent_again_and_the_rest_is(rig):
    one = rig(record_ttl=2.0, linger=1.0)
    old = one.put(b"old", "x", 1)
    one.wait(0.9)
    young = one.put(b"young", "y", 1)
    one.flush()
    one.wait(1.2).results("InternalFailure")
    assert old.conclusion.code == "Expired"
    assert old.conclusion.message == "not delivered within record_ttl (2 s); last failure: InternalFailure: why"
    assert [attempt.code for attempt in old.conclusion.attempts] == ["InternalFailure", "Expired"]
    assert until_sent(one) == [[b"young"]]
    one.stored()
    assert young.conclusion.delivered


@pytest.mark.parametrize("sent", [0, 1, 40])
def test_the_attempts_of_an_expired_record_end_with_its_expiry(rig, sent):
    one = rig(record_ttl=3_600.0, retry_backoff_max=0.1, linger=1.0)
    one.machine.ledger.wall_offset = 1_000_000.0
    (record,) = one.puts(1)
    if sent:
        one.flush()
    for number in range(sent):
        one.results("InternalFailure")
        if number < sent - 1:
            until_sent(one)
    one.now = record.expires_at
    assert one.send() is None
    ending = record.conclusion
    last = ending.attempts[-1]
    assert (last.code, last.message, last.started_at) == ("Expired", ending.message, one.now + 1_000_000.0)
    assert (last.duration, last.shard_id, last.sequence_number, last.maybe_stored) == (0.0, None, None, False)
    assert [attempt.code for attempt in ending.attempts[:-1]] == ["InternalFailure"] * min(sent, 15)
    assert ending.attempt_count == sent, "an expiry is no request"


def test_what_a_vanished_lane_gets_back_goes_to_its_children(rig):
    one = rig()
    records = one.puts(1, 5)
    one.flush()
    number = one.number
    new_map(one, **SPLIT)
    assert one.machine._router.vanished
    one.failed(number=number)
    assert one.machine._router.vanished == []
    assert until_sent(one) == [[b"0"], [b"1"]]
    one.stored()
    assert [record.conclusion.shard_id for record in records] == ["c", "d"]


def test_what_was_sent_without_a_map_goes_by_the_map_when_it_comes_back(rig):
    one = rig(shards=None)
    assert one.asks_for_map()
    one.not_listed()
    one.puts(1, 2)
    assert one.flush() == [[b"0"], [b"1"]]
    one.wait(2.0)
    assert one.asks_for_map()
    one.listed(a=(0, 16))
    one.results("InternalFailure", "InternalFailure")
    assert until_sent(one) == [[b"0"], [b"1"]]
    assert {lane.shard_id for lane in one.lanes()} == {"a"}


# ---- parts of refused requests


def test_parts_that_expire_fail_with_the_reason_of_the_refusal(rig):
    one = rig(record_ttl=2.0, linger=1.5)
    old = one.put(b"old", "x", 1)
    first = one.put(b"first", "z", 1)
    one.wait(1.0)
    young = one.put(b"young", "y", 1)
    fresh = one.put(b"fresh", "w", 1)
    one.flush()
    one.failed("ValidationException", 400)
    assert one.send() == [[b"old"]]
    one.lost()
    one.machine._collector.handle_failure(5.0, one.now + 5.0)  # nothing may be sent for a while
    one.wait(1.0)
    assert one.send() is None
    assert [record.conclusion.code for record in (old, first)] == ["Expired", "ValidationException"]
    assert first.conclusion.message.startswith("why (the refused request held several records; record_ttl (2 s) ended")
    one.wait(0.6)
    assert (young.conclusion, fresh.conclusion) == (None, None)
    one.wait(0.5)
    assert one.send() is None
    assert young.conclusion.code == fresh.conclusion.code == "ValidationException"
    assert one.is_empty
    assert one.lane("a").is_idle


def test_a_half_of_which_some_expire_is_made_smaller(rig):
    one = rig(record_ttl=2.0, linger=1.5)
    records = [one.put(b"%d" % number, f"{number}", 1) for number in range(14)]
    one.wait(1.0)
    records += [one.put(b"%d" % number, f"{number}", 1) for number in range(14, 24)]
    one.flush()
    one.failed("ValidationException", 400)
    assert one.send() == [[b"%d" % number for number in range(12)]]
    one.wait(1.1)
    assert one.send() is None
    assert [place for place, record in enumerate(records) if record.conclusion is not None] == [12, 13]
    one.stored()
    assert one.send() == [[b"%d" % number for number in range(14, 19)]]
    one.stored()
    while one.send() is not None:
        one.stored()
    assert one.is_empty


def test_p9_a_later_half_does_not_overtake_the_one_before_it(rig):
    one = rig(ordered=True)
    records = one.puts(1, 1, 1, 1)
    one.flush()
    one.failed("ValidationException", 400)
    assert one.send() == [[b"0"]]
    one.results("InternalFailure")  # it pauses: the others go back behind it
    assert one.send() is None
    assert until_sent(one) == [[b"0"]]
    one.stored()
    for number in (b"1", b"2", b"3"):
        assert one.send() == [[number]]
        one.stored()
    assert all(record.conclusion.delivered for record in records)


def test_p9_nor_when_the_map_has_changed(rig):
    one = rig(ordered=True)
    one.puts(1, 1, 1, 1)
    one.put(b"other", "key 9", 9)
    one.flush()
    one.failed("ValidationException", 400)
    assert one.send() == [[b"0"]]
    number = one.number
    new_map(one, **SPLIT)
    one.put(b"4", "key 1", 1)
    one.failed(number=number)
    sent = []
    while one.machine.intake.outstanding:
        sent += [data for entry in until_sent(one) for data in entry]
        one.stored()
    sent.remove(b"other")
    assert sent == [b"0", b"1", b"2", b"3", b"4"]
    assert one.machine._router.vanished == []


def test_p9_a_half_that_is_delivered_lets_the_next_go_alone(rig):
    one = rig(ordered=True)
    one.puts(1, 1)
    one.flush()
    one.failed("ValidationException", 400)
    assert one.send() == [[b"0"]]
    one.stored()
    assert one.send() == [[b"1"]]
    assert one.machine._flights[one.number].group.part is not None


def test_p9_a_half_that_is_refused_for_good_too(rig):
    one = rig(ordered=True)
    bad, good = one.puts(1, 1)
    one.flush()
    one.failed("ValidationException", 400)
    one.send()
    one.failed("ValidationException", 400)
    assert bad.conclusion.code == "ValidationException"
    assert one.send() == [[b"1"]]
    one.stored()
    assert good.conclusion.delivered


# ---- order


@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("aggregation", [True, False])
@pytest.mark.parametrize("is_sorted", [True, False], ids=["in lanes", "in the intake"])
def test_a_lower_limit_fails_what_waits_and_is_larger_and_nothing_else(rig, ordered, aggregation, is_sorted):
    one = rig(ordered=ordered, aggregation=aggregation, facts=False, request_max_bytes=10 << 20)
    assert one.asks_for_summary()
    one.summary(kib=10_240)
    small = one.put(b"first", "k", 1)
    large = one.put(b"x" * (2 << 20), "k", 1)
    after = one.put(b"after", "k", 1)
    other = one.put(b"other", "o", 9)
    if is_sorted:
        one.sort()
    one.machine._facts._wanted_at = one.now
    assert one.asks_for_summary()
    one.summary(kib=1_024)
    assert one.machine.intake.record_max_bytes == 1 << 20
    if not is_sorted:
        one.sort()
    assert large.conclusion.code == "RecordTooLarge"
    assert large.conclusion.message.startswith("data and key exceed 1,048,576 bytes")
    one.machine.flush()
    sent = []
    while one.machine.intake.outstanding:
        sent += [data for entry in until_sent(one) for data in entry]
        one.stored()
    assert sent.index(b"first") < sent.index(b"after")
    assert all(record.conclusion.delivered for record in (small, after, other))
    assert one.is_empty


def test_a_lower_limit_counts_the_bytes_of_the_packing_format(rig):
    one = rig(packing="length-prefixed", facts=False, request_max_bytes=10 << 20)
    assert one.asks_for_summary()
    one.summary(kib=10_240)
    fits, large = (one.put(bytes((1 << 20) - 1 - 4 + more), "k", 1) for more in (0, 1))
    one.sort()
    one.machine._facts._wanted_at = one.now
    assert one.asks_for_summary()
    one.summary(kib=1_024)
    assert large.conclusion.code == "RecordTooLarge"
    assert fits.conclusion is None
    one.flush()
    assert [len(entry.data) + len(entry.key) for entry in one.request.entries] == [1 << 20]


def test_a_lower_limit_does_not_hold_back_what_a_flush_has_released(rig):
    one = rig(facts=False, ordered=True, request_max_bytes=10 << 20, linger=10.0)
    assert one.asks_for_summary()
    one.summary(kib=10_240)
    one.put(b"first", "k", 1)
    one.machine.flush()
    assert one.send() == [[b"first"]]
    small, large = one.put(b"small", "k", 1), one.put(b"x" * (2 << 20), "k", 1)
    one.machine.flush()
    assert one.machine.poll_put(one.now) is None  # in order, it waits for the answer to the first
    one.machine._facts._wanted_at = one.now
    assert one.asks_for_summary()
    one.summary(kib=1_024)
    assert large.conclusion.code == "RecordTooLarge"
    one.stored()
    assert one.send() == [[b"small"]]
    one.stored()
    assert small.conclusion.delivered


def test_a_lower_limit_fails_what_is_larger_in_parts_of_refused_requests(rig):
    one = rig(facts=False, request_max_bytes=10 << 20, aggregation=False, bytes_per_second=1e9)
    assert one.asks_for_summary()
    one.summary(kib=10_240)
    one.wait(60.0)
    records = [one.put(bytes(2 << 20 if number < 2 else 10), f"{number}", 1) for number in range(6)]
    one.flush()
    one.failed("ValidationException", 400, message="Record size exceeds the limit")
    assert one.asks_for_summary()
    one.summary(kib=1_024)
    assert [record.conclusion and record.conclusion.code for record in records] == ["RecordTooLarge"] * 2 + [None] * 4
    while one.machine.intake.outstanding:
        until_sent(one)
        one.stored()
    assert one.lane("a").is_idle


def test_p9_after_a_merge_records_stand_by_the_time_of_their_put(rig):
    """Records of two parents meet in one lane. In the order of the parents, the third would be due before the second."""
    one = rig(ordered=True, linger=10.0, aggregate_max_count=2)
    for number, place in enumerate([9, 1, 1, 9]):
        one.put(b"%d" % number, f"key {place}", place)
        one.wait(0.1)
    new_map(one, m=(0, 16))
    one.machine.flush()
    sent = []
    while len(sent) < 4:
        for entry in one.send():
            sent += entry
        one.stored()
    assert sent == [b"0", b"1", b"2", b"3"]


def test_p9_what_comes_back_stands_before_what_waits(rig):
    one = rig(ordered=True)
    one.put(b"0", "key 1", 1)
    one.put(b"x", "key 5", 5)
    one.flush()
    number = one.number
    one.put(b"1", "key 1", 1)
    new_map(one, **SPLIT)
    one.put(b"2", "key 1", 1)
    assert one.flush() is None
    one.results("InternalFailure", number=number)
    sent = until_sent(one)
    assert [b"0", b"1", b"2"] in sent


def test_p9_an_ordered_lane_goes_on_when_what_was_parked_expired(rig):
    one = rig(ordered=True, record_ttl=2.0)
    first, second = one.puts(1, 5)
    one.flush()
    one.wait(1.8)
    one.stored("c")
    assert one.asks_for_map()  # no answer arrives
    later = one.put(b"later", "key 1", 1)
    assert one.flush() is None
    while first.conclusion is None:
        one.to_deadline()
        sent = one.send()
    assert second.conclusion.code == "Expired"
    assert sent == [[b"later"]]
    one.stored("a")
    assert type(later.conclusion) is Receipt


@pytest.mark.parametrize("ordered", [True, False])
def test_lanes_that_vanish_hand_over_what_lingers_without_sealing_it(rig, ordered):
    one = rig(ordered=ordered)
    one.puts(1, 2, 5)
    new_map(one, **SPLIT)
    assert one.send() is None
    one.put(b"more", "x", 1)
    one.wait(0.1)
    assert sorted(one.send()) == [[b"0", b"1", b"more"], [b"2"]]


# ---- streams that must not get aggregates

TRACE = {"traceparent": "00-1"}
FORBIDDEN = {"auto": {"auto": True}, "channels": {"channels": 1}}


def drained(rig):
    """The data of everything that is sent until nothing is left, entry by entry."""
    rig.machine.flush()
    sent = []
    while rig.machine.intake.outstanding:
        sent += until_sent(rig)
        rig.stored()
    return sent


def test_headers_are_sent_in_aggregates_even_alone_and_again(rig):
    one = rig()
    alone, other = one.put(b"alone", "x", 1, headers=TRACE), one.put(b"plain", "y", 9)
    assert one.flush() == [[b"alone"], [b"plain"]]
    assert one.sent_headers() == [[TRACE], []]
    one.results("InternalFailure", "b")
    until_sent(one)
    assert one.sent_headers() == [[TRACE]]
    one.stored()
    assert alone.conclusion.delivered
    assert alone.conclusion.attempt_count == 2
    assert other.conclusion.delivered
    assert one.is_empty


@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("key", ["k", None])
def test_headers_are_sent_before_there_is_a_map_and_after(rig, ordered, key):
    one = rig(shards=None, ordered=ordered)
    first = one.put(b"first", key, headers=TRACE)
    assert one.asks_for_map()
    one.not_listed()
    if ordered:
        assert one.flush() is None
    else:
        assert one.flush() == [[b"first"]]
        assert one.sent_headers() == [[TRACE]]
        one.stored()
    second = one.put(b"second", key, headers=TRACE)
    one.wait(2.0)
    assert one.asks_for_map()
    one.listed(a=(0, 8), b=(8, 16))
    assert [data for entry in drained(one) for data in entry] == ([b"first", b"second"] if ordered else [b"second"])
    assert [headers for entry in one.sent_headers() for headers in entry][-1:] == [TRACE]
    assert first.conclusion.delivered
    assert second.conclusion.delivered


@pytest.mark.parametrize("told", FORBIDDEN.values(), ids=FORBIDDEN)
@pytest.mark.parametrize("is_sorted", [True, False], ids=["in lanes", "in the intake"])
@pytest.mark.parametrize("ordered", [False, True])
def test_what_waits_with_headers_fails_as_soon_as_they_cannot_be_sent(rig, told, is_sorted, ordered):
    one = rig(ordered=ordered)
    plain, headed, after = one.put(b"1", "k", 1), one.put(b"2", "k", 1, headers=TRACE), one.put(b"3", "k", 1)
    if is_sorted:
        one.sort()
    one.new_summary(**told)
    assert one.intake.headers_refusal is not None
    late = one.put(b"4", "k", 1, headers=TRACE)  # by a putter that had checked before
    assert drained(one) == [[b"1"], [b"3"]]
    for record in (headed, late):
        assert (record.conclusion.code, record.conclusion.maybe_stored) == ("HeadersRefused", False)
        assert record.conclusion.message == one.machine._facts.headers_refusal
    assert plain.conclusion.delivered
    assert after.conclusion.delivered
    assert one.is_empty


def test_what_waits_with_headers_in_a_part_of_a_refused_request_fails_too(rig):
    one = rig()
    records = [one.put(b"%d" % n, f"k{n}", n % 16, headers=TRACE if n % 2 else None) for n in range(6)]
    one.flush()
    one.failed("ValidationException", 400)
    one.new_summary(channels=1)
    assert [record.conclusion and record.conclusion.code for record in records] == [None, "HeadersRefused"] * 3
    drained(one)
    assert all(record.conclusion.delivered for record in records[::2])
    assert one.is_empty


@pytest.mark.parametrize("end", ["a", "InternalFailure"])
def test_what_is_in_flight_with_headers_is_delivered_or_fails_when_it_would_be_sent_again(rig, end):
    one = rig()
    headed = one.put(b"1", "k", 1, headers=TRACE)
    one.flush()
    one.new_summary(channels=1)
    one.results(end)
    if end == "a":
        assert headed.conclusion.delivered
    else:
        assert headed.conclusion.code == "HeadersRefused"
        assert [attempt.code for attempt in headed.conclusion.attempts] == ["InternalFailure"]
    assert one.is_empty


def test_with_channels_every_record_is_an_entry_of_its_own_in_its_lane(rig):
    one = rig(facts=False)
    one.puts(1, 2)
    one.sort()
    assert one.asks_for_summary()
    one.summary(channels=1)
    one.puts(3, 9)
    assert sorted(one.flush()) == [[b"0"], [b"0"], [b"1"], [b"1"]]
    assert {lane.shard_id for lane in one.lanes()} == {"a", "b"}
    assert not any(lane.is_distrusted for lane in one.lanes())
    one.stored()
    for _ in range(40):  # no landing makes a lane aggregate again
        one.puts(1, 2)
        assert one.flush() == [[b"0"], [b"1"]]
        one.stored()
    new_map(one, **SPLIT)
    one.puts(1, 2)
    assert one.flush() == [[b"0"], [b"1"]], "nor does a new lane"
    one.stored()
    assert one.is_empty


def test_when_the_channels_are_gone_lanes_aggregate_and_headers_are_sent_again(rig):
    one = rig()
    one.new_summary(channels=1)
    assert "channels" in one.intake.headers_refusal
    one.wait(60.0)
    assert one.asks_for_summary()
    one.summary()
    assert one.intake.headers_refusal is None
    for _ in range(16):
        one.puts(1, 2)
        assert one.flush() == [[b"0"], [b"1"]]
        one.stored()
    one.puts(1, 2)
    one.put(b"2", "k", 1, headers=TRACE)
    assert one.flush() == [[b"0", b"1", b"2"]]
    assert one.sent_headers() == [[{}, {}, TRACE]]


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"aggregation": "force"}, None),
        ({"aggregation": False}, "headers are sent in aggregates, and aggregation=False allows none"),
        (
            {"packing": "json-lines"},
            "headers are sent in the KPL's aggregates, and packing='json-lines' replaces those",
        ),
    ],
)
def test_settings_decide_before_the_stream_does(rig, settings, told):
    one = rig(facts=False, **settings)
    assert one.intake.headers_refusal == told
    assert one.asks_for_summary()
    one.summary(channels=1)
    assert one.intake.headers_refusal == told
    one.puts(1, 2)
    assert len(one.flush()) == (1 if told is None else 2)


def test_a_lower_limit_counts_the_headers(rig):
    one = rig(facts=False, request_max_bytes=10 << 20)
    assert one.asks_for_summary()
    one.summary(kib=10_240)
    overhead = bytes_alone(b"x" * (1 << 20), "k", at(1), tags=encode_tags(TRACE)) - (1 << 20)
    fits, large = (one.put(b"x" * ((1 << 20) - overhead + more), "k", 1, headers=TRACE) for more in (0, 1))
    one.sort()
    one.new_summary(kib=1_024)
    assert large.conclusion.code == "RecordTooLarge"
    assert fits.conclusion is None
    one.flush()
    assert [len(entry.data) + len(entry.key) for entry in one.request.entries] == [1 << 20]


# ---- headers of a trace: a record does not fail because of them


def put_traced(rig, data, key="k", place=1):
    """Put a record whose headers no caller has passed."""
    record = rig.record(data, key, at(place), headers=TRACE)
    record.tags = OptionalTags(record.tags)
    rig.answer = rig.accept(record)
    return record


@pytest.mark.parametrize("told", FORBIDDEN.values(), ids=FORBIDDEN)
@pytest.mark.parametrize("is_sorted", [True, False], ids=["in lanes", "in the intake"])
@pytest.mark.parametrize("ordered", [False, True])
def test_what_waits_in_a_trace_is_sent_without_it_if_headers_cannot_be_sent(rig, told, is_sorted, ordered):
    one = rig(ordered=ordered)
    traced, headed, plain = put_traced(one, b"1"), one.put(b"2", "k", 1, headers=TRACE), one.put(b"3", "k", 1)
    if is_sorted:
        one.sort()
    one.new_summary(**told)
    late = put_traced(one, b"4")
    assert drained(one) == [[b"1"], [b"3"], [b"4"]]
    assert all(headers == [] for headers in one.sent_headers())
    assert all(record.conclusion.delivered for record in (traced, plain, late))
    assert headed.conclusion.code == "HeadersRefused"
    assert one.is_empty
    assert one.intake.buffered_bytes == 0


def test_what_waits_in_a_trace_in_a_part_of_a_refused_request_is_sent_without_it(rig):
    one = rig()
    records = [put_traced(one, b"%d" % n, f"k{n}", n % 16) for n in range(6)]
    one.flush()
    one.failed("ValidationException", 400)
    one.new_summary(channels=1)
    drained(one)
    assert all(record.conclusion.delivered for record in records)
    assert one.is_empty
    assert one.intake.buffered_bytes == 0


@pytest.mark.parametrize("is_distrusted", [False, True])
@pytest.mark.parametrize("end", ["a", "InternalFailure"])
def test_what_is_in_flight_in_a_trace_is_delivered_or_sent_again_without_it(rig, end, is_distrusted):
    one = rig()
    if is_distrusted:  # its records are entries of their own, which are sent again unchanged if they can be
        one.machine._retries.distrust(one.lane("a"), one.now, one.now)
    traced, plain = put_traced(one, b"1"), one.put(b"2", "k", 1)
    one.flush()
    assert [TRACE] in [headers[:1] for headers in one.sent_headers()]
    one.new_summary(channels=1)
    one.results(*[end] * len(one.request.entries))
    if end != "a":
        assert sorted(drained(one)) == [[b"1"], [b"2"]]
        assert one.sent_headers() == [[], []]
    assert traced.conclusion.delivered
    assert plain.conclusion.delivered
    assert one.is_empty
    assert one.intake.buffered_bytes == 0


def test_a_trace_that_does_not_fit_under_a_lower_limit_is_dropped(rig):
    one = rig(facts=False, request_max_bytes=10 << 20)
    assert one.asks_for_summary()
    one.summary(kib=10_240)
    largest = (1 << 20) - 1  # with a key of one character
    fits, large = put_traced(one, b"x" * largest), put_traced(one, b"x" * (largest + 1))
    one.sort()
    one.new_summary(kib=1_024)
    assert large.conclusion.code == "RecordTooLarge"
    assert fits.conclusion is None
    one.flush()
    assert [len(entry.data) + len(entry.key) for entry in one.request.entries] == [1 << 20]
    one.stored()
    assert fits.conclusion.delivered
    assert one.intake.buffered_bytes == 0


# ---- parts of refused requests, if the stream must not get aggregates any more


def send_all(one, bad):
    """Answer every request: refuse those with ``bad`` as invalid, and store the others. Return all requests."""
    requests = []
    while (sent := one.send()) is not None:
        requests.append(sent)
        if any(bad in entry for entry in sent):
            one.failed("ValidationException", 400)
        else:
            one.stored()
        one.wait(0.5)
    return requests


@pytest.mark.parametrize("why", FORBIDDEN)
def test_the_parts_that_wait_are_sent_one_record_per_entry(rig, why):
    one = rig()
    records = one.puts(*[1] * 20, *[9] * 20)
    assert [len(entry) for entry in one.flush()] == [20, 20]
    one.failed("ValidationException", 400)
    one.new_summary(**FORBIDDEN[why])
    requests = send_all(one, b"7")
    assert {len(entry) for sent in requests for entry in sent} == {1}
    assert [place for place, record in enumerate(records) if not isinstance(record.conclusion, Receipt)] == [7]
    assert records[7].conclusion.code == "ValidationException"
    assert one.is_empty
    assert not one.machine._isolation.shipments()


@pytest.mark.parametrize("why", FORBIDDEN)
def test_a_request_that_was_in_flight_is_taken_apart_without_aggregates(rig, why):
    one = rig()
    records = one.puts(*[1] * 20)
    one.flush()
    one.new_summary(**FORBIDDEN[why])
    one.failed("ValidationException", 400)
    requests = send_all(one, b"7")
    assert {len(entry) for sent in requests for entry in sent} == {1}
    assert [place for place, record in enumerate(records) if not isinstance(record.conclusion, Receipt)] == [7]
    assert one.is_empty


def test_p9_parts_that_are_recalled_keep_the_order_of_a_key(rig):
    one = rig(ordered=True)
    records = one.puts(*[1] * 8)
    one.flush()
    one.failed("ValidationException", 400)
    one.new_summary(channels=1)
    order = [entry for sent in send_all(one, b"3") for entry in sent if b"3" not in entry]
    assert [int(data) for [data] in order] == [0, 1, 2, 4, 5, 6, 7]
    assert isinstance(records[7].conclusion, Receipt)
    assert records[3].conclusion.code == "ValidationException"
    assert one.is_empty


def test_a_machine_that_sends_reads_the_summary_again_after_five_minutes(rig):
    one = rig()
    one.put()
    one.flush()
    one.stored()
    assert not one.asks_for_summary()
    one.wait(300.0)
    assert not one.asks_for_summary(), "nothing was sent"
    one.put()
    one.flush()
    assert one.asks_for_summary()
    one.summary(channels=1)
    one.stored()
    one.puts(1, 1)
    assert one.flush() == [[b"0"], [b"1"]]


def test_the_parts_of_a_refused_pack_stay_packs(rig):
    one = rig(packing="json-lines")
    one.puts(*[1] * 8)
    one.flush()
    one.failed("ValidationException", 400)
    waiting = one.machine._isolation.shipments()
    assert waiting
    one.new_summary(auto=True)
    assert one.machine._isolation.shipments() == waiting
