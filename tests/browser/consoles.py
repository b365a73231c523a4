"""Opens a console in a browser, for the tests of its pages."""

import asyncio
import json
from contextlib import asynccontextmanager

from tests.browser.chromium import browsing

from shardline.aio.client import Client
from shardline.cli.groups.group_store import StorePlace
from shardline.cli.invocation import Invocation
from shardline.console.console_command import serving
from shardline.sync import Consumer
from shardline.testing import LocalKinesis

GROUP = "group/0/billing/orders"


def consume(kinesis, store, group):
    """Let a group read all records, and end."""
    where = {"endpoint_url": kinesis.endpoint_url, "region": kinesis.region, "credentials": kinesis.credentials}
    with Consumer("orders", group=group, store=store, until="latest", **where) as consumer:
        return len(list(consumer))


@asynccontextmanager
async def looking(tmp_path, *, shards=2, allow_changes=True, group="billing", flags=(), **how):
    """Yield a tab that shows a console with a group, the server, a client and the address of the console."""
    store = f"sqlite:///{tmp_path}/leases.db"
    with LocalKinesis(stream="orders", shards=shards) as kinesis:
        if shards <= 8:
            await asyncio.to_thread(consume, kinesis, store, group)
        stores = [StorePlace.of(store, Invocation(region=kinesis.region))] if shards <= 8 else []
        settings = {"place": "here", "kinesis": kinesis, "allow_changes": allow_changes, "calls_per_minute": 9000}
        async with (
            kinesis.client() as client,
            Client(endpoint_url=kinesis.endpoint_url, region="us-east-1", credentials=kinesis.credentials) as own,
            serving(own, stores, **settings, **how) as url,
            browsing(*flags) as tab,
        ):
            await tab.open(url)
            await tab.until("document.querySelector('main table')")
            yield tab, kinesis, client, url


async def show(tab, page, expected):
    """Show a page, and wait for a text on it."""
    await tab.run("document.querySelector('main').replaceChildren()")
    await tab.run(f"location.hash === '#/{page}' ? dispatchEvent(new Event('hashchange')) : location.hash = '#/{page}'")
    await tab.until(f"document.querySelector('main').innerText.includes({json.dumps(expected)})")


async def ask(tab, click):
    """Click on something that asks first. Return what the question says."""
    await tab.run(click)
    await tab.until("document.querySelector('dialog').open")
    return await tab.run("document.querySelector('#ask-what').innerText")


async def agree(tab):
    """Say yes, and wait until the change is made."""
    await tab.run(
        "window.said = []; new MutationObserver(() => window.said.push(document.querySelector('#said').textContent))"
        ".observe(document.querySelector('#said'), {childList: true}); document.querySelector('#ask-yes').click()"
    )
    await tab.until("window.said.includes('Done.')")
