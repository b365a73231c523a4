"""Controls a running server over HTTP and reports whether it is up.

The control API is on the same port as the Kinesis API, and speaks JSON. An error is ``{"error": "..."}``, with status
400 for a request that cannot be carried out, 404 for an unknown path and 405 for a method that the path does not
support.

==========================================  ========================================================================
``GET /_shardline/health``                  ``{"status": "ok", "streams":, "records":}``; ``HEAD`` works too
``GET /_shardline/faults``                  ``{"faults": [...]}``: each a rule with ``id``, ``hits``, ``count_left``
``POST /_shardline/faults``                 add a rule, or a list of rules (``fault_rules``); returns the new rules
``DELETE /_shardline/faults``               remove all rules
``DELETE /_shardline/faults/{id}``          remove one rule
``GET /_shardline/requests``                ``{"total":, "requests": [...]}``, oldest first: the last ``?limit=`` (100)
                                            requests that match ``?operation=``, ``?stream=`` and ``?error=``
``DELETE /_shardline/requests``             clear the request log
``GET /_shardline/clock``                   ``{"now":, "frozen":}``
``POST /_shardline/clock``                  ``{"freeze": true}``, ``{"resume": true}`` or ``{"advance": seconds}``;
                                            ``advance`` may be combined with either of the others
``GET /_shardline/streams``                 ``{"streams": [...]}``: shards, records and bytes of each stream
==========================================  ========================================================================

Invariants:

- No request raises, and no request is carried out in part: a list that contains an invalid rule adds no rule.
- Control requests are not hit by faults, need no signature and do not appear in the request log.
- The cost of the health path does not depend on the number of streams and records.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple, TypeAlias, cast, final

import msgspec

from shardline.errors import UsageError
from shardline.server.model.faults import Faults
from shardline.server.model.service import Service
from shardline.server.model.streams import ServerStream
from shardline.server.request_log import RequestLog
from shardline.server.server_clock import ServerClock

PREFIX: Final = "/_shardline/"
HEALTH_PATH: Final = f"{PREFIX}health"
_SHOWN: Final = 100

Controlled: TypeAlias = tuple[int, dict[str, Any]]
"""The HTTP status and the JSON body of an answer."""


@final
class _ControlRequest(NamedTuple):
    """The parts of a control request that its handler needs. ``rest`` is the path after the name of the route."""

    rest: str
    query: Mapping[str, str]
    body: bytes


@final
class Control:
    def __init__(self, service: Service, clock: ServerClock, *, faults: Faults, requests: RequestLog) -> None:
        self._service = service
        self._clock = clock
        self._faults = faults
        self._requests = requests
        self._routes: dict[str, dict[str, Callable[[_ControlRequest], dict[str, Any]]]] = {
            "health": {"GET": self._get_health, "HEAD": self._get_health},
            "faults": {"GET": self._list_faults, "POST": self._add_faults, "DELETE": self._remove_faults},
            "requests": {"GET": self._list_requests, "DELETE": self._clear_requests},
            "clock": {"GET": self._get_clock, "POST": self._set_clock},
            "streams": {"GET": self._list_streams},
        }

    def control(self, method: str, path: str, query: Mapping[str, str], body: bytes) -> Controlled:
        """Return the status and the answer for a request under ``/_shardline/``."""
        route, _, rest = path.removeprefix(PREFIX).strip("/").partition("/")
        methods = self._routes.get(route)
        if methods is None or (rest and route != "faults"):
            known = ", ".join(f"{PREFIX}{name}" for name in self._routes)
            return 404, {"error": f"unknown path {path}: use one of {known}"}
        action = methods.get(method)
        if action is None or (rest and method != "DELETE"):
            return 405, {"error": f"{path} does not support {method}"}
        try:
            return 200, action(_ControlRequest(rest, query, body))
        except UsageError as error:
            return 400, {"error": str(error)}

    # ---- health

    def _get_health(self, _: _ControlRequest) -> dict[str, Any]:
        state = self._service.state
        return {"status": "ok", "streams": len(state.streams), "records": state.records_held.value}

    # ---- faults

    def _list_faults(self, _: _ControlRequest) -> dict[str, Any]:
        return {"faults": [fault.to_dict() for fault in self._faults.rules]}

    def _add_faults(self, request: _ControlRequest) -> dict[str, Any]:
        sent = _read(request.body)
        rules = cast("list[object]", sent) if isinstance(sent, list) else [sent]
        if not all(isinstance(rule, dict) for rule in rules):
            raise UsageError("faults must be a JSON object, or a list of JSON objects")
        return {"faults": [fault.to_dict() for fault in self._faults.load(cast("list[dict[str, object]]", rules))]}

    def _remove_faults(self, request: _ControlRequest) -> dict[str, Any]:
        found = [fault for fault in self._faults.rules if request.rest in {"", str(fault.id)}]
        if request.rest and not found:
            raise UsageError(f"there is no fault {request.rest}: it was removed, or its count is used up")
        for fault in found:
            fault.remove()
        return {"removed": len(found)}

    # ---- requests

    def _list_requests(self, request: _ControlRequest) -> dict[str, Any]:
        query = request.query
        unknown = sorted(set(query) - {"operation", "stream", "error", "limit"})
        limit = query.get("limit", str(_SHOWN))
        if unknown:
            raise UsageError(f"unknown query parameter {unknown[0]!r}: use operation, stream, error or limit")
        if not limit.isascii() or not limit.isdigit() or len(limit) > 9:  # noqa: PLR2004 - far more than the log keeps
            raise UsageError(f"limit must be a whole number from 0, not {limit!r}")
        found = self._requests.find(query.get("operation"), stream=query.get("stream"), error=query.get("error"))
        shown = found[max(0, len(found) - int(limit)) :]
        return {"total": self._requests.total, "requests": [logged.to_dict() for logged in shown]}

    def _clear_requests(self, _: _ControlRequest) -> dict[str, Any]:
        removed = len(self._requests)
        self._requests.clear()
        return {"removed": removed}

    # ---- clock

    def _get_clock(self, _: _ControlRequest) -> dict[str, Any]:
        return {"now": self._clock.now(), "frozen": self._clock.is_frozen}

    def _set_clock(self, request: _ControlRequest) -> dict[str, Any]:
        sent = _read(request.body)
        if not isinstance(sent, dict) or not sent or set(sent) - {"freeze", "resume", "advance"}:  # pyright: ignore[reportUnknownArgumentType]
            raise UsageError('the clock accepts {"freeze": true}, {"resume": true} or {"advance": seconds}')
        wanted = cast("dict[str, Any]", sent)
        if "freeze" in wanted and "resume" in wanted:
            raise UsageError("the clock cannot freeze and resume in one request")
        if any(wanted.get(name, True) is not True for name in ("freeze", "resume")):
            raise UsageError("freeze and resume must be true, or left out")
        # Check the seconds before the clock is frozen or resumed, so that an invalid request changes nothing.
        seconds = self._clock.check_advance(wanted.get("advance", 0))
        if "freeze" in wanted:
            self._clock.freeze()
        if "resume" in wanted:
            self._clock.resume()
        self._clock.advance(seconds)
        return self._get_clock(request)

    # ---- streams

    def _list_streams(self, _: _ControlRequest) -> dict[str, Any]:
        state = self._service.state
        state.advance(self._clock.now())
        return {"streams": [_summary(state.streams[name]) for name in sorted(state.streams)]}


def _summary(stream: ServerStream) -> dict[str, Any]:
    shards = [
        {
            "id": shard.shard_id,
            "is_open": shard.is_open,
            "records": len(shard.log),
            "written": shard.log.next - 1,
            "written_bytes": shard.log.total_bytes,
        }
        for shard in stream.shards.values()
    ]
    return {
        "name": stream.name,
        "status": stream.status,
        "open_shards": len(stream.open_shards),
        "records": stream.record_count,
        "shards": shards,
    }


def _read(body: bytes) -> object:
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise UsageError("the body is not valid JSON") from None
