"""Counts the instructions of parts of a Python program, under ``valgrind --tool=callgrind``.

Other programs on the machine do not change the count, so that differences of a fraction of a percent can be seen. The
counts include all threads, but not the kernel. They need ``valgrind``, with its header, and a C compiler.

A program that runs under ``run_counted`` counts with ``with Counter().counted("name"):``. The rest of the program is
not instrumented, and therefore about ten times faster than the counted parts.
"""

import contextlib
import ctypes
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

_SOURCE = """
#include <valgrind/callgrind.h>
void start(void) { CALLGRIND_START_INSTRUMENTATION; CALLGRIND_ZERO_STATS; }
void stop(const char *name) { CALLGRIND_DUMP_STATS_AT(name); CALLGRIND_STOP_INSTRUMENTATION; }
"""
_LIBRARY = "BENCH_CALLGRIND_LIBRARY"
_NAME = re.compile(r"^desc: Trigger: Client Request: (.*)$", re.MULTILINE)
_TOTAL = re.compile(r"^(?:totals|summary): (\d+)$", re.MULTILINE)


def missing() -> str | None:
    """Return what is missing for counting, or ``None``."""
    if shutil.which("valgrind") is None or not Path("/usr/include/valgrind/callgrind.h").exists():
        return "valgrind"
    return "a C compiler (cc)" if shutil.which("cc") is None else None


class Counter:
    """Counts the instructions of blocks. Works only in a process that ``run_counted`` has started."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL(os.environ[_LIBRARY])

    @contextlib.contextmanager
    def counted(self, name: str) -> Iterator[None]:
        self._library.start()
        yield
        self._library.stop(name.encode())


def run_counted(arguments: list[str]) -> dict[str, int]:
    """Run a Python program under callgrind. Return the number of instructions of each of its blocks."""
    with tempfile.TemporaryDirectory() as folder:
        source, library, output = Path(folder, "count.c"), Path(folder, "count.so"), Path(folder, "counts")
        source.write_text(_SOURCE)
        subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", library, source], check=True)
        command = ["valgrind", "--tool=callgrind", "--instr-atstart=no", f"--callgrind-out-file={output}", "-q"]
        environment = {**os.environ, _LIBRARY: str(library), "PYTHONHASHSEED": "0"}
        subprocess.run([*command, sys.executable, *arguments], check=True, env=environment)
        counts: dict[str, int] = {}
        for dump in Path(folder).glob("counts.*"):
            text = dump.read_text(errors="replace")
            name, total = _NAME.search(text), _TOTAL.search(text)
            if name is not None and total is not None:
                counts[name[1]] = int(total[1])
        return counts
