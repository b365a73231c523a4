"""What a user of the producer relies on, one promise a test, on a stream of a few lines: transient errors are
retried, fatal errors are reported at once, the service is not called too often, and the effects of a failure end when it does.

The other machines and the simulation draw random events and check what must never happen. These tests check what must happen.
"""

from collections import Counter
from functools import partial
from random import Random

import pytest
from tests.aggregates import split_aggregate
from tests.harness.producer_shell import ACCEPTED, ProducerShell, shard, stream_summary

from shardline.codec.shapes import (
    HashKeyRangeShape,
    ListShardsResponse,
    PutRecordsResponse,
    PutRecordsResult,
    SequenceNumberRangeShape,
    ShardShape,
)
from shardline.core.clock import NEVER
from shardline.core.error_codes import Failure, FailureKind, classify
from shardline.core.producer.intake import Put
from shardline.core.producer.lane import TRUST, Lane
from shardline.core.producer.machine import ProducerMachine
from shardline.core.producer.producer_config import ProducerConfig
from shardline.core.producer.producer_record import BufferedRecord, Receipt, Undelivered
from shardline.model.hashing import HASH_KEY_COUNT, HASH_KEY_MAX, WHOLE_RING, hash_key_of
from shardline.model.stream import StreamRef

HALF = HASH_KEY_COUNT // 2
THROTTLED = "ProvisionedThroughputExceededException"


def place_of(entry):
    return int(entry.explicit_hash_key) if entry.explicit_hash_key is not None else hash_key_of(entry.key)


class Stream(ProducerShell):
    """A producer's machine, and a scripted service."""

    def __init__(self, *shards, seed=0, latency=0.01, **config):
        super().__init__(ProducerConfig(**config), 100.0, Random(seed))
        self.shards = list(shards) or [shard("a")]
        self.latency = latency
        self.records = []
        self.requests = []  # every PutRecords: (when, entries)
        self.listings = []
        self.summaries = []
        self.refuse = lambda *_: None  # the error code of an entry, if it is refused
        self.fail = lambda _: None  # the outcome of a whole request
        self.listing = lambda: ListShardsResponse(self.shards)
        self.distribution = None
        self.created_at = 1.0
        self.status = "ACTIVE"
        self.answers = []  # in flight: (due, what)
        self.count = 0
        self.life = 0  # the first sequence number of every shard, if numbers show when it was created
        self.pump()

    def put(self, data=b"x", key="k", hash_key=None):
        record = self.record(data, key, None if hash_key is None else str(hash_key))
        assert self.accept(record) in ACCEPTED
        self.records.append(record)
        self.pump()
        return record

    def flush(self):
        self.machine.flush()
        self.pump()

    def list_shards(self, _):
        self.listings.append(self.now)
        listing = self.listing()
        if listing is not None:  # otherwise the request is never answered
            self.answers.append((self.now + self.latency, self.machine.handle_list_shards, listing))

    def describe_stream(self, _):
        self.summaries.append(self.now)
        told = {"status": self.status, "created_at": self.created_at, "record_distribution": self.distribution}
        self.answers.append((self.now + self.latency, self.machine.handle_summary, stream_summary(**told)))

    def put_records(self, number, request):
        self.requests.append((self.now, request.entries))
        answer = self.answer(request.entries)
        self.answers.append((self.now + self.latency, partial(self.machine.handle_put, number), answer))

    def answer(self, entries):
        failure = self.fail(entries)
        if failure is not None:
            return failure
        results = []
        for entry in entries:
            self.count += 1
            shard_id = self.shard_of(place_of(entry))
            code = self.refuse(entry, shard_id)
            stored = PutRecordsResult(str(self.life + (self.count << 80) if self.life else self.count), shard_id)
            results.append(stored if code is None else PutRecordsResult(None, None, code, "why"))
        return PutRecordsResponse(results)

    def shard_of(self, place):
        return next(one.shard_id for one in self.shards if place in one.hash_key_range.to_range())

    def run(self, seconds=NEVER):
        """Let time pass until nothing is in flight or the time is over."""
        end = self.now + seconds
        for _ in range(100_000):
            following = min([self.machine.next_deadline(), *(one[0] for one in self.answers)])
            if following > end or following == NEVER:
                break
            self.now = max(self.now, following)
            due = [one for one in self.answers if one[0] <= self.now]
            self.answers = [one for one in self.answers if one[0] > self.now]
            for _, handle, answer in due:
                handle(answer, self.now)
            self.pump()
        self.now = self.now if end == NEVER else end
        return self

    def stored(self):
        """The data of every stored record, as a number, once per copy, in the order of the requests."""
        opened = [(entry, split_aggregate(entry.data)) for entry in self.sent()]
        return [int(one.data) for entry, inner in opened for one in (inner or [entry])]

    def delivered(self):
        return [type(record.conclusion) is Receipt for record in self.records]

    def sent(self, since=0.0):
        return [entry for when, entries in self.requests if when >= since for entry in entries]


def whole_request(code, status, times):
    """Refuse a request this many times, and then no more."""
    return as_often(Failure(classify(code, status), code, "why", status), times)


def as_often(failure, times):
    left = [times]

    def fail(entries):
        left[0] -= 1
        return failure if left[0] >= 0 else None

    return fail


# ---- transient errors are retried, fatal errors are reported


@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("ExpiredTokenException", 400),
        ("RequestExpired", 400),
        ("InternalFailure", 500),
        ("NobodyKnows", 500),
        ("NobodyKnows", 503),
        (THROTTLED, 400),
        ("LimitExceededException", 400),
        ("ResourceInUseException", 400),
    ],
)
def test_p5_a_request_that_may_succeed_later_is_sent_again_until_it_does(code, status):
    stream = Stream()
    stream.fail = whole_request(code, status, 3)
    stream.put()
    stream.run()
    assert stream.delivered() == [True]
    assert len(stream.requests) == 4


@pytest.mark.parametrize("status", [204, 302, 307, 400, 401, 403, 404, 405, 407, 413, 421, 502])
def test_p5_a_response_that_the_service_did_not_write_costs_no_record(status):
    """This lasts for a second: every record is delivered, with few requests."""
    stream = Stream()
    stream.put()
    stream.run()
    kind, until = classify("Forbidden", status, is_typed=False), stream.now + 1.0
    stream.fail = lambda _: Failure(kind, "Forbidden", "a page", status) if stream.now < until else None
    for number in range(40):
        stream.put(b"%d" % number)
    before = len(stream.requests)
    stream.run()
    assert all(stream.delivered())
    assert 2 <= len(stream.requests) - before <= 30


