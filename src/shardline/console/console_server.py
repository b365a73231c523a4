"""Serves the console over HTTP, and keeps everybody out except the person who started it.

Invariants:

- ``Host`` must be an address, ``localhost`` or an allowed name, so that DNS rebinding reaches nothing.
- Every request under ``/api/`` needs the token of this start as ``Authorization: Bearer``, and must not come from a
  page of another origin. The token arrives in the fragment of the address, which browsers never send to a server. The
  page then keeps it in the storage that all tabs of the console share. The token is never in a cookie: browsers send
  the cookies of a host to all its ports, and another user of the machine may be listening on one of them.
- Every answer has a content security policy without inline code, which also keeps the page from contacting other hosts
  and from being framed.
- A change is refused unless changes are allowed. A dry run is always allowed.
- A file is served only if it is one of the console's own.
- Calls for live charts wait behind calls that a person is waiting for (``call_budget``).
"""

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Final, final

import click
import msgspec
from aiohttp import web

from shardline.aio.client import Client
from shardline.cli.streams.resharding import shard_id_of
from shardline.console.call_budget import CallBudget
from shardline.console.cloudwatch_throttles import CloudWatchThrottles
from shardline.console.console_actions import ConsoleActions, problem_text
from shardline.console.fleet_metrics import FleetMetrics
from shardline.console.group_watch import GroupWatch
from shardline.console.shared_reader import is_background
from shardline.console.stream_watch import StreamWatch
from shardline.console.throttle_counts import ThrottleCounts
from shardline.console.traffic_sample import HISTORY
from shardline.errors import ShardlineError
from shardline.model.position import LATEST
from shardline.ports import GroupOnStream
from shardline.server.access import Access

if TYPE_CHECKING:
    from shardline.testing.local_kinesis import LocalKinesis

