"""Draws the plots that compare Shardline with its peers: the CPU cost of a record, and the latency of a record."""

import json
from pathlib import Path
from typing import Any

from pen import Picture, width_of

FIGURES = Path(__file__).parents[1] / "benchmarks.json"
LEFT, TOP, WIDE, ROW, APART = 190, 66, 470, 22, 44
OURS = "shardline"
LINES = {
    "shardline asyncio": "blue",
    "shardline trio": "violet",
    "shardline sync": "green",
    "aiobotocore": "amber",
    "aiokpl": "red",
}


def costs_by_case(benches: dict[str, Any]) -> dict[str, dict[str, float]]:
    """Return the CPU seconds per million records of every client in every case."""
    cases: dict[str, dict[str, float]] = {}
    for bench in ("producer", "consumer"):
        for ratio in benches[bench]["ratios"]:
            case, clients = ratio["name"].rsplit(": ", 1)
            peer, ours = clients.split(" / ")
            found = cases.setdefault(f"{bench}: {case}", {})
            found[ours], found[peer] = ratio["our_cost"], ratio["peer_cost"]
    return cases


def peers_plot() -> Picture:
    cases = costs_by_case(json.loads(FIGURES.read_text())["benches"])
    most = max(cost for costs in cases.values() for cost in costs.values())
    height = TOP + sum(len(costs) * ROW + APART for costs in cases.values()) - 10
    picture = Picture(LEFT + WIDE + 110, height, "peers", "CPU time of a million records, for Shardline and its peers.")
    picture.text(24, 30, "CPU seconds for a million records (less is better)", look="bold")
    y = TOP
    for case, costs in cases.items():
        picture.text(24, y, case, look="faint")
        for client, cost in sorted(costs.items(), key=lambda item: item[1]):
            y += ROW
            is_ours = client.startswith(OURS)
            tone, width = ("blue" if is_ours else "amber"), max(2.0, WIDE * cost / most)
            picture.text(LEFT - 10, y + 4, client, anchor="end", size=12, look="bold" if is_ours else "")
            picture.box(LEFT, y - 8, width, 15, tone, round_by=3)
            picture.text(LEFT + width + 8, y + 4, f"{cost:.3g}", size=12)
        y += APART
    return picture


def latency_plot() -> Picture:
    series = json.loads(FIGURES.read_text())["benches"]["producer"]["series"]
    latencies = {one["name"]: one["points"] for one in series if one["axis"] == "latency"}
    left, high = 70, 260
    most = 1.08 * max(max(points.values()) for points in latencies.values())
    picture = Picture(left + WIDE + 60, TOP + high + 60, "latency", "Latency of a record, by percentile.")
    picture.text(24, 30, "Milliseconds from the time when a record is due until it is confirmed", look="bold")
    at = 24.0
    for name, tone in LINES.items():
        picture.text(at, 50, name, look=f"{tone}-ink bold", size=12)
        at += width_of(name, 12) + 18
    step = next(step for step in (10, 20, 50, 100, 200, 500, 1000) if most / step <= 8 or step == 1000)
    for tick in range(0, int(most) + 1, step):
        y = TOP + high * (1 - tick / most)
        picture.line([(left, y), (left + WIDE, y)], width=0.4)
        picture.text(left - 10, y + 4, str(tick), look="faint", anchor="end", size=11.5)
    names = list(next(iter(latencies.values())))
    places = [left + (number + 0.5) * WIDE / len(names) for number in range(len(names))]
    for x, name in zip(places, names, strict=True):
        picture.text(x, TOP + high + 24, name, anchor="middle", size=12)
    for client, points in latencies.items():
        way = [(x, TOP + high * (1 - value / most)) for x, value in zip(places, points.values(), strict=True)]
        picture.line(way, tone=LINES[client], width=2)
        for x, y in way:
            picture.dot(x, y, LINES[client], 3)
    return picture
