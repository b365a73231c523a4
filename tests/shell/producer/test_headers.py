"""Do the headers of a put come back with the record, and is a put refused where they cannot be sent?"""

from collections import UserDict
from enum import Enum

import pytest
from tests.shell.blocking import EVERY_API

from shardline import Consumer, UsageError, aggregate, deaggregate
from shardline.events import ChannelsFound
from shardline.model.headers import NO_HEADERS

pytestmark = pytest.mark.anyio

TRACE = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "content-type": "text/plain"}


class Name(str, Enum):  # noqa: UP042 - a StrEnum would be harmless
    TRACE = "traceparent"


class Raising(UserDict):
    def items(self):
        raise LookupError("private")


class Changing(UserDict):
    """A mapping that another thread changes while it is read."""

    def items(self):
        for pair in self.data.items():
            self.data[f"more{len(self.data)}"] = ""
            yield pair


HOSTILE = {
    "a list of pairs": ([("a", "1")], "headers must be a mapping of names to values, not list"),
    "a name of bytes": ({b"a": "1"}, "a header's name must be a str, not bytes"),
    "a name that is None": ({None: "1"}, "a header's name must be a str, not NoneType"),
    "an empty name": ({"": "1"}, "a header's name has 1 to 128 ASCII letters"),
    "the name of a stamp": ({":": "1"}, "a header's name has 1 to 128 ASCII letters"),
    "a name with NUL": ({"a\x00": "1"}, "a header's name has 1 to 128 ASCII letters"),
    "a value that is None": ({"a": None}, "the header 'a' must be a str, not NoneType"),
    "a lone surrogate": ({"a": "\ud800"}, "the header 'a' has a lone surrogate"),
    "a huge value": ({"a": "x" * (1 << 20)}, "at most 16384 bytes with their names"),
    "thousands": (dict.fromkeys(map("h{}".format, range(5_000)), ""), "at most 64 headers, and these are more"),
    "a mapping that raises": (Raising(a="1"), "the headers could not be read: their mapping raised LookupError"),
    "a mapping that changes": (Changing(a="1"), "the headers could not be read: their mapping raised RuntimeError"),
}


def connection(kinesis):
    return {"endpoint_url": kinesis.endpoint_url, "region": kinesis.region, "credentials": kinesis.credentials}


async def create_on_demand(kinesis, name, *, auto=False, channel=False):
    async with kinesis.client() as client:
        members = {"StreamName": name, "StreamModeDetails": {"StreamMode": "ON_DEMAND"}}
        await client.call("CreateStream", members | ({"RecordDistributionStrategy": "AUTO"} if auto else {}))
        if channel:
            arn = (await client.describe_stream_summary(name)).arn
            bucket = {
                "BucketARN": "arn:aws:s3:::records",
                "ExpectedBucketOwner": "000000000000",
                "CompressionType": "GZIP",
            }
            await client.call(
                "CreateChannel",
                {
                    "ChannelName": "c",
                    "ServiceExecutionRoleARN": "arn:aws:iam::000000000000:role/delivery",
                    "StreamConfigurationList": [
                        {"StreamARN": arn, "RecordConfiguration": {"RecordFormatType": "JSON"}}
                    ],
                    "S3DestinationConfiguration": {"StorageConfiguration": bucket},
                },
            )


@EVERY_API
@pytest.mark.parametrize("settings", [{}, {"ordered": True}, {"aggregate_max_count": 1}, {"aggregation": "force"}])
async def test_they_come_back_with_every_record_however_it_was_put(make_producer, kinesis, settings):
    async with make_producer(**settings) as producer:
        deliveries = [
            await producer.put(b"put", key="k", headers=TRACE),
            producer.put_nowait(b"nowait", key="k", explicit_hash_key="7", headers={"proof-bin": b"\x00\xff"}),
            await producer.put(b"keyless", headers={"a": "é"}),
            await producer.put(b"plain", key="k"),
            await producer.put(b"empty", key="k", headers={}),
            *await producer.put_many([("m", b"many", TRACE), (None, b"four", None, {"b": ""}), ("m", b"two")]),
            *await producer.put_many(iter([("m", b"taken", "7", TRACE)])),
        ]
        receipts = [await delivery for delivery in deliveries]
    expected = {
        b"put": TRACE,
        b"nowait": {"proof-bin": "AP8="},
        b"keyless": {"a": "é"},
        b"plain": {},
        b"empty": {},
        b"many": TRACE,
        b"four": {"b": ""},
        b"two": {},
        b"taken": TRACE,
    }
    assert [delivery.headers for delivery in deliveries] == list(expected.values())
    found = {}
    async with Consumer("s", until="latest", **connection(kinesis)) as consumer:
        async for record in consumer:
            found[record.data] = record
    assert {data: record.headers for data, record in found.items()} == expected
    assert found[b"plain"].headers is NO_HEADERS
    places = [(found[data].shard_id, found[data].sequence_number, found[data].sub_sequence) for data in expected]
    assert places == [(one.shard_id, one.sequence_number, one.sub_sequence) for one in receipts]
    stored = deaggregate(kinesis.streams["s"].records)
    assert {record.data: record.headers for record in stored} == expected


