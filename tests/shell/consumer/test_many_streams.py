"""Does one consumer read several streams, share them with others, and take and give up streams while it runs?"""

from collections import Counter

import anyio
import pytest
from tests.harness.sinks import sinks_are_up_to_date
from tests.shell.blocking import EVERY_API

from shardline import Consumer, LeaseNotHeld, ServiceError, UsageError
from shardline.adapters.leases.memory import MemoryLeases
from shardline.events import LeaseGained, LeaseSurplus

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def streams(kinesis):
    """Two more streams beside ``s``, which has two shards."""
    kinesis.create_stream("t", 2)
    kinesis.create_stream("u", 1)


def read_from(ledger):
    """How many records came from each stream."""
    return Counter(record.stream for record in ledger.records)


def held(consumer, stream=None):
    shards = consumer.status().shards
    return {(one.stream, one.shard_id) for one in shards if one.state == "reading" and stream in (None, one.stream)}


async def drain(iterator):
    with anyio.fail_after(20):
        return [record async for record in iterator]


async def until(condition, seconds=20):
    with anyio.fail_after(seconds):
        while not condition():  # noqa: ASYNC110 - the status notifies no task
            await anyio.sleep(0.02)


@EVERY_API
async def test_all_records_of_all_streams_come_in_order(make_consumer, put, ledger, group, store):
    await put(range(60))
    await put(range(60, 100), stream="t")
    await put(range(100, 110), stream="u")
    async with make_consumer(["s", "t", "u"], group=group, store=store, until="latest") as consumer:
        async for record in consumer:
            ledger(record)
        status = consumer.status()
    assert read_from(ledger) == {"s": 60, "t": 40, "u": 10}
    for stream in ("s", "t", "u"):
        one = type(ledger)()
        one.records = [record for record in ledger.records if record.stream == stream]
        one.check_order()
        assert all(shard.stream == stream for shard in status.of_stream(stream).shards)
    assert (status.stream, status.streams) == ("s, t, u", ("s", "t", "u"))
    assert [len(status.of_stream(stream).shards) for stream in status.streams] == [2, 2, 1]
    async with make_consumer(["u", "t"], group=group, store=store, idle_timeout=0.3) as consumer:
        assert [record async for record in consumer] == [], "everything is committed"


@EVERY_API
async def test_each_stream_has_its_start(make_consumer, put, ledger, kinesis):
    await put(range(10))
    await put(range(10, 20), stream="t")
    kinesis.clock.advance(60)
    async with make_consumer({"s": "LATEST", "t": "TRIM_HORIZON"}, idle_timeout=2.0) as consumer:
        async for record in consumer:
            ledger(record)
    assert read_from(ledger) == {"t": 10}


async def test_a_mapping_names_streams_by_their_arns(make_consumer, put, ledger, kinesis):
    await put(range(10))
    await put(range(10), stream="t")
    arns = [f"arn:aws:kinesis:{kinesis.region}:000000000000:stream/{name}" for name in ("s", "t")]
    async with make_consumer(dict.fromkeys(arns, "TRIM_HORIZON"), until="latest") as consumer:
        async for record in consumer:
            ledger(record)
        assert consumer.status().stream == ", ".join(arns)
    assert read_from(ledger) == {"s": 10, "t": 10}


@pytest.mark.parametrize(
    ("streams", "said"),
    [
        ([], "needs at least one stream"),
        ({}, "needs at least one stream"),
        (["s", "t", "s"], "reads a stream named 's' already"),
        (["s", "arn:aws:kinesis:eu-west-1:123456789012:stream/s"], "tells its streams apart by their names"),
        (["s", 7], "a stream is named by a str"),
        ({"s": "SOMEWHERE"}, "SOMEWHERE"),
        ({"s": "SHARD_END"}, "start must be TRIM_HORIZON, LATEST or a time"),
        (b"s", "a stream is named by a str"),
        (7, "a stream is named by a str"),
    ],
)
def test_wrong_streams_are_refused(streams, said):
    with pytest.raises(UsageError, match=said):
        Consumer(streams, region="eu-west-1")


