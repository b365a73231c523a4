"""Plays a scenario against an endpoint, and returns the answers.

Invariants:

- A throttled request (AWS's control plane allows five calls a second) is repeated after a wait, unless the step expects
  that refusal. So is a request for which the service itself failed.
- If access is denied unexpectedly, or a stream cannot be created, the scenario counts as not run: it neither passed nor
  failed.
- Expired credentials are looked up again, once. If that does not help, the run ends.
- A stream's name is reported before the stream is created, so that the user can delete it whatever happens next.
- A step that uses a name that no earlier answer gave is a difference, and is not sent.
"""

import asyncio
import functools
import re
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import anyio
from tests.conformance import wire
from tests.conformance.expectation import Mismatch, compare, filled, masked, unfilled
from tests.conformance.scenario import (
    LIMITED,
    Call,
    Flood,
    Pause,
    Program,
    Read,
    Scenario,
    Step,
    Stream,
    Subscribe,
    Wait,
)
from tests.conformance.sites import Site
from tests.conformance.wire import error_of, outcome_of

PREFIX = "shardline-conformance-"
TAG = "shardline-conformance"
SHARED = "shared"
_EXPIRED = {
    "ExpiredTokenException",
    "ExpiredToken",
    "UnrecognizedClientException",
    "InvalidClientTokenId",
    "RequestExpired",
}
_DENIED = {"AccessDeniedException", "AccessDenied"}
_BUSY = re.compile("Rate exceeded|CREATING|simultaneously|too many|Too Many", re.IGNORECASE)
_NAME_MAX = 128
_ATTEMPTS_MAX = 30  # attempts of one throttled request: two and a half minutes
_FAILURES_MAX = 3  # attempts of one request for which the service itself failed


class Stopped(Exception):  # noqa: N818 - not an error: the run is to end
    """The run was interrupted."""


class CannotPlay(Exception):  # noqa: N818 - it reads better without Error
    """The credentials, or the limits of the account, do not allow the scenario."""


class CredentialsExpired(Exception):  # noqa: N818 - it reads better without Error
    """The credentials have expired."""


@dataclass(frozen=True)
class Played:
    """The outcome of one step."""

    label: str
    outcome: Any
    """The masked outcome, as in a recording."""
    mismatches: tuple[Mismatch, ...] = ()


@dataclass(frozen=True)
class Result:
    scenario: str
    steps: tuple[Played, ...]
    not_run: str = ""


@dataclass
class Run:
    """The state that all scenarios of a run share."""

    run_id: str
    stop: threading.Event = field(default_factory=threading.Event)
    note_stream: Callable[[str, str], None] = lambda _name, _scenario: None
    """Called with the name and the scenario of each stream, before it is created."""


