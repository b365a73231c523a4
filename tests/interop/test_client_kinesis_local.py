"""Does our client work with a third-party server in every operation, on asyncio and on trio?

kinesis-local is the only emulator with the right lineage, filters, child shards and ARN addressing. The tests use JSON
over plain HTTP, TLS and HTTP/2, and CBOR where its answers can be used.
"""

from datetime import UTC, datetime

import anyio
import pytest

import shardline
from shardline import Client, Credentials, Entry, ServiceError, ShardFilter, UsageError

pytestmark = [pytest.mark.interop, pytest.mark.anyio]

CREDENTIALS = Credentials("AKIDEXAMPLE", "secret")


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request):
    return request.param


def client_of(server, **settings):
    settings.setdefault("endpoint_url", server.http_url)
    return Client(region="us-east-1", credentials=CREDENTIALS, **settings)


async def read_shard(client, stream, shard_id, position="TRIM_HORIZON"):
    """Return every record of a shard until it ends or nothing more arrives, and the last page."""
    iterator = await client.get_shard_iterator(stream, shard_id, position)
    records = []
    while True:
        page = await client.get_records(iterator)
        records.extend(page.records)
        if page.next_iterator is None or (not page.records and page.millis_behind_latest == 0):
            return records, page
        iterator = page.next_iterator


@pytest.mark.parametrize("protocol", ["json", "cbor"])
async def test_records_come_back_as_they_were_put(kinesis_local, stream_name, protocol):
    async with client_of(kinesis_local, protocol=protocol) as client:
        await client.create_stream(stream_name, shards=2, wait=30)
        entries = [Entry(bytes([n]) * n, f"schlüssel-{n}") for n in range(1, 40)]
        answer = await client.put_records(stream_name, entries)
        assert answer.failed_count == 0
        assert [result.error_code for result in answer.records] == [None] * len(entries)
        shards = await client.list_shards(stream_name)
        by_id = {shard.shard_id: shard for shard in shards}
        for entry, result in zip(entries, answer.records, strict=True):
            assert shardline.hash_key_of(entry.key) in by_id[result.shard_id].hash_range
        seen = {}
        for shard in shards:
            records, _ = await read_shard(client, stream_name, shard.shard_id)
            numbers = [int(record.sequence_number) for record in records]
            assert numbers == sorted(set(numbers))
            seen |= {record.sequence_number: (record.data, record.key) for record in records}
        assert seen == {
            result.sequence_number: (entry.data, entry.key)
            for entry, result in zip(entries, answer.records, strict=True)
        }


async def test_over_tls_with_a_certificate_that_verifies(kinesis_local, stream_name):
    settings = {"endpoint_url": kinesis_local.https_url, "verify": kinesis_local.ca_path}
    async with client_of(kinesis_local, **settings) as client:
        await client.create_stream(stream_name, wait=30)
        put = await client.put_record(stream_name, b"over tls", "k")
        records, _ = await read_shard(client, stream_name, put.shard_id)
        assert [(record.data, record.sequence_number) for record in records] == [(b"over tls", put.sequence_number)]


async def test_over_http2(kinesis_local, stream_name):
    settings = {"endpoint_url": kinesis_local.https_url, "verify": kinesis_local.ca_path, "http2": True}
    async with client_of(kinesis_local, **settings) as client:
        await client.create_stream(stream_name, wait=30)
        put = await client.put_record(stream_name, b"h2", "k")
        records, _ = await read_shard(client, stream_name, put.shard_id)
        assert [record.data for record in records] == [b"h2"]


@pytest.mark.parametrize("protocol", ["json", "cbor"])
async def test_every_kind_of_position(kinesis_local, stream_name, protocol):
    async with client_of(kinesis_local, protocol=protocol) as client:
        await client.create_stream(stream_name, wait=30)
        puts = [await client.put_record(stream_name, b"%d" % n, "k") for n in range(4)]
        shard_id = puts[0].shard_id

        async def data_from(position):
            return [record.data for record in (await read_shard(client, stream_name, shard_id, position))[0]]

        assert await data_from("TRIM_HORIZON") == [b"0", b"1", b"2", b"3"]
        assert await data_from("LATEST") == []
        assert await data_from(shardline.at_sequence_number(puts[2].sequence_number)) == [b"2", b"3"]
        assert await data_from(shardline.after_sequence_number(puts[2].sequence_number)) == [b"3"]
        assert await data_from(datetime(2020, 1, 1, tzinfo=UTC)) == [b"0", b"1", b"2", b"3"]


