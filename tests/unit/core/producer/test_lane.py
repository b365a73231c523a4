"""How does a lane fill, send and expire the records of one shard?"""

from dataclasses import replace
from random import Random

import pytest
from tests.aggregates import split_aggregate

from shardline.core.clock import NEVER
from shardline.core.producer.lane import TRIP, Lane, repacked
from shardline.core.producer.producer_config import ProducerConfig
from shardline.core.producer.producer_record import BufferedRecord
from shardline.model.hashing import HASH_KEY_MAX, HashRange

HALF = HashRange(0, HASH_KEY_MAX // 2)
CONFIG = ProducerConfig(linger=0.1, record_ttl=10.0)
BIG_ROOM = 1e9


def lane(now=0.0, shard_id="shardId-0", **changes):
    return Lane(shard_id, HALF if shard_id else None, replace(CONFIG, **changes), Random(1), now)


def record(data=b"data", key="key", put_at=0.0):
    return BufferedRecord(data, key, None, put_at + CONFIG.record_ttl)


def fill(a_lane, *payloads, put_at=0.0):
    records = [record(data, put_at=put_at) for data in payloads]
    for one in records:
        a_lane.add(one)
    return records


def leave(a_lane, now=0.0):
    aggregate = a_lane.poll_aggregate(now, BIG_ROOM)
    return None if aggregate is None else [one.data for one in aggregate.records]


def opened(a_lane):
    (aggregate,) = a_lane.open.values()
    return aggregate


# ---- filling


@pytest.mark.parametrize("again", [False, True])
def test_in_an_ordered_lane_a_late_record_without_a_key_goes_alone(again):
    one = lane(ordered=True)
    fill(one, b"1", put_at=1.0)
    late, timely = record(b"late", None, 0.5), record(b"timely", None, 1.0)
    add = one.add_again if again else one.add
    assert (add(late), add(timely)) == (1, 0)
    assert [each.data for each in opened(one).records] == [b"1", b"timely"]
    assert opened(one).due_at == pytest.approx(1.1)
    assert leave(one) == [b"late"]
    one.in_flight = 0
    one.seal()
    assert add(record(b"later", None, 0.9)) == 1  # even if nothing is open: records that left may come back
    assert leave(one) == [b"later"]


def test_p2_records_share_an_aggregate_until_it_is_full():
    one = lane(aggregate_max_bytes=100)
    sealed = [one.add(record(b"x" * 20)) for _ in range(4)]
    assert sealed == [0, 0, 1, 0]
    assert (one.queued, len(opened(one).records)) == (1, 2)


def test_a_count_seals_too():
    one = lane(aggregate_max_count=2)
    assert [one.add(record()) for _ in range(3)] == [0, 1, 0]


@pytest.mark.parametrize("changes", [{"aggregation": False}, {"shard_id": None}])
def test_p2_a_lane_that_does_not_aggregate_makes_bundles_of_separate_records(changes):
    one = lane(**changes)
    assert sum(one.add(record(b"%d" % number)) for number in range(80)) == 1
    one.seal()
    assert one.queued == 80
    bundle = one.poll_aggregate(0.0, BIG_ROOM)
    assert (bundle.separate, bundle.entry_count, one.queued) == (True, 64, 16)
    assert [entry.data for entry in bundle.entries()] == [b"%d" % number for number in range(64)]


@pytest.mark.parametrize(
    "changes", [{}, {"aggregation": False}, {"ordered": True}, {"aggregate_max_count": 3}, {"packing": "netstrings"}]
)
def test_p2_many_are_taken_in_as_one_by_one(changes):
    """This holds for records of any size: those that fill an aggregate, those that go beside it, and those that are one
    by themselves.
    """
    sizes = [1, 20_000, 30_000, 5, 60_000, 60_000, 7, 51_000, 9, 200, 40_000, 1, 1, 1]
    one_by_one, at_once = lane(**changes), lane(**changes)
    sealed = sum(one_by_one.add(record(b"x" * size, f"key {size}")) for size in sizes)
    assert at_once.add_all([record(b"x" * size, f"key {size}") for size in sizes]) == sealed > 1
    for each in (one_by_one, at_once):
        each.seal()
    shapes = [
        [(len(aggregate.records), aggregate.size, aggregate.payload_bytes) for _, _, aggregate in each._queue]
        for each in (one_by_one, at_once)
    ]
    assert shapes[0] == shapes[1]
    assert sum(count for count, _, _ in shapes[0]) == len(sizes)
    assert at_once.queued_bytes == one_by_one.queued_bytes


@pytest.mark.parametrize("shard_id", ["shardId-0", None])
def test_records_share_a_pack_only_with_records_of_their_key_and_hash_key(shard_id):
    one = lane(shard_id=shard_id, packing="netstrings")
    places = [("a", None), ("b", None), (None, None), ("a", "7"), ("a", None), (None, None), ("b", None)]
    for place, (key, hash_key) in enumerate(places):
        assert one.add(BufferedRecord(b"%d" % place, key, hash_key, 10.0)) == 0
    assert one.is_open_for_keyless
    assert one.seal() == 4
    packs = [one.poll_aggregate(0.0, BIG_ROOM).entry() for _ in range(4)]
    assert [pack.data for pack in packs] == [b"1:0,1:4,", b"1:1,1:6,", b"1:2,1:5,", b"1:3,"]
    assert [pack.key for pack in packs if pack.key in {"a", "b"}] == ["a", "b", "a"]
    assert packs[3].explicit_hash_key == "7"
    if shard_id is not None:
        assert int(packs[2].explicit_hash_key) in HALF


def test_a_full_pack_is_sealed_and_the_packs_of_other_keys_go_on_filling():
    one = lane(packing="length-prefixed", aggregate_max_count=2)
    assert [one.add(record(b"1", key)) for key in ("a", "b", "a", None, "b")] == [0, 0, 1, 0, 1]
    assert [pack.records[0].key for pack in one.open.values()] == [None]
    one = lane(packing="length-prefixed", aggregate_max_bytes=64)
    assert [one.add(record(bytes(28), key)) for key in ("a", "b", "a", "a")] == [0, 0, 0, 1]
    assert [len(pack.records) for pack in one.open.values()] == [1, 1]


def test_a_lane_with_a_pack_of_a_key_only_is_not_open_for_records_without_a_key():
    one = lane(packing="netstrings")
    assert not one.is_open_for_keyless
    one.add(record(b"1", "a"))
    assert not one.is_open_for_keyless


def test_a_record_that_comes_back_makes_the_pack_of_its_key_due():
    one = lane(packing="netstrings")
    for key in ("a", "b"):
        one.add(record(key.encode(), key, put_at=5.0))
    one.add_again(record(b"old", "b", put_at=2.0))
    assert [pack.due_at for pack in one.open.values()] == [pytest.approx(5.1), pytest.approx(2.1)]
    assert one.due_at() == pytest.approx(2.1)


@pytest.mark.parametrize("separates", [False, True])
def test_a_part_of_a_pack_is_a_pack(separates):
    one = lane(packing="json-list", record_ttl=10.0)
    fill(one, b"1", put_at=0.0)
    fill(one, b"22", b"3", put_at=5.0)
    one.seal()
    if separates:  # the oldest record expires
        assert [each.data for each in one.take_expired(10.0)] == [b"1"]
        pack = one.poll_aggregate(10.0, BIG_ROOM)
    else:
        pack = one.poll_aggregate(0.0, BIG_ROOM)
        pack = repacked(pack.records[1:], 5.1, pack, 1)
    assert pack.entry().data == b"[22,3]"
    assert pack.cost_bytes == len(b"[22,3]") + len("key")


def test_a_count_of_one_seals_each_record():
    one = lane(aggregate_max_count=1)
    assert [one.add(record()) for _ in range(2)] == [1, 1]
    assert one.open == {}
    assert leave(one) == [b"data"]


def test_a_large_record_goes_alone_beside_the_open_aggregate():
    one = lane(aggregate_max_bytes=100)
    assert one.add(record(b"small")) == 0
    assert one.add(record(b"x" * 90)) == 1
    assert [r.data for r in opened(one).records] == [b"small"]


def test_p9_in_an_ordered_lane_it_does_not_overtake():
    one = lane(aggregate_max_bytes=100, ordered=True)
    one.add(record(b"small"))
    assert one.add(record(b"x" * 90)) == 2
    assert (leave(one), one.open) == ([b"small"], {})


def test_sealing_nothing_seals_nothing():
    one = lane()
    assert one.seal() == 0
    fill(one, b"a")
    assert one.seal() == 1
    assert one.queued_bytes == len(b"a") + len("key")


def test_p8_keyless_records_take_a_key_and_a_hash_key_inside_the_range():
    one = lane()
    for number in range(3):
        one.add(record(b"%d" % number, key=None))
    one.seal()
    (entry,) = one.poll_aggregate(0.0, BIG_ROOM).entries()
    inner = split_aggregate(entry.data)
    assert {(r.key, r.explicit_hash_key) for r in inner} == {(entry.key, entry.explicit_hash_key)}
    assert int(entry.explicit_hash_key) in HALF


def test_without_a_prediction_a_keyless_record_has_a_random_key_alone():
    one = lane(shard_id=None)
    one.add(record(key=None))
    one.seal()
    (entry,) = one.poll_aggregate(0.0, BIG_ROOM).entries()
    assert (len(entry.key), entry.explicit_hash_key) == (10, None)
    one.send_no_key(on=True)
    one.add(record(key=None))
    one.seal()
    (entry,) = one.poll_aggregate(0.0, BIG_ROOM).entries()
    assert entry.key is None


# ---- deadlines


def test_an_aggregate_is_due_when_its_first_record_has_lingered():
    one = lane()
    assert (one.due_at(), one.expires_at(), one.is_idle) == (NEVER, NEVER, True)
    fill(one, b"a", put_at=5.0)
    fill(one, b"b", put_at=5.05)
    assert one.due_at() == pytest.approx(5.1)
    assert not one.is_due(5.09)
    assert one.is_due(5.11)
    one.seal()
    fill(one, b"c", put_at=5.06)
    assert one.due_at() == pytest.approx(5.1)
    assert one.expires_at() == pytest.approx(15.0)


def test_a_record_that_comes_back_makes_the_open_aggregate_due_as_early_as_itself():
    one = lane()
    fill(one, b"new", put_at=9.0)
    one.add_again(record(b"old", put_at=2.0))
    assert one.due_at() == pytest.approx(2.1)


def test_also_if_it_seals_that_aggregate():
    one = lane(aggregate_max_count=2)
    fill(one, b"new", put_at=9.0)
    one.add_again(record(b"old", put_at=2.0))
    assert one.queued == 1
    assert [r.data for r in one.take_expired(12.0)] == [b"old"]


def test_the_first_due_is_the_first_out():
    one = lane(aggregate_max_count=1)
    fill(one, b"late", put_at=3.0)
    fill(one, b"early", put_at=1.0)
    assert [leave(one), leave(one), leave(one)] == [[b"early"], [b"late"], None]


def test_expired_records_leave_first_and_cost_no_tokens():
    one = lane(aggregate_max_count=1, records_per_second=1.0)
    old = fill(one, b"a", b"b", put_at=0.0)
    fill(one, b"c", put_at=5.0)
    assert one.take_expired(10.0) == old
    assert leave(one, 10.0) == [b"c"]
    assert one.queued_bytes == 0


def test_the_others_of_an_aggregate_stay_in_its_place():
    one = lane()
    fill(one, b"a", put_at=0.0)
    fill(one, b"b", put_at=0.05)
    assert [r.data for r in one.take_expired(10.0)] == [b"a"]
    assert one.queued == 1
    assert one.expires_at() == pytest.approx(10.05)
    assert leave(one, 10.0) == [b"b"]


@pytest.mark.parametrize("step", range(200))
def test_what_expires_at_the_deadline_leaves_at_the_deadline_however_it_is_rounded(step):
    """``expires_at`` minus a duration plus the same duration may differ from ``expires_at``. Regression: it looped
    forever.
    """
    one = lane(linger=0.1, record_ttl=0.7)
    put_at = 5_000.25 + step / 7
    one.add(BufferedRecord(b"a", "k", None, put_at + 0.7))
    assert len(one.take_expired(one.expires_at())) == 1


def test_unsent_tells_and_taking_empties():
    one = lane(aggregate_max_count=2)
    records = fill(one, b"a", b"b", b"c")
    assert one.unsent() == records
    one.released = True
    assert one.take_unsent() == records
    assert (one.is_idle, one.queued_bytes, one.released) == (True, 0, False)


def test_what_was_released_is_due_until_it_has_gone():
    one = lane(aggregate_max_count=1)
    fill(one, b"a", b"b", put_at=0.0)
    one.released = True
    assert one.is_due(0.0)
    leave(one)
    assert one.is_due(0.0)
    leave(one)
    assert not one.released


# ---- leaving


def test_p6_an_aggregate_costs_one_record_whatever_it_carries():
    one = lane(records_per_second=2.0)
    for _ in range(3):
        fill(one, b"a", b"b", b"c")
        one.seal()
    assert leave(one)
    assert leave(one)
    assert leave(one) is None
    assert one.wakes_at(0.0) == pytest.approx(0.5)
    assert leave(one, 0.5)


def test_p6_bytes_are_data_and_key():
    one = lane(aggregate_max_count=1, bytes_per_second=20.0)
    fill(one, b"x" * 7, b"x" * 7, b"x" * 7)  # ten bytes each with the key
    assert leave(one)
    assert leave(one)
    assert leave(one) is None
    assert one.wakes_at(0.0) == pytest.approx(0.5)


def test_what_does_not_fit_stays_and_costs_nothing():
    one = lane(aggregate_max_count=1, records_per_second=1.0)
    fill(one, b"x" * 50)
    assert one.poll_aggregate(0.0, 52) is None
    assert one.wakes_at(0.0) == 0.0
    assert one.poll_aggregate(0.0, 53)


def test_the_catch_all_is_not_limited():
    one = lane(shard_id=None, records_per_second=1.0, bytes_per_second=1.0)
    fill(one, b"a", b"b", b"c")
    one.seal()
    assert leave(one) == [b"a", b"b", b"c"]


def test_p9_an_ordered_lane_has_one_in_flight_and_a_held_one_none():
    one = lane(aggregate_max_count=1, ordered=True)
    fill(one, b"a", b"b")
    assert leave(one) == [b"a"]
    assert leave(one) is None
    assert one.wakes_at(0.0) == NEVER
    one.in_flight = 0
    one.held = True
    assert leave(one) is None
    one.held = False
    assert leave(one) == [b"b"]
    assert one.wakes_at(0.0) == NEVER


SEPARATE = {"ordered": True, "aggregation": False}


def keyed(a_lane, *names, put_at=0.0):
    """Return records whose data begins with their key."""
    records = [record(name, name[:1].decode(), put_at) for name in names]
    for one in records:
        a_lane.add(one)
    a_lane.seal()
    return records


def test_p9_where_nothing_is_aggregated_one_record_of_each_key_is_in_flight():
    one = lane(**SEPARATE)
    a1, _, b1, *_ = keyed(one, b"a1", b"a2", b"b1")
    keyed(one, b"b2", b"c1", b"a3")
    assert leave(one) == [b"a1", b"b1"]
    assert leave(one) == [b"c1"]
    assert leave(one) is None
    assert (one.queued, one.queued_bytes, one.stats().queued_entries) == (0, 0, 3)
    assert one.wakes_at(0.0) == NEVER
    a1.ending = b1.ending = "delivered"
    one.handle_ended([a1, b1])
    assert one.is_due(0.0)
    assert leave(one) == [b"a2", b"b2"]
    assert leave(one) is None


def test_p9_what_must_wait_for_its_key_holds_up_no_other_key_and_is_not_due():
    one = lane(**SEPARATE)
    keyed(one, b"a1")
    assert leave(one) == [b"a1"]
    keyed(one, b"a2", b"a3")
    one.release()
    assert leave(one) is None
    assert (one.released, one.queued) == (False, 0)
    keyed(one, b"a4")
    keyed(one, b"a5", b"b1")
    assert leave(one) == [b"b1"]


def test_p9_the_next_of_a_key_is_unsent_before_later_ones_that_no_bundle_has_admitted_yet():
    one = lane(**SEPARATE, request_max_entries=2)
    a1, a2, a3, _ = keyed(one, b"a1", b"a2", b"a3", b"b1")
    leave(one)
    a1.ending = "delivered"
    one.handle_ended([a1])  # a2 is queued behind the bundle of a3, and nothing waits for its key
    assert [record for record in one.take_unsent() if record.key == a1.key] == [a2, a3]


def test_p9_what_comes_back_goes_before_what_was_sealed_after_it():
    one = lane(aggregate_max_count=1, ordered=True)
    fill(one, b"a", b"b", b"c")  # all put at once
    first = one.poll_aggregate(0.0, BIG_ROOM)
    one.in_flight = 0
    one.requeue(first)
    assert leave(one) == [b"a"]


def test_p9_parts_of_an_aggregate_keep_their_order_however_they_come_back():
    one = lane()
    records = fill(one, b"a", b"b", b"c", b"d")
    one.seal()
    whole = one.poll_aggregate(0.0, BIG_ROOM)
    fill(one, b"e")
    one.seal()
    second = repacked(records[2:], whole.due_at, whole, 2)
    third = repacked(second.records[1:], whole.due_at, second, 1)
    for part in (third, repacked([records[2]], whole.due_at, second), repacked(records[:2], whole.due_at, whole)):
        one.requeue(part)
    assert [r.data for r in one.unsent()] == [b"a", b"b", b"c", b"d", b"e"]
    assert leave(one) == [b"a", b"b"]


# ---- the health of the shard


def test_p5_a_failure_pauses_the_lane_and_entries_of_one_request_make_one_pause():
    one = lane(aggregate_max_count=1, retry_backoff=1.0)
    fill(one, b"a")
    one.handle_failure(0.0, throttled=False)
    until = one.wakes_at(0.0)
    one.handle_failure(0.0, throttled=False)
    assert one.wakes_at(0.0) == until
    assert 0.5 <= until <= 1.0
    assert leave(one, until - 0.01) is None
    assert leave(one, until) == [b"a"]


def test_p5_a_pause_goes_on_when_another_entry_was_stored():
    one = lane(aggregate_max_count=1)
    fill(one, b"a")
    one.handle_failure(0.0, throttled=False)
    one.handle_success(0.0)
    assert leave(one, 0.0) is None


def test_p5_throttling_lowers_the_rate_once_a_burst_and_success_raises_it_by_steps():
    one = lane()
    one.handle_failure(0.0, throttled=True)
    one.handle_failure(0.1, throttled=True)
    assert one.share == pytest.approx(0.7)
    one.handle_failure(0.3, throttled=True)
    assert one.share == pytest.approx(0.49)
    one.handle_success(2.3)
    assert one.share == pytest.approx(0.59)
    one.handle_success(60.0)
    assert one.share == 1.0
    one.handle_success(61.0)
    assert one.share == 1.0


def test_p5_the_rate_never_falls_to_nothing():
    one = lane()
    for second in range(60):
        one.handle_failure(float(second), throttled=True)
    assert one.share == pytest.approx(0.02)


def test_p5_a_lowered_rate_is_a_share_of_what_a_shard_takes():
    one = lane(aggregate_max_count=1, records_per_second=1e9)
    fill(one, *[b"x"] * 800)
    one.handle_failure(0.0, throttled=True)
    sent = 0
    while leave(one, 10.0):
        sent += 1
    assert sent == 700


def test_without_a_shard_nothing_is_shared():
    one = lane(shard_id=None)
    fill(one, *[b"x"] * 100)
    one.seal()
    one.handle_failure(0.0, throttled=True)
    assert sum(len(leave(one, 10.0)) for _ in range(2)) == 100


def test_p5_failures_in_a_row_open_the_circuit_and_one_trial_at_a_time_tests_the_shard():
    one = lane(aggregate_max_count=1)
    fill(one, b"a", b"b")
    now = 0.0
    for _ in range(TRIP):
        assert not one.is_tripped
        one.handle_failure(now, throttled=False)
        now += 10.0
    assert one.is_tripped
    assert leave(one, now) == [b"a"]
    assert leave(one, now) is None
    one.handle_success(now)
    assert not one.is_tripped
    assert leave(one, now) == [b"b"]


def test_p8_load_weighs_what_waits_by_health():
    calm, busy, sick, paused = lane(), lane(), lane(), lane(retry_backoff=5.0)
    fill(busy, b"x" * 1000)
    busy.seal()
    sick.handle_failure(0.0, throttled=False)
    paused.handle_failure(19.9, throttled=False)
    loads = [one.load(20.0) for one in (calm, busy, sick, paused)]
    assert loads == sorted(loads)
    assert len(set(loads)) == 4
    assert sick.failure_score(10.0) == pytest.approx(0.5)


def test_p6_a_bundle_that_has_not_all_its_tokens_goes_record_by_record():
    one = Lane("shardId-0", HALF, replace(CONFIG, aggregation=False, records_per_second=68.0), Random(1), 0.0)
    fill(one, *[b"x"] * 128)
    assert [len(leave(one)) for _ in range(5)] == [64, 1, 1, 1, 1]
    assert leave(one) is None
    assert one.queued == 60
    assert one.wakes_at(0.0) == pytest.approx(1 / 68)
    assert leave(one, 1 / 68) == [b"x"]


def test_p6_a_bundle_that_is_cut_to_the_room_of_a_request_still_has_to_pay_for_all_of_it():
    one = lane(aggregation=False, records_per_second=2.0)
    fill(one, *[b"x"] * 5)
    one.seal()
    sent = [one.poll_aggregate(0.0, BIG_ROOM, 4) for _ in range(3)]
    assert [part and part.entry_count for part in sent] == [1, 1, None]
    assert one.wakes_at(0.0) == pytest.approx(0.5)


# ---- TTLs of single records


def with_ttls(*ttls, **changes):
    """Return a lane with sealed aggregates of one record each, put at 0, and the records."""
    one = lane(aggregate_max_count=1, **changes)
    one.ttls_differ = True
    records = [record(b"%d" % number) for number in range(len(ttls))]
    for each, ttl in zip(records, ttls, strict=True):
        each.extra_ttl = ttl - CONFIG.record_ttl
        one.add(each)
    return one, records


def test_any_aggregate_may_expire_first_if_ttls_differ():
    one, records = with_ttls(30.0, 10.0, 2.0)
    assert (one.expires_at(), one.due_at(), one.oldest()) == (2.0, pytest.approx(0.1), pytest.approx(10.0))
    assert one.take_expired(1.9) == []
    assert one.take_expired(2.0) == [records[2]]
    assert one.take_expired(10.0) == [records[1]]
    assert (one.expires_at(), one.queued) == (30.0, 1)
    assert leave(one, 20.0) == [b"0"]


def test_a_record_with_its_own_ttl_leaves_its_aggregate_and_the_others_keep_their_place():
    one = lane()
    one.ttls_differ = True
    first, short, long, last = fill(one, b"1", b"short", b"long", b"2")
    short.extra_ttl, long.extra_ttl = -9.0, 20.0
    assert one.expires_at() == 1.0
    assert one.take_expired(1.0) == [short]
    assert (one.expires_at(), one.due_at()) == (10.0, pytest.approx(0.1))
    later = fill(one, b"later", put_at=5.0)
    assert one.expires_at() == 10.0
    assert one.take_expired(10.0) == [first, last]
    assert one.unsent() == [long, *later]
    assert one.expires_at() == 15.0
    assert leave(one, 11.0) == [b"long"]


def test_a_lane_without_records_never_expires():
    one, _ = with_ttls()
    assert (one.expires_at(), one.oldest(), one.take_expired(100.0)) == (NEVER, NEVER, [])


# ---- settings that change


@pytest.mark.parametrize("linger", [0.0, 0.5])
def test_another_linger_moves_the_time_when_records_are_due_and_not_when_they_expire(linger):
    one = lane()
    fill(one, b"1", put_at=1.0)
    one.seal()
    fill(one, b"2", put_at=2.0)
    one.reconfigure(replace(CONFIG, linger=linger), 2.5)
    assert one.due_at() == pytest.approx(1.0 + linger)
    assert one.open_due_at() == pytest.approx(2.0 + linger)
    assert one.oldest() == one.expires_at() == pytest.approx(11.0)
    fill(one, b"3", put_at=2.2)
    assert one.take_expired(10.999) == []
    assert [each.data for each in one.take_expired(11.001)] == [b"1"]
    assert [each.data for each in one.take_expired(12.001)] == [b"2"]
    assert [each.data for each in one.take_expired(12.201)] == [b"3"]
    one.reconfigure(CONFIG, 12.3)
    fill(one, b"4", put_at=12.3)
    assert one.due_at() == pytest.approx(12.4)


def test_other_rates_apply_at_once_and_a_lowered_share_stays():
    one = lane(records_per_second=10.0)
    one.reconfigure(replace(CONFIG, records_per_second=2.0), 0.0)
    for _ in range(5):
        fill(one, b"x")
        one.seal()
    assert [leave(one), leave(one), leave(one)] == [[b"x"], [b"x"], None]
    assert one.wakes_at(0.0) == pytest.approx(0.5)
    one.reconfigure(replace(CONFIG, records_per_second=100.0), 0.0)
    assert one.wakes_at(0.0) == pytest.approx(0.01)
    one.handle_failure(0.0, throttled=True)
    one.reconfigure(replace(CONFIG, records_per_second=200.0), 0.0)
    assert one.share == pytest.approx(0.7)
    assert one._bucket._entry_rate == pytest.approx(140.0)


def test_the_lane_without_a_shard_has_no_rates():
    one = lane(shard_id=None)
    one.reconfigure(replace(CONFIG, records_per_second=0.001), 0.0)
    for _ in range(3):
        fill(one, b"x")
        one.seal()
        assert leave(one) == [b"x"]
