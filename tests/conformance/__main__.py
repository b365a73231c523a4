"""Play the table of scenarios against Kinesis endpoints, and print every difference.

    python -m tests.conformance                  the embedded server and kinesis-local
    python -m tests.conformance --aws            AWS, with your own credentials; asks before it makes anything
    python -m tests.conformance --endpoint URL   any other endpoint

One line per difference: endpoint | scenario | step | field | expected | got. The exit code is 0 if there is none but those
that are listed as known, 1 if there are others (or a known one has vanished), 2 if the run cannot be started, 3 if it did
not come to its end: access was denied, credentials expired, a stream could not be deleted. See docs/tested/conformance.md.
"""

import argparse
import contextlib
import datetime as dt
import logging
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import NamedTuple

from tests.conformance import recording, sites
from tests.conformance.cost import counted, estimate
from tests.conformance.known import KNOWN, NOT_PLAYED, Difference, Judgement, judge
from tests.conformance.player import PREFIX, Result, stream_name
from tests.conformance.run import Outcome, Runner, clean, leftovers
from tests.conformance.scenario import Scenario
from tests.conformance.sites import Site, SiteError
from tests.conformance.state import RunState, StateError
from tests.conformance.table import SCENARIOS
from tests.conformance.wire import WireError

STATE = Path("build") / "conformance" / "aws.json"
JOBS = 4
AWS_JOBS = 6
OLD = 3600.0  # a run takes minutes: older streams belong to a run that was killed
OK, DIFFERENT, CANNOT_START, INCOMPLETE = 0, 1, 2, 3


class CannotStart(Exception):  # noqa: N818 - it ends the program with this sentence
    """The run cannot be started. Nothing was created."""


class Interrupts:
    """Once scenarios are played, the first SIGINT or SIGTERM is a request to stop, and the second one ends the program
    where it stands. Before that there is nothing to clean up: the first one ends it.
    """

    def __init__(self) -> None:
        self.stop = threading.Event()
        self.is_playing = False
        self.number = 0

    def install(self) -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._handle)

    def begin(self) -> threading.Event:
        """Note that from now on there may be something to clean up."""
        self.is_playing = True
        return self.stop

    def _handle(self, number: int, _: object) -> None:
        is_second, self.number = self.number != 0, number
        self.stop.set()
        if is_second or not self.is_playing:
            raise KeyboardInterrupt
        say(f"{signal.Signals(number).name}: stopping; streams are deleted. A second signal would leave them behind.")


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


# ---- the scenarios to play


def chosen(patterns: Sequence[str], table: dict[str, Scenario] = SCENARIOS) -> list[Scenario]:
    """The scenarios whose names match one of the patterns; all without patterns.

    Raises:
        CannotStart: a pattern matches nothing.
    """
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in table):
            raise CannotStart(f"no scenario is named {pattern!r}: --list shows them")
    return [one for name, one in table.items() if not patterns or any(fnmatchcase(name, each) for each in patterns)]


def on_aws(
    scenarios: Sequence[Scenario], *, account_settings: bool
) -> tuple[list[Scenario], list[tuple[Scenario, str]]]:
    """Return the scenarios that are played on AWS, and the others with the reason."""
    played, others = [], []
    for scenario in scenarios:
        if scenario.not_on_aws:
            others.append((scenario, scenario.not_on_aws))
        elif scenario.account_wide and not account_settings:
            others.append((scenario, "it changes settings of the whole account: --account-settings plays it"))
        else:
            played.append(scenario)
    return played, others


def played_on(name: str, scenarios: Sequence[Scenario]) -> list[Scenario]:
    """Return the scenarios without those that make no sense on this endpoint, which are printed."""
    played = []
    for scenario in scenarios:
        reasons = [why for pattern, why in NOT_PLAYED.get(name, {}).items() if fnmatchcase(scenario.name, pattern)]
        if reasons:
            say(f"not played: {scenario.name}: {reasons[0]}")
        else:
            played.append(scenario)
    return played


# ---- results


