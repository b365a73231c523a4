"""Finds the groups of a lease store, and whether they are alive.

No row says that its owner is alive: a counter that moves does. So the store is watched for a moment, and the report
says what was seen.

Invariants:

- A group is called alive only if a lease changed while we watched. One whose owners stood still is called silent,
  for as long as we watched, and never dead.
- Nothing is made: a store that is not there is an error.
- The owner of a finished lease says nothing: it renews it no more.
"""

import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeVar, final

import anyio
import click

from shardline.adapters.aws.aws_service import AwsAccess
from shardline.adapters.leases.store_urls import lease_catalog, lease_store
from shardline.cli.error_messages import WrongUsage
from shardline.cli.invocation import Invocation
from shardline.cli.retrying import ask_again
from shardline.core.consumer.group_rows import foreign_rows
from shardline.core.consumer.shard_graph import ShardGraph
from shardline.core.failures import Failure
from shardline.model.lease import Lease
from shardline.model.shard import Shard
from shardline.ports import GroupOnStream, LeaseStore

T = TypeVar("T")

NO_SUCH_STORE: Final = "NoSuchStore"
"""The code of the failure to open what is not there."""
_PAUSE: Final = 0.2


@final
class StorePlace(NamedTuple):
    """Where the leases are, and how AWS is reached if they are there."""

    url: str
    aws: AwsAccess

    @classmethod
    def of(cls, url: str, invocation: Invocation) -> "StorePlace":
        """What the user named.

        Raises:
            WrongUsage: a store that only its own process can look into.
        """
        if url.lower().startswith("memory:"):
            raise WrongUsage(
                "the store memory: exists only inside the process that uses it: no other process can read it; use a "
                "store in SQLite, Redis or DynamoDB"
            )
        return cls(url, AwsAccess(time.time, region=invocation.region, profile=invocation.profile))


def answered(answer: T | Failure) -> T:
    """What a store answered.

    Raises:
        ClickException: it failed.
    """
    if isinstance(answer, Failure):
        raise click.ClickException(f"the store failed: {answer.message}")
    return answer


async def ask_groups(place: StorePlace) -> list[GroupOnStream] | Failure:
    """Every group in the store, and its stream."""
    catalog = lease_catalog(place.url, place.aws)
    try:
        failed = await _asked(catalog.open)
        return await _asked(catalog.list_groups) if failed is None else failed
    finally:
        await catalog.close()


async def find_group(place: StorePlace, group: str, stream: str | None) -> GroupOnStream:
    """The group that the user means, by its name and, if that is not enough, its stream's.

    Raises:
        ClickException: there is none.
        WrongUsage: there are several.
    """
    found = answered(await ask_groups(place))
    if found == [GroupOnStream(None, None)]:  # a table of the KCL: it serves whoever says the right stream
        if stream is None:
            raise WrongUsage("the rows of this table are a KCL's and do not say which stream they are for: name it too")
        return GroupOnStream(group, stream)
    same = [one for one in found if one.group == group and stream in {None, one.stream}]
    if len(same) == 1:
        return same[0]
    if same:
        streams = ", ".join(str(one.stream) for one in same)
        raise WrongUsage(f"the group {group!r} reads several streams: name one of {streams}")
    known = ", ".join(sorted({str(one.group) for one in found})) or "none"
    on = "" if stream is None else f" on the stream {stream!r}"
    raise click.ClickException(f"there is no group {group!r}{on} in this store; its groups: {known}")


def foreign_shards(rows: Mapping[str, Lease], shards: Mapping[str, Shard]) -> set[str]:
    """The shards whose rows cannot be of the stream that has ``shards``: it was re-created.

    ``shards`` must have been listed after ``rows`` were read. A finished row proves nothing: a listing that is a little
    late has its shard open.
    """
    unfinished = {shard_id: row for shard_id, row in rows.items() if not row.checkpoint.is_finished}
    graph = ShardGraph()
    graph.handle_listing(shards.values(), unfinished, 0.0, 0.0)
    return {row.shard_id for row, _ in foreign_rows(graph, unfinished)}


