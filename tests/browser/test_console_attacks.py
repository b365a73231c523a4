"""Web pages, host names and records attack the console, in a real browser."""

import asyncio
import json
import re
from contextlib import asynccontextmanager

import pytest
from aiohttp import web
from tests.browser.chromium import browsing
from tests.browser.consoles import looking, show

from shardline.aio.producer.async_producer import Producer

EVIL = '<img src=x onerror="window.bad=1"><script>window.bad=1</script>'


@asynccontextmanager
async def foreign_page(html="<!doctype html><title>foreign</title>", visits=None):
    """Serve a page of another origin, and note each visit with its Referer. Yield its address."""

    async def answer(request):
        if visits is not None:
            visits.append((str(request.url), request.headers.get("Referer")))
        return web.Response(text=html, content_type="text/html")

    application = web.Application()
    application.router.add_get("/", answer)
    runner = web.AppRunner(application)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/"
    finally:
        await runner.cleanup()


def test_code_in_records_keys_headers_and_names_does_not_run(tmp_path):
    async def run():
        async with looking(tmp_path, group=EVIL) as (tab, _, client, _):
            async with Producer("orders", client=client) as producer:
                await producer.put(EVIL.encode(), key=EVIL, headers={"note": EVIL})
                await producer.put(json.dumps({EVIL: EVIL}).encode(), key=EVIL)
            key = "encodeURIComponent(" + json.dumps(EVIL) + ")"
            await tab.run(f"location.hash = '#/records?stream=orders&key=' + {key}")
            await tab.until("document.querySelectorAll('.records li').length === 2")
            await tab.run("for (const one of document.querySelectorAll('.records details')) one.open = true")
            for page in ("groups", "streams"):
                await show(tab, page, "onerror")
            await tab.run("document.querySelector('td a[href*=group]').click()")
            await tab.until("document.querySelector('main h2').textContent.includes('onerror')")
            await tab.run("document.querySelector('[name=to]').value = 'LATEST'")
            await tab.run("document.querySelector('main form').requestSubmit()")
            await tab.until("document.querySelector('dialog').open")
            await tab.press("Escape")
            await tab.run("location.hash = '#/stream/orders'")
            await tab.until("document.querySelectorAll('.shards li').length === 2")
            async with Producer("orders", client=client) as producer:
                await producer.put(b"x", key=EVIL)
            await tab.until("document.querySelector('.shards').innerText.includes('onerror')")
            assert await tab.run("window.bad ?? null") is None
            assert await tab.run("document.querySelectorAll('img, main script').length") == 0
            assert tab.problems == []

    asyncio.run(run())


def test_characters_that_hide_or_turn_text_are_shown_as_escapes(tmp_path):
    """Otherwise, a key could look like another key, and change the order of the texts after it."""
    key, data = "user-\u202e7\u200b", "pay \u202e001\u202c\x1b[2J"

    async def run():
        async with looking(tmp_path) as (tab, _, client, _):
            async with Producer("orders", client=client) as producer:
                await producer.put(data.encode(), key=key, headers={"note": key})
            await tab.run(f"location.hash = '#/records?stream=orders&key=' + encodeURIComponent({json.dumps(key)})")
            await tab.until("document.querySelector('.records details')?.open")
            shown = await tab.run("document.querySelector('.records').innerText")
            assert shown.count(r"user-\u202e7\u200b") == 2  # the key and the header
            assert shown.count(r"pay \u202e001\u202c\x1b[2J") == 2  # the summary and the data
            page = await tab.run("document.body.innerText + document.title")
            assert not re.search("[\u202e\u200b\u202c\x1b]", page)
            link = await tab.run("document.querySelector('.views a').getAttribute('href')")
            assert "sub=0" in link

    asyncio.run(run())


