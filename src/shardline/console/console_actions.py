"""Reads and changes streams, groups and records for the pages, through the functions of the command line.

Invariants:

- Lag, lineage, reset and reshard use the functions of the command line, so that both always agree.
- A change with ``dry_run`` returns what would happen, and writes nothing. Without it, a change needs
  ``--allow-changes``; ``console_server`` checks that before it calls this module.
- No object contains a credential or the URL of a store, which may hold a password: a store is shown without its user,
  password and query.
"""

import base64
import binascii
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, final
from urllib.parse import urlsplit

import anyio
import anyio.to_thread
import click

from shardline.aio.client import Client
from shardline.aio.producer.async_producer import Producer
from shardline.cli.doctor import stream_checks
from shardline.cli.error_messages import sole_error
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
from shardline.cli.streams.stream_views import listed_json, stream_json
from shardline.cli.streams.streams_command import (
    carry_out_change,
    plan_even_reshard,
    read_stream_view,
    read_summaries,
    shown_path,
)
from shardline.cli.time_arguments import parse_moment, parse_start, shown_time
from shardline.console.dead_letter_files import DeadLetterPlace, newest_dead_letters
from shardline.console.lineage_times import LineageTimes, fingerprint, with_times
from shardline.console.record_search import OpenSearches, RecordSearch
from shardline.console.record_views import RecordFilter
from shardline.core.error_codes import Failure
from shardline.core.requests import ShardFilter
from shardline.errors import ServiceError, ShardlineError, UsageError, WaitTimeout
from shardline.model.hashing import hash_key_of
from shardline.model.position import TRIM_HORIZON, Position
from shardline.model.shard import Shard
from shardline.model.stream import parse_stream
from shardline.server.model.fault_kinds import read_rule

if TYPE_CHECKING:
    from shardline.testing.local_kinesis import LocalKinesis

_SHARDS_MEASURED: Final = 4
_MEASURE_AGAIN_AFTER: Final = 1.0
_LEASE_DURATION: Final = 10.0
_RESHARD_TIMEOUT: Final = 240.0  # browsers give up on a request without an answer after five minutes

Action = Callable[[Mapping[str, Any]], Awaitable[dict[str, Any]]]


def problem_text(error: Exception) -> str:
    """Return the text of an error for a page."""
    sole = sole_error(error)
    return sole.format_message() if isinstance(sole, click.ClickException) else str(sole)


