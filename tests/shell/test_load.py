"""Do large bodies and many concurrent requests arrive complete, with nothing lost, no warning and nothing left open?"""

import gc
import hashlib
import json
import threading
from base64 import b64decode

import anyio
import anyio.to_thread
import cbor2
import pytest

pytestmark = pytest.mark.anyio

LARGE = [(hashlib.sha256(bytes([n])).digest() * 28_125, f"key-{n}") for n in range(7)]  # 900,000 bytes each


@pytest.fixture(autouse=True)
def nothing_is_left_open():
    yield
    gc.collect()


def results(count):
    return json.dumps({"Records": [{"SequenceNumber": str(n), "ShardId": "shardId-0"} for n in range(count)]}).encode()


@pytest.mark.parametrize("secured", [False, True], ids=["plain", "tls"])
@pytest.mark.parametrize("protocol", ["json", "cbor"])
async def test_a_body_of_six_megabytes_arrives_whole(secured, protocol, *, server, tls_server, ca_path, make_client):
    goal = tls_server if secured else server
    goal.reply(results(7)).reply(results(7))
    async with make_client(goal, verify=ca_path, protocol=protocol) as client:
        for _ in range(2):
            assert len((await client.put_records("orders", LARGE)).records) == 7
    assert goal.connections == 1
    for request in goal.requests:
        assert len(request.body) == int(request.headers["content-length"]) > 6_000_000
        body = cbor2.loads(request.body) if protocol == "cbor" else json.loads(request.body)
        got = [
            (one["Data"] if protocol == "cbor" else b64decode(one["Data"]), one["PartitionKey"])
            for one in body["Records"]
        ]
        assert got == LARGE


@pytest.mark.parametrize("size", [65_535, 65_536, 65_537, 262_144, 262_145, 1_048_576, 1_048_577])
async def test_bodies_around_the_limits_arrive_whole(size, server, make_client):
    async with make_client(server, protocol="cbor") as client:
        overhead = len(cbor2.dumps({"Records": [{"Data": bytes(size), "PartitionKey": "k"}], "StreamName": "s"})) - size
        data = b"\xa5" * (size - overhead)
        await client.put_records("s", [(data, "k")])
    assert abs(len(server.requests[0].body) - size) <= 4
    assert cbor2.loads(server.requests[0].body)["Records"][0]["Data"] == data


async def test_a_large_answer_arrives_whole(server, make_client):
    page = {"Records": [{"Data": "QUJD" * 250_000, "SequenceNumber": str(n), "PartitionKey": "k"} for n in range(6)]}
    server.reply(json.dumps(page | {"NextShardIterator": "next", "MillisBehindLatest": 0}).encode())
    async with make_client(server) as client:
        answer = await client.get_records("iterator")
    assert [record.data for record in answer.records] == [b"ABC" * 250_000] * 6


async def test_two_hundred_requests_over_ten_connections(server, make_client):
    numbers = []

    async def put(client, number):
        await client.put_records("orders", [(b"%d" % number, "k")])
        numbers.append(number)

    async with make_client(server, max_connections=10) as client, anyio.create_task_group() as tasks:
        for number in range(200):
            tasks.start_soon(put, client, number)
    assert sorted(numbers) == list(range(200))
    arrived = sorted(int(b64decode(json.loads(request.body)["Records"][0]["Data"])) for request in server.requests)
    assert arrived == list(range(200))
    assert server.connections <= 10


async def test_large_bodies_need_no_thread_of_the_callers_pool(server, make_client):
    """Forty blocked callers hold all of anyio's threads: hashing has threads of its own, or they would wait forever."""
    server.reply(results(7))
    release = threading.Event()
    limiter = anyio.to_thread.current_default_thread_limiter()
    before, limiter.total_tokens = limiter.total_tokens, 1
    try:
        async with make_client(server) as client, anyio.create_task_group() as tasks:
            tasks.start_soon(anyio.to_thread.run_sync, release.wait, 10)
            await anyio.sleep(0.01)
            with anyio.fail_after(5):
                await client.put_records("orders", LARGE)
            release.set()
    finally:
        release.set()
        limiter.total_tokens = before
