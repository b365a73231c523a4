"""Are the callbacks of a lease called in order: before its first record, before SHARD_END, and before its release?"""

import threading
import time

import anyio
import pytest
from tests.shell.blocking import EVERY_API

from shardline import AssignedShard, RevokedShard, UsageError
from shardline.adapters.leases.memory import MemoryLeases
from shardline.core.error_codes import Failure, FailureKind
from shardline.core.leases import CommitCheckpoint, FinishHandOver, ReleaseLease
from shardline.testing import LocalKinesis

pytestmark = pytest.mark.anyio


@pytest.fixture
def kinesis():
    with LocalKinesis(shards=1, limits=False, stream="s") as running:
        yield running


class Diary:
    """What happened, in order: calls of callbacks (begun and returned), and records."""

    def __init__(self, pause=0.05):
        self.lines = []
        self.pause = pause
        self.arguments = []
        self.threads = set()

    def note(self, line):
        self.lines.append(line)

    def see(self, argument):
        self.arguments.append(argument)
        self.threads.add(threading.current_thread())

    def callbacks(self, *, is_async=True):
        def make(name):
            async def call(argument):
                self.see(argument)
                self.note(f"{name} begins")
                await anyio.sleep(self.pause)
                self.note(name)

            def call_in_thread(argument):
                self.see(argument)
                self.note(f"{name} begins")
                time.sleep(self.pause)
                self.note(name)

            return call if is_async else call_in_thread

        return {name: make(name) for name in ("on_assigned", "on_revoked", "on_shard_end")}

    def store(self, group):
        return NotingStore(group, self)


class NotingStore(MemoryLeases):
    """Notes which lease was released, and which shard was finished."""

    def __init__(self, group, diary):
        super().__init__(group, "s")
        self.diary = diary

    async def apply_many(self, operations):
        for operation in operations:
            if isinstance(operation, ReleaseLease | FinishHandOver):
                self.diary.note("released")
            if isinstance(operation, CommitCheckpoint) and operation.checkpoint.is_finished:
                self.diary.note("finished")
        return await super().apply_many(operations)


@EVERY_API
@pytest.mark.parametrize("is_async", [True, False])
async def test_iteration_is_framed_by_on_assigned_and_on_revoked(make_consumer, put, group, is_async):
    await put([1, 2])
    diary = Diary()
    calls = diary.callbacks(is_async=is_async)
    async with make_consumer(group=group, store=diary.store(group), until="latest", **calls) as consumer:
        async for record in consumer:
            diary.note(int(record.data))
        token = consumer.status().shards[0].token
    assert diary.lines == [
        "on_assigned begins",
        "on_assigned",
        1,
        2,
        "on_revoked begins",
        "on_revoked",
        "released",
    ]
    shard_id = "shardId-000000000000"
    assert diary.arguments == [
        AssignedShard("s", shard_id, token),
        RevokedShard("s", shard_id, token, "close", lost=False),
    ]


@EVERY_API
async def test_a_run_is_framed_and_an_exception_in_the_block_does_not_skip_on_revoked(make_consumer, put, group):
    await put([1, 2, 3])
    diary = Diary()
    arguments = {"store": diary.store(group), "until": "latest", **diary.callbacks(is_async=False)}

    async def run_and_fail():
        async with make_consumer(group=group, **arguments) as consumer:
            await consumer.run(lambda record: diary.note(int(record.data)))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await run_and_fail()
    assert diary.lines[:5] == ["on_assigned begins", "on_assigned", 1, 2, 3]
    assert diary.lines[5:] == ["on_revoked begins", "on_revoked", "released"]
    assert threading.main_thread() not in diary.threads


async def test_on_shard_end_comes_before_shard_end_and_before_the_children(
    make_consumer, put, group, kinesis, client_of
):
    await put([1])
    diary = Diary()
    async with client_of() as client:
        middle = str(kinesis.streams["s"].shards[0].hash_range.middle)
        shard_id = "shardId-000000000000"
        await client.call("SplitShard", {"StreamName": "s", "ShardToSplit": shard_id, "NewStartingHashKey": middle})
    await put([2, 3])
    async with make_consumer(group=group, store=diary.store(group), until="latest", **diary.callbacks()) as consumer:
        async for record in consumer:
            diary.note("parent" if record.shard_id == shard_id else "child")
    first_child = diary.lines.index("child")
    assert diary.lines[:6] == [
        "on_assigned begins",
        "on_assigned",
        "parent",
        "on_shard_end begins",
        "on_shard_end",
        "finished",
    ]
    assert diary.lines.index("on_assigned", 5) < first_child
    assert diary.lines.count("on_assigned") == 3
    assert diary.lines.count("on_revoked") == 2  # the parent was finished


