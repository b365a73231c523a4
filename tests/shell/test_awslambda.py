"""Does a Lambda function deliver its records, survive being frozen, and start quickly?

The functions run against the embedded Kinesis. ``tests/unit/test_awslambda.py`` has the tests that need no stream.
"""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from base64 import b64encode

import pytest
import uvloop

from shardline import (
    FailurePolicy,
    Producer,
    ProducerConfig,
    ShardlineError,
    aggregate,
    deaggregate,
    sync,
)
from shardline.aio.loop import process_loop
from shardline.awslambda import KinesisEventSource
from shardline.testing import LocalKinesis

QUICK = ProducerConfig(linger=0, record_ttl=20)
STOP = FailurePolicy(attempts=2, backoff=0.01)


class Context:
    def __init__(self, seconds=60.0):
        self.seconds = seconds

    def get_remaining_time_in_millis(self):
        return int(self.seconds * 1000)


def event_of(*payloads):
    """Return an event of Lambda. A list of payloads becomes an aggregate."""
    packed = [aggregate([("k", each) for each in one]) if isinstance(one, list) else one for one in payloads]
    return {
        "Records": [
            {
                "eventSource": "aws:kinesis",
                "eventID": f"shardId-000000000000:{number}",
                "eventSourceARN": "arn:aws:kinesis:us-east-1:123456789012:stream/orders",
                "kinesis": {
                    "partitionKey": "k",
                    "sequenceNumber": str(number),
                    "data": b64encode(data).decode(),
                    "approximateArrivalTimestamp": 1545084650.987,
                },
            }
            for number, data in enumerate(packed, 1)
        ]
    }


def failed(*numbers):
    return {"batchItemFailures": [{"itemIdentifier": str(number)} for number in numbers]}


@pytest.fixture
def kinesis(monkeypatch):
    with LocalKinesis(stream=["results", "dead"]) as running:
        for name, value in running.environment.items():
            monkeypatch.setenv(name, value)
        yield running


def stored(kinesis, stream="results"):
    return sorted(record.data for record in deaggregate(kinesis.streams[stream].records))


class AsyncMaker:
    """Makes functions with an async handler and an async producer."""

    def __init__(self):
        self.producers = []

    def producer(self, stream, **arguments):
        self.producers.append(Producer(stream, **arguments))
        return self.producers[-1]

    def handler(self, producer, *, then=0.0, poison=()):
        async def handle(record):
            if record.data in poison:
                raise ValueError("poison")
            await producer.put(record.data, key=record.key)
            await asyncio.sleep(then)

        return handle

    def close(self):
        for producer in self.producers:
            process_loop.run_in_loop(producer.close(timeout=0))


class BlockingMaker:
    """Makes functions with a plain handler and a blocking producer."""

    def __init__(self):
        self.producers = []

    def producer(self, stream, **arguments):
        self.producers.append(sync.Producer(stream, **arguments))
        return self.producers[-1]

    def handler(self, producer, *, then=0.0, poison=()):
        def handle(record):
            if record.data in poison:
                raise ValueError("poison")
            producer.put(record.data, key=record.key)
            time.sleep(then)

        return handle

    def close(self):
        for producer in self.producers:
            producer.close(timeout=0)


@pytest.fixture(params=["blocking", "asyncio", "uvloop"])
def maker(request, kinesis):
    """Each test starts without an event loop, and ends its loop."""
    process_loop._runner.cache_clear()
    if request.param == "uvloop":
        asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())
    made = BlockingMaker() if request.param == "blocking" else AsyncMaker()
    yield made
    made.close()
    if process_loop._runner.cache_info().currsize:
        process_loop._runner().close()
    process_loop._runner.cache_clear()
    asyncio.set_event_loop_policy(None)


# ---- the producer


def test_all_that_was_put_is_delivered_when_the_function_returns(maker, kinesis):
    producer = maker.producer("results", config=ProducerConfig(linger=30, record_ttl=60))
    function = KinesisEventSource(producer=producer).each_record(maker.handler(producer))
    began = time.monotonic()
    for number in range(3):
        payloads = [b"%d-%d" % (number, place) for place in range(20)]
        assert function(event_of(payloads[:10], *payloads[10:]), Context()) == failed()
        assert len(stored(kinesis)) == 20 * (number + 1)
    assert time.monotonic() - began < 25, "it does not linger"
    assert producer.stats().delivered_records == 60


