"""Does ``run`` keep the order of each shard, handle shards concurrently, and follow the failure policy to its end?"""

import asyncio
import json
import threading
import time
from collections import Counter
from functools import partial

import anyio
import pytest
from tests.shell.blocking import EVERY_API, BlockingConsumer

import shardline.sync
from shardline import Batch, DeadLetter, FailurePolicy, HandlerFailed, Producer, UsageError

pytestmark = pytest.mark.anyio

HASTY = FailurePolicy(attempts=2, backoff=0.01, backoff_max=0.02)


class Callable:
    """A handler that is an object."""

    def __init__(self, ledger):
        self.ledger = ledger

    async def __call__(self, record):
        self.ledger(record)


@EVERY_API
@pytest.mark.parametrize("kind", ["async", "object", "lambda", "thread"])
async def test_a_handler_of_any_kind_gets_every_record_in_order(make_consumer, put, ledger, kind):
    await put(range(100))

    async def handle(record):
        ledger(record)

    handlers = {
        "async": handle,
        "object": Callable(ledger),
        "lambda": lambda record: handle(record),  # noqa: PLW0108 - a plain function that gives a coroutine
        "thread": ledger,
    }
    async with make_consumer(until="latest") as consumer:
        await consumer.run(handlers[kind])
    assert sorted(ledger.numbers) == list(range(100))
    ledger.check_order()


@EVERY_API
async def test_a_plain_function_runs_in_a_thread(make_consumer, put):
    await put(range(10))
    threads = set()
    async with make_consumer(until="latest") as consumer:
        await consumer.run(lambda _: threads.add(threading.current_thread().name))
    assert threads
    assert not threads & {threading.current_thread().name, "shardline consumer"}


@EVERY_API
async def test_batches_for_handlers(make_consumer, put, ledger):
    await put(range(300))
    sizes = []

    async def handle(batch):
        assert isinstance(batch, Batch)
        sizes.append(len(batch))
        for record in batch:
            ledger(record)

    async with make_consumer(until="latest") as consumer:
        await consumer.run(handle, batch=40)
    assert max(sizes) == 40
    assert sorted(ledger.numbers) == list(range(300))
    ledger.check_order()


async def test_shards_are_handled_side_by_side(make_consumer, put):
    await put(range(20))
    here, most = set(), 0

    async def handle(record):
        nonlocal most
        assert record.shard_id not in here, "one of a shard at a time"
        here.add(record.shard_id)
        most = max(most, len(here))
        await anyio.sleep(0.005)
        here.discard(record.shard_id)

    async with make_consumer(until="latest") as consumer:
        await consumer.run(handle)
    assert most == 2


@EVERY_API
async def test_what_a_handler_did_is_committed_and_what_it_did_not_comes_again(
    make_consumer, put, ledger, group, store
):
    await put(range(50), keys=1)

    async def handle(record):
        if record.data == b"30":
            raise RuntimeError("no")
        ledger(record)

    with pytest.raises(HandlerFailed) as failed:
        async with make_consumer(group=group, store=store) as consumer:
            await consumer.run(handle, policy=HASTY)
    assert ledger.numbers == list(range(30))
    assert isinstance(failed.value.__cause__, RuntimeError)
    assert [one.data for one in failed.value.records] == [b"30"]
    async with make_consumer(group=group, store=store, until="latest") as consumer:
        assert [int(record.data) async for record in consumer] == list(range(30, 50))


@pytest.mark.parametrize("error", [ValueError("not yet"), asyncio.CancelledError("of something else")])
@pytest.mark.parametrize("kind", ["async", "lambda", "thread"])
@pytest.mark.parametrize("batch", [None, 16])
async def test_a_failing_handler_is_tried_again(make_consumer, put, ledger, kind, batch, error):
    await put(range(40), keys=1)
    calls = Counter()

    def work(given):
        records = [given] if batch is None else list(given)
        calls[records[0].data] += 1
        if any(record.data == b"7" for record in records) and calls[records[0].data] == 1:
            raise error
        for record in records:
            ledger(record)

    async def handle(given):
        work(given)

    handlers = {"async": handle, "lambda": lambda given: handle(given), "thread": work}  # noqa: PLW0108 - as above
    async with make_consumer(until="latest") as consumer:
        with anyio.fail_after(10):
            await consumer.run(handlers[kind], batch=batch, policy=HASTY)
    assert ledger.numbers == list(range(40))
    assert max(calls.values()) == 2