@pytest.mark.parametrize("code", ["UnrecognizedClientException", "InvalidClientTokenId", "InvalidSignatureException"])
def test_p5_keys_that_were_replaced_are_worth_another_attempt_and_wrong_ones_are_not(code):
    refusal = Failure(classify(code, 400), code, "why", 400)
    for changed in (True, False):
        stream = Stream()
        stream.fail = as_often(refusal.after_look_up(changed=changed), 2)
        stream.put()
        stream.run(10.0)
        assert (stream.delivered(), len(stream.requests)) == ([changed], 3 if changed else 1)


def fail_listings(stream, code):
    """Fail all listings, including one that is in flight."""
    failure = Failure(classify(code, 400), code, "why", 400)
    stream.listing = lambda: failure
    lists = stream.machine.handle_list_shards
    stream.answers = [(due, handle, failure if handle == lists else what) for due, handle, what in stream.answers]


def test_a_producer_is_ready_when_it_has_seen_its_stream():
    stream = Stream()
    assert not stream.machine.readiness.is_ready
    stream.run(1.0)
    assert stream.machine.readiness.is_ready
    denied = Stream()
    fail_listings(denied, "AccessDeniedException")
    denied.run(1.0)
    assert denied.machine.readiness.is_ready, "it sends without a map"


def test_a_producer_of_a_stream_that_is_not_there_says_so_until_it_is():
    stream = Stream()
    listing = stream.listing
    fail_listings(stream, "ResourceNotFoundException")
    stream.run(0.5)
    readiness = stream.machine.readiness
    assert (readiness.is_ready, readiness.is_hopeless) == (False, True)
    stream.listing = listing
    stream.run(60.0)
    assert (readiness.is_ready, readiness.is_hopeless) == (True, False)


@pytest.mark.parametrize("code", ["AccessDeniedException", "ResourceNotFoundException", "KMSDisabledException"])
def test_p5_a_fatal_error_of_a_request_is_reported_at_once(code):
    stream = Stream()
    stream.fail = whole_request(code, 400, 1_000)
    stream.put()
    stream.run(1.0)
    assert (stream.records[0].conclusion.code, len(stream.requests)) == (code, 1)


@pytest.mark.parametrize("code", ["KMSDisabledException", "AccessDeniedException"])
def test_p5_a_fatal_error_of_an_entry_is_reported_at_once(code):
    stream = Stream()
    stream.refuse = lambda *_: code
    stream.put()
    stream.run(1.0)
    assert (stream.records[0].conclusion.code, len(stream.requests)) == (code, 1)


def test_p5_a_poisonous_record_fails_alone():
    stream = Stream()
    stream.fail = lambda entries: (
        Failure(FailureKind.INVALID, "ValidationException", "why", 400)
        if any(b"poison" in entry.data for entry in entries)
        else None
    )
    for number in range(9):
        stream.put(b"poison" if number == 4 else b"%d" % number)
    stream.run()
    assert stream.delivered() == [number != 4 for number in range(9)]


def test_fail_if_throttled_does_what_it_says():
    stream = Stream(fail_if_throttled=True)
    stream.refuse = lambda *_: THROTTLED
    stream.put()
    stream.run(1.0)
    assert stream.records[0].conclusion.code == THROTTLED


@pytest.mark.parametrize("limit", [1, 2, 3])
def test_max_attempts_is_how_often_a_record_is_sent(limit):
    stream = Stream(max_attempts=limit)
    stream.refuse = lambda *_: "InternalFailure"
    stream.put()
    stream.run()
    assert type(stream.records[0].conclusion) is Undelivered
    assert len(stream.sent()) == limit


# ---- the service is not called too often


def test_an_outage_of_an_hour_is_asked_about_now_and_then_and_its_end_is_noticed():
    stream = Stream(record_ttl=7200.0)
    until = stream.now + 3600.0
    stream.fail = lambda _: (
        Failure(FailureKind.TRANSIENT, "InternalFailure", "why", 500) if stream.now < until else None
    )
    stream.put()
    stream.run()
    assert stream.delivered() == [True]
    assert 3600 / 5 < len(stream.requests) < 2 * 3600 / 2.5 + 20
    assert stream.now < until + 10, "the longest pause is 5 s"


def test_two_producers_do_not_come_back_in_one_moment():
    moments = []
    for seed in (1, 2):
        stream = Stream(seed=seed, record_ttl=20.0)
        stream.fail = whole_request("InternalFailure", 500, 1_000)
        stream.put()
        stream.run()
        moments.append({round(when, 6) for when, _ in stream.requests[1:]})
    assert len(moments[0]) > 3
    assert not moments[0] & moments[1]


def test_a_service_that_came_back_gets_as_many_requests_at_once_as_before():
    stream = Stream(shard("a"), request_max_entries=1, aggregate_max_count=1, latency=0.2)
    stream.run(1.0)
    stream.fail = whole_request("InternalFailure", 500, 1)
    stream.put(b"first")
    stream.run(2.0)
    for number in range(20):
        stream.put(b"%d" % number)
    stream.flush()
    assert stream.machine._collector.in_flight > 10


def test_p3_the_map_is_asked_for_with_growing_pauses_that_shrink_again():
    stream = Stream(shard("a"), record_ttl=5.0)
    stream.run(1.0)
    good, bad = stream.listing, lambda: Failure(FailureKind.LIMIT_EXCEEDED, "LimitExceededException", "why", 400)

    def first_pause(outage):
        """Let a reshard be noticed while the listings fail for a while."""
        name = f"s{len(stream.listings)}"
        stream.shards = [shard(name)]
        stream.listing = bad
        for number in range(2):
            stream.put(b"%d" % number, key=f"k{number}")
        before = len(stream.listings)
        stream.run(outage)
        stream.listing = good
        stream.run(40.0)
        times = stream.listings[before:]
        assert len(times) > 1
        return times[1] - times[0], len(times)

    _, long_outage = first_pause(200.0)
    assert long_outage < 20, "1 s to 30 s"
    pause, _ = first_pause(1.5)
    assert pause <= 1.1, "the outage before it is over, and forgotten"


