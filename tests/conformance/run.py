"""Plays many scenarios in parallel, and leaves nothing behind.

Invariants:

- Every noted stream is deleted when its scenario is over, even after an interrupt or a failure, and the run waits until
  it is gone. Streams that could not be deleted stay in the state, and are named.
- A stream is deleted only if its name begins with the prefix of this program, and either this program's state has it or
  it has this program's tag.
- An interrupt stops the scenarios between two requests. Finished scenarios stay finished.
"""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field

from tests.conformance.player import PREFIX, TAG, CannotPlay, CredentialsExpired, Player, Result, Run, Stopped
from tests.conformance.scenario import Scenario
from tests.conformance.sites import Site
from tests.conformance.state import RunState
from tests.conformance.wire import WireError, error_of

OpenSite = Callable[[], "contextlib.AbstractContextManager[Site]"]
_SOON = 0.2


@dataclass
class Outcome:
    """The outcome of a run."""

    results: dict[str, Result] = field(default_factory=dict)
    broken_off: str = ""
    """Why the run did not complete."""
    left: tuple[str, ...] = ()
    """Streams that could not be deleted."""


class Runner:
    """Plays scenarios against a site that all share, or each against its own."""

    def __init__(
        self,
        open_site: OpenSite,
        state: RunState,
        *,
        jobs: int,
        stop: threading.Event | None = None,
        on_result: Callable[[Result, float], None] = lambda _result, _seconds: None,
    ) -> None:
        self._open_site = open_site
        self._state = state
        self._jobs = jobs
        self._stop = stop or threading.Event()
        self._on_result = on_result

    def play(self, scenarios: Sequence[Scenario]) -> Outcome:
        """Play the scenarios that are not finished yet. Set ``stop`` to interrupt."""
        outcome = Outcome()
        waiting = []
        for scenario in scenarios:
            kept = self._state.result_of(scenario)
            if kept is None:
                waiting.append(scenario)
            else:
                outcome.results[scenario.name] = kept
        waiting.sort(key=lambda scenario: -scenario.seconds)  # the longest first, so that the others fit beside them
        run = Run(self._state.run_id, self._stop, self._state.note_stream)
        with ThreadPoolExecutor(self._jobs) as pool:
            futures = {pool.submit(self._play_one, scenario, run) for scenario in waiting}
            for future in self._as_they_end(futures):
                self._take(future, outcome)
        order = [scenario.name for scenario in scenarios]
        outcome.results = {name: outcome.results[name] for name in order if name in outcome.results}
        return outcome

    @staticmethod
    def _as_they_end(futures: "set[Future[Result]]") -> "Iterator[Future[Result]]":
        while futures:  # with a timeout, so that signals are handled in between
            ended, futures = wait(futures, timeout=_SOON, return_when=FIRST_COMPLETED)
            yield from ended

    def _take(self, future: "Future[Result]", outcome: Outcome) -> None:
        try:
            result = future.result()
        except Stopped:
            outcome.broken_off = outcome.broken_off or "interrupted"
        except (CredentialsExpired, WireError) as problem:
            self._stop.set()
            kind = (
                "the credentials have expired" if isinstance(problem, CredentialsExpired) else "the connection is lost"
            )
            outcome.broken_off = f"{kind}: {problem}"
        except BaseException:  # a bug of this program, or a second signal: nothing more is started
            self._stop.set()
            raise
        else:
            outcome.results[result.scenario] = result

    def _play_one(self, scenario: Scenario, run: Run) -> Result:
        if self._stop.is_set():
            raise Stopped
        began_at = time.monotonic()
        with self._open_site() as site:
            player = Player(site, scenario, run, self._state.begin(scenario.name))
            result = player.play()
            if not result.not_run:
                self._state.finish(scenario, result)
            if not site.throw_away:
                for name in [name for name, owner in dict(self._state.streams).items() if owner == scenario.name]:
                    with contextlib.suppress(CannotPlay):  # the deletion is tried again at the end
                        delete(player, name)
        self._on_result(result, time.monotonic() - began_at)
        return result


def delete(player: Player, name: str) -> bool:
    """Request a stream's deletion, once. Return whether it is being deleted."""
    if not name.startswith(PREFIX):
        raise AssertionError(f"{name} is no stream of this program")
    outcome = player.request("DeleteStream", {"StreamName": name, "EnforceConsumerDeletion": True})
    return outcome["status"] == 200 or error_of(outcome)[0] == "ResourceNotFoundException"


def clean(
    site: Site, state: RunState, names: Sequence[str], say: Callable[[str], None] = lambda _line: None
) -> tuple[str, ...]:
    """Delete streams, and wait until they are gone. Return those that are left."""
    player = Player(site, Scenario("cleaning", "Streams are deleted", ()), Run(state.run_id))
    left, give_up_at = list(names), time.monotonic() + site.patience
    reason = ""
    while left and time.monotonic() < give_up_at:
        try:
            for name in list(left):
                found = player.state_of(name)
                if found == "gone":
                    left.remove(name)
                    state.forget_stream(name)
                elif found != "DELETING":
                    delete(player, name)
        except (CannotPlay, CredentialsExpired, WireError) as problem:
            reason = str(problem)
            break
        if left:
            time.sleep(site.poll_pause)
    for name in left:
        say(f"the stream {name} is still there{': ' + reason if reason else ''}")
    return tuple(left)


@dataclass(frozen=True)
class Leftover:
    name: str
    run_id: str
    created_at: float


def leftovers(site: Site) -> list[Leftover]:
    """Return the streams of this program, of any run, that the account has. They are found by name and tag."""
    player = Player(site, Scenario("looking", "Streams are looked for", ()), Run("looking"))
    found, last = [], PREFIX[:-1]
    while True:
        outcome = player.request("ListStreams", {"ExclusiveStartStreamName": last, "Limit": 100})
        body = outcome.get("body") or {}
        summaries = {one["StreamName"]: one for one in body.get("StreamSummaries", ())}
        for name in body.get("StreamNames", ()):
            if not name.startswith(PREFIX):
                return found
            tags = player.request("ListTagsForStream", {"StreamName": name}).get("body") or {}
            marks = {one["Key"]: one["Value"] for one in tags.get("Tags", ())}
            if TAG in marks:
                created_at = summaries.get(name, {}).get("StreamCreationTimestamp", 0.0)
                found.append(Leftover(name, marks[TAG], float(created_at)))
            last = name
        if not body.get("HasMoreStreams"):
            return found
