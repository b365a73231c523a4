"""User code controls a running consumer: it commits now, pauses, resumes, seeks and filters."""

import asyncio
import sys
import time

import anyio
import pytest
from tests.shell.blocking import EVERY_API

from shardline import (
    Closed,
    FilterFailed,
    LeaseNotHeld,
    Record,
    StoreError,
    UsageError,
    WaitTimeout,
    after_sequence_number,
    at_sequence_number,
)
from shardline.adapters.leases.memory import MemoryLeases
from shardline.core.error_codes import Failure, FailureKind
from shardline.events import LeaseLost, RecordsFiltered, ShardSought, ShardsPaused, ShardsResumed

pytestmark = pytest.mark.anyio

SLOW_COMMITS = {"checkpoint_interval": 3_600.0}


class BrokenStore(MemoryLeases):
    """A store that answers until a test breaks it."""

    failure = None

    async def apply(self, operation):
        return await super().apply(operation) if self.failure is None else self.failure

    async def apply_many(self, operations):
        failed = [self.failure] * len(operations)
        return await super().apply_many(operations) if self.failure is None else failed

    async def list_leases(self):
        return await super().list_leases() if self.failure is None else self.failure


def committed(consumer):
    """The number of the last committed record of each shard, as the store has it."""
    return {shard.shard_id: shard.checkpoint.sequence_number for shard in consumer.status().shards}


# ---- commit


@EVERY_API
async def test_commit_returns_when_the_store_has_all_records_that_are_done(make_consumer, put, group, store, take):
    await put(range(100))
    async with make_consumer(group=group, store=store, **SLOW_COMMITS) as consumer:
        records = await take(consumer, 100)
        positions = await consumer.commit()
        last = {record.shard_id: record for record in records[:-1]}
        assert {shard_id: str(position.sequence_number) for shard_id, position in positions.items()} == {
            shard_id: record.sequence_number for shard_id, record in last.items()
        }, "all but the record in hand"
        consumer.ack(records[-1])
        positions = await consumer.commit([records[-1].shard_id])
        assert str(positions[records[-1].shard_id].sequence_number) == records[-1].sequence_number
        assert list(positions) == [records[-1].shard_id]
        # A crash now would lose nothing that is done: the store has it, before the consumer is closed.
        assert {str(number) for number in committed(consumer).values()} == {
            record.sequence_number for record in (last | {records[-1].shard_id: records[-1]}).values()
        }


@EVERY_API
async def test_a_handler_can_commit(make_consumer, put, group, ledger):
    await put(range(20))
    positions = []
    async with make_consumer(group=group, store="memory:", idle_timeout=1.0, **SLOW_COMMITS) as consumer:
        inner = getattr(consumer, "_inner", consumer)

        async def handle(record):
            ledger(record)
            consumer.ack(record)
            positions.append((record, (await consumer.commit([record.shard_id]))[record.shard_id]))

        def handle_blocking(record):
            ledger(record)
            inner.ack(record)
            positions.append((record, inner.commit([record.shard_id])[record.shard_id]))

        await consumer.run(handle if inner is consumer else handle_blocking)
    assert len(ledger.records) == 20
    for record, position in positions:
        assert str(position.sequence_number) == record.sequence_number


@EVERY_API
async def test_with_manual_acknowledgements_the_commit_is_the_watermark(make_consumer, put, group, take):
    await put(range(10), keys=1)
    async with make_consumer(group=group, store="memory:", ack="manual", **SLOW_COMMITS) as consumer:
        records = await take(consumer, 10)
        for record in (records[0], records[1], records[3]):
            consumer.ack(record)
        positions = await consumer.commit([records[0].shard_id])
        assert str(positions[records[0].shard_id].sequence_number) == records[1].sequence_number


@EVERY_API
async def test_commit_names_the_shards_that_are_not_held(make_consumer, put, group, take):
    await put(range(4))
    async with make_consumer(group=group, store="memory:") as consumer:
        records = await take(consumer, 4)
        held = records[0].shard_id
        with pytest.raises(LeaseNotHeld, match="shardId-9: this worker does not hold its lease") as caught:
            await consumer.commit([held, "shardId-9"])
        assert list(caught.value.shards) == ["shardId-9"]
        with pytest.raises(UsageError, match="shards must be a collection of shard ids"):
            await consumer.commit(held)
        with pytest.raises(UsageError, match="must contain shard ids, not 7"):
            await consumer.commit([7])
        with pytest.raises(UsageError, match="timeout"):
            await consumer.commit(timeout=-1)


