"""The console in a real browser (``make test-browser``): each page, for the eye, the keyboard and the screen reader.

``test_console_changes`` makes changes, ``test_console_attacks`` attacks, and ``test_console_fleet`` looks at a demo.
"""

import asyncio
import sys
import time
from contextlib import asynccontextmanager

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from tests.browser.consoles import GROUP, looking, show

from shardline import Credentials
from shardline.adapters.aws.aws_service import AwsSettings
from shardline.aio.producer.async_producer import Producer
from shardline.console.stream_watch import StreamWatch

PAGES = {
    "streams": "rate against the limit",
    "stream/orders": "Lineage",
    "groups": "most behind",
    GROUP: "Hand-overs",
    "put": "Put a record",
    "server": "Advance 1 hour",
    "records?stream=orders&key=user-7": "1 of 1 record that was read",
}


def test_the_pages_work_without_a_foreign_request_and_show_no_secret(tmp_path):
    async def run():
        metrics = ["http://someone:hunter2@127.0.0.1:9/metrics?key=hunter3"]  # nothing answers there
        async with looking(tmp_path, metrics=metrics) as (tab, kinesis, client, url):
            await client.put_record("orders", b'{"order": 7}', key="user-7")
            base, _, token = url.partition("/#token=")
            assert await tab.run("location.href") == f"{base}/#/streams"
            for page, expected in PAGES.items():
                await show(tab, page, expected)
                source = await tab.run("document.documentElement.outerHTML + location.href + document.cookie")
                for secret in (token, kinesis.credentials.secret_key, "Bearer", "hunter"):
                    assert secret not in source, page
            assert await tab.run("document.querySelector('details pre').textContent") == '{\n  "order": 7\n}'
            assert "calls/min" in await tab.run("document.querySelector('#status').textContent")
            await tab.run("document.querySelector('#status').click()")
            await tab.until("document.querySelector('#operations').innerText.includes('GetRecords')")
            assert [one for one in tab.requests if not one.startswith((base, "data:"))] == []
            assert tab.problems == []

    asyncio.run(run())


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_pages_are_readable_on_a_telephone(tmp_path, scheme):
    async def run():
        async with looking(tmp_path) as (tab, _, client, _):
            await client.put_record("orders", b'{"order": 7}', key="user-7")
            await tab.shape(390, 844, scheme)
            for page, expected in PAGES.items():
                await show(tab, page, expected)
                assert await tab.run("document.documentElement.scrollWidth") <= 390, page
                assert await tab.run(CONTRAST) >= 4.5, page

    asyncio.run(run())


# The lowest contrast of a text with its page, by the formula of WCAG 2.
CONTRAST = """(() => {
  const light = (colour) => { const [r, g, b] = colour.match(/[0-9.]+/g).slice(0, 3).map((v) => { v /= 255; return v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; }); return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
  const below = (element) => { for (; element; element = element.parentElement) { const colour = getComputedStyle(element).backgroundColor; if (!/, 0\\)$/.test(colour)) return colour; } return 'rgb(255, 255, 255)'; };
  const texts = [...document.querySelectorAll('main *, header *')].filter((one) => one.checkVisibility() && !one.disabled && !one.closest('svg') && [...one.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim()));
  return Math.min(...texts.map((one) => { const [a, b] = [light(getComputedStyle(one).color), light(below(one))].sort((x, y) => y - x); return (a + 0.05) / (b + 0.05); }));
})()"""


