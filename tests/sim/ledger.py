"""Collects the states that none of the seeds reached, whichever process ran them.

Under pytest-xdist, the chunks of seeds run in several processes, in an unknown order. Each chunk leaves a file in the
directory of the run with the states that it did not reach. Invariants:

- A chunk is run once per test run, by the first process that needs it. Another process that needs it waits.
- A chunk that failed or died leaves no file: the next process that needs it runs it again, and sees the failure.
"""

import fcntl
import json


class Ledger:
    """The chunks of one kind of world. ``run(chunk)`` runs a chunk, and returns the states that it did not reach."""

    def __init__(self, directory, name, run):
        self._directory, self._name, self._run = directory, name, run

    def missing_after(self, chunk):
        """Return the states that this chunk did not reach."""
        told = self._directory / f"{self._name}-{chunk}.json"
        with told.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # the system releases the lock if the process dies
            if not told.exists():
                told.write_text(json.dumps(self._run(chunk)))
            return json.loads(told.read_text())

    def missing_after_all(self, chunks):
        """The situations that no chunk reached. Chunks that have not been run yet are run here."""
        return sorted(set.intersection(*(set(self.missing_after(chunk)) for chunk in chunks)))
