"""Diagnoses a stream, or the connection and the account, from the command line.

``shardline doctor`` prints the findings of ``checks`` or ``account_checks``, and what to do about each problem.
"""

from collections.abc import Sequence
from itertools import groupby
from typing import Final

import click
from click.core import ParameterSource
from rich.text import Text

from shardline.cli.completion.suggestions import complete_consumer, complete_stream
from shardline.cli.doctor.account_checks import AccountDiagnosis
from shardline.cli.doctor.checks import Diagnosis, Role, check_coverage, check_kcl, check_store
from shardline.cli.doctor.connectivity_checks import check_implementation
from shardline.cli.doctor.diagnoses import Finding, Verdict
from shardline.cli.error_messages import WrongUsage
from shardline.cli.fan_out_option import checked_fan_out
from shardline.cli.groups.group_store import StorePlace
from shardline.cli.invocation import Invocation, global_options
from shardline.cli.quantities import counted
from shardline.cli.terminal import notice, print_table
from shardline.model.stream import parse_stream

_COLOURS: Final = {
    Verdict.OK: "green",
    Verdict.WARNING: "yellow",
    Verdict.FAILED: "bold red",
    Verdict.NOT_CHECKED: "dim",
}


@click.command()
@click.argument("stream", required=False, metavar="[STREAM]", shell_complete=complete_stream)
@click.option(
    "--for",
    "role",
    type=click.Choice(["all", "producer", "consumer"]),
    default="all",
    show_default=True,
    help="Which permissions to check.",
)
@click.option("--sample/--no-sample", default=True, help="Read a few recent records to measure the load.")
@click.option(
    "--fan-out",
    metavar="NAME",
    shell_complete=complete_consumer,
    help="Also check enhanced fan-out with this registered consumer (name or ARN).",
)
@click.option("--store", envvar="SHARDLINE_STORE", metavar="URL", help="Also check this lease store.")
@global_options
@click.pass_context
def doctor(context: click.Context, /, *, stream: str | None, role: Role, sample: bool, **more: str | None) -> None:
    """Diagnose the connection to Kinesis, and a stream.

    Checks settings, credentials, network and clock. With a stream, also checks the stream, its load, and the
    permissions of this identity; without one, the account. Nothing is written: permission to put is checked with dry
    runs. The exit code is 1 if a check failed.

    \b
    Examples:
      shardline doctor
      shardline doctor orders
      shardline doctor orders --for consumer --store redis://host/0
      shardline doctor orders --for consumer --fan-out billing
      shardline doctor orders --output json | jq '.checks[] | select(.verdict == "failed")'
    """
    invocation = context.ensure_object(Invocation)
    store, fan_out = more["store"], more["fan_out"]
    _check_options(context, stream, role, fan_out)

    async def diagnose() -> list[Finding]:
        if stream is None:
            findings = await AccountDiagnosis(invocation).run()
        else:
            ref = parse_stream(stream)
            findings = await Diagnosis(invocation, ref, role, sample, checked_fan_out(fan_out, stream)).run()
        if store is not None:
            place = StorePlace.of(store, invocation)
            findings.append(await check_store(place))
            findings += await check_kcl(place)
            if stream is not None:
                findings += await check_coverage(place, parse_stream(stream).name)
        return [check_implementation(), *findings]

    findings = invocation.run(diagnose)
    failures = sum(finding.verdict is Verdict.FAILED for finding in findings)
    warnings = sum(finding.verdict is Verdict.WARNING for finding in findings)
    if invocation.is_json:
        checks = [finding._asdict() for finding in findings]
        invocation.print_json({"stream": stream, "ok": not failures, "checks": checks})
    else:
        print_table(("", "CHECK", "RESULT, AND WHAT TO DO"), _rows(findings))
        notice(f"{failures} failed, {counted(warnings, 'warning')}")
        if stream is None and not failures:
            notice("`shardline doctor STREAM` also checks a stream, and the permissions on it")
    if failures:
        raise click.exceptions.Exit(1)


def _check_options(context: click.Context, stream: str | None, role: Role, fan_out: str | None) -> None:
    if stream is None:
        for name, option in (("role", "--for"), ("sample", "--sample"), ("fan_out", "--fan-out")):
            if context.get_parameter_source(name) is not ParameterSource.DEFAULT:
                raise WrongUsage(f"{option} works only with a STREAM")
    if role == "producer" and fan_out is not None:
        raise WrongUsage("--fan-out cannot be combined with --for producer: only consumers use it")


def _rows(findings: Sequence[Finding]) -> list[tuple[Text, str, str]]:
    """Return a row for each finding. Checks that were skipped for the same reason share a row."""
    rows: list[tuple[Text, str, str]] = []
    for (verdict, seen), same in groupby(findings, key=lambda finding: (finding.verdict, finding.seen)):
        first, *others = same
        label = Text(verdict.value, _COLOURS[verdict])
        if verdict is Verdict.NOT_CHECKED and others:
            names = ", ".join(finding.check for finding in others)
            rows.append((label, f"{first.check} ..", f"{seen}; also not checked: {names}"))
        else:
            rows += [(label, finding.check, _with_advice(finding)) for finding in (first, *others)]
    return rows


def _with_advice(finding: Finding) -> str:
    return finding.seen if finding.advice is None else f"{finding.seen}\n-> {finding.advice}"
