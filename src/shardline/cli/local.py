"""How is a local Kinesis run from the command line?

``shardline local`` serves until Ctrl-C or SIGTERM, says how to reach it, and shows its traffic.

Invariants:

- LO1: what is wrong is one sentence: with exit code 2 if the command was, with 1 if it could not be carried out.
- LO2: a signal ends it with exit code 0, whatever is open; further ones change nothing.
- LO3: every line of how to reach it can be copied and works as it is.
"""

import json
import shlex
import signal
import sys
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from types import FrameType
from typing import Any, Final, cast

import click

from shardline.cli.invocation import Invocation
from shardline.errors import UsageError
from shardline.testing.local_kinesis import LocalKinesis

_PAUSE: Final = 1.0
_REGION: Final = "us-east-1"


@click.command()
@click.option(
    "--port", type=click.IntRange(0, 65_535), default=4567, show_default=True, help="Where to listen; 0: a free port."
)
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to bind to.")
@click.option(
    "--shards",
    type=click.IntRange(1, 10_000),
    default=1,
    show_default=True,
    help="Shards of the streams that --stream makes.",
)
@click.option("--stream", multiple=True, metavar="NAME", help="Create this stream at once; may be repeated.")
@click.option("--data", type=click.Path(dir_okay=False, path_type=Path), help="Keep everything in this file.")
@click.option("--limits/--no-limits", default=True, show_default=True, help="Enforce AWS's rates per shard and second.")
@click.option("--tls", is_flag=True, help="Serve https, with a certificate of its own.")
@click.option("--h2c", is_flag=True, help="Serve HTTP/2 in cleartext beside HTTP/1.1.")
@click.option("--region", help="The region that it plays; us-east-1 unless said.")
@click.option(
    "--faults",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Faults to inject: a JSON file, with a list of rules.",
)
@click.pass_context
def local(
    context: click.Context, /, *, stream: tuple[str, ...], faults: Path | None, region: str | None, **settings: Any
) -> None:
    """Serve a local Kinesis until Ctrl-C."""
    asked = context.find_object(Invocation)  # --region before the command's name means the same
    settings["region"] = region or (None if asked is None else asked.region) or _REGION
    with _signals() as stops:
        try:
            kinesis = LocalKinesis(**settings)
        except UsageError as error:
            raise click.UsageError(str(error)) from None
        if faults is not None:
            _load_faults(kinesis, faults)
        try:
            kinesis.start()
        except UsageError as error:
            raise click.ClickException(str(error)) from None
        try:
            _create_streams(kinesis, stream)
            click.echo(how_to_connect(kinesis))
            _show_traffic(kinesis, stops)
        finally:
            kinesis.stop()
        click.echo("stopped")


@contextmanager
def _signals() -> Generator["SimpleQueue[int]"]:
    """The signals to stop that have come (LO2). A handler may interrupt anything: this queue's ``put`` allows that."""
    stops: SimpleQueue[int] = SimpleQueue()

    def stop(number: int, frame: FrameType | None) -> None:
        del frame
        stops.put(number)

    before = {one: signal.signal(one, stop) for one in (signal.SIGINT, signal.SIGTERM)}
    after = before
    try:
        yield stops
        after = dict.fromkeys(before, signal.SIG_IGN)  # what still comes would break off the end of the interpreter
    finally:
        for one, handler in after.items():
            signal.signal(one, handler)


def _load_faults(kinesis: LocalKinesis, path: Path) -> None:
    try:
        kinesis.faults.load(_list_of_objects(json.loads(path.read_bytes())))
    except OSError as error:
        raise click.ClickException(f"{path} cannot be read: {(error.strerror or str(error)).lower()}") from None
    except (UsageError, ValueError) as error:
        raise click.BadParameter(f"{path}: {error}", param_hint="--faults") from None


def _list_of_objects(described: object) -> list[dict[str, object]]:
    several = cast("list[object]", described) if isinstance(described, list) else [None]
    if not all(isinstance(one, dict) for one in several):
        raise UsageError("a file of faults is a JSON list of objects")
    return cast("list[dict[str, object]]", several)


def _create_streams(kinesis: LocalKinesis, names: tuple[str, ...]) -> None:
    for name in names:
        if name not in kinesis.streams:
            try:
                kinesis.create_stream(name)
            except UsageError as error:
                raise click.BadParameter(str(error), param_hint="--stream") from None


def how_to_connect(kinesis: LocalKinesis) -> str:
    """What to tell other programs, ready to be copied (LO3)."""
    url, region, keys = kinesis.endpoint_url, kinesis.region, kinesis.credentials
    variables = {name: shlex.quote(value) for name, value in kinesis.environment.items()}
    secrets = " ".join(f"{name}={value}" for name, value in variables.items() if "KEY" in name)
    bundle = "" if kinesis.ca_path is None else f" --ca-bundle {shlex.quote(kinesis.ca_path)}"
    verify = "" if kinesis.ca_path is None else f", verify={kinesis.ca_path!r}"
    boto3 = ", ".join(f"{name}={value!r}" for name, value in kinesis.boto3_arguments.items())
    credentials = f"Credentials({keys.access_key!r}, {keys.secret_key!r})"
    rows = {
        "shell": f"export {' '.join(f'{name}={value}' for name, value in variables.items())}",
        "AWS CLI": f"{secrets} aws --endpoint-url {url} --region {region}{bundle} kinesis list-streams",
        "boto3": f"boto3.client('kinesis', {boto3})",
        "Shardline": f"Client(endpoint_url={url!r}, region={region!r}, credentials={credentials}{verify})",
    }
    return "\n".join(
        [
            f"A local Kinesis on {url}, region {region}. Any credentials will do. Ctrl-C stops it.",
            "",
            *(f"  {name:<10} {row}" for name, row in rows.items()),
            "",
        ]
    )


def _show_traffic(kinesis: LocalKinesis, stops: "SimpleQueue[int]") -> None:
    """A line of traffic for each second in which there was some; one that is rewritten where that can be seen."""
    is_live = sys.stdout.isatty()
    before = 0
    is_stopped = False
    while not is_stopped:
        with suppress(Empty):
            is_stopped = stops.get(timeout=_PAUSE) > 0
        total = kinesis.requests.total
        if total != before:
            records = sum(one.record_count for one in kinesis.streams.values())
            new = max(0, total - before)  # somebody may have cleared them
            line = f"{new:>6} requests  {total} in all  {len(kinesis.streams)} streams  {records} records"
            click.echo(f"\r\x1b[K{line}" if is_live else line, nl=not is_live)
        before = total
    if is_live:
        click.echo()
