"""Has a ratio to a peer fallen by more than a quarter since the report, with or without the C extension?

The guard is part of CI, on machines that also run other jobs. Invariants:

- The ratio is that of the lowest costs, the peer's and ours, over all tries. Other jobs can only add CPU time, so both
  costs approach the true ones with each try; a real regression stays.
- A part whose ratio seems to have fallen is measured again, alone, up to five times in all. A ratio that has not fallen
  is not measured again.
- The reference is the lower of the two ratios in ``docs/benchmarks.json``: that of the best rounds and that of the
  medians.
- The ratios to compare are listed here. If the report or a run lacks one of them, the guard ends with an error.
- The rounds are as long as those of the full benchmarks, so that start-up and warm-up weigh the same.

    python benchmarks/guard.py
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from bench_report import FIGURES, HERE
from forms import in_both

ALLOWED = 0.75  # the lowest allowed fraction of the ratio in the report
TRIES = 5
LIMIT = 900.0  # seconds for one run, even on a very busy machine
WHAT_TO_DO = """\
A ratio fell by more than a quarter in each of {tries} tries. Run `make bench-guard` again on a quiet machine. If it
still fails, our code needs more CPU than before: find out why. If the regression is intended, run `make bench-report`,
which measures everything again and sets the new reference. Commit docs/benchmarks.json and docs/tested/benchmarks.md.\
"""


class GuardError(Exception):
    """A ratio that has to be compared is missing."""


class Costs(NamedTuple):
    """The lowest CPU costs of the peer and of ours, in the same unit."""

    peer: float
    ours: float

    @property
    def ratio(self) -> float:
        return self.peer / self.ours


@dataclass(frozen=True)
class Part:
    """The ratios that one run of a benchmark measures."""

    bench: str
    arguments: tuple[str, ...]
    ratios: tuple[str, ...]  # the names of the ratios that the run must report


def of_aggregation(*tasks: str) -> tuple[str, ...]:
    keys = ("uuid keys", "1,000 keys", "30 keys")
    return in_both(tuple(f"{task}, {kind}: aws_kinesis_agg / shardline" for task in tasks for kind in keys))


PARTS = (
    Part("aggregation", ("--rounds", "31"), of_aggregation("build", "open, Lambda", "open, bytes")),
    Part(
        "producer",
        ("--guard", "--only", "100 B records, uuid keys"),
        in_both(
            (
                "100 B records, uuid keys: boto3 / shardline",
                "100 B records, uuid keys: boto3 / shardline sync",
                "100 B records, uuid keys: boto3 / shardline put_many",
                "100 B records, uuid keys, not aggregated: aiobotocore / shardline unaggregated",
            )
        ),
    ),
    Part(
        "producer",
        ("--guard", "--only", "1 KiB records"),
        in_both(("1 KiB records, uuid keys: boto3 / shardline",)),
    ),
    Part(
        "consumer",
        ("--guard", "--only", "plain records"),
        in_both(
            ("Plain records: async-kinesis / shardline batches", "Plain records: async-kinesis / shardline records")
        ),
    ),
    Part(
        "consumer",
        ("--guard", "--only", "no deserializer"),
        in_both(
            (
                "Plain, no deserializer: async-kinesis text / shardline bytes",
                "Aggregated, no deserializer: async-kinesis text KPL / shardline bytes",
            )
        ),
    ),
)
Run = Callable[[Part], dict[str, Costs]]


def run_part(part: Part) -> dict[str, Costs]:
    """Run the benchmark of a part, and return the costs by the names of the ratios."""
    with tempfile.TemporaryDirectory() as folder:
        found = Path(folder) / "found.json"
        line = [sys.executable, str(HERE / f"bench_{part.bench}.py"), *part.arguments, "--json", str(found)]
        try:
            subprocess.run(line, check=True, stdout=subprocess.DEVNULL, timeout=LIMIT)
        except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
            raise GuardError(f"nothing was compared: {error}") from None
        return costs_in(json.loads(found.read_text()))


def costs_in(found: dict[str, list[dict[str, object]]]) -> dict[str, Costs]:
    return {ratio["name"]: Costs(ratio["peer_cost"], ratio["our_cost"]) for ratio in found["ratios"]}


def reference(benches: dict[str, dict[str, object]], part: Part) -> dict[str, float]:
    """Return the ratios of a part in the report."""
    reported = {
        ratio["name"]: min(ratio["best"], ratio["median"]) for ratio in benches.get(part.bench, {}).get("ratios", [])
    }
    missing = [name for name in part.ratios if name not in reported]
    if missing or not part.ratios:
        raise GuardError(
            f"the report ({FIGURES.name}) has no ratio {missing} of bench_{part.bench}.py: if a case is new or was "
            f"renamed, update benchmarks/guard.py and run: make bench-report"
        )
    return {name: reported[name] for name in part.ratios}


def least(seen: dict[str, Costs], found: dict[str, Costs], part: Part) -> dict[str, Costs]:
    """Return the lowest costs of all tries so far."""
    missing = [name for name in part.ratios if name not in found]
    if missing:
        raise GuardError(f"bench_{part.bench}.py {' '.join(part.arguments)} gave no ratio {missing}")
    return {name: Costs(*map(min, seen[name], found[name])) if name in seen else found[name] for name in part.ratios}


def fallen(reported: dict[str, float], seen: dict[str, Costs]) -> list[str]:
    """Return the names of the ratios that are lower than allowed."""
    return [name for name, costs in seen.items() if costs.ratio < reported[name] * ALLOWED]


def guard(part: Part, reported: dict[str, float], run: Run = run_part) -> bool:
    """Measure a part until none of its ratios seems to have fallen; print the ratios, and return whether they held."""
    seen: dict[str, Costs] = {}
    worse: list[str] = []
    tries = 0
    while tries < TRIES and (worse or not seen):
        seen = least(seen, run(part), part)
        worse = fallen(reported, seen)
        tries += 1
    for name, costs in seen.items():
        word = "FALLEN" if name in worse else "ok"
        share = costs.ratio / reported[name]
        print(f"  {name:<78} {costs.ratio:6.2f}  {reported[name]:6.2f}  {share:5.0%}  {tries:5}  {word}", flush=True)
    return not worse


def guard_all(benches: dict[str, dict[str, object]], run: Run = run_part) -> bool:
    references = [reference(benches, part) for part in PARTS]  # raises before anything is measured
    print(
        f"How many times our CPU the peer needs; under {ALLOWED:.0%} of the report's figure, {TRIES} times over, fails"
    )
    print(f"  {'':<78} {'now':>6}  {'report':>6}  {'share':>5}  tries", flush=True)
    held = [guard(part, reported, run) for part, reported in zip(PARTS, references, strict=True)]
    compared = sum(len(part.ratios) for part in PARTS)
    if all(held) and held:
        print(f"{compared} ratios compared, none has fallen by more than a quarter")
        return True
    print(WHAT_TO_DO.format(tries=TRIES))
    return False


def read_report(path: Path) -> dict[str, dict[str, object]]:
    """Return the figures of the report."""
    try:
        return json.loads(path.read_text())["benches"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise GuardError(
            f"{path} is not a report: {type(error).__name__} {error}. Restore it (git checkout docs/benchmarks.json), "
            "or measure everything again: make bench-report"
        ) from None


def main() -> int:
    try:
        return 0 if guard_all(read_report(FIGURES)) else 1
    except GuardError as error:
        print(f"The guard cannot compare: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