def differences_of(results: Sequence[Result]) -> Iterator[Difference]:
    for result in results:
        for at, step in enumerate(result.steps, 1):
            for mismatch in step.mismatches:
                yield Difference(result.scenario, at, step.label, mismatch)


class Report(NamedTuple):
    code: int
    judgement: Judgement


def report(name: str, scenarios: Sequence[Scenario], outcome: Outcome) -> Report:
    """Print the results. Return the exit code."""
    results = list(outcome.results.values())
    played = [result.scenario for result in results if not result.not_run]
    judgement = judge(differences_of(results), KNOWN.get(name, ()), played, SCENARIOS)
    for difference in judgement.unknown:
        say(f"DIFFERENT {name} | {difference}")
    for entry in judgement.vanished:
        say(f"VANISHED {name} | {entry} | it is listed as known and no longer shows: take it off the list")
    for result in results:
        if result.not_run:
            say(f"NOT RUN {name} | {result.scenario} | {result.not_run}")
    steps = sum(len(result.steps) for result in results)
    missing = len(scenarios) - len(played)
    say(
        f"{name}: {counted(len(played), 'scenario')} of {len(scenarios)} played, {counted(steps, 'step')}, "
        f"{counted(len(judgement.unknown), 'difference')}, {len(judgement.known)} more known"
    )
    if outcome.broken_off:
        say(f"{name}: the run was broken off: {outcome.broken_off}")
    if judgement.unknown or judgement.vanished:
        return Report(DIFFERENT, judgement)
    return Report(INCOMPLETE if missing or outcome.broken_off or outcome.left else OK, judgement)


def tell(result: Result, seconds: float) -> None:
    differs = any(step.mismatches for step in result.steps)
    word = "not run" if result.not_run else "differs" if differs else "ok"
    say(f"{word:8} {result.scenario} ({counted(len(result.steps), 'step')}, {seconds:.1f} s)")


# ---- endpoints


def play_local(options: argparse.Namespace, scenarios: list[Scenario], interrupts: Interrupts) -> int:
    """Play on the embedded server, one server per scenario, then on kinesis-local."""
    codes = []
    for name in options.on:
        say(f"== {name}")
        with contextlib.ExitStack() as stack:
            if name == "embedded":
                open_site = sites.embedded
            else:
                site = stack.enter_context(sites.kinesis_local())
                open_site = lambda shared=site: contextlib.nullcontext(shared)  # noqa: E731
            codes.append(
                play_and_report(name, options, played_on(name, scenarios), RunState(None, name), open_site, interrupts)
            )
    return max(codes)


def play_and_report(name, options, scenarios, state, open_site, interrupts) -> int:
    runner = Runner(open_site, state, jobs=options.jobs or JOBS, stop=interrupts.begin(), on_result=tell)
    outcome = runner.play(scenarios)
    if name == "kinesis-local" and not outcome.broken_off:
        play_again(runner, state, scenarios, outcome)
    code = report(name, scenarios, outcome).code
    if options.record is not None and not outcome.broken_off:
        write_recording(options.record, outcome, open_site)
    return code


def play_again(runner: Runner, state: RunState, scenarios: list[Scenario], outcome: Outcome) -> None:
    """Play scenarios with unknown differences again: kinesis-local sometimes fails on a busy machine."""
    listed = KNOWN["kinesis-local"]
    odd = {one.scenario for one in judge(differences_of(list(outcome.results.values())), listed, (), ()).unknown}
    if odd:
        say(f"once more: {', '.join(sorted(odd))}")
        state.forget_results(odd)
        outcome.results |= runner.play([scenario for scenario in scenarios if scenario.name in odd]).results


def play_endpoint(options: argparse.Namespace, scenarios: list[Scenario], interrupts: Interrupts) -> int:
    """Play on any endpoint. Its streams are deleted, but no state is kept."""
    with sites.at_url(options.endpoint) as site:
        state = RunState(None, options.endpoint)
        try:
            open_site = lambda: contextlib.nullcontext(site)  # noqa: E731
            return play_and_report(site.name, options, scenarios, state, open_site, interrupts)
        finally:
            clean(site, state, list(state.streams), say)


