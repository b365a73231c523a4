"""The console beside ``shardline local`` and on a demo fleet, in a real browser."""

import asyncio
import re
import signal
import subprocess
import sys
from contextlib import asynccontextmanager

import pytest
from tests.browser.chromium import browsing
from tests.browser.consoles import agree, ask, show


@asynccontextmanager
async def started(*arguments):
    """Start a command that serves a console. Yield the process, its lines so far and the address of the console."""
    command = [sys.executable, "-u", "-m", "shardline", *arguments]
    process = await asyncio.to_thread(
        subprocess.Popen, command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    lines = []

    async def read():
        while line := await asyncio.to_thread(process.stdout.readline):
            lines.append(line)

    reading = asyncio.create_task(read())
    try:
        yield process, lines, (await until_line(lines, r"http://\S+/#token=\S+"))[0]
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
        await asyncio.to_thread(process.wait, 60)
        await reading
        process.stdout.close()


async def until_line(lines, pattern):
    """Wait until a line matches, and return the match."""
    for _ in range(900):
        if found := re.search(pattern, "".join(lines)):
            return found
        await asyncio.sleep(0.1)
    raise AssertionError(f"no line has {pattern}: {lines}")


def test_the_console_beside_a_local_server_shows_and_changes_it():
    async def run():
        arguments = (
            "local",
            "--port",
            "0",
            "--stream",
            "orders",
            "--console",
            "--console-port",
            "0",
            "--allow-changes",
        )
        async with started(*arguments) as (process, lines, url), browsing() as tab:
            await tab.open(url)
            await tab.until("document.querySelector('main table')?.innerText.includes('orders')")
            await show(tab, "put?stream=orders", "Put a record")
            await tab.run("document.querySelector('[name=data]').value = 'by hand'")
            assert "7 bytes without a key into orders" in await ask(
                tab, "document.querySelector('main form').requestSubmit()"
            )
            await agree(tab)
            await show(tab, "server", "Advance 1 hour")
            assert tab.problems == []
        assert process.returncode == 0
        assert lines[-1] == "stopped\n"

    asyncio.run(run())


@pytest.mark.timeout(180)
def test_a_demo_fleet_shows_its_hot_shard_its_reshard_its_lag_and_its_hand_over():
    async def run():
        async with started("demo", "--console", "--seconds", "40") as (process, lines, url), browsing() as tab:
            await tab.open(url)
            await tab.until("document.querySelector('main table')?.innerText.includes('orders')")
            await show(tab, "stream/orders", "Lineage")
            await tab.until("document.querySelectorAll('.shards li').length === 3")
            # The flash sale: the shard with the highest load names its keys. On a busy machine, it does not throttle.
            await tab.until("/^shard 1\\b[^\\n]*reseller/.test(document.querySelector('tbody').innerText)")
            await tab.until("document.querySelectorAll('.shards li').length === 4")  # the split, live
            await show(tab, "group/0/billing/orders", "Hand-overs")
            await tab.until("document.querySelector('.events').innerText.includes('B → A')")  # after kill -9
            await tab.until("/[0-9.]+ s\\s+[0-9.]+ s/.test(document.querySelector('tbody').innerText)")  # both lags
            await until_line(lines, "the console stays open: Ctrl-C ends it")
            assert tab.problems == []
        assert process.returncode == 0, lines
        assert "lost 0" in "".join(lines)

    asyncio.run(run())