class Player:
    """Plays one scenario."""

    def __init__(self, site: Site, scenario: Scenario, run: Run, attempt: str = "") -> None:
        self.site = site
        self._scenario = scenario
        self._run = run
        self.names: dict[str, Any] = {
            "run": run.run_id,
            "account": site.account,
            "region": site.region,
            "partition": site.partition,
            "nothing": stream_name(run.run_id, scenario.name, "nothing"),
        }
        self.names["nothing_arn"] = site.arn_of(self.names["nothing"])
        self.names["before"] = stream_name(run.run_id, f"{scenario.name}{attempt}", "")
        for key in {**scenario.streams, **scenario.makes}:
            self.names[key] = stream_name(run.run_id, f"{scenario.name}{attempt}", key)
            if key in scenario.streams and scenario.streams[key].shared:
                self.names[key] = stream_name(run.run_id, SHARED, str(scenario.streams[key].shards))
            self.names[f"{key}_arn"] = site.arn_of(self.names[key])

    # ---- playing

    def play(self) -> Result:
        """Play all steps.

        Raises:
            Stopped, CredentialsExpired, WireError: the run cannot go on.
        """
        played: list[Played] = []
        try:
            for key in self._scenario.makes:
                self._run.note_stream(self.names[key], self._scenario.name)
            for key, spec in self._scenario.streams.items():
                if spec.shared:
                    self._make_shared(self.names[key], spec)
                else:
                    self.make_stream(self.names[key], spec, self._scenario.name)
            for step in self._scenario.steps:
                played.append(self._play(step))
        except CannotPlay as reason:
            return Result(self._scenario.name, tuple(played), not_run=str(reason))
        return Result(self._scenario.name, tuple(played))

    def _play(self, step: Step) -> Played:
        self.check_stop()
        expected = filled(step.expect, self.names)
        missing = sorted(unfilled(filled(getattr(step, "members", {}), self.names)))
        if missing:
            gap = Mismatch("the request", f"${missing[0]}", "no earlier answer had it")
            return Played(step.label, None, (gap,))
        outcome = self._carry_out(step, expected)
        expected = filled(step.expect, self.names)  # including the values of this very answer
        return Played(step.label, masked(expected, outcome, self.names), tuple(compare(expected, outcome)))

    def _carry_out(self, step: Step, expected: Any) -> Any:
        match step:
            case Call():
                return self._call(step, expected)
            case Wait():
                return {"state": self.wait(self.names[step.stream], step.state, step.consumer)}
            case Pause():
                self.pause(step.seconds)
                return None
            case Read():
                return self._read(step)
            case Flood():
                return self._flood(step)
            case Subscribe():
                return self._subscribe(step)
            case Program():
                return asyncio.run(self._run_program(step))

    async def _run_program(self, step: Program) -> Any:
        """Return the result of a program, or its exception. It is cancelled when the run ends."""
        outcome = None

        async def watch() -> None:
            while not self._run.stop.is_set():  # noqa: ASYNC110 - it is set by a signal handler
                await asyncio.sleep(0.1)
            tasks.cancel_scope.cancel()

        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(watch)
                outcome = await step.run(self)
                tasks.cancel_scope.cancel()
        except Exception as error:  # noqa: BLE001 - whatever it is, it is what the program did
            outcome = _raised(error)
        self.check_stop()
        return outcome

    # ---- time

    def check_stop(self) -> None:
        if self._run.stop.is_set():
            raise Stopped

    def pause(self, seconds: float) -> None:
        """Let time pass, on the server's own clock if it has one."""
        self.check_stop()
        if self.site.advance is not None:
            self.site.advance(seconds)
        elif self._run.stop.wait(seconds):
            raise Stopped

    # ---- requests

    def request(self, operation: str, members: Mapping[str, Any], expected: Any = None) -> dict[str, Any]:
        """Return the outcome of a plain request."""
        return self._outcome(wire.Request(operation, wire.encode(members, as_cbor=False)), expected)

    def _call(self, step: Call, expected: Any) -> dict[str, Any]:
        members = filled(dict(step.members), self.names)
        own = {self.names[key] for key in self._scenario.makes}
        if step.operation == "CreateStream" and members.get("StreamName") in own and expected.get("status") == 200:
            members["Tags"] = {**members.get("Tags", {}), TAG: self._run.run_id}
        content_type = wire.CBOR if step.cbor else wire.JSON
        body = wire.encode(members, as_cbor=step.cbor) if step.body is None else step.body
        request = wire.Request(step.operation, body, content_type, step.headers, step.signing, step.method)
        give_up_at = time.monotonic() + (step.eventually if self.site.is_eventual else 0.0)
        while True:
            outcome = self._outcome(request, expected, step.show_headers)
            if time.monotonic() >= give_up_at or not compare(expected, outcome):
                break
            self.pause(1.0)
        self._keep(step.keep, outcome.get("body"))
        return outcome

    def _keep(self, keep: Mapping[str, str], body: Any) -> None:
        for name, path in keep.items():
            value = _at(body, path)
            if value is not None:
                self.names[name] = value

    def _outcome(self, request: wire.Request, expected: Any, show: tuple[str, ...] = ()) -> dict[str, Any]:
        """Send until the service gives an answer about this request."""
        pause, refreshed, failures = 0.25, False, 0
        for attempt in range(_ATTEMPTS_MAX):
            self.check_stop()
            self.site.pace(request.operation)
            keys = self.site.wire.credentials()
            raw = self.site.wire.send(request)
            outcome = outcome_of(raw, show)
            code, message = error_of(outcome)
            if not code or request.signing != "right" or (expected is not None and not compare(expected, outcome)):
                return outcome
            is_expected = code == error_of(expected)[0]
            failures += raw.status >= 500
            if not is_expected and is_denied(code, message):
                raise CannotPlay(f"{request.operation} is denied: {message}")
            if not is_expected and code in _EXPIRED:
                if refreshed or not self.site.refresh(keys):
                    raise CredentialsExpired(message)
                refreshed = True
            elif not _is_passing(raw.status, code, message) or failures > _FAILURES_MAX or attempt == _ATTEMPTS_MAX - 1:
                break
            else:
                self.pause(pause)
                pause = min(2 * pause, 5.0)
        return outcome

    # ---- streams

    def _make_shared(self, name: str, spec: Stream) -> None:
        with self.site.making:
            if name not in self.site.shared_streams:
                self.make_stream(name, spec, SHARED)
                self.site.shared_streams.add(name)

    def make_stream(self, name: str, spec: Stream, owner: str) -> None:
        """Create a stream for one or more scenarios, and wait until it exists."""
        self._run.note_stream(name, owner)
        mode = {"StreamModeDetails": {"StreamMode": "ON_DEMAND"}} if spec.on_demand else {"ShardCount": spec.shards}
        outcome = self.request("CreateStream", {"StreamName": name, **mode, "Tags": {TAG: self._run.run_id}})
        if outcome["status"] != 200:
            raise CannotPlay(f"the stream {name} cannot be made: {': '.join(error_of(outcome))}")
        self.wait(name, "ACTIVE")

    def wait(self, stream: str, state: str, consumer: str = "") -> str:
        """Wait for a state. Return the last state: the wanted one, unless the time is over."""
        give_up_at = time.monotonic() + self.site.patience
        while True:
            found = self.state_of(stream, consumer)
            if found == state or time.monotonic() > give_up_at:
                return found
            self.pause(self.site.poll_pause)

    def state_of(self, stream: str, consumer: str = "") -> str:
        if consumer:
            members = {"StreamARN": self.site.arn_of(stream), "ConsumerName": consumer}
            outcome = self.request("DescribeStreamConsumer", members)
            path = "ConsumerDescription.ConsumerStatus"
        else:
            outcome = self.request("DescribeStreamSummary", {"StreamName": stream})
            path = "StreamDescriptionSummary.StreamStatus"
        if error_of(outcome)[0] == "ResourceNotFoundException":
            return "gone"
        return str(_at(outcome.get("body"), path) or error_of(outcome))

    # ---- records

    def _read(self, step: Read) -> dict[str, Any]:
        outcome = self.request("GetShardIterator", filled(dict(step.members), self.names))
        records: list[Any] = []
        iterator = _at(outcome.get("body"), "ShardIterator")
        give_up_at = time.monotonic() + self.site.patience
        children = None
        while iterator is not None and (step.records is None or len(records) < step.records):
            if time.monotonic() > give_up_at:
                break
            outcome = self.request("GetRecords", {"ShardIterator": iterator})
            if outcome["status"] != 200:
                break
            body = outcome["body"]
            records += body["Records"]
            iterator, children = body.get("NextShardIterator"), body.get("ChildShards")
            if not body["Records"]:
                self.pause(0.25)
        if outcome["status"] != 200:
            return outcome
        read = {"records": records, "ended": iterator is None}
        return read if children is None else read | {"children": children}

    def _flood(self, step: Flood) -> Any:
        """Return the first refusal of a request or an entry, or the last answer if there was none."""
        members = filled(dict(step.members), self.names)
        request = wire.Request(step.operation, wire.encode(members, as_cbor=False))

        def once(_: int) -> Any:
            return None if self._run.stop.is_set() else outcome_of(self.site.wire.send(request))

        with ThreadPoolExecutor(step.side_by_side) as pool:
            outcomes = [outcome for outcome in pool.map(once, range(step.at_most)) if outcome is not None]
        self.check_stop()
        for outcome in outcomes:
            if error_of(outcome)[0]:
                return outcome
            for entry in (outcome.get("body") or {}).get("Records", []):
                if "ErrorCode" in entry:
                    return {"status": 200, "entry": entry}
        return {"status": 200, "throttled": False}

    def _subscribe(self, step: Subscribe) -> Any:
        members = filled(dict(step.members), self.names)
        content_type = wire.CBOR if step.cbor else wire.JSON
        request = wire.Request("SubscribeToShard", wire.encode(members, as_cbor=step.cbor), content_type)
        raw, messages = self.site.wire.events(request)
        if raw.status != 200:
            return outcome_of(raw)
        first, events = None, []
        for message in messages:
            kind = message.headers.get(":event-type", message.headers.get(":exception-type"))
            if first is None:
                first = kind
                continue
            body = wire.decode(str(message.headers.get(":content-type", wire.JSON)), bytes(message.payload))
            if kind != "SubscribeToShardEvent":
                events.append({"kind": kind, "body": body})
                break
            events.append(body)
            if sum(len(event["Records"]) for event in events) >= step.records or "ChildShards" in body:
                break
        last = {name: value for name, value in (events or [{}])[-1].items() if name != "Records"}
        records = [record for event in events for record in event.get("Records", ())]
        outcome = {"status": 200, "first": first, "records": records, "last": last}
        self._keep(step.keep, outcome)
        return outcome


