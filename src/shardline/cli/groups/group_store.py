"""Finds the groups of a lease store, and checks whether they are alive.

A single read of a row does not show whether its owner is alive; only a changing counter does. So the store is watched
for a while, and the report says what was seen.

Invariants:

- A group is called alive only if a lease changed during the watch. Otherwise a group with owners is called silent for
  the length of the watch, never dead.
- A missing store is an error: nothing is created, except by an import.
- The owner of a finished lease is ignored, because finished leases are not renewed.
"""

import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager, AsyncExitStack, asynccontextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeVar, final

import anyio
import click

from shardline.adapters.aws.aws_service import AwsAccess
from shardline.adapters.leases.store_urls import lease_catalog, lease_store
from shardline.cli.error_messages import WrongUsage
from shardline.cli.invocation import Invocation
from shardline.cli.retrying import retry_while
from shardline.cli.terminal import waiting
from shardline.core.consumer.group_rows import foreign_rows
from shardline.core.consumer.shard_graph import ShardGraph
from shardline.core.error_codes import Failure
from shardline.model.lease import Lease
from shardline.model.shard import Shard
from shardline.ports import GroupOnStream, LeaseStore

T = TypeVar("T")

NO_SUCH_STORE: Final = "NoSuchStore"
"""The error code of a store that does not exist."""
_PAUSE: Final = 0.2


@final
class StorePlace(NamedTuple):
    """The URL of a lease store, and the AWS access for a store on DynamoDB."""

    url: str
    aws: AwsAccess

    @classmethod
    def of(cls, url: str, invocation: Invocation) -> "StorePlace":
        """Return the store at ``url``, with the AWS settings of the command line.

        Raises:
            WrongUsage: the store is in memory, where only its own process can read it.
            UsageError: the URL does not name a store, or an extra is not installed.
        """
        if url.lower().startswith("memory:"):
            raise WrongUsage(
                "the store memory: exists only inside the process that uses it, so no other process can read it; use a "
                "store in SQLite, Redis, PostgreSQL or DynamoDB"
            )
        place = cls(url, AwsAccess(time.time, region=invocation.region, profile=invocation.profile))
        lease_catalog(place.url, place.aws)  # raises if the URL is wrong: some commands open the store much later
        return place


def answered(answer: T | Failure) -> T:
    """Return the store's response.

    Raises:
        ClickException: the response is a failure.
    """
    if isinstance(answer, Failure):
        raise click.ClickException(f"the store failed: {answer.message}")
    return answer


async def ask_groups(place: StorePlace) -> list[GroupOnStream] | Failure:
    """Return every group in the store, with its stream."""
    catalog = lease_catalog(place.url, place.aws)
    try:
        failure = await _retried(catalog.open)
        return await _retried(catalog.list_groups) if failure is None else failure
    finally:
        await catalog.close()


async def find_group(place: StorePlace, group: str, stream: str | None) -> GroupOnStream:
    """Return the group with this name, and on this stream if a stream is given.

    Raises:
        ClickException: there is no such group.
        WrongUsage: several groups match.
    """
    found = answered(await ask_groups(place))
    if found == [GroupOnStream(None, None)]:  # a KCL table, which names neither its group nor its stream
        if stream is None:
            raise WrongUsage(
                "this table was written by the KCL, which does not store the stream's name: give STREAM too"
            )
        return GroupOnStream(group, stream)
    matches = [name for name in found if name.group == group and stream in {None, name.stream}]
    if len(matches) == 1:
        return matches[0]
    if matches:
        streams = ", ".join(str(name.stream) for name in matches)
        raise WrongUsage(f"the group {group!r} reads several streams: name one of {streams}")
    known = ", ".join(sorted({str(name.group) for name in found})) or "none"
    on = "" if stream is None else f" on the stream {stream!r}"
    raise click.ClickException(f"there is no group {group!r}{on} in this store; its groups: {known}")


def foreign_shards(rows: Mapping[str, Lease], shards: Mapping[str, Shard]) -> set[str]:
    """Return the shards whose rows cannot belong to the stream with ``shards``, because the stream was re-created.

    ``shards`` must have been listed after ``rows`` were read. Finished rows are ignored: a listing that is slightly out
    of date may still show their shards as open.
    """
    unfinished = {shard_id: row for shard_id, row in rows.items() if not row.checkpoint.is_finished}
    return set(foreign_reasons(unfinished, shards))


def foreign_reasons(rows: Mapping[str, Lease], shards: Mapping[str, Shard]) -> dict[str, str]:
    """For each row that cannot belong to the stream with ``shards``, return the reason, by shard id."""
    graph = ShardGraph()
    graph.handle_listing(shards.values(), rows, 0.0, 0.0)
    return {row.shard_id: reason for row, reason in foreign_rows(graph, dict(rows))}