@EVERY_API
async def test_commit_raises_if_the_store_does_not_answer_or_the_lease_is_lost(make_consumer, put, group, take):
    await put(range(4))
    store = BrokenStore(group, "s")
    async with make_consumer(group=group, store=store, lease_duration=3.0, **SLOW_COMMITS) as consumer:
        records = await take(consumer, 4)
        shard_id = records[0].shard_id
        store.failure = Failure(FailureKind.TRANSIENT, "Down", "test")
        for record in records:
            consumer.ack(record)
        with pytest.raises(WaitTimeout, match=r"commit: the lease store has not confirmed it after 0.2 s"):
            await consumer.commit(timeout=0.2)
        with pytest.raises(LeaseNotHeld, match="no renewal was confirmed within the lease duration"):
            await consumer.commit([shard_id])
        store.failure = None


async def test_commit_raises_the_error_of_a_store_that_cannot_be_used(make_consumer, put, group, take):
    await put(range(4))
    store = BrokenStore(group, "s")
    async with make_consumer(group=group, store=store, store_patience=0.0, lease_duration=3.0) as consumer:
        await take(consumer, 4)
        store.failure = Failure(FailureKind.DENIED, "AccessDenied", "test")

        async def commit_until_it_fails():
            while True:
                await consumer.commit()
                await anyio.sleep(0.05)

        with anyio.fail_after(20), pytest.raises(StoreError):
            await commit_until_it_fails()
        store.failure = None


# ---- pause and resume


@EVERY_API
@pytest.mark.parametrize("fan_out", [None, "reader"])
async def test_a_pause_keeps_the_leases_and_hands_out_nothing(make_consumer, put, group, ledger, eventually, fan_out):
    await put(range(200))
    events = []
    async with (
        make_consumer(group=group, store="memory:", sinks=[events.append], fan_out=fan_out) as consumer,
        anyio.create_task_group() as tasks,
    ):

        async def read():
            async for record in consumer:
                ledger(record)
                await anyio.sleep(0.001)

        tasks.start_soon(read)
        await eventually(lambda: len(ledger.records) > 20)
        await consumer.pause()
        count = len(ledger.records)
        tokens = {shard.token for shard in consumer.status().shards}
        await put(range(200, 300))
        await anyio.sleep(2.5)  # longer than two lease durations
        assert len(ledger.records) == count
        status = consumer.status()
        assert status.is_paused
        assert all(shard.is_paused and shard.state == "reading" for shard in status.shards)
        assert {shard.token for shard in status.shards} == tokens, "the leases were renewed"
        await consumer.resume()
        await eventually(lambda: len({*ledger.numbers}) == 300)
        assert len(ledger.records) == 300, "nothing came twice"
        ledger.check_order()
        assert not consumer.status().is_paused
        await eventually(lambda: any(isinstance(event, ShardsResumed) for event in events))
        (paused,) = [event for event in events if isinstance(event, ShardsPaused)]
        assert paused.is_all
        assert len(paused.shard_ids) == 2
        await consumer.close()


@EVERY_API
async def test_one_shard_can_be_paused(make_consumer, put, group, ledger, eventually):
    async with (
        make_consumer(group=group, store="memory:") as consumer,
        anyio.create_task_group() as tasks,
    ):

        async def handle(record):
            ledger(record)

        await consumer.wait_ready()
        first, second = [shard.shard_id for shard in consumer.status().shards]
        await consumer.pause([first])
        with pytest.raises(LeaseNotHeld, match=r"pause: .*shardId-9"):
            await consumer.pause(["shardId-9"])
        tasks.start_soon(consumer.run, handle if not hasattr(consumer, "_inner") else ledger)
        await put(range(100))
        await eventually(lambda: len(ledger.records) > 20)
        await anyio.sleep(0.5)
        assert {record.shard_id for record in ledger.records} == {second}
        await consumer.resume([first, "shardId-9"])
        await eventually(lambda: len(ledger.records) == 100)
        await consumer.close()


@EVERY_API
async def test_a_paused_run_does_not_end_by_its_bounds(make_consumer, put, group, ledger, eventually):
    async with make_consumer(group=group, store="memory:", idle_timeout=0.3, until="latest") as consumer:
        await consumer.pause()
        ended = anyio.Event()

        async def read():
            async for record in consumer:
                ledger(record)
            ended.set()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(read)
            await anyio.sleep(1.2)
            assert not ended.is_set()
            await put(range(10))
            await eventually(lambda: sum(shard.prefetched for shard in consumer.status().shards) == 10)
            await consumer.resume()
            with anyio.fail_after(20):
                await ended.wait()
    assert len(ledger.records) == 10