CONTENT_SECURITY_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS: Final = {
    "Content-Security-Policy": CONTENT_SECURITY_POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
_FILES: Final = {
    "": ("index.html", "text/html"),
    "app.js": ("app.js", "text/javascript"),
    "pages.js": ("pages.js", "text/javascript"),
    "charts.js": ("charts.js", "text/javascript"),
    "lineage.js": ("lineage.js", "text/javascript"),
    "shard_list.js": ("shard_list.js", "text/javascript"),
    "style.css": ("style.css", "text/css"),
    "uplot.js": ("uplot/uPlot.iife.min.js", "text/javascript"),
    "uplot.css": ("uplot/uPlot.min.css", "text/css"),
}
_UPDATE_INTERVAL: Final = 1.0

_log: Final = logging.getLogger(__name__)

_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@final
class ConsoleServer:
    """The HTTP application of one console."""

    def __init__(
        self,
        client: Client,
        actions: ConsoleActions,
        budget: CallBudget,
        access: Access,
        *,
        place: str,
        allow_changes: bool,
        metrics: FleetMetrics,
        kinesis: "LocalKinesis | None",
        cloudwatch: CloudWatchThrottles | None = None,
    ) -> None:
        self._client = client
        self._actions = actions
        self._budget = budget
        self._access = access
        self._place = place
        self._allow_changes = allow_changes
        self._metrics = metrics
        self._kinesis = kinesis
        self._cloudwatch = cloudwatch
        self._watches: dict[tuple[str, object], StreamWatch] = {}
        self._group_watches: dict[tuple[int, str, str], GroupWatch] = {}
        # Each class of calls waits in a queue of its own, in order.
        self._queues = {True: asyncio.Lock(), False: asyncio.Lock()}
        client.api.before_call = self._spend
        actions.before_store_calls(self._spend)

    def application(self) -> web.Application:
        """Return the application, ready to be run."""

        @web.middleware
        async def guard(request: web.Request, handler: _Handler) -> web.StreamResponse:
            return await self._guard(request, handler)

        application = web.Application(middlewares=[guard], client_max_size=16 * 1024 * 1024)
        application.add_routes(
            [
                web.get("/api/status", self._status),
                web.get("/api/live/stream", self._live_stream),
                web.get("/api/live/group", self._live_group),
                web.get("/api/{action}", self._look),
                web.post("/api/{action}", self._change),
                web.get("/{file}", self._file),
                web.get("/", self._file),
            ]
        )
        return application

    async def _spend(self, operation: str) -> None:
        """Wait until the budget has room for a call."""
        background, loop = is_background.get(), asyncio.get_running_loop()
        self._budget.waiting += 1
        try:
            async with self._queues[background]:
                while (pause := self._budget.take(operation, loop.time(), background=background)) > 0:  # noqa: ASYNC110
                    await asyncio.sleep(pause)
        finally:
            self._budget.waiting -= 1

    # ---- safety

    async def _guard(self, request: web.Request, handler: _Handler) -> web.StreamResponse:
        refused = self._access.judge_host(request.headers.get("host"))
        if refused is None and request.path.startswith("/api/"):
            headers = {name.lower(): value for name, value in request.headers.items()}
            refused = self._access.judge_control(headers, has_body=request.can_read_body)
        if refused is not None:
            response: web.StreamResponse = _answer({"error": refused.message}, refused.status)
        else:
            try:
                response = await handler(request)
            except web.HTTPException as error:
                response = _answer({"error": error.reason}, error.status)
            except ConnectionError:  # the page was closed
                raise
            except Exception as error:  # noqa: BLE001 - a bug, or a body with wrong types: aiohttp's page has no policy
                response = _answer({"error": _internal_error(error)}, 500)
        if not response.prepared:
            response.headers.update(_HEADERS)
        return response

    # ---- files

    async def _file(self, request: web.Request) -> web.StreamResponse:
        found = _FILES.get(request.match_info.get("file", ""))
        if found is None:
            return _answer({"error": "no such page"}, 404)
        name, kind = found
        content = files("shardline.console").joinpath("static", name).read_bytes()
        return web.Response(body=content, content_type=kind, charset="utf-8")

    # ---- looking and changing

    async def _status(self, _: web.Request) -> web.StreamResponse:
        return _answer(
            {
                "place": self._place,
                "allow_changes": self._allow_changes,
                "embedded": "server" in self._actions.reads,
                "calls": self._budget.to_json(asyncio.get_running_loop().time()),
            }
        )

    async def _look(self, request: web.Request) -> web.StreamResponse:
        action = self._actions.reads.get(request.match_info["action"])
        if action is None:
            return _answer({"error": "no such page"}, 404)
        return await _run(action(dict(request.query)))

    async def _change(self, request: web.Request) -> web.StreamResponse:
        action = self._actions.changes.get(request.match_info["action"])
        if action is None:
            return _answer({"error": "no such change"}, 404)
        try:
            wish = msgspec.json.decode(await request.read(), type=dict[str, Any])
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return _answer({"error": "the body is not a JSON object"}, 400)
        if not wish.get("dry_run") and not self._allow_changes:
            return _answer({"error": "this console is read-only: start it with --allow-changes to change things"}, 403)
        return await _run(action(wish))

    # ---- live updates

    async def _live_stream(self, request: web.Request) -> web.StreamResponse:
        """Send one event per second: the traffic of the stream, and a sample of the records that match the filter."""
        query = dict(request.query)
        has_traffic = query.get("traffic") != "no"
        # Reading these two minutes from the embedded server takes no reads away from a consumer.
        begins = query.get("from") or (f"{HISTORY}s" if has_traffic and self._kinesis is not None else "LATEST")
        try:
            stream, wanted = query["stream"], self._actions.filter_of(query)
            start = self._actions.start_of({"from": begins}, "LATEST")
        except (KeyError, ShardlineError) as error:
            return _problem(error)
        # A page that names a starting position needs its own reader, because a shared reader has already passed that
        # position.
        reader = object() if query.get("from") and start != LATEST else begins if start != LATEST else ""
        key = (stream, reader)
        if key not in self._watches:
            throttles = ThrottleCounts(stream, self._metrics, self._kinesis, self._cloudwatch)
            rate = self._budget.background_per_second
            self._watches[key] = StreamWatch(
                self._client,
                stream,
                throttles,
                start=start,
                calls_per_second=rate,
                on_listing=self._actions.note_listing,
            )
        watch = self._watches[key]
        shard_id = shard_id_of(query["shard"]) if query.get("shard") else None
        async with watch.viewer(wanted, shard_id=shard_id, has_traffic=has_traffic) as viewer:
            refreshing = asyncio.create_task(self._keep_fresh(stream if has_traffic else None))

            async def update() -> dict[str, Any]:
                if refreshing.done():  # only a bug ends this task
                    refreshing.result()
                return watch.update(viewer)

            try:
                response = await _send_updates(request, update)
            finally:
                refreshing.cancel()
        if not watch.has_pages:
            self._watches.pop(key, None)
        return response

    async def _keep_fresh(self, stream: str | None) -> None:
        """Read the figures that other programs provide. A program may answer late, so the updates of a page do not wait
        for it.
        """
        while True:
            await self._metrics.refresh()
            if self._cloudwatch is not None and stream is not None:
                await self._cloudwatch.refresh(stream, self._spend)
            await asyncio.sleep(_UPDATE_INTERVAL)

    async def _live_group(self, request: web.Request) -> web.StreamResponse:
        """Send one event per second: the owners, the hand-overs and the lag of a group."""
        query = dict(request.query)
        try:
            place, name = self._actions.place_of(query), GroupOnStream(query["group"], query["stream"])
        except (KeyError, ValueError, ShardlineError) as error:
            return _problem(error)
        key = (int(query.get("store", 0)), query["group"], query["stream"])
        rate = self._budget.background_per_second
        new = GroupWatch(self._client, place, name, self._metrics, calls_per_second=rate)
        watch = self._group_watches.setdefault(key, new)
        async with watch.page() as page:

            async def update() -> dict[str, Any]:
                return watch.update(page)

            response = await _send_updates(request, update)
        if not watch.has_pages:
            self._group_watches.pop(key, None)
        return response


async def _send_updates(request: web.Request, update: Callable[[], Awaitable[dict[str, Any]]]) -> web.StreamResponse:
    """Send an update each second, until the page is closed."""
    response = web.StreamResponse(headers=_HEADERS | {"Content-Type": "text/event-stream"})
    await response.prepare(request)
    with suppress(ConnectionError):  # the page was closed
        while True:
            await asyncio.sleep(_UPDATE_INTERVAL)
            try:
                content = msgspec.json.encode(await update())
            except Exception as error:  # noqa: BLE001 - a bug: the page must not wait for updates that never come
                await response.write(b"data: " + msgspec.json.encode({"error": _internal_error(error)}) + b"\n\n")
                break
            await response.write(b"data: " + content + b"\n\n")
    return response


def _internal_error(error: Exception) -> str:
    """Log an unexpected error, and return the text for the page. The error's own text may hold a secret."""
    _log.error("a request failed", exc_info=error)
    return f"internal error: {type(error).__name__}. Start the console with -v to see more."


async def _run(action: Awaitable[dict[str, Any]]) -> web.StreamResponse:
    """Return the result of an action. A failure becomes an error that the page shows."""
    try:
        return _answer(await action)
    except (KeyError, ShardlineError, click.ClickException, ValueError, ExceptionGroup) as error:
        return _problem(error)


def _problem(error: Exception) -> web.Response:
    """Return the failure as a response whose error the page shows."""
    if isinstance(error, KeyError):
        return _answer({"error": f"{error.args[0]} is missing"}, 400)
    return _answer({"error": problem_text(error)}, 400)


def _answer(value: dict[str, Any], status: int = 200) -> web.Response:
    return web.Response(body=json.dumps(value).encode(), status=status, content_type="application/json")
