"""Has a ratio to a peer fallen by more than a quarter?

Runs a short form of the benchmarks and compares each ratio with that of the report (``docs/benchmarks.json``). A shared
machine disturbs so short a run: a ratio that looks worse is measured again, up to three times, and the best counts. One
that fell stays down.

    python benchmarks/guard.py
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from bench_report import FIGURES, HERE

ALLOWED = 0.75  # of the ratio in the report
TRIES = 3
SHORT = {
    "aggregation": ["--rounds", "31"],
    "producer": ["--quick", "--only", "uuid keys"],
    "consumer": ["--quick", "--only", "plain"],
}


def ratios_of(bench: str) -> dict[str, float]:
    """The best ratios of a short run."""
    with tempfile.TemporaryDirectory() as folder:
        found = Path(folder) / "found.json"
        line = [sys.executable, str(HERE / f"bench_{bench}.py"), *SHORT[bench], "--json", str(found)]
        subprocess.run(line, check=True, stdout=subprocess.DEVNULL)
        return best_of(json.loads(found.read_text()))


def best_of(found: dict[str, list[dict[str, object]]]) -> dict[str, float]:
    return {one["name"]: one["best"] for one in found["ratios"]}


def fallen(reported: dict[str, float], measured: dict[str, float]) -> list[str]:
    """The ratios that are worse than allowed."""
    return [name for name, ratio in measured.items() if ratio < reported[name] * ALLOWED]


def guard(bench: str, reported: dict[str, float]) -> bool:
    measured: dict[str, float] = {}
    for _ in range(TRIES):
        found = ratios_of(bench)
        measured = {name: max(ratio, measured.get(name, 0.0)) for name, ratio in found.items()}
        if not fallen(reported, measured):
            break
    worse = fallen(reported, measured)
    for name, ratio in measured.items():
        word = "FALLEN" if name in worse else "ok"
        print(f"  {name:<75} {ratio:6.2f}, was {reported[name]:6.2f}  {word}", flush=True)
    return not worse


def main() -> int:
    benches = json.loads(FIGURES.read_text())["benches"]
    print("Ratios to the peers, and what the report says")
    held = [guard(bench, best_of(benches[bench])) for bench in SHORT]
    return 0 if all(held) else 1


if __name__ == "__main__":
    sys.exit(main())
