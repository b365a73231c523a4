"""Draws the Grafana dashboard as a web page and as a picture, from the answers of a Prometheus.

No Grafana is needed: the panels of ``deploy/grafana/shardline.json`` are drawn in their places, with their titles,
units, thresholds and colours, by the charting library of the console::

    python -m tests.prometheus.dashboard_page http://127.0.0.1:9090 OUT.png [MINUTES]
"""

import asyncio
import json
import sys
import tempfile
import time
from pathlib import Path

from tests.browser.chromium import browsing
from tests.prometheus.dashboard_view import legend, panels
from tests.prometheus.real_prometheus import Prometheus

UPLOT = Path(__file__).parents[2] / "src/shardline/console/static/uplot"
TEMPLATE = Path(__file__).with_name("dashboard.html")
POINTS = 120
WIDTH = 1400


def drawn_panel(panel, prometheus, began_at):
    """Return what the page needs to draw a panel."""
    shown = {name: panel[name] for name in ("title", "type", "gridPos")}
    if panel["type"] == "text":
        return shown | {"content": panel["options"]["content"]}
    if "targets" not in panel:
        return shown
    step = max(1, round((time.time() - began_at) / POINTS))
    found = [
        (legend(target["legendFormat"], labels), values)
        for target in panel["targets"]
        for labels, values in prometheus.all_series(target["expr"], began_at, step)
        if values
    ]
    times = sorted({at for _, values in found for at in values})
    defaults = panel["fieldConfig"]["defaults"]
    return shown | {
        "description": panel["description"],
        "unit": defaults["unit"],
        "steps": defaults["thresholds"]["steps"],
        "thresholds": defaults.get("custom", {}).get("thresholdsStyle", {}).get("mode") == "line",
        "times": times,
        "lines": [
            {"name": name, "values": [values.get(at) for at in times], "last": values[max(values)]}
            for name, values in sorted(found)
        ],
    }


def page(prometheus, began_at):
    """Return the dashboard as one HTML file without references to others."""
    shown = {"panels": [drawn_panel(panel, prometheus, began_at) for panel in panels()], "from": began_at}
    data = json.dumps(shown | {"to": time.time()}).replace("<", "\\u003c")
    parts = {
        "/*UPLOT*/": (UPLOT / "uPlot.min.css").read_text(),
        "/*SCRIPT*/": (UPLOT / "uPlot.iife.min.js").read_text(),
        "/*PANELS*/": data,
    }
    html = TEMPLATE.read_text()
    for mark, text in parts.items():
        html = html.replace(mark, text)
    return html


async def photograph(html, path, height=None):
    """Open the page in Chromium, and save a picture: of the whole page, or of its upper part."""
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "dashboard.html"
        await asyncio.to_thread(file.write_text, html)
        async with browsing() as tab:
            await tab.shape(WIDTH, 900, "dark")
            await tab.open(file.as_uri())
            await tab.until("document.title === 'drawn'")
            whole = await tab.run("document.documentElement.scrollHeight")
            await tab.shape(WIDTH, height or whole, "dark")
            await asyncio.sleep(0.5)
            await tab.picture(path)
            assert tab.problems == []


def main():
    url, path, minutes = sys.argv[1], sys.argv[2], float(sys.argv[3]) if len(sys.argv) > 3 else 30
    asyncio.run(photograph(page(Prometheus(url), time.time() - minutes * 60), path))


if __name__ == "__main__":
    main()
