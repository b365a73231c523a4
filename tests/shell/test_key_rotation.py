"""Does a key rotation under a running client lose a record?

The embedded server checks every signature. Keys come from a shared credentials file or a process. They are replaced
there first; then the service forgets the old ones, in the middle of the traffic.
"""

import json
from itertools import count

import anyio
import pytest
from tests.shell.blocking import EVERY_API, BlockingConsumer, BlockingProducer, kind_for

from shardline import Client, Consumer, ConsumerConfig, Producer, ProducerConfig, ServiceError, deaggregate
from shardline.server.signatures import Signatures
from shardline.testing import LocalKinesis, local_kinesis

pytestmark = pytest.mark.anyio

PRODUCER = ProducerConfig(linger=0.005, retry_backoff=0.01, retry_backoff_max=0.05)
CONSUMER = ConsumerConfig(idle_poll_interval=0.05, calls_per_second=200.0)


@pytest.fixture(params=["asyncio", "uvloop", "trio"])
def event_loop_kind(request):
    return "asyncio" if request.param == "blocking" else request.param


class Rotation:
    """The keys of a service and of its callers."""

    def __init__(self, source, directory, monkeypatch):
        self._numbers = count(1)
        self._source = source
        self._path = directory / ("credentials" if source == "file" else "keys.json")
        self._signatures = Signatures({"nobody": ("yet", None)}, "us-east-1")
        self._known = {}
        self.issue()
        self.forget_the_old()
        monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(directory / "credentials"))
        monkeypatch.setenv("AWS_CONFIG_FILE", str(directory / "config"))
        if source == "process":
            (directory / "config").write_text(f"[default]\ncredential_process = cat {self._path}\n")
        monkeypatch.setattr(local_kinesis, "Signatures", lambda *_: self._signatures)

    def issue(self, *, keep_id=False):
        """Put new keys where callers get them from."""
        number = next(self._numbers)
        key, secret = "AKIDSAME" if keep_id else f"AKID{number}", f"secret-{number}-of-the-caller"
        self._known = {key: (secret, None)}
        if self._source == "file":
            text = f"[default]\naws_access_key_id = {key}\naws_secret_access_key = {secret}\n"
        else:
            text = json.dumps({"Version": 1, "AccessKeyId": key, "SecretAccessKey": secret})
        new = self._path.with_suffix(".new")
        new.write_text(text)
        new.replace(self._path)

    def forget_the_old(self):
        self._signatures.rotate(self._known)

    def rotate(self, **how):
        self.issue(**how)
        self.forget_the_old()


@pytest.fixture(params=["file", "process"])
def rotation(request, tmp_path, monkeypatch):
    return Rotation(request.param, tmp_path, monkeypatch)


@pytest.fixture
def kinesis(rotation):
    with LocalKinesis(stream="s", shards=2, verify_signatures=True, limits=False) as running:
        yield running


def way(kinesis):
    return {"endpoint_url": kinesis.endpoint_url, "region": "us-east-1"}


def stored(kinesis):
    return sorted(int(record.data) for record in deaggregate(kinesis.streams["s"].records))


@EVERY_API
async def test_a_producer_loses_nothing(kinesis, rotation, request):
    deliveries = []
    async with kind_for(request, Producer, BlockingProducer)("s", config=PRODUCER, **way(kinesis)) as producer:
        for number in range(400):
            if number in {100, 200, 300}:
                rotation.rotate(keep_id=number == 300)
            deliveries.append(await producer.put(b"%d" % number, key=f"k{number}"))
            await anyio.sleep(0.002)
        assert await producer.flush(30) == []
    assert [delivery.delivered for delivery in deliveries] == [True] * 400
    assert stored(kinesis) == list(range(400))


async def test_a_call_of_a_client_is_carried_out(kinesis, rotation):
    async with Client(**way(kinesis)) as client:
        for number in range(3):
            await client.put_record("s", b"%d" % number, "k")
            rotation.rotate(keep_id=bool(number))
    assert stored(kinesis) == [0, 1, 2]


@EVERY_API
async def test_a_consumer_reads_on(kinesis, rotation, request):
    seen = []
    reader = kind_for(request, Consumer, BlockingConsumer)("s", config=CONSUMER, **way(kinesis))
    async with Client(**way(kinesis)) as client, reader as consumer:
        await client.put_record("s", b"0", "k")
        with anyio.fail_after(30):
            async for record in consumer:
                seen.append(int(record.data))
                if len(seen) == 4:
                    break
                rotation.rotate(keep_id=len(seen) == 3)
                await client.put_record("s", b"%d" % len(seen), "k")
    assert seen == [0, 1, 2, 3]


async def test_keys_that_stay_wrong_fail_with_that_reason_and_are_not_tried_in_a_loop(kinesis, rotation):
    async with Producer("s", config=PRODUCER, **way(kinesis)) as producer:
        await (await producer.put(b"0", key="k"))
        rotation._signatures.rotate({"AKIDOTHER": ("of someone else", None)})
        before = kinesis.requests.count("PutRecords")
        with anyio.fail_after(10):
            outcomes = [await (await producer.put(b"%d" % number, key="k")).outcome() for number in range(2)]
        assert [(outcome.code, outcome.attempt_count) for outcome in outcomes] == [
            ("UnrecognizedClientException", 1)
        ] * 2
        assert kinesis.requests.count("PutRecords") - before == 2


async def test_new_keys_that_come_a_moment_after_the_old_ones_were_withdrawn_serve_the_next_call(kinesis, rotation):
    async with Client(**way(kinesis)) as client:
        await client.put_record("s", b"0", "k")
        known, rotation._known = rotation._known, {"AKIDNEW": ("the new one of the caller", None)}
        rotation.forget_the_old()
        with pytest.raises(ServiceError) as caught:
            await client.put_record("s", b"lost", "k")
        assert (caught.value.kind, caught.value.code) == ("denied", "UnrecognizedClientException")
        rotation.rotate()
        assert rotation._known != known
        await client.put_record("s", b"1", "k")
    assert stored(kinesis) == [0, 1]
