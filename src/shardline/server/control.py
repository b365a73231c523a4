"""Controls a running server over HTTP, and says whether it is up.

A control path on the same port, JSON in and out. What cannot be done is ``{"error": "..."}`` with status 400, an
unknown path 404, a method that a path does not have 405.

==========================================  ========================================================================
``GET /_shardline/health``                  ``{"status": "ok", "streams":, "records":}``; ``HEAD`` works too
``GET /_shardline/faults``                  ``{"faults": [...]}``: each a rule with ``id``, ``hits``, ``count_left``
``POST /_shardline/faults``                 add a rule, or a list of rules (``fault_rules``); answers with the new ones
``DELETE /_shardline/faults``               remove all
``DELETE /_shardline/faults/{id}``          remove one
``GET /_shardline/requests``                ``{"total":, "requests": [...]}``, oldest first: the last ``?limit=`` (100)
                                            of those with ``?operation=``, ``?stream=``, ``?error=``
``DELETE /_shardline/requests``             forget them
``GET /_shardline/clock``                   ``{"now":, "frozen":}``
``POST /_shardline/clock``                  ``{"freeze": true}``, ``{"resume": true}``, ``{"advance": seconds}``: one of
                                            them, or ``advance`` with one
``GET /_shardline/streams``                 ``{"streams": [...]}``: shards, records and bytes of each
==========================================  ========================================================================

Invariants:

- Nothing that is sent raises, and nothing is half done: a list of rules with one that is wrong adds none.
- The control path is neither hit by faults, nor signed, nor in the record of requests.
- The health path costs the same however many streams and records there are.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple, TypeAlias, cast, final

import msgspec

from shardline.errors import UsageError
from shardline.server.model.faults import Faults
from shardline.server.model.service import Service
from shardline.server.model.streams import ServerStream
from shardline.server.request_log import RequestsSeen
from shardline.server.server_clock import ServerClock

PREFIX: Final = "/_shardline/"
HEALTH_PATH: Final = f"{PREFIX}health"
_SHOWN: Final = 100

Controlled: TypeAlias = tuple[int, dict[str, Any]]


@final
class _Asked(NamedTuple):
    rest: str
    query: Mapping[str, str]
    body: bytes


@final
class Control:
    """The control path of one server."""

    def __init__(self, service: Service, clock: ServerClock, *, faults: Faults, requests: RequestsSeen) -> None:
        self._service = service
        self._clock = clock
        self._faults = faults
        self._requests = requests
        self._routes: dict[str, dict[str, Callable[[_Asked], dict[str, Any]]]] = {
            "health": {"GET": self._tell_health, "HEAD": self._tell_health},
            "faults": {"GET": self._list_faults, "POST": self._add_faults, "DELETE": self._remove_faults},
            "requests": {"GET": self._list_requests, "DELETE": self._forget_requests},
            "clock": {"GET": self._tell_time, "POST": self._set_clock},
            "streams": {"GET": self._list_streams},
        }

    def control(self, method: str, path: str, query: Mapping[str, str], body: bytes) -> Controlled:
        """The status and the answer for a request under ``/_shardline/``."""
        what, _, rest = path.removeprefix(PREFIX).strip("/").partition("/")
        methods = self._routes.get(what)
        if methods is None or (rest and what != "faults"):
            known = ", ".join(f"{PREFIX}{one}" for one in self._routes)
            return 404, {"error": f"there is no {path}: there are {known}"}
        action = methods.get(method)
        if action is None or (rest and method != "DELETE"):
            return 405, {"error": f"{path} has no {method}"}
        try:
            return 200, action(_Asked(rest, query, body))
        except UsageError as error:
            return 400, {"error": str(error)}

    # ---- health

    def _tell_health(self, _: _Asked) -> dict[str, Any]:
        state = self._service.state
        return {"status": "ok", "streams": len(state.streams), "records": state.records_held.value}

    # ---- faults

    def _list_faults(self, _: _Asked) -> dict[str, Any]:
        return {"faults": [one.to_dict() for one in self._faults.rules]}

    def _add_faults(self, asked: _Asked) -> dict[str, Any]:
        sent = _read(asked.body)
        several = cast("list[object]", sent) if isinstance(sent, list) else [sent]
        if not all(isinstance(one, dict) for one in several):
            raise UsageError("a fault is a JSON object, or a list of them")
        return {"faults": [one.to_dict() for one in self._faults.load(cast("list[dict[str, object]]", several))]}

    def _remove_faults(self, asked: _Asked) -> dict[str, Any]:
        found = [one for one in self._faults.rules if asked.rest in {"", str(one.id)}]
        if asked.rest and not found:
            raise UsageError(f"there is no fault {asked.rest}: it was removed, or is used up")
        for one in found:
            one.remove()
        return {"removed": len(found)}

    # ---- requests

    def _list_requests(self, asked: _Asked) -> dict[str, Any]:
        query = asked.query
        unknown = sorted(set(query) - {"operation", "stream", "error", "limit"})
        limit = query.get("limit", str(_SHOWN))
        if unknown:
            raise UsageError(f"requests are filtered by operation, stream, error and limit, not by {unknown[0]!r}")
        if not limit.isascii() or not limit.isdigit() or len(limit) > 9:  # noqa: PLR2004 - no more can be kept
            raise UsageError(f"limit is a whole number from 0, not {limit!r}")
        found = self._requests.find(query.get("operation"), stream=query.get("stream"), error=query.get("error"))
        shown = found[max(0, len(found) - int(limit)) :]
        return {"total": self._requests.total, "requests": [one.to_dict() for one in shown]}

    def _forget_requests(self, _: _Asked) -> dict[str, Any]:
        forgotten = len(self._requests)
        self._requests.clear()
        return {"removed": forgotten}

    # ---- clock

    def _tell_time(self, _: _Asked) -> dict[str, Any]:
        return {"now": self._clock.now(), "frozen": self._clock.is_frozen}

    def _set_clock(self, asked: _Asked) -> dict[str, Any]:
        sent = _read(asked.body)
        if not isinstance(sent, dict) or not sent or set(sent) - {"freeze", "resume", "advance"}:  # pyright: ignore[reportUnknownArgumentType]
            raise UsageError('the clock takes {"freeze": true}, {"resume": true} or {"advance": seconds}')
        wanted = cast("dict[str, Any]", sent)
        if "freeze" in wanted and "resume" in wanted:
            raise UsageError("the clock cannot freeze and resume at once")
        if any(wanted.get(name, True) is not True for name in ("freeze", "resume")):
            raise UsageError("freeze and resume are true, or not there")
        seconds = self._clock.check_advance(wanted.get("advance", 0))  # before anything is done
        if "freeze" in wanted:
            self._clock.freeze()
        if "resume" in wanted:
            self._clock.resume()
        self._clock.advance(seconds)
        return self._tell_time(asked)

    # ---- streams

    def _list_streams(self, _: _Asked) -> dict[str, Any]:
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
        raise UsageError("the body is no JSON") from None
