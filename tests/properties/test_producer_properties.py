"""The small parts of the producer with any input, beside naive models: exact fractions, plain lists and linear search.

Tests of ``aggregate``, ``tokens``, ``shard_map`` and ``producer_record`` in ``shardline.core.producer``.
"""

from copy import deepcopy
from fractions import Fraction
from itertools import pairwise
from math import ulp
from random import Random

from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.aggregates import build_headed, split_headed
from tests.harness.producer_shell import shard

from shardline.codec.aggregation import FRAME_BYTES, MAGIC, decode_tags, encode_tags
from shardline.codec.shapes import ListShardsResponse
from shardline.core.producer.aggregate import Aggregate, KeylessAddress
from shardline.core.producer.lane import repacked
from shardline.core.producer.producer_record import (
    Attempt,
    BufferedRecord,
    Landing,
    Sent,
    note_attempt,
    payload_bytes,
    undelivered,
)
from shardline.core.producer.shard_map import ShardMap
from shardline.core.producer.tokens import TokenBucket
from shardline.model.hashing import HASH_KEY_COUNT, HASH_KEY_MAX, HashRange, hash_key_of
from shardline.model.stream import parse_stream

thorough = settings(max_examples=150, deadline=None)

# ---- aggregates

keys = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20) | st.sampled_from(
    ["a", "b", "k" * 127, "k" * 128, "é" * 64, "😀" * 256]
)
hash_keys = st.integers(0, HASH_KEY_MAX).map(str) | st.sampled_from(["0", "7"])
payloads = st.binary(max_size=40) | st.integers(110, 140).map(bytes) | st.integers(16_360, 16_390).map(bytes)
header_texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20) | st.integers(0, 300).map(
    lambda n: "v" * n
)
header_names = st.sampled_from(["traceparent", "a", "proof-bin", "x" * 128])
headers = st.just({}) | st.dictionaries(header_names, header_texts, max_size=4)
keyed = st.tuples(payloads, keys, st.none() | hash_keys, headers)
keyless = st.tuples(payloads, st.none(), st.none(), headers)
mixtures = st.lists(keyed | keyless, min_size=1, max_size=40) | st.integers(1, 400).map(
    lambda count: [(b"x" * (number % 150), f"{number}", None, {}) for number in range(count)]
)
addresses = st.builds(KeylessAddress, st.just("1f2e3d4c5b"), hash_keys)


def records_of(mixture):
    return [BufferedRecord(data, key, hash_key, 30.0, tags=encode_tags(own)) for data, key, hash_key, own in mixture]


def as_sent(records, address):
    """Return what a reader must find: key, data, explicit hash key and headers of each record."""
    return [
        (address.key, record.data, address.explicit_hash_key, decode_tags(record.tags))
        if record.key is None
        else (record.key, record.data, record.explicit_hash_key, decode_tags(record.tags))
        for record in records
    ]


def check_whole(aggregate, records, address):
    """Check the size of an aggregate, as the buffer and the service count it."""
    aggregate.seal()
    entry = aggregate.entry()
    assert aggregate.records == records
    assert aggregate.payload_bytes == sum(map(payload_bytes, records))
    exact = len(entry.data) + len(entry.key.encode())
    if len(records) == 1 and not records[0].tags:
        assert entry.data == records[0].data
        # Whether it must be wrapped takes an MD5 to know: data that starts with the magic counts as wrapped.
        assert aggregate.cost_bytes == exact or (aggregate.cost_bytes > exact and entry.data.startswith(MAGIC))
        return
    assert aggregate.cost_bytes == exact
    assert aggregate.size == len(entry.data)
    assert split_headed(entry.data) == as_sent(records, address)


