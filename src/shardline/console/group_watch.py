"""Watches one group for the open pages: its owners, its hand-overs, and its lag over time.

Invariants:

- A hand-over is seen by comparing the rows of the lease store, which are read about once per second.
- The handling lag is that of ``shardline groups describe``. The reading lag is the one that the workers measured, and
  is unknown without their metrics.
- History is bounded: ``HISTORY`` measurements of each shard, and ``HAND_OVERS`` hand-overs.
- A reader that fails is restarted after a pause. The pages show the problem until the next read succeeds.
"""

from collections import deque
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any, Final, final

import anyio
import click

from shardline.aio.client import Client
from shardline.cli.error_messages import sole_error
from shardline.cli.groups import group_report
from shardline.cli.groups.describe_command import Description, describe_lag
from shardline.cli.groups.group_store import StorePlace, Watch, find_group, list_rows, opened
from shardline.console.fleet_metrics import FleetMetrics
from shardline.console.shared_reader import SharedReader
from shardline.errors import ShardlineError
from shardline.model.lease import Lease
from shardline.ports import GroupOnStream

HISTORY: Final = 240
HAND_OVERS: Final = 100
_ROWS_INTERVAL: Final = 1.0
_LAG_INTERVAL: Final = 5.0
_WINDOW: Final = 15.0  # how long the leases are watched before the owners are judged again
_PAUSE: Final = 5.0
_CALLS_PER_SHARD: Final = 2  # one call for an iterator, and one for a page


@final
class GroupPage:
    """The updates that one open page has already got."""

    def __init__(self) -> None:
        self.hand_overs = 0
        self.measured_at = 0.0


@final
class GroupWatch:
    """Watches one group while pages show it."""

    def __init__(
        self,
        client: Client,
        place: StorePlace,
        name: GroupOnStream,
        metrics: FleetMetrics,
        *,
        calls_per_second: float = 10.0,
    ) -> None:
        self._client = client
        self._calls_per_second = calls_per_second
        self._place = place
        self._name = name
        self._metrics = metrics
        self._reader = SharedReader(self._keep_reading, self._start_over)
        self._start_over()

    def _start_over(self) -> None:
        self._watch: Watch | None = None
        self._watch_began_at = 0.0
        self._before: dict[str, Lease] = {}
        self._alive: dict[str, bool] = {}
        self._found: Description | None = None
        self._history: dict[str, deque[tuple[float, int | None, int | None]]] = {}
        self._hand_overs: deque[dict[str, Any]] = deque(maxlen=HAND_OVERS)
        self._hand_over_count = 0
        self.problem: str | None = None

    @property
    def has_pages(self) -> bool:
        return self._reader.has_pages

    @asynccontextmanager
    async def page(self) -> AsyncGenerator[GroupPage]:
        """Keep the watch running for a page during the block. Yield an object that notes what the page has got."""
        async with self._reader.page():
            yield GroupPage()

    def update(self, page: GroupPage) -> dict[str, Any]:
        """Return the next update of a page: the current rows, and the history that the page has not seen."""
        new = self._hand_over_count - page.hand_overs
        hand_overs = list(self._hand_overs)[len(self._hand_overs) - min(new, len(self._hand_overs)) :]
        history = {
            shard_id: [row for row in rows if row[0] > page.measured_at] for shard_id, rows in self._history.items()
        }
        page.hand_overs = self._hand_over_count
        page.measured_at = max([page.measured_at, *(rows[-1][0] for rows in self._history.values() if rows)])
        return {
            "group": None if self._watch is None else group_report.group_object(self._name, self._watch),
            "shards": self._shards(),
            "measured_in": self._measuring_time(),
            "notices": [] if self._found is None else list(self._found.notices),
            "history": {shard_id: rows for shard_id, rows in history.items() if rows},
            "hand_overs": hand_overs,
            "metrics": self._metrics.group_json(str(self._name.group), str(self._name.stream)),
            "problem": self._reader.problem or self.problem,
        }

    def _measuring_time(self) -> int | None:
        """Estimate how many milliseconds a measurement takes within the call budget. After the first one, return
        ``None``.
        """
        if self._watch is None or self._found is not None:
            return None
        unfinished = sum(not row.checkpoint.is_finished for row in self._watch.rows.values())
        return round(1000 * unfinished * _CALLS_PER_SHARD / self._calls_per_second)

    def _shards(self) -> list[dict[str, Any]]:
        if self._watch is None:
            return []
        found = self._found
        lags, shards = (None, None) if found is None else (found.lags, found.shards)
        objects = group_report.shard_objects(self._watch, shards, lags)
        for shard in objects:
            owner = shard.get("owner")
            shard["owner_alive"] = None if owner is None else shard["owner_alive"] or self._alive.get(owner)
        return objects

    async def _keep_reading(self) -> None:
        while True:
            try:
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(self._follow_rows)
                    tasks.start_soon(self._follow_lag)
            except* (ShardlineError, click.ClickException) as errors:
                sole = sole_error(errors)
                self.problem = sole.format_message() if isinstance(sole, click.ClickException) else str(sole)
            await anyio.sleep(_PAUSE)

    async def _follow_rows(self) -> None:
        name = await find_group(self._place, str(self._name.group), self._name.stream)
        async with opened(self._place, name) as (store,):
            while True:
                self._add_rows(await list_rows(store), anyio.current_time())
                await self._metrics.refresh()
                await anyio.sleep(max(_ROWS_INTERVAL, store.scan_interval))

    def _add_rows(self, rows: dict[str, Lease], now: float) -> None:
        watch = self._watch
        if watch is None or now > self._watch_began_at + _WINDOW:
            self._alive = {} if watch is None else watch.holders
            self._watch, self._watch_began_at = Watch(rows), now
        else:
            watch.update(rows)
            watch.seconds = now - self._watch_began_at
        for shard_id, row in rows.items():
            before = self._before.get(shard_id)
            if before is not None:
                self._note_hand_over(before, row)
            elif watch is not None:
                self._add_event(shard_id, None, row.holder, "begins")
        self._before = rows

    def _note_hand_over(self, before: Lease, row: Lease) -> None:
        if row.checkpoint.is_finished and not before.checkpoint.is_finished:
            self._add_event(row.shard_id, before.holder, None, "finished")
        elif row.checkpoint.is_finished:
            return
        elif row.checkpoint_owner is not None and before.checkpoint_owner is None and row.holder == before.holder:
            self._add_event(row.shard_id, row.holder, row.owner, "asked")
        elif row.holder != before.holder:
            self._add_event(row.shard_id, before.holder, row.holder, "changed")

    def _add_event(self, shard_id: str, before: str | None, after: str | None, kind: str) -> None:
        at = self._client.api.service_time()
        self._hand_overs.append({"at": at, "shard_id": shard_id, "before": before, "after": after, "kind": kind})
        self._hand_over_count += 1

    async def _follow_lag(self) -> None:
        while self._watch is None:  # noqa: ASYNC110 - the rows come first, within a moment
            await anyio.sleep(0.05)
        while True:
            found = await describe_lag(self._client, self._name, self._watch)
            self._found, self.problem = found, None
            at = self._client.api.service_time()
            reading = self._metrics.group_json(str(self._name.group), str(self._name.stream))["reading_lag"]
            for shard_id, lag in (found.lags or {}).items():
                rows = self._history.setdefault(shard_id, deque(maxlen=HISTORY))
                seconds = reading.get(shard_id, reading.get(""))
                rows.append((at, lag.millis, None if seconds is None else round(seconds * 1000)))
            await anyio.sleep(_LAG_INTERVAL)
