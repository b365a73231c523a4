"""Puts records from the command line.

Invariants:

- No record is lost silently: records that were read and not delivered are counted, reported, and written to
  ``--failed``. The exit code is 1 if a record failed, and 130 or 143 if Ctrl-C or SIGTERM interrupted the run.
- A missing or forbidden stream is reported before any input is read.
- Standard output contains only the result: the shard and sequence number of a single record, or with ``--output json``
  the counts.
"""

import os
import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, NamedTuple, final

import click

from shardline.aio.client import Client
from shardline.aio.producer.async_producer import Producer
from shardline.cli.completion.suggestions import complete_stream
from shardline.cli.error_messages import WrongUsage, in_options
from shardline.cli.interrupts import interrupts
from shardline.cli.invocation import UTF8, Invocation, global_options
from shardline.cli.put.failed_records import FailedRecords
from shardline.cli.put.json_keys import key_finder
from shardline.cli.put.line_input import BLOCK_BYTES, LineSplitter
from shardline.cli.put.put_run import LineParser, PutRun
from shardline.cli.quantities import counted, in_units
from shardline.cli.retrying import with_retries
from shardline.cli.terminal import notice
from shardline.cli.time_arguments import duration_option
from shardline.codec.record_lines import NO_KEY, PlainRecord, format_problem, record_of
from shardline.core.producer.producer_config import ProducerConfig
from shardline.core.producer.producer_stats import ProducerStats
from shardline.errors import ServiceError, UsageError
from shardline.model.headers import check_headers

_STDIN: Final = 0
_BUFFER_BYTES: Final = 16 * 1024 * 1024
_FILE: Final = click.Path(exists=True, dir_okay=False, path_type=Path, allow_dash=True)


@click.command()
@click.argument("stream", metavar="STREAM", shell_complete=complete_stream)
@click.argument("data", required=False)
@click.option("--file", "file", type=_FILE, help="Put each line of this file.")
@click.option(
    "--records",
    "--retry",
    "records",
    type=_FILE,
    help="Put the records of a file that --failed or a consumer's dead letters wrote.",
)
@click.option("--whole", is_flag=True, help="Put the whole input as one record.")
@click.option(
    "--key", type=UTF8, metavar="KEY", help="Partition key of all records; without it, the least busy shard is used."
)
@click.option("--key-field", type=UTF8, metavar="A.B", help="Lines are JSON: take the key of each from this field.")
@click.option(
    "--header",
    "headers",
    type=UTF8,
    multiple=True,
    metavar="NAME=VALUE",
    help="Send this header with every record; repeatable.",
)
@click.option(
    "--aggregate/--no-aggregate", default=True, show_default=True, help="Pack small records together, as the KPL does."
)
@click.option("--ordered", is_flag=True, help="Keep the order of records with the same key, even through retries.")
@duration_option("--linger", "100ms", "Maximum time to wait for a batch to fill.")
@duration_option("--give-up-after", "2m", "Maximum time to retry a record while the service fails or throttles.")
@duration_option("--drain", "10s", "After Ctrl-C: maximum time to wait for records in flight.")
@click.option("--failed", type=click.Path(dir_okay=False, path_type=Path), help="Append failed records to this file.")
@click.option("-q", "--quiet", is_flag=True, help="Print no summary.")
@global_options
@click.pass_obj
def put(invocation: Invocation, /, stream: str, data: str | None, **settings: Any) -> None:
    """Put records into a stream.

    A record is DATA, or each line of standard input (`-`, and the default in a pipe) or of --file. Empty lines are
    skipped. Memory stays small however long the input is.

    Failed records are appended to the file that --failed names, one JSON object per line. --retry puts such lines
    again; it also reads the dead letters of a consumer and what `tail --output json` prints. The exit code is 1 if any
    record failed. After Ctrl-C or SIGTERM, the command reads no more input, waits up to --drain for the records in
    flight, and writes the records that are still undelivered to --failed (exit code 130 or 143).

    \b
    Examples:
      shardline put orders '{"order": 1}' --key customer-7
      shardline put orders --file orders.jsonl --key-field customer.id --failed failed.jsonl
      shardline put orders '{"order": 2}' --key customer-7 --header content-type=application/json
      shardline put orders --retry failed.jsonl
      journalctl -f -o json | shardline put logs --key-field _HOSTNAME
      shardline tail orders --from 1h --until latest --output json | shardline put copy --records -
    """
    source = _Source.of(data, settings)
    parser = replace(_line_parser(settings), headers=_headers(settings))
    config = ProducerConfig(
        aggregation=settings["aggregate"],
        ordered=settings["ordered"],
        linger=min(settings["linger"], settings["give_up_after"]),
        record_ttl=settings["give_up_after"],
        buffer_max_bytes=_BUFFER_BYTES,
    )
    if settings["records"]:
        _check_formats(settings["records"])
    with _failed_records(settings["failed"], settings["records"]) as failed:
        job = _Job(stream, source, parser, config, failed, settings["drain"])
        run = invocation.run(_put, invocation, job)
        code = _conclude(invocation, run, failed, settings)
    click.get_current_context().exit(code)