@asynccontextmanager
async def opened(place: StorePlace, *groups: GroupOnStream, existing: bool = True) -> AsyncGenerator[list[LeaseStore]]:
    """Open a lease store for each group during the block. ``existing=False`` creates a missing file or table."""
    async with AsyncExitStack() as stack:
        stores: list[LeaseStore] = []
        for group, stream in groups:
            # A store whose rows name no group or stream ignores these names, so any text will do.
            store = lease_store(place.url, group=group or "-", stream=stream or "-", aws=place.aws, existing=existing)
            stack.push_async_callback(store.close)
            answered(await _retried(store.open))
            stores.append(store)
        yield stores


async def list_rows(store: LeaseStore) -> dict[str, Lease]:
    """Return the leases by shard id.

    Raises:
        ClickException: the store failed.
    """
    return {row.shard_id: row for row in answered(await _retried(store.list_leases))}


async def _retried(call: Callable[[], Awaitable[T | Failure]]) -> T | Failure:
    """Return the store's response, retrying while the store is throttled, locked or briefly unreachable."""
    return await retry_while(call, lambda failure: failure.retryable, _PAUSE)


@final
@dataclass
class Watch:
    """The rows of one group, and the changes that were seen while it was watched."""

    rows: dict[str, Lease]
    """The rows by shard id, as last read."""
    moved: set[str] = field(default_factory=set[str])
    """The shards whose rows changed during the watch."""
    seconds: float = 0.0
    """The length of the watch. ``watch_groups`` sets it."""

    def update(self, rows: Mapping[str, Lease]) -> None:
        """Compare the rows with the previous rows, and remember which of them changed."""
        for shard_id in self.rows.keys() | rows.keys():
            before, now = self.rows.get(shard_id), rows.get(shard_id)
            if before is None or now is None or before.fence != now.fence:
                self.moved.add(shard_id)
        self.rows = dict(rows)

    @property
    def held(self) -> dict[str, Lease]:
        """The rows that have an owner and are not finished, by shard id."""
        return {
            shard_id: row
            for shard_id, row in self.rows.items()
            if row.holder is not None and not row.checkpoint.is_finished
        }

    @property
    def holders(self) -> dict[str, bool]:
        """For each worker that holds leases, whether one of its leases changed."""
        found: dict[str, bool] = {}
        for shard_id, row in self.held.items():
            if row.holder is not None:
                found[row.holder] = found.get(row.holder, False) or shard_id in self.moved
        return dict(sorted(found.items()))

    @property
    def longest_silence(self) -> float:
        """The longest lease duration that the rows name: a live owner may be silent for that long."""
        owners = [row.incarnation_of(row.holder) for row in self.held.values()]
        return max((owner.lease_duration for owner in owners if owner is not None), default=0.0)

    @property
    def is_alive(self) -> bool | None:
        """``True`` if a lease changed, ``None`` if the owners were silent, ``False`` if no lease has an owner."""
        return True if self.moved else None if self.held else False

    @property
    def is_settled(self) -> bool:
        """Whether all owners were seen alive. If so, watching longer would show nothing new."""
        return all(self.holders.values())

    @property
    def judgement(self) -> str:
        """The state of the group, as a text such as ``alive`` or ``silent for 4 s``."""
        if self.is_alive:
            return "alive"
        if self.is_alive is None:
            return f"silent for {self.seconds:.0f} s" if self.seconds else "not watched"
        return "no owner"


def watching(seconds: float) -> AbstractContextManager[None]:
    """While the block runs, show that the leases are being watched. If ``seconds`` is 0, show nothing."""
    return waiting(f"watching the leases for up to {seconds:g} s") if seconds else nullcontext()


async def watch_groups(stores: Sequence[LeaseStore], seconds: float, *, until_moved: bool = False) -> list[Watch]:
    """Watch the groups for up to ``seconds``, or until all owners have been seen alive.

    With ``until_moved``, one change shows that a group is alive, and a group without a change is watched for at least
    as long as its owners may be silent.
    """
    watches = [Watch(await list_rows(store)) for store in stores]
    began_at = anyio.current_time()
    if until_moved:
        seconds = max([seconds, *(watch.longest_silence for watch in watches)])
    pause = max((store.scan_interval for store in stores), default=0.0)
    while not all(watch.is_settled or (until_moved and watch.moved) for watch in watches):
        left = seconds - (anyio.current_time() - began_at)
        if left <= 0:
            break
        await anyio.sleep(min(pause, left))
        for watch, store in zip(watches, stores, strict=True):
            watch.update(await list_rows(store))
            watch.seconds = anyio.current_time() - began_at
    return watches


async def require_quiet(store: LeaseStore, lease_duration: float) -> dict[str, Lease]:
    """Watch a group for ``lease_duration``, or as long as its owners may be silent. If no row changed, return the rows.

    Raises:
        ClickException: a lease changed during the watch.
    """
    (watch,) = await watch_groups([store], lease_duration, until_moved=True)
    if watch.moved:
        writers = {row.holder for shard_id, row in watch.held.items() if shard_id in watch.moved}
        names = ", ".join(sorted(writer for writer in writers if writer is not None)) or "another process"
        raise click.ClickException(
            f"the group is alive: {names} wrote to its leases during the watch; stop its workers, or pass --force"
        )
    return watch.rows