@pytest.mark.parametrize("kind", ["async", "thread"])
@pytest.mark.parametrize("batch", [None, 16])
async def test_a_poisonous_record_goes_to_the_dead_letters_alone(make_consumer, put, ledger, kind, batch, group, store):
    await put(range(40), keys=1)
    letters = []

    def work(given):
        records = [given] if batch is None else list(given)
        if any(record.data == b"7" for record in records):
            raise ValueError("poison")
        for record in records:
            ledger(record)

    async def handle(given):
        work(given)

    async with make_consumer(until="latest", group=group, store=store) as consumer:
        await consumer.run(work if kind == "thread" else handle, batch=batch, policy=HASTY, dead_letter=letters.append)
    assert ledger.numbers == [number for number in range(40) if number != 7]
    (letter,) = letters
    assert isinstance(letter, DeadLetter)
    assert [one.data for one in letter.records] == [b"7"]
    assert isinstance(letter.error, ValueError)
    async with make_consumer(until="latest", group=group, store=store) as consumer:
        assert [record async for record in consumer] == [], "all is done"


@EVERY_API
async def test_without_bisection_the_whole_batch_goes(make_consumer, put):
    await put(range(8), keys=1)
    letters = []

    async def handle(batch):
        raise ValueError("poison")

    async def bury(letter):
        letters.append([int(one.data) for one in letter.records])

    policy = FailurePolicy(attempts=1, bisect=False)
    async with make_consumer(until="latest") as consumer:
        await consumer.run(handle, batch=100, policy=policy, dead_letter=bury)
    assert [number for letter in letters for number in letter] == list(range(8))


async def test_a_poisonous_shard_harms_no_other(make_consumer, put, ledger, kinesis):
    await put(range(200))
    poisoned = kinesis.streams["s"].shards[0].shard_id

    async def handle(record):
        if record.shard_id == poisoned:
            raise ValueError("poison")
        ledger(record)

    policy = FailurePolicy(attempts=3, backoff=0.2)
    async with make_consumer() as consumer, anyio.create_task_group() as tasks:

        async def run():
            with pytest.raises(HandlerFailed):
                await consumer.run(handle, policy=policy)

        tasks.start_soon(run)
    healthy = [one for one in kinesis.streams["s"].records if one.shard_id != poisoned]
    assert len(ledger.records) == len(healthy)


async def test_a_deserializer_that_fails_is_the_handlers_failure(make_consumer, client_of):
    async with client_of() as client:
        for data in (b"1", b"no json", b"3"):
            await client.put_record("s", data, "k")
    seen, letters = [], []
    async with make_consumer(until="latest", deserializer=json.loads) as consumer:
        await consumer.run(lambda record: seen.append(record.value), policy=HASTY, dead_letter=letters.append)
    assert seen == [1, 3]
    assert [one.data for letter in letters for one in letter.records] == [b"no json"]


async def refuse(record):
    raise ValueError(f"no {record.data!r}")


@EVERY_API
async def test_dead_letters_into_a_file(make_consumer, put, tmp_path):
    await put(range(3), keys=1)
    path = tmp_path / "dead.jsonl"
    async with make_consumer(until="latest") as consumer:
        await consumer.run(refuse, policy=HASTY, dead_letter=path)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["data"] for line in lines] == ["0", "1", "2"]
    assert {(line["stream"], line["key"], line["attempts"]) for line in lines} == {("s", "k0", 2)}
    assert (lines[0]["error"], lines[0]["message"]) == ("HandlerFailed", "ValueError: no b'0'")
    assert {line["version"] for line in lines} == {1}
    assert all(line["sequence_number"] and line["shard_id"] for line in lines)


