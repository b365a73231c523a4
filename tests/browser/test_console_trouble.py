"""The console in trouble, in a real browser: impatient users, programs that end, streams that vanish, and large data."""

import asyncio
import json
import os
import signal
import socket

import pytest
from tests.browser.chromium import browsing
from tests.browser.consoles import GROUP, agree, looking, show
from tests.browser.test_console_fleet import started

SUBMIT = "document.querySelector('main form').requestSubmit();"
CLICK = "[...document.querySelectorAll('main button')].find((each) => each.textContent === '{}').click();"


def test_an_impatient_user_changes_things_once_and_sees_the_last_search(tmp_path):
    async def run():
        async with looking(tmp_path) as (tab, kinesis, client, _):
            await show(tab, "put", "Put a record")
            await tab.run("document.querySelector('[name=key]').value = 'user-1'")
            await tab.run(SUBMIT * 3)  # three clicks before the question is there
            await tab.until("document.querySelector('dialog').open")
            await agree(tab)
            await asyncio.sleep(1)
            assert kinesis.streams["orders"].record_count == 1
            # A question does not stay when its page is left.
            await tab.run(SUBMIT)
            await tab.until("document.querySelector('dialog').open")
            await show(tab, "streams", "rate against")
            assert await tab.run("document.querySelector('dialog').open") is False
            await show(tab, "put", "Put a record")
            await tab.run(f"{SUBMIT} location.hash = '#/groups'")  # left before the question is there
            await tab.until("document.querySelector('main h2')?.textContent === 'Consumer groups'")
            await asyncio.sleep(1)
            assert await tab.run("document.querySelector('dialog').open") is False
            assert kinesis.streams["orders"].record_count == 1
            # The answer to an earlier search, which comes late, does not replace the answer to the last.
            await client.put_record("orders", b"two", key="user-2")
            await show(tab, "records?stream=orders&key=user-2", "1 of")
            await tab.run(
                "window.now = fetch; window.fetch = (address, how) => new Promise((done, fail) => setTimeout(() => "
                "now(address, how).then(done, fail), address.includes('key=user-1') ? 1500 : 0))"
            )
            await tab.run(f"document.querySelector('[name=key]').value = 'user-1'; {SUBMIT}")
            await tab.run(f"document.querySelector('[name=key]').value = 'user-2'; {SUBMIT}")
            await asyncio.sleep(3)
            assert await tab.run("document.querySelector('.records summary b').textContent") == "user-2"
            # A proxy, or another program on the port, may answer with a page.
            await tab.run("fetch = () => Promise.resolve(new Response('<h1>Bad gateway</h1>', {status: 502}))")
            await tab.run(SUBMIT)
            await tab.until("document.querySelector('[role=alert]')?.textContent.includes('with the status 502')")
            assert tab.problems == []

    asyncio.run(run())


def test_a_search_is_read_on_by_keyboard(tmp_path):
    async def run():
        async with looking(tmp_path) as (tab, _, client, _):
            for number in range(150):
                await client.put_record("orders", b"x", key=f"user-{number}")
            await show(tab, "records?stream=orders", "Find")
            await tab.run("document.querySelector('button[value=find]').click()")
            await tab.until("document.querySelectorAll('.records li').length === 100")
            more = "[...document.querySelectorAll('main button')].at(-1)"
            assert await tab.run(f"{more}.textContent") == "Read on"
            await tab.run(f"{more}.focus()")
            await tab.press("Enter")
            await tab.until("document.querySelectorAll('.records li').length === 150")
            shown = await tab.run("document.querySelector('main [role=status]').textContent")
            assert shown == "150 of 150 records that were read from shard 0, 1, up to the newest record."
            assert await tab.run(f"{more}.hidden") is True

    asyncio.run(run())


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


