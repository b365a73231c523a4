"""Reads a stream from the command line.

Invariants:

- The command leaves no trace: no lease, no checkpoint, no registered consumer. ``--fan-out`` uses a consumer that is
  registered already.
- The exit code is 0 when the bound is reached, on Ctrl-C, and when the output pipe is closed; it is 143 on SIGTERM.
- With ``-n`` the command prints at most that many records.
"""

import signal
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, final

import anyio
import click
from anyio.streams.memory import MemoryObjectReceiveStream

from shardline.aio.client import Client
from shardline.aio.consumer.fan_out import FanOut
from shardline.cli.completion.suggestions import (
    complete_consumer,
    complete_end,
    complete_shard,
    complete_start,
    complete_stream,
)
from shardline.cli.error_messages import WrongUsage
from shardline.cli.fan_out_option import checked_fan_out
from shardline.cli.interrupts import interrupts
from shardline.cli.invocation import UTF8, Invocation, global_options
from shardline.cli.quantities import counted, in_units
from shardline.cli.retrying import with_retries
from shardline.cli.streams.resharding import shard_id_of
from shardline.cli.tail.page_sources import FanOutSource, PageSource, PollingSource
from shardline.cli.tail.pipe_output import PipeOutput
from shardline.cli.tail.record_formats import Format, make_format
from shardline.cli.tail.shard_following import Bound, Page, ShardReading
from shardline.cli.terminal import notice
from shardline.cli.time_arguments import duration_option, parse_moment, parse_start
from shardline.core.consumer.deaggregator import Deaggregator
from shardline.errors import ServiceError, UsageError
from shardline.model.position import LATEST, Position
from shardline.model.record import Origin, Record, hand_out
from shardline.model.shard import Shard
from shardline.model.stream import parse_stream

_PAGES_AHEAD: Final = 4
_TERMINATED: Final = 143
_CONNECTIONS: Final = 200  # enough that a slow call to one shard does not delay the other shards