# ---- seek


@EVERY_API
@pytest.mark.parametrize("position", ["TRIM_HORIZON", "time", "record"])
async def test_seek_goes_back_and_a_crash_resumes_at_the_sought_position(
    make_consumer, put, group, store, take, eventually, position
):
    await put(range(40), keys=1)
    events = []
    async with make_consumer(group=group, store=store, sinks=[events.append]) as consumer:
        records = await take(consumer, 30)
        for record in records:
            consumer.ack(record)
        shard_id = records[0].shard_id
        await consumer.commit()
        target = {"TRIM_HORIZON": "TRIM_HORIZON", "time": 1_000.0, "record": records[10]}[position]
        await consumer.seek(target, [shard_id])
        assert not consumer.ack(records[29]), "the records from before the seek are void"
        await consumer.commit()
        first = 10 if position == "record" else 0
        expected = [int(record.data) for record in records[first:]]
        (row,) = [shard for shard in consumer.status().shards if shard.shard_id == shard_id]
        number = row.checkpoint.sequence_number
        assert number is None or (str(number), number.sub_sequence) == (records[10].sequence_number, -1)
        again = await take(consumer, 30 - first)
        assert [int(record.data) for record in again] == expected
        await eventually(lambda: any(isinstance(event, ShardSought) for event in events))
        (sought,) = [event for event in events if isinstance(event, ShardSought)]
        assert sought.shard_id == shard_id
        assert str(sought.before.sequence_number) == records[29].sequence_number
        await consumer.seek(target, [shard_id])
    async with make_consumer(group=group, store=store) as consumer:
        assert [int(record.data) for record in await take(consumer, 5)] == expected[:5]


@EVERY_API
@pytest.mark.parametrize("fan_out", [None, "reader"])
async def test_a_handler_can_seek_while_it_runs(make_consumer, put, group, ledger, fan_out):
    await put(range(20), keys=1)
    idle = 15.0 if fan_out else 1.0  # the service refuses a subscription within 5 s of another one
    async with make_consumer(group=group, store="memory:", idle_timeout=idle, fan_out=fan_out) as consumer:
        inner = getattr(consumer, "_inner", consumer)

        async def handle(record):
            ledger(record)
            if len(ledger.records) == 15:
                await consumer.seek(ledger.records[4])

        def handle_blocking(record):
            ledger(record)
            if len(ledger.records) == 15:
                inner.seek(ledger.records[4])

        await consumer.run(handle if inner is consumer else handle_blocking)
    assert ledger.numbers == [*range(15), *range(4, 20)]


@EVERY_API
async def test_seek_to_latest_skips_what_is_stored(make_consumer, put, group, take):
    await put(range(20), keys=1)
    await anyio.sleep(2.5)  # LATEST stands for the second before the call
    async with make_consumer(group=group, store="memory:") as consumer:
        (first,) = await take(consumer, 1)
        await consumer.seek("LATEST")
        await put([99], keys=1)
        (second,) = await take(consumer, 1)
        assert (first.data, second.data) == (b"0", b"99")
        await consumer.seek(after_sequence_number(first.sequence_number), [first.shard_id])
        (third,) = await take(consumer, 1)
        assert third.data == b"1"


@EVERY_API
async def test_seek_refuses_what_it_cannot_do(make_consumer, put, group, take):
    await put(range(4), keys=1)
    async with make_consumer(group=group, store="memory:") as consumer:
        (record, *_) = await take(consumer, 4)
        with pytest.raises(LeaseNotHeld, match=r"seek: .*shardId-9"):
            await consumer.seek("TRIM_HORIZON", ["shardId-9"])
        for wrong, shards, why in [
            (at_sequence_number("7"), None, "is in one shard"),
            ("SHARD_END", None, "cannot seek to SHARD_END"),
            (4_000_000_000.0, None, "in the future"),
            (object(), None, "a position is"),
            (record, ["shardId-9"], "the record is in shardId-"),
            (replace_stream(record), None, "not read from the stream s"),
            ("LATEST", 7, "shards must be a collection"),
        ]:
            with pytest.raises(UsageError, match=why):
                await consumer.seek(wrong, shards)


def replace_stream(record):
    return Record(record.data, record.key, sequence_number=record.sequence_number, shard_id=record.shard_id, stream="t")


