"""Serves a local Kinesis from the command line.

``shardline local`` serves until Ctrl-C or SIGTERM. ``traffic_display`` shows how to connect, and the traffic.

Invariants:

- An error is one sentence, with exit code 2 if the command was wrong, and 1 if it could not be carried out.
- Only a signal ends the server, with exit code 0, even if connections are open. Further signals are ignored.
- Every printed line with connection settings can be copied and works unchanged.
- A token is never printed: lines that need it name the variable that holds it. Only the address of the console contains
  a secret, which is the console's own.
"""

import json
import os
import shlex
import signal
from collections.abc import Generator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from types import FrameType
from typing import TYPE_CHECKING, Any, Final, cast

import click
from click.core import ParameterSource

from shardline.cli.invocation import Invocation, only_options
from shardline.cli.local.traffic_display import LocalDisplay
from shardline.errors import UsageError
from shardline.server.control import HEALTH_PATH
from shardline.testing.arguments import check_stream

if TYPE_CHECKING:
    from shardline.testing.local_kinesis import LocalKinesis

TOKEN_VARIABLE: Final = "SHARDLINE_LOCAL_TOKEN"  # noqa: S105 - the variable's name
_TRAFFIC_INTERVAL: Final = 1.0
_REGION: Final = "us-east-1"


@click.command()
@click.option(
    "--port",
    type=click.IntRange(0, 65_535),
    default=4567,
    show_default=True,
    help="Port to listen on; 0 picks a free one.",
)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--shards",
    type=click.IntRange(1, 10_000),
    default=1,
    show_default=True,
    help="Number of shards of each --stream.",
)
@click.option("--stream", multiple=True, metavar="NAME", help="Create this stream at the start; repeatable.")
@click.option(
    "--data", type=click.Path(dir_okay=False, path_type=Path), help="Keep all streams and records in this file."
)
@click.option("--limits/--no-limits", default=True, show_default=True, help="Enforce AWS's rate limits.")
@click.option("--tls", is_flag=True, help="Serve https with a generated certificate.")
@click.option("--region", help="Region to emulate (default us-east-1).")
@click.option(
    "--faults",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="JSON file with a list of faults to inject.",
)
@click.option(
    "--allow-host",
    multiple=True,
    metavar="NAME",
    help="Serve requests for this host name, besides localhost and IP addresses; *.NAME covers its subdomains; "
    "repeatable.",
)
@click.option(
    "--token",
    envvar=TOKEN_VARIABLE,
    help=f"Serve only callers that know this secret (also {TOKEN_VARIABLE}, which process listings do not show).",
)
@click.option(
    "--token-file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Read the token from this file.",
)
@click.option("--console", is_flag=True, help="Serve the web console too; its address is printed.")
@click.option(
    "--console-port",
    type=click.IntRange(0, 65_535),
    default=4568,
    show_default=True,
    help="With --console: the port of the console; 0 picks a free one.",
)
@click.option("--store", "stores", multiple=True, metavar="URL", help="With --console: show these groups; repeatable.")
@click.option("--allow-changes", is_flag=True, help="With --console: allow changes in the console. Each asks first.")
@only_options("output")
@click.pass_context
def local(
    context: click.Context,
    /,
    *,
    stream: tuple[str, ...],
    faults: Path | None,
    region: str | None,
    **settings: Any,
) -> None:
    """Serve a local Kinesis until Ctrl-C.

    The command prints how to connect, and then a line for each second with requests. With --output json, each line is a
    JSON object. Only a signal ends the server (exit code 0): it keeps serving when its output can no longer be written.

    \b
    Examples:
      shardline local --stream orders
      shardline local --stream orders --shards 4 --data kinesis.db
      shardline local --port 0 --output json
      shardline local --faults faults.json --no-limits
      shardline local --stream orders --console --store sqlite:///leases.db --allow-changes
      shardline local --host 0.0.0.0 --allow-host kinesis
      SHARDLINE_LOCAL_TOKEN=$(openssl rand -hex 16) shardline local
    """
    invocation = context.ensure_object(Invocation)
    settings["region"] = region or invocation.region or _REGION  # --region may come before the command's name
    settings["token"] = _read_token(context, settings["token"], settings.pop("token_file"))
    console = _console_settings(context, settings)
    with _signals() as stops:
        from shardline.testing.local_kinesis import LocalKinesis  # noqa: PLC0415 - other commands start faster

        try:
            with _no_root_certificates():
                kinesis = LocalKinesis(stream=map(_check_stream, stream), **settings)
        except UsageError as error:
            raise click.UsageError(str(error)) from None
        if faults is not None:
            _load_faults(kinesis, faults)
        try:
            kinesis.start()
        except UsageError as error:
            raise click.ClickException(str(error)) from None
        with ExitStack() as stack:
            stack.callback(kinesis.stop)
            url = None if console is None else stack.enter_context(_console(kinesis, invocation, console))
            display = LocalDisplay(is_json=invocation.is_json)
            display.show_start(lambda: how_to_connect(kinesis, url), lambda: _facts(kinesis, url))
            is_stopped = False
            while not is_stopped:
                with suppress(Empty):
                    is_stopped = stops.get(timeout=_TRAFFIC_INTERVAL) > 0
                display.show_traffic(lambda: kinesis.traffic)
        display.show_end()


