"""Takes the pictures of the console: runs the demo, and photographs its pages with Chromium.

    python docs/pictures/console.py

The script does what a new user does who opens the console while a shard is hot. It fails if the page does not show the
hot shard.
"""

import asyncio
import re
import signal
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parents[1]))  # so that this file runs as a script

from tests.browser.chromium import Tab, browsing  # noqa: E402 - needs the path above

WIDTH = 1280


async def grow(tab: Tab, width: int, scheme: str) -> None:
    """Make the browser's window as high as the page."""
    await tab.shape(width, 900, scheme)
    await asyncio.sleep(0.5)
    await tab.shape(width, await tab.run("document.documentElement.scrollHeight"), scheme)


async def main() -> None:
    command = [sys.executable, "-m", "shardline", "demo", "--console", "--plain"]
    demo = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    try:
        assert demo.stdout is not None
        address = None
        while address is None:
            line = (await demo.stdout.readline()).decode()
            assert line, "the demo ended before it printed the address of its console"
            address = re.search(r"http://\S+#token=\S+", line)
        reading = asyncio.create_task(demo.stdout.read())  # so that the demo never waits for a reader of its output
        async with browsing() as tab:
            await tab.open(address[0])
            await tab.until("document.querySelector('main table')")
            await tab.run("location.hash = '#/stream/orders'")
            await tab.until("document.querySelectorAll('.shards li').length")
            await tab.shape(WIDTH, 1400, "light")  # as high as the page is when it shows the hot shard
            await tab.until("/\\((was )?hot\\)/.test(document.querySelector('main').innerText)")
            await asyncio.sleep(0.2)
            await tab.picture(HERE / "console.png")
            await tab.shape(390, 844, "dark")
            await asyncio.sleep(1)
            await tab.picture(HERE / "console-phone.png")
            await tab.run("location.hash = '#/groups'")
            await tab.until("document.querySelector('tbody a')")
            await tab.run("document.querySelector('tbody a').click()")
            await tab.until("document.querySelector('.events')?.innerText.includes('→')")
            await asyncio.sleep(20)  # the worker that took over the shards catches up in this time
            await grow(tab, WIDTH, "light")
            await asyncio.sleep(1)
            await tab.picture(HERE / "console-group.png")
        reading.cancel()
    finally:
        if demo.returncode is None:
            demo.send_signal(signal.SIGINT)
        await demo.wait()


if __name__ == "__main__":
    asyncio.run(main())