def test_what_was_put_before_a_failure_is_delivered_too(maker, kinesis):
    producer = maker.producer("results", config=QUICK)
    source = KinesisEventSource(producer=producer, policy=STOP)
    function = source.each_record(maker.handler(producer, poison={b"c"}))
    assert function(event_of(b"a", b"b", b"c", b"d"), Context()) == failed(3)
    assert stored(kinesis) == [b"a", b"b"]


def test_a_record_that_is_not_delivered_makes_the_invocation_raise(maker, kinesis):
    # The linger keeps the records until the flush: the next test has records that fail before it.
    producer = maker.producer("results", config=ProducerConfig(linger=30, record_ttl=60))
    function = KinesisEventSource(producer=producer).each_record(maker.handler(producer))
    assert function(event_of(b"a"), Context()) == failed()
    fault = kinesis.faults.error("AccessDeniedException", "not allowed", status=400, operation="PutRecords")
    with pytest.raises(
        ShardlineError, match=r"not delivered: 2 failed, 0 not yet confirmed; AccessDenied.*not allowed"
    ):
        function(event_of(b"b", b"c"), Context())
    fault.remove()
    assert function(event_of(b"b", b"c"), Context()) == failed()
    assert stored(kinesis) == [b"a", b"b", b"c"]


def test_a_record_that_failed_before_the_flush_makes_the_invocation_raise(maker, kinesis):
    """``flush`` does not return it any more."""
    producer = maker.producer("results", config=QUICK)
    function = KinesisEventSource(producer=producer).each_record(maker.handler(producer, then=1.0))
    kinesis.faults.error("AccessDeniedException", "not allowed", status=400, operation="PutRecords")
    with pytest.raises(ShardlineError, match="1 failed, 0 not yet confirmed"):
        function(event_of(b"a"), Context())


def test_a_record_that_is_not_confirmed_in_time_makes_the_invocation_raise(maker, kinesis):
    producer = maker.producer("results", config=QUICK)
    function = KinesisEventSource(producer=producer, margin=2.0).each_record(maker.handler(producer))
    assert function(event_of(b"a"), Context()) == failed()
    kinesis.faults.latency(60.0, operation="PutRecords")
    began = time.monotonic()
    with pytest.raises(ShardlineError, match="0 failed, 1 not yet confirmed"):
        function(event_of(b"b"), Context(4.0))
    assert time.monotonic() - began < 30


def test_a_producer_that_cannot_start_makes_each_invocation_raise(maker):
    producer = maker.producer("results", profile="no-such-profile")
    function = KinesisEventSource(producer=producer).each_record(maker.handler(producer))
    for _ in range(2):
        with pytest.raises(ShardlineError, match="no-such-profile"):
            function(event_of(b"a"), Context())


def test_a_plain_handler_may_use_an_async_producer(kinesis):
    maker = AsyncMaker()
    producer = maker.producer("results", config=QUICK)

    def handle(record):
        producer.put_nowait(record.data, key=record.key)

    function = KinesisEventSource(producer=producer).each_record(handle)
    for _ in range(2):
        assert function(event_of(b"a", b"b"), Context()) == failed()
    assert stored(kinesis) == [b"a", b"a", b"b", b"b"]
    maker.close()


# ---- dead letters


@pytest.mark.parametrize("target", ["the name of a stream", "an async producer", "a blocking producer"])
def test_dead_letters_in_a_stream(maker, kinesis, target):
    results = maker.producer("results", config=QUICK)
    others = AsyncMaker() if target == "an async producer" else BlockingMaker()
    dead = "dead" if target == "the name of a stream" else others.producer("dead", config=QUICK)
    source = KinesisEventSource(producer=results, dead_letter=dead, policy=STOP)
    function = source.each_record(maker.handler(results, poison={b"b", b"d"}))
    try:
        for _ in range(2):
            assert function(event_of([b"a", b"b"], b"c", b"d"), Context()) == failed()
    finally:
        source.close()
        others.close()
    assert stored(kinesis, "dead") == [b"b", b"b", b"d", b"d"]
    assert stored(kinesis) == [b"a", b"a", b"c", b"c"]
    assert {record.key for record in deaggregate(kinesis.streams["dead"].records)} == {"k"}