@click.command()
@click.argument("stream", metavar="STREAM", shell_complete=complete_stream)
@click.option(
    "--shard",
    "shards",
    multiple=True,
    metavar="ID",
    shell_complete=complete_shard,
    help="Read only this shard (id or number); repeatable.",
)
@click.option(
    "--from",
    "start",
    default="LATEST",
    show_default=True,
    metavar="WHERE",
    shell_complete=complete_start,
    help="TRIM_HORIZON, LATEST, a time, an age (15m), or with one --shard a sequence number.",
)
@click.option(
    "-f", "--follow", is_flag=True, help="Keep reading as records arrive: the default without --until and -n."
)
@click.option(
    "--until",
    metavar="WHEN",
    shell_complete=complete_end,
    help="Stop at `latest` (the newest record now), a time, an age, or +30s from now.",
)
@click.option("-n", "--count", type=click.IntRange(1), metavar="N", help="Stop after this many records.")
@click.option(
    "--key", "only_keys", type=UTF8, multiple=True, metavar="KEY", help="Print only records with this key; repeatable."
)
@click.option("--deaggregate/--no-deaggregate", default=True, show_default=True, help="Open KPL aggregates.")
@click.option(
    "-p",
    "--format",
    "format_",
    default="raw",
    show_default=True,
    metavar="FORMAT",
    help="raw, json, base64, or a template.",
)
@click.option(
    "--fan-out",
    metavar="NAME",
    shell_complete=complete_consumer,
    help="Read by enhanced fan-out, with this registered consumer (name or ARN).",
)
@click.option("-k", "--keys", is_flag=True, help="Print the key before the data.")
@click.option("-t", "--times", is_flag=True, help="Print the arrival time before the data.")
@click.option("--headers", is_flag=True, help="Print the headers, as a JSON object, before the data.")
@click.option(
    "-d", "--delimiter", default="\\n", show_default=True, metavar="TEXT", help="Text to print after each record."
)
@duration_option("--give-up-after", "1m", "Give up after this long without an answer.")
@global_options
@click.pass_obj
def tail(invocation: Invocation, /, stream: str, **settings: Any) -> None:
    """Read a stream, and follow it as records arrive.

    Reading starts at --from (LATEST by default) and continues until Ctrl-C, unless --until or -n ends it; -f only
    makes this explicit. All shards are read, through resharding, and records with the same key come in order. Nothing
    is stored: no consumer group is affected, and no lease is taken. The exit code is also 0 if Ctrl-C or a closed pipe
    ends the reading.

    With --fan-out, records are pushed to a registered consumer. Use one that no group reads with: each shard has one
    subscription per consumer, so the two would interrupt each other.

    A template has fields in braces: {data} {base64} {key} {headers} {hash_key} {time} {timestamp} {shard} {sequence}
    {sub_sequence} {size} {lag} {stream}.

    \b
    Examples:
      shardline tail -f orders
      shardline tail orders --from 15m --until latest | grep customer-7
      shardline tail orders --from TRIM_HORIZON -n 10 --format '{time} {shard} {key} {data}'
      shardline tail orders --from 2026-03-01T09:30Z --until 2026-03-01T10:00Z --output json | jq .key
      shardline tail orders --fan-out debugging
      shardline tail orders --shard 3 --from 49590338271490256608559692538361571095921575989136588898
    """
    if settings["follow"] and settings["until"] is not None:
        raise WrongUsage("-f cannot be combined with --until, which ends the reading")
    if settings["follow"] and settings["count"] is not None:
        raise WrongUsage(
            "-f cannot be combined with -n, which stops after that many records; --from 15m starts in the past"
        )
    now = time.time()
    try:
        start = parse_start(settings["start"], now)
    except UsageError as error:
        raise WrongUsage(f"--from: {error}") from None
    if start.sequence_number is not None and len(settings["shards"]) != 1:
        raise WrongUsage("--from with a sequence number needs one --shard: it is a position in that shard")
    fan_out = checked_fan_out(settings["fan_out"], stream)
    bound = _bound(settings["until"], now)
    request = TailRequest(stream, start, bound, settings["shards"], settings["give_up_after"], fan_out)
    printer = Printer(stream, _format(invocation, settings), settings)
    began_at = time.monotonic()
    is_terminated = invocation.run(_tail, invocation, request, printer)
    if sys.stderr.isatty():
        notice(
            f"{counted(printer.count, 'record')}, {in_units(printer.size_bytes)}, {time.monotonic() - began_at:,.1f} s"
        )
    if is_terminated:
        raise click.exceptions.Exit(_TERMINATED)


@final
class TailRequest(NamedTuple):
    """Says which shards of a stream to read, from which position, and how."""

    stream: str
    start: Position
    bound: Bound
    shards: tuple[str, ...]
    """The shards to read. An empty collection means all shards, and their children after a reshard."""
    give_up_after: float
    fan_out: FanOut | None
    """The registered consumer to read with. ``None`` means polling."""

    def first_of(self, shards: Sequence[Shard]) -> list[str]:
        """Return the ids of the shards to start with."""
        known = {shard.shard_id for shard in shards}
        if self.shards:
            ids = list(dict.fromkeys(map(shard_id_of, self.shards)))
            for shard_id in ids:
                if shard_id not in known:
                    raise UsageError(f"the stream {self.stream} has no shard {shard_id}")
            return ids
        if self.start == LATEST:
            return [shard.shard_id for shard in shards if shard.is_open]
        return [shard.shard_id for shard in shards if known.isdisjoint(shard.parent_ids)]


def _bound(text: str | None, now: float) -> Bound:
    if text is None:
        return Bound()
    if text.lower() == "latest":
        return Bound(at_latest=True)
    try:
        return Bound(until=parse_moment(text, now))
    except UsageError as error:
        raise WrongUsage(f"--until: {error}, nor `latest`") from None


def _format(invocation: Invocation, settings: dict[str, Any]) -> Format:
    try:
        return make_format(
            "json" if invocation.is_json else settings["format_"],
            keys=settings["keys"],
            times=settings["times"],
            headers=settings["headers"],
            delimiter=settings["delimiter"],
            is_terminal=sys.stdout.isatty(),
        )
    except UsageError as error:
        raise WrongUsage(f"--format: {error}") from None


