"""Completes commands, options and stream names in the shell.

Invariants:

- Completion never fails aloud and never keeps the user waiting: no answer in time is no suggestion.
"""

from typing import Final

import click
from click.shell_completion import get_completion_class

from shardline.cli.invocation import Invocation

_PATIENCE: Final = 1.5
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
    """The streams whose names begin so, as far as one quick call tells."""
    del parameter
    import anyio  # noqa: PLC0415 - the other completions do without

    invocation = context.find_object(Invocation) or Invocation()

    async def ask() -> list[str]:
        with anyio.move_on_after(_PATIENCE):
            async with invocation.client(connect_timeout=_PATIENCE, read_timeout=_PATIENCE) as client:
                return [stream.name for stream in await client.list_streams()]
        return []

    try:
        return [name for name in anyio.run(ask) if name.startswith(incomplete)]
    except Exception:  # noqa: BLE001 - completion has no place to show an error
        return []
