"""The Grafana dashboard, drawn without Grafana: does each panel show its figure, in its place and colour?"""

import asyncio
import time

from tests.browser.chromium import browsing
from tests.prometheus.dashboard_page import page
from tests.prometheus.dashboard_view import panels


class Answers:
    """A Prometheus that answers each query with one time series."""

    def __init__(self, last):
        self._last = last

    def all_series(self, _, began_at, step=1):
        return [({"stream": "orders", "group": "billing"}, {began_at: 0.0, began_at + step: self._last})]


class NoAnswers:
    def all_series(self, *_):
        return []


def look(prometheus, tmp_path, script):
    """Return the value of a script on the page."""
    file = tmp_path / "dashboard.html"
    file.write_text(page(prometheus, time.time() - 60))

    async def run():
        async with browsing() as tab:
            await tab.shape(1400, 900, "dark")
            await tab.open(file.as_uri())
            await tab.until("document.title === 'drawn'")
            assert tab.problems == []
            return await tab.run(script)

    return asyncio.run(run())


BOXES = "[...document.querySelectorAll('.panel, .row')].map((one) => [one.dataset.title, one.className, one.querySelectorAll('canvas').length, one.innerText])"


def test_every_panel_is_drawn_in_its_place_with_its_unit_and_colour(tmp_path):
    found = look(Answers(70.0), tmp_path, BOXES)
    assert [title for title, *_ in found] == [panel["title"] for panel in panels()]
    kinds = {panel["title"]: panel["type"] for panel in panels()}
    for title, style, charts, _ in found:
        assert charts == (kinds[title] in {"stat", "timeseries"})
        if kinds[title] == "stat":
            assert "red" in style.split()
    texts = {title: text for title, _, _, text in found}
    assert "70 s" in texts["Consumer lag of slow handlers"]
    assert "billing orders" in texts["Consumer lag by group"]
    quiet = look(Answers(0.0), tmp_path, BOXES)
    assert [style for title, style, *_ in quiet if kinds[title] == "stat"] == ["panel stat green"] * 4


def test_a_panel_without_data_says_so(tmp_path):
    found = look(NoAnswers(), tmp_path, "document.body.innerText.split('No data').length - 1")
    assert found == sum("targets" in panel for panel in panels())