@EVERY_API
@pytest.mark.parametrize("owned", [True, False])
async def test_dead_letters_into_a_stream(make_consumer, put, kinesis, connection, owned):
    kinesis.create_stream("dead", shards=1)
    await put(range(3))
    async with make_consumer(until="latest") as consumer:
        if owned:
            await consumer.run(refuse, policy=HASTY, dead_letter="dead")
        elif isinstance(consumer, BlockingConsumer):
            with shardline.sync.Producer("dead", **connection) as producer:
                await consumer.run(refuse, policy=HASTY, dead_letter=producer)
        else:
            async with Producer("dead", **connection) as producer:
                await consumer.run(refuse, policy=HASTY, dead_letter=producer)
    from shardline import deaggregate

    found = sorted((one.key, one.data) for one in deaggregate(kinesis.streams["dead"].records))
    assert found == [("k0", b"0"), ("k1", b"1"), ("k2", b"2")]


def yielding(record):
    yield record


async def yielding_too(record):
    yield record


class Yielding:
    def __call__(self, record):
        yield record


@EVERY_API
@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"handler": 5}, "handler must be callable"),
        ({"handler": yielding}, "must not be a generator function"),
        ({"handler": partial(yielding)}, "must not be a generator function"),
        ({"handler": yielding_too}, "must not be a generator function"),
        ({"handler": Yielding()}, "must not be a generator function"),
        ({"policy": "stop"}, "policy must be a FailurePolicy"),
        ({"policy": FailurePolicy(finally_="dead-letter")}, "needs dead_letter"),
        ({"dead_letter": 5}, "dead_letter must be"),
        ({"dead_letter": "a/b"}, "to write to a file, pass a pathlib.Path"),
        ({"batch": 0}, "the size of a batch must be a whole number of records, 1 or more, or None, not 0"),
        ({"batch": -1}, "the size of a batch"),
        ({"batch": 2.0}, "the size of a batch"),
        ({"batch": True}, "the size of a batch"),
        ({"batch": float("nan")}, "the size of a batch"),
        ({"batch": "5"}, "the size of a batch"),
        ({"max_wait": "x"}, "max_wait must be a number of seconds, 0 or more, or None, not 'x'"),
        ({"max_wait": None}, "a batch cannot wait forever"),
        ({"max_wait": float("inf")}, "a batch cannot wait forever"),
        ({"max_wait": float("nan")}, "max_wait must be"),
        ({"max_wait": -0.1}, "max_wait must be"),
        ({"max_wait": True}, "max_wait must be"),
        ({"max_wait": 10**400}, "max_wait must be"),
    ],
)
async def test_a_wrong_argument_is_named(make_consumer, arguments, told):
    async with make_consumer() as consumer:
        with pytest.raises(UsageError, match=told):
            await consumer.run(**({"handler": print} | arguments))


# ---- endings


@pytest.mark.parametrize("kind", ["async", "thread"])
async def test_close_lets_handlers_finish_what_they_have(make_consumer, put, ledger, group, eventually, kind):
    await put(range(100), keys=1)
    started = threading.Event()

    async def handle(record):
        started.set()
        await anyio.sleep(0.05)
        ledger(record)

    def handle_in_thread(record):
        anyio.from_thread.run(handle, record)

    async with make_consumer(group=group, store="memory:") as consumer, anyio.create_task_group() as tasks:
        tasks.start_soon(consumer.run, handle if kind == "async" else handle_in_thread)
        await eventually(started.is_set)
        await consumer.close()
    assert 1 <= len(ledger.numbers) <= 3
    async with make_consumer(group=group, store="memory:", until="latest") as consumer:
        assert [int(record.data) async for record in consumer] == list(range(len(ledger.numbers), 100))


