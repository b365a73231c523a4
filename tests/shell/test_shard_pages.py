"""Do all listings of shards page as AWS demands, with nothing beside NextToken?

The server returns pages of two shards, so that each listing has several. Its request log shows every refusal.
"""

import os
import subprocess
import sys

import pytest

from shardline import sync
from shardline.server.model import descriptions
from shardline.testing import LocalKinesis

SHARDS = 5
PAGES = 3


@pytest.fixture(params=["name", "arn"])
def stream(request):
    return "orders" if request.param == "name" else "arn:aws:kinesis:us-east-1:000000000000:stream/orders"


@pytest.fixture
def kinesis(monkeypatch):
    monkeypatch.setattr(descriptions, "_SHARDS_PER_PAGE", 2)
    with LocalKinesis(shards=SHARDS, stream="orders", limits=False) as running:
        yield running
        listings = running.requests.find("ListShards")
        assert len(listings) >= PAGES
        assert [one.error for one in listings if one.error] == []


def connection_to(kinesis):
    return {"endpoint_url": kinesis.endpoint_url, "credentials": kinesis.credentials, "region": "us-east-1"}


@pytest.mark.anyio
@pytest.mark.parametrize("wire", [("asyncio", False)], indirect=True, ids=[""])
async def test_the_client(kinesis, stream):
    async with kinesis.client() as client:
        assert len(await client.list_shards(stream)) == SHARDS
        assert len(await client.list_shards(stream, "AT_LATEST")) == SHARDS


def test_the_producer_and_the_consumer(kinesis, stream):
    with sync.Producer(stream, **connection_to(kinesis)) as producer:
        landed = {producer.put(b"%d" % number, key=str(number)).result(30).shard_id for number in range(20)}
    assert len(landed) == SHARDS
    found = set()
    with sync.Consumer(stream, **connection_to(kinesis)) as consumer:
        for record in consumer:
            found.add(record.data)
            if len(found) == 20:
                break


@pytest.mark.parametrize(
    "command", [["streams", "describe"], ["doctor"], ["tail", "--from", "TRIM_HORIZON", "-n", "1"]]
)
def test_the_command_line(kinesis, stream, tmp_path, command):
    with sync.Producer(stream, **connection_to(kinesis)) as producer:
        producer.put(b"one", key="k").result(30)
    kinesis.requests.clear()
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "AWS_EC2_METADATA_DISABLED": "true"}
    ended = subprocess.run(
        [sys.executable, "-m", "shardline", *command, stream],
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
        env=environment | dict(kinesis.environment),
    )
    assert ended.returncode == 0, ended
