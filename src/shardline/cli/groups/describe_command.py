"""Shows one group, once or repeatedly, and can fail if the group is behind.

Invariants:

- ``--fail-if-behind`` does not succeed if a lag is unknown: such a lag counts as too large. Shards that are
  finished or have left the stream are ignored, because the group has nothing left to read in them.
- ``--watch`` redraws one picture on a terminal. In a pipe, it appends to the output, and ends when the pipe is closed.
- With ``--watch`` the exit code is 0 on Ctrl-C, 143 on SIGTERM, and 1 as soon as the group is behind.
"""

import signal
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any, Final, NamedTuple, final

import anyio
import click
from rich.console import Group
from rich.live import Live
from rich.text import Text

from shardline.aio.client import Client
from shardline.cli import standard_streams
from shardline.cli.error_messages import WrongUsage
from shardline.cli.groups import group_report
from shardline.cli.groups.group_lag import Lag, find_lags, rows_to_come
from shardline.cli.groups.group_options import observe_option, store_option
from shardline.cli.groups.group_store import (
    StorePlace,
    Watch,
    find_group,
    foreign_shards,
    opened,
    watch_groups,
    watching,
)
from shardline.cli.groups.group_suggestions import complete_group, complete_stream_of_group
from shardline.cli.groups.kcl_members import members_object, members_text, read_members
from shardline.cli.interrupts import interrupts
from shardline.cli.invocation import Invocation, global_options
from shardline.cli.quantities import counted
from shardline.cli.retrying import with_retries
from shardline.cli.terminal import console, notice, print_lines, printable
from shardline.cli.time_arguments import duration_option, duration_value, shown_time
from shardline.core.consumer.kcl_fleet import FleetMember
from shardline.core.error_codes import Failure
from shardline.model.shard import Shard
from shardline.ports import GroupOnStream

_TERMINATED: Final = 143


@final
class Description(NamedTuple):
    """One group, as the store and Kinesis describe it at one time."""

    name: GroupOnStream
    seen: Watch
    at: float
    """The time of the description, in seconds since 1970."""
    shards: Mapping[str, Shard] | None = None
    lags: Mapping[str, Lag] | None = None
    is_recreated: bool = False
    """Whether some rows belong to a deleted stream of the same name."""
    members: Sequence[FleetMember] | Failure = ()
    """The workers, if KCL workers are among them, or why they are unknown."""

    @property
    def title(self) -> str:
        return f"{self.name.group} on {self.name.stream}: {self.seen.judgement}"

    @property
    def notices(self) -> list[str]:
        """The remarks to print below the table."""
        found: list[str] = []
        if self.is_recreated:
            found.append(
                f"the stream {self.name.stream} was deleted and re-created: the group's positions belong to the old "
                f"stream; reset it with `shardline groups reset {self.name.group} --to TRIM_HORIZON`"
            )
        if isinstance(self.members, Failure):
            found.append(f"it is unknown whether KCL workers share the group: {self.members.message}")
        elif self.members:
            found.append(members_text(self.members))
        problems = {lag.problem for lag in (self.lags or {}).values() if lag.problem is not None}
        return found + [f"the lag of some shards is unknown: {problem}" for problem in sorted(problems)[:3]]


def find_delay(found: Description, limit: float) -> str | None:
    """If a shard is more than ``limit`` seconds behind, return a sentence that names the shard that is furthest behind.

    An unknown lag counts as the largest.
    """
    if found.is_recreated:
        return f"the stream {found.name.stream} was deleted and re-created: the lag of the group is unknown"
    lags = found.lags or {}
    late = {shard_id: lag for shard_id, lag in lags.items() if lag.millis is None or lag.millis > limit * 1000}
    if not late:
        return None
    worst = max(late, key=lambda shard_id: _badness(late[shard_id]))
    millis = late[worst].millis
    if millis is None:
        return f"the lag of {worst} is unknown: {late[worst].problem or 'Kinesis did not report it'}"
    allowed = group_report.shown_behind(round(limit * 1000))
    others = "" if len(late) == 1 else f", and {counted(len(late) - 1, 'other shard')} too"
    return f"{worst} is behind by {group_report.shown_behind(millis)}, more than {allowed}{others}"


def _badness(lag: Lag) -> float:
    return float("inf") if lag.millis is None else lag.millis


