"""Which records share one entry, and how large is it?"""

from hashlib import md5

import pytest
from tests.aggregates import build_aggregate, split_aggregate, split_headed

from shardline.codec.aggregation import MAGIC, encode_tags
from shardline.codec.value_packing import PACKINGS
from shardline.core.producer.aggregate import (
    WRAP_MAX_BYTES,
    Aggregate,
    KeylessAddress,
    bytes_alone,
)
from shardline.core.producer.producer_record import BufferedRecord, payload_bytes
from shardline.model.hashing import HASH_KEY_MAX, hash_digest_of
from shardline.model.record import Entry

ANY_SIZE = 1 << 40
ADDRESS = KeylessAddress("1f2e3d4c5b", "12345678901234567890")
NO_ADDRESS = KeylessAddress(None, None)


def record(data=b"data", key="key", hash_key=None, headers=None):
    return BufferedRecord(data, key, hash_key, 30.0, tags=encode_tags(headers or {}))


def aggregate(*records, address=ADDRESS):
    whole = Aggregate(0.1, address)
    for one in records:
        assert whole.add(one, ANY_SIZE)
    return whole


def cost(whole):
    """Return the cost of the aggregate, once it is sealed."""
    whole.seal()
    return whole.cost_bytes


def framed(payload=b"x"):
    return build_aggregate([("k", payload)])


# ---- the wire format


def test_p12_a_record_that_goes_alone_goes_as_it_is():
    assert aggregate(record(b"data", "key")).entry() == Entry(b"data", "key", None)
    assert aggregate(record(b"data", "key", "7")).entry() == Entry(b"data", "key", "7")
    assert aggregate(record(b"", "key")).entry() == Entry(b"", "key", None)


def test_p12_a_lone_record_that_a_reader_would_open_is_wrapped():
    inner = framed()
    entry = aggregate(record(inner, "key", "7")).entry()
    assert split_aggregate(entry.data) == [("key", inner, "7")]
    assert (entry.key, entry.explicit_hash_key) == ("key", "7")


def test_p12_a_framed_message_that_only_other_readers_forgive_is_wrapped_too():
    message = b"\x0a\x01k\x1a\x05\x08\x09\x1a\x01x"  # a key index out of range
    inner = MAGIC + message + md5(message, usedforsecurity=False).digest()
    assert split_aggregate(inner) is None
    assert split_aggregate(aggregate(record(inner)).entry().data) == [("key", inner, None)]


def test_p12_data_that_merely_starts_with_the_magic_goes_as_it_is():
    assert aggregate(record(MAGIC + b"and no more")).entry().data == MAGIC + b"and no more"


def test_p8_the_outer_key_of_an_aggregate_is_that_of_its_first_record():
    entry = aggregate(record(b"1", "first", "99"), record(b"2", "second")).entry()
    assert (entry.key, entry.explicit_hash_key) == ("first", "99")
    assert split_aggregate(entry.data) == [("first", b"1", "99"), ("second", b"2", None)]


def test_p8_keyless_records_take_the_key_and_hash_key_of_their_aggregate_inside_and_outside():
    entry = aggregate(record(b"1", None), record(b"2", "own"), record(b"3", None)).entry()
    assert (entry.key, entry.explicit_hash_key) == (ADDRESS.key, ADDRESS.explicit_hash_key)
    assert split_aggregate(entry.data) == [
        (ADDRESS.key, b"1", ADDRESS.explicit_hash_key),
        ("own", b"2", None),
        (ADDRESS.key, b"3", ADDRESS.explicit_hash_key),
    ]


def test_p8_a_lone_keyless_record_takes_them_too():
    assert aggregate(record(b"1", None)).entry() == Entry(b"1", ADDRESS.key, ADDRESS.explicit_hash_key)


def test_a_keyless_record_sends_no_key_where_the_service_chooses_the_shard():
    whole = aggregate(record(b"1", None), address=NO_ADDRESS)
    assert whole.entry() == Entry(b"1", None, None)
    assert cost(whole) == 1


def test_even_there_what_a_reader_would_open_is_wrapped():
    inner = framed()
    whole = aggregate(record(inner, None), address=NO_ADDRESS)
    assert whole.entry().key is None
    assert split_aggregate(whole.entry().data) == [("", inner, None)]
    assert cost(whole) == len(whole.entry().data)


TRACE = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}


