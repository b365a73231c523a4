"""How does a command end if it is interrupted, or if its output cannot be written?

The tests run the real command in a separate process.
"""

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import anyio
import pytest

from shardline import sync
from shardline.adapters.aws.aws_service import AwsAccess
from shardline.adapters.leases.store_urls import lease_store
from shardline.cli.error_messages import asks_for_json
from shardline.core.leases import TakeLease
from shardline.model.lease import Lease

STORE = "sqlite:///leases.db"
COMMANDS = [
    "--help",
    "--version",
    "completion bash",
    "streams list",
    "streams list --names",
    "streams list --output json",
    "streams describe orders",
    "streams create more",
    "streams reshard orders --shards 4 --dry-run",
    "streams delete orders --yes",
    "put orders x",
    "put orders x --output json",
    "tail orders --from TRIM_HORIZON",
    "tail orders --from TRIM_HORIZON --until latest --output json",
    f"groups list --store {STORE}",
    f"groups describe billing --store {STORE}",
    f"groups reset billing --to TRIM_HORIZON --dry-run --store {STORE}",
    f"groups describe billing --watch --interval 100ms --store {STORE}",
    f"groups export billing --store {STORE}",
    f"groups delete billing --yes --store {STORE}",
    "doctor orders",
]


@pytest.fixture
def group(kinesis, tmp_path):
    """Records in the stream, and a group that has read them."""
    connection = {"endpoint_url": kinesis.endpoint_url, "region": kinesis.region, "credentials": kinesis.credentials}
    with sync.Producer("orders", **connection) as producer:
        producer.put_many([(f"k{number}", b"x" * 100) for number in range(20)])
    store = f"sqlite:///{tmp_path}/leases.db"
    with sync.Consumer("orders", group="billing", store=store, until="latest", **connection) as consumer:
        assert sum(1 for _ in consumer) == 20


def in_bash(shardline, script):
    command = f'shardline() {{ {shlex.quote(sys.executable)} -m shardline "$@"; }}\n{script}'
    return subprocess.run(
        ["bash", "-c", command],
        cwd=shardline.directory,
        env=shardline.environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )


@pytest.mark.parametrize("reader", ["true", "head -1"])
def test_a_reader_that_has_gone_is_no_error(shardline, group, reader):
    for command in COMMANDS:
        ended = in_bash(shardline, f"shardline {command} | {reader} > /dev/null; echo ${{PIPESTATUS[0]}}")
        problems = [word for word in ("Error", "Traceback", "Exception") if word in ended.stderr]
        assert (command, ended.stdout, problems) == (command, "0\n", []), ended.stderr
        if "delete orders" in command:
            shardline("streams", "create", "orders")
            shardline("put", "orders", "x")
        elif "create more" in command:
            shardline("streams", "delete", "more", "--yes")


def test_a_demo_of_one_line_is_judged_all_the_same(shardline):
    ended = in_bash(shardline, "shardline demo --seconds 5 | head -1; echo ${PIPESTATUS[0]}")
    first, code = ended.stdout.splitlines()
    assert "a local Kinesis on" in first
    assert (code, ended.stderr) == ("0", "")


def test_a_failure_sets_the_exit_code_even_if_the_output_is_not_read(shardline):
    ended = in_bash(shardline, "shardline doctor nothing 2>&1 | true; echo ${PIPESTATUS[0]}")
    assert ended.stdout == "1\n"
    ended = in_bash(
        shardline, "printf '{\\n' | shardline put orders --key-field id -o json | true; echo ${PIPESTATUS[1]}"
    )
    assert ended.stdout == "1\n"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device of Linux")
def test_output_that_cannot_be_written_is_one_sentence(shardline, group):
    for command in COMMANDS:
        if "delete" in command:
            continue
        ended = in_bash(shardline, f"shardline {command} > /dev/full")
        lines = [line for line in ended.stderr.splitlines() if "rror" in line]
        assert (command, ended.returncode, len(lines)) == (command, 1, 1), ended.stderr
        message = json.loads(lines[0])["error"]["message"] if command.endswith("json") else lines[0][len("Error: ") :]
        assert message.startswith("standard output")
        assert message.endswith("cannot be written: No space left on device")


def test_output_that_is_closed_is_no_error(shardline, group):
    for command in ("--version", "streams list", "put orders x"):
        ended = in_bash(shardline, f"shardline {command} >&-")
        assert (ended.returncode, ended.stderr) == (0, "")


# ---- SIGTERM


def test_sigterm_ends_a_tail_in_order(shardline, kinesis, eventually):
    running = shardline.start("tail", "orders", "--from", "TRIM_HORIZON")
    eventually(lambda: kinesis.requests.count("GetRecords") > 0)
    running.interrupt(signal.SIGTERM)
    ended = running.wait()
    assert (ended.code, ended.stderr) == (143, "")