async def test_seek_in_on_assigned_decides_where_reading_begins(make_consumer, put, group, take):
    await put(range(10), keys=1)
    async with make_consumer(group=group, store="memory:") as consumer:
        records = await take(consumer, 10)
        for record in records:
            consumer.ack(record)
        await consumer.commit()

    async def rewind(shard):
        await consumer.seek("TRIM_HORIZON", [shard.shard_id])

    async with make_consumer(group=group, store="memory:", on_assigned=rewind) as consumer:
        assert [int(record.data) for record in await take(consumer, 10)] == [*range(10)]


async def test_seek_raises_if_the_store_does_not_answer_and_is_done_later(make_consumer, put, group, take):
    await put(range(4), keys=1)
    store = BrokenStore(group, "s")
    async with make_consumer(group=group, store=store, lease_duration=10.0) as consumer:
        records = await take(consumer, 4)
        store.failure = Failure(FailureKind.TRANSIENT, "Down", "test")
        with pytest.raises(WaitTimeout, match="seek"):
            await consumer.seek("TRIM_HORIZON", timeout=0.3)
        store.failure = None
        assert [record.data for record in await take(consumer, 4)] == [record.data for record in records]


# ---- filter


def is_even(record):
    assert isinstance(record.value, bytes), "it is called before the deserializer"
    return int(record.data) % 2 == 0


@EVERY_API
@pytest.mark.parametrize("way", ["iteration", "run"])
async def test_records_that_do_not_pass_the_filter_are_done(make_consumer, put, group, store, ledger, eventually, way):
    await put([*range(100), 101, 103, 105], keys=1)
    events = []
    arguments = {"group": group, "store": store, "filter": is_even, "sinks": [events.append], "deserializer": int}
    async with make_consumer(idle_timeout=1.0, **arguments) as consumer:
        if way == "run":

            async def handle(record):
                ledger(record)

            await consumer.run(ledger if hasattr(consumer, "_inner") else handle)
        else:
            async for record in consumer:
                ledger(record)
        assert ledger.numbers == [*range(0, 100, 2)]
        status = consumer.status()
        assert status.totals.records_filtered == 53
        assert sum(shard.filtered for shard in status.shards) == 53
        await eventually(lambda: sum(event.records for event in events if isinstance(event, RecordsFiltered)) == 53)
    async with make_consumer(group=group, store=store, until="latest") as consumer:
        assert [record async for record in consumer] == [], "those behind the last record were committed, too"


@EVERY_API
async def test_an_exception_in_the_filter_stops_the_consumer_and_skips_nothing(make_consumer, put, group, ledger):
    await put(range(10), keys=1)

    def fail(record):
        return 1 / (int(record.data) - 7)

    async def read(consumer):
        async for record in consumer:
            ledger(record)

    async with make_consumer(group=group, store="memory:", filter=fail) as consumer:
        with pytest.raises(FilterFailed, match="the filter failed on record") as caught:
            await read(consumer)
        assert isinstance(caught.value.__cause__, ZeroDivisionError)
        assert caught.value.record.data == b"7"
        assert consumer.status().health == "failed"
    async with make_consumer(group=group, store="memory:", until="latest") as consumer:
        await read(consumer)
    assert {*ledger.numbers} == {*range(10)}


class NoTruthValue:
    def __bool__(self):
        raise ValueError("ambiguous")


async def pass_later(record):
    return True


def exit_early(record):
    sys.exit(7)


def cancel(record):
    raise asyncio.CancelledError


@pytest.mark.parametrize("event_loop_kind", ["asyncio", "trio", "blocking"], indirect=True)
@pytest.mark.parametrize(
    ("passes", "cause"),
    [
        (lambda _: NoTruthValue(), ValueError),
        (lambda record: pass_later(record), UsageError),  # noqa: PLW0108 - it does not look like an async function
        (exit_early, SystemExit),
        (cancel, asyncio.CancelledError),
    ],
)
async def test_a_filter_without_an_answer_stops_the_consumer_and_skips_nothing(
    make_consumer, put, group, take, passes, cause
):
    await put(range(10), keys=1)
    async with make_consumer(group=group, store="memory:", filter=passes) as consumer:
        with pytest.raises(FilterFailed) as caught:
            await take(consumer, 1)
        assert isinstance(caught.value.__cause__, cause)
        assert caught.value.record.data == b"0"
    async with make_consumer(group=group, store="memory:", until="latest") as consumer:
        assert len([record async for record in consumer]) == 10