@final
class _Source(NamedTuple):
    """The source of the records: an argument, a file or standard input."""

    data: bytes | None = None
    path: Path | None = None
    """The file to read. ``None`` means standard input."""
    is_whole: bool = False

    @classmethod
    def of(cls, data: str | None, settings: dict[str, Any]) -> "_Source":
        path = settings["file"] or settings["records"]
        given = [name for name in ("file", "records") if settings[name]] + (["data"] if data is not None else [])
        if len(given) > 1:
            raise WrongUsage("give only one of DATA, --file and --records")
        if settings["whole"] and (settings["records"] or data not in (None, "-")):
            raise WrongUsage("--whole works only with --file or standard input")
        if data not in (None, "-"):
            return cls(data=os.fsencode(str(data)))
        if data is None and path is None and sys.stdin is not None and sys.stdin.isatty():
            raise WrongUsage("nothing to put: give DATA or --file, pipe lines in, or pass - to type them")
        return cls(path=None if path is None or str(path) == "-" else path, is_whole=settings["whole"])

    @contextmanager
    def opened(self) -> Generator[tuple[int, int | None]]:
        """Open the input; yield its file descriptor, and its size in bytes if that is known."""
        if self.path is None:
            yield _STDIN, None
            return
        with self.path.open("rb", buffering=0) as file:
            yield file.fileno(), os.fstat(file.fileno()).st_size or None


def _line_parser(settings: dict[str, Any]) -> LineParser:
    key, field = settings["key"], settings["key_field"]
    if key is not None and field is not None:
        raise WrongUsage("--key cannot be combined with --key-field")
    try:
        find = None if field is None else key_finder(field)
    except UsageError as error:
        raise WrongUsage(f"--key-field: {error}") from None
    if settings["records"]:
        key_of = find if key is None else _always(key)
        return LineParser(convert=lambda line: record_of(line, key_of), keeps_lines=True)
    if find is not None:
        return LineParser(convert=lambda line: PlainRecord(find(line), line), error_code=NO_KEY)
    return LineParser(key)


def _headers(settings: dict[str, Any]) -> dict[str, str]:
    """Return the headers for every record, by name."""
    headers: dict[str, str] = {}
    for text in settings["headers"]:
        name, equals, value = text.partition("=")
        if not equals:
            raise WrongUsage(f"--header takes NAME=VALUE, not {text!r}")
        if name in headers:
            raise WrongUsage(f"--header {name} is given twice: a record has one value for each header")
        headers[name] = value
    if headers and not settings["aggregate"]:
        raise WrongUsage("--header cannot be combined with --no-aggregate: headers are sent in aggregates")
    try:
        return check_headers(headers)
    except UsageError as error:
        raise WrongUsage(f"--header: {error}") from None


def _check_formats(path: Path) -> None:
    """Reject a file with a record in a format that could be misread, before any record is put.

    Lines from a pipe are checked one by one as they are put: rejected lines fail, and the others are put.
    """
    if not path.is_file():
        return
    splitter, number = LineSplitter(), 0
    with path.open("rb") as file:
        while block := file.read(BLOCK_BYTES):
            for number, line in enumerate(splitter.feed(block), number + 1):  # noqa: B020
                _check_format_of(path, number, line)
    for line in splitter.end():
        _check_format_of(path, number + 1, line)


def _check_format_of(path: Path, number: int, line: bytes | None) -> None:
    problem = None if line is None else format_problem(line)
    if problem is not None:
        raise WrongUsage(f"{path}: line {number} is {problem}; nothing was put")


