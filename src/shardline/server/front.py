"""What does the server answer to one HTTP request, whichever version of HTTP carried it?

The one door that every shell goes through: a request that ``Access`` lets in goes to ``Control`` if it is under
``/_shardline/``, else to the ``Endpoint``. It is called by one thread, and never waits.

Invariants:

- Every request gets a ``Reply``; nothing raises. A bug in the control path is answered with status 500 in that
  path's own form, and is logged.
- A reply depends on the request alone, not on the version of HTTP: the shells hand over the same four values.
- A request for ``/``, the path of every call of Kinesis, is not searched for a control path.
- No request reaches ``Control`` or the ``Endpoint`` unless ``Access`` let it in; a refusal has the form of the
  path that was asked for.
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
"""A shell refuses a larger body with ``refuse``, and keeps none of it."""

_log: Final = logging.getLogger(__name__)


@final
class Front:
    """The control path and the service behind one door."""

    def __init__(self, endpoint: Endpoint, *, access: Access, control: Control | None = None) -> None:
        self._endpoint = endpoint
        self._access = access
        self._control = control

    def reply(self, method: str, target: str, headers: Mapping[str, str], body: bytes) -> Reply:
        """Answer a request.

        ``target`` is as the request line (or ``:path``) has it: escaped, with the query. ``headers`` are looked up by
        their lower-case names, and hold ``host`` for HTTP/2 too (from ``:authority``).
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
            # of a name that comes twice in a query, the first counts
            status, answer = control.control(
                method, path, dict(reversed(parse_qsl(query, keep_blank_values=True))), body
            )
            return _in_json(status, answer)
        except Exception:  # noqa: BLE001 - a bug of ours
            _log.exception("a control request failed")
            return _in_json(500, {"error": "internal error: the log of the server says more"})


def _in_json(status: int, answer: dict[str, Any]) -> Reply:
    return Reply(status, {"Content-Type": "application/json; charset=utf-8"}, msgspec.json.encode(answer))


def _refuse_control(refusal: Refused) -> Reply:
    return _in_json(refusal.status, {"error": refusal.message})


def _split(target: str) -> tuple[str | None, str]:
    """The authority, if there is one, and the path and query of a target: clients of a proxy send a whole URL."""
    if not target.isascii():  # bytes that are no UTF-8: an answer could not quote them
        target = target.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    _, mark, rest = target.partition("://")
    if target.startswith("/") or not mark:
        return None, target
    authority, slash, path = rest.partition("/")
    return authority, f"/{path}" if slash else "/"