class TestAggregates:
    @thorough
    @given(mixtures, addresses)
    @example([(MAGIC, None, None, {})], KeylessAddress("1f2e3d4c5b", "0"))
    def test_the_size_is_exact_open_sealed_and_at_every_step(self, mixture, address):
        records, aggregate = records_of(mixture), Aggregate(0.1, address)
        assert aggregate.size == FRAME_BYTES
        sent = as_sent(records, address)
        for count, record in enumerate(records, start=1):
            assert aggregate.add(record, 1 << 40)
            assert aggregate.size == len(build_headed(sent[:count]))
        check_whole(aggregate, records, address)
        aggregate.seal()
        check_whole(aggregate, records, address)

    @thorough
    @given(mixtures, addresses, st.data())
    def test_the_rest_of_an_aggregate_is_sized_again_in_its_place(self, mixture, address, draw):
        records, whole = records_of(mixture), Aggregate(0.1, address)
        for record in records:
            whole.add(record, 1 << 40)
        whole.order = 7
        whole.seal()
        mask = draw.draw(st.lists(st.booleans(), min_size=len(records), max_size=len(records)).filter(any))
        left = [record for record, stays in zip(records, mask, strict=True) if stays]
        rest = repacked(left, 0.5, whole)
        assert (rest.due_at, rest.order, rest.address) == (0.5, 7, address)
        check_whole(rest, left, address)
        rest.seal()
        check_whole(rest, left, address)

    @thorough
    @given(mixtures, addresses, st.integers(21, 1_000))
    def test_a_limit_is_kept_and_used_and_a_refused_record_leaves_no_trace(self, mixture, address, limit):
        current, held = Aggregate(0.1, address), []
        for record in records_of(mixture):
            if not current.add(record, limit):
                assert len(build_headed(as_sent([*held, record], address))) > limit
                check_whole(current, held, address)
                current, held = Aggregate(0.1, address), []
                assert current.add(record, limit)
            held.append(record)
            assert current.size <= limit or len(held) == 1
        check_whole(current, held, address)

    @thorough
    @given(mixtures, addresses, st.integers(0, 2_000))
    def test_a_bundle_costs_what_its_records_cost_alone(self, mixture, address, limit):
        whole, held = Aggregate(0.1, address, separate=True), []
        for record in records_of(mixture):
            alone = Aggregate(0.1, address)
            alone.add(record, 0)
            alone.seal()
            fits = not held or whole.size + alone.cost_bytes <= limit
            assert whole.add(record, limit) is fits
            held += [alone] if fits else []
        whole.seal()
        assert whole.entries() == [alone.entry() for alone in held]
        assert whole.size == whole.cost_bytes == sum(alone.cost_bytes for alone in held)
        assert whole.payload_bytes == sum(alone.payload_bytes for alone in held)

    @thorough
    @given(st.lists(keyed, min_size=1, max_size=10), addresses)
    def test_the_digest_of_a_record_is_its_place_in_the_ring(self, mixture, address):
        aggregate = Aggregate(0.1, address)
        for record in records_of(mixture):
            aggregate.add(record, 1 << 40)
            place = hash_key_of(record.key) if record.explicit_hash_key is None else int(record.explicit_hash_key)
            assert int.from_bytes(aggregate.hash_digest(record), "big") == place


# ---- tokens


class ExactBucket:
    """The same rules in exact fractions, without rounding."""

    def __init__(self, rates, now):
        self.rates = [Fraction(rate) for rate in rates]
        self.balances = list(self.rates)
        self.updated_at = Fraction(now)

    def grow(self, now):
        elapsed = Fraction(now) - self.updated_at
        self.updated_at = Fraction(now)
        self.balances = [
            min(rate, balance + rate * elapsed) for balance, rate in zip(self.balances, self.rates, strict=True)
        ]

    def missing(self, costs):
        """Return for how many seconds the slowest balance must still grow. If it is 0 or less, the take may pass."""
        return max(
            (min(Fraction(cost), rate) - balance) / rate
            for cost, rate, balance in zip(costs, self.rates, self.balances, strict=True)
        )

    def take(self, costs):
        self.balances = [balance - Fraction(cost) for balance, cost in zip(self.balances, costs, strict=True)]