def _console_settings(context: click.Context, settings: dict[str, Any]) -> dict[str, Any] | None:
    """Move the settings of the console out of ``settings``. Return them, or ``None`` if there is no console."""
    names = {"console_port": "--console-port", "stores": "--store", "allow_changes": "--allow-changes"}
    given = [name for name in names if context.get_parameter_source(name) is ParameterSource.COMMANDLINE]
    found = {name: settings.pop(name) for name in names}
    if settings.pop("console"):
        return found
    if given:
        raise click.UsageError(f"{names[given[0]]} needs --console")
    return None


def _console(kinesis: "LocalKinesis", invocation: Invocation, settings: dict[str, Any]) -> AbstractContextManager[str]:
    from shardline.cli.console_beside import console_in_thread  # noqa: PLC0415 - only if it is asked for
    from shardline.cli.groups.group_store import StorePlace  # noqa: PLC0415 - only if it is asked for

    places = [StorePlace.of(url, invocation) for url in settings["stores"]]
    port, allow_changes = settings["console_port"], settings["allow_changes"]
    return console_in_thread(kinesis, places, port=port, allow_changes=allow_changes)


@contextmanager
def _signals() -> Generator["SimpleQueue[int]"]:
    """Yield a queue of the stop signals that were received.

    A signal handler may interrupt any code, even a ``put`` into this queue; ``SimpleQueue.put`` is reentrant.
    """
    stops: SimpleQueue[int] = SimpleQueue()

    def stop(number: int, frame: FrameType | None) -> None:
        del frame
        stops.put(number)

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    after = before
    try:
        yield stops
        after = dict.fromkeys(before, signal.SIG_IGN)  # a late signal would interrupt the shutdown of the interpreter
    finally:
        for number, handler in after.items():
            signal.signal(number, handler)


def _read_token(context: click.Context, token: str | None, path: Path | None) -> str | None:
    """Return the token from ``--token-file``, ``--token`` or the environment. The file overrides the environment."""
    if path is None:
        return token
    if context.get_parameter_source("token") is ParameterSource.COMMANDLINE:
        raise click.UsageError("give --token or --token-file, not both")
    try:
        return path.read_text(encoding="ascii").strip()
    except UnicodeDecodeError:
        raise click.BadParameter(f"{path} has characters that are not ASCII", param_hint="--token-file") from None
    except OSError as error:
        raise click.ClickException(f"{path} cannot be read: {(error.strerror or str(error)).lower()}") from None


