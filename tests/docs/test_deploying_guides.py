"""Do the programs of the deployment guides run, and do the policies allow exactly the calls that are made?

The embedded server lists the requests that a role makes. The calls of the DynamoDB store are recorded on their way to a
real server (dynalite).
"""

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from runpy import run_path
from typing import get_args

import anyio
import pytest
import yaml
from tests.docs import pages

from shardline import Consumer, ConsumerConfig, Producer
from shardline.adapters.aws.aws_service import AwsAccess
from shardline.adapters.leases.dynamodb import DynamoDbLeases
from shardline.adapters.leases.kcl_rows import COORDINATION_SUFFIX, METRICS_SUFFIX, metrics_request
from shardline.aio.control_plane import ControlPlane
from shardline.core import leases
from shardline.core.consumer.consumer_events import Event
from shardline.core.kcl_requests import DeleteMetrics, MetricsPlace, WriteMetrics
from shardline.model.lease import Checkpoint, Lease
from shardline.model.position import at_sequence_number
from shardline.model.sequence import SequenceNumber
from shardline.sync import Producer as BlockingProducer

HERE = Path(__file__)
ROOT = HERE.parents[2]
FOLDER = "docs/guides/deploying"
CONTAINERS, PERMISSIONS = f"{FOLDER}/containers.md", f"{FOLDER}/permissions.md"
PROGRAMS = pages.blocks_in(FOLDER, "python")
POLICIES = [json.loads(block) for block in pages.blocks_of(PERMISSIONS, "json")]


def program(text):
    """Run the only program that contains a text, and return its names."""
    return pages.run_block(PROGRAMS, text)


def test_every_block_is_looked_at():
    languages = {page: pages.languages_of(page) for page in pages.pages_in(FOLDER)}
    assert set().union(*languages.values()) == {"python", "json", "yaml", "dockerfile"}
    assert (languages[CONTAINERS], languages[PERMISSIONS]) == ({"yaml", "dockerfile"}, {"json"})
    used = re.findall(r'program\("([^"(]+(?:\(\))?)"\)', HERE.read_text())
    used.append("HealthServer")  # test_metrics_guides.py runs these
    assert [block for block in PROGRAMS if not any(text in block for text in used)] == []
    assert len(POLICIES) == 6


# ---- the programs


def test_the_file_of_the_probe(kinesis, tmp_path):
    file = tmp_path / "alive"

    async def main():
        async with Consumer("orders") as consumer:
            touching = asyncio.create_task(program("touch_while_healthy").touch_while_healthy(consumer, file, 0.01))
            await consumer.wait_ready()
        await asyncio.wait_for(touching, 30)

    asyncio.run(main())
    assert file.exists()


# ---- the container


def test_the_image_starts_the_worker_so_that_it_gets_signals():
    [recipe] = pages.blocks_of(CONTAINERS, "dockerfile")
    commands = re.findall(r"^(?:ENTRYPOINT|CMD) (.+)$", recipe, re.MULTILINE)
    words = [word for command in commands for word in json.loads(command)]  # lists: no shell keeps SIGTERM for itself
    assert words[:2] == ["python", "/app/worker.py"]
    usage = run_path(str(ROOT / "examples" / "worker.py"))["__doc__"].splitlines()[0]
    assert len(words) - 2 == len(re.findall(r"\b[A-Z_]{4,}\b", usage)), usage
    [extra] = re.findall(r"shardline-\*\.whl\)\[(\w+)\]", recipe)
    assert f"{extra} = [" in pages.text_of("pyproject.toml")


