"""Which records of a refused request are to blame?"""

from math import log2
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardline.core.clock import NEVER
from shardline.core.error_codes import Failure, FailureKind
from shardline.core.producer.aggregate import Aggregate, KeylessAddress
from shardline.core.producer.isolation import Isolation, is_about_size, named_entries
from shardline.core.producer.lane import Lane, Shipment
from shardline.core.producer.producer_config import ProducerConfig
from shardline.core.producer.producer_record import BufferedRecord

ALL_AT_ONCE = 10_000


class Bench:
    """A service that refuses every request with an invalid record, and an isolation that finds these records."""

    def __init__(self, *, names=None, **settings):
        self.config = ProducerConfig(**{"max_in_flight": 4, "isolation_calls_per_second": 10_000} | settings)
        self.isolation = Isolation(self.config)
        self.lanes = [Lane(name, None, self.config, Random(1), 0.0) for name in "ab"]
        self.names = names or (lambda _places: [])
        self.now = 0.0
        self.made = 0
        self.calls = 0
        self.stored, self.failed = [], []
        self.bad = set()

    def shipment(self, records, *, together=False, lane=0, keys=None, expires_at=30.0):
        """Return numbered records, in one entry or in one each."""
        aggregate = Aggregate(0.0, KeylessAddress(None, None), separate=not together)
        for place in range(records):
            key = f"key {self.made}" if keys is None else keys[place % len(keys)]
            aggregate.add(BufferedRecord(b"%d" % self.made, key, None, expires_at), 1 << 30)
            self.made += 1
        aggregate.order = self.made
        aggregate.seal()
        self.lanes[lane].in_flight += 1
        return Shipment(aggregate, self.lanes[lane])

    def refuse(self, *shipments, part=None):
        self.isolation.handle_refused(list(shipments), part, self._failure(shipments))

    def _failure(self, shipments):
        entries = [
            numbers
            for aggregate, _ in shipments
            for numbers in (
                [[int(one.data)] for one in aggregate.records]
                if aggregate.separate
                else [[int(one.data) for one in aggregate.records]]
            )
        ]
        guilty = [place for place, numbers in enumerate(entries) if self.bad & set(numbers)]
        told = "; ".join(f"Value '' at 'records.{place + 1}.member.data' failed" for place in self.names(guilty))
        return Failure(FailureKind.INVALID, "ValidationException", told or "no", 400)

    def send(self):
        part = self.isolation.poll_part(self.now)
        self.calls += part is not None
        return part

    def answer(self, part):
        """Answer depending on whether the part has an invalid record."""
        numbers = numbers_of(part)
        if not self.bad & set(numbers):
            self.isolation.handle_stored(part)
            self.stored += numbers
        elif len(numbers) > 1:
            self.refuse(*part.shipments, part=part)
            return
        else:
            self.isolation.handle_found(part, self._failure(part.shipments))
            self.failed += numbers
        for shipment in part.shipments:
            shipment.lane.in_flight -= 1

    def run(self, newest_first=False):
        """Send and answer, as many at a time as may be in flight, until nothing is left."""
        flying = []
        while True:
            part = self.send()
            if part is not None:
                flying.append(part)
                continue
            if not flying:
                break
            self.answer(flying.pop(-1 if newest_first else 0))
        assert self.isolation.shipments() == []
        assert self.isolation.next_deadline() == NEVER
        assert [lane.in_flight for lane in self.lanes] == [0, 0]
        assert set(self.failed) == self.bad
        assert sorted(self.stored + self.failed) == list(range(self.made))
        return self.calls


def numbers_of(part):
    return [int(record.data) for aggregate, _ in part.shipments for record in aggregate.records]


