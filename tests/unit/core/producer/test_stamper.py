"""Tests of ``shardline.core.producer.stamper``, and of stamps on their way through the machine."""

from random import Random

import pytest

from shardline.codec.aggregation import encode_tags, split_columns
from shardline.codec.stamps import ANY_STAMP, NUMBERS, STAMP_BYTES, StampRun, stamped_by
from shardline.core.producer.aggregate import Aggregate, KeylessAddress
from shardline.core.producer.producer_config import ProducerConfig
from shardline.core.producer.producer_record import BufferedRecord, OptionalTags
from shardline.core.producer.retries import HEADERS_REFUSED
from shardline.core.producer.stamper import Stamper
from shardline.errors import UsageError

ADDRESS = KeylessAddress("made-up", "5")


def records(count, headers=None, key="k"):
    tags = encode_tags(headers or {})
    return [BufferedRecord(b"data", key, None, 10.0, tags=tags) for _ in range(count)]


def stamps_of(entry):
    return split_columns(entry.data).stamps


def test_records_are_numbered_under_one_id():
    stamper, some = Stamper(Random(1)), records(3)
    assert stamper.stamp(some) == 3 * STAMP_BYTES
    assert len({stamped_by(record.tags) for record in some}) == 1
    assert len({record.tags for record in some}) == 3
    assert Stamper(Random(2)).stamp([]) == 0


def test_a_lane_that_has_used_all_numbers_takes_a_new_id():
    stamper, some = Stamper(Random(1)), records(2)
    stamper.stamp(some[:1])
    stamper._next = NUMBERS
    stamper.stamp(some[1:])
    assert stamped_by(some[0].tags) != stamped_by(some[1].tags)


def test_the_headers_of_a_trace_are_kept_with_the_stamp():
    traced = BufferedRecord(b"data", "k", None, 10.0, tags=OptionalTags(encode_tags({"a": "b"})))
    Stamper(Random(1)).stamp([traced])
    assert type(traced.tags) is bytes, "it must not lose its stamp"
    assert traced.tags.endswith(encode_tags({"a": "b"}))


@pytest.mark.parametrize("headers", [{}, {"content-type": "x"}])
@pytest.mark.parametrize("key", ["k", None])
@pytest.mark.parametrize("count", [1, 2, 3, 200])
def test_the_size_of_a_stamped_aggregate_is_exact_and_a_stamp_takes_16_bytes(count, key, headers):
    plain, stamped = Aggregate(0.0, ADDRESS), Aggregate(0.0, ADDRESS)
    some = records(count, headers, key)
    for record in some:
        plain.add(record, 1 << 20)
    Stamper(Random(1)).stamp(some)
    for record in some:
        stamped.add(record, 1 << 20)
    stamped.seal()
    entry = stamped.entry()
    assert len(entry.data) == stamped.size
    assert stamped.size - plain.size <= 16 * count + (5 if count == 1 else 0)
    assert [run.length for run in stamps_of(entry)] == [count]
    assert [dict(one) for one in split_columns(entry.data).all_headers()] == [headers] * count


def test_an_aggregate_with_records_of_two_lanes_names_both_ids():
    first, second = records(2), records(2)
    Stamper(Random(1)).stamp(first)
    Stamper(Random(2)).stamp(second)
    mixed = Aggregate(0.0, ADDRESS)
    unstamped = records(1, {"a": "b"})
    assert mixed.add_all([first[0], *second, *unstamped, first[1]], 1 << 20) == 5
    mixed.seal()
    entry = mixed.entry()
    assert len(entry.data) == mixed.size
    ids = stamped_by(first[0].tags), stamped_by(second[0].tags)
    assert stamps_of(entry) == [StampRun(0, ids[0], 0, 1), StampRun(1, ids[1], 0, 2), StampRun(4, ids[0], 1, 1)]


def test_a_keyless_record_that_may_be_stored_keeps_its_hash_key():
    sent = Aggregate(0.0, ADDRESS)
    keyless, keyed = records(1, key=None)[0], records(1)[0]
    sent.add(keyless, 100)
    sent.add(keyed, 1 << 20)
    before = sent.payload_bytes
    assert sent.pin() == len("made-up")
    assert sent.payload_bytes == before + len("made-up")
    assert (keyless.key, keyless.explicit_hash_key) == ("made-up", "5")
    assert (keyed.key, keyed.explicit_hash_key) == ("k", None)
    assert sent.pin() == 0
    unsent = Aggregate(0.0, KeylessAddress(None, None))
    unsent.add(records(1, key=None)[0], 100)
    assert unsent.pin() == 0, "the service chooses the shard"


# ---- the machine


def test_a_record_keeps_its_stamp_through_retries(rig):
    one = rig(dedup=True)
    records = [one.put(place=3), one.put(place=3)]
    one.to_deadline().send()
    first = stamps_of(one.request.entries[0])
    assert [run.length for run in first] == [2]
    one.lost().to_deadline().send()
    assert stamps_of(one.request.entries[0]) == first
    one.stored()
    assert all(record.conclusion.delivered for record in records)
    assert one.is_empty, "the room of the stamps is free again"


def test_without_dedup_no_record_is_stamped(rig):
    one = rig()
    record = one.put(place=3)
    one.put(place=3)
    one.to_deadline().send()
    assert not stamps_of(one.request.entries[0])
    assert record.tags == b""


def test_a_keyless_record_is_sent_to_the_same_shard_again_if_it_may_be_stored(rig):
    one = rig(dedup=True)
    record = one.put(key=None)
    one.to_deadline().send()
    first = one.request.entries
    one.lost()
    assert record.key is not None
    one.to_deadline().send()
    assert one.request.entries == first
    one.stored()
    assert one.is_empty


def test_a_keyless_record_that_landed_in_a_wrong_shard_keeps_its_hash_key(rig):
    one = rig(dedup=True)
    keyless = one.put(key=None)
    one.to_deadline().send()
    (sent,), (lane,) = one.request.entries, one.lanes()
    one.stored("b" if lane.shard_id == "a" else "a")
    assert one.asks_for_summary()
    one.summary()
    assert one.send() == [[b"data"]]
    assert one.request.entries == [sent]
    assert keyless.key is not None
    one.stored()
    assert keyless.conclusion.delivered
    assert one.is_empty


def test_a_stream_that_must_not_get_aggregates_refuses_stamps(rig):
    one = rig(dedup=True, auto=True)
    assert "AUTO" in one.machine.dedup_refusal
    record = one.put(place=3)
    assert one.to_deadline().send() is None
    assert record.ending.code == HEADERS_REFUSED
    assert rig(auto=True).machine.dedup_refusal is None
    assert rig(dedup=True).machine.dedup_refusal is None


@pytest.mark.parametrize(
    ("settings", "why"),
    [({"aggregation": False}, "aggregation=False"), ({"packing": "json-lines"}, "packing='json-lines'")],
)
def test_settings_without_headers_refuse_dedup(settings, why):
    with pytest.raises(UsageError, match=f"dedup=True stamps each record in a header, and .*{why}"):
        ProducerConfig(dedup=True, **settings)
    with pytest.raises(UsageError, match="dedup must be True or False"):
        ProducerConfig(dedup=1)
    assert ProducerConfig(dedup=True, aggregation="force").dedup


def test_the_stamp_for_sizes_is_a_stamp():
    assert stamped_by(ANY_STAMP) == b"A" * 10