def _always(key: str) -> Callable[[bytes], str]:
    return lambda _: key


@contextmanager
def _failed_records(path: Path | None, source: Path | None) -> Generator[FailedRecords]:
    if path is not None and source is not None and source.exists() and path.exists() and path.samefile(source):
        raise WrongUsage("--failed names the file that is being read: give another file")
    try:
        failed = FailedRecords(path)
    except OSError as error:
        raise click.ClickException(f"--failed: {path} cannot be written: {error.strerror}") from None
    try:
        yield failed
    finally:
        failed.close()
    if failed.write_error is not None:
        raise click.ClickException(
            f"{path} could not be written: {failed.write_error.strerror}; failed records are missing from it"
        )


@final
class _Job(NamedTuple):
    """The input of one ``put`` command and the settings for sending it."""

    stream: str
    source: _Source
    parser: LineParser
    config: ProducerConfig
    failed: FailedRecords
    drain: float


async def _put(invocation: Invocation, job: _Job) -> PutRun:
    with job.source.opened() as (descriptor, total_bytes):
        async with invocation.client() as client:
            config = replace(job.config, record_max_bytes=await _record_max_bytes(client, job.stream))
            producer = Producer(job.stream, client=client, config=config, on_failure=job.failed.add_delivery)
            with interrupts() as signals:  # before this point nothing was read, and Ctrl-C may simply end the process
                await producer.start()
                run = PutRun(producer, job.failed, job.parser, signals)
                began_at = time.monotonic()
                try:
                    if job.source.data is not None:
                        await run.put_one(job.source.data)
                    elif job.source.is_whole:
                        await run.put_whole(descriptor)
                    else:
                        await run.put_lines(descriptor, total_bytes, job.drain)
                finally:
                    await producer.close(0.0)  # fails the records that are left, and passes them to ``add_delivery``
                    run.seconds = time.monotonic() - began_at
    return run


async def _record_max_bytes(client: Client, stream: str) -> int | None:
    """Return the stream's maximum record size, or ``None`` if the caller may put records but not read this setting."""
    try:
        return (await with_retries(lambda: client.describe_stream_summary(stream))).max_record_bytes
    except ServiceError as error:
        if error.kind == "denied":
            return None
        raise


def _conclude(invocation: Invocation, run: PutRun, failed: FailedRecords, settings: dict[str, Any]) -> int:
    """Report the result and return the exit code."""
    receipt, stats = run.receipt, run.stats()
    if invocation.is_json:
        place = {} if receipt is None else {"shard_id": receipt.shard_id, "sequence_number": receipt.sequence_number}
        counts = {
            "put": stats.delivered_records,
            "failed": failed.count,
            "retried": stats.retried_records,
            "empty_lines": run.empty_count,
            "bytes": stats.delivered_bytes,
            "seconds": round(run.seconds, 3),
            "interrupted": run.is_interrupted,
        }
        invocation.print_json(counts | place)
    elif receipt is not None:
        click.echo(f"{receipt.shard_id} {receipt.sequence_number}")
    if not settings["quiet"] and (receipt is None or failed.count):
        notice(_summary(run, stats))
    if run.cut_bytes:
        notice(f"the last line is incomplete and was not put ({counted(run.cut_bytes, 'byte')} read)")
    if failed.count:
        reasons = in_options("; ".join(f"{count:,} {reason}" for reason, count in failed.reasons.most_common(5)))
        kept = f"in {settings['failed']}" if settings["failed"] else "discarded; use --failed FILE to keep them"
        notice(f"{counted(failed.count, 'record')} failed, {kept} ({reasons})")
    return run.exit_code if run.is_interrupted else int(failed.count > 0)


def _summary(run: PutRun, stats: ProducerStats) -> str:
    rate = stats.delivered_records / run.seconds if run.seconds else 0.0
    parts = [
        f"put {counted(stats.delivered_records, 'record')}",
        in_units(stats.delivered_bytes),
        f"{run.seconds:,.1f} s",
        f"{rate:,.0f}/s",
        *([f"{stats.retried_records:,} retried"] if stats.retried_records else []),
        *([f"{counted(run.empty_count, 'empty line')} skipped"] if run.empty_count else []),
    ]
    return ("interrupted: " if run.is_interrupted else "") + ", ".join(parts)
