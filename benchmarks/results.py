"""What did a benchmark find, told to people and kept for the report?

Every script of ``make bench`` prints its table by itself. Through here it also notes what it found: verdicts (a
sentence, a target, met or not), ratios to a peer with the costs they are made of (which ``guard.py`` compares with the
ratios of the report), and series (which the report plots). ``--json FILE`` writes them down.
"""

import argparse
import json
import os
import platform
from pathlib import Path
from typing import NamedTuple

_found: dict[str, list[dict[str, object]]] = {"verdicts": [], "ratios": [], "series": []}


def verdict(what: str, target: str, *, met: bool, partly: bool = False, width: int = 67, of: str = "") -> bool:
    """Print a line of the table, and note it, under its heading if that is ``of`` something."""
    word = "met" if met else "MISSED, unclear: best and median differ" if partly else "MISSED"
    _tell(what, target, word, width, of)
    return met


def beside(what: str, *, width: int = 67, of: str = "") -> None:
    """The same of a peer, which has no target."""
    _tell(what, "", "the peer's", width, of)


def _tell(what: str, target: str, word: str, width: int, of: str) -> None:
    print(f"  {what:<{width}} {target:<22} {word}", flush=True)
    headed = f"{of}: {what}" if of else what
    _found["verdicts"].append({"what": " ".join(headed.split()), "target": target, "verdict": word})


def note_verdict(what: str, target: str, *, met: bool) -> None:
    """For scripts that print a row of their own."""
    _found["verdicts"].append({"what": what, "target": target, "verdict": "met" if met else "MISSED"})


class Cost(NamedTuple):
    """What one thing costs a client, in CPU: of its best round, and of the median one."""

    best: float
    median: float


def note_ratio(name: str, peer: Cost, ours: Cost) -> Cost:
    """Note how many times as much the peer needs, and give it; the best costs are noted too, in whatever unit."""
    ratio = Cost(peer.best / ours.best, peer.median / ours.median)
    best_costs = {"peer_cost": float(f"{peer.best:.5g}"), "our_cost": float(f"{ours.best:.5g}")}
    _found["ratios"].append(
        {"name": name, "best": round(ratio.best, 3), "median": round(ratio.median, 3), **best_costs}
    )
    return ratio


def note_series(name: str, axis: str, unit: str, points: dict[str, float]) -> None:
    """A figure that was taken at several points of an axis."""
    _found["series"].append({"name": name, "axis": axis, "unit": unit, "points": points})


def add_json_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", type=Path, metavar="FILE", help="write down what was found")


def write(path: Path | None) -> None:
    if path is not None:
        path.write_text(json.dumps({"python": platform.python_version(), **_found}, indent=1) + "\n")


def forget_surroundings() -> None:
    """Keep the AWS profile and the proxies of whoever runs this out of the figures."""
    for name in list(os.environ):
        if name.startswith("AWS_") or name.upper() in {"HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"}:
            del os.environ[name]
    os.environ["AWS_CONFIG_FILE"] = os.environ["AWS_SHARED_CREDENTIALS_FILE"] = os.devnull