async def test_a_closed_shard_ends_and_names_its_children(kinesis_local, stream_name):
    async with client_of(kinesis_local) as client:
        await client.create_stream(stream_name, wait=30)
        put = await client.put_record(stream_name, b"before the split", "k")
        await client.split_shard(stream_name, put.shard_id, wait=30)
        records, last = await read_shard(client, stream_name, put.shard_id)
        assert [record.data for record in records] == [b"before the split"]
        assert last.next_iterator is None
        parent, *children = sorted(await client.list_shards(stream_name), key=lambda shard: shard.shard_id)
        assert not parent.is_open
        assert [child.parent_ids for child in children] == [(put.shard_id,)] * 2
        assert sorted(child.shard_id for child in last.child_shards) == [child.shard_id for child in children]
        assert [shard.shard_id for shard in await client.list_shards(stream_name, "AT_LATEST")] == [
            child.shard_id for child in children
        ]
        await client.merge_shards(stream_name, children[0].shard_id, children[1].shard_id, wait=30)
        [merged] = await client.list_shards(stream_name, ShardFilter("AT_LATEST"))
        assert set(merged.parent_ids) == {child.shard_id for child in children}
        assert merged.hash_range == parent.hash_range


async def test_update_shard_count(kinesis_local, stream_name):
    async with client_of(kinesis_local) as client:
        await client.create_stream(stream_name, shards=2, wait=30)
        update = await client.update_shard_count(stream_name, 4, wait=30)
        assert (update.current_shard_count, update.target_shard_count) == (2, 4)
        assert len(await client.list_shards(stream_name, "AT_LATEST")) == 4


async def test_many_shards_come_in_pages(kinesis_local, stream_name):
    """kinesis-local returns 1,000 at a time, as the service does; a smaller page tests the paging."""
    async with client_of(kinesis_local) as client:
        await client.create_stream(stream_name, shards=25, wait=30)
        first = await client.call("ListShards", {"StreamName": stream_name, "MaxResults": 10})
        assert len(first["Shards"]) == 10
        second = await client.call("ListShards", {"NextToken": first["NextToken"], "MaxResults": 10})
        assert second["Shards"][0]["ShardId"] == "shardId-000000000010"
        assert len(await client.list_shards(stream_name)) == 25


async def test_a_stream_is_named_by_its_arn_too(kinesis_local, stream_name):
    async with client_of(kinesis_local) as client:
        await client.create_stream(stream_name, wait=30)
        arn = (await client.describe_stream_summary(stream_name)).arn
        assert (await client.describe_stream_summary(arn)).name == stream_name
        answer = await client.put_records(arn, [(b"by arn", "k")])
        shard_id = answer.records[0].shard_id
        iterator = await client.get_shard_iterator(arn, shard_id, "TRIM_HORIZON")
        page = await client.get_records(iterator, stream=arn)
        assert [record.data for record in page.records] == [b"by arn"]
        assert len(await client.list_shards(arn)) == 1


async def test_fan_out_pushes_what_was_put(kinesis_local, stream_name):
    async with client_of(kinesis_local) as client:
        await client.create_stream(stream_name, wait=30)
        consumer = await client.register_stream_consumer(stream_name, "reader", wait=30)
        assert (consumer.name, consumer.status) == ("reader", "ACTIVE")
        assert (await client.describe_stream_consumer(stream=stream_name, name="reader")).arn == consumer.arn
        assert [one.name for one in await client.list_stream_consumers(stream_name)] == ["reader"]
        put = await client.put_record(stream_name, b"pushed", "k")
        seen = []
        with anyio.fail_after(20):
            async with client.subscribe_to_shard(consumer.arn, put.shard_id, "TRIM_HORIZON") as events:
                async for event in events:
                    seen.extend(record.data for record in event.records)
                    if seen:
                        assert event.continuation_sequence_number is not None
                        break
        assert seen == [b"pushed"]
        await client.deregister_stream_consumer(consumer.arn)