def test_the_pages_work_by_keyboard_and_have_names_for_a_screen_reader(tmp_path):
    async def run():
        async with looking(tmp_path) as (tab, _, client, _):
            await client.put_record("orders", b'{"order": 7}', key="user-7")
            await tab.call("Accessibility.enable")
            for page, expected in PAGES.items():
                await show(tab, page, expected)
                nodes = (await tab.call("Accessibility.getFullAXTree"))["nodes"]
                roles = {"button", "link", "textbox", "combobox", "checkbox", "spinbutton", "img", "image", "region"}
                named = [(node["role"]["value"], node["name"]["value"]) for node in nodes if "name" in node]
                assert [role for role, name in named if role in roles and not name.strip()] == [], page
                assert sum(role == "heading" for role, _ in named) >= 2
            # Tab reaches everything, and then leaves the page or starts again: there is no trap.
            await tab.run("document.querySelector('#skip').focus()")
            reached = []
            for _ in range(40):
                await tab.press("Tab")
                reached.append(await tab.run("document.activeElement.textContent || document.activeElement.name"))
            assert reached[0] == "Streams"
            assert {"Streams", "Groups", "Find", "Follow live", "Send again …"} <= set(reached)
            assert len(set(reached[-20:])) > 5
            # The skip link stays on the page, and Enter on a link opens its page and moves the focus there.
            await tab.run("document.querySelector('#skip').focus()")
            await tab.press("Enter")
            assert await tab.run("[document.activeElement.id, location.hash.slice(0, 9)]") == ["main", "#/records"]
            await tab.run("document.querySelector('nav a').focus()")
            await tab.press("Enter")
            await tab.until("document.querySelector('main h2')?.textContent === 'Streams'")
            assert await tab.run("document.activeElement.id") == "main"

    asyncio.run(run())


def test_a_record_has_its_views_its_link_and_its_filters(tmp_path):
    async def run():
        async with looking(tmp_path) as (tab, _, client, _):
            async with Producer("orders", client=client) as producer:
                await producer.put_many([(f"user-{number}", b"plain") for number in range(3)])
                await producer.put(bytes.fromhex("81a56f7264657207"), key="packed", headers={"trace": "t1"})
                await producer.put(bytes.fromhex("a1656f7264657207"), key="packed", headers={"trace": "t2"})
            views = """(async () => {
              for (const one of document.querySelectorAll('.records details')) one.open = true;
              await new Promise((done) => setTimeout(done, 200)); // the body of a record is made when it is opened
              return [...document.querySelectorAll('.records li')].map((one) => [...one.querySelectorAll('.views [aria-pressed]')].map((each) => each.textContent).join());
            })()"""
            await show(tab, "records?stream=orders&key=packed", "2 of")
            assert await tab.run(views) == ["msgpack,text,hex", "cbor,text,hex"]
            await tab.run(
                "[...document.querySelectorAll('.views button')].find((one) => one.textContent === 'hex').click()"
            )
            assert "81 a5 6f 72 64 65 72 07" in await tab.run("document.querySelector('pre').textContent")
            await show(tab, "records?stream=orders&key=packed&header=trace%3Dt2", "1 of")
            assert await tab.run(views) == ["cbor,text,hex"]
            await tab.run("document.querySelector('.views a').click()")  # the link to this record
            await tab.until("location.hash.includes('sub=') && document.querySelectorAll('.records li').length === 1")
            assert await tab.run(views) == ["cbor,text,hex"]
            await show(tab, "records?stream=orders&key=packed&to=1h", "0 of")

    asyncio.run(run())


def test_a_large_record_is_cut_and_shown_whole_on_demand(tmp_path):
    async def run():
        async with looking(tmp_path) as (tab, _, client, _):
            await client.put_record("orders", b"x" * 9_000 + b" the end", key="large")
            await show(tab, "records?stream=orders&key=large", "The data is cut here: it has 8.8 KiB.")
            data = "document.querySelector('.records pre').textContent"
            assert len(await tab.run(data)) == 4096
            await tab.run(
                "[...document.querySelectorAll('.records button')].find((each) => each.textContent === 'Show all').click()"
            )
            await tab.until(f"{data}.endsWith(' the end')")
            assert "cut" not in await tab.run("document.querySelector('.records').innerText")

    asyncio.run(run())


