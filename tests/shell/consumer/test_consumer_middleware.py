"""Does every record pass through the middleware before user code gets it, and is a refused record never skipped?"""

import msgspec
import pytest
from tests.shell.blocking import EVERY_API

import shardline.sync
from shardline import Consumer, FailurePolicy, HandlerFailed, Producer, Record, UsageError
from shardline.aio.consumer.read_chain import read_chain
from shardline.middleware import compress, decompress, replace, validate
from shardline.model.record import Origin

pytestmark = pytest.mark.anyio

HASTY = FailurePolicy(attempts=2, backoff=0.01, backoff_max=0.02)


class Order(msgspec.Struct):
    id: int


def suffix(text):
    def add(record):
        return replace(record, data=record.data + text)

    return add


def async_suffix(text):
    async def add(record):
        return suffix(text)(record)

    return add


def refuse(*poison):
    def check(record):
        if record.data in poison:
            raise ValueError("refused")
        return record

    return check


LAYERS = [suffix(b"a"), suffix(b"b")]
EXPECTED = [b"%dab" % number for number in range(5)]


@EVERY_API
@pytest.mark.parametrize("way", ["records", "batches", "run", "run-batch", "thread", "key"])
async def test_every_record_passes_through_all_middleware_in_order(make_consumer, put, way):
    await put(range(5), keys=1)
    found = []

    async def handle(given):
        found.extend(given if way == "run-batch" else [given])

    async with make_consumer(middleware=LAYERS, until="latest") as consumer:
        if way == "records":
            async for record in consumer:
                found.append(record)
        elif way == "batches":
            async for batch in consumer.batches(max_records=2):
                found += batch
                assert batch.ack()
        elif way == "thread":
            await consumer.run(found.append)
        elif way == "key":
            await consumer.run(found.append, concurrency=4, order="key")
        else:
            await consumer.run(handle, batch=2 if way == "run-batch" else None)
    assert [record.data for record in found] == EXPECTED
    assert [record.value for record in found] == EXPECTED
    assert all(record.lease is not None and record.lag is not None for record in found)


@pytest.mark.parametrize("way", ["records", "batches", "run"])
async def test_async_middleware(make_consumer, put, way):
    await put(range(5), keys=1)
    found = []

    async def handle(record):
        found.append(record.data)

    async with make_consumer(middleware=[suffix(b"a"), async_suffix(b"b")], until="latest") as consumer:
        if way == "records":
            async for record in consumer:
                found.append(record.data)
        elif way == "batches":
            async for batch in consumer.batches():
                found += [record.data for record in batch]
        else:
            with pytest.raises(UsageError, match="async middleware needs an async handler"):
                await consumer.run(found.append)
            await consumer.run(handle)
    assert found == EXPECTED


@EVERY_API
@pytest.mark.parametrize("batch", [None, 3])
async def test_a_refused_record_goes_through_the_failure_policy(make_consumer, put, batch):
    await put(range(5), keys=1)
    letters, found = [], []

    def handle(given):
        found.extend(record.data for record in (given if batch else [given]))

    async with make_consumer(middleware=[refuse(b"2"), suffix(b"x")], until="latest") as consumer:
        await consumer.run(handle, batch=batch, policy=HASTY, dead_letter=letters.append)
    assert sorted({*found}) == [b"0x", b"1x", b"3x", b"4x"]
    ((record,),) = [letter.records for letter in letters]
    assert (record.data, str(letters[0].error)) == (b"2", "refused"), "the dead letter is the record as it was read"


@EVERY_API
async def test_a_refused_record_stops_a_run_without_dead_letters(make_consumer, put, group):
    await put(range(3), keys=1)
    found = []
    async with make_consumer(middleware=[refuse(b"1")], group=group, store="memory:") as consumer:
        with pytest.raises(HandlerFailed) as stopped:
            await consumer.run(found.append, policy=HASTY)
    assert isinstance(stopped.value.__cause__, ValueError)
    async with make_consumer(group=group, store="memory:", until="latest") as consumer:
        await consumer.run(found.append)
    assert [record.data for record in found] == [b"0", b"1", b"2"], "it was not skipped"


