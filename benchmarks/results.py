"""Prints and collects the results of a benchmark.

Every script of ``make bench`` prints its own table. With this module it also collects its results: verdicts (a
sentence, a target, and whether it is met), ratios to a peer with both costs (``guard.py`` compares them with the ratios
of the report), series (the report plots them), and rows of the table that shows both forms (``forms.py``).
``--json FILE`` writes them to a file.
"""

import argparse
import json
import os
import platform
from pathlib import Path
from typing import NamedTuple

_found: dict[str, list[dict[str, object]]] = {"verdicts": [], "ratios": [], "series": [], "rows": []}


def verdict(what: str, target: str, *, met: bool, partly: bool = False, width: int = 67, of: str = "") -> bool:
    """Print a row of the table and collect it. ``of`` is the heading that precedes it in the report."""
    word = "met" if met else "MISSED, unclear: best and median differ" if partly else "MISSED"
    _add_row(what, target, word, width, of)
    return met


def peer_row(what: str, *, width: int = 67, of: str = "") -> None:
    """Print and collect a row of a peer, which has no target."""
    _add_row(what, "", "the peer's", width, of)


def _add_row(what: str, target: str, word: str, width: int, of: str) -> None:
    print(f"  {what:<{width}} {target:<22} {word}", flush=True)
    headed = f"{of}: {what}" if of else what
    _found["verdicts"].append({"what": " ".join(headed.split()), "target": target, "verdict": word})


def note_verdict(what: str, target: str, *, met: bool) -> None:
    """Collect a verdict without printing it, for scripts that print their own rows."""
    _found["verdicts"].append({"what": what, "target": target, "verdict": "met" if met else "MISSED"})


class Cost(NamedTuple):
    """The CPU that a client needs, in its best round and in its median round."""

    best: float
    median: float


def note_ratio(name: str, peer: Cost, ours: Cost) -> Cost:
    """Return how many times our CPU the peer needs, and collect it with the best costs, in any unit."""
    ratio = Cost(peer.best / ours.best, peer.median / ours.median)
    best_costs = {"peer_cost": float(f"{peer.best:.5g}"), "our_cost": float(f"{ours.best:.5g}")}
    _found["ratios"].append(
        {"name": name, "best": round(ratio.best, 3), "median": round(ratio.median, 3), **best_costs}
    )
    return ratio


def note_row(row: str, form: str, figure: Cost) -> None:
    """Collect a figure of one form for a row of the table that shows both."""
    rounded = {"best": float(f"{figure.best:.4g}"), "median": float(f"{figure.median:.4g}")}
    _found["rows"].append({"row": row, "form": form, **rounded})


def note_series(name: str, axis: str, unit: str, points: dict[str, float]) -> None:
    """Collect a figure that was measured at several points of an axis."""
    _found["series"].append({"name": name, "axis": axis, "unit": unit, "points": points})


def add_json_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results to this file")


def write(path: Path | None) -> None:
    if path is not None:
        path.write_text(json.dumps({"python": platform.python_version(), **_found}, indent=1) + "\n")


def isolate_environment() -> None:
    """Remove the user's AWS settings and proxies from the environment, so that they do not affect the figures."""
    for name in list(os.environ):
        if name.startswith("AWS_") or name.upper() in {"HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"}:
            del os.environ[name]
    os.environ["AWS_CONFIG_FILE"] = os.environ["AWS_SHARED_CREDENTIALS_FILE"] = os.devnull
