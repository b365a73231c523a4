"""Does ``shardline doctor`` find problems, give advice, and leave no trace?

The tests run the real command in a separate process. The problems are faults of our server, or are in the environment.
"""

import asyncio
import contextlib
import http.client
import json
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from shardline import Entry
from shardline.adapters.leases.sqlite import SqliteLeases
from shardline.core.leases import CreateLease
from shardline.model.lease import Lease
from shardline.testing import LocalKinesis

COMMAND = [sys.executable, "-m", "shardline", "doctor"]
PERMISSIONS = {
    "may DescribeStreamSummary",
    "may ListShards",
    "may GetShardIterator",
    "may GetRecords",
    "may PutRecords",
    "may PutRecord",
    "may ListStreamConsumers",
    "may SubscribeToShard",
}


@pytest.fixture
def kinesis():
    with LocalKinesis(shards=2, stream="orders", limits=False) as running:
        yield running


def environment_of(kinesis, **variables):
    base = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "SHARDLINE_"))}
    closed = {"AWS_EC2_METADATA_DISABLED": "true", "AWS_CONFIG_FILE": os.devnull}
    closed["AWS_SHARED_CREDENTIALS_FILE"] = os.devnull
    settings = base | closed | kinesis.environment | variables
    return {name: value for name, value in settings.items() if value is not None}


def run(kinesis, *arguments, **variables):
    """Return the exit code and the output."""
    environment = environment_of(kinesis, **variables)
    ended = subprocess.run(
        [*COMMAND, *arguments], capture_output=True, text=True, timeout=100, check=False, env=environment
    )
    assert "Traceback" not in ended.stderr, ended.stderr
    return ended.returncode, ended.stdout, ended.stderr


def examined(kinesis, *arguments, code=0, stream="orders", **variables):
    """Return the findings, by check."""
    ended, output, errors = run(kinesis, stream, "--output", "json", *arguments, **variables)
    assert ended == code, output + errors
    told = json.loads(output)
    assert told["ok"] is (code == 0)
    assert told["stream"] == stream
    found = {one["check"]: one for one in told["checks"]}
    assert len(found) == len(told["checks"])
    for one in found.values():
        assert (one["advice"] is not None) == (one["verdict"] in {"warning", "failed"}), one
    return found


def every_check(found):
    """Whether all checks are reported, including those that could not run because an earlier one failed."""
    return set(found) >= PERMISSIONS | {"region", "endpoint", "clock", "stream", "retention", "load", "consumers"}


def verdicts(found, *wanted):
    return {check: one["verdict"] for check, one in found.items() if one["verdict"] in wanted}


def in_loop(kinesis, work):
    async def main():
        async with asyncio.timeout(60), kinesis.client() as client:
            return await work(client)

    return asyncio.run(main())


# ---- a healthy stream


def test_all_is_well_and_nothing_is_left_behind(kinesis):
    found = examined(kinesis)
    assert verdicts(found, "warning", "failed") == {}
    assert verdicts(found, "not checked") == {"may SubscribeToShard": "not checked"}
    assert set(found) >= PERMISSIONS | {"region", "credentials", "endpoint", "clock", "stream", "hash ranges", "load"}
    assert kinesis.streams["orders"].record_count == 0
    assert found["region"]["seen"] == "us-east-1 (from AWS_REGION)"
    assert found["stream"]["seen"] == "ACTIVE, PROVISIONED, 2 open shards"
    assert found["hash ranges"]["seen"] == "2 shards, each with 50.0% to 50.0% of the keys"
    assert "24 h; records of up to 1.0 MiB" in found["retention"]["seen"]


def test_it_is_a_table_for_people(kinesis):
    code, output, errors = run(kinesis, "orders")
    assert code == 0
    lines = output.splitlines()
    assert lines[0].split()[0] == "CHECK"
    assert any(line.startswith("ok ") and " may PutRecords " in line for line in lines)
    assert errors.strip() == "0 failed, 0 warnings"


def test_no_secret_is_printed(kinesis):
    for arguments in ((), ("--output", "json"), ("-v",)):
        code, output, errors = run(kinesis, "orders", *arguments, AWS_SESSION_TOKEN="the-token-itself")
        assert code == 0
        for secret in (kinesis.credentials.secret_key, "the-token-itself", kinesis.credentials.access_key):
            assert secret not in output + errors
    assert "temporary keys ..AL00 from environment variables, expiry unknown" in output


