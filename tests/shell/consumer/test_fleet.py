"""Do several workers share a stream evenly, hand shards over in good order, and take over when one dies?"""

import time
from collections import Counter, defaultdict
from contextlib import AsyncExitStack
from dataclasses import replace

import anyio
import pytest
from tests.harness.sinks import sinks_are_up_to_date
from tests.shell.blocking import EVERY_API

from shardline import StoreError, UsageError, WaitTimeout
from shardline.adapters.leases.memory import MemoryLeases
from shardline.aio.consumer.stream_host import StreamHost
from shardline.core.consumer.consumer_events import (
    HandOverAsked,
    LeaseGained,
    LeaseLost,
    LeaseReleased,
    Stalled,
    StoreFailed,
)
from shardline.core.consumer.coordinator import Coordinator
from shardline.core.error_codes import Failure, FailureKind
from shardline.testing import LocalKinesis

pytestmark = pytest.mark.anyio


@pytest.fixture
def kinesis():
    with LocalKinesis(shards=6, limits=False, stream="s") as running:
        yield running


def held(consumer):
    return {one.shard_id for one in consumer.status().shards if one.state in ("reading", "ending")}


def loads(*consumers):
    return sorted(len(held(one)) for one in consumers)


class Fleet:
    """Workers of one group, each with a handler that notes its records."""

    def __init__(self, make_consumer, tasks, group, store):
        self.make_consumer = make_consumer
        self.tasks = tasks
        self.arguments = {"group": group, "store": store}
        self.done = defaultdict(list)  # data: the workers that handled it
        self.orders = defaultdict(list)  # shard: its orders, as they were handled
        self.gained = []  # the shards, in the order in which they were gained

    async def join(self, name, pause=0.0, **arguments):
        def sink(event):
            if isinstance(event, LeaseGained):
                self.gained.append(event.shard_id)

        consumer = self.make_consumer(**self.arguments, worker_id=name, sinks=[sink], **arguments)

        async def handle(record):
            await anyio.sleep(pause)
            self.done[int(record.data)].append(name)
            self.orders[record.shard_id].append(record.order)

        await consumer.start()
        self.tasks.start_soon(consumer.run, handle)
        return consumer


async def test_two_workers_balance_a_third_joins_and_one_leaves(make_consumer, put, group, store, eventually):
    async with anyio.create_task_group() as tasks:
        fleet = Fleet(make_consumer, tasks, group, store)
        await put(range(300))
        first = await fleet.join("w1")
        await eventually(lambda: loads(first) == [6])
        second = await fleet.join("w2")
        await eventually(lambda: loads(first, second) == [3, 3])
        await put(range(300, 600))
        third = await fleet.join("w3")
        await eventually(lambda: loads(first, second, third) == [2, 2, 2])
        assert held(first) | held(second) | held(third) == {one.shard_id for one in first.status().shards}
        await sinks_are_up_to_date(first, second, third)
        before = len(fleet.gained)
        await first.close()
        await eventually(lambda: loads(second, third) == [3, 3])
        await sinks_are_up_to_date(second, third)
        assert all(count <= 1 for count in Counter(fleet.gained[before:]).values()), "each moved once at most"
        await put(range(600, 900))
        await eventually(lambda: len(fleet.done) == 900)
        for consumer in (second, third):
            await consumer.close()
    assert sorted(fleet.done) == list(range(900))
    assert {len(by) for by in fleet.done.values()} == {1}, "moves in good order repeat nothing"
    for orders in fleet.orders.values():
        assert orders == sorted(orders)


async def test_a_hand_over_that_is_overdue_cancels_the_handler(make_consumer, put, group, eventually, complaints):
    await put(range(60))
    cancelled, events = [], []
    async with anyio.create_task_group() as tasks:
        first = make_consumer(group=group, store="memory:", hand_over_timeout=0.2, sinks=[events.append])

        async def stuck(record):
            try:
                await anyio.sleep_forever()
            finally:
                cancelled.append((record.shard_id, record.lease.held))

        await first.start()
        tasks.start_soon(first.run, stuck)
        await eventually(lambda: loads(first) == [6])
        async with make_consumer(group=group, store="memory:") as second:
            await eventually(lambda: loads(first, second) == [3, 3])
        await sinks_are_up_to_date(first)
        moved = {event.shard_id for event in events if isinstance(event, HandOverAsked)}
        assert len(moved) == 3
        assert {shard_id for shard_id, _ in cancelled} == moved, "the others go on"
        assert not any(is_held for _, is_held in cancelled)
        await first.close(0)
    assert any("before its handler has finished" in text for _, text in complaints())


