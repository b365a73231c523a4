"""Does every put pass through the middleware, in order, and is a record that one refuses not accepted?"""

import asyncio
import json
from functools import partial

import anyio
import msgspec
import pytest
from tests.shell.blocking import EVERY_API
from tests.shell.producer.test_headers import create_on_demand

import shardline.sync
from shardline import Closed, Producer, UsageError, deaggregate
from shardline.middleware import RecordToPut, compress, replace, validate

pytestmark = pytest.mark.anyio

TEXT = b'{"id": 1, "text": "' + b"abc" * 500 + b'"}'


class Order(msgspec.Struct):
    id: int


def suffix(text):
    def add(record):
        return replace(record, data=record.data + text, headers={**record.headers, text.decode(): "x"})

    return add


def async_suffix(text):
    async def add(record):
        return suffix(text)(record)

    return add


def stored(kinesis, stream="s"):
    return {record.data: dict(record.headers) for record in deaggregate(kinesis.streams[stream].records)}


async def put_in_every_way(producer, data=b"%d", *, nowait=True):
    """Put four or five records, and return their deliveries."""
    return [
        await producer.put(data % 0, key="k"),
        *([producer.put_nowait(data % 1, key="k")] if nowait else []),
        await producer.put(data % 2, key="k", headers={"h": "1"}),
        *await producer.put_many([("k", data % 3), (None, data % 4, None, {"h": "2"})]),
        *await producer.put_many(iter([("k", data % 5)])),
    ]


@EVERY_API
async def test_every_put_passes_through_all_middleware_in_order(make_producer, kinesis):
    async with make_producer(middleware=[suffix(b"a"), suffix(b"b")]) as producer:
        for delivery in await put_in_every_way(producer):
            await delivery
    ours = {"a": "x", "b": "x"}
    expected = {b"%dab" % number: ours for number in range(6)}
    expected |= {b"2ab": {"h": "1", **ours}, b"4ab": {"h": "2", **ours}}
    assert stored(kinesis) == expected


async def test_async_middleware(make_producer, kinesis):
    async def numbers():
        yield "k", b"6"

    async with make_producer(middleware=[suffix(b"a"), async_suffix(b"b")]) as producer:
        deliveries = await put_in_every_way(producer, nowait=False)
        for delivery in [*deliveries, *await producer.put_many(numbers())]:
            await delivery
        with pytest.raises(UsageError, match=r"the middleware async_suffix\.<locals>\.add is async"):
            producer.put_nowait(b"x", key="k")
        assert producer.outstanding == 0
    assert sorted(stored(kinesis)) == [b"%dab" % number for number in (0, 2, 3, 4, 5, 6)]


@EVERY_API
async def test_the_serializer_comes_first(make_producer, kinesis):
    layers = [validate(Order), lambda record: replace(record, data=record.data + b" ")]
    async with make_producer(middleware=layers, serializer=lambda value: json.dumps(value).encode()) as producer:
        await (await producer.put({"id": 1}, key="k"))
        await (await producer.put_many([("k", {"id": 2})]))[0]
    assert sorted(stored(kinesis)) == [b'{"id": 1} ', b'{"id": 2} ']


@EVERY_API
async def test_an_invalid_record_is_refused_and_nothing_is_accepted(make_producer, kinesis):
    valid, invalid = b'{"id": 1}', b'{"id": "x"}'
    async with make_producer(middleware=[validate(Order)]) as producer:
        with pytest.raises(UsageError, match=r"not a valid Order: wrong at \$\.id"):
            await producer.put(invalid, key="k")
        with pytest.raises(UsageError, match=r"record 1: the data is not a valid Order") as refused:
            await producer.put_many([("k", valid), ("k", invalid)])
        assert (refused.value.index, producer.outstanding) == (1, 0)
        good, bad = await producer.put_many([("k", valid), ("k", invalid)], on_invalid="fail")
        await good
        assert (await bad.outcome()).code == "InvalidRecord"
    assert list(stored(kinesis)) == [valid]


async def test_an_invalid_record_behind_async_middleware(make_producer, kinesis):
    async def check(record):
        if b"x" in record.data:
            raise ValueError("no")
        return record

    async with make_producer(middleware=[check]) as producer:
        with pytest.raises(ValueError, match=r"^no$"):
            await producer.put(b"x", key="k")
        with pytest.raises(ValueError, match=r"^no$"):
            await producer.put_many([("k", b"1"), ("k", b"x")])
        assert producer.outstanding == 0
        good, bad, wrong = await producer.put_many([("k", b"2"), ("k", b"x"), "wrong"], on_invalid="fail")
        await good
        assert [(await each.outcome()).message for each in (bad, wrong)] == [
            "the serializer or a middleware raised ValueError",
            "not a tuple of (key or None, data[, explicit hash key][, headers])",
        ]
        assert bad.data == b"x"
    assert list(stored(kinesis)) == [b"2"]


@EVERY_API
async def test_sizes_are_checked_after_compression(make_producer, kinesis):
    large = b"x" * 3 * 1024 * 1024
    async with make_producer(middleware=[compress()]) as producer:
        await producer.wait_ready()
        await (await producer.put(large, key="k"))
    async with make_producer(middleware=[suffix(bytes(2 * 1024 * 1024))]) as producer:
        await producer.wait_ready()
        with pytest.raises(UsageError):
            await producer.put(b"small", key="k")
    ((data, headers),) = stored(kinesis).items()
    assert (len(data) < 10_000, headers) == (True, {"content-encoding": "gzip"})