def test_the_deployment_waits_for_longer_than_the_worker_takes():
    [text] = pages.blocks_of(CONTAINERS, "yaml")
    deployment = yaml.safe_load(text)
    assert deployment in yaml.safe_load_all((ROOT / "deploy" / "kubernetes" / "worker.yaml").read_text())
    spec = deployment["spec"]
    [timeout] = re.findall(r"consumer\.close\(timeout=(\d+)\)", (ROOT / "examples" / "worker.py").read_text())
    assert spec["template"]["spec"]["terminationGracePeriodSeconds"] > int(timeout)
    assert spec["strategy"]["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0}
    assert spec["selector"]["matchLabels"] == spec["template"]["metadata"]["labels"]


# ---- the probes

SPEC = yaml.safe_load(pages.blocks_of(CONTAINERS, "yaml")[0])["spec"]["template"]["spec"]["containers"][0]
PROBES = ["startupProbe", "livenessProbe"]
HANGING = """
import asyncio, json, sys, time
from pathlib import Path
sys.path.insert(0, {examples!r})
import worker
from shardline import ConsumerConfig

async def hang(record):
    print("hangs", flush=True)
    while not Path({release!r}).exists():
        {hang}

worker.handle = hang
worker.CONFIG = ConsumerConfig(stuck_after=1)
asyncio.run(worker.main("orders", "g", {store!r}, Path({letters!r}), alive_file=Path({alive!r})))
"""


class Pod:
    """The worker of the page in a separate process, and its probes, word for word."""

    def __init__(self, directory, environment):
        self.alive = directory / "alive"
        self.release = directory / "release"
        self.directory = directory
        self.ready = directory / "ready"
        assert {one["name"] for one in SPEC["env"]} == {"AWS_REGION", "ALIVE_FILE", "READY_FILE"}
        base = {"PATH": os.environ["PATH"], "HOME": str(directory), "PYTHONUNBUFFERED": "1"}
        self.environment = base | environment | {"ALIVE_FILE": str(self.alive), "READY_FILE": str(self.ready)}
        self.process = None

    def start(self, *command):
        store = f"sqlite:///{self.directory}/leases.db"
        letters = str(self.directory / "dead.jsonl")
        words = command or (str(ROOT / "examples" / "worker.py"), "orders", "g", store, letters)
        self.process = subprocess.Popen(
            [sys.executable, *words], env=self.environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )

    def start_hanging(self, hang):
        self.start(
            "-c",
            HANGING.format(
                examples=str(ROOT / "examples"),
                release=str(self.release),
                hang=hang,
                store=f"sqlite:///{self.directory}/leases.db",
                letters=str(self.directory / "dead.jsonl"),
                alive=str(self.alive),
            ),
        )
        assert self.process.stdout.readline() == "hangs\n"

    def probe(self, name):
        command = SPEC[name]["exec"]["command"]
        return subprocess.run(command, env=self.environment, capture_output=True, check=False).returncode == 0

    def age_file(self):
        """Make the file look as if nothing had happened for two minutes."""
        long_ago = time.time() - 120
        os.utime(self.alive, (long_ago, long_ago))

    def becomes(self, name, healthy, limit=30.0):
        give_up_at = time.monotonic() + limit
        while self.probe(name) is not healthy:
            assert time.monotonic() < give_up_at, f"{name} never became {healthy}"
            time.sleep(0.1)

    def stays_unhealthy(self, seconds=5.0):
        """Check that nothing touches the file any more: a healthy worker does so every two seconds."""
        self.age_file()
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            assert not self.probe("livenessProbe")
            time.sleep(0.2)

    def stop(self):
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process.stdout.close()


@pytest.fixture
def pod(kinesis, tmp_path):
    running = Pod(tmp_path, kinesis.environment)
    yield running
    running.stop()


@pytest.mark.parametrize("probe", PROBES)
def test_a_healthy_worker_keeps_its_file_fresh(pod, probe):
    assert not pod.probe(probe), "there is no file yet"
    pod.start()
    pod.becomes(probe, healthy=True)
    for _ in range(2):
        pod.age_file()
        pod.becomes(probe, healthy=True)  # the worker touches it again
    pod.process.send_signal(signal.SIGTERM)
    assert pod.process.wait(20) == 0
    assert not pod.probe(probe), "a worker that has ended is not alive"


def test_a_worker_that_starts_is_alive_though_kinesis_does_not_answer(pod):
    """The worker waits, and a restart would not help. Until Python runs, the start-up probe waits for it."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as mute:
        pod.environment |= {"AWS_ENDPOINT_URL_KINESIS": f"http://127.0.0.1:{mute.getsockname()[1]}"}
        pod.environment |= {"AWS_ENDPOINT_URL": pod.environment["AWS_ENDPOINT_URL_KINESIS"]}
        pod.start()
        pod.becomes("startupProbe", healthy=True)
        for _ in range(2):
            pod.age_file()
            pod.becomes("livenessProbe", healthy=True)
    assert SPEC["startupProbe"]["periodSeconds"] * SPEC["startupProbe"]["failureThreshold"] >= 60


def test_a_worker_is_ready_while_it_reads_its_shards(pod, kinesis):
    with kinesis.outage():
        pod.start()
        pod.becomes("livenessProbe", healthy=True)
        assert not pod.probe("readinessProbe"), "it has not reached Kinesis yet"
    pod.becomes("readinessProbe", healthy=True)
    pod.process.send_signal(signal.SIGTERM)
    assert pod.process.wait(20) == 0
    assert not pod.probe("readinessProbe")


def test_a_worker_that_was_stopped_by_a_signal_is_not_alive(pod):
    pod.start()
    pod.becomes("livenessProbe", healthy=True)
    pod.process.send_signal(signal.SIGSTOP)
    pod.stays_unhealthy()
    pod.process.send_signal(signal.SIGCONT)
    pod.becomes("livenessProbe", healthy=True)


def test_a_worker_whose_handler_blocks_the_event_loop_is_not_alive(pod):
    with BlockingProducer("orders") as producer:
        producer.put(b'{"order": 1}', key="k")
    pod.start_hanging("time.sleep(0.05)")
    pod.stays_unhealthy()


def test_a_worker_whose_handler_hangs_is_not_alive_until_it_goes_on(pod):
    """Its event loop runs, and it reads: only its health shows that nothing is handled."""
    with BlockingProducer("orders") as producer:
        producer.put(b'{"order": 1}', key="k")
    pod.start_hanging("await asyncio.sleep(0.05)")
    assert pod.probe("livenessProbe"), "a handler may take its time"
    time.sleep(3.5)  # stuck_after, and the time between two checks
    pod.stays_unhealthy()
    pod.release.touch()
    pod.becomes("livenessProbe", healthy=True)


def test_a_stale_file_fails_the_probe_in_every_shell(pod):
    """``find`` alone exits with 0."""
    pod.alive.touch()
    assert pod.probe("livenessProbe")
    pod.age_file()
    assert not pod.probe("livenessProbe")
    assert SPEC["livenessProbe"]["exec"]["command"][:2] == ["sh", "-c"]


def test_the_page_and_the_example_touch_the_file_alike():
    [block] = [block for block in PROGRAMS if "touch_while_healthy" in block]
    function = block[block.index("async def touch_while_healthy") :]
    assert function in re.sub("  # noqa: .+", "", (ROOT / "examples" / "worker.py").read_text())


def test_the_alarms_of_the_page_are_there(kinesis):
    """Everything that the table names exists, and the alarm for falling behind uses the lag of handling."""
    table = pages.table_of("docs/guides/observability.md", "alarm")
    [behind] = [where for alarm, where, _ in table if alarm == "the group falls behind"]
    assert "`consumer.status().handling_lag`" in behind
    assert "reading_lag" not in behind

    async def main():
        async with Consumer("orders") as consumer:
            await consumer.wait_ready()
            looks = re.findall(r"`(consumer\.status\(\)[^`]+)`", "".join(where for _, where, _ in table))
            assert len(looks) >= 4
            return {look: eval(look, {"consumer": consumer}) for look in looks}

    found = asyncio.run(main())
    assert found["consumer.status().dead_letters"] == 0
    assert found['consumer.status().health == "handler-stuck"'] is False
    names = set(re.findall(r"the events? (`\w+`(?:, `\w+`)*)", "".join(where for _, where, _ in table)))
    events = set(re.findall(r"\w+", " ".join(names)))
    assert {"HandlerStuck", "RecordsDeadLettered", "HandlerRetried"} <= events
    assert events <= {kind.__name__ for kind in get_args(Event)}


# ---- the policies


def actions_of(policy, service):
    """Return the operations of a service that a policy allows. Also check the policy's form."""
    assert policy["Version"] == "2012-10-17"
    found = set()
    for statement in policy["Statement"]:
        assert statement.keys() == {"Sid", "Effect", "Action", "Resource"}
        assert statement["Effect"] == "Allow"
        assert re.fullmatch(r"\w+", statement["Sid"])
        arn = r"arn:aws:(kinesis:eu-west-1:111122223333:stream|dynamodb:eu-west-1:111122223333:table)/[\w*-]+(/consumer/\*)?|\*"
        assert re.fullmatch(arn, statement["Resource"])
        actions = statement["Action"] if isinstance(statement["Action"], list) else [statement["Action"]]
        assert len(set(actions)) == len(actions)
        for action in actions:
            assert re.fullmatch(r"(kinesis|dynamodb):[A-Z]\w+", action), "no wildcard"
            assert statement["Resource"] == "*" or f"arn:aws:{action.partition(':')[0]}:" in statement["Resource"]
        found.update(action.partition(":")[2] for action in actions if action.startswith(f"{service}:"))
    return found


def operations_of(kinesis):
    return {request.operation for request in kinesis.requests}


PRODUCER, CONSUMER, FAN_OUT, CONSUMER_ON_DYNAMODB, BESIDE_THE_KCL, ADMINISTRATOR = POLICIES


def test_a_producer_calls_what_it_may(kinesis):
    async def main():
        async with Producer("orders") as producer:
            await producer.put_many((f"k{n}", b"x") for n in range(100))
            await producer.put(b"no key")
            await producer.flush()
            kinesis.faults.reshard_at(delay=0, stream="orders", action="split", shard=0)
            kinesis.faults.throttle(operation="PutRecords", count=1)
            await producer.put_many((f"k{n}", b"x") for n in range(100))

    anyio.run(main)
    assert len(kinesis.streams["orders"].shards) == 4, "a split while it was at it"
    assert operations_of(kinesis) == actions_of(PRODUCER, "kinesis")


def test_a_consumer_calls_what_it_may(kinesis, tmp_path):
    async def main():
        config = ConsumerConfig(list_interval=1)
        store = f"sqlite:///{tmp_path}/leases.db"
        async with Consumer("orders", group="g", store=store, config=config) as consumer:
            seen = 0
            async for _ in consumer:
                seen += 1
                if seen == 100:
                    kinesis.faults.reshard_at(delay=0, stream="orders", action="split", shard=0)
                    with anyio.CancelScope(shield=True):
                        await anyio.to_thread.run_sync(put, 100)
                if seen == 200:
                    return

    def put(count):
        with BlockingProducer("orders") as producer:
            producer.put_many((f"k{n}", b"x") for n in range(count))

    put(100)
    kinesis.requests.clear()
    anyio.run(main)
    assert len(kinesis.streams["orders"].shards) == 4
    assert operations_of(kinesis) - {"PutRecords"} == actions_of(CONSUMER, "kinesis")
    assert actions_of(CONSUMER_ON_DYNAMODB, "kinesis") == actions_of(CONSUMER, "kinesis")
    assert actions_of(CONSUMER, "dynamodb") == set()


def test_a_consumer_with_fan_out_calls_what_it_may(kinesis):
    async def main():
        async with Consumer("orders", fan_out="billing", until="latest") as consumer:
            async for _ in consumer:
                pass

    kinesis.requests.clear()
    anyio.run(main)
    polling = {"GetRecords", "GetShardIterator"}
    assert operations_of(kinesis) == (actions_of(CONSUMER, "kinesis") - polling) | actions_of(FAN_OUT, "kinesis")


def test_a_consumer_with_a_consumer_arn_only_subscribes(kinesis):
    async def register():
        async with kinesis.client() as client:
            return (await client.register_stream_consumer("orders", "billing", wait=True)).arn

    async def main(arn):
        async with Consumer("orders", fan_out=arn, until="latest") as consumer:
            async for _ in consumer:
                pass

    arn = anyio.run(register)
    kinesis.requests.clear()
    anyio.run(main, arn)
    polling = {"GetRecords", "GetShardIterator"}
    assert operations_of(kinesis) == (actions_of(CONSUMER, "kinesis") - polling) | {"SubscribeToShard"}


def test_a_follower_of_a_kcl_fleet_calls_what_it_may():
    row = "me", MetricsPlace.OWN_TABLE
    requests = (WriteMetrics(row[0], 1, row[1], can_share_table=False), DeleteMetrics(*row))
    writes = [metrics_request(request, "billing") for request in requests]
    assert {members["TableName"] for _, members in writes} == {"billing-WorkerMetricStats"}
    allowed = {
        statement["Resource"].rpartition("/")[2]: {**BESIDE_THE_KCL, "Statement": [statement]}
        for statement in BESIDE_THE_KCL["Statement"]
    }
    assert {table: actions_of(policy, "dynamodb") for table, policy in allowed.items()} == {
        f"billing{COORDINATION_SUFFIX}": {"Scan"},
        f"billing{METRICS_SUFFIX}": {"Scan", *(name for name, _ in writes)},
    }


def test_an_administrator_calls_what_he_may(kinesis):
    async def main():
        async with kinesis.client() as client:
            await client.create_stream("more", shards=2, tags={"team": "billing"}, wait=True)
            await client.list_streams()
            await client.update_shard_count("more", 4, wait=True)
            shards = await client.list_shards("more", "AT_LATEST")
            await client.split_shard("more", shards[0].shard_id, wait=True)
            await client.merge_shards("more", shards[2].shard_id, shards[3].shard_id, wait=True)
            await client.update_max_record_size("more", 2048)
            await client.increase_stream_retention_period("more", 48)
            await client.decrease_stream_retention_period("more", 24)
            await client.update_stream_mode("more", "ON_DEMAND", wait=True)
            await client.start_stream_encryption("more", "alias/aws/kinesis", wait=True)
            await client.stop_stream_encryption("more", "alias/aws/kinesis", wait=True)
            await client.add_tags_to_stream("more", {"owner": "me"})
            await client.remove_tags_from_stream("more", ["owner"])
            await client.list_tags_for_stream("more")
            consumer = await client.register_stream_consumer("more", "reader", wait=True)
            await client.list_stream_consumers("more")
            await client.describe_stream_consumer(consumer.arn)
            await client.deregister_stream_consumer(consumer.arn)
            await client.describe_stream_summary("more")
            await client.delete_stream("more", wait=True)
            await client.call("DescribeLimits")  # as `shardline doctor` does

    kinesis.requests.clear()
    anyio.run(main)
    called = operations_of(kinesis)
    methods = {name for name in vars(ControlPlane) if not name.startswith("_") and name != "api"}
    named = called - {"DescribeLimits"}
    assert methods == {re.sub(r"(?<=[a-z])(?=[A-Z])", "_", operation).lower() for operation in named}, "all there are"
    assert called == actions_of(ADMINISTRATOR, "kinesis")
    everywhere = [statement for statement in ADMINISTRATOR["Statement"] if statement["Resource"] == "*"]
    assert [statement["Action"] for statement in everywhere] == [["kinesis:ListStreams", "kinesis:DescribeLimits"]]


def test_a_consumer_on_dynamodb_calls_what_it_may(kinesis, dynamodb_url, monkeypatch):
    called = set()
    send = DynamoDbLeases._send

    async def noted(self, operation, members):
        called.add(operation)
        return await send(self, operation, members)

    monkeypatch.setattr(DynamoDbLeases, "_send", noted)
    with BlockingProducer("orders") as producer:
        producer.put_many((f"k{n}", b"x") for n in range(100))

    async def main():
        store = f"dynamodb://billing?region=us-east-1&endpoint_url={dynamodb_url}"
        async with Consumer("orders", group="billing", store=store, until="latest") as consumer:
            assert len([record async for record in consumer]) == 100
        await every_write()

    async def every_write():
        """Make each kind of write by itself, including one that is refused: then the row is read."""
        access = AwsAccess(wall_time=time.time, region="us-east-1", endpoint_url=dynamodb_url)
        store = DynamoDbLeases(access, "billing", "billing", "orders")
        assert await store.open() is None
        shard = "shardId-000000000009"
        there = Checkpoint(at_sequence_number(SequenceNumber(5)))
        await store.apply(leases.CreateLease(Lease(shard)))
        await store.apply(leases.TakeLease(shard, "a", Lease(shard).fence))
        await store.apply(leases.CommitCheckpoint(shard, "a", 1, there))
        refused = await store.apply(leases.DeleteLease(shard, 1))
        assert isinstance(refused, leases.Refused)
        assert await store.apply(leases.RenewLease("shardId-000000000010", "a", 1)) == leases.Refused(None)
        assert await store.apply(leases.DeleteLease(shard, 2)) is None
        await store.close()

    anyio.run(main)
    assert called == actions_of(CONSUMER_ON_DYNAMODB, "dynamodb")