def play_aws(options: argparse.Namespace, scenarios: list[Scenario], interrupts: Interrupts) -> int:
    scenarios, others = on_aws(scenarios, account_settings=options.account_settings)
    probe = stream_name("probe", "no-such-stream", "probe")
    with sites.aws(probe) as site:
        key = f"{site.wire.endpoint_url} {site.region} account {site.account}"
        old = RunState.load(options.state, key)
        if options.clean:
            return clean_aws(site, old or RunState(None, key), options)
        if old is not None and not (options.resume or options.fresh):
            raise CannotStart(
                f"an earlier run did not come to its end ({counted(len(old.finished), 'scenario')} finished, "
                f"{counted(len(old.streams), 'stream')} left): --resume goes on with it, --fresh deletes its streams and "
                "starts afresh, --clean only deletes them"
            )
        state = old if old is not None and options.resume else RunState(options.state, key)
        for scenario, reason in others:
            say(f"not played: {scenario.name}: {reason}")
        confirm(site, [one for one in scenarios if state.result_of(one) is None], options)
        if old is not None and clean(site, old, list(old.streams), say):
            return INCOMPLETE
        forgotten = [
            one.name for one in leftovers(site) if one.run_id != state.run_id and time.time() - one.created_at > OLD
        ]
        if forgotten:
            say(f"{counted(len(forgotten), 'stream')} of runs that were killed more than an hour ago: deleted")
            clean(site, RunState(None, key), forgotten, say)
        return carry_out(site, state, scenarios, options, interrupts)


def carry_out(
    site: Site, state: RunState, scenarios: list[Scenario], options: argparse.Namespace, interrupts: Interrupts
) -> int:
    runner = Runner(
        lambda: contextlib.nullcontext(site),
        state,
        jobs=options.jobs or AWS_JOBS,
        stop=interrupts.begin(),
        on_result=tell,
    )
    outcome = Outcome(broken_off="it failed")
    try:
        outcome = runner.play(scenarios)
    finally:
        say(f"deleting {counted(len(state.streams), 'stream')}, and waiting until none is left")
        outcome.left = clean(site, state, list(state.streams), say)
        if outcome.left:
            say(
                f"streams are left, which cost money: run again with --clean, or delete them yourself (names: {PREFIX}*)"
            )
        else:
            say("no stream is left")
    code = report("aws", scenarios, outcome).code
    if outcome.left:
        return INCOMPLETE
    if outcome.broken_off:
        say("go on with --resume")
        return INCOMPLETE
    if options.record is not None:
        write_recording(options.record, outcome, lambda: contextlib.nullcontext(site))
    if any(result.not_run for result in outcome.results.values()):
        say("--resume plays what was not run, once access is granted")
    else:
        state.end()
    return code


def clean_aws(site: Site, state: RunState, options: argparse.Namespace) -> int:
    """Delete every stream of this program, of any run."""
    names = sorted({*state.streams, *(one.name for one in leftovers(site))})
    if not names:
        say("no stream of this program is left")
        state.end()
        return OK
    say(f"In account {site.account}, {site.region}: {', '.join(names)}")
    ask(f"Delete {counted(len(names), 'stream')}?", options)
    if clean(site, state, names, say):
        return INCOMPLETE
    say(f"{counted(len(names), 'stream')} deleted; none is left")
    return OK


def confirm(site: Site, scenarios: list[Scenario], options: argparse.Namespace) -> None:
    jobs = options.jobs or AWS_JOBS
    say(f"Endpoint {site.wire.endpoint_url}, region {site.region}, account {site.account}.")
    say(f"To be played: {counted(len(scenarios), 'scenario')}. This makes {estimate(scenarios, jobs)}.")
    say(f"The streams are named {PREFIX}*, and are deleted at the end. Nothing else of the account is touched.")
    for scenario in scenarios:
        if scenario.slow:
            say(f"  {scenario.name} takes {scenario.seconds / 60:.0f} minutes: {scenario.slow}")
    ask("Start?", options)


