"""What did none of the seeds reach, whichever process ran them?

Under pytest-xdist the chunks of seeds run in several processes, in an unknown order. Each chunk leaves a file in
the directory of the run with what it did not reach. Invariants:

- A chunk is run once in a run of the tests, by the first that asks; another that asks meanwhile waits for it.
- What failed, or died, leaves nothing: the next one that asks runs it again, and sees why.
"""

import fcntl
import json


class Ledger:
    """Of the chunks of one kind of world; ``run(chunk)`` runs one, and gives what it did not reach."""

    def __init__(self, directory, name, run):
        self._directory, self._name, self._run = directory, name, run

    def missing_after(self, chunk):
        """What this chunk did not reach."""
        told = self._directory / f"{self._name}-{chunk}.json"
        with told.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # the system frees it if we die
            if not told.exists():
                told.write_text(json.dumps(self._run(chunk)))
            return json.loads(told.read_text())

    def missing_after_all(self, chunks):
        """The situations that no chunk reached. Chunks that have not been run yet are run here."""
        return sorted(set.intersection(*(set(self.missing_after(chunk)) for chunk in chunks)))