def test_problems_are_named_and_hide_nothing_else(tmp_path):
    """A store that does not answer, a store that is missing, a stream that is missing, and a console that has ended."""
    broken = "redis://someone:hunter2@127.0.0.1:9/0", f"sqlite:///{tmp_path}/nowhere.db"

    async def run():
        async with looking(tmp_path, more_stores=broken) as (tab, _, client, _):
            await tab.until("document.querySelector('main table').innerText.includes('billing')")
            await tab.until("document.querySelector('main').innerText.includes('groups may be missing')")
            await show(tab, "groups", "127.0.0.1:9/0: the store failed")
            shown = await tab.run("document.querySelector('main').innerText")
            assert "nowhere.db does not exist" in shown
            assert "billing" in shown
            assert "hunter2" not in shown
            await show(tab, "stream/nothing", "Stream nothing under account")
            await show(tab, "nonsense", "There is no page nonsense")
            await client.delete_stream("orders")
            await show(tab, "streams", "There are no streams here")
            await show(tab, "records", "There are no streams here")
            await show(tab, "put", "There are no streams here")
            await tab.run("fetch = () => Promise.reject(new TypeError('Failed to fetch'))")
            await tab.until("document.querySelector('#status').textContent.startsWith('The console does not answer')")

    asyncio.run(run())


HIDE = "Object.defineProperty(document, 'hidden', {{value: {}, configurable: true}}); document.dispatchEvent(new Event('visibilitychange'))"


def test_a_tail_pauses_and_starts_in_the_past(tmp_path):
    async def run():
        async with looking(tmp_path) as (tab, _, client, _):
            await client.put_record("orders", b"early", key="user-1")
            await show(tab, "records?stream=orders&from=TRIM_HORIZON", "Follow live")
            await tab.run("document.querySelector('button[value=follow]').click()")
            await tab.until("document.querySelector('.records').innerText.includes('early')")
            pause = "[...document.querySelectorAll('main button')].find((one) => /Pause|Continue/.test(one.textContent)).click()"
            await tab.run(pause)
            await client.put_record("orders", b"meanwhile", key="user-1")
            await tab.until("document.querySelector('main').innerText.includes('1 record matched meanwhile')")
            assert await tab.run("document.querySelectorAll('.records li').length") == 1
            await tab.run(pause)
            await client.put_record("orders", b"after", key="user-1")
            await tab.until("document.querySelector('.records').innerText.includes('after')")
            # A connection that ends and is opened again does not show the past a second time, and says what it means.
            others = "new BroadcastChannel('shardline-live').postMessage('opened');"
            await tab.run(HIDE.format("true"))
            await tab.run(others * 4)
            await asyncio.sleep(2)
            await tab.run(HIDE.format("false"))
            await asyncio.sleep(2)
            await client.put_record("orders", b"again", key="user-1")
            await tab.until("document.querySelector('.records').innerText.includes('again')")
            assert await tab.run("document.querySelectorAll('.records li').length") == 3
            shown = await tab.run("document.querySelector('main [role=status]').textContent")
            assert "Records may be missing: this page was not connected for a while." in shown

    asyncio.run(run())


def test_a_hidden_tab_lets_go_of_its_connection_when_other_tabs_need_it(tmp_path):
    """A browser has six connections to a host: seven tabs with live pages would otherwise block each other."""

    async def run():
        async with looking(tmp_path) as (tab, kinesis, _, _):
            await show(tab, "stream/orders", "Lineage")
            await tab.until("document.querySelectorAll('.shards li').length === 2")
            others = "new BroadcastChannel('shardline-live').postMessage('opened');"
            await tab.run(others * 9)  # a tab that is shown keeps its connection
            await tab.run(HIDE.format("true"))
            await tab.run(others * 3)
            await asyncio.sleep(3)
            kinesis.requests.clear()
            await asyncio.sleep(3)
            assert "GetRecords" in {request.operation for request in kinesis.requests}
            await tab.run(others)
            await asyncio.sleep(3)
            kinesis.requests.clear()
            await asyncio.sleep(3)
            assert [request.operation for request in kinesis.requests] == []
            await tab.run(HIDE.format("false"))
            await asyncio.sleep(3)
            assert "GetRecords" in {request.operation for request in kinesis.requests}
            assert tab.problems == []

    asyncio.run(run())