def test_a_role_is_checked_for_what_it_needs(kinesis):
    fault = kinesis.faults.error("AccessDeniedException", "not authorized", operation="PutRecords")
    assert "may PutRecords" not in examined(kinesis, "--for", "consumer")
    fault.remove()
    kinesis.faults.error("AccessDeniedException", "not authorized", operation="GetRecords")
    found = examined(kinesis, "--for", "producer")
    assert "may GetRecords" not in found
    assert found["may PutRecords"]["verdict"] == "ok"


def test_without_sampling_no_record_is_read(kinesis):
    kinesis.requests.clear()
    found = examined(kinesis, "--no-sample")
    assert found["load"]["verdict"] == "not checked"
    assert kinesis.requests.find(operation="GetRecords", status=200) == []


# ---- enhanced fan-out


def test_a_registered_consumer_is_checked_without_taking_its_subscriptions(kinesis):
    async def register(client):
        return (await client.register_stream_consumer("orders", "billing", wait=True)).arn

    arn = in_loop(kinesis, register)
    for name in ("billing", arn):
        found = examined(kinesis, "--fan-out", name)
        assert verdicts(found, "warning", "failed", "not checked") == {}
        assert found["registered consumer"]["seen"] == "billing is ACTIVE"
        assert found["HTTP/2"]["seen"] == "subscriptions share connections"
    assert kinesis.requests.find(operation="SubscribeToShard", status=200) == []


def test_a_consumer_that_is_missing_is_a_warning_because_workers_register_it(kinesis):
    found = examined(kinesis, "--fan-out", "billing")
    assert verdicts(found, "warning") == {"registered consumer": "warning"}
    assert verdicts(found, "not checked") == {"HTTP/2": "not checked", "may SubscribeToShard": "not checked"}
    assert kinesis.requests.count("RegisterStreamConsumer") == 0


def test_fan_out_is_for_consumers_of_a_stream(kinesis):
    assert "works only with a STREAM" in run(kinesis, "--fan-out", "billing")[2]
    assert "--for producer" in run(kinesis, "orders", "--for", "producer", "--fan-out", "billing")[2]
    found = examined(kinesis, "--fan-out", "billing", code=1, stream="order")
    assert verdicts(found, "not checked").keys() >= {"registered consumer", "HTTP/2", "may DescribeStreamConsumer"}


# ---- the connection to Kinesis


@pytest.mark.parametrize(
    ("spoil", "options", "check", "words"),
    [
        (None, {"AWS_REGION": None, "AWS_DEFAULT_REGION": None}, "region", "--region"),
        (None, {"arguments": ("--profile", "nobody")}, "region", "'nobody'"),
        (lambda kinesis: kinesis.faults.expired_token(), {}, "identity", "log in again"),
        (lambda kinesis: kinesis.faults.clock_skew(-600), {}, "clock", "NTP"),
        (lambda kinesis: kinesis.clock.advance(60), {"code": 0}, "clock", "behind Kinesis's"),
        (
            lambda kinesis: kinesis.faults.error("KMSDisabledException", "disabled", operation="PutRecords"),
            {},
            "may PutRecords",
            "key must be enabled",
        ),
    ],
    ids=["no region", "no profile", "expired", "clock off", "clock a little off", "key disabled"],
)
def test_one_thing_that_is_wrong_is_found_alone_and_comes_with_advice(kinesis, spoil, options, check, words):
    if spoil is not None:
        spoil(kinesis)
    options = {"code": 1} | options
    found = examined(kinesis, *options.pop("arguments", ()), **options)
    assert verdicts(found, "failed", "warning") == {check: "failed" if options["code"] else "warning"}
    assert words in f"{found[check]['seen']} {found[check]['advice']}"
    assert every_check(found)


def test_an_arn_of_another_region(kinesis):
    arn = "arn:aws:kinesis:eu-west-1:000000000000:stream/orders"
    found = examined(kinesis, code=1, stream=arn)
    assert found["region"]["verdict"] == "failed"
    assert "--region eu-west-1" in found["region"]["advice"]


