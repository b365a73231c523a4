"""Measures the memory and the CPU time of a process, from /proc (Linux only)."""

import os
import threading
import time
from pathlib import Path

PAGE = os.sysconf("SC_PAGE_SIZE")
TICK = os.sysconf("SC_CLK_TCK")
MIB = 1024 * 1024


def resident(pid):
    """Return the resident memory in bytes."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE


def processor_time(pid):
    """Return the CPU time in seconds, user and system."""
    cells = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(cells[11]) + int(cells[12])) / TICK


class MemoryWatch:
    """Samples the memory of some processes every second, from its creation until it is ended."""

    def __init__(self, pids):
        self._samples = {name: [] for name in pids}  # (seconds, bytes)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(pids,), daemon=True)
        self._thread.start()

    def _run(self, pids):
        began_at = time.monotonic()
        while not self._stopping.wait(1.0):
            for name, pid in pids.items():
                self._samples[name].append((time.monotonic() - began_at, resident(pid)))

    def end(self):
        self._stopping.set()
        self._thread.join()

    def slopes(self, skip):
        """Return the growth in bytes per minute, by least squares, and the last size, for each process. The first
        ``skip`` seconds do not count.
        """
        found = {}
        for name, samples in self._samples.items():
            late = [(at, size) for at, size in samples if at >= skip]
            middle = sum(at for at, _ in late) / len(late)
            mean = sum(size for _, size in late) / len(late)
            spread = sum((at - middle) ** 2 for at, _ in late)
            slope = sum((at - middle) * (size - mean) for at, size in late) / spread
            found[name] = (slope * 60.0, late[-1][1])
        return found
