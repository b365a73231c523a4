"""The state of a run that survives a kill: its streams, and the finished scenarios.

It is one JSON file, which is replaced as a whole and flushed to the disk with every change.

Invariants:

- A stream is in the file before it is created, and until it was seen to be gone.
- A finished scenario is in the file with its result, and with a digest of the scenario: if the table has changed since,
  it is played again.
- A file of another region or endpoint, or an unreadable one, is refused: its streams would be forgotten.
"""

import hashlib
import json
import os
import secrets
import threading
from collections.abc import Collection
from pathlib import Path
from typing import Any

from tests.conformance.expectation import Mismatch
from tests.conformance.player import Played, Result
from tests.conformance.scenario import Scenario

VERSION = 1


class StateError(Exception):
    """The state file cannot be used. The message has the reason."""


class RunState:
    """The state of one run. With ``path=None``, nothing is stored."""

    def __init__(self, path: Path | None, endpoint: str, run_id: str | None = None) -> None:
        self._path = path
        self._endpoint = endpoint
        self._lock = threading.Lock()
        self.run_id = run_id or secrets.token_hex(4)
        self.streams: dict[str, str] = {}
        """Names of streams that may exist, and their scenarios."""
        self._finished: dict[str, dict[str, Any]] = {}
        self._attempts: dict[str, int] = {}

    @classmethod
    def load(cls, path: Path, endpoint: str) -> "RunState | None":
        """Return the state of a run that did not complete, if there is one.

        Raises:
            StateError: the file is not the state of a run.
        """
        try:
            kept = json.loads(path.read_text())
            state = cls(path, endpoint, kept["run_id"])
            state.streams, state._finished, state._attempts = kept["streams"], kept["finished"], kept["attempts"]
            version, where = kept["version"], kept["endpoint"]
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise StateError(f"the state file {path} cannot be read: {error!r}. Move it away to start afresh") from None
        if version != VERSION or where != endpoint:
            raise StateError(
                f"the state file {path} is of {where} (version {version}), not of {endpoint}: finish that run with its own "
                "region and endpoint, or choose another file with --state"
            )
        return state

    def _save(self) -> None:
        if self._path is None:
            return
        self._path.parent.mkdir(parents=True, exist_ok=True)
        kept = {
            "version": VERSION,
            "endpoint": self._endpoint,
            "run_id": self.run_id,
            "streams": self.streams,
            "finished": self._finished,
            "attempts": self._attempts,
        }
        temporary = self._path.with_name(f"{self._path.name}.new")
        with temporary.open("w") as file:
            json.dump(kept, file, indent=1)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(self._path)

    def note_stream(self, name: str, scenario: str) -> None:
        with self._lock:
            self.streams[name] = scenario
            self._save()

    def forget_stream(self, name: str) -> None:
        with self._lock:
            self.streams.pop(name, None)
            self._save()

    def begin(self, scenario: str) -> str:
        """Return a suffix for the names of a scenario's streams: those of an earlier attempt may still be in deletion."""
        with self._lock:
            self._attempts[scenario] = attempt = self._attempts.get(scenario, 0) + 1
            self._save()
        return "" if attempt == 1 else f"-{attempt}"

    def finish(self, scenario: Scenario, result: Result) -> None:
        with self._lock:
            self._finished[scenario.name] = {"digest": digest_of(scenario), "result": to_tree(result)}
            self._save()

    def result_of(self, scenario: Scenario) -> Result | None:
        kept = self._finished.get(scenario.name)
        return from_tree(kept["result"]) if kept is not None and kept["digest"] == digest_of(scenario) else None

    def forget_results(self, scenarios: Collection[str]) -> None:
        """Remove the results of these scenarios, so that they are played again."""
        with self._lock:
            for name in scenarios:
                self._finished.pop(name, None)
            self._save()

    @property
    def finished(self) -> tuple[str, ...]:
        return tuple(self._finished)

    def end(self) -> None:
        """Remove the state, because the run is over and nothing is left of it."""
        with self._lock:
            if self._path is not None:
                self._path.unlink(missing_ok=True)


def digest_of(scenario: Scenario) -> str:
    """Return a digest that changes whenever the scenario or its expectations change."""
    parts = [
        (type(step).__name__, step.label, repr(getattr(step, "members", "")), repr(step.expect))
        for step in scenario.steps
    ]
    return hashlib.sha256(repr((scenario.name, parts)).encode()).hexdigest()[:16]


def to_tree(result: Result) -> dict[str, Any]:
    steps = [
        {
            "label": step.label,
            "outcome": step.outcome,
            "mismatches": [[one.field, one.expected, one.got] for one in step.mismatches],
        }
        for step in result.steps
    ]
    return {"scenario": result.scenario, "not_run": result.not_run, "steps": steps}


def from_tree(tree: dict[str, Any]) -> Result:
    steps = tuple(
        Played(step["label"], step["outcome"], tuple(Mismatch(*one) for one in step["mismatches"]))
        for step in tree["steps"]
    )
    return Result(tree["scenario"], steps, tree["not_run"])
