"""Answers an HTTP request, whichever version of HTTP carried it.

Both HTTP shells pass every request to ``Front``. A request that ``Access`` allows goes to ``Control`` if its path is
under ``/_shardline/``, and to the ``Endpoint`` otherwise. One thread calls ``Front``, and ``Front`` never waits.

Invariants:

- Every request gets a ``Reply``; nothing raises. A bug in the control API is logged and answered with status 500, in
  the form of the control API.
- A reply does not depend on the version of HTTP: both shells pass the same four values.
- A request for ``/``, the path of every Kinesis call, skips the check for control paths.
- No request reaches ``Control`` or the ``Endpoint`` unless ``Access`` allows it. A refusal has the form of
  the API at the requested path.
"""

import logging
from collections.abc import Mapping
from typing import Any, Final, final
from urllib.parse import parse_qsl, unquote

import msgspec

from shardline.server.access import Access
from shardline.server.control import HEALTH_PATH, PREFIX, Control
from shardline.server.endpoint import Endpoint, Reply
from shardline.server.model.refusals import Refused

BODY_MAX: Final = 64 * 1024 * 1024
"""The maximum size of a body, in bytes. A shell discards a larger body and refuses its request with ``refuse``."""

_log: Final = logging.getLogger(__name__)


@final
class Front:
    """Routes requests to the control API or to the Kinesis API."""

    def __init__(self, endpoint: Endpoint, *, access: Access, control: Control | None = None) -> None:
        self._endpoint = endpoint
        self._access = access
        self._control = control

    def reply(self, method: str, target: str, headers: Mapping[str, str], body: bytes) -> Reply:
        """Answer a request.

        ``target`` is the target of the request line (or ``:path``), escaped and with the query. ``headers`` are looked
        up by their lower-case names. For HTTP/2, the headers also contain ``host`` (from ``:authority``).
        """
        denied = self._access.judge_host(headers.get("host"))
        if target != "/":
            authority, target = _split(target)
            path, _, query = target.partition("?")
            path = unquote(path)
            if authority is not None:
                denied = denied or self._access.judge_host(authority)
            if self._control is not None and path.startswith(PREFIX):
                denied = denied or self._access.judge_control(
                    headers, has_body=bool(body), is_health=path == HEALTH_PATH
                )
                if denied is None:
                    return self._to_control(self._control, method, path, query, body)
                return _refuse_control(denied)
        if denied is not None:
            return self._endpoint.refuse(headers, denied)
        return self._endpoint.reply(headers, body, method=method, path=target)

    def refuse(self, target: str, headers: Mapping[str, str], refusal: Refused) -> Reply:
        """Answer a request whose body a shell could not read."""
        if self._control is not None and unquote(_split(target)[1]).startswith(PREFIX):
            return _refuse_control(refusal)
        return self._endpoint.refuse(headers, refusal)

    @staticmethod
    def _to_control(control: Control, method: str, path: str, query: str, body: bytes) -> Reply:
        try:
            # If a name occurs twice in a query, the first one counts.
            status, answer = control.control(
                method, path, dict(reversed(parse_qsl(query, keep_blank_values=True))), body
            )
            return _in_json(status, answer)
        except Exception:  # noqa: BLE001 - a bug in the server
            _log.exception("a control request failed")
            return _in_json(500, {"error": "internal error: see the log of the server"})


def _in_json(status: int, answer: dict[str, Any]) -> Reply:
    return Reply(status, {"Content-Type": "application/json; charset=utf-8"}, msgspec.json.encode(answer))


def _refuse_control(refusal: Refused) -> Reply:
    return _in_json(refusal.status, {"error": refusal.message})


def _split(target: str) -> tuple[str | None, str]:
    """Split a target into its authority, if it has one, and its path and query.

    Clients that use a proxy send a whole URL as the target.
    """
    if not target.isascii():  # the target may hold bytes that are not UTF-8, which answers cannot quote
        target = target.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    _, mark, rest = target.partition("://")
    if target.startswith("/") or not mark:
        return None, target
    authority, slash, path = rest.partition("/")
    return authority, f"/{path}" if slash else "/"
