"""Runs a command for each record of a stream, with the guarantees of a consumer group.

The command is a handler of ``Consumer.run``. The consumer takes care of leases, order, retries and commits.

Invariants:

- A record is committed only after the command has succeeded for it, or after its dead letter was written.
- The first Ctrl-C or SIGTERM lets the running commands finish, for up to ``--grace``, and then terminates them. A
  second signal terminates them immediately. The records of a terminated command are delivered again.
- The exit code is 0 if the run reached a bound, or if a signal ended the run and no command was terminated. It is 130
  or 143 if a command was terminated, and 1 if the command failed for good or could not be started.
"""

import shutil
import time
from pathlib import Path
from typing import Any, Final

import anyio
import click

from shardline.aio.consumer.async_consumer import Consumer
from shardline.cli.completion.suggestions import complete_stream
from shardline.cli.consume.command_runs import CommandRuns, shown_records
from shardline.cli.error_messages import WrongUsage
from shardline.cli.groups.group_options import store_option
from shardline.cli.groups.group_store import StorePlace
from shardline.cli.interrupts import Interrupts, interrupts
from shardline.cli.invocation import UTF8, Invocation, global_options
from shardline.cli.quantities import counted
from shardline.cli.terminal import notice
from shardline.cli.time_arguments import duration_option, duration_value, parse_start
from shardline.core.consumer.consumer_events import RecordsDeadLettered
from shardline.core.consumer.failure_policy import FailurePolicy
from shardline.errors import HandlerFailed, UsageError
from shardline.model.position import Position

_CONNECTIONS: Final = 200  # enough that a slow call to one shard does not delay the other shards


@click.command()
@click.argument("stream", metavar="STREAM", shell_complete=complete_stream)
@click.argument("command", metavar="-- COMMAND [ARGS]...", nargs=-1, required=True, type=click.UNPROCESSED)
@click.option("--group", required=True, type=UTF8, metavar="NAME", help="The consumer group to be a worker of.")
@store_option
@click.option(
    "--from",
    "start",
    default="TRIM_HORIZON",
    show_default=True,
    metavar="WHERE",
    help="Where a new group starts: TRIM_HORIZON, LATEST, a time, or an age (15m).",
)
@click.option(
    "--batch",
    type=click.IntRange(1),
    metavar="N",
    help="Run the command for batches of up to N records, as JSON lines.",
)
@duration_option("--max-wait", "0s", "With --batch: maximum time to wait for a batch to fill.", "DURATION")
@click.option("--until", type=click.Choice(["latest"]), help="Stop when all records up to the newest are done.")
@click.option("--idle-timeout", type=duration_value, metavar="DURATION", help="Stop after this long without a record.")
@click.option(
    "--attempts", type=click.IntRange(1), default=5, show_default=True, metavar="N", help="Runs for a failing record."
)
@click.option(
    "--dead-letter",
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    metavar="FILE",
    help="Append records that failed for good to this file, and continue; otherwise stop.",
)
@duration_option("--grace", "30s", "Time for running commands to finish after Ctrl-C or SIGTERM.", "DURATION")
@global_options
@click.pass_obj
def consume(invocation: Invocation, /, stream: str, command: tuple[str, ...], **settings: Any) -> None:
    """Run a command for each record of a stream, as a consumer group.

    The command gets the data of one record on standard input, and facts about it in SHARDLINE_KEY, SHARDLINE_SHARD_ID,
    SHARDLINE_SEQUENCE_NUMBER and other environment variables. With --batch it gets several records as JSON lines. If
    it ends with the exit code 0, the records are committed. Otherwise it is run again, up to --attempts times.

    Records of a shard are handled in order, different shards at the same time. Run this command on several machines
    with the same group and store to share the shards. No shell is involved, unless COMMAND is one.

    \b
    Examples:
      shardline consume orders --group billing --store sqlite:///leases.db -- ./bill
      shardline consume orders --group log --store redis://host/0 -- sh -c 'echo "$SHARDLINE_KEY"; cat'
      shardline consume orders --group billing --store redis://host/0 --dead-letter failed.jsonl -- ./bill
      shardline consume orders --group copy --store dynamodb://leases --batch 500 -- shardline put copy --records -
    """
    if shutil.which(command[0]) is None:
        raise WrongUsage(f"the command {command[0]!r} cannot be started: it does not exist, or is not executable")
    place = StorePlace.of(settings["store"], invocation)
    dead_letter: Path | None = settings["dead_letter"]
    if dead_letter is not None and not dead_letter.absolute().parent.is_dir():
        raise WrongUsage(f"--dead-letter: the directory of {dead_letter} does not exist")
    settings |= {"start": _start(settings["start"]), "store": place.url}
    runs = CommandRuns(command, settings["group"])
    signals, dead_count = invocation.run(_consume, invocation, stream, runs, settings)
    dead = "" if not dead_count else f"; wrote {counted(dead_count, 'dead letter')} to {dead_letter}"
    notice(f"handled {counted(runs.handled_count, 'record')}{dead}")
    if runs.terminated_count and signals.first is not None:
        notice(f"terminated {counted(runs.terminated_count, 'command')}: the records will be delivered again")
        raise click.exceptions.Exit(signals.exit_code)