def test_what_one_stream_needs_alone_is_refused_for_several(tmp_path):
    arn = "arn:aws:kinesis:eu-west-1:123456789012:stream/s/consumer/c:1700000000"
    with pytest.raises(UsageError, match="needs the name of a registered consumer"):
        Consumer(["s", "t"], fan_out=arn, region="eu-west-1")

    class Own:
        group, stream = "g", "s"

    with pytest.raises(UsageError, match="needs the URL of a store, or a store with for_stream, not Own"):
        Consumer(["s", "t"], group="g", store=Own(), region="eu-west-1")


async def test_a_store_object_serves_all_streams(make_consumer, put, ledger, group):
    await put(range(5))
    await put(range(5), stream="t")
    store = MemoryLeases.shared(group, "s")
    async with make_consumer(["s", "t"], group=group, store=store, until="latest") as consumer:
        async for record in consumer:
            ledger(record)
    assert read_from(ledger) == {"s": 5, "t": 5}
    assert len(await store.list_leases()) == 2


@EVERY_API
async def test_a_missing_stream_beside_a_good_one_is_named(make_consumer, put):
    await put(range(5))
    async with make_consumer(["s", "nowhere"], idle_timeout=5.0) as consumer:
        with pytest.raises(ServiceError, match="nowhere"):
            await consumer.wait_ready(20)


@EVERY_API
async def test_streams_are_added_and_removed_while_the_consumer_runs(make_consumer, put, ledger, group, store):
    await put(range(10))
    await put(range(10, 20), stream="t")
    arguments = {"group": group, "store": store}
    async with make_consumer(["s"], **arguments, idle_timeout=3.0) as consumer:
        async for record in consumer:
            ledger(record)
            if len(ledger.records) == 10:
                await consumer.add_stream("t")
            if len(ledger.records) == 20:
                break
        await consumer.commit()
        assert {stream for stream, _ in held(consumer)} == {"s", "t"}
        await consumer.remove_stream("s")
        assert {stream for stream, _ in held(consumer)} == {"t"}
        assert consumer.status().streams == ("t",)
        await put(range(20, 30))
        await put(range(30, 40), stream="t")
        async for record in consumer:
            ledger(record)
            if len(ledger.records) == 30:
                await consumer.add_stream("s")
            if len(ledger.records) == 40:
                break
    # Whoever leaves the block is done with its last record, and so every record came once.
    assert sorted(ledger.numbers) == list(range(40))


async def test_a_stream_that_comes_and_goes_leaves_nothing_behind(make_consumer, put):
    await put(range(1))
    async with make_consumer("s") as consumer:
        for _ in range(3):
            await consumer.add_stream("t")
            await consumer.remove_stream("t")
        assert len(consumer._session._removed) == 1, "only the last one, whose host may still close its store"


@EVERY_API
async def test_what_cannot_be_added_or_removed_is_refused(make_consumer, put, ledger):
    await put(range(5))
    async with make_consumer("s", idle_timeout=2.0) as consumer:
        with pytest.raises(UsageError, match="reads a stream named 's' already"):
            await consumer.add_stream("s")
        with pytest.raises(ServiceError, match="nowhere"):
            await consumer.add_stream("nowhere")
        with pytest.raises(UsageError, match="start must be"):
            await consumer.add_stream("t", start="SHARD_END")
        with pytest.raises(UsageError, match="does not read 't', but s"):
            await consumer.remove_stream("t")
        with pytest.raises(UsageError, match="the only stream"):
            await consumer.remove_stream("s")
        async for record in consumer:
            ledger(record)
        assert await consumer.commit(["shardId-000000000000"]), "nothing has changed"
        await consumer.add_stream("t")
        await consumer.remove_stream("s")
        with pytest.raises(UsageError, match="the only stream"):
            await consumer.remove_stream("t")
    assert len(ledger.records) == 5


