"""Draws the plots of docs/guides/producer/throughput.md from the figures that ``benchmarks/tuning.py`` measured."""

import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from pen import Picture

Scale = Callable[[float], float]

FIGURES = Path(__file__).with_name("tuning.json")
LEFT, TOP, WIDE, HIGH, BARS = 84, 64, 640, 210, 110


class Curve(NamedTuple):
    """A curve: one value for each point of the axis."""

    name: str
    tone: str
    values: Sequence[float]
    figures_at: float = -9
    """The distance of the curve's figures from its points. Negative figures are above the points."""


def told(value: float) -> str:
    """Return a figure as people write it."""
    return f"{value:,.0f}" if value >= 10 else f"{value:.3g}"


class Plot:
    """A plot with curves at the top and bars at the bottom, over the same points of one axis."""

    def __init__(self, picture: Picture, points: Sequence[str], axis: str) -> None:
        self._picture = picture
        self._points = points
        picture.text(LEFT + WIDE / 2, TOP + HIGH + BARS + 96, axis, look="bold code", anchor="middle")
        for number, words in enumerate(points):
            picture.text(self._x(number), TOP + HIGH + BARS + 74, words, anchor="middle", size=12)

    def _x(self, number: int) -> float:
        return LEFT + (number + 0.5) * WIDE / len(self._points)

    def curves(self, title: str, curves: Sequence[Curve], scale: Scale, ticks: Sequence[float]) -> None:
        """Draw the curves. ``scale`` returns the height of a value, from 0 (bottom) to 1 (top)."""
        picture = self._picture
        picture.text(LEFT, TOP - 30, title, look="bold")
        for tick in ticks:
            y = TOP + HIGH * (1 - scale(tick))
            picture.line([(LEFT, y), (LEFT + WIDE, y)], width=0.4)
            picture.text(LEFT - 10, y + 4, told(tick), look="faint", anchor="end", size=11.5)
        for curve in curves:
            places = [(self._x(n), TOP + HIGH * (1 - scale(value))) for n, value in enumerate(curve.values)]
            picture.line(places, tone=curve.tone, width=2.2)
            for (x, y), value in zip(places, curve.values, strict=True):
                picture.dot(x, y, curve.tone)
                picture.text(x, y + curve.figures_at, told(value), anchor="middle", size=11)
            if curve.name:
                x, y = places[-1]
                picture.text(x + 26, y + 4, curve.name, look=f"{curve.tone}-ink bold", size=12)

    def bars(self, title: str, values: Sequence[float], tone: str) -> None:
        """Draw the bars on a logarithmic scale, because the values differ by a factor of up to a thousand."""
        picture, bottom = self._picture, TOP + HIGH + 54 + BARS
        picture.text(LEFT, TOP + HIGH + 34, title, look="bold")
        most = math.log10(max(values) * 2)
        width = WIDE / len(values) * 0.5
        for number, value in enumerate(values):
            height = max(3.0, math.log10(max(value * 2, 1)) / most * (BARS - 26))
            picture.box(self._x(number) - width / 2, bottom - height, width, height, tone, round_by=3)
            picture.text(self._x(number), bottom - height - 6, told(value), anchor="middle", size=11)


def logarithmic(low: float, high: float) -> Scale:
    return lambda value: math.log10(value / low) / math.log10(high / low)


def linger_plot() -> Picture:
    rows = json.loads(FIGURES.read_text())["linger"]
    picture = Picture(800, 496, "linger", "Latency and requests per second, by linger.")
    plot = Plot(picture, [f"{row['linger_ms']:g} ms" for row in rows], "linger")
    curves = [
        Curve("99 %", "red", [row["p99"] for row in rows]),
        Curve("half", "blue", [row["p50"] for row in rows], figures_at=17),
    ]
    plot.curves("time until a record is confirmed, in ms", curves, logarithmic(1, 2000), (1, 10, 100, 1000))
    plot.bars("PutRecords requests per second", [row["requests_per_second"] for row in rows], "amber")
    return picture


def aggregate_plot() -> Picture:
    rows = json.loads(FIGURES.read_text())["aggregate_max_bytes"]
    picture = Picture(800, 496, "aggregate_max_bytes", "CPU of a record, and records per Kinesis record.")
    points = [f"{row['aggregate_max_bytes']:,}" if row["aggregate_max_bytes"] else "off" for row in rows]
    plot = Plot(picture, points, "aggregate_max_bytes")
    most = math.ceil(max(row["cpu_us"] for row in rows) / 5) * 5
    curve = Curve("", "blue", [row["cpu_us"] for row in rows])
    plot.curves("CPU time of a record, in microseconds", [curve], lambda value: value / most, range(0, most + 1, 5))
    plot.bars("records in one Kinesis record", [row["records_per_entry"] for row in rows], "green")
    return picture
