"""Prints the script that completes ``shardline`` commands in a shell."""

from typing import Final

import click
from click.shell_completion import get_completion_class

from shardline.cli.completion import bash_words

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
    bash_words.register()
    found = get_completion_class(shell)
    if found is None:
        raise click.ClickException(f"the installed version of click completes nothing in {shell}")
    click.echo(found(context.find_root().command, {}, "shardline", _VARIABLE).source())