@EVERY_API
async def test_a_record_in_hand_may_be_finished_while_its_stream_is_given_up(make_consumer, put, group):
    await put(range(1))
    arguments = {"group": group, "store": "memory:"}
    async with make_consumer(["s", "t"], **arguments, hand_over_timeout=30.0) as consumer:
        iterator = aiter(consumer)
        record = await anext(iterator)
        assert record.stream == "s"
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(consumer.remove_stream, "s")
            await anyio.sleep(0.3)
            assert record.lease.held
            consumer.ack(record)
            await put([1], stream="t")
            assert (await anext(iterator)).stream == "t"
    async with make_consumer("s", **arguments, idle_timeout=0.3) as consumer:
        assert [record async for record in consumer] == []


async def test_a_handler_may_remove_its_own_stream(make_consumer, put, ledger, group):
    await put(range(4), keys=1)
    await put(range(4, 8), stream="t")
    async with make_consumer(["s", "t"], group=group, store="memory:", idle_timeout=2.0) as consumer:

        async def handle(record):
            ledger(record)
            if record.stream == "s" and "s" in consumer.status().streams:
                await consumer.remove_stream("s")

        await consumer.run(handle)
        assert {stream for stream, _ in held(consumer)} == {"t"}
    assert read_from(ledger)["t"] == 4


@EVERY_API
async def test_two_workers_share_the_leases_of_all_streams(
    make_consumer, kinesis, put, ledger, make_ledger, group, store
):
    kinesis.create_stream("v", 1)
    arguments = {"group": group, "store": store}
    other = make_ledger()

    async def read(consumer, ledger):
        async for record in consumer:
            ledger(record)

    async with make_consumer(["u", "v"], **arguments) as first:
        await until(lambda: len(held(first)) == 2)
        async with make_consumer(["u", "v"], **arguments) as second, anyio.create_task_group() as tasks:
            await until(lambda: len(held(first)) == len(held(second)) == 1)
            tasks.start_soon(read, first, ledger)
            tasks.start_soon(read, second, other)
            await put(range(10), stream="u")
            await put(range(10, 20), stream="v")
            await until(lambda: len(ledger.records) + len(other.records) >= 20)
            await first.close()
            await until(lambda: len(held(second)) == 2)
            await second.close()
    assert {*ledger.numbers, *other.numbers} == set(range(20))


async def test_a_lease_is_handed_over_while_its_stream_is_given_up(make_consumer, put, group):
    arguments = {"group": group, "store": "memory:"}
    async with make_consumer(["s", "t"], **arguments) as first:
        await until(lambda: len(held(first)) == 4)
        async with make_consumer(["s", "t"], **arguments) as second:
            await first.remove_stream("s")
            assert held(first, "s") == set()
            await until(lambda: len(held(second, "s")) == 2)
            assert len(held(first)) + len(held(second)) == 4
            await put(range(5))
            assert [await anext(aiter(second)) for _ in range(1)]


