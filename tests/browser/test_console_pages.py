"""The console in a real browser (``make test-browser``): each page, changes, attacks, and 1,000 shards."""

import asyncio
import json
from contextlib import asynccontextmanager

import pytest
from tests.browser.chromium import browsing

from shardline.aio.client import Client
from shardline.aio.producer.async_producer import Producer
from shardline.console.console_command import serving
from shardline.testing import LocalKinesis


@asynccontextmanager
async def looking(*, shards=2, allow_changes=True):
    """Yield a tab that shows a console, the server, a client and the address of the console."""
    with LocalKinesis(stream="orders", shards=shards) as kinesis:
        async with (
            Client(endpoint_url=kinesis.endpoint_url, region="us-east-1", credentials=kinesis.credentials) as client,
            serving(
                client, [], place="here", kinesis=kinesis, allow_changes=allow_changes, calls_per_minute=9000
            ) as url,
            browsing() as tab,
        ):
            await tab.open(url)
            await tab.until("document.querySelector('main table')")
            yield tab, kinesis, client, url


def test_the_pages_work_without_a_foreign_request_and_keep_no_secret():
    async def run():
        async with looking() as (tab, _, client, url):
            await client.put_record("orders", b'{"order": 7}', key="user-7")
            assert await tab.run("location.href") == url.partition("#")[0] + "#/streams"
            for page, expected in {
                "stream/orders": "Lineage",
                "groups": "--store URL",
                "put": "Put a record",
                "server": "Advance 1 hour",
                "records?stream=orders&key=user-7": "1 of 1 records",
            }.items():
                await tab.run(f"location.hash = '#/{page}'")
                await tab.until(f"document.querySelector('main').innerText.includes({json.dumps(expected)})")
            assert await tab.run("document.querySelector('details pre').textContent") == '{\n  "order": 7\n}'
            base = url.partition("#")[0]
            assert [one for one in tab.requests if not one.startswith((base, "data:"))] == []
            assert tab.problems == []

    asyncio.run(run())


def test_a_change_asks_first_and_a_reshard_is_seen_live():
    async def run():
        async with looking() as (tab, kinesis, client, _):
            await tab.run("location.hash = '#/stream/orders'")
            await tab.until("document.querySelectorAll('.shards li').length === 2")
            await tab.run("document.querySelector('[name=shard]').value = '0'")
            await tab.run("document.querySelector('button[value=split]').click()")
            await tab.until("document.querySelector('dialog').open")
            assert "shardId-000000000000 (50.00%)" in await tab.run("document.querySelector('dialog').innerText")
            assert len(kinesis.streams["orders"].shards) == 2
            await tab.run("document.querySelector('#ask-yes').click()")
            await tab.until("document.querySelectorAll('.shards li').length === 3")
            await client.split_shard("orders", "shardId-000000000001")  # outside the console
            await tab.until("document.querySelectorAll('.shards li').length === 4")

    asyncio.run(run())


def test_a_read_only_console_offers_no_change():
    async def run():
        async with looking(allow_changes=False) as (tab, _, _, _):
            await tab.run("location.hash = '#/put'")
            await tab.until("document.querySelector('textarea')")
            await tab.run("document.querySelector('main form').requestSubmit()")
            await tab.until("document.querySelector('dialog').open")
            assert await tab.run("document.querySelector('#ask-yes').disabled") is True

    asyncio.run(run())


def test_inline_code_frames_and_other_origins_are_refused():
    async def run():
        async with looking() as (tab, _, _, url):
            await tab.run(
                "document.body.append(Object.assign(document.createElement('script'), {text: 'window.bad = 1'}))"
            )
            assert await tab.run("window.bad ?? null") is None
            assert await tab.run("fetch('http://127.0.0.1:9/').then(() => 'sent', () => 'blocked')") == "blocked"
            base = url.partition("/#")[0]
            await tab.open(base.replace("127.0.0.1", "localhost") + "/style.css")  # another origin
            await tab.until("location.hostname === 'localhost'")
            attack = f"fetch('{base}/api/streams', {{mode: 'no-cors'}}).then((one) => one.status, () => 'blocked')"
            assert await tab.run(attack) == "blocked"

    asyncio.run(run())


def test_the_lineage_of_a_thousand_shards_is_drawn_within_a_second():
    async def run():
        async with looking(shards=1000) as (tab, _, _, _):
            await tab.run("performance.mark('go'); location.hash = '#/stream/orders'")
            await tab.until("document.querySelectorAll('.shards li').length === 1000")
            took = await tab.run(
                "(async () => { const { drawLineage } = await import('/charts.js');"
                " const shards = [...Array(1000).keys()].map((at) => ({ shard_id: `shardId-${String(at).padStart(12, '0')}`,"
                " parents: [], children: [], state: 'open', share: 0.001, starting_sequence_number: String(at),"
                " starting_hash_key: String(BigInt(at) * (2n ** 128n) / 1000n) }));"
                " const began = performance.now(); document.body.append(drawLineage(shards)); document.body.offsetHeight;"
                " return performance.now() - began; })()"
            )
            assert took < 1000

    asyncio.run(run())


@pytest.mark.timeout(180)
def test_a_fast_tail_is_sampled_says_so_and_leaves_the_page_responsive():
    async def run():
        async with looking(shards=8) as (tab, _, client, _):
            await tab.run("location.hash = '#/records?stream=orders'")
            await tab.until("document.querySelector('button[value=follow]')")
            await tab.run("document.querySelector('button[value=follow]').click()")
            await asyncio.sleep(2)
            async with Producer("orders", client=client) as producer:
                for _ in range(5):
                    await producer.put_many([(f"user-{number}", b"x" * 50) for number in range(5000)])
                    await asyncio.sleep(1)
            await tab.until("document.querySelector('main').innerText.includes('A sample:')")
            delay = await tab.run(
                "new Promise((done) => { const began = performance.now(); setTimeout(() => done(performance.now() - began)) })"
            )
            assert delay < 500
            assert await tab.run("document.querySelectorAll('.records li').length") <= 300

    asyncio.run(run())