async def test_another_worker_gets_the_shard_after_on_revoked(make_consumer, put, group, kinesis, eventually):
    kinesis.create_stream("t", shards=2)
    diary = Diary(0.2)
    store = MemoryLeases(group, "t")
    async with make_consumer("t", group=group, store=store, worker_id="w1", **diary.callbacks()) as first:
        await eventually(lambda: first.status().workers == {"w1": 2})
        async with make_consumer("t", group=group, store=store, worker_id="w2") as second:
            await eventually(lambda: second.status().workers == {"w1": 1, "w2": 1})
            revoked = [one for one in diary.arguments if isinstance(one, RevokedShard)]
            assert [(one.reason, one.lost) for one in revoked] == [("hand-over", False)]
            assert diary.lines[-1] == "on_revoked"
            assert first.status().totals.hand_overs == 1


async def test_on_revoked_is_called_after_a_lease_was_lost(make_consumer, put, group, eventually):
    await put([1, 2])
    diary = Diary(0.0)
    refuse = False

    class Broken(MemoryLeases):
        async def apply_many(self, operations):
            if refuse:
                return [Failure(FailureKind.TRANSIENT, "Broken", "test")] * len(operations)
            return await super().apply_many(operations)

    async with make_consumer(
        group=group, store=Broken(group, "s"), lease_duration=1.0, **diary.callbacks()
    ) as consumer:
        await eventually(lambda: diary.lines == ["on_assigned begins", "on_assigned"])
        refuse = True
        await eventually(lambda: "on_revoked" in diary.lines)
        assert (diary.arguments[-1].reason, diary.arguments[-1].lost) == ("lost", True)
        refuse = False
        await eventually(lambda: diary.lines.count("on_assigned") == 2)
        assert consumer.status().totals.leases_lost == 1
    assert diary.arguments[-1].token > diary.arguments[0].token


@EVERY_API
@pytest.mark.parametrize("name", ["on_assigned", "on_shard_end", "on_revoked"])
async def test_an_exception_ends_the_consumer_with_it(make_consumer, put, group, kinesis, client_of, name, caplog):
    await put([1])
    async with client_of() as client:
        middle = str(kinesis.streams["s"].shards[0].hash_range.middle)
        params = {"StreamName": "s", "ShardToSplit": "shardId-000000000000", "NewStartingHashKey": middle}
        await client.call("SplitShard", params)
    handled = []

    async def fail(_):
        raise ValueError("broken callback")

    async with make_consumer(group=group, store="memory:", **{name: fail}) as consumer:
        with anyio.move_on_after(0.5 if name == "on_revoked" else 20):
            with pytest.raises(ValueError, match="broken callback"):
                await consumer.run(handled.append)
            assert name != "on_revoked"
            assert consumer.status().health == "failed"
    assert len(handled) == (name != "on_assigned")
    assert f"{name} of shardId-" in caplog.text


async def test_a_callback_may_close_the_consumer(make_consumer, put, group):
    await put([1])

    async def close(_):
        await consumer.close()

    with anyio.fail_after(10):
        async with make_consumer(group=group, store="memory:", on_assigned=close) as consumer:
            assert [record async for record in consumer] == []


async def test_a_callback_that_hangs_is_abandoned_when_the_time_to_close_is_up(make_consumer, put, group):
    async def hang(_):
        await anyio.sleep(60)

    began = time.monotonic()
    async with make_consumer(group=group, store="memory:", on_revoked=hang, close_timeout=0.5) as consumer:
        await consumer.wait_ready()
    assert time.monotonic() - began < 10


def test_a_callback_has_to_be_callable(make_sync_consumer):
    for name in ("on_assigned", "on_revoked", "on_shard_end"):
        with pytest.raises(UsageError, match=name):
            make_sync_consumer(**{name: 3})


async def test_acknowledging_in_on_revoked_counts(make_consumer, put, group):
    """Like committing offsets in Kafka's rebalance listener."""
    await put([1, 2])
    taken = []

    async def flush(_):
        for record in taken:
            assert consumer.ack(record)

    store = MemoryLeases(group, "s")
    async with make_consumer(group=group, store=store, ack="manual", until="latest", on_revoked=flush) as consumer:
        async for record in consumer:
            taken.append(record)
            if len(taken) == 2:
                break
    (row,) = await store.list_leases()
    assert str(row.checkpoint.sequence_number) == taken[-1].sequence_number
    assert row.owner is None