@EVERY_API
async def test_a_lone_record_is_an_aggregate_of_one_and_without_headers_it_is_plain(make_producer, kinesis):
    async with make_producer() as producer:
        await (await producer.put(b"x", key="k", headers={"a": "1"}))
        await (await producer.put(b"y", key="k"))
    headed, plain = kinesis.streams["s"].records
    assert (plain.data, headed.key) == (b"y", "k")
    assert headed.data.startswith(b"\xf3\x89\x9a\xc2")


@EVERY_API
async def test_wrong_headers_are_refused_and_named(make_producer, kinesis):
    async with make_producer() as producer:
        with pytest.raises(UsageError, match="the header 'a' must be a str, not int"):
            await producer.put(b"", key="k", headers={"a": 1})
        with pytest.raises(UsageError, match="unlike 'a b'"):
            producer.put_nowait(b"", key="k", headers={"a b": ""})
        with pytest.raises(UsageError, match="record 1: headers must be a mapping") as raised:
            await producer.put_many([("k", b"", TRACE), ("k", b"", None, "a=b")])
        assert raised.value.index == 1
        good, bad = await producer.put_many([("k", b"1", TRACE), ("k", b"2", {"a": 1})], on_invalid="fail")
        assert (await bad.outcome()).code == "InvalidRecord"
        assert "the header 'a' must be a str, not int" in (await bad.outcome()).message
        assert bad.headers == {}
        await good


@EVERY_API
@pytest.mark.parametrize(("headers", "said"), HOSTILE.values(), ids=HOSTILE)
async def test_hostile_headers_cost_nothing_but_their_own_record(make_producer, kinesis, headers, said):
    async with make_producer() as producer:
        with pytest.raises(UsageError, match=said):
            await producer.put(b"", key="k", headers=headers)
        with pytest.raises(UsageError, match=said):
            producer.put_nowait(b"", key="k", headers=headers)
        for records in ([("k", b"", TRACE), ("k", b"", None, headers)], [("k", b""), ("k", b"", None, headers)]):
            with pytest.raises(UsageError, match=f"record 1: .*{said}"):
                await producer.put_many(records)
            with pytest.raises(UsageError, match=f"record 1: .*{said}"):
                aggregate(records)
        assert (producer.outstanding, producer._intake.buffered_bytes) == (0, 0)
        given = [("k", b"1", TRACE), ("k", b"bad", None, headers), ("k", b"2", None, {Name.TRACE: Name.TRACE})]
        for records in (given, iter(given)):
            first, bad, second = await producer.put_many(records, on_invalid="fail")
            outcome = await bad.outcome()
            assert (outcome.code, said in outcome.message, bad.headers) == ("InvalidRecord", True, {})
            await first
            await second
    found = {record.data: record.headers for record in deaggregate(kinesis.streams["s"].records)}
    assert found == {b"1": TRACE, b"2": {"traceparent": "traceparent"}}


@EVERY_API
async def test_a_delivery_keeps_the_headers_of_its_put_whatever_happens_to_the_mapping(make_producer, kinesis):
    headers = {"A": "1", "a": "2"}
    async with make_producer(linger=0.2) as producer:
        delivery = await producer.put(b"x", key="k", headers=headers)
        headers.clear()
        await delivery
    assert delivery.headers == deaggregate(kinesis.streams["s"].records)[0].headers == {"A": "1", "a": "2"}