def test_a_bug_behind_a_live_page_is_shown_on_it(tmp_path, monkeypatch):
    def fail(*_):
        raise ZeroDivisionError

    monkeypatch.setattr(StreamWatch, "update", fail)

    async def run():
        async with looking(tmp_path) as (tab, _, _, _):
            await show(tab, "stream/orders", "internal error: ZeroDivisionError")
            assert await tab.run("document.querySelector('[role=alert]').innerText.includes('internal error')")

    asyncio.run(run())


def test_the_clock_of_the_embedded_server_goes_on(tmp_path):
    async def run():
        async with looking(tmp_path) as (tab, kinesis, _, _):
            await show(tab, "server", "Advance 1 hour")
            kinesis.clock.advance(7200)
            then = time.strftime("%Y-%m-%dT%H:", time.gmtime(kinesis.clock.now()))
            await tab.until(f"document.querySelector('main').innerText.includes('{then}')")
            kinesis.faults.throttle(operation="PutRecords", count=1)  # by another program
            await tab.until("document.querySelector('main table')")

    asyncio.run(run())


@asynccontextmanager
async def cloudwatch(calls):
    """Serve a CloudWatch that counted throttles a few minutes ago, and note the calls. Yield the settings for it."""

    async def answer(request):
        calls.append((request.headers["X-Amz-Target"], await request.json()))
        minute = calls[-1][1]["EndTime"] - 180
        results = [
            {"Id": "writes", "Label": "w", "Timestamps": [minute, minute - 60], "Values": [7.0, 2.0]},
            {"Id": "reads", "Label": "r", "Timestamps": [minute], "Values": [1.0]},
            {"Id": "shards", "Label": "shardId-000000000003", "Timestamps": [minute], "Values": [9.0]},
        ]
        return web.json_response({"MetricDataResults": results}, content_type="application/x-amz-json-1.0")

    application = web.Application()
    application.router.add_post("/", answer)
    async with TestServer(application) as server:
        url = str(server.make_url("")).rstrip("/")
        yield AwsSettings(region="eu-west-1", endpoint_url=url, credentials=Credentials("id", "secret"))


def test_throttles_on_aws_come_from_cloudwatch_or_are_unknown(tmp_path):
    async def run():
        async with looking(tmp_path, kinesis=None) as (tab, _, _, _):
            await show(tab, "stream/orders", "Unknown: Kinesis does not tell readers what it throttled")
            await tab.until("document.querySelector('#server-link').hidden")
        calls = []
        async with (
            cloudwatch(calls) as settings,
            looking(tmp_path, kinesis=None, cloudwatch=settings) as (tab, _, _, _),
        ):
            await show(tab, "stream/orders", "9 throttled writes and 1 throttled read in 30 minutes")
            shown = await tab.run("document.querySelector('main').innerText")
            assert "Most writes: shard 3 (9)." in shown
            assert "Source: CloudWatch." in shown
            await tab.run("document.querySelector('#status').click()")
            await tab.until("document.querySelector('#operations').innerText.includes('GetMetricData: 1')")
            assert len(calls) == 1

    asyncio.run(run())


# Reports the longest time in which the page did not react, while a promise is pending.
WATCH = """window.watch = (until) => { let [last, worst, over] = [performance.now(), 0, false];
  const tick = () => { const now = performance.now(); worst = Math.max(worst, now - last - 20); last = now; if (!over) setTimeout(tick, 20); };
  setTimeout(tick, 20); return until.then(() => { over = true; return Math.round(worst); }); }"""


# Shows the page of the stream, until everything is drawn.
DRAWING = """(async () => { location.hash = '#/stream/orders';
  while (!document.querySelector('.shards li[aria-setsize="1000"]')) await new Promise((done) => setTimeout(done, 5));
  await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done))); })()"""


