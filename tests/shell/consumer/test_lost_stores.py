"""A lease store that can never work again ends the consumer; one that denies access gets some time; an empty one is
reported.
"""

import sqlite3
import time
from contextlib import closing

import anyio
import pytest
from tests.shell.blocking import EVERY_API

from shardline import StoreError
from shardline.adapters.leases.memory import MemoryLeases
from shardline.core.consumer.consumer_events import ConsumerFailed, ProgressLost, StoreFailed
from shardline.core.error_codes import Failure, FailureKind

pytestmark = pytest.mark.anyio

DENIED = Failure(FailureKind.DENIED, "AccessDeniedException", "you may not", 400, maybe_received=False)


class BrokenStore:
    """A store in memory that fails on request."""

    scan_interval = 0.05
    checkpoint_interval = 0.05

    def __init__(self, group, stream="s"):
        self.inner = MemoryLeases(group, stream)
        self.group, self.stream = group, stream
        self.failure = None
        self.denies_writes_only = False

    async def open(self):
        return None

    async def list_leases(self):
        if self.failure is not None and not self.denies_writes_only:
            return self.failure
        return await self.inner.list_leases()

    async def apply(self, operation):
        return await self.inner.apply(operation) if self.failure is None else self.failure

    async def close(self):
        raise AssertionError("it is the user's to close")


def take_away(path, how):
    if how == "deleted":
        for name in path.parent.glob("leases.db*"):
            name.unlink()
    elif how == "replaced":
        path.rename(path.with_name("old.db"))
        path.touch()
    else:
        with closing(sqlite3.connect(path)) as connection:
            connection.execute("DROP TABLE leases")


async def read(consumer, way):
    if way == "iteration":
        async for _ in consumer:
            pass
    elif way == "batches":
        async for _ in consumer.batches():
            pass
    else:

        async def handle(record):
            pass

        await consumer.run(handle)


@EVERY_API
@pytest.mark.parametrize("way", ["iteration", "batches", "run"])
@pytest.mark.parametrize("how", ["deleted", "replaced", "dropped"])
async def test_a_file_that_is_gone_for_longer_than_a_lease_ends_the_consumer(
    make_consumer, put, group, tmp_path, complaints, how, way
):
    await put(range(20))
    path, events = tmp_path / "leases.db", []
    async with make_consumer(group=group, store=f"sqlite:///{path}", sinks=[events.append]) as consumer:
        await consumer.wait_ready()
        take_away(path, how)
        began = time.monotonic()
        with pytest.raises(StoreError), anyio.fail_after(15):
            await read(consumer, way)
        assert time.monotonic() - began > 0.9  # a lease
        assert consumer.status().health == "failed"
        with pytest.raises(StoreError):
            await consumer.wait_ready()
    assert sum(isinstance(event, ConsumerFailed) for event in events) == 1
    assert any(level == "ERROR" and "the lease store cannot be used" in text for level, text in complaints())


@pytest.mark.parametrize("writes_only", [False, True])
async def test_a_store_that_denies_access_is_tried_for_store_patience(make_consumer, group, complaints, writes_only):
    store, events = BrokenStore(group), []
    async with make_consumer(group=group, store=store, store_patience=3.0, sinks=[events.append]) as consumer:
        await consumer.wait_ready()
        store.failure, store.denies_writes_only = DENIED, writes_only
        began = time.monotonic()
        with pytest.raises(StoreError, match="you may not") as failed, anyio.fail_after(20):
            await read(consumer, "iteration")
        assert 2.9 < time.monotonic() - began < 10.0
    assert (failed.value.kind, failed.value.code) == ("denied", "AccessDeniedException")
    assert any(isinstance(event, StoreFailed) and event.gives_up_at > 0 for event in events)
    assert any(level == "ERROR" and "store_patience" in text for level, text in complaints())


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
async def test_a_store_that_comes_back_empty_is_reported(
    make_consumer, put, group, tmp_path, complaints, ledger, eventually, kind
):
    await put(range(20))
    path, events = tmp_path / "leases.db", []
    store = MemoryLeases(group, "s") if kind == "memory" else f"sqlite:///{path}"
    async with (
        make_consumer(group=group, store=store, sinks=[events.append]) as consumer,
        anyio.create_task_group() as tasks,
    ):

        async def handle(record):
            ledger(record)

        tasks.start_soon(consumer.run, handle)
        await eventually(lambda: len(ledger.records) == 20)
        if kind == "memory":
            store._rows.clear()
        else:
            with closing(sqlite3.connect(path)) as connection:
                connection.execute("DELETE FROM leases")
                connection.commit()
        await eventually(lambda: any(isinstance(event, ProgressLost) for event in events))
        await eventually(lambda: len(ledger.records) == 40)  # from the start position: all records again
        await consumer.close()
    assert [event.shards for event in events if isinstance(event, ProgressLost)] == [2]
    assert any(level == "ERROR" and "progress was lost" in text and "2 shards" in text for level, text in complaints())
