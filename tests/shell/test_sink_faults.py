"""Does a sink that is slow, raises or hangs cost no record and no lease, and does ``close`` return in time?

``tests/harness/faulty_sinks.py`` has the sinks. Each of them is tested with each fault.
"""

import os
import threading
import time

import anyio
import pytest
from tests.harness.faulty_sinks import FAULTS, SINKS, Work
from tests.shell.blocking import EVERY_API, BlockingConsumer, BlockingProducer, kind_for

import shardline.sync
from shardline import Closed, Consumer, ConsumerConfig, Producer, ProducerConfig, deaggregate
from shardline.aio import sink_threads
from shardline.events import EventSource, LeaseGained, LeaseLost, LeaseReleased, RecordsDelivered, instrument
from shardline.testing import LocalKinesis

pytestmark = pytest.mark.anyio
LEASE_DURATION = 1.0
CLOSE_TIMEOUT = 0.5  # instead of two seconds
MARGIN = 2.0  # seconds that everything but the sinks may take on a busy machine


@pytest.fixture(params=["asyncio"])
def event_loop_kind(request):
    return "asyncio" if request.param == "blocking" else request.param


@pytest.fixture(autouse=True)
def close_timeout(monkeypatch):
    monkeypatch.setattr(sink_threads, "CLOSE_TIMEOUT", CLOSE_TIMEOUT)


@pytest.fixture
def kinesis():
    with LocalKinesis(shards=2, limits=False, stream="s") as running:
        yield running


@pytest.fixture
def connection(kinesis):
    return {"endpoint_url": kinesis.endpoint_url, "region": kinesis.region, "credentials": kinesis.credentials}


@pytest.fixture
def make_producer(connection, request):
    kind = kind_for(request, Producer, BlockingProducer)
    config = ProducerConfig(linger=0.005, record_ttl=10.0)
    return lambda *sinks: kind("s", sinks=sinks, config=config, **connection)


@pytest.fixture
def make_consumer(connection, request, tmp_path):
    kind = kind_for(request, Consumer, BlockingConsumer)
    config = ConsumerConfig(lease_duration=LEASE_DURATION, checkpoint_interval=0.05, scan_interval=0.05)
    store = f"sqlite:///{tmp_path}/leases.db"
    return lambda *sinks: kind("s", group="g", store=store, sinks=sinks, config=config, **connection)


@pytest.fixture(params=FAULTS)
def work(request):
    work = Work(request.param)
    yield work
    work.released.set()


@pytest.fixture(params=SINKS)
def sink(request, work):
    sink, clean_up = SINKS[request.param](work)
    yield sink
    clean_up()


async def time_of_close(source):
    """Close a producer or a consumer, and return how many seconds that took."""
    began_at = time.monotonic()
    await source.close()
    return time.monotonic() - began_at


def check_time(seconds, work):
    assert seconds < MARGIN + (CLOSE_TIMEOUT if work.fault != "raising" else 0.0)


@EVERY_API
async def test_a_producer_loses_no_record(make_producer, kinesis, sink, work):
    events = []
    producer = make_producer(sink, events.append)
    await producer.start()
    for number in range(20):
        deliveries = await producer.put_many([(f"k{each}", b"%d" % number) for each in range(10)])
        with anyio.fail_after(10):
            assert await producer.flush() == []
        assert all(delivery.delivered for delivery in deliveries)
    await producer.put(b"last", key="k")
    check_time(await time_of_close(producer), work)
    assert len(list(deaggregate(kinesis.streams["s"].records))) == 201
    assert work.calls >= 1
    assert sum(event.records for event in events if isinstance(event, RecordsDelivered)) == 201, (
        "the other sink is fine"
    )


@EVERY_API
async def test_a_consumer_loses_no_record_and_no_lease(make_consumer, connection, sink, work):
    with shardline.sync.Producer("s", **connection) as producer:
        producer.put_many([(f"k{number}", b"%d" % number) for number in range(100)])
    events, numbers = [], []
    consumer = make_consumer(sink, events.append)
    await consumer.start()
    async with anyio.create_task_group() as tasks:

        async def handle(record):
            numbers.append(int(record.data))

        handler = handle if isinstance(consumer, Consumer) else lambda record: numbers.append(int(record.data))
        tasks.start_soon(consumer.run, handler)
        await anyio.sleep(1.3 * LEASE_DURATION)
        with anyio.fail_after(10):
            while len(numbers) < 100:  # noqa: ASYNC110 - another thread appends to the list
                await anyio.sleep(0.01)
        check_time(await time_of_close(consumer), work)
    assert sorted(numbers) == list(range(100))
    assert work.calls >= 1
    kinds = [type(event) for event in events]
    assert (kinds.count(LeaseGained), kinds.count(LeaseReleased), kinds.count(LeaseLost)) == (2, 2, 0)


