"""The commands of ``shardline``.

A command ``x`` is the attribute ``x`` of the module ``shardline.cli.x.x_command``. The console is a package of its own
above the command line, whose functions it uses: ``shardline.console.console_command``.

Invariants:

- A command's module is imported only when the command is called, so that ``--version``, ``--help`` and completion
  stay quick.
- The summary of a command in ``--help`` is the first sentence of the command's own help.
"""

from importlib import import_module
from typing import Final

import click
from click.shell_completion import CompletionItem

from shardline import __version__
from shardline.cli.invocation import global_options

COMMANDS: Final = {
    "completion": "Print the script that completes commands in your shell.",
    "console": "Look at streams, groups and records in a browser.",
    "consume": "Run a command for each record of a stream, as a consumer group.",
    "demo": "See it work: produce, consume, reshard, lose a worker; nothing is lost.",
    "doctor": "Diagnose the connection to Kinesis, and a stream.",
    "groups": "Show, move, copy and delete consumer groups.",
    "local": "Serve a local Kinesis until Ctrl-C.",
    "put": "Put records into a stream.",
    "streams": "List, create, describe, change, delete and reshard streams.",
    "tail": "Read a stream, and follow it as records arrive.",
}

_PACKAGES: Final = {"console": "shardline.console"}


class Commands(click.Group):
    """A Click command group that imports each command only when that command is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        del ctx
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        del ctx
        if cmd_name not in COMMANDS:
            return None
        package = _PACKAGES.get(cmd_name, f"shardline.cli.{cmd_name}")
        command: click.Command = getattr(import_module(f"{package}.{cmd_name}_command"), cmd_name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        del ctx
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        names = [CompletionItem(name, help=text) for name, text in COMMANDS.items() if name.startswith(incomplete)]
        return names + click.Command.shell_complete(self, ctx, incomplete)


@click.group("shardline", cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="shardline")
@global_options
def shardline() -> None:
    """Amazon Kinesis Data Streams on the command line.

    Set the endpoint and credentials with these options, or with AWS's own environment variables and files. The options
    may come before or after the command.

    \b
    Examples:
      shardline demo                              no account, no flags
      shardline local --stream orders             a Kinesis on this machine
      shardline streams list
      echo hello | shardline put orders
      shardline tail -f orders --from TRIM_HORIZON
    """
