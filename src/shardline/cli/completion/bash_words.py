"""Reads the command line that bash is completing.

Bash also splits words at colons, so ``sqlite:///leases.db`` would arrive as three words. Therefore the script of
``shardline completion bash`` also passes the line up to the cursor, and this module splits that line at spaces.
"""

import os
from typing import Final

from click.shell_completion import BashComplete, add_completion_class, split_arg_string

_CLICK_PASSES: Final = "env COMP_WORDS="


class WholeWords(BashComplete):
    """Bash completion that does not split words at colons."""

    source_template = BashComplete.source_template.replace(
        _CLICK_PASSES, f'env SHARDLINE_COMP_LINE="${{COMP_LINE:0:$COMP_POINT}}" {_CLICK_PASSES.removeprefix("env ")}'
    )

    def get_completion_args(self) -> tuple[list[str], str]:
        """Return the complete words before the cursor, and the incomplete word at the cursor."""
        line = os.environ.get("SHARDLINE_COMP_LINE")
        if line is None:
            return super().get_completion_args()
        words = split_arg_string(line)
        if line[-1:].isspace():
            return words[1:], ""
        return words[1:-1], words[-1] if len(words) > 1 else ""


def register() -> None:
    """Make click use ``WholeWords`` for completion in bash."""
    add_completion_class(WholeWords, "bash")
