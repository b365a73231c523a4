"""What do all benchmarks say, on one page with its plots?

Runs every script of ``make bench``, keeps what they found in ``docs/benchmarks.json`` and writes ``docs/benchmarks.md``
from it, and the short tables of the README and of the first page. ``docs/pictures/draw.py`` draws the plots;
``tests/docs/test_benchmarks_page.py`` fails when page and figures differ. ``guard.py`` compares the ratios to the peers
with these.

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

HERE = Path(__file__).parent
DOCS = HERE.parent / "docs"
FIGURES = DOCS / "benchmarks.json"
PAGE = DOCS / "benchmarks.md"
PEER_PYTHON = HERE.parent / ".servers/clients/bin/python"
BENCHES = {
    "producer": "Producer: CPU, latency, memory",
    "consumer": "Consumer: CPU, idle shards, first record, commits",
    "growth": "Growth: shards and records",
    "wire": "The wire: one call",
    "aggregation": "Aggregation: building and opening",
    "server": "The embedded server",
    "failover": "Failover: how long a shard waits",
}
OURS = ("boto3", "aiobotocore", "aws_kinesis_agg", "msgspec", "anyio", "trio")
PEERS = ("aiokpl", "async-kinesis", "uvloop")
# The rows of the short tables in the README and on the first page, and the cases that they tell of.
SHORT_TABLES = (HERE.parent / "README.md", DOCS / "index.md")
SHORT_ROWS = {
    "100 B, a key each": "100 B records, uuid keys",
    "100 B, 1,000 keys": "100 B records, 1,000 hot keys",
    "1 KiB, a key each": "1 KiB records, uuid keys",
}
HEAD = """\
# Benchmarks

What a record costs, how long it takes and what it weighs, with the other libraries beside us. Made by
`make bench-report` ({date}); `make bench` prints the same tables, with every client's own row. Above each
table stands the command that made it, to be run in the environment that `make setup` makes (`. .venv/bin/activate`):
with `--quick` or few rounds it is a short run, and rougher.

`make bench-guard`, which CI runs, fails when a ratio to a peer falls by more than a quarter. It measures aggregation,
the producer (by boto3 and aiobotocore: what aiokpl needs swings too much) and the consumer, in fewer rounds, as long as
those here, and compares the least that each client needed with the lower of the two ratios here. What looks fallen it
measures again, up to five times: other jobs only ever add CPU, so noise goes away and a loss stays. If it fails, run it
on a quiet machine; if the loss is meant, `make bench-report`.

How it is measured, so that a shared machine does not decide: CPU seconds of the client's process, user and system,
since the time on the clock says more about the machine; all clients in one run, in turns, against the same server,
which is never the bottleneck; the peers in their own environment, with the settings that serve them best (aiokpl on
uvloop).
Other jobs only ever add CPU, so the best round of each counts, and the median beside it; a ratio meets its target only
if both do. Latency runs from when a record was due, put or not, so that a stall counts for all that it delays.

Python {python}, {machine}; load of the machine before and after the last of them: {load}. {versions}. The server is our
own or a sink on loopback: nothing here was measured against AWS.
"""
BELOW_TABLE = {
    "producer": """
![CPU seconds for a million records, of every client](pictures/peers.svg)

What a ratio is depends on the machine as well: the targets were set on another one, and the day before all of them were
met there: aiokpl needed 74.7, 84.1 and 34.7 times our CPU, boto3 3.8, 4.2 and 2.6 times, aiobotocore 3.6 times, and
async-kinesis 6.2 times for aggregates. A record cost us 5.4 us there, and aiokpl 407.

Latency is that of every client's own settings: aiokpl lets a record linger for 100 ms, as we do; aiobotocore has no
batches of its own, so what came together is sent every 100 ms.

![How long a record is under way, by percentile](pictures/latency.svg)
""",
    "growth": """
The more shards, the fewer records of each come within `linger` and share an entry (about 350 over one shard, 16 over
1,024, at this rate), and an entry costs as much as several records. So two things grow in the first series of the
producer by shards, and its limit is twice the least: that is what a user pays who spreads the same records over a
thousand times the shards. In the second every entry has 16 records, over one shard too: what grows there is the number
of shards alone.