@pytest.mark.parametrize("request_max_entries", [1, 500])
def test_p7_a_record_that_fills_the_buffer_exactly_is_taken_and_no_larger_one(request_max_entries):
    stream = Stream(buffer_max_bytes=1024, linger=10.0, latency=5.0, request_max_entries=request_max_entries)
    stream.put(b"x" * 511)
    for size, said in ((512, Put.FULL), (100_000, Put.FULL), (511, Put.QUIET), (1, Put.FULL)):
        one = BufferedRecord(b"x" * size, "k", None, stream.now + 30.0)
        assert (stream.accept(one) is Put.FULL) is (said is Put.FULL), size
    assert stream.machine.intake.buffered_bytes == 1024


# ---- the map


def split_at_half(stream):
    stream.shards = [shard("b", 0, HALF - 1), shard("c", HALF)]


def test_after_a_split_the_map_is_read_again_at_once_and_once():
    stream = Stream(shard("a"))
    stream.run(1.0)
    before = len(stream.listings)
    split_at_half(stream)
    for place in (1, 2, HALF + 1, HALF + 2):
        stream.put(b"%d" % (place % 1000), hash_key=place)
    began = stream.now
    stream.run(0.5)
    assert len(stream.listings) == before + 1
    assert stream.listings[-1] - began < 0.2
    stream.run(20.0)
    assert all(stream.delivered())
    assert len(stream.listings) == before + 1


def test_late_answers_of_a_shard_that_is_known_to_be_closed_are_no_news():
    stream = Stream(shard("a"), latency=0.5)
    stream.run(2.0)
    before = len(stream.listings)
    split_at_half(stream)
    for number in range(6):
        stream.put(b"%d" % number, hash_key=number)
        stream.put(b"%d" % number, hash_key=HALF + number)
        stream.flush()
        stream.run(0.2)
    stream.run(10.0)
    assert all(stream.delivered())
    assert len(stream.listings) - before == 1


NO_NEWS = {
    "denied": lambda _: Failure(FailureKind.DENIED, "AccessDeniedException", "why", 400),
    "fails": lambda _: Failure(FailureKind.TRANSIENT, "InternalFailure", "why", 500),
    "stale": lambda stale: stale,
    "never answered": lambda _: None,
}