def test_p12_a_lone_record_with_headers_is_an_aggregate_of_one():
    whole = aggregate(record(b"data", "key", "7", TRACE))
    entry = whole.entry()
    assert (entry.key, entry.explicit_hash_key) == ("key", "7")
    assert split_headed(entry.data) == [("key", b"data", "7", TRACE)]
    assert cost(whole) == len(entry.data) + 3
    assert whole.size == len(entry.data)


def test_a_lone_keyless_record_with_headers_has_the_address_inside_too():
    entry = aggregate(record(b"data", None, None, TRACE)).entry()
    assert (entry.key, entry.explicit_hash_key) == (ADDRESS.key, ADDRESS.explicit_hash_key)
    assert split_headed(entry.data) == [(ADDRESS.key, b"data", ADDRESS.explicit_hash_key, TRACE)]


def test_headers_stay_with_their_records():
    records = [record(b"1"), record(b"2", headers=TRACE), record(b"3", None, None, {"a": ""}), record(b"4")]
    found = split_headed(aggregate(*records).entry().data)
    assert [(one.data, one.headers) for one in found] == [(b"1", {}), (b"2", TRACE), (b"3", {"a": ""}), (b"4", {})]


def test_readers_check_aggregates_and_nothing_else():
    assert aggregate(record(), record()).is_checked
    assert aggregate(record(headers=TRACE)).is_checked
    assert not aggregate(record()).is_checked
    pack = Aggregate(0.1, ADDRESS, packing=PACKINGS["json-lines"])
    pack.add_all([record(), record()], ANY_SIZE)
    assert not pack.is_checked


# ---- sizes

MIXTURES = {
    "headers": [record(b"x" * size, "k", headers={"n": "v" * size}) for size in range(100, 140)],
    "headers on some": [
        record(b"x", f"{n % 200}", "7" if n % 5 else None, TRACE if n % 3 else None) for n in range(500)
    ],
    "large headers": [record(b"x", None, headers={"n": "v" * size}) for size in (2_040, 2_048, 16_300)],
    "one with headers": [record(b"x" * 200, headers=TRACE)],
    "two small ones": [record(b"1"), record(b"2")],
    "one key": [record(bytes(number), "k") for number in range(300)],
    "many keys": [record(b"x" * (number % 130), f"key-{number}") for number in range(400)],
    "more keys than one byte counts, repeated": [record(b"x" * 127, f"{number % 200}") for number in range(600)],
    "more keys than two bytes count": [record(b"x" * (number % 3), f"{number}") for number in range(16_500)],
    "explicit hash keys": [record(b"x", "k", str(number % 140)) for number in range(300)],
    "some explicit hash keys": [record(b"x", "k", "7" if number % 3 else None) for number in range(300)],
    "the longest hash key": [record(b"x", "k", str(HASH_KEY_MAX)), record(b"y", "k", "0")],
    "keyless": [record(b"x", None) for _ in range(200)],
    "keyless and keyed": [record(b"x" * number, None if number % 2 else "k") for number in range(200)],
    "long keys": [record(b"x", "k" * 127), record(b"x", "k" * 128), record(b"x", "k" * 256)],
    "keys that are not ASCII": [record(b"x", "é" * 63), record(b"x", "é" * 64), record(b"x", "😀" * 256)],
    "data around one byte of length": [record(b"x" * size, f"{size}") for size in range(118, 134)],
    "data around two bytes of length": [record(b"x" * size) for size in range(16_360, 16_390)],
    "large data": [record(b"x" * 3_000_000), record(b"y" * 100_000)],
    "empty data": [record(b""), record(b"")],
}


@pytest.mark.parametrize("records", MIXTURES.values(), ids=MIXTURES)
def test_the_size_is_exact(records):
    whole = aggregate(*records)
    entry = whole.entry()
    assert whole.size == len(entry.data)
    assert cost(whole) == len(entry.data) + len(entry.key.encode())
    assert whole.size == len(whole.entry().data)


def test_a_wrapped_record_costs_its_wrapping_too():
    whole = aggregate(record(framed(b"x" * 500), "key", "7"))
    assert cost(whole) == len(whole.entry().data) + 3


def test_the_cost_is_never_too_low_for_what_starts_with_the_magic():
    """Whether it is framed takes an MD5 to know, so it is counted as framed."""
    whole = aggregate(record(MAGIC + b"and no more"))
    assert cost(whole) > len(whole.entry().data) + 3


# ---- filling


