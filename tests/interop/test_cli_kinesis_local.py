"""Does the command line work with a third-party server?

The tests run the main path of every command that uses Kinesis, in a separate process, against kinesis-local.
"""

import json
import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.interop


@pytest.fixture
def shardline(kinesis_local, tmp_path):
    """Run the command to its end, and return its output."""

    def run(*arguments, stdin=b"", code=0):
        ended = subprocess.run(
            [sys.executable, "-m", "shardline", *map(str, arguments)],
            cwd=tmp_path,
            env={
                "PATH": os.environ["PATH"],
                "HOME": str(tmp_path),
                "LANG": "C.UTF-8",
                "AWS_ACCESS_KEY_ID": "AKIDEXAMPLE",
                "AWS_SECRET_ACCESS_KEY": "secret",
                "AWS_REGION": "us-east-1",
                "AWS_ENDPOINT_URL_KINESIS": kinesis_local.http_url,
            },
            input=stdin,
            capture_output=True,
            timeout=90,
            check=False,
        )
        assert ended.returncode == code, ended
        return ended.stdout.decode() if code == 0 else ended.stderr.decode()

    return run


def test_streams_are_made_shown_resharded_and_removed(shardline, stream_name):
    assert shardline("streams", "create", stream_name, "--shards", "2").startswith(f"created {stream_name}: ACTIVE")
    assert stream_name in shardline("streams", "list")
    shardline("streams", "reshard", stream_name, "--split", "0")
    shardline("streams", "reshard", stream_name, "--merge", "3", "1")
    tree = shardline("streams", "describe", stream_name).partition("\n\n")[2].splitlines()
    assert [line.split("shardId-")[1].split()[0][-1] for line in tree] == ["0", "2", "3", "4", "1"]
    assert [line.split()[-1] for line in tree] == ["split", "25.00%", "merged", "1", "4"]
    shown = json.loads(shardline("streams", "describe", stream_name, "--output", "json"))
    assert (shown["open_shards"], shown["closed_shards"]) == (2, 3)
    assert shardline("streams", "delete", stream_name, "--yes") == f"deleted {stream_name}\n"
    assert f"{stream_name} not found (searched in us-east-1 at " in shardline(
        "streams", "describe", stream_name, code=1
    )


def test_records_are_put_and_read_through_a_reshard(shardline, stream_name):
    shardline("streams", "create", stream_name, "--shards", "2")
    lines = [b'{"id": "k", "n": %d}' % number for number in range(500)]
    shardline("put", stream_name, "--key-field", "id", "--ordered", stdin=b"\n".join(lines[:250]))
    shardline("streams", "reshard", stream_name, "--shards", "4")
    shardline("put", stream_name, "--key-field", "id", "--ordered", stdin=b"\n".join(lines[250:]))
    read = ("tail", stream_name, "--from", "TRIM_HORIZON", "--until", "latest")
    assert shardline(*read).encode().splitlines() == lines
    assert len(shardline("tail", stream_name, "--from", "TRIM_HORIZON", "-n", "7").splitlines()) == 7
    records = [json.loads(line) for line in shardline(*read, "--output", "json").splitlines()]
    assert {one["key"] for one in records} == {"k"}
    last = records[-1]
    since = ("--shard", last["shard_id"], "--from", last["sequence_number"], "--until", "latest")
    assert shardline("tail", stream_name, *since).splitlines()[-1].encode() == lines[-1]


def test_one_record_and_binary_data(shardline, stream_name):
    shardline("streams", "create", stream_name)
    shard_id, number = shardline("put", stream_name, "hello", "--key", "k").split()
    assert shard_id == "shardId-000000000000"
    assert number.isdigit()
    shardline("put", stream_name, "--whole", "--no-aggregate", stdin=bytes(range(256)))
    first, second = shardline(
        "tail", stream_name, "--from", "1h", "--until", "latest", "--format", "base64"
    ).splitlines()
    assert first == "aGVsbG8="
    assert second.startswith("AAECAwQF")