def test_the_policy_blocks_inline_code_styles_and_other_hosts(tmp_path):
    async def run():
        async with looking(tmp_path) as (tab, _, _, _):
            await tab.run(
                "document.body.append(Object.assign(document.createElement('script'), {text: 'window.bad = 1'}));"
                "document.body.insertAdjacentHTML('beforeend', '<p id=styled style=\"color: red\" onclick=\"window.bad = 1\">x</p>');"
                "document.querySelector('#styled').click()"
            )
            assert await tab.run("window.bad ?? null") is None
            assert await tab.run("getComputedStyle(document.querySelector('#styled')).color !== 'rgb(255, 0, 0)'")
            async with foreign_page() as other:
                blocked = f"fetch('{other}', {{mode: 'no-cors'}}).then(() => 'sent', () => 'blocked')"
                assert await tab.run(blocked) == "blocked"
                image = f"new Promise((done) => {{ const image = new Image(); image.onload = image.onerror = () => done(0); image.src = '{other}x.png' }})"
                await tab.run(image)
            assert any("Content Security Policy" in problem for problem in tab.problems)

    asyncio.run(run())


def test_a_page_of_another_origin_reads_and_changes_nothing_even_with_the_token(tmp_path):
    async def run():
        async with looking(tmp_path) as (tab, kinesis, _, url), foreign_page() as other:
            base, _, token = url.partition("/#token=")
            kinesis.requests.clear()
            await tab.open(other)
            await tab.until("document.title === 'foreign'")
            body = json.dumps(json.dumps({"stream": "orders", "key": "k", "data": "x"}))
            with_token = f"headers: {{Authorization: 'Bearer {token}', 'Content-Type': 'application/json'}}"
            attacks = [
                f"fetch('{base}/api/streams', {{mode: 'no-cors'}}).then((one) => one.type + one.status)",
                f"fetch('{base}/api/streams', {{{with_token}}}).then((one) => one.status)",
                f"fetch('{base}/api/put', {{method: 'POST', {with_token}, body: {body}}}).then((one) => one.status)",
                f"fetch('{base}/api/put', {{method: 'POST', mode: 'no-cors', body: {body}}}).then((one) => one.type)",
            ]
            for attack in attacks:
                found = await tab.run(f"({attack}).catch(() => 'blocked')")
                assert found in ("blocked", "opaque0"), attack
            # A frame of the console stays empty, so that no user is tricked into clicking in it.
            await tab.run(f"document.body.append(Object.assign(document.createElement('iframe'), {{src: '{url}'}}))")
            await asyncio.sleep(1)
            assert any("frame-ancestors" in problem for problem in tab.problems)
            assert kinesis.streams["orders"].record_count == 0
            assert [one.operation for one in kinesis.requests if one.operation == "PutRecords"] == []

    asyncio.run(run())


# Each attack resolves to what the foreign page found out. TOKEN and BASE are replaced.
FOREIGN = {
    "events": "new Promise((done) => { const events = new EventSource('BASE/api/live/stream?stream=orders');"
    " events.onmessage = (event) => done(event.data); events.onerror = () => { events.close(); done('blocked'); }; })",
    "socket": "new Promise((done) => { const socket = new WebSocket('BASE/api/live/stream?stream=orders'.replace('http', 'ws'));"
    " socket.onmessage = socket.onopen = () => done('open'); socket.onerror = () => done('blocked'); })",
    "script": "new Promise((done) => { const script = Object.assign(document.createElement('script'), {src: 'BASE/app.js', type: 'module'});"
    " script.onload = () => done('loaded'); script.onerror = () => done('blocked'); document.head.append(script); })",
    "style": "new Promise((done) => { const sheet = Object.assign(document.createElement('link'), {href: 'BASE/style.css', rel: 'stylesheet'});"
    " sheet.onload = () => done('loaded'); sheet.onerror = () => done('blocked'); document.head.append(sheet); })",
    "beacon": 'new Promise((done) => { navigator.sendBeacon(\'BASE/api/put\', \'{"stream": "orders", "key": "k", "data": "x"}\');'
    " setTimeout(() => done('blocked'), 300); })",
    "form": "new Promise((done) => { document.body.insertAdjacentHTML('beforeend', `<iframe name=hole></iframe><form method=post"
    ' enctype=text/plain target=hole action=\'BASE/api/put\'><input name=\'{"stream": "orders", "data": "\' value=\'"}\'></form>`);'
    " document.forms[0].submit(); setTimeout(() => done('blocked'), 500); })",
    # A sandboxed frame has the origin null.
    "null origin": "new Promise((done) => { onmessage = (event) => done(event.data);"
    " document.body.append(Object.assign(document.createElement('iframe'), {sandbox: 'allow-scripts', srcdoc: `<script>"
    "fetch('BASE/api/streams', {headers: {Authorization: 'Bearer TOKEN'}}).then((one) => one.text())"
    ".then((text) => parent.postMessage(text, '*'), () => parent.postMessage('blocked', '*'))</` + `script>`})); })",
    "window": "new Promise((done) => { const other = open('BASE/#token=TOKEN');"
    " setTimeout(() => { try { done(other.closed ? 'blocked' : String(other.document.title)); } catch { done('blocked'); } }, 1500); })",
}


