"""Does our client work with other emulators, in the parts that they implement correctly?

kinesalite: names only, no paging tokens, old JSON and CBOR. ministack: fan-out with the service's own order of frames
(initial-response first).
"""

import anyio
import pytest

from shardline import Client, Credentials, Entry, ServiceError

pytestmark = [pytest.mark.interop, pytest.mark.anyio]

CREDENTIALS = Credentials("AKIDEXAMPLE", "secret")


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request):
    return request.param


def client_of(server, **settings):
    return Client(region="us-east-1", credentials=CREDENTIALS, endpoint_url=server.http_url, **settings)


async def read_some(client, stream, shard_id, count):
    iterator = await client.get_shard_iterator(stream, shard_id, "TRIM_HORIZON")
    records = []
    with anyio.fail_after(20):
        while len(records) < count:
            page = await client.get_records(iterator)
            records.extend(page.records)
            iterator = page.next_iterator
    return records


async def test_kinesalite_puts_reads_splits_and_merges(kinesalite, stream_name):
    async with client_of(kinesalite) as client:
        await client.create_stream(stream_name, shards=1, wait=30)
        answer = await client.put_records(stream_name, [Entry(b"%d" % n, "k") for n in range(500)])
        assert answer.failed_count == 0
        shard_id = answer.records[0].shard_id
        records = await read_some(client, stream_name, shard_id, 500)
        assert [record.data for record in records] == [b"%d" % n for n in range(500)]
        await client.split_shard(stream_name, shard_id, wait=30)
        children = [shard for shard in await client.list_shards(stream_name) if shard.is_open]
        assert [child.parent_ids for child in children] == [(shard_id,), (shard_id,)]
        await client.merge_shards(stream_name, children[0].shard_id, children[1].shard_id, wait=30)
        assert len([shard for shard in await client.list_shards(stream_name) if shard.is_open]) == 1
        await client.delete_stream(stream_name, wait=30)


async def test_kinesalite_takes_our_cbor(kinesalite, stream_name):
    """kinesalite routes by our keys and numbers the records. It keeps CBOR data as a JavaScript object, so none is read
    back.
    """
    async with client_of(kinesalite, protocol="cbor") as client:
        await client.create_stream(stream_name, shards=2, wait=30)
        lower, upper = await client.list_shards(stream_name)
        entries = [Entry(bytes(range(256)), "k", "7"), Entry(b"x", "k", str(upper.hash_range.start))]
        answer = await client.put_records(stream_name, entries)
        assert [result.shard_id for result in answer.records] == [lower.shard_id, upper.shard_id]
        assert all(int(result.sequence_number) > 0 for result in answer.records)


@pytest.mark.parametrize("protocol", ["json", "cbor"])
async def test_kinesalite_errors_in_both_protocols(kinesalite, stream_name, protocol):
    async with client_of(kinesalite, protocol=protocol) as client:
        with pytest.raises(ServiceError) as caught:
            await client.describe_stream_summary(stream_name)
        assert (caught.value.kind, caught.value.code) == ("not-found", "ResourceNotFoundException")
        with pytest.raises(ServiceError) as caught:
            await client.get_records("garbage")
        assert caught.value.kind == "invalid"


async def test_ministack_fan_out(ministack, stream_name):
    async with client_of(ministack) as client:
        await client.create_stream(stream_name, shards=1, wait=30)
        consumer = await client.register_stream_consumer(stream_name, "reader", wait=30)
        put = await client.put_record(stream_name, b"first", "k")
        seen = []
        with anyio.fail_after(20):
            async with client.subscribe_to_shard(consumer.arn, put.shard_id, "TRIM_HORIZON") as events:
                async for event in events:
                    if event.records and not seen:
                        await client.put_record(stream_name, b"second", "k")
                    seen.extend(record.data for record in event.records)
                    if len(seen) == 2:
                        break
        assert seen == [b"first", b"second"]


async def test_ministack_put_and_read(ministack, stream_name):
    async with client_of(ministack) as client:
        await client.create_stream(stream_name, shards=2, wait=30)
        answer = await client.put_records(stream_name, [Entry(b"a" * 900_000, "big"), Entry(b"b", "small")])
        for result, data in zip(answer.records, (b"a" * 900_000, b"b"), strict=True):
            assert data in [record.data for record in await read_some(client, stream_name, result.shard_id, 1)]