What remains of that is mostly memory: over one shard a record is sent while the caches still have it; over many a tenth
of a second of records waits, and is touched in the order of the shards. How much that costs depends on how much cache
the machine leaves to the process: on shared machines the first series has been seen to end at 1.35 and at 1.97 times
its least.

![CPU of a record by the number of records and of shards](pictures/growth.svg)
""",
    "failover": """
Seconds by the clock, on a machine that others used too: two worker processes over one SQLite file, 8 shards, 200
records a second. A worker that is killed or stopped is replaced within the lease duration, two scans and a second; one
that is told to go, or asked for a shard, hands over at once. What came twice is what the dead worker had handled and
not yet committed. What else can go wrong, and what the fleet does then on every store, is on the page of the
[drills](drills.md).
""",
}


def installed(python: str, names: tuple[str, ...]) -> dict[str, str]:
    """The versions of packages in another environment; those that it has."""
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
        subprocess.run(line + shorter, check=True)
        return {"command": command, **json.loads(found.read_text())}


def load() -> str:
    return f"{os.getloadavg()[0]:.1f}"


def measure(names: list[str], *, quick: bool) -> dict[str, object]:
    """Run these; of the others what was found before is kept."""
    kept = json.loads(FIGURES.read_text()) if FIGURES.exists() and names != list(BENCHES) else {}
    before = load()
    benches = kept.get("benches", {}) | {name: run_bench(name, quick=quick) for name in names}
    return {
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "python": platform.python_version(),
        "machine": f"{platform.system()} on {os.cpu_count()} cores ({platform.machine()})",
        "load": f"{before} and {load()}",
        "versions": {name: version(name) for name in OURS} | installed(str(PEER_PYTHON), PEERS),
        "benches": {name: benches[name] for name in BENCHES if name in benches},
    }


def rendered(figures: dict[str, object]) -> str:
    """The page."""
    versions = ", ".join(f"{name} {one}" for name, one in figures["versions"].items())
    parts = [HEAD.format(**{**figures, "versions": versions})]
    for name, found in figures["benches"].items():
        rows = [f"| {one['what']} | {one['target']} | {one['verdict']} |" for one in found["verdicts"]]
        command = f"`{found['command']}`"
        table = ["| measured | target | |", "|---|---|---|", *rows]
        parts.append("\n".join([f"\n## {BENCHES[name]}\n", f"{command}\n", *table, ""]))
        parts.append(BELOW_TABLE.get(name, ""))
    return "".join(parts)


def with_short_rows(page: str, figures: dict[str, object]) -> str:
    """A page whose short table says what was measured."""
    ratios = {one["name"]: one for one in figures["benches"]["producer"]["ratios"]}
    for row, case in SHORT_ROWS.items():
        boto3, aiokpl = (ratios[f"{case}: {peer} / shardline"] for peer in ("boto3", "aiokpl"))
        cells = f"| {row} | {boto3['our_cost']:.1f} | {boto3['peer_cost']:.1f} | {aiokpl['peer_cost']:.0f} |"
        page = "\n".join(cells if line.startswith(f"| {row} |") else line for line in page.split("\n"))
    return page


def main() -> None:
    parser = argparse.ArgumentParser(description="Run all benchmarks and write docs/benchmarks.md.")
    parser.add_argument("--quick", action="store_true", help="shorter, and rougher: the page says so")
    parser.add_argument("--only", choices=BENCHES, action="append", help="this one, and keep the others' figures")
    parser.add_argument("--render", action="store_true", help="write the page anew from the figures that there are")
    options = parser.parse_args()
    if options.render:
        figures = json.loads(FIGURES.read_text())
    else:
        figures = measure(options.only or list(BENCHES), quick=options.quick)
    FIGURES.write_text(json.dumps(figures, indent=1) + "\n")
    PAGE.write_text(rendered(figures))
    for path in SHORT_TABLES:
        path.write_text(with_short_rows(path.read_text(), figures))
    subprocess.run([sys.executable, str(DOCS / "pictures" / "draw.py")], check=True)


if __name__ == "__main__":
    main()