def test_a_refused_hash_key_does_not_make_the_aggregate_one_with_hash_keys():
    whole = aggregate(record(b"1"))
    assert not whole.add(record(b"2", "key", "7"), 10)
    assert whole.has_hash_keys is False
    assert whole.add(record(b"2", "key", "7"), ANY_SIZE)
    assert whole.has_hash_keys is True


def test_the_first_record_always_fits():
    whole = Aggregate(0.1, ADDRESS)
    assert whole.add(record(b"x" * 1_000), 64)
    assert not whole.add(record(b""), 64)
    assert whole.entry() == Entry(b"x" * 1_000, "key", None)


def test_it_starts_open_and_is_due_at_the_given_time():
    whole = Aggregate(12.5, ADDRESS)
    assert (whole.due_at, whole.order, whole.records, whole.payload_bytes) == (12.5, 0, [], 0)


# ---- bundles: each record is a separate entry


def bundle(*records, address=ADDRESS):
    whole = Aggregate(0.1, address, separate=True)
    for one in records:
        assert whole.add(one, ANY_SIZE)
    return whole


SEPARATE = {name: records for name, records in MIXTURES.items() if len(records) < 1_000} | {
    "one that a reader would open": [record(b"1"), record(framed(), "key", "7"), record(framed(), None)],
}


@pytest.mark.parametrize("records", SEPARATE.values(), ids=SEPARATE)
def test_a_bundle_makes_the_entries_that_its_records_would_make_alone(records):
    whole = bundle(*records)
    alone = [aggregate(one) for one in records]
    assert whole.entries() == [one.entry() for one in alone]
    assert all(type(entry) is Entry for entry in whole.entries())
    assert whole.size == cost(whole) == sum(cost(one) for one in alone)
    assert whole.entry_count == len(records)
    assert whole.cost_bytes == sum(len(entry.data) + len(entry.key.encode()) for entry in whole.entries())
    assert whole.payload_bytes == sum(map(payload_bytes, records))
    assert [whole.cost_of(one) for one in records] == [one.cost_bytes for one in alone]


def test_records_that_share_an_entry_make_one():
    whole = aggregate(record(b"1"), record(b"2"))
    assert whole.entries() == [whole.entry()]
    whole.seal()
    assert whole.entry_count == 1


@pytest.mark.parametrize("last", [record(b"xyz", "key"), record(b"xyz", "é"), record(b"x", None), record(framed())])
def test_a_bundle_takes_what_fits_exactly_and_its_first_record_in_any_case(last):
    whole = bundle(record(b"12345", "key"))
    needed = whole.size + whole.cost_of(last)
    before = (whole.size, whole.payload_bytes, whole.entries())
    assert whole.add(last, needed - 1) is False
    assert (whole.size, whole.payload_bytes, whole.entries()) == before
    assert whole.add(last, needed) is True
    assert whole.size == needed
    assert Aggregate(0.1, ADDRESS, separate=True).add(last, 0) is True


def test_where_the_service_chooses_the_shard_a_bundle_sends_keyless_records_without_keys():
    whole = bundle(record(b"1", None), record(b"22", None), address=NO_ADDRESS)
    assert whole.entries() == [Entry(b"1", None, None), Entry(b"22", None, None)]
    assert cost(whole) == 3


# ---- packs: records of one key, in another format


def pack(packing, *records, address=ADDRESS):
    whole = Aggregate(0.1, address, packing=PACKINGS[packing])
    for one in records:
        assert whole.add(one, ANY_SIZE)
    return whole


@pytest.mark.parametrize(
    ("packing", "data"),
    [("json-lines", b"1\n22\n"), ("json-list", b"[1,22]"), ("netstrings", b"1:1,2:22,")],
)
@pytest.mark.parametrize(("key", "hash_key"), [("key", None), ("é", "7"), (None, None)])
def test_a_pack_is_one_entry_under_the_key_of_its_records_and_exactly_as_large_as_counted(packing, data, key, hash_key):
    records = [record(b"1", key, hash_key), record(b"22", key, hash_key)]
    whole = pack(packing, *records)
    expected = (ADDRESS.key, ADDRESS.explicit_hash_key) if key is None else (key, hash_key)
    assert whole.entries() == [Entry(data, *expected)]
    assert whole.size == len(data)
    assert cost(whole) == len(data) + len(expected[0].encode())
    assert whole.entry_count == 1
    assert whole.payload_bytes == sum(map(payload_bytes, records))