async def test_an_iterating_user_hands_over_too(make_consumer, put, group, eventually):
    await put(range(600))
    seen = {"w1": [], "w2": []}
    async with anyio.create_task_group() as tasks, AsyncExitStack() as stack:

        async def iterate(name):
            consumer = await stack.enter_async_context(make_consumer(group=group, store="memory:", worker_id=name))
            async for record in consumer:
                seen[name].append(int(record.data))
                await anyio.sleep(0.001)

        tasks.start_soon(iterate, "w1")
        await eventually(lambda: len(seen["w1"]) > 50)
        tasks.start_soon(iterate, "w2")
        await eventually(lambda: len(seen["w1"]) + len(seen["w2"]) >= 600)
        await anyio.sleep(0.1)
        tasks.cancel_scope.cancel()
    assert sorted(seen["w1"] + seen["w2"]) == list(range(600))
    assert seen["w2"]


@pytest.mark.clock
async def test_a_killed_worker_is_replaced_within_lease_duration_and_three_seconds(
    make_consumer, put, group, store, eventually
):
    await put(range(300))
    async with anyio.create_task_group() as tasks:
        fleet = Fleet(make_consumer, tasks, group, store)
        first = await fleet.join("w1")
        second = await fleet.join("w2")
        await eventually(lambda: loads(first, second) == [3, 3] and len(fleet.done) == 300)
        dead = held(first)
        first._session.driver.stop()  # no release, as if the worker had been killed
        killed_at = time.monotonic()
        await put(range(300, 600))
        await eventually(lambda: loads(second) == [6])
        assert time.monotonic() - killed_at < 1.0 + 3.0
        assert dead < held(second)
        await eventually(lambda: len(fleet.done) == 600)
        await first.close()
        await second.close()
    assert sorted(fleet.done) == list(range(600))


async def test_a_worker_that_leaves_is_replaced_at_once(make_consumer, group, eventually):
    async with make_consumer(group=group, store="memory:", lease_duration=60.0) as second:
        async with make_consumer(group=group, store="memory:", lease_duration=60.0) as first:
            await eventually(lambda: loads(first, second) == [3, 3])
            left_at = time.monotonic()
        await eventually(lambda: loads(second) == [6])
        assert time.monotonic() - left_at < 10.0


async def test_max_leases_is_kept_and_the_rest_is_left_to_others(make_consumer, group, eventually, put):
    await put(range(60))
    async with make_consumer(group=group, store="memory:", max_leases=2, until="latest") as first:
        with anyio.fail_after(5):
            got = [int(record.data) async for record in first]
        assert loads(first) == [2]
        assert 0 < len(got) < 60
        async with make_consumer(group=group, store="memory:") as second:
            await eventually(lambda: loads(first, second) == [2, 4])


async def test_a_lease_that_comes_in_the_moment_of_the_end_is_not_read(make_consumer, group, eventually, monkeypatch):
    """The host has no task group any more: starting a reader would end the host, and trio's run, with an error."""
    gained, start = [], StreamHost._start_reading
    monkeypatch.setattr(StreamHost, "_start_reading", lambda host, event: gained.append(event) or start(host, event))
    consumer = make_consumer(group=group, store="memory:")
    await consumer.start()
    driver, take_events = consumer._session.driver, Coordinator.take_events
    late = lambda coordinator: gained[:1] if driver.is_stopping else take_events(coordinator)  # noqa: E731
    monkeypatch.setattr(Coordinator, "take_events", late)
    await eventually(lambda: loads(consumer) == [6])
    driver.stop()
    await eventually(lambda: driver.has_ended and not driver.hand_out.shards)
    with anyio.fail_after(5):
        await consumer.close()


# ---- losing leases