def shown_store(url: str) -> str:
    """Return the URL of a store without its user, password and query, which may hold secrets."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def _whole_number(query: Mapping[str, Any], name: str, default: int) -> int:
    try:
        return int(query.get(name, default))
    except (TypeError, ValueError):
        raise UsageError(f"{name} must be a whole number, not {query[name]!r}") from None


@final
class ConsoleActions:
    """The actions of one console: those that only read, and those that change something."""

    def __init__(
        self,
        client: Client,
        stores: Sequence[StorePlace],
        kinesis: "LocalKinesis | None" = None,
        dead_letters: Mapping[str, DeadLetterPlace] | None = None,
    ) -> None:
        self._client = client
        self._stores = list(stores)
        self._kinesis = kinesis
        self._dead_letters = dead_letters or {}
        self._times: dict[str, LineageTimes] = {}
        self._searches = OpenSearches()
        self.reads: Final[dict[str, Action]] = {
            "streams": self.streams,
            "stream": self.stream,
            "load": self.load,
            "groups": self.groups,
            "lag": self.lag,
            "letters": self.letters,
            "names": self.names,
            "records": self.records,
        }
        self.changes: Final[dict[str, Action]] = {"reset": self.reset, "reshard": self.reshard, "put": self.put}
        if kinesis is not None:
            self.reads["server"] = self.server
            self.changes.update({"fault": self.add_fault, "clock": self.set_clock})

    def before_store_calls(self, before_call: Callable[[str], Awaitable[None]]) -> None:
        """Call ``before_call`` with the operation before each call to DynamoDB."""
        self._stores = [StorePlace(place.url, replace(place.aws, before_call=before_call)) for place in self._stores]

    # ---- looking

    async def streams(self, _: Mapping[str, Any]) -> dict[str, Any]:
        return {"streams": [listed_json(stream) for stream in await read_summaries(self._client)]}

    async def stream(self, query: Mapping[str, Any]) -> dict[str, Any]:
        view = await read_stream_view(self._client, query["stream"])
        times = self._times.get(query["stream"])
        if times is None or times.stream_created_at != view.summary.created_at:  # first page, or new stream
            times = self._times[query["stream"]] = LineageTimes(view.summary.created_at)
        now = self._client.api.service_time()
        times.add_listing(view.shards, now)
        await self._ask_for_times(query["stream"], times, now, now - view.summary.retention_hours * 3600)
        notes = {line.shard.shard_id: line.note for line in draw(view.shards)}
        return with_times(stream_json(view), times, now) | {
            "lineage": fingerprint(view.shards),
            "notes": {shard_id: note for shard_id, note in notes.items() if note},
        }

    async def _ask_for_times(self, stream: str, times: LineageTimes, now: float, oldest: float) -> None:
        """If the sequence numbers do not show when the shards were created, ask Kinesis which shards were open at a few
        times.
        """
        while (at := times.next_question(oldest, now)) is not None:
            wanted = ShardFilter("AT_TIMESTAMP", timestamp=at)
            try:
                found = await with_retries(partial(self._client.list_shards, stream, wanted))
            except ServiceError:  # some emulators do not support this filter
                times.stop_asking()
            else:
                times.add_answer(at, [shard.shard_id for shard in found])

    def note_listing(self, stream: str, shards: Sequence[Shard]) -> None:
        """Note the shards that a live page has listed, so that the time of a change between two listings is known."""
        if stream in self._times:
            self._times[stream].add_listing(shards, self._client.api.service_time())

    async def load(self, query: Mapping[str, Any]) -> dict[str, Any]:
        """Measure the load of a stream as ``shardline doctor`` does, from a few of its shards."""
        stream = query["stream"]
        shards = await with_retries(lambda: self._client.list_shards(stream))
        opened_shards = [shard for shard in shards if shard.is_open]
        step = max(1, len(opened_shards) // _SHARDS_MEASURED)
        chosen = opened_shards[::step][:_SHARDS_MEASURED]
        found = await stream_checks.sample(self._client.api, parse_stream(stream), chosen)
        # Kinesis may throttle the reads of a hot shard, which has many readers. The shard must not be missing because
        # of that.
        throttled = {shard_id for shard_id, load in found.items() if isinstance(load, Failure) and load.retryable}
        if throttled:
            await anyio.sleep(_MEASURE_AGAIN_AFTER)
            found |= await stream_checks.sample(
                self._client.api, parse_stream(stream), [shard for shard in chosen if shard.shard_id in throttled]
            )
        loads = {shard_id: load for shard_id, load in found.items() if not isinstance(load, Failure)}
        problem = next((load.message for load in found.values() if isinstance(load, Failure)), None)
        hottest = max(loads, key=lambda shard_id: stream_checks.fill(loads[shard_id]), default=None)
        scale = len(opened_shards) / len(loads) if loads else 0.0
        return {
            "open_shards": len(opened_shards),
            "measured_shards": len(loads),
            "failed_shards": sorted(found.keys() - loads.keys()),
            "records_per_second": round(scale * sum(load.records for load in loads.values()), 1),
            "bytes_per_second": round(scale * sum(load.bytes for load in loads.values())),
            "hottest": hottest,
            "hottest_load": None if hottest is None else round(stream_checks.fill(loads[hottest]), 3),
            "problem": problem,
        }

    async def groups(self, _: Mapping[str, Any]) -> dict[str, Any]:
        """Return the groups of all stores that can be read, and for each other store why it could not be read."""
        found: dict[int, list[dict[str, Any]]] = {}
        problems: dict[int, str] = {}

        async def read(number: int) -> None:
            try:
                found[number] = await self._groups_of(number)
            except (ShardlineError, click.ClickException, ExceptionGroup) as error:
                problems[number] = f"{shown_store(self._stores[number].url)}: {problem_text(error)}"

        async with anyio.create_task_group() as tasks:
            for number in range(len(self._stores)):
                tasks.start_soon(read, number)
        return {
            "stores": len(self._stores),
            "groups": [group for _, groups in sorted(found.items()) for group in groups],
            "problems": [problem for _, problem in sorted(problems.items())],
        }

    async def _groups_of(self, number: int) -> list[dict[str, Any]]:
        place = self._stores[number]
        names = answered(await ask_groups(place))
        async with opened(place, *names) as stores:
            seen = await watch_groups(stores, 0.0)
        objects = [group_report.group_object(name, watch) for name, watch in zip(names, seen, strict=True)]
        return [group | {"store": number, "store_name": shown_store(place.url)} for group in objects]

    async def lag(self, query: Mapping[str, Any]) -> dict[str, Any]:
        """Return how far behind a group is, as ``shardline groups describe`` finds it."""
        place = self.place_of(query)
        name = await find_group(place, query["group"], query["stream"])
        async with opened(place, name) as stores:
            (seen,) = await watch_groups(stores, 0.0)
        lags = (await describe_lag(self._client, name, seen)).lags or {}
        known = {shard_id: lag.millis for shard_id, lag in lags.items() if lag.millis is not None}
        worst = max(known, key=lambda shard_id: known[shard_id], default=None)
        return {
            "shard_id": worst,
            "lag_ms": None if worst is None else known[worst],
            "unknown": len(lags) - len(known),
            "shards": len(lags),
        }

    async def letters(self, query: Mapping[str, Any]) -> dict[str, Any]:
        """Return the place of a group's dead letters and, if that place is a file, the newest dead letters."""
        place = self._dead_letters.get(query["group"])
        if place is None:
            return {"is_known": False}
        if place.path is None:
            return {"is_known": True, "stream": place.stream}
        return {"is_known": True} | await anyio.to_thread.run_sync(newest_dead_letters, place.path)

    async def names(self, _: Mapping[str, Any]) -> dict[str, Any]:
        """Return only the names of the streams, for pages that do not need the description of every stream."""
        return {"streams": [stream.name for stream in await with_retries(self._client.list_streams)]}

    async def records(self, query: Mapping[str, Any]) -> dict[str, Any]:
        """Search for records from a position: in one shard, in the shards that held a key (oldest first), or in all
        shards. With ``next``, continue an earlier search.
        """
        limit = _whole_number(query, "limit", 100)
        if "next" in query:
            return await self._searches.read_on(self._searches.take(query["next"]), limit)
        stream = query["stream"]
        wanted = self.filter_of(query)
        start = self.start_of(query, "TRIM_HORIZON")
        shard_id = query.get("shard") or ""
        search = RecordSearch(
            self._client,
            stream,
            await self._reading_places(stream, shard_id, wanted.key, start),
            wanted,
            is_in_order=bool(shard_id or wanted.key),
            is_whole="whole" in query,
        )
        return await self._searches.read_on(search, limit)

    def filter_of(self, query: Mapping[str, Any]) -> RecordFilter:
        """Return the record filter that a query describes.

        Raises:
            UsageError: ``to`` is not a time.
        """
        to = query.get("to")
        until = parse_moment(to, self._client.api.service_time()) if to else None
        return RecordFilter(query.get("key", ""), query.get("text", ""), query.get("header", ""), until)

    def start_of(self, query: Mapping[str, Any], default: str) -> Position:
        """Return the position that ``from`` describes.

        Raises:
            UsageError: ``from`` is not a position.
        """
        return parse_start(query.get("from") or default, self._client.api.service_time())

    async def _reading_places(
        self, stream: str, shard_id: str, key: str, start: Position
    ) -> list[tuple[str, Position]]:
        """Return the shards to read, oldest first, each with the position to read it from."""
        if shard_id:
            return [(shard_id_of(shard_id), start)]
        hashed = hash_key_of(key) if key else None
        shards = sorted(await with_retries(lambda: self._client.list_shards(stream)), key=age)
        covering = [shard for shard in shards if hashed is None or hashed in shard.hash_range]
        if start.sequence_number is None:
            return [(shard.shard_id, start) for shard in covering]
        if hashed is None:
            raise UsageError("a sequence number belongs to one shard: name the shard too")
        number = start.sequence_number.number
        ends = [shard.ending_sequence_number for shard in covering]
        left = [shard for shard, end in zip(covering, ends, strict=True) if end is None or end.number >= number]
        # A sequence number is valid only in the shard that contains it. The shards after it are read from their
        # beginning.
        return [(shard.shard_id, start if at == 0 else TRIM_HORIZON) for at, shard in enumerate(left)]

    # ---- changing

    async def reset(self, wish: Mapping[str, Any]) -> dict[str, Any]:
        """Reset a group, or with ``dry_run`` return what would be replayed and skipped."""
        place, is_dry, force = self.place_of(wish), bool(wish.get("dry_run")), bool(wish.get("force"))
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
        """Split a shard, merge two shards, or change the number of shards. With ``dry_run``, only return the plan."""
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
        """Change the number of shards step by step, as the command line does. If a step fails, the error says which
        steps were completed.
        """
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
            with_key = "without a key" if key is None else f"with the key {key!r}"
            return {"dry_run": True, "sentence": f"{counted(len(data), 'byte')} {with_key} into {wish['stream']}"}
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
        """Add a fault rule, remove the rule with the number ``remove``, or remove all rules if ``clear`` is set."""
        kinesis = self._embedded()
        unwanted = [fault for fault in kinesis.faults.rules if wish.get("clear") or fault.id == wish.get("remove")]
        if "fault" not in wish:
            for fault in [] if wish.get("dry_run") else unwanted:
                fault.remove()
            sentence = f"remove {counted(len(unwanted), 'fault')}: the embedded server answers normally again"
        else:
            rule = read_rule(dict(wish["fault"]))
            if not wish.get("dry_run"):
                kinesis.faults.load([dict(wish["fault"])])
            times = "until it is removed" if rule.count is None else f"{counted(rule.count, 'time')}"
            sentence = f"the embedded server injects the fault {rule.kind!r}, {times}: every client sees it"
        return {"dry_run": bool(wish.get("dry_run")), "sentence": sentence} | await self.server(wish)

    async def set_clock(self, wish: Mapping[str, Any]) -> dict[str, Any]:
        """Freeze, resume or advance the clock of the embedded server."""
        kinesis, is_dry = self._embedded(), bool(wish.get("dry_run"))
        if "advance" in wish:
            seconds = float(wish["advance"])
            if not 0 < seconds < float("inf"):
                raise UsageError(f"the clock can only be moved ahead, by a number of seconds above 0, not {seconds!r}")
            then = shown_time(kinesis.clock.now() + seconds)
            sentence = f"the clock moves ahead to {then}, and cannot go back: records and iterators may expire"
            if not is_dry:
                kinesis.clock.advance(seconds)
        elif wish.get("freeze"):
            sentence = "the clock stops: new records get the same time, and nothing expires, until it is resumed"
            if not is_dry:
                kinesis.clock.freeze()
        else:
            sentence = "the clock runs again"
            if not is_dry:
                kinesis.clock.resume()
        return {"dry_run": is_dry, "sentence": sentence} | await self.server(wish)

    def _embedded(self) -> "LocalKinesis":
        assert self._kinesis is not None, "these actions exist only with an embedded server"
        return self._kinesis

    def place_of(self, query: Mapping[str, Any]) -> StorePlace:
        """Return the store that a query names by its number.

        Raises:
            UsageError: there is no such store.
        """
        number = _whole_number(query, "store", 0)
        if not 0 <= number < len(self._stores):
            raise UsageError(f"there is no store {number}: this console has {len(self._stores)}")
        return self._stores[number]