async def test_any_true_answer_of_a_filter_lets_a_record_pass(make_consumer, put):
    await put(range(8), keys=1)
    answers = [True, False, 1, 0, "x", "", [0], None]
    async with make_consumer(until="latest", filter=lambda record: answers[int(record.data)]) as consumer:
        assert [int(record.data) async for record in consumer] == [0, 2, 4, 6]


async def test_a_filter_is_a_plain_function(make_consumer):
    async def passes(record):
        return True

    with pytest.raises(UsageError, match="filter must be a plain function"):
        make_consumer(filter=passes)
    with pytest.raises(UsageError, match="filter must be"):
        make_consumer(filter=7)


async def test_a_slow_filter_does_not_delay_the_renewal_of_leases(make_consumer, put, group, take):
    await put(range(400), keys=1)

    def is_last(record):
        time.sleep(0.005)  # blocks the event loop, and takes two lease durations for the page
        return int(record.data) == 399

    events = []
    async with make_consumer(group=group, store="memory:", filter=is_last, sinks=[events.append]) as consumer:
        (record,) = await take(consumer, 1)
        assert record.data == b"399"
        assert record.lease.held
    assert not any(isinstance(event, LeaseLost) for event in events)


# ---- wrong calls


CONTROLS = {
    "commit": lambda consumer, **arguments: consumer.commit(**arguments),
    "pause": lambda consumer, **arguments: consumer.pause(**arguments),
    "resume": lambda consumer, **arguments: consumer.resume(**arguments),
    "seek": lambda consumer, **arguments: consumer.seek("TRIM_HORIZON", **arguments),
}


@EVERY_API
async def test_a_consumer_that_does_not_run_is_not_controlled(make_consumer, group):
    consumer = make_consumer(group=group, store="memory:")
    for call in CONTROLS.values():
        with pytest.raises(Closed, match="not started"):
            await call(consumer)
    async with consumer:
        pass
    for call in CONTROLS.values():
        with pytest.raises(Closed, match="closed"):
            await call(consumer)


@EVERY_API
@pytest.mark.parametrize("name", CONTROLS)
async def test_wrong_shards_and_timeouts_are_named(make_consumer, put, group, take, name):
    await put(range(10))
    async with make_consumer(group=group, store="memory:", until="latest") as consumer:
        for shards, message in [
            ("shardId-000000000000", "shards must be a collection of shard ids, or None, not 'shardId-000000000000'"),
            (7, "shards must be a collection of shard ids, or None, not 7"),
            ([None], "shards must contain shard ids, not None"),
            ([b"shardId-000000000000"], "shards must contain shard ids, not b'"),
        ]:
            with pytest.raises(UsageError, match=message):
                await CONTROLS[name](consumer, shards=shards)
        await CONTROLS[name](consumer, shards=[])  # nothing to do
        if name in {"commit", "seek"}:
            for timeout in (-1, float("nan"), "1", True):
                with pytest.raises(UsageError, match="timeout must be a number of seconds, 0 or more, or None, not"):
                    await CONTROLS[name](consumer, timeout=timeout)
        if name != "resume":  # a pause ends with the lease, so there is nothing to resume
            with pytest.raises(LeaseNotHeld, match=rf"{name}: .*shardId-9"):
                await CONTROLS[name](consumer, shards=["shardId-9"])
        assert len(await take(consumer, 10)) == 10, "no call has changed anything"


async def test_controls_from_many_handlers_and_tasks_at_once_lose_nothing(make_consumer, put, group, ledger):
    """Each handler commits, pauses or resumes, while another task seeks back twice."""
    await put(range(200), keys=20)
    sought = []

    async def control(consumer, number):
        name = ("commit", "pause", "resume")[number % 3]
        await CONTROLS[name](consumer)
        if name == "pause":
            await consumer.resume()

    async with make_consumer(group=group, store="memory:", until="latest") as consumer:

        async def handle(record):
            await control(consumer, int(record.data))
            ledger(record)

        async def seek_back():
            while len(sought) < 2:
                await anyio.sleep(0.05)
                if len(ledger.records) < 20 * (len(sought) + 1):
                    continue
                try:
                    await consumer.seek("TRIM_HORIZON")
                except (LeaseNotHeld, Closed) as error:  # the run was faster
                    sought.append(error)
                else:
                    sought.append(len(ledger.records))

        with anyio.fail_after(60):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(seek_back)
                await consumer.run(handle, concurrency=16, order="key")
                if len(sought) < 2:
                    tasks.cancel_scope.cancel()
    assert {*ledger.numbers} == {*range(200)}
    async with make_consumer(group=group, store="memory:", until="latest") as consumer:
        assert [record async for record in consumer] == [], "all was committed"
