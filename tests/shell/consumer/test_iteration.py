"""Does an iteration hand out every record once, in order, and acknowledge a record when the next one is requested (C5)?"""

import asyncio
import contextlib
import json
from operator import methodcaller

import anyio
import anyio.lowlevel
import pytest
from tests.shell.blocking import EVERY_API

import shardline.sync
from shardline import Closed, Consumer, ConsumerConfig, Credentials, Record, StoreError, UsageError
from shardline.aio.loop.boot_clock import boot_time
from shardline.core.consumer.cursor import SLICE

pytestmark = pytest.mark.anyio


@EVERY_API
async def test_every_record_comes_once_and_in_order(make_consumer, put, ledger):
    await put(range(1000))
    async with make_consumer(until="latest") as consumer:
        async for record in consumer:
            ledger(record)
    assert sorted(ledger.numbers) == list(range(1000))
    ledger.check_order()


async def test_a_record_says_where_it_is_from(make_consumer, put, kinesis):
    await put([7])
    async with make_consumer(until="latest") as consumer:
        (record,) = [record async for record in consumer]
        assert record.lease.held
        assert record.lease.token >= 1
    (stored,) = kinesis.streams["s"].records
    assert (record.data, record.key, record.sub_sequence, record.aggregated) == (b"7", "k7", 0, False)
    assert (record.sequence_number, record.shard_id, record.stream) == (stored.sequence_number, stored.shard_id, "s")
    assert record.arrived_at == pytest.approx(stored.arrived_at, abs=0.01)
    assert record.lag is not None
    assert not record.lease.held, "it was let go"


@EVERY_API
async def test_records_that_are_put_later_come_too(make_consumer, put, take):
    async with make_consumer() as consumer:
        await consumer.wait_ready()
        await put(range(10))
        assert sorted(int(one.data) for one in await take(consumer, 10)) == list(range(10))
        await put(range(10, 20))
        assert sorted(int(one.data) for one in await take(consumer, 10)) == list(range(10, 20))


@EVERY_API
async def test_a_batch_has_records_of_one_shard_and_no_more_than_asked_for(make_consumer, put, ledger):
    await put(range(500))
    sizes = []
    async with make_consumer(until="latest") as consumer:
        async for batch in consumer.batches(max_records=30):
            assert {record.shard_id for record in batch} == {batch.shard_id}
            assert batch.lease.held
            sizes.append(len(batch))
            for record in batch:
                ledger(record)
    assert max(sizes) == 30
    assert sum(sizes) == 500
    assert sorted(ledger.numbers) == list(range(500))
    ledger.check_order()


async def test_a_batch_is_a_sequence_without_the_data_in_its_repr(make_consumer, put):
    await put([111, 112], keys=1)
    async with make_consumer(until="latest") as consumer:
        async for batch in consumer.batches():
            assert [batch[0].data, batch[-1].data, [one.data for one in batch[:1]]] == [b"111", b"112", [b"111"]]
            assert batch.values == [b"111", b"112"]
            assert "2 records" in repr(batch)
            assert "111" not in repr(batch)


@EVERY_API
async def test_a_batch_waits_for_its_fill_and_no_longer(make_consumer, put):
    async with make_consumer(page_max_records=5) as consumer:
        await put(range(12), keys=1)
        with anyio.fail_after(5):
            batches = consumer.batches(max_records=10, max_wait=0.3)
            assert len(await anext(batches)) == 10
            assert len(await anext(batches)) == 2


@EVERY_API
@pytest.mark.parametrize("error", [None, RuntimeError, KeyboardInterrupt])
async def test_what_was_asked_past_is_committed_and_the_rest_comes_again(make_consumer, put, take, group, store, error):
    """C5: a crash replays exactly the unacknowledged records. A normal end of the block acknowledges the last one."""
    await put(range(100), keys=1)
    with contextlib.nullcontext() if error is None else pytest.raises(error):
        async with make_consumer(group=group, store=store) as consumer:
            seen = [int(one.data) for one in await take(consumer, 40)]
            if error is not None:
                raise error
    assert seen == list(range(40))
    async with make_consumer(group=group, store=store, until="latest") as consumer:
        assert [int(record.data) async for record in consumer] == list(range(40 if error is None else 39, 100))


