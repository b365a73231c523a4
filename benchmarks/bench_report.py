"""Runs all benchmarks and writes their report.

This script runs every script of ``make bench`` and writes the results to ``docs/benchmarks.json``. From that file it
writes ``docs/tested/benchmarks.md``, the pages of results, and the short tables of the README and of the home page.
``docs/pictures/draw.py`` draws the plots. ``tests/docs/test_benchmarks_page.py`` fails if pages and figures differ.
``guard.py`` compares later ratios to the peers with those in the file.

    python benchmarks/bench_report.py [--quick] [--only producer] [--render]
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import bench_java
import forms
from results import Cost

HERE = Path(__file__).parent
DOCS = HERE.parent / "docs"
FIGURES = DOCS / "benchmarks.json"
PAGE = DOCS / "tested" / "benchmarks.md"
RESULTS = {
    DOCS / "tested" / "benchmark-results.md": (
        "Benchmark results",
        ("producer", "consumer"),
    ),
    DOCS / "tested" / "benchmark-results-workers.md": (
        "Benchmark results of workers and growth",
        ("handlers", "fanout", "growth", "failover"),
    ),
    DOCS / "tested" / "benchmark-results-parts.md": (
        "Benchmark results of the parts",
        ("wire", "aggregation", "server"),
    ),
}
PEER_PYTHON = HERE.parent / ".servers/clients/bin/python"
BENCHES = {
    "producer": "Producer: CPU, latency, memory",
    "consumer": "Consumer: CPU, idle shards, first record, commits",
    "handlers": "Handlers side by side",
    "fanout": "Enhanced fan-out beside polling",
    "growth": "Growth: shards and records",
    "wire": "The wire: one call",
    "aggregation": "Aggregation: building and opening",
    "server": "The embedded server",
    "failover": "Failover: how long a shard waits",
}
OURS = ("boto3", "aiobotocore", "aws_kinesis_agg", "msgspec", "anyio", "trio")
PEERS = ("aiokpl", "async-kinesis", "uvloop")
# The rows of the short tables in the README and on the home page, and the cases that they show.
SHORT_TABLES = (HERE.parent / "README.md", DOCS / "index.md")
SHORT_ROWS = {
    "100 B, unique keys": "100 B records, uuid keys",
    "100 B, 1,000 keys": "100 B records, 1,000 hot keys",
    "1 KiB, unique keys": "1 KiB records, uuid keys",
}
HEAD = """\
# Benchmarks

![CPU seconds for a million records, of every client](../pictures/peers.svg)

The chart shows the CPU seconds that each client needs for a million confirmed records. The next chart shows the latency
of a record with each client's own settings. aiokpl and Shardline hold a record for up to 100 ms to fill a batch.
aiobotocore does not batch, so the benchmark sends the records that have arrived every 100 ms.

![Latency of a record, by percentile](../pictures/latency.svg)

The [results of the producer and the consumer](benchmark-results.md), the [results of workers and
growth](benchmark-results-workers.md) and the [results of the parts](benchmark-results-parts.md) (client, aggregation,
embedded server) contain the tables behind the charts, with a target for each figure. {missed} of {count} figures miss
their targets. Most of these targets were set on another machine. Figures that depend on the time by the clock, such as
latencies, waiting times and the records per second of handlers, are also missed on a busy machine, so each table has
its load average.

## With and without the C extension

The [C extension](../adr/0009-compiled-twins.md) is optional. Each row shows the figure of the best rounds, and in
parentheses the figure of the medians; both must meet the target. Both forms and the other libraries took turns in one
run. Except for the row in bytes, the figures are ratios of CPU time. The profile in
[ADR 9](../adr/0009-compiled-twins.md) explains the rows marked MISSED. The figures of the KPL are from
[another run](benchmark-java.md).

{table}

## Cost by the number of shards and records

![CPU of a record by the number of records and of shards](../pictures/growth.svg)

The cost of a record hardly depends on the number of records. The cost grows with the number of shards for two reasons:

- With more shards, fewer records of the same shard arrive within `linger` and share an entry. At the rate of this
  benchmark, an entry has about 350 records with one shard, and 16 with 1,024 shards. An entry costs as much as several
  records. The second series of the producer has 16 records per entry everywhere, so it shows the effect of the shards
  alone.
- With many shards, records wait for up to 100 ms and have left the processor's caches when they are sent. This
  depends on the machine: on shared machines, the first series ended at 1.35 to 1.97 times its minimum.

## How it is measured

- The figure is the CPU time of the client process, user and system, because wall-clock time says more about the machine
  than about the client.