# After scrolling: are the cards on the screen those of their places, in order and without a gap?
IN_PLACE = """(async () => {
  scrollTo(0, document.body.scrollHeight / 2);
  await new Promise((done) => setTimeout(done, 300));
  const shown = [...document.querySelectorAll('.shards li')].map((item) => [item.getBoundingClientRect().top, Number(item.getAttribute('aria-posinset')), item.querySelector('a').textContent]);
  const places = shown.map((each) => each[1]);
  const [top, bottom] = [Math.min(...shown.map((each) => each[0])), Math.max(...shown.map((each) => each[0]))];
  return [top <= 0 && bottom + 108 >= innerHeight, places.every((place, at) => place === places[0] + at && shown[at][2] === `shard ${place - 1}`)];
})()"""


async def cpu_time(tab):
    """Return the CPU time of the page's thread in seconds. Unlike the time of day, it does not count other programs."""
    metrics = (await tab.call("Performance.getMetrics"))["metrics"]
    return next(metric["value"] for metric in metrics if metric["name"] == "TaskDuration")


@pytest.mark.timeout(180)
def test_a_thousand_shards_are_drawn_within_a_second_and_stay_smooth(tmp_path):
    async def run():
        async with looking(tmp_path, shards=1000) as (tab, _, client, _):
            await tab.call("Performance.enable", timeDomain="threadTicks")
            times = []
            for _ in range(3):
                await show(tab, "streams", "orders")
                before = await cpu_time(tab)
                await tab.run(DRAWING)
                times.append(await cpu_time(tab) - before)
            assert min(times) < 1.0, times
            assert await tab.run("document.querySelectorAll('.lineage rect[data-shard]').length") == 1000
            assert await tab.run("document.querySelectorAll('.shards li').length") < 100
            async with Producer("orders", client=client) as producer:
                await producer.put_many([(f"user-{number}", b"x" * 50) for number in range(5000)])
            await tab.until(
                "/top keys/.test(document.querySelector('.shards').innerText) || scrollTo(0, scrollY + 400)"
            )
            used = []
            for _ in range(3):  # the best counts, because other programs on the machine only add CPU time
                before = await cpu_time(tab)
                await tab.run(
                    "(async () => { for (let at = 0; at < 60; at++) { scrollTo(0, (at / 60) * document.body.scrollHeight);"
                    " await new Promise((done) => setTimeout(done, 50)); } })()"
                )
                used.append((await cpu_time(tab) - before) / 60)
            assert min(used) < 0.05, used  # each step shows another screen of shards, with their charts
            assert await tab.run(IN_PLACE) == [True, True]
            # The Tab key goes from card to card, also over the end of what was drawn.
            await tab.run("scrollTo(0, 0)")
            await tab.until("document.querySelector('.shards a').textContent === 'shard 0'")
            await tab.run("document.querySelector('.shards a').focus()")
            reached = []
            for _ in range(60):
                await tab.press("Tab")
                reached.append(await tab.run("document.activeElement.textContent"))
            assert reached == [f"shard {number}" for number in range(1, 61)]

    asyncio.run(run())


# Replaces the updates of a group by those of a group with a thousand shards: window.update() sends the next.
LARGE_GROUP = """(() => { const ask = fetch, bytes = new TextEncoder(); let [round, updates] = [0, null];
  const ids = Array.from({ length: 1000 }, (_, number) => `shardId-${String(number).padStart(12, '0')}`);
  window.fetch = (address, how) => (address.includes('/api/live/group')
    ? Promise.resolve(new Response(new ReadableStream({ start: (controller) => { updates = controller; } }))) : ask(address, how));
  window.update = async () => {
    while (!updates) await new Promise((done) => setTimeout(done, 5));
    round += 1;
    const shards = ids.map((id, number) => ({ shard_id: id, state: 'open', lag_ms: number * round, owner: `worker-${number % 7}`, owner_alive: true, checkpoint: { sequence_number: '4'.repeat(56) } }));
    const history = Object.fromEntries(ids.map((id, number) => [id, [[1e9 + 5 * round, number * round, null]]]));
    updates.enqueue(bytes.encode(`data: ${JSON.stringify({ group: { rows: 1000, held: 1000, finished: 0 }, shards, history, notices: [], hand_overs: [], metrics: { reading_lag: {}, problems: [], asked: 0 } })}\\n\\n`));
    const wanted = `${(0.999 * round).toFixed(1)} s`;
    while (!document.querySelector('.facts')?.textContent.includes(wanted)) await new Promise((done) => setTimeout(done, 5));
    await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
  }; })()"""


