"""Does the async producer put, flush, close and report, on asyncio and trio?"""

import asyncio
import random

import anyio
import pytest
from tests.shell.blocking import EVERY_API, BlockingProducer, kind_for

import shardline.aio.producer.async_producer as producer_module
from shardline import BufferFull, Closed, Producer, ProducerConfig, Receipt, UsageError

pytestmark = pytest.mark.anyio


@EVERY_API
async def test_a_record_is_put_and_its_receipt_says_where_it_lies(make_producer, stream):
    async with make_producer() as producer:
        delivery = await producer.put(b"hello", key="user-1")
        assert not delivery.done
        receipt = await delivery
    [record] = stream.records
    assert (record.key, record.data) == ("user-1", b"hello")
    assert isinstance(receipt, Receipt)
    assert (receipt.shard_id, receipt.sequence_number) == (record.shard_id, record.sequence_number)
    assert (receipt.sub_sequence, receipt.attempt_count) == (0, 1)
    [attempt] = receipt.attempts
    assert (attempt.code, attempt.sequence_number, attempt.maybe_stored) == (None, record.sequence_number, True)
    assert attempt.duration > 0


async def test_many_records_of_many_keys_arrive_each_once_and_in_their_shard(
    make_producer, stored, all_in_range, kinesis
):
    wanted = [(f"user-{number % 50}", b"%d" % number) for number in range(1000)]
    async with make_producer() as producer:
        deliveries = [await producer.put(data, key=key) for key, data in wanted]
        receipts = [await delivery for delivery in deliveries]
    assert sorted(stored()) == sorted(wanted)
    assert all_in_range()
    assert {(receipt.sequence_number, receipt.sub_sequence) for receipt in receipts}.__len__() == 1000
    assert kinesis.streams["s"].record_count < 100, "they are aggregated"


@EVERY_API
async def test_put_nowait_and_put_many_deliver_too(make_producer, stored):
    async with make_producer() as producer:
        one = producer.put_nowait(b"1", key="a")
        many = await producer.put_many(
            [("b", b"2"), (None, b"3"), ("c", b"4", "0"), ("d", b"5", None)],
        )
        assert await producer.flush() == []
        assert [delivery.delivered for delivery in [one, *many]] == [True] * 5
        assert (await many[2]).shard_id == "shardId-000000000000"
    assert sorted(data for _, data in stored()) == [b"1", b"2", b"3", b"4", b"5"]


@EVERY_API
async def test_put_many_of_nothing_and_of_a_generator(make_producer, stored):
    async with make_producer() as producer:
        assert await producer.put_many([]) == []
        deliveries = await producer.put_many((f"k{number}", b"x") for number in range(300))
        assert len(deliveries) == 300
    assert len(stored()) == 300


@EVERY_API
async def test_flush_sends_what_lingers_and_waits_for_it_alone(make_producer):
    async with make_producer(linger=30.0, record_ttl=60.0) as producer:
        first = await producer.put(b"first", key="a")
        with anyio.fail_after(10):
            assert await producer.flush() == []
        assert first.done
        later = await producer.put(b"later", key="a")
        assert not later.done
        assert producer.outstanding == 1
        with anyio.fail_after(10):
            assert await producer.flush(timeout=10) == []
        assert later.delivered


@EVERY_API
async def test_flush_returns_what_is_not_delivered_in_time(make_producer, kinesis):
    kinesis.faults.throttle(operation="PutRecords")
    async with make_producer(close_timeout=0) as producer:
        delivery = await producer.put(b"x", key="a")
        assert await producer.flush(timeout=0.05) == [delivery]
        assert not delivery.done
        assert await producer.flush(timeout=0) == [delivery]
        kinesis.faults.clear()
        assert await producer.flush() == []


@EVERY_API
async def test_flush_returns_what_failed_meanwhile(make_producer, kinesis):
    kinesis.faults.error("AccessDeniedException", "not you", operation="PutRecords", status=400)
    async with make_producer() as producer:
        delivery = await producer.put(b"x", key="a")
        assert await producer.flush() == [delivery]
        assert delivery.done
        assert not delivery.delivered