def test_dead_letters_that_cannot_be_put_are_reported(maker, kinesis):
    results = maker.producer("results", config=QUICK)
    source = KinesisEventSource(dead_letter="no-such-stream", policy=STOP)
    function = source.each_record(maker.handler(results, poison={b"a"}))
    try:
        assert function(event_of(b"a", b"a"), Context()) == failed(1)
    finally:
        source.close()


# ---- the process

FUNCTION = """
import asyncio, json, os, sys
from shardline import Producer, ProducerConfig, sync
from shardline.awslambda import KinesisEventSource

config = ProducerConfig(linger=0, record_ttl=2)
if sys.argv[1] == "async":
    producer = Producer("results", config=config)
    async def handle(record):
        await producer.put(record.data, key=record.key)
else:
    producer = sync.Producer("results", config=config)
    def handle(record):
        producer.put(record.data, key=record.key)

function = KinesisEventSource(producer=producer).each_record(handle)
for line in sys.stdin:
    print(json.dumps(function(json.loads(line), None)), flush=True)
os._exit(0)  # Lambda ends a process without asking it
"""


@pytest.mark.parametrize("kind", ["async", "blocking"])
def test_a_process_that_is_frozen_between_invocations_delivers_everything(tmp_path, kind):
    """Meanwhile, Kinesis closes the connections, and records that were left behind would expire."""
    with LocalKinesis(stream="results", data=tmp_path / "data") as kinesis:
        environment = {"PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join(sys.path)} | kinesis.environment
        process = subprocess.Popen(
            [sys.executable, "-W", "error", "-c", FUNCTION, kind],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            for number in range(3):
                process.stdin.write(json.dumps(event_of(b"%d" % number)) + "\n")
                process.stdin.flush()
                line = process.stdout.readline()
                assert line, process.stderr.read()
                assert json.loads(line) == failed()
                assert len(stored(kinesis)) == number + 1
                os.kill(process.pid, signal.SIGSTOP)
                kinesis.stop()
                time.sleep(2.5)  # longer than the TTL of records
                kinesis.start()
                os.kill(process.pid, signal.SIGCONT)
            _, errors = process.communicate(timeout=60)
        finally:
            process.kill()
            process.wait()
        assert (process.returncode, errors) == (0, "")
        assert stored(kinesis) == [b"0", b"1", b"2"]


IMPORTS = """
import sys, time
began = time.process_time()
import shardline.awslambda
took = time.process_time() - began
source = shardline.awslambda.KinesisEventSource()
function = source.each_record(lambda record: None)
kinesis = {"data": "YQ==", "partitionKey": "k", "sequenceNumber": "1"}
assert function({"Records": [{"eventSource": "aws:kinesis", "kinesis": kinesis}]}, None) == {"batchItemFailures": []}
loaded = {name.partition(".")[0] for name in sys.modules}
print(took, *sorted(loaded & {"asyncio", "anyio", "botocore", "boto3", "aiohttp", "click", "rich", "h2", "ssl"}))
print(*(name for name in sys.modules if name.startswith(("shardline.cli", "shardline.server", "shardline.testing"))))
"""


def imported(bytecode):
    """Return the CPU seconds of the import in a new process, and the modules that a plain function has loaded."""
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join(sys.path), "PYTHONPYCACHEPREFIX": bytecode}
    ran = subprocess.run(
        [sys.executable, "-c", IMPORTS], env=environment, capture_output=True, text=True, check=True, timeout=60
    )
    first, second = ran.stdout.splitlines()
    took, *loaded = first.split()
    return float(took), [*loaded, *second.split()]


def test_a_plain_function_loads_neither_an_event_loop_nor_botocore_nor_the_server(tmp_path):
    assert imported(str(tmp_path))[1] == []


@pytest.mark.clock
def test_the_import_takes_less_than_150_milliseconds(tmp_path):
    """CPU time is measured, with compiled modules, which the first import leaves behind."""
    times = [imported(str(tmp_path))[0] for _ in range(10)]
    assert min(times) < 0.150, times
