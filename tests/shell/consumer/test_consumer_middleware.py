"""Does every record pass through the middleware before user code gets it, and is a refused record never skipped?"""

import os
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial

import anyio
import anyio.lowlevel
import msgspec
import pytest
from tests.shell.blocking import EVERY_API

import shardline.sync
from shardline import Batch, Consumer, FailurePolicy, HandlerFailed, Producer, Record, UsageError
from shardline.aio.consumer.read_chain import read_chain
from shardline.middleware import around, compress, decompress, replace, validate
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


# ---- around the handling


def logs(log, name):
    """Middleware that notes when the handling of a record or batch begins and ends."""

    @contextmanager
    def enter(given):
        log.append((f"{name} begins", data_of(given)))
        try:
            yield
        finally:
            log.append((f"{name} ends", data_of(given)))

    return around(enter)


def async_logs(log, name):
    @asynccontextmanager
    async def enter(given):
        await anyio.lowlevel.checkpoint()
        with logs(log, name).enter(given):
            yield
        await anyio.lowlevel.checkpoint()

    return around(enter)


def open_late(log, given):
    """Return an async context manager, which cannot be known before."""
    return async_logs(log, "late").enter(given)


def data_of(given):
    return [record.data for record in given] if isinstance(given, Batch) else given.data


@EVERY_API
@pytest.mark.parametrize("batch", [None, 2])
@pytest.mark.parametrize(
    "order", [{}, {"concurrency": 3, "order": "key"}, {"concurrency": 1, "order": "none"}], ids=str
)
async def test_a_context_manager_is_open_while_the_handler_works(make_consumer, put, batch, order):
    await put(range(2), keys=1)
    log = []
    layers = [logs(log, "outer"), suffix(b"a"), suffix(b"b"), logs(log, "middle"), logs(log, "inner"), suffix(b"c")]
    async with make_consumer(middleware=layers, until="latest") as consumer:
        await consumer.run(lambda given: log.append(("handler", data_of(given))), batch=batch, **order)
    expected = []
    for data in [[b"0", b"1"]] if batch else [b"0", b"1"]:
        ab, abc = ([each + text for each in data] if batch else data + text for text in (b"ab", b"abc"))
        expected += [("outer begins", data), ("middle begins", ab), ("inner begins", ab), ("handler", abc)]
        expected += [("inner ends", ab), ("middle ends", ab), ("outer ends", data)]
    assert log == expected


@pytest.mark.parametrize("batch", [None, 2])
async def test_async_handlers_take_plain_and_async_context_managers(make_consumer, put, batch):
    await put(range(2), keys=1)
    log = []

    async def handle(given):
        await anyio.lowlevel.checkpoint()
        log.append(("handler", data_of(given)))

    layers = [async_logs(log, "outer"), async_suffix(b"a"), logs(log, "inner")]
    async with make_consumer(middleware=layers, until="latest") as consumer:
        with pytest.raises(UsageError, match="async middleware needs an async handler"):
            await consumer.run(log.append)
        await consumer.run(handle, batch=batch)
    expected = []
    for data in [[b"0", b"1"]] if batch else [b"0", b"1"]:
        changed = [each + b"a" for each in data] if batch else data + b"a"
        expected += [("outer begins", data), ("inner begins", changed), ("handler", changed)]
        expected += [("inner ends", changed), ("outer ends", data)]
    assert log == expected


@EVERY_API
async def test_a_context_manager_gets_the_exception_and_each_attempt(make_consumer, put):
    await put(range(1))
    errors, letters = [], []

    @contextmanager
    def note(given):
        try:
            yield
        except ValueError as error:
            errors.append(str(error))
            raise

    def fail(record):
        raise ValueError("no")

    async with make_consumer(middleware=[around(note)], until="latest") as consumer:
        await consumer.run(fail, policy=HASTY, dead_letter=letters.append)
    assert errors == ["no", "no"]
    assert [str(letter.error) for letter in letters] == ["no"]


@EVERY_API
@pytest.mark.parametrize("kind", ["plain", "async"])
async def test_a_context_manager_cannot_skip_records(make_consumer, put, kind, event_loop_kind):
    if (kind, event_loop_kind) == ("async", "blocking"):
        kind = "plain"  # the blocking API has no async handlers
    await put(range(1))
    letters = []

    def fail(record):
        raise ValueError("no")

    async def fail_async(record):
        raise ValueError("no")

    def handle(record):
        return "done"

    swallow = around(lambda _: suppress(ValueError))
    async with make_consumer(middleware=[swallow], until="latest") as consumer:
        await consumer.run(fail if kind == "plain" else fail_async, policy=HASTY, dead_letter=letters.append)
    assert "suppressed its exception" in str(letters[0].error)
    async with make_consumer(middleware=[swallow], until="latest") as consumer:
        await consumer.run(handle, policy=HASTY, dead_letter=letters.append)
    assert len(letters) == 1


