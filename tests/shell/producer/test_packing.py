"""Do packed values arrive in their format, with a receipt each, and come back through the consumer?"""

import json

import pytest
from tests.shell.blocking import EVERY_API

import shardline.sync
from shardline import Consumer, Producer, ProducerConfig, UsageError, deserializers

pytestmark = pytest.mark.anyio

READERS = {
    "json-lines": deserializers.json_lines,
    "json-list": deserializers.json_list,
    "netstrings": deserializers.netstrings,
    "length-prefixed": deserializers.length_prefixed,
}


def connection(kinesis):
    return {"endpoint_url": kinesis.endpoint_url, "region": kinesis.region, "credentials": kinesis.credentials}


@EVERY_API
@pytest.mark.parametrize("packing", READERS)
async def test_values_come_back_through_the_consumer_by_key_with_a_receipt_each(make_producer, kinesis, packing):
    keys = ["a", "b", "\u00e9", None]
    async with make_producer(packing=packing, serializer=lambda value: json.dumps(value).encode()) as producer:
        first = [await producer.put({"n": n}, key=keys[n % 4]) for n in range(40)]
        rest = await producer.put_many([(keys[n % 4], {"n": n}) for n in range(40, 80)])
        assert await producer.flush() == []
        receipts = [await delivery for delivery in [*first, *rest]]
    found = {}
    async with Consumer("s", deserializer=READERS[packing], until="latest", **connection(kinesis)) as consumer:
        async for record in consumer:
            for place, value in enumerate(record.value):
                n = (value if isinstance(value, dict) else json.loads(value))["n"]
                found[n] = (record.key, record.shard_id, str(record.sequence_number), place)
    assert sorted(found) == list(range(80))
    for n, receipt in enumerate(receipts):
        key, *place = found[n]
        assert place == [receipt.shard_id, str(receipt.sequence_number), receipt.sub_sequence]
        assert keys[n % 4] in (key, None)
    assert len({place[:3] for place in found.values()}) < 80, "values share records"


@pytest.mark.parametrize(
    ("packing", "data", "said"),
    [
        ("json-lines", b"no JSON", "must be one JSON text in UTF-8"),
        ("json-lines", b"[1,\n2]", "must not contain a newline"),
        ("json-list", b"1, 2", "must be one JSON text in UTF-8"),
        ("json-list", "1", "data must be bytes, not str"),
        ("json-list", b"", "must be one JSON text in UTF-8"),
    ],
)
@EVERY_API
async def test_values_that_are_invalid_for_the_format_are_refused(make_producer, kinesis, packing, data, said):
    async with make_producer(packing=packing) as producer:
        with pytest.raises(UsageError, match=said):
            await producer.put(data, key="k")
        with pytest.raises(UsageError, match=said):
            producer.put_nowait(data)
        with pytest.raises(UsageError, match=f"record 1: .*{said}"):
            await producer.put_many([("k", b"1"), ("k", data)])
        await producer.put(b"1", key="k")
    assert [READERS[packing](record.data) for record in kinesis.streams["s"].records] == [[1]]


@pytest.mark.parametrize(
    ("packing", "more"), [("json-lines", 1), ("json-list", 2), ("netstrings", 9), ("length-prefixed", 4)]
)
@EVERY_API
async def test_the_largest_value_is_known_exactly(make_producer, kinesis, packing, more):
    largest = (1 << 20) - len("k") - more
    async with make_producer(packing=packing, record_max_bytes=1 << 20) as producer:
        with pytest.raises(UsageError, match=f"and needs {more} more, packed as {packing}"):
            await producer.put(b"1" * (largest + 1), key="k")
        with pytest.raises(UsageError, match=r"record 0: .*this one has"):
            await producer.put_many([("k", b"1" * (largest + 1))])
        await (await producer.put(b"1" * largest, key="k"))
    [record] = kinesis.streams["s"].records
    assert len(record.data) + len(record.key) == 1 << 20


async def test_the_argument_replaces_the_setting(kinesis):
    settings = {"config": ProducerConfig(packing="netstrings", linger=0.005), **connection(kinesis)}
    async with Producer("s", **settings) as producer:
        await producer.put(b"1", key="k")
    async with Producer("s", **settings, packing="json-list") as producer:
        await producer.put(b"2", key="k")
    assert [record.data for record in kinesis.streams["s"].records] == [b"1:1,", b"[2]"]


@pytest.mark.parametrize("kind", [Producer, shardline.sync.Producer])
def test_a_wrong_format_is_named(kind):
    with pytest.raises(UsageError, match=r"packing must be 'json-lines' or .* or None, not 'xml'"):
        kind("s", packing="xml")
    with pytest.raises(UsageError, match="packing needs aggregation=True"):
        kind("s", packing="netstrings", config=ProducerConfig(aggregation=False))


async def test_a_record_that_is_not_in_the_format_goes_through_the_failure_policy(make_producer, kinesis):
    async with make_producer(aggregation=False) as producer:
        await producer.put(b"\0\0\0\5abc", key="k")
        await producer.put(b"\0\0\0\3abc", key="k")
    buried, handled = [], []

    async def handle(record):
        handled.append(record.value)

    async with Consumer(
        "s", deserializer=deserializers.length_prefixed, until="latest", **connection(kinesis)
    ) as consumer:
        await consumer.run(handle, dead_letter=buried.append)
    assert handled == [[b"abc"]]
    [letter] = buried
    assert [record.data for record in letter.records] == [b"\0\0\0\5abc"]
    assert "5 bytes announced, 3 found" in str(letter.error)


def test_the_blocking_producer_packs_too(kinesis):
    with shardline.sync.Producer("s", packing="json-lines", **connection(kinesis)) as producer:
        deliveries = [producer.put(b"%d" % n, key="k") for n in range(3)]
        with pytest.raises(UsageError, match="JSON text"):
            producer.put(b"{", key="k")
        assert [delivery.result(timeout=10).sub_sequence for delivery in deliveries] == [0, 1, 2]
    with shardline.sync.Consumer(
        "s", deserializer=deserializers.json_lines, until="latest", **connection(kinesis)
    ) as consumer:
        assert [record.value for record in consumer] == [[0, 1, 2]]