async def test_cancellation_does_not_count_as_asking(make_consumer, put, take, group, store):
    await put(range(100), keys=1)
    with anyio.CancelScope() as scope:
        async with make_consumer(group=group, store=store) as consumer:
            await take(consumer, 40)
            scope.cancel()
            await anyio.sleep(1)
    assert scope.cancelled_caught
    async with make_consumer(group=group, store=store, until="latest") as consumer:
        assert [int(record.data) async for record in consumer] == list(range(39, 100))


@EVERY_API
@pytest.mark.parametrize("way", ["asked", "acked", "left", "broken"])
async def test_a_batch_is_done_when_the_next_is_asked_for_or_it_is_acked(make_consumer, put, group, store, way):
    await put(range(100), keys=1)
    try:
        async with make_consumer(group=group, store=store) as consumer:
            batches = consumer.batches(max_records=20)
            batch = await anext(batches)
            if way == "asked":
                await anext(batches)
            elif way == "acked":
                assert batch.ack()
                assert batch.ack(), "the lease is held"
            if way != "left":
                raise RuntimeError  # noqa: TRY301 - the block is what is left
    except RuntimeError:
        pass
    async with make_consumer(group=group, store=store, until="latest") as consumer:
        again = [int(record.data) async for record in consumer]
    assert again == list(range(0 if way == "broken" else 20, 100))
    assert not batch.ack(), "too late, and harmless"


@EVERY_API
async def test_a_new_iteration_counts_as_asking(make_consumer, put, take, group):
    await put(range(10), keys=1)
    async with make_consumer(group=group, store="memory:", until="latest") as consumer:
        await take(consumer, 3)
        assert [int(one.data) for one in await take(consumer, 1)] == [3], "what is left of the page comes again"
        assert [len(batch) async for batch in consumer.batches(max_records=2)] == [2, 2, 2]


@EVERY_API
async def test_commits_come_while_it_is_iterated(make_consumer, put, group, eventually, take):
    await put(range(10), keys=1)
    async with make_consumer(group=group, store="memory:") as consumer:
        first = await take(consumer, 4)

        def committed():
            return {str(one.checkpoint.sequence_number) for one in consumer.status().shards if one.checkpoint}

        await eventually(lambda: first[2].sequence_number in committed())
        await anyio.sleep(0.2)
        assert first[3].sequence_number not in committed()


@pytest.mark.parametrize("begin", [aiter, Consumer.batches], ids=["records", "batches"])
async def test_two_iterations_at_once_are_refused(make_consumer, put, begin):
    async with make_consumer() as consumer, anyio.create_task_group() as tasks:
        tasks.start_soon(anext, begin(consumer))
        await anyio.wait_all_tasks_blocked()
        with pytest.raises(UsageError, match="one iteration at a time"):
            aiter(consumer)
        with pytest.raises(UsageError, match="one iteration at a time"):
            consumer.batches()
        with pytest.raises(UsageError, match="one iteration at a time"):
            await consumer.run(print)
        await put(range(10))


@pytest.mark.parametrize("begin", [aiter, Consumer.batches], ids=["records", "batches"])
async def test_a_second_task_in_one_iterator_is_refused(make_consumer, put, begin):
    """Regression: it hung, because both tasks waited and one answer came."""
    seen = []

    async def ask(iterator):
        seen.append(await anext(iterator))

    async with make_consumer() as consumer, anyio.create_task_group() as tasks:
        iterator = begin(consumer)
        tasks.start_soon(ask, iterator)
        await anyio.wait_all_tasks_blocked()
        with pytest.raises(UsageError, match="another task or thread waits in this iterator"), anyio.fail_after(5):
            await anext(iterator)
        await put(range(1))
    assert len(seen) == 1


@EVERY_API
@pytest.mark.parametrize("begin", [aiter, lambda consumer: consumer.batches(max_records=3)], ids=["records", "batches"])
async def test_a_new_iteration_ends_the_older_and_goes_on_behind_it(make_consumer, put, begin):
    await put(range(10), keys=1)
    async with make_consumer(until="latest") as consumer:
        old = begin(consumer)
        await anext(old)
        new = aiter(consumer)
        with pytest.raises(UsageError, match="this iteration is over"):
            await anext(old)
        assert [int(record.data) async for record in new] == list(range(1 if begin is aiter else 3, 10))