async def test_tags_retention_and_record_size(kinesis_local, stream_name):
    async with client_of(kinesis_local) as client:
        await client.create_stream(stream_name, wait=30)
        await client.add_tags_to_stream(stream_name, {"team": "orders", "env": "test"})
        await client.remove_tags_from_stream(stream_name, ["env"])
        assert await client.list_tags_for_stream(stream_name) == {"team": "orders"}
        await client.increase_stream_retention_period(stream_name, 48)
        assert (await client.describe_stream_summary(stream_name)).retention_hours == 48
        await client.decrease_stream_retention_period(stream_name, 24)
        assert (await client.describe_stream_summary(stream_name)).retention_hours == 24
        await client.update_max_record_size(stream_name, 2048)
        assert (await client.describe_stream_summary(stream_name)).max_record_bytes == 2 * 1024 * 1024


async def test_streams_are_listed_and_deleted(kinesis_local, stream_name):
    async with client_of(kinesis_local) as client:
        await client.create_stream(stream_name, wait=30)
        assert stream_name in [stream.name for stream in await client.list_streams()]
        await client.delete_stream(stream_name, wait=30)
        assert stream_name not in [stream.name for stream in await client.list_streams()]


async def test_an_on_demand_stream(kinesis_local, stream_name):
    async with client_of(kinesis_local) as client:
        await client.create_stream(stream_name, mode="ON_DEMAND", wait=30)
        assert (await client.describe_stream_summary(stream_name)).mode == "ON_DEMAND"


async def test_any_other_operation_goes_through_call(kinesis_local, stream_name):
    async with client_of(kinesis_local) as client:
        limits = await client.call("DescribeLimits")
        assert limits["ShardLimit"] == 10_000
        await client.create_stream(stream_name, wait=30)
        put = await client.call("PutRecord", {"StreamName": stream_name, "Data": b"\x00raw", "PartitionKey": "k"})
        iterator = await client.call(
            "GetShardIterator",
            {
                "StreamName": stream_name,
                "ShardId": put["ShardId"],
                "ShardIteratorType": "AT_TIMESTAMP",
                "Timestamp": datetime(2020, 1, 1, tzinfo=UTC),
            },
        )
        page = await client.call("GetRecords", {"ShardIterator": iterator["ShardIterator"]})
        assert [record["Data"] for record in page["Records"]] == [b"\x00raw"]


async def test_a_missing_stream_is_not_found(kinesis_local, stream_name):
    async with client_of(kinesis_local) as client:
        with pytest.raises(ServiceError) as caught:
            await client.put_records(stream_name, [(b"x", "k")])
        error = caught.value
        assert (error.kind, error.code, error.status) == ("not-found", "ResourceNotFoundException", 400)
        assert error.operation == "PutRecords"
        assert not error.retryable
        assert stream_name in str(error)


async def test_an_operation_that_does_not_exist_is_refused_for_good(kinesis_local):
    """The service answers UnknownOperationException, kinesis-local AccessDeniedException."""
    async with client_of(kinesis_local) as client:
        with pytest.raises(ServiceError) as caught:
            await client.call("MakeCoffee", {})
        assert caught.value.operation == "MakeCoffee"
        assert not caught.value.retryable


async def test_a_stream_in_use_says_so(kinesis_local, stream_name):
    async with client_of(kinesis_local) as client:
        await client.create_stream(stream_name, wait=30)
        with pytest.raises(ServiceError) as caught:
            await client.create_stream(stream_name)
        assert (caught.value.kind, caught.value.retryable) == ("in-use", True)


async def test_an_aggregate_goes_through_the_stream_whole(kinesis_local, stream_name):
    async with client_of(kinesis_local) as client:
        await client.create_stream(stream_name, wait=30)
        members = [("user-1", b"one"), ("user-2", b"two"), ("user-1", b"three")]
        put = await client.put_record(stream_name, shardline.aggregate(members), "user-1")
        raw, _ = await read_shard(client, stream_name, put.shard_id)
        assert len(raw) == 1
        records = shardline.deaggregate([record.data for record in raw])
        assert [(record.key, record.data) for record in records] == members
        assert [record.sub_sequence for record in records] == [0, 1, 2]


async def test_bad_input_is_refused_before_anything_is_sent(kinesis_local):
    async with client_of(kinesis_local) as client:
        for wrong in ([], [("text", "k")], [(b"x", "")], [(b"x", "k", "-1")], [(b"x", "k")] * 501, ["entry"]):
            with pytest.raises(UsageError):
                await client.put_records("orders", wrong)
        with pytest.raises(UsageError, match="not a stream name"):
            await client.put_records("no/such name", [(b"x", "k")])