def test_no_credentials(kinesis):
    kinesis.requests.clear()
    found = examined(kinesis, code=1, AWS_ACCESS_KEY_ID=None, AWS_SECRET_ACCESS_KEY=None)
    assert verdicts(found, "failed") == {"credentials": "failed"}
    assert found["credentials"]["seen"] == "no AWS credentials found"
    assert found["may PutRecords"]["seen"] == "nothing is sent without credentials"
    assert kinesis.requests.total == 0


@pytest.mark.parametrize(
    ("variables", "words", "advice"),
    [
        ({"AWS_REGION": "eu-west-1"}, "scoped to a valid region", "check --region"),
        (
            {"AWS_SECRET_ACCESS_KEY": "wrong"},
            "signature we calculated does not match",
            "the secret key does not belong",
        ),
        ({"AWS_ACCESS_KEY_ID": "AKIAUNKNOWN"}, "UnrecognizedClientException", "the access key is unknown"),
    ],
    ids=["region", "secret", "key"],
)
def test_a_signature_that_does_not_fit(variables, words, advice):
    with LocalKinesis(stream="orders", verify_signatures=True) as kinesis:
        found = examined(kinesis, code=1, **variables)
        assert verdicts(found, "failed") == {"identity": "failed"}
        assert words in found["identity"]["seen"]
        assert advice in found["identity"]["advice"]
        assert verdicts(examined(kinesis), "failed") == {}


def test_no_server_listens(kinesis, free_port):
    began_at = time.monotonic()
    found = examined(kinesis, "--endpoint-url", f"http://127.0.0.1:{free_port}", code=1)
    assert verdicts(found, "failed") == {"endpoint": "failed"}
    assert found["endpoint"]["advice"] == "check --endpoint-url, the network and its firewalls"
    assert set(verdicts(found, "not checked")) >= PERMISSIONS | {"clock", "stream"}
    assert every_check(found)
    assert time.monotonic() - began_at < 60


@pytest.fixture
def free_port():
    with socket.create_server(("127.0.0.1", 0)) as one:
        return one.getsockname()[1]


def test_a_certificate_that_cannot_be_verified():
    with LocalKinesis(stream="orders", tls=True) as kinesis:
        found = examined(kinesis, code=1, AWS_CA_BUNDLE=None)
        assert verdicts(found, "failed") == {"endpoint": "failed"}
        assert "AWS_CA_BUNDLE" in found["endpoint"]["advice"]
        assert "certificate verified" in examined(kinesis)["endpoint"]["seen"]


def test_what_answers_is_no_kinesis(kinesis):
    kinesis.faults.html(503)
    found = examined(kinesis, code=1)
    assert found["may DescribeStreamSummary"]["verdict"] == "failed"
    assert "may PutRecords" in verdicts(found, "not checked")


# ---- the stream


def test_a_stream_that_is_not_there(kinesis):
    found = examined(kinesis, code=1, stream="order")
    assert verdicts(found, "failed") == {"stream": "failed"}
    assert every_check(found)
    assert "is it orders?" in found["stream"]["advice"]
    found = examined(kinesis, code=1, stream="nothing-like-it")
    assert "shardline streams list" in found["stream"]["advice"]


def test_an_invalid_name_is_a_usage_error(kinesis):
    code, output, errors = run(kinesis, "no stream!")
    assert (code, output) == (2, "")
    assert errors.startswith("Error: 'no stream!' is not a stream name")


def test_uneven_ranges(kinesis):
    async def split(client):
        for shard_id in ("shardId-000000000000", "shardId-000000000002", "shardId-000000000004"):
            await client.split_shard("orders", shard_id, wait=True)

    in_loop(kinesis, split)
    found = examined(kinesis)
    assert verdicts(found, "warning") == {"hash ranges": "warning"}
    assert "shardId-000000000001 has the most" in found["hash ranges"]["seen"]
    assert "split shardId-000000000001" in found["hash ranges"]["advice"]


def test_a_hot_shard(kinesis):
    kinesis.clock.freeze()

    async def load(client):
        for _ in range(100):
            await client.put_records("orders", [Entry(b"x", "one-key")] * 100)
            kinesis.clock.advance(0.1)

    in_loop(kinesis, load)
    (hot,) = {record.shard_id for record in kinesis.streams["orders"].records}
    found = examined(kinesis)
    assert found["load"]["verdict"] == "warning"
    assert found["load"]["seen"].startswith(f"{hot} receives about ")
    assert found["load"]["seen"].endswith("it is hot")
    assert kinesis.streams["orders"].record_count == 10_000