@EVERY_API
async def test_the_largest_record_counts_its_headers_exactly(make_producer, kinesis, stream):
    async with make_producer(request_max_bytes=2 << 20, record_max_bytes=1 << 20) as producer:
        with pytest.raises(
            UsageError, match=r"takes at most 1048576 bytes with its key, .* more, for its headers"
        ) as raised:
            await producer.put(b"x" * ((1 << 20) - 1), key="k", headers=TRACE)
        needed = int(str(raised.value).split("needs ")[1].split()[0])
        with pytest.raises(UsageError, match="and needs"):
            await producer.put(b"x" * ((1 << 20) - needed), key="k", headers=TRACE)
        await (await producer.put(b"x" * ((1 << 20) - 1 - needed), key="k", headers=TRACE))
    (record,) = stream.records
    assert len(record.data) + len(record.key) == 1 << 20
    assert deaggregate(record)[0].headers == TRACE


@EVERY_API
@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (
            {"aggregation": False},
            "cannot send headers: headers are sent in aggregates, and aggregation=False allows none",
        ),
        ({"packing": "json-list"}, "headers are sent in the KPL's aggregates, and packing='json-list' replaces those"),
    ],
)
async def test_settings_without_aggregates_refuse_headers(make_producer, stored, settings, said):
    async with make_producer(**settings) as producer:
        with pytest.raises(UsageError, match=said):
            await producer.put(b"1", key="k", headers=TRACE)
        with pytest.raises(UsageError, match=said):
            producer.put_nowait(b"1", key="k", headers=TRACE)
        with pytest.raises(UsageError, match=said):
            await producer.put_many([("k", b"1", TRACE)])
        await (await producer.put(b"1", key="k", headers={}))
        assert producer.outstanding == 0
    assert len(stored()) == 1


@EVERY_API
@pytest.mark.parametrize("kind", ["auto", "channel"])
async def test_streams_that_must_not_get_aggregates_refuse_headers(make_producer, kinesis, kind):
    await create_on_demand(kinesis, "other", auto=kind == "auto", channel=kind == "channel")
    said = (
        "AUTO record distribution" if kind == "auto" else 'channels of the stream cannot read: set aggregation="force"'
    )
    kinesis.faults.latency(0.3, operation="DescribeStreamSummary", count=1)  # the early put comes before the answer
    async with make_producer("other") as producer:
        early = await producer.put(b"early", key="k", headers=TRACE)
        plain = await producer.put(b"plain", key="k")
        outcome = await early.outcome()
        assert (outcome.code, said in outcome.message) == ("HeadersRefused", True)
        assert (early.data, early.headers) == (b"early", TRACE)
        await plain
        with pytest.raises(UsageError, match="this producer cannot send headers") as raised:
            await producer.put(b"late", key="k", headers=TRACE)
        assert said in str(raised.value)
    assert [record.data for record in kinesis.streams["other"].records] == [b"plain"]


@EVERY_API
async def test_a_stream_with_channels_gets_one_record_per_entry_and_that_is_said_once(
    make_producer, kinesis, complaints
):
    await create_on_demand(kinesis, "other", channel=True)
    events = []
    async with make_producer("other", sinks=[events.append]) as producer:
        for _ in range(3):
            await producer.put_many([("k", b"%d" % number) for number in range(20)])
            assert await producer.flush() == []
    assert [event for event in events if isinstance(event, ChannelsFound)] == [ChannelsFound(1)]
    assert kinesis.streams["other"].record_count == 60
    assert not any(record.aggregated for record in deaggregate(kinesis.streams["other"].records))
    how = 'nothing is aggregated, except with aggregation="force"'
    said = [text for _, text in complaints() if "channel" in text]
    assert said == [f"other: the stream has 1 channel, which reads records by schema: {how}"]


@EVERY_API
async def test_force_aggregates_all_the_same(make_producer, kinesis):
    await create_on_demand(kinesis, "other", channel=True)
    events = []
    async with make_producer("other", aggregation="force", sinks=[events.append], linger=0.2) as producer:
        await producer.wait_ready()
        await producer.put_many([("k", b"%d" % number) for number in range(20)])
        await (await producer.put(b"headed", key="k", headers=TRACE))
    assert kinesis.streams["other"].record_count < 21
    assert {record.data: record.headers for record in deaggregate(kinesis.streams["other"].records)}[b"headed"] == TRACE
    assert not any(isinstance(event, ChannelsFound) for event in events)


@EVERY_API
async def test_headers_take_room_in_the_buffer(make_producer, kinesis):
    kinesis.faults.throttle(operation="PutRecords")
    async with make_producer(close_timeout=0) as producer:
        await producer.put(b"1234", key="k", headers={"abc": "de"})
        assert producer._intake.buffered_bytes == 4 + 1 + len(b"\x22\x09\x0a\x03abc\x12\x02de")