async def test_after_a_timeout_one_may_iterate_again(make_consumer, put):
    await put(range(5), keys=1)
    seen = []

    async def read(consumer):
        async for record in consumer:
            seen.append(int(record.data))

    async with make_consumer() as consumer:
        for _ in range(3):
            with anyio.move_on_after(0.5):
                await read(consumer)
    assert seen == list(range(5))


async def test_c5_a_task_that_has_ended_is_not_waited_for(make_consumer, put, group):
    """Until Python 3.12, ``asyncio.wait_for`` awaits in a task of its own."""
    await put(range(10), keys=1)
    async with make_consumer(group=group, store="memory:") as consumer:
        records = aiter(consumer)
        for _ in range(3):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(anext, records)
        began = anyio.current_time()
    assert anyio.current_time() - began < 5
    async with make_consumer(group=group, store="memory:", until="latest") as consumer:
        assert int((await anext(aiter(consumer))).data) == 3, "what was handed out is done"


async def test_waiting_for_a_record_can_be_cancelled_and_loses_none(make_consumer, put, take):
    async with make_consumer() as consumer:
        records = aiter(consumer)
        for _ in range(3):
            with anyio.move_on_after(0.02):
                await anext(records)
        await put(range(5))
        with anyio.fail_after(5):
            got = [await anext(records) for _ in range(5)]
    assert sorted(int(one.data) for one in got) == list(range(5))


async def test_a_quick_user_lets_the_loop_have_its_turn(make_consumer, put):
    await put(range(3000))
    turns = 0

    async def other():
        nonlocal turns
        while True:
            await anyio.lowlevel.checkpoint()
            turns += 1

    async with make_consumer(until="latest") as consumer, anyio.create_task_group() as tasks:
        await consumer.wait_ready()
        tasks.start_soon(other)
        async for _ in consumer:
            end = boot_time() + SLICE / 50
            while boot_time() < end:
                pass
        tasks.cancel_scope.cancel()
    assert turns > 10


@EVERY_API
async def test_manual_acknowledgements_commit_in_order_whatever_the_order_of_acks(
    make_consumer, put, take, group, store
):
    await put(range(10), keys=1)
    async with make_consumer(group=group, store=store, ack="manual") as consumer:
        records = await take(consumer, 8)
        assert consumer.ack(records[1])
        assert consumer.ack(records[0])
        assert consumer.ack(records[0]), "it was known, and the lease is held"
        assert consumer.ack(records[3])
    async with make_consumer(group=group, store=store, until="latest", ack="manual") as consumer:
        again = [record async for record in consumer]
        assert [int(record.data) for record in again] == list(range(2, 10))
        assert consumer.ack(again[3], through=True)
    assert not consumer.ack(again[4]), "the lease is gone"
    async with make_consumer(group=group, store=store, until="latest") as consumer:
        assert [int(record.data) async for record in consumer] == list(range(6, 10))


async def test_a_batch_can_be_acknowledged_by_hand(make_consumer, put, group):
    await put(range(10), keys=1)
    async with make_consumer(group=group, store="memory:", ack="manual") as consumer:
        batch = await anext(consumer.batches(max_records=5))
        assert consumer.ack(batch)
    async with make_consumer(group=group, store="memory:", until="latest") as consumer:
        assert [int(record.data) async for record in consumer] == list(range(5, 10))


async def test_acks_may_come_from_another_thread(make_consumer, put, take, group):
    await put(range(10), keys=1)
    async with make_consumer(group=group, store="memory:", ack="manual") as consumer:
        records = await take(consumer, 5)
        assert await anyio.to_thread.run_sync(consumer.ack, records[0])
        await anyio.sleep(0.05)
    async with make_consumer(group=group, store="memory:", until="latest") as consumer:
        assert [int(record.data) async for record in consumer] == list(range(1, 10))


