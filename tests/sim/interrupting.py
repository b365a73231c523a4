"""Helpers for tests that interrupt code between any two steps: by Ctrl-C, or by a call that returns."""

import dis
import sys
from contextlib import contextmanager
from functools import cache

CORE = "shardline/core/producer"
LOOKS = {dis.opmap[name] for name in ("CALL", "CALL_KW", "CALL_FUNCTION_EX", "JUMP_BACKWARD") if name in dis.opmap}
"""After these opcodes, and where a function begins, Python checks for signals."""
MAKES = {code for name, code in dis.opmap.items() if name.startswith(("BUILD", "LIST_APPEND", "RESUME"))}
"""At these opcodes, the garbage collector may run, and finalizers with it."""

ATOMIC = set()
"""The code of functions that are not interrupted: the pure twins of compiled ones, if both forms are compared."""


@cache
def sealed_part(code):
    """Return the part of a function that reserves room and appends: the offsets of its first write, and of the call.

    Nothing is called between the two, so that Python does not check for signals there. ``None`` if the function has no
    such part.
    """
    instructions = iter(dis.get_instructions(code))
    for first in instructions:
        if first.opname == "STORE_ATTR" and first.argval == "reserved_records":
            names = []
            for following in instructions:
                names.append(following.argval)
                if following.opname.startswith("CALL"):
                    return (first.offset, following.offset) if {"append", "extend"} & set(names) else None
    return None


class Interruption:
    """Where the interruption came, if it did."""

    def __init__(self, after, within, steps, *, is_meant=lambda: True, then=None):
        self.after = after
        self.within = within
        self.steps = steps
        self.is_meant = is_meant
        self.then = then
        self.where = None
        self._last = {}  # the last opcodes of the frames

    def trace(self, frame, event, _):
        """Count the steps of our code. Python calls this for each function that begins."""
        if event != "call" or frame.f_code in ATOMIC:
            return None
        if self.within not in f"{frame.f_code.co_filename}:{frame.f_code.co_name}":
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = self.steps != "line", self.steps == "line"
        self._last.pop(frame, None)
        return self.count

    def count(self, frame, event, _):
        if event == "return":
            self._last.pop(frame, None)
        if event == ("line" if self.steps == "line" else "opcode") and self.where is None and self._is_step(frame):
            self.after -= 1
            if self.after < 0:
                self.where = f"{frame.f_code.co_qualname}, line {frame.f_lineno}"
                self._last.clear()
                if self.then is None:
                    raise KeyboardInterrupt
                self.then()
        return self.count

    def _is_step(self, frame):
        sealed = sealed_part(frame.f_code)
        if sealed is not None and sealed[0] < frame.f_lasti <= sealed[1]:
            return False
        if self.steps != "signal":
            return self.is_meant()
        last, self._last[frame] = self._last.get(frame), frame.f_lasti
        if last is None or not self.is_meant():
            return False
        return frame.f_code.co_code[last] in (LOOKS if self.then is None else LOOKS | MAKES)


def start_tracing(interruption):
    """Trace with this function from now on. Return the previous one, which must be restored in the end."""
    before = sys.gettrace()
    # Python 3.12 reports opcodes only if some frame has asked for them by the time of settrace.
    sys._getframe().f_trace_opcodes = True
    sys.settrace(interruption.trace)
    return before


@contextmanager
def interrupted(after, within=CORE, *, steps="opcode", is_meant=lambda: True):
    """Raise a KeyboardInterrupt in the producer's core after this many steps of the block.

    The number of opcodes of a line depends on how often it ran before, so count lines to interrupt at the same step
    each time. ``steps="signal"`` counts only the steps at which a signal can interrupt: after calls, and where a loop
    begins again.

    Args:
        within: a part of "path of the file:name of the function".
        is_meant: returns whether to interrupt the code that runs now, for example one task of many.
    """
    interruption = Interruption(after, within, steps, is_meant=is_meant)
    before = start_tracing(interruption)
    try:
        yield interruption
    except KeyboardInterrupt:
        if interruption.where is None:
            raise
    finally:
        sys.settrace(before)


@contextmanager
def entered_once_more(after, call, within=CORE):
    """Call ``call`` after this many steps, as a signal handler or a finalizer that returns would, and then continue.

    Only steps at which the interpreter lets them run are counted; for them, the code in between is one step.
    """
    interruption = Interruption(after, within, "signal", then=call)
    before = start_tracing(interruption)
    try:
        yield interruption
    finally:
        sys.settrace(before)
