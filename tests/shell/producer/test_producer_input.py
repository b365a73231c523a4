"""Is invalid input refused at ``put``, by both producers, without other harm (P6)?"""

import array
import enum

import pytest
from tests.shell.blocking import EVERY_API

from shardline import UsageError, aggregate, deaggregate

pytestmark = pytest.mark.anyio


class Colour(enum.StrEnum):
    RED = "red"


class OldColour(str, enum.Enum):  # noqa: UP042 - people have such
    RED = "red"


class Loud(str):
    """A str subclass with another ``__str__``."""

    __slots__ = ()

    def __str__(self):
        return "LOUD"


class Bytes(bytes):
    """A subclass of bytes."""


class ArrayLike:
    """Like numpy's arrays: it has a buffer and ``tobytes``, but is not bytes."""

    def tobytes(self):
        return b"abc"


WRONG = {
    "str data": ((("k", "text"),), r"\.encode\(\)"),
    "None data": ((("k", None),), "data must be bytes, not NoneType"),
    "int data": ((("k", 5),), "data must be bytes, not int"),
    "list data": ((("k", [1, 2]),), "data must be bytes, not list"),
    "dict data": ((("k", {}),), "data must be bytes, not dict"),
    "array-like data": ((("k", ArrayLike()),), "data must be bytes, not ArrayLike"),
    "array data": ((("k", array.array("b", [1])),), "data must be bytes, not array"),
    "empty key": ((("", b"x"),), "1 to 256 characters, this one has 0"),
    "long key": ((("k" * 257, b"x"),), "1 to 256 characters, this one has 257"),
    "bytes key": (((b"k", b"x"),), "partition key must be a str, not bytes"),
    "int key": (((5, b"x"),), "partition key must be a str, not int"),
    "surrogate key": ((("\ud800", b"x"),), "lone surrogate"),
    "hash key of int": ((("k", b"x", 5),), "str of decimal digits, not int"),
    "negative hash key": ((("k", b"x", "-1"),), "plain decimal"),
    "hash key too large": ((("k", b"x", str(1 << 128)),), "plain decimal"),
    "hash key in hex": ((("k", b"x", "0xff"),), "plain decimal"),
    "hash key with zeroes": ((("k", b"x", "007"),), "plain decimal"),
    "empty hash key": ((("k", b"x", ""),), "plain decimal"),
    "hash key of other digits": ((("k", b"x", "\u0663"),), "plain decimal"),
    "hash key without key": (((None, b"x", "5"),), "needs a key"),
    "wrapped": (
        (("k", aggregate([("a", b"x" * (1_048_575 - 35))])),),
        r"at most 1048576 bytes with its key, this one has 104857\d, and needs \d\d more, because its data is itself an aggregate",
    ),
    "oversize": ((("k", b"x" * 1_048_576),), "at most 1048576 bytes with its key, this one has 1048577"),
    "oversize by its key": ((("\u00fc", b"x" * 1_048_575),), "this one has 1048577"),
    "oversize without key": (((None, b"x" * 1_048_567),), "this one has 1048577 with its generated key"),
    "wrapped without key": (((None, aggregate([("a", b"x" * (1_048_500 - 35))])),), r"and needs \d\d more"),
}
RIGHT = {
    "empty data": ("k", b""),
    "bytearray": ("k", bytearray(b"abc")),
    "memoryview": ("k", memoryview(b"abc")),
    "every second byte": ("k", memoryview(b"aXbXcX")[::2]),
    "bytes of one's own": ("k", Bytes(b"abc")),
    "longest key": ("k" * 256, b"abc"),
    "longest key of many bytes": ("\U0001f600" * 256, b"abc"),
    "StrEnum key": (Colour.RED, b"abc"),
    "str Enum key": (OldColour.RED, b"abc"),
    "str of one's own": (Loud("quiet"), b"abc"),
    "key with quotes": ('"\\\n\x00\u2028', b"abc"),
    "largest": ("k", b"x" * 1_048_575),
    "largest without key": (None, b"x" * 1_048_566),
    "lowest hash key": ("k", b"abc", "0"),
    "highest hash key": ("k", b"abc", str((1 << 128) - 1)),
}


@EVERY_API
@pytest.mark.parametrize(("records", "said"), WRONG.values(), ids=WRONG)
async def test_wrong_input_is_refused_and_harms_nothing(make_producer, stored, eventually, records, said):
    """A defect of aiokpl (aiokpl_b11)."""
    async with make_producer() as producer:
        await (await producer.put(b"good", key="k"))
        await eventually(lambda: producer._machine.intake.record_max_bytes == 1_048_576)  # the stream has reported it
        key, data, hash_key = (*records[0], None)[:3]
        with pytest.raises(UsageError, match=said):
            await producer.put(data, key=key, explicit_hash_key=hash_key)
        with pytest.raises(UsageError, match=said):
            producer.put_nowait(data, key=key, explicit_hash_key=hash_key)
        with pytest.raises(UsageError, match=f"record 1: .*{said}"):
            await producer.put_many([("k", b"good"), *records])
        assert producer.outstanding == 0
        await (await producer.put(b"good", key="k"))
    assert len(stored()) == 2


