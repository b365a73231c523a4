"""Finds the records that a broken producer machine still knows of.

A signal handler that raises inside the machine leaves it between two states: a record may have been taken out of one
structure, and not be in the next. It is then in a local variable of a function that the exception ended, and the
exception's traceback keeps those.
"""

import gc
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any, Final, cast

from shardline.core.producer.record import BufferedRecord

_CONTAINERS: Final[tuple[type, ...]] = (list, tuple, dict, set, frozenset, deque, type(iter([])), type(iter(())))


def stranded_records(machine: object, errors: Iterable[BaseException]) -> list[BufferedRecord]:
    """Every record that can be reached from the machine, or from a frame of these errors."""
    found: list[BufferedRecord] = []
    seen: dict[int, object] = {}  # with the objects: an id may be reused
    left: list[object] = [machine, *(value for error in errors for value in _locals_of(error))]
    while left:
        value = left.pop()
        if id(value) in seen:
            continue
        seen[id(value)] = value
        if isinstance(value, BufferedRecord):
            found.append(value)
        elif isinstance(value, _CONTAINERS) or type(value).__module__.startswith("shardline.core."):
            left += gc.get_referents(value)
    return found


def _locals_of(error: BaseException) -> Iterator[object]:
    errors = [error]
    seen: set[int] = set()
    while errors:
        current = errors.pop()
        if id(current) in seen:
            continue
        seen.add(id(current))
        if isinstance(current, BaseExceptionGroup):
            errors += cast("Any", current).exceptions
        errors += [other for other in (current.__context__, current.__cause__) if other is not None]
        step = current.__traceback__
        while step is not None:
            yield from step.tb_frame.f_locals.values()
            step = step.tb_next
