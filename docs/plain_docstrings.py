"""Turns docstrings into Markdown: an extension of griffe, for the pages in ``docs/reference/api``.

- In docstrings, two colons introduce an example, as in reStructuredText. Markdown needs one.
- Docstrings cite invariants by number, as in (P7). The numbers help readers of the code only, so they are removed.
- The meanings and defaults of the fields of ``ProducerConfig`` are in the fields' metadata.
"""

import re
from dataclasses import fields
from typing import Any

from griffe import Attribute, Docstring, Extension, Object

from shardline import ProducerConfig

TWO_COLONS = re.compile(r"::$", re.MULTILINE)
INVARIANT = re.compile(r" \([A-Z]{1,2}\d+\)")
SETTINGS = {f"{ProducerConfig.__module__}.ProducerConfig.{setting.name}": setting for setting in fields(ProducerConfig)}


class PlainDocstrings(Extension):
    """Rewrites docstrings as Markdown."""

    def on_attribute(self, *, attr: Attribute, **_: Any) -> None:
        setting = SETTINGS.get(attr.path)
        if setting is not None and setting.metadata:
            about = setting.metadata["about"]
            attr.docstring = Docstring(f"{about[0].upper()}{about[1:]}.", parent=attr)
            attr.value = repr(setting.default)

    def on_object(self, *, obj: Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = INVARIANT.sub("", TWO_COLONS.sub(":", obj.docstring.value))