def grain(now):
    """Return the tolerance for rounding, in seconds."""
    return 4e-9 + 8 * ulp(now)


rates = st.sampled_from([1.0, 10.0, 1_000.0, 700.0, 1_048_576.0, 734_003.2, 1e12]) | st.floats(0.5, 1e7)
factors = st.floats(0.0, 1.2) | st.sampled_from([0.0, 1e-6, 0.3, 1.0, 3.0, 10.0, 20.0])
steps = st.lists(
    st.one_of(
        st.tuples(st.just("wait"), st.floats(0.0, 30.0) | st.sampled_from([0.0, 1e-9, 1e-6, 0.001])),
        st.tuples(st.just("take"), st.tuples(factors, factors)),
        st.tuples(st.just("wait for"), st.tuples(factors, factors)),
        st.tuples(st.just("rates"), st.floats(0.02, 1.0)),
    ),
    max_size=25,
)


class TestTokens:
    @thorough
    @given(st.tuples(rates, rates), st.sampled_from([0.0, 7.3, 1e5, 1e7, 1.7e9]), steps)
    @example((1_000.0, 734_003.2), 1e7, [("take", (1.0, 2.7)), ("wait", 0.1), ("wait for", (0.001, 0.13))])
    def test_to_k4_it_does_what_fractions_say(self, full, now, todo):
        bucket, model, current = TokenBucket(*full, now), ExactBucket(full, now), full
        for what, how in todo:
            if what == "wait":
                now += how
            elif what == "rates":
                current = tuple(rate * how for rate in full)
                model.grow(now)
                bucket.set_rates(*current, now)
                model.rates = [Fraction(rate) for rate in current]
                model.balances = [min(one, rate) for one, rate in zip(model.balances, model.rates, strict=True)]
            else:
                costs = tuple(factor * rate for factor, rate in zip(how, current, strict=True))
                if what == "wait for":
                    now = self.wait_for(bucket, costs, now)
                self.take(bucket, model, costs, now)
            balances = (bucket._entries, bucket._bytes)
            assert all(balance <= rate for balance, rate in zip(balances, current, strict=True))
            for ours, exact, rate in zip(balances, model.balances, current, strict=True):
                if bucket._updated_at == model.updated_at:
                    assert abs(ours - exact) <= rate * grain(now)  # either both balances were charged, or neither

    @staticmethod
    def wait_for(bucket, costs, now):
        """Check that the take passes at ``ready_at`` and not just before. Return that time."""
        ready_at = bucket.ready_at(*costs, now)
        assert ready_at >= now
        assert deepcopy(bucket).try_take(*costs, ready_at)
        before = ready_at - grain(ready_at)
        if before >= now:
            assert not deepcopy(bucket).try_take(*costs, before)
        return ready_at

    @staticmethod
    def take(bucket, model, costs, now):
        """Take when the balances reach min(cost, capacity), whatever debt that leaves."""
        model.grow(now)
        missing = model.missing(costs)
        admitted = bucket.try_take(*costs, now)
        if abs(missing) > grain(now):
            assert admitted == (missing <= 0)
        if admitted:
            model.take(costs)

    @thorough
    @given(st.floats(0.5, 1e7), st.lists(st.floats(0.0, 15.0), min_size=1, max_size=40), st.sampled_from([0.0, 1e6]))
    def test_whatever_goes_at_its_first_moment_the_rate_is_kept(self, rate, takes, started_at):
        """In the long run, the amount before the last take is at most one capacity above the rate."""
        bucket, now, sent = TokenBucket(1e12, rate, started_at), started_at, 0.0
        for factor in takes:
            now = bucket.ready_at(1, factor * rate, now)
            assert sent <= rate * (1.0 + now - started_at) * (1 + 1e-6)
            assert bucket.try_take(1, factor * rate, now)
            sent += factor * rate