@EVERY_API
async def test_a_function_around_must_return_a_context_manager_that_fits(make_consumer, put):
    await put(range(1))
    letters = []
    for wrong, message in (
        (lambda _: None, "around needs a function that returns a context manager: it got a NoneType"),
        (partial(open_late, []), "around needs an async handler: it got a _AsyncGeneratorContextManager"),
    ):
        async with make_consumer(middleware=[around(wrong)], until="latest") as consumer:
            await consumer.run(letters.append, policy=HASTY, dead_letter=letters.append)
        assert str(letters.pop().error) == message

    def forgot_async(record):
        return anyio.lowlevel.checkpoint()

    async with make_consumer(middleware=[logs([], "any")], until="latest") as consumer:
        await consumer.run(forgot_async, policy=HASTY, dead_letter=letters.append)
    assert "make it a coroutine function" in str(letters.pop().error)


@EVERY_API
async def test_an_iteration_refuses_middleware_around_handlers(make_consumer):
    async with make_consumer(middleware=[logs([], "any")], until="latest") as consumer:
        for iterate in (lambda: consumer, consumer.batches):
            with pytest.raises(UsageError, match="use run\\(handler\\) instead of an iteration"):
                async for _ in iterate():
                    pass


def test_middleware_around_handlers_is_checked():
    with pytest.raises(UsageError, match="around takes a function that returns a context manager, not int"):
        around(5)
    with pytest.raises(UsageError, match="around is a middleware for consumers"):
        Producer("s", region="eu-west-1", middleware=[logs([], "any")])
    with pytest.raises(UsageError, match="no async middleware, such as async_logs"):
        shardline.sync.Consumer("s", region="eu-west-1", middleware=[async_logs([], "any")])


@contextmanager
def open_in_process(record):
    os.environ["SHARDLINE_TEST_IS_OPEN"] = "yes"
    try:
        yield
    finally:
        del os.environ["SHARDLINE_TEST_IS_OPEN"]


def check_open(record):
    assert os.environ["SHARDLINE_TEST_IS_OPEN"] == "yes"


async def check_open_async(record):
    check_open(record)


@pytest.mark.parametrize("handler", [check_open, check_open_async])
@pytest.mark.parametrize("settings", [{}, {"batch": 2}, {"order": "key"}], ids=str)
async def test_context_managers_are_entered_in_the_processes_of_handlers(make_consumer, put, handler, settings):
    await put(range(3), keys=1)
    async with make_consumer(middleware=[around(open_in_process)], until="latest") as consumer:
        await consumer.run(handler, processes=1, policy=FailurePolicy(attempts=1), **settings)
        assert consumer.status().totals.records_handled == 3
    assert "SHARDLINE_TEST_IS_OPEN" not in os.environ


# ---- the rest


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


@pytest.mark.parametrize("way", ["records", "run"])
async def test_a_middleware_that_hangs_is_cancelled_at_the_end_and_its_record_comes_again(
    make_consumer, put, group, way
):
    """The record of the hanging middleware was never handled, so the next worker gets it first."""
    await put(range(3), keys=1)
    entered = anyio.Event()
    found = []

    async def hang(record):
        if record.data == b"1":
            entered.set()
            await anyio.sleep_forever()
        return record

    async def handle(record):
        found.append(record.data)

    async def read(consumer):
        if way == "run":
            await consumer.run(handle)
        else:
            async for record in consumer:
                await handle(record)

    with anyio.fail_after(30):
        async with make_consumer(middleware=[hang], close_timeout=1.0) as consumer, anyio.create_task_group() as tasks:
            tasks.start_soon(read, consumer)
            await entered.wait()
            if way == "run":
                await consumer.close()
            else:
                tasks.cancel_scope.cancel()
        assert found == [b"0"]
        async with make_consumer(until="latest") as consumer:
            await consumer.run(handle)
    again = found[1:]
    assert again[again.index(b"1") :] == [b"1", b"2"]
    assert again in ([b"1", b"2"], [b"0", b"1", b"2"])


async def test_a_middleware_that_hangs_is_reported_as_a_stuck_handler(make_consumer, put, eventually):
    await put(range(1), keys=1)
    go_on = anyio.Event()

    async def hang(record):
        await go_on.wait()
        return record

    async def handle(record):
        pass

    async with (
        make_consumer(middleware=[hang], until="latest", stuck_after=0.3) as consumer,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(partial(consumer.run, handle))
        await eventually(lambda: consumer.status().health == "handler-stuck")
        go_on.set()
