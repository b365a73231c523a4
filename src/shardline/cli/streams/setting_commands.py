"""Changes the settings of a stream from the command line.

``shardline streams`` has one command for each setting: ``retention``, ``mode``, ``encrypt``, ``record-size`` and
``tag``.

Invariants:

- Each command shows the value before and after. If the stream has the value already, the command sends no change and
  succeeds.
- A change with a risk is carried out only after a confirmation: typed at a terminal, or given as ``--yes``.
- A command waits until the stream is ACTIVE again, unless ``--no-wait`` is given. Tags take effect immediately.
"""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final, Literal

import click

from shardline.aio.client import Client
from shardline.cli.completion.suggestions import complete_stream
from shardline.cli.confirmation import require_confirmation
from shardline.cli.error_messages import WrongUsage
from shardline.cli.invocation import UTF8, Invocation, global_options
from shardline.cli.quantities import parse_size
from shardline.cli.retrying import wait_for_stream, with_retries
from shardline.cli.streams.stream_settings import (
    MODES,
    SettingChange,
    encryption_change,
    mode_change,
    record_size_change,
    retention_change,
    tag_change,
)
from shardline.cli.terminal import notice, print_lines, printable, waiting
from shardline.cli.time_arguments import duration_option, parse_duration
from shardline.codec.shapes import StreamSummary
from shardline.model.limits import KIB
from shardline.model.stream import parse_stream

Request = Callable[[Client], Awaitable[object]]

_STREAM: Final = click.argument("stream", metavar="STREAM", shell_complete=complete_stream)
_YES: Final = click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
_DRY_RUN: Final = click.option("--dry-run", is_flag=True, help="Print what would be done, and do nothing.")
_WAIT: Final = click.option(
    "--wait/--no-wait", default=True, show_default=True, help="Wait until the change is complete."
)
_TIMEOUT: Final = duration_option("--timeout", "5m", "Maximum time to wait.")


@click.command()
@_STREAM
@click.argument("duration", metavar="DURATION")
@_YES
@_DRY_RUN
@_WAIT
@_TIMEOUT
@global_options
@click.pass_obj
def retention(invocation: Invocation, /, stream: str, *, duration: str, **how: Any) -> None:
    """Change how long a stream keeps its records.

    DURATION is a whole number of hours from 24h to 365d. Lowering it deletes older records, so the command asks for
    confirmation.

    \b
    Examples:
      shardline streams retention orders 7d
      shardline streams retention orders 24h --dry-run
      shardline streams retention orders 24h --yes
    """
    seconds = parse_duration(duration)
    summary = invocation.run(_summary, invocation, stream)
    change = retention_change(summary, seconds)

    async def send(client: Client) -> None:
        if change.after > change.before:
            await client.increase_stream_retention_period(stream, change.after)
        else:
            await client.decrease_stream_retention_period(stream, change.after)

    _carry_out(invocation, stream, change, [send], how)


@click.command()
@_STREAM
@click.argument("mode", metavar="MODE", type=click.Choice([*MODES]))
@_YES
@_DRY_RUN
@_WAIT
@_TIMEOUT
@global_options
@click.pass_obj
def mode(invocation: Invocation, /, stream: str, *, mode: str, **how: Any) -> None:
    """Change the capacity mode of a stream: on-demand or provisioned.

    The service allows this twice in 24 hours, and the modes have different prices, so the command asks for
    confirmation. The stream keeps its shards and its records.

    \b
    Examples:
      shardline streams mode orders on-demand
      shardline streams mode orders provisioned --yes
    """
    summary = invocation.run(_summary, invocation, stream)
    change = mode_change(summary, mode)
    wanted: Literal["PROVISIONED", "ON_DEMAND"] = "ON_DEMAND" if mode == "on-demand" else "PROVISIONED"
    _carry_out(invocation, stream, change, [lambda client: client.update_stream_mode(summary.arn, wanted)], how)


@click.command()
@_STREAM
@click.option("--key", type=UTF8, metavar="KEY", help="KMS key: its id, its ARN or its alias.")
@click.option("--off", is_flag=True, help="Store new records unencrypted.")
@_YES
@_DRY_RUN
@_WAIT
@_TIMEOUT
@global_options
@click.pass_obj
def encrypt(invocation: Invocation, /, stream: str, *, key: str | None, off: bool, **how: Any) -> None:
    """Encrypt a stream with a KMS key, or stop encrypting it.

    The change applies to new records; stored records stay as they are. alias/aws/kinesis is the key that AWS manages
    for Kinesis. With another key, producers and consumers need permission to use it.

    \b
    Examples:
      shardline streams encrypt orders --key alias/aws/kinesis
      shardline streams encrypt orders --key arn:aws:kms:eu-west-1:111122223333:key/1234abcd-12ab-34cd-56ef-1234567890ab
      shardline streams encrypt orders --off
    """
    if (key is not None) == off:
        raise WrongUsage("give either --key KEY or --off")
    summary = invocation.run(_summary, invocation, stream)
    change = encryption_change(summary, key)

    async def send(client: Client) -> None:
        if key is not None:
            await client.start_stream_encryption(stream, key)
        else:
            await client.stop_stream_encryption(stream, change.before)

    _carry_out(invocation, stream, change, [send], how)


