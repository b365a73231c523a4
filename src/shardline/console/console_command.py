"""``shardline console``: serves the console until Ctrl-C.

Invariants:

- The console listens on loopback unless ``--host`` says otherwise, and prints its address with the token once.
- It changes nothing unless ``--allow-changes`` is given.
"""

import os
import secrets
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

import anyio
import click

from shardline.adapters.aws.aws_service import AwsSettings
from shardline.aio.client import Client
from shardline.cli.error_messages import WrongUsage
from shardline.cli.groups.group_store import StorePlace
from shardline.cli.interrupts import interrupts
from shardline.cli.invocation import Invocation, global_options
from shardline.console.call_budget import CallBudget
from shardline.console.console_actions import ConsoleActions
from shardline.console.dead_letter_files import parse_places
from shardline.errors import UsageError
from shardline.server.access import Access, check_allowed_host

if TYPE_CHECKING:
    from shardline.testing.local_kinesis import LocalKinesis

_TOKEN_BYTES: Final = 24
_IDLE_TIMEOUT: Final = 75.0
"""A connection without a complete request is closed after this time, so that idle clients cannot occupy all
connections.
"""
BUDGET: Final = 600


@click.command()
@click.option(
    "--store",
    "stores",
    multiple=True,
    envvar="SHARDLINE_STORE",
    metavar="URL",
    help="URL of a lease store whose groups are shown (also SHARDLINE_STORE); repeatable.",
)
@click.option(
    "--port",
    type=click.IntRange(0, 65_535),
    default=4568,
    show_default=True,
    help="Port to listen on; 0 picks a free one.",
)
@click.option(
    "--metrics",
    multiple=True,
    metavar="URL",
    help="Address of the /metrics page of a worker or producer, for reading lag, dead letters and throttles; "
    "repeatable.",
)
@click.option(
    "--dead-letters",
    multiple=True,
    metavar="GROUP=PLACE",
    help="Where a group's dead letters are: GROUP=FILE or GROUP=stream:NAME; repeatable.",
)
@click.option(
    "--cloudwatch",
    is_flag=True,
    help="Show the throttles that CloudWatch counted: one GetMetricData call per minute while a stream is shown.",
)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--allow-host", multiple=True, metavar="NAME", help="Serve requests for this host name; repeatable.")
@click.option("--allow-changes", is_flag=True, help="Allow changes: put, reset and reshard. Each asks first.")
@click.option(
    "--calls-per-minute",
    type=click.IntRange(10),
    default=BUDGET,
    show_default=True,
    help="Maximum number of calls to AWS per minute. Further calls wait.",
)
@global_options
@click.pass_obj
def console(invocation: Invocation, /, *, stores: tuple[str, ...], **how: Any) -> None:
    """Look at streams, groups and records in a browser.

    The command serves a page until Ctrl-C, and prints its address. The address contains a secret: only a browser that
    has it sees anything. The console is read-only unless it is started with --allow-changes.

    \b
    Examples:
      shardline console --store redis://host/0
      shardline console --store sqlite:///leases.db --store dynamodb://leases --allow-changes
      shardline console --store redis://host/0 --metrics http://worker-1:8080 --dead-letters billing=failed.jsonl
      shardline console --endpoint-url http://127.0.0.1:4567 --port 0
    """

    async def serve() -> None:
        places = [StorePlace.of(url, invocation) for url in stores]
        settings = AwsSettings(region=invocation.region, profile=invocation.profile)
        how["cloudwatch"] = settings if how.pop("cloudwatch") else None
        async with invocation.client() as client, serving(client, places, place=invocation.place(), **how) as url:
            # The signal handlers are set first, because a program may send a signal as soon as it has read the address.
            with interrupts() as signals, signals.stage():
                if invocation.is_json:
                    invocation.print_json({"url": url})
                else:
                    click.echo(f"The console is on {url}\nOpen that address in a browser. Ctrl-C stops it.")
                await anyio.sleep_forever()

    invocation.run(serve)


@asynccontextmanager
async def serving(
    client: Client,
    stores: Sequence[StorePlace],
    *,
    place: str,
    port: int = 0,
    host: str = "127.0.0.1",
    allow_host: Sequence[str] = (),
    allow_changes: bool = False,
    calls_per_minute: int = BUDGET,
    metrics: Sequence[str] = (),
    dead_letters: Sequence[str] = (),
    cloudwatch: AwsSettings | None = None,
    kinesis: "LocalKinesis | None" = None,
) -> AsyncGenerator[str]:
    """Serve the console during the block. Yield its address, which contains the token.

    Raises:
        WrongUsage: the extra is missing, or the port is in use.
    """
    try:
        from aiohttp import web  # noqa: PLC0415 - the extra may be missing

        from shardline.console.cloudwatch_throttles import CloudWatchThrottles  # noqa: PLC0415 - only if it is used
        from shardline.console.console_server import ConsoleServer  # noqa: PLC0415 - needs aiohttp
        from shardline.console.fleet_metrics import FleetMetrics  # noqa: PLC0415 - needs aiohttp
    except ImportError:
        raise WrongUsage("the console needs aiohttp: pip install 'shardline[console]'") from None
    token = secrets.token_urlsafe(_TOKEN_BYTES)
    try:
        access = Access(allowed=[check_allowed_host(name) for name in allow_host], token=token)
        fleet = FleetMetrics(metrics)
    except (UsageError, ValueError) as error:
        raise WrongUsage(str(error)) from None
    actions = ConsoleActions(client, stores, kinesis, parse_places(dead_letters))
    counted = None if cloudwatch is None else CloudWatchThrottles(cloudwatch, time.time)
    server = ConsoleServer(
        client,
        actions,
        CallBudget(calls_per_minute),
        access,
        place=place,
        allow_changes=allow_changes,
        metrics=fleet,
        kinesis=kinesis,
        cloudwatch=counted,
    )
    runner = web.AppRunner(server.application(), access_log=None, shutdown_timeout=1.0, keepalive_timeout=_IDLE_TIMEOUT)
    await runner.setup()
    try:
        site = web.TCPSite(runner, host, port)
        try:
            await site.start()
        except OSError as error:
            # asyncio's text repeats the address, but only this text explains the negative number of a failed lookup.
            number = error.errno or 0
            reason = os.strerror(number) if number > 0 else error.strerror or str(error)
            raise WrongUsage(f"cannot listen on {host}:{port}: {reason}") from None
        found = runner.addresses[0][1]
        shown = f"[{host}]" if ":" in host else host
        yield f"http://{shown}:{found}/#token={token}"
    finally:
        await runner.cleanup()
        if counted is not None:
            await counted.close()
