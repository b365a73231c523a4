"""Do the blocking producer and consumer work if the program has made uvloop its default event loop?

Their threads then run on uvloop, over plain connections and over TLS, which the async tests on uvloop do not cover.
"""

import asyncio
import os
import signal
import subprocess
import sys
import warnings

import pytest
import uvloop

from shardline import ConsumerConfig, ProducerConfig
from shardline.sync import Consumer, Producer
from shardline.testing import LocalKinesis

PRODUCER = ProducerConfig(linger=0.005)
CONSUMER = ConsumerConfig(idle_poll_interval=0.05, calls_per_second=200.0)

READER = """
import asyncio, sys, warnings
warnings.simplefilter("ignore", DeprecationWarning)
import uvloop
asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())
from shardline.sync import Consumer, Producer
try:
    with Producer("s") as producer, Consumer("s", start="TRIM_HORIZON") as consumer:
        producer.put(b"first", key="k").result(10)
        accepted = producer.put(b"last", key="k")
        for record in consumer:
            print(record.data.decode(), flush=True)
except KeyboardInterrupt:
    print("interrupted", accepted.delivered, flush=True)
"""


@pytest.fixture(autouse=True)
def loops_made(monkeypatch):
    """Make uvloop the default, as ``uvloop.install()`` does. Yields the event loops that are created meanwhile."""
    made = []

    class Policy(uvloop.EventLoopPolicy):
        def new_event_loop(self):
            made.append(super().new_event_loop())
            return made[-1]

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.14 has no policies any more
        before = asyncio.get_event_loop_policy()
        asyncio.set_event_loop_policy(Policy())
        yield made
        asyncio.set_event_loop_policy(before)


def connection(kinesis, *, tls):
    way = {"endpoint_url": kinesis.endpoint_url, "region": kinesis.region, "credentials": kinesis.credentials}
    return way | ({"verify": kinesis.ca_path} if tls else {})


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
def test_blocking_producers_and_consumers(tls, loops_made):
    with LocalKinesis(shards=2, stream="s", tls=tls, limits=False) as kinesis:
        way = connection(kinesis, tls=tls)
        with Producer("s", config=PRODUCER, **way) as producer:
            assert producer.put(b"x" * 1_000_000, key="large").result(30).attempt_count == 1
            deliveries = producer.put_many([(f"k{number}", b"%d" % number) for number in range(2_000)])
            assert producer.flush(30) == []
            assert all(delivery.delivered for delivery in deliveries)
        with Consumer("s", config=CONSUMER, until="latest", **way) as consumer:
            got = [record.data for record in consumer]
        assert sorted(got) == sorted([b"x" * 1_000_000, *(b"%d" % number for number in range(2_000))])
    assert len(loops_made) == 2
    assert {type(loop) for loop in loops_made} == {uvloop.Loop}
    assert all(loop.is_closed() for loop in loops_made)


def test_a_cut_connection_is_made_again():
    with (
        LocalKinesis(stream="s") as kinesis,
        Producer("s", config=PRODUCER, **connection(kinesis, tls=False)) as producer,
    ):
        producer.put(b"0", key="k").result(10)
        for where in ("before", "inside"):
            kinesis.faults.reset(where, operation="PutRecords", count=1)
            assert producer.put(b"1", key="k").result(10).attempt_count == 2


def test_ctrl_c_drains():
    with LocalKinesis(stream="s") as kinesis:
        process = subprocess.Popen(
            [sys.executable, "-c", READER],
            env={**os.environ, **kinesis.environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            assert process.stdout.readline() == "first\n"
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=40)
        finally:
            process.kill()
            process.communicate()
        assert (out.splitlines()[-1], err, process.returncode) == ("interrupted True", "", 0)