def ask(question: str, options: argparse.Namespace) -> None:
    """Ask for confirmation. Raise CannotStart unless the answer is yes."""
    if options.yes:
        return
    if not sys.stdin.isatty():
        raise CannotStart("not a terminal: pass --yes (make: YES=1) to confirm")
    sys.stdout.write(f"{question} [y/N] ")
    sys.stdout.flush()
    if sys.stdin.readline().strip().lower() not in {"y", "yes"}:
        raise CannotStart("nothing was made")


def write_recording(path: Path, outcome: Outcome, open_site) -> None:
    with open_site() as site:
        keys = site.wire.credentials()
        hidden = [keys.access_key, keys.secret_key, keys.token or "", *([site.account] if site.name == "aws" else ())]
        name = "aws" if site.name == "aws" else "another endpoint"
    today = dt.datetime.now(dt.UTC).date().isoformat()
    kept = recording.recording_of(outcome.results.values(), endpoint=name, date=today)
    recording.write(path, kept, hidden)
    say(f"recorded: {path}")


# ---- the program


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="python -m tests.conformance", description=__doc__.partition("\n")[0])
    where = made.add_mutually_exclusive_group()
    where.add_argument("--aws", action="store_true", help="play against AWS, with your own credentials")
    where.add_argument("--endpoint", metavar="URL", help="play against this endpoint")
    where.add_argument("--on", action="append", choices=("embedded", "kinesis-local"), help="only this local server")
    made.add_argument(
        "--only", action="append", default=[], metavar="PATTERN", help="scenarios by name, such as 'put-*'"
    )
    made.add_argument("--list", action="store_true", help="list the scenarios")
    made.add_argument("--jobs", type=int, help="scenarios side by side")
    made.add_argument("--record", type=Path, metavar="FILE", help="write what was seen as a recording")
    made.add_argument("--yes", action="store_true", help="do not ask")
    made.add_argument("--resume", action="store_true", help="go on with a run that was broken off")
    made.add_argument("--fresh", action="store_true", help="delete the streams of such a run, and start afresh")
    made.add_argument("--clean", action="store_true", help="only delete streams that are left of earlier runs")
    made.add_argument("--state", type=Path, default=STATE, metavar="FILE", help=f"where a run is remembered ({STATE})")
    made.add_argument("--account-settings", action="store_true", help="also play what changes settings of the account")
    return made


def main(arguments: Sequence[str] | None, interrupts: Interrupts) -> int:
    options = parser().parse_args(arguments)
    if (options.resume or options.fresh or options.clean) and not options.aws:
        raise CannotStart("--resume, --fresh and --clean belong to --aws")
    if options.jobs is not None and not 1 <= options.jobs <= 32:
        raise CannotStart(f"--jobs is a number from 1 to 32, not {options.jobs}")
    scenarios = chosen(options.only)
    if options.list:
        for scenario in scenarios:
            say(f"{scenario.name:24} {scenario.title} ({counted(len(scenario.steps), 'step')})")
        return OK
    logging.getLogger("shardline").setLevel(logging.ERROR)  # log lines of our client are not results
    options.on = options.on or ["embedded", "kinesis-local"]
    play = play_aws if options.aws else play_endpoint if options.endpoint else play_local
    return play(options, scenarios, interrupts)


def command(arguments: Sequence[str] | None = None) -> int:
    """Run the command, and return its exit code."""
    interrupts = Interrupts()
    interrupts.install()
    try:
        code = main(arguments, interrupts)
    except (CannotStart, SiteError, StateError, WireError, recording.RecordingError) as problem:
        sys.stderr.write(f"{problem}\n")
        code = CANNOT_START
    except KeyboardInterrupt:
        if interrupts.is_playing:
            sys.stderr.write("ended by a second signal: streams may be left, which cost money; run with --clean\n")
        else:
            sys.stderr.write("interrupted: nothing was made\n")
        code = INCOMPLETE
    return 128 + interrupts.number if interrupts.number else code


if __name__ == "__main__":
    sys.exit(command())