@pytest.mark.parametrize("company", [False, True], ids=["alone", "in an aggregate"])
@pytest.mark.parametrize("record", RIGHT.values(), ids=RIGHT)
async def test_all_that_is_allowed_arrives_as_it_is(make_producer, kinesis, record, company):
    key, data, hash_key = (*record, None)[:3]
    async with make_producer() as producer:
        await producer.put(data, key=key, explicit_hash_key=hash_key)
        if company:
            await producer.put(b"company", key=key, explicit_hash_key=hash_key)
    records = deaggregate(kinesis.streams["s"].records)
    arrived = {(key and one.key, one.data) for one in records}
    assert (key and str.__str__(key), bytes(data)) in arrived
    assert len(records) == 1 + company


async def test_a_bytearray_may_be_changed_after_the_put(make_producer, stored):
    data = bytearray(b"before")
    async with make_producer() as producer:
        await producer.put(data, key="k")
        data[:] = b"after!"
    assert stored() == [("k", b"before")]


@EVERY_API
@pytest.mark.parametrize(
    ("records", "said"),
    [
        (None, "iterable of .key, data. tuples, not NoneType"),
        (5, "iterable of .key, data. tuples, not int"),
        ("text", "record 0: not a tuple"),
        (b"bytes", "record 0: not a tuple"),
        ([b"bytes"], "record 0: not a tuple"),
        ([("k", b"x"), ["k", b"x"]], "record 1: not a tuple"),
        ([("k",)], "record 0: not a tuple"),
        ([("k", b"x", None, None, None)], "record 0: not a tuple"),
        ([()], "record 0: not a tuple"),
        ([(b"data", "key")], "record 0: "),
        ({"k": b"x"}, "record 0: not a tuple"),
    ],
)
async def test_put_many_says_which_record_is_wrong_and_accepts_none(make_producer, stored, records, said):
    async with make_producer() as producer:
        with pytest.raises(UsageError, match=said):
            await producer.put_many(records)
        assert producer.outstanding == 0
    assert stored() == []


@EVERY_API
async def test_what_a_generator_raises_is_not_taken_for_a_wrong_argument(make_producer, stored):
    def broken():
        yield ("k", b"x")
        yield 1 + "one"

    async with make_producer() as producer:
        with pytest.raises(TypeError, match="unsupported operand"):
            await producer.put_many(broken())
    assert stored() == [("k", b"x")]


@pytest.mark.parametrize("company", [0, 5])
async def test_a_payload_that_is_an_aggregate_comes_back_unopened(make_producer, stored, company):
    """P12: data that looks like an aggregate is not unpacked."""
    inner = aggregate([("a", b"1"), ("b", b"2")])
    async with make_producer() as producer:
        await producer.put(inner, key="k")
        for _ in range(company):
            await producer.put(b"x", key="k")
    assert ("k", inner) in stored()
    assert len(stored()) == 1 + company


async def test_keyless_records_spread_over_the_shards(make_producer, kinesis, all_in_range):
    """P8: keyless records are spread over the shards."""
    async with make_producer(aggregate_max_count=10) as producer:
        deliveries = await producer.put_many([(None, b"%d" % number) for number in range(400)])
        shards = {(await delivery).shard_id for delivery in deliveries}
    assert len(shards) == 4
    assert all_in_range()
    records = deaggregate(kinesis.streams["s"].records)
    assert sorted(int(record.data) for record in records) == list(range(400))
    assert all(record.key for record in records)


async def test_explicit_hash_keys_decide_the_shard(make_producer, kinesis, all_in_range):
    ranges = {shard.shard_id: shard.hash_range for shard in kinesis.streams["s"].shards}
    async with make_producer() as producer:
        for shard_id, hash_range in ranges.items():
            for hash_key in (hash_range.start, hash_range.middle, hash_range.end):
                delivery = await producer.put(b"x", key="the same for all", explicit_hash_key=str(hash_key))
                delivery.add_done_callback(
                    lambda one, shard_id=shard_id: found.append((shard_id, one.receipt().shard_id))
                )
        found = []
        await producer.flush()
    assert len(found) == 12
    assert all(wanted == landed for wanted, landed in found)
    assert all_in_range()