@click.command("record-size")
@_STREAM
@click.argument("size", metavar="SIZE")
@_DRY_RUN
@_WAIT
@_TIMEOUT
@global_options
@click.pass_obj
def record_size(invocation: Invocation, /, stream: str, *, size: str, **how: Any) -> None:
    """Change the maximum size of the records that a stream accepts.

    SIZE, from 1MiB to 10MiB, includes the key. Every reader must be able to take such records: a Lambda function, for
    example, gets at most 6 MB at a time.

    \b
    Examples:
      shardline streams record-size orders 5MiB
      shardline streams record-size orders 1536KiB --dry-run
    """
    size_bytes = parse_size(size)
    summary = invocation.run(_summary, invocation, stream)
    change = record_size_change(summary, size_bytes)
    kib = size_bytes // KIB
    _carry_out(invocation, stream, change, [lambda client: client.update_max_record_size(summary.arn, kib)], how)


@click.command()
@_STREAM
@click.argument("tags", nargs=-1, type=UTF8, metavar="[KEY=VALUE]...")
@click.option("--remove", multiple=True, type=UTF8, metavar="KEY", help="Remove this tag; repeatable.")
@_DRY_RUN
@global_options
@click.pass_obj
def tag(invocation: Invocation, /, stream: str, *, tags: tuple[str, ...], remove: tuple[str, ...], **how: Any) -> None:
    """Show, add, replace and remove the tags of a stream.

    Without tags or --remove, the command prints the stream's tags.

    \b
    Examples:
      shardline streams tag orders
      shardline streams tag orders team=billing env=prod
      shardline streams tag orders env=test --remove team
    """
    before = invocation.run(_tags, invocation, stream)
    if not tags and not remove:
        _print_tags(invocation, before)
        return
    change = tag_change(before, tags, remove)
    changed = {key: value for key, value in change.after.items() if before.get(key) != value}
    gone = [key for key in before if key not in change.after]
    requests: list[Request] = []
    if changed:
        requests.append(lambda client: client.add_tags_to_stream(stream, changed))
    if gone:
        requests.append(lambda client: client.remove_tags_from_stream(stream, gone))
    _carry_out(invocation, stream, change, requests, how)


def _print_tags(invocation: Invocation, tags: dict[str, str]) -> None:
    if invocation.is_json:
        invocation.print_json(tags)
    elif tags:
        print_lines(printable(f"{key}={value}") for key, value in sorted(tags.items()))
    else:
        notice("the stream has no tags")


async def _summary(invocation: Invocation, stream: str) -> StreamSummary:
    async with invocation.client() as client:
        return await with_retries(lambda: client.describe_stream_summary(stream))


async def _tags(invocation: Invocation, stream: str) -> dict[str, str]:
    async with invocation.client() as client:
        return await with_retries(lambda: client.list_tags_for_stream(stream))


def _carry_out(
    invocation: Invocation, stream: str, change: SettingChange, requests: list[Request], how: dict[str, Any]
) -> None:
    """Ask for confirmation if the change is risky, send the requests in order, wait, and report the change."""
    name, dry_run, is_sent = parse_stream(stream).name, how["dry_run"], change.is_needed and not how["dry_run"]
    if is_sent and change.risk is not None and not how["yes"]:
        question = f"{change.risk.capitalize()}. Change {name} in {invocation.place()}: {change.sentence}?"
        require_confirmation(question, f"{change.sentence} of {name}: {change.risk}")
    if is_sent:
        invocation.run(_send, invocation, stream, change, requests, how)
    if invocation.is_json:
        result = {"name": name, "setting": change.setting, "before": change.before, "after": change.after}
        invocation.print_json(result | {"changed": is_sent, "dry_run": dry_run})
    elif not change.is_needed:
        click.echo(printable(f"nothing to change: {name} already has {change.label} {change.shown_after}"))
    else:
        verb = "would change" if dry_run else "changed" if how.get("wait", True) else "changing"
        click.echo(printable(f"{verb} {name}: {change.sentence}"))
        if dry_run and change.risk is not None:
            notice(change.risk)


async def _send(
    invocation: Invocation, stream: str, change: SettingChange, requests: list[Request], how: dict[str, Any]
) -> None:
    async with invocation.client() as client:
        for request in requests:
            await with_retries(partial(request, client), changes=True)
        if how.get("wait"):
            with waiting(f"{change.sentence} of {stream}"):
                await wait_for_stream(client, stream, "ACTIVE", how["timeout"])