@contextmanager
def _no_root_certificates() -> Generator[None]:
    """Keep imports inside the block from loading the system's root certificates.

    aiohttp loads them for its client on import, which takes a third of the CPU time at startup. This process only
    serves, and needs no root certificates.
    """
    names = ("SSL_CERT_FILE", "SSL_CERT_DIR")
    before = {name: os.environ[name] for name in names if name in os.environ}
    os.environ.update(dict.fromkeys(names, os.devnull))
    try:
        yield
    finally:
        for name in names:
            del os.environ[name]
        os.environ.update(before)


def _load_faults(kinesis: "LocalKinesis", path: Path) -> None:
    try:
        kinesis.faults.load(_list_of_objects(json.loads(path.read_bytes())))
    except OSError as error:
        raise click.ClickException(f"{path} cannot be read: {(error.strerror or str(error)).lower()}") from None
    except (UsageError, ValueError) as error:
        raise click.BadParameter(f"{path}: {error}", param_hint="--faults") from None


def _list_of_objects(described: object) -> list[dict[str, object]]:
    faults = cast("list[object]", described) if isinstance(described, list) else [None]
    if not all(isinstance(fault, dict) for fault in faults):
        raise UsageError("a file of faults is a JSON list of objects")
    return cast("list[dict[str, object]]", faults)


def _check_stream(name: str) -> str:
    try:
        return check_stream(name)
    except UsageError as error:
        raise click.BadParameter(str(error), param_hint="--stream") from None


def _facts(kinesis: "LocalKinesis", console_url: str | None) -> dict[str, object]:
    """Return the connection settings as a JSON object."""
    variables = dict(kinesis.environment)
    if kinesis.has_token:
        del variables["AWS_SECRET_ACCESS_KEY"]
    return {
        "endpoint_url": kinesis.endpoint_url,
        "region": kinesis.region,
        "health_url": f"{kinesis.endpoint_url}{HEALTH_PATH}",
        "environment": variables,
        **({} if console_url is None else {"console_url": console_url}),
    }


def how_to_connect(kinesis: "LocalKinesis", console_url: str | None = None) -> str:
    """Return the connection settings for other programs, ready to be copied. A token is replaced by the variable that
    holds it.
    """
    url, region, keys = kinesis.endpoint_url, kinesis.region, kinesis.credentials
    variables = {name: shlex.quote(value) for name, value in kinesis.environment.items()}
    arguments = {name: repr(value) for name, value in kinesis.boto3_arguments.items()}
    secret = repr(keys.secret_key)
    if kinesis.has_token:
        secret = arguments["aws_secret_access_key"] = f"os.environ[{TOKEN_VARIABLE!r}]"
        variables["AWS_SECRET_ACCESS_KEY"] = f'"${TOKEN_VARIABLE}"'
    secrets = " ".join(f"{name}={value}" for name, value in variables.items() if "KEY" in name)
    bundle = "" if kinesis.ca_path is None else f" --ca-bundle {shlex.quote(kinesis.ca_path)}"
    verify = "" if kinesis.ca_path is None else f", verify={kinesis.ca_path!r}"
    boto3 = ", ".join(f"{name}={value}" for name, value in arguments.items())
    credentials = f"Credentials({keys.access_key!r}, {secret})"
    rows = {
        "shell": f"export {' '.join(f'{name}={value}' for name, value in variables.items())}",
        "AWS CLI": f"{secrets} aws --endpoint-url {url} --region {region}{bundle} kinesis list-streams",
        "boto3": f"boto3.client('kinesis', {boto3})",
        "Shardline": f"Client(endpoint_url={url!r}, region={region!r}, credentials={credentials}{verify})",
    }
    needed = "The token is the secret key." if kinesis.has_token else "Any credentials will do."
    return "\n".join(
        [
            f"A local Kinesis on {url}, region {region}. {needed} Ctrl-C stops it.",
            "",
            *(f"  {name:<10} {row}" for name, row in rows.items()),
            *([] if console_url is None else [f"  {'console':<10} {console_url}"]),
            "",
        ]
    )