@EVERY_API
async def test_flush_of_nothing_returns_at_once(make_producer):
    async with make_producer() as producer:
        with anyio.fail_after(5):
            assert await producer.flush() == []
            assert await producer.flush(timeout=0) == []


@EVERY_API
async def test_stats_and_outstanding_count(make_producer, kinesis):
    async with make_producer(linger=1.0) as producer:
        assert producer.outstanding == 0
        await producer.put(b"12345", key="abc")
        await producer.put(b"12345", key="abd")
        assert producer.outstanding == 2
        assert (producer.stats().outstanding, producer.stats().buffered_bytes) == (2, 16)
        await producer.flush()
        stats = producer.stats()
    assert (stats.outstanding, stats.buffered_bytes) == (0, 0)
    assert (stats.delivered_records, stats.delivered_bytes, stats.failed_records, stats.retried_records) == (
        2,
        16,
        0,
        0,
    )
    assert (stats.requests, stats.map_requests, stats.map_state) == (1, 1, "ready")
    assert len(stats.lanes) == 4
    assert "closed" in repr(producer)


async def test_a_stream_can_be_named_by_its_arn(make_producer, stored, stream):
    async with make_producer(stream.arn) as producer:
        await (await producer.put(b"x", key="k"))
    assert stored() == [("k", b"x")]


@EVERY_API
async def test_everything_is_found_in_the_environment(kinesis, monkeypatch, stored, request):
    for name, value in kinesis.environment.items():
        monkeypatch.setenv(name, value)
    async with kind_for(request, Producer, BlockingProducer)("s") as producer:
        await (await producer.put(b"x", key="k"))
    assert stored() == [("k", b"x")]


@EVERY_API
async def test_a_serializer_turns_what_is_put_into_bytes_once_per_record(make_producer, stored):
    seen = []

    def serialize(value):
        seen.append(value)
        return str(value).encode()

    async with make_producer(serializer=serialize, buffer_max_records=1) as producer:
        await producer.put(1, key="a")  # the next two wait for room, and are still serialized only once
        await producer.put(2, key="a")
        await producer.put_many([("a", 3)])
        await producer.flush()
        await producer.put_nowait(4, key="a")
    assert seen == [1, 2, 3, 4]
    assert [data for _, data in stored()] == [b"1", b"2", b"3", b"4"]


@EVERY_API
@pytest.mark.parametrize("made", ["text", None, 5])
async def test_a_serializer_that_returns_no_bytes_is_reported(make_producer, made):
    async with make_producer(serializer=lambda _: made) as producer:
        for put in (producer.put({}, key="a"), producer.put_many([("a", {})])):
            with pytest.raises(UsageError, match="serializer"):
                await put
        with pytest.raises(UsageError, match="serializer"):
            producer.put_nowait({}, key="a")
        assert producer.outstanding == 0


@EVERY_API
async def test_what_a_serializer_raises_is_the_callers(make_producer, stored):
    def serialize(value):
        if value == 2:
            raise KeyError("no such thing")
        return b"%d" % value

    async with make_producer(serializer=serialize) as producer:
        await producer.put(1, key="a")
        with pytest.raises(KeyError):
            await producer.put(2, key="a")
        with pytest.raises(KeyError):
            await producer.put_many([("a", 3), ("a", 2)])
        await producer.put(4, key="a")
    assert [data for _, data in stored()] == [b"1", b"4"]


# ---- one client, many producers


async def test_a_client_is_shared_and_stays_open(make_producer, kinesis, stored):
    for name in ("t", "u"):
        kinesis.create_stream(name)
    async with kinesis.client() as client:
        async with make_producer("s", client=client) as one, make_producer("t", client=client) as two:
            await one.put(b"1", key="k")
            await two.put(b"2", key="k")
        async with make_producer("u", client=client) as three:
            await (await three.put(b"3", key="k"))
        assert (await client.put_record("s", b"4", "k")).shard_id.startswith("shardId-")
    assert [stored(name)[0] for name in ("s", "t", "u")] == [("k", b"1"), ("k", b"2"), ("k", b"3")]


async def test_a_client_that_is_not_started_is_reported(make_producer, kinesis):
    producer = make_producer(client=kinesis.client())
    with pytest.raises(Closed, match="not started"):
        await producer.start()


