"""Prints the Grafana dashboard as a reader would see it, from the answers of a Prometheus.

No Grafana is needed: each panel of ``deploy/grafana/shardline.json`` is evaluated as Grafana evaluates it. A number has
its colour, and a graph has a line of blocks for each of its time series, with the last and the highest value::

    python -m tests.prometheus.dashboard_view http://127.0.0.1:9090 [MINUTES]
"""

import json
import re
import sys
import textwrap
import time
from pathlib import Path

from tests.prometheus.real_prometheus import Prometheus

DASHBOARD = Path(__file__).parents[2] / "deploy" / "grafana" / "shardline.json"
BLOCKS = "▁▂▃▄▅▆▇█"
POINTS = 40
UNITS = {"s": " s", "percentunit": " %", "Bps": " B/s", "cps": "/s", "short": "", "suffix: records/s": " records/s"}


class Shown:
    """A panel with the time series that it shows, by legend."""

    def __init__(self, panel, prometheus, began_at):
        self.title, self.kind, self.text = panel["title"], panel["type"], panel["description"]
        defaults = panel["fieldConfig"]["defaults"]
        self._unit, self._steps = defaults["unit"], defaults["thresholds"]["steps"]
        step = max(1, round((time.time() - began_at) / POINTS))
        self.lines = {
            legend(target["legendFormat"], labels): values
            for target in panel["targets"]
            for labels, values in prometheus.all_series(target["expr"], began_at, step)
            if values
        }

    @property
    def last(self):
        """The newest value of each time series."""
        return {name: values[max(values)] for name, values in self.lines.items()}

    @property
    def color(self):
        """The colour of the largest of the newest values. ``None`` if there are no data."""
        return max((self.color_of(value) for value in self.last.values()), key=COLORS.index, default=None)

    def color_of(self, value):
        return [step["color"] for step in self._steps if step["value"] is None or value >= step["value"]][-1]

    def text_of(self, value):
        scaled = value * 100 if self._unit == "percentunit" else value
        digits = 0 if self.kind == "stat" or abs(scaled) >= 100 else 2
        return f"{scaled:,.{digits}f}{UNITS[self._unit]}"

    def lines_of_text(self):
        yield f"[{self.title}]"
        yield from textwrap.wrap(self.text, 110, initial_indent="  ", subsequent_indent="  ")
        if not self.lines:
            yield "    no data"
        for name, values in sorted(self.lines.items()):
            points = [values[at] for at in sorted(values)]
            newest = self.text_of(points[-1])
            color = f" ({self.color_of(points[-1])})" if self.kind == "stat" else ""
            yield f"    {name or self.title}: {newest}{color}  {blocks(points)}  highest {self.text_of(max(points))}"


COLORS = ("green", "orange", "red")


def legend(template, labels):
    return re.sub(r"\{\{(\w+)\}\}", lambda found: labels.get(found[1], ""), template).strip()


def blocks(points):
    """Draw values between 0 and their maximum."""
    highest = max(points) or 1
    return "".join(BLOCKS[max(0, min(7, int(point / highest * 7.999)))] for point in points)


def panels():
    return json.loads(DASHBOARD.read_text())["panels"]


def show(prometheus, began_at):
    """Return the panels with data queries, by title, with what they show."""
    return {panel["title"]: Shown(panel, prometheus, began_at) for panel in panels() if "targets" in panel}


def picture(prometheus, began_at):
    """Return the whole dashboard as text."""
    shown = show(prometheus, began_at)
    lines = []
    for panel in panels():
        if panel["type"] == "row":
            lines += ["", f"=== {panel['title']} " + "=" * (106 - len(panel["title"])), ""]
        elif panel["type"] == "text":
            lines += [*textwrap.wrap(panel["options"]["content"], 110), ""]
        else:
            lines += [*shown[panel["title"]].lines_of_text(), ""]
    return "\n".join(lines)


def main():
    url, minutes = sys.argv[1], float(sys.argv[2]) if len(sys.argv) > 2 else 30
    sys.stdout.write(picture(Prometheus(url), time.time() - minutes * 60) + "\n")


if __name__ == "__main__":
    main()
