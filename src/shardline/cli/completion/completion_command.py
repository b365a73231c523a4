"""Completes commands, options and stream names in the shell.

Invariants:

- Completion never shows an error and never keeps the user waiting: without a timely answer it suggests nothing.
"""

from typing import Final

import click
from click.shell_completion import get_completion_class

from shardline.cli.invocation import Invocation

_TIMEOUT: Final = 1.5
_VARIABLE: Final = "_SHARDLINE_COMPLETE"


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print the script that completes commands in your shell.

    \b
    Examples, for this shell only:
      source <(shardline completion bash)
      source <(shardline completion zsh)
      shardline completion fish | source
    \b
    Examples, permanently:
      shardline completion bash > ~/.local/share/bash-completion/completions/shardline
      shardline completion fish > ~/.config/fish/completions/shardline.fish
    """
    found = get_completion_class(shell)
    if found is None:
        raise click.ClickException(f"the installed version of click completes nothing in {shell}")
    click.echo(found(context.find_root().command, {}, "shardline", _VARIABLE).source())


def complete_stream(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Return the names of streams that begin with ``incomplete``, from one quick call."""
    del parameter
    import anyio  # noqa: PLC0415 - the other completions start faster without it

    invocation = context.find_object(Invocation) or Invocation()

    async def list_names() -> list[str]:
        with anyio.move_on_after(_TIMEOUT):
            async with invocation.client(connect_timeout=_TIMEOUT, read_timeout=_TIMEOUT) as client:
                return [stream.name for stream in await client.list_streams()]
        return []

    try:
        return [name for name in anyio.run(list_names) if name.startswith(incomplete)]
    except Exception:  # noqa: BLE001 - completion has no place to show an error
        return []