async def test_a_client_that_is_closed_under_the_producer_ends_it(make_producer, kinesis):
    async with kinesis.client() as client:
        producer = make_producer(client=client)
        await producer.start()
        await (await producer.put(b"x", key="k"))
    with anyio.fail_after(10):
        with pytest.raises(Closed):
            await producer.put(b"y", key="k")
        assert await producer.close() == []


# ---- wrong arguments


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"regoin": "eu-west-1"}, "regoin"),
        ({"config": {"linger": 1}}, "config must be a ProducerConfig, not dict"),
        ({"client": "kinesis"}, "client"),
        ({"serializer": "json"}, "serializer must be callable, not str"),
        ({"on_failure": []}, "on_failure must be callable, not list"),
        ({"sinks": 5}, "sinks must be a list of callables and of sinks such as LogSink\\(\\), not int"),
        ({"sink": print}, "Producer takes no sink=, but a list: pass sinks="),
        ({"close_timeout": -1}, "close_timeout"),
        ({"close_timeout": "5"}, "close_timeout"),
        ({"close_timeout": float("nan")}, "close_timeout"),
        ({"endpoint_url": "nowhere"}, "endpoint_url"),
    ],
)
@pytest.mark.parametrize("kind", [Producer, BlockingProducer])
async def test_wrong_arguments_are_named(kind, arguments, said):
    with pytest.raises(UsageError, match=said):
        await kind("s", **arguments).start()


@pytest.mark.parametrize("name", ["", None, 5, "with space", "arn:aws:s3:::bucket"])
async def test_a_wrong_stream_is_refused(name):
    with pytest.raises(UsageError):
        Producer(name)


async def test_a_client_and_connection_arguments_exclude_each_other(kinesis):
    with pytest.raises(UsageError, match="region"):
        Producer("s", client=kinesis.client(), region="eu-west-1")


@EVERY_API
@pytest.mark.parametrize("timeout", [-1, "5", float("nan"), True, [], 10**400, -(10**5000)], ids=type)
async def test_wrong_timeouts_are_named(make_producer, timeout):  # noqa: ASYNC109 - a parameter of the test
    async with make_producer() as producer:
        for call in (producer.flush, producer.close):
            with pytest.raises(UsageError, match="timeout must be a number of seconds"):
                await call(timeout)


@EVERY_API
async def test_an_endless_timeout_is_no_timeout(make_producer):
    async with make_producer(close_timeout=float("inf")) as producer:
        await producer.put(b"x", key="k")
        assert await producer.flush(float("inf")) == []
        await producer.put(b"x", key="k")
    async with make_producer(close_timeout=None) as producer:
        delivery = await producer.put(b"x", key="k")
    assert delivery.delivered, "None waits as long as it takes"


@EVERY_API
async def test_no_region_is_said_at_the_start_and_can_be_mended(kinesis, monkeypatch, stored, request):
    kind = kind_for(request, Producer, BlockingProducer)
    producer = kind("s", endpoint_url=kinesis.endpoint_url, credentials=kinesis.credentials)
    for _ in range(2):
        with pytest.raises(UsageError, match="region"):
            await producer.start()
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    async with producer:
        await producer.put(b"x", key="k")
    assert stored() == [("k", b"x")]


# ---- room in the buffer, as P7 promises it


@EVERY_API
@pytest.mark.parametrize("bound", [{"buffer_max_records": 10}, {"buffer_max_bytes": 1024}])
async def test_the_buffer_never_exceeds_its_bounds_and_everyone_gets_through(make_producer, stored, bound):
    """A defect of aiokpl (aiokpl_b18)."""
    highest = [0, 0]
    async with make_producer(**bound) as producer:

        async def put_some(name):
            for number in range(40):
                await producer.put(b"%03d" % number + b"x" * 97, key=name)
                highest[0] = max(highest[0], producer.stats().outstanding)
                highest[1] = max(highest[1], producer.stats().buffered_bytes)

        async with anyio.create_task_group() as tasks:
            for number in range(5):
                tasks.start_soon(put_some, f"task-{number}")
    assert highest[0] <= 10
    assert highest[1] <= bound.get("buffer_max_bytes", 1060)
    assert len(stored()) == 200
    for number in range(5):
        mine = [data[:3] for key, data in stored() if key == f"task-{number}"]
        assert sorted(mine) == [b"%03d" % place for place in range(40)]


