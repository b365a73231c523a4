"""Do ``shardline groups`` and ``shardline doctor`` work on third-party servers, and leave no trace there?"""

import json
import os
import subprocess
import sys

import pytest

from shardline import Client, Consumer, Credentials, Entry

pytestmark = [pytest.mark.interop, pytest.mark.anyio]

KEYS = Credentials("AKIDEXAMPLE", "secret")
PARENT = "shardId-000000000000"


@pytest.fixture
def anyio_backend():
    return "asyncio"


@pytest.fixture(params=["kinesis_local", "kinesalite", "ministack"])
def any_server(request):
    return request.getfixturevalue(request.param)


def client_of(server):
    return Client(region="us-east-1", endpoint_url=server.http_url, credentials=KEYS)


def run(server, *arguments):
    """Return the JSON output of the command, and its exit code."""
    variables = {
        "AWS_ENDPOINT_URL_KINESIS": server.http_url,
        "AWS_REGION": "us-east-1",
        "AWS_ACCESS_KEY_ID": KEYS.access_key,
        "AWS_SECRET_ACCESS_KEY": KEYS.secret_key,
    }
    ended = subprocess.run(
        [sys.executable, "-m", "shardline", *arguments, "--output", "json"],
        env=os.environ | variables,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert ended.stdout, ended.stderr
    return json.loads(ended.stdout), ended.returncode


async def stored(client, stream):
    records = []
    for shard in await client.list_shards(stream):
        iterator = await client.get_shard_iterator(stream, shard.shard_id, "TRIM_HORIZON")
        records += (await client.get_records(iterator)).records
    return records


async def test_the_doctor_puts_nothing_into_any_stream(any_server, stream_name):
    """These servers ignore ``DryRun``: a doctor that trusted it would leave a record."""
    async with client_of(any_server) as client:
        await client.create_stream(stream_name, shards=2, wait=60)
        told, code = run(any_server, "doctor", stream_name)
        found = {one["check"]: one["verdict"] for one in told["checks"]}
        assert code == 0, told
        assert {found[f"may {one}"] for one in ("ListShards", "GetShardIterator", "GetRecords")} == {"ok"}
        assert found["may PutRecords"] == found["may PutRecord"] == "not checked"
        assert await stored(client, stream_name) == []


async def test_a_group_is_reset_after_a_reshard(kinesis_local, stream_name, tmp_path):
    store = f"sqlite:///{tmp_path / 'leases.db'}"

    async def consume(client):
        settings = {"group": "billing", "store": store, "client": client, "until": "latest"}
        async with Consumer(stream_name, **settings) as consumer:
            return [record async for record in consumer]

    async with client_of(kinesis_local) as client:
        await client.create_stream(stream_name, shards=2, wait=60)
        await client.put_records(stream_name, [Entry(f"old-{n}".encode(), str(n)) for n in range(20)])
        await client.split_shard(stream_name, PARENT, wait=60)
        await client.put_records(stream_name, [Entry(f"new-{n}".encode(), str(n)) for n in range(20)])
        first = await consume(client)
        assert len(first) == 40
        told, code = run(kinesis_local, "groups", "reset", "billing", "--to", "TRIM_HORIZON", "--store", store)
        assert (code, told["complete"]) == (0, True)
        told, _ = run(kinesis_local, "groups", "describe", "billing", "--store", store)
        assert {one["checkpoint"]["kind"] for one in told["shards"]} == {"TRIM_HORIZON"}
        assert max(one["lag_ms"] for one in told["shards"]) > 0
        again = await consume(client)
        assert sorted(record.data for record in again) == sorted(record.data for record in first)
        order = [record.shard_id for record in again]
        children = {shard.shard_id for shard in await client.list_shards(stream_name) if PARENT in shard.parent_ids}
        last_of_parent = len(order) - 1 - order[::-1].index(PARENT)
        assert all(order.index(child) > last_of_parent for child in children if child in order)
