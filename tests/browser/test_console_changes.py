"""Changes through the console, in a real browser: each asks first, says what will happen, and happens only then."""

import asyncio

from tests.browser.consoles import GROUP, agree, ask, consume, looking, show

BUTTON = "[...document.querySelectorAll('main button')].find((one) => one.textContent.startsWith('{}')).click()"
SUBMIT = "document.querySelector('main form').requestSubmit()"


def test_a_record_is_put_and_sent_again(tmp_path):
    async def run():
        async with looking(tmp_path) as (tab, kinesis, _, _):
            await show(tab, "put", "Put a record")
            await tab.run("document.querySelector('[name=key]').value = 'user-9'")
            await tab.run("document.querySelector('[name=data]').value = '{\"order\": 9}'")
            await tab.run("document.querySelector('[name=headers]').value = 'trace: t9'")
            assert "12 bytes with the key 'user-9' into orders" in await ask(tab, SUBMIT)
            assert await tab.run("document.activeElement.id") == "ask-no"  # Enter must not change anything
            await tab.press("Escape")
            await tab.until("!document.querySelector('dialog').open")
            assert kinesis.streams["orders"].record_count == 0
            await ask(tab, SUBMIT)
            await agree(tab)
            assert kinesis.streams["orders"].record_count == 1
            await tab.run("document.querySelector('main [role=status] a').click()")  # the link to the new record
            await tab.until("document.querySelector('.records details')?.open")
            assert "t9" in await tab.run("document.querySelector('.records').innerText")
            assert "Readers will get it twice" in await ask(tab, BUTTON.format("Send again"))
            assert kinesis.streams["orders"].record_count == 1
            await agree(tab)
            await show(tab, "records?stream=orders&key=user-9&header=trace%3Dt9", "2 of 2 records")

    asyncio.run(run())


def test_a_reshard_asks_first_and_is_seen_live(tmp_path):
    async def run():
        async with looking(tmp_path) as (tab, kinesis, client, _):
            await show(tab, "stream/orders", "Lineage")
            await tab.until("document.querySelectorAll('.shards li').length === 2")
            await tab.run("document.querySelector('[name=shard]').value = '0'")
            text = await ask(tab, "document.querySelector('button[value=split]').click()")
            assert "shardId-000000000000 (50.00%)" in text
            assert all(f"new shard {number}" in text for number in (1, 2))
            assert str(2**126) in text  # the first hash key of the upper half
            assert len(kinesis.streams["orders"].shards) == 2
            await agree(tab)
            await tab.until("document.querySelectorAll('.shards li').length === 3")
            await client.split_shard("orders", "shardId-000000000001")  # outside the console
            await tab.until("document.querySelectorAll('.shards li').length === 4")
            await tab.until("document.querySelectorAll('.lineage rect[data-shard]').length === 6")
            await tab.run("document.querySelector('[name=count]').value = '2'")
            assert "4 -> 2 shards" in await ask(tab, "document.querySelector('button[value=count]').click()")
            await agree(tab)
            await tab.until("document.querySelectorAll('.shards li').length === 2")

    asyncio.run(run())


def test_a_group_is_reset_after_it_showed_what_is_replayed(tmp_path):
    store = f"sqlite:///{tmp_path}/leases.db"

    async def run():
        async with looking(tmp_path) as (tab, kinesis, client, _):
            await client.put_record("orders", b"one", key="user-1")
            assert await asyncio.to_thread(consume, kinesis, store, "billing") == 1
            await show(tab, GROUP, "Reset")
            await tab.run("document.querySelector('[name=to]').value = 'TRIM_HORIZON'")
            text = await ask(tab, SUBMIT)
            assert "moves to TRIM_HORIZON" in text
            assert "replay" in text
            await tab.press("Escape")
            assert await asyncio.to_thread(consume, kinesis, store, "billing") == 0
            await ask(tab, SUBMIT)
            await agree(tab)
            assert await asyncio.to_thread(consume, kinesis, store, "billing") == 1

    asyncio.run(run())


def test_faults_and_the_clock_of_the_embedded_server(tmp_path):
    async def run():
        async with looking(tmp_path) as (tab, kinesis, _, _):
            await show(tab, "server", "Advance 1 hour")
            text = await ask(tab, BUTTON.format("Add"))
            assert "injects the fault 'throttle', 3 times" in text
            assert kinesis.faults.rules == []
            await agree(tab)
            await tab.until("document.querySelector('main table')")
            assert [fault.rule.kind for fault in kinesis.faults.rules] == ["throttle"]
            assert "remove 1 fault" in await ask(tab, BUTTON.format("Remove …"))
            await agree(tab)
            assert kinesis.faults.rules == []
            await tab.run("document.querySelector('[name=fault]').value = '{\"kind\": \"nonsense\"}'")
            await tab.run(BUTTON.format("Add"))
            await tab.until("document.querySelector('[role=alert]')?.innerText.includes('nonsense')")
            await tab.run("document.querySelector('[name=fault]').value = '{kind: 1'")
            await tab.run(BUTTON.format("Add"))
            await tab.until("document.querySelector('[role=alert]')?.innerText.includes('The fault is not JSON')")
            assert "the clock stops" in await ask(tab, BUTTON.format("Freeze"))
            await agree(tab)
            assert kinesis.clock.is_frozen
            before = kinesis.clock.now()
            assert "cannot go back" in await ask(tab, BUTTON.format("Advance 1 hour"))
            await agree(tab)
            assert kinesis.clock.now() == before + 3600
            await ask(tab, BUTTON.format("Resume"))
            await agree(tab)
            assert not kinesis.clock.is_frozen

    asyncio.run(run())


def test_a_read_only_console_offers_no_change(tmp_path):
    async def run():
        async with looking(tmp_path, allow_changes=False) as (tab, kinesis, client, _):
            await client.put_record("orders", b"one", key="user-1")
            clicks = {
                "put": SUBMIT,
                "records?stream=orders&key=user-1": BUTTON.format("Send again"),
                "stream/orders": "document.querySelector('[name=shard]').value = '0'; "
                "document.querySelector('button[value=split]').click()",
                GROUP: f"document.querySelector('[name=to]').value = 'LATEST'; {SUBMIT}",
                "server": BUTTON.format("Freeze"),
            }
            for page, click in clicks.items():
                await show(tab, page, "a" if "records" not in page else "1 of 1")
                await tab.until("document.querySelector('main button')")
                assert "read-only" in await ask(tab, click), page
                assert await tab.run("document.querySelector('#ask-yes').disabled") is True
                await tab.press("Escape")
                await tab.until("!document.querySelector('dialog').open")
            assert kinesis.streams["orders"].record_count == 1
            assert len(kinesis.streams["orders"].shards) == 2
            assert not kinesis.clock.is_frozen

    asyncio.run(run())