@pytest.mark.timeout(240)
def test_a_page_says_that_the_console_is_lost_and_continues_when_it_is_back():
    port = str(free_port())
    command = ("local", "--port", "0", "--stream", "orders", "--console", "--console-port", port)
    lost = "document.querySelector('.lost')?.checkVisibility()"

    async def run():
        async with browsing() as tab:
            async with started(*command) as (process, _, url):
                await tab.open(url)
                await tab.until("document.querySelector('main table')")
                await show(tab, "stream/orders", "were sampled before")
                os.kill(process.pid, signal.SIGSTOP)  # it neither answers nor closes its connections
                await tab.until(lost)
                assert "The console does not answer" in await tab.run("document.querySelector('.lost').textContent")
                os.kill(process.pid, signal.SIGCONT)
                await tab.until("!document.querySelector('.lost')")
            await tab.until(lost)
            await tab.run("location.hash = '#/streams'")  # a page that cannot be shown now
            await tab.until("document.querySelector('main > .error')?.textContent.includes('does not answer')")
            async with tab.another("about:blank") as live:
                async with started(*command) as (_, _, url):
                    await tab.until("document.body.textContent.includes('does not have the token')")
                    await live.open(url)
                    await live.until("document.querySelector('main table')")
                    await tab.until("document.querySelector('main table')?.innerText.includes('orders')")
                    await tab.until("!document.querySelector('.lost')")
                    await show(live, "stream/orders", "were sampled before")
                await live.until(lost)
                async with started(*command) as (_, _, url):  # with another token
                    await live.until("document.querySelector('.lost')?.textContent.includes('the token')")
                    await live.run("window.last = document.querySelector('.lineage').outerHTML")
                    await tab.open(url)
                    await live.until("!document.querySelector('.lost')")
                    await live.until("document.querySelector('.lineage').outerHTML !== window.last")  # its time goes on

    asyncio.run(run())


def test_a_stream_that_is_deleted_and_a_store_that_vanishes_are_named_and_return(tmp_path):
    async def run():
        async with looking(tmp_path) as (tab, kinesis, client, _):
            await show(tab, GROUP, "most behind")
            (tmp_path / "leases.db").rename(tmp_path / "moved.db")
            await tab.until("document.querySelector('main > .error:not([hidden])')")
            (tmp_path / "moved.db").rename(tmp_path / "leases.db")
            await tab.until("!document.querySelector('main > .error:not([hidden])')")
            await show(tab, "stream/orders", "Lineage")
            await tab.until("document.querySelectorAll('.shards li').length === 2")
            await client.delete_stream("orders")
            await tab.until(
                "document.querySelector('main .error')?.textContent.includes('Stream orders under account')"
            )
            await asyncio.to_thread(kinesis.create_stream, "orders", shards=3)
            await tab.until("document.querySelectorAll('.shards li').length === 3")
            await tab.until("!document.querySelector('main .error')")

    asyncio.run(run())


def test_large_and_binary_records_are_shown_and_sent_again(tmp_path):
    """10 MiB is the largest record of Kinesis. As CBOR, it would take seconds to read."""
    packed = b"\xdd" + (30_000).to_bytes(4, "big") + b"\x01" * 30_000
    listed = b"\x9a" + (10_000_000).to_bytes(4, "big") + b"\x01" * 10_000_000

    async def run():
        async with looking(tmp_path) as (tab, kinesis, client, _):
            await client.update_max_record_size("orders", 10_240)
            await client.put_record("orders", listed, key="\x00\x7f\ud7ff\U0010ffff")
            await client.put_record("orders", packed, key="packed")
            await show(tab, "records?stream=orders&key=packed", "The data is cut here: it has 29.3 KiB.")
            await tab.run(CLICK.format("Show all"))
            await tab.until("document.querySelector('.records [aria-pressed=true]').textContent === 'msgpack'")
            assert (await tab.run("document.querySelector('.records pre').textContent")).startswith("[\n  1,\n  1,")
            key = "encodeURIComponent(" + json.dumps("\x00\x7f\ud7ff\U0010ffff") + ")"
            await tab.run(f"location.hash = '#/records?stream=orders&key=' + {key}")
            await tab.until("document.querySelector('.records details')?.open")
            shown = await tab.run("document.querySelector('.records').innerText")
            assert r"\x00\x7f" in shown
            assert "9.54 MiB" in shown
            await tab.run(CLICK.format("Send again …"))
            await tab.until("document.querySelector('dialog').open")
            assert "10,000,005 bytes" in await tab.run("document.querySelector('#ask-what').innerText")
            await agree(tab)
            assert kinesis.streams["orders"].record_count == 3
            assert tab.problems == []

    asyncio.run(run())