def test_what_the_summary_tells(kinesis):
    async def change(client):
        await client.call(
            "StartStreamEncryption", {"StreamName": "orders", "EncryptionType": "KMS", "KeyId": "alias/x"}
        )
        await client.increase_stream_retention_period("orders", 48)
        await client.register_stream_consumer("orders", "reader", wait=True)

    in_loop(kinesis, change)
    found = examined(kinesis)
    assert verdicts(found, "warning", "failed", "not checked") == {}
    assert found["encryption"]["seen"] == "KMS, key alias/x"
    assert found["retention"]["seen"].startswith("48 h")
    assert found["consumers"]["seen"] == "1 registered for enhanced fan-out: reader"
    assert found["may SubscribeToShard"]["seen"] == "allowed"


def test_a_stream_that_chooses_shards_itself(kinesis):
    async def change(client):
        await client.create_stream("auto", mode="ON_DEMAND", wait=True)
        members = {"StreamARN": (await client.describe_stream_summary("auto")).arn}
        await client.call("UpdateStreamRecordDistributionStrategy", members | {"RecordDistributionStrategy": "AUTO"})

    in_loop(kinesis, change)
    found = examined(kinesis, stream="auto")
    assert found["distribution"]["verdict"] == "warning"
    assert found["stream"]["seen"] == "ACTIVE, ON_DEMAND, 4 open shards"
    assert kinesis.streams["auto"].record_count == 0


def test_a_stream_with_channels(kinesis):
    async def change(client):
        await client.create_stream("tables", mode="ON_DEMAND", wait=True)
        arn = (await client.describe_stream_summary("tables")).arn
        bucket = {"BucketARN": "arn:aws:s3:::records", "ExpectedBucketOwner": "000000000000", "CompressionType": "GZIP"}
        members = {
            "ChannelName": "c",
            "ServiceExecutionRoleARN": "arn:aws:iam::000000000000:role/delivery",
            "StreamConfigurationList": [{"StreamARN": arn, "RecordConfiguration": {"RecordFormatType": "JSON"}}],
            "S3DestinationConfiguration": {"StorageConfiguration": bucket},
        }
        await client.call("CreateChannel", members)

    in_loop(kinesis, change)
    found = examined(kinesis, stream="tables")
    assert found["channels"]["verdict"] == "warning"
    assert found["channels"]["seen"] == "1 channel, which cannot read aggregates"


# ---- permissions


@pytest.mark.parametrize(
    "operation", ["DescribeStreamSummary", "ListShards", "GetShardIterator", "GetRecords", "PutRecords"]
)
def test_a_permission_that_is_missing(kinesis, operation):
    kinesis.faults.error("AccessDeniedException", f"not authorized to perform kinesis:{operation}", operation=operation)
    found = examined(kinesis, code=1)
    denied = found[f"may {operation}"]
    assert denied["verdict"] == "failed"
    assert f"kinesis:{operation}" in denied["advice"]
    assert set(verdicts(found, "failed")) == {f"may {operation}"}
    assert kinesis.streams["orders"].record_count == 0


@pytest.mark.parametrize("operation", ["PutRecord", "ListStreamConsumers", "SubscribeToShard"])
def test_a_permission_that_is_done_without(kinesis, operation):
    in_loop(kinesis, lambda client: client.register_stream_consumer("orders", "reader", wait=True))
    kinesis.faults.error("AccessDeniedException", "not authorized", operation=operation)
    found = examined(kinesis)
    assert verdicts(found, "warning") == {f"may {operation}": "warning"}
    assert f"kinesis:{operation}" in found[f"may {operation}"]["advice"]


def test_a_busy_service_is_asked_again(kinesis):
    kinesis.faults.error("LimitExceededException", "Rate exceeded", operation="DescribeStreamSummary", count=2)
    kinesis.faults.throttle(operation="ListShards", count=2)
    assert verdicts(examined(kinesis), "failed", "warning") == {}