@asynccontextmanager
async def opened(place: StorePlace, *groups: GroupOnStream) -> AsyncGenerator[list[LeaseStore]]:
    """The stores of these groups."""
    async with AsyncExitStack() as stack:
        stores: list[LeaseStore] = []
        for group, stream in groups:
            # Rows that name nobody are read under any name.
            store = lease_store(place.url, group=group or "-", stream=stream or "-", aws=place.aws, existing=True)
            stack.push_async_callback(store.close)
            answered(await _asked(store.open))
            stores.append(store)
        yield stores


async def list_rows(store: LeaseStore) -> dict[str, Lease]:
    """The leases by shard.

    Raises:
        ClickException: the store failed.
    """
    return {row.shard_id: row for row in answered(await _asked(store.list_leases))}


async def _asked(call: Callable[[], Awaitable[T | Failure]]) -> T | Failure:
    """What a store answers; one that is throttled, locked or away for a moment is asked again."""
    return await ask_again(call, lambda failure: failure.retryable, _PAUSE)


@final
@dataclass
class Watch:
    """What was seen of one group."""

    rows: dict[str, Lease]
    moved: set[str] = field(default_factory=set[str])
    """The shards whose row changed meanwhile."""
    seconds: float = 0.0

    def see(self, rows: Mapping[str, Lease]) -> None:
        """Another look."""
        for shard_id in self.rows.keys() | rows.keys():
            before, now = self.rows.get(shard_id), rows.get(shard_id)
            if before is None or now is None or before.fence != now.fence:
                self.moved.add(shard_id)
        self.rows = dict(rows)

    @property
    def held(self) -> dict[str, Lease]:
        """The leases that someone holds, by their rows."""
        return {
            shard_id: row
            for shard_id, row in self.rows.items()
            if row.holder is not None and not row.checkpoint.is_finished
        }

    @property
    def holders(self) -> dict[str, bool]:
        """Who holds leases, and whether one of them moved."""
        found: dict[str, bool] = {}
        for shard_id, row in self.held.items():
            if row.holder is not None:
                found[row.holder] = found.get(row.holder, False) or shard_id in self.moved
        return dict(sorted(found.items()))

    @property
    def longest_silence(self) -> float:
        """For how long a live owner may be silent, as far as the rows say."""
        stated = [row.incarnation_of(row.holder) for row in self.held.values()]
        return max((owner.lease_duration for owner in stated if owner is not None), default=0.0)

    @property
    def is_alive(self) -> bool | None:
        """``None`` is silence; ``False``: nobody holds a lease."""
        return True if self.moved else None if self.held else False

    @property
    def is_settled(self) -> bool:
        """Whether watching on would tell nothing more."""
        return all(self.holders.values())

    @property
    def judgement(self) -> str:
        if self.is_alive:
            return "alive"
        if self.is_alive is None:
            return f"silent for {self.seconds:.0f} s" if self.seconds else "not watched"
        return "no owner"


async def watch_groups(stores: Sequence[LeaseStore], seconds: float, *, until_moved: bool = False) -> list[Watch]:
    """Look at the groups for so long, or until all owners were seen alive.

    With ``until_moved`` only until the first was, but at least as long as the owners say that they may be silent.
    """
    seen = [Watch(await list_rows(store)) for store in stores]
    began_at = anyio.current_time()
    if until_moved:
        seconds = max([seconds, *(one.longest_silence for one in seen)])
    pause = max((store.scan_interval for store in stores), default=0.0)
    while not all(one.is_settled or (until_moved and one.moved) for one in seen):
        left = seconds - (anyio.current_time() - began_at)
        if left <= 0:
            break
        await anyio.sleep(min(pause, left))
        for one, store in zip(seen, stores, strict=True):
            one.see(await list_rows(store))
            one.seconds = anyio.current_time() - began_at
    return seen


async def require_quiet(store: LeaseStore, lease_duration: float) -> dict[str, Lease]:
    """The rows of a group of which nobody moved a lease for ``lease_duration``, or as long as its owners may be silent.

    Raises:
        ClickException: someone did.
    """
    (seen,) = await watch_groups([store], lease_duration, until_moved=True)
    if seen.moved:
        movers = {row.holder for shard_id, row in seen.held.items() if shard_id in seen.moved}
        named = ", ".join(sorted(one for one in movers if one is not None)) or "someone"
        raise click.ClickException(
            f"the group is alive: {named} wrote to its leases while we watched; stop its workers, or pass --force"
        )
    return seen.rows
