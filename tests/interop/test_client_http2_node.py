"""Does our HTTP/2 client work with a third-party HTTP/2 server?

The server is Node's, which is nghttp2: with and without TLS, on asyncio, uvloop and trio.
"""

import base64
import json
import os
import subprocess
from pathlib import Path
from types import SimpleNamespace

import anyio
import pytest
import trustme
from tests.interop.conftest import require_node

from shardline import Client, Credentials, TransportError
from shardline.codec.eventstream import encode_message

pytestmark = [pytest.mark.interop, pytest.mark.anyio]

SCRIPT = Path(__file__).with_name("http2_server.js")
CONSUMER = "arn:aws:kinesis:us-east-1:123456789012:stream/orders/consumer/c:1"
ENTRIES = [(b"x", "k")]
EVENT = encode_message(
    {":message-type": "event", ":event-type": "SubscribeToShardEvent"},
    json.dumps({"Records": [], "ContinuationSequenceNumber": "7", "MillisBehindLatest": 0}).encode(),
)


@pytest.fixture(scope="module", params=[False, True], ids=["plain", "tls"])
def node(request, tmp_path_factory):
    directory = tmp_path_factory.mktemp("node")
    environment = {"PATH": os.environ["PATH"], "EVENT": base64.b64encode(EVENT).decode()}
    if request.param:
        authority = trustme.CA()
        authority.cert_pem.write_to_path(directory / "ca.pem")
        certificate = authority.issue_cert("127.0.0.1")
        certificate.private_key_pem.write_to_path(directory / "key.pem")
        certificate.cert_chain_pems[0].write_to_path(directory / "cert.pem")
        environment |= {"CERT": str(directory / "cert.pem"), "KEY": str(directory / "key.pem")}
    with subprocess.Popen(
        [require_node(), SCRIPT], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        port = process.stdout.readline().strip()
        scheme = "https" if request.param else "http"
        yield SimpleNamespace(
            url=f"{scheme}://127.0.0.1:{port}", verify=str(directory / "ca.pem") if request.param else True
        )
        process.stdin.close()
        process.wait(10)


@pytest.fixture
def make_client(node):
    def make(**settings):
        keys = Credentials("AKIDEXAMPLE", "secret")
        settings = {"endpoint_url": node.url, "verify": node.verify, "http2": True} | settings
        return Client(region="us-east-1", credentials=keys, **settings)

    return make


async def counts(client):
    return await client.call("DescribeLimits", {})


async def test_calls_large_and_small(make_client):
    async with make_client() as client:
        assert (await client.put_records("orders", ENTRIES)).records[0].sequence_number == "1"
        before = await counts(client)
        large = [(bytes(900_000), f"key-{n}") for n in range(5)]
        assert len((await client.put_records("orders", large)).records) == 5
        records = (await client.get_records("iterator")).records
        assert [len(record.data) for record in records] == [75_000] * 50
        async with anyio.create_task_group() as tasks:
            for _ in range(60):
                tasks.start_soon(client.put_records, "orders", ENTRIES)
        assert (await counts(client))["sessions"] - before["sessions"] <= 5  # it allows ten requests on each connection


async def test_pings_and_settings_in_between(make_client):
    async with make_client() as client:
        before = await counts(client)
        for name in ("pinged", "settled", "pinged"):
            await client.put_records(name, ENTRIES)
        await client.put_records("orders", [(bytes(200_000), "k")])
        after = await counts(client)
        assert (after["pongs"] - before["pongs"], after["sessions"] - before["sessions"]) == (2, 0)


async def test_refusals(make_client):
    async with make_client() as client:
        with pytest.raises(TransportError) as caught:
            await client.put_records("refused", ENTRIES)
        assert (caught.value.code, caught.value.maybe_received) == ("RequestRefused", False)
        with pytest.raises(TransportError, match="INTERNAL_ERROR") as caught:
            await client.put_records("broken", ENTRIES)
        assert (caught.value.code, caught.value.maybe_received) == ("ConnectionReset", True)
        await client.put_records("orders", ENTRIES)


async def test_a_server_that_leaves_lets_subscriptions_go_on(make_client):
    async with make_client() as client:
        before = await counts(client)
        async with client.subscribe_to_shard(CONSUMER, "shardId-0", "LATEST") as subscription:
            assert (await anext(subscription)).continuation_sequence_number == "7"
            await client.put_records("leaving", ENTRIES)
            for _ in range(3):
                await client.put_records("orders", ENTRIES)
                await anext(subscription)
            assert (await counts(client))["sessions"] == before["sessions"] + 1
        assert (await counts(client))["open"] <= 2


async def test_twenty_thousand_events_to_a_reader_that_pauses(make_client):
    async with make_client(http2=False) as client:
        seen = 0
        async for event in client.subscribe_to_shard(CONSUMER, "shardId-bulk", "LATEST"):
            assert event.continuation_sequence_number == "7"
            seen += 1
            if seen in {1, 5_000, 19_000}:
                await anyio.sleep(0.1)
    assert seen == 20_000