def stream_name(run_id: str, scenario: str, key: str) -> str:
    return f"{PREFIX}{run_id}-{scenario}-{key}"[:_NAME_MAX]


def _raised(error: BaseException) -> dict[str, str]:
    """What a program raised, as an outcome.

    Raises:
        Stopped, CannotPlay, CredentialsExpired: it is one of those, or what a client of ours makes of it.
    """
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, (Stopped, CannotPlay, CredentialsExpired)):
        raise error
    code = getattr(error, "code", None)
    if is_denied(str(code), str(error)):
        raise CannotPlay(f"denied: {error}")
    if code in _EXPIRED:
        raise CredentialsExpired(str(error))
    return {"raised": type(error).__name__, "message": str(error)}


def is_denied(code: str, message: str) -> bool:
    """Whether the caller may not do this. An emulator that does not support an operation also answers AccessDenied."""
    return code in _DENIED and "not authorized" in message


def _is_passing(status: int, code: str, message: str) -> bool:
    """Whether a refusal has nothing to do with the request itself."""
    if status >= 500 or code in {"ThrottlingException", "ProvisionedThroughputExceededException"}:
        return True
    return code in LIMITED and _BUSY.search(message) is not None


def _at(tree: Any, path: str) -> Any:
    """Return ``Records[0].SequenceNumber`` of an answer, or ``None`` if it does not exist."""
    parts = [int(part) if part.isdigit() else part for part in re.findall(r"[^.\[\]]+", path)]

    def step(value: Any, part: int | str) -> Any:
        try:
            return value[part]
        except (KeyError, IndexError, TypeError):
            return None

    return functools.reduce(step, parts, tree)