- All clients take turns in one run, against the same server, which is never the bottleneck. The server is our own, or a
  sink on loopback. Nothing here was measured against AWS.
- Each of our clients runs twice, in turn with the others: with the C extension, and without it.
- Each other library has its own environment and its best settings (aiokpl runs on uvloop).
- Other jobs on the machine only add CPU time, so the best round of each client counts. The tables also show the
  ratio of the medians. A ratio meets its target only if the ratio of the medians does too.
- Latency is measured from the time when a record was due, so that a stall counts for every record that it delays.
- Enhanced fan-out was measured later than the rest, on 2026-11-18, while other jobs kept the machine busy (load average
  9 to 15). The CPU time of its idle shards includes the work on the leases of 1,000 shards. The CPU time of polling
  includes the same work.
- Handlers side by side were also measured on 2026-11-18, while other jobs kept the machine busy (load average 19 to 25
  on 2 cores). The records per second of a worker depend on wall-clock time: with a tenth of a core, no worker reaches
  10,240 records per second. The two processes are compared with two plain processes in the same run.
- Failover is measured in wall-clock time, with two worker processes over one SQLite file, 8 shards and 200 records per
  second. Duplicates are records that the dead worker had handled but not yet committed. The [drills](drills.md) cover
  other failures and the other stores.

The newest tables are from {date}: Python {python}, {machine}, load average {load} before and after. {versions}.

## Run it yourself

| command | |
|---|---|
| `make bench` | runs all benchmarks and prints a row for every client |
| `make bench-report` | runs all benchmarks and writes this page, the results and the charts |
| `make bench-guard` | fails if a ratio to another library fell by more than a quarter since this report; CI runs it |

The guard measures both forms of aggregation, of the producer (against boto3 and aiobotocore, because aiokpl's figures
vary too much) and of the consumer, in fewer rounds. The guard compares the best round with the lower of the two ratios
in this report, and measures again, up to five times, before it fails. If the guard fails, run it again on a quiet
machine. If you accept the loss, run `make bench-report`.
"""
RESULTS_HEAD = """\
# {title}

