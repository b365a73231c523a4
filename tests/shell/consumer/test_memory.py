"""How much memory does a consumer use, whatever its records look like? Measured in a separate process."""

import subprocess
import sys
from pathlib import Path

import anyio
import pytest

from shardline import Client
from shardline.codec.aggregation import encode_aggregate
from shardline.model.hashing import HASH_KEY_COUNT
from shardline.testing import LocalKinesis

READER = Path(__file__).with_name("tiny_records_reader.py")
SHARDS = 4
RECORDS = 149_000  # records of one byte, in an aggregate of 1 MB
AGGREGATES = 8  # per shard


async def put_aggregates(kinesis):
    blob = encode_aggregate(["k"] * RECORDS, [b"x"] * RECORDS, {})
    async with Client(
        endpoint_url=kinesis.endpoint_url, region=kinesis.region, credentials=kinesis.credentials
    ) as client:
        for shard in range(SHARDS):
            hash_key = str(shard * (HASH_KEY_COUNT // SHARDS))
            for _ in range(AGGREGATES):
                await client.put_record("tiny", blob, "k", explicit_hash_key=hash_key)


@pytest.fixture
def endpoint():
    with LocalKinesis(shards=SHARDS, limits=False, stream="tiny") as kinesis:
        anyio.run(put_aggregates, kinesis)
        yield kinesis.endpoint_url


@pytest.mark.skipif(sys.platform == "win32", reason="resource is of Unix")
def test_aggregates_of_tiny_records_stay_within_the_bound(endpoint):
    """A page of a shard has 1.2 million records here, which take 150 MB when all of them are unpacked: 600 MB for four.

    The limit allows 64 MiB of prefetch; for each shard, a page as it came (8 MB) and one aggregate of it, unpacked (38
    MB by our count); and the memory to receive and parse a response.
    """
    command = [sys.executable, str(READER), endpoint, str(SHARDS)]
    finished = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    grown_mib, taken = map(int, finished.stdout.split())
    assert taken == 2_000_000
    assert grown_mib < 250
