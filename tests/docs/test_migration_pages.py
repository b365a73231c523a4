"""Does the code after a migration do what the code before it did?

Every pair of Python blocks runs against the same server: the block before it in the environment that its library needs,
the block after it here. Of the Java pairs, the second block runs; the lease table that it takes over was written by the
KCL.
"""

import ast
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import anyio
import boto3
import pytest
from tests.contract import conftest as servers
from tests.docs import pages

from shardline import ProducerConfig, deaggregate
from shardline.sync import Producer

HERE = Path(__file__)
ROOT = HERE.parents[2]
FOLDER = "docs/migration"
pytestmark = pytest.mark.timeout(400)  # processes with libraries that take their time
CLIENTS = ROOT / ".servers" / "clients"
ORDERS = [(f"customer-{n % 5}", b'{"customer": "customer-%d", "order": %d}' % (n % 5, n)) for n in range(40)]


def pair(page, heading):
    """Return the blocks under a heading, before and after."""
    found = pages.FENCE.findall(pages.section_of(f"{FOLDER}/{page}.md", heading))
    [(before_language, before), (_, after)] = found
    assert before.startswith("// before" if before_language == "java" else "# before")
    assert after.startswith("# after")
    return before, after


def run(block, **names):
    names["__name__"] = "example"
    exec(compile(block, FOLDER, "exec"), names)  # our own page
    return SimpleNamespace(**names)


PAIRS = [
    ("boto3", "## Put records"),
    ("boto3", "## Read records"),
    ("kpl", "# From the KPL"),
    ("kcl", "# From the KCL"),
    ("aiokpl", "# From aiokpl"),
    ("async-kinesis", "## Put records"),
    ("async-kinesis", "## Read records"),
]


def test_every_block_is_of_a_pair():
    blocks = [block for page, heading in PAIRS for block in pair(page, heading)]
    shown = [body for language in ("python", "java") for body in pages.blocks_in(FOLDER, language)]
    assert sorted(blocks) == sorted(shown)
    assert set().union(*map(pages.languages_of, pages.pages_in(FOLDER))) == {"python", "java", "sh"}


def test_there_is_a_page_for_each_library():
    listed = set(re.findall(r"\]\(([\w-]+)\.md\)", pages.text_of(f"{FOLDER}/index.md")))
    assert listed == {page for page, _ in PAIRS}
    assert {f"{FOLDER}/{page}.md" for page in {*listed, "index"}} == set(pages.pages_in(FOLDER))


def stored(kinesis):
    return sorted((record.key, record.data) for record in deaggregate(kinesis.streams["orders"].records))


def put(orders=ORDERS, **settings):
    with Producer("orders", **settings) as producer:
        producer.put_many(orders)


def elsewhere(block, call, kinesis, tmp_path):
    """Run a block of another library in its own environment, and return its output as JSON."""
    servers.require_installed("requirements-clients.txt", CLIENTS)
    script = tmp_path / "before.py"
    lines = [
        "import asyncio, json",
        block,
        f"found = []\nresult = asyncio.run({call})",
        "print(json.dumps([result, found]))",
    ]
    script.write_text("\n".join(lines))
    ended = subprocess.run(
        [str(CLIENTS / "bin" / "python"), str(script)],
        env={"PATH": os.environ["PATH"], "HOME": str(tmp_path)} | kinesis.environment,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout.splitlines()[-1])


# ---- boto3


@pytest.mark.parametrize("which", [0, 1])
def test_producing_with_boto3(kinesis, which):
    kinesis.faults.throttle(operation="PutRecords", count=1)
    run(pair("boto3", "## Put records")[which]).publish(ORDERS)
    assert stored(kinesis) == sorted(ORDERS)


@pytest.mark.parametrize("which", [0, 1])
def test_reading_with_boto3(kinesis, which):
    client = boto3.client("kinesis", **kinesis.boto3_arguments)
    entries = [{"PartitionKey": key, "Data": data} for key, data in ORDERS]
    client.put_records(StreamName="orders", Records=entries)
    seen = []
    run(pair("boto3", "## Read records")[which]).read(seen.append)
    assert sorted(seen) == sorted(data for _, data in ORDERS)