async def test_put_nowait_finds_no_room_and_accepts_nothing(make_producer):
    async with make_producer(buffer_max_records=2, linger=0.1) as producer:
        producer.put_nowait(b"1", key="k")
        producer.put_nowait(b"2", key="k")
        with pytest.raises(BufferFull, match="2 records, 4 bytes"):
            producer.put_nowait(b"3", key="k")
        assert producer.outstanding == 2
        await producer.flush()
        await producer.put_nowait(b"3", key="k")


async def test_turns_come_in_the_order_of_waiting(make_producer):
    order = []
    async with make_producer(buffer_max_records=1, linger=0.0) as producer:
        await producer.put(b"0", key="k")

        async def put(number):
            await producer.put(b"%d" % number, key="k")
            order.append(number)

        async with anyio.create_task_group() as tasks:
            for number in range(20):
                tasks.start_soon(put, number)
                await anyio.lowlevel.checkpoint()
    assert order == sorted(order)


async def test_no_put_overtakes_the_first_waiter(make_producer):
    """There is room, but the waiter has not woken up yet: a put that does not wait must not take the room."""
    async with make_producer(buffer_max_records=1, linger=0.0) as producer:
        first = await producer.put(b"first", key="k")
        accepted = []

        async def wait_for_room():
            accepted.append(await producer.put(b"waiting", key="k"))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(wait_for_room)
            overtaken = []

            def barge_in(_):
                try:
                    overtaken.append(producer.put_nowait(b"barging", key="k"))
                except BufferFull:
                    overtaken.append(None)

            first.add_done_callback(barge_in)
            await first
            barge_in(None)
    assert overtaken == [None, None]
    assert len(accepted) == 1


@EVERY_API
async def test_a_large_record_is_not_overtaken_forever_by_small_ones(make_producer, stored):
    async with make_producer(buffer_max_bytes=1024, linger=0.0) as producer:
        stop = anyio.Event()

        async def put_small():
            while not stop.is_set():
                await producer.put(b"x" * 100, key="small")

        async with anyio.create_task_group() as tasks:
            for _ in range(5):
                tasks.start_soon(put_small)
            await anyio.sleep(0.02)
            with anyio.fail_after(10):
                await producer.put(b"y" * 1000, key="large")
            stop.set()
    assert ("large", b"y" * 1000) in stored()


@EVERY_API
async def test_a_record_larger_than_the_whole_buffer_goes_when_it_is_empty(make_producer, stored):
    async with make_producer(buffer_max_bytes=1024) as producer:
        await producer.put(b"x", key="k")
        with anyio.fail_after(10):
            await producer.put(b"y" * 5000, key="k")
    assert [len(data) for _, data in stored()] == [1, 5000]


@pytest.mark.parametrize("how", ["cancelled, then its turn", "its turn, then cancelled"])
async def test_a_waiter_that_is_cancelled_as_its_turn_comes_passes_it_on(
    make_producer, stored, anyio_backend_name, how
):
    async with make_producer(buffer_max_records=1, linger=0.0) as producer:
        first = await producer.put(b"0", key="k")
        put = []
        cancel = []

        async def wait(number):
            with anyio.CancelScope() as scope:
                task = asyncio.current_task() if anyio_backend_name == "asyncio" else None
                # asyncio can cancel a task whose future is already done; a cancel scope cannot
                cancel.append(scope.cancel if task is None or how.startswith("cancelled") else task.cancel)
                try:
                    await producer.put(b"%d" % number, key="k")
                except asyncio.CancelledError:
                    if task is None or how.startswith("cancelled"):
                        raise
                    task.uncancel()
                    return
                put.append(number)

        async with anyio.create_task_group() as tasks:
            for number in range(1, 4):
                tasks.start_soon(wait, number)
                while len(producer._intake.waiters) < number:
                    await anyio.lowlevel.checkpoint()

            def meet(_):
                for one in (cancel[0], producer._room.notify)[:: 1 if how.startswith("cancelled") else -1]:
                    one()

            first.add_done_callback(meet)
            with anyio.fail_after(10):
                await first
        # Here the put was faster than the cancellation.
        lucky = anyio_backend_name == "trio" and not how.startswith("cancelled")
        assert put == ([1, 2, 3] if lucky else [2, 3])
        assert not producer._intake.waiters
    assert [data for _, data in stored()] == [b"0", *(b"%d" % number for number in put)]