@EVERY_API
async def test_aggregates_are_opened_and_resumed_in_the_middle(make_consumer, client_of, take, group, store):
    from shardline import aggregate

    packed = aggregate([("k", b"%d" % number) for number in range(10)])
    async with client_of() as client:
        await client.put_record("s", packed, "k")
    async with make_consumer(group=group, store=store) as consumer:
        records = await take(consumer, 4)
        assert [(int(one.data), one.sub_sequence, one.aggregated) for one in records] == [
            (n, n, True) for n in range(4)
        ]
    async with make_consumer(group=group, store=store, until="latest") as consumer:
        assert [int(record.data) async for record in consumer] == list(range(4, 10))


async def test_values_are_what_the_deserializer_makes_where_it_is_asked_for(make_consumer, client_of):
    async with client_of() as client:
        await client.put_record("s", b'{"n": 1}', "k")
        await client.put_record("s", b"no json", "k")
        await client.put_record("s", b'{"n": 3}', "k")
    seen = []
    async with make_consumer(until="latest", deserializer=json.loads) as consumer:
        async for record in consumer:
            try:
                seen.append(record.value["n"])
            except ValueError:
                seen.append(record.data)
    assert seen == [1, b"no json", 3]


# ---- bounded runs


@EVERY_API
async def test_an_empty_stream_ends_a_bounded_run(make_consumer):
    with anyio.fail_after(5):
        async with make_consumer(until="latest") as consumer:
            assert [record async for record in consumer] == []
        async with make_consumer(idle_timeout=0.05) as consumer:
            assert [batch async for batch in consumer.batches()] == []


@EVERY_API
async def test_idleness_is_counted_from_the_last_record_and_can_be_waited_for_again(make_consumer, put):
    await put(range(10))
    async with make_consumer(idle_timeout=0.2) as consumer:
        began = anyio.current_time()
        assert len([record async for record in consumer]) == 10
        assert anyio.current_time() - began >= 0.2
        await put(range(10, 15))
        assert len([record async for record in consumer]) == 5


# ---- arguments and life


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"group": "g"}, "a group needs a store"),
        ({"store": "memory:"}, "a store needs a group"),
        ({"group": "g", "store": "mysql://x"}, "a store is one of"),
        ({"start": "SHARD_END"}, "start must be"),
        ({"start": 5j}, "a position is"),
        ({"config": "quick"}, "config must be a ConsumerConfig"),
        ({"until": "tomorrow"}, "until must be"),
        ({"idle_timeout": -1}, "idle_timeout"),
        ({"deserializer": 5}, "deserializer must be callable"),
        ({"max_leases": 0}, "max_leases"),
        ({"worker_id": ""}, "worker_id"),
        ({"colour": "red"}, "colour"),
        ({"client": 5}, "client"),
        ({"region": "Mars 1"}, "region"),
    ],
)
@pytest.mark.parametrize("kind", [Consumer, shardline.sync.Consumer], ids=["async", "blocking"])
def test_a_wrong_argument_is_named(kind, arguments, told):
    with pytest.raises(UsageError, match=told):
        kind("s", **arguments)


def test_connection_arguments_go_with_no_client():
    from shardline import Client

    with pytest.raises(UsageError, match="cannot be combined with client="):
        Consumer("s", client=Client(region="eu-west-1"), region="eu-west-1")


@EVERY_API
async def test_what_is_not_started_or_closed_refuses(make_consumer, put):
    consumer = make_consumer()
    for use in (aiter, methodcaller("batches"), methodcaller("ack", Record(b"", "k"))):
        with pytest.raises(Closed, match="not started"):
            anext(use(consumer))
    for use in (methodcaller("wait_ready"), methodcaller("run", print)):
        with pytest.raises(Closed, match="not started"):
            await use(consumer)
    assert consumer.status().health == "starting"
    await consumer.close()
    with pytest.raises(Closed, match="closed"):
        await consumer.start()
    async with make_consumer() as consumer:
        await consumer.start()
    with pytest.raises(Closed, match="closed"):
        aiter(consumer)
    with pytest.raises(Closed):
        await consumer.wait_ready()
    await consumer.close()
    assert "closed" in repr(consumer)


