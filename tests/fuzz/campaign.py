"""Fuzz every decoder for a while: ``python tests/fuzz/campaign.py --seconds 60`` (a target each), or ``--target NAME``.

Each target runs in a process of its own under Atheris (libFuzzer with Python's coverage). New inputs start from those in
``corpus/``; ``--keep`` adds what reached new code. A crash, a hang (10 s) or more than 1 GiB ends the target: the input is
kept in ``findings/`` and shown.
"""

import argparse
import re
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
CORPUS = HERE / "corpus"
FINDINGS = HERE / "findings"
LONGEST_INPUT = 4096
HANG_SECONDS = 10
MEMORY_MIB = 1024
TOLD_MAX = 6000  # characters
KEPT_MAX_BYTES = 300
KEPT_MAX_INPUTS = 40  # of a target


def say(*words):
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


def whole_seconds(word):
    """Parse a number of seconds for argparse. 0 is refused, because libFuzzer would never end."""
    if not word.isdecimal() or int(word) < 1:
        raise argparse.ArgumentTypeError(f"{word!r} is no time: it is whole seconds, 1 or more")
    return int(word)


def fuzz_here(name, arguments):
    """Run libFuzzer in the child process. Never returns."""
    import atheris

    with atheris.instrument_imports(include=["shardline"]):
        from targets import TARGETS
    atheris.Setup([sys.argv[0], *arguments], TARGETS[name])
    atheris.Fuzz()


def run_target(name, seconds, directory):
    """Run a target. Return whether nothing was found, libFuzzer's last line, and its whole output."""
    fresh, seeds = Path(directory) / name, CORPUS / name
    fresh.mkdir(parents=True)
    FINDINGS.mkdir(exist_ok=True)
    options = [
        f"-max_total_time={seconds}",
        f"-max_len={LONGEST_INPUT}",
        f"-timeout={HANG_SECONDS}",
        f"-rss_limit_mb={MEMORY_MIB}",
        f"-artifact_prefix={FINDINGS}/{name}-",
        "-print_final_stats=1",
        str(fresh),
        *([str(seeds)] if seeds.exists() else []),
    ]
    command = [sys.executable, __file__, "--child", name, *options]
    # Atheris prints the traceback on stdout, libFuzzer prints the rest on stderr.
    done = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", check=False
    )
    figures = [line for line in done.stdout.splitlines() if "number_of_executed_units" in line or " DONE " in line]
    return done.returncode == 0, " ".join(figures[-1:]), done.stdout


def without_progress(told):
    """Remove the hundreds of lines about coverage and imported modules, which would hide the traceback."""
    return "\n".join(line for line in told.splitlines() if not line.startswith(("#", "INFO: ")))


def replay_of(name, told):
    """Return how to reproduce the failure: with the input whose path libFuzzer printed."""
    kept = re.findall(r"Test unit written to (.+)", told)
    return [f"replay: .venv/bin/python tests/fuzz/campaign.py --child {name} {path}" for path in kept]


def keep(name, directory):
    """Add inputs to the corpus that reached new code: the smallest ones, and not too many."""
    known = {path.read_bytes() for path in (CORPUS / name).iterdir()}
    found = sorted((Path(directory) / name).iterdir(), key=lambda path: (path.stat().st_size, path.name))
    for path in found[: max(0, KEPT_MAX_INPUTS - len(known))]:
        if path.stat().st_size <= KEPT_MAX_BYTES and path.read_bytes() not in known:
            (CORPUS / name / path.name[:12]).write_bytes(path.read_bytes())


def main():
    if sys.argv[1:2] == ["--child"]:
        fuzz_here(sys.argv[2], sys.argv[3:])
    from targets import TARGETS

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=whole_seconds, default=60, help="for each target")
    parser.add_argument("--target", action="append", choices=sorted(TARGETS), help="only this one; may be repeated")
    parser.add_argument("--keep", action="store_true", help="add what reached new code to the corpus")
    options = parser.parse_args()
    broken = []
    with tempfile.TemporaryDirectory() as directory:
        for name in options.target or TARGETS:
            fine, figures, told = run_target(name, options.seconds, directory)
            say(f"{'ok ' if fine else 'BAD'} {name:16} {figures}")
            if not fine:
                broken.append(name)
                say(without_progress(told)[-TOLD_MAX:])
                say(*replay_of(name, told))
            elif options.keep:
                keep(name, directory)
    say(
        f"{len(broken)} of {len(options.target or TARGETS)} targets found something{': ' if broken else '.'}{broken or ''}"
    )
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