async def test_puts_that_are_cancelled_anywhere_lose_no_other_record_and_no_room(make_producer, stored):
    """aiokpl_b4: accepted records arrive, and once all puts have ended, the whole buffer is free again."""
    rng = random.Random(4)
    accepted = []
    async with make_producer(buffer_max_records=5, linger=0.001) as producer:

        async def put(number, patience):
            with anyio.move_on_after(patience):
                await producer.put(b"%d" % number, key=f"k{number % 7}")
                accepted.append(b"%d" % number)

        async with anyio.create_task_group() as tasks:
            for number in range(300):
                tasks.start_soon(put, number, rng.choice([0.0, 0.0005, 0.002, 0.01, 1.0]))
        assert await producer.flush() == []
        assert producer.outstanding == 0
        for number in range(5):
            producer.put_nowait(b"after-%d" % number, key="k")
            accepted.append(b"after-%d" % number)
    assert 5 < len(accepted) < 305, "some were cancelled, some were not"
    assert sorted(data for _, data in stored()) == sorted(accepted)


async def test_a_put_that_was_cancelled_before_put_nothing(make_producer, monkeypatch):
    monkeypatch.setattr(producer_module, "YIELD_EVERY", 1)
    async with make_producer() as producer:
        producer._until_yield = 1
        with anyio.CancelScope() as scope:
            scope.cancel()
            await producer.put(b"x", key="k")
        assert scope.cancelled_caught
        assert producer.outstanding == 0


async def test_put_many_that_is_cancelled_keeps_what_it_accepted(make_producer, stored):
    async with make_producer(buffer_max_records=50, linger=30.0, record_ttl=60.0) as producer:
        with anyio.move_on_after(0.05) as scope:
            await producer.put_many([("k", b"%d" % number) for number in range(200)])
        assert scope.cancelled_caught
        assert producer.outstanding == 50
    assert [data for _, data in stored()] == [b"%d" % number for number in range(50)]


async def test_put_lets_other_tasks_run(make_producer):
    """P7: however fast the puts are, the loop runs."""
    ticks = 0
    done = False

    async def tick():
        nonlocal ticks
        while not done:
            ticks += 1
            await anyio.lowlevel.checkpoint()

    async with make_producer() as producer, anyio.create_task_group() as tasks:
        tasks.start_soon(tick)
        for _ in range(10 * producer_module.YIELD_EVERY):
            await producer.put(b"x", key="k")
        done = True
    assert ticks >= 9


# ---- fairness on one asyncio loop


async def test_deliveries_go_with_the_tools_of_asyncio(make_producer, anyio_backend_name):
    if anyio_backend_name != "asyncio":
        import trio

        async with make_producer() as producer:
            delivery = await producer.put(b"x", key="k")
            with trio.fail_after(10):
                assert isinstance(await delivery, Receipt)
        return
    async with make_producer() as producer:
        deliveries = await producer.put_many([("k", b"%d" % number) for number in range(10)])
        receipts = await asyncio.gather(*deliveries)
        assert [receipt.sub_sequence for receipt in receipts] == list(range(10))
        slow = await producer.put(b"x", key="k")
        assert await asyncio.wait_for(slow, 2) == await slow
        assert await asyncio.shield(slow) == await slow
        done, pending = await asyncio.wait({asyncio.ensure_future(one) for one in deliveries})
        assert (len(done), len(pending)) == (10, 0)


async def test_what_the_kpl_properties_could_not_say_is_logged(kinesis, make_producer, complaints, tmp_path):
    path = tmp_path / "kpl.properties"
    path.write_text("RecordMaxBufferedTime = 50\nMetricsLevel = none\n")
    config = ProducerConfig.from_kpl_properties(path)
    assert config.linger == 0.05
    async with make_producer(config=config):
        pass
    assert any("MetricsLevel" in text for _, text in complaints()) is bool(config.untranslated)
