"""Opens a console in a browser, for the tests of its pages."""

import asyncio
import json
import re
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
async def looking(tmp_path, *, shards=2, allow_changes=True, group="billing", flags=(), more_stores=(), **how):
    """Yield a tab that shows a console with a group, the server, a client and the address of the console."""
    store = f"sqlite:///{tmp_path}/leases.db"
    with LocalKinesis(stream="orders", shards=shards) as kinesis:
        if shards <= 8:
            await asyncio.to_thread(consume, kinesis, store, group)
        urls = [store, *more_stores] if shards <= 8 else []
        stores = [StorePlace.of(url, Invocation(region=kinesis.region)) for url in urls]
        settings = {"place": "here", "kinesis": kinesis, "allow_changes": allow_changes, "calls_per_minute": 9000} | how
        async with (
            kinesis.client() as client,
            Client(endpoint_url=kinesis.endpoint_url, region="us-east-1", credentials=kinesis.credentials) as own,
            serving(own, stores, **settings) as url,
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


class Person:
    """A person who sees only what a screen reader sees, and clicks on names. Counts the clicks."""

    def __init__(self, tab):
        self._tab = tab
        self.clicks = 0

    async def _nodes(self):
        nodes = (await self._tab.call("Accessibility.getFullAXTree"))["nodes"]
        return [(node["role"]["value"], node["name"]["value"], node) for node in nodes if "name" in node]

    async def read(self, pattern):
        """Wait until the page has a text, and return the match."""
        for _ in range(600):
            texts = [name for role, name, _ in await self._nodes() if role in {"StaticText", "heading"}]
            if found := re.search(pattern, "\n".join(texts)):
                return found
            await asyncio.sleep(0.1)
        raise AssertionError(f"{pattern} is not on the page: {texts}")

    async def click(self, role, pattern):
        """Click on the first element with a role and a name."""
        for _ in range(300):
            found = [node for kind, name, node in await self._nodes() if kind == role and re.search(pattern, name)]
            if found:
                break
            await asyncio.sleep(0.1)
        else:
            raise AssertionError(f"there is no {role} with the name {pattern}")
        place = {"backendNodeId": found[0]["backendDOMNodeId"]}
        await self._tab.call("DOM.scrollIntoViewIfNeeded", **place)
        x1, y1, _, _, x2, y2, _, _ = (await self._tab.call("DOM.getBoxModel", **place))["model"]["content"]
        at = {"x": (x1 + x2) / 2, "y": (y1 + y2) / 2, "button": "left", "clickCount": 1}
        await self._tab.call("Input.dispatchMouseEvent", type="mousePressed", **at)
        await self._tab.call("Input.dispatchMouseEvent", type="mouseReleased", **at)
        self.clicks += 1

    async def type(self, text):
        await self._tab.call("Input.insertText", text=text)
