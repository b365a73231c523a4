"""Fixtures of the producers' tests: a Kinesis and event loops."""

import gc
import os
import subprocess
import textwrap

import pytest
from tests.programs import command_for
from tests.shell.blocking import BlockingProducer, kind_for

import shardline.sync
from shardline import Producer, ProducerConfig, deaggregate
from shardline.testing import LocalKinesis

QUICK = {"linger": 0.005, "record_ttl": 10.0, "retry_backoff": 0.01, "retry_backoff_max": 0.05}


@pytest.fixture(params=["asyncio", "uvloop", "trio"])
def event_loop_kind(request):
    return "asyncio" if request.param == "blocking" else request.param


@pytest.fixture
def kinesis():
    """A Kinesis with four shards and no rate limits."""
    with LocalKinesis(shards=4, limits=False, stream="s") as running:
        yield running


@pytest.fixture
def stream(kinesis):
    return kinesis.streams["s"]


def connection(kinesis):
    return {"endpoint_url": kinesis.endpoint_url, "region": kinesis.region, "credentials": kinesis.credentials}


def settings(kinesis, arguments):
    """Return the arguments of a producer. Those of ``ProducerConfig`` are passed as its config."""
    knobs = {name: arguments.pop(name) for name in list(arguments) if name in ProducerConfig.__dataclass_fields__}
    config = ProducerConfig(**(QUICK | knobs))
    return ({} if "client" in arguments else connection(kinesis)) | {"config": config} | arguments


@pytest.fixture
def make_producer(kinesis, request):
    kind = kind_for(request, Producer, BlockingProducer)

    def make(stream="s", **arguments):
        return kind(stream, **settings(kinesis, arguments))

    return make


@pytest.fixture
def make_sync_producer(kinesis):
    def make(stream="s", **arguments):
        return shardline.sync.Producer(stream, **settings(kinesis, arguments))

    return make


@pytest.fixture
def stored(kinesis):
    """Return the user records of a stream as a reader gets them: (key, data), shard by shard."""

    def read(stream="s"):
        return [(record.key, record.data) for record in deaggregate(kinesis.streams[stream].records)]

    return read


@pytest.fixture
def all_in_range(kinesis):
    """Whether a KCL reader keeps every record, because each belongs to its shard."""
    from shardline import hash_key_of

    def look(stream="s"):
        ranges = {shard.shard_id: shard.hash_range for shard in kinesis.streams[stream].shards}
        places = [
            (int(one.explicit_hash_key) if one.explicit_hash_key else hash_key_of(one.key), ranges[one.shard_id])
            for one in deaggregate(kinesis.streams[stream].records)
            if one.aggregated
        ]
        return all(hash_key in hash_range for hash_key, hash_range in places)

    return look


@pytest.fixture(autouse=True)
def nothing_is_left_open():
    """Fail if something is left open: unclosed objects warn when they are collected, and warnings are errors here."""
    yield
    gc.collect()


@pytest.fixture
def run_program(kinesis):
    """Start a program in a separate process.

    It has the connection to the local Kinesis in ``CONNECTION``, and a function for each event loop in ``LOOPS``.
    """
    started = []
    prelude = f"""
import os
from shardline import Credentials
keys = Credentials({kinesis.credentials.access_key!r}, {kinesis.credentials.secret_key!r})
CONNECTION = {{"endpoint_url": {kinesis.endpoint_url!r}, "region": {kinesis.region!r}, "credentials": keys}}
LOOPS = {{"asyncio": {{}}, "uvloop": {{"backend_options": {{"use_uvloop": True}}}}, "trio": {{"backend": "trio"}}}}
"""

    def run(source, *arguments):
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
        process = subprocess.Popen(
            [*command_for(prelude + textwrap.dedent(source)), *arguments],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield run
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()


@pytest.fixture
def run_to_end(run_program):
    """Run a program to its end. Return its output, its errors and its exit code."""

    def run(source, *arguments):
        process = run_program(source, *arguments)
        return *process.communicate(timeout=60), process.returncode

    return run