@EVERY_API
@pytest.mark.parametrize("batches", [False, True])
async def test_a_refused_record_is_not_skipped_by_an_iteration(make_consumer, put, group, batches):
    await put(range(4), keys=1)
    check, found = refuse(b"2"), []
    refused = []

    def check_once(record):
        if not refused or record.data != b"2":
            try:
                return check(record)
            except ValueError:
                refused.append(record)
                raise
        return record

    async with make_consumer(middleware=[check_once], group=group, store="memory:", until="latest") as consumer:
        for _ in range(2):  # the second iteration begins where the first one failed
            try:
                if batches:
                    async for batch in consumer.batches(max_records=1):
                        found += [record.data for record in batch]
                else:
                    async for record in consumer:
                        found.append(record.data)
            except ValueError:
                assert found == [b"0", b"1"]
    assert (found, len(refused)) == ([b"0", b"1", b"2", b"3"], 1)


@EVERY_API
@pytest.mark.parametrize("encoding", ["gzip", "zstd"])
async def test_compressed_records_come_back(make_consumer, connection, encoding):
    data = [b'{"id": %d, "text": "%s"}' % (number, b"abc" * 300) for number in range(20)]
    async with Producer("s", middleware=[validate(Order), compress(encoding)], **connection) as producer:
        await producer.put_many([("k", each) for each in data])
    layers = [decompress(), validate(Order)]
    decode = msgspec.json.Decoder(Order).decode
    async with make_consumer(middleware=layers, deserializer=decode, until="latest") as consumer:
        found = [record async for record in consumer]
    assert [record.data for record in found] == data
    assert [record.value.id for record in found] == list(range(20))
    assert {len(record.headers) for record in found} == {0}


@EVERY_API
async def test_a_bomb_is_dead_lettered(make_consumer, connection, caplog):
    async with Producer("s", middleware=[compress()], **connection) as producer:
        await producer.put_many([("k", b"%d" % number + bytes(size)) for number, size in enumerate((10, 10**6, 10))])
    letters, found = [], []
    async with make_consumer(middleware=[decompress(max_bytes=1_000)], until="latest") as consumer:
        await consumer.run(found.append, policy=HASTY, dead_letter=letters.append)
    assert [record.data[:1] for record in found] == [b"0", b"2"]
    ((bomb,),) = [letter.records for letter in letters]
    assert decompress()(bomb).data[:1] == b"1", "it can be read again with another limit"
    assert "the decompressed data has more than 1000 bytes" in caplog.text


def add_z(record):
    return replace(record, data=record.data + b"z")


def check_z(record):
    assert record.data.endswith(b"z")


async def check_z_async(record):
    check_z(record)


@pytest.mark.parametrize("handler", [check_z, check_z_async])
async def test_middleware_runs_in_the_processes_of_handlers(make_consumer, put, handler):
    await put(range(5), keys=1)
    async with make_consumer(middleware=[add_z], until="latest") as consumer:
        await consumer.run(handler, processes=1, policy=FailurePolicy(attempts=1))
        assert consumer.status().totals.records_handled == 5


@EVERY_API
async def test_a_middleware_must_return_the_record(make_consumer, put):
    await put(range(1))
    for wrong, message in (
        (lambda record: record.data, "must return a Record, not bytes"),
        (lambda record: type(record)(record.data, record.key), "must return the record it got, or a copy"),
    ):
        async with make_consumer(middleware=[wrong], until="latest") as consumer:
            with pytest.raises(UsageError, match=message):
                async for _ in consumer:
                    pass


@pytest.mark.parametrize("kind", [Consumer, shardline.sync.Consumer])
@pytest.mark.parametrize("middleware", [decompress(), "decompress", [None], 7])
def test_middleware_must_be_a_list_of_callables(kind, middleware):
    with pytest.raises(UsageError, match="middleware must be a list of callables"):
        kind("s", region="eu-west-1", middleware=middleware)


def test_the_blocking_consumer_takes_no_async_middleware():
    with pytest.raises(UsageError, match="the blocking API takes no async middleware, such as async_suffix"):
        shardline.sync.Consumer("s", region="eu-west-1", middleware=[async_suffix(b"a")])


async def test_headers_that_a_middleware_adds_count_for_the_page():
    origin = Origin()
    origin.may_have_headers = False
    record = Record(b"data", "key", sequence_number="1", shard_id="shardId-1", origin=origin)
    assert read_chain([lambda given: given]).read(record) is record
    assert not origin.may_have_headers
    assert read_chain([lambda given: replace(given, headers={"a": "b"})]).read(record).headers == {"a": "b"}
    assert origin.may_have_headers