async def _tail(invocation: Invocation, request: TailRequest, printer: "Printer") -> bool:
    """Read until the bound or a signal, and return whether SIGTERM ended the reading."""
    with interrupts() as signals, signals.stage():
        async with invocation.client(max_connections=_CONNECTIONS) as client:
            await _read(client, request, printer)
    return signals.first == signal.SIGTERM


async def _source_maker(client: Client, request: TailRequest) -> Callable[[str, Position], PageSource]:
    """Return a function that makes the source of a shard's pages."""
    ref = parse_stream(request.stream)
    if request.fan_out is None:
        return lambda shard_id, start: PollingSource(client, ref, shard_id, start, request.give_up_after)
    arn = await _consumer_arn(client, request.stream, request.fan_out)
    return lambda shard_id, start: FanOutSource(client, arn, shard_id, start, request.give_up_after)


async def _consumer_arn(client: Client, stream: str, fan_out: FanOut) -> str:
    """Return the ARN of the registered consumer, which must be ACTIVE."""
    if fan_out.is_arn:
        return fan_out.name
    name = fan_out.name
    try:
        consumer = await with_retries(lambda: client.describe_stream_consumer(stream=stream, name=name))
    except ServiceError as error:
        if error.kind != "not-found" or error.operation != "DescribeStreamConsumer":
            raise
        advice = f"`shardline streams consumers register {stream} {name}` registers it"
        raise click.ClickException(f"{stream} has no registered consumer {name}: {advice}") from None
    if consumer.status != "ACTIVE":
        raise click.ClickException(f"the registered consumer {name} of {stream} is {consumer.status}, not ACTIVE")
    return consumer.arn


async def _read(client: Client, request: TailRequest, printer: "Printer") -> None:
    shards = await with_retries(lambda: client.list_shards(request.stream))
    make_source = await _source_maker(client, request)
    send, receive = anyio.create_memory_object_stream[Page](_PAGES_AHEAD)
    reading = ShardReading(
        client,
        request.stream,
        send,
        make_source=make_source,
        bound=request.bound,
        follow=not request.shards,
    )
    output = PipeOutput()
    try:
        async with anyio.create_task_group() as tasks:

            async def stop_if_pipe_closes() -> None:
                await output.is_closed.wait()
                tasks.cancel_scope.cancel()

            tasks.start_soon(stop_if_pipe_closes)
            tasks.start_soon(reading.run, shards, request.first_of(shards), request.start)
            await printer.print_all(receive, output)
            tasks.cancel_scope.cancel()
    except* BrokenPipeError:
        output.is_closed.set()  # a closed pipe ends the reading; it is not an error
    finally:
        output.close()


@final
class Printer:
    """Prints the records of the pages that it receives."""

    def __init__(self, stream: str, format_record: Format, settings: dict[str, Any]) -> None:
        self._stream = stream
        self._format_record = format_record
        self._deaggregates = settings["deaggregate"]
        self._keys = frozenset(settings["only_keys"])
        self._left: int | None = settings["count"]
        self.count = 0
        self.size_bytes = 0

    async def print_all(self, pages: MemoryObjectReceiveStream[Page], output: PipeOutput) -> None:
        """Print the records of all pages, or as many as ``-n`` allows."""
        async with pages:
            async for page in pages:
                records = self._records(page)
                if self._left is not None:
                    records = records[: self._left]
                    self._left -= len(records)
                self.count += len(records)
                self.size_bytes += sum(len(record.data) for record in records)
                await output.write(b"".join(map(self._format_record, records)))
                if self._left == 0:
                    return

    def _records(self, page: Page) -> list[Record]:
        origin = Origin()
        if self._deaggregates:
            records = Deaggregator(self._stream, page.shard_id).open(page.records, origin)
        else:
            records = [
                Record(
                    raw.data,
                    raw.key,
                    None,
                    raw.sequence_number,
                    0,
                    page.shard_id,
                    raw.arrived_at,
                    self._stream,
                    origin=origin,
                )
                for raw in page.records
            ]
        hand_out(records, page.read_at)
        return [record for record in records if record.key in self._keys] if self._keys else records
