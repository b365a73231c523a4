"""A new user finds a hot shard, a slow group and one record by its key: each within a minute and with three clicks.

The user reads the accessibility tree, and clicks on what has a name there.
"""

import asyncio
from contextlib import asynccontextmanager

import pytest
from tests.browser.consoles import Person, consume, looking

from shardline.aio.producer.async_producer import Producer

WITHIN = 60
CLICKS = 3


@asynccontextmanager
async def on_time(tab):
    """Yield a person on the first page, and check how long the block takes and how often it clicks."""
    loop = asyncio.get_running_loop()
    await tab.call("Accessibility.enable")
    person, began = Person(tab), loop.time()
    yield person
    assert loop.time() - began < WITHIN
    assert person.clicks <= CLICKS


async def sell(client, stop):
    """Let many customers buy, and one reseller much more."""
    async with Producer("orders", client=client) as producer:
        while not stop.is_set():
            some = [(f"user-{number}", b"x" * 40) for number in range(20)]
            await producer.put_many([*some, *[("reseller-4", b"x" * 900)] * 160])
            await asyncio.sleep(0.1)


@pytest.mark.timeout(180)
def test_a_new_user_finds_the_hot_shard_and_its_key(tmp_path):
    async def run():
        async with looking(tmp_path, shards=4) as (tab, _, client, _):
            stop = asyncio.Event()
            selling = asyncio.create_task(sell(client, stop))
            await asyncio.sleep(6)  # the sale has begun before the user looks
            async with on_time(tab) as person:
                await person.click("button", "Measure again")
                await person.read("hot: ")
                shard = (await person.read(r"(shard \d+) at \d"))[1]
                await person.click("link", f"^{shard} at")
                assert (await person.read(r"(shard \d+) \(hot\)"))[1] == shard
                await person.read(r"none: \d+\.\d % is the key reseller-4, which one shard must take")
            stop.set()
            await selling

    asyncio.run(run())


@pytest.mark.timeout(180)
def test_a_new_user_finds_a_shard_that_was_hot_before_the_page_was_opened(tmp_path):
    async def run():
        async with looking(tmp_path, shards=4) as (tab, _, client, _):
            stop = asyncio.Event()
            selling = asyncio.create_task(sell(client, stop))
            await asyncio.sleep(7)
            stop.set()
            await selling
            await asyncio.sleep(6)  # the sale is over
            async with on_time(tab) as person:
                await person.click("link", "^orders$")
                await person.read(r"shard \d+ \(was hot\)")
                await person.read(r"none: \d+\.\d % is the key reseller-4, which one shard must take")

    asyncio.run(run())


def test_a_new_user_finds_the_slow_group_and_its_worst_shard(tmp_path):
    store = f"sqlite:///{tmp_path}/leases.db"

    async def run():
        async with looking(tmp_path) as (tab, kinesis, client, _):
            await client.put_record("orders", b"late", key="user-1")
            kinesis.clock.advance(180)
            await asyncio.to_thread(consume, kinesis, store, "audit")  # this group is not behind
            async with on_time(tab) as person:
                await person.click("link", "^Groups$")
                await person.read(r"3 min \(shard \d+\)")
                await tab.until(
                    "document.querySelector('tbody a').textContent === 'billing'"
                )  # the slowest comes first
                await person.click("link", "^billing$")
                await person.read(r"most behind\n?shard \d+, 3 min")

    asyncio.run(run())


def test_a_new_user_finds_one_record_by_its_key(tmp_path):
    async def run():
        async with looking(tmp_path) as (tab, _, client, _):
            for number in range(50):
                await client.put_record("orders", b'{"order": %d}' % number, key=f"user-{number}")
            async with on_time(tab) as person:
                await person.click("link", "^Records$")
                await person.click("textbox", "^key$")
                await person.type("user-33")
                await person.click("button", "^Find$")
                await person.read(r"1 of \d+ records")
                await person.read(r'"order": 33')

    asyncio.run(run())
