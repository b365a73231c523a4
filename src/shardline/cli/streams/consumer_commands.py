"""Lists, registers and deregisters the consumers of a stream (enhanced fan-out) from the command line.

Invariants:

- Registering a consumer that is registered already changes nothing, and is an error unless ``--exist-ok`` is given.
- Nothing is deregistered without a confirmation: typed at a terminal, or given as ``--yes``.
- A command that changes something waits until the change is complete, unless ``--no-wait`` is given.
"""

from typing import Any, Final

import click

from shardline.aio.client import Client
from shardline.aio.stream_waiters import wait_until
from shardline.cli.completion.suggestions import complete_consumer, complete_stream
from shardline.cli.confirmation import require_confirmation
from shardline.cli.invocation import Invocation, global_options
from shardline.cli.retrying import with_retries
from shardline.cli.streams.stream_views import consumer_json
from shardline.cli.terminal import notice, print_table, printable, waiting
from shardline.cli.time_arguments import duration_option, shown_time
from shardline.codec.shapes import DescribeStreamConsumerResponse, StreamConsumer
from shardline.core.error_codes import Failure
from shardline.errors import ServiceError, UsageError
from shardline.model.stream import is_consumer_name

_STREAM: Final = click.argument("stream", metavar="STREAM", shell_complete=complete_stream)
_WAIT: Final = click.option(
    "--wait/--no-wait", default=True, show_default=True, help="Wait until the change is complete."
)
_TIMEOUT: Final = duration_option("--timeout", "5m", "Maximum time to wait.")


@click.group()
@global_options
def consumers() -> None:
    """List, register and deregister consumers for enhanced fan-out.

    A registered consumer has its own read limit in each shard. It costs money until it is deregistered.

    \b
    Examples:
      shardline streams consumers list orders
      shardline streams consumers register orders billing
      shardline streams consumers deregister orders billing
    """


@consumers.command("list")
@_STREAM
@global_options
@click.pass_obj
def list_(invocation: Invocation, stream: str) -> None:
    """List the registered consumers of a stream.

    \b
    Examples:
      shardline streams consumers list orders
      shardline streams consumers list orders --output json | jq -r '.[].arn'
    """
    found = invocation.run(_list, invocation, stream)
    if invocation.is_json:
        invocation.print_json([consumer_json(consumer) for consumer in found])
    elif found:
        print_table(
            ["NAME", "STATUS", "CREATED", "ARN"],
            [[consumer.name, consumer.status, shown_time(consumer.created_at), consumer.arn] for consumer in found],
        )
    else:
        notice(f"{stream} has no registered consumers")


async def _list(invocation: Invocation, stream: str) -> list[StreamConsumer]:
    async with invocation.client() as client:
        return await with_retries(lambda: client.list_stream_consumers(stream))


@consumers.command()
@_STREAM
@click.argument("name", metavar="NAME")
@click.option("--exist-ok", is_flag=True, help="Succeed if the consumer is already registered.")
@_WAIT
@_TIMEOUT
@global_options
@click.pass_obj
def register(invocation: Invocation, /, stream: str, name: str, **how: Any) -> None:
    """Register a consumer.

    A Consumer with fan_out=NAME does this on its own. Use the command if your workers lack the permission to register.

    \b
    Examples:
      shardline streams consumers register orders billing
      shardline streams consumers register orders billing --exist-ok --output json
    """
    consumer, is_new = invocation.run(_register, invocation, stream, name, how)
    if invocation.is_json:
        invocation.print_json(consumer_json(consumer) | {"registered": is_new})
        return
    result = f"registered {name}" if is_new else f"{name} is already registered"
    click.echo(printable(f"{result}: {consumer.status}, {consumer.arn}"))


async def _register(invocation: Invocation, stream: str, name: str, how: dict[str, Any]) -> tuple[StreamConsumer, bool]:
    if not is_consumer_name(name):
        raise UsageError(f"a consumer name has 1 to 128 of the characters a-z A-Z 0-9 _ . -, so not {name!r}")
    is_new = True
    async with invocation.client() as client:
        try:
            await with_retries(lambda: client.register_stream_consumer(stream, name), changes=True)
        except ServiceError as error:
            if error.kind != "in-use" or not how["exist_ok"]:
                raise
            is_new = False
        if how["wait"]:
            with waiting(f"waiting until {name} is ACTIVE"):
                await _wait_for_consumer(client, stream, name, "ACTIVE", how["timeout"])
        return await with_retries(lambda: client.describe_stream_consumer(stream=stream, name=name)), is_new


@consumers.command()
@_STREAM
@click.argument("name", metavar="NAME", shell_complete=complete_consumer)
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@_WAIT
@_TIMEOUT
@global_options
@click.pass_obj
def deregister(invocation: Invocation, /, stream: str, name: str, *, yes: bool, **how: Any) -> None:
    """Deregister a consumer. Workers that read with it end with an error.

    \b
    Examples:
      shardline streams consumers deregister orders billing
      shardline streams consumers deregister orders billing --yes --no-wait
    """
    if not yes:
        invocation.run(_describe, invocation, stream, name)
        question = (
            f"Deregister the consumer {name} of {stream} in {invocation.place()}? "
            "Workers that read with it end with an error."
        )
        require_confirmation(question, f"that {name} of {stream} is deregistered", "nothing was deregistered")
    invocation.run(_deregister, invocation, stream, name, how)
    if invocation.is_json:
        invocation.print_json({"name": name, "stream": stream, "deregistered": True})
    else:
        click.echo(printable(f"deregistered {name}" if how["wait"] else f"deregistering {name}"))


async def _describe(invocation: Invocation, stream: str, name: str) -> StreamConsumer:
    async with invocation.client() as client:
        return await with_retries(lambda: client.describe_stream_consumer(stream=stream, name=name))


async def _deregister(invocation: Invocation, stream: str, name: str, how: dict[str, Any]) -> None:
    async with invocation.client() as client:
        await with_retries(lambda: client.deregister_stream_consumer(stream=stream, name=name), changes=True)
        if how["wait"]:
            with waiting(f"waiting until {name} is deregistered"):
                await _wait_for_consumer(client, stream, name, None, how["timeout"])


async def _wait_for_consumer(client: Client, stream: str, name: str, wanted: str | None, limit: float) -> None:
    """Wait until the consumer has the status ``wanted``; ``None`` waits until it is gone.

    Raises:
        WaitTimeout: the status was not reached within ``limit`` seconds. The change continues.
    """
    arn = (await with_retries(lambda: client.describe_stream_summary(stream))).arn
    members = {"StreamARN": arn, "ConsumerName": name}

    async def status() -> str | Failure:
        found = await client.api.typed_call("DescribeStreamConsumer", members, DescribeStreamConsumerResponse)
        return found if isinstance(found, Failure) else found.consumer_description.status

    await wait_until(wanted, limit, f"the consumer {name}", status)
