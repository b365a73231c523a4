"""Draws the cost of a record by the size of a stream, from the figures that ``benchmarks/bench_growth.py`` measured."""

import json
import math
from pathlib import Path
from typing import Any

from pen import Picture

FIGURES = Path(__file__).parents[1] / "benchmarks.json"
PURE = " (pure)"  # at the end of the name of a series without the C extension
TONES = {"producer": "blue", "consumer": "green", "producer, 16 an entry": "amber"}
LEFT, TOP, WIDE, HIGH, APART = 60, 74, 330, 220, 90


def panel(picture: Picture, left: float, axis: str, series: list[dict[str, Any]], most: float) -> None:
    points = list(series[0]["points"])
    picture.text(left + WIDE / 2, TOP + HIGH + 46, axis, look="bold", anchor="middle")
    for tick in range(0, int(most) + 1, 2):
        y = TOP + HIGH * (1 - tick / most)
        picture.line([(left, y), (left + WIDE, y)], width=0.4)
        picture.text(left - 10, y + 4, str(tick), look="faint", anchor="end", size=11.5)
    for number, point in enumerate(points):
        picture.text(left + (number + 0.5) * WIDE / len(points), TOP + HIGH + 22, point, anchor="middle", size=12)
    for one in series:
        name = one["name"]
        tone, width = TONES[name.removesuffix(PURE)], (1.1 if name.endswith(PURE) else 2.2)
        places = [
            (left + (number + 0.5) * WIDE / len(points), TOP + HIGH * (1 - cost / most))
            for number, cost in enumerate(one["points"].values())
        ]
        picture.line(places, tone=tone, width=width)
        for (x, y), cost in zip(places, one["points"].values(), strict=True):
            picture.dot(x, y, tone)
            picture.text(x, y - 9, f"{cost:.1f}", anchor="middle", size=11)


def growth_plot() -> Picture:
    series = json.loads(FIGURES.read_text())["benches"]["growth"]["series"]
    most = math.ceil(max(max(one["points"].values()) for one in series) / 2) * 2
    width, height = LEFT + 2 * WIDE + APART + 30, TOP + HIGH + 66
    picture = Picture(width, height, "growth", "CPU time of a record, by the number of records and of shards.")
    picture.text(LEFT, 30, "CPU time of a record, in microseconds", look="bold")
    for number, (name, tone) in enumerate(TONES.items()):
        picture.text(LEFT + 300 + 90 * number, 30, name, look=f"{tone}-ink bold")
    picture.text(LEFT, 48, "thin lines: without the C extension", look="faint", size=12)
    for number, axis in enumerate(("records", "shards")):
        panel(picture, LEFT + number * (WIDE + APART), axis, [one for one in series if one["axis"] == axis], most)
    return picture
