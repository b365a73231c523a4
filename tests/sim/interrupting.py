"""Ctrl-C between any two steps: a helper for tests that end a call there."""

import sys
from contextlib import contextmanager

CORE = "shardline/core/producer"


class Interruption:
    """Where it came, if it did."""

    def __init__(self, after, within, steps):
        self.after = after
        self.within = within
        self.steps = steps
        self.where = None

    def trace(self, frame, event, _):
        """Called for each function that begins: count the steps of ours."""
        if event != "call" or self.within not in frame.f_code.co_filename:
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = self.steps == "opcode", self.steps == "line"
        return self.count

    def count(self, frame, event, _):
        if event == self.steps and self.where is None:
            self.after -= 1
            if self.after < 0:
                self.where = f"{frame.f_code.co_qualname}, line {frame.f_lineno}"
                raise KeyboardInterrupt
        return self.count


@contextmanager
def interrupted(after, within=CORE, *, steps="opcode"):
    """The code of the producer's core that runs in the block gets a KeyboardInterrupt after so many steps.

    How many opcodes a line takes depends on how often it ran before: who wants the same step each time counts lines.
    """
    interruption = Interruption(after, within, steps)
    before = sys.gettrace()
    sys.settrace(interruption.trace)
    try:
        yield interruption
    except KeyboardInterrupt:
        if interruption.where is None:
            raise
    finally:
        sys.settrace(before)
