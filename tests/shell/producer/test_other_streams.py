"""Tests that one producer puts into several streams."""

import threading

import pytest
from tests.shell.blocking import EVERY_API

from shardline import BufferFull, Closed, ShardlineError, UsageError, WaitTimeout

pytestmark = pytest.mark.anyio


@pytest.fixture
def streams(kinesis):
    """A Kinesis with three streams: s, payments and audit."""
    for name in ("payments", "audit"):
        kinesis.create_stream(name, shards=2)
    return kinesis


@EVERY_API
async def test_a_put_with_a_stream_goes_to_that_stream(make_producer, streams, stored):
    async with make_producer() as producer:
        await producer.put(b"order", key="a")
        await producer.put(b"payment", key="b", stream="payments")
        await producer.put_many([("c", b"1"), ("d", b"2")], stream="audit")
        producer.put_nowait(b"3", key="e", stream="audit", headers={"kind": "audit"})
        await producer.put(b"own", key="f", stream="s")
        assert producer.streams == ("s", "payments", "audit")
        assert await producer.flush() == []
        assert producer.outstanding == 0
    assert sorted(stored()) == [("a", b"order"), ("f", b"own")]
    assert stored("payments") == [("b", b"payment")]
    assert sorted(stored("audit")) == [("c", b"1"), ("d", b"2"), ("e", b"3")]


@EVERY_API
async def test_close_delivers_the_records_of_all_streams(make_producer, streams, stored):
    producer = make_producer(linger=5.0)
    async with producer:
        for number in range(20):
            await producer.put(b"%d" % number, key=str(number), stream="payments" if number % 2 else None)
        assert producer.outstanding == 20
    assert len(stored()) == len(stored("payments")) == 10
    assert producer.outstanding == 0
    with pytest.raises(Closed):
        await producer.put(b"late", key="k", stream="payments")
    with pytest.raises(Closed):
        await producer.put(b"late", key="k", stream="audit")


@EVERY_API
async def test_a_close_without_time_returns_the_undelivered_records_of_all_streams(make_producer, streams, stored):
    producer = make_producer(linger=5.0)
    await producer.start()
    await producer.put(b"1", key="a")
    await producer.put(b"2", key="b", stream="payments")
    left = await producer.close(timeout=0)
    assert sorted(delivery.data for delivery in left) == [b"1", b"2"]
    assert stored() == stored("payments") == []
    assert sorted(delivery.data for delivery in await producer.close()) == [b"1", b"2"]


@EVERY_API
async def test_the_statistics_cover_one_stream_or_all(make_producer, streams):
    async with make_producer() as producer:
        await producer.put(b"1", key="a")
        await producer.put_many([("b", b"22"), ("c", b"333")], stream="payments")
        await producer.flush()
        assert producer.stats().delivered_records == 3
        assert producer.stats(stream="s").delivered_records == 1
        payments = producer.stats(stream="payments")
        assert (payments.delivered_records, payments.put_bytes) == (2, 7)
        assert len(producer.stats().lanes) == len(producer.stats(stream="s").lanes) + len(payments.lanes)
        with pytest.raises(UsageError, match="put nothing into 'audit': its streams are s, payments"):
            producer.stats(stream="audit")


@EVERY_API
async def test_each_stream_has_its_own_buffer(make_producer, streams):
    producer = make_producer(buffer_max_records=1, linger=5.0)
    await producer.start()
    producer.put_nowait(b"1", key="a")
    with pytest.raises(BufferFull):
        producer.put_nowait(b"2", key="a")
    producer.put_nowait(b"2", key="a", stream="payments")
    with pytest.raises(BufferFull):
        producer.put_nowait(b"3", key="a", stream="payments")
    await producer.close(timeout=0)


@EVERY_API
async def test_wrong_names_are_refused_and_a_missing_stream_fails_alone(make_producer, streams, stored):
    async with make_producer(max_attempts=1) as producer:
        with pytest.raises(UsageError, match="not a stream name"):
            await producer.put(b"1", key="a", stream="no stream")
        assert await (await producer.put(b"1", key="a"))
        lost = await producer.put(b"2", key="a", stream="missing")
        assert (await lost.outcome()).code == "ResourceNotFoundException"
        with pytest.raises(ShardlineError, match="missing"):
            await producer.wait_ready(timeout=5)
        assert not producer.is_ready
    assert stored() == [("a", b"1")]


@EVERY_API
async def test_the_timeout_of_wait_ready_holds_for_all_streams_together(make_producer, streams):
    async with make_producer() as producer:
        await producer.wait_ready(timeout=5)
        streams.faults.error("InternalFailure", "a bad hour", status=500, operation="ListShards")
        producer.put_nowait(b"1", key="a", stream="payments")
        with pytest.raises(WaitTimeout, match=r"of payments is not ready after 0.3 s: .*a bad hour"):
            await producer.wait_ready(timeout=0.3)


@EVERY_API
async def test_settings_and_hooks_hold_for_all_streams(make_producer, streams):
    failed, sources = [], []

    class Sources:
        def open(self, source):
            sources.append(source.stream)
            return [].append

    producer = make_producer(on_failure=failed.append, serializer=str.encode, sinks=[Sources()], max_attempts=1)
    async with producer:
        await producer.reconfigure(linger=0.02)
        await producer.put("text", key="a", stream="payments")
        await producer.put("text", key="a", stream="missing")
        await producer.flush()
        assert producer.config.linger == 0.02
    assert [delivery.key for delivery in failed] == ["a"]
    assert sorted(sources) == ["missing", "payments", "s"]


@EVERY_API
async def test_a_put_before_the_start_opens_no_stream(make_producer):
    producer = make_producer()
    with pytest.raises(Closed, match="not started"):
        await producer.put(b"1", key="a", stream="payments")
    assert producer.streams == ("s",)
    assert repr(producer) == "<Producer s, not started, 0 outstanding>"


def test_threads_that_open_a_stream_together_open_it_once(make_sync_producer, streams, stored):
    with make_sync_producer() as producer:
        start = threading.Barrier(4)

        def put(number):
            start.wait()
            producer.put(b"%d" % number, key="k", stream="payments")

        threads = [threading.Thread(target=put, args=[number]) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert producer.streams == ("s", "payments")
    assert sorted(data for _, data in stored("payments")) == [b"0", b"1", b"2", b"3"]


def test_a_callback_in_the_network_thread_may_open_a_stream(make_sync_producer, streams, stored):
    with make_sync_producer() as producer:
        done = threading.Event()

        def copy(delivery):
            producer.put(b"copy", key="a", stream="audit")
            done.set()

        producer.put(b"1", key="a", on_delivery=copy)
        assert done.wait(10)
    assert stored("audit") == [("a", b"copy")]