@pytest.mark.timeout(180)
def test_a_group_of_a_thousand_shards_is_drawn_within_a_second_and_stays_smooth(tmp_path):
    async def run():
        async with looking(tmp_path) as (tab, _, _, _):
            await tab.call("Performance.enable", timeDomain="threadTicks")
            await tab.run(LARGE_GROUP)
            await show(tab, GROUP, "Hand-overs")
            before = await cpu_time(tab)
            await tab.run("update()")
            assert await cpu_time(tab) - before < 1.0
            assert await tab.run("document.querySelectorAll('tbody tr').length") == 1000
            used = []
            for _ in range(5):
                before = await cpu_time(tab)
                await tab.run("update()")
                used.append(await cpu_time(tab) - before)
            assert min(used) < 0.3, used  # there is one update a second
            assert tab.problems == []

    asyncio.run(run())


# Puts 5,000 records a second, from a process of its own, so that nothing but the page and its server is measured.
FLOOD = """
import asyncio, sys
from shardline import Credentials, Producer

async def main(url, access_key, secret_key, rate, seconds):
    place = dict(endpoint_url=url, region="us-east-1", credentials=Credentials(access_key, secret_key))
    async with Producer("orders", **place) as producer:
        loop = asyncio.get_running_loop()
        began, sent, step = loop.time(), 0, rate // 10
        while sent < rate * seconds:
            await producer.put_many([(f"user-{key}", b"x" * 50) for key in range(step)])
            sent += step
            await asyncio.sleep(max(0.0, began + sent / rate - loop.time()))
        print(sent / (loop.time() - began))

asyncio.run(main(*sys.argv[1:4], int(sys.argv[4]), int(sys.argv[5])))
"""
RATE, LASTS = 5000, 12
# The records that matched so far, and the records on the page
COUNTS = "[...document.querySelector('main [role=status]').textContent.matchAll(/[0-9,]+/g)].map((found) => Number(found[0].replaceAll(',', '')))"


@pytest.mark.timeout(180)
def test_a_tail_of_5000_records_a_second_is_sampled_says_so_and_leaves_the_page_responsive(tmp_path):
    async def run():
        async with looking(tmp_path, shards=8) as (tab, kinesis, _, _):
            await show(tab, "records?stream=orders", "Follow live")
            await tab.run("document.querySelector('button[value=follow]').click()")
            await tab.until("document.querySelector('main').innerText.includes('0 records')")
            await tab.call("Performance.enable", timeDomain="threadTicks")
            await tab.run(WATCH)
            watching = asyncio.create_task(tab.run("watch(new Promise((done) => { window.finished = done; }))"))
            before, keys = await cpu_time(tab), kinesis.credentials
            arguments = [kinesis.endpoint_url, keys.access_key, keys.secret_key, str(RATE), str(LASTS)]
            flood = await asyncio.create_subprocess_exec(
                sys.executable, "-c", FLOOD, *arguments, stdout=asyncio.subprocess.PIPE
            )
            put_rate = float((await flood.communicate())[0])
            await tab.until(f"{COUNTS}[1] === {RATE * LASTS}")  # every record was read, matched and counted
            used = await cpu_time(tab) - before
            await tab.run("window.finished()")
            worst = await watching
            shown, seen, per_second = await tab.run(COUNTS)
            assert put_rate > 0.95 * RATE
            assert (shown < seen, per_second) == (True, 50)  # the page says that it is a sample
            assert worst < 500, worst
            assert used / LASTS < 0.3, used  # seconds of CPU time per second
            assert await tab.run("document.querySelectorAll('.records li').length") <= 200

    asyncio.run(run())
