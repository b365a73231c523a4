"""Reads and changes streams, groups and records for the pages, through the functions of the command line.

Invariants:

- Lag, lineage, reset and reshard are those of the command line: nothing is computed a second time.
- A change with ``dry_run`` returns what would happen, and writes nothing. Without it, a change needs
  ``--allow-changes``; ``console_server`` checks that before it calls.
- No object contains a credential or the URL of a store, which may hold a password: stores are shown without it.
"""

import base64
import binascii
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, final
from urllib.parse import urlsplit

import anyio

from shardline.aio.client import Client
from shardline.aio.producer.async_producer import Producer
from shardline.cli.groups import group_report
from shardline.cli.groups.apply_reset import take_steps
from shardline.cli.groups.describe_command import describe_lag
from shardline.cli.groups.group_store import (
    StorePlace,
    answered,
    ask_groups,
    find_group,
    list_rows,
    opened,
    require_quiet,
    watch_groups,
)
from shardline.cli.groups.reset_plan import find_target, plan
from shardline.cli.groups.transfer_commands import find_effects
from shardline.cli.quantities import counted
from shardline.cli.retrying import wait_for_stream, with_retries
from shardline.cli.streams.resharding import merge_of, shard_id_of, split_of
from shardline.cli.streams.shard_tree import age, draw
from shardline.cli.streams.stream_views import stream_json, summary_json
from shardline.cli.streams.streams_command import (
    carry_out_change,
    plan_even_reshard,
    read_stream_view,
    read_summaries,
    shown_path,
)
from shardline.cli.time_arguments import parse_start
from shardline.codec.raw_records import deaggregate
from shardline.console.record_views import RecordFilter, record_json
from shardline.errors import ShardlineError, UsageError, WaitTimeout
from shardline.model.hashing import hash_key_of
from shardline.model.position import TRIM_HORIZON, Position

if TYPE_CHECKING:
    from shardline.testing.local_kinesis import LocalKinesis

_PAGES_MAX: Final = 20
_LEASE_DURATION: Final = 10.0
_RESHARD_TIMEOUT: Final = 240.0  # browsers give up on a request without an answer after five minutes

Action = Callable[[Mapping[str, Any]], Awaitable[dict[str, Any]]]