def test_no_other_way_from_a_foreign_page_reads_or_changes_anything(tmp_path):
    """Events, sockets, scripts, forms, beacons, frames without an origin, and windows: with the token where they can."""

    async def run():
        async with looking(tmp_path) as (tab, kinesis, _, url), foreign_page() as other:
            base, _, token = url.partition("/#token=")
            await tab.open(other)
            await tab.until("document.title === 'foreign'")
            await tab.run("localStorage.clear()")
            kinesis.requests.clear()
            for name, attack in FOREIGN.items():
                if name == "window":
                    assert [request.operation for request in kinesis.requests] == []
                script = attack.replace("BASE", base).replace("TOKEN", token)
                assert await tab.run(f"({script}).catch(() => 'blocked')") == "blocked", name
            assert kinesis.streams["orders"].record_count == 0

    asyncio.run(run())


def test_a_link_out_of_the_console_carries_neither_its_address_nor_its_token(tmp_path):
    visits = []

    async def run():
        async with looking(tmp_path) as (tab, _, _, _), foreign_page(visits=visits) as other:
            await tab.run(f"location.href = '{other}?from=console'")
            await tab.until("document.title === 'foreign'")
            assert (f"{other}?from=console", None) in visits

    asyncio.run(run())


def test_headers_cannot_pass_for_facts_about_the_record(tmp_path):
    """A header may be named "sequence": the page must still show the real sequence number."""

    async def run():
        async with looking(tmp_path) as (tab, _, client, _):
            async with Producer("orders", client=client) as producer:
                await (await producer.put(b"x", key="k", headers={"sequence": "forged", "stream": "forged"}))
            await show(tab, "records?stream=orders&key=k", "1 of 1 record")
            await tab.until("document.querySelector('.records [aria-label=Headers]')")
            own, headers = await tab.run(
                "[...document.querySelectorAll('.records .facts')].map((each) => each.innerText)"
            )
            assert "forged" not in own
            assert re.search(r"sequence\s+[0-9]{50,}", own)
            assert headers.count("forged") == 2

    asyncio.run(run())


def test_a_name_that_an_attacker_points_at_loopback_gets_nothing(tmp_path):
    """DNS rebinding: for the browser, the attacker's page and the console are then one origin."""

    async def run():
        flags = ("--host-resolver-rules=MAP evil.example 127.0.0.1",)
        async with looking(tmp_path, flags=flags) as (tab, _, _, url):
            base, _, token = url.partition("/#token=")
            await tab.open(f"{base.replace('127.0.0.1', 'evil.example')}/#token={token}")
            await tab.until("location.hostname === 'evil.example' && document.body.innerText.includes('not allowed')")
            headers = f"{{headers: {{Authorization: 'Bearer {token}'}}}}"
            found = await tab.run(f"fetch('/api/streams', {headers}).then((one) => one.status)")
            assert found == 403

    asyncio.run(run())