@EVERY_API
@pytest.mark.parametrize("settings", [{"aggregation": False}, {"packing": "json-lines"}])
async def test_compression_needs_headers_even_for_small_records(make_producer, settings):
    async with make_producer(middleware=[compress()], **settings) as producer:
        for data in (b"1", TEXT):
            with pytest.raises(UsageError, match="this producer cannot send headers"):
                await producer.put(data, key="k")
            with pytest.raises(UsageError, match="this producer cannot send headers"):
                await producer.put_many([("k", data)])


@pytest.mark.parametrize("kind", [{"auto": True}, {"channel": True}])
async def test_compression_is_refused_where_headers_are(make_producer, kinesis, kind):
    await create_on_demand(kinesis, "on-demand", **kind)
    async with make_producer("on-demand", middleware=[compress()]) as producer:
        with anyio.fail_after(10):
            while producer.headers_refusal is None:  # noqa: ASYNC110 - a property
                await anyio.sleep(0.01)
        with pytest.raises(UsageError, match="this producer cannot send headers"):
            await producer.put(b"1", key="k")


async def test_a_packing_checks_the_result_of_the_middleware(make_producer, kinesis):
    async with make_producer(middleware=[suffix(b"\n")], packing="json-lines") as producer:
        with pytest.raises(UsageError):
            await producer.put(b"1", key="k")


@pytest.mark.parametrize("kind", [Producer, shardline.sync.Producer])
@pytest.mark.parametrize("middleware", [compress(), "compress", [None], 7])
def test_middleware_must_be_a_list_of_callables(kind, middleware):
    with pytest.raises(UsageError, match="middleware must be a list of callables"):
        kind("s", region="eu-west-1", middleware=middleware)


def test_the_blocking_producer_takes_no_async_middleware():
    with pytest.raises(UsageError, match="the blocking API takes no async middleware, such as async_suffix"):
        shardline.sync.Producer("s", region="eu-west-1", middleware=[async_suffix(b"a")])


@EVERY_API
async def test_a_middleware_must_return_a_record(make_producer, kinesis):
    async with make_producer(middleware=[lambda record: record.data]) as producer:
        with pytest.raises(UsageError, match="must return a RecordToPut, not bytes"):
            await producer.put(b"1", key="k")
    async with make_producer(middleware=[lambda record: RecordToPut("text", record.key)]) as producer:
        with pytest.raises(UsageError, match="data must be bytes, not str"):
            await producer.put(b"1", key="k")
    async with make_producer(middleware=[lambda record: replace(record, headers={"a b": ""})]) as producer:
        with pytest.raises(UsageError, match="header's name"):
            await producer.put(b"1", key="k")


async def test_middleware_can_be_cancelled_in_a_task_that_is_only_the_put(make_producer, stored, anyio_backend_name):
    async def never(record):
        with anyio.move_on_after(0.01):
            await anyio.sleep_forever()
        return record

    async with make_producer(middleware=[never]) as producer:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(partial(producer.put, b"1", key="k"))
        if anyio_backend_name == "asyncio":  # anyio asks such a task for the state of its coroutine
            await asyncio.wait_for(asyncio.create_task(producer.put(b"2", key="k")), 5)
        assert await producer.flush() == []
    assert b"1" in {data for _, data in stored()}


class Hanging:
    """A middleware that waits for ever with the record ``hang``."""

    def __init__(self):
        self.reached = anyio.Event()

    async def __call__(self, record):
        if record.data == b"hang":
            self.reached.set()
            await anyio.sleep_forever()
        return record


@pytest.mark.parametrize("way", ["put", "put_many"])
async def test_a_middleware_that_hangs_holds_up_only_its_own_put(make_producer, stored, way):
    """The hanging put has no room yet, so it neither fills the buffer nor delays a flush or the end."""
    hanging = Hanging()
    ended = []

    async def put_hanging(producer):
        try:
            await (producer.put(b"hang", key="k") if way == "put" else producer.put_many([("k", b"hang")]))
        finally:
            ended.append(way)

    async with make_producer(middleware=[hanging], buffer_max_records=1) as producer:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(put_hanging, producer)
            with anyio.fail_after(10):
                await hanging.reached.wait()
                for number in range(5):
                    await producer.put(b"%d" % number, key="k")
                assert await producer.flush() == []
                assert producer.stats().outstanding == 0
            tasks.cancel_scope.cancel()
        assert ended == [way]
    assert {data for _, data in stored()} == {b"%d" % number for number in range(5)}


async def test_a_put_that_leaves_its_middleware_after_the_end_is_refused(make_producer, stored):
    entered, go_on = anyio.Event(), anyio.Event()
    errors = []

    async def wait(record):
        entered.set()
        await go_on.wait()
        return record

    async def put_late(producer):
        try:
            await producer.put(b"late", key="k")
        except Closed as error:
            errors.append(error)

    producer = make_producer(middleware=[wait])
    async with anyio.create_task_group() as tasks:
        async with producer:
            tasks.start_soon(put_late, producer)
            await entered.wait()
        go_on.set()
    assert len(errors) == 1
    assert stored() == []