def _start(text: str) -> Position:
    try:
        return parse_start(text, time.time())
    except UsageError as error:
        raise WrongUsage(f"--from: {error}") from None


async def _consume(
    invocation: Invocation, stream: str, runs: CommandRuns, settings: dict[str, Any]
) -> tuple[Interrupts, int]:
    """Consume until a bound is reached or a signal arrives. Return the signals and the number of dead letters."""
    dead_count = 0

    def count_dead_letters(event: object) -> None:
        nonlocal dead_count
        if isinstance(event, RecordsDeadLettered):
            dead_count += event.records

    with interrupts() as signals:
        async with invocation.client(max_connections=_CONNECTIONS) as client:
            consumer = Consumer(
                stream,
                group=settings["group"],
                store=settings["store"],
                start=settings["start"],
                client=client,
                until=settings["until"],
                idle_timeout=settings["idle_timeout"],
                sinks=[count_dead_letters],
                close_timeout=settings["grace"],
            )
            with signals.stage():
                await consumer.start()
            if signals.first is not None:
                await consumer.close()
            else:
                async with consumer:
                    await _run(consumer, runs, signals, settings)
    return signals, dead_count


async def _run(consumer: Consumer, runs: CommandRuns, signals: Interrupts, settings: dict[str, Any]) -> None:
    """Run the command for all records, until a bound is reached or a signal arrives.

    Raises:
        ClickException: the command failed for good, or could not be started.
    """
    size: int | None = settings["batch"]
    all_runs = anyio.CancelScope()

    async def stop_on_signals() -> None:
        with signals.stage():
            await anyio.sleep_forever()
        tasks.start_soon(consumer.close)
        with signals.stage():
            await anyio.sleep_forever()
        all_runs.cancel()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(stop_on_signals)
        try:
            with all_runs:
                policy, dead_letter = FailurePolicy(attempts=settings["attempts"]), settings["dead_letter"]
                if size is None:
                    await consumer.run(runs.handle_record, policy=policy, dead_letter=dead_letter)
                else:
                    max_wait = settings["max_wait"]
                    await consumer.run(
                        runs.handle_batch, batch=size, max_wait=max_wait, policy=policy, dead_letter=dead_letter
                    )
        except SystemExit:
            reason = None if runs.start_error is None else runs.start_error.strerror
            raise click.ClickException(f"the command could not be started: {reason}; nothing was committed") from None
        except HandlerFailed as failure:
            raise click.ClickException(_failed_for_good(failure)) from None
        tasks.cancel_scope.cancel()


def _failed_for_good(failure: HandlerFailed) -> str:
    return (
        f"{failure.__cause__}, after {counted(failure.attempts, 'attempt')} at {shown_records(failure.records)}: "
        "stopped, and did not commit from there on; --dead-letter FILE sets such records aside"
    )