`make bench-report` wrote these tables; [Benchmarks](benchmarks.md) explains how they are measured. The line above a
table has the command, the date, and the load average before and after. To measure a table again, run the command in the
environment that `make setup` creates (`. .venv/bin/activate`). With `--quick` or fewer rounds, the figures are rougher.
"(pure)" marks Shardline without its C extension. Ratios compare CPU time: "boto3 / shardline: 2.9" means that boto3
needs 2.9 times as much CPU time as Shardline.
"""


def installed(python: str, names: tuple[str, ...]) -> dict[str, str]:
    """Return the versions of the packages that another environment has."""
    code = (
        "import json, sys; from importlib.metadata import PackageNotFoundError, version\n"
        "found = {}\n"
        "for name in sys.argv[1:]:\n"
        "    try: found[name] = version(name)\n"
        "    except PackageNotFoundError: pass\n"
        "print(json.dumps(found))"
    )
    done = subprocess.run([python, "-c", code, *names], check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout)


def run_bench(name: str, *, quick: bool) -> dict[str, object]:
    with tempfile.TemporaryDirectory() as folder:
        found = Path(folder) / "found.json"
        line = [sys.executable, str(HERE / f"bench_{name}.py"), "--json", str(found)]
        shorter = (["--rounds", "31"] if name == "aggregation" else ["--quick"]) if quick else []
        command = " ".join(["python", f"benchmarks/bench_{name}.py", *shorter])
        print(f"\n$ {command}", flush=True)
        before = load()
        subprocess.run(line + shorter, check=True)
        when = {"date": today(), "load": f"{before} and {load()}"}
        return {"command": command, **when, **json.loads(found.read_text())}


def today() -> str:
    return f"{datetime.now(UTC):%Y-%m-%d}"


def load() -> str:
    return f"{os.getloadavg()[0]:.1f}"


def measure(names: list[str], *, quick: bool) -> dict[str, object]:
    """Run these benchmarks, and keep the earlier results of the others."""
    kept = json.loads(FIGURES.read_text()) if FIGURES.exists() and names != list(BENCHES) else {}
    before = load()
    benches = kept.get("benches", {}) | {name: run_bench(name, quick=quick) for name in names}
    return {
        "date": today(),
        "python": platform.python_version(),
        "machine": f"{platform.system()} on {os.cpu_count()} cores ({platform.machine()})",
        "load": f"{before} and {load()}",
        "versions": {name: version(name) for name in OURS} | installed(str(PEER_PYTHON), PEERS),
        "benches": {name: benches[name] for name in BENCHES if name in benches},
    }


def rendered(figures: dict[str, object]) -> dict[Path, str]:
    """Return the page with the charts and the pages with the tables, by path."""
    versions = ", ".join(f"{name} {number}" for name, number in figures["versions"].items())
    verdicts = [row["verdict"] for found in figures["benches"].values() for row in found["verdicts"]]
    missed = len([verdict for verdict in verdicts if verdict.startswith("MISSED")])
    head = HEAD.format(
        **{**figures, "versions": versions, "missed": missed, "count": len(verdicts), "table": table_of_forms(figures)}
    )
    return {PAGE: head} | {
        path: RESULTS_HEAD.format(title=title, **figures)
        + "".join(table(name, figures["benches"][name]) for name in names if name in figures["benches"])
        for path, (title, names) in RESULTS.items()
    }


def rows_of(figures: dict[str, object]) -> dict[tuple[str, str], list[Cost]]:
    """Return the figures of the table of both forms, by row and form. Several figures can share a row."""
    found: dict[tuple[str, str], list[Cost]] = {}
    for bench in figures["benches"].values():
        for one in bench.get("rows", []):
            found.setdefault((one["row"], one["form"]), []).append(Cost(one["best"], one["median"]))
    costs = json.loads(bench_java.FIGURES.read_text())["sizes"]["100 B"]
    for form, client in (("native", "shardline"), ("pure", "shardline" + bench_java.PURE_FORM)):
        ratios = (costs["KPL"][kind] / costs[client][kind] for kind in ("best", "median"))
        found[forms.KPL.row, form] = [Cost(*ratios)]
    return found


def table_of_forms(figures: dict[str, object]) -> str:
    found = rows_of(figures)
    lines = [
        "| figure | with the extension | target | without it | target |",
        "|---|---|---|---|---|",
    ]
    for limits in forms.TABLE:
        cells = [limits.row]
        for form in ("native", "pure"):
            cells += [cell_of(limits, form, found.get((limits.row, form), [])), limits.wording(form) or "none"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def cell_of(limits: forms.Limits, form: str, measured: list[Cost]) -> str:
    if not measured:
        return "not measured"
    worst = limits.worst(measured)
    is_met = all(limits.holds(form, figure) for one in measured for figure in one)
    best, median = (f"{figure:.0f}" if figure >= 100 else f"{figure:.2f}" for figure in worst)
    return f"{best} ({median}), {'met' if is_met else 'MISSED'}" if limits.wording(form) else f"{best} ({median})"


def table(name: str, found: dict[str, object]) -> str:
    rows = [f"| {row['what']} | {row['target']} | {row['verdict']} |" for row in found["verdicts"]]
    lines = [
        f"\n## {BENCHES[name]}\n",
        f"`{found['command']}`, on {found['date']}, load average {found['load']}\n",
        "| measured | target | |",
        "|---|---|---|",
        *rows,
        "",
    ]
    return "\n".join(lines)


def with_short_rows(page: str, figures: dict[str, object]) -> str:
    """Return the page with the current figures in its short table."""
    ratios = {ratio["name"]: ratio for ratio in figures["benches"]["producer"]["ratios"]}
    for row, case in SHORT_ROWS.items():
        boto3, aiokpl = (ratios[f"{case}: {peer} / shardline"] for peer in ("boto3", "aiokpl"))
        cells = f"| {row} | {boto3['our_cost']:.1f} | {boto3['peer_cost']:.1f} | {aiokpl['peer_cost']:.0f} |"
        page = "\n".join(cells if line.startswith(f"| {row} |") else line for line in page.split("\n"))
    return page


def main() -> None:
    parser = argparse.ArgumentParser(description="Run all benchmarks and write docs/tested/benchmarks.md.")
    parser.add_argument("--quick", action="store_true", help="shorter and rougher; the page shows the command")
    parser.add_argument(
        "--only",
        choices=BENCHES,
        action="append",
        help="run only this benchmark, and keep the others' figures; repeatable",
    )
    parser.add_argument("--render", action="store_true", help="write the pages from the figures of the last run")
    options = parser.parse_args()
    if options.render:
        figures = json.loads(FIGURES.read_text())
    else:
        figures = measure(options.only or list(BENCHES), quick=options.quick)
    FIGURES.write_text(json.dumps(figures, indent=1) + "\n")
    for path, text in rendered(figures).items():
        path.write_text(text)
    for path in SHORT_TABLES:
        path.write_text(with_short_rows(path.read_text(), figures))
    subprocess.run([sys.executable, str(DOCS / "pictures" / "draw.py")], check=True)


if __name__ == "__main__":
    main()