# ---- the shard map

STREAM = parse_stream("orders")


def shard_page(shards, token=None):
    return ListShardsResponse([shard(*one) for one in shards], token)


cuts = st.sets(
    st.integers(1, HASH_KEY_MAX) | st.sampled_from([1, 2, 3, HASH_KEY_MAX, HASH_KEY_MAX - 1, HASH_KEY_COUNT // 2]),
    max_size=30,
)


def rings(starts, prefix="s"):
    """Draw shards that cover the ring, cut at ``starts``."""
    edges = [0, *sorted(starts), HASH_KEY_COUNT]
    return [(f"{prefix}-{place}", start, end - 1) for place, (start, end) in enumerate(pairwise(edges))]


class TestShardMaps:
    @thorough
    @given(cuts, st.integers(0, 2**32), st.integers(1, 10), st.lists(st.integers(0, HASH_KEY_MAX), max_size=20))
    def test_prediction_is_right_at_both_edges_and_everywhere(self, starts, seed, page_size, probes):
        shards = rings(starts)
        listed = list(shards)
        Random(seed).shuffle(listed)
        shard_map = ShardMap(STREAM, Random(seed))
        pages = [listed[at : at + page_size] for at in range(0, len(listed), page_size)]
        for number, one in enumerate(pages, start=1):
            request = shard_map.poll_request(0.0)
            assert (request.next_token is None) == (number == 1)
            last = number == len(pages)
            assert shard_map.handle_page(shard_page(one, None if last else f"t{number}"), 0.0) is last
        for shard_id, start, end in shards:
            assert shard_map.hash_range(shard_id, "1") == HashRange(start, end)
            probes = [*probes, start, end]
        for probe in probes:
            (owner,) = [shard_id for shard_id, start, end in shards if start <= probe <= end]
            assert shard_map.snapshot.predict(probe.to_bytes(16, "big")) == owner


# ---- histories


def attempt(number, *, stored):
    return Attempt(float(number), 0.1, None, None, "InternalFailure", "words", stored)


class TestHistories:
    @thorough
    @given(st.integers(1, 6), st.data())
    def test_the_history_is_bounded_and_never_hides_the_first_and_the_last(self, count, draw):
        records = [BufferedRecord(b"", "k", None, 30.0) for _ in range(count)]
        models = [[] for _ in records]
        rounds = draw.draw(st.lists(st.tuples(st.sets(st.integers(0, count - 1)), st.booleans()), max_size=60))
        for number, (who, stored) in enumerate(rounds):
            one = attempt(number, stored=stored)
            note_attempt([records[place] for place in sorted(who)], one)
            for place in who:
                models[place].append(one)
        good = Attempt(1_000_000.0, 0.1, "s", "1", None, None, maybe_stored=True)
        for record, model in zip(records, models, strict=True):
            assert record.attempt_count == len(model)
            reason = undelivered(record, "Expired", "words")
            assert reason.attempt_count == len(model)
            assert list(reason.attempts) == (model if len(model) <= 16 else model[:8] + model[-8:])
            assert reason.maybe_stored is any(one.maybe_stored for one in model)
            record.ending = Landing("s", "1", Sent(good.started_at, good.duration))
            receipt, model = record.conclusion, [*model, good]  # noqa: PLW2901 - the model goes on
            assert receipt.attempt_count == len(model)
            assert len(receipt.attempts) <= 16
            assert (receipt.attempts[0], receipt.attempts[-1]) == (model[0], good)

    @thorough
    @given(st.integers(1, 30), st.integers(1, 40))
    def test_p11_what_a_batch_shares_exists_once(self, count, rounds):
        records = [BufferedRecord(b"", "k", None, 30.0) for _ in range(count)]
        for number in range(rounds):
            note_attempt(records, attempt(number, stored=False))
        assert len({id(record.history) for record in records}) == 1