@click.command()
@click.argument("group", shell_complete=complete_group)
@click.argument("stream", required=False, shell_complete=complete_stream_of_group)
@store_option
@observe_option("4s")
@click.option("--lag/--no-lag", default=True, help="Ask Kinesis for the shards, and how far behind each is.")
@click.option(
    "--fail-if-behind",
    type=duration_value,
    metavar="DURATION",
    help="Exit with 1 if a shard is behind by more than this, or if its lag is unknown.",
)
@click.option("--watch", is_flag=True, help="Refresh until Ctrl-C.")
@duration_option("--interval", "5s", "With --watch: the time between two refreshes.", "DURATION")
@global_options
@click.pass_obj
def describe(invocation: Invocation, /, *, group: str, stream: str | None, store: str, **how: Any) -> None:
    """Show one group, shard by shard: its position, its lag and its owner.

    Finding the lag uses one of the five reads per second that Kinesis allows per shard. STREAM is needed only if the
    group reads several streams.

    \b
    Examples:
      shardline groups describe billing --store sqlite:///leases.db
      shardline groups describe billing orders --store redis://host/0 --observe 0
      shardline groups describe billing --store redis://host/0 --fail-if-behind 5m || alert
      shardline groups describe billing --store redis://host/0 --watch --interval 10s
      shardline groups describe billing --store redis://host/0 --output json | jq '.shards[].lag_ms'
    """
    if how["fail_if_behind"] is not None and not how["lag"]:
        raise WrongUsage("--fail-if-behind needs the lag: leave out --no-lag")

    async def read() -> Description:
        return await read_group(invocation, StorePlace.of(store, invocation), group, stream, **how)

    def check(found: Description) -> None:
        limit: float | None = how["fail_if_behind"]
        delay = None if limit is None else find_delay(found, limit)
        if delay is not None:
            raise click.ClickException(f"{found.name.group} on {found.name.stream}: {delay}")

    if how["watch"]:
        if invocation.run(_repeat, invocation, read, check, how["interval"]):
            raise click.exceptions.Exit(_TERMINATED)
    else:
        found = invocation.run(read)
        _show(invocation, found)
        check(found)


async def _repeat(
    invocation: Invocation,
    read: Callable[[], Awaitable[Description]],
    check: Callable[[Description], None],
    interval: float,
) -> bool:
    """Show the group repeatedly until a signal arrives or a check fails. Return whether the signal was SIGTERM."""
    with interrupts() as signals, signals.stage(), _Picture(invocation) as picture:
        while not standard_streams.is_lost():
            began_at = anyio.current_time()
            found = await read()
            picture.show(found)
            check(found)
            await anyio.sleep(max(0.0, began_at + interval - anyio.current_time()))
    return signals.first == signal.SIGTERM


async def read_group(
    invocation: Invocation,
    place: StorePlace,
    group: str,
    stream: str | None,
    *,
    observe: float,
    lag: bool,
    watch: bool,
    **_: object,
) -> Description:
    """Read the group from the store, and if ``lag`` is set, its lag from Kinesis."""
    name = await find_group(place, group, stream)
    async with opened(place, name) as stores:
        with nullcontext() if watch else watching(observe):  # a spinner would disturb the picture of --watch
            (seen,) = await watch_groups(stores, observe)
        members = await read_members(stores[0], seen.held.values())
    if not lag:
        return Description(name, seen, time.time(), members=members)
    async with invocation.client() as client:
        return (await describe_lag(client, name, seen))._replace(members=members)


async def describe_lag(client: Client, name: GroupOnStream, seen: Watch) -> Description:
    """Return the description of a group with its lag, which is read from Kinesis."""
    shards = {shard.shard_id: shard for shard in await with_retries(lambda: client.list_shards(str(name.stream)))}
    foreign = foreign_shards(seen.rows, shards)
    rows = [row for row in seen.rows.values() if row.shard_id in shards and row.shard_id not in foreign]
    rows += [] if foreign else rows_to_come(seen.rows, shards)
    lags = await find_lags(client, str(name.stream), rows)
    return Description(name, seen, time.time(), shards, lags, is_recreated=bool(foreign))


def _show(invocation: Invocation, found: Description) -> None:
    """Print the description of a group once."""
    if invocation.is_json:
        _print_json(invocation, found)
    else:
        group_report.print_shards(found.seen, found.shards, found.lags)
        notice(found.title)
    for text in found.notices:
        notice(text)


def _print_json(invocation: Invocation, found: Description) -> None:
    facts: dict[str, Any] = {
        "recreated": None if found.lags is None else found.is_recreated,
        "described_at": shown_time(found.at),
    }
    facts |= {"kcl": members_object(None if isinstance(found.members, Failure) else found.members)}
    shards = group_report.shard_objects(found.seen, found.shards, found.lags)
    invocation.print_json(group_report.group_object(found.name, found.seen) | facts | {"shards": shards})


@final
class _Picture:
    """The output of ``--watch``. On a terminal, it is redrawn in place; elsewhere, each new picture is appended."""

    def __init__(self, invocation: Invocation) -> None:
        self._invocation = invocation
        is_live = sys.stdout.isatty() and not invocation.is_json
        self._live = Live(console=console(), auto_refresh=False) if is_live else None

    def __enter__(self) -> "_Picture":
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def show(self, found: Description) -> None:
        title = f"{shown_time(found.at)} {found.title}"
        if self._live is not None:
            table = group_report.shard_table(found.seen, found.shards, found.lags)
            lines = [Text(printable(text)) for text in (title, *found.notices)]
            self._live.update(Group(lines[0], table, *lines[1:]), refresh=True)
            return
        if self._invocation.is_json:
            _print_json(self._invocation, found)
        else:
            print_lines([printable(title)])
            group_report.print_shards(found.seen, found.shards, found.lags)
        for text in found.notices:
            notice(text)