@EVERY_API
async def test_wrong_sizes_of_batches_are_refused(make_consumer):
    async with make_consumer() as consumer:
        for arguments in ({"max_records": 0}, {"max_records": True}, {"max_wait": -1}, {"max_wait": None}):
            with pytest.raises(UsageError):
                consumer.batches(**arguments)
        with pytest.raises(UsageError):
            await consumer.close(-1)


async def test_start_and_close_may_come_from_different_tasks(make_consumer, put, take):
    await put(range(3))
    consumer = make_consumer()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(consumer.start)
    assert len(await take(consumer, 3)) == 3
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(consumer.close)
    assert consumer.status().health == "closed"


@EVERY_API
async def test_close_from_another_task_waits_for_the_record_in_hand(make_consumer, put, group):
    await put(range(10), keys=1)
    seen = []
    async with make_consumer(group=group, store="memory:") as consumer, anyio.create_task_group() as tasks:
        async for record in consumer:
            seen.append(int(record.data))
            if len(seen) == 3:
                tasks.start_soon(consumer.close)
            await anyio.sleep(0.05)
    assert seen == [0, 1, 2]
    async with make_consumer(group=group, store="memory:", until="latest") as consumer:
        assert [int(record.data) async for record in consumer] == list(range(3, 10))


@EVERY_API
async def test_a_record_whose_body_raises_during_a_close_is_not_done(make_consumer, put, group):
    """The close of another task waits for the body, whose block is then left by an exception (C5)."""
    await put(range(10), keys=1)
    with pytest.raises(ExceptionGroup) as raised:  # noqa: PT012 - the block has to be left
        async with anyio.create_task_group() as tasks, make_consumer(group=group, store="memory:") as consumer:
            async for record in consumer:
                if int(record.data) == 3:
                    tasks.start_soon(consumer.close)
                    await anyio.sleep(0.1)
                    raise ZeroDivisionError
    assert raised.group_contains(ZeroDivisionError)
    async with make_consumer(group=group, store="memory:", until="latest") as consumer:
        assert [int(record.data) async for record in consumer] == list(range(3, 10))


@EVERY_API
async def test_close_from_another_task_does_not_wait_forever(make_consumer, put, group):
    await put(range(10), keys=1)
    async with make_consumer(group=group, store="memory:") as consumer:
        records = aiter(consumer)
        async with anyio.create_task_group() as tasks:
            await anext(records)
            held = await anext(records)
            tasks.start_soon(consumer.close, 0.1)
        assert not held.lease.held
        assert [record async for record in records] == []
    async with make_consumer(group=group, store="memory:", until="latest") as consumer:
        assert [int(record.data) async for record in consumer] == list(range(1, 10)), "the second was not done"


async def test_a_consumer_that_is_dropped_says_so_and_lets_go(make_consumer, put, group, eventually):
    import gc

    await put(range(10))
    consumer = make_consumer(group=group, store="memory:")
    await consumer.start()
    await consumer.wait_ready()
    driver = consumer._session.driver
    with pytest.warns(ResourceWarning, match="never closed"):  # noqa: PT031 - dropped, then collected
        del consumer
        gc.collect()
    await eventually(lambda: driver.has_ended)
    assert all(host.coordinator.is_closed for host in driver.streams.values())


async def test_several_streams_go_through_one_client(kinesis, client_of, put):
    kinesis.create_stream("t", shards=1)
    await put(range(5), stream="s")
    await put(range(5, 9), stream="t")
    async with client_of() as client:
        seen = {}
        for name in ("s", "t"):
            async with Consumer(name, client=client, until="latest", config=ConsumerConfig()) as consumer:
                seen[name] = sorted([int(record.data) async for record in consumer])
        assert seen == {"s": list(range(5)), "t": list(range(5, 9))}
        assert await client.list_streams()


@EVERY_API
async def test_status_tells_of_shards_owners_positions_and_lag(make_consumer, put, group):
    await put(range(20))
    async with make_consumer(group=group, store="memory:", until="latest", worker_id="w1") as consumer:
        assert consumer.worker_id == "w1"
        assert len([record async for record in consumer]) == 20
        status = consumer.status()
    assert (status.stream, status.group, status.worker_id, status.health) == ("s", group, "w1", "ok")
    assert status.is_ready
    assert status.workers == {"w1": 2}
    assert [one.state for one in status.shards] == ["reading", "reading"]
    assert (status.reading_lag, status.handling_lag) == (0.0, 0.0)
    assert not status.is_resharding
    assert make_consumer().status().health == "starting"