async def test_losing_a_lease_cancels_that_handler_alone_and_refuses_its_acks(make_consumer, put, group, eventually):
    await put(range(60))
    began, ended = {}, []
    async with anyio.create_task_group() as tasks:
        consumer = make_consumer(group=group, store="memory:", worker_id="w1")

        async def handle(record):
            if record.shard_id in began:
                return
            began[record.shard_id] = record
            try:
                await anyio.sleep_forever()
            finally:
                ended.append(record.shard_id)

        await consumer.start()
        tasks.start_soon(consumer.run, handle)
        await eventually(lambda: len(began) == 6)
        lost = min(began)
        rows = MemoryLeases.shared(group, "s")._rows
        rows[lost] = replace(rows[lost], owner="thief", counter=rows[lost].counter + 10)
        await eventually(lambda: ended == [lost])
        assert not began[lost].lease.held
        assert not consumer.ack(began[lost])
        assert all(began[other].lease.held for other in began if other != lost)
        rows[lost] = replace(rows[lost], owner=None, counter=rows[lost].counter + 1)
        await eventually(lambda: lost in held(consumer))
        assert consumer.status().shards[0].token > began[lost].lease.token
        assert not consumer.ack(began[lost]), "it was read under another grant"
        await consumer.close(0)


async def test_a_shielded_handler_whose_lease_is_lost_and_regained_does_not_break_the_run(
    make_consumer, put, group, eventually
):
    """The run once ended with a ValueError when the handler of the lost lease left."""
    await put(range(50), keys=1)
    handled, at_work, go_on = [], [], anyio.Event()
    async with make_consumer(group=group, store="memory:", worker_id="w1") as consumer:

        async def handle(record):
            assert at_work == [], "one record of a shard at a time"
            at_work.append(record)
            with anyio.CancelScope(shield=True):
                if len(handled) == 4:
                    rows = MemoryLeases.shared(group, "s")._rows
                    rows[record.shard_id] = replace(rows[record.shard_id], owner=None, counter=1_000_000)
                    await eventually(lambda: not record.lease.held)
                    await eventually(lambda: record.shard_id in held(consumer))
                    await anyio.sleep(0.2)
                    go_on.set()
            at_work.remove(record)
            handled.append(int(record.data))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(consumer.run, handle)
            await go_on.wait()
            await eventually(lambda: 49 in handled)
            await consumer.close()
    assert handled[:5] == list(range(5))
    assert handled[-45:] == list(range(5, 50))


async def test_a_thread_that_lost_its_lease_ends_after_its_record(make_consumer, put, group, eventually, kinesis):
    await put(range(50), keys=1)
    handled = []
    async with anyio.create_task_group() as tasks:
        consumer = make_consumer(group=group, store="memory:", worker_id="w1")

        def handle(record):
            handled.append(int(record.data))
            if len(handled) == 5:
                shard_id = record.shard_id
                rows = MemoryLeases.shared(group, "s")._rows
                rows[shard_id] = replace(rows[shard_id], owner=None, counter=rows[shard_id].counter + 10)
                while record.lease.held:
                    time.sleep(0.005)
                time.sleep(0.3)
                handled.append("end")

        await consumer.start()
        tasks.start_soon(consumer.run, handle)
        await eventually(lambda: 49 in handled)
        await consumer.close()
    assert handled[:6] == [0, 1, 2, 3, 4, "end"], "the next run of the shard waits for the thread"
    assert [one for one in handled if one != "end"][-45:] == list(range(5, 50))


# ---- stores


class FlakyStore:
    """A store that can be down."""

    scan_interval = 0.05
    checkpoint_interval = 0.05

    def __init__(self, group, stream="s", how="fails"):
        self.inner = MemoryLeases(group, stream)
        self.group, self.stream = group, stream
        self.is_down = False
        self.how = how
        self.open_failures = []

    async def open(self):
        return self.open_failures.pop(0) if self.open_failures else None

    async def list_leases(self):
        return await self._fail() if self.is_down else await self.inner.list_leases()

    async def apply(self, operation):
        return await self._fail() if self.is_down else await self.inner.apply(operation)

    async def _fail(self):
        if self.how == "raises":
            raise OSError("broken pipe")
        if self.how == "hangs":
            await anyio.sleep_forever()
        return Failure(FailureKind.TRANSIENT, "Down", "the store is down")

    async def close(self):
        raise AssertionError("it is the user's to close")


