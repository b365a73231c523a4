"""Writes the results as a file that can be committed and compared with.

The file is JSON, in the order of the table. It has no account, no credentials, no ids and no times: see
``expectation.masked``. ``write`` refuses anything else. A recording is compared step by step with the answers of
another endpoint.
"""

import json
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from tests.conformance.expectation import Mismatch, compare
from tests.conformance.player import Result
from tests.conformance.scenario import Scenario

VERSION = 1
RECORDINGS = Path(__file__).parent / "recordings"


class RecordingError(Exception):
    """A recording cannot be written or read. The message has the reason."""


def recording_of(results: Iterable[Result], *, endpoint: str, date: str) -> dict[str, Any]:
    """Return the recording of these results. Scenarios that were not run are not in it."""
    scenarios = {
        result.scenario: [{"step": step.label, "outcome": step.outcome} for step in result.steps]
        for result in results
        if not result.not_run
    }
    return {"version": VERSION, "endpoint": endpoint, "recorded_on": date, "scenarios": scenarios}


def write(path: Path, recording: Mapping[str, Any], secrets: Collection[str]) -> None:
    """Write the file, unless one of ``secrets`` (the account, keys, tokens, names) would be in it.

    Raises:
        RecordingError: it would be.
    """
    text = json.dumps(recording, indent=1, ensure_ascii=False) + "\n"
    found = [secret for secret in secrets if secret and secret in text]
    if found:
        line = next(line for line in text.splitlines() if found[0] in line)
        raise RecordingError(
            f"the recording is not written: it would have the account or a secret, near {line[:40].strip()!r}"
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def load(path: Path) -> dict[str, Any]:
    try:
        recording = json.loads(path.read_text())
        if recording["version"] != VERSION:
            raise RecordingError(f"{path} is of version {recording['version']}, not of {VERSION}: record again")
        dict(recording["scenarios"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RecordingError(f"{path} is no recording: {error!r}") from None
    return recording


def against(recording: Mapping[str, Any], scenario: Scenario, result: Result) -> list[tuple[int, str, Mismatch]]:
    """Yield where ``result`` differs from the recording of its scenario: step, label, mismatch."""
    recorded = recording["scenarios"].get(scenario.name)
    if recorded is None:
        return []
    if [step["step"] for step in recorded] != [step.label for step in scenario.steps]:
        gap = Mismatch(
            "the steps", f"those recorded on {recording['recorded_on']}", "the table has changed: record again"
        )
        return [(0, "scenario", gap)]
    return [
        (at, step.label, mismatch)
        for at, (then, step) in enumerate(zip(recorded, result.steps, strict=False), 1)
        for mismatch in compare(then["outcome"], step.outcome)
    ]