def test_without_aggregation_readers_see_what_boto3_would_have_written(kinesis):
    put(ORDERS, config=ProducerConfig(aggregation=False))
    assert sorted((record.key, record.data) for record in kinesis.streams["orders"].records) == sorted(ORDERS)


# ---- the KPL and the KCL


def test_producing_with_the_kpl(kinesis, tmp_path, capsys):
    before, after = pair("kpl", "# From the KPL")
    for name in ("fromPropertiesFile", "addUserRecord", "getOutstandingRecordsCount", "flushSync", "destroy"):
        assert name in before
    file = tmp_path / "default_config.properties"
    file.write_text("RecordMaxBufferedTime = 50\nRecordTtl = 60000\nRateLimit = 50\nThreadPoolSize = 8\n")
    assert run(after).publish(file, b"an order").startswith("shardId-")
    assert stored(kinesis) == [("customer-7", b"an order")]
    assert capsys.readouterr().out == "ThreadPoolSize has no counterpart: there is no native process\n"


def java_row(shard, checkpoint):
    """Return a lease as the KCL 3 leaves it behind when its last worker was stopped."""
    return {
        "leaseKey": {"S": shard.shard_id},
        "leaseOwner": {"S": "java-1"},
        "leaseCounter": {"N": "38"},
        "checkpoint": {"S": checkpoint},
        "checkpointSubSequenceNumber": {"N": "0"},
        "ownerSwitchesSinceCheckpoint": {"N": "0"},
        "startingHashKey": {"S": str(shard.hash_range.start)},
        "endingHashKey": {"S": str(shard.hash_range.end)},
        "throughputKBps": {"N": "0.0"},
    }


@pytest.fixture
def billing(kinesis, dynamodb_url, monkeypatch):
    """The lease table of a KCL application that has handled half of the records of each shard, and the other half."""
    client = boto3.client("kinesis", **kinesis.boto3_arguments)
    for key, data in ORDERS:
        client.put_record(StreamName="orders", PartitionKey=key, Data=data)
    monkeypatch.setenv("AWS_ENDPOINT_URL_DYNAMODB", dynamodb_url)
    table = boto3.client("dynamodb", region_name="us-east-1", endpoint_url=dynamodb_url)
    table.create_table(
        TableName="billing",
        AttributeDefinitions=[{"AttributeName": "leaseKey", "AttributeType": "S"}],
        KeySchema=[{"AttributeName": "leaseKey", "KeyType": "HASH"}],
        BillingMode="PAY_PER_REQUEST",
    )
    table.get_waiter("table_exists").wait(TableName="billing", WaiterConfig={"Delay": 1})
    expected = []
    for shard in kinesis.streams["orders"].shards:
        records = [record for record in kinesis.streams["orders"].records if record.shard_id == shard.shard_id]
        done = len(records) // 2
        table.put_item(TableName="billing", Item=java_row(shard, records[done - 1].sequence_number))
        expected += [record.data for record in records[done:]]
    yield table, expected
    table.close()


def test_consuming_with_the_kcl_goes_on_at_its_checkpoints(billing):
    before, after = pair("kcl", "# From the KCL")
    assert "implements ShardRecordProcessor" in before
    table, expected = billing
    seen = []
    anyio.run(run(after).bill, seen.append)
    assert sorted(seen) == sorted(expected), "what the KCL had done is not done again, and nothing is left out"
    rows = table.scan(TableName="billing", ConsistentRead=True)["Items"]
    assert all(int(row["leaseCounter"]["N"]) > 38 and "throughputKBps" in row for row in rows)


