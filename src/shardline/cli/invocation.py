"""The options that every command has: the endpoint, the output format, and the log.

Invariants:

- These options may come before or after the command's name. If an option is repeated, the last one counts.
- An error is one sentence on standard error, with its traceback only under ``-v``: see ``error_messages``.
- Standard output carries only results, so that it can be piped. The library's log is shown only under ``-v``.
"""

import logging
import os
import traceback
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar, TypeVarTuple

import click

from shardline.cli.error_messages import as_click, sole_error

if TYPE_CHECKING:
    from shardline.aio.client import Client

_Result = TypeVar("_Result")
_Arguments = TypeVarTuple("_Arguments")


@dataclass
class Invocation:
    """One call of ``shardline``."""

    endpoint_url: str | None = None
    region: str | None = None
    profile: str | None = None
    output: str = "text"
    verbose: bool = False

    @property
    def is_json(self) -> bool:
        return self.output == "json"

    def client(self, **settings: Any) -> "Client":
        """Return a client for the endpoint, region and profile in the options, or else in the AWS settings."""
        from shardline.aio.client import Client  # noqa: PLC0415 - completion and help start faster without it

        return Client(endpoint_url=self.endpoint_url, region=self.region, profile=self.profile, **settings)

    def run(self, command: Callable[[*_Arguments], Awaitable[_Result]], *arguments: *_Arguments) -> _Result:
        """Run the command to its end. An error becomes a sentence and an exit code."""
        import anyio  # noqa: PLC0415 - as above

        self._set_up_log()
        try:
            return anyio.run(command, *arguments)
        except Exception as error:  # noqa: BLE001 - our own bugs are shown as one sentence, too
            if self.verbose:
                click.echo(traceback.format_exc(), err=True, nl=False)
            raise as_click(sole_error(error), self) from None

    def print_json(self, value: object) -> None:
        """Print a value as one line of JSON."""
        import msgspec  # noqa: PLC0415 - as above

        click.echo(msgspec.json.encode(value, order="deterministic"))

    def place(self) -> str:
        """Describe the region and the endpoint that requests go to."""
        region = self.region or os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
        endpoint = self.endpoint_url or os.environ.get("AWS_ENDPOINT_URL_KINESIS") or os.environ.get("AWS_ENDPOINT_URL")
        return (region or "the region of the AWS settings") + ("" if endpoint is None else f" at {endpoint}")

    def _set_up_log(self) -> None:
        """Show the library's log only under ``-v``: commands report failures themselves."""
        log = logging.getLogger("shardline")
        log.propagate = False
        handler: logging.Handler = logging.StreamHandler() if self.verbose else logging.NullHandler()
        handler.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))
        log.handlers = [handler]
        log.setLevel(logging.INFO if self.verbose else logging.WARNING)


class _Utf8(click.ParamType[str]):
    """A type for text that can be encoded as UTF-8. Python decodes other bytes of the command line as surrogates."""

    name = "text"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        try:
            value.encode()
        except UnicodeEncodeError:
            self.fail(f"{os.fsencode(value)!r} is not valid UTF-8", param, ctx)
        return value


UTF8: Final = _Utf8()


def global_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the global options to a command, which gets their values as the ``Invocation`` of ``click.pass_obj``."""
    return only_options(*_OPTIONS)(command)


def only_options(*names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Add only the named global options to a command."""

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        for name in reversed(names):
            command = _OPTIONS[name](command)
        return command

    return decorate


def _remember(context: click.Context, parameter: click.Parameter, value: object) -> None:
    invocation = context.ensure_object(Invocation)
    if value is not None and parameter.name:
        setattr(invocation, parameter.name, value)


def _option(*names: str, **settings: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    return click.option(*names, callback=_remember, expose_value=False, default=None, **settings)


_OPTIONS: Final = {
    "endpoint_url": _option(
        "--endpoint-url", metavar="URL", help="Kinesis endpoint, if not AWS's (also AWS_ENDPOINT_URL_KINESIS)."
    ),
    "region": _option("--region", metavar="NAME", help="AWS region (also AWS_REGION)."),
    "profile": _option("--profile", metavar="NAME", help="AWS profile (also AWS_PROFILE)."),
    "output": _option(
        "-o", "--output", type=click.Choice(["text", "json"]), help="Output format: text (the default) or json."
    ),
    "verbose": _option(
        "-v", "--verbose", is_flag=True, flag_value=True, help="Show the log, and tracebacks of errors."
    ),
}
