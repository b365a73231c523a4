"""Ctrl-C between any two steps: a helper for tests that end a call there."""

import dis
import sys
from contextlib import contextmanager

CORE = "shardline/core/producer"
LOOKS = {dis.opmap[name] for name in ("CALL", "CALL_KW", "CALL_FUNCTION_EX", "JUMP_BACKWARD") if name in dis.opmap}
"""After these Python looks whether a signal came; and where a function begins."""


class Interruption:
    """Where it came, if it did."""

    def __init__(self, after, within, steps, is_meant):
        self.after = after
        self.within = within
        self.steps = steps
        self.is_meant = is_meant
        self.where = None
        self._last = {}  # the frames' last opcodes

    def trace(self, frame, event, _):
        """Called for each function that begins: count the steps of ours."""
        if event != "call" or self.within not in frame.f_code.co_filename:
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
                raise KeyboardInterrupt
        return self.count

    def _is_step(self, frame):
        if self.steps != "signal":
            return self.is_meant()
        last, self._last[frame] = self._last.get(frame), frame.f_lasti
        return last is not None and frame.f_code.co_code[last] in LOOKS and self.is_meant()


@contextmanager
def interrupted(after, within=CORE, *, steps="opcode", is_meant=lambda: True):
    """The code of the producer's core that runs in the block gets a KeyboardInterrupt after so many steps.

    How many opcodes a line takes depends on how often it ran before: who wants the same step each time counts lines.
    ``steps="signal"``: only where a signal can interrupt, which is after calls and where a loop begins again.

    Args:
        is_meant: whether what runs now is to be interrupted: one task of many.
    """
    interruption = Interruption(after, within, steps, is_meant)
    before = sys.gettrace()
    sys.settrace(interruption.trace)
    try:
        yield interruption
    except KeyboardInterrupt:
        if interruption.where is None:
            raise
    finally:
        sys.settrace(before)
