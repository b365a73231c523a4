"""Ctrl-C between any two steps: a helper for tests that end a call there."""

import dis
import sys
from contextlib import contextmanager

CORE = "shardline/core/producer"


class Interruption:
    """Where it came, if it did."""

    def __init__(self, after, within, steps, then=None):
        self.after = after
        self.then = then
        self.last_at = {}
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
        if event == self.steps and self.where is None and self.may_come(frame):
            self.after -= 1
            if self.after < 0:
                self.where = f"{frame.f_code.co_qualname}, line {frame.f_lineno}"
                if self.then is None:
                    raise KeyboardInterrupt
                self.then()
        return self.count

    def may_come(self, frame):
        """One that returns: only where the interpreter lets handlers and finalizers run, after a call, a new object or
        a jump back. What lies between is one step to them.
        """
        if self.then is None or self.steps == "line":
            return True
        code, at = frame.f_code.co_code, frame.f_lasti
        before = self.last_at.get(frame, 0)
        self.last_at[frame] = at
        return dis.opname[code[before]].startswith(("CALL", "RESUME", "JUMP_BACKWARD", "BUILD", "LIST_APPEND"))


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


@contextmanager
def entered_once_more(after, call, within=CORE, *, steps="opcode"):
    """After so many steps ``call`` is called, as by a signal handler or a finalizer that returns; then it goes on."""
    interruption = Interruption(after, within, steps, then=call)
    before = sys.gettrace()
    sys.settrace(interruption.trace)
    try:
        yield interruption
    finally:
        sys.settrace(before)