def test_the_three_commands_move_one_worker(kinesis, billing, dynamodb_url, tmp_path):
    """The rows say that a Java worker leads. It does not renew its leases, so our worker takes them."""
    table, expected = billing
    metrics = {"leaseKey": {"S": "java-1"}, "sup": {"N": "1"}, "entityType": {"S": "WORKER_METRIC_STATS"}}
    lock = {"ownerName": {"S": "java-1"}, "recordVersionNumber": {"S": "v"}, "entityType": {"S": "LEADER"}}
    table.put_item(TableName="billing", Item={"leaseKey": {"S": "Leader"}} | lock)
    _, program = pair("kcl", "# From the KCL")
    last_line = "import asyncio\n\nasyncio.run(bill(lambda data: print(data.decode(), flush=True)))\n"
    (tmp_path / "billing.py").write_text(program + last_line)
    [block] = pages.blocks_of(f"{FOLDER}/kcl.md", "sh")
    environment = {"HOME": str(tmp_path), "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    environment |= kinesis.environment | {"AWS_ENDPOINT_URL_DYNAMODB": dynamodb_url}
    outputs = []
    for command in block.splitlines():
        table.put_item(TableName="billing", Item=metrics | {"lut": {"N": str(int(time.time()))}})
        ended = subprocess.run(
            ["sh", "-c", command],
            env=environment,
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=120,
            check=False,
        )
        assert ended.returncode == 0, f"{command}: {ended.stdout}"
        outputs.append(ended.stdout)
    checked, worked, described = outputs
    led = "java-1 (KCL 3.5 or later) leads; the followers: none"
    assert led in " ".join(checked.split())
    assert sorted(line.encode() for line in worked.splitlines() if line.startswith("{")) == sorted(expected)
    assert led in " ".join(described.split())


# ---- aiokpl and async-kinesis


def test_producing_with_aiokpl(kinesis, tmp_path):
    before, after = pair("aiokpl", "# From aiokpl")
    orders = [(key, data.decode()) for key, data in ORDERS]
    call = f"publish([(key, data.encode()) for key, data in {orders!r}])"
    assert elsewhere(before, call, kinesis, tmp_path) == [40, []]
    assert stored(kinesis) == sorted(ORDERS)
    assert anyio.run(run(after).publish, ORDERS) == 40
    assert stored(kinesis) == sorted(ORDERS * 2)


def test_producing_and_reading_with_async_kinesis(kinesis, tmp_path):
    orders = [json.loads(data) for _, data in ORDERS]
    before, after = pair("async-kinesis", "## Put records")
    elsewhere(before, f"publish({orders!r})", kinesis, tmp_path)
    theirs = stored(kinesis)
    assert sorted((key, json.loads(data)["order"]) for key, data in theirs) == sorted(
        (order["customer"], order["order"]) for order in orders
    )
    seen = []
    read_before, read_after = pair("async-kinesis", "## Read records")
    anyio.run(run(read_after).read, seen.append)
    assert by_number(seen) == orders
    _, found = elsewhere(read_before, "read(found.append)", kinesis, tmp_path)
    assert by_number(found) == orders, "the reader of before sees the same"
    anyio.run(run(after).publish, orders)
    ours = [json.loads(data) for _, data in stored(kinesis)]
    assert by_number(ours) == by_number(orders * 2)


def by_number(orders):
    return sorted(orders, key=lambda order: order["order"])


# ---- the tables


def test_what_the_tables_call_ours_exists():
    """Every keyword of ours that a table names is an argument or a setting of a public object."""
    import inspect

    import shardline
    from shardline import sync
    from shardline.sinks import CloudWatchSink

    known = set()
    for holder in (
        shardline.Producer,
        shardline.Consumer,
        shardline.Client,
        sync.Producer,
        sync.Consumer,
        shardline.Delivery,
    ):
        for _, function in inspect.getmembers(holder, inspect.isfunction):  # inherited ones too
            known |= set(inspect.signature(function).parameters)
    known |= {*shardline.ProducerConfig.__slots__, *shardline.ConsumerConfig.__slots__}
    for made in (shardline.Client, CloudWatchSink):
        known |= set(inspect.signature(made.__init__).parameters)
    text = "".join(pages.text_of(page) for page in pages.pages_in(FOLDER))
    last_cells = [row.rsplit(" | ", 1)[-1] for row in text.splitlines() if row.startswith("| ")]
    named = {word for cell in last_cells for word in re.findall(r"[`(\s](\w+)=", cell)}
    assert len(named) > 10
    assert named - known == set()


def test_the_blocks_before_are_python():
    for block in pages.blocks_in(FOLDER, "python"):
        ast.parse(block)