def shown_store(url: str) -> str:
    """Return the URL of a store without its user, password and query, which may hold secrets."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


@final
class ConsoleActions:
    """The actions of one console: those that look, and those that change."""

    def __init__(self, client: Client, stores: Sequence[StorePlace], kinesis: "LocalKinesis | None" = None) -> None:
        self._client = client
        self._stores = stores
        self._kinesis = kinesis
        self.reads: Final[dict[str, Action]] = {
            "streams": self.streams,
            "stream": self.stream,
            "groups": self.groups,
            "group": self.group,
            "records": self.records,
        }
        self.changes: Final[dict[str, Action]] = {"reset": self.reset, "reshard": self.reshard, "put": self.put}
        if kinesis is not None:
            self.reads["server"] = self.server
            self.changes.update({"fault": self.add_fault, "clock": self.set_clock})

    # ---- looking

    async def streams(self, _: Mapping[str, Any]) -> dict[str, Any]:
        return {"streams": [summary_json(summary) for summary in await read_summaries(self._client)]}

    async def stream(self, query: Mapping[str, Any]) -> dict[str, Any]:
        view = await read_stream_view(self._client, query["stream"])
        tree = [
            {"shard_id": line.shard.shard_id, "branches": line.branches, "note": line.note}
            for line in draw(view.shards)
        ]
        return stream_json(view) | {"tree": tree}

    async def groups(self, _: Mapping[str, Any]) -> dict[str, Any]:
        found: list[dict[str, Any]] = []
        for number, place in enumerate(self._stores):
            names = answered(await ask_groups(place))
            async with opened(place, *names) as stores:
                seen = await watch_groups(stores, 0.0)
            objects = [group_report.group_object(name, watch) for name, watch in zip(names, seen, strict=True)]
            found += [group | {"store": number, "store_name": shown_store(place.url)} for group in objects]
        return {"groups": found}

    async def group(self, query: Mapping[str, Any]) -> dict[str, Any]:
        place = self._place(query)
        name = await find_group(place, query["group"], query["stream"])
        async with opened(place, name) as stores:
            (seen,) = await watch_groups(stores, 0.0)
        found = await describe_lag(self._client, name, seen)
        shards = group_report.shard_objects(found.seen, found.shards, found.lags)
        return group_report.group_object(name, seen) | {"at": found.at, "notices": found.notices, "shards": shards}

    async def records(self, query: Mapping[str, Any]) -> dict[str, Any]:
        """Read one shard from a position, or with a key all shards that cover the key, oldest first."""
        stream = query["stream"]
        wanted = RecordFilter(query.get("key", ""), query.get("text", ""), query.get("header", ""))
        start = parse_start(query.get("from") or "TRIM_HORIZON", self._client.api.service_time())
        places = await self._reading_places(stream, query.get("shard") or "", wanted.key, start)
        found: list[dict[str, Any]] = []
        seen: list[str] = []
        limit, read, pages, is_end = int(query.get("limit", "100")), 0, 0, True
        for shard_id, position in places:
            if not is_end or len(found) >= limit or pages >= _PAGES_MAX:
                is_end = False
                break
            seen.append(shard_id)
            iterator: str | None = await with_retries(
                partial(self._client.get_shard_iterator, stream, shard_id, position)
            )
            while iterator is not None and len(found) < limit and pages < _PAGES_MAX:
                page = await with_retries(partial(self._client.get_records, iterator))
                records = deaggregate(page)
                pages, read = pages + 1, read + len(records)
                found += [record_json(record, shard_id) for record in records if wanted.accepts(record)]
                iterator = page.next_iterator if page.millis_behind_latest else None
            is_end = iterator is None
        return {"shards": seen, "read": read, "is_end": is_end, "records": found[:limit]}

    async def _reading_places(
        self, stream: str, shard_id: str, key: str, start: Position
    ) -> list[tuple[str, Position]]:
        """Return the shards to read, oldest first, each with the position to read it from."""
        if shard_id:
            return [(shard_id_of(shard_id), start)]
        if not key:
            raise UsageError("name a shard or a key: records are read shard by shard")
        hashed = hash_key_of(key)
        shards = sorted(await with_retries(lambda: self._client.list_shards(stream)), key=age)
        covering = [shard for shard in shards if hashed in shard.hash_range]
        if start.sequence_number is None:
            return [(shard.shard_id, start) for shard in covering]
        number = start.sequence_number.number
        ends = [shard.ending_sequence_number for shard in covering]
        left = [shard for shard, end in zip(covering, ends, strict=True) if end is None or end.number >= number]
        # The number is valid only in the shard that contains it: the shards after it are read from their beginning.
        return [(shard.shard_id, start if at == 0 else TRIM_HORIZON) for at, shard in enumerate(left)]

    # ---- changing

    async def reset(self, wish: Mapping[str, Any]) -> dict[str, Any]:
        """Reset a group, or with ``dry_run`` return what would be replayed and skipped."""
        place, is_dry, force = self._place(wish), bool(wish.get("dry_run")), bool(wish.get("force"))
        name = await find_group(place, wish["group"], wish["stream"])
        async with opened(place, name) as (leases,):
            shards = await with_retries(lambda: self._client.list_shards(str(name.stream)))
            target = await find_target(self._client, str(name.stream), shards, wish["to"], None)
            rows = await (list_rows(leases) if is_dry or force else require_quiet(leases, _LEASE_DURATION))
            steps = plan(shards, rows, target)
            effects = await find_effects(self._client, str(name.stream), steps)
            outcome = None if is_dry else await take_steps(leases, steps, force=force)
        return {
            "dry_run": is_dry,
            "stopped_by": None if outcome is None else outcome.stopped_by,
            "shards": group_report.step_objects(steps, outcome, effects),
        }

    async def reshard(self, wish: Mapping[str, Any]) -> dict[str, Any]:
        """Split a shard, merge two or change their number; with ``dry_run``, return the plan."""
        stream, is_dry = wish["stream"], bool(wish.get("dry_run"))
        if "shards" in wish:
            return await self._reshard_evenly(stream, wish["shards"], is_dry=is_dry)
        shards = await with_retries(lambda: self._client.list_shards(stream))
        if wish.get("split"):
            change = split_of(shards, shard_id_of(wish["split"]), wish.get("at") or None)
        else:
            first, second = wish["merge"]
            change = merge_of(shards, shard_id_of(first), shard_id_of(second))
        if not is_dry:
            await with_retries(lambda: carry_out_change(self._client, stream, change), changes=True)
        return {"dry_run": is_dry, "sentence": change.sentence} | change.to_json()

    async def _reshard_evenly(self, stream: str, target: object, *, is_dry: bool) -> dict[str, Any]:
        """Change the number of shards step by step, as the command line does. A failure says which steps were done."""
        if not isinstance(target, int) or isinstance(target, bool) or target < 1:
            raise UsageError(f"the number of shards must be a whole number from 1, not {target!r}")
        _, current, steps = await plan_even_reshard(self._client, stream, target)
        if not steps:
            return {"dry_run": is_dry, "sentence": f"it already has {counted(current, 'shard')}", "steps": []}
        numbers, done, stopped_by = [current, *steps], 0, None
        give_up_at = anyio.current_time() + _RESHARD_TIMEOUT
        try:
            for count in [] if is_dry else steps:
                await with_retries(partial(self._client.update_shard_count, stream, count), changes=True)
                await wait_for_stream(self._client, stream, "ACTIVE", max(1.0, give_up_at - anyio.current_time()))
                done += 1
        except ShardlineError as error:
            completed = f"done: {shown_path(current, steps[:done])}" if done else "no step is complete"
            left = shown_path(numbers[done], steps[done:])
            still = "; the service goes on with the first of these" if isinstance(error, WaitTimeout) else ""
            stopped_by = f"{str(error).rstrip('.')} ({completed}; not complete: {left}{still})"
        return {
            "dry_run": is_dry,
            "sentence": shown_path(current, steps),
            "steps": steps,
            "done": steps[:done],
            "stopped_by": stopped_by,
        }

    async def put(self, wish: Mapping[str, Any]) -> dict[str, Any]:
        """Put one record: new text, or the bytes of a record that is sent again."""
        try:
            data = base64.b64decode(wish["base64"], validate=True) if "base64" in wish else str(wish["data"]).encode()
        except binascii.Error:
            raise UsageError("base64 is not valid base64") from None
        key = wish.get("key") or None
        if wish.get("dry_run"):
            return {"dry_run": True, "sentence": f"{len(data)} bytes with the key {key!r} into {wish['stream']}"}
        async with Producer(wish["stream"], client=self._client) as producer:
            headers = dict(wish.get("headers") or {}) or None
            delivery = await producer.put(
                data, key=key, explicit_hash_key=wish.get("explicit_hash_key") or None, headers=headers
            )
            receipt = await delivery
        return {"dry_run": False, "shard_id": receipt.shard_id, "sequence_number": receipt.sequence_number}

    # ---- the embedded server

    async def server(self, _: Mapping[str, Any]) -> dict[str, Any]:
        kinesis = self._embedded()
        faults = [fault.to_dict() for fault in kinesis.faults.rules]
        return {"faults": faults, "now": kinesis.clock.now(), "frozen": kinesis.clock.is_frozen}

    async def add_fault(self, wish: Mapping[str, Any]) -> dict[str, Any]:
        """Add a fault rule, or remove all rules if ``clear`` is set."""
        kinesis = self._embedded()
        if wish.get("dry_run"):
            return {"dry_run": True, "sentence": "the embedded server answers as the faults say"}
        if wish.get("clear"):
            kinesis.faults.clear()
        else:
            kinesis.faults.load([dict(wish["fault"])])
        return await self.server(wish)

    async def set_clock(self, wish: Mapping[str, Any]) -> dict[str, Any]:
        """Freeze, resume or advance the clock."""
        kinesis = self._embedded()
        if wish.get("dry_run"):
            return {"dry_run": True, "sentence": "the clock of the embedded server changes; it cannot go back"}
        if wish.get("freeze"):
            kinesis.clock.freeze()
        if wish.get("resume"):
            kinesis.clock.resume()
        if wish.get("advance"):
            kinesis.clock.advance(float(wish["advance"]))
        return await self.server(wish)

    def _embedded(self) -> "LocalKinesis":
        assert self._kinesis is not None, "these actions exist only with an embedded server"
        return self._kinesis

    def _place(self, query: Mapping[str, Any]) -> StorePlace:
        number = int(query.get("store", 0))
        if not 0 <= number < len(self._stores):
            raise UsageError(f"there is no store {number}: this console has {len(self._stores)}")
        return self._stores[number]