def test_sigterm_before_a_put_has_begun(shardline, kinesis, eventually, tmp_path):
    fault = kinesis.faults.latency(300, operation="DescribeStreamSummary")
    running = shardline.start("put", "orders", "x", "--failed", "f")
    eventually(lambda: fault.hits == 1)
    running.interrupt(signal.SIGTERM)
    ended = running.wait()
    assert (ended.code, ended.stdout, ended.stderr) == (143, b"", "")
    assert not (tmp_path / "f").exists()


@pytest.mark.parametrize("command", ["list", "describe billing"])
def test_sigterm_ends_the_watching_of_groups(shardline, group, command):
    """A silent owner is watched to the end, which is an hour here."""

    async def own_a_lease():
        url = f"sqlite:///{shardline.directory}/leases.db"
        store = lease_store(url, group="billing", stream="orders", aws=AwsAccess(time.time))
        assert await store.open() is None
        row = next(iter(await store.list_leases()))
        assert isinstance(await store.apply(TakeLease(row.shard_id, "somebody", row.fence)), Lease)
        await store.close()

    anyio.run(own_a_lease)
    running = shardline.start("groups", *command.split(), "--observe", "1h", "--store", STORE)
    assert running.process.stderr.readline() == b"watching the leases for up to 3600 s ...\n"
    running.interrupt(signal.SIGTERM)
    ended = running.wait()
    assert (ended.code, ended.stdout, ended.stderr) == (143, b"", "")


def test_sigterm_ends_a_demo_in_order(shardline):
    running = shardline.start("demo", "--plain")
    assert b"a local Kinesis on" in running.process.stdout.readline()
    running.interrupt(signal.SIGTERM)
    ended = running.wait()
    assert (ended.code, ended.stderr) == (143, "interrupted: all processes of the demo have ended\n")


def test_ctrl_c_still_ends_a_tail_with_0(shardline, kinesis, eventually):
    running = shardline.start("tail", "orders")
    eventually(lambda: kinesis.requests.count("GetRecords") > 0)
    running.interrupt()
    assert running.wait().code == 0


# ---- errors as JSON


@pytest.mark.parametrize(
    "option", [["--output", "json"], ["--output=json"], ["-o", "json"], ["-ojson"], ["-vo", "json"]]
)
def test_an_error_is_json_where_that_was_asked_for(shardline, option):
    ended = shardline("streams", "describe", "nothing", *option, code=1)
    assert ended.stdout == b""
    error = json.loads(ended.stderr.splitlines()[-1])["error"]
    assert error.pop("message").startswith("Stream nothing under account 000000000000 not found (searched in ")
    assert error == {"exit_code": 1, "code": "ResourceNotFoundException", "operation": "DescribeStreamSummary"}


@pytest.mark.parametrize(
    ("command", "message", "code"),
    [
        (["streams", "list", "--nope", "-o", "json"], "No such option '--nope'", 2),
        (["-o", "json", "nothing"], "No such command 'nothing'.", 2),
        (["-o", "json", "put", "orders", "--file", "nothing"], "Invalid value for '--file': File 'nothing'", 2),
        (["put", "orders", "x", "--key", "", "-o", "json"], "a partition key", 2),
        (["streams", "list", "--endpoint-url", "nowhere", "-o", "json"], "--endpoint-url must look like", 2),
        (["streams", "list", "--endpoint-url", "http://127.0.0.1:1", "-o", "json"], "ListStreams: no connection", 1),
        (["groups", "list", "--store", "memory:", "-o", "json"], "the store memory: exists only inside the process", 2),
        (["local", "--port", "70000", "-o", "json"], "Invalid value for '--port': 70000", 2),
        (["demo", "--seconds", "1", "-o", "json"], "Invalid value for '--seconds'", 2),
    ],
)
def test_every_kind_of_error_is_json(shardline, command, message, code):
    ended = shardline(*command, code=code)
    (line,) = ended.stderr.splitlines()
    error = json.loads(line)["error"]
    assert error["message"].startswith(message)
    assert error["exit_code"] == code


def test_text_is_asked_for_by_the_last_option(shardline):
    ended = shardline("-o", "json", "streams", "describe", "nothing", "-o", "text", code=1)
    assert ended.stderr.startswith("Error: ")
    assert not asks_for_json(["put", "orders", "--", "-o", "json"])
    assert not asks_for_json(["--output=json", "--output=text"])
    assert not asks_for_json(["-o"])
    assert asks_for_json(["put", "orders", "--output=text", "-qo", "json"])


def test_short_output(shardline):
    assert json.loads(shardline("streams", "list", "-o", "json", "-q").stdout) == ["orders"]
    assert os.linesep.join(shardline("streams", "list", "-o", "text", "-q").lines) == "orders"