def bundles(bench, records):
    """Return the records of a request, as lanes that do not aggregate hand them out."""
    return [bench.shipment(min(64, records - at), lane=at // 64 % 2) for at in range(0, records, 64)]


SIZES = [*range(2, 70), 99, 100, 127, 128, 129, 200, 255, 256, 257, 400, 499, 500]
IN_FLIGHT = pytest.mark.parametrize("in_flight", [1, 24, ALL_AT_ONCE])


# ---- how many calls


@IN_FLIGHT
@pytest.mark.parametrize("ordered", [False, True])
def test_one_invalid_record_among_n_takes_few_calls_wherever_it_is(in_flight, ordered):
    for records in SIZES if not ordered else SIZES[:80:3]:
        for bad in (
            {0, 1, records // 4, records // 3, records // 2, records - 2, records - 1}
            if records > 40
            else range(records)
        ):
            bench = Bench(max_in_flight=in_flight, ordered=ordered)
            bench.bad = {bad}
            bench.refuse(*bundles(bench, records))
            assert bench.run() <= 2 * log2(records) + 2, (records, bad)


@IN_FLIGHT
def test_one_invalid_entry_among_aggregates_takes_few_calls(in_flight):
    for entries in (2, 3, 4, 7, 16, 33, 100):
        for bad in range(entries):
            bench = Bench(max_in_flight=in_flight)
            bench.refuse(*(bench.shipment(2, together=True) for _ in range(entries)))
            bench.bad = {2 * bad}
            assert bench.run() <= 2 * log2(entries) + 2 + 2, (entries, bad)


@IN_FLIGHT
@pytest.mark.parametrize("names", [None, lambda places: places[:1], lambda places: places[:10], lambda places: places])
def test_if_all_are_invalid_few_calls_are_in_vain(in_flight, names):
    for records in SIZES:
        bench = Bench(max_in_flight=in_flight, names=names)
        bench.bad = set(range(records))
        bench.refuse(*bundles(bench, records))
        assert records <= bench.run() <= 1.1 * records, records


@IN_FLIGHT
def test_if_all_records_of_aggregates_are_invalid_few_calls_are_in_vain(in_flight):
    for entries in (1, 2, 3, 5, 20):
        bench = Bench(max_in_flight=in_flight)
        bench.refuse(*(bench.shipment(50, together=True, lane=number % 2) for number in range(entries)))
        bench.bad = set(range(50 * entries))
        assert bench.run() <= 1.1 * 50 * entries


@given(
    sizes=st.lists(st.tuples(st.integers(1, 60), st.booleans(), st.integers(0, 1)), min_size=1, max_size=6),
    in_flight=st.sampled_from([1, 8, 24, ALL_AT_ONCE]),
    share=st.sampled_from([0.0, 0.01, 0.1, 0.5, 1.0]),
    seed=st.integers(0, 1_000),
    ordered=st.booleans(),
    naming=st.sampled_from(["none", "one", "all", "off by one", "the first entry always"]),
    newest_first=st.booleans(),
)  # fmt: skip
def test_whatever_is_invalid_all_of_it_fails_and_nothing_else(
    sizes, in_flight, share, seed, ordered, naming, newest_first
):
    names = {
        "none": None,
        "one": lambda places: places[:1],
        "all": lambda places: places,
        "off by one": lambda places: [place + 1 for place in places],
        "the first entry always": lambda _places: [0],
    }[naming]
    bench = Bench(max_in_flight=in_flight, ordered=ordered, names=names)
    shipments = [bench.shipment(records, together=together, lane=lane) for records, together, lane in sizes]
    rng = Random(seed)
    bench.bad = {number for number in range(bench.made) if rng.random() < share} | {rng.randrange(bench.made)}
    if bench.made == 1:
        return
    bench.refuse(*shipments)
    calls = bench.run(newest_first)
    assert calls <= 2.2 * bench.made + 10
    if naming == "none":
        entries = sum(shipment.aggregate.entry_count for shipment in shipments)
        within = max(1 if aggregate.separate else len(aggregate.records) for aggregate, _ in shipments)
        assert calls <= len(bench.bad) * (2 * log2(entries) + 2 * log2(within) + 4)


# ---- names


def test_the_named_entry_goes_alone_and_the_others_at_once_in_one_call():
    bench = Bench(names=lambda places: places, max_in_flight=8)
    bench.bad = {3}
    bench.refuse(*bundles(bench, 100))
    others, named = bench.send(), bench.send()
    assert numbers_of(named) == [3]
    assert sorted(numbers_of(others)) == [number for number in range(100) if number != 3]
    bench.answer(others)
    bench.answer(named)
    assert bench.run() == 2


def test_names_that_prove_wrong_are_not_believed_again():
    bench = Bench(names=lambda _places: [0])
    bench.bad = {99}
    bench.refuse(*bundles(bench, 100))
    assert bench.run() <= 2 * log2(100) + 2 + 4


TOO_LARGE = (
    "Value 'java.nio.HeapByteBuffer[pos=0 lim=1048577 cap=1048577]' at 'records.{}.member.data' failed to satisfy "
    "constraint: Member must have length less than or equal to 1048576"
)
"""AWS's wording (docs/tested/differences.md)."""


@pytest.mark.parametrize(
    ("message", "places"),
    [
        ("1 validation error detected: Value '' at 'records.3.member.partitionKey' failed to satisfy constraint: x", [2]),
        ("2 validation errors detected: Value at 'records.1.member.data' failed; Value at 'records.4.member.data' failed", [0, 3]),
        (TOO_LARGE.format(2) + "; " + TOO_LARGE.format(5), [1, 4]),
        ("2 validation errors detected: Value 'at records.3.member' at 'records.1.member.partitionKey' failed to satisfy constraint: x; Value null at 'records.2.member.data' failed to satisfy constraint: x", [0, 1]),
        ("10 validation errors detected: Value '[com.amazonaws.kinesis.v20131202.PutRecordsRequestEntry@c965e310, com.amazonaws.kinesis.v20131202.PutRecordsRequestEntry@c965e310]' at 'records' failed to satisfy constraint: x; Value '' at 'records.4.member.explicitHashKey' failed to satisfy constraint: x", [3]),
        ("Value at 'records.2.member.data' failed; Value at 'records.2.member.partitionKey' failed", [1]),
        ("Value at 'records.0.member.data' failed", []),
        ("Value at 'records.6.member.data' failed", []),
        ("Value at 'records.99999999999999999999.member.data' failed", []),
        ("Value at 'records' failed to satisfy constraint: Member must have length less than or equal to 500", []),
        ("Value at 'streamName' failed", []),
        ("", []),
    ],
)  # fmt: skip
def test_names_are_read_in_the_words_of_aws(message, places):
    assert named_entries(message, 5) == places


@pytest.mark.parametrize(
    ("message", "about"),
    [
        ("Value at 'records.1.member.data' failed to satisfy constraint: Member must have length less than or equal to 1048576", True),
        ("1 validation error detected: " + TOO_LARGE.format(1), True),
        ("Record size exceeds the limit", True),
        ("Value '' at 'records.1.member.partitionKey' failed to satisfy constraint: Member must have length less than or equal to 256", False),
        ("Value null at 'records.1.member.data' failed to satisfy constraint: Member must not be null", False),
        ("no", False),
    ],
)  # fmt: skip
def test_a_refusal_for_size_is_recognised(message, about):
    assert is_about_size(message) is about


# ---- how many at a time, and how fast


@pytest.mark.parametrize(("max_in_flight", "most"), [(1, 1), (3, 1), (4, 1), (8, 2), (24, 6)])
def test_a_quarter_of_the_requests_may_be_under_way(max_in_flight, most):
    bench = Bench(max_in_flight=max_in_flight)
    bench.bad = {0, 99}
    bench.refuse(*bundles(bench, 200))
    bench.refuse(*bundles(bench, 200))
    sent = [bench.send() for _ in range(most)]
    assert None not in sent
    assert bench.send() is None
    assert bench.isolation.next_deadline() == NEVER, "an answer will come"


def test_what_delivers_nothing_is_paced():
    bench = Bench(isolation_calls_per_second=10, max_in_flight=ALL_AT_ONCE)
    bench.bad = set(range(100))
    bench.refuse(*bundles(bench, 100))
    sent = []
    while bench.isolation.shipments():
        part = bench.send()
        if part is None:
            assert bench.isolation.next_deadline() > bench.now
            bench.now = bench.isolation.next_deadline()
            continue
        sent.append(bench.now)
        bench.answer(part)
    assert all(later - earlier >= 1.0 for earlier, later in zip(sent, sent[10:], strict=False))
    assert len(sent) <= 110
    assert sent[-1] <= 11.0


def test_a_part_that_is_stored_makes_up_for_itself_and_for_one_more():
    bench = Bench(isolation_calls_per_second=2, max_in_flight=ALL_AT_ONCE)
    bench.bad = {0, 40}
    bench.refuse(bench.shipment(80))
    first, second = bench.send(), bench.send()
    assert bench.send() is None
    assert bench.isolation.next_deadline() == 1.0
    bench.answer(first)
    assert bench.send() is None
    bench.isolation.handle_stored(second)
    assert bench.send() is not None
    assert bench.send() is not None
    assert bench.send() is None


def test_a_record_that_was_refused_alone_lets_more_go_alone():
    bench = Bench(max_in_flight=ALL_AT_ONCE)
    bench.bad = set(range(9))
    bench.refuse(bench.shipment(9))
    first = bench.send()
    assert numbers_of(first) == [0]
    assert bench.send() is None, "one at a time, while it may be the only one"
    assert bench.isolation.next_deadline() == NEVER
    bench.answer(first)
    assert bench.isolation.next_deadline() == -NEVER
    assert [numbers_of(bench.send()) for _ in range(2)] == [[1], [2]]
    assert bench.send() is None


# ---- in order


def test_p9_records_of_other_keys_and_other_lanes_do_not_wait():
    bench = Bench(ordered=True, max_in_flight=ALL_AT_ONCE)
    bench.bad = set(range(80))
    bench.refuse(bench.shipment(40), bench.shipment(40, lane=1))
    assert None not in [bench.send() for _ in range(4)]
    keyless = Bench(ordered=True, max_in_flight=ALL_AT_ONCE)
    keyless.refuse(keyless.shipment(40, keys=[None]))
    assert None not in [keyless.send() for _ in range(4)]


@given(seed=st.integers(0, 10_000), in_flight=st.sampled_from([1, 24, ALL_AT_ONCE]), named=st.booleans())
def test_p9_whatever_is_refused_each_key_is_stored_in_order(seed, in_flight, named):
    rng = Random(seed)
    bench = Bench(ordered=True, max_in_flight=in_flight, names=(lambda places: places[:2]) if named else None)
    keys = ["x", "y", "z", None][: rng.randint(1, 4)]
    shipments = [
        bench.shipment(rng.randint(2, 40), together=rng.random() < 0.5, lane=lane, keys=keys) for lane in (0, 1)
    ]
    bench.bad = {rng.randrange(bench.made) for _ in range(rng.choice([1, 3, 20]))}
    place = {
        int(record.data): (lane, record.key)
        for aggregate, lane in shipments
        for record in aggregate.records
        if record.key is not None
    }
    bench.refuse(*shipments)
    bench.run(newest_first=rng.random() < 0.5)
    last = {}
    for number in bench.stored:
        if number in place:
            assert last.get(place[number], -1) < number
            last[place[number]] = number


# ---- taking back


def test_what_waits_expires_when_its_first_record_does():
    bench = Bench()
    assert bench.isolation.expires_at() == NEVER
    bench.refuse(bench.shipment(20, expires_at=7.0), bench.shipment(20, expires_at=5.0))
    assert bench.isolation.expires_at() == 5.0
    part = bench.send()
    assert len(part.shipments) == 1
    assert bench.isolation.expires_at() == 5.0


def test_lanes_get_back_what_waits_in_its_order_and_the_rest_goes_on():
    bench = Bench()
    mine = [bench.shipment(10), bench.shipment(10)]
    other = bench.shipment(10, lane=1)
    bench.bad = {29}
    bench.refuse(mine[1], other, mine[0])
    back = bench.isolation.recall({bench.lanes[0]})
    assert [len(shipment.aggregate.records) for shipment in back] == [10, 10]
    assert back[0].aggregate.order < back[1].aggregate.order
    assert bench.isolation.shipments() == [other]
    bench.lanes[0].in_flight = 0
    while (part := bench.send()) is not None:
        bench.answer(part)
    assert sorted(bench.stored + bench.failed) == list(range(20, 30))


def test_a_half_whose_first_half_is_gone_is_sent_by_itself():
    bench = Bench(max_in_flight=8)
    bench.refuse(bench.shipment(15, lane=0, expires_at=5.0), bench.shipment(15, lane=1))
    first = bench.send()
    assert len(numbers_of(first)) == 15
    assert bench.send() is None, "the other half waits for the answer"
    assert len(bench.isolation.shipments()) == 1
    bench.isolation.handle_unanswered(first)
    assert len(numbers_of(bench.send())) == 15


def test_a_half_that_waits_for_one_that_never_goes_is_sent_by_itself():
    bench = Bench(max_in_flight=8)
    blocker = bench.shipment(30, lane=0)
    bench.refuse(blocker, bench.shipment(30, lane=1))
    bench.isolation._cut_up(bench.isolation._waiting.pop()[2])
    assert len(bench.isolation.shipments()) == 4
    bench.isolation.filter_waiting(lambda shipment, _family: None if shipment.lane is blocker.lane else shipment)
    assert len(bench.isolation.shipments()) == 2
    assert bench.send() is not None


def test_everything_is_given_up_at_the_end_but_what_is_under_way():
    bench = Bench()
    bench.refuse(bench.shipment(15), bench.shipment(15, lane=1))
    under_way = bench.send()
    left = bench.isolation.take_all()
    assert sum(len(shipment.aggregate.records) for shipment in left) == 15
    assert bench.isolation.shipments() == []
    bench.isolation.handle_unanswered(under_way)
    assert bench.send() is None