def test_what_stays_busy_is_not_checked(kinesis):
    kinesis.faults.throttle(operation="GetRecords")
    found = examined(kinesis)
    assert found["may GetRecords"]["verdict"] == "not checked"
    assert found["load"]["verdict"] == "not checked"


# ---- servers without dry runs


class WithoutDryRun(BaseHTTPRequestHandler):
    """Forwards requests to a Kinesis without DryRun, like a server that does not support it."""

    protocol_version = "HTTP/1.1"
    target = None

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])) or b"{}")
        body.pop("DryRun", None)
        upstream = http.client.HTTPConnection(self.target)
        with contextlib.closing(upstream):
            names = ("Content-Type", "X-Amz-Target", "Authorization", "X-Amz-Date")
            upstream.request("POST", "/", json.dumps(body), {name: self.headers[name] for name in names})
            answer = upstream.getresponse()
            told = answer.read()
        self.send_response(answer.status)
        self.send_header("Content-Type", answer.headers["Content-Type"])
        self.send_header("Content-Length", str(len(told)))
        self.end_headers()
        self.wfile.write(told)

    def log_message(self, *_):
        """Print nothing."""


@pytest.fixture
def passes_over_dry_runs(kinesis):
    handler = type("Handler", (WithoutDryRun,), {"target": kinesis.endpoint_url.removeprefix("http://")})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_no_record_is_put_where_dry_runs_are_passed_over(kinesis, passes_over_dry_runs):
    in_loop(kinesis, lambda client: client.register_stream_consumer("orders", "reader", wait=True))
    kinesis.requests.clear()
    found = examined(kinesis, "--endpoint-url", passes_over_dry_runs)
    assert verdicts(found, "not checked").keys() == {"may PutRecords", "may PutRecord", "may SubscribeToShard"}
    assert "ignores DryRun" in found["may PutRecords"]["seen"]
    assert found["may GetRecords"]["verdict"] == "ok"
    assert kinesis.streams["orders"].record_count == 0
    assert {kinesis.requests.count(one) for one in ("PutRecords", "PutRecord", "SubscribeToShard")} == {0}


def test_no_record_is_put_where_dry_runs_cannot_be_seen(kinesis, passes_over_dry_runs):
    """A caller that may not read cannot find out whether the server supports dry runs."""
    kinesis.faults.error("AccessDeniedException", "not authorized", operation="GetShardIterator")
    found = examined(kinesis, "--for", "producer", "--endpoint-url", passes_over_dry_runs)
    assert "support of DryRun is unknown" in found["may PutRecords"]["seen"]
    assert {kinesis.requests.count(one) for one in ("PutRecords", "PutRecord")} == {0}


# ---- the store


def test_a_store_is_checked_too(kinesis, tmp_path):
    path = tmp_path / "leases.db"
    url = f"sqlite:///{path}"
    found = examined(kinesis, "--store", url)
    assert found["store"]["verdict"] == "warning"
    assert not path.exists()

    async def fill():
        store = SqliteLeases(path, "billing", "orders")
        assert await store.open() is None
        await store.apply(CreateLease(Lease("shardId-000000000000")))
        await store.close()

    asyncio.run(fill())
    assert examined(kinesis, SHARDLINE_STORE=url)["store"]["seen"] == "reachable, 1 group: billing on orders"

    other = tmp_path / "other.db"
    with contextlib.closing(sqlite3.connect(other)) as connection:
        connection.execute("CREATE TABLE x (y)")
    found = examined(kinesis, "--store", f"sqlite:///{other}", code=1)
    assert verdicts(found, "failed") == {"store": "failed"}
    assert "a database of another program" in found["store"]["seen"]


def test_a_store_of_the_process_is_wrong_usage(kinesis):
    code, output, errors = run(kinesis, "orders", "--store", "memory:")
    assert (code, output) == (2, "")
    assert "exists only inside the process that uses it" in errors


# ---- Ctrl-C


def test_ctrl_c_ends_it_at_once(kinesis):
    fault = kinesis.faults.latency(60.0, operation="ListShards")
    with subprocess.Popen(
        [*COMMAND, "orders"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment_of(kinesis)
    ) as process:
        give_up_at = time.monotonic() + 60
        while not fault.hits:
            assert time.monotonic() < give_up_at
            assert process.poll() is None
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=30)
    assert (process.returncode, output) == (130, "")
    assert "Traceback" not in errors