@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("kind", NO_NEWS)
def test_p4_while_no_newer_map_can_be_had_every_record_is_delivered_and_stored_three_times_at_most(kind, ordered):
    stream = Stream(shard("a", 0, HALF - 1), shard("b", HALF), latency=0.02, ordered=ordered, record_ttl=5.0)
    stream.run(1.0)
    stale = stream.listing()
    stream.shards = [shard("c", 0, HALF // 2 - 1), shard("d", HALF // 2, HALF - 1), shard("b", HALF)]
    stream.listing = lambda: NO_NEWS[kind](stale)
    for number in range(2_000):
        stream.put(b"%d" % number, f"key {number % 7}", number % 7 * (HASH_KEY_MAX // 7))
        stream.run(0.005)
    stream.run(10.0)
    assert all(stream.delivered())
    assert max(Counter(stream.stored()).values()) <= 3
    assert len(stream.stored()) <= 2_250, "only what was under way when the shard was split is stored again"
    assert len(stream.listings) <= 12, "ListShards is asked for after growing pauses"
    if ordered:
        for key in {record.key for record in stream.records}:
            receipts = [record.conclusion for record in stream.records if record.key == key]
            places = [(int(receipt.sequence_number), receipt.sub_sequence) for receipt in receipts]
            assert places == sorted(places), "P9"
    if kind == "never answered":
        return
    stream.listing = lambda: ListShardsResponse(stream.shards)
    while stream.machine._router.lanes[0].shard_id != "c":
        stream.put(hash_key=1)
        stream.run(1.0)
        assert stream.now < 300.0, "it is not read again"
    before = len(stream.sent())
    for number in range(100):
        stream.put(b"%d" % number, hash_key=number)
    stream.run(1.0)
    assert len(stream.sent()) - before == 1  # they share an entry again


def test_p4_failures_between_the_wrong_landings_do_not_make_a_fourth_copy():
    """Regression: landings that were no longer among the kept attempts were not counted, so more copies were stored."""
    stream = Stream(shard("a", 0, HALF - 1), shard("b", HALF), retry_backoff=0.01, retry_backoff_max=0.02)
    stream.run(1.0)
    stale = stream.listing()
    stream.shards = [shard("c", 0, HALF // 2 - 1), shard("d", HALF // 2, HALF - 1), shard("b", HALF)]
    stream.listing = lambda: stale
    requests = iter(range(1, 1_000))
    failure = Failure(FailureKind.TRANSIENT, "ConnectError", "why", maybe_received=False)
    stream.fail = lambda _: failure if next(requests) % 12 else None  # eleven failures before each landing
    record = stream.record(b"1", "k", "1", headers={"trace": "1"})  # with headers, it is an aggregate even if alone
    stream.records.append(record)
    stream.accept(record)
    stream.pump()
    stream.run(30.0)
    assert stream.delivered() == [True]
    assert record.conclusion.attempt_count == len(stream.requests)
    assert len(stream.requests) == 3 * 12, "it is stored three times, and not again"


def test_a_shard_with_an_ending_sequence_number_is_not_open():
    """kinesalite lists closed shards, whatever the filter."""
    stream = Stream(shard("a", 0, HALF - 1), shard("b", HALF))
    stream.run(1.0)
    closed = ShardShape("a", HashKeyRangeShape("0", str(HALF - 1)), SequenceNumberRangeShape("0", "7"))
    stream.shards = [shard("c", 0, HALF // 2 - 1), shard("d", HALF // 2, HALF - 1), shard("b", HALF)]
    stream.listing = lambda: ListShardsResponse([closed, *stream.shards])
    for place in (1, HALF // 2):
        stream.put(hash_key=place)
    stream.run(1.0)
    assert all(stream.delivered())
    assert [lane.shard_id for lane in stream.machine._router.lanes] == ["c", "d", "b"]


def test_p4_an_answer_that_names_an_unknown_shard_costs_no_record():
    """The service names a shard that no listing has, for a while; then it is healthy."""
    stream = Stream(latency=0.02, record_ttl=5.0)
    stream.run(1.0)
    truth, healthy_at = stream.shard_of, stream.now + 3.0
    stream.shard_of = lambda place: truth(place) if stream.now >= healthy_at else "nobody knows it"
    for number in range(1_000):
        stream.put(b"%d" % number, f"key {number % 7}")
        stream.run(0.01)
    stream.run(5.0)
    assert all(stream.delivered())
    assert max(Counter(stream.stored()).values()) <= 3
    before = len(stream.sent())
    for number in range(100):
        stream.put(b"%d" % number)
    stream.run(1.0)
    assert len(stream.sent()) - before == 1  # they share an entry again


def split_unseen(**config):
    """Return a stream whose listing does not show a split."""
    stream = Stream(latency=0.02, **config)
    stream.run(1.0)
    stale = stream.listing()
    stream.listing = lambda: stale
    return stream


def test_p4_answers_from_before_a_split_restore_no_trust():
    stream = split_unseen()
    truth, odd = stream.shard_of, ["nobody knows it"]
    stream.shard_of = lambda place: odd.pop() if odd else truth(place)
    stream.put(b"0", hash_key=1)  # from here on the records go one per entry
    stream.run(1.0)
    stream.latency = 0.5
    for number in range(1, 101):  # these land where they should, and are answered late
        stream.put(b"%d" % number, hash_key=number)
    stream.flush()
    stream.run(0.01)
    split_at_half(stream)
    stream.latency = 0.02
    stream.put(b"101", hash_key=HALF)
    stream.flush()
    stream.run(1.0)
    for number in range(102, 202):
        stream.put(b"%d" % number, hash_key=number % 2 * HALF)
    stream.run()
    assert all(stream.delivered())
    assert set(Counter(stream.stored()).values()) == {1}


def test_p4_what_is_refused_after_a_split_goes_one_per_entry():
    stream = split_unseen()
    split_at_half(stream)
    for number in range(4):
        stream.put(b"%d" % number, hash_key=number % 2 * HALF)
    stream.flush()
    stream.refuse = lambda *_: THROTTLED
    for number in range(4, 8):
        stream.put(b"%d" % number, hash_key=number % 2 * HALF)
    stream.flush()
    stream.refuse = lambda *_: None
    stream.run()
    assert all(stream.delivered())
    counts = Counter(stream.stored())
    assert [counts[number] for number in range(8)] == [2] * 8  # once together, once alone


def test_p4_if_every_map_is_wrong_a_record_is_stored_three_times_and_then_delivered():
    stream = Stream(latency=0.02)
    names = iter(range(10_000))
    stream.listing = lambda: ListShardsResponse([shard(f"listed {next(names)}")])
    stream.shard_of = lambda _: f"nobody knows {next(names)}"
    for number in range(2):
        stream.put(b"%d" % number, f"key {number}")
    stream.run(20.0)
    assert all(stream.delivered())
    assert Counter(stream.stored()) == {0: 3, 1: 3}


def life_of(second):
    """Return the first sequence number of a shard that was created at a time, in AWS's layout."""
    return (2 << 184) | (second << 148) | 2


def born(shard_id, second, start=0, end=HASH_KEY_MAX):
    numbers = SequenceNumberRangeShape(str(life_of(second)))
    return ShardShape(shard_id, HashKeyRangeShape(str(start), str(end)), numbers)


def two_lives(**config):
    """Return a stream of one shard whose next life has two. The first of these has the id of the old shard."""
    stream = Stream(born("a", 1_700_000_000), latency=0.02, **config)
    stream.life = life_of(1_700_000_000)
    stream.run(1.0)
    stream.put(b"0", hash_key=1)
    stream.run(1.0)
    assert stream.records[0].conclusion.delivered
    return stream


def recreate(stream, *, with_numbers=True):
    second = 1_700_000_060 if with_numbers else 1_700_000_000
    stream.life = life_of(second)
    stream.shards = [born("a", second, 0, HALF - 1), born("b", second, HALF)]
    stream.created_at = 2.0


def misplaced(stream, since):
    """Return the data of records that have a receipt, although a KCL reader drops their entry."""
    dropped = set()
    for entry in stream.sent(since):
        inner = split_aggregate(entry.data)
        held = {place_of(one) < HALF for one in inner or ()}
        if len(held) > 1:
            dropped |= {int(one.data) for one in inner}
    counts = Counter(stream.stored())
    return {number for number in dropped if stream.records[number].conclusion.delivered and counts[number] == 1}


@pytest.mark.parametrize("ordered", [False, True])
def test_a_stream_that_was_recreated_unseen_is_recognised_by_its_sequence_numbers(ordered):
    stream = two_lives(ordered=ordered)
    recreate(stream)
    since = stream.now
    for number in range(1, 400):
        stream.put(b"%d" % number, f"key {number % 7}", (number + 1) % 7 % 2 * HALF)  # the first of them is in "a"
        stream.run(0.002)
    stream.run(5.0)
    assert all(stream.delivered())
    assert misplaced(stream, since) == set()
    assert [lane.shard_id for lane in stream.machine._router.lanes] == ["a", "b"]
    assert max(Counter(stream.stored()).values()) <= 3


def test_after_the_stream_was_missing_neither_map_nor_facts_are_used_until_both_were_read():
    stream = two_lives()
    missing = Failure(FailureKind.NOT_FOUND, "ResourceNotFoundException", "why", 400)
    stream.fail = lambda _: missing
    stream.listing = lambda: missing
    stream.put(b"1", hash_key=1)
    stream.flush()
    stream.run(1.0)
    assert stream.records[1].conclusion.code == "ResourceNotFoundException"
    assert not stream.machine._router.lanes
    recreate(stream, with_numbers=False)
    stream.fail = lambda _: None
    since = stream.now
    for number in range(2, 100):
        stream.put(b"%d" % number, hash_key=number % 2 * HALF)
    stream.flush()
    stream.run(0.5)
    assert all(split_aggregate(entry.data) is None for entry in stream.sent(since))  # one per entry
    stream.listing = lambda: ListShardsResponse(stream.shards)
    stream.run(60.0)
    for number in range(100, 200):
        stream.put(b"%d" % number, hash_key=number % 2 * HALF)
    stream.run(5.0)
    assert stream.delivered() == [True, False] + [True] * 198
    assert misplaced(stream, since) == set()
    assert len(stream.sent()[-1].data) > 100  # they share entries again


def test_p9_what_comes_back_while_a_missing_stream_is_read_again_waits_for_the_map():
    stream = Stream(shard("a", 0, HALF - 1), shard("b", HALF, HASH_KEY_MAX), linger=0.1, ordered=True)
    stream.run(1.0)
    stream.refuse = lambda *_: "ProvisionedThroughputExceededException"
    stream.latency = 0.5
    stream.put(b"1", hash_key=1)
    stream.flush()
    stream.latency = 0.01
    missing = Failure(FailureKind.NOT_FOUND, "ResourceNotFoundException", "why", 400)
    fail_listings(stream, "InternalFailure")
    stream.fail = lambda _: missing
    stream.put(b"2", hash_key=HALF)
    stream.flush()
    stream.run(0.1)
    assert not stream.machine._router.lanes
    stream.fail, stream.refuse = lambda _: None, lambda *_: None
    since = stream.now
    stream.run(5.0)
    assert stream.sent(since) == []
    stream.listing = lambda: ListShardsResponse(stream.shards)
    stream.run(60.0)
    assert stream.delivered() == [True, False]


def test_a_stream_that_is_being_deleted_tells_nothing_of_the_next():
    stream = two_lives()
    missing = Failure(FailureKind.NOT_FOUND, "ResourceNotFoundException", "why", 400)
    stream.fail = lambda _: missing
    stream.status = "DELETING"  # the old shards are still listed
    stream.put(b"1", hash_key=1)
    stream.flush()
    stream.run(1.0)
    stream.fail = lambda _: None
    recreate(stream, with_numbers=False)
    since = stream.now
    for number in range(2, 100):
        stream.put(b"%d" % number, hash_key=number % 2 * HALF)
        stream.run(0.01)
    assert all(split_aggregate(entry.data) is None for entry in stream.sent(since))
    stream.status = "ACTIVE"
    stream.run(60.0)
    assert misplaced(stream, since) == set()
    assert [lane.shard_id for lane in stream.machine._router.lanes] == ["a", "b"]


def test_where_numbers_are_laid_out_otherwise_they_are_not_asked_again_and_again():
    stream = Stream(born("a", 1_700_000_000), latency=0.02)
    stream.life = life_of(1_800_000_000)  # not the second in which the shard was created
    stream.run(1.0)
    for number in range(200):
        stream.put(b"%d" % number, hash_key=number)
        stream.run(0.02)
    stream.run(5.0)
    assert all(stream.delivered())
    assert len(stream.listings) <= 4
    assert len(stream.sent()) < 100


def test_a_page_token_that_is_refused_is_no_reason_to_give_up_records():
    """The token belongs to a stream that was re-created since, or is too old."""
    stream = Stream(ordered=True)
    pages = [
        ListShardsResponse([shard("a", 0, HALF - 1)], "token"),
        Failure(FailureKind.INVALID, "InvalidArgument", ""),
    ]
    stream.machine = ProducerMachine(StreamRef("s"), stream.config, Random(0), stream.now)
    stream.answers, stream.listing = [], lambda: pages.pop(0) if pages else ListShardsResponse(stream.shards)
    stream.put()
    stream.run(10.0)
    assert all(stream.delivered())


def test_p1_what_waits_for_a_map_ends_with_the_producer():
    stream = split_unseen()
    stream.listing = lambda: None
    split_at_half(stream)
    records = [stream.put(b"1", hash_key=1), stream.put(b"2", hash_key=HALF)]
    stream.run(0.5)
    assert [record.conclusion for record in records] == [None, None]
    stream.machine.abandon("Closed", "the producer was closed")
    assert [record.conclusion.code for record in records] == ["Closed", "Closed"]


def test_a_stale_map_is_read_again_though_nothing_else_is_sent():
    """The listing was requested after the entry was sent, but is older than the split: only another listing can explain
    it.
    """
    stream = Stream(shard("a"), latency=0.01)
    stream.run(1.0)
    stream.latency = 0.5
    stream.put(b"1", hash_key=1)
    stream.put(b"2", hash_key=HALF)
    stream.flush()
    stream.latency = 0.01
    stream.machine._map.invalidate(stream.now + 0.1, "a", stream.now)
    stream.run(0.2)
    assert len(stream.listings) == 2
    (when, handle, _), stream.answers = stream.answers[0], []
    stream.answers.append((when, handle, PutRecordsResponse([PutRecordsResult("1", "b")])))
    split_at_half(stream)
    stream.run(0.6)
    assert not any(stream.delivered())  # parked: the map is about to be read again
    stream.run(5.0)
    assert all(stream.delivered())
    assert [lane.shard_id for lane in stream.machine._router.lanes] == ["b", "c"]
    assert len(stream.listings) == 3


def test_a_map_that_was_asked_for_before_the_split_is_no_answer_to_it():
    """The listing is slow: it was made before the split, and arrives after the first record has landed in a child."""
    stream = Stream(shard("a"), latency=0.01)
    stream.run(1.0)
    split_at_half(stream)
    stream.put(b"1", hash_key=1)
    stream.put(b"2", hash_key=HALF)
    stale = [stream.shards, [shard("a")]]
    stream.listing = lambda: ListShardsResponse(stale.pop() if stale else stream.shards)
    stream.run(30.0)
    assert all(stream.delivered())
    lanes = {lane.shard_id for lane in stream.machine._router.lanes}
    assert lanes == {"b", "c"}


def test_p4_an_aggregate_whose_records_lie_on_the_edges_of_its_new_shard_is_delivered_where_it_is():
    stream = Stream(shard("a"))
    stream.run(1.0)
    split_at_half(stream)
    stream.put(b"first", hash_key=0)
    stream.put(b"last", hash_key=HALF - 1)
    stream.run(20.0)
    assert all(stream.delivered())
    assert len(stream.sent()) == 1, "it was not sent again: both lie in the new shard"


def test_p4_an_aggregate_of_which_one_record_lies_elsewhere_is_sent_again_whole():
    stream = Stream(shard("a"))
    stream.run(1.0)
    split_at_half(stream)
    stream.put(b"in", hash_key=0)
    stream.put(b"out", hash_key=HALF)
    stream.run(20.0)
    assert all(stream.delivered())
    places = [record.conclusion.shard_id for record in stream.records]
    assert places == ["b", "c"]


def test_in_a_recreated_stream_nothing_is_sent_repeatedly_by_the_old_map():
    """Its shards have the old names and other ranges, and its map cannot be read for a while."""
    stream = Stream(shard("a", 0, HALF - 1), shard("b", HALF))
    stream.run(1.0)
    stream.shards, stream.created_at = [shard("b", 0, HALF - 1), shard("a", HALF)], 2.0
    readable = stream.listing
    stream.listing = lambda: Failure(FailureKind.TRANSIENT, "InternalFailure", "why", 500)
    stream.put(b"1", hash_key=1)
    stream.put(b"2", hash_key=HALF - 1)
    stream.run(5.0)
    assert all(stream.delivered())
    assert len(stream.sent()) == 3, "together, by the old map; then each by itself, without one"
    stream.listing = readable
    stream.run(40.0)
    assert [lane.shard_id for lane in stream.machine._router.lanes] == ["b", "a"]


# ---- rates


def throttle_once(stream, entries):
    """Send a burst of entries for one shard, which are all refused once."""
    refused = [entries]

    def refuse(entry, shard_id):
        refused[0] -= 1
        return THROTTLED if refused[0] >= 0 else None

    stream.refuse = refuse
    for number in range(entries):
        stream.put(b"%d" % number, key=f"k{number}")
    stream.flush()


def test_p5_one_burst_of_throttling_is_one_signal_and_is_forgotten():
    stream = Stream(shard("a"), aggregation=False)
    stream.run(1.0)
    throttle_once(stream, 40)
    stream.run(0.02)
    (lane,) = stream.machine._router.lanes
    assert lane.share == pytest.approx(0.7)
    assert lane._backoff.failures == 1
    stream.run(5.0)
    assert all(stream.delivered())
    for number in range(30):
        stream.put(b"later %d" % number)
        stream.run(1.0)
    assert lane.share == 1.0


def test_p5_a_shard_that_is_throttled_again_and_again_is_written_ever_more_slowly():
    stream = Stream(shard("a"), aggregation=False, record_ttl=60.0, records_per_second=100.0)
    stream.run(1.0)
    stream.refuse = lambda *_: THROTTLED
    for number in range(50):
        stream.put(b"%d" % number)
    stream.run(10.0)
    (lane,) = stream.machine._router.lanes
    assert lane.share < 0.2
    assert len(stream.sent(since=stream.now - 5.0)) < 50


def test_throttling_gives_no_tokens_back():
    """A bucket that was emptied is not filled by a change of its rate."""
    stream = Stream(shard("a"), aggregation=False, records_per_second=10.0, record_ttl=60.0)
    stream.run(1.0)
    refused = set()

    def refuse(entry, shard_id):
        first = entry.data not in refused
        refused.add(entry.data)
        return THROTTLED if first else None

    stream.refuse = refuse
    for number in range(40):
        stream.put(b"%d" % number)
    stream.flush()
    began = stream.now
    stream.run(3.0)
    assert len(stream.sent(since=began)) <= 10 + 3 * 10 + 1


def test_to_look_whether_a_record_may_go_costs_no_tokens():
    """A shell may poll as often as it likes."""
    stream = Stream(shard("a"), aggregation=False, records_per_second=10.0, record_ttl=60.0)
    stream.run(1.0)
    for number in range(60):
        stream.put(b"%d" % number)
    stream.flush()
    for _ in range(300):
        stream.run(0.01)
        stream.pump()
    assert 35 <= len(stream.sent()) <= 41


def test_p6_what_is_cut_to_the_room_of_a_request_does_not_go_on_credit():
    """If there are more records at once than a second allows, the service refuses some."""
    halves = shard("a", 0, HALF - 1), shard("b", HALF)
    stream = Stream(*halves, aggregation=False, records_per_second=2.0, request_max_entries=5, record_ttl=60.0)
    stream.run(1.0)
    for place in (0, 0, HALF, HALF, HALF, HALF):
        stream.put(hash_key=place)
    stream.flush()
    crowded = [entry for entry in stream.sent() if place_of(entry) == HALF]
    assert len(crowded) == 2
    stream.run(5.0)
    assert stream.delivered() == [True] * 6


def test_p8_keyless_records_avoid_the_shard_that_is_in_trouble():
    stream = Stream(shard("a", 0, HALF - 1), shard("b", HALF), aggregate_max_count=2, record_ttl=60.0)
    stream.run(1.0)
    stream.refuse = lambda _, shard_id: THROTTLED if shard_id == "a" else None
    for number in range(60):
        stream.put(b"%d" % number, key=None)
        stream.run(0.05)
    stream.run(3.0)
    assert all(stream.delivered())
    assert {record.conclusion.shard_id for record in stream.records} == {"b"}
    tried = [stream.shard_of(place_of(entry)) for entry in stream.sent()]
    assert tried.count("a") < 10


def test_p8_keyless_records_share_the_load_of_healthy_shards():
    stream = Stream(shard("a", 0, HALF - 1), shard("b", HALF), aggregate_max_count=2, latency=1.0)
    stream.run(3.0)
    for number in range(40):
        stream.put(b"%d" % number, key=None)
    stream.run(10.0)
    used = [record.conclusion.shard_id for record in stream.records]
    assert 10 <= used.count("a") <= 30


# ---- time


def test_what_is_sent_again_does_not_wait_for_company():
    stream = Stream(shard("a"), linger=5.0, record_ttl=60.0)
    stream.run(1.0)
    stream.refuse = lambda *_: "InternalFailure" if len(stream.requests) == 1 else None
    stream.put()
    stream.flush()
    stream.run(1.0)
    assert stream.delivered() == [True], "the pause is 0.1 s, the linger 5 s"


def test_what_a_flush_found_without_a_map_or_in_a_lane_that_vanishes_does_not_linger_again():
    stream = Stream(shard("a"), linger=30.0, record_ttl=300.0, latency=0.3)
    stream.put(b"before the first map")
    stream.flush()
    stream.run(3.0)
    assert all(stream.delivered())
    split_at_half(stream)
    stream.put(b"one", hash_key=1)
    stream.put(b"two", hash_key=HALF)
    stream.flush()
    stream.run(0.1)
    stream.put(b"three", hash_key=2)
    stream.flush()
    stream.run(5.0)
    assert all(stream.delivered())


def test_p2_what_was_put_before_the_first_map_is_aggregated_when_the_map_comes():
    stream = Stream(shard("a"), latency=0.05)
    for number in range(10):
        stream.put(b"%d" % number)
    stream.run(5.0)
    assert all(stream.delivered())
    assert len(stream.sent()) == 1
    assert len(split_aggregate(stream.sent()[0].data)) == 10


def test_what_fills_several_requests_goes_in_as_many_at_once():
    stream = Stream(latency=1.0, linger=20.0, aggregate_max_count=1, request_max_entries=2)
    stream.run(5.0)
    records = [BufferedRecord(b"%d" % number, "k", None, stream.now + 30.0) for number in range(10)]
    assert stream.accept_many(records) is Put.WAKE
    stream.pump()
    assert [len(entries) for _, entries in stream.requests] == [2] * 5


def test_what_is_put_after_all_was_delivered_expires_in_its_time():
    stream = Stream(linger=0.5, record_ttl=2.0, records_per_second=0.01, request_max_entries=1, aggregate_max_count=1)
    stream.run(0.1)
    stream.put(b"x" * 20_000)  # fills a request: it is gone before it has lingered
    stream.run(0.05)
    waiting = [stream.put(key=f"k{number}") for number in range(3)]  # the shard takes one in a hundred seconds
    stream.run(10.0)
    assert [record.conclusion.code for record in waiting] == ["Expired"] * 3


def test_invalid_records_are_reported_once_and_take_no_room():
    stream = Stream()
    stream.run(0.5)
    invalid = BufferedRecord(17, None, None, 0.0, Undelivered("InvalidRecord", "not bytes"))
    stream.intake.invalid.append(invalid)
    assert stream.machine.poll_put(stream.now) is None  # the putter wakes the host
    assert [*stream.machine.ledger.failed] == [invalid]
    assert (stream.machine.stats(stream.now).failed_records, stream.intake.outstanding) == (1, 0)


@pytest.mark.parametrize("ordered", [False, True])
def test_a_keyless_record_lingers_no_longer_than_it_may_beside_a_younger_one_with_a_key(ordered):
    stream = Stream(linger=1.0, record_ttl=5.0, ordered=ordered)
    stream.run(0.5)
    since = stream.now
    stream.put(b"old", key=None)
    stream.run(0.9)
    stream.put(b"young", key="k")
    stream.run(5.0)
    assert [when - since for when, _ in stream.requests] == [pytest.approx(1.0)]


def test_p9_a_keyless_record_lets_no_aggregate_overtake_another_of_its_lane():
    stream = Stream(linger=1.0, ordered=True, aggregate_max_count=2)
    stream.run(0.5)
    stream.put(b"old", key=None)
    stream.run(0.5)
    for number in range(5):
        stream.put(b"%d" % number)
    stream.run(10.0)
    sent = [one for entry in stream.sent() for one in split_aggregate(entry.data) or [entry]]
    assert [one.data for one in sent if one.data != b"old"] == [b"%d" % number for number in range(5)]


def test_the_round_under_way_shrinks_with_the_limit_of_a_record():
    """The shell accepts records that fit the intake's limit, so this limit must not exceed the stream's."""
    stream = Stream(*many_shards("s", 600), latency=0.0)
    listing, summary = sorted(stream.answers, key=lambda one: one[1] == stream.machine.handle_summary)
    listing[1](listing[2], stream.now)
    stream.put()
    summary[1](summary[2], stream.now)
    assert stream.intake.quiet_bytes - stream.intake.reserved_bytes <= stream.intake.plain_max_bytes
    stream.pump()
    assert 0 < stream.intake.quiet_bytes - stream.intake.reserved_bytes <= stream.intake.plain_max_bytes


def test_the_round_under_way_shrinks_when_lanes_vanish():
    stream = Stream(*many_shards("s", 100), linger=5.0)
    stream.run(1.0)
    stream.put()
    assert stream.intake.quiet_records == 6_399
    stream.distribution = "AUTO"
    stream.machine._facts.query_again(stream.now)
    stream.run(1.0)
    stream.put()
    assert stream.intake.quiet_records < 1_000


def test_a_look_at_the_stats_changes_nothing():
    stream = Stream(linger=5.0)
    stream.run(1.0)
    for number in range(7):
        stream.put(key=f"k{number}")
    stats, before = stream.machine.stats(stream.now + 0.5), list(stream.machine.intake.records)
    assert (stats.outstanding, stats.oldest_waiting) == (7, pytest.approx(0.5))
    assert stream.machine.intake.records == before
    assert before


def many_shards(name, count):
    edges = [HASH_KEY_COUNT * place // count for place in range(count + 1)]
    return [shard(f"{name}-{place}", edges[place], edges[place + 1] - 1) for place in range(count)]


def test_p2_on_a_large_stream_every_record_finds_its_shard_at_once_also_after_a_reshard():
    stream = Stream(linger=1.0)
    for name, count in (("old", 601), ("new", 773)):
        stream.shards = many_shards(name, count)
        stream.put(key=name)
        stream.run(10.0)  # it learns of the shards
        since, retried = stream.now, stream.machine.stats(stream.now).retried_records
        for number in range(1_600):
            stream.put(key=f"{name}-{number}")
        stream.run(10.0)
        assert all(stream.delivered())
        assert stream.machine.stats(stream.now).retried_records == retried
        carried = [split_aggregate(entry.data) or [entry] for entry in stream.sent(since)]
        assert sum(map(len, carried)) == 1_600
        assert len(carried) < count  # they share entries


def test_when_keys_count_again_records_are_aggregated_again():
    stream = Stream(shard("a"), latency=0.01)
    stream.distribution = "AUTO"
    stream.answers = []
    stream.machine = ProducerMachine(StreamRef("s"), stream.config, Random(0), stream.now)
    stream.pump()
    stream.run(5.0)
    stream.put(b"1")
    stream.put(b"2")
    stream.run(5.0)
    assert len(stream.sent()) == 2
    stream.distribution = None
    stream.run(70.0)
    before = len(stream.sent())
    stream.put(b"3")
    stream.put(b"4")
    stream.run(5.0)
    assert all(stream.delivered())
    assert len(stream.sent()) == before + 1


def test_a_record_that_comes_back_beside_a_newer_one_keeps_its_end_of_life():
    lane = Lane("a", WHOLE_RING, ProducerConfig(), Random(0), 0.0)
    lane.add(BufferedRecord(b"new", "k", None, 50.0))
    lane.add_again(BufferedRecord(b"old", "k", None, 40.0))
    assert lane.expires_at() == pytest.approx(40.0)


def test_p9_without_aggregation_the_keys_of_a_shard_do_not_wait_for_each_other():
    keys, each, latency = 50, 20, 0.1
    stream = Stream(latency=latency, ordered=True, aggregation=False)
    stream.run(1.0)
    began = stream.now
    for number in range(keys * each):
        stream.put(b"%d" % number, f"key {number % keys}")
    stream.run()
    assert all(stream.delivered())
    assert stream.now - began <= (each + 2) * latency + stream.config.linger  # one round trip for a record of each key
    for name in (f"key {number}" for number in range(keys)):
        sent = [int(entry.data) for entry in stream.sent() if entry.key == name]
        assert sent == sorted(sent)
        assert all([entry.key for entry in entries].count(name) <= 1 for _, entries in stream.requests)


def test_p9_without_aggregation_a_refused_record_is_not_overtaken_by_its_key():
    refusals = {b"a1": 3, b"b2": 2}
    stream = Stream(ordered=True, aggregation=False)

    def refuse(entry, _):
        refusals[entry.data] = refusals.get(entry.data, 0) - 1
        return "InternalFailure" if refusals[entry.data] >= 0 else None

    stream.refuse = refuse
    for name in ("a1", "a2", "b1", "b2", "a3", "b3", "c1"):
        stream.put(name.encode(), name[0])
    stream.run()
    assert all(stream.delivered())
    for key in "abc":
        numbers = [int(one.conclusion.sequence_number) for one in stream.records if one.key == key]
        assert numbers == sorted(numbers)


def test_p9_without_aggregation_a_key_goes_on_when_a_record_of_it_expires_or_fails():
    stream = Stream(ordered=True, aggregation=False, record_ttl=2.0, retry_backoff=0.5, retry_backoff_max=0.5)
    stream.refuse = lambda entry, _: {b"a1": "InternalFailure", b"b1": "KMSDisabledException"}.get(entry.data)
    for name in ("a1", "b1", "a2", "b2"):
        stream.put(name.encode(), name[0])
    stream.run(1.0)
    third = stream.put(b"a3", "a")
    stream.run()
    assert stream.delivered() == [False, False, False, True, True]
    assert stream.records[2].conclusion.code == "Expired"
    assert third.conclusion.delivered


def test_p9_a_lane_that_had_to_wait_for_its_parent_goes_on_by_itself():
    stream = Stream(shard("a"), ordered=True, linger=0.0, latency=0.5, record_ttl=60.0)
    stream.run(2.0)
    stream.put(b"1", hash_key=1)
    split_at_half(stream)
    stream.put(b"2", hash_key=2)
    stream.put(b"3", hash_key=HALF)
    stream.run(30.0)
    assert all(stream.delivered())


@pytest.mark.parametrize("count", [2, 3, 5])
def test_p9_a_record_without_a_key_that_comes_back_lets_nothing_overtake(count):
    """The record joined the open aggregate, which then became due as early as the record, and went before aggregates
    that had been sealed earlier. Only records of the same moment, for example of one ``put_many``, may change their
    order: they are due at the same time.
    """
    stream = Stream(ordered=True, aggregate_max_count=count, max_in_flight=1)
    stream.run(1.0)
    refused = [THROTTLED]
    stream.refuse = lambda *_: refused.pop() if refused else None
    keyless = stream.put(b"keyless", None)
    stream.flush()
    put = [stream.put(b"%d" % number, "k") for number in range(2 * count + 1)]
    stream.run(5.0)
    assert keyless.conclusion.attempt_count == 2
    places = [(int(one.conclusion.sequence_number), one.conclusion.sub_sequence) for one in put]
    assert places == sorted(places)


def test_p9_a_record_without_a_key_that_comes_back_takes_none_with_a_key_along():
    """The record shared an aggregate with a record that was put later than those in flight, and was due before them."""
    stream = Stream(ordered=True, aggregate_max_count=2, max_in_flight=4, latency=0.05)
    stream.run(1.0)
    stream.refuse = lambda *_: THROTTLED if len(stream.requests) <= 2 else None
    keyless = stream.put(b"keyless", None)
    stream.flush()  # refused, later
    stream.run(0.01)
    put = [stream.put(b"%d" % number, "k") for number in range(5)]
    stream.run(5.0)
    assert keyless.conclusion.delivered
    places = [(int(one.conclusion.sequence_number), one.conclusion.sub_sequence) for one in put]
    assert places == sorted(places)


@pytest.mark.parametrize("together", [True, False])
def test_p9_a_lane_that_is_trusted_again_lets_nothing_overtake_a_refused_record(together):
    """When the lane is trusted again, a refused record is still in flight: in the request that was just answered, or in
    another one. The lane then packs the waiting records, among which is a later record of the same key.
    """
    stream = Stream(ordered=True, latency=0.2)
    stream.run(1.0)
    lane = stream.machine._router.lanes[0]
    stream.machine._retries.distrust(lane, stream.now, stream.now)
    refusals = {b"older 1": together, b"newer 1": together + 1}

    def refuse(entry, _):
        refusals[entry.data] = refusals.get(entry.data, 0) - 1
        return THROTTLED if refusals[entry.data] >= 0 else None

    stream.refuse = refuse
    for key in ("older", "newer"):
        stream.put(f"{key} 1".encode(), key)
        stream.put(f"{key} 2".encode(), key)
        stream.flush()
        stream.run(0.05)
    if together:
        sent = len(stream.requests)
        while len(stream.requests) == sent:  # until both are sent again
            stream.run(0.01)
        assert [entry.data for entry in stream.requests[-1][1]] == [b"older 1", b"newer 1"]
    lane.note_as_predicted(TRUST, stream.now)
    stream.run()
    assert lane.aggregates
    for key in ("older", "newer"):
        records = [record for record in stream.records if record.key == key]
        places = [(int(one.conclusion.sequence_number), one.conclusion.sub_sequence) for one in records]
        assert places == sorted(places)
