"""Sinks that misbehave, and the ways in which they do.

To test another sink with every fault, add a function to ``SINKS``. It takes ``work``, and returns the sink and a
function that cleans up. The sink must call ``work`` whenever it does what may be slow or fail: when it writes a line,
updates a metric or sends a request.
"""

import itertools
import logging
import threading
import time

from shardline.sinks import LogSink

_numbers = itertools.count(1)


def make_callable(work):
    def sink(_):
        work()

    return sink, lambda: None


def make_log_sink(work):
    """A log sink whose handler does the work. ``handle`` raises what ``work`` raises; ``emit`` would not."""

    class Handler(logging.Handler):
        def handle(self, _):
            work()

    logger = logging.getLogger(f"faulty.{next(_numbers)}")
    logger.propagate = False
    logger.setLevel(logging.DEBUG)
    logger.addHandler(Handler())
    return LogSink(logger), logger.handlers.clear


def make_opening_sink(work):
    """A sink that misbehaves already when it is opened."""

    class Opening:
        def open(self, _):
            work()
            return lambda _: work()

    return Opening(), lambda: None


SINKS = {"callable": make_callable, "LogSink": make_log_sink, "opening": make_opening_sink}
FAULTS = ("slow", "raising", "hanging")


class Work:
    """The work of a sink: it counts its calls, and misbehaves."""

    def __init__(self, fault):
        self.fault = fault
        self.calls = 0
        self.released = threading.Event()

    def __call__(self):
        self.calls += 1
        if self.fault == "slow":
            time.sleep(0.05)
        elif self.fault == "raising":
            raise OSError("the disk is full")
        elif self.fault == "hanging":
            self.released.wait()
