"""Drives Debian's Chromium over the DevTools protocol, with the WebSocket client of aiohttp. No browser is downloaded."""

import asyncio
import base64
import itertools
import os
import re
import subprocess
import tempfile
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp

CHROMIUM = os.environ.get("CHROMIUM", "/usr/bin/chromium")
FLAGS = [
    *("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync", "--disable-dev-shm-usage", "--remote-debugging-port=0"),
]
WITHIN = 60.0


class Tab:
    """One page. ``requests`` are the addresses that it requested, and ``problems`` what it reported."""

    def __init__(self, socket, session, devtools):
        self._socket = socket
        self._session = session
        self._devtools = devtools  # the address of the DevTools of the browser
        self._ids = itertools.count(1)
        self._answers = {}
        self.requests = []
        self.problems = []

    async def listen(self):
        async for message in self._socket:
            told = message.json()
            if "id" in told:
                self._answers.pop(told["id"]).set_result(told)
            elif told["method"] == "Network.requestWillBeSent":
                self.requests.append(told["params"]["request"]["url"])
            elif told["method"] in {"Log.entryAdded", "Runtime.exceptionThrown"}:
                self.problems.append(str(told["params"]))

    async def call(self, method, **params):
        number = next(self._ids)
        answer = self._answers[number] = asyncio.get_running_loop().create_future()
        await self._socket.send_json({"id": number, "method": method, "params": params})
        told = await asyncio.wait_for(answer, WITHIN)
        assert "error" not in told, told
        return told["result"]

    @asynccontextmanager
    async def another(self, url):
        """Yield a new tab of the same browser that opens an address."""
        async with self._session.put(f"{self._devtools}/json/new?about:blank") as answer:
            target = await answer.json()
        async with attached(self._session, self._devtools, target) as tab:
            await tab.open(url)
            yield tab

    async def open(self, url):
        await self.call("Page.navigate", url=url)

    async def run(self, script):
        """Return the value of a JavaScript expression; a promise is awaited."""
        told = await self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in told, told
        return told["result"].get("value")

    async def until(self, script):
        """Wait until a JavaScript expression is true."""
        end = asyncio.get_running_loop().time() + WITHIN
        while True:
            value = await self.run(f"(() => {{ try {{ return !!({script}) }} catch (error) {{ return null }} }})()")
            if value:
                return
            shown = await self.run("document.body?.innerText") if asyncio.get_running_loop().time() > end else None
            assert shown is None, f"never true: {script}\n{shown}\n{self.problems}"
            await asyncio.sleep(0.05)

    async def press(self, key, *, code=None):
        """Press a key, such as Tab, Enter or Escape, as a person does."""
        numbers = {"Tab": 9, "Enter": 13, "Escape": 27, " ": 32}
        text = {"Enter": "\r", " ": " "}.get(key)
        about = {"key": key, "code": code or key, "windowsVirtualKeyCode": numbers[key]}
        await self.call("Input.dispatchKeyEvent", type="keyDown", **about, **({} if text is None else {"text": text}))
        await self.call("Input.dispatchKeyEvent", type="keyUp", **about)

    async def shape(self, width, height, scheme):
        await self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False
        )
        media = [{"name": "prefers-color-scheme", "value": scheme}]
        await self.call("Emulation.setEmulatedMedia", features=media)

    async def picture(self, path):
        told = await self.call("Page.captureScreenshot", format="png")
        await asyncio.to_thread(Path(path).write_bytes, base64.b64decode(told["data"]))


def _start(profile, flags):
    assert Path(CHROMIUM).exists(), f"{CHROMIUM} is not here: apt-get install chromium, or set CHROMIUM"
    command = [CHROMIUM, *FLAGS, *flags, f"--user-data-dir={profile}", "about:blank"]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


@asynccontextmanager
async def attached(session, devtools, target):
    """Yield the tab of a target that DevTools has listed."""
    async with session.ws_connect(target["webSocketDebuggerUrl"], max_msg_size=0) as socket:
        tab = Tab(socket, session, devtools)
        listening = asyncio.create_task(tab.listen())
        for domain in ("Page", "Runtime", "Network", "Log"):
            await tab.call(f"{domain}.enable")
        yield tab
        listening.cancel()


@asynccontextmanager
async def browsing(*flags):
    """Yield a tab of a new Chromium with a profile of its own, and further flags."""
    with tempfile.TemporaryDirectory(prefix="shardline-browser-", ignore_cleanup_errors=True) as profile:
        process = _start(profile, flags)
        try:
            found = None
            while not found:
                line = await asyncio.to_thread(process.stderr.readline)
                assert line, "Chromium ended"
                found = re.search(r"ws://([^/]+)/", line)
            async with aiohttp.ClientSession() as session:
                devtools = f"http://{found[1]}"
                async with session.get(f"{devtools}/json/list") as answer:
                    target = next(page for page in await answer.json() if page["type"] == "page")
                async with attached(session, devtools, target) as tab:
                    yield tab
        finally:
            process.terminate()
            await asyncio.to_thread(process.wait, 20)
            process.stderr.close()