class FlakyBatchingStore(FlakyStore):
    """A store that can be down, and applies many operations at once."""

    async def apply_many(self, operations):
        answers = await self._fail() if self.is_down else await self.inner.apply_many(operations)
        return [answers] * len(operations) if isinstance(answers, Failure) else answers


@pytest.mark.parametrize("make_store", [FlakyStore, FlakyBatchingStore])
@pytest.mark.parametrize("how", ["fails", "raises", "hangs"])
async def test_reading_goes_on_through_an_outage_then_stops_safely_then_recovers(
    make_consumer, put, group, eventually, how, make_store, complaints
):
    store, events, seen = make_store(group, how=how), [], []
    async with (
        make_consumer(group=group, store=store, sinks=[events.append]) as consumer,
        anyio.create_task_group() as tasks,
    ):

        async def handle(record):
            seen.append(int(record.data))

        tasks.start_soon(consumer.run, handle)
        await consumer.wait_ready()
        store.is_down = True
        await put(range(30))
        await eventually(lambda: len(seen) == 30)
        await eventually(lambda: sum(isinstance(event, LeaseLost) for event in events) == 6)
        assert consumer.status().health == "store-down"
        assert not consumer._session.hand_out.shards, "nobody reads without a lease"
        store.is_down = False
        await eventually(lambda: loads(consumer) == [6])
        await put(range(30, 60))
        await eventually(lambda: set(range(60)) <= set(seen))
        assert consumer.status().health == "ok"
        await consumer.close()
    lines = [text for _, text in complaints()]
    assert any("the lease store failed" in line for line in lines)
    assert any("answers again" in line for line in lines)
    assert len(lines) < 30, "rate-limited"


async def test_operations_that_are_due_together_go_to_the_store_together(make_consumer, group, eventually):
    """L1 also holds within such a batch: each operation is for another lease."""
    store, batches, alone = FlakyBatchingStore(group), [], []
    apply_many = store.apply_many

    async def noted_alone(operation):
        alone.append(operation)
        return Failure(FailureKind.INVALID, "Alone", "nothing goes alone")

    async def noted(operations):
        batches.append([operation.shard_id for operation in operations])
        return await apply_many(operations)

    store.apply_many = noted
    store.apply = noted_alone
    async with make_consumer(group=group, store=store) as consumer:
        await consumer.wait_ready()
        await eventually(lambda: sum(len(batch) == 6 for batch in batches) >= 3)  # created, taken, renewed
    assert all(len(set(batch)) == len(batch) for batch in batches)
    assert not alone


async def test_a_short_outage_loses_no_lease(make_consumer, put, group, eventually):
    store, events, seen = FlakyStore(group), [], []
    async with (
        make_consumer(group=group, store=store, sinks=[events.append], lease_duration=5.0) as consumer,
        anyio.create_task_group() as tasks,
    ):

        async def handle(record):
            seen.append(int(record.data))

        tasks.start_soon(consumer.run, handle)
        await consumer.wait_ready()
        store.is_down = True
        await put(range(30))
        await eventually(lambda: len(seen) == 30 and any(isinstance(event, StoreFailed) for event in events))
        store.is_down = False
        await eventually(lambda: consumer.status().health == "ok")
        await consumer.close()
    assert not any(isinstance(event, LeaseLost) for event in events)
    assert sum(isinstance(event, LeaseReleased) for event in events) == 6
    assert {str(row.checkpoint.position.kind) for row in store.inner._rows.values()} == {"AT_SEQUENCE_NUMBER"}


async def test_a_store_that_is_down_at_first_is_waited_for(make_consumer, group, eventually):
    store = FlakyStore(group)
    store.open_failures = [Failure(FailureKind.TRANSIENT, "Down", "not yet")] * 3
    async with make_consumer(group=group, store=store) as consumer:
        await consumer.wait_ready()
        assert loads(consumer) == [6]
    assert not store.open_failures


async def test_a_store_that_turns_out_unusable_ends_the_wait(make_consumer, group):
    store = FlakyStore(group)
    denied = Failure(FailureKind.DENIED, "No", "not you")
    store.open_failures = [Failure(FailureKind.TRANSIENT, "Down", "not yet"), denied]
    async with make_consumer(group=group, store=store) as consumer:
        with pytest.raises(StoreError, match="not you"):
            await consumer.wait_ready()


