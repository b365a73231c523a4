"""Hash keys, ranges, order and entries for any input."""

import hashlib
import re
from functools import cache

import pytest
from botocore.loaders import Loader
from botocore.model import ServiceModel
from botocore.validate import ParamValidator
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from shardline.errors import UsageError
from shardline.model.hashing import (
    HASH_KEY_MAX,
    WHOLE_RING,
    HashRange,
    check_partition_key,
    hash_digest_of,
    hash_key_of,
    parse_explicit_hash_key,
)
from shardline.model.record import check_entries
from shardline.model.sequence import SequenceNumber

# Other work on the machine must not fail the examples.
examples = settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])

hash_keys = st.integers(0, HASH_KEY_MAX)
ranges = st.tuples(hash_keys, hash_keys).map(lambda two: HashRange(min(two), max(two)))
keys = st.text(st.characters(codec="utf-8"), min_size=1, max_size=256)


@cache
def model():
    return ServiceModel(Loader().load_service_model("kinesis", "service-2"), "kinesis")


@examples
@given(keys)
@example("abcd")
def test_the_hash_key_is_what_the_hexadecimal_digest_says(key):
    digest = hashlib.md5(key.encode(), usedforsecurity=False).hexdigest()
    assert hash_key_of(key) == int(digest, 16)
    assert hash_key_of(key) in WHOLE_RING
    assert hash_digest_of(key).hex() == digest


@examples
@given(keys, keys)
def test_digests_compare_as_the_numbers_do(one, other):
    assert (hash_digest_of(one) < hash_digest_of(other)) == (hash_key_of(one) < hash_key_of(other))


@examples
@given(hash_keys)
def test_every_hash_key_is_read_back_from_its_decimal(value):
    assert parse_explicit_hash_key(str(value)) == value


@examples
@given(
    st.text(max_size=45) | st.text("0123456789", max_size=45) | st.text(st.characters(categories=["Nd"]), max_size=45)
)
def test_accepted_is_what_the_service_models_pattern_and_the_ring_accept(text):
    pattern = model().shape_for("HashKey").metadata["pattern"]
    good = re.fullmatch(pattern, text, re.ASCII) is not None and int(text) <= HASH_KEY_MAX
    if good:
        assert str(parse_explicit_hash_key(text)) == text
    else:
        with pytest.raises(UsageError):
            parse_explicit_hash_key(text)


@examples
@given(ranges, hash_keys)
def test_a_range_contains_what_lies_between_its_edges(span, hash_key):
    assert span.start in span
    assert span.end in span
    assert span.start - 1 not in span
    assert span.end + 1 not in span
    assert (hash_key in span) == (hash_key in range(span.start, span.end + 1))


@examples
@given(ranges, ranges)
def test_overlapping_is_sharing_a_key_and_goes_both_ways(one, other):
    shared = max(one.start, other.start) <= min(one.end, other.end)
    assert one.overlaps(other) == other.overlaps(one) == shared
    assert one.overlaps(one)


@examples
@given(ranges.filter(lambda span: span.size > 1))
def test_splitting_at_the_middle_gives_two_halves_that_fill_the_range(span):
    lower, upper = HashRange(span.start, span.middle - 1), HashRange(span.middle, span.end)
    assert not lower.overlaps(upper)
    assert lower.size + upper.size == span.size
    assert 0 <= upper.size - lower.size <= 1
    assert lower.share + upper.share == pytest.approx(span.share)


@examples
@given(st.lists(st.tuples(st.integers(0, 10**129 - 1), st.integers(0, 10**6)), max_size=20))
def test_sequence_numbers_sort_as_pairs_of_numbers(pairs):
    numbers = [SequenceNumber.parse(str(number), sub) for number, sub in pairs]
    assert [(n.number, n.sub_sequence) for n in sorted(numbers)] == sorted(pairs)
    assert [str(n) for n in numbers] == [str(number) for number, _ in pairs]


@examples
@given(st.text(max_size=300))
def test_a_key_is_accepted_exactly_if_the_service_would(key):
    try:
        size = len(key.encode())
    except UnicodeEncodeError:
        size = -1
    if size > 0 and len(key) <= 256:
        assert check_partition_key(key) == key
    else:
        with pytest.raises(UsageError):
            check_partition_key(key)


odd = st.none() | st.integers() | st.text(max_size=4) | st.binary(max_size=4) | st.booleans()
entries = st.tuples(
    st.binary(max_size=8) | odd, keys | st.text(max_size=260) | odd, st.none() | hash_keys.map(str) | odd
)


@examples
@given(st.lists(entries | st.tuples(st.binary(max_size=8), keys), max_size=4))
def test_what_check_entries_lets_through_botocore_validates(given_entries):
    try:
        checked = check_entries(given_entries)
    except UsageError:
        return
    records = []
    for data, key, explicit_hash_key in checked:
        members = {"Data": data, "PartitionKey": key, "ExplicitHashKey": explicit_hash_key}
        records.append({name: value for name, value in members.items() if value is not None})
    shape = model().operation_model("PutRecords").input_shape
    assert not ParamValidator().validate({"StreamName": "orders", "Records": records}, shape).has_errors()
    pattern = model().shape_for("HashKey").metadata["pattern"]
    for one in records:
        assert 1 <= len(one.get("PartitionKey", "k")) <= 256
        assert re.fullmatch(pattern, one.get("ExplicitHashKey", "0"), re.ASCII)


@examples
@given(st.lists(st.recursive(odd, lambda inner: st.lists(inner, max_size=4).map(tuple), max_leaves=6), max_size=3))
def test_whatever_is_passed_as_entries_only_a_usage_error_comes_back(junk):
    try:
        checked = check_entries(junk)
    except UsageError:
        return
    assert all(isinstance(entry.data, bytes) for entry in checked)