def test_worker_ids_are_unique():
    from shardline.aio.consumer.worker_identity import new_worker_id

    assert len({new_worker_id() for _ in range(100)}) == 100
    consumers = [Consumer("s", region="eu-west-1", credentials=Credentials("a", "b")) for _ in range(2)]
    assert consumers[0].worker_id != consumers[1].worker_id


@EVERY_API
async def test_a_start_that_failed_may_be_tried_again(make_consumer, put, tmp_path):
    await put(range(10))
    file = tmp_path / "leases.db"
    file.write_text("something else")
    consumer = make_consumer(group="g", store=f"sqlite:///{file}", until="latest")
    for _ in range(2):
        with pytest.raises(StoreError, match="cannot be used") as failed:
            await consumer.start()
    assert failed.value.kind == "invalid"
    assert (consumer.status().health, file.read_text()) == ("starting", "something else")
    file.unlink()
    async with consumer:
        assert len([record async for record in consumer]) == 10


async def test_a_start_without_a_region_may_be_tried_again(put, connection, monkeypatch):
    await put(range(10))
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", "/dev/null")
    consumer = Consumer("s", **{**connection, "region": None}, until="latest")
    with pytest.raises(UsageError, match="region"):
        await consumer.start()
    monkeypatch.setenv("AWS_REGION", connection["region"])
    async with consumer:
        assert len([record async for record in consumer]) == 10


async def test_a_start_that_is_cancelled_leaves_nothing_open(make_consumer, kinesis, group, store):
    kinesis.faults.latency(5.0, operation="DescribeStreamSummary")
    consumer = make_consumer(group=group, store=store, start="LATEST")
    with anyio.move_on_after(0.2) as scope:
        await consumer.start()
    assert scope.cancelled_caught
    await consumer.close()


async def test_a_close_that_is_cancelled_lets_go_all_the_same(make_consumer, put, group, eventually):
    await put(range(10))
    consumer = make_consumer(group=group, store="memory:")
    await consumer.start()
    await consumer.wait_ready()
    with anyio.CancelScope() as scope:
        scope.cancel()
        await consumer.close()
    assert consumer.status().workers == {}
    assert consumer.status().health == "closed"


async def test_closing_inside_of_the_loop_ends_it(make_consumer, put, group):
    await put(range(10), keys=1)
    seen = []
    async with make_consumer(group=group, store="memory:") as consumer:
        async for record in consumer:
            seen.append(int(record.data))
            if len(seen) == 4:
                await consumer.close()
    assert seen == [0, 1, 2, 3]
    async with make_consumer(group=group, store="memory:", until="latest") as consumer:
        assert [int(record.data) async for record in consumer] == list(range(4, 10))


@pytest.mark.parametrize("event_loop_kind", ["asyncio", "uvloop"], indirect=True)
async def test_a_closer_is_not_taken_for_a_task_that_ended_with_a_record_in_hand(make_consumer, put, group):
    """The id of a task that has ended may be reused: the closer would commit the records of the other task."""
    await put([0] * 10)
    for trial in range(10):
        names = {"group": f"{group}-{trial}", "store": "memory:"}
        async with make_consumer(**names) as consumer:
            records = aiter(consumer)

            handed = []

            async def ask(records=records, handed=handed):
                handed += [await anext(records), await anext(records)]
                raise RuntimeError

            with pytest.raises(RuntimeError):
                await asyncio.create_task(ask())
            first, second = handed
            await asyncio.create_task(consumer.close(0.05))
        async with make_consumer(**names, until="latest") as consumer:
            again = [record.sequence_number async for record in consumer]
        assert second.sequence_number in again
        assert first.sequence_number not in again


@EVERY_API
@pytest.mark.parametrize("what", [None, 7, "record", b"data", []])
async def test_only_records_and_batches_are_acknowledged(make_consumer, what):
    async with make_consumer(ack="manual") as consumer:
        with pytest.raises(UsageError, match="a Record or a Batch, not"):
            consumer.ack(what)
