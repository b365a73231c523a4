"""Measures how long the machine stood still while a drill ran.

A virtual machine can stop as a whole for longer than a lease lasts. Every worker then rightly loses its leases, records
rightly come twice, and limits on duplicates or on time mean nothing. So a thread sleeps for short times, and notes by
how much the longest sleep was late.
"""

import threading
import time

NAP = 0.05


class Standstill:
    """``with Standstill() as standstill: ...``, then ``standstill.longest`` in seconds."""

    def __init__(self, *, monotonic=time.monotonic, nap=time.sleep):
        self.longest = 0.0
        self._monotonic = monotonic
        self._nap = nap
        self._is_over = False
        self._thread = threading.Thread(target=self._watch, name="standstill", daemon=True)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._is_over = True
        self._thread.join()

    def _watch(self):
        while not self._is_over:
            began_at = self._monotonic()
            self._nap(NAP)
            self.longest = max(self.longest, self._monotonic() - began_at - NAP)