# ---- many events


@pytest.mark.parametrize("fault", FAULTS)
async def test_thousands_of_events_are_counted_and_the_dropped_ones_reported_once(
    make_producer, complaints, monkeypatch, fault
):
    monkeypatch.setattr(sink_threads, "QUEUE_MAX", 1_000)
    work, events = Work(fault), []
    sink, _ = SINKS["callable"](work)
    async with make_producer(sink, events.append) as producer:
        await producer.wait_ready()
        driver = producer._driver
        for _ in range(50):  # a host reports in bursts, and the other sink has time to take them
            driver._reporter.report([RecordsDelivered(1, 1, 0.1, ())] * 100)
            await anyio.sleep(0.06)
    work.released.set()
    assert sum(isinstance(event, RecordsDelivered) for event in events) == 5_000
    dropped = [text for _, text in complaints() if "is too slow: dropped" in text]
    discarded = [text for _, text in complaints() if "did not finish in time" in text]
    if fault == "raising":
        assert (work.calls >= 5_000, dropped, discarded) == (True, [], [])
    else:
        assert 1 <= len(dropped) <= 2, "when it began, and the sum at the end"
        total = int(dropped[-1].split()[-4])
        assert total + int(discarded[0].split()[-3]) + work.calls == len(events)


# ---- forks


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.parametrize("kind", ["producer", "consumer"])
def test_after_a_fork_no_sink_is_called_in_the_child(connection, kind):
    read, write = os.pipe()

    def sink(event):
        os.write(write, b"%d " % os.getpid())

    if kind == "producer":
        source = shardline.sync.Producer("s", sinks=[sink], **connection)
    else:
        source = shardline.sync.Consumer("s", sinks=[sink], **connection)
    with source:
        source.wait_ready()
        child = os.fork()
        if child == 0:
            began_at = time.monotonic()
            try:
                source.put(b"x") if kind == "producer" else next(iter(source))
            except Closed:
                source.close()
            os._exit(0 if time.monotonic() - began_at < 1.0 else 1)
        assert os.waitpid(child, 0)[1] == 0
    os.close(write)
    with os.fdopen(read, "rb") as pids:
        assert set(pids.read().split()) == {b"%d" % os.getpid()}


# ---- what every sink can rely on


class Recorder:
    def __init__(self):
        self.opened, self.closed, self.threads = [], [], set()

    def open(self, source):
        self.opened.append(source)
        self.threads.add(threading.current_thread().name)
        return Opened(self, source)


class Opened:
    def __init__(self, recorder, source):
        self.recorder, self.source, self.events = recorder, source, []

    def __call__(self, event):
        self.events.append(event)
        self.recorder.threads.add(threading.current_thread().name)

    def close(self):
        self.recorder.closed.append((self.source.kind, len(self.events) > 0))


@EVERY_API
@pytest.mark.parametrize("everywhere", [False, True], ids=["passed", "instrumented"])
async def test_one_sink_serves_producers_and_consumers(make_producer, make_consumer, everywhere):
    recorder = Recorder()
    passed = [] if everywhere else [recorder]
    installed = instrument(*([recorder] if everywhere else []))
    with installed:
        producer, consumer = make_producer(*passed), make_consumer(*passed)
        await producer.start()
        await consumer.start()
    await make_producer().close()  # never started, and after the instrumentation
    await producer.put(b"x", key="k")
    await producer.close()
    await consumer.wait_ready()
    await consumer.close()
    assert sorted(recorder.opened) == [
        EventSource("consumer", "s", "g", consumer.worker_id, "127.0.0.1"),
        EventSource("producer", "s", None, None, "127.0.0.1"),
    ]
    assert sorted(recorder.closed) == [("consumer", True), ("producer", True)]
    assert recorder.threads == {"shardline sink Recorder"}


@EVERY_API
async def test_a_failed_start_opens_no_sink(kinesis, connection, request):
    recorder = Recorder()
    kind = kind_for(request, Producer, BlockingProducer)
    wrong = connection | {"verify": "/no/such/file", "endpoint_url": "https://127.0.0.1:1"}
    producer = kind("s", sinks=[recorder], **wrong)
    with pytest.raises(shardline.UsageError):
        await producer.start()
    assert recorder.opened == []
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("shardline sink")]