def test_p12_a_pack_of_one_record_is_packed_and_its_data_is_not_wrapped():
    whole = pack("netstrings", record(framed()))
    assert whole.entry().data == b"%d:%b," % (len(framed()), framed())
    assert cost(whole) == len(whole.entry().data) + len("key")
    assert bytes_alone(framed(), "key", None, PACKINGS["netstrings"]) == whole.cost_bytes


def test_a_pack_takes_what_fits_exactly_and_its_first_record_in_any_case():
    whole = Aggregate(0.1, ADDRESS, packing=PACKINGS["length-prefixed"])
    assert whole.add(record(b"x" * 20), 0)
    assert not whole.add(record(b"123"), 24 + 6)
    assert (whole.size, len(whole.records)) == (24, 1)
    assert whole.add(record(b"123"), 24 + 7)
    assert (whole.size, whole.payload_bytes) == (31, 20 + 3 + 2 * len("key"))


def test_where_the_service_chooses_the_shard_a_pack_of_keyless_records_has_no_key():
    whole = pack("json-list", record(b"1", None), record(b"2", None), address=NO_ADDRESS)
    assert whole.entry() == Entry(b"[1,2]", None, None)
    assert whole.has_no_key
    assert cost(whole) == 5


# ---- where records belong


def test_the_digest_of_a_keyless_record_is_that_of_its_address():
    one = record(b"x", None)
    assert aggregate(one).hash_digest(one) == int(ADDRESS.explicit_hash_key).to_bytes(16, "big")
    assert aggregate(one, address=KeylessAddress("abc", None)).hash_digest(one) == hash_digest_of("abc")
    assert aggregate(one, address=NO_ADDRESS).hash_digest(one) == hash_digest_of("")


@pytest.mark.parametrize("hash_key", [None, "7"])
@pytest.mark.parametrize("key", ["k", "é" * 256, None])
def test_p12_what_wrapping_costs_is_known_before(key, hash_key):
    framed = aggregate(record(b"1", "a"), record(b"2", "b")).entry().data
    hash_key = None if key is None else hash_key
    address = KeylessAddress("a" * 10, "1" * 39)
    sent = Aggregate(0.0, address)
    sent.add(record(framed, key, hash_key), 0)
    entry = sent.entry()
    assert entry.data != framed
    cost = len(entry.data) + len(entry.key.encode())
    assert bytes_alone(framed, key, hash_key) == cost
    assert len(framed) < cost <= len(framed) + len((key or "").encode()) + WRAP_MAX_BYTES
    assert bytes_alone(b"plain", "k", hash_key) == 6


def test_a_record_with_headers_is_wrapped_in_a_bundle_and_the_others_are_not():
    whole = bundle(
        record(b"1", "a"), record(b"2", "b", "7", TRACE), record(b"3", None), record(b"4", None, None, TRACE)
    )
    whole.seal()
    plain, headed, keyless, both = whole.entries()
    assert (plain, keyless) == (Entry(b"1", "a", None), Entry(b"3", ADDRESS.key, ADDRESS.explicit_hash_key))
    assert split_headed(headed.data) == [("b", b"2", "7", TRACE)]
    assert split_headed(both.data) == [(ADDRESS.key, b"4", ADDRESS.explicit_hash_key, TRACE)]
    assert whole.cost_bytes == sum(len(entry.data) + len(entry.key) for entry in whole.entries())
    assert whole.payload_bytes == sum(map(payload_bytes, whole.records))


def test_the_room_of_headers_is_counted():
    assert payload_bytes(record(b"data", "key", headers=TRACE)) == 4 + 3 + len(encode_tags(TRACE))
    whole = aggregate(record(b"data", "key", headers=TRACE), record(b"", None, headers=TRACE))
    assert whole.payload_bytes == 7 + 2 * len(encode_tags(TRACE))


@pytest.mark.parametrize("key", ["key", None, "\u00e9"])
@pytest.mark.parametrize("size", [0, 200, 20_000])
def test_the_bytes_of_a_record_with_headers_that_goes_alone(key, size):
    whole = aggregate(record(b"x" * size, key, headers=TRACE), address=KeylessAddress("0" * 10, "0" * 39))
    assert bytes_alone(b"x" * size, key, None, tags=encode_tags(TRACE)) == cost(whole)
    assert cost(whole) <= size + len(encode_tags(TRACE)) + WRAP_MAX_BYTES
