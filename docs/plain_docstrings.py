"""How do docstrings become Markdown? An extension of griffe, for ``docs/api.md``.

- The code announces an example as reStructuredText does, by two colons; Markdown would show both.
- It cites its invariants by number, as in (P7): those are for who reads the code.
- ``ProducerConfig`` says what its fields mean, and their defaults, in their metadata.
"""

import re
from dataclasses import fields
from typing import Any

from griffe import Attribute, Docstring, Extension, Object

from shardline import ProducerConfig

ANNOUNCED = re.compile(r"::$", re.MULTILINE)
CITED = re.compile(r" \([A-Z]{1,2}\d+\)")
KNOBS = {f"{ProducerConfig.__module__}.ProducerConfig.{knob.name}": knob for knob in fields(ProducerConfig)}


class PlainDocstrings(Extension):
    """Docstrings as Markdown."""

    def on_attribute(self, *, attr: Attribute, **_: Any) -> None:
        knob = KNOBS.get(attr.path)
        if knob is not None and knob.metadata:
            about = knob.metadata["about"]
            attr.docstring = Docstring(f"{about[0].upper()}{about[1:]}.", parent=attr)
            attr.value = repr(knob.default)

    def on_object(self, *, obj: Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = CITED.sub("", ANNOUNCED.sub(":", obj.docstring.value))