@pytest.mark.clock
async def test_close_ends_in_time_though_the_store_is_down(make_consumer, put, group):
    store = FlakyStore(group, how="hangs")
    await put(range(10))
    async with make_consumer(group=group, store=store) as consumer:
        await consumer.wait_ready()
        store.is_down = True
        began = time.monotonic()
        await consumer.close(0.1)
    assert time.monotonic() - began < 4


# ---- a blocked loop


async def test_a_blocked_event_loop_is_reported(make_consumer, group, complaints, eventually):
    events = []
    async with make_consumer(group=group, store="memory:", sinks=[events.append]) as consumer:
        await consumer.wait_ready()
        time.sleep(0.65)  # noqa: ASYNC251 - that is the test: longer than to the next renewal and a quarter of the lease
        await eventually(lambda: any(isinstance(event, Stalled) for event in events))
    assert any("blocked" in text for _, text in complaints())


@pytest.mark.clock
async def test_a_loop_that_is_still_blocked_is_reported_with_the_place(make_consumer, group, complaints):
    """This is logged before the leases lapse, by a thread, because the loop itself is blocked."""
    async with make_consumer(group=group, store="memory:", lease_duration=2.0) as consumer:
        await consumer.wait_ready()
        began = time.monotonic()
        while not any("has been blocked" in text for _, text in complaints()):
            time.sleep(0.02)  # noqa: ASYNC251 - that is the test
            assert time.monotonic() - began < 1.9
    (line,) = [text for _, text in complaints() if "has been blocked" in text]
    assert "test_fleet.py" in line


async def test_a_sink_that_fails_harms_nothing(make_consumer, put, complaints):
    def sink(event):
        raise RuntimeError("sink")

    await put(range(10))
    async with make_consumer(until="latest", sinks=[sink]) as consumer:
        assert len([record async for record in consumer]) == 10
    assert [level for level, text in complaints() if "failed; reading continues" in text] == ["ERROR"]


@EVERY_API
async def test_wait_ready_tells_when_it_is_not(make_consumer, group):
    store = FlakyStore(group)
    store.is_down = True
    async with make_consumer(group=group, store=store) as consumer:
        with pytest.raises(WaitTimeout, match=r"not ready after 0\.1 s"):
            await consumer.wait_ready(0.1)
        assert not consumer.is_ready
        store.is_down = False
        await consumer.wait_ready()
        assert consumer.is_ready


@EVERY_API
async def test_a_rolling_restart_with_kept_leases_moves_nothing(make_consumer, put, group, store, eventually):
    settings = {"group": group, "store": store, "keep_leases": True, "lease_duration": 30.0}
    await put(range(60))
    workers = {name: make_consumer(**settings, worker_id=name) for name in ("w1", "w2")}
    for worker in workers.values():
        await worker.start()
    await eventually(lambda: loads(*workers.values()) == [3, 3])
    before = {name: held(worker) for name, worker in workers.items()}
    for name in [*workers]:
        await workers[name].close()
        workers[name] = make_consumer(**settings, worker_id=name)
        await workers[name].start()
        await eventually(lambda: loads(*workers.values()) == [3, 3])
        assert {name: held(worker) for name, worker in workers.items()} == before
    for worker in workers.values():
        await worker.close()


async def test_an_exit_by_an_exception_releases_leases_that_would_be_kept(make_consumer, group, store, eventually):
    async def leave_by_an_exception():
        async with make_consumer(
            group=group, store=store, keep_leases=True, worker_id="w1", lease_duration=30.0
        ) as first:
            await eventually(lambda: loads(first) == [6])
            raise ValueError("out")

    with pytest.raises(ValueError, match="out"):
        await leave_by_an_exception()
    async with make_consumer(group=group, store=store) as second:
        await eventually(lambda: loads(second) == [6], 5.0)


def test_kept_leases_need_a_worker_id(make_sync_consumer):
    with pytest.raises(UsageError, match="keep_leases needs a worker_id"):
        make_sync_consumer(keep_leases=True)