@pytest.mark.parametrize(("host", "is_served"), [({}, False), ({"host": "0.0.0.0"}, True)])
def test_only_loopback_is_served_unless_another_address_is_named(tmp_path, host, is_served):
    """127.0.0.2 is another address of the machine: a server for all addresses answers there."""

    async def run():
        async with looking(tmp_path, **host) as (tab, _, _, url):
            port = url.rpartition(":")[2].partition("/")[0]
            answer = await tab.call("Page.navigate", url=f"http://127.0.0.2:{port}/")
            assert answer.get("errorText") == (None if is_served else "net::ERR_CONNECTION_REFUSED")

    asyncio.run(run())


def test_the_budget_of_calls_is_kept_and_shown(tmp_path):
    async def run():
        async with looking(tmp_path, shards=8, calls_per_minute=40) as (tab, kinesis, _, _):
            kinesis.requests.clear()  # those of the consumer before
            await show(tab, "stream/orders", "Lineage")
            await tab.until("/ of 40 calls.min, [0-9]+ waiting/.test(document.querySelector('#status').textContent)")
            for _ in range(5):
                await asyncio.sleep(1)
                sent = await tab.run("Number(document.querySelector('#status').textContent.match(/([0-9]+) of 40/)[1])")
                assert 10 <= sent <= 40
            assert 0 < len(kinesis.requests) <= 40
            await tab.run("document.querySelector('#status').click()")
            shown = await tab.run("document.querySelector('#operations').innerText")
            assert {"GetRecords", "GetShardIterator", "ListShards"} <= set(re.findall(r"\w+(?=:)", shown))

    asyncio.run(run())


def test_without_the_right_token_nothing_is_shown(tmp_path):
    async def run():
        async with looking(tmp_path) as (_, _, _, url):
            base = url.partition("#")[0]
            for address in (base, f"{base}#token=wrong-token-of-24-bytes-xxxxxxxx"):
                async with browsing() as stranger:
                    await stranger.open(address)
                    await stranger.until(
                        "document.querySelector('[role=alert]')?.innerText.includes('the address that the command printed')"
                    )
                    assert "orders" not in await stranger.run("document.body.innerText")

    asyncio.run(run())


def test_a_link_works_in_a_new_tab_and_the_token_is_sent_to_no_other_port(tmp_path):
    async def run():
        async with looking(tmp_path) as (tab, _, client, url), foreign_page() as other:
            base, _, token = url.partition("#token=")
            await client.put_record("orders", b"seven", key="user-7")
            link = f"{base}#/records?stream=orders&key=user-7"
            async with tab.another(link) as second:
                await second.until("document.querySelector('.records').innerText.includes('seven')")
                assert token not in await second.run("location.href + document.documentElement.outerHTML")
            # The port of another person on the same machine: browsers send it the cookies of the console's port.
            await tab.open(other)
            await tab.until("document.title === 'foreign'")
            assert await tab.run("localStorage.length") == 0
            assert (await tab.call("Network.getCookies", urls=[base, other]))["cookies"] == []

    asyncio.run(run())


def test_a_wrong_token_does_not_lock_the_other_tabs_out(tmp_path):
    """Any page can open the console with a wrong token."""

    async def run():
        async with looking(tmp_path) as (tab, _, _, url):
            base = url.partition("#")[0]
            async with tab.another(f"{base}#token=wrong-token-of-24-bytes-xxxxxxxx") as second:
                await second.until("location.hash === '#/streams' && document.querySelector('main table')")
            await show(tab, "streams", "orders")

    asyncio.run(run())


def test_the_address_of_a_new_start_works_in_an_old_tab(tmp_path):
    """Only the fragment of the address changes, so the browser does not load the page again."""

    async def run():
        async with looking(tmp_path) as (tab, _, _, url):
            token = url.partition("#token=")[2]
            await tab.run("localStorage.setItem('token', 'the-token-of-the-previous-start')")
            await tab.run("location.hash = '#/groups'")
            await tab.until(
                "document.querySelector('[role=alert]')?.innerText.includes('the address that the command')"
            )
            await tab.run(f"window.kept = 1; location.hash = '#token={token}'")
            await tab.until("document.querySelector('main table')?.innerText.includes('orders')")
            assert await tab.run("[window.kept, location.hash]") == [1, "#/streams"]

    asyncio.run(run())