async def test_workers_with_different_lists_read_everything(make_consumer, put, ledger, make_ledger, group):
    await put(range(20))
    await put(range(20, 40), stream="t")
    await put(range(40, 60), stream="u")
    other = make_ledger()
    arguments = {"group": group, "store": "memory:", "idle_timeout": 2.0}
    async with (
        make_consumer(["s", "t"], **arguments) as first,
        make_consumer(["t", "u"], **arguments) as second,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(first.run, ledger)
        tasks.start_soon(second.run, other)
    assert {*ledger.numbers, *other.numbers} == set(range(60))
    assert "u" not in read_from(ledger)
    assert "s" not in read_from(other)


@EVERY_API
async def test_shards_are_named_with_their_streams(make_consumer, put, group):
    await put(range(20))
    await put(range(20), stream="t")
    async with make_consumer(["s", "t"], group=group, store="memory:", idle_timeout=2.0, ack="manual") as consumer:
        records = []
        async for record in consumer:
            consumer.ack(record)
            records.append(record)
        positions = await consumer.commit()
        ids = {f"{record.stream}/{record.shard_id}" for record in records}
        assert set(positions) >= ids
        await consumer.pause(["s/shardId-000000000000"])
        assert {(one.stream, one.shard_id) for one in consumer.status().shards if one.is_paused} == {
            ("s", "shardId-000000000000")
        }
        await consumer.resume()
        for wrong in ("shardId-000000000000", "x/shardId-000000000000", "s/"):
            with pytest.raises(UsageError, match="a shard is named as in 's/shardId-000000000000'"):
                await consumer.pause([wrong])
        with pytest.raises(LeaseNotHeld) as raised:
            await consumer.commit(["t/shardId-000000000099"])
        assert set(raised.value.shards) == {"t/shardId-000000000099"}
        last = next(record for record in reversed(records) if record.stream == "t")
        await consumer.seek(last)
        async for record in consumer:
            assert (record.stream, record.sequence_number) == ("t", last.sequence_number)
            break


async def test_a_key_is_in_one_handler_even_if_two_streams_have_it(make_consumer, put):
    await put(range(20), keys=1)
    await put(range(20), stream="t", keys=1)
    at_work, most = 0, 0
    async with make_consumer(["s", "t"], until="latest") as consumer:

        async def handle(record):
            nonlocal at_work, most
            at_work += 1
            most = max(most, at_work)
            await anyio.sleep(0.005)
            at_work -= 1

        await consumer.run(handle, concurrency=8, order="key")
        assert consumer.status().totals.records_handled == 40
    assert most == 1


@EVERY_API
async def test_several_streams_are_read_by_fan_out(make_consumer, put, ledger):
    await put(range(20))
    await put(range(20, 40), stream="t")
    async with make_consumer(["s", "t"], fan_out="billing", until="latest") as consumer:
        async for record in consumer:
            ledger(record)
        assert {shard.read_by for shard in consumer.status().shards} == {"fan-out"}
    assert sorted(ledger.numbers) == list(range(40))


class Seen:
    """A sink that notes the events of each stream."""

    def __init__(self):
        self.events, self.closed, self.batches = [], [], 0

    def open(self, source):
        seen = self

        class One:
            def __call__(self, event):
                seen.events.append((source.stream, event))

            def end_batch(self):
                seen.batches += 1

            def close(self):
                seen.closed.append(source.stream)

        return One()


async def test_a_sink_is_opened_for_each_stream(make_consumer, put):
    seen, plain = Seen(), []
    await put(range(5))
    await put(range(5), stream="t")
    async with make_consumer(["s", "t"], sinks=[seen, plain.append], until="latest", lease_duration=30.0) as consumer:
        assert len([record async for record in consumer]) == 10
        await consumer.remove_stream("t")
        await sinks_are_up_to_date(consumer)
        assert seen.closed == ["t"]
    gained = Counter(stream for stream, event in seen.events if isinstance(event, LeaseGained))
    assert gained == {"s": 2, "t": 2}
    assert {stream for stream, event in seen.events if isinstance(event, LeaseSurplus)} == {"t"}
    assert sum(isinstance(event, LeaseGained) for event in plain) == 4
    assert sorted(seen.closed) == ["s", "t"]
    assert seen.batches > 0


async def test_a_stream_that_is_deleted_ends_the_consumer_and_is_named(make_consumer, put, client_of):
    await put(range(5))
    async with make_consumer(["s", "t"]) as consumer:
        await consumer.wait_ready(20)
        async with client_of() as client:
            await client.call("DeleteStream", {"StreamName": "t"})
        iterator = aiter(consumer)
        with pytest.raises(ServiceError, match=r"\bt\b"):
            await drain(iterator)