async def test_close_cancels_a_handler_that_takes_too_long(make_consumer, put, group):
    await put(range(3), keys=1)
    started, cancelled = anyio.Event(), []

    async def handle(record):
        started.set()
        try:
            await anyio.sleep_forever()
        finally:
            cancelled.append(record.data)

    async with make_consumer(group=group, store="memory:") as consumer, anyio.create_task_group() as tasks:
        tasks.start_soon(consumer.run, handle)
        await started.wait()
        with anyio.fail_after(3):
            await consumer.close(0.1)
    assert cancelled == [b"0"]


async def test_a_run_that_is_cancelled_can_be_begun_again_and_skips_nothing(make_consumer, put, ledger):
    await put(range(60), keys=1)
    held = []

    async def slow(record):
        if len(ledger.records) == 20:
            held.append(record)
            scope.cancel()
            await anyio.sleep_forever()
        ledger(record)

    async def handle(record):
        ledger(record)

    async with make_consumer(until="latest") as consumer:
        with anyio.CancelScope() as scope:
            await consumer.run(slow)
        assert [int(one.data) for one in held] == [20]
        await consumer.run(handle)
    assert ledger.numbers == list(range(60))


async def test_manual_acknowledgements_in_a_handler(make_consumer, put, group):
    await put(range(10), keys=1)
    async with make_consumer(group=group, store="memory:", until="latest", ack="manual") as consumer:

        async def handle(record):
            if int(record.data) < 4:
                assert consumer.ack(record)

        await consumer.run(handle)
    async with make_consumer(group=group, store="memory:", until="latest") as consumer:
        assert [int(record.data) async for record in consumer] == list(range(4, 10))


async def test_a_handler_may_end_its_own_run(make_consumer, put, ledger, group):
    await put(range(50), keys=1)
    async with make_consumer(group=group, store="memory:") as consumer:

        async def handle(record):
            ledger(record)
            if record.data == b"9":
                await consumer.close()

        with anyio.fail_after(5):
            await consumer.run(handle)
    assert ledger.numbers == list(range(10))
    async with make_consumer(group=group, store="memory:", until="latest") as consumer:
        assert [int(record.data) async for record in consumer] == list(range(10, 50))


@EVERY_API
@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt()])
@pytest.mark.parametrize("kind", ["async", "thread"])
@pytest.mark.parametrize("batch", [None, 1])
async def test_an_exit_comes_out_of_the_run_and_the_leases_are_let_go(
    make_consumer, put, ledger, group, kind, batch, error
):
    await put(range(20), keys=1)

    def work(given):
        (record,) = [given] if batch is None else given
        if record.data == b"5":
            raise error
        ledger(record)

    async def handle(given):
        work(given)

    async with make_consumer(group=group, store="memory:") as consumer:
        with pytest.raises(type(error)):
            await consumer.run(work if kind == "thread" else handle, batch=batch)
        assert int((await anext(aiter(consumer))).data) == 5, "the consumer goes on"
    assert ledger.numbers == list(range(5))
    async with make_consumer(group=group, store="memory:", until="latest", lease_duration=60.0) as consumer:
        with anyio.fail_after(10):
            assert [int(record.data) async for record in consumer] == list(range(6, 20))


@pytest.mark.parametrize("then", ["run", "records", "batches"])
async def test_a_thread_of_a_run_that_was_cancelled_is_waited_for_by_whoever_reads_on(make_consumer, put, then):
    await put(range(5), keys=1)
    at_work, overlaps, seen = [], [], []
    is_begun = threading.Event()

    def handle(record):
        overlaps.extend(at_work)
        at_work.append(int(record.data))
        time.sleep(0.01 if is_begun.is_set() else 0.6)
        at_work.remove(int(record.data))
        seen.append(int(record.data))

    def begin(record):
        threading.Timer(0.1, is_begun.set).start()
        handle(record)

    async with make_consumer(until="latest") as consumer:
        with anyio.move_on_after(0.4):
            await consumer.run(begin)
        assert at_work == [0]
        if then == "run":
            await consumer.run(handle)
        elif then == "records":
            async for record in consumer:
                handle(record)
        else:
            async for batch in consumer.batches(max_records=2):
                for record in batch:
                    handle(record)
    assert overlaps == []
    assert [*dict.fromkeys(seen)] == list(range(5))
